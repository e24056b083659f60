"""Calls of the segment functions in `tf.math` and `tf.sparse`.

With empty segments, negative ids (which TensorFlow drops), ties, zeros, and ids along two axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.tf.api.calls import B, Call, Entry, F, I, Table, V, call, of

SORTED = ("sum", "mean", "prod", "max", "min")
UNSORTED = (*SORTED, "sqrt_n")
_NAN, _INF = float("nan"), float("inf")
_TIES = [[1.0, 2.0], [1.0, 0.0], [3.0, 2.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]]


def _with(ids: Any, name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(tf.math, f"segment_{name}")(x, tf.constant(ids))


def _sorted(name: str) -> Entry:
    whole = "float32 float64 int32" if name != "mean" else "float32 float64"
    return (
        of(_with([0, 0, 1, 3, 3], name), F(5, B)).of(whole),
        of(_with([1, 1, 1], name), F(3)),
        of(_with([0, 0, 0, 1, 1, 3], name), V(_TIES)),
        of(_with(tf.constant([0, 2, 2], tf.int64), name), F(3, 2, 2)),
        of(_with(tf.zeros([0], tf.int32), name), F(0, 2)),
    )


def _unsorted(name: str) -> Entry:
    whole = "float32 float64 int32 int64" if name not in ("mean", "sqrt_n") else "float32 float64"
    calls: list[Call] = [
        call(F(B, 2), I(-1, 4, B), 5).of(whole),
        call(F(B, 2, 3), I(-1, 4, B, 2), 4),
        call(F(2, 3), I(0, 3, 2, 3, dtype="int64"), tf.constant(3, tf.int64)),
        call(V(_TIES), V([0, 1, 0, 3, 3, -1], "int32"), num_segments=4),
        call(V(_TIES), V([[0, 1], [0, 3], [-1, 0], [1, 1], [3, 0], [0, 0]], "int32"), 5),
        call(F(0, 2), I(0, 3, 0), 3),
        call(F(3, 0), I(0, 2, 3), 2),
        # Whether a NaN stays in a maximum depends on the order of the numbers in TensorFlow.
        call(
            V([[0.0 if name in ("max", "min") else _NAN, 1.0], [_INF, 2.0], [1.0, -_INF]]),
            V([0, 0, 2], "int32"),
            3,
        ),
    ]
    return tuple(calls)


def _sparse(name: str) -> Entry:
    function = getattr(tf.sparse, f"segment_{name}")
    return (
        of(lambda x: function(x, [0, 2, 1, 0], [0, 0, 1, 3]), F(3, B)),
        call(F(B, 2), V([0, 1, 1, 0], "int32"), V([0, 0, 2, 3], "int32"), num_segments=5),
        call(F(4, 2, 2), I(0, 4, 5, dtype="int64"), V([0, 1, 1, 1, 2], "int32"), num_segments=3),
        of(lambda x: function(x, [3, 2], [1, 1]), F(4, 2)),
    )


SEGMENT: Table = {
    **{f"segment_{n}": _sorted(n) for n in SORTED},
    **{f"unsorted_segment_{n}": _unsorted(n) for n in UNSORTED},
}
SPARSE_SEGMENT: Table = {f"segment_{n}": _sparse(n) for n in ("sum", "mean", "sqrt_n")}
