"""Ops that pad, reverse, roll, move space to batch, or compute shapes."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import is_open, require
from invert.primitives.tf.gather import take
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Static, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import MOST_BYTES, array, broadcast_to, ints, is_static, pack_dims
from invert.tf.values.dynamic_size import int_max
from invert.tf.values.split_space import SplitSpace


@rule("Pad", "PadV2")
def _pad(x: Value, paddings: Ints, fill: Array | None = None) -> Value:
    if is_static(x) and fill is None and x.dtype != object:
        sizes = (n + low + high for n, (low, high) in zip(x.shape, _pairs(paddings), strict=True))
        if math.prod(sizes) * x.itemsize <= MOST_BYTES:
            return np.pad(x, _pairs(paddings))
    x = array(x)
    if not any(is_open(n) or n for n in paddings):
        return x
    if fill is None:
        fill = lax.full((), 0, x.dtype)
    for n in paddings:
        require(n, "ge", 0, f"an axis is padded by {n} elements")
    return lax.pad(x, fill, [(low, high, 0) for low, high in _pairs(paddings)])


def _pairs(flat: Ints) -> list[tuple[Int, Int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@rule("MirrorPad")
def _mirror_pad(x: Array, paddings: Ints, *, mode: str) -> Array:
    skip = 1 if mode == "REFLECT" else 0
    for axis, pair in enumerate(_pairs(paddings)):
        for n in (n for n in pair if is_open(n) or n):
            message = f"axis {axis} with {x.shape[axis]} elements is mirrored by {n}"
            require(x.shape[axis] - skip, "ge", n, message)
    return jnp.pad(x, _pairs(paddings), mode={"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode])


@rule("MirrorPadGrad")
def _mirror_pad_grad(g: Array, paddings: Ints, *, mode: str) -> Array:
    add = lax.bitwise_or if g.dtype == bool else lax.add
    skip = 1 if mode == "REFLECT" else 0
    for axis, (low, high) in enumerate(_pairs(paddings)):
        n = g.shape[axis] - low - high
        center = lax.slice_in_dim(g, low, low + n, axis=axis)
        for part, start in (
            (lax.slice_in_dim(g, 0, low, axis=axis), skip),
            (lax.slice_in_dim(g, low + n, None, axis=axis), n - skip - high),
        ):
            size = part.shape[axis]
            if size:
                ends = [(0, 0, 0)] * g.ndim
                ends[axis] = (start, n - start - size, 0)
                zero = lax.full((), 0, g.dtype)
                center = add(center, lax.pad(lax.rev(part, (axis,)), zero, ends))
        g = center
    return g


@rule("SpaceToBatch")
def _space_to_batch(x: Array, paddings: Ints, *, block_size: int, ctx: Context) -> Array:
    return _space_to_batch_nd(x, (block_size, block_size), paddings, ctx=ctx)


@rule("SpaceToBatchND")
def _space_to_batch_nd(x: Array, block_shape: Ints, paddings: Ints, *, ctx: Context) -> Array:
    n = len(block_shape)
    made = SplitSpace.of(x, block_shape, _pairs(paddings))
    x = jnp.pad(x, [(0, 0), *_pairs(paddings), *[(0, 0)] * (x.ndim - n - 1)])
    batch, space, rest = x.shape[0], x.shape[1 : n + 1], x.shape[n + 1 :]
    split = [(size // b, b) for size, b in zip(space, block_shape, strict=True)]
    x = lax.reshape(x, (batch, *(d for pair in split for d in pair), *rest))
    order = (*range(2, 2 * n + 1, 2), 0, *range(1, 2 * n, 2), *range(2 * n + 1, x.ndim))
    x = lax.transpose(x, order)
    x = lax.reshape(x, (batch * math.prod(block_shape), *(q for q, _ in split), *rest))
    ctx.split[id(x)] = x, made
    return x


@rule("BatchToSpace")
def _batch_to_space(x: Array, crops: Ints, *, block_size: int, ctx: Context) -> Array:
    return _batch_to_space_nd(x, (block_size, block_size), crops, ctx=ctx)


@rule("BatchToSpaceND")
def _batch_to_space_nd(x: Array, block_shape: Ints, crops: Ints, *, ctx: Context) -> Array:
    n = len(block_shape)
    _, made = ctx.split.get(id(x), (x, None))
    if made is not None and (joined := made.joined(block_shape, _pairs(crops))) is not None:
        return joined
    batch, space, rest = x.shape[0] // math.prod(block_shape), x.shape[1 : n + 1], x.shape[n + 1 :]
    x = lax.reshape(x, (*block_shape, batch, *space, *rest))
    order = [n]
    for i in range(n):
        order += [n + 1 + i, i]
    x = lax.transpose(x, (*order, *range(2 * n + 1, x.ndim)))
    sizes = [size * b for size, b in zip(space, block_shape, strict=True)]
    x = lax.reshape(x, (batch, *sizes, *rest))
    starts = [0, *(low for low, _ in _pairs(crops)), *[0] * len(rest)]
    ends = [0, *(high for _, high in _pairs(crops)), *[0] * len(rest)]
    return lax.slice(x, starts, [d - e for d, e in zip(x.shape, ends, strict=True)])


@rule("SpaceToDepth", "DepthToSpace")
def _depth(x: Array, *, block_size: int, data_format: str, node: Node) -> Array:
    if data_format not in ("NHWC", "NCHW"):
        reason = f"has the data format {data_format}, which exists for packed integers on GPUs only"
        raise node.error(reason, "Use NHWC or NCHW.")
    if data_format == "NCHW":
        x = lax.transpose(x, (0, 2, 3, 1))
    (n, h, w, c), b = x.shape, block_size
    if node.op == "SpaceToDepth":
        x = lax.reshape(x, (n, h // b, b, w // b, b, c))
        x = lax.reshape(lax.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h // b, w // b, b * b * c))
    else:
        x = lax.reshape(x, (n, h, w, b, b, c // (b * b)))
        x = lax.reshape(lax.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, c // (b * b)))
    return lax.transpose(x, (0, 3, 1, 2)) if data_format == "NCHW" else x


@rule("ExtractImagePatches", "ExtractVolumePatches")
def _patches(
    x: Array, *, ksizes: list[int], strides: list[int], rates: list[int] | None = None, padding: str
) -> Array:
    n = x.ndim - 2
    windows = list(zip(*(v[1:-1] for v in (ksizes, strides, rates or [1] * x.ndim)), strict=True))
    pads = [(0, 0)] * x.ndim
    counts = []
    for axis, (k, s, r) in enumerate(windows, 1):
        span, size = (k - 1) * r + 1, x.shape[axis]
        count = (size - span + s) // s
        if padding == "SAME":
            count = (size + s - 1) // s
            extra = int_max((count - 1) * s + span - size, 0)
            pads[axis] = (extra // 2, extra - extra // 2)
        counts.append(int_max(count, 0))
    if padding == "SAME":
        x = lax.pad(x, np.zeros((), x.dtype), [(low, high, 0) for low, high in pads])
    for i, ((k, s, r), count) in enumerate(zip(windows, counts, strict=True)):
        # Each axis becomes two: the patch, and the position in it.
        rows = lax.iota(np.int32, count) if is_open(count) else np.arange(count, dtype=np.int32)
        x = take(
            x, rows[:, None] * np.int32(s) + np.arange(k, dtype=np.int32) * np.int32(r), 1 + 2 * i
        )
    x = lax.transpose(x, (0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1))
    return lax.reshape(x, (x.shape[0], *counts, math.prod(ksizes[1:-1]) * x.shape[-1]))


@rule("Reverse")
def _reverse_marked(x: Value, dims: Static) -> Value:
    return _reverse(x, tuple(np.flatnonzero(dims).tolist()))


@rule("ReverseV2")
def _reverse(x: Value, axis: Ints) -> Value:
    axes = tuple(a % np.ndim(x) for a in axis)
    if is_static(x):
        return np.flip(x, axes)
    return lax.rev(array(x), axes) if axes else array(x)


@rule("ReverseSequence")
def _reverse_sequence(x: Array, lengths: Array, *, seq_dim: int, batch_dim: int) -> Array:
    # Axes of size one are taken whole, to gather rows instead of single numbers.
    shape = tuple(d if i in (seq_dim, batch_dim) else 1 for i, d in enumerate(x.shape))
    place = lax.broadcasted_iota(lengths.dtype, shape, seq_dim)
    lengths = lax.broadcast_in_dim(lengths, shape, (batch_dim,))
    one = lax.full_like(place, 1)
    mirrored = lax.sub(lax.sub(lengths, place), one)
    source = lax.select(lax.lt(place, lengths), mirrored, place)
    return jnp.take_along_axis(x, source, seq_dim)


@rule("Roll")
def _roll(x: Array, shift: Value, axis: Ints) -> Array:
    known = isinstance(shift, np.ndarray)
    return jnp.roll(x, ints(shift) if known else lax.reshape(shift, (len(axis),)), axis)


@rule("OneHot")
def _one_hot(indices: Array, depth: Int, on: Array, off: Array, *, axis: int) -> Array:
    axis = indices.ndim if axis == -1 else axis
    if indices.dtype.itemsize < 4:
        indices = lax.convert_element_type(indices, np.int32)  # holds every class
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    kept = [i for i in range(len(shape)) if i != axis]
    hot = lax.eq(
        lax.broadcast_in_dim(indices, shape, kept),
        lax.broadcasted_iota(indices.dtype, shape, axis),
    )
    return lax.select(hot, broadcast_to(on, shape), broadcast_to(off, shape))


@rule("InvertPermutation")
def _invert_permutation(x: Value) -> Value:
    if is_static(x):
        return np.argsort(x).astype(x.dtype)
    return lax.convert_element_type(jnp.argsort(array(x)), array(x).dtype)


@rule("BroadcastArgs")
def _broadcast_args(s0: Ints, s1: Ints, *, T: np.dtype) -> np.ndarray:
    return pack_dims(lax.broadcast_shapes(s0, s1), T)


@rule("BroadcastGradientArgs")
def _broadcast_gradient_args(s0: Ints, s1: Ints, *, T: np.dtype) -> list[np.ndarray]:
    if s0 == s1:
        return [np.asarray([], T)] * 2
    rank = max(len(s0), len(s1))
    padded = [(None,) * (rank - len(s)) + s for s in (s0, s1)]
    # An axis that is 1 in both is summed over on both sides (tensorflow/core/util/bcast.h).
    return [
        np.asarray(
            [i for i, n in enumerate(own) if n is None or (isinstance(n, int) and n == 1)], T
        )
        for own in padded
    ]


@rule("Empty", ignores=("init",))
def _empty(shape: Ints, *, dtype: np.dtype) -> Value:
    if all(isinstance(n, int) for n in shape):
        return np.broadcast_to(np.zeros((), dtype), shape)
    return lax.full(shape, 0, jax.dtypes.canonicalize_dtype(dtype))
