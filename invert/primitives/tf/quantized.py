"""Tensors of quantized types, which are integers here: qint8 is int8, quint8 is uint8.

Each comes with a range of real numbers. Kernels: tensorflow/core/kernels/quantize_op.cc,
dequantize_op.cc, quantization_utils.h and quantized_*.cc, TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import product
from invert.tf.interpreter.registry import Array, Ints, rule
from invert.tf.ops.node import Node

_FLT_MAX = np.finfo(np.float32).max
_INT32 = np.dtype(np.int32)


def levels(dtype: np.dtype) -> tuple[int, int]:
    """The minimum and maximum level of a type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _along(v: Array, x: Array, axis: int) -> Array:
    """A range for each slice along `axis`, ready to broadcast."""
    if axis == -1:
        return jnp.reshape(v, ())
    return lax.broadcast_in_dim(v, (*(1,) * axis, v.shape[0], *(1,) * (x.ndim - axis - 1)), (axis,))


def round_away(x: Array) -> Array:
    """Round to the nearest integer, half away from zero."""
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def clipped(x: Array, dtype: np.dtype) -> Array:
    """Levels in single precision, limited to those of a type."""
    low, high = levels(dtype)
    # The largest 32-bit integer in single precision is below the maximum of int32.
    high = min(high, 2147483520)
    return jnp.clip(x, np.float32(low), np.float32(high)).astype(dtype)


@rule("QuantizeV2")
def _quantize(
    x: Array,
    low: Array,
    high: Array,
    *,
    T: np.dtype,
    mode: str,
    round_mode: str,
    narrow_range: bool,
    axis: int,
    ensure_minimum_range: float,
) -> tuple[Array, Array, Array]:
    size = jnp.maximum(1, jnp.maximum(jnp.abs(low), jnp.abs(high)))
    low, given = jnp.minimum(low, 0), high
    # A range that is too narrow is widened.
    high = jnp.maximum(0, jnp.maximum(given, low + size * np.float32(ensure_minimum_range)))
    first, last = levels(T)
    if mode == "SCALED":
        first += narrow_range
        by_low = jnp.where(first * low > 0, first / low, _FLT_MAX)
        by_high = jnp.where(last * high > 0, last / high, _FLT_MAX)
        scale = jnp.minimum(by_low, by_high)
        low, high = first / scale, last / scale
        inside = jnp.clip(x, _along(low, x, axis), _along(high, x, axis)) * _along(scale, x, axis)
        rounded = jnp.round if round_mode == "HALF_TO_EVEN" else round_away
        return rounded(inside).astype(T), low, high
    if mode == "MIN_COMBINED":
        scale = np.float32(last - first) / (high - low)
        above = jnp.clip(x, _along(low, x, axis), _along(high, x, axis)) - _along(low, x, axis)
        above = above * _along(scale, x, axis)
        if first:
            above = round_away(above - np.float32((last - first + 1) / 2))
        else:
            above = lax.floor(above + np.float32(0.5))
        return above.astype(T), low, high
    start, end = _along(low, x, axis), _along(high, x, axis)
    scale = jnp.where(end == start, 0, np.float32(last - first) / (end - start))
    return clipped(round_away(x * scale) - (round_away(start * scale) - first), T), low, high


@rule("Dequantize")
def _dequantize(
    x: Array,
    low: Array,
    high: Array,
    *,
    T: np.dtype,
    mode: str,
    narrow_range: bool,
    axis: int,
    dtype: np.dtype,
) -> Array:
    first, last = levels(T)
    low, high = _along(low, x, axis), _along(high, x, axis)
    reals = lax.convert_element_type(x, np.float32)
    if mode == "MIN_COMBINED":
        half = np.float32((last - first + 1) / 2 if first else 0)
        reals = (reals + half) * ((high - low) / np.float32(last - first)) + low
    elif mode == "SCALED":
        scale = high / last
        if first:
            scale = jnp.maximum(low / (first + narrow_range), scale)
        reals = reals * scale
    else:
        scale = (high - low) / np.float32(last - first)
        start = jnp.where(high == low, low, round_away(low / scale) * scale)
        reals = (start - first * scale) + reals * scale
    return lax.convert_element_type(reals, dtype)


def _step(dtype: np.dtype, low: Array, high: Array) -> Array:
    first, last = levels(dtype)
    # Rounded once: XLA multiplies by the inverse of a constant.
    return ((high - low).astype(np.float64) / (last - first)).astype(np.float32)


def _scale(low: Array, high: Array, dtype: np.dtype) -> tuple[Array, float]:
    """The range widened by one level, in double precision, and the number of levels."""
    steps = float(1 << (8 * np.dtype(dtype).itemsize))
    return (high - low).astype(np.float64) * (steps / (steps - 1.0)), steps


def centred(x: Array, dtype: np.dtype, low: Array, high: Array) -> Array:
    """Levels minus the level of zero, as 32-bit integers."""
    first, _ = levels(dtype)
    span, steps = _scale(low, high, dtype)
    zero = (first - round_away(low.astype(np.float64) * (steps / span))).astype(np.int32)
    return x.astype(np.int32) - zero


def range_of_products(ranges: Sequence[Array], dtypes: tuple[np.dtype, np.dtype]) -> list[Array]:
    """The range of 32-bit products of levels, given the ranges of both operands."""
    step = _step(dtypes[0], *ranges[:2]) * _step(dtypes[1], *ranges[2:])
    first, last = levels(_INT32)
    return [step * np.float32(first), step * np.float32(last)]


def scalars(values: Sequence[Array]) -> list[Array]:
    return [jnp.reshape(v, ()) for v in values]


@rule("QuantizedMatMul")
def _matmul(
    a: Array, b: Array, *ranges: Array, node: Node, T1: np.dtype, T2: np.dtype
) -> list[Array]:
    ranges = tuple(scalars(ranges))
    a, b = centred(a, T1, *ranges[:2]), centred(b, T2, *ranges[2:])
    return [product(node, a, b), *range_of_products(ranges, (T1, T2))]


def convolution(
    x: Array,
    kernel: Array,
    strides: Sequence[int],
    padding: str,
    padding_list: Sequence[int] = (),
    dilations: Sequence[int] = (1, 1, 1, 1),
    groups: int = 1,
) -> Array:
    """A convolution of integers, features last; attributes as in TensorFlow."""
    pairs = list(zip(padding_list[::2], padding_list[1::2], strict=True))
    return lax.conv_general_dilated(
        x,
        kernel,
        strides[1:3],
        (pairs[1:3] if len(pairs) == 4 else pairs) or padding,
        rhs_dilation=dilations[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        preferred_element_type=_INT32,
    )


@rule("QuantizedReshape")
def _reshape(x: Array, shape: Ints, low: Array, high: Array) -> tuple[Array, Array, Array]:
    return jnp.reshape(x, shape), low, high


@rule("QuantizedRelu", "QuantizedRelu6")
def _relu(
    x: Array, low: Array, high: Array, *, op: str, Tinput: np.dtype
) -> tuple[Array, Array, Array]:
    y = jnp.maximum(x, level_of(np.float32(0), low, high, Tinput))
    if op == "QuantizedRelu6":
        y = jnp.minimum(y, level_of(np.float32(6), low, high, Tinput))
    return y, low, high


def unclamped(v: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    """The level nearest to a real number, in double precision; it may be out of range."""
    first, _ = levels(dtype)
    span, steps = _scale(low, high, dtype)
    scale = steps / span
    return round_away(v * scale) - round_away(low.astype(np.float64) * scale) + first


def level_of(v: Array, low: Array, high: Array, dtype: np.dtype) -> Array:
    """The level nearest to a real number."""
    first, last = levels(dtype)
    level = jnp.clip(unclamped(v, low, high, dtype), first, last)
    return jnp.where(high == low, first, level).astype(dtype)


@rule("RequantizationRange")
def _used_range(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The real numbers of the minimum and maximum level, widened to include zero."""
    bounds = [real_of(f(x), low, high) for f in (jnp.min, jnp.max)]
    return jnp.minimum(bounds[0], 0), bounds[1]


def real_of(x: Array, low: Array, high: Array, dtype: np.dtype = _INT32) -> Array:
    """The real number of a level."""
    first, _ = levels(dtype)
    span, steps = _scale(low, high, dtype)
    scale = span / steps
    narrow = scale.astype(np.float32)
    start = round_away((low / narrow).astype(np.float64)) * narrow
    real = (start + (x.astype(np.float64) - float(first)) * scale).astype(np.float32)
    return jnp.where(low == high, low, real)


@rule("Requantize", "QuantizeDownAndShrinkRange")
def _requantize(
    x: Array, low: Array, high: Array, *requested: Array, node: Node, out_type: np.dtype
) -> tuple[Array, Array, Array]:
    if out_type != np.uint8:
        raise node.error("has a kernel in TensorFlow for quint8 only", "Quantize to quint8.")
    new_low, new_high = requested or _used_range(x, low, high)
    # In fixed point with 16 fractional bits, as the kernel does.
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
    return jnp.clip(fixed >> 16, 0, 255).astype(np.uint8), new_low, new_high
