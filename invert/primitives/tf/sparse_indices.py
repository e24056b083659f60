"""Ops on sparse tensors whose results have other places than their inputs.

How many places there are depends on data, unless the indices are known. Results are as long as they
can get, with the index -1 and the value 0 behind, which ops on sparse tensors leave out; see
`dynamic_size`. Kernels: tensorflow/core/kernels/sparse_*_op.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.dynamic_size import padded, places_of
from invert.tf.fallback.eager import run_eagerly
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, pack_dims, static

_INT64 = np.dtype(np.int64)


def _folded(rule: Rule) -> Rule:
    """`rule`, or TensorFlow's results where all inputs are known."""

    @functools.wraps(rule)
    def fold_or_trace(ctx: Context, node: Node, values: list[Any]) -> Sequence[Any]:
        if all(isinstance(v, np.ndarray) and v.dtype != object for v in values):
            return run_eagerly(ctx, node, values)
        return rule(ctx, node, values)

    return fold_or_trace


def _numbered(indices: Any, shape: Sequence[Any]) -> Any:
    """The number of each place in the order of rows; that of one out of range is the size."""
    total: Any = 0
    inside: Any = True
    for axis, size in enumerate(shape):
        total = total * size + indices[:, axis]
        inside = inside & (indices[:, axis] >= 0) & (indices[:, axis] < size)
    xp = np if isinstance(indices, np.ndarray) else jnp
    return xp.where(inside, total, math.prod(shape)) + xp.zeros(len(indices), _INT64)


def _places(numbers: Any, shape: Sequence[Any]) -> Any:
    """The indices of numbered places, -1 for those out of range."""
    xp = np if isinstance(numbers, np.ndarray) else jnp
    columns, rest = [], numbers
    for size in reversed(shape):
        columns.append(rest % size if not isinstance(size, int) or size else rest * 0)
        rest = rest // size if not isinstance(size, int) or size else rest
    found = xp.stack(columns[::-1], -1).astype(_INT64)
    return xp.where((numbers < math.prod(shape))[:, None], found, np.int64(-1))


def _at(x: Any, where: Any, fill: Any = 0) -> Any:
    """The elements of `x` at `where`, and `fill` where that is out of range."""
    return jnp.asarray(x).at[where].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def _kept(keep: Any, indices: Any, values: Any) -> tuple[Any, Any]:
    """The places and values that are kept, in front, then -1 and 0."""
    where = places_of(keep)[:, 0]
    where = jnp.where(where < 0, np.int32(keep.shape[0]), where)
    return _at(indices, where, -1), _at(values, where)


def _distinct(numbers: Any, limit: Any) -> tuple[Any, Any]:
    """Different numbers in order, then `limit`; and for each number which of them it is."""
    if isinstance(numbers, np.ndarray):
        found, which = np.unique(numbers, return_inverse=True)
        return found, which
    size = numbers.shape[0]
    return jnp.unique(numbers, size=size, fill_value=limit, return_inverse=True)


def _by_place(kind: str, values: Any, which: Any, count: int) -> Any:
    """The sum or the maximum of the values of each place; 0 where there is none."""
    if kind == "Sum":
        return jnp.zeros(count, values.dtype).at[which].add(values)
    found = jnp.zeros(count, bool).at[which].set(True)
    info = jnp.finfo if jnp.issubdtype(values.dtype, jnp.floating) else jnp.iinfo
    least = jnp.full(count, info(values.dtype).min, values.dtype)
    return jnp.where(found, least.at[which].max(values), np.zeros((), values.dtype))


def _dtype_zeros(values: Any, inside: Any) -> Any:
    return jnp.where(inside, values, np.zeros((), values.dtype))


def _note(ctx: Context, node: Node, indices: Any) -> None:
    if not isinstance(indices, np.ndarray):
        padded(ctx, node, indices.shape[0], "places")


# -- the same places, in another order or of another shape


@raises_tf("SparseReorder")
@_folded
def _reorder(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x = array(values[0]), array(values[1])
    order = jnp.argsort(_numbered(indices, ints(static(node, values, 2))), stable=True)
    return [jnp.asarray(indices)[order], x[order]]


@raises_tf("SparseReshape")
def _reshape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    old, new = (ints(static(node, values, i)) for i in (1, 2))
    known = math.prod(d for d in new if not (isinstance(d, int) and d == -1))
    new = [math.prod(old) // known if isinstance(d, int) and d == -1 else d for d in new]
    indices = values[0] if isinstance(values[0], np.ndarray) else array(values[0])
    return [_places(_numbered(indices, old), new), pack_dims(new, _INT64)]


@raises_tf("SparseConcat")
@_folded
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    count = node.attr("N")
    shapes = [list(ints(static(node, values, i))) for i in range(2 * count, 3 * count)]
    axis = node.attr("concat_dim") % len(shapes[0])
    total, numbers = list(shapes[0]), []
    total[axis] = sum(shape[axis] for shape in shapes)
    start: Any = 0
    for shape, value in zip(shapes, values[:count], strict=True):
        indices = jnp.asarray(array(value))
        outside = jnp.any((indices < 0) | (indices >= np.asarray(shape)), -1, keepdims=True)
        moved = indices.at[:, axis].add(start)
        numbers.append(_numbered(jnp.where(outside, -1, moved), total))
        start = start + shape[axis]
    joined = jnp.concatenate(numbers)
    order = jnp.argsort(joined, stable=True)
    x = jnp.concatenate([array(v) for v in values[count : 2 * count]])
    return [_places(joined[order], total), x[order], pack_dims(total, _INT64)]


# -- some of the places


def _window(ctx: Context, node: Node, sparse: Sequence[Any], box: Sequence[Any]) -> list[Any]:
    """The places inside of a box, counted from its corner."""
    (indices, x), (start, shape) = sparse, box
    moved = indices - np.asarray(start, _INT64)
    keep = jnp.all((moved >= 0) & (moved < np.asarray(shape, _INT64)), -1)
    return [*_kept(keep, moved, x), np.asarray(shape, _INT64)]


@raises_tf("SparseSlice")
@_folded
def _slice(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x = array(values[0]), array(values[1])
    shape, start, size = (ints(static(node, values, i)) for i in (2, 3, 4))
    _note(ctx, node, values[1])
    left = [max(0, min(n - s, k)) for n, s, k in zip(shape, start, size, strict=True)]
    return _window(ctx, node, (indices, x), (start, left))


@raises_tf("SparseSplit")
@_folded
def _split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,), shape = ints(static(node, values, 0)), list(ints(static(node, values, 3)))
    indices, x, count = array(values[1]), array(values[2]), node.attr("num_split")
    _note(ctx, node, values[2])
    start, parts = [0] * len(shape), []
    for i in range(count):
        # The first parts are longer by one where they cannot all be equal.
        size = [*shape]
        size[axis] = shape[axis] // count + (i < shape[axis] % count)
        parts.append(_window(ctx, node, (indices, x), (start, size)))
        start = [*start]
        start[axis] += size[axis]
    return [part[k] for k in range(3) for part in parts]


# -- places of two tensors


def _union(values: Sequence[Any], shape: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The different places of two sparse tensors `(indices, values)` and how to find them."""
    numbers = [_numbered(v, shape) for v in values]
    known = all(isinstance(n, np.ndarray) for n in numbers)
    joined = (np if known else jnp).concatenate(numbers)
    found, which = _distinct(joined, math.prod(shape))
    return found, which, joined < math.prod(shape)


def _indices(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else array(value)


@raises_tf("SparseAdd")
@_folded
def _add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, least = ints(static(node, values, 2)), values[6]
    indices = [_indices(values[i]) for i in (0, 3)]
    found, which, inside = _union(indices, shape)
    x = jnp.concatenate([array(values[i]) for i in (1, 4)])
    total = _by_place("Sum", _dtype_zeros(x, inside), which, found.shape[0])
    places = _places(found, shape)
    # A sum of two that is too small is left out. Known places stay, so that their number is known;
    # TensorFlow leaves out a NaN among those.
    if not (isinstance(found, np.ndarray) and isinstance(least, np.ndarray) and least == 0):
        padded(ctx, node, found.shape[0], "places")
        count = jnp.zeros(found.shape[0], np.int32).at[which].add(inside.astype(np.int32))
        # XLA takes `abs(x) >= 0` for true, also of NaN.
        large = (lax.abs(total) >= array(least)) & (total == total)
        keep = (found < math.prod(shape)) & ((count < 2) | large)
        places, total = _kept(keep, places, total)
    return [places, total, pack_dims(shape, _INT64)]


@raises_tf("SparseSparseMaximum", "SparseSparseMinimum")
@_folded
def _extremum(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 2))
    indices = [_indices(values[i]) for i in (0, 3)]
    found, which, inside = _union(indices, shape)
    _note(ctx, node, found)
    sides = jnp.split(which, [indices[0].shape[0]]), jnp.split(inside, [indices[0].shape[0]])
    # What is in one of them only is compared with zero.
    a, b = (
        _by_place("Sum", _dtype_zeros(array(values[i]), at_inside), at, found.shape[0])
        for i, at, at_inside in zip((1, 4), *sides, strict=True)
    )
    fn = jnp.maximum if node.op.endswith("Maximum") else jnp.minimum
    return [_places(found, shape), fn(a, b)]


def _matched(rows: Any, sought: Any, gradient: Any) -> Any:
    """The gradient of each of `sought` among the ordered places `rows`; 0 where it is not there."""
    both = jnp.concatenate([rows, sought])
    # Sizes that hold all of the places, of which only the indices are known.
    sizes = jnp.maximum(jnp.max(both, axis=0, initial=0), 0) + 1
    strides = jnp.concatenate([jnp.cumprod(sizes[::-1])[::-1][1:], jnp.ones(1, _INT64)])

    def numbers(x: Any) -> Any:
        outside = jnp.any(x < 0, -1)
        return jnp.where(outside, np.iinfo(_INT64).max, jnp.sum(x * strides, -1))

    ordered, wanted = numbers(rows), numbers(sought)
    where = jnp.searchsorted(ordered, wanted)
    hit = (_at(ordered, where, -1) == wanted) & jnp.all(sought >= 0, -1)
    return jnp.where(hit, _at(gradient, where), np.zeros((), gradient.dtype))


@raises_tf("SparseAddGrad")
def _add_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    g, a, b, rows = (jnp.asarray(array(v)) for v in values)
    return [_matched(rows, a, g), _matched(rows, b, g)]


@raises_tf("SparseSliceGrad")
def _slice_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    g, indices, start, rows = (jnp.asarray(array(v)) for v in values)
    return [_matched(jnp.where(rows < 0, rows, rows + start), indices, g)]


# -- reductions to sparse tensors


@raises_tf("SparseReduceSumSparse", "SparseReduceMaxSparse")
@_folded
def _reduce(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x, shape = _indices(values[0]), array(values[1]), ints(static(node, values, 2))
    axes = {a % len(shape) for a in ints(static(node, values, 3))}
    keep_dims, limit = node.attr("keep_dims", False), math.prod(shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    sizes = [shape[i] for i in kept]
    inside = _numbered(indices, shape) < limit
    xp = np if isinstance(indices, np.ndarray) else jnp
    numbers = xp.where(inside, _numbered(indices[:, kept], sizes), math.prod(sizes))
    found, which = _distinct(numbers, math.prod(sizes))
    _note(ctx, node, found)
    kind = "Sum" if "Sum" in node.op else "Max"
    out = _by_place(kind, x, which, found.shape[0])
    places = _places(found, sizes) if kept else xp.zeros((found.shape[0], 0), _INT64)
    if keep_dims:
        none = xp.where((found < math.prod(sizes)), np.int64(0), np.int64(-1))
        places = xp.stack(
            [none if i in axes else places[:, kept.index(i)] for i in range(len(shape))], -1
        )
        sizes = [1 if i in axes else n for i, n in enumerate(shape)]
    return [places, _dtype_zeros(out, found < math.prod(shape[i] for i in kept)),
            pack_dims(sizes, _INT64)]  # fmt: skip


# -- rows without elements


@raises_tf("SparseFillEmptyRows", "RaggedFillEmptyRows")
@_folded
def _fill_empty_rows(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x, default = array(values[0]), array(values[1]), array(values[3])
    ragged = node.op.startswith("Ragged")
    columns = lax.expand_dims(indices, (1,)) if ragged else indices
    rows, size = ints(static(node, values, 2))[0], columns.shape[0]
    padded(ctx, node, size + rows, "elements")
    row = columns[:, 0]
    empty = ~jnp.zeros(rows, bool).at[jnp.where(row < 0, rows, row)].set(True, mode="drop")
    every = lax.iota(_INT64, rows)
    # Elements and defaults in the order of rows; the defaults of rows that have elements come last.
    numbers = jnp.concatenate([jnp.where(row < 0, rows, row), jnp.where(empty, every, rows)])
    order = jnp.argsort(numbers, stable=True)
    fillers = jnp.zeros((rows, columns.shape[1]), _INT64).at[:, 0].set(every)
    inside = numbers[order] < rows
    found = jnp.concatenate([columns, fillers])[order]
    found = jnp.where(inside[:, None], found, -1)
    filled = jnp.concatenate([x, jnp.broadcast_to(default, (rows,))])[order]
    back = jnp.zeros(size + rows, _INT64).at[order].set(lax.iota(_INT64, size + rows))[:size]
    found = found[:, 0] if ragged else found
    return [found, _dtype_zeros(filled, inside), empty, back]


@raises_tf("SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad")
def _fill_empty_rows_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    where, g = array(values[0]), array(values[1])
    taken = jnp.zeros(g.shape, bool).at[where].set(True)
    return [g[where], jnp.sum(jnp.where(taken, np.zeros((), g.dtype), g), dtype=g.dtype)]
