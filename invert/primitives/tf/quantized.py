"""Tensors of quantized types, which are integers here: qint8 is int8, quint8 is uint8.

Each comes with a range of real numbers. Kernels: tensorflow/core/kernels/quantize_op.cc,
dequantize_op.cc, quantization_utils.h and quantized_*.cc; for ops per channel and fused ones those
of tensorflow/core/kernels/mkl (TensorFlow 2.21, oneDNN 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import product
from invert.primitives.tf.pooling import window_of
from invert.tf.interpreter.registry import Array, Int, Ints, rule
from invert.tf.ops.node import Node

_FLT_MAX = np.finfo(np.float32).max
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


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
    """The level nearest to a number, in double precision, perhaps out of range."""
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
        raise node.error("has a TensorFlow kernel for quint8 only", "Quantize to quint8.")
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


# -- sums, pooling and ranges per channel


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


@rule("QuantizedInstanceNorm")
def _instance_norm(
    x: Array,
    low: Array,
    high: Array,
    *,
    T: np.dtype,
    output_range_given: bool,
    given_y_min: float,
    given_y_max: float,
    variance_epsilon: float,
    min_separation: float,
) -> tuple[Array, Array, Array]:
    x = real_of(x, low, high, T)
    mean, variance = jnp.mean(x, (1, 2), keepdims=True), jnp.var(x, (1, 2), keepdims=True)
    y = (x - mean) * lax.rsqrt(variance + np.float32(variance_epsilon))
    low, high = jnp.float32(given_y_min), jnp.float32(given_y_max)
    if not output_range_given:
        low, high = jnp.min(y), jnp.max(y)
        high = jnp.maximum(high, low + np.float32(min_separation))
    return level_of(y, low, high, T), low, high


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


# -- convolutions and products of quantized tensors with a bias, a summand, Relu and a new range
#
# The name of an op says which of these it has. As in oneDNN, which runs them in TensorFlow, sums
# of integers are converted to single precision and rounded at the end. Scales as in
# tensorflow/core/kernels/mkl/mkl_conv_ops.cc and mkl_qmatmul_op.cc (TensorFlow 2.21, oneDNN 3).

Bounds = Sequence[Array]


@dataclasses.dataclass(frozen=True)
class _Operands:
    """The operands of an op, selected by its name.

    **Arguments:**

    - `x`, `kernel`, `bias`, `summand`: the tensors, `None` where absent.
    - `of_x`, `of_kernel`, `of_result`, `of_summand`: the bounds of their ranges.
    """

    x: Array
    kernel: Array
    bias: Array
    of_x: Bounds
    of_kernel: Bounds
    of_result: Bounds
    summand: Array
    of_summand: Bounds

    @classmethod
    def of(cls, op: str, x: Array, kernel: Array, values: Sequence[Array]) -> _Operands:
        rest = list(values)

        def take(count: int) -> list[Array]:
            taken, rest[:] = rest[:count], rest[count:]
            return taken

        bias = take(1)[0] if "WithBias" in op else None
        of_x, of_kernel = take(2), take(2)
        of_result = take(2) if op.endswith(("Requantize", "Dequantize")) else []
        summand = take(1)[0] if "Sum" in op else None
        return cls(x, kernel, bias, of_x, of_kernel, of_result, summand, take(2))


def _divided(x: Array, by: float) -> Array:
    """A quotient rounded once: XLA multiplies by the inverse of a constant."""
    return (x.astype(_F64) / by).astype(_F32)


def _fused_scale(bounds: Bounds, dtype: np.dtype) -> Array:
    """The size of a step, with zero as a level."""
    return _divided(jnp.maximum(*map(jnp.abs, bounds)), levels(dtype)[1])


def _fused_step(bounds: Bounds, dtype: np.dtype) -> Array:
    first, last = levels(dtype)
    return _divided(bounds[1] - bounds[0], last - max(first, -last))


def _range(operands: _Operands) -> list[Array]:
    """The range of the result: given, or that of 32-bit products of the operands."""
    if operands.of_result:
        return list(operands.of_result)
    step = _fused_step(operands.of_x, operands.x.dtype) * _fused_step(
        operands.of_kernel, operands.kernel.dtype
    )
    first, last = levels(_INT32)
    return [step * np.float32(first), step * np.float32(last)]


_WITH_BIAS = ("WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
_AFTER_CONV = (
    "AndRelu", "AndReluAndRequantize", "AndRequantize", "PerChannel", *_WITH_BIAS,
    "WithBiasAndRequantize", "WithBiasSignedSumAndReluAndRequantize", "WithBiasSumAndRelu",
    "WithBiasSumAndReluAndRequantize",
)  # fmt: skip


@rule(
    *(f"QuantizedConv2D{rest}" for rest in ("", *_AFTER_CONV)),
    *(f"QuantizedDepthwiseConv2D{rest}" for rest in ("", *_WITH_BIAS)),
)
def _conv(
    x: Array,
    kernel: Array,
    *rest: Array,
    node: Node,
    Tinput: np.dtype,
    Tfilter: np.dtype,
    out_type: np.dtype,
    strides: list[int],
    padding: str,
    dilations: list[int],
    padding_list: Sequence[int] = (),
) -> list[Array]:
    if node.op == "QuantizedConv2D" and Tfilter == np.uint8:
        if any(d != 1 for d in dilations):
            raise node.error(
                "has dilations, for which TensorFlow has no kernel", "Export it without dilations."
            )
        bounds = scalars(rest)
        levels_ = centred(x, Tinput, *bounds[:2]), centred(kernel, Tfilter, *bounds[2:])
        sums = convolution(*levels_, strides, padding)
        return [sums, *range_of_products(bounds, (Tinput, Tfilter))]
    operands = _Operands.of(node.op, x, kernel, rest)
    groups, weights = 1, kernel.astype(_INT32)
    if "Depthwise" in node.op:
        groups = kernel.shape[2]
        weights = jnp.reshape(weights, (*kernel.shape[:2], 1, groups * kernel.shape[3]))
    sums = convolution(x.astype(_INT32), weights, strides, padding, padding_list, dilations, groups)
    return _after_sums(node.op, operands, sums, _fused_scale(operands.of_x, x.dtype), out_type)


@rule(
    *(
        f"QuantizedMatMul{rest}"
        for rest in (*_WITH_BIAS, "WithBiasAndDequantize", "WithBiasAndRequantize")
    )
)
def _fused_matmul(
    x: Array, kernel: Array, *rest: Array, node: Node, Toutput: np.dtype, input_quant_mode: str
) -> list[Array]:
    operands = _Operands.of(node.op, x, kernel, rest)
    sums = product(node, x.astype(_INT32), kernel.astype(_INT32))
    if input_quant_mode == "SCALED":
        return _after_sums(node.op, operands, sums, _fused_scale(operands.of_x, x.dtype), Toutput)
    if operands.bias.dtype != _INT32:
        # The zero level of x contributes the sums of the kernel's levels.
        low, high = operands.of_x
        offset = np.float32(255) * low / (high - low)
        bias = operands.bias + jnp.sum(kernel.astype(_INT32), 0).astype(_F32) * offset
        operands = dataclasses.replace(operands, bias=bias)
    return _after_sums(node.op, operands, sums, _fused_step(operands.of_x, x.dtype), Toutput)


def _after_sums(
    op: str, operands: _Operands, sums: Array, of_x: Array, dtype: np.dtype
) -> list[Array]:
    """Apply the steps of an op after its products; `of_x` is x's step size."""
    of_kernel = _fused_scale(operands.of_kernel, operands.kernel.dtype)
    reals = sums.astype(_F32) * (of_x * of_kernel)
    if operands.bias is not None:
        whole = operands.bias.dtype == _INT32
        bias = operands.bias.astype(_F32) * (of_x * of_kernel) if whole else operands.bias
        reals = reals + bias
    if operands.summand is not None:
        reals = reals + _summand(operands)
    if "Relu" in op:
        reals = jnp.maximum(reals, 0)
    if op.endswith("Dequantize"):
        return [reals]
    if dtype == _INT32:
        # If each feature has a range, the largest counts.
        bounds = jnp.min(operands.of_kernel[0]), jnp.max(operands.of_kernel[1])
        step = of_x * _fused_scale(bounds, operands.kernel.dtype)
    else:
        step = _fused_scale(operands.of_result, dtype)
    return [clipped(jnp.round(reals / step), dtype), *_range(operands)]


def _summand(operands: _Operands) -> Array:
    if not operands.of_summand:
        return operands.summand
    return operands.summand.astype(_F32) * _fused_scale(operands.of_summand, operands.summand.dtype)
