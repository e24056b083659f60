"""Undoes what JAX changes in a function where it differentiates it.

The rule of a primitive computes its value too, and some compute more than the primitive does, or
compute it in another way. The derivative of what they compute is then another program.
"""

from __future__ import annotations

from invert._private.jax import dce, open_jaxpr
from invert.ir.graph import Graph, is_number
from invert.ir.jaxprs import variables_read, with_equations
from invert.ir.lowered_form import lowered_form
from invert.ir.merging import program_key
from invert.ir.types import Atom, Eqn, Jaxpr


def undifferentiated(jaxpr: Jaxpr) -> Jaxpr:
    """Equations as they were before JAX differentiated them; inner jaxprs stay as they are."""
    graph = Graph(with_less_sorted(jaxpr))
    changed = with_equations(graph.jaxpr, [_undone(e, graph) for e in graph.eqns])
    return changed if changed is graph.jaxpr else dce(changed)


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
