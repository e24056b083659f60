"""Sizes known only at run time, among the static sizes of a shape."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from invert._errors import Problem
from invert._private.jax import max_dim, min_dim
from invert.ir.sizes import DimSize, as_value, decided, is_open
from invert.ir.types import Value

_INT32 = np.dtype(np.int32)


class NotASizeError(Exception):
    """Arithmetic on sizes has a result that is not a size, such as a remainder."""


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicSize:
    """A size that depends on data, with its bounds.

    Sums, products, quotients, maxima and minima of it and other sizes are sizes again. Everything
    else is computed from `value`.

    **Arguments:**

    - `value`: a traced scalar of type int32.
    - `most`, `least`: its static bounds, which may be open.
    - `origin`: the problem to report if an op needs the number; it names the op that produced it.
    """

    value: Value
    most: DimSize
    origin: Problem
    least: DimSize = 0

    @property
    def capacity(self) -> DimSize:
        """The capacity for this many rows, at least zero."""
        return int_max(self.most, 0)

    def _with(
        self, other: Value, of_values: Callable[..., Value], of_sizes: Callable[..., DimSize]
    ) -> Value:
        """A function monotone in each operand, so that its bounds are at the corners."""
        if isinstance(other, DynamicSize):
            value, ends = other.value, (other.most, other.least)
        elif isinstance(other, int | np.integer) or is_open(other):
            number: DimSize = other if is_open(other) else int(other)
            value, ends = as_value(number, _INT32), (number,)
        else:
            return NotImplemented
        corners = [of_sizes(a, b) for a in (self.most, self.least) for b in ends]
        most = least = corners[0]
        for corner in corners[1:]:
            most, least = int_max(most, corner), int_min(least, corner)
        return DynamicSize(of_values(self.value, value), most, self.origin, least)

    def __add__(self, other: Value) -> Value:
        return self if _is(other, 0) else self._with(other, operator.add, operator.add)

    def __mul__(self, other: Value) -> Value:
        return self if _is(other, 1) else self._with(other, operator.mul, operator.mul)

    def __sub__(self, other: Value) -> Value:
        return self if _is(other, 0) else self._with(other, operator.sub, operator.sub)

    def __rsub__(self, other: Value) -> Value:
        return (-self) + other

    def __neg__(self) -> DynamicSize:
        return DynamicSize(-self.value, -self.least, self.origin, -self.most)

    def __floordiv__(self, other: Value) -> Value:
        if not isinstance(other, int | np.integer) or other == 0:
            raise NotASizeError
        return self if other == 1 else self._with(other, operator.floordiv, operator.floordiv)

    def _traced_only(self, other: Value) -> Value:
        raise NotASizeError

    __radd__, __rmul__ = __add__, __mul__
    __rfloordiv__ = __mod__ = __rmod__ = _traced_only

    def larger(self, other: Value) -> Value:
        """The maximum of it and another size."""
        found = self._one_of(other, larger=True)
        return self._with(other, jnp.maximum, int_max) if found is None else found

    def smaller(self, other: Value) -> Value:
        """The minimum of it and another size."""
        found = self._one_of(other, larger=False)
        return self._with(other, jnp.minimum, int_min) if found is None else found

    def _one_of(self, other: Value, *, larger: bool) -> Value:
        """The larger or smaller of the two; `None` if that depends on data."""
        if isinstance(other, DynamicSize):
            return None
        if decided("ge", self.least, other):
            return self if larger else other
        if decided("le", self.most, other):
            return other if larger else self
        return None

    # No `__jax_array__`: an open size would treat it as an array, and the sum as data.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DynamicSize) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _is(size: Value, number: int) -> bool:
    return isinstance(size, int | np.integer) and int(size) == number


def int_max(a: Value, b: Value) -> Value:
    """The maximum of two sizes, each a number, open or dynamic."""
    if isinstance(a, DynamicSize):
        return a.larger(b)
    if isinstance(b, DynamicSize):
        return b.larger(a)
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else max_dim(a, b)


def int_min(a: Value, b: Value) -> Value:
    """The minimum of two sizes, each a number, open or dynamic."""
    if isinstance(a, DynamicSize):
        return a.smaller(b)
    if isinstance(b, DynamicSize):
        return b.smaller(a)
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else min_dim(a, b)


def holds_dynamic_size(value: Value) -> bool:
    """Return whether a static value holds a `DynamicSize`."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return False
    return any(isinstance(d, DynamicSize) for d in value.ravel())
