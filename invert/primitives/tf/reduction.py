"""Reductions over axes known during raising.

TensorFlow's gradient of a cumulative product divides by the elements: it is 0 for zero elements and
lacks a conjugation. Here it is the true derivative.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.arrays import computed_now
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule, rules
from invert.tf.values.constants import array, as_sizes, axis_of, ints, is_static
from invert.tf.values.dynamic_size import int_max, int_min


def _mean(x: Array, axis: tuple[int, ...]) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis)
    # Integers are summed in 64 bits and divided toward zero.
    wide = np.int64 if jnp.issubdtype(x.dtype, jnp.signedinteger) else np.uint64
    # The mean of nothing is 0; XLA would end the process where it folds the quotient of two zeros.
    count = math.prod(x.shape[a] for a in axis) or 1
    total = jnp.sum(x, axis=axis, dtype=wide)
    return lax.div(total, lax.full_like(total, count)).astype(x.dtype)


def _euclidean_norm(x: Array, axis: tuple[int, ...]) -> Array:
    if jnp.iscomplexobj(x):
        squares = lax.mul(x, lax.conj(x))
    else:
        squares = lax.square(x)
    total = jnp.sum(squares, axis=axis, dtype=x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return lax.sqrt(total)
    return lax.sqrt(total.astype(np.float64)).astype(x.dtype)


def limits(dtype: np.dtype) -> Value:
    """The `min` and `max` of the finite numbers of a type."""
    return (jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo)(dtype)


def lowest(dtype: np.dtype) -> np.ndarray:
    """The maximum of no elements, the lowest number of a type."""
    least = -np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min
    return np.asarray(least, dtype)


def highest(dtype: np.dtype) -> np.ndarray:
    """The minimum of no elements, the highest number of a type."""
    most = np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max
    return np.asarray(most, dtype)


def _extreme(largest: bool) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """The maximum or minimum; for no elements, the neutral one."""
    neutral = lowest if largest else highest

    def of_array(x: Array, axis: tuple[int, ...]) -> Array:
        if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axis):
            return lax.full(np.delete(x.shape, axis).tolist(), neutral(x.dtype), x.dtype)
        return (jnp.max if largest else jnp.min)(x, axis=axis)

    def of_sizes(x: np.ndarray) -> np.ndarray:
        return (np.max if largest else np.min)(x) if x.size else neutral(x.dtype)

    return of_array, of_sizes


# op: (function on arrays, the same on static shape values or None)
REDUCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., Array] | None]] = {
    "All": (jnp.all, np.all),
    "Any": (jnp.any, np.any),
    "EuclideanNorm": (_euclidean_norm, None),
    "Max": _extreme(True),
    "Mean": (_mean, None),
    "Min": _extreme(False),
    "Prod": (
        lambda x, axis: jnp.prod(x, axis=axis, dtype=x.dtype),
        lambda x: np.prod(x, dtype=x.dtype),
    ),
    "Sum": (
        lambda x, axis: jnp.sum(x, axis=axis, dtype=x.dtype),
        lambda x: np.sum(x, dtype=x.dtype),
    ),
}


# Of open sizes.
_OF_SIZES: dict[str, Callable[[Value, Value], Value]] = {
    "Max": int_max,
    "Min": int_min,
    "Prod": operator.mul,
    "Sum": operator.add,
}


def _reduction(fn: Callable[..., Array], fold: Callable[..., Value] | None) -> Callable[..., Value]:
    def reduction(
        x: Value, axis: Ints, *, keep_dims: bool, T: np.dtype | None = None, op: str
    ) -> Value:
        rank = np.ndim(x)
        axes = tuple(sorted({a % rank for a in axis})) if rank else ()
        if is_static(x) and rank == 0:
            return x
        if is_static(x) and rank == 1 and axes == (0,) and not keep_dims:
            if x.dtype != object and fold is not None:
                number = x.dtype.kind == "f"
                return (
                    computed_now(lambda x: fn(x, axis=axes), x) if number else np.asarray(fold(x))
                )
            if x.dtype == object and x.size and op in _OF_SIZES:
                return as_sizes(functools.reduce(_OF_SIZES[op], ints(x)), T or x.dtype)
        x = array(x)
        if op == "Mean" and keep_dims and jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.mean(x, axis=axes, keepdims=True)
        y = fn(x, axis=axes)
        if keep_dims:
            y = lax.reshape(y, tuple(1 if i in axes else d for i, d in enumerate(np.shape(x))))
        return y

    return reduction


for _op, (_fn, _fold) in REDUCTIONS.items():
    _idempotent = _op in ("All", "Any", "Max", "Min")
    rule(_op, folds_sizes=_op == "Prod", idempotent=_idempotent)(_reduction(_fn, _fold))


# op: (function, its neutral element)
CUMULATIVE: dict[str, tuple[Callable[..., Array], float]] = {
    "Cumprod": (lax.cumprod, 1),
    "Cumsum": (lax.cumsum, 0),
    "CumulativeLogsumexp": (lax.cumlogsumexp, -np.inf),
}


def _cumulative(fn: Callable[..., Array], neutral: float) -> Callable[..., Value]:
    def cumulative(x: Value, axis: Int, *, exclusive: bool, reverse: bool, op: str) -> Value:
        whole = is_static(x) and x.dtype.kind in "iuO" and x.ndim == 1
        if op == "Cumsum" and whole and not exclusive and not reverse:
            # Row offsets from row lengths.
            return np.cumsum(x).astype(x.dtype)
        x = array(x)
        axis = axis_of(axis, x.ndim)
        if exclusive and x.shape[axis]:
            # Exclusive: shift by one, starting with the neutral element.
            shift = [(0, 0, 0)] * x.ndim
            shift[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(x, lax.full((), neutral, x.dtype), shift)
        return fn(x, axis=axis, reverse=reverse)

    return cumulative


rules({op: _cumulative(fn, neutral) for op, (fn, neutral) in CUMULATIVE.items()})


@rule("DebugNanCount", ignores=("tensor_name", "debug_urls", "gated_grpc", "device_name"))
def _nan_count(x: Array) -> Array:
    return jnp.sum(lax.ne(x, x), dtype=np.int64)[None]
