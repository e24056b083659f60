"""Rewrites gradients of lookups at fixed indices as gradients of slices.

At an open size, JAX traces `x[:, 0]` and `x[:, ::2]` to gathers, whose gradients scatter into
zeros. The recovered program has slices, whose gradients are paddings. The two agree up to the sign
of zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from jax import lax

from invert._private.jax import trace_closed
from invert.ir.graph import Graph
from invert.ir.interpret import replacing, retrace
from invert.ir.jaxprs import canonicalize, map_jaxprs, with_inlined
from invert.ir.size_slices import spaced_places
from invert.ir.sizes import Shape, is_open
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, Jaxpr, Value

_Config = list[tuple[int, int, int]]
# A padding, as a function of the operands of the addition that it replaces.
_Padding = Callable[[Value, Value, Value], list[Value]]


def with_paddings(program: ClosedJaxpr) -> ClosedJaxpr | None:
    """Replace additions into zeros at fixed places by paddings; `None` if there are none."""
    graph = Graph(program)
    programs: dict[Eqn, AnyJaxpr] = {}
    for eqn in graph.by_primitive.get("scatter-add", ()):
        run = _at_one_place(graph, eqn) or _at_equal_distances(graph, eqn)
        number = graph.filling(eqn.invars[0])
        if run is not None and number is not None and not number.val:
            programs[eqn] = trace_closed(run, *(a.aval for a in eqn.invars))
    if not programs:
        return None
    for eqn in graph.by_primitive.get("squeeze", ()):  # of the lookup; lowered, it is a reshape
        shape = eqn.outvars[0].aval.shape
        programs[eqn] = trace_closed(functools.partial(_reshaped, shape), eqn.invars[0].aval)
    return canonicalize(retrace(program, replacing(programs)))


def with_padded_parts(program: ClosedJaxpr) -> ClosedJaxpr:
    """Replace concatenations of one array with zeros by paddings, which have the same bits.

    JAX makes either for the derivative of a concatenation by one of its operands.
    """

    def visit(jaxpr: Jaxpr) -> Jaxpr:
        if jaxpr.constvars or "concatenate" not in {e.primitive.name for e in jaxpr.eqns}:
            return jaxpr
        graph = Graph(jaxpr)
        return with_inlined(jaxpr, lambda eqn: _as_padding(graph, eqn))

    found = map_jaxprs(program, visit)
    return program if found is program else canonicalize(found)


def _as_padding(graph: Graph, eqn: Eqn) -> ClosedJaxpr | None:
    if eqn.primitive.name != "concatenate":
        return None
    axis: int = eqn.params["dimension"]
    fillings = [graph.filling(a) for a in eqn.invars]
    zero = [n is not None and not n.val and not np.signbit(n.val) for n in fillings]
    sizes = [a.aval.shape[axis] for a in eqn.invars]
    if zero.count(False) != 1 or any(map(is_open, sizes)):
        return None
    place = zero.index(False)
    config = [(0, 0, 0)] * len(eqn.outvars[0].aval.shape)
    config[axis] = (int(sum(sizes[:place])), int(sum(sizes[place + 1 :])), 0)

    def run(*parts: Value) -> list[Value]:
        return [lax.pad(parts[place], np.zeros((), parts[place].dtype), config)]

    return trace_closed(run, *(a.aval for a in eqn.invars))


def _reshaped(shape: Shape, x: Value) -> list[Value]:
    return [lax.reshape(x, shape)]


def _at_one_place(graph: Graph, eqn: Eqn) -> _Padding | None:
    """The padding equal to an addition into zeros, if at one place within bounds."""
    zeros, indices, part = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    start = _place(graph, indices)
    whole = len(numbers.update_window_dims) == len(part.aval.shape)
    if numbers.operand_batching_dims or start is None or not whole:
        return None
    sizes = iter(part.aval.shape)
    config: _Config = []
    inserted = tuple(numbers.inserted_window_dims)
    for axis, size in enumerate(zeros.aval.shape):
        width = 1 if axis in inserted else next(sizes)
        axes = list(numbers.scatter_dims_to_operand_dims)
        first = start[axes.index(axis)] if axis in axes else 0
        last = size - width - first
        if is_open(last) or first < 0 or last < 0:
            return None
        config.append((first, int(last), 0))

    def run(zeros: Value, indices: Value, part: Value) -> list[Value]:
        wide = lax.expand_dims(part, inserted) if inserted else part
        return [lax.pad(wide, np.zeros((), part.dtype), config)]

    return run


def _at_equal_distances(graph: Graph, eqn: Eqn) -> _Padding | None:
    """The padding equal to an addition into zeros at `start + stride * i` along some axes."""
    zeros, indices, part = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    shape, spaced = zeros.aval.shape, numbers.inserted_window_dims
    kept = tuple(i for i in range(len(shape)) if i not in spaced)
    if numbers.update_window_dims != kept or numbers.operand_batching_dims:
        return None
    axes = numbers.scatter_dims_to_operand_dims
    if (places := spaced_places(indices, axes, spaced, graph.producers)) is None:
        return None
    config: _Config = []
    turned = [axis for axis in spaced if places[axis][1] < 0]
    for axis, size in enumerate(shape):
        width = part.aval.shape[axis]
        start, stride, count = places.get(axis, (0, 0, 1))
        if axis in kept and axis not in places:
            if width != size:
                return None
            config.append((0, 0, 0))
            continue
        if (axis in spaced and stride == 0) or any(map(is_open, (start, count, width, size))):
            return None
        ends = (start, start + (stride * (count - 1) if axis in spaced else width - 1))
        low, high = int(min(ends)), int(size - 1 - max(ends))
        if low < 0 or high < 0:
            return None
        config.append((low, high, max(abs(stride) - 1, 0)))

    def run(zeros: Value, indices: Value, part: Value) -> list[Value]:
        part = lax.rev(part, turned) if turned else part
        return [lax.pad(part, np.zeros((), part.dtype), config)]

    return run


def _place(graph: Graph, atom: Atom) -> Sequence[int] | None:
    """The numbers in a vector of indices, if they are known."""
    if len(atom.aval.shape) != 1:
        return None
    if atom in graph.consts:
        return [int(n) for n in np.asarray(graph.consts[atom])]
    if (number := graph.filling(atom)) is not None:
        return [int(number.val)] * atom.aval.shape[0]
    if (eqn := graph.producer(atom, "concatenate")) is None:
        return None
    parts = [_place(graph, a) for a in eqn.invars]
    known = [p for p in parts if p is not None]
    return [n for p in known for n in p] if len(known) == len(parts) else None
