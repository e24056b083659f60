"""Sparse matrices as single values, which `tf.linalg` keeps by rows: here as indices and values.

(tensorflow/core/kernels/sparse/, TensorFlow 2.21.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import adjoint
from invert.primitives.tf.sparse import dense
from invert.primitives.tf.window import refuse
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


@jax.tree_util.register_pytree_node_class
class Matrix:
    """A sparse matrix, or a batch of them.

    **Arguments:**

    - `indices`: of shape `[n, 2]`, or `[n, 3]` with the batch first, in the order of rows.
    - `values`: of shape `[n]`.
    - `shape`: sizes of the axes.
    """

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...]):
        self.indices, self.values, self.shape = indices, values, shape

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, ...]]:
        return (self.indices, self.values), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: Any) -> Matrix:
        return cls(children[0], children[1], shape)

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


@raises_tf("SparseTensorToCSRSparseMatrix")
def _of_sparse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [Matrix(array(values[0]), array(values[1]), ints(static(node, values, 2)))]


@raises_tf("DenseToCSRSparseMatrix")
def _of_dense(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, indices = array(values[0]), array(values[1])
    return [Matrix(indices, x[tuple(indices.T)], tuple(x.shape))]


@raises_tf("CSRSparseMatrixToDense")
def _to_dense(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (matrix,) = values
    return [dense(matrix.indices, matrix.values, matrix.shape)]


@raises_tf("CSRSparseMatrixToSparseTensor")
def _to_sparse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (matrix,) = values
    return [matrix.indices, matrix.values, np.asarray(matrix.shape, _INT64)]


@raises_tf("SparseMatrixNNZ")
def _count(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (matrix,) = values
    if len(matrix.shape) == 2:
        return [np.asarray(matrix.indices.shape[0], _INT32)]
    return [jnp.bincount(matrix.indices[:, 0], length=matrix.shape[0]).astype(_INT32)]


@raises_tf("SparseMatrixTranspose")
def _transpose(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    found = values[0].transposed()
    return [found.conjugated() if node.attr("conjugate", False) else found]


@raises_tf("CSRSparseMatrixComponents")
def _components(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    matrix = values[0]
    if len(matrix.shape) != 2:
        raise refuse(node, "takes one of several matrices, whose number of values is not known")
    rows, columns = (matrix.indices[:, i].astype(_INT32) for i in (0, 1))
    starts = jnp.searchsorted(rows, lax.iota(_INT32, matrix.shape[0] + 1))
    return [starts.astype(_INT32), columns, matrix.values]


@raises_tf("SparseMatrixMatMul")
def _matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    matrix, b = values[0], array(values[1])
    if node.attr("transpose_a", False) or node.attr("adjoint_a", False):
        matrix = matrix.transposed()
    if node.attr("adjoint_a", False):
        matrix = matrix.conjugated()
    if node.attr("transpose_b", False):
        b = jnp.swapaxes(b, -1, -2)
    elif node.attr("adjoint_b", False):
        b = adjoint(b)
    *batch, row, column = matrix.indices.T
    products = matrix.values[:, None] * b[(*batch, column)]
    shape = (*matrix.shape[:-1], b.shape[-1])
    found = jnp.zeros(shape, b.dtype).at[(*batch, row)].add(products)
    if node.attr("conjugate_output", False):
        found = jnp.conj(found)
    return [jnp.swapaxes(found, -1, -2) if node.attr("transpose_output", False) else found]
