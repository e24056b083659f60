"""Sparse matrices as single values: CSR in TensorFlow, here indices and values.

(tensorflow/core/kernels/sparse/, TensorFlow 2.21.)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import adjoint
from invert.primitives.tf.sparse import dense
from invert.tf.interpreter.registry import Array, Ints, Value, rule
from invert.tf.ops.node import Node

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


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
        lib: Any = np if isinstance(swapped, np.ndarray) else jnp
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
def _matmul(
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
