"""Rewrites gradients of lookups at fixed indices as gradients of slices.

At an open size, JAX traces `x[:, 0]` to a gather, whose gradient scatters into zeros. The recovered
program has a slice, whose gradient is a padding. The two agree up to the sign of zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from jax import lax

from invert._private.jax import trace_closed
from invert.ir.graph import Graph
from invert.ir.interpret import replacing, retrace
from invert.ir.jaxprs import canonicalize
from invert.ir.sizes import Shape, is_open
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, Value

_Config = list[tuple[int, int, int]]


def with_paddings(program: ClosedJaxpr) -> ClosedJaxpr | None:
    """Replace additions into zeros at one place by paddings; `None` if there are none."""
    graph = Graph(program)
    programs: dict[Eqn, AnyJaxpr] = {}
    for eqn in graph.by_primitive.get("scatter-add", ()):
        config = _config(graph, eqn)
        if config is not None:
            numbers = eqn.params["dimension_numbers"]
            inserted = tuple(numbers.inserted_window_dims)

            def run(
                zeros: Value,
                indices: Value,
                part: Value,
                inserted: tuple[int, ...] = inserted,
                config: _Config = config,
            ) -> list[Value]:
                wide = lax.expand_dims(part, inserted) if inserted else part
                return [lax.pad(wide, np.zeros((), part.dtype), config)]

            programs[eqn] = trace_closed(run, *(a.aval for a in eqn.invars))
    if not programs:
        return None
    for eqn in graph.by_primitive.get("squeeze", ()):  # of the lookup; lowered, it is a reshape
        shape = eqn.outvars[0].aval.shape
        programs[eqn] = trace_closed(functools.partial(_reshaped, shape), eqn.invars[0].aval)
    return canonicalize(retrace(program, replacing(programs)))


def _reshaped(shape: Shape, x: Value) -> list[Value]:
    return [lax.reshape(x, shape)]


def _config(graph: Graph, eqn: Eqn) -> _Config | None:
    """The padding equal to an addition into zeros, if at one place within bounds."""
    zeros, indices, part = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    start = _place(graph, indices)
    whole = len(numbers.update_window_dims) == len(part.aval.shape)
    if numbers.operand_batching_dims or start is None or not whole:
        return None
    if (number := graph.filling(zeros)) is None or number.val:
        return None
    sizes = iter(part.aval.shape)
    config: _Config = []
    for axis, size in enumerate(zeros.aval.shape):
        width = 1 if axis in numbers.inserted_window_dims else next(sizes)
        axes = list(numbers.scatter_dims_to_operand_dims)
        first = start[axes.index(axis)] if axis in axes else 0
        last = size - width - first
        if is_open(last) or first < 0 or last < 0:
            return None
        config.append((first, int(last), 0))
    return config


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
