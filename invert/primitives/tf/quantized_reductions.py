"""Sums, pools and further ops on tensors of quantized types; see `quantized`.

Kernels: tensorflow/core/kernels/quantized_*.cc, quantization_utils.h and, of the ops per channel,
mkl/mkl_requantize_per_channel_op.cc and mkl_requantization_range_per_channel_op.cc.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.pooling import window_of
from invert.primitives.tf.quantized import (
    level_of,
    levels,
    range_of_products,
    real_of,
    round_away,
    unclamped,
    zero_of,
)
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


def _scalars(values: list[Any]) -> list[Any]:
    return [jnp.reshape(array(v), ()) for v in values]


def _range_of_sums(bounds: list[Any], room: int) -> tuple[Any, Any]:
    """Bounds of sums, so many bits above those of the operands."""
    a, b, c, d = bounds
    most = jnp.maximum(jnp.maximum(b, -a), jnp.maximum(d, -c)) * np.float32(1 << room)
    return -most, most


@raises_tf("QuantizedAdd")
def _add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    bounds = _scalars(values[2:])
    low, high = _range_of_sums(bounds, 14)
    limits = np.iinfo(np.int32)

    def moved(x: Any, a: Any, b: Any) -> Any:
        """Levels of 8 bits in the range of the sums, all equally far apart."""
        first, second = (
            unclamped(real_of(np.uint8(i), a, b, x.dtype), low, high, _INT32).astype(_INT64)
            for i in (0, 1)
        )
        step = (second - first).astype(_INT32).astype(_INT64)
        return jnp.clip(first + x.astype(_INT64) * step, limits.min, limits.max).astype(_INT32)

    operands = [(array(v), *bounds[2 * i : 2 * i + 2]) for i, v in enumerate(values[:2])]
    alone = [i for i, (x, *_) in enumerate(operands) if math.prod(x.shape) == 1][:1]
    x, y = (
        # A single number is brought there by itself.
        level_of(real_of(v, a, b, v.dtype), low, high, _INT32) if i in alone else moved(v, a, b)
        for i, (v, a, b) in enumerate(operands)
    )
    return [x + y, low, high]


@raises_tf("QuantizedMul")
def _mul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    names, bounds = ("T1", "T2"), _scalars(values[2:])
    x, y = (
        array(v).astype(_INT32) - zero_of(bounds[2 * i], bounds[2 * i + 1], node.attr(names[i]))
        for i, v in enumerate(values[:2])
    )
    return [x * y, *range_of_products(node, names, bounds)]


def _product(x: Any, y: Any) -> Any:
    """In single precision, rounded before anything is added to it."""
    return (x.astype(_F64) * y.astype(_F64)).astype(_F32)


def _moved(x: Any, low: Any, high: Any, new_low: Any, new_high: Any, dtype: np.dtype) -> Any:
    """Levels of a range as those of another one, by way of single precision."""
    (first, last), (new_first, new_last) = levels(x.dtype), levels(dtype)
    step = ((high - low).astype(_F64) / float(last - first)).astype(_F32)
    start = jnp.where(low == high, low, round_away(low / step) * step)
    reals = (start - np.float32(first) * step) + _product(x.astype(_F32), step)
    span = (new_high - new_low).astype(_F64)
    scale = jnp.where(span == 0, 0.0, float(new_last - new_first) / span).astype(_F32)
    offset = round_away(_product(new_low, scale)) - np.float32(new_first)
    found = round_away(_product(reals, scale)) - offset
    most = min(np.float32(new_last), np.float32(2147483520))
    return jnp.clip(found, np.float32(new_first), most).astype(dtype)


@raises_tf("QuantizedBiasAdd")
def _bias_add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    bounds, dtype = _scalars(values[2:]), node.attr("out_type")
    low, high = _range_of_sums(bounds, 17)
    x = _moved(array(values[0]), bounds[0], bounds[1], low, high, dtype)
    bias = _moved(array(values[1]), bounds[2], bounds[3], low, high, dtype)
    return [x + (bias + level_of(np.float32(0), low, high, dtype)), low, high]


@raises_tf("QuantizedConcat")
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    count, (axis,) = node.attr("N"), ints(static(node, values, 0))
    parts = [array(v) for v in values[1 : 1 + count]]
    lows, highs = (jnp.stack(_scalars(values[1 + i * count :][:count])) for i in (1, 2))
    low, high = jnp.min(lows), jnp.max(highs)
    if levels(parts[0].dtype)[0] < 0:
        high = jnp.maximum(jnp.abs(low), jnp.abs(high))
        low = -high
    moved = [
        jnp.where((a == low) & (b == high), x, _moved(x, a, b, low, high, x.dtype))
        for x, a, b in zip(parts, lows, highs, strict=True)
    ]
    return [lax.concatenate(moved, axis), low, high]


@raises_tf("QuantizedMaxPool")
def _max_pool(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [window_of(node, x.shape).max(x), *_scalars(values[1:])]


@raises_tf("QuantizedAvgPool")
def _avg_pool(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0]).astype(_INT32)
    window, zero = window_of(node, x.shape), np.int32(0)
    total, count = (window.reduce(v, zero, lax.add) for v in (x, jnp.ones_like(x)))
    mean = jnp.round(total.astype(_F32) / count.astype(_F32))
    return [mean.astype(values[0].dtype), *_scalars(values[1:])]


@raises_tf("QuantizedBatchNormWithGlobalNormalization")
def _batch_norm(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # In fixed point, with ten bits behind the point.
    low, high = np.float32(-(1 << 20)), np.float32(1 << 20)
    dtype = node.attr("Tinput")
    x, mean, variance, beta, gamma = (
        real_of(array(values[i]), array(values[i + 1]), array(values[i + 2]), dtype)
        for i in range(0, 15, 3)
    )
    scale = np.float32(1) / jnp.sqrt(variance + np.float32(node.attr("variance_epsilon")))
    if node.attr("scale_after_normalization"):
        scale = _product(scale, gamma)
    offset = _product(-mean, scale) + beta
    x, scale, offset, one = (
        level_of(v, low, high, _INT32) for v in (x, scale, offset, np.float32(1))
    )
    return [lax.div(x * scale, jnp.broadcast_to(one, x.shape)) + offset, low, high]


def _largest(low: Any, high: Any) -> Any:
    return jnp.maximum(jnp.abs(low), jnp.abs(high))


@raises_tf("RequantizationRangePerChannel")
def _range_per_channel(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = (array(v) for v in values)
    axes = tuple(range(x.ndim - 1))
    least, most = jnp.min(x, axes), jnp.max(x, axes)
    level = jnp.maximum(jnp.abs(least), jnp.abs(most)).astype(_F32)
    found = jnp.max(_largest(low, high) * level / np.float32(2**31))
    found = jnp.minimum(found, np.float32(node.attr("clip_value_max")))
    return [jnp.where(jnp.all(least >= 0), 0, -found), found]


@raises_tf("RequantizePerChannel")
def _requantize_per_channel(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high, new_low, new_high = (array(v) for v in values)
    first, last = levels(node.attr("out_type"))
    ratio = _largest(low, high) / _largest(new_low, new_high) / np.float32(2**31)
    scaled = jnp.round(x.astype(_F32) * (np.float32(last) * ratio))
    return [jnp.clip(scaled, first, last).astype(node.attr("out_type")), new_low, new_high]
