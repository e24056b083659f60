"""Ops on sparse tensors, which come as indices, values and a shape.

The shape has to be static. An index out of range, such as the -1 of padding rows, has no effect.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.dynamic_size import padded, places_of
from invert.primitives.tf.matmul import adjoint
from invert.primitives.tf.reduction import limits
from invert.primitives.tf.scatter import scatter_nd
from invert.tf.fallback.eager import run_eagerly
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import (
    REGISTRY,
    Array,
    Entry,
    Int,
    Ints,
    Value,
    bound,
    rule,
    rules,
)
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, pack_dims, static


def dense(indices: Array, values: Array, shape: Ints) -> Array:
    """The dense array; values at the same index are summed."""
    if not shape:
        return jnp.sum(values, dtype=values.dtype)
    return scatter_nd(lax.scatter_add, lax.full(shape, 0, values.dtype), indices, values)


def _rows(x: Array, indices: Array) -> Array:
    """The elements of x that rows of `indices` select, zeros where out of range."""
    at = jnp.asarray(x).at[tuple(indices[:, i] for i in range(indices.shape[1]))]
    return at.get(mode="fill", fill_value=0, wrap_negative_indices=False)


@rule("SparseTensorDenseMatMul")
def _matmul(
    indices: Array, values: Array, shape: Ints, b: Array, *, adjoint_a: bool, adjoint_b: bool
) -> Array:
    rows, columns = shape
    row, column = indices[:, 0], indices[:, 1]
    if adjoint_a:
        row, column, rows = column, row, columns
        values = jnp.conj(values) if jnp.iscomplexobj(values) else values
    if adjoint_b:
        b = adjoint(b)
    products = values[:, None] * _rows(b, column[:, None])
    return dense(row[:, None], products, (rows, b.shape[1]))


def _cwise(fn: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def rule(indices: Array, values: Array, shape: Ints, y: Array) -> Array:
        return fn(values, _rows(broadcast_to(y, shape), indices))

    return rule


for _name, _fn in (("Add", lax.add), ("Div", lax.div), ("Mul", lax.mul)):
    rules({f"SparseDenseCwise{_name}": _cwise(_fn)})


@rule("SparseTensorDenseAdd")
def _add_dense(indices: Array, values: Array, shape: Ints, y: Array) -> Array:
    return scatter_nd(lax.scatter_add, y, indices, values)


@rule("SparseReduceSum", "SparseReduceMax")
def _reduce_to_dense(
    indices: Array, values: Array, shape: Ints, axes: Ints, *, op: str, keep_dims: bool
) -> Array:
    reduced = {a % len(shape) for a in axes}
    kept = [i for i in range(len(shape)) if i not in reduced]
    sizes = tuple(shape[i] for i in kept)
    places = indices[:, kept]
    if op == "SparseReduceSum":
        out = dense(places, values, sizes)
    else:
        low = lax.full(sizes, limits(values.dtype).min, values.dtype)
        if sizes:
            out = scatter_nd(lax.scatter_max, low, places, values)
        else:
            out = jnp.max(values, initial=low)
        # The maximum of no values is 0.
        count = dense(places, jnp.ones(values.shape, jnp.int32), sizes)
        out = jnp.where(count > 0, out, np.zeros((), values.dtype))
    if keep_dims:
        out = lax.reshape(out, tuple(1 if i in reduced else n for i, n in enumerate(shape)))
    return out


@rule("SparseSoftmax")
def _softmax(indices: Array, values: Array, shape: Ints) -> Array:
    *sizes, _ = shape
    places = indices[:, :-1]
    low = lax.full(sizes, -np.inf, values.dtype)
    largest = lax.stop_gradient(scatter_nd(lax.scatter_max, low, places, values))
    powers = lax.exp(values - _rows(largest, places)) if math.prod(sizes) else values
    return powers / _rows(dense(places, powers, tuple(sizes)), places)


@rule("SetSize", ignores=("validate_indices",))
def _set_size(indices: Array, values: Array, shape: Ints) -> Array:
    """The number of distinct values in each row."""
    sizes = shape[:-1]
    rows, values = lax.sort((_numbered(indices[:, :-1], sizes), values), num_keys=2)
    repeats = jnp.pad((rows[1:] == rows[:-1]) & (values[1:] == values[:-1]), (1, 0))
    counts = jnp.zeros(math.prod(sizes), np.int32)
    return lax.reshape(counts.at[rows].add(~repeats, mode="drop"), sizes)


# -- ops on sparse tensors whose results have different indices than their operands
#
# Their number depends on data, unless the indices are static. Results are padded to their full
# capacity with the index -1 and the value 0, which ops on sparse tensors skip; see
# `dynamic_size`. Kernels: tensorflow/core/kernels/sparse_*_op.cc, TensorFlow 2.21.

_INT64 = np.dtype(np.int64)


def _folding_rule(*ops: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register a rule; if all operands are static, TensorFlow computes the results."""

    def register(fn: Callable[..., Value]) -> Callable[..., Value]:
        call = bound(fn)

        @functools.wraps(fn)
        def fold_or_trace(ctx: Context, node: Node, values: list[Value]) -> Sequence[Value]:
            if all(isinstance(v, np.ndarray) and v.dtype != object for v in values):
                return run_eagerly(ctx, node, values)
            return call(ctx, node, values)

        for op in ops:
            REGISTRY.add(op, Entry(fold_or_trace))
        return fn

    return register


def _indices(value: Value) -> Array:
    """The indices of a sparse tensor: a NumPy array if they are known."""
    return value if isinstance(value, np.ndarray) else array(value)


def _library(indices: Array) -> ModuleType:
    """The library that keeps known indices known."""
    return np if isinstance(indices, np.ndarray) else jnp


def _numbered(indices: Array, shape: Ints) -> Array:
    """Each index's row-major number; the tensor's size if out of range."""
    total: Array = 0
    inside: Array = True
    for axis, size in enumerate(shape):
        total = total * size + indices[:, axis]
        inside = inside & (indices[:, axis] >= 0) & (indices[:, axis] < size)
    xp = _library(indices)
    return xp.where(inside, total, math.prod(shape)) + xp.zeros(indices.shape[0], _INT64)


def _places(numbers: Array, shape: Ints) -> Array:
    """The indices of row-major numbers; -1 if out of range."""
    xp = _library(numbers)
    columns, rest = [], numbers
    for size in reversed(shape):
        columns.append(rest % size if not isinstance(size, int) or size else rest * 0)
        rest = rest // size if not isinstance(size, int) or size else rest
    indices = xp.stack(columns[::-1], -1).astype(_INT64)
    return xp.where((numbers < math.prod(shape))[:, None], indices, np.int64(-1))


def _at(x: Array, where: Array, fill: int = 0) -> Array:
    """The elements of `x` at `where`; `fill` if out of range."""
    return jnp.asarray(x).at[where].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


def _masked(keep: Array, indices: Array, values: Array) -> tuple[Array, Array]:
    """The indices and values that a mask keeps, padded with -1 and 0 unless it is known."""
    if isinstance(keep, np.ndarray):
        return indices[keep], values[np.flatnonzero(keep)]
    where = places_of(keep)[:, 0]
    where = jnp.where(where < 0, np.int32(keep.shape[0]), where)
    return _at(indices, where, -1), _at(values, where)


def _distinct(numbers: Array, limit: Value) -> tuple[Array, Array]:
    """Sorted distinct numbers, padded with `limit`, and each number's position among them."""
    if isinstance(numbers, np.ndarray):
        return np.unique(numbers, return_inverse=True)
    size = numbers.shape[0]
    return jnp.unique(numbers, size=size, fill_value=limit, return_inverse=True)


def _by_place(kind: str, values: Array, which: Array, count: int) -> Array:
    """The sum or maximum of values at each position; 0 without any."""
    if kind == "Sum":
        return jnp.zeros(count, values.dtype).at[which].add(values)
    written = jnp.zeros(count, bool).at[which].set(True)
    least = jnp.full(count, limits(values.dtype).min, values.dtype)
    return jnp.where(written, least.at[which].max(values), np.zeros((), values.dtype))


def _or_zero(inside: Array, values: Array) -> Array:
    return jnp.where(inside, values, np.zeros((), values.dtype))


def _note(ctx: Context, node: Node, indices: Value) -> None:
    if not isinstance(indices, np.ndarray):
        padded(ctx, node, indices.shape[0], "places")


# -- the same values, in another order or of another shape


@_folding_rule("SparseReorder")
def _reorder(indices: Value, values: Array, shape: Ints) -> tuple[Array, Array]:
    indices = _indices(indices)
    order = _library(indices).argsort(_numbered(indices, shape), stable=True)
    return indices[order], values[order]


@rule("SparseReshape")
def _reshape(indices: Value, old: Ints, new: Ints) -> tuple[Array, np.ndarray]:
    known = math.prod(d for d in new if not (isinstance(d, int) and d == -1))
    new = tuple(math.prod(old) // known if isinstance(d, int) and d == -1 else d for d in new)
    return _places(_numbered(_indices(indices), old), new), pack_dims(new, _INT64)


@_folding_rule("SparseConcat")
def _concat(*operands: Value, node: Node, N: int, concat_dim: int) -> list[Array]:
    shapes = [ints(static(node, operands, i)) for i in range(2 * N, 3 * N)]
    axis = concat_dim % len(shapes[0])
    total = list(shapes[0])
    total[axis] = sum(shape[axis] for shape in shapes)
    numbers, start, along = [], 0, np.eye(len(total), dtype=_INT64)[axis]
    for shape, value in zip(shapes, operands[:N], strict=True):
        indices = _indices(value)
        xp = _library(indices)
        outside = xp.any((indices < 0) | (indices >= np.asarray(shape)), -1, keepdims=True)
        moved = xp.where(outside, np.int64(-1), indices + start * along)
        numbers.append(_numbered(moved, tuple(total)))
        start += shape[axis]
    known = all(isinstance(n, np.ndarray) for n in numbers)
    joined = (np if known else jnp).concatenate(numbers)
    order = _library(joined).argsort(joined, stable=True)
    x = jnp.concatenate([array(v) for v in operands[N : 2 * N]])
    return [_places(joined[order], tuple(total)), x[order], pack_dims(total, _INT64)]


# -- some of the values


def _window(
    indices: Array, values: Array, start: Sequence[int], sizes: Sequence[int]
) -> list[Array]:
    """The indices inside a box, relative to its corner, their values, and its shape."""
    moved = indices - np.asarray(start, _INT64)
    keep = _library(moved).all((moved >= 0) & (moved < np.asarray(sizes, _INT64)), -1)
    return [*_masked(keep, moved, values), np.asarray(sizes, _INT64)]


@_folding_rule("SparseSlice")
def _slice(
    indices: Value, values: Array, shape: Ints, start: Ints, size: Ints, *, ctx: Context, node: Node
) -> list[Array]:
    indices = _indices(indices)
    _note(ctx, node, indices)
    sizes = [max(0, min(n - s, k)) for n, s, k in zip(shape, start, size, strict=True)]
    return _window(indices, values, start, sizes)


@_folding_rule("SparseSplit")
def _split(
    axis: Int,
    indices: Value,
    values: Array,
    shape: Ints,
    *,
    ctx: Context,
    node: Node,
    num_split: int,
) -> list[Array]:
    indices = _indices(indices)
    _note(ctx, node, indices)
    start, parts = [0] * len(shape), []
    for i in range(num_split):
        # The first parts are longer by one if they cannot all be equal.
        size = [*shape]
        size[axis] = shape[axis] // num_split + (i < shape[axis] % num_split)
        parts.append(_window(indices, values, start, size))
        start = [*start]
        start[axis] += size[axis]
    return [part[k] for k in range(3) for part in parts]


# -- two tensors


def _union(indices: Sequence[Array], shape: Ints) -> tuple[Array, Array, Array]:
    """Two tensors' distinct positions, each index's position, and whether in range."""
    numbers = [_numbered(v, shape) for v in indices]
    known = all(isinstance(n, np.ndarray) for n in numbers)
    joined = (np if known else jnp).concatenate(numbers)
    places, which = _distinct(joined, math.prod(shape))
    return places, which, joined < math.prod(shape)


@_folding_rule("SparseAdd")
def _add(
    a_indices: Value,
    a: Array,
    shape: Ints,
    b_indices: Value,
    b: Array,
    b_shape: Value,
    threshold: Value,
    *,
    ctx: Context,
    node: Node,
) -> list[Array]:
    numbers, which, inside = _union([_indices(a_indices), _indices(b_indices)], shape)
    size = numbers.shape[0]
    total = _by_place("Sum", _or_zero(inside, jnp.concatenate([a, b])), which, size)
    places = _places(numbers, shape)
    # Sums below the threshold are dropped. Static indices stay, so that their number is static;
    # TensorFlow drops a NaN among those.
    exact = isinstance(threshold, np.ndarray) and threshold == 0
    if not (isinstance(numbers, np.ndarray) and exact):
        padded(ctx, node, size, "places")
        count = jnp.zeros(size, np.int32).at[which].add(inside.astype(np.int32))
        # XLA simplifies `abs(x) >= 0` to true, also for NaN.
        large = (lax.abs(total) >= array(threshold)) & (total == total)
        keep = (numbers < math.prod(shape)) & ((count < 2) | large)
        places, total = _masked(keep, places, total)
    return [places, total, pack_dims(shape, _INT64)]


@_folding_rule("SparseSparseMaximum", "SparseSparseMinimum")
def _extremum(
    a_indices: Value,
    a: Array,
    shape: Ints,
    b_indices: Value,
    b: Array,
    b_shape: Value,
    *,
    ctx: Context,
    node: Node,
) -> tuple[Array, Array]:
    indices = [_indices(a_indices), _indices(b_indices)]
    numbers, which, inside = _union(indices, shape)
    _note(ctx, node, numbers)
    sides = (jnp.split(v, [indices[0].shape[0]]) for v in (which, inside))
    # A value present in only one tensor is compared with zero.
    x, y = (
        _by_place("Sum", _or_zero(valid, values), places, numbers.shape[0])
        for values, places, valid in zip((a, b), *sides, strict=True)
    )
    fn = jnp.maximum if node.op.endswith("Maximum") else jnp.minimum
    return _places(numbers, shape), fn(x, y)


def _matched(rows: Array, wanted: Array, gradient: Array) -> Array:
    """The gradient at each of `wanted` in the sorted indices `rows`; 0 if absent."""
    both = jnp.concatenate([rows, wanted])
    # Sizes that contain all indices, since the shape is not an operand.
    sizes = jnp.maximum(jnp.max(both, axis=0, initial=0), 0) + 1
    strides = jnp.concatenate([jnp.cumprod(sizes[::-1])[::-1][1:], jnp.ones(1, _INT64)])

    def numbers(x: Array) -> Array:
        outside = jnp.any(x < 0, -1)
        return jnp.where(outside, np.iinfo(_INT64).max, jnp.sum(x * strides, -1))

    ordered, keys = numbers(rows), numbers(wanted)
    where = jnp.searchsorted(ordered, keys)
    hit = (_at(ordered, where, -1) == keys) & jnp.all(wanted >= 0, -1)
    return jnp.where(hit, _at(gradient, where), np.zeros((), gradient.dtype))


@rule("SparseAddGrad")
def _add_grad(g: Array, a: Array, b: Array, rows: Array) -> tuple[Array, Array]:
    g, a, b, rows = map(jnp.asarray, (g, a, b, rows))
    return _matched(rows, a, g), _matched(rows, b, g)


@rule("SparseSliceGrad")
def _slice_grad(g: Array, indices: Array, start: Array, rows: Array) -> Array:
    g, indices, start, rows = map(jnp.asarray, (g, indices, start, rows))
    return _matched(jnp.where(rows < 0, rows, rows + start), indices, g)


# -- reductions to sparse tensors


@_folding_rule("SparseReduceSumSparse", "SparseReduceMaxSparse")
def _reduce(
    indices: Value,
    values: Array,
    shape: Ints,
    axes: Ints,
    *,
    ctx: Context,
    node: Node,
    keep_dims: bool,
) -> list[Array]:
    indices = _indices(indices)
    reduced = {a % len(shape) for a in axes}
    kept = [i for i in range(len(shape)) if i not in reduced]
    sizes = tuple(shape[i] for i in kept)
    limit = math.prod(sizes)
    inside = _numbered(indices, shape) < math.prod(shape)
    xp = _library(indices)
    numbers = xp.where(inside, _numbered(indices[:, kept], sizes), limit)
    distinct, which = _distinct(numbers, limit)
    _note(ctx, node, distinct)
    out = _by_place("Sum" if "Sum" in node.op else "Max", values, which, distinct.shape[0])
    places = _places(distinct, sizes) if kept else xp.zeros((distinct.shape[0], 0), _INT64)
    if keep_dims:
        one = xp.where(distinct < limit, np.int64(0), np.int64(-1))
        places = xp.stack(
            [one if i in reduced else places[:, kept.index(i)] for i in range(len(shape))], -1
        )
        sizes = tuple(1 if i in reduced else n for i, n in enumerate(shape))
    return [places, _or_zero(distinct < limit, out), pack_dims(sizes, _INT64)]


# -- rows without elements


@_folding_rule("SparseFillEmptyRows", "RaggedFillEmptyRows")
def _fill_empty_rows(
    indices: Value, values: Array, shape: Ints, default: Array, *, ctx: Context, node: Node
) -> list[Array]:
    ragged = node.op.startswith("Ragged")
    indices = _indices(indices)
    columns = indices[:, None] if ragged else indices
    inside, filled, elements, empty, reverse = with_every_row(columns, values, shape[0], default)
    if isinstance(inside, np.ndarray):
        filled, elements = filled[inside], elements[: np.count_nonzero(inside)]
    else:
        padded(ctx, node, inside.shape[0], "elements")
        elements = _or_zero(inside, elements)
    return [filled[:, 0] if ragged else filled, elements, empty, reverse]


def with_every_row(
    columns: Array, values: Array, rows: Value, default: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Indices and values with an element in each of `rows` rows, in their order.

    **Returns:** a mask of the valid results, which come first; the indices, padded with -1; the
        values; which rows had no element; and the new position of each element.
    """
    xp = _library(columns) if isinstance(rows, int) else jnp
    size = columns.shape[0]
    row = xp.where(columns[:, 0] < 0, rows, columns[:, 0])
    every = xp.arange(rows, dtype=_INT64)
    if xp is np:
        empty = ~np.isin(every, row)
    else:
        empty = jnp.ones(rows, bool).at[row].set(False, mode="drop")
    # Elements and defaults in row order; defaults of rows that have elements come last.
    numbers = xp.concatenate([row, xp.where(empty, every, rows)])
    order = xp.argsort(numbers, stable=True)
    reverse = xp.argsort(order, stable=True)[:size].astype(_INT64)
    inside = numbers[order] < rows
    fillers = xp.stack([every, *[xp.zeros_like(every)] * (columns.shape[1] - 1)], -1)
    filled = xp.where(inside[:, None], xp.concatenate([columns, fillers])[order], np.int64(-1))
    elements = jnp.concatenate([values, jnp.broadcast_to(default, (rows,))])[order]
    return inside, filled, elements, empty, reverse


@rule("SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad")
def _fill_empty_rows_grad(reverse: Array, g: Array) -> tuple[Array, Array]:
    elements = jnp.zeros(g.shape, bool).at[reverse].set(True)
    return g[reverse], jnp.sum(jnp.where(elements, np.zeros((), g.dtype), g), dtype=g.dtype)


# -- sparse matrices as single values: CSR in TensorFlow, here indices and values
#
# (tensorflow/core/kernels/sparse/, TensorFlow 2.21.)

_INT32 = np.dtype(np.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Matrix:
    """A sparse matrix, or a batch of them.

    **Arguments:**

    - `indices`: of shape `[n, 2]`, or `[n, 3]` with the batch first, in row-major order.
    - `values`: of shape `[n]`.
    - `shape`: sizes of the axes.
    """

    indices: Array
    values: Array
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def transposed(self) -> Matrix:
        rank = len(self.shape)
        order = [*range(rank - 2), rank - 1, rank - 2]
        swapped = self.indices[:, np.array(order)]
        lib: ModuleType = np if isinstance(swapped, np.ndarray) else jnp
        by_row = lib.lexsort([swapped[:, axis] for axis in reversed(range(rank))])
        shape = tuple(self.shape[axis] for axis in order)
        return Matrix(swapped[by_row], jnp.asarray(self.values)[by_row], shape)

    def conjugated(self) -> Matrix:
        return Matrix(self.indices, jnp.conj(self.values), self.shape)


@rule("SparseTensorToCSRSparseMatrix")
def _of_sparse(indices: Array, values: Array, shape: Ints) -> Matrix:
    return Matrix(indices, values, shape)


@rule("DenseToCSRSparseMatrix")
def _of_dense(x: Array, indices: Array) -> Matrix:
    return Matrix(indices, x[tuple(indices.T)], tuple(x.shape))


@rule("CSRSparseMatrixToDense")
def _to_dense(matrix: Value) -> Array:
    return dense(matrix.indices, matrix.values, matrix.shape)


@rule("CSRSparseMatrixToSparseTensor")
def _to_sparse(matrix: Value) -> tuple[Array, Array, np.ndarray]:
    return matrix.indices, matrix.values, np.asarray(matrix.shape, _INT64)


@rule("SparseMatrixNNZ")
def _count(matrix: Value) -> Array:
    if len(matrix.shape) == 2:
        return np.asarray(matrix.indices.shape[0], _INT32)
    return jnp.bincount(matrix.indices[:, 0], length=matrix.shape[0]).astype(_INT32)


@rule("SparseMatrixTranspose")
def _transpose(matrix: Value, *, conjugate: bool) -> Matrix:
    transposed = matrix.transposed()
    return transposed.conjugated() if conjugate else transposed


@rule("CSRSparseMatrixComponents")
def _components(matrix: Value, index: Value, *, node: Node) -> tuple[Array, Array, Array]:
    if len(matrix.shape) != 2:
        raise node.error(
            "takes one matrix of a batch, whose number of values is unknown",
            "Take it from a batch of one.",
        )
    rows, columns = (matrix.indices[:, i].astype(_INT32) for i in (0, 1))
    starts = jnp.searchsorted(rows, lax.iota(_INT32, matrix.shape[0] + 1))
    return starts.astype(_INT32), columns, matrix.values


@rule("SparseMatrixMatMul")
def _csr_matmul(
    matrix: Value,
    b: Array,
    *,
    transpose_a: bool,
    transpose_b: bool,
    adjoint_a: bool,
    adjoint_b: bool,
    transpose_output: bool,
    conjugate_output: bool,
) -> Array:
    if transpose_a or adjoint_a:
        matrix = matrix.transposed()
    if adjoint_a:
        matrix = matrix.conjugated()
    if transpose_b:
        b = jnp.swapaxes(b, -1, -2)
    elif adjoint_b:
        b = adjoint(b)
    *batch, row, column = matrix.indices.T
    products = matrix.values[:, None] * b[(*batch, column)]
    out = jnp.zeros((*matrix.shape[:-1], b.shape[-1]), b.dtype).at[(*batch, row)].add(products)
    if conjugate_output:
        out = jnp.conj(out)
    return jnp.swapaxes(out, -1, -2) if transpose_output else out
