"""Convolutions and the ops of their gradients.

A gradient with respect to the input is again a convolution, of the gradient with its elements
spread by the strides and of the filter turned around. It is written so, since this also holds for
integers, which JAX does not differentiate. A gradient with respect to the filter is the transpose
that JAX takes of the convolution, which is linear in it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax import lax

from invert.primitives.tf.window import (
    Layout,
    Padding,
    explicit,
    layout,
    padding_of,
    per_axis,
    refuse,
    spatial_padding,
)
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, ints, static


@dataclasses.dataclass(frozen=True)
class Conv:
    """Parameters of a convolution, over the spatial axes."""

    where: Layout
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Padding

    @property
    def dims(self) -> tuple[str, str, str]:
        return self.where.spec, self.where.kernel, self.where.spec

    def __call__(self, x: Any, kernel: Any) -> Any:
        groups = x.shape[self.where.channel] // kernel.shape[-2] if kernel.shape[-2] else 1
        return lax.conv_general_dilated(
            x,
            kernel,
            self.strides,
            self.padding,
            rhs_dilation=self.dilation,
            dimension_numbers=self.dims,
            feature_group_count=groups,
        )

    def input_gradient(self, shape: tuple[Any, ...], kernel: Any, g: Any) -> Any:
        """The gradient with respect to an input of this shape."""
        n, where = len(self.strides), self.where
        channels, per_group, out = shape[where.channel], *kernel.shape[-2:]
        groups = channels // per_group
        if groups > 1:
            # The channels of the result of each group become its inputs, and vice versa.
            split = lax.reshape(kernel, (*kernel.shape[:n], per_group, groups, out // groups))
            swapped = lax.transpose(split, (*range(n), n + 2, n + 1, n))
            kernel = lax.reshape(swapped, (*kernel.shape[:n], out // groups, channels))
            spec = where.kernel
        else:
            spec = where.kernel[:-2] + "OI"
        reach = [(k - 1) * d + 1 for k, d in zip(kernel.shape, self.dilation, strict=False)]
        sizes = where.of_spatial(shape)
        pads = explicit(self.padding, sizes, kernel.shape[:n], self.strides, self.dilation)
        spread = [
            (d - 1) * s + 1 for d, s in zip(where.of_spatial(g.shape), self.strides, strict=True)
        ]
        before = [r - 1 - p for r, (p, _) in zip(reach, pads, strict=True)]
        after = [
            size + r - 1 - d - p for size, r, d, p in zip(sizes, reach, spread, before, strict=True)
        ]
        return lax.conv_general_dilated(
            g,
            lax.rev(kernel, range(n)),
            (1,) * n,
            list(zip(before, after, strict=True)),
            lhs_dilation=self.strides,
            rhs_dilation=self.dilation,
            dimension_numbers=(where.spec, spec, where.spec),
            feature_group_count=groups,
        )

    def filter_gradient(self, x: Any, shape: tuple[Any, ...], g: Any) -> Any:
        """The gradient with respect to a filter of this shape."""
        kernel = jax.ShapeDtypeStruct(shape, g.dtype)
        (gradient,) = jax.linear_transpose(lambda w: self(x, w), kernel)(g)
        return gradient


def conv_of(node: Node, rank: int) -> Conv:
    """The convolution that `node` describes, on inputs of `rank` axes."""
    where = layout(node, rank)
    strides, dilation = (per_axis(node, name, rank) for name in ("strides", "dilations"))
    for name, values in (("strides", strides), ("dilations", dilation)):
        if len(values) == rank - 2:  # the op `Conv` lists the spatial axes alone
            continue
        if any(values[i] != 1 for i in range(rank) if i not in where.spatial):
            reason = f"has {name} {values} in {where.spec}, over batch or channels"
            raise refuse(node, reason, "TensorFlow computes this for spatial axes alone.")
    padding = padding_of(node, rank if len(strides) == rank else rank - 2)
    if len(strides) == rank:
        strides, padding = where.of_spatial(strides), spatial_padding(padding, where)
    if len(dilation) == rank:
        dilation = where.of_spatial(dilation)
    return Conv(where, tuple(strides), tuple(dilation), padding)


@raises_tf("Conv2D", "Conv3D")
def _conv(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, kernel = arrays(values)
    return [conv_of(node, x.ndim)(x, kernel)]


@raises_tf("Conv")
def _general_conv(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, kernel = arrays(values)
    batch_dims = node.attr("batch_dims", 1)
    rank = kernel.ndim
    batch = x.shape[:batch_dims]
    if batch_dims != 1:
        x = lax.reshape(x, (math.prod(batch), *x.shape[batch_dims:]))
    y = conv_of(node, rank)(x, kernel)
    return [y if batch_dims == 1 else lax.reshape(y, (*batch, *y.shape[1:]))]


@raises_tf("DepthwiseConv2dNative")
def _depthwise(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, kernel = arrays(values)
    return [conv_of(node, x.ndim)(x, grouped(kernel))]


def grouped(kernel: Any) -> Any:
    """A depthwise filter as that of a convolution with one group for each channel."""
    height, width, channels, multiplier = kernel.shape
    return lax.reshape(kernel, (height, width, 1, channels * multiplier))


def _shape_of(node: Node, values: list[Any], index: int) -> tuple[Any, ...]:
    """The shape that an input gives: as a vector of sizes, or its own."""
    if node.op in _TAKES_VALUE:
        return tuple(values[index].shape)
    return ints(static(node, values, index))


_TAKES_VALUE = frozenset(
    (
        "Conv2DBackpropInputV2",
        "Conv2DBackpropFilterV2",
        "Conv3DBackpropInput",
        "Conv3DBackpropFilter",
    )
)


@raises_tf(
    "Conv2DBackpropInput",
    "Conv2DBackpropInputV2",
    "Conv3DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
)
def _conv_input(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    kernel, g = array(values[1]), array(values[2])
    conv = conv_of(node, g.ndim)
    shape = _shape_of(node, values, 0)
    depthwise = node.op.startswith("Depthwise")
    if len(shape) == g.ndim - 2:  # the sizes of the spatial axes alone
        channels = kernel.shape[2] if depthwise else kernel.shape[-2]
        rest = iter(shape)
        first = {"N": g.shape[0], "C": channels}
        shape = tuple(first[c] if c in first else next(rest) for c in conv.where.spec)
    return [conv.input_gradient(shape, grouped(kernel) if depthwise else kernel, g)]


@raises_tf(
    "Conv2DBackpropFilter",
    "Conv2DBackpropFilterV2",
    "Conv3DBackpropFilter",
    "Conv3DBackpropFilterV2",
)
def _conv_filter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, g = array(values[0]), array(values[2])
    return [conv_of(node, x.ndim).filter_gradient(x, _shape_of(node, values, 1), g)]


@raises_tf("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_filter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, g = array(values[0]), array(values[2])
    shape = height, width, channels, multiplier = ints(static(node, values, 1))
    flat = (height, width, 1, channels * multiplier)
    return [lax.reshape(conv_of(node, x.ndim).filter_gradient(x, flat, g), shape)]
