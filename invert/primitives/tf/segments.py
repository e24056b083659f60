"""Reductions of rows by segment.

`Unsorted…` ops drop rows with ids out of range. Ops with sorted ids take the number of segments
from the last id, which has to be known or bounded, or from an argument (`…V2`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import DimSize
from invert.primitives.tf.dynamic_size import padded
from invert.primitives.tf.gather import take
from invert.primitives.tf.reduction import limits
from invert.primitives.tf.scatter import scatter_nd
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Value, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.ops.node import Node
from invert.tf.values.constants import array

# kind: (scatter, value of an empty segment)
KINDS: dict[str, tuple[Callable[..., Array], Callable[[Array], Array]]] = {
    "Max": (lax.scatter_max, lambda dtype: limits(dtype).min),
    "Min": (lax.scatter_min, lambda dtype: limits(dtype).max),
    "Prod": (lax.scatter_mul, lambda dtype: 1),
    "Sum": (lax.scatter_add, lambda dtype: 0),
}


def _scatter(kind: str, data: Array, ids: Array, count: Int, *, is_sorted: bool = False) -> Array:
    fn, empty = KINDS[kind]
    shape = (count, *data.shape[ids.ndim :])
    start = lax.full(shape, empty(data.dtype), data.dtype)
    return scatter_nd(fn, start, lax.expand_dims(ids, (ids.ndim,)), data, is_sorted=is_sorted)


def _segment_prod(data: Array, ids: Array, count: Int, is_sorted: bool) -> Array:
    """Products by segment, with TensorFlow's derivative; JAX's scattered product has none."""

    def total(kind: str, x: Array, ids: Array) -> Array:
        return _scatter(kind, x, ids, count, is_sorted=is_sorted)

    def tangent(y: Array, primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> Array:
        (x, ids), (t, _) = primals, tangents
        # The product of the other elements: by division, or of the nonzero ones for the only zero.
        zero = lax.eq(x, lax.full_like(x, 0))
        nonzero = lax.select(zero, lax.full_like(x, 1), x)
        zeros = take(total("Sum", zero.astype(np.int32), ids), ids, 0)
        of_zero = take(segment_prod(nonzero, ids), ids, 0)
        of_zero = lax.select(lax.gt(zeros, np.int32(1)), lax.full_like(x, 0), of_zero)
        others = lax.select(zero, of_zero, lax.div(take(y, ids, 0), nonzero))
        return total("Sum", lax.mul(t, others), ids)

    @with_tangent(tangent)
    def segment_prod(x: Array, ids: Array) -> Array:
        return total("Prod", x, ids)

    return segment_prod(data, ids)


def _segments(kind: str, data: Array, ids: Array, count: Int, *, is_sorted: bool = False) -> Array:
    if kind == "Prod" and jnp.issubdtype(data.dtype, jnp.inexact):
        return _segment_prod(data, ids, count, is_sorted)
    return _scatter(kind, data, ids, count, is_sorted=is_sorted)


@rule(*(op for kind in KINDS for op in (f"UnsortedSegment{kind}", f"Segment{kind}V2")))
def _with_count(data: Array, segment_ids: Array, num_segments: Int, *, op: str) -> Array:
    kind = op.rpartition("Segment")[2].removesuffix("V2")
    return _segments(kind, data, segment_ids, num_segments, is_sorted=op.endswith("V2"))


def _sizes_of_known(node: Node, ids: Value) -> np.ndarray:
    """The number of rows of each segment."""
    if not isinstance(ids, np.ndarray):
        reason = "the number of its segments depends on data"
        remedy = "Use an op such as tf.math.unsorted_segment_sum, which takes it as an argument."
        raise node.error(reason, remedy)
    return np.bincount(ids)


_SORTED_ROWS = tuple(f"Segment{kind}" for kind in (*KINDS, "Mean"))
_SORTED_LOOKUPS = tuple(f"SparseSegment{kind}" for kind in ("Sum", "Mean", "SqrtN"))
# Ops with sorted ids, the last of which determines the number of segments.
SORTED = (*_SORTED_ROWS, *_SORTED_LOOKUPS)


@rule(*_SORTED_ROWS)
def _sorted(data: Array, segment_ids: Value, *, node: Node) -> Array:
    sizes = _sizes_of_known(node, segment_ids)
    return _reduced(node.op, data, array(segment_ids), len(sizes), sizes)


def _reduced(op: str, data: Array, ids: Array, count: DimSize, sizes: Array) -> Array:
    kind = op.removeprefix("Segment")
    if kind == "Mean":
        return _scaled("Mean", _segments("Sum", data, ids, count, is_sorted=True), sizes)
    y = _segments(kind, data, ids, count, is_sorted=True)
    if kind in ("Max", "Min") and not (isinstance(sizes, np.ndarray) and sizes.all()):
        # A segment without rows is 0.
        empty = lax.broadcast_in_dim(sizes == 0, y.shape, (0,))
        y = lax.select(empty, lax.full_like(y, 0), y)
    return y


def reduced_to(op: str, rows: Sequence[Array], ids: Array, count: DimSize) -> Array:
    """The result of an op with sorted ids for `count` segments; it drops ids out of range.

    **Arguments:**

    - `rows`: its operands before the ids.
    """
    if op.startswith("Sparse"):
        data, indices = rows
        return _sparse_segments(op.removeprefix("SparseSegment"), data, indices, ids, count)
    (data,) = rows
    return _reduced(op, data, ids, count, _sizes(ids, count))


def _scaled(kind: str, total: Array, sizes: Int) -> Array:
    """Sums by segment divided as `Mean` and `SqrtN` do; `sizes`: rows of each segment."""
    if kind == "Sum":
        return total
    sizes = jnp.maximum(sizes, 1).astype(total.dtype)
    if kind == "SqrtN":
        sizes = lax.sqrt(sizes)
    return lax.div(total, lax.broadcast_in_dim(sizes, total.shape, (0,)))


# In the newer versions of these ops the gradient with respect to `data` may be sparse.
_GRADIENT = ("sparse_gradient",)


@rule(*_SORTED_LOOKUPS, ignores=_GRADIENT)
def _sparse(data: Array, indices: Array, segment_ids: Value, *, node: Node) -> Array:
    kind = node.op.removeprefix("SparseSegment")
    count = len(_sizes_of_known(node, segment_ids))
    return _sparse_segments(kind, data, indices, array(segment_ids), count)


@rule(
    *(f"SparseSegment{kind}WithNumSegments" for kind in ("Sum", "Mean", "SqrtN")),
    ignores=_GRADIENT,
)
def _sparse_with_count(
    data: Array, indices: Array, segment_ids: Array, num_segments: Int, *, op: str
) -> Array:
    kind = op.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    return _sparse_segments(kind, data, indices, segment_ids, num_segments)


def _sparse_segments(kind: str, data: Array, indices: Array, ids: Array, count: Int) -> Array:
    total = _segments("Sum", take(data, indices, 0), ids, count, is_sorted=True)
    return _scaled(kind, total, _sizes(ids, count))


def _sizes(ids: Array, count: Int) -> Array:
    return _segments("Sum", lax.full(ids.shape, 1, np.dtype(np.int32)), ids, count, is_sorted=True)


@rule(*(f"SparseSegment{kind}Grad" for kind in ("Sum", "Mean", "SqrtN")))
def _sparse_grad(
    grad: Array, indices: Array, segment_ids: Array, output_dim0: Int, *, op: str
) -> Array:
    kind = op.removeprefix("SparseSegment").removesuffix("Grad")
    grad = _scaled(kind, grad, _sizes(segment_ids, grad.shape[0]))
    return _segments("Sum", take(grad, segment_ids, 0), indices, output_dim0)


@rule(*(f"SparseSegment{kind}GradV2" for kind in ("Sum", "Mean", "SqrtN")))
def _sparse_grad_of_rows(
    grad: Array,
    indices: Value,
    segment_ids: Array,
    dense_output_dim0: Value,
    *,
    ctx: Context,
    node: Node,
) -> tuple[Array, Array]:
    kind = node.op.removeprefix("SparseSegment").removesuffix("GradV2")
    scaled = _scaled(kind, grad, _sizes(segment_ids, grad.shape[0]))
    if isinstance(indices, np.ndarray):
        rows, place = np.unique(indices, return_inverse=True)
    else:
        size = indices.shape[0]
        padded(ctx, node, size, "rows")
        rows, place = jnp.unique(indices, size=size, fill_value=-1, return_inverse=True)
    return _segments("Sum", take(scaled, segment_ids, 0), array(place), len(rows)), rows
