"""Arrays whose number of rows depends on data.

Such an array has its full capacity, together with its length: the number of valid rows. Both go
through the graph together. `primitives.tf.bounded` defines how ops treat them; an op that would see
the padding rows is refused. To ops on shapes the length is a size like any other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.ir.types import Value
from invert.tf.ops.node import Node
from invert.tf.values.dynamic_size import DynamicSize


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Static rows that data distributes over several arrays."""

    rows: np.ndarray
    count: int


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "length"),
    meta_fields=("origin", "pads_minus_one"),
    drop_fields=("part",),
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
    """

    data: Value
    length: Value
    origin: Problem
    pads_minus_one: bool = False
    part: tuple[Partition, int] | None = None

    @property
    def size(self) -> DynamicSize:
        return DynamicSize(self.length, self.data.shape[0], self.origin)

    def with_data(self, data: Value, pads_minus_one: bool = False) -> BoundedArray:
        return BoundedArray(data, self.length, self.origin, pads_minus_one)

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
    """The first `size` rows of x, padded with rows of `fill` if it has fewer."""
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
