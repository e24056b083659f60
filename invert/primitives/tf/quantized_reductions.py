"""Sums, pooling and further ops on tensors of quantized types; see `quantized`.

Kernels: tensorflow/core/kernels/quantized_*.cc, quantization_utils.h and, for ops per channel,
mkl/mkl_requantize_per_channel_op.cc and mkl_requantization_range_per_channel_op.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.pooling import window_of
from invert.primitives.tf.quantized import (
    centred,
    clipped,
    level_of,
    levels,
    range_of_products,
    real_of,
    round_away,
    scalars,
    unclamped,
)
from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.ops.node import Node

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def _range_of_sums(bounds: Sequence[Array], bits: int) -> tuple[Array, Array]:
    """Bounds of sums, a number of bits larger than those of the operands."""
    a, b, c, d = bounds
    most = jnp.maximum(jnp.maximum(b, -a), jnp.maximum(d, -c)) * np.float32(1 << bits)
    return -most, most


@rule("QuantizedAdd")
def _add(x: Array, y: Array, *ranges: Array) -> list[Array]:
    bounds = scalars(ranges)
    low, high = _range_of_sums(bounds, 14)
    limits = np.iinfo(np.int32)

    def level(v: Array, a: Array, b: Array) -> Array:
        return level_of(real_of(v, a, b, v.dtype), low, high, _INT32)

    def equidistant(v: Array, a: Array, b: Array) -> Array:
        """8-bit levels, evenly spaced over the range of the sums."""
        first, second = (
            unclamped(real_of(np.uint8(i), a, b, v.dtype), low, high, _INT32).astype(_INT64)
            for i in (0, 1)
        )
        step = (second - first).astype(_INT32).astype(_INT64)
        return jnp.clip(first + v.astype(_INT64) * step, limits.min, limits.max).astype(_INT32)

    # If only one operand is a scalar, it is converted separately.
    of_x = level if math.prod(x.shape) == 1 else equidistant
    of_y = level if math.prod(y.shape) == 1 and of_x is equidistant else equidistant
    return [of_x(x, *bounds[:2]) + of_y(y, *bounds[2:]), low, high]


@rule("QuantizedMul")
def _mul(x: Array, y: Array, *ranges: Array, T1: np.dtype, T2: np.dtype) -> list[Array]:
    bounds = scalars(ranges)
    y = centred(x, T1, *bounds[:2]) * centred(y, T2, *bounds[2:])
    return [y, *range_of_products(bounds, (T1, T2))]


def _product(x: Array, y: Array) -> Array:
    """A product in single precision, rounded before any addition."""
    return (x.astype(_F64) * y.astype(_F64)).astype(_F32)


def _requantized(x: Array, old: Sequence[Array], new: Sequence[Array], dtype: np.dtype) -> Array:
    """Convert levels to another range, via single precision."""
    (low, high), (new_low, new_high) = old, new
    (first, last), (new_first, new_last) = levels(x.dtype), levels(dtype)
    step = ((high - low).astype(_F64) / float(last - first)).astype(_F32)
    start = jnp.where(low == high, low, round_away(low / step) * step)
    reals = (start - np.float32(first) * step) + _product(x.astype(_F32), step)
    span = (new_high - new_low).astype(_F64)
    scale = jnp.where(span == 0, 0.0, float(new_last - new_first) / span).astype(_F32)
    offset = round_away(_product(new_low, scale)) - np.float32(new_first)
    return clipped(round_away(_product(reals, scale)) - offset, dtype)


@rule("QuantizedBiasAdd")
def _bias_add(x: Array, bias: Array, *ranges: Array, out_type: np.dtype) -> list[Array]:
    bounds = scalars(ranges)
    low, high = _range_of_sums(bounds, 17)
    x = _requantized(x, bounds[:2], (low, high), out_type)
    bias = _requantized(bias, bounds[2:], (low, high), out_type)
    return [x + (bias + level_of(np.float32(0), low, high, out_type)), low, high]


@rule("QuantizedConcat")
def _concat(axis: Int, *operands: Array, N: int) -> list[Array]:
    parts = operands[:N]
    lows, highs = (jnp.stack(scalars(v)) for v in (operands[N : 2 * N], operands[2 * N :]))
    low, high = jnp.min(lows), jnp.max(highs)
    if levels(parts[0].dtype)[0] < 0:
        high = jnp.maximum(jnp.abs(low), jnp.abs(high))
        low = -high
    requantized = [
        jnp.where((a == low) & (b == high), x, _requantized(x, (a, b), (low, high), x.dtype))
        for x, a, b in zip(parts, lows, highs, strict=True)
    ]
    return [lax.concatenate(requantized, axis), low, high]


@rule("QuantizedMaxPool")
def _max_pool(x: Array, *bounds: Array, node: Node) -> list[Array]:
    return [window_of(node, x.shape).max(x), *scalars(bounds)]


@rule("QuantizedAvgPool")
def _avg_pool(x: Array, *bounds: Array, node: Node) -> list[Array]:
    window, zero = window_of(node, x.shape), np.int32(0)
    total, count = (
        window.reduce(v, zero, lax.add) for v in (x.astype(_INT32), jnp.ones(x.shape, _INT32))
    )
    mean = jnp.round(total.astype(_F32) / count.astype(_F32))
    return [mean.astype(x.dtype), *scalars(bounds)]


@rule("QuantizedBatchNormWithGlobalNormalization")
def _batch_norm(
    *operands: Array, Tinput: np.dtype, variance_epsilon: float, scale_after_normalization: bool
) -> list[Array]:
    # Fixed point with ten fractional bits.
    low, high = np.float32(-(1 << 20)), np.float32(1 << 20)
    x, mean, variance, beta, gamma = (
        real_of(*operands[i : i + 3], dtype=Tinput) for i in range(0, 15, 3)
    )
    scale = np.float32(1) / jnp.sqrt(variance + np.float32(variance_epsilon))
    if scale_after_normalization:
        scale = _product(scale, gamma)
    offset = _product(-mean, scale) + beta
    x, scale, offset, one = (
        level_of(v, low, high, _INT32) for v in (x, scale, offset, np.float32(1))
    )
    return [lax.div(x * scale, jnp.broadcast_to(one, x.shape)) + offset, low, high]


def _largest(low: Array, high: Array) -> Array:
    return jnp.maximum(jnp.abs(low), jnp.abs(high))


@rule("RequantizationRangePerChannel")
def _range_per_channel(
    x: Array, low: Array, high: Array, *, clip_value_max: float
) -> tuple[Array, Array]:
    axes = tuple(range(x.ndim - 1))
    least, most = jnp.min(x, axes), jnp.max(x, axes)
    level = jnp.maximum(jnp.abs(least), jnp.abs(most)).astype(_F32)
    bound = jnp.max(_largest(low, high) * level / np.float32(2**31))
    bound = jnp.minimum(bound, np.float32(clip_value_max))
    return jnp.where(jnp.all(least >= 0), 0, -bound), bound


@rule("RequantizePerChannel")
def _requantize_per_channel(
    x: Array, low: Array, high: Array, new_low: Array, new_high: Array, *, out_type: np.dtype
) -> tuple[Array, Array, Array]:
    first, last = levels(out_type)
    ratio = _largest(low, high) / _largest(new_low, new_high) / np.float32(2**31)
    scaled = jnp.round(x.astype(_F32) * (np.float32(last) * ratio))
    return jnp.clip(scaled, first, last).astype(out_type), new_low, new_high
