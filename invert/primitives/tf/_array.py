"""Constants, shapes and the ops that move elements without computing with them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._errors import Problem, UnsupportedOpError
from ._node import Node
from ._registry import Context, raises_tf
from ._static import array, arrays, broadcast_to, ints, is_static, pack_dims, static


def _check_const(ctx: Context, node: Node) -> Iterable[Problem]:
    dtype = node.attr("dtype")
    if dtype is None or dtype.kind == "O":
        yield Problem(
            "tf.Const",
            "holds a value that is not numeric (a string, resource or variant)",
            node.location,
            "JAX arrays are numeric; compute it before the model.",
        )


@raises_tf("Const", check=_check_const)
def _const(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [ctx.constant(node)]


@raises_tf("Shape")
def _shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [pack_dims(np.shape(values[0]), node.attr("out_type", np.dtype(np.int32)))]


@raises_tf("ShapeN")
def _shape_n(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("out_type", np.dtype(np.int32))
    return [pack_dims(np.shape(v), dtype) for v in values]


@raises_tf("Size")
def _size(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("out_type", np.dtype(np.int32))
    return [pack_dims([math.prod(np.shape(values[0]))], dtype).reshape(())]


@raises_tf("Rank")
def _rank(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(np.ndim(values[0]), np.int32)]


@raises_tf("Reshape")
def _reshape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 1))
    if is_static(values[0]) and all(isinstance(d, int) for d in shape):
        return [values[0].reshape(shape)]
    return [jnp.reshape(array(values[0]), shape)]


@raises_tf("ExpandDims")
def _expand_dims(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, 1))
    if is_static(values[0]):
        return [np.expand_dims(values[0], axis)]
    return [lax.expand_dims(array(values[0]), (axis,))]


@raises_tf("Squeeze")
def _squeeze(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axes = node.attr("squeeze_dims") or [i for i, d in enumerate(np.shape(values[0])) if d == 1]
    if is_static(values[0]):
        return [np.squeeze(values[0], tuple(axes))]
    return [lax.squeeze(array(values[0]), axes)]


@raises_tf("Transpose")
def _transpose(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lax.transpose(array(values[0]), ints(static(node, values, 1)))]


@raises_tf("Pack")
def _pack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis = node.attr("axis", 0)
    if all(is_static(v) for v in values):
        return [_stack_static(values, axis)]
    operands = arrays(values)
    axis %= operands[0].ndim + 1
    return [lax.concatenate([lax.expand_dims(x, (axis,)) for x in operands], axis)]


def _stack_static(values: list[Any], axis: int) -> np.ndarray:
    if any(v.dtype == object for v in values):
        values = [v.astype(object) for v in values]
    return np.stack(values, axis)


@raises_tf("Unpack")
def _unpack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis, count = node.attr("axis", 0) % np.ndim(values[0]), node.attr("num")
    if is_static(values[0]):
        return [np.asarray(np.take(values[0], i, axis)) for i in range(count)]
    x = array(values[0])
    return [lax.squeeze(lax.slice_in_dim(x, i, i + 1, axis=axis), (axis,)) for i in range(count)]


@raises_tf("ConcatV2")
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, len(values) - 1))
    parts = values[:-1]
    if all(is_static(v) for v in parts):
        return [np.concatenate(parts, axis)]
    operands = arrays(parts)
    return [lax.concatenate(operands, axis % operands[0].ndim)]


@raises_tf("Split")
def _split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, 0))
    x, count = array(values[1]), node.attr("num_split")
    axis %= x.ndim
    return list(lax.split(x, [x.shape[axis] // count] * count, axis))


@raises_tf("Fill")
def _fill(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 0))
    fixed = all(isinstance(d, int) for d in shape)
    if is_static(values[1]) and fixed and math.prod(shape) <= 1024:
        return [np.full(shape, values[1])]
    return [lax.broadcast(array(values[1]), shape)]


@raises_tf("BroadcastTo")
def _broadcast_to(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [broadcast_to(array(values[0]), ints(static(node, values, 1)))]


@raises_tf("Tile")
def _tile(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.tile(array(values[0]), ints(static(node, values, 1)))]


@raises_tf("Range")
def _range(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    start, limit, delta = (static(node, values, i) for i in range(3))
    return [np.arange(start.item(), limit.item(), delta.item()).astype(node.attr("Tidx"))]


@raises_tf("EnsureShape")
def _ensure_shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    want, have = node.attr("shape"), np.shape(values[0])
    if want is not None and (
        len(want) != len(have)
        or any(
            w is not None and isinstance(h, int) and w != h for w, h in zip(want, have, strict=True)
        )
    ):
        problem = Problem("tf.EnsureShape", f"got shape {have}, not {want}", node.location)
        raise UnsupportedOpError([problem])
    return [values[0]]


@raises_tf("Slice")
def _slice(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = np.shape(values[0])
    size = ints(static(node, values, 2))
    if isinstance(values[1], np.ndarray):
        begin = ints(values[1])
        limit = [d if n == -1 else b + n for b, n, d in zip(begin, size, shape, strict=True)]
        if is_static(values[0]):
            where = tuple(slice(b, e) for b, e in zip(begin, limit, strict=True))
            return [values[0][where]]
        return [lax.slice(array(values[0]), begin, limit)]
    if -1 in size:
        reason = "takes the rest of an axis from a place that depends on data"
        raise UnsupportedOpError([Problem("tf.Slice", reason, node.location)])
    starts = [lax.index_in_dim(values[1], i, keepdims=False) for i in range(len(size))]
    return [lax.dynamic_slice(array(values[0]), starts, size)]


@raises_tf("StridedSlice")
def _strided_slice(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    begin, end, strides = (ints(static(node, values, i)) for i in (1, 2, 3))
    index = _index(node, begin, end, strides, np.ndim(values[0]))
    if is_static(values[0]):
        return [np.asarray(values[0][tuple(index)])]
    return [_take(array(values[0]), index)]


def _index(
    node: Node, begin: tuple[Any, ...], end: tuple[Any, ...], strides: tuple[Any, ...], rank: int
) -> list[Any]:
    """The index as NumPy takes it, with the ellipsis spelled out: slices, ints and `None`."""
    mask = {
        k: node.attr(f"{k}_mask", 0)
        for k in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    has = {k: [bool(m >> i & 1) for i in range(len(begin))] for k, m in mask.items()}
    used = sum(not e and not n for e, n in zip(has["ellipsis"], has["new_axis"], strict=True))
    index: list[Any] = []
    for i in range(len(begin)):
        if has["ellipsis"][i]:
            index += [slice(None)] * (rank - used)
        elif has["new_axis"][i]:
            index.append(None)
        elif has["shrink_axis"][i]:
            index.append(begin[i])
        else:
            start = None if has["begin"][i] else begin[i]
            stop = None if has["end"][i] else end[i]
            index.append(slice(start, stop, strides[i]))
    return index + [slice(None)] * (rank - sum(j is not None for j in index))


def _take(x: Any, index: list[Any]) -> Any:
    """`x[index]` in `lax` ops: one slice, a reversal of some axes, then a change of rank."""
    starts, stops, steps, flips, shape = [], [], [], [], []
    for part in index:
        if part is None:
            shape.append(1)
            continue
        axis = len(starts)
        size = x.shape[axis]
        if isinstance(part, slice):
            start, stop, step, length = _bounds(part, size)
            shape.append(length)
            if step < 0:
                flips.append(axis)
        else:
            start = part + size if isinstance(part, int) and part < 0 else part
            stop, step = start + 1, 1
        starts.append(start)
        stops.append(stop)
        steps.append(abs(step))
    y = x
    if steps and (max(steps) > 1 or any(starts) or tuple(stops) != tuple(x.shape)):
        y = lax.slice(x, starts, stops, steps)
    y = lax.rev(y, flips) if flips else y
    return y if y.shape == tuple(shape) else lax.reshape(y, shape)


def _bounds(part: slice, size: Any) -> tuple[Any, Any, int, Any]:
    """Start, stop (in ascending order), signed step and length of what a slice picks."""
    if isinstance(size, int):
        picked = range(*part.indices(size))
        if not picked:
            return 0, 0, picked.step, 0
        ends = picked[0], picked[-1]
        return min(ends), max(ends) + 1, picked.step, len(picked)
    # A symbolic size has no clamping; a step other than one would need its residue.
    start, stop, step = part.start or 0, size if part.stop is None else part.stop, part.step or 1
    if step != 1:
        reason = f"takes every {step}th element of an axis whose size is symbolic"
        raise UnsupportedOpError([Problem("tf.StridedSlice", reason)])
    start, stop = (d + size if isinstance(d, int) and d < 0 else d for d in (start, stop))
    return start, stop, 1, stop - start
