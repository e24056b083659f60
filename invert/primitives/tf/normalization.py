"""Normalization: over the batch and over neighbouring channels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.window import Layout, layout
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _fused_batch_norm(
    x: Array, scale: Array, offset: Array, mean: Array, variance: Array, *, node: Node
) -> list[Array]:
    results = batch_norm(node, x, scale, offset, mean, variance)
    # The last reserved space is for cuDNN; elsewhere it is empty.
    empty = jnp.zeros((0,), scale.dtype)
    return [*results, empty] if node.op == "FusedBatchNormV3" else results


def batch_norm(
    node: Node, x: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> list[Array]:
    """The result, then mean and variance, for later use and for gradients.

    As in TensorFlow, only the result has a derivative in training; the statistics are not part of
    it (tensorflow/python/ops/nn_fused_batch_norm_grad.py, TensorFlow 2.21).
    """
    where, epsilon = layout(node, x.ndim), node.attr("epsilon")
    # Only the values are in half precision; statistics and scales are in single precision.
    wide = x.astype(scale.dtype)
    factor = node.attr("exponential_avg_factor", 1.0)
    if not node.attr("is_training"):
        y = normalize(wide, mean, variance, scale, offset, where, epsilon)
        return [y.astype(x.dtype), mean, variance, mean, variance]
    axes = [i for i in range(x.ndim) if i != where.channel]
    batch_mean = jnp.mean(wide, axes)
    centered = wide - where.along_channels(batch_mean, x.ndim)
    batch_variance = jnp.mean(lax.square(centered), axes)
    y = normalize(wide, batch_mean, batch_variance, scale, offset, where, epsilon)
    saved = [lax.stop_gradient(batch_mean), lax.stop_gradient(batch_variance)]
    running = [saved[0], saved[1] * _unbiased([x.shape[i] for i in axes])]
    if factor != 1.0:
        olds = (mean, variance)
        running = [
            (1 - factor) * old + factor * new for old, new in zip(olds, running, strict=True)
        ]
    return [y.astype(x.dtype), *running, *saved]


def _unbiased(sizes: list[Array]) -> Array:
    """Bessel's correction of a variance: n / (n - 1)."""
    count = math.prod(sizes)
    if isinstance(count, int):
        return count / max(count - 1, 1)
    count = jnp.asarray(count, jnp.float32)
    return count / jnp.maximum(count - 1, 1)


def normalize(
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array,
    offset: Array,
    where: Layout,
    epsilon: float,
) -> Array:
    mean, factor, offset = (
        where.along_channels(v, x.ndim)
        for v in (mean, scale * lax.rsqrt(variance + epsilon), offset)
    )
    return (x - mean) * factor + offset


@rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def _fused_batch_norm_grad(
    g: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    *_reserved: Value,
    epsilon: float,
    is_training: bool,
    node: Node,
) -> list[Array]:
    where = layout(node, x.ndim)
    axes = [i for i in range(x.ndim) if i != where.channel]
    wide_g, wide_x = g.astype(scale.dtype), x.astype(scale.dtype)
    inverse = where.along_channels(lax.rsqrt(variance + epsilon), x.ndim)
    centered = wide_x - where.along_channels(mean, x.ndim)
    scale_gradient, offset_gradient = (
        jnp.sum(wide_g * centered * inverse, axes),
        jnp.sum(wide_g, axes),
    )
    x_gradient = wide_g
    if is_training:
        # The mean and the variance depend on x too.
        along = centered * inverse * jnp.mean(wide_g * centered * inverse, axes, keepdims=True)
        x_gradient = wide_g - jnp.mean(wide_g, axes, keepdims=True) - along
    x_gradient = x_gradient * where.along_channels(scale, x.ndim) * inverse
    empty = jnp.zeros((0,), scale.dtype)
    return [x_gradient.astype(x.dtype), scale_gradient, offset_gradient, empty, empty]


@rule("LRN")
def _lrn(x: Array, *, depth_radius: int, bias: float, alpha: float, beta: float) -> Array:
    squares = lax.square(x.astype(jnp.float32))
    sums = lax.reduce_window(
        squares,
        np.zeros((), np.float32),
        lax.add,
        (1,) * (x.ndim - 1) + (2 * depth_radius + 1,),
        (1,) * x.ndim,
        [(0, 0)] * (x.ndim - 1) + [(depth_radius, depth_radius)],
    )
    return (x.astype(jnp.float32) * (bias + alpha * sums) ** -beta).astype(x.dtype)


@rule("LRNGrad")
def _lrn_grad(
    g: Array, x: Array, _y: Value, *, depth_radius: int, bias: float, alpha: float, beta: float
) -> list[Array]:
    _, pullback = jax.vjp(
        lambda x: _lrn(x, depth_radius=depth_radius, bias=bias, alpha=alpha, beta=beta), x
    )
    return list(pullback(g))
