"""What ops do with arrays whose number of rows depends on data; see `tf.values.bounded`.

Most ops take their usual rule on the whole arrays and declare so at their rules (`rows=`, see
`tf.interpreter.rows`). Here are those that do more: updates leave padding rows out, reductions see
neutral elements there. An op that declares nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.bounded_reductions import SUMS
from invert.primitives.tf.bounded_slices import SLICES
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import REGISTRY, RowRule, Rule, row_rule
from invert.tf.interpreter.rows import elementwise, rank_of
from invert.tf.ops.node import Node
from invert.tf.values.bounded import (
    BoundedArray,
    DynamicSize,
    common_count,
    holds_dynamic_size,
    refused,
    resized,
)
from invert.tf.values.constants import array, broadcast_to, ints, static

# Which operands are indices and which are updates.
_INDEXED: dict[str, tuple[int, int]] = {
    "ScatterNd": (0, 1),
    "SparseToDense": (0, 2),
    **{
        f"{prefix}{nd}{kind}": (1, 2)
        for prefix in ("ResourceScatter", "Scatter", "TensorScatter")
        for nd in ("", "Nd")
        for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")
    },
    "ScatterNdNonAliasingAdd": (1, 2),
    **{f"UnsortedSegment{kind}": (1, 0) for kind in ("Max", "Min", "Prod", "Sum")},
}
_UPDATES = {op: places for op, places in _INDEXED.items() if REGISTRY.get(op) is not None}


# -- shapes


def _dims(value: Any) -> tuple[Any, ...]:
    if isinstance(value, BoundedArray):
        return (value.size, *value.data.shape[1:])
    return tuple(np.shape(value))


def _vector(dims: Sequence[Any]) -> np.ndarray:
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


def _shape(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_vector(_dims(v)) for v in values]


def _size(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_vector([math.prod(_dims(values[0])[1:]) * values[0].size]).reshape(())]


def _expand_dims(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, 1))
    x = values[0]
    if axis % (x.data.ndim + 1) == 0:
        raise refused(node, values)
    return [x.with_data(lax.expand_dims(x.data, (axis,)), x.marked)]


def _squeeze(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = values[0]
    axes = [a % x.data.ndim for a in node.attr("squeeze_dims") or ()]
    if not axes:  # depends on how many there are
        raise refused(node, values)
    if 0 in axes:
        return [lax.squeeze(x.data[:1], axes)]
    return [x.with_data(lax.squeeze(x.data, axes), x.marked)]


def _reshape(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """Rows that are split or joined: those too many stay behind the others."""
    x, shape = values[0], ints(static(node, values, 1))
    if isinstance(x, np.ndarray) and not holds_dynamic_size(values[1]):
        return list(rule(ctx, node, values))
    if not shape or any(isinstance(d, DynamicSize) or d == -1 for d in shape[1:]):
        raise refused(node, values)
    first, *rest = shape
    if not isinstance(x, BoundedArray):
        data = lax.reshape(array(x), (np.size(x) // max(math.prod(rest), 1), *rest))
        return [BoundedArray(resized(data, first.most), first.value, first.origin)]
    old, new = math.prod(x.data.shape[1:]), math.prod(rest)
    if not isinstance(first, DynamicSize) and first != -1:
        # As many as that, which TensorFlow checks.
        rows = -(-first * new // old) if old else 0
        return [lax.reshape(resized(x.data, rows), shape)]
    if new == 0 or (old % new and new % old):
        raise refused(node, values)
    size = x.data.shape[0]
    if new > old and (size * old) % new:
        raise refused(node, values)
    count = x.count if old == new else x.count * np.int32(old) // np.int32(new)
    data = lax.reshape(x.data, (size * old // new, *rest))
    return [BoundedArray(data, count, x.origin, x.marked)]


def _broadcast_axes(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shapes = [ints(static(node, values, i)) for i in range(2)]
    for one, two in zip(*(reversed(s) for s in shapes), strict=False):
        if DynamicSize in (type(one), type(two)) and one != two and 1 not in (one, two):
            raise refused(node, values)
    return list(rule(ctx, node, values))


def _larger_size(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """The larger or the smaller of a size and a number."""
    counts = [v for v in values if holds_dynamic_size(v)]
    (number,) = [v for v in values if not holds_dynamic_size(v)] or [None]
    if any(isinstance(v, BoundedArray) for v in values):
        return elementwise(rule, ctx, node, values)
    if len(counts) != 1 or not isinstance(number, np.ndarray) or number.ndim or counts[0].ndim:
        return list(rule(ctx, node, [array(v) for v in values]))
    count, limit = counts[0].item(), int(number)
    bounded = count.at_least(limit) if node.op == "Maximum" else count.at_most(limit)
    return [_vector([bounded]).reshape(())]


# -- what is made with a number of rows


def _made(
    node: Node, values: list[Any], dims: Sequence[Any]
) -> tuple[DynamicSize, tuple[Any, ...]]:
    """The number of rows of a shape, and the shape with room for all of them."""
    if not dims or any(isinstance(d, DynamicSize) for d in dims[1:]):
        raise refused(node, values)
    first = dims[0]
    return first, (first.most, *dims[1:])


def _fill(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    count, shape = _made(node, values, ints(static(node, values, 0)))
    return [BoundedArray(lax.broadcast(array(values[1]), shape), count.value, count.origin)]


def _range(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    start, limit, delta = (ints(static(node, values, i))[0] for i in range(3))
    if isinstance(start, DynamicSize) or delta != 1:
        raise refused(node, values)
    number = limit - start
    steps = lax.iota(array(np.zeros((), node.attr("Tidx"))).dtype, number.most)
    steps = lax.add(steps, lax.full_like(steps, start)) if start else steps
    return [BoundedArray(steps, lax.max(number.value, np.int32(0)), number.origin)]


def _broadcast_to(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 1))
    count, room = _made(node, values, shape)
    x = values[0]
    if not isinstance(x, BoundedArray):
        if np.ndim(x) == len(room) and np.shape(x)[0] != 1:
            raise refused(node, values)
        return [BoundedArray(broadcast_to(array(x), room), count.value, count.origin)]
    if x.count is not count.value or x.data.ndim != len(room):
        raise refused(node, values)
    return [x.with_data(broadcast_to(x.data, (x.data.shape[0], *room[1:])))]


def _tile(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    times = ints(static(node, values, 1))
    x = values[0]
    if isinstance(x, BoundedArray):
        if times[0] != 1:
            raise refused(node, values)
        return [x.with_data(jnp.tile(x.data, times))]
    count, room = _made(node, values, times)
    if np.shape(x)[0] != 1:
        raise refused(node, values)
    return [BoundedArray(jnp.tile(array(x), room), count.value, count.origin)]


# -- by index


def _gather(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis = ints(static(node, values, 2))[0] if node.op == "GatherV2" else 0
    x, which = values[0], values[1]
    axis %= rank_of(ctx.read(x)) if node.op == "GatherV2" else 1
    if node.attr("batch_dims", 0):
        raise refused(node, values)
    if axis == 0:  # nothing leads to the rows too many of x
        return _looked_up(rule, ctx, node, values)
    (y,) = rule(ctx, node, [v.data if isinstance(v, BoundedArray) else v for v in values])
    if isinstance(which, BoundedArray):
        raise refused(node, values)
    return [x.with_data(y)]


def _gather_nd(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return _looked_up(rule, ctx, node, values)


def _looked_up(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """Rows by their indices. Those too many are the first one, or ones where there is none.

    What follows computes on them as well, and its derivative has to be finite where that of the
    rows is: their cotangents are zero, but zero times infinity is not.
    """
    x, which, *rest = values
    x = x.data if isinstance(x, BoundedArray) else x
    if not isinstance(which, BoundedArray):
        return list(rule(ctx, node, [x, which, *rest]))
    there = which.there(which.data.ndim)
    (y,) = rule(ctx, node, [x, jnp.where(there, which.data, which.data[:1]), *rest])
    return [which.with_data(jnp.where(which.count > 0, y, lax.full_like(y, 1)))]


def _update(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    at, of = _UPDATES[node.op]
    which, what = values[at], values[of]
    rest = [v for k, v in enumerate(values) if k not in (at, of)]
    if any(isinstance(v, BoundedArray) for v in rest):
        raise refused(node, values)
    rooms = [
        (v.data if isinstance(v, BoundedArray) else v).shape[0] for v in (which, what) if rank_of(v)
    ]
    size = min(rooms)
    ready = list(values)
    ready[at] = which.indices() if isinstance(which, BoundedArray) else which
    ready[of] = what.data if isinstance(what, BoundedArray) else what
    for k in (at, of):
        if np.ndim(ready[k]):
            ready[k] = resized(array(ready[k]), size)
    if not isinstance(which, BoundedArray):  # of as many updates
        return list(rule(ctx, node, ready))
    if node.op.startswith("UnsortedSegment") and holds_dynamic_size(values[2]):
        return _segments(rule, ctx, node, ready)
    return list(rule(ctx, node, ready))


def _segments(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """As many segments as a shape says."""
    (count,) = ints(static(node, values, 2))
    (y,) = rule(ctx, node, [*values[:2], np.asarray(count.most, np.int32)])
    return [BoundedArray(y, count.value, count.origin)]


def _unsorted_segment(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if any(isinstance(v, BoundedArray) for v in values):
        return _update(rule, ctx, node, values)
    return _segments(rule, ctx, node, values)


def _concat(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    *parts, axis = values
    rows = [p for p in parts if isinstance(p, BoundedArray)]
    if ints(static(node, values, len(parts)))[0] % rows[0].data.ndim:
        if len(rows) < len(parts) or any(r.count is not rows[0].count for r in rows):
            raise refused(node, values)
        _, size = common_count(rows)
        (y,) = rule(ctx, node, [*(resized(r.data, size) for r in rows), axis])
        return [rows[0].with_data(y)]
    # Each part goes behind the rows that are there of those before it.
    data = [p.data if isinstance(p, BoundedArray) else array(p, rows[0].data.dtype) for p in parts]
    (room,) = rule(ctx, node, [*data, axis])
    start: Any = np.int32(0)
    y = lax.full_like(room, 0)
    for part, x in zip(parts, data, strict=True):
        y = lax.dynamic_update_slice_in_dim(y, x, start, 0)
        start = lax.add(
            start, part.count if isinstance(part, BoundedArray) else np.int32(x.shape[0])
        )
    return [BoundedArray(y, start, rows[0].origin)]


# -- as one


def _where(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return list(rule(ctx, node, [values[0].filled(0)]))


def _nothing(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return list(rule(ctx, node, values))


def _number_of_axes(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(rank_of(values[0]), np.int32)]


def _whole(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0].data]


# Ops whose rows here take shapes that hold a `DynamicSize` as well.
_TAKE_SIZES: dict[str, RowRule] = {
    "BroadcastGradientArgs": _broadcast_axes,
    "BroadcastTo": _broadcast_to,
    "Fill": _fill,
    "Maximum": _larger_size,
    "Minimum": _larger_size,
    "Range": _range,
    "Reshape": _reshape,
    "StridedSliceGrad": SLICES["StridedSliceGrad"],
    "Tile": _tile,
    **dict.fromkeys((op for op in _UPDATES if op.startswith("Unsorted")), _unsorted_segment),
}
_RULES: dict[str, RowRule] = {
    **dict.fromkeys(_UPDATES, _update),
    **dict.fromkeys(("Gather", "GatherV2", "ResourceGather"), _gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), _gather_nd),
    **dict.fromkeys(("Shape", "ShapeN"), _shape),
    "Assert": _nothing,
    "ConcatV2": _concat,
    "ExpandDims": _expand_dims,
    "Rank": _number_of_axes,
    "Size": _size,
    "Squeeze": _squeeze,
    "Where": _where,
    "XlaRemoveDynamicDimensionSize": _whole,
    **SLICES,
    **SUMS,
    **_TAKE_SIZES,
}
for _op, _rows in _RULES.items():
    row_rule(_op, takes_sizes=_op in _TAKE_SIZES)(_rows)
