"""Whole numbers that stand for `(level - zero_point) * scale`, for a tensor or each slice of it.

Tensors of quantized types are the whole numbers they hold, as in `quantized`. Sums are exact, and
are brought to the scale of the result in fixed point, as in the kernels of
tensorflow/core/kernels/uniform_quant_ops (math_utils.h, TensorFlow 2.21).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.protos.messages import message
from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, raises_tf
from invert.tf.values.constants import array

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
_BITS = 31


@dataclasses.dataclass(frozen=True)
class _Levels:
    """What the levels of a tensor stand for.

    **Arguments:**

    - `scale`, `zero`: scalars, or vectors along `axis`.
    - `axis`: counted from the last axis, so that it is the same one in a broadcast; `None`: none.
    - `least`, `most`: the levels that there are.
    """

    scale: Any
    zero: Any
    axis: int | None
    least: int
    most: int

    def along(self, values: Any) -> Any:
        """Values for each slice, ready to broadcast."""
        if self.axis is None:
            return values if np.ndim(values) == 0 else jnp.reshape(values, ())
        return jnp.reshape(values, (-1, *(1,) * (-self.axis - 1)))

    def centred(self, x: Any) -> Any:
        return x.astype(_INT32) - self.along(self.zero)

    def clipped(self, x: Any) -> Any:
        return jnp.clip(x, np.int32(self.least), np.int32(self.most))


def _levels(node: Node, prefix: str, values: list[Any], index: int, rank: int) -> _Levels:
    """Of the scale and the zero point, which are the inputs from `index` on."""
    scale, zero = array(values[index]), array(values[index + 1])
    axis = node.attr(f"{prefix}quantization_axis", -1)
    bounds = (node.attr(f"{prefix}quantization_{end}_val") for end in ("min", "max"))
    least, most = bounds
    return _Levels(scale, zero, None if axis == -1 else axis - rank, least, most)


def _fixed_point(ratio: Any) -> tuple[Any, Any]:
    """A positive number as `multiplier * 2 ** (shift - 31)`: 31 bits of it, and the shift."""
    bits = lax.bitcast_convert_type(ratio, _INT64)
    shift = ((bits >> 52) - 1022).astype(_INT32)
    fraction = (bits & ((1 << 52) - 1)) | (1 << 52)  # of 53 bits
    multiplier = (fraction + (1 << (52 - _BITS))) >> (53 - _BITS)
    full = multiplier == 1 << _BITS
    multiplier, shift = jnp.where(full, multiplier >> 1, multiplier), shift + full.astype(_INT32)
    multiplier = jnp.where(shift < -_BITS, 0, multiplier)
    multiplier = jnp.where(shift > _BITS - 1, (1 << _BITS) - 1, multiplier)
    shift = jnp.where(shift < -_BITS, 0, jnp.minimum(shift, _BITS - 1))
    return multiplier, shift.astype(_INT64)


def _scaled(x: Any, ratio: Any) -> Any:
    """32-bit numbers times a positive double, in fixed point, rounded to the nearest."""
    multiplier, shift = _fixed_point(ratio)
    total = _BITS - shift
    half = lax.shift_left(jnp.ones_like(total), total - 1)
    product = x.astype(_INT64) * multiplier + half
    limits = np.iinfo(np.int32)
    found = lax.shift_right_arithmetic(product, jnp.broadcast_to(total, product.shape))
    return jnp.clip(found, limits.min, limits.max).astype(_INT32)


def _requantized(x: Any, old: _Levels, new: _Levels) -> Any:
    """Levels of a scale as levels of another one."""
    ratio = old.along(old.scale).astype(_F64) / new.along(new.scale).astype(_F64)
    return new.clipped(_scaled(old.centred(x), ratio) + new.along(new.zero))


def _nearest(x: Any, inverse: Any, zero: Any, least: int, most: int) -> Any:
    # The product is rounded before a half is added, which XLA would not do.
    product = (x.astype(_F64) * inverse.astype(_F64)).astype(_F32)
    level = lax.floor(product + np.float32(0.5)).astype(_INT32) + zero
    return jnp.maximum(jnp.minimum(level, np.int32(most)), np.int32(least))


@raises_tf("UniformQuantize")
def _quantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    to = _levels(node, "", values, 1, x.ndim)
    inverse = np.float32(1) / to.along(to.scale)
    found = _nearest(x, inverse, to.along(to.zero), to.least, to.most)
    return [found.astype(node.attr("Tout"))]


@raises_tf("UniformDequantize")
def _dequantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    of = _levels(node, "", values, 1, x.ndim)
    return [of.centred(x).astype(_F32) * of.along(of.scale)]


@raises_tf("UniformRequantize")
def _requantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    old = _levels(node, "input_", values, 1, x.ndim)
    new = _levels(node, "output_", values, 3, x.ndim)
    return [_requantized(x, old, new).astype(node.attr("Tout"))]


@raises_tf("UniformQuantizedAdd")
def _add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = array(values[0]), array(values[1])
    rank = max(x.ndim, y.ndim)
    old = [
        _levels(node, f"{side}_", values, i, part.ndim)
        for side, i, part in (("lhs", 2, x), ("rhs", 4, y))
    ]
    new = _levels(node, "output_", values, 6, rank)
    limits = np.iinfo(np.int32)
    zero = jnp.zeros_like(new.zero)
    middle = dataclasses.replace(new, zero=zero, least=limits.min, most=limits.max)
    total = _requantized(x, old[0], middle) + _requantized(y, old[1], middle)
    return [new.clipped(total + new.along(new.zero))]


@raises_tf("UniformQuantizedClipByValue")
def _clip(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    of = _levels(node, "", values, 3, x.ndim)
    least, most = of.along(array(values[1])), of.along(array(values[2]))
    return [jnp.minimum(jnp.maximum(x, least), most)]


def _product(node: Node, x: Any, y: Any) -> Any:
    """The product or the convolution of whole numbers, in 32 bits."""
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
        node.attr("feature_group_count", 1),
        node.attr("batch_group_count", 1),
        preferred_element_type=_INT32,
    )


def _dimension_numbers(node: Node, rank: int) -> lax.ConvDimensionNumbers:
    # Not `node.attr`: it decodes strings as text, and these are bytes.
    text = node.attrs["dimension_numbers"].s if "dimension_numbers" in node.attrs else b""
    usual = tuple(range(rank))
    if not text:
        return lax.ConvDimensionNumbers(usual, usual, usual)
    found = message("UniformQuantizedConvolutionDimensionNumbersAttr")()
    found.MergeFromString(text)
    sides = (("input", "batch", "feature"), ("kernel", "output_feature", "input_feature"),
             ("output", "batch", "feature"))  # fmt: skip
    specs = [
        tuple(getattr(found, f"{side}_{name}_dimension") for name in names)
        + tuple(getattr(found, f"{side}_spatial_dimensions"))
        for side, *names in sides
    ]
    return lax.ConvDimensionNumbers(specs[0], specs[1], specs[2])


def _padding(node: Node, x: Any, y: Any, strides: Any, dilations: Any) -> list[tuple[int, int]]:
    mode = node.attr("padding")
    if mode == "EXPLICIT":
        given = node.attr("explicit_padding")
        return list(zip(given[::2], given[1::2], strict=True))
    numbers = _dimension_numbers(node, len(x))
    found = []
    for i, stride in enumerate(strides):
        shapes = zip((x, y), (numbers.lhs_spec, numbers.rhs_spec), dilations, strict=True)
        size, window = ((shape[spec[2 + i]] - 1) * by[i] + 1 for shape, spec, by in shapes)
        total = 0 if mode == "VALID" else max((-(-size // stride) - 1) * stride + window - size, 0)
        found.append((total // 2, total - total // 2))
    return found


def _feature_axis(node: Node, rank: int) -> int:
    """The axis of the features of the result, from the last axis on."""
    return -1 if "Dot" in node.op else _dimension_numbers(node, rank).out_spec[1] - rank


@raises_tf("UniformQuantizedDot", "UniformQuantizedConvolution")
def _quantized_product(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = array(values[0]), array(values[1])
    left = _levels(node, "lhs_", values, 2, x.ndim)
    right = _levels(node, "rhs_", values, 4, y.ndim)
    new = _levels(node, "output_", values, 6, x.ndim)
    found = _product(node, left.centred(x), right.centred(y))
    scale = left.scale.astype(_F64) * right.scale.astype(_F64)
    axis = None if right.axis is None else _feature_axis(node, x.ndim)
    ratio = dataclasses.replace(right, axis=axis).along(scale) / new.along(new.scale).astype(_F64)
    return [new.clipped(_scaled(found, ratio) + new.along(new.zero))]


def _levels_of(x: Any, least: int, most: int) -> tuple[Any, Any, Any]:
    """The nearest levels of the rows of `x`, each with a range of its own, their scale and zero."""
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


@raises_tf("UniformQuantizedDotHybrid", "UniformQuantizedConvolutionHybrid")
def _hybrid(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """Each example of the first operand is quantized to 8 bits by the range that it has."""
    x, y = array(values[0]), array(values[1])
    right = _levels(node, "rhs_", values, 2, y.ndim)
    batch = 0 if "Dot" in node.op else _dimension_numbers(node, x.ndim).lhs_spec[0]
    moved = jnp.moveaxis(x, batch, 0)
    levels, scale, zero = _levels_of(moved.reshape(len(moved), -1), -128, 127)
    centred = jnp.moveaxis((levels - zero[:, None]).reshape(moved.shape), 0, batch)
    found = _product(node, centred, right.centred(y))
    axis = _feature_axis(node, x.ndim)
    other = dataclasses.replace(right, axis=None if right.axis is None else axis)
    return [found.astype(_F32) * _of_rows(node, scale, found) * other.along(right.scale)]


def _of_rows(node: Node, scale: Any, found: Any) -> Any:
    """The scale of each example, ready to broadcast with what became of them.

    Groups of examples become features of their own.
    """
    first = 0 if "Dot" in node.op else _dimension_numbers(node, found.ndim).out_spec[0]
    axis, groups = _feature_axis(node, found.ndim), node.attr("batch_group_count", 1)
    grid = jnp.reshape(scale, (groups, found.shape[first])).T
    if groups > 1:
        grid = jnp.repeat(grid, found.shape[axis] // groups, axis=1)
    return jnp.moveaxis(jnp.expand_dims(grid, tuple(range(2, found.ndim))), (0, 1), (first, axis))
