"""Rules for arrays whose number of rows depends on data; see `tf.values.bounded`.

Most ops apply their usual rule to whole arrays and declare this at the rule (`rows=`, see
`tf.interpreter.rows`). The ops here do more, such as updates, which skip padding rows. An op
without either is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import MalformedModelError
from invert.ir.sizes import decided
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import REGISTRY, Array, Rule, Value, row_rule
from invert.tf.interpreter.rows import rank_of
from invert.tf.ops.node import Node
from invert.tf.values.bounded import (
    BoundedArray,
    common_length,
    refused,
    resized,
)
from invert.tf.values.constants import array, broadcast_to, ints, pack_dims, static
from invert.tf.values.dynamic_size import DynamicSize, holds_dynamic_size, int_max

Results = list[Value]

# -- shapes


def _dims(value: Value) -> tuple[Value, ...]:
    if isinstance(value, BoundedArray):
        return (value.size, *value.data.shape[1:])
    return tuple(np.shape(value))


def _vector(dims: Sequence[Value]) -> np.ndarray:
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


@row_rule("Shape", "ShapeN")
def _shape(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return [_vector(_dims(v)) for v in values]


@row_rule("Size")
def _size(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return [_vector([math.prod(_dims(values[0])[1:]) * values[0].size]).reshape(())]


@row_rule("Rank")
def _rank(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return [np.asarray(rank_of(values[0]), np.int32)]


@row_rule("ExpandDims")
def _expand_dims(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    (axis,) = ints(static(node, values, 1))
    x = values[0]
    if axis % (x.data.ndim + 1) == 0:
        raise refused(node, values)
    return [x.with_data(lax.expand_dims(x.data, (axis,)), x.pads_minus_one)]


@row_rule("Squeeze")
def _squeeze(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    x = values[0]
    axes = [a % x.data.ndim for a in node.attr("squeeze_dims") or ()]
    if not axes:  # depends on the length
        raise refused(node, values)
    if 0 in axes:
        return [lax.squeeze(x.data[:1], axes)]
    return [x.with_data(lax.squeeze(x.data, axes), x.pads_minus_one)]


@row_rule("Reshape", takes_sizes=True)
def _reshape(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Split or join rows; padding rows stay at the end."""
    x, shape = values[0], ints(static(node, values, 1))
    if isinstance(x, np.ndarray) and not holds_dynamic_size(values[1]):
        return list(rule(ctx, node, values))
    if not shape or any(isinstance(d, DynamicSize) or d == -1 for d in shape[1:]):
        raise refused(node, values)
    first, *rest = shape
    if not isinstance(x, BoundedArray):
        data = lax.reshape(array(x), (np.size(x) // max(math.prod(rest), 1), *rest))
        return [BoundedArray(resized(data, first.capacity), first.value, first.origin)]
    old, new = math.prod(x.data.shape[1:]), math.prod(rest)
    if not isinstance(first, DynamicSize) and first != -1:
        # The length is that of the shape, which TensorFlow checks.
        rows = -(-first * new // old) if old else 0
        return [lax.reshape(resized(x.data, rows), shape)]
    if new == 0 or (old % new and new % old):
        raise refused(node, values)
    size = x.data.shape[0]
    if new > old and (size * old) % new:
        raise refused(node, values)
    length = x.length if old == new else x.length * np.int32(old) // np.int32(new)
    data = lax.reshape(x.data, (size * old // new, *rest))
    return [BoundedArray(data, length, x.origin, x.pads_minus_one)]


@row_rule("BroadcastGradientArgs", takes_sizes=True)
def _broadcast_axes(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    shapes = [ints(static(node, values, i)) for i in range(2)]
    for one, two in zip(*(reversed(s) for s in shapes), strict=False):
        if DynamicSize in (type(one), type(two)) and one != two and 1 not in (one, two):
            raise refused(node, values)
    return list(rule(ctx, node, values))


# -- new arrays whose shape has a dynamic size


def _capacity(
    node: Node, values: list[Value], dims: Sequence[Value]
) -> tuple[DynamicSize, tuple[Value, ...]]:
    """The dynamic size of a shape, and the shape at full capacity."""
    if not dims or any(isinstance(d, DynamicSize) for d in dims[1:]):
        raise refused(node, values)
    first = dims[0]
    return first, (first.capacity, *dims[1:])


@row_rule("Fill", takes_sizes=True)
def _fill(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    size, shape = _capacity(node, values, ints(static(node, values, 0)))
    return [BoundedArray(lax.broadcast(array(values[1]), shape), size.value, size.origin)]


@row_rule("Range", takes_sizes=True)
def _range(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    start, limit, delta = (ints(static(node, values, i))[0] for i in range(3))
    if isinstance(start, DynamicSize) or delta != 1:
        raise refused(node, values)
    size = limit - start
    if decided("lt", size.most, 0):
        raise MalformedModelError(
            f"tf.Range ({node.location}) starts at {start}, past its limit for every input, "
            "which TensorFlow refuses",
            remedy="Correct the limits in the model's code.",
        )
    size = int_max(size, 0)
    if not isinstance(size, DynamicSize):  # empty for every input
        return list(rule(ctx, node, [np.asarray(n, np.int32) for n in (0, 0, 1)]))
    steps = lax.iota(array(np.zeros((), node.attr("Tidx"))).dtype, size.capacity)
    steps = lax.add(steps, lax.full_like(steps, start)) if start else steps
    return [BoundedArray(steps, size.value, size.origin)]


@row_rule("BroadcastTo", takes_sizes=True)
def _broadcast_to(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    size, shape = _capacity(node, values, ints(static(node, values, 1)))
    x = values[0]
    if not isinstance(x, BoundedArray):
        if np.ndim(x) == len(shape) and np.shape(x)[0] != 1:
            raise refused(node, values)
        return [BoundedArray(broadcast_to(array(x), shape), size.value, size.origin)]
    if x.length is not size.value or x.data.ndim != len(shape):
        raise refused(node, values)
    return [x.with_data(broadcast_to(x.data, (x.data.shape[0], *shape[1:])))]


@row_rule("Tile", takes_sizes=True)
def _tile(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    multiples = ints(static(node, values, 1))
    x = values[0]
    if isinstance(x, BoundedArray):
        if multiples[0] != 1:
            raise refused(node, values)
        return [x.with_data(jnp.tile(x.data, multiples))]
    size, multiples = _capacity(node, values, multiples)
    if np.shape(x)[0] != 1:
        raise refused(node, values)
    return [BoundedArray(jnp.tile(array(x), multiples), size.value, size.origin)]


# -- gathers and scatters


@row_rule("Gather", "GatherV2", "ResourceGather")
def _gather(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    axis = ints(static(node, values, 2))[0] if node.op == "GatherV2" else 0
    x, indices = values[0], values[1]
    axis %= rank_of(ctx.read(x)) if node.op == "GatherV2" else 1
    if node.attr("batch_dims", 0):
        raise refused(node, values)
    if axis == 0:  # no valid index selects a padding row of x
        return _gather_rows(rule, ctx, node, values)
    if isinstance(indices, BoundedArray):
        raise refused(node, values)
    (y,) = rule(ctx, node, [x.data, *values[1:]])
    return [x.with_data(y)]


@row_rule("GatherNd", "ResourceGatherNd")
def _gather_rows(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Select rows by index. Padding rows repeat the first row, or are ones if there is none.

    Later ops compute on padding rows too, and need finite derivatives there: the cotangents are
    zero, but zero times infinity is NaN.
    """
    x, indices, *rest = values
    x = x.data if isinstance(x, BoundedArray) else x
    if not isinstance(indices, BoundedArray):
        return list(rule(ctx, node, [x, indices, *rest]))
    valid = indices.valid_mask(indices.data.ndim)
    (y,) = rule(ctx, node, [x, jnp.where(valid, indices.data, indices.data[:1]), *rest])
    return [indices.with_data(jnp.where(indices.length > 0, y, lax.full_like(y, 1)))]


@row_rule("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Put the rows of a partition back, if known indices were partitioned in the same way.

    Each index is in one part, so the largest one determines the length of the result.
    """
    half = len(values) // 2
    indices, parts = values[:half], values[half:]
    known = [v.part for v in indices if isinstance(v, BoundedArray) and v.part is not None]
    if len(known) != half or [i for _, i in known] != list(range(known[0][0].count)):
        raise refused(node, values)
    whole = known[0][0]
    if any(p is not whole for p, _ in known) or len(np.unique(whole.rows)) != whole.rows.size:
        raise refused(node, values)
    size = int(whole.rows.max()) + 1 if whole.rows.size else 0
    first = parts[0].data if isinstance(parts[0], BoundedArray) else array(parts[0])
    out = lax.full((size, *first.shape[1:]), 0, first.dtype)
    for where, rows in zip(indices, parts, strict=True):
        if not isinstance(rows, BoundedArray):
            raise refused(node, values)
        beyond = lax.full_like(where.data, size)
        target = jnp.where(where.valid_mask(), where.data, beyond)
        out = out.at[target].set(rows.data, mode="drop")
    return [out]


# Positions of the operands that are indices and updates.
_OPERANDS: dict[str, tuple[int, int]] = {
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


@row_rule(*(op for op in _OPERANDS if not op.startswith("Unsorted") and REGISTRY.get(op)))
def _scatter(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Apply as many updates as there are valid indices."""
    return list(rule(ctx, node, _without_padding(node, values)))


@row_rule(*(op for op in _OPERANDS if op.startswith("Unsorted")), takes_sizes=True)
def _segments(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    values = _without_padding(node, values)
    if not holds_dynamic_size(values[2]):
        return list(rule(ctx, node, values))
    (size,) = ints(static(node, values, 2))
    capacity = pack_dims([size.capacity], np.dtype(np.int32)).reshape(())
    (y,) = rule(ctx, node, [*values[:2], capacity])
    return [BoundedArray(y, size.value, size.origin)]


def _without_padding(node: Node, values: list[Value]) -> list[Value]:
    """Operands where padding rows of indices are -1, with as many updates as indices."""
    places = _OPERANDS[node.op]
    if not any(isinstance(v, BoundedArray) for v in values):
        return values
    if any(isinstance(v, BoundedArray) for k, v in enumerate(values) if k not in places):
        raise refused(node, values)
    indices, updates = (values[k] for k in places)
    data: dict[int, Array] = {
        places[0]: indices.indices() if isinstance(indices, BoundedArray) else indices,
        places[1]: updates.data if isinstance(updates, BoundedArray) else updates,
    }
    size = min(np.shape(x)[0] for x in data.values() if np.ndim(x))
    return [
        resized(array(data[k]), size) if k in data and np.ndim(data[k]) else data.get(k, v)
        for k, v in enumerate(values)
    ]


@row_rule("ConcatV2")
def _concat(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    *parts, axis = values
    rows = [p for p in parts if isinstance(p, BoundedArray)]
    if ints(static(node, values, len(parts)))[0] % rows[0].data.ndim:
        if len(rows) < len(parts) or any(r.length is not rows[0].length for r in rows):
            raise refused(node, values)
        _, size = common_length(rows)
        (y,) = rule(ctx, node, [*(resized(r.data, size) for r in rows), axis])
        return [rows[0].with_data(y)]
    # Each part overwrites the padding rows of the previous ones.
    data = [p.data if isinstance(p, BoundedArray) else array(p, rows[0].data.dtype) for p in parts]
    (whole,) = rule(ctx, node, [*data, axis])
    start: Array = np.int32(0)
    y = lax.full_like(whole, 0)
    for part, x in zip(parts, data, strict=True):
        y = lax.dynamic_update_slice_in_dim(y, x, start, 0)
        length = part.length if isinstance(part, BoundedArray) else np.int32(x.shape[0])
        start = lax.add(start, length)
    return [BoundedArray(y, start, rows[0].origin)]


# -- others


@row_rule("Where")
def _where(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return list(rule(ctx, node, [values[0].filled(0)]))


@row_rule("Assert")
def _assert(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return list(rule(ctx, node, values))


@row_rule("XlaRemoveDynamicDimensionSize")
def _at_capacity(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return [values[0].data]
