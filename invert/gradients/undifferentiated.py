"""Undoes what JAX changes in a function where it differentiates it.

The rule of a primitive computes its value too, and some compute more than the primitive does, or
compute it in another way. The derivative of what they compute is then another program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from invert._private.jax import dce, eval_closed, eval_jaxpr, open_jaxpr, trace_closed
from invert.ir.avals import type_of
from invert.ir.graph import Graph, from_outside, is_number, is_var
from invert.ir.jaxprs import sub_jaxprs, variables_read, with_equations
from invert.ir.loops import ScanParts
from invert.ir.lowered_form import lowered_form
from invert.ir.merging import program_key
from invert.ir.passes import replaced
from invert.ir.types import Atom, Eqn, Jaxpr, Value


def undifferentiated(jaxpr: Jaxpr) -> Jaxpr:
    """Equations as they were before JAX differentiated them; inner jaxprs stay as they are."""
    graph = Graph(with_less_sorted(jaxpr))
    changed = with_equations(graph.jaxpr, [_undone(e, graph) for e in graph.eqns])
    return changed if changed is graph.jaxpr else dce(changed)


def with_invariants_inside(jaxpr: Jaxpr) -> Jaxpr:
    """Compute in each step of a loop what is computed for the loop alone.

    JAX takes what does not change from step to step out of a loop that it differentiates, such as
    weights that a cell joins. The derivative then sums up that of the parts, step by step.
    """
    graph = Graph(jaxpr)

    def inside(eqn: Eqn) -> list[Eqn] | None:
        if eqn.primitive.name != "scan" or eqn.effects:
            return None
        moved = _only_for(eqn, graph)
        return [_with_inside(eqn, moved, jaxpr)] if moved else None

    found = replaced(jaxpr, inside)
    return jaxpr if found is jaxpr else dce(found)


def _only_for(loop: Eqn, graph: Graph) -> list[Eqn]:
    """The equations whose results only a loop reads, as constants."""
    consts = {*filter(is_var, ScanParts.of(loop).consts)}
    others = {a for a in loop.invars[len(ScanParts.of(loop).consts) :] if is_var(a)}
    moved: dict[Eqn, None] = {}
    for eqn in reversed(graph.eqns[: graph.index[loop]]):
        users = {u for v in eqn.outvars for u in graph.users.get(v, ())}
        read = consts.union(*(filter(is_var, u.invars) for u in users if u is not loop))
        alone = users.issubset({loop, *moved}) and graph.results.isdisjoint(eqn.outvars)
        if not users or not alone or not read.issuperset(eqn.outvars):
            continue
        if not (eqn.effects or others.intersection(eqn.outvars) or any(sub_jaxprs(eqn))):
            moved[eqn] = None
    return [*reversed(moved)]


def _with_inside(loop: Eqn, moved: Sequence[Eqn], around: Jaxpr) -> Eqn:
    parts = ScanParts.of(loop)
    made = {v for e in moved for v in e.outvars}
    read = from_outside(moved)
    results = [a for a in parts.consts if is_var(a) and a in made]
    consts = [*dict.fromkeys((*(a for a in parts.consts if a not in results), *read))]
    program = around.replace(constvars=[], invars=read, outvars=results, eqns=[*moved])

    def step(*values: Value) -> list[Value]:
        known = dict(zip(map(id, consts), values, strict=False))
        found = eval_jaxpr(program, [known[id(a)] for a in read])
        known |= zip(map(id, results), found, strict=True)
        own = [known[id(a)] for a in parts.consts]
        return eval_closed(parts.body, [*own, *values[len(consts) :]])

    rows = open_jaxpr(parts.body).invars[len(parts.consts) :]
    body = trace_closed(step, *map(type_of, (*consts, *rows)))
    widened = dataclasses.replace(parts, consts=consts)
    return widened.closing_over(loop, body, range(len(consts)))


def with_less_sorted(jaxpr: Jaxpr) -> Jaxpr:
    """Sort only the keys and what is read; derivatives also sort positions."""
    read = variables_read(jaxpr)

    def used(eqn: Eqn) -> Eqn:
        if eqn.primitive.name != "sort":
            return eqn
        keys, results = eqn.params["num_keys"], enumerate(eqn.outvars)
        kept = [i for i, v in results if i < keys or v in read]
        operands, results = ([atoms[i] for i in kept] for atoms in (eqn.invars, eqn.outvars))
        return eqn.replace(invars=operands, outvars=results)

    return with_equations(jaxpr, [used(e) for e in jaxpr.eqns])


def _undone(eqn: Eqn, graph: Graph) -> Eqn:
    match eqn.primitive.name:
        case "jit":
            return _called_once(eqn)
        case "select_n":
            return _with_single_triangle(eqn, graph)
        case "eigh":
            x = _symmetrized(eqn.invars[0], graph)
            return eqn if x is None else eqn.replace(invars=[x])
        case _:
            return eqn


def _called_once(call: Eqn) -> Eqn:
    """The inner call of one that only calls the same function, as rules do."""
    body = open_jaxpr(call.params["jaxpr"])
    if len(body.eqns) != 1 or body.constvars:
        return call
    (inner,) = body.eqns
    is_same = (
        inner.primitive is call.primitive
        and inner.params["name"] == call.params["name"]
        and [*inner.invars] == [*body.invars]
        and [*inner.outvars] == [*body.outvars]
    )
    return inner.replace(invars=call.invars, outvars=call.outvars) if is_same else call


def _with_single_triangle(eqn: Eqn, graph: Graph) -> Eqn:
    """Without the triangle of a Cholesky factor that its rule takes, before JAX takes it again."""
    *_, zeros, triangle = eqn.invars
    inner = graph.producer(triangle, "select_n")
    if inner is None or graph.producer(inner.invars[-1], "cholesky") is None:
        return eqn
    fillings = graph.filling(zeros), graph.filling(inner.invars[1])
    if any(number is None or not is_number(number, 0) for number in fillings):
        return eqn
    masks = (dce(graph.jaxpr.replace(outvars=e.invars[:1])) for e in (eqn, inner))
    one, other = (program_key(lowered_form(mask)) for mask in masks)
    if one is None or one != other:
        return eqn
    return eqn.replace(invars=[*eqn.invars[:-1], inner.invars[-1]])


def _symmetrized(atom: Atom, graph: Graph) -> Atom | None:
    """The matrix `x` of `(x + x.mT) / 2`, in which `x.mT` is conjugated if it is complex."""
    half = graph.producer(atom, "div")
    if half is None or not is_number(half.invars[1], 2):
        return None
    if (total := graph.producer(half.invars[0], "add")) is None:
        return None
    x, other = total.invars
    while (moved := graph.producer(other, "transpose", "conj")) is not None:
        other = moved.invars[0]
    return x if other is x else None
