"""Reductions over axes that are known while raising.

TensorFlow's gradient of a cumulative product divides by the numbers: it takes 0 at those that are
0, and forgets to conjugate. Here it is the derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, add_table, raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, as_sizes, axis_of, ints, is_static, static


def _mean(x: Any, axis: tuple[int, ...]) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.mean(x, axis=axis)
    # Whole numbers are added up in 64 bits and divided towards zero.
    wide = np.int64 if jnp.issubdtype(x.dtype, jnp.signedinteger) else np.uint64
    count = math.prod(x.shape[a] for a in axis)
    total = jnp.sum(x, axis=axis, dtype=wide)
    return lax.div(total, lax.full_like(total, count)).astype(x.dtype)


def _euclidean_norm(x: Any, axis: tuple[int, ...]) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        squares = lax.mul(x, lax.conj(x))
    else:
        squares = lax.square(x)
    total = jnp.sum(squares, axis=axis, dtype=x.dtype)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return lax.sqrt(total)
    return lax.sqrt(total.astype(np.float64)).astype(x.dtype)


def _extreme(largest: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The largest or least number; of none, the one that any other replaces."""

    def neutral(dtype: Any) -> Any:
        if jnp.issubdtype(dtype, jnp.inexact):
            return np.asarray(-np.inf if largest else np.inf, dtype)
        bounds = jnp.iinfo(dtype)
        return np.asarray(bounds.min if largest else bounds.max, dtype)

    def of_array(x: Any, axis: tuple[int, ...]) -> Any:
        if any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axis):
            return lax.full(np.delete(x.shape, axis).tolist(), neutral(x.dtype), x.dtype)
        return (jnp.max if largest else jnp.min)(x, axis=axis)

    def of_sizes(x: np.ndarray) -> Any:
        return (np.max if largest else np.min)(x) if x.size else neutral(x.dtype)

    return of_array, of_sizes


# op: (function on arrays, the same on static shape values or None)
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
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


def _reduction(fn: Callable[..., Any], fold: Callable[..., Any] | None) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        keep = bool(node.attr("keep_dims", False))
        rank = np.ndim(values[0])
        axes = tuple(sorted({a % rank for a in ints(static(node, values, 1))})) if rank else ()
        if is_static(values[0]) and rank == 0:
            return [values[0]]
        if is_static(values[0]) and rank == 1 and axes == (0,) and not keep:
            if values[0].dtype != object and fold is not None:
                return [np.asarray(fold(values[0]))]
            if values[0].dtype == object and node.op in ("Prod", "Sum"):
                items = ints(values[0])
                total = math.prod(items) if node.op == "Prod" else sum(items)
                return [as_sizes(total, node.attr("T"))]
        x = array(values[0])
        y = fn(x, axis=axes)
        if keep:
            shape = tuple(1 if i in axes else d for i, d in enumerate(np.shape(x)))
            y = lax.reshape(y, shape)
        return [y]

    return rule


for _op, (_fn, _fold) in REDUCTIONS.items():
    raises_tf(_op, folds_sizes=_op == "Prod")(_reduction(_fn, _fold))


# op: (function, its neutral element)
CUMULATIVE: dict[str, tuple[Callable[..., Any], float]] = {
    "Cumprod": (lax.cumprod, 1),
    "Cumsum": (lax.cumsum, 0),
    "CumulativeLogsumexp": (lax.cumlogsumexp, -np.inf),
}


def _cumulative(fn: Callable[..., Any], neutral: float) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        options = bool(node.attr("exclusive", False)) or bool(node.attr("reverse", False))
        whole = is_static(values[0]) and values[0].dtype.kind in "iuO" and values[0].ndim == 1
        if node.op == "Cumsum" and whole and not options:
            # Where rows end, of how long they are.
            return [np.cumsum(values[0]).astype(values[0].dtype)]
        x = array(values[0])
        axis = axis_of(ints(static(node, values, 1))[0], x.ndim)
        reverse = bool(node.attr("reverse", False))
        if node.attr("exclusive", False) and x.shape[axis]:
            # One step later: the neutral element moves in, the last element out.
            shift = [(0, 0, 0)] * x.ndim
            shift[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(x, lax.full((), neutral, x.dtype), shift)
        return [fn(x, axis=axis, reverse=reverse)]

    return rule


add_table({op: _cumulative(fn, neutral) for op, (fn, neutral) in CUMULATIVE.items()})
