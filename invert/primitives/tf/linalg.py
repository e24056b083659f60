"""Decompositions, solutions and functions of matrices.

If TensorFlow raises on the CPU (for a singular or not positive definite matrix), the result here is
NaN or infinite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.diagonals import tril
from invert.primitives.tf.matmul import adjoint, transpose
from invert.primitives.tf.window import is_half
from invert.tf.interpreter.registry import Array, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.values.constants import broadcast_to


def _in_single(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Matrices in half precision are decomposed in single precision, as XLA does for TensorFlow."""

    @functools.wraps(fn)
    def wide(x: Array, *others: Array, **attributes: object) -> list[Array]:
        if not is_half(x.dtype):
            results = fn(x, *others, **attributes)
            return list(results) if isinstance(results, (list, tuple)) else [results]
        operands = [v.astype(np.float32) if v.dtype == x.dtype else v for v in (x, *others)]
        results = fn(*operands, **attributes)
        results = results if isinstance(results, (list, tuple)) else [results]
        return [y.astype(x.dtype) if y.dtype == np.float32 else y for y in results]

    return wide


@jax.custom_jvp
def cholesky(x: Array) -> Array:
    """Read the lower triangle; the derivative is symmetric, in both triangles."""
    return lax.linalg.cholesky(x, symmetrize_input=False)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    whole = tril(x) + adjoint(tril(x, -1))
    half = np.asarray(0.5, x.dtype)
    return jax.jvp(
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        (whole,),
        ((dx + adjoint(dx)) * half,),
    )


rule("Cholesky", "BatchCholesky")(_in_single(lambda x: cholesky(x)))


@rule("CholeskyGrad", "BatchCholeskyGrad")
def _cholesky_grad(l: Array, grad: Array) -> Array:  # noqa: E741
    middle = tril(jnp.matmul(transpose(l), tril(grad)))
    diagonal = lax.eq(*(lax.broadcasted_iota(np.int32, l.shape, l.ndim - d) for d in (2, 1)))
    middle = lax.select(diagonal, middle * np.asarray(0.5, l.dtype), middle)
    left = lax.linalg.triangular_solve(l, middle, left_side=True, lower=True, transpose_a=True)
    out = lax.linalg.triangular_solve(l, left, left_side=False, lower=True)
    return (out + transpose(out)) * np.asarray(0.5, l.dtype)


@rule("Qr")
@_in_single
def _qr(x: Array, *, full_matrices: bool) -> tuple[Array, Array]:
    return lax.linalg.qr(x, full_matrices=full_matrices)


@rule("Svd", "BatchSvd")
@_in_single
def _svd(x: Array, *, compute_uv: bool, full_matrices: bool) -> list[Array]:
    if not compute_uv:
        s = jnp.linalg.svd(x, compute_uv=False)
        empty = lax.full((0,), 0, x.dtype)
        return [lax.convert_element_type(s, x.dtype), empty, empty]
    u, s, vh = lax.linalg.svd(x, full_matrices=full_matrices)
    return [lax.convert_element_type(s, x.dtype), u, adjoint(vh)]


@rule("SelfAdjointEigV2", "BatchSelfAdjointEigV2")
@_in_single
def _eigh(x: Array, *, compute_v: bool) -> list[Array]:
    # TensorFlow reads only the lower triangle, so its gradient is in the lower triangle too.
    x = lax.add(tril(x), adjoint(tril(x, -1)))
    v, w = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    return [
        lax.convert_element_type(w, x.dtype),
        v if compute_v else lax.full((0,), 0, x.dtype),
    ]


@rule("SelfAdjointEig", "BatchSelfAdjointEig")
@_in_single
def _first_eigh(x: Array) -> Array:
    v, w = lax.linalg.eigh(x, lower=True, symmetrize_input=False)
    row = lax.expand_dims(lax.convert_element_type(w, x.dtype), (x.ndim - 2,))
    return lax.concatenate([row, v], x.ndim - 2)


@rule("Eig")
@_in_single
def _eig(x: Array, *, compute_v: bool, Tout: np.dtype) -> list[Array]:
    dtype = jax.dtypes.canonicalize_dtype(Tout)
    if not compute_v:
        (w,) = lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
        return [lax.convert_element_type(w, dtype), lax.full((0,), 0, dtype)]
    w, v = lax.linalg.eig(x, compute_left_eigenvectors=False)
    return [lax.convert_element_type(w, dtype), lax.convert_element_type(v, dtype)]


@rule("Lu")
@_in_single
def _lu(x: Array, *, output_idx_type: np.dtype) -> list[Array]:
    lu, _, permutation = lax.linalg.lu(x)
    return [lu, lax.convert_element_type(permutation, output_idx_type)]


@rule("MatrixInverse", "BatchMatrixInverse")
@_in_single
def _inverse(x: Array, *, adjoint: bool) -> Array:
    return jnp.linalg.inv(_adjoint_if(adjoint, x))


def _adjoint_if(wanted: bool, x: Array) -> Array:
    return adjoint(x) if wanted else x


rule("MatrixDeterminant", "BatchMatrixDeterminant")(_in_single(lambda x: jnp.linalg.det(x)))


@rule("LogMatrixDeterminant")
@_in_single
def _log_determinant(x: Array) -> list[Array]:
    sign, log = jnp.linalg.slogdet(x)
    return [sign, lax.convert_element_type(log, x.dtype)]


@rule("MatrixSolve", "BatchMatrixSolve")
@_in_single
def _solve(a: Array, b: Array, *, adjoint: bool) -> Array:
    return jnp.linalg.solve(_adjoint_if(adjoint, a), b)


def _same_batch(a: Array, b: Array) -> tuple[Array, Array]:
    batch = lax.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return broadcast_to(a, (*batch, *a.shape[-2:])), broadcast_to(b, (*batch, *b.shape[-2:]))


@rule("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def _triangular_solve(a: Array, b: Array, *, lower: bool, adjoint: bool) -> Array:
    a, b = _same_batch(a, b)
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=lower,
        transpose_a=adjoint,
        conjugate_a=adjoint and jnp.issubdtype(a.dtype, jnp.complexfloating),
    )


@rule("BandedTriangularSolve")
def _banded_solve(bands: Array, b: Array, *, lower: bool, adjoint: bool) -> Array:
    count, size = bands.shape[-2:]
    i, j = np.indices((size, size))
    # Row d holds diagonal d by column, starting at the end inside the matrix.
    d = i - j if lower else count - 1 - (j - i)
    offset = i - j if lower else j - i
    inside = (offset >= 0) & (offset < count)
    dense = bands[..., np.where(inside, d, 0), i]
    dense = lax.select(broadcast_to(inside, dense.shape), dense, lax.full_like(dense, 0))
    return _triangular_solve(dense, b, lower=lower, adjoint=adjoint)


@rule("MatrixSolveLs", "BatchMatrixSolveLs")
@_in_single
def _solve_ls(a: Array, b: Array, l2_regularizer: Array, *, fast: bool) -> Array:
    if not fast:
        # The solution of least norm; the regularizer is not used.
        return jnp.matmul(jnp.linalg.pinv(a), b)
    rows, columns = a.shape[-2:]
    weight = lax.convert_element_type(l2_regularizer, a.dtype)
    eye = jnp.eye(min(rows, columns), dtype=a.dtype) * weight
    h = adjoint(a)
    if rows >= columns:
        return jnp.linalg.solve(jnp.matmul(h, a) + eye, jnp.matmul(h, b))
    return jnp.matmul(h, jnp.linalg.solve(jnp.matmul(a, h) + eye, b))


rule("MatrixExponential")(lambda x: jax.scipy.linalg.expm(x))


rule("MatrixLogarithm")(_in_single(lambda x: _by_eigenvalues(lax.log, x)))
rule("MatrixSquareRoot")(_in_single(lambda x: square_root(x)))


def _root_tangent(y: Array, primals: tuple[Array], tangents: tuple[Array]) -> Array:
    # Y Y = X implies Y dY + dY Y = dX: a linear equation for the stacked rows of dY
    # (`_MatrixSquareRootGrad` of tensorflow/python/ops/linalg_grad.py, TensorFlow 2.21).
    (x,), (dx,), n = primals, tangents, y.shape[-1]
    one = jnp.eye(n, dtype=x.dtype)
    rows = jnp.einsum("...ij,kl->...ikjl", y, one) + jnp.einsum("ij,...lk->...ikjl", one, y)
    batch = x.shape[:-2]
    system = lax.reshape(rows, (*batch, n * n, n * n))
    dy = jnp.linalg.solve(system, lax.reshape(dx, (*batch, n * n, 1)))
    return lax.reshape(dy, x.shape)


@with_tangent(_root_tangent)
def square_root(x: Array) -> Array:
    """The principal square root of a matrix, of shape `[..., n, n]`."""
    return _by_eigenvalues(lax.sqrt, x)


def _by_eigenvalues(fn: Callable[[Array], Array], x: Array) -> Array:
    """`fn` of a matrix that has a basis of eigenvectors."""
    w, v = lax.linalg.eig(x, compute_left_eigenvectors=False)
    scaled = v * lax.expand_dims(fn(w), (w.ndim - 1,))
    out = adjoint(jnp.linalg.solve(adjoint(v), adjoint(scaled)))
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        out = lax.real(out)
    return lax.convert_element_type(out, x.dtype)


# Whether to pivot is left to the solver.
@rule("TridiagonalSolve", ignores=("partial_pivoting",))
def _tridiagonal_solve(diagonals: Array, b: Array) -> Array:
    above, main, below = (diagonals[..., i, :] for i in range(3))
    # Entries outside the matrix are not read.
    size = main.shape[-1]
    place = lax.broadcasted_iota(np.int32, main.shape, main.ndim - 1)
    first, last = place == 0, place == size - 1
    zero = lax.full_like(main, 0)
    above, below = lax.select(last, zero, above), lax.select(first, zero, below)
    return lax.linalg.tridiagonal_solve(below, main, above, b)
