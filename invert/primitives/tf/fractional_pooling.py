"""Pooling over regions of random sizes that differ by at most one.

Kernels: tensorflow/core/kernels/fractional_pool_common.cc, fractional_max_pool_op.cc and
fractional_avg_pool_op.cc, TensorFlow 2.21. A deterministic op with a seed has the regions of these
kernels, which are constants. Otherwise the regions are drawn from the key of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.reduction import lowest
from invert.primitives.tf.stateless_random import shuffled
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Ints, Value, rule
from invert.tf.numerics.philox import Stream, unit
from invert.tf.ops.node import Node

_I64, _U64 = np.dtype(np.int64), np.dtype(np.uint64)


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
    """The start of each region along both axes, and the end of the last one."""
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
    """`ceil(ratio * (i + u))`, for a `u` that makes no region too long."""
    ratio, least = length / count, length // count
    most = min((least + 2) / ratio - 1, (length + 1 - least) / ratio - (count - 1))
    inner = jnp.ceil(ratio * (np.arange(1, count) + u * most)).astype(_I64)
    return jnp.concatenate([jnp.zeros(1, _I64), inner - 1, jnp.full(1, length, _I64)])


def _cells(x: Array, rows: Array, columns: Array, overlapping: bool) -> tuple[Array, Array]:
    """The elements of each region on a new axis, and a mask of the valid ones."""
    place, inside = zip(
        *(_span(s, n, overlapping) for s, n in ((rows, x.shape[1]), (columns, x.shape[2]))),
        strict=True,
    )
    cells = x[:, place[0][:, None, :, None], place[1][None, :, None, :]]
    mask = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    each = math.prod(cells.shape[3:5])
    cells = lax.reshape(cells, (*cells.shape[:3], each, cells.shape[5]))
    return cells, lax.reshape(mask, (*mask.shape[:2], each))


def _span(starts: Array, length: int, overlapping: bool) -> tuple[Array, Array]:
    """The positions of each region, padded to equal length, and a mask of the valid ones."""
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
