"""Tensors of quantized types, which are whole numbers here: qint8 is int8, quint8 is uint8.

A range of real numbers goes along with each. Kernels: tensorflow/core/kernels/quantize_op.cc,
dequantize_op.cc, quantization_utils.h and quantized_*.cc, TensorFlow 2.21.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import product
from invert.primitives.tf.window import refuse
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static

_FLT_MAX = np.finfo(np.float32).max
_INT32 = np.dtype(np.int32)


def levels(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _along(v: Any, x: Any, axis: int) -> Any:
    """A range for each slice along `axis`, ready to broadcast."""
    if axis == -1:
        return jnp.reshape(v, ())
    return lax.broadcast_in_dim(v, (*(1,) * axis, v.shape[0], *(1,) * (x.ndim - axis - 1)), (axis,))


def round_away(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def _clipped(x: Any, dtype: np.dtype) -> Any:
    low, high = levels(dtype)
    # The largest 32-bit number that single precision holds is less than the largest there is.
    high = min(high, 2147483520)
    return jnp.clip(x, np.float32(low), np.float32(high)).astype(dtype)


@raises_tf("QuantizeV2")
def _quantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = (array(v) for v in values)
    dtype, axis = node.attr("T"), node.attr("axis", -1)
    least = node.attr("ensure_minimum_range", 0.01)
    size = jnp.maximum(1, jnp.maximum(jnp.abs(low), jnp.abs(high)))
    low, given = jnp.minimum(low, 0), high
    # A range that is too narrow is widened.
    high = jnp.maximum(0, jnp.maximum(given, low + size * np.float32(least)))
    first, last = levels(dtype)
    mode = node.attr("mode", "MIN_COMBINED")
    if mode == "SCALED":
        first += bool(node.attr("narrow_range", False))
        by_low = jnp.where(first * low > 0, first / low, _FLT_MAX)
        by_high = jnp.where(last * high > 0, last / high, _FLT_MAX)
        scale = jnp.minimum(by_low, by_high)
        low, high = first / scale, last / scale
        clipped = jnp.clip(x, _along(low, x, axis), _along(high, x, axis)) * _along(scale, x, axis)
        even = node.attr("round_mode", "") == "HALF_TO_EVEN"
        found = (jnp.round(clipped) if even else round_away(clipped)).astype(dtype)
    elif mode == "MIN_COMBINED":
        scale = np.float32(last - first) / (high - low)
        above = jnp.clip(x, _along(low, x, axis), _along(high, x, axis)) - _along(low, x, axis)
        above = above * _along(scale, x, axis)
        if first:
            found = round_away(above - np.float32((last - first + 1) / 2)).astype(dtype)
        else:
            found = lax.floor(above + np.float32(0.5)).astype(dtype)
    else:
        low_, high_ = _along(low, x, axis), _along(high, x, axis)
        scale = jnp.where(high_ == low_, 0, np.float32(last - first) / (high_ - low_))
        found = _clipped(round_away(x * scale) - (round_away(low_ * scale) - first), dtype)
    return [found, low, high]


@raises_tf("Dequantize")
def _dequantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = array(values[0]), array(values[1]), array(values[2])
    dtype, axis = node.attr("T"), node.attr("axis", -1)
    first, last = levels(dtype)
    low, high = _along(low, x, axis), _along(high, x, axis)
    mode = node.attr("mode", "MIN_COMBINED")
    reals = lax.convert_element_type(x, np.float32)
    if mode == "MIN_COMBINED":
        half = np.float32((last - first + 1) / 2 if first else 0)
        found = (reals + half) * ((high - low) / np.float32(last - first)) + low
    elif mode == "SCALED":
        narrow = first + bool(node.attr("narrow_range", False))
        scale = high / last if first == 0 else jnp.maximum(low / narrow, high / last)
        found = reals * scale
    else:
        scale = (high - low) / np.float32(last - first)
        start = jnp.where(high == low, low, round_away(low / scale) * scale)
        found = (start - first * scale) + reals * scale
    return [lax.convert_element_type(found, node.attr("dtype", np.dtype(np.float32)))]


def _step(low: Any, high: Any, dtype: np.dtype) -> Any:
    first, last = levels(dtype)
    # Rounded once: XLA divides by a constant by way of its inverse.
    return ((high - low).astype(np.float64) / (last - first)).astype(np.float32)


def zero_of(low: Any, high: Any, dtype: np.dtype) -> Any:
    """The level that stands for zero, as a 32-bit number."""
    first, _ = levels(dtype)
    steps = 1 << (8 * dtype.itemsize)
    span = (high - low).astype(np.float64) * (steps / (steps - 1.0))
    return (first - round_away(low.astype(np.float64) * (steps / span))).astype(np.int32)


def range_of_products(node: Node, names: tuple[str, str], ranges: list[Any]) -> list[Any]:
    a, b, c, d = ranges
    step = _step(a, b, node.attr(names[0])) * _step(c, d, node.attr(names[1]))
    first, last = levels(np.dtype(np.int32))
    return [step * np.float32(first), step * np.float32(last)]


@raises_tf("QuantizedMatMul")
def _matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    names, ranges = ("T1", "T2"), [jnp.reshape(array(v), ()) for v in values[2:]]
    a, b = (
        array(v).astype(np.int32) - zero_of(ranges[2 * i], ranges[2 * i + 1], node.attr(names[i]))
        for i, v in enumerate(values[:2])
    )
    return [product(node, a, b), *range_of_products(node, names, ranges)]


def convolution(node: Node, x: Any, kernel: Any, groups: int = 1) -> Any:
    """A convolution of whole numbers, features last."""
    pads = node.attr("padding_list") or ()
    padding = node.attr("padding")
    if pads:
        pairs = list(zip(pads[::2], pads[1::2], strict=True))
        padding = pairs[1:3] if len(pairs) == 4 else pairs
    return lax.conv_general_dilated(
        x,
        kernel,
        node.attr("strides")[1:3],
        padding,
        rhs_dilation=(node.attr("dilations") or (1, 1, 1, 1))[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        preferred_element_type=_INT32,
    )


def convolution_of_levels(node: Node, values: list[Any]) -> list[Any]:
    """A convolution of two tensors with a level for zero each."""
    names, ranges = ("Tinput", "Tfilter"), [jnp.reshape(array(v), ()) for v in values[2:]]
    if any(d != 1 for d in node.attr("dilations") or ()):
        raise refuse(node, "has dilations, for which TensorFlow has no kernel either")
    x, kernel = (
        array(v).astype(np.int32) - zero_of(ranges[2 * i], ranges[2 * i + 1], node.attr(names[i]))
        for i, v in enumerate(values[:2])
    )
    return [convolution(node, x, kernel), *range_of_products(node, names, ranges)]


@raises_tf("QuantizedReshape")
def _reshape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.reshape(array(values[0]), ints(static(node, values, 1))), *map(array, values[2:])]


@raises_tf("QuantizedRelu", "QuantizedRelu6")
def _relu(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = array(values[0]), array(values[1]), array(values[2])
    dtype = node.attr("Tinput")
    bounds = [level_of(np.float32(v), low, high, dtype) for v in (0, 6)]
    found = jnp.maximum(x, bounds[0])
    if node.op == "QuantizedRelu6":
        found = jnp.minimum(found, bounds[1])
    return [found, low, high]


def unclamped(v: Any, low: Any, high: Any, dtype: np.dtype) -> Any:
    """The level nearest to a real number, in double precision, of however many bits."""
    first, _ = levels(dtype)
    steps = float(1 << (8 * np.dtype(dtype).itemsize))
    span = (high - low).astype(np.float64) * (steps / (steps - 1.0))
    scale = steps / span
    return round_away(v * scale) - round_away(low.astype(np.float64) * scale) + first


def level_of(v: Any, low: Any, high: Any, dtype: np.dtype) -> Any:
    """The level nearest to a real number."""
    first, last = levels(dtype)
    found = unclamped(v, low, high, dtype)
    return jnp.where(high == low, first, jnp.clip(found, first, last)).astype(dtype)


@raises_tf("RequantizationRange")
def _requantization_range(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = array(values[0]), array(values[1]), array(values[2])
    return list(_used_range(x, low, high))


def _used_range(x: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """The real numbers of the least and the largest level, with zero between them."""
    bounds = [real_of(f(x), low, high) for f in (jnp.min, jnp.max)]
    return jnp.minimum(bounds[0], 0), bounds[1]


def real_of(x: Any, low: Any, high: Any, dtype: np.dtype = _INT32) -> Any:
    """The real number of a level."""
    first, _ = levels(dtype)
    steps = float(1 << (8 * np.dtype(dtype).itemsize))
    span = (high - low).astype(np.float64) * (steps / (steps - 1.0))
    scale = span / steps
    narrow = scale.astype(np.float32)
    start = round_away((low / narrow).astype(np.float64)) * narrow
    found = (start + (x.astype(np.float64) - float(first)) * scale).astype(np.float32)
    return jnp.where(low == high, low, found)


@raises_tf("Requantize", "QuantizeDownAndShrinkRange")
def _requantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = array(values[0]), array(values[1]), array(values[2])
    if node.attr("out_type") != np.uint8:
        raise refuse(node, "has no kernel for other types than quint8 in TensorFlow")
    if node.op == "Requantize":
        new_low, new_high = array(values[3]), array(values[4])
    else:
        new_low, new_high = _used_range(x, low, high)
    # In fixed point with 16 bits behind the point, as the kernel does.
    one = np.float64(1 << 16)
    wide = [v.astype(np.float64) for v in (low, high, new_low, new_high)]
    span = (high - low).astype(np.float32)
    new_span = (new_high - new_low).astype(np.float32)
    scale = (255.0 * one * span.astype(np.float64) / new_span.astype(np.float64)).astype(np.int64)
    middle = ((wide[0] + wide[1]) / 2).astype(np.float32)
    inverse = (255.0 / new_span.astype(np.float64)).astype(np.float32)
    offset = (middle * inverse * np.float32(one)).astype(np.int64)
    new_offset = (one * (wide[2] * 255.0) / new_span.astype(np.float64)).astype(np.int64)
    fixed = ((x.astype(np.int64) * scale) >> 32) + offset - new_offset + (1 << 15)
    return [jnp.clip(fixed >> 16, 0, 255).astype(np.uint8), new_low, new_high]
