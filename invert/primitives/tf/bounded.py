"""Rules for arrays whose number of rows depends on data; see `tf.values.bounded`.

Most ops apply their usual rule to whole arrays and declare this at the rule (`rows=`, see
`tf.interpreter.rows`). The ops here need more: updates, for example, skip padding rows. An op
with neither is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import MalformedModelError
from invert.ir.sizes import as_value, decided
from invert.primitives.tf.reduction import REDUCTIONS, highest, lowest
from invert.primitives.tf.segments import SORTED, reduced_to
from invert.primitives.tf.slicing import index_of, put_bounded_slice, take, take_rows
from invert.primitives.tf.sparse import with_every_row
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import REGISTRY, Array, Rule, Value, row_rule
from invert.tf.interpreter.rows import elementwise, rank_of
from invert.tf.ops.node import Node
from invert.tf.values.bounded import (
    BoundedArray,
    BoundedSlice,
    SegmentIds,
    common_length,
    refused,
    resized,
)
from invert.tf.values.bounds import distance
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
    return [x.with_data(lax.squeeze(x.data, axes), x.pads_minus_one, x.segments)]


@row_rule("Unpack")
def _unpack(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    x = values[0]
    if node.attr("axis", 0) % x.data.ndim == 0:
        raise refused(node, values)
    first, *others = [x.with_data(y, x.pads_minus_one) for y in rule(ctx, node, [x.data])]
    return [first.with_data(first.data, x.pads_minus_one, x.segments), *others]


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
    segments = x.segments if old == new else None
    return [BoundedArray(data, length, x.origin, x.pads_minus_one, segments=segments)]


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
    """Select rows by index; padding repeats the first row, or holds ones.

    Later ops compute on padding rows too, and need finite derivatives there: the cotangents are
    zero, but zero times infinity is NaN.
    """
    x, indices, *rest = values
    segments = None
    if isinstance(x, BoundedArray):
        x, segments = x.data, x.segments
    if not isinstance(indices, BoundedArray):
        return list(rule(ctx, node, [x, indices, *rest]))
    valid = indices.valid_mask(indices.data.ndim)
    (y,) = rule(ctx, node, [x, jnp.where(valid, indices.data, indices.data[:1]), *rest])
    y = jnp.where(indices.length > 0, y, lax.full_like(y, 1))
    if segments is None or node.op.endswith("Nd") or indices.data.ndim > 1:
        return [indices.with_data(y)]
    # Some of the rows: not all ids may occur.
    return [indices.with_data(y, segments=SegmentIds(segments.count))]


@row_rule("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Join the parts of an array whose indices were partitioned in the same way.

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
    return _at_size(rule, ctx, node, _without_padding(node, values), 2)


def _at_size(rule: Rule, ctx: Context, node: Node, values: list[Value], place: int) -> Results:
    """Apply a rule whose operand at `place` is the number of rows of its first result."""
    if not holds_dynamic_size(values[place]):
        return list(rule(ctx, node, values))
    (size,) = ints(static(node, values, place))
    capacity = pack_dims([size.capacity], np.dtype(np.int32)).reshape(())
    y, *others = rule(ctx, node, [*values[:place], capacity, *values[place + 1 :]])
    return [BoundedArray(y, size.value, size.origin), *others]


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


@row_rule(*SORTED)
def _sorted_segments(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Reduce rows by segment; the last id determines the number of segments."""
    *rows, ids = values
    if not isinstance(ids, BoundedArray):
        data, *others = rows
        if not others or any(isinstance(v, BoundedArray) for v in others):
            raise refused(node, values)
        return list(rule(ctx, node, [data.data, *others, ids]))  # its rows are looked up
    if ids.segments is None:
        reason = "the number of its segments depends on data and has no known bound"
        remedy = "Use an op such as tf.math.unsorted_segment_sum, which takes it as an argument."
        raise node.error(reason, remedy)
    count = ids.segments.count
    *looked_up, paired = (v.data if isinstance(v, BoundedArray) else array(v) for v in rows)
    size = min(paired.shape[0], ids.data.shape[0])
    last = lax.convert_element_type(jnp.max(ids.filled(-1), initial=-1), np.int32)
    # An id out of range is dropped, and those at the end keep the order.
    places = resized(_beyond(ids, count), size)
    y = reduced_to(node.op, [*looked_up, resized(paired, size)], places, count)
    return [y] if ids.segments.all_used else [BoundedArray(y, last + np.int32(1), ids.origin)]


def _beyond(indices: BoundedArray, size: Value) -> Array:
    """Indices with `size` in the padding rows, which is past the end."""
    return indices.filled(as_value(size, indices.data.dtype))


_OF_SPARSE = ("SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGrad")


@row_rule(*_OF_SPARSE, *(f"{op}V2" for op in _OF_SPARSE), takes_sizes=True)
def _sparse_segments_grad(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    grad, indices, ids, _ = values
    grad = grad.filled(0) if isinstance(grad, BoundedArray) else array(grad)
    if isinstance(indices, BoundedArray) != isinstance(ids, BoundedArray):
        raise refused(node, values)
    if isinstance(ids, BoundedArray):
        size = min(indices.data.shape[0], ids.data.shape[0])
        indices = resized(indices.indices(), size)
        ids = resized(_beyond(ids, grad.shape[0]), size)
    if node.op.endswith("V2"):  # sparse, so that its rows are not those of the operand
        return list(rule(ctx, node, [grad, indices, ids, np.int32(0)]))
    return _at_size(rule, ctx, node, [grad, indices, ids, values[3]], 3)


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


# -- sparse tensors


@row_rule("SparseReshape")
def _sparse_reshape(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    indices = values[0]
    places, shape = rule(ctx, node, [indices.indices(), *values[1:]])
    segments = SegmentIds(ints(shape)[0]) if len(shape) else None
    return [indices.with_data(places, pads_minus_one=True, segments=segments), shape]


@row_rule("SparseFillEmptyRows", "RaggedFillEmptyRows")
def _fill_empty_rows(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    indices, x, _, default = values
    if not (isinstance(indices, BoundedArray) and isinstance(x, BoundedArray)):
        raise refused(node, values)
    rows = ints(static(node, values, 2))[0]
    size = min(indices.data.shape[0], x.data.shape[0])
    ragged = node.op.startswith("Ragged")
    columns = resized(indices.indices(), size, -1)
    columns = columns[:, None] if ragged else columns
    found = with_every_row(columns, resized(x.data, size), rows, array(default))
    inside, places, elements, empty, reverse = found
    filled = BoundedArray(
        places[:, 0] if ragged else places,
        jnp.sum(inside, dtype=np.int32),
        indices.origin,
        pads_minus_one=True,
        segments=SegmentIds(rows, all_used=True),
    )
    return [filled, filled.with_data(elements), empty, indices.with_data(reverse)]


@row_rule("SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad")
def _fill_empty_rows_grad(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    reverse, grad = values
    if not (isinstance(reverse, BoundedArray) and isinstance(grad, BoundedArray)):
        raise refused(node, values)
    y, default = rule(ctx, node, [_beyond(reverse, grad.data.shape[0]), grad.filled(0)])
    return [reverse.with_data(reverse.with_data(y).filled(0)), default]


@row_rule("Unique", "UniqueV2")
def _unique(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    x, *axis = values
    if not isinstance(x, BoundedArray) or jnp.issubdtype(x.data.dtype, jnp.inexact):
        raise refused(node, values)  # NaN differs from itself
    # Repeats of the first row are no new elements.
    repeated = jnp.where(x.valid_mask(x.data.ndim), x.data, x.data[:1])
    elements, numbers = rule(ctx, node, [repeated, *axis])
    if not isinstance(elements, BoundedArray):  # padded
        raise refused(node, values)
    length = lax.min(elements.length, x.length)
    distinct = BoundedArray(elements.data, length, x.origin)
    return [distinct, x.with_data(numbers)]


# -- others


@row_rule("Select")
def _select(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    """Select by element, or by row if the condition is a vector."""
    condition, *cases = values
    axes = range(1, rank_of(cases[0]) if rank_of(condition) == 1 else 1)
    if isinstance(condition, BoundedArray):
        condition = condition.with_data(lax.expand_dims(condition.data, axes))
    elif axes:
        condition = lax.expand_dims(array(condition), axes)
    return elementwise(rule, ctx, node, [condition, *cases])


@row_rule("Where")
def _where(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return list(rule(ctx, node, [values[0].filled(0)]))


@row_rule("Assert")
def _assert(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return list(rule(ctx, node, values))


@row_rule("XlaRemoveDynamicDimensionSize")
def _at_capacity(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> Results:
    return [values[0].data]


# -- reductions, with the neutral element in the padding rows

_NEUTRAL: dict[str, Callable[[np.dtype], Value]] = {
    "All": lambda dtype: True, "Any": lambda dtype: False, "EuclideanNorm": lambda dtype: 0,
    "Max": lowest, "Mean": lambda dtype: 0, "Min": highest, "Prod": lambda dtype: 1,
    "Sum": lambda dtype: 0,
}  # fmt: skip


@row_rule(*REDUCTIONS)
def _reduce(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    x = values[0]
    if not isinstance(x, BoundedArray):
        raise refused(node, values)
    rank = x.data.ndim
    axes = {a % rank for a in ints(static(node, values, 1))}
    if 0 not in axes:
        (y,) = rule(ctx, node, [x.data, values[1]])
        return [x.with_data(y)]
    filled = x.filled(_NEUTRAL[node.op](x.data.dtype))
    (y,) = rule(ctx, node, [filled, values[1]])
    if node.op != "Mean":
        return [y]
    # Half precision accumulates in single precision. The mean of no rows is 0 / 0.
    inexact = jnp.issubdtype(x.data.dtype, jnp.inexact)
    dtype = np.promote_types(x.data.dtype, np.float32) if inexact else x.data.dtype
    total = jnp.sum(filled, axis=tuple(axes), keepdims=bool(node.attr("keep_dims")), dtype=dtype)
    number = x.length * np.int32(math.prod(x.data.shape[a] for a in axes if a))
    mean = lax.div(total, jnp.broadcast_to(number.astype(dtype), total.shape))
    return [lax.convert_element_type(mean, y.dtype)]


@row_rule("MatMul")
def _matmul(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    transposed = bool(node.attr("transpose_a", False)), bool(node.attr("transpose_b", False))
    if not isinstance(values[1], BoundedArray) and not transposed[0]:
        (y,) = rule(ctx, node, [values[0].data, values[1]])
        return [values[0].with_data(y)]
    if transposed != (True, False):
        raise refused(node, values)
    return _sum_of_rows(rule, ctx, node, values)


@row_rule("BiasAddGrad", "L2Loss")
def _sum_of_rows(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """Sums over all rows, of products or of single numbers."""
    if node.attr("data_format") == "NCHW":
        raise refused(node, values)
    filled = [v.filled(0) if isinstance(v, BoundedArray) else array(v) for v in values]
    size = min(x.shape[0] for x in filled)
    return list(rule(ctx, node, [resized(x, size) for x in filled]))


# -- slices and paddings

_ALL_ROWS = [slice(start, None, step) for start in (None, 0) for step in (None, 1)]


@row_rule("StridedSlice")
def _strided_slice(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    x = values[0]
    if not isinstance(x, BoundedArray) or any(isinstance(v, BoundedArray) for v in values[1:]):
        raise refused(node, values)
    index = index_of(ctx, node, values[1:4], x.data.ndim)
    first = index[0]
    if isinstance(first, int | np.integer):
        place = np.int32(first) if first >= 0 else x.length + np.int32(first)
        return [take(lax.dynamic_slice_in_dim(x.data, place, 1), [0, *index[1:]])]
    if isinstance(first, slice) and first in _ALL_ROWS:
        y = take(x.data, [slice(None), *index[1:]])
        return [x.with_data(y, segments=x.segments if all(map(_starts_row, index[1:])) else None)]
    return [take_rows(node, x, _row_slice(node, values, index), index)]


def _starts_row(part: Value) -> bool:
    """Return whether an index of an axis selects its first element, first."""
    if isinstance(part, slice):
        return not part.start and part.step in (None, 1)
    return isinstance(part, int | np.integer) and part == 0


def _row_slice(node: Node, values: list[Value], index: list[Value]) -> BoundedSlice:
    """The slice of the first axis; negative ends count from the last valid row."""
    first = index[0]
    if isinstance(first, slice):
        first = BoundedSlice(first.start, first.stop, first.step or 1)
    if not isinstance(first, BoundedSlice) or any(isinstance(j, BoundedSlice) for j in index[1:]):
        raise refused(node, values)
    return first


@row_rule("ResourceStridedSliceAssign", "StridedSliceAssign", "TensorStridedSliceUpdate")
def _update_slice(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    if any(isinstance(v, BoundedArray) for v in values[:4]):
        raise refused(node, values)
    return list(rule(ctx, node, values))


@row_rule("StridedSliceGrad", takes_sizes=True)
def _slice_grad(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    shape, dy = ints(static(node, values, 0)), values[4]
    if not isinstance(shape[0], DynamicSize):
        return _update_slice(rule, ctx, node, values)
    index = index_of(ctx, node, values[1:4], len(shape))
    if isinstance(index[0], int):
        index[0] = slice(index[0], index[0] + 1 or None)
        dy = lax.expand_dims(array(dy), (0,))
    dtype = dy.data.dtype if isinstance(dy, BoundedArray) else array(dy).dtype
    zeros = lax.full((shape[0].capacity, *shape[1:]), 0, dtype)
    x = BoundedArray(zeros, shape[0].value, shape[0].origin)
    return [put_bounded_slice(node, x, _row_slice(node, values, index), index, dy)]


@row_rule("Pad", "PadV2")
def _pad(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """Pad the valid rows before and after, perhaps to a fixed number."""
    x, fill = values[0], array(values[2]) if node.op == "PadV2" else np.int32(0)
    if not isinstance(x, BoundedArray):
        raise refused(node, values)
    flat = ints(static(node, values, 1))
    (low, high), *others = zip(flat[::2], flat[1::2], strict=True)
    if any(isinstance(n, DynamicSize) for pair in ((low,), *others) for n in pair):
        raise refused(node, values)
    fill = lax.convert_element_type(fill, x.data.dtype)
    data = jnp.where(x.valid_mask(x.data.ndim), x.data, fill)
    size = x.size + low + high
    total = distance(np.int32(0), size.value)
    after = (size.capacity if total is None else total) - low - x.data.shape[0]
    y = lax.pad(data, fill, [(low, after, 0), *((a, b, 0) for a, b in others)])
    return [BoundedArray(y, size.value, size.origin) if total is None else y]
