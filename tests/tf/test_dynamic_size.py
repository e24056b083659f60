"""Data-dependent sizes stay within their static bounds under all arithmetic."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

from invert import Problem
from invert.tf.values.dynamic_size import DynamicSize, int_max, int_min

_ORIGIN = Problem("tf.Where", "has a result whose size depends on data", "node")
_BINARY: list[Callable] = [operator.add, operator.sub, operator.mul, int_max, int_min]


def _size(n: int, least: int, most: int) -> DynamicSize:
    return DynamicSize(np.int32(n), most, _ORIGIN, least)


def _check(found: object, wanted: int) -> None:
    if isinstance(found, DynamicSize):
        assert int(found.value) == wanted
        assert found.least <= wanted <= found.most
    else:
        assert found == wanted


@pytest.mark.parametrize("fn", _BINARY)
def test_bounds_hold(fn: Callable):
    rng = np.random.default_rng(3)
    for _ in range(300):
        a, b = (sorted(rng.integers(-9, 9, 3).tolist()) for _ in range(2))
        x, y = _size(a[1], a[0], a[2]), _size(b[1], b[0], b[2])
        _check(fn(x, y), fn(a[1], b[1]))
        _check(fn(x, b[1]), fn(a[1], b[1]))
        _check(fn(b[1], x), fn(b[1], a[1]))


def test_quotients_and_negatives():
    for low, high, by in itertools.product(range(-7, 5), range(-2, 9), (-3, -1, 1, 2, 5)):
        for n in range(low, high + 1):
            _check(_size(n, low, high) // by, n // by)
            _check(-_size(n, low, high), -n)
            _check(-(-_size(n, low, high) // by), -(-n // by))


def test_bounds_of_open_sizes():
    b: Any = jax.export.symbolic_shape("b")[0]

    def lengths(x):
        n = DynamicSize(x[0].astype(np.int32), b, _ORIGIN)
        left = b - n
        assert (left.least, left.most) == (0, b)
        assert (n * n).most == b * b
        assert int_max(n, 0) is n
        assert int_min(n, b) is n
        assert int_max(n, b + 1) == b + 1
        assert (n - b).capacity == 0
        assert (n + 2 - 2).most == b
        return left.value + (n + b).value

    out = jax.eval_shape(lengths, jax.ShapeDtypeStruct((b,), np.float32))
    assert out.shape == ()
