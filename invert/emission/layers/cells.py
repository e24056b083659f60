"""Recurrent cells: the part of a loop body that uses parameters, as a layer.

The body of a `scan` closes over the parameters of its cell. Everything that depends on them, up to
a mask's choice between the old and the new state, is the cell: a layer of the carried values and
the inputs of the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from invert._private.jax import close_like, open_jaxpr, rename, with_names
from invert.emission.layers import regions, roles
from invert.emission.layers.cut import (
    Assign,
    Layer,
    LayerCall,
    Path,
    calls,
    common_prefix,
    cut,
    holds_part,
    layers_in,
    names_outside,
    plain_name,
)
from invert.emission.python.naming import Names, stem
from invert.ir import kinds
from invert.ir.graph import Graph, computed_from, is_var, read_by, reads
from invert.ir.loops import ScanParts
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Returns groups of equations that are written as one.
Units: TypeAlias = Callable[[Jaxpr], Iterable[Iterable[Eqn]]]


def find(
    layer: Layer,
    jaxpr: Jaxpr,
    parameters: Mapping[Var, Path],
    held: Collection[Var],
    units: Units,
) -> None:
    """Make layers of the cells in a layer and in the layers inside it.

    **Arguments:**

    - `jaxpr`: the whole program.
    - `held`: parameters in the state, which cells do not read.
    - `units`: as for `regions.scoped`.
    """
    again: dict[Layer, list[LayerCall]] = {}
    for inner in layers_in(layer):
        find(inner, jaxpr, parameters, held, units)
    for i, step in enumerate(layer.steps):
        if isinstance(step, LayerCall):
            again.setdefault(step.layer.same or step.layer, []).append(step)
        elif step.primitive.name == "scan" and not holds_part(step) and not any(calls([step])):
            parts = _owned(layer, step, held)
            layer.steps[i] = _with_cell(layer, step, parts, parameters, units) or step
    for own in again.values():
        if any(c.layer.same for c in own) and not any(layers_in(c.layer) for c in own):
            for call in own:
                _cut(call.layer, jaxpr, parameters, units)
        if len(own) > 1 and not own[0].layer.listed:
            _name_states(own, jaxpr)


def _name_states(calls: Sequence[LayerCall], jaxpr: Jaxpr) -> None:
    """Name the values that a repeated layer passes to itself; put them first."""
    places: list[tuple[int, int]] = []
    for one, other in itertools.pairwise(calls):
        makers: dict[Atom, int] = {v: i for i, v in enumerate(one.outvars)}
        found = [(k, makers[a]) for k, a in enumerate(other.invars) if is_var(a) and a in makers]
        places = found if other is calls[1] else [p for p in places if p in found]
    if not places or len(calls[0].invars) == 1:
        return
    first = [k for k, _ in places]
    order = [*first, *(k for k in range(len(calls[0].invars)) if k not in first)]
    for call in calls:
        call.invars = [call.invars[k] for k in order]
    for inner in dict.fromkeys(c.layer for c in calls):
        known = roles.roles(Graph(jaxpr.replace(eqns=inner.steps, outvars=inner.outputs)))
        names = [(inner.inputs[k], known.get(inner.outputs[i])) for k, i in places]
        other = "h" if len(places) == 1 else None
        inner.arguments = {v: n for v, name in names if (n := name or other) is not None}
        inner.inputs = [inner.inputs[k] for k in order]


def _owned(layer: Layer, scan: Eqn, held: Collection[Var]) -> list[Var]:
    """A layer's parameters used only by a loop, whole in every step."""
    others = {*read_by(s for s in layer.steps if s is not scan), *layer.results}
    others |= {s.variable for s in layer.steps if isinstance(s, Assign)}
    parts = ScanParts.of(scan)
    others |= {a for a in (*parts.init, *parts.xs) if is_var(a)}
    consts = {a for a in parts.consts if is_var(a)}
    return [v for v in layer.parameters if v in consts and v not in others and v not in held]


def _with_cell(
    layer: Layer, scan: Eqn, own: Sequence[Var], parameters: Mapping[Var, Path], units: Units
) -> Eqn | None:
    """A loop whose body calls a cell with these parameters, or `None`.

    The parameters stay operands of the loop, but its body does not read them.
    """
    parts = ScanParts.of(scan)
    body = open_jaxpr(parts.body)
    inside = {body.invars[i]: a for i, a in enumerate(parts.consts) if is_var(a) and a in own}
    if not inside or not parts.init:
        return None
    graph = Graph(body)
    region = core(graph, inside)
    if not _multiplies(inside, region):
        return None
    cell = _cell(layer, own, parameters)
    _fill(cell, graph, region, inside, len(parts.consts), len(parts.init))
    _cut(cell, body, parameters, units)
    call = LayerCall(cell, list(cell.inputs), cell.results)
    jaxpr = body.replace(eqns=with_call(graph, region, cell.inputs, call))
    layer.parameters = [v for v in layer.parameters if v not in own]
    layer.children[cell.name] = cell
    return scan.replace(params={**scan.params, "jaxpr": close_like(parts.body, jaxpr)})


def _multiplies(inside: Collection[Var], region: Sequence[Eqn]) -> bool:
    """Return whether a region has a product with parameters."""
    derived: set[Atom] = set(inside)
    for eqn in region:
        inputs = [a for a in eqn.invars if is_var(a)]
        if kinds.computes(eqn) in kinds.CONTRACTIONS and any(a in derived for a in inputs):
            return True
        if inputs and all(a in derived for a in inputs):
            derived.update(eqn.outvars)
    return False


def with_call(graph: Graph, region: Sequence[Eqn], inputs: Sequence[Var], call: Eqn) -> list[Eqn]:
    """The equations of a body with a call in place of a region, after what makes its inputs."""
    ready = graph.needed(inputs)[0]
    placed = {*region, *ready}
    return [*ready, call, *(e for e in graph.eqns if e not in placed)]


def core(graph: Graph, inside: Collection[Var]) -> list[Eqn]:
    """The equations that depend on parameters, besides choices by a mask at the end."""
    reached = set(computed_from(inside, graph.eqns))
    known: set[Atom] = {*inside, *(v for e in reached for v in e.outvars)}
    for eqn in reversed(graph.eqns):
        users = {*graph.after(eqn)}
        last = eqn in reached and not users & reached
        if last and eqn.primitive.name == "select_n" and eqn.invars[0] not in known:
            reached.discard(eqn)
    # A value that leaves and comes back stays inside, as do values used by the cell alone.
    for eqn in reversed(graph.eqns):
        users = graph.after(eqn)
        results = any(v in graph.results for v in eqn.outvars)
        back = reads(eqn, known) and any(u in reached for u in users)
        if back or (users and not results and all(u in reached for u in users)):
            reached.add(eqn)
    return [e for e in graph.eqns if e in reached]


def _cell(layer: Layer, own: Sequence[Var], parameters: Mapping[Var, Path]) -> Layer:
    """The layer of a cell, named as in the names of its parameters."""
    shared = common_prefix(parameters[v][:-1] for v in own)
    around = {stem(plain_name(n)) for n in (*layer.path, layer.alias)}
    named = bool(shared) and stem(plain_name(shared[-1])) not in around
    wanted = shared[-1] if named else "cell"
    name = Names(layer.children).new(wanted)
    return Layer((*layer.path, name), parameters=list(own), alias=wanted)


def _cut(cell: Layer, body: Jaxpr, parameters: Mapping[Var, Path], units: Units) -> None:
    """Make layers of a cell's parts, such as gates, by its scopes or its parameter names."""
    shared = len(common_prefix(parameters[v][:-1] for v in cell.parameters))
    names = {v: parameters[v][shared:] for v in cell.parameters}
    if all(len(path) < 2 for path in names.values()):
        return
    scopes = [names_outside(e) for e in cell.steps]
    around_all = len(common_prefix(filter(None, scopes)))
    jaxpr = body.replace(
        constvars=[],
        invars=[*names, *cell.inputs],
        outvars=cell.outputs,
        eqns=[with_names(e, s[around_all:]) for e, s in zip(cell.steps, scopes, strict=True)],
    )
    jaxpr = regions.scoped(jaxpr, names, lambda: units(jaxpr))
    root = cut(jaxpr, names, [], alone=False)
    cell.steps, cell.parameters, cell.children = root.steps, root.parameters, root.children
    _put_inside(cell, cell)


def _put_inside(layer: Layer, cell: Layer) -> None:
    """Set the paths of the layers inside a layer, and the names of a cell's arguments there."""
    for inner in layers_in(layer):
        inner.path = (*layer.path, inner.path[-1])
        known = {v: name for v, name in cell.arguments.items() if v in inner.inputs}
        inner.arguments = {**known, **inner.arguments}
        _put_inside(inner, cell)


def ends(
    graph: Graph,
    region: Sequence[Eqn],
    inside: Collection[Var],
    first: Sequence[Var],
    last: Sequence[Var],
) -> tuple[list[Var], list[Var]]:
    """The inputs of a region of a body, besides its parameters `inside`, and its results.

    **Arguments:**

    - `first`, `last`: the arguments of the body that come before and after the values that it
        computes.
    """
    chosen = set(region)
    # In order, since the text follows it.
    made = dict.fromkeys(v for e in region for v in e.outvars)
    used = read_by(region).keys() - made.keys() - set(inside)
    outside = read_by(e for e in graph.eqns if e not in chosen)
    others = [v for e in graph.eqns for v in e.outvars]
    inputs = [v for v in (*first, *others, *last) if v in used]
    return inputs, [v for v in made if v in outside or v in graph.results]


def _fill(
    cell: Layer,
    graph: Graph,
    region: Sequence[Eqn],
    inside: Mapping[Var, Atom],
    count: int,
    carried: int,
) -> None:
    """Give a cell its steps, its inputs and its results."""
    jaxpr = graph.jaxpr
    cell.steps = list(rename(jaxpr.replace(eqns=list(region), outvars=[]), inside).eqns)
    # First the state, then the inputs of the step, then loop-invariant values.
    consts, rest = jaxpr.invars[:count], jaxpr.invars[count:]
    cell.inputs, results = ends(graph, region, inside, rest, [*consts, *jaxpr.constvars])
    order = {v: i for i, v in reversed(list(enumerate(_states(graph, carried))))}
    cell.outputs = sorted(results, key=lambda v: order.get(v, len(order)))
    known = roles.roles(graph) | roles.states(jaxpr, count, carried)
    cell.arguments = {v: known[v] for v in cell.inputs if v in known}


def _states(graph: Graph, carried: int) -> list[Atom]:
    """The new states before a choice by a mask, and then the other results."""
    states: list[Atom] = []
    for i, v in enumerate(graph.jaxpr.outvars):
        eqn = graph.producer(v)
        if i < carried and eqn is not None and eqn.primitive.name == "select_n":
            states += [a for a in eqn.invars[1:] if is_var(a)]
        states.append(v)
    return states
