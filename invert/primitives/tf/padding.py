"""Ops that pad, reverse, roll and count elements, and those of shapes alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, is_static, pack_dims, static

_INT32 = np.dtype(np.int32)


def _padding(node: Node, values: list[Any]) -> list[tuple[Any, Any]]:
    flat = ints(static(node, values, 1))
    return list(zip(flat[::2], flat[1::2], strict=True))


@raises_tf("Pad", "PadV2")
def _pad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    padding = _padding(node, values)
    if is_static(values[0]) and node.op == "Pad" and values[0].dtype != object:
        return [np.pad(values[0], padding)]
    x = array(values[0])
    fill = array(values[2]) if node.op == "PadV2" else lax.full((), 0, x.dtype)
    return [lax.pad(x, fill, [(low, high, 0) for low, high in padding])]


@raises_tf("MirrorPad")
def _mirror_pad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[node.attr("mode")]
    return [jnp.pad(array(values[0]), _padding(node, values), mode=mode)]


@raises_tf("MirrorPadGrad")
def _mirror_pad_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    y = array(values[0])
    add = lax.bitwise_or if y.dtype == bool else lax.add
    skip = 1 if node.attr("mode") == "REFLECT" else 0
    for axis, (low, high) in enumerate(_padding(node, values)):
        n = y.shape[axis] - low - high
        center = lax.slice_in_dim(y, low, low + n, axis=axis)
        for part, start in (
            (lax.slice_in_dim(y, 0, low, axis=axis), skip),
            (lax.slice_in_dim(y, low + n, None, axis=axis), n - skip - high),
        ):
            size = part.shape[axis]
            if size:
                ends = [(0, 0, 0)] * y.ndim
                ends[axis] = (start, n - start - size, 0)
                zero = lax.full((), 0, y.dtype)
                center = add(center, lax.pad(lax.rev(part, (axis,)), zero, ends))
        y = center
    return [y]


@raises_tf("Reverse", "ReverseV2")
def _reverse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    given = static(node, values, 1)
    rank = np.ndim(values[0])
    axes = np.flatnonzero(given) if node.op == "Reverse" else [a % rank for a in ints(given)]
    if is_static(values[0]):
        return [np.flip(values[0], tuple(axes))]
    x = array(values[0])
    return [lax.rev(x, tuple(int(a) for a in axes)) if len(axes) else x]


@raises_tf("ReverseSequence")
def _reverse_sequence(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, lengths = (array(v) for v in values)
    axis, batch = node.attr("seq_dim"), node.attr("batch_dim", 0)
    # Axes of size one are taken whole, which gathers rows and not single numbers.
    shape = tuple(d if i in (axis, batch) else 1 for i, d in enumerate(x.shape))
    place = lax.broadcasted_iota(lengths.dtype, shape, axis)
    lengths = lax.broadcast_in_dim(lengths, shape, (batch,))
    one = lax.full_like(place, 1)
    mirrored = lax.sub(lax.sub(lengths, place), one)
    source = lax.select(lax.lt(place, lengths), mirrored, place)
    return [jnp.take_along_axis(x, source, axis)]


@raises_tf("Roll")
def _roll(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shift, axes = values[1], ints(static(node, values, 2))
    if isinstance(shift, np.ndarray):
        return [jnp.roll(array(values[0]), ints(shift), axes)]
    return [jnp.roll(array(values[0]), lax.reshape(shift, (len(axes),)), axes)]


@raises_tf("OneHot")
def _one_hot(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, on, off = array(values[0]), array(values[2]), array(values[3])
    (depth,) = ints(static(node, values, 1))
    axis = node.attr("axis", -1)
    axis = indices.ndim if axis == -1 else axis
    if indices.dtype.itemsize < 4:
        indices = lax.convert_element_type(indices, np.int32)  # holds every class
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    kept = [i for i in range(len(shape)) if i != axis]
    hot = lax.eq(
        lax.broadcast_in_dim(indices, shape, kept),
        lax.broadcasted_iota(indices.dtype, shape, axis),
    )
    return [lax.select(hot, broadcast_to(on, shape), broadcast_to(off, shape))]


@raises_tf("InvertPermutation")
def _invert_permutation(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if is_static(values[0]):
        return [np.argsort(values[0]).astype(values[0].dtype)]
    x = array(values[0])
    return [lax.convert_element_type(jnp.argsort(x), x.dtype)]


@raises_tf("BroadcastArgs")
def _broadcast_args(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shapes = [ints(static(node, values, i)) for i in range(2)]
    return [pack_dims(lax.broadcast_shapes(*shapes), node.attr("T", _INT32))]


@raises_tf("BroadcastGradientArgs")
def _broadcast_gradient_args(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shapes = [ints(static(node, values, i)) for i in range(2)]
    rank = max(len(s) for s in shapes)
    padded = [(None,) * (rank - len(s)) + s for s in shapes]
    # An axis that is 1 in both is summed over on both sides (tensorflow/core/util/bcast.h).
    stretched = [
        [i for i, n in enumerate(own) if n is None or (isinstance(n, int) and n == 1)]
        for own in padded
    ]
    if shapes[0] == shapes[1]:
        stretched = [[], []]
    return [np.asarray(axes, node.attr("T", _INT32)) for axes in stretched]


@raises_tf("Empty")
def _empty(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = jax.dtypes.canonicalize_dtype(node.attr("dtype"))
    return [lax.full(ints(static(node, values, 0)), 0, dtype)]
