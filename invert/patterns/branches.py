"""Branches of `lax.cond` and `lax.switch` under `jax.vmap`, which all run.

JAX gives each branch its operands as `select_n (index == i) (stop_gradient x) x`, so that a branch
that was not taken adds no derivative: without that, `sqrt` of a zero that another branch handles
makes every gradient NaN. A module holds `select_n (index == i) x x`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from invert._private.jax import Var
from invert.ir import kinds
from invert.ir.graph import is_number, literal
from invert.ir.types import Atom, JaxFunction
from invert.rewriting.pattern import EquationPattern, Site


def _operand(site: Site) -> JaxFunction | None:
    """`select_n (index == i) x x` -> `select_n (index == i) (stop_gradient x) x`."""
    predicate, x, *others = site.eqn.invars
    if len(others) != 1 or others[0] is not x or not jnp.issubdtype(site.out.dtype, jnp.inexact):
        return None
    equal = site.producer(_unshaped(site, predicate), "eq")
    if equal is None or literal(equal.invars[1]) is None:
        return None
    index = equal.invars[0]
    # Anyone may write a selection between equal values. Only the index of branches then selects
    # between their results as well.
    return _branch if isinstance(index, Var) and _selects(site, index) else None


def _branch(predicate: Array, x: Array, _: Array) -> Array:
    return lax.select_n(predicate, lax.stop_gradient(x), x)


def _unshaped(site: Site, atom: Atom) -> Atom:
    """The value that was brought into the shape of `atom`."""
    while (eqn := site.producer(atom, *kinds.LAYOUT)) is not None:
        atom = eqn.invars[0]
    return atom


def _selects(site: Site, index: Var) -> bool:
    """Return whether a number chooses between results, in its own shape or in another.

    In the derivative of branches it chooses which of them gets a cotangent:
    `select_n (index == i) 0 ct`.
    """
    if index.aval.dtype != np.int32:
        return False
    pending: list[tuple[Atom, bool]] = [(index, False)]
    while pending:
        atom, compared = pending.pop()
        for user in site.graph.users.get(atom, ()):
            name = user.primitive.name
            if name == "select_n" and user.invars[0] is atom:
                if not compared or (_is_zero(site, user.invars[1]) and len(user.invars) == 3):
                    return True
            elif name in kinds.LAYOUT:
                pending.extend((v, compared) for v in user.outvars)
            elif name == "eq" and not compared and literal(user.invars[1]) is not None:
                pending.extend((v, True) for v in user.outvars)
    return False


def _is_zero(site: Site, atom: Atom) -> bool:
    number = site.graph.filling(atom)
    return number is not None and is_number(number, 0)


PATTERNS = (EquationPattern("branch_operand", ("select_n",), _operand),)
