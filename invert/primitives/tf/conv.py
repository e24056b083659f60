"""Convolutions and the ops of their gradients.

The gradient with respect to the input is again a convolution, of the gradient dilated by the
strides with the reversed filter. It is written like this to work for integers too, which JAX does
not differentiate. The gradient with respect to the filter is JAX's transpose of the convolution,
which is linear in the filter.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
from jax import lax

from invert.ir.sizes import decided, suggest_decided
from invert.primitives.recorded import Recorded
from invert.primitives.tf.window import (
    Layout,
    Padding,
    explicit,
    layout,
    padding_of,
    per_axis,
    spatial_padding,
)
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Ints, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.split_space import Pads, SplitSpace


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

    def __call__(self, x: Array, kernel: Array) -> Array:
        return _convolved(x, kernel, self)

    def of_split(self, made: SplitSpace, kernel: Array) -> SplitSpace | None:
        """A convolution of split space, as a dilated one of its source."""
        n, where = len(self.strides), self.where
        if made.convolve is not None or (*self.strides, *self.dilation) != (1,) * 2 * n:
            return None
        if any(made.block[a] > 1 for a in range(n + 2) if a not in where.spatial):
            return None
        sizes = where.of_spatial(made.source.shape)
        pads = explicit(self.padding, sizes, kernel.shape[:n], self.strides, self.dilation)
        if any(p != 0 for pair in pads for p in pair):
            return None
        dilation = tuple(where.of_spatial(made.block))

        def convolve(pads: Pads) -> Array:
            padding = tuple(where.of_spatial(pads))
            return dataclasses.replace(self, dilation=dilation, padding=padding)(
                made.source, kernel
            )

        return dataclasses.replace(made, convolve=convolve)

    def input_gradient(self, shape: Ints, kernel: Array, g: Array) -> Array:
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
        spatial = where.of_spatial(g.shape)
        for d in spatial:
            suggest_decided(d, "ge", 1)
        if any(decided("eq", d, 0) for d in spatial):
            return lax.full(shape, 0, g.dtype)  # the kernel was applied nowhere
        spread = [(d - 1) * s + 1 for d, s in zip(spatial, self.strides, strict=True)]
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

    def filter_gradient(self, x: Array, shape: Ints, g: Array) -> Array:
        """The gradient with respect to a filter of this shape."""
        kernel = jax.ShapeDtypeStruct(shape, g.dtype)
        (gradient,) = jax.linear_transpose(lambda w: self(x, w), kernel)(g)
        return gradient


@Recorded
def _convolved(x: Array, kernel: Array, conv: Conv) -> Array:
    groups = x.shape[conv.where.channel] // kernel.shape[-2] if kernel.shape[-2] else 1
    return lax.conv_general_dilated(
        x,
        kernel,
        conv.strides,
        conv.padding,
        rhs_dilation=conv.dilation,
        dimension_numbers=conv.dims,
        feature_group_count=groups,
    )


def conv_of(node: Node, rank: int) -> Conv:
    """The convolution of `node`, on inputs of `rank` axes."""
    where = layout(node, rank)
    strides, dilation = (per_axis(node, name, rank) for name in ("strides", "dilations"))
    for name, values in (("strides", strides), ("dilations", dilation)):
        if len(values) == rank - 2:  # the op `Conv` lists only the spatial axes
            continue
        if any(values[i] != 1 for i in range(rank) if i not in where.spatial):
            reason = f"has {name} {values} in {where.spec}, over batch or channels"
            raise node.error(reason, "TensorFlow supports this for spatial axes only.")
    padding = padding_of(node, rank if len(strides) == rank else rank - 2)
    if len(strides) == rank:
        strides, padding = where.of_spatial(strides), spatial_padding(padding, where)
    if len(dilation) == rank:
        dilation = where.of_spatial(dilation)
    return Conv(where, tuple(strides), tuple(dilation), padding)


# The library to use; the number of groups follows from the shapes.
_IGNORED = ("use_cudnn_on_gpu", "groups")


@rule("Conv2D", "Conv3D", "DepthwiseConv2dNative", ignores=_IGNORED)
def _conv(x: Array, kernel: Array, *, node: Node, ctx: Context) -> Array:
    conv = conv_of(node, x.ndim)
    kernel = grouped(kernel) if node.op.startswith("Depthwise") else kernel
    return ctx.note_split(x, conv(x, kernel), lambda made: conv.of_split(made, kernel))


@rule("Conv", ignores=_IGNORED)
def _general_conv(x: Array, kernel: Array, *, batch_dims: int, node: Node) -> Array:
    batch = x.shape[:batch_dims]
    if batch_dims != 1:
        x = lax.reshape(x, (math.prod(batch), *x.shape[batch_dims:]))
    y = conv_of(node, kernel.ndim)(x, kernel)
    return y if batch_dims == 1 else lax.reshape(y, (*batch, *y.shape[1:]))


@Recorded
def grouped(kernel: Array) -> Array:
    """A depthwise filter as that of a convolution with one group for each channel."""
    height, width, channels, multiplier = kernel.shape
    return lax.reshape(kernel, (height, width, 1, channels * multiplier))


@rule(
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
    ignores=_IGNORED,
)
def _conv_input(input_sizes: Ints, kernel: Array, g: Array, *, node: Node) -> Array:
    conv, shape = conv_of(node, g.ndim), input_sizes
    depthwise = node.op.startswith("Depthwise")
    if len(shape) == g.ndim - 2:  # only the sizes of the spatial axes
        channels = kernel.shape[2] if depthwise else kernel.shape[-2]
        rest = iter(shape)
        first = {"N": g.shape[0], "C": channels}
        shape = tuple(first[c] if c in first else next(rest) for c in conv.where.spec)
    return conv.input_gradient(shape, grouped(kernel) if depthwise else kernel, g)


@rule("Conv2DBackpropInputV2", "Conv3DBackpropInput", ignores=_IGNORED)
def _conv_input_of(x: Value, kernel: Array, g: Array, *, node: Node) -> Array:
    return _conv_input(np.shape(x), kernel, g, node=node)


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", ignores=_IGNORED)
def _conv_filter(x: Array, filter_sizes: Ints, g: Array, *, node: Node) -> Array:
    return conv_of(node, x.ndim).filter_gradient(x, filter_sizes, g)


@rule("Conv2DBackpropFilterV2", "Conv3DBackpropFilter", ignores=_IGNORED)
def _conv_filter_of(x: Array, kernel: Value, g: Array, *, node: Node) -> Array:
    return _conv_filter(x, np.shape(kernel), g, node=node)


@rule("DepthwiseConv2dNativeBackpropFilter")
def _depthwise_filter(x: Array, filter_sizes: Ints, g: Array, *, node: Node) -> Array:
    height, width, channels, multiplier = filter_sizes
    flat = (height, width, 1, channels * multiplier)
    return lax.reshape(conv_of(node, x.ndim).filter_gradient(x, flat, g), filter_sizes)
