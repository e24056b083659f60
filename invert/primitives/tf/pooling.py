"""Pools, the ops of their gradients, and morphological dilation.

A window with several maxima passes its gradient to the first of them, in TensorFlow as in XLA
(tensorflow/core/kernels/maxpooling_op.cc, TensorFlow 2.21); only TensorFlow's CPU kernel for
volumes passes it to all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.window import explicit, is_half, layout, padding_of, per_axis
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, ints, static


@dataclasses.dataclass(frozen=True)
class Window:
    """Sizes, strides and padding of a window, over all axes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[Any, Any], ...]

    def reduce(self, x: Any, initial: Any, combine: Any) -> Any:
        return lax.reduce_window(x, initial, combine, self.sizes, self.strides, self.pads)

    def max(self, x: Any) -> Any:
        return self.reduce(x, lowest(x.dtype), lax.max)

    def mean(self, x: Any) -> Any:
        """The mean over what of each window lies inside of `x`."""
        wide = x.astype(jnp.float32) if is_half(x.dtype) else x
        zero = np.zeros((), wide.dtype)
        count: Any = math.prod(self.sizes)
        if any(not isinstance(d, int) or d for pair in self.pads for d in pair):
            # One entry of an axis is enough where the window has no extent.
            flat = [k == s == 1 for k, s in zip(self.sizes, self.strides, strict=True)]
            shape = [1 if one else d for d, one in zip(x.shape, flat, strict=True)]
            count = self.reduce(jnp.ones(shape, wide.dtype), zero, lax.add)
        return (self.reduce(wide, zero, lax.add) / count).astype(x.dtype)

    def scatter(self, g: Any, x: Any) -> Any:
        """Adds each element of `g` where its window of `x` has the maximum."""
        wide = (g.astype(jnp.float32), x.astype(jnp.float32)) if is_half(x.dtype) else (g, x)
        y = lax.select_and_scatter_add_p.bind(
            *wide,
            select_prim=lax.ge_p,
            window_dimensions=self.sizes,
            window_strides=self.strides,
            padding=self.pads,
        )
        return y.astype(x.dtype)

    def argmax(self, x: Any, labels: Any) -> Any:
        """The entry of `labels` where each window of `x` has its first maximum."""

        def first(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
            (x, i), (y, j) = a, b
            left = (x > y) | ((x == y) & (i < j))
            return lax.select(left, x, y), lax.select(left, i, j)

        operands = lax.stop_gradient(x), labels
        initial = lowest(x.dtype), np.asarray(np.iinfo(labels.dtype).max, labels.dtype)
        return self.reduce(operands, initial, first)[1]


def lowest(dtype: Any) -> np.ndarray:
    """What a maximum over nothing is."""
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(jnp.iinfo(dtype).min, dtype)
    return np.asarray(-np.inf, dtype)


def window_of(node: Node, shape: Sequence[Any], sizes: Any = None, strides: Any = None) -> Window:
    """The window that `node` describes; `sizes` and `strides` where they are inputs."""
    rank = len(shape)
    layout(node, rank)  # refuses formats in vectors of channels
    sizes = tuple(sizes or per_axis(node, "ksize", rank))
    strides = tuple(strides or per_axis(node, "strides", rank))
    pads = explicit(padding_of(node, rank), shape, sizes, strides, (1,) * rank)
    return Window(sizes, strides, tuple(pads))


@raises_tf("MaxPool", "MaxPool3D")
def _max_pool(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [window_of(node, x.shape).max(x)]


@raises_tf("MaxPoolV2")
def _max_pool_v2(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [window_of(node, x.shape, *(ints(static(node, values, i)) for i in (1, 2))).max(x)]


@raises_tf("AvgPool", "AvgPool3D")
def _avg_pool(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [window_of(node, x.shape).mean(x)]


@raises_tf("AvgPoolGrad", "AvgPool3DGrad")
def _avg_pool_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, g = ints(static(node, values, 0)), array(values[1])
    x = jax.ShapeDtypeStruct(shape, g.dtype)
    return list(jax.linear_transpose(window_of(node, shape).mean, x)(g))


@raises_tf("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad")
def _max_pool_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, g = array(values[0]), array(values[2])
    given = [ints(static(node, values, i)) for i in range(3, len(values))]
    return [window_of(node, x.shape, *given).scatter(g, x)]


@raises_tf("MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad")
def _max_pool_grad_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, g = array(values[0]), array(values[2])
    given = [ints(static(node, values, i)) for i in range(3, len(values))]
    where = window_of(node, x.shape, *given).argmax(x, _positions(x.shape, np.dtype(np.int32)))
    return [jnp.take(lax.reshape(g, (math.prod(g.shape),)), where, unique_indices=False)]


def _positions(shape: Sequence[Any], dtype: np.dtype, batch: bool = True) -> Any:
    """The place of each element in the order of memory, of all or of one batch entry."""
    total: Any = 0
    for axis in range(0 if batch else 1, len(shape)):
        place = lax.broadcasted_iota(dtype, shape, axis)
        total = total + place * math.prod(shape[axis + 1 :])
    return total


@raises_tf("MaxPoolWithArgmax")
def _max_pool_with_argmax(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    dtype = jax.dtypes.canonicalize_dtype(node.attr("Targmax", np.dtype(np.int64)))
    window = window_of(node, x.shape)
    places = _positions(x.shape, dtype, node.attr("include_batch_in_index", False))
    return [window.max(x), window.argmax(x, places)]


@raises_tf("MaxPoolGradWithArgmax", "MaxPoolGradGradWithArgmax")
def _argmax_gradients(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, g, places = (array(v) for v in values)
    if not node.attr("include_batch_in_index", False):
        batch = lax.broadcasted_iota(places.dtype, places.shape, 0)
        places = places + batch * math.prod(x.shape[1:])
    if node.op == "MaxPoolGradGradWithArgmax":
        return [jnp.take(lax.reshape(g, (math.prod(g.shape),)), places)]
    flat = jnp.zeros((math.prod(x.shape),), g.dtype).at[places].add(g)
    return [lax.reshape(flat, x.shape)]


@raises_tf("Dilation2D")
def _dilation(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_dilate(node, *arrays(values))]


@raises_tf("Dilation2DBackpropInput", "Dilation2DBackpropFilter")
def _dilation_gradient(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, kernel, g = arrays(values)
    _, pullback = jax.vjp(functools.partial(_dilate, node), x, kernel)
    return [pullback(g)[0 if node.op.endswith("Input") else 1]]


def _dilate(node: Node, x: Any, kernel: Any) -> Any:
    """The maximum of `x + kernel` over windows; at ties the first element has the derivative."""
    (_, *strides, _), (_, *rates, _) = node.attr("strides"), node.attr("rates")
    pads = explicit(node.attr("padding"), x.shape[1:3], kernel.shape[:2], strides, rates)
    low = lowest(x.dtype)
    terms = [
        jnp.where(inside, piece + kernel[place], low)
        for place, inside, piece in _shifted(x, kernel.shape[:2], strides, rates, pads)
    ]
    stacked = jnp.stack(terms)
    first = lax.argmax(stacked, 0, jnp.int32)
    return jnp.take_along_axis(stacked, first[None], axis=0)[0]


def _shifted(
    x: Any,
    size: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    pads: Sequence[tuple[Any, Any]],
) -> Iterator[tuple[tuple[int, ...], Any, Any]]:
    """For each place in a window: where it lies inside of the image, and the image there."""
    config = [(0, 0, 0), *((lo, hi, 0) for lo, hi in pads), (0, 0, 0)]
    padded = lax.pad(x, np.zeros((), x.dtype), config)
    inside = lax.pad(jnp.ones((1, *x.shape[1:3], 1), bool), np.asarray(False), config)
    reach = [(k - 1) * r for k, r in zip(size, rates, strict=True)]
    for place in itertools.product(*map(range, size)):
        start = [i * r for i, r in zip(place, rates, strict=True)]
        spans = zip(start, padded.shape[1:3], reach, strides, strict=True)
        where = (slice(None), *(slice(at, at + d - r, s) for at, d, r, s in spans))
        yield place, inside[where], padded[where]
