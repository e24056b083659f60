"""Decompositions, solutions and functions of matrices.

Where TensorFlow raises on the CPU (a matrix that is singular or not positive definite), the result
is NaN or infinite.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import adjoint, transpose
from invert.primitives.tf.window import is_half
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to


def _in_single(rule: Rule) -> Rule:
    """Matrices in half precision are decomposed in single precision, as XLA does for TensorFlow."""

    def wide(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        dtype = values[0].dtype
        if not is_half(dtype):
            return list(rule(ctx, node, values))
        single = [array(v).astype(np.float32) if v.dtype == dtype else v for v in values]
        return [y.astype(dtype) if y.dtype == np.float32 else y for y in rule(ctx, node, single)]

    return wide


@jax.custom_jvp
def cholesky(x: Any) -> Any:
    """Reads the lower triangle; its derivative is that of the symmetric matrix, in both."""
    return lax.linalg.cholesky(x, symmetrize_input=False)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    whole = jnp.tril(x) + adjoint(jnp.tril(x, -1))
    half = np.asarray(0.5, x.dtype)
    return jax.jvp(
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        (whole,),
        ((dx + adjoint(dx)) * half,),
    )


@raises_tf("Cholesky", "BatchCholesky")
@_in_single
def _cholesky(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [cholesky(array(values[0]))]


@raises_tf("CholeskyGrad", "BatchCholeskyGrad")
def _cholesky_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    l, grad = (array(v) for v in values)  # noqa: E741
    middle = jnp.tril(jnp.matmul(transpose(l), jnp.tril(grad)))
    diagonal = lax.eq(*(lax.broadcasted_iota(np.int32, l.shape, l.ndim - d) for d in (2, 1)))
    middle = lax.select(diagonal, middle * np.asarray(0.5, l.dtype), middle)
    left = lax.linalg.triangular_solve(l, middle, left_side=True, lower=True, transpose_a=True)
    out = lax.linalg.triangular_solve(l, left, left_side=False, lower=True)
    return [(out + transpose(out)) * np.asarray(0.5, l.dtype)]


@raises_tf("Qr")
@_in_single
def _qr(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    full = node.attr("full_matrices", False)
    return list(lax.linalg.qr(array(values[0]), full_matrices=full))


@raises_tf("Svd", "BatchSvd")
@_in_single
def _svd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    full = node.attr("full_matrices", False)
    if not node.attr("compute_uv", True):
        s = jnp.linalg.svd(x, compute_uv=False)
        empty = lax.full((0,), 0, x.dtype)
        return [lax.convert_element_type(s, x.dtype), empty, empty]
    u, s, vh = lax.linalg.svd(x, full_matrices=full)
    return [lax.convert_element_type(s, x.dtype), u, adjoint(vh)]


@raises_tf("SelfAdjointEigV2", "BatchSelfAdjointEigV2")
@_in_single
def _eigh(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = _hermitian(array(values[0]))
    if not node.attr("compute_v", True):
        return [_eigenvalues(x), lax.full((0,), 0, x.dtype)]
    v, w = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    return [lax.convert_element_type(w, x.dtype), v]


def _hermitian(x: Any) -> Any:
    """The Hermitian matrix with the lower triangle of `x`.

    TensorFlow reads nothing else of it, and so its gradient is one of the lower triangle.
    """
    return lax.add(jnp.tril(x), adjoint(jnp.tril(x, -1)))


def _eigenvalues(x: Any) -> Any:
    _, w = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    return lax.convert_element_type(w, x.dtype)


@raises_tf("SelfAdjointEig", "BatchSelfAdjointEig")
@_in_single
def _first_eigh(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    v, w = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    row = lax.expand_dims(lax.convert_element_type(w, x.dtype), (x.ndim - 2,))
    return [lax.concatenate([row, v], x.ndim - 2)]


@raises_tf("Eig")
@_in_single
def _eig(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, dtype = array(values[0]), jax.dtypes.canonicalize_dtype(node.attr("Tout"))
    if not node.attr("compute_v", True):
        (w,) = lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
        return [lax.convert_element_type(w, dtype), lax.full((0,), 0, dtype)]
    w, v = lax.linalg.eig(x, compute_left_eigenvectors=False)
    return [lax.convert_element_type(w, dtype), lax.convert_element_type(v, dtype)]


@raises_tf("Lu")
@_in_single
def _lu(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lu, _, permutation = lax.linalg.lu(array(values[0]))
    dtype = node.attr("output_idx_type", np.dtype(np.int32))
    return [lu, lax.convert_element_type(permutation, dtype)]


@raises_tf("MatrixInverse", "BatchMatrixInverse")
@_in_single
def _inverse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [jnp.linalg.inv(adjoint(x) if node.attr("adjoint", False) else x)]


@raises_tf("MatrixDeterminant", "BatchMatrixDeterminant")
@_in_single
def _determinant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.linalg.det(array(values[0]))]


@raises_tf("LogMatrixDeterminant")
@_in_single
def _log_determinant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    sign, log = jnp.linalg.slogdet(x)
    return [sign, lax.convert_element_type(log, x.dtype)]


@raises_tf("MatrixSolve", "BatchMatrixSolve")
@_in_single
def _solve(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    a, b = (array(v) for v in values)
    return [jnp.linalg.solve(adjoint(a) if node.attr("adjoint", False) else a, b)]


def _same_batch(a: Any, b: Any) -> tuple[Any, Any]:
    batch = lax.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return broadcast_to(a, (*batch, *a.shape[-2:])), broadcast_to(b, (*batch, *b.shape[-2:]))


def _triangular(a: Any, b: Any, node: Node) -> Any:
    a, b = _same_batch(a, b)
    adjoint = node.attr("adjoint", False)
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=node.attr("lower", True),
        transpose_a=adjoint,
        conjugate_a=adjoint and jnp.issubdtype(a.dtype, jnp.complexfloating),
    )


@raises_tf("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def _triangular_solve(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_triangular(array(values[0]), array(values[1]), node)]


@raises_tf("BandedTriangularSolve")
def _banded_solve(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    bands, b = (array(v) for v in values)
    count, size = bands.shape[-2:]
    i, j = np.indices((size, size))
    # Row d holds diagonal d: by column, starting at the end that lies in the matrix.
    lower = node.attr("lower", True)
    d = i - j if lower else count - 1 - (j - i)
    offset = i - j if lower else j - i
    inside = (offset >= 0) & (offset < count)
    dense = bands[..., np.where(inside, d, 0), i]
    dense = lax.select(broadcast_to(inside, dense.shape), dense, lax.full_like(dense, 0))
    return [_triangular(dense, b, node)]


@raises_tf("MatrixSolveLs", "BatchMatrixSolveLs")
@_in_single
def _solve_ls(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    a, b, weight = (array(v) for v in values)
    if not node.attr("fast", True):
        # The solution of least norm; the weight is not used.
        return [jnp.matmul(jnp.linalg.pinv(a), b)]
    rows, columns = a.shape[-2:]
    eye = jnp.eye(min(rows, columns), dtype=a.dtype) * lax.convert_element_type(weight, a.dtype)
    h = adjoint(a)
    if rows >= columns:
        return [jnp.linalg.solve(jnp.matmul(h, a) + eye, jnp.matmul(h, b))]
    return [jnp.matmul(h, jnp.linalg.solve(jnp.matmul(a, h) + eye, b))]


@raises_tf("MatrixExponential")
def _exponential(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.scipy.linalg.expm(array(values[0]))]


@raises_tf("MatrixLogarithm")
@_in_single
def _logarithm(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_by_eigenvalues(lax.log, array(values[0]))]


@raises_tf("MatrixSquareRoot")
@_in_single
def _square_root(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [square_root(array(values[0]))]


@jax.custom_jvp
def square_root(x: Any) -> Any:
    """The principal square root of a matrix, of shape `[..., n, n]`."""
    return _by_eigenvalues(lax.sqrt, x)


@square_root.defjvp
def _square_root_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    # Y Y = X makes Y dY + dY Y = dX: a linear equation for the rows of dY, one below the other
    # (`_MatrixSquareRootGrad` of tensorflow/python/ops/linalg_grad.py, TensorFlow 2.21).
    (x,), (dx,) = primals, tangents
    y, n = square_root(x), x.shape[-1]
    one = jnp.eye(n, dtype=x.dtype)
    rows = jnp.einsum("...ij,kl->...ikjl", y, one) + jnp.einsum("ij,...lk->...ikjl", one, y)
    batch = x.shape[:-2]
    system = lax.reshape(rows, (*batch, n * n, n * n))
    dy = jnp.linalg.solve(system, lax.reshape(dx, (*batch, n * n, 1)))
    return y, lax.reshape(dy, x.shape)


def _by_eigenvalues(fn: Any, x: Any) -> Any:
    """`fn` of a matrix that has a basis of eigenvectors."""
    w, v = lax.linalg.eig(x, compute_left_eigenvectors=False)
    scaled = v * lax.expand_dims(fn(w), (w.ndim - 1,))
    out = adjoint(jnp.linalg.solve(adjoint(v), adjoint(scaled)))
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        out = lax.real(out)
    return lax.convert_element_type(out, x.dtype)


@raises_tf("TridiagonalSolve")
def _tridiagonal_solve(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    diagonals, b = (array(v) for v in values)
    above, main, below = (diagonals[..., i, :] for i in range(3))
    # What lies outside of the matrix is not read.
    size = main.shape[-1]
    place = lax.broadcasted_iota(np.int32, main.shape, main.ndim - 1)
    first, last = place == 0, place == size - 1
    zero = lax.full_like(main, 0)
    above, below = lax.select(last, zero, above), lax.select(first, zero, below)
    return [lax.linalg.tridiagonal_solve(below, main, above, b)]
