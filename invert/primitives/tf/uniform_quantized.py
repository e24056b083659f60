"""Integers that represent `(level - zero_point) * scale`, per tensor or per slice.

Tensors of quantized types are the integers they hold, as in `quantized`. Sums are exact, and are
converted to the scale of the result in fixed point, as in the kernels of
tensorflow/core/kernels/uniform_quant_ops (math_utils.h, TensorFlow 2.21).
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.stablehlo.linear import conv_numbers
from invert.protos.messages import message
from invert.protos.types import UniformQuantizedConvolutionDimensionNumbersAttr
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_BITS = 31


@dataclasses.dataclass(frozen=True)
class _Levels:
    """The scale and zero points of a tensor's levels.

    **Arguments:**

    - `scale`, `zero`: scalars, or vectors along `axis`.
    - `axis`: negative, so that it is the same one in a broadcast; `None` for scalars.
    - `least`, `most`: the range of the levels.
    """

    scale: Array
    zero: Array
    axis: int | None
    least: int
    most: int

    def along(self, values: Array) -> Array:
        """Values for each slice, ready to broadcast."""
        if self.axis is None:
            return values if np.ndim(values) == 0 else jnp.reshape(values, ())
        return jnp.reshape(values, (-1, *(1,) * (-self.axis - 1)))

    def centred(self, x: Array) -> Array:
        return x.astype(_INT32) - self.along(self.zero)

    def clipped(self, x: Array) -> Array:
        return jnp.clip(x, np.int32(self.least), np.int32(self.most))


def _levels(node: Node, prefix: str, rank: int, scale: Array, zero: Array) -> _Levels:
    """Levels of an operand or result, from the attributes with a prefix."""
    axis = node.attr(f"{prefix}quantization_axis")
    least, most = (node.attr(f"{prefix}quantization_{end}_val") for end in ("min", "max"))
    return _Levels(scale, zero, None if axis == -1 else axis - rank, least, most)


def _fixed_point(ratio: Array) -> tuple[Array, Array]:
    """A positive number as `multiplier * 2 ** (shift - 31)`."""
    bits = lax.bitcast_convert_type(ratio, _INT64)
    shift = ((bits >> 52) - 1022).astype(_INT32)
    fraction = (bits & ((1 << 52) - 1)) | (1 << 52)  # 53 bits
    multiplier = (fraction + (1 << (52 - _BITS))) >> (53 - _BITS)
    full = multiplier == 1 << _BITS
    multiplier, shift = jnp.where(full, multiplier >> 1, multiplier), shift + full.astype(_INT32)
    multiplier = jnp.where(shift < -_BITS, 0, multiplier)
    multiplier = jnp.where(shift > _BITS - 1, (1 << _BITS) - 1, multiplier)
    shift = jnp.where(shift < -_BITS, 0, jnp.minimum(shift, _BITS - 1))
    return multiplier, shift.astype(_INT64)


def _scaled(x: Array, ratio: Array) -> Array:
    """32-bit numbers times a positive double, in fixed point, rounded to the nearest."""
    multiplier, shift = _fixed_point(ratio)
    total = _BITS - shift
    half = lax.shift_left(jnp.ones_like(total), total - 1)
    product = x.astype(_INT64) * multiplier + half
    limits = np.iinfo(np.int32)
    shifted = lax.shift_right_arithmetic(product, jnp.broadcast_to(total, product.shape))
    return jnp.clip(shifted, limits.min, limits.max).astype(_INT32)


def _requantized(x: Array, old: _Levels, new: _Levels) -> Array:
    """Levels at another scale and zero point."""
    ratio = old.along(old.scale).astype(_F64) / new.along(new.scale).astype(_F64)
    return new.clipped(_scaled(old.centred(x), ratio) + new.along(new.zero))


def _nearest(x: Array, inverse: Array, zero: Array, least: int, most: int) -> Array:
    # Round the product before adding a half, which XLA would not do.
    product = (x.astype(_F64) * inverse.astype(_F64)).astype(_F32)
    level = lax.floor(product + np.float32(0.5)).astype(_INT32) + zero
    return jnp.maximum(jnp.minimum(level, np.int32(most)), np.int32(least))


@rule("UniformQuantize")
def _quantize(x: Array, scale: Array, zero: Array, *, node: Node, Tout: np.dtype) -> Array:
    to = _levels(node, "", x.ndim, scale, zero)
    inverse = np.float32(1) / to.along(to.scale)
    return _nearest(x, inverse, to.along(to.zero), to.least, to.most).astype(Tout)


@rule("UniformDequantize")
def _dequantize(x: Array, scale: Array, zero: Array, *, node: Node) -> Array:
    of = _levels(node, "", x.ndim, scale, zero)
    return of.centred(x).astype(_F32) * of.along(of.scale)


@rule("UniformRequantize")
def _requantize(x: Array, *scales: Array, node: Node, Tout: np.dtype) -> Array:
    old = _levels(node, "input_", x.ndim, *scales[:2])
    new = _levels(node, "output_", x.ndim, *scales[2:])
    return _requantized(x, old, new).astype(Tout)


@rule("UniformQuantizedAdd")
def _add(x: Array, y: Array, *scales: Array, node: Node) -> Array:
    left = _levels(node, "lhs_", x.ndim, *scales[:2])
    right = _levels(node, "rhs_", y.ndim, *scales[2:4])
    new = _levels(node, "output_", max(x.ndim, y.ndim), *scales[4:])
    limits = np.iinfo(np.int32)
    zero = jnp.zeros_like(new.zero)
    middle = dataclasses.replace(new, zero=zero, least=limits.min, most=limits.max)
    total = _requantized(x, left, middle) + _requantized(y, right, middle)
    return new.clipped(total + new.along(new.zero))


@rule("UniformQuantizedClipByValue")
def _clip(x: Array, least: Array, most: Array, scale: Array, zero: Array, *, node: Node) -> Array:
    of = _levels(node, "", x.ndim, scale, zero)
    least, most = of.along(least), of.along(most)
    return jnp.minimum(jnp.maximum(x, least), most)


def _product(node: Node, x: Array, y: Array) -> Array:
    """The product or the convolution of integers, in 32 bits."""
    if "Dot" in node.op:
        return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=_INT32)
    rank = x.ndim - 2
    strides, left, right = (
        tuple(node.attr(name) or (1,) * rank)
        for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    numbers = _dimension_numbers(node, x.ndim)
    return lax.conv_general_dilated(
        x,
        y,
        strides,
        _padding(node, x.shape, y.shape, strides, (left, right)),
        left,
        right,
        numbers,
        node.attr("feature_group_count"),
        node.attr("batch_group_count"),
        preferred_element_type=_INT32,
    )


def _dimension_numbers(node: Node, rank: int) -> lax.ConvDimensionNumbers:
    # Not `node.attr`: it decodes strings as text, and these are bytes.
    text = node.attrs["dimension_numbers"].s if "dimension_numbers" in node.attrs else b""
    default = tuple(range(rank))
    if not text:
        return lax.ConvDimensionNumbers(default, default, default)
    numbers = message(UniformQuantizedConvolutionDimensionNumbersAttr)()
    numbers.MergeFromString(text)
    return conv_numbers(numbers)


def _padding(
    node: Node, x: Value, y: Value, strides: Value, dilations: Value
) -> list[tuple[int, int]]:
    mode = node.attr("padding")
    if mode == "EXPLICIT":
        pads = node.attr("explicit_padding")
        return list(zip(pads[::2], pads[1::2], strict=True))
    numbers = _dimension_numbers(node, len(x))
    pairs = []
    for i, stride in enumerate(strides):
        shapes = zip((x, y), (numbers.lhs_spec, numbers.rhs_spec), dilations, strict=True)
        size, window = ((shape[spec[2 + i]] - 1) * by[i] + 1 for shape, spec, by in shapes)
        total = 0 if mode == "VALID" else max((-(-size // stride) - 1) * stride + window - size, 0)
        pairs.append((total // 2, total - total // 2))
    return pairs


def _feature_axis(node: Node, rank: int) -> int:
    """The axis of the features of the result, as a negative number."""
    return -1 if "Dot" in node.op else _dimension_numbers(node, rank).out_spec[1] - rank


@rule(
    "UniformQuantizedDot", "UniformQuantizedConvolution", ignores=("dimension_numbers",)
)  # read as bytes
def _quantized_product(x: Array, y: Array, *scales: Array, node: Node) -> Array:
    left = _levels(node, "lhs_", x.ndim, *scales[:2])
    right = _levels(node, "rhs_", y.ndim, *scales[2:4])
    new = _levels(node, "output_", x.ndim, *scales[4:])
    sums = _product(node, left.centred(x), right.centred(y))
    scale = left.scale.astype(_F64) * right.scale.astype(_F64)
    axis = None if right.axis is None else _feature_axis(node, x.ndim)
    ratio = dataclasses.replace(right, axis=axis).along(scale) / new.along(new.scale).astype(_F64)
    return new.clipped(_scaled(sums, ratio) + new.along(new.zero))


def _levels_of(x: Array, least: int, most: int) -> tuple[Array, Array, Array]:
    """Quantize each row of `x` by its range; with scales and zero points."""
    low, high = jnp.minimum(jnp.min(x, 1), 0).astype(_F64), jnp.maximum(jnp.max(x, 1), 0)
    span, steps = high.astype(_F64) - low, float(most - least)
    scale = (span / steps).astype(_F32)
    inverse = jnp.where(span == 0, 0, steps / jnp.where(span == 0, 1, span)).astype(_F32)
    empty = (scale == 0) | ~jnp.isfinite(inverse)
    step = jnp.where(empty, 1, scale).astype(_F64)
    ends = least - low / step, most - high / step
    nearer = abs(least) + abs(low / step) < abs(most) + abs(high / step)
    zero = jnp.clip(jnp.where(nearer, *ends), least, most)
    zero = lax.round(zero, lax.RoundingMethod.AWAY_FROM_ZERO).astype(_INT32)
    column = functools.partial(jnp.expand_dims, axis=1)
    levels = _nearest(x, column(inverse), column(zero), least, most)
    return (
        jnp.where(column(empty), 0, levels),
        jnp.where(empty, 1, scale),
        jnp.where(empty, 0, zero),
    )


@rule(
    "UniformQuantizedDotHybrid",
    "UniformQuantizedConvolutionHybrid",
    ignores=("dimension_numbers",),  # read as bytes
)
def _hybrid(x: Array, y: Array, scale: Array, zero: Array, *, node: Node) -> Array:
    """Quantize each example of the first operand to 8 bits by its range."""
    right = _levels(node, "rhs_", y.ndim, scale, zero)
    batch = 0 if "Dot" in node.op else _dimension_numbers(node, x.ndim).lhs_spec[0]
    moved = jnp.moveaxis(x, batch, 0)
    levels, scale, zero = _levels_of(moved.reshape(len(moved), -1), -128, 127)
    centred = jnp.moveaxis((levels - zero[:, None]).reshape(moved.shape), 0, batch)
    sums = _product(node, centred, right.centred(y))
    axis = _feature_axis(node, x.ndim)
    other = dataclasses.replace(right, axis=None if right.axis is None else axis)
    return sums.astype(_F32) * _of_rows(node, scale, sums) * other.along(right.scale)


def _of_rows(node: Node, scale: Array, sums: Array) -> Array:
    """The scale of each example, ready to broadcast with their sums.

    Groups of examples become separate features.
    """
    first = 0 if "Dot" in node.op else _dimension_numbers(node, sums.ndim).out_spec[0]
    axis, groups = _feature_axis(node, sums.ndim), node.attr("batch_group_count", 1)
    grid = jnp.reshape(scale, (groups, sums.shape[first])).T
    if groups > 1:
        grid = jnp.repeat(grid, sums.shape[axis] // groups, axis=1)
    return jnp.moveaxis(jnp.expand_dims(grid, tuple(range(2, sums.ndim))), (0, 1), (first, axis))
