"""Gives each layer its own constant, where equal ones have been merged.

A new model's biases are zeros and its scales are ones, so an export holds only one constant for
each size. Two uses of it belong to one layer if their other operands come from the same parameters
by the same operations, as in the steps of an unrolled loop.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.merging import atom_key, operation_key
from invert.ir.types import Atom, Eqn, Jaxpr, Var


def split_constants(
    jaxpr: Jaxpr, constants: Sequence[np.ndarray]
) -> tuple[Jaxpr, list[np.ndarray], list[int]]:
    """A program whose layers share no array of equal numbers.

    **Arguments:**

    - `constants`: the values of its leading arguments.

    **Returns:** the program over more constants, these, and for each the number of the one that it
    equals.
    """
    own = jaxpr.invars[: len(constants)]
    filled = {v for v, value in zip(own, constants, strict=True) if _is_filled(value)}
    groups = _groups(jaxpr, filled, {v for v in own if v not in filled})
    numbers = list(range(len(constants)))
    # The variables that replace a constant, by the equation that uses it.
    replaced: dict[Eqn, dict[Var, Var]] = {}
    for i, v in enumerate(own):
        for users in list(groups.get(v, {}).values())[1:]:
            copy = Var(v.aval)
            numbers.append(i)
            own = [*own, copy]
            for eqn in users:
                replaced.setdefault(eqn, {})[v] = copy
    if not replaced:
        return jaxpr, list(constants), numbers
    eqns: list[Eqn] = []
    forms: dict[Var, Eqn] = {}
    for eqn in jaxpr.eqns:
        if _reshaped(eqn, filled | forms.keys()) is not None:
            forms[eqn.outvars[0]] = eqn
        elif eqn in replaced:
            copies = replaced[eqn]
            made = {a: _form(a, forms, copies, eqns) for a in eqn.invars if is_var(a)}
            eqn = eqn.replace(invars=[made[a] if is_var(a) else a for a in eqn.invars])
        eqns.append(eqn)
    # In the order of use, like the fields.
    used = {a: -i for i, eqn in enumerate(reversed(eqns)) for a in eqn.invars if is_var(a)}
    order = sorted(range(len(own)), key=lambda k: used.get(own[k], 1))
    invars = [*(own[k] for k in order), *jaxpr.invars[len(constants) :]]
    numbers = [numbers[k] for k in order]
    return jaxpr.replace(invars=invars, eqns=eqns), [constants[i] for i in numbers], numbers


def _is_filled(value: np.ndarray) -> bool:
    inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    return inexact and value.ndim > 0 and value.size > 1 and bool((value == value.flat[0]).all())


def _reshaped(eqn: Eqn, variables: Collection[Var]) -> Var | None:
    """The variable among these that an equation reshapes."""
    if eqn.primitive.name not in kinds.LAYOUT or len(eqn.invars) != 1:
        return None
    (x,) = eqn.invars
    return x if is_var(x) and x in variables else None


def _form(v: Var, forms: Mapping[Var, Eqn], copies: Mapping[Var, Var], eqns: list[Eqn]) -> Var:
    """The copy of a constant, or the equation that reshapes it, for one user."""
    if v in copies:
        return copies[v]
    if v not in forms:
        return v
    eqn = forms[v]
    (operand,) = filter(is_var, eqn.invars)
    source = _form(operand, forms, copies, eqns)
    if source is operand:
        return v
    eqn = eqn.replace(invars=[source], outvars=[Var(v.aval)])
    eqns.append(eqn)
    return eqn.outvars[0]


def _groups(
    jaxpr: Jaxpr, filled: set[Var], others: set[Var]
) -> dict[Var, dict[Hashable, list[Eqn]]]:
    """Users of each uniform constant, by the origin of their other operands."""
    source: dict[Var, Var] = {v: v for v in filled}
    keys: dict[Var, Hashable] = {v: ("parameter", i) for i, v in enumerate(others)}
    groups: dict[Var, dict[Hashable, list[Eqn]]] = {}
    # Keys are numbers; nested keys would grow with the depth of the program.
    known: dict[Hashable, int] = {}

    def key(atom: Atom) -> Hashable:
        if not is_var(atom):
            return atom_key(atom)
        if atom in source:
            return "filled", atom.aval.shape
        return keys.get(atom, "argument")

    for eqn in jaxpr.eqns:
        if (operand := _reshaped(eqn, source)) is not None:
            source[eqn.outvars[0]] = source[operand]
            continue
        # A product with parameters begins a layer; its other operand comes from earlier ones.
        weights = [a for a in eqn.invars if is_var(a) and _is_parameter(keys.get(a))]
        operands = weights if kinds.computes(eqn) in _PRODUCTS and weights else eqn.invars
        operation = operation_key(eqn) or (eqn.primitive.name, id(eqn))
        whole = known.setdefault((operation, tuple(map(key, operands))), len(known))
        for v in dict.fromkeys(source[a] for a in eqn.invars if is_var(a) and a in source):
            groups.setdefault(v, {}).setdefault(whole, []).append(eqn)
        moved = eqn.primitive.name in kinds.MOVES and len(weights) == len(eqn.invars) == 1
        for i, out in enumerate(eqn.outvars):
            keys[out] = keys[weights[0]] if moved else (whole, i)
    return groups


# Products with parameters, and lookups in them.
_PRODUCTS = frozenset(("conv_general_dilated", "dot_general", "gather"))


def _is_parameter(key: Hashable | None) -> bool:
    return isinstance(key, tuple) and key[0] == "parameter"
