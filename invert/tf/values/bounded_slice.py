"""Slices of the rows of an array whose length depends on data; see `bounded`."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from invert._errors import Problem
from invert.ir.types import Value
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray


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
