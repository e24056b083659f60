"""Passes over the equations of one jaxpr.

A step that holds a graph of the jaxpr belongs in `replaced`, where results keep their names: it
sees the operands of the graph. In `rewritten`, operands follow the renaming of results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax

from invert._private.jax import dce, open_jaxpr, rename_operands, renamed, trace_closed
from invert.ir.types import Atom, Eqn, JaxFunction, Jaxpr, Var

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

    The jaxpr itself if none changes. `step` gets equations on renamed operands, which a graph of
    the jaxpr does not know.
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


def cleaned(jaxpr: Jaxpr, changed: Jaxpr) -> Jaxpr:
    """A program after a pass, without what the pass made dead; itself if nothing changed."""
    return jaxpr if changed is jaxpr else dce(changed)


def in_place_of(eqn: Eqn, operands: Sequence[Atom], function: JaxFunction) -> list[Eqn]:
    """Trace a function on `operands`, as equations with the results and source of `eqn`."""
    with jax.enable_x64(True):
        program = open_jaxpr(trace_closed(function, *(a.aval for a in operands)))
    names: dict[Atom, Atom] = dict(
        zip((*program.invars, *program.outvars), (*operands, *eqn.outvars), strict=True)
    )
    return [
        e.replace(
            invars=renamed(e.invars, names),
            outvars=renamed(e.outvars, names),
            source_info=eqn.source_info,
        )
        for e in program.eqns
    ]
