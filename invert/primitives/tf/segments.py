"""Reductions of rows by segment.

`Unsorted…` ops leave rows with an id that is negative or too large out. Those with sorted ids take
the number of segments from the last id, which has to be known, or from an argument (`…V2`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.primitives.tf.dynamic_size import padded
from invert.primitives.tf.gather import take
from invert.primitives.tf.scatter import scatter_nd
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static


def _lowest(dtype: Any) -> Any:
    return (jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo)(dtype).min


def _highest(dtype: Any) -> Any:
    return (jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo)(dtype).max


# kind: (scatter, value of an empty segment)
KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "Max": (lax.scatter_max, _lowest),
    "Min": (lax.scatter_min, _highest),
    "Prod": (lax.scatter_mul, lambda dtype: 1),
    "Sum": (lax.scatter_add, lambda dtype: 0),
}


def _scatter(kind: str, data: Any, ids: Any, count: Any, *, is_sorted: bool = False) -> Any:
    fn, empty = KINDS[kind]
    shape = (count, *data.shape[ids.ndim :])
    start = lax.full(shape, empty(data.dtype), data.dtype)
    return scatter_nd(fn, start, lax.expand_dims(ids, (ids.ndim,)), data, is_sorted=is_sorted)


def _segment_prod(data: Any, ids: Any, count: Any, is_sorted: bool) -> Any:
    """Products by segment. JAX has no derivative of a scattered product; this is TensorFlow's."""

    def total(kind: str, x: Any, ids: Any) -> Any:
        return _scatter(kind, x, ids, count, is_sorted=is_sorted)

    def segment_prod(x: Any, ids: Any) -> Any:
        return total("Prod", x, ids)

    def jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        (x, ids), (t, _) = primals, tangents
        # The product of the others: by division where none of them is zero, else zero.
        zero = lax.eq(x, lax.full_like(x, 0))
        nonzero = lax.select(zero, lax.full_like(x, 1), x)
        zeros = take(total("Sum", zero.astype(np.int32), ids), ids, 0)
        others = lax.div(take(total("Prod", nonzero, ids), ids, 0), nonzero)
        alone = lax.eq(zeros, zero.astype(np.int32))
        others = lax.select(alone, others, lax.full_like(x, 0))
        return product(x, ids), total("Sum", lax.mul(t, others), ids)

    product = jax.custom_jvp(segment_prod)
    product.defjvp(jvp)
    return product(data, ids)


def _segments(kind: str, data: Any, ids: Any, count: Any, *, is_sorted: bool = False) -> Any:
    if kind == "Prod" and jnp.issubdtype(data.dtype, jnp.inexact):
        return _segment_prod(data, ids, count, is_sorted)
    return _scatter(kind, data, ids, count, is_sorted=is_sorted)


@raises_tf(*(f"UnsortedSegment{kind}" for kind in KINDS))
def _unsorted(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    data, ids = array(values[0]), array(values[1])
    (count,) = ints(static(node, values, 2))
    return [_segments(node.op.removeprefix("UnsortedSegment"), data, ids, count)]


@raises_tf(*(f"Segment{kind}V2" for kind in KINDS))
def _sorted_with_count(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    data, ids = array(values[0]), array(values[1])
    (count,) = ints(static(node, values, 2))
    kind = node.op.removeprefix("Segment").removesuffix("V2")
    return [_segments(kind, data, ids, count, is_sorted=True)]


def _count(node: Node, ids: Any) -> tuple[int, np.ndarray]:
    """The number of segments, and how many rows each has."""
    if not isinstance(ids, np.ndarray):
        reason = "the number of its segments depends on data"
        remedy = "Use tf.math.unsorted_segment_sum or its like, which take it as an argument."
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, remedy)])
    count = int(ids[-1]) + 1 if ids.size else 0
    return count, np.bincount(ids, minlength=count)


@raises_tf(*(f"Segment{kind}" for kind in (*KINDS, "Mean")))
def _sorted(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    kind = node.op.removeprefix("Segment")
    data, ids = array(values[0]), array(values[1])
    count, sizes = _count(node, values[1])
    if kind == "Mean":
        return [_scaled("Mean", _segments("Sum", data, ids, count, is_sorted=True), sizes)]
    out = _segments(kind, data, ids, count, is_sorted=True)
    if kind in ("Max", "Min") and not sizes.all():  # a segment without rows is 0
        empty = lax.broadcast_in_dim(sizes == 0, out.shape, (0,))
        out = lax.select(empty, lax.full_like(out, 0), out)
    return [out]


def _scaled(kind: str, total: Any, sizes: Any) -> Any:
    """Sums by segment divided as `Mean` and `SqrtN` do; `sizes`: rows of each segment."""
    if kind == "Sum":
        return total
    sizes = jnp.maximum(sizes, 1).astype(total.dtype)
    if kind == "SqrtN":
        sizes = lax.sqrt(sizes)
    return lax.div(total, lax.broadcast_in_dim(sizes, total.shape, (0,)))


@raises_tf(
    *(f"SparseSegment{k}{w}" for k in ("Sum", "Mean", "SqrtN") for w in ("", "WithNumSegments"))
)
def _sparse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    data, which, ids = (array(v) for v in values[:3])
    kind = node.op.removeprefix("SparseSegment")
    if kind.endswith("WithNumSegments"):
        kind = kind.removesuffix("WithNumSegments")
        (count,) = ints(static(node, values, 3))
    else:
        count, _ = _count(node, values[2])
    total = _segments("Sum", take(data, which, 0), ids, count, is_sorted=True)
    return [_scaled(kind, total, _sizes(ids, count))]


def _sizes(ids: Any, count: Any) -> Any:
    return _segments("Sum", lax.full(ids.shape, 1, np.dtype(np.int32)), ids, count, is_sorted=True)


@raises_tf(*(f"SparseSegment{kind}Grad" for kind in ("Sum", "Mean", "SqrtN")))
def _sparse_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    grad, which, ids = (array(v) for v in values[:3])
    (rows,) = ints(static(node, values, 3))
    kind = node.op.removeprefix("SparseSegment").removesuffix("Grad")
    grad = _scaled(kind, grad, _sizes(ids, grad.shape[0]))
    return [_segments("Sum", take(grad, ids, 0), which, rows)]


@raises_tf(*(f"SparseSegment{kind}GradV2" for kind in ("Sum", "Mean", "SqrtN")))
def _sparse_grad_of_rows(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    grad, ids = array(values[0]), array(values[2])
    kind = node.op.removeprefix("SparseSegment").removesuffix("GradV2")
    taken = take(_scaled(kind, grad, _sizes(ids, grad.shape[0])), ids, 0)
    which = values[1]
    if isinstance(which, np.ndarray):
        rows, place = np.unique(which, return_inverse=True)
    else:
        which = array(which)
        padded(ctx, node, which.shape[0], "rows")
        rows, place = jnp.unique(which, size=which.shape[0], fill_value=-1, return_inverse=True)
    return [_segments("Sum", taken, array(place), len(rows)), rows]
