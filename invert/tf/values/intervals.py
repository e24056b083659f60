"""Interval arithmetic over traced numbers.

A loop that counts up to a number that depends on data ends after so many steps as the largest one
asks for, such as the squarings of `tf.linalg.expm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from invert._private.jax import is_tracer, made_by
from invert.ir import kinds

# The least and the largest value of an array.
Range = tuple[float, float]

# Deeper chains have no known range.
_MAX_DEPTH = 32


class Known:
    """Ranges of values that are known from elsewhere, such as of an induction variable.

    `asked`: whether one was asked for of which no range is known.
    """

    def __init__(self, values: Sequence[Any], ranges: Sequence[Range | None]):
        self.asked = False
        self._found = {id(v): (v, r) for v, r in zip(values, ranges, strict=True)}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._found

    def of(self, value: Any) -> Range | None:
        found = self._found[id(value)][1]
        self.asked = self.asked or found is None
        return found


def range_of(
    value: Any, known: Sequence[Known] = (), *, finite: bool = False, depth: int = 0
) -> Range:
    """The range of a value. NaN is in every range of floating point numbers.

    **Arguments:**

    - `known`: ranges of values that come from nowhere, as the variables of a loop.
    - `finite`: whether numbers of unknown origin may be taken for finite.
    """
    if not is_tracer(value):
        return _of_constant(value)
    whole = _whole(value.dtype, finite)
    for values in known:
        if value in values:
            return values.of(value) or whole
    made = made_by(value)
    if made is None or depth > _MAX_DEPTH:
        return whole
    name, operands, params = made
    rule = _RULES.get(name)
    if rule is None:
        return whole
    if name in kinds.MOVES:
        operands = operands[:1]
    ranges = [range_of(x, known, finite=finite, depth=depth + 1) for x in operands]
    low, high = rule(*ranges, **_OPTIONS.get(name, _no_options)(value, operands, params))
    if math.isnan(low) or math.isnan(high):
        return whole
    if not jnp.issubdtype(value.dtype, jnp.floating):
        # Whole numbers that are too large come out as others.
        return (low, high) if whole[0] <= low and high <= whole[1] else whole
    if name in _ROUNDED:
        spare = 8 * float(jnp.finfo(value.dtype).eps)
        low, high = low - abs(low) * spare, high + abs(high) * spare
    return max(low, whole[0]), min(high, whole[1])


def ends_of(value: Any, known: Sequence[Known], finite: bool) -> Range:
    """The range of a number; infinite where it is that of its type."""
    low, high = range_of(value, known, finite=finite)
    least, most = _whole(value.dtype, finite=False)
    return -math.inf if low == least else low, math.inf if high == most else high


def _of_constant(value: Any) -> Range:
    x = np.asarray(value)
    numbers = x.dtype != object and jnp.issubdtype(x.dtype, jnp.number)
    if not numbers or jnp.issubdtype(x.dtype, jnp.complexfloating) or not x.size:
        return -math.inf, math.inf
    low, high = float(x.min()), float(x.max())
    return (-math.inf, math.inf) if math.isnan(low) or math.isnan(high) else (low, high)


def _whole(dtype: Any, finite: bool) -> Range:
    """The range of a type."""
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return float(limits.min), float(limits.max)
    if jnp.issubdtype(dtype, jnp.floating) and finite:
        largest = float(jnp.finfo(dtype).max)
        return -largest, largest
    return (0.0, 1.0) if dtype == np.bool_ else (-math.inf, math.inf)


def _log_of(x: float) -> float:
    if x <= 0:
        return -math.inf
    return math.log(x) if math.isfinite(x) else x


def _rounded(to: Callable[[float], float]) -> Callable[..., Range]:
    def rule(x: Range) -> Range:
        low, high = (to(a) if math.isfinite(a) else a for a in x)
        return low, high

    return rule


def _product(x: Range, y: Range) -> Range:
    corners = [a * b for a in x for b in y]
    known = all(not math.isnan(c) for c in corners)
    return (min(corners), max(corners)) if known else (-math.inf, math.inf)


def _quotient(x: Range, y: Range) -> Range:
    if y[0] <= 0 <= y[1]:
        return -math.inf, math.inf
    return _product(x, (1 / y[1], 1 / y[0]))


def _sum(x: Range, count: int | None) -> Range:
    """Of so many numbers; `None` where that is not known."""
    if count is None:
        return -math.inf if x[0] < 0 else 0.0, math.inf if x[1] > 0 else 0.0
    return _product(x, (count, count)) if count else (0.0, 0.0)


def _converted(x: Range, least: float | None) -> Range:
    """As another type; `least`: the least number of one of whole numbers, which NaN may become."""
    if least is None:
        return x
    return least, max(math.trunc(x[1]) if math.isfinite(x[1]) else x[1], 0)


def _same(x: Range) -> Range:
    return x


_ROUNDED = frozenset(("add", "convert_element_type", "div", "log", "mul", "reduce_sum", "sub"))
_RULES: dict[str, Callable[..., Range]] = {
    # Along an axis the largest number is one of them.
    **dict.fromkeys(kinds.MOVES | {"copy", "reduce_max", "reduce_min"}, _same),
    "abs": lambda x: (max(x[0], -x[1], 0.0), max(-x[0], x[1])),
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "ceil": _rounded(math.ceil),
    "clamp": lambda a, x, b: (min(max(x[0], a[0]), b[0]), min(max(x[1], a[1]), b[1])),
    "convert_element_type": _converted,
    "div": _quotient,
    "floor": _rounded(math.floor),
    "log": lambda x: (_log_of(x[0]), _log_of(x[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "mul": _product,
    "neg": lambda x: (-x[1], -x[0]),
    "reduce_sum": _sum,
    "select_n": lambda c, *xs: (min(x[0] for x in xs), max(x[1] for x in xs)),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
}

_Options = Callable[[Any, Sequence[Any], Mapping[str, Any]], dict[str, Any]]


def _no_options(value: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _count_of(value: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    sizes = [operands[0].shape[axis] for axis in params["axes"]]
    return {"count": math.prod(sizes) if all(isinstance(n, int) for n in sizes) else None}


def _cut_of(value: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    whole = jnp.issubdtype(value.dtype, jnp.integer)
    cut = whole and jnp.issubdtype(operands[0].dtype, jnp.floating)
    return {"least": float(jnp.iinfo(value.dtype).min) if cut else None}


_OPTIONS: dict[str, _Options] = {"convert_element_type": _cut_of, "reduce_sum": _count_of}


def single_numbers(operands: list[Any]) -> list[Any]:
    """The operands, as constants those scalars that can only be one whole number.

    Such is the size of a count with as many bins at least as at most.
    """
    found = list(operands)
    for i, value in enumerate(operands):
        dtype = getattr(value, "dtype", None)
        is_whole = isinstance(dtype, np.dtype) and dtype.kind == "i"
        if isinstance(value, np.ndarray) or not is_whole or getattr(value, "shape", None) != ():
            continue
        low, high = range_of(value)
        if low == high:
            found[i] = np.asarray(low, dtype)
    return found
