"""Loops: a counted `while` is a `scan`, which differentiates in reverse.

JAX lowers `scan`, and with it `map` and `fori_loop` with static bounds, to a `while` over
`(i, carry..., ys...)`. Its body takes slices of the inputs at `i` and writes the outputs at `i`
(jax/_src/lax/control_flow/loops.py, `_scan_impl`, jax 0.10). Each step of the analysis preserves
values; names play no role.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set

import numpy as np

from invert._private.jax import Literal, rename
from invert._private.programs import bind_scan, new_jaxpr
from invert.ir import kinds
from invert.ir.counted import Counted, counted
from invert.ir.graph import Graph, from_outside
from invert.ir.jaxprs import holds_unique, with_inlined
from invert.ir.loops import WhileParts
from invert.ir.sizes import as_value, is_open
from invert.ir.types import AnyJaxpr, Atom, Eqn, JaxFunction, Value, Var
from invert.rewriting.pattern import EquationPattern, Site


@dataclasses.dataclass(frozen=True)
class Access:
    """A read (`value` is `None`) or write of a row of `array`."""

    array: Atom
    index: Atom
    value: Atom | None
    result: Var


def _zeros(atoms: Sequence[Atom]) -> bool:
    return all(isinstance(a, Literal) and int(a.val) == 0 for a in atoms)


def read(eqn: Eqn, graph: Graph) -> Access | None:
    """`reshape (dynamic_slice[sizes=(1, ...)] array index 0 ...)`."""
    drops = eqn.primitive.name in kinds.DROPS
    if not drops or (source := graph.producer(eqn.invars[0], "dynamic_slice")) is None:
        return None
    array, index, *rest = source.invars
    shape = array.aval.shape
    if not shape or source.params["slice_sizes"] != (1, *shape[1:]) or not _zeros(rest):
        return None
    if eqn.outvars[0].aval.shape != shape[1:]:
        return None
    return Access(array, index, None, eqn.outvars[0])


def write(eqn: Eqn, graph: Graph) -> Access | None:
    """`dynamic_update_slice array (broadcast value) index 0 ...`."""
    if eqn.primitive.name != "dynamic_update_slice":
        return None
    array, update, index, *rest = eqn.invars
    shape = array.aval.shape
    if not shape or not _zeros(rest) or update.aval.shape != (1, *shape[1:]):
        return None
    value = _only_row(update, graph)
    return None if value is None else Access(array, index, value, eqn.outvars[0])


def _only_row(rows: Atom, graph: Graph) -> Atom | None:
    """The only row of an array; `None` if the array has a different origin."""
    eqn, shape = graph.producer(rows), rows.aval.shape
    if eqn is None or shape[:1] != (1,):
        return None
    name, dims = eqn.primitive.name, tuple(range(1, len(shape)))
    if name != "reshape" and (
        name not in ("broadcast_in_dim", "expand_dims")
        or eqn.params.get("broadcast_dimensions") != dims
    ):
        return None
    return eqn.invars[0] if eqn.invars[0].aval.shape == shape[1:] else None


def access(eqn: Eqn, graph: Graph, find: Callable[[Eqn, Graph], Access | None]) -> Access | None:
    """An access, inline or in a function of its own, as JAX lowers it."""
    if eqn.primitive.name != "jit":
        return find(eqn, graph)
    inner = Graph(eqn.params["jaxpr"])
    arguments = dict(zip(inner.jaxpr.invars, eqn.invars, strict=True))
    if len(inner.eqns) != 2 or len(inner.jaxpr.outvars) != 1:
        return None
    found = find(inner.eqns[-1], inner)
    if found is None or found.result is not inner.jaxpr.outvars[0]:
        return None

    def outside(atom: Atom) -> Atom | None:
        return arguments.get(atom) if not isinstance(atom, Literal) else atom

    array, index = outside(found.array), outside(found.index)
    value = None if found.value is None else outside(found.value)
    if array is None or index is None or (found.value is not None and value is None):
        return None
    return Access(array, index, value, eqn.outvars[0])


def _is(atom: Atom, members: Sequence[Atom | None]) -> bool:
    return any(atom is m for m in members)


def _scan(site: Site) -> JaxFunction | None:
    """`while i < n` with slices at `i` -> `scan[length=n]`."""
    loop = counted(site.eqn)
    if loop is None:
        return None
    graph, length = loop.body, loop.length
    reads: dict[Eqn, Access] = {}
    direction: bool | None = None
    for eqn in graph.eqns:
        found = access(eqn, graph, read)
        if found is None or not _is(found.array, loop.consts):
            continue
        backwards = loop.direction(found.index)
        if backwards is None or found.array.aval.shape[0] != length:
            continue
        if direction is None or direction == backwards:
            direction = backwards
            reads[eqn] = found
    outputs: dict[int, Access] = {}
    for position, result in enumerate(graph.jaxpr.outvars):
        eqn, buffer = graph.producer(result), loop.carry[position]
        if eqn is None:
            continue
        found = access(eqn, graph, write)
        if length == 1 and found is None and not graph.users.get(buffer):
            # Writing the only row gives the row itself.
            row = _only_row(result, graph)
            if row is not None and _count_uses(graph, result) == 1:
                outputs[position] = Access(buffer, loop.carry[loop.counter], row, eqn.outvars[0])
            continue
        if found is None or found.array is not buffer:
            continue
        backwards = loop.direction(found.index)
        # Every row is written once, and nothing else reads the buffer, so that its initial value
        # does not matter.
        alone = _count_uses(graph, found.array) == 1 and found.array.aval.shape[0] == length
        alone = alone and _count_uses(graph, result) == 1
        if backwards is None or not alone or found.value is None:
            continue
        if direction is None or direction == backwards:
            direction = backwards
            outputs[position] = found
    if is_open(length) and not reads:
        return None  # JAX has no such scan; a `fori_loop` of open length is a `while`
    return _build(site.eqn, loop, reads, outputs, bool(direction))


def _count_uses(graph: Graph, atom: Atom) -> int:
    return len(graph.users.get(atom, ())) + sum(v is atom for v in graph.jaxpr.outvars)


def _build(
    eqn: Eqn,
    loop: Counted,
    reads: dict[Eqn, Access],
    outputs: dict[int, Access],
    reverse: bool,
) -> JaxFunction:
    """The `scan`, made of the loop's equations; tracing them would take several times as long."""
    results = loop.body.jaxpr.outvars
    rows: dict[Atom, Var] = {}
    names = {r.result: rows.setdefault(r.array, r.result) for r in reads.values()}
    kept = _needed(loop, outputs, names.keys())
    counter = loop.carry[loop.counter]
    written = [a.value for a in outputs.values()]
    counts = _uses(kept, counter) or _is(counter, written)
    carried = [i for i in range(len(results)) if i not in outputs and (i != loop.counter or counts)]
    collected = {i: a.value for i, a in sorted(outputs.items()) if a.value is not None}
    made = new_jaxpr([], [], [*(results[i] for i in carried), *collected.values()], kept)
    made = rename(made, names)
    made = with_inlined(made, _whole_body(made.eqns).get)
    result_of = dict(zip((*carried, *collected), made.outvars, strict=True))
    # A carried value that no step changes is a constant, and rows collected again are their array.
    constant = [i for i in carried if result_of[i] is loop.carry[i]]
    carried = [i for i in carried if i not in constant]
    array_of: dict[Atom, Atom] = {row: array for array, row in rows.items()}
    ys = [i for i in collected if not _is(result_of[i], list(array_of))]
    given = [*(loop.carry[i] for i in carried), *rows.values()]
    consts = [v for v in from_outside(made.eqns, made.outvars) if v not in given]
    body = made.replace(
        invars=[*consts, *given],
        outvars=[result_of[i] for i in (*carried, *ys)],
        effects=set[object]().union(*(e.effects for e in kept)),
    )
    parts = WhileParts.of(eqn)

    def call(*operands: Value) -> list[Value]:
        _, held, init = parts.split(operands)
        outside: dict[Atom, Value] = {**loop.body.consts}
        outside.update(zip((*loop.consts, *loop.carry), (*held, *init), strict=True))
        values = bind_scan(
            body,
            [outside[v] for v in consts],
            [init[i] for i in carried],
            [outside[array] for array in rows],
            # Where it is open, JAX takes it from the arrays.
            length=loop.length if not rows else next(iter(rows)).aval.shape[0],
            reverse=reverse,
        )
        by_position = {i: init[i] for i in constant}
        by_position |= {i: outside[array_of[result_of[i]]] for i in collected if i not in ys}
        by_position.update(zip((*carried, *ys), values, strict=True))
        if loop.counter not in by_position:
            by_position[loop.counter] = as_value(loop.length, np.dtype(counter.aval.dtype))
        return [by_position[i] for i in range(len(loop.carry))]

    return call


def _uses(eqns: Sequence[Eqn], atom: Atom) -> bool:
    return any(a is atom for e in eqns for a in e.invars)


def _needed(loop: Counted, outputs: dict[int, Access], given: Set[Atom]) -> list[Eqn]:
    """The equations of the body that the carry and the outputs need."""
    graph, counter = loop.body, loop.carry[loop.counter]
    outvars = graph.jaxpr.outvars
    roots = [v for i, v in enumerate(outvars) if i != loop.counter and i not in outputs]
    roots += [a.value for a in outputs.values() if a.value is not None]
    kept, outside = graph.needed(roots, given)
    if counter in outside:
        step = graph.producers[outvars[loop.counter]]
        if step not in kept:
            kept.append(step)
    return kept


def _whole_body(eqns: Sequence[Eqn]) -> dict[Eqn, AnyJaxpr]:
    """The call that the lowering puts around a whole body, if any."""
    calls = [e for e in eqns if e.primitive.name == "jit"]
    rest = [e for e in eqns if e.primitive.name not in ("jit", "add", "sub")]
    if len(calls) != 1 or rest or holds_unique(calls[0].params["jaxpr"]):
        return {}
    return {calls[0]: calls[0].params["jaxpr"]}


PATTERNS = (EquationPattern("scan", ("while",), _scan),)
