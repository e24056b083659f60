"""Ops that write elements by index.

An index out of range, including negative ones, is an error in TensorFlow on the CPU, and ignored on
a GPU and here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.gather import searchsorted
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Rule, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, as_sizes, broadcast_to, is_static
from invert.tf.values.dynamic_size import int_max, int_min

_DROP = lax.GatherScatterMode.FILL_OR_DROP
# Indices out of range are dropped, whether or not the op would raise.
_POLICY = ("bad_indices_policy",)

SCATTERS: dict[str, Callable[..., Array]] = {
    "Add": lax.scatter_add,
    "Sub": lax.scatter_sub,
    "Max": lax.scatter_max,
    "Min": lax.scatter_min,
    "Update": lax.scatter,
}


def scatter_nd(
    fn: Callable[..., Array], x: Array, indices: Array, updates: Array, *, is_sorted: bool = False
) -> Array:
    """Apply `fn` at `indices`, whose last axis indexes the leading axes of x."""
    depth, rank = indices.shape[-1], indices.ndim - 1
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(rank, updates.ndim)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
    )
    return fn(x, indices, updates, numbers, indices_are_sorted=is_sorted, mode=_DROP)


_ON_SIZES: dict[str, Callable[[Value, Value], Value]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Max": int_max,
    "Min": int_min,
    "Update": lambda old, new: new,
}


def _scatter_sizes(kind: str, x: np.ndarray, indices: np.ndarray, updates: Value) -> np.ndarray:
    """`scatter_nd` on sizes, such as a list of paddings of which one is set."""
    out = x.astype(object)
    depth = indices.shape[-1]
    updates = np.reshape(updates, (-1, *x.shape[depth:]))
    for place, new in zip(indices.reshape(-1, depth).tolist(), updates, strict=True):
        if all(0 <= i < n for i, n in zip(place, x.shape[:depth], strict=True)):
            at = tuple(place)
            out[at] = np.frompyfunc(_ON_SIZES[kind], 2, 1)(out[at], new)
    return as_sizes(out, x.dtype)


def _are_sizes(*values: Value) -> bool:
    return all(is_static(v) for v in values) and any(v.dtype == object for v in values)


@rule("ScatterNd", ignores=_POLICY, folds_sizes=True)
def _scatter_nd(
    indices: Value, updates: Value, shape: Ints, *, T: np.dtype, Tindices: np.dtype
) -> Value:
    if _are_sizes(indices, updates):
        return _scatter_sizes("Add", np.zeros(shape, T), indices, updates)
    updates = array(updates, T)
    return _scatter_nd_add(lax.full(shape, 0, updates.dtype), array(indices, Tindices), updates)


@rule(*(f"TensorScatter{kind}" for kind in SCATTERS), ignores=_POLICY, folds_sizes=True)
def _tensor_scatter(
    x: Value, indices: Value, updates: Value, *, op: str, T: np.dtype, Tindices: np.dtype
) -> Value:
    kind = op.removeprefix("TensorScatter")
    if _are_sizes(x, indices, updates):
        return _scatter_sizes(kind, x, indices, updates)
    return scatter_nd(SCATTERS[kind], array(x, T), array(indices, Tindices), array(updates, T))


@rule("ScatterNdNonAliasingAdd", ignores=_POLICY)
def _scatter_nd_add(x: Array, indices: Array, updates: Array) -> Array:
    fn = lax.scatter_max if x.dtype == bool else lax.scatter_add
    return scatter_nd(fn, x, indices, updates)


# Whether indices are sorted and unique does not change results.
@rule("SparseToDense", ignores=("validate_indices",))
def _sparse_to_dense(indices: Array, shape: Ints, updates: Array, default: Array) -> Array:
    count = indices.shape[0] if indices.ndim else 1
    indices = lax.reshape(indices, (count, len(shape)))
    x = broadcast_to(default, shape)
    return scatter_nd(lax.scatter, x, indices, broadcast_to(updates, (count,)))


def _counted(shape: Ints, indices: Array, x: Array, weights: Array, binary_output: bool) -> Array:
    """The sums of weights by index; for `binary_output`, 1 at each index that occurs."""
    if weights.size == 0 or binary_output:
        weights = lax.full(x.shape, 1, weights.dtype)
    bins = lax.full(shape, 0, weights.dtype)
    return scatter_nd(lax.scatter if binary_output else lax.scatter_add, bins, indices, weights)


@rule("Bincount", "DenseBincount")
def _bincount(
    x: Array, size: Int, weights: Array, *, op: str, binary_output: bool = False
) -> Array:
    rows = x.shape[:-1] if op == "DenseBincount" and x.ndim == 2 else ()
    if not rows:
        x, weights = (lax.reshape(v, (v.size,)) for v in (x, weights))
    places = [lax.broadcasted_iota(x.dtype, x.shape, d) for d in range(len(rows))] + [x]
    indices = lax.concatenate([lax.expand_dims(p, (x.ndim,)) for p in places], x.ndim)
    return _counted((*rows, size), indices, x, weights, binary_output)


@rule("RaggedBincount")
def _ragged_bincount(
    splits: Array, x: Array, size: Int, weights: Array, *, binary_output: bool = False
) -> Array:
    """Counts for each row; row `i` begins at `splits[i]`."""
    rows = searchsorted(splits, jnp.arange(x.size, dtype=splits.dtype), side="right") - 1
    indices = jnp.stack([rows.astype(x.dtype), x], axis=1)
    return _counted((splits.size - 1, size), indices, x, weights, binary_output)


def _with_padding(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """Padding rows hold -1, which no bin counts."""
    data = [v.indices() if isinstance(v, BoundedArray) else v for v in values]
    return list(rule(ctx, node, data))


@rule("SparseBincount", rows=_with_padding)
def _sparse_bincount(
    places: Array, x: Array, shape: Ints, size: Int, weights: Array, *, binary_output: bool = False
) -> Array:
    """Counts for all values, or for each row of a matrix."""
    indices = jnp.concatenate([places[:, :-1].astype(x.dtype), x[:, None]], axis=1)
    return _counted((*shape[:-1], size), indices, x, weights, binary_output)


@rule("HistogramFixedWidth")
def _histogram(x: Array, value_range: Array, nbins: Int, *, dtype: np.dtype) -> Array:
    low, high = (lax.convert_element_type(value_range[i], np.float64) for i in range(2))
    step = lax.div(lax.sub(high, low), lax.full_like(low, nbins))
    x = lax.convert_element_type(lax.reshape(x, (x.size,)), np.float64)
    place = lax.div(lax.sub(lax.max(x, broadcast_to(low, x.shape)), low), step)
    place = lax.min(place, lax.full_like(place, nbins - 1))
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    indices = lax.expand_dims(lax.convert_element_type(place, np.int32), (1,))
    bins = lax.full((nbins,), 0, dtype)
    return scatter_nd(lax.scatter_add, bins, indices, lax.full(x.shape, 1, dtype))
