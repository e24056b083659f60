"""Slices and paddings of arrays whose number of rows depends on data; see `tf.values.bounded`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.slicing import index_of, put_bounded_slice, take, take_rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, Value, row_rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, refused
from invert.tf.values.bounded_slice import BoundedSlice
from invert.tf.values.bounds import distance
from invert.tf.values.constants import array, ints, static
from invert.tf.values.dynamic_size import DynamicSize

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
        return [x.with_data(take(x.data, [slice(None), *index[1:]]))]
    return [take_rows(node, x, _row_slice(node, values, index), index)]


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
    """Add elements before and after the valid rows, which may fill up to a fixed number."""
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
