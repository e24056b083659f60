"""Ops that write elements by index.

An index out of range is an error in TensorFlow on the CPU, and ignored on a GPU and here. So are
negative indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, static

_DROP = lax.GatherScatterMode.FILL_OR_DROP

SCATTERS: dict[str, Callable[..., Any]] = {
    "Add": lax.scatter_add,
    "Sub": lax.scatter_sub,
    "Max": lax.scatter_max,
    "Min": lax.scatter_min,
    "Update": lax.scatter,
}


def scatter_nd(
    fn: Callable[..., Any], x: Any, indices: Any, updates: Any, *, is_sorted: bool = False
) -> Any:
    """Applies `fn` where the last axis of `indices` points, in the leading axes of x."""
    depth, rank = indices.shape[-1], indices.ndim - 1
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(rank, updates.ndim)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
    )
    return fn(x, indices, updates, numbers, indices_are_sorted=is_sorted, mode=_DROP)


@raises_tf("ScatterNd")
def _scatter_nd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, updates = array(values[0]), array(values[1])
    x = lax.full(ints(static(node, values, 2)), 0, updates.dtype)
    fn = lax.scatter_max if updates.dtype == bool else lax.scatter_add
    return [scatter_nd(fn, x, indices, updates)]


@raises_tf(*(f"TensorScatter{kind}" for kind in SCATTERS))
def _tensor_scatter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, indices, updates = (array(v) for v in values)
    return [scatter_nd(SCATTERS[node.op.removeprefix("TensorScatter")], x, indices, updates)]


@raises_tf("ScatterNdNonAliasingAdd")
def _scatter_nd_add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, indices, updates = (array(v) for v in values)
    fn = lax.scatter_max if x.dtype == bool else lax.scatter_add
    return [scatter_nd(fn, x, indices, updates)]


@raises_tf("SparseToDense")
def _sparse_to_dense(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, updates, default = array(values[0]), array(values[2]), array(values[3])
    shape = ints(static(node, values, 1))
    count = indices.shape[0] if indices.ndim else 1
    indices = lax.reshape(indices, (count, len(shape)))
    x = broadcast_to(default, shape)
    return [scatter_nd(lax.scatter, x, indices, broadcast_to(updates, (count,)))]


@raises_tf("Bincount", "DenseBincount")
def _bincount(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, weights = array(values[0]), array(values[2])
    (size,) = ints(static(node, values, 1))
    binary = node.attr("binary_output", False)
    rows = x.shape[:-1] if node.op == "DenseBincount" and x.ndim == 2 else ()
    if weights.size == 0 or binary:
        weights = lax.full(x.shape, 1, weights.dtype)
    if not rows:
        x, weights = (lax.reshape(v, (v.size,)) for v in (x, weights))
    bins = lax.full((*rows, size), 0, weights.dtype)
    places = [lax.broadcasted_iota(x.dtype, x.shape, d) for d in range(len(rows))] + [x]
    indices = lax.concatenate([lax.expand_dims(p, (x.ndim,)) for p in places], x.ndim)
    return [scatter_nd(lax.scatter if binary else lax.scatter_add, bins, indices, weights)]


@raises_tf("HistogramFixedWidth")
def _histogram(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, span = array(values[0]), array(values[1])
    (size,) = ints(static(node, values, 2))
    low, high = (lax.convert_element_type(span[i], np.float64) for i in range(2))
    step = lax.div(lax.sub(high, low), lax.full_like(low, size))
    x = lax.convert_element_type(lax.reshape(x, (x.size,)), np.float64)
    place = lax.div(lax.sub(lax.max(x, broadcast_to(low, x.shape)), low), step)
    place = lax.min(place, lax.full_like(place, size - 1))
    dtype = jax.dtypes.canonicalize_dtype(node.attr("dtype", np.dtype(np.int32)))
    indices = lax.expand_dims(lax.convert_element_type(place, np.int32), (1,))
    bins = lax.full((size,), 0, dtype)
    return [scatter_nd(lax.scatter_add, bins, indices, lax.full(x.shape, 1, dtype))]
