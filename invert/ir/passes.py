"""A pass over the equations of one jaxpr that replaces some of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from invert._private.jax import rename_operands, renamed
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Equations in place of one, and the atoms in place of its results.
Made: TypeAlias = tuple[Sequence[Eqn], Sequence[Atom]]


def rewritten(jaxpr: Jaxpr, step: Callable[[Eqn], Made | None]) -> Jaxpr:
    """Replace each equation for which `step` returns others; the jaxpr itself if none changes.

    The operands of the equations given to `step` are renamed already.
    """
    eqns: list[Eqn] = []
    names: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        eqn = rename_operands(eqn, names)
        made, results = step(eqn) or ([eqn], eqn.outvars)
        eqns += made
        names.update((v, a) for v, a in zip(eqn.outvars, results, strict=True) if a is not v)
    if not names and all(a is b for a, b in itertools.zip_longest(eqns, jaxpr.eqns)):
        return jaxpr
    return jaxpr.replace(eqns=eqns, outvars=renamed(jaxpr.outvars, names))
