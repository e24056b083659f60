"""Arrays whose number of rows depends on data.

Such an array has its full capacity, together with its length: the number of valid rows. Both go
through the graph together. `primitives.tf.bounded` defines how ops treat them; an op that would see
the padding rows is refused. Ops on shapes treat the length like any other size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from invert._errors import Problem, UnsupportedOpError
from invert.ir.sizes import DimSize
from invert.ir.types import Value
from invert.tf.ops.node import Node
from invert.tf.values.dynamic_size import DynamicSize


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Static rows that data distributes over several arrays."""

    rows: np.ndarray
    count: int


@dataclasses.dataclass(frozen=True)
class SegmentIds:
    """What is known of segment ids: each is at least zero and below `count`.

    **Arguments:**

    - `all_used`: whether each of these ids occurs.
    """

    count: DimSize
    all_used: bool = False


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "length"),
    meta_fields=("origin", "pads_minus_one"),
    drop_fields=("part", "segments"),
)
@dataclasses.dataclass(eq=False)
class BoundedArray:
    """An array whose first `length` rows are valid.

    **Arguments:**

    - `data`: the array at its full capacity.
    - `length`: the number of valid rows, a traced scalar of type int32.
    - `origin`: the problem to report if an op needs that number; it names the op that produced it.
    - `pads_minus_one`: whether the padding rows hold -1, an index that selects nothing.
    - `part`: the partition that it belongs to, and its number there.
    - `segments`: what is known of the first element of each row as a segment id.
    """

    data: Value
    length: Value
    origin: Problem
    pads_minus_one: bool = False
    part: tuple[Partition, int] | None = None
    segments: SegmentIds | None = None

    @property
    def size(self) -> DynamicSize:
        return DynamicSize(self.length, self.data.shape[0], self.origin)

    def with_data(
        self, data: Value, pads_minus_one: bool = False, segments: SegmentIds | None = None
    ) -> BoundedArray:
        return BoundedArray(data, self.length, self.origin, pads_minus_one, segments=segments)

    def valid_mask(self, rank: int = 1) -> Value:
        """Mask of the valid rows, with trailing axes of size one up to `rank`."""
        steps = lax.iota(np.int32, self.data.shape[0])
        return lax.expand_dims(lax.lt(steps, self.length), range(1, rank))

    def filled(self, value: Value) -> Value:
        """The array with `value` in the padding rows."""
        neutral = lax.full_like(self.data, value)
        return jnp.where(self.valid_mask(self.data.ndim), self.data, neutral)

    def indices(self) -> Value:
        """The array as indices, with -1 in the padding rows."""
        return self.data if self.pads_minus_one else self.filled(-1)


def refused_rows(origin: Problem, op: str = "", location: str = "") -> UnsupportedOpError:
    """The error if `op`, or otherwise the caller, would see padding rows."""
    where = f" goes into tf.{op} ({location})" if op else " is a result"
    return UnsupportedOpError(
        [dataclasses.replace(origin, reason=f"{origin.reason}, which{where}")]
    )


def refused(node: Node, values: Sequence[Value]) -> UnsupportedOpError:
    """The error for an op that does not support operands of data-dependent size."""
    for value in values:
        if isinstance(value, BoundedArray):
            return refused_rows(value.origin, node.op, node.location)
    reason = "needs a number where the size depends on data"
    return node.error(reason, "Use masks, or tf.where with three arguments.")


def resized(x: Value, size: int, fill: int = 0) -> Value:
    """The first `size` rows of x, padded with `fill`."""
    have = x.shape[0]
    if have == size:
        return x
    if have > size:
        return lax.slice_in_dim(x, 0, size)
    behind = [(0, size - have, 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return lax.pad(x, np.asarray(fill, x.dtype), behind)


def stretched(rows: BoundedArray, size: int, length: Value = None) -> Value:
    """Rows resized to `size` for an elementwise op; a single valid row is broadcast.

    **Arguments:**

    - `length`: the number of valid rows of the result; `None`: all.
    """
    same_size = resized(rows.data, size)
    if rows.data.shape[0] == 0 or size == 1:
        return same_size
    first = jnp.broadcast_to(rows.data[:1], (size, *rows.data.shape[1:]))
    single = lax.eq(rows.length, np.int32(1))
    if length is not None:
        single = lax.bitwise_and(single, lax.ne(length, np.int32(1)))
    return lax.select_n(single, same_size, first)


def common_length(rows: Sequence[BoundedArray]) -> tuple[Value, int]:
    """The length and capacity of the result of an elementwise op."""
    first, *others = rows
    if all(r.length is first.length for r in others):
        return first.length, min(r.data.shape[0] for r in rows)
    length = first.length
    for other in others:
        length = lax.select(lax.eq(length, np.int32(1)), other.length, length)
    return length, max(r.data.shape[0] for r in rows)


# -- slices of the rows


@dataclasses.dataclass(frozen=True)
class BoundedSlice:
    """A slice of an axis whose length depends on data.

    **Arguments:**

    - `start`, `stop`: traced scalars, numbers or `None`, as in Python.
    - `step`: a number.
    """

    start: Value
    stop: Value
    step: int

    def places(self, size: Value, room: Value) -> tuple[Value, Value]:
        """The indices of the selected rows, and the number of valid ones.

        **Arguments:**

        - `size`: the length of the axis, traced or not.
        - `room`: its capacity.
        """
        low, high = (0, size) if self.step > 0 else (-1, size - 1)
        ends = (low, high) if self.step > 0 else (high, low)
        start, stop = (
            _clamped(place, size, low, high, default)
            for place, default in zip((self.start, self.stop), ends, strict=True)
        )
        pace = np.int32(abs(self.step))
        span = stop - start if self.step > 0 else start - stop
        count = lax.max(span + (pace - np.int32(1)), np.int32(0)) // pace
        steps = lax.iota(np.int32, self.room(room))
        # Padding repeats the first row: later ops compute on it as well.
        return start + jnp.where(steps < count, steps, np.int32(0)) * np.int32(self.step), count

    def room(self, size: Value) -> Value:
        """The capacity of a slice of an axis of `size`."""
        return -(-size // abs(self.step))


def _clamped(place: Value, size: Value, low: Value, high: Value, default: Value) -> Value:
    if place is None:
        return jnp.asarray(default, np.int32)
    if not hasattr(place, "aval"):
        place = np.int32(min(max(place, -(2**31)), 2**31 - 1))
    dtype = place.dtype
    place = jnp.where(place < 0, place + jnp.asarray(size, dtype), place)
    clamped = jnp.clip(place, jnp.asarray(low, dtype), jnp.asarray(high, dtype))
    return lax.convert_element_type(clamped, np.int32)


def _rows(x: Value) -> tuple[Array, Value]:
    """The rows of `x`, which may be bounded, and the number of valid ones."""
    if isinstance(x, BoundedArray):
        return x.data, x.length
    return jnp.asarray(x), x.shape[0]


def rows_of(x: Value, row_slice: BoundedSlice, origin: Problem) -> BoundedArray:
    """A slice of the first axis of x, which may be bounded."""
    data, size = _rows(x)
    places, count = row_slice.places(size, data.shape[0])
    if isinstance(data.shape[0], int) and data.shape[0] == 0:
        return BoundedArray(data, count, origin)
    y = jnp.take(data, places, axis=0, mode="clip")
    # Padding is ones, so that its unused derivatives are finite.
    return BoundedArray(jnp.where(count > 0, y, lax.full_like(y, 1)), count, origin)


def put_rows(x: Value, row_slice: BoundedSlice, values: Value) -> Value:
    """x with `values` in a slice of the first axis; x may be bounded.

    **Arguments:**

    - `values`: as many rows as the capacity of the slice.
    """
    data, size = _rows(x)
    places, count = row_slice.places(size, data.shape[0])
    valid = lax.iota(np.int32, places.shape[0]) < count
    # An index past the end leaves the array unchanged.
    places = jnp.where(valid, places, np.int32(data.shape[0]))
    y = data.at[places].set(values, mode="drop")
    return x.with_data(y) if isinstance(x, BoundedArray) else y


def slice_origin(node: Node) -> Problem:
    """The problem to report if the length of a slice has to be static."""
    reason = "the length of a slice depends on data"
    remedy = "Use tf.slice or tf.gather, whose results have a fixed size."
    return node.problem(reason, remedy)
