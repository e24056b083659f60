"""Passes over the equations of one jaxpr.

A step that holds a graph of the jaxpr belongs into `replaced`, whose results keep their names: the
operands that it sees are those of the graph. In `rewritten`, operands are renamed as results are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from invert._private.jax import rename_operands, renamed
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Equations in place of one, and the atoms in place of its results.
Made: TypeAlias = tuple[Sequence[Eqn], Sequence[Atom]]


def replaced(jaxpr: Jaxpr, step: Callable[[Eqn], Sequence[Eqn] | None]) -> Jaxpr:
    """Replace each equation for which `step` returns others with the same results.

    The jaxpr itself if none changes.
    """
    eqns: list[Eqn] = []
    changed = False
    for eqn in jaxpr.eqns:
        if (made := step(eqn)) is None:
            eqns.append(eqn)
            continue
        results = {v for e in made for v in e.outvars}
        if not results.issuperset(eqn.outvars):
            raise ValueError(f"a step of `replaced` drops results of {eqn.primitive.name}")
        eqns += made
        changed = True
    return jaxpr.replace(eqns=eqns) if changed else jaxpr


def rewritten(jaxpr: Jaxpr, step: Callable[[Eqn], Made | None]) -> Jaxpr:
    """Replace each equation for which `step` returns others and the atoms of their results.

    The jaxpr itself if none changes. Equations are given to `step` on renamed operands, which no
    graph of the jaxpr knows.
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
