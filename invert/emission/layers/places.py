"""Computes the steps of an index where it is used, so that layers take the index itself.

A program has `i < 0`, `i + n` and `i[:, None]` once for all lookups of `i`. As arguments of layers
they would say nothing, and no lookup would be written as `x[i]`.
"""

from __future__ import annotations

from collections.abc import Collection

from invert._private.jax import Var, dce, names_of, rename_operands, with_names
from invert.emission.layers.cut import Path
from invert.ir.graph import Graph, is_number, is_var
from invert.ir.jaxprs import broadcast_in_place_of, broadcasts
from invert.ir.lookups import steps_of_wrapping
from invert.ir.types import Atom, Eqn, Jaxpr

# The number of operands before the place, by the primitive.
_LOOKUPS = {
    **dict.fromkeys(("gather", "dynamic_slice"), 1),
    **{f"scatter{kind}": 1 for kind in ("", "-add", "-sub", "-mul", "-min", "-max")},
    "dynamic_update_slice": 2,
}
# Steps that only arrange indices.
_LAYOUT = ("broadcast_in_dim", "concatenate", "reshape")


def separated(jaxpr: Jaxpr) -> Jaxpr:
    """The program with the steps of indices in the scopes of their lookups, once in each.

    Lookups outside of all scopes have their own steps, since they may be in layers without names.
    """
    if not any(e.primitive.name in _LOOKUPS for e in jaxpr.eqns):
        return jaxpr
    jaxpr, indices = _with_indices(jaxpr)
    graph = Graph(jaxpr)
    copies: dict[tuple[Atom, Path | Eqn], Var] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        scope = names_of(eqn)
        place = scope or eqn
        own: dict[Var, Atom] = {}
        for step in _steps(graph, eqn, indices):
            (out,) = step.outvars
            if (out, place) not in copies:
                copies[out, place] = Var(out.aval)
                copy = rename_operands(step, own).replace(outvars=[copies[out, place]])
                eqns.append(with_names(copy, scope))
            own[out] = copies[out, place]
        eqns.append(rename_operands(eqn, own) if own else eqn)
    return dce(jaxpr.replace(eqns=eqns))


def _with_indices(jaxpr: Jaxpr) -> tuple[Jaxpr, set[Atom]]:
    """The program with the axis of a place apart where other axes are added to its index.

    A layer then takes the index, `zeros((batch, length))`, and not `zeros((batch, length, 1))`.

    **Returns:** also these indices.
    """
    indices: set[Atom] = set()
    makers: dict[Atom, Eqn] = {v: e for e in jaxpr.eqns if broadcasts(e) for v in e.outvars}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        made = makers.get(eqn.invars[-1]) if eqn.primitive.name == "gather" else None
        if made is not None and names_of(made) != names_of(eqn):
            *shape, size = made.outvars[0].aval.shape
            dims = made.params["broadcast_dimensions"]
            given = getattr(made.invars[0].aval, "shape", ())
            if size == 1 and len(shape) not in dims and tuple(shape) != given:
                index = Var(made.outvars[0].aval.update(shape=tuple(shape)))
                place = Var(made.outvars[0].aval)
                eqns.append(broadcast_in_place_of(made, made.invars[0], index, dims))
                outer = broadcast_in_place_of(made, index, place, range(len(shape)))
                eqns.append(with_names(outer, names_of(eqn)))
                eqn = eqn.replace(invars=[*eqn.invars[:-1], place])
                indices.add(index)
        eqns.append(eqn)
    return dce(jaxpr.replace(eqns=eqns)), indices


def _steps(graph: Graph, eqn: Eqn, indices: Collection[Atom]) -> list[Eqn]:
    """The equations that make the place of a lookup from `indices` or others, in order."""
    first = _LOOKUPS.get(eqn.primitive.name)
    found: set[Eqn] = set()
    pending = [] if first is None else [a for a in eqn.invars[first:] if _is_place(a)]
    while pending:
        atom = pending.pop()
        made = graph.producer(atom, *_LAYOUT, "select_n")
        if made is None or atom in indices:
            continue
        if made.primitive.name != "select_n":
            found.add(made)
            pending += made.invars
        elif (steps := steps_of_wrapping(made, graph.producers)) and is_number(
            steps[0].invars[1], 0
        ):
            found.update((*steps, made))
    return sorted(found, key=graph.index.__getitem__)


def _is_place(atom: Atom) -> bool:
    return is_var(atom) and atom.aval.dtype.kind in "iu"
