"""Ops whose result size depends on their values.

Arrays of a JAX program have fixed sizes. By default such a result is a `BoundedArray`; an op that
needs the number of its rows is an error. On request it is padded to its full capacity. Indices of a
sparse tensor are always padded with -1, which updates and conversions of sparse tensors skip. See
`Config.dynamic_sizes`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._config import Config
from invert._errors import Problem, UnsupportedOpError
from invert.ir.sizes import as_value
from invert.tf.fallback.eager import check_bytes, run_eagerly
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, SegmentIds
from invert.tf.values.constants import array, ints, is_static

_INT64 = np.dtype(np.int64)


def _problem(node: Node, ids: bool) -> Problem:
    reason = "has a result whose size depends on data"
    remedy = 'Config(dynamic_sizes="pad") pads it to its maximum length with -1.'
    if not ids:
        remedy = (
            'Config(dynamic_sizes="pad") pads it to its maximum length with -1 or 0, which later '
            "ops must ignore; or use masks, or tf.where with three arguments."
        )
    return node.problem(reason, remedy)


def padded(
    ctx: Context, node: Node, size: Value, what: str, fill: str = "-1", *, ids: bool = True
) -> None:
    """Note in the report that a result is padded.

    **Arguments:**

    - `size`: its length.
    - `what`: what it holds, for the note.
    - `fill`: the padding value.
    - `ids`: whether it holds indices or ids, padded with -1.

    **Raises:** `UnsupportedOpError` where the configuration refuses it.
    """
    allowed = ("ids", "pad") if ids else ("pad",)
    if ctx.config.dynamic_sizes not in allowed:
        raise UnsupportedOpError([_problem(node, ids)])
    ctx.graph.note(
        f"tf.{node.op} ({node.location}) returns a varying number of {what}; here there are "
        f"always {size}, padded with {fill}"
    )


def marks_rows(config: Config, node: Node) -> bool:
    """Return whether the result of `node` is padded with rows of -1."""
    return config.dynamic_sizes == "pad" and not node.attr("pad_to_max_output_size")


@rule("Where", folds_operands=True, pads_rows=marks_rows)
def _where(condition: Value, *, ctx: Context, node: Node) -> Value:
    if isinstance(condition, np.ndarray) and condition.dtype != object:
        check_bytes(node, "places", condition.size * condition.ndim * _INT64.itemsize)
        return np.argwhere(condition).astype(_INT64)
    x = array(condition)
    mask = x != np.zeros((), x.dtype)
    indices = lax.convert_element_type(places_of(mask), _INT64)
    length = jnp.sum(mask, dtype=np.int32)
    found = counted(ctx, node, indices, length, "places", pads_minus_one=True)
    if isinstance(found, BoundedArray) and x.ndim:
        found.segments = SegmentIds(x.shape[0])
    return found


def places_of(mask: Array) -> Array:
    """Indices where an array is true, padded with rows of -1.

    `jnp.nonzero` requests int64, which may be disabled.
    """
    if not mask.ndim:
        return jnp.zeros((1, 0), np.int32)
    flat = lax.reshape(mask, (mask.size,))
    number = jnp.cumsum(flat, dtype=np.int32)
    steps = lax.iota(np.int32, mask.size)
    target = jnp.where(flat, number - np.int32(1), jnp.asarray(mask.size, np.int32))
    columns = []
    stride: Array = mask.size
    for n in mask.shape:
        stride = stride // max(n, 1) if isinstance(n, int) else stride // n
        place = steps
        if mask.ndim > 1:
            place = steps // jnp.asarray(stride, np.int32) % jnp.asarray(n, np.int32)
        columns.append(lax.full_like(place, -1).at[target].set(place, mode="drop"))
    return jnp.stack(columns, -1)


def counted(
    ctx: Context,
    node: Node,
    data: Array,
    length: Array,
    what: str,
    fill: str = "-1",
    *,
    pads_minus_one: bool = False,
) -> Value:
    """A result whose first `length` rows are valid: bounded, or padded on request.

    **Arguments:**

    - `what`, `fill`: as in `padded`.
    - `pads_minus_one`: whether the padding rows hold -1.

    **Raises:** `UnsupportedOpError` where the configuration refuses it.
    """
    if ctx.config.dynamic_sizes == "ids":
        return BoundedArray(data, length, _problem(node, False), pads_minus_one)
    padded(ctx, node, data.shape[0], what, fill, ids=False)
    return data


@rule("XlaSetDynamicDimensionSize")
def _set_size(x: Array, axis: Int, size: Value, *, node: Node) -> Value:
    if isinstance(size, np.ndarray):
        return lax.slice_in_dim(x, 0, *ints(size), axis=axis)
    if axis:
        raise node.error("has a data-dependent size in an axis other than the first", "Use masks.")
    return BoundedArray(x, size, _problem(node, False))


@rule("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", folds_operands=True)
def _unique(
    x: Value, axis: Value | None = None, *, ctx: Context, node: Node, out_idx: np.dtype
) -> list[Value]:
    operands = [x] if axis is None else [x, axis]
    if isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype.kind in "biuf":
        check_bytes(node, "constants", x.size * _INT64.itemsize)
        # The axis can only be the one there is.
        return _known_unique(x, out_idx)[: 3 if node.op.startswith("UniqueWithCounts") else 2]
    if all(isinstance(v, np.ndarray) and v.dtype != object for v in operands):
        return run_eagerly(ctx, node, operands)
    x = array(x)
    if x.ndim != 1:
        raise UnsupportedOpError([_problem(node, False)])
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    origin, first = _first_occurrences(x)
    # Numbered in the order of first occurrence.
    number = jnp.cumsum(first, dtype=out_idx) - np.asarray(1, out_idx)
    target = jnp.where(first, number, as_value(x.size, out_idx))
    distinct = jnp.full_like(x, -1 if signed else 0).at[target].set(x, mode="drop")
    numbers = number[origin]
    length = jnp.sum(first, dtype=np.int32)
    fill = "-1" if signed else "0"
    elements = counted(ctx, node, distinct, length, "elements", fill, pads_minus_one=signed)
    if not node.op.startswith("UniqueWithCounts"):
        return [elements, numbers]
    counts = jnp.zeros(x.shape, out_idx).at[numbers].add(1)
    return [elements, numbers, counted(ctx, node, counts, length, "numbers", "0")]


def _known_unique(x: np.ndarray, out_idx: np.dtype) -> list[Value]:
    """The elements by first occurrence, each one's number, and how often each is there."""
    _, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    order = np.argsort(first)
    numbers = np.argsort(order)[inverse.reshape(-1)]
    return [x[first[order]], numbers.astype(out_idx), counts[order].astype(out_idx)]


def runs(x: Array) -> tuple[Array, Array, Array]:
    """The runs of equal numbers in a vector.

    **Returns:** the order that sorts it; in that order, where runs begin, and the beginning of the
        run of each number.
    """
    order = jnp.argsort(x, stable=True)
    ordered = x[order]
    new = jnp.concatenate([jnp.ones_like(order[:1], bool), ordered[1:] != ordered[:-1]])
    return order, new, lax.cummax(jnp.where(new, jnp.arange(x.size, dtype=order.dtype), 0))


def _first_occurrences(x: Array) -> tuple[Array, Array]:
    """The index of each element's first duplicate, and whether it is first."""
    order, new, start = runs(x)
    # The sort is stable: the first of a run comes first in x as well.
    origin = jnp.zeros_like(order).at[order].set(order[start], unique_indices=True)
    return origin, jnp.zeros_like(new).at[order].set(new, unique_indices=True)


@rule("ListDiff", folds_operands=True)
def _list_diff(x: Value, y: Value, *, ctx: Context, node: Node, out_idx: np.dtype) -> list[Value]:
    if is_static(x) and is_static(y) and x.dtype != object and y.dtype != object:
        kept = np.flatnonzero(~np.isin(x, y))
        return [x[kept], kept.astype(out_idx)]
    x, y = array(x), array(y)
    padded(ctx, node, x.size, "elements", "0", ids=False)
    places = places_of(~jnp.isin(x, y))[:, 0]
    kept = jnp.where(places < 0, np.zeros((), x.dtype), x[places])
    return [kept, lax.convert_element_type(places, out_idx)]
