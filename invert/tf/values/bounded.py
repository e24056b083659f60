"""Arrays whose number of rows depends on data.

What TensorFlow makes as long as there are elements is an array here that is as long as it can get,
and the number of rows that are there. Both go through the graph together: `primitives.tf.bounded`
says what an op does with them, and refuses every op that would see the rows too many. The number is
a size like any other to the ops that compute with shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.ops.node import Node


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicSize:
    """A size that is known when the program runs, among the static sizes of a shape.

    Sums and products with other sizes are sizes again. Everything else is computed from `value`.

    **Arguments:**

    - `value`: a traced scalar of type int32.
    - `most`: how large it can get.
    - `origin`: what is wrong where an op needs to know how many, with what made the rows.
    - `least`: how small it can get.
    """

    value: Any
    most: Any
    origin: Problem
    least: Any = 0

    def _with(self, other: Any, fn: Any) -> Any:
        if isinstance(other, DynamicSize):
            value = fn(self.value, other.value)
            return DynamicSize(
                value, fn(self.most, other.most), self.origin, fn(self.least, other.least)
            )
        if not isinstance(other, int | np.integer):
            return NotImplemented
        if fn(2, int(other)) == 2:  # times one, plus zero
            return self
        value = fn(self.value, np.int32(other))
        ends = fn(self.most, int(other)), fn(self.least, int(other))
        return DynamicSize(value, max(ends), self.origin, min(ends))

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, DynamicSize):
            ends = self.most - other.least, self.least - other.most
            return DynamicSize(self.value - other.value, ends[0], self.origin, ends[1])
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, DynamicSize):
            return NotImplemented
        return self._with(other, lambda a, b: a // b)

    def at_least(self, number: int) -> Any:
        """The larger of it and a number."""
        if self.least >= number:
            return self
        if self.most <= number:
            return number
        value = lax.max(self.value, np.int32(number))
        return DynamicSize(value, self.most, self.origin, number)

    def at_most(self, number: int) -> Any:
        """The smaller of it and a number."""
        if self.most <= number:
            return self
        if self.least >= number:
            return number
        value = lax.min(self.value, np.int32(number))
        return DynamicSize(value, number, self.origin, self.least)

    __radd__, __rmul__ = __add__, __mul__

    def __jax_array__(self) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DynamicSize) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@jax.tree_util.register_pytree_node_class
class BoundedArray:
    """An array of which the first rows are there, and the others are not to be looked at.

    **Arguments:**

    - `data`: the array, with room for all rows that there may be.
    - `count`: how many there are, a traced scalar of type int32.
    - `origin`: what is wrong where an op needs to know how many, with what made them.
    - `marked`: whether the rows too many hold -1, as indices that lead nowhere.
    """

    def __init__(self, data: Any, count: Any, origin: Problem, marked: bool = False):
        self.data, self.count = data, count
        self.origin, self.marked = origin, marked

    @property
    def size(self) -> DynamicSize:
        return DynamicSize(self.count, self.data.shape[0], self.origin)

    def with_data(self, data: Any, marked: bool = False) -> BoundedArray:
        return BoundedArray(data, self.count, self.origin, marked)

    def there(self, rank: int = 1) -> Any:
        """Which rows are there, with axes of one behind."""
        steps = lax.iota(np.int32, self.data.shape[0])
        return lax.expand_dims(lax.lt(steps, self.count), range(1, rank))

    def filled(self, value: Any) -> Any:
        """The array with `value` in the rows too many."""
        neutral = lax.full_like(self.data, value)
        return jnp.where(self.there(self.data.ndim), self.data, neutral)

    def indices(self) -> Any:
        """The array as indices, of which those too many are -1."""
        return self.data if self.marked else self.filled(-1)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Problem, bool]]:
        return (self.data, self.count), (self.origin, self.marked)

    @classmethod
    def tree_unflatten(cls, aux: tuple[Problem, bool], children: Sequence[Any]) -> BoundedArray:
        data, count = children
        return cls(data, count, *aux)


def refused_rows(origin: Problem, op: str = "", location: str = "") -> UnsupportedOpError:
    """The error where `op`, or else the caller, would see the rows too many."""
    where = f" goes into tf.{op} ({location})" if op else " is a result"
    return UnsupportedOpError(
        [dataclasses.replace(origin, reason=f"{origin.reason}, which{where}")]
    )


def refused(node: Node, values: Sequence[Any]) -> UnsupportedOpError:
    """The error of an op that cannot do with operands whose sizes depend on data."""
    for value in values:
        if isinstance(value, BoundedArray):
            return refused_rows(value.origin, node.op, node.location)
    reason = "has a size that depends on data in a place that needs a number"
    return UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])


def holds_dynamic_size(value: Any) -> bool:
    """Whether a static value holds a `DynamicSize`."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return False
    return any(isinstance(d, DynamicSize) for d in value.ravel())


def resized(x: Any, size: int, fill: int = 0) -> Any:
    """The first `size` rows of x; where there are less, with rows of `fill` behind."""
    have = x.shape[0]
    if have == size:
        return x
    if have > size:
        return lax.slice_in_dim(x, 0, size)
    behind = [(0, size - have, 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return lax.pad(x, np.asarray(fill, x.dtype), behind)


def stretched(rows: BoundedArray, size: int, count: Any = None) -> Any:
    """The rows beside others: there are as many, or one that stands for all.

    **Arguments:**

    - `size`: how many rows the result has.
    - `count`: how many of them are there; `None`: all.
    """
    fitting = resized(rows.data, size)
    if rows.data.shape[0] == 0 or size == 1:
        return fitting
    one = jnp.broadcast_to(rows.data[:1], (size, *rows.data.shape[1:]))
    alone = lax.eq(rows.count, np.int32(1))
    if count is not None:
        alone = lax.bitwise_and(alone, lax.ne(count, np.int32(1)))
    return lax.select_n(alone, fitting, one)


def common_count(rows: Sequence[BoundedArray]) -> tuple[Any, int]:
    """How many rows an elementwise op on all of them gives, and room for them."""
    first, *others = rows
    if all(r.count is first.count for r in others):
        return first.count, min(r.data.shape[0] for r in rows)
    count = first.count
    for other in others:
        count = lax.select(lax.eq(count, np.int32(1)), other.count, count)
    return count, max(r.data.shape[0] for r in rows)
