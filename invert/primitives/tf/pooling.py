"""Pooling, the ops of its gradients, and morphological dilation.

A window with several maxima passes its gradient to the first of them, in TensorFlow as in XLA
(tensorflow/core/kernels/maxpooling_op.cc, TensorFlow 2.21). Only TensorFlow's CPU kernel for
volumes passes it to all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.reduction import lowest
from invert.primitives.tf.stateless_random import shuffled
from invert.primitives.tf.window import explicit, is_half, layout, padding_of, per_axis
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.numerics.philox import Stream, unit
from invert.tf.ops.node import Node


@dataclasses.dataclass(frozen=True)
class Window:
    """Sizes, strides and padding of a window, over all axes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[Int, Int], ...]

    def reduce(self, x: Array, initial: Array, combine: Callable[..., Array]) -> Array:
        return lax.reduce_window(x, initial, combine, self.sizes, self.strides, self.pads)

    def max(self, x: Array) -> Array:
        return self.reduce(x, lowest(x.dtype), lax.max)

    def mean(self, x: Array) -> Array:
        """The mean over the part of each window inside `x`."""
        wide = x.astype(jnp.float32) if is_half(x.dtype) else x
        zero = np.zeros((), wide.dtype)
        count: Int = math.prod(self.sizes)
        if any(not isinstance(d, int) or d for pair in self.pads for d in pair):
            # One entry of an axis is enough if the window has no extent along it.
            flat = [k == s == 1 for k, s in zip(self.sizes, self.strides, strict=True)]
            shape = [1 if one else d for d, one in zip(x.shape, flat, strict=True)]
            count = self.reduce(jnp.ones(shape, wide.dtype), zero, lax.add)
        return (self.reduce(wide, zero, lax.add) / count).astype(x.dtype)

    def scatter(self, g: Array, x: Array) -> Array:
        """Add each element of `g` at the maximum of its window of `x`."""
        wide = (g.astype(jnp.float32), x.astype(jnp.float32)) if is_half(x.dtype) else (g, x)
        y = lax.select_and_scatter_add_p.bind(
            *wide,
            select_prim=lax.ge_p,
            window_dimensions=self.sizes,
            window_strides=self.strides,
            padding=self.pads,
        )
        return y.astype(x.dtype)

    def argmax(self, x: Array, labels: Array) -> Array:
        """The entry of `labels` at the first maximum of each window of `x`."""

        def first(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
            (x, i), (y, j) = a, b
            left = (x > y) | ((x == y) & (i < j))
            return lax.select(left, x, y), lax.select(left, i, j)

        operands = lax.stop_gradient(x), labels
        initial = lowest(x.dtype), np.asarray(np.iinfo(labels.dtype).max, labels.dtype)
        return self.reduce(operands, initial, first)[1]


def window_of(
    node: Node, shape: Sequence[Int], sizes: Ints | None = None, strides: Ints | None = None
) -> Window:
    """The window of `node`; `sizes` and `strides` if they are inputs."""
    rank = len(shape)
    layout(node, rank)  # refuses formats in vectors of channels
    sizes = tuple(sizes or per_axis(node, "ksize", rank))
    strides = tuple(strides or per_axis(node, "strides", rank))
    pads = explicit(padding_of(node, rank), shape, sizes, strides, (1,) * rank)
    return Window(sizes, strides, tuple(pads))


@rule("MaxPool", "MaxPool3D", "MaxPoolV2")
def _max_pool(x: Array, *sizes_and_strides: Ints, node: Node) -> Array:
    return window_of(node, x.shape, *sizes_and_strides).max(x)


@rule("AvgPool", "AvgPool3D")
def _avg_pool(x: Array, *, node: Node) -> Array:
    return window_of(node, x.shape).mean(x)


@rule("AvgPoolGrad", "AvgPool3DGrad")
def _avg_pool_grad(orig_input_shape: Ints, g: Array, *, node: Node) -> list[Array]:
    x = jax.ShapeDtypeStruct(orig_input_shape, g.dtype)
    return list(jax.linear_transpose(window_of(node, orig_input_shape).mean, x)(g))


@rule("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad")
def _max_pool_grad(x: Array, _y: Value, g: Array, *sizes_and_strides: Ints, node: Node) -> Array:
    return window_of(node, x.shape, *sizes_and_strides).scatter(g, x)


@rule("MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad")
def _max_pool_grad_grad(
    x: Array, _y: Value, g: Array, *sizes_and_strides: Ints, node: Node
) -> Array:
    window = window_of(node, x.shape, *sizes_and_strides)
    places = window.argmax(x, _positions(x.shape, np.dtype(np.int32)))
    return jnp.take(lax.reshape(g, (math.prod(g.shape),)), places, unique_indices=False)


def _positions(shape: Sequence[Array], dtype: np.dtype, batch: bool = True) -> Array:
    """Each element's index in memory order, overall or per batch entry."""
    total: Array = 0
    for axis in range(0 if batch else 1, len(shape)):
        place = lax.broadcasted_iota(dtype, shape, axis)
        total = total + place * math.prod(shape[axis + 1 :])
    return total


@rule("MaxPoolWithArgmax")
def _max_pool_with_argmax(
    x: Array, *, Targmax: np.dtype, include_batch_in_index: bool, node: Node
) -> tuple[Array, Array]:
    window = window_of(node, x.shape)
    dtype = jax.dtypes.canonicalize_dtype(Targmax)
    places = _positions(x.shape, dtype, include_batch_in_index)
    return window.max(x), window.argmax(x, places)


# The windows follow from the positions of the maxima.
@rule(
    "MaxPoolGradWithArgmax",
    "MaxPoolGradGradWithArgmax",
    ignores=("ksize", "strides", "padding"),
)
def _argmax_gradients(
    x: Array, g: Array, argmax: Array, *, include_batch_in_index: bool, op: str
) -> Array:
    if not include_batch_in_index:
        batch = lax.broadcasted_iota(argmax.dtype, argmax.shape, 0)
        argmax = argmax + batch * math.prod(x.shape[1:])
    if op == "MaxPoolGradGradWithArgmax":
        return jnp.take(lax.reshape(g, (math.prod(g.shape),)), argmax)
    flat = jnp.zeros((math.prod(x.shape),), g.dtype).at[argmax].add(g)
    return lax.reshape(flat, x.shape)


@rule("Dilation2D")
def _dilate(
    x: Array, kernel: Array, *, strides: list[int], rates: list[int], padding: str
) -> Array:
    """The maximum of `x + kernel` over windows; ties differentiate the first element."""
    steps, spacing = strides[1:-1], rates[1:-1]
    pads = explicit(padding, x.shape[1:3], kernel.shape[:2], steps, spacing)
    low = lowest(x.dtype)
    terms = [
        jnp.where(inside, piece + kernel[place], low)
        for place, inside, piece in _shifted(x, kernel.shape[:2], steps, spacing, pads)
    ]
    stacked = jnp.stack(terms)
    first = lax.argmax(stacked, 0, jnp.int32)
    return jnp.take_along_axis(stacked, first[None], axis=0)[0]


@rule("Dilation2DBackpropInput", "Dilation2DBackpropFilter")
def _dilation_gradient(
    x: Array,
    kernel: Array,
    g: Array,
    *,
    strides: list[int],
    rates: list[int],
    padding: str,
    op: str,
) -> Array:
    dilate = functools.partial(_dilate, strides=strides, rates=rates, padding=padding)
    _, pullback = jax.vjp(dilate, x, kernel)
    return pullback(g)[0 if op.endswith("Input") else 1]


def _shifted(
    x: Array,
    size: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    pads: Sequence[tuple[Int, Int]],
) -> Iterator[tuple[tuple[int, ...], Array, Array]]:
    """A mask of each window position inside the image, and the image there."""
    config = [(0, 0, 0), *((lo, hi, 0) for lo, hi in pads), (0, 0, 0)]
    padded = lax.pad(x, np.zeros((), x.dtype), config)
    inside = lax.pad(jnp.ones((1, *x.shape[1:3], 1), bool), np.asarray(False), config)
    reach = [(k - 1) * r for k, r in zip(size, rates, strict=True)]
    for place in itertools.product(*map(range, size)):
        start = [i * r for i, r in zip(place, rates, strict=True)]
        spans = zip(start, padded.shape[1:3], reach, strides, strict=True)
        where = (slice(None), *(slice(at, at + d - r, s) for at, d, r, s in spans))
        yield place, inside[where], padded[where]


# -- pooling over regions of random sizes that differ by at most one
#
# Kernels: tensorflow/core/kernels/fractional_pool_common.cc, fractional_max_pool_op.cc and
# fractional_avg_pool_op.cc, TensorFlow 2.21. A deterministic op with a seed has the regions of
# these kernels, which are constants. Otherwise the regions are drawn from the key of the call.

_I64, _U64 = np.dtype(np.int64), np.dtype(np.uint64)
# Each step of the shuffle of their sizes may copy all of them.
_MOST_REGIONS = 1 << 16


def _draws(node: Node) -> bool:
    seeded = node.attr("seed", 0) or node.attr("seed2", 0)
    return not (node.attr("deterministic", False) and seeded)


@rule("FractionalMaxPool", "FractionalAvgPool", draws=_draws)
def _fractional_pool(
    x: Array,
    *,
    pooling_ratio: list[float],
    pseudo_random: bool,
    overlapping: bool,
    seed: int,
    seed2: int,
    ctx: Context,
    node: Node,
) -> list[Array]:
    lengths = x.shape[1:3]
    if not all(isinstance(d, int) for d in lengths):
        raise node.error("divides an image of symbolic size", "Convert it at a fixed size.")
    ratios = np.asarray(pooling_ratio, np.float32)
    counts = [int(np.float32(n) / r) for n, r in zip(lengths, ratios[1:3], strict=True)]
    if max(counts) > _MOST_REGIONS:
        reason = f"has {max(counts)} regions along an axis, of which at most {_MOST_REGIONS} work"
        raise node.error(reason, "Divide the image into fewer regions.")
    if _draws(node):
        stream = Stream(jax.random.bits(ctx.key(), (), _U64), np.uint64(0), np.uint64(0))
        starts = _regions(stream, lengths, counts, pseudo_random)
    else:
        key, high = (np.asarray(s, _I64).view(_U64)[()] for s in (seed, seed2))
        with jax.ensure_compile_time_eval():
            stream = Stream(jnp.asarray(key), jnp.asarray(np.uint64(0)), jnp.asarray(high))
            starts = [np.asarray(s) for s in _regions(stream, lengths, counts, pseudo_random)]
    return [_POOLS[node.op](x, *starts, overlapping), *starts]


def _regions(
    stream: Stream, lengths: Sequence[int], counts: Sequence[int], pseudo_random: bool
) -> list[Array]:
    """The starts of regions along both axes, and the last end."""
    starts = []
    for length, count in zip(lengths, counts, strict=True):
        if pseudo_random:
            u = unit(stream.block_words(1)[:, :2], np.dtype(np.float64))[0, 0]
            stream = stream.skip(1)
            starts.append(_pseudo_random(u, length, count))
        else:
            sizes = np.full(count, length // count, _I64)
            sizes[: length % count] += 1
            blocks = (count + 3) // 4
            words = stream.block_words(blocks).reshape(-1)
            stream = stream.skip(blocks)
            mixed = shuffled(words, jnp.asarray(sizes))
            starts.append(jnp.concatenate([jnp.zeros(1, _I64), jnp.cumsum(mixed)]))
    return starts


def _pseudo_random(u: Array, length: int, count: int) -> Array:
    """`ceil(ratio * (i + u))`, with `u` such that no region is too long."""
    ratio, least = length / count, length // count
    most = min((least + 2) / ratio - 1, (length + 1 - least) / ratio - (count - 1))
    inner = jnp.ceil(ratio * (np.arange(1, count) + u * most)).astype(_I64)
    return jnp.concatenate([jnp.zeros(1, _I64), inner - 1, jnp.full(1, length, _I64)])


def _cells(x: Array, rows: Array, columns: Array, overlapping: bool) -> tuple[Array, Array]:
    """Each region's elements on a new axis, and a mask of valid ones."""
    place, inside = zip(
        *(_span(s, n, overlapping) for s, n in ((rows, x.shape[1]), (columns, x.shape[2]))),
        strict=True,
    )
    # NumPy's arrays, as constants are, do not take traced indices.
    cells = jnp.asarray(x)[:, place[0][:, None, :, None], place[1][None, :, None, :]]
    mask = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    each = math.prod(cells.shape[3:5])
    cells = lax.reshape(cells, (*cells.shape[:3], each, cells.shape[5]))
    return cells, lax.reshape(mask, (*mask.shape[:2], each))


def _span(starts: Array, length: int, overlapping: bool) -> tuple[Array, Array]:
    """Each region's positions, padded to equal length, and a mask of valid ones."""
    count = starts.shape[0] - 1
    longest = length // count + 1 + overlapping
    place = starts[:-1, None] + np.arange(longest)
    end = jnp.minimum(starts[1:, None] + int(overlapping), length)
    return jnp.minimum(place, length - 1), place < end


def _first(x: Array, rows: Array, columns: Array, overlapping: bool) -> tuple[Array, Array]:
    """The elements of each region, and the index of the first maximum."""
    cells, mask = _cells(x, rows, columns, overlapping)
    cells = jnp.where(mask[..., None], cells, lowest(x.dtype))
    return cells, lax.argmax(cells, 3, np.int32)[:, :, :, None]


def _max(x: Array, rows: Array, columns: Array, overlapping: bool) -> Array:
    return jnp.take_along_axis(*_first(x, rows, columns, overlapping), axis=3)[:, :, :, 0]


def _mean(x: Array, rows: Array, columns: Array, overlapping: bool) -> Array:
    cells, mask = _cells(x, rows, columns, overlapping)
    total = jnp.sum(jnp.where(mask[..., None], cells, 0), axis=3, dtype=x.dtype)
    count = jnp.sum(mask, axis=2, dtype=x.dtype)
    return lax.div(total, jnp.broadcast_to(count[..., None], total.shape))


_POOLS: dict[str, Callable[..., Array]] = {"FractionalMaxPool": _max, "FractionalAvgPool": _mean}


@rule("FractionalMaxPoolGrad")
def _max_grad(
    x: Array, _y: Value, g: Array, rows: Array, columns: Array, *, overlapping: bool
) -> Array:
    batch, height, width, channels = x.shape
    _, first = _first(x, rows, columns, overlapping)
    image = lax.reshape(lax.iota(np.int32, height * width), (1, height, width, 1))
    places, _ = _cells(image, rows, columns, overlapping)
    place = jnp.take_along_axis(places, first, axis=3)[:, :, :, 0]
    entry, channel = (lax.broadcasted_iota(np.int32, g.shape, i) for i in (0, 3))
    flat = jnp.zeros((batch, height * width, channels), g.dtype).at[entry, place, channel].add(g)
    return lax.reshape(flat, x.shape)


@rule("FractionalAvgPoolGrad")
def _mean_grad(shape: Ints, g: Array, rows: Array, columns: Array, *, overlapping: bool) -> Array:
    # In double precision, as the kernel does.
    x, wide = jax.ShapeDtypeStruct(shape, np.float64), g.astype(np.float64)
    spread = jax.linear_transpose(lambda x: _mean(x, rows, columns, overlapping), x)
    return spread(wide)[0].astype(g.dtype)
