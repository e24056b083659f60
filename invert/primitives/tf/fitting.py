"""Isotonic regression and nearest neighbours.

Kernels: tensorflow/core/kernels/isotonic_regression_op.cc and clustering_ops.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, rule

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def falling(x: Array) -> tuple[Array, Array]:
    """The closest non-increasing sequence to a vector, and its blocks of equal numbers."""
    y, block = _pooled(lax.stop_gradient(x))
    # Each block is the mean of its numbers, which is differentiated.
    size = x.shape[0]
    count = jax.ops.segment_sum(jnp.ones_like(x), block, size)
    mean = jax.ops.segment_sum(x, block, size)[block] / count[block]
    return y + (mean - lax.stop_gradient(mean)), block


def _pooled(x: Array) -> tuple[Array, Array]:
    """The numbers and blocks of `falling`.

    Pools adjacent violators (Best and Chakravarti, Mathematical Programming 47, 1990), with sums in
    the order of the kernel.
    """
    size = x.shape[0]
    steps = lax.iota(_INT32, size)

    def rises(last: Array, means: Array) -> Array:
        return (last > 0) & (means[last] > means[last - 1])

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        """Join the last two blocks if increasing, else begin one with the next number."""
        used, last, sums, means, starts = state
        joins = rises(last, means)
        at = jnp.where(joins, last - 1, last + 1)
        new = x[jnp.minimum(used, size - 1)]
        total = jnp.where(joins, sums[at] + sums[last], new)
        mean = jnp.where(joins, total / (used - starts[at]).astype(x.dtype), new)
        starts = starts.at[last].set(jnp.where(joins, size, starts[last]))
        starts = starts.at[at].set(jnp.where(joins, starts[at], used))
        used = jnp.where(joins, used, used + 1)
        return used, at, sums.at[at].set(total), means.at[at].set(mean), starts

    start = (np.int32(1), np.int32(0), x, x, jnp.full_like(steps, size).at[0].set(0))
    _, _, _, means, starts = lax.while_loop(
        lambda s: (s[0] < size) | rises(s[1], s[3]), step, start
    )
    block = jnp.searchsorted(starts, steps, side="right").astype(_INT32) - 1
    return means[block], block


@rule("IsotonicRegression")
def _isotonic(x: Array, *, output_dtype: np.dtype) -> list[Array]:
    dtype = jax.dtypes.canonicalize_dtype(output_dtype)
    if not math.prod(x.shape):
        return [lax.full(x.shape, 0, dtype), lax.full(x.shape, 0, _INT32)]
    if x.ndim == 1:
        return list(falling(x.astype(dtype)))
    rows = lax.reshape(x.astype(dtype), (math.prod(x.shape[:-1]), x.shape[-1]))
    return [lax.reshape(y, x.shape) for y in lax.map(falling, rows)]


@rule("NearestNeighbors")
def _nearest(points: Array, centers: Array, k: Int) -> tuple[Array, Array]:
    half = jnp.sum(lax.square(centers), 1) / 2 - jnp.matmul(points, centers.T)
    nearest, which = lax.top_k(-half, min(k, centers.shape[0]))
    distance = jnp.sum(lax.square(points), 1, keepdims=True) - 2 * nearest
    return which.astype(_INT64), distance
