"""Slices: `Slice`, `StridedSlice`, those of XLA, and updates of a slice.

Bounds that depend on data are clamped into the array, as XLA does. A slice whose bounds differ by a
constant has a static length: it is cut out first, which leaves a static slice. If the length
depends on data too, `tf.values.bounded` takes the rows of the first axis.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import UnsupportedOpError
from invert.ir.sizes import is_open, suggest_decided
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import (
    BoundedArray,
    BoundedSlice,
    put_rows,
    refused_rows,
    resized,
    rows_of,
    slice_origin,
)
from invert.tf.values.bounds import distance, known
from invert.tf.values.constants import (
    array,
    as_sizes,
    broadcast_to,
    ints,
    is_static,
    static,
)
from invert.tf.values.dynamic_size import DynamicSize, int_max, int_min

# A part of an index: a slice, a number, `None`, a `_Window` or a `BoundedSlice`.
Part = Any


def _bounded_slice_of(ctx: Context, node: Node, index: list[Part]) -> BoundedSlice | None:
    """An index's slice of the first axis, if its length depends on data.

    **Raises:** `UnsupportedOpError` if the length along another axis does.
    """
    bounded = [k for k, part in enumerate(index) if isinstance(part, BoundedSlice)]
    if not bounded:
        return None
    if bounded != [0] or ctx.config.dynamic_sizes != "ids":
        raise UnsupportedOpError([slice_origin(node)])
    return index[0]


@rule("Slice")
def _slice(x: Value, begin: Value, size: Value, *, ctx: Context, node: Node) -> Value:
    sizes = known(size)
    sizes = ints(static(node, [x, begin, size], 2) if sizes is None else sizes)
    if isinstance(begin, np.ndarray):
        starts = ints(begin)
        limit = [
            d if n == -1 else b + n for b, n, d in zip(starts, sizes, np.shape(x), strict=True)
        ]
        if is_static(x):
            return x[tuple(slice(b, e) for b, e in zip(starts, limit, strict=True))]
        return lax.slice(array(x), starts, limit)
    if -1 in sizes:
        return _rest(ctx, node, array(x), begin, sizes)
    for n, size in zip(sizes, np.shape(x), strict=True):
        suggest_decided(n, "le", size)
    starts = [lax.index_in_dim(begin, i, keepdims=False) for i in range(len(sizes))]
    return lax.dynamic_slice(array(x), starts, sizes)


def _rest(ctx: Context, node: Node, x: Array, begin: Value, size: Ints) -> Value:
    """A slice with the rest of some axes."""
    index: list[Part] = []
    for i, n in enumerate(size):
        start = _entry(begin, i)
        if not _is_data(start):
            index.append(slice(start, None if n == -1 else start + n))
        elif n == -1:
            index.append(BoundedSlice(start, None, 1))
        else:
            index.append(_Window(start, n, slice(None)))
    row_slice = _bounded_slice_of(ctx, node, index)
    return take(x, index) if row_slice is None else take_rows(node, x, row_slice, index)


def take_rows(node: Node, x: Value, row_slice: BoundedSlice, index: list[Part]) -> BoundedArray:
    """`x[index]` of an array or bounded x, with `row_slice` along the first axis."""
    rows = rows_of(x, row_slice, slice_origin(node))
    return rows.with_data(take(rows.data, [slice(None), *index[1:]]))


@rule("StridedSlice", folds_sizes=True)
def _strided_slice(
    x: Value, begin: Value, end: Value, strides: Value, *, T: np.dtype, ctx: Context, node: Node
) -> Value:
    index = index_of(ctx, node, [begin, end, strides], np.ndim(x))
    if is_static(x) and not any(map(_depends, index)):
        return as_sizes(x[(*index, ...)], T)
    row_slice = _bounded_slice_of(ctx, node, index)
    if row_slice is not None:
        return take_rows(node, array(x), row_slice, index)
    return take(array(x), index)


@rule("StridedSliceGrad")
def _strided_slice_grad(
    shape: Ints, begin: Value, end: Value, strides: Value, dy: Value, *, ctx: Context, node: Node
) -> Array:
    index = index_of(ctx, node, [begin, end, strides], len(shape))
    dy = dy if isinstance(dy, BoundedArray) else array(dy)
    dtype = dy.data.dtype if isinstance(dy, BoundedArray) else dy.dtype
    return put(ctx, node, lax.full(shape, 0, dtype), index, dy, fresh=True)


@rule("TensorStridedSliceUpdate")
def _strided_slice_update(
    x: Array, begin: Value, end: Value, strides: Value, value: Value, *, ctx: Context, node: Node
) -> Array:
    return put(ctx, node, x, index_of(ctx, node, [begin, end, strides], x.ndim), value)


@rule("XlaDynamicSlice")
def _dynamic_slice(x: Array, start_indices: Value, sizes: Ints) -> Array:
    return lax.dynamic_slice_p.bind(x, *_places(start_indices), slice_sizes=sizes)


@rule("XlaDynamicUpdateSlice")
def _dynamic_update_slice(x: Array, update: Array, indices: Value) -> Array:
    return lax.dynamic_update_slice_p.bind(x, update, *_places(indices))


def _places(vector: Value) -> list[Array]:
    """The start indices of a slice, clamped as XLA does; `lax.dynamic_slice` would wrap negative
    ones."""
    if isinstance(vector, np.ndarray):
        dtype = np.int32 if vector.dtype == object else vector.dtype
        return [jnp.asarray(n, dtype) for n in vector]
    return [lax.index_in_dim(vector, i, keepdims=False) for i in range(vector.shape[0])]


@dataclasses.dataclass(frozen=True)
class _Window:
    """A part of an axis with a traced start: start and length.

    `index`: the NumPy index into this part.
    """

    start: Value
    count: Int
    index: slice | int


def _depends(part: Part) -> bool:
    """Return whether an entry of an index depends on data."""
    return isinstance(part, _Window | BoundedSlice)


def index_of(ctx: Context, node: Node, bounds: list[Value], rank: int) -> list[Part]:
    """A NumPy index with the ellipsis expanded: slices, ints and `None`.

    A slice at a data-dependent position is a `_Window`, or a `BoundedSlice` if its length depends
    on data.
    """
    begin, end, _ = bounds
    steps = ints(static(node, bounds, 2))
    count = len(steps)
    mask = {
        k: node.attr(f"{k}_mask", 0)
        for k in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    has = {k: [bool(m >> i & 1) for i in range(count)] for k, m in mask.items()}
    # An axis marked both as the ellipsis and as new is the ellipsis.
    used = sum(not e and not n for e, n in zip(has["ellipsis"], has["new_axis"], strict=True))
    index: list[Part] = []
    for i in range(count):
        if has["ellipsis"][i]:
            index += [slice(None)] * (rank - used)
        elif has["new_axis"][i]:
            index.append(None)
        elif has["shrink_axis"][i]:
            place = _entry(begin, i)
            index.append(_Window(place, 1, 0) if _is_data(place) else place)
        else:
            start = None if has["begin"][i] else _entry(begin, i)
            stop = None if has["end"][i] else _entry(end, i)
            if _is_data(start) or _is_data(stop):
                index.append(_window(ctx, node, start, stop, steps[i]))
            else:
                index.append(slice(start, stop, steps[i]))
    return index + [slice(None)] * (rank - sum(j is not None for j in index))


def _is_data(place: Value) -> bool:
    return hasattr(place, "aval")


def _window(
    ctx: Context, node: Node, start: Value, stop: Value, step: int
) -> _Window | BoundedSlice:
    """The slice between two data-dependent bounds."""
    length = None if start is None or stop is None else distance(start, stop)
    if length is None:
        return BoundedSlice(start, stop, step)
    if is_open(length) and step != 1:
        return BoundedSlice(start, stop, step)
    count = int_max(length, 0) if is_open(length) else len(range(0, length, step))
    ctx.graph.note(
        f"tf.{node.op} ({node.location}) has {count} elements at a place that depends on data; "
        "past the end of the array TensorFlow returns fewer, while this program shifts the slice"
    )
    span = count if step == 1 else max(count - 1, 0) * abs(step) + min(count, 1)
    dtype = np.result_type(*(p for p in (start, stop) if _is_data(p)))
    start = jnp.asarray(start, dtype)
    if step < 0 and count:
        return _Window(start - jnp.asarray(span - 1, start.dtype), span, slice(None, None, step))
    return _Window(start, span, slice(None, None, abs(step)))


def _entry(vector: Value, i: int) -> Value:
    if isinstance(vector, np.ndarray):
        number = ints(vector)[i]
        return number.value if isinstance(number, DynamicSize) else number
    place = lax.index_in_dim(vector, i, keepdims=False)
    # Other entries of the vector may depend on data.
    number = known(place)
    return place if number is None else int(number)


@dataclasses.dataclass
class _Region:
    """The parts that an index selects, axis by axis, in ascending order."""

    starts: list[Int]
    stops: list[Int]
    steps: list[int]
    flips: list[int]
    lengths: list[Int]  # of each axis of the operand
    shape: list[Int]  # of the result


def _region(index: list[Part], sizes: Ints) -> _Region:
    r = _Region([], [], [], [], [], [])
    for part in index:
        if part is None:
            r.shape.append(1)
            continue
        axis = len(r.starts)
        size = sizes[axis]
        step = 1
        if isinstance(part, slice):
            start, stop, step, length = _bounds(part, size)
            r.shape.append(length)
            if step < 0:
                r.flips.append(axis)
        else:
            start = part + size if isinstance(part, int) and part < 0 else part
            stop, length = start + 1, 1
        r.starts.append(start)
        r.stops.append(stop)
        r.steps.append(abs(step))
        r.lengths.append(length)
    return r


def take(x: Array, index: list[Part]) -> Array:
    """`x[index]` in `lax` ops: slice, reverse axes, then change the rank."""
    windows, index = _windows(index)
    x = _at_windows(x, windows)
    r = _region(index, tuple(x.shape))
    y = x
    if r.steps and (max(r.steps) > 1 or any(r.starts) or tuple(r.stops) != tuple(x.shape)):
        y = lax.slice(x, r.starts, r.stops, r.steps if max(r.steps) > 1 else None)
    y = lax.rev(y, r.flips) if r.flips else y
    places = [part for part in index if part is not None]
    dropped = [axis for axis, part in enumerate(places) if not isinstance(part, slice)]
    y = lax.squeeze(y, dropped) if dropped else y
    kept = [part for part in index if part is None or isinstance(part, slice)]
    added = [axis for axis, part in enumerate(kept) if part is None]
    return lax.expand_dims(y, added) if added else y


def put(
    ctx: Context, node: Node, x: Array, index: list[Part], value: Value, fresh: bool = False
) -> Array:
    """`x` with `value`, an array or bounded, at `index`; `fresh`: x is zero."""
    row_slice = _bounded_slice_of(ctx, node, index)
    if row_slice is None:
        if isinstance(value, BoundedArray):
            raise refused_rows(value.origin, node.op, node.location)
        return _put(x, index, array(value), fresh)
    return put_bounded_slice(node, x, row_slice, index, value)


def put_bounded_slice(
    node: Node, x: Value, row_slice: BoundedSlice, index: list[Part], value: Value
) -> Array:
    """`x` with `value` at `row_slice` in the first axis; both are arrays or bounded."""
    old = rows_of(x, row_slice, slice_origin(node)).data
    new = resized(value.data, old.shape[0]) if isinstance(value, BoundedArray) else array(value)
    return put_rows(x, row_slice, _put(old, [slice(None), *index[1:]], new))


def _put(x: Array, index: list[Part], value: Value, fresh: bool = False) -> Array:
    """`x` with `value` at `index`; if `fresh`, x is zero and padding `value` suffices."""
    windows, index = _windows(index)
    if windows:
        part = _put(_at_windows(x, windows), index, value, fresh)
        return lax.dynamic_update_slice(x, part, _starts(windows, x.ndim))
    r = _region(index, tuple(x.shape))
    picked = broadcast_to(value, tuple(r.shape))
    value = lax.reshape(picked, r.lengths)
    value = lax.rev(value, r.flips) if r.flips else value
    if tuple(r.lengths) == tuple(x.shape):
        return value
    padding = [
        (start, size - start - (0 if n == 0 else (n - 1) * step + 1), step - 1)
        for start, size, step, n in zip(r.starts, x.shape, r.steps, r.lengths, strict=True)
    ]
    if fresh:
        return lax.pad(value, lax.full((), 0, value.dtype), padding)
    if all(step == 1 for step in r.steps):
        return lax.dynamic_update_slice(x, value, r.starts)
    # A stride leaves gaps, in which x is unchanged.
    inside = lax.pad(lax.full(value.shape, True), lax.full((), False), padding)
    return lax.select(inside, lax.pad(value, lax.full((), 0, value.dtype), padding), x)


def _windows(index: list[Part]) -> tuple[dict[int, _Window], list[Part]]:
    """The windows by axis, and the index into their parts."""
    parts = [part for part in index if part is not None]
    windows = {axis: part for axis, part in enumerate(parts) if isinstance(part, _Window)}
    return windows, [part.index if isinstance(part, _Window) else part for part in index]


def _at_windows(x: Array, windows: dict[int, _Window]) -> Array:
    for axis, window in windows.items():
        suggest_decided(window.count, "le", x.shape[axis])
    if len(windows) == 1:
        ((axis, window),) = windows.items()
        return lax.dynamic_slice_in_dim(x, window.start, window.count, axis)
    if not windows:
        return x
    sizes = [windows[a].count if a in windows else n for a, n in enumerate(x.shape)]
    return lax.dynamic_slice(x, _starts(windows, x.ndim), sizes)


def _starts(windows: dict[int, _Window], rank: int) -> list[Value]:
    """The starts of the windows, in one type; zero in other axes."""
    dtype = np.result_type(*(np.dtype(w.start.dtype) for w in windows.values()))
    starts = (windows[axis].start if axis in windows else np.int32(0) for axis in range(rank))
    return [lax.convert_element_type(start, dtype) for start in starts]


def _bounds(part: slice, size: Int) -> tuple[Int, Int, int, Int]:
    """Start, stop (in ascending order), signed step and length of a slice."""
    if not any(map(is_open, (size, part.start, part.stop))):
        picked = range(*part.indices(size))
        if not picked:
            return 0, 0, picked.step, 0
        if picked.step > 0:
            return picked.start, picked.stop, picked.step, len(picked)
        return picked[-1], picked[0] + 1, picked.step, len(picked)
    return _open_bounds(part, size)


def _open_bounds(part: slice, size: Int) -> tuple[Int, Int, int, Int]:
    """The same for an axis of open size, or for open ends.

    Python clips slices to the array. If an open end may lie beyond, the smaller one is used; one
    program for all sizes exists only if it never does.
    """
    step: int = part.step or 1
    last = size if step > 0 else size - 1
    first = 0 if step > 0 else -1

    def end(value: Int | None, default: Int) -> Int:
        if value is None:
            return default
        place = _from_start(value, size)
        suggest_decided(place, "ge", first)
        suggest_decided(place, "le", last)
        return int_min(int_max(place, first), last)

    start, stop = end(part.start, first if step > 0 else last), end(part.stop, last)
    if step < 0:
        stop = -1 if part.stop is None else stop
        start, stop = stop + 1, start + 1
    suggest_decided(stop, "ge", start)
    count = int_max(stop - start, 0)
    length = -(-count // abs(step))
    if step == 1:
        return start, start + count, 1, length
    if step > 0:
        return start, start + count, step, length
    # With a negative step, the first element selected comes last in ascending order.
    return stop - (length - 1) * -step - 1, stop, step, length


def _from_start(value: Int, size: Int) -> Int:
    """An index from the start of an axis, given one from either end."""
    if isinstance(value, int):
        return value + size if value < 0 else value
    suggest_decided(value, "ge", 0)
    return value if value >= 0 else value + size
