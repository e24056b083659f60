"""Decompositions, solutions and functions of matrices.

If TensorFlow raises on the CPU (for a singular or not positive definite matrix), the result here is
NaN or infinite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import as_value, decided, is_open, require
from invert.primitives.tf.matmul import adjoint, transpose
from invert.primitives.tf.window import is_half
from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints
from invert.tf.values.dynamic_size import int_min


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
    # TensorFlow's eigenvectors have a derivative; JAX's have it if asked for. So have the second
    # derivatives of eigenvalues, which take it.
    w, *v = lax.linalg.eig(
        x,
        compute_left_eigenvectors=False,
        compute_right_eigenvectors=compute_v,
        enable_eigvec_derivs=True,
    )
    v = lax.convert_element_type(v[0], dtype) if compute_v else lax.full((0,), 0, dtype)
    return [lax.convert_element_type(w, dtype), v]


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
        conjugate_a=adjoint and jnp.iscomplexobj(a),
    )


@rule("BandedTriangularSolve")
def _banded_solve(bands: Array, b: Array, *, node: Node, lower: bool, adjoint: bool) -> Array:
    count, size = bands.shape[-2:]
    check_bytes(node, "a table of its entries", size * size * np.dtype(np.int64).itemsize)
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


@rule("MatrixLogarithm")
@_in_single
def _matrix_logarithm(x: Array) -> Array:
    return _of_triangle(_log_of_triangle, x)


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
    """The principal square root of a matrix, of shape `[..., n, n]`; NaN if there is none."""
    y = _of_triangle(_root_of_triangle, x)
    if not jnp.iscomplexobj(x):
        y = jnp.real(y)
    # A real matrix with a negative eigenvalue has no real root, [[0, 1], [0, 0]] none at all.
    error = lax.abs(lax.sub(jnp.matmul(y, y, precision="highest"), x))
    n, eps = x.shape[-1], float(jnp.finfo(x.dtype).eps)
    allowed = 10 * n * eps * jnp.sum(lax.square(lax.abs(y)), (-2, -1), keepdims=True)
    is_root = jnp.all(error <= allowed, (-2, -1), keepdims=True)
    return jnp.where(is_root, y, np.nan).astype(x.dtype)


def _of_triangle(fn: Callable[[Array], Array], x: Array) -> Array:
    """`fn` of a matrix, given for upper triangular ones: by its Schur form."""
    if x.shape[-1] == 0:
        return x
    t, u = lax.linalg.schur(x.astype(jnp.promote_types(x.dtype, np.complex64)))
    by_highest = functools.partial(jnp.matmul, precision="highest")
    return by_highest(by_highest(u, fn(t)), adjoint(u))


def _root_of_triangle(t: Array) -> Array:
    """The square root of an upper triangular matrix, column by column.

    The method of Björck and Hammarling (1983), "A Schur method for the square root of a matrix".
    """
    n = t.shape[-1]
    eye, rows = jnp.eye(n, dtype=t.dtype), jnp.arange(n)
    roots = lax.sqrt(jnp.diagonal(t, axis1=-2, axis2=-1))

    def column(j: Array, y: Array) -> Array:
        # Above the diagonal, Y Y = T says (Y + y[j, j]) y[:, j] = t[:, j].
        above = rows < j
        system = jnp.where(above, y, 0) + roots[..., j, None, None] * eye
        zero = jnp.diagonal(system, axis1=-2, axis2=-1) == 0
        system = system + eye * zero.astype(t.dtype)[..., None]
        right = jnp.where(above, t[..., :, j], 0)[..., None]
        return y + eye[j] * lax.linalg.triangular_solve(system, right, left_side=True)

    return lax.fori_loop(1, n, column, roots[..., None] * eye)


# Steps to bring the eigenvalues of any matrix near to one: 2 ** _ROOTS exceeds the logarithm of the
# largest double, and more roots would lose digits.
_ROOTS = 10


def _log_of_triangle(t: Array) -> Array:
    """The logarithm of an upper triangular matrix, by roots until it is near to one.

    The inverse scaling and squaring method with the partial fractions of Higham (2001),
    "Evaluating Padé approximants of the matrix logarithm".
    """
    eye = jnp.eye(t.shape[-1], dtype=t.dtype)

    def is_far(state: tuple[Array, Array]) -> Array:
        y, count = state
        norms = jnp.sum(lax.abs(lax.sub(y, jnp.broadcast_to(eye, y.shape))), -2)
        return (count < _ROOTS) & jnp.any(norms > 0.25)

    def rooted(state: tuple[Array, Array]) -> tuple[Array, Array]:
        y, count = state
        return _root_of_triangle(y), count + 1

    y, count = lax.while_loop(is_far, rooted, (t, jnp.int32(0)))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    less = y - eye
    total = lax.full_like(t, 0)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        system = eye + np.asarray(node, t.dtype) * less
        part = lax.linalg.triangular_solve(system, less, left_side=True)
        total = total + np.asarray(weight, t.dtype) * part
    scale = lax.exp2(count.astype(lax.real(t).dtype)).astype(t.dtype)
    is_singular = jnp.any(jnp.diagonal(t, axis1=-2, axis2=-1) == 0, -1)[..., None, None]
    return jnp.where(is_singular, np.nan, total * scale)


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


# -- diagonals and bands (tensorflow/core/kernels/linalg/matrix_diag_op.cc)


def tril(x: Array, k: int = 0) -> Array:
    """`jnp.tril`, with 64-bit counts of open sizes only for 64-bit matrices."""
    return _triangle(jnp.tril, x, k)


def _triangle(function: Callable[..., Array], x: Array, k: int) -> Array:
    with jax.enable_x64(x.dtype.itemsize > 4):
        return function(x, np.int32(k))


@rule("MatrixBandPart", "BatchMatrixBandPart")
def _band_part(x: Array, num_lower: Value, num_upper: Value, *, node: Node) -> Array:
    for count, size, lines in (
        (num_lower, x.shape[-2], "rows"),
        (num_upper, x.shape[-1], "columns"),
    ):
        if isinstance(count, np.ndarray):
            (n,) = ints(count)
            message = f"a band of {n} diagonals of a matrix of {size} {lines}"
            if decided("gt", n, size):
                raise node.error(f"has {message}", "Name diagonals of the matrix.")
            require(n, "le", size, message)
    if all(isinstance(n, np.ndarray) and n.dtype != object for n in (num_lower, num_upper)):
        (lower,), (upper,) = ints(num_lower), ints(num_upper)
        x = tril(x, upper) if upper >= 0 else x
        return _triangle(jnp.triu, x, -lower) if lower >= 0 else x
    lower, upper = array(num_lower), array(num_upper)
    below = jnp.arange(x.shape[-2])[:, None] - jnp.arange(x.shape[-1])
    keep = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return lax.select(broadcast_to(keep, x.shape), x, lax.full_like(x, 0))


@rule("Diag")
def _diag(x: Array) -> Array:
    square = jnp.diag(lax.reshape(x, (math.prod(x.shape),)))
    return lax.reshape(square, (*x.shape, *x.shape))


@rule("DiagPart")
def _diag_part(x: Array) -> Array:
    shape = x.shape[: x.ndim // 2]
    size = math.prod(shape)
    return lax.reshape(jnp.diagonal(lax.reshape(x, (size, size))), shape)


# Larger tables of places are computed by the program.
_MOST_PLACES = 1 << 20


def _places(rows: Int, columns: Int) -> tuple[Value, Value]:
    """The row and the column of each element of a matrix, as numbers if there are not too many."""
    if is_open(rows) or is_open(columns) or rows * columns > _MOST_PLACES:
        i, j = (lax.broadcasted_iota(np.int32, (rows, columns), axis) for axis in range(2))
    else:
        i, j = np.indices((rows, columns))
    return i, j


def _require_diagonals(node: Node, low: int, high: int, rows: Int, columns: Int) -> None:
    for k in {low, high} - {0}:
        size = rows if k < 0 else columns
        message = f"diagonal {k} of a matrix of {rows} rows and {columns} columns"
        if decided("gt", size, abs(k)) is False:
            raise node.error(f"has {message}", "Name diagonals of the matrix.")
        require(size, "gt", abs(k), message)


def _starts(d: Value, shape: Ints, align: str, longest: Int) -> tuple[Value, Value]:
    """Where diagonals `d` start in their rows of a band, and their lengths."""
    xp = np if isinstance(d, np.ndarray) else jnp
    rows, columns, longest = (as_value(n, d.dtype) for n in (*shape, longest))
    length = xp.minimum(rows + xp.minimum(d, 0), columns - xp.maximum(d, 0))
    above, below = (side == "LEFT" for side in align.split("_"))
    left = ((d >= 0) & above) | ((d <= 0) & below)
    return xp.where(left, 0, longest - length), length


@rule("MatrixDiagPart", "BatchMatrixDiagPart")
def _main_diag_part(x: Array, *, node: Node) -> Array:
    return _diagonal(node, x, 0)


def _diagonal(node: Node, x: Array, k: int) -> Array:
    rows, columns = x.shape[-2:]
    _require_diagonals(node, k, k, rows, columns)
    if decided("le", rows + min(k, 0), columns - max(k, 0)) is None:
        return lax.squeeze(_diagonals(node, x, k, k, "LEFT_LEFT", None), (x.ndim - 2,))
    return jnp.diagonal(x, k, axis1=-2, axis2=-1)


def _diagonals(
    node: Node, x: Array, low: int, high: int, align: str, padding: Array | None
) -> Array:
    """The diagonals `low` to `high` as rows, the highest first."""
    rows, columns = x.shape[-2:]
    _require_diagonals(node, low, high, rows, columns)
    longest = int_min(rows + min(high, 0), columns - max(low, 0))
    band, place = _places(high - low + 1, longest)
    d = high - band
    xp = np if isinstance(d, np.ndarray) else jnp
    start, length = _starts(d, (rows, columns), align, longest)
    place = place - start
    inside = (place >= 0) & (place < length)
    i, j = place - xp.minimum(d, 0), place + xp.maximum(d, 0)
    picked = x[..., xp.where(inside, i, 0), xp.where(inside, j, 0)]
    if padding is None or (isinstance(inside, np.ndarray) and inside.all()):
        return picked
    inside = broadcast_to(inside, picked.shape)
    return lax.select(inside, picked, broadcast_to(padding, picked.shape))


@rule("MatrixDiagPartV2", "MatrixDiagPartV3")
def _matrix_diag_part(
    x: Array, k: Ints, padding: Array, *, node: Node, align: str = "LEFT_LEFT"
) -> Array:
    low, high = k[0], k[-1]
    if low == high:
        return _diagonal(node, x, low)
    return _diagonals(node, x, low, high, align, padding)


@rule("MatrixDiag", "BatchMatrixDiag")
def _main_matrix_diag(x: Array, *, node: Node) -> Array:
    shape = (*x.shape, x.shape[-1])
    return _set_band(node, x, lax.full(shape, 0, x.dtype), 0, 0, "LEFT_LEFT", band=False)


@rule("MatrixDiagV2", "MatrixDiagV3")
def _matrix_diag(
    x: Array,
    k: Ints,
    rows: Int,
    columns: Int,
    padding: Array,
    *,
    node: Node,
    align: str = "LEFT_LEFT",
) -> Array:
    low, high = k[0], k[-1]
    longest = x.shape[-1]
    least_rows, least_columns = longest - min(high, 0), longest + max(low, 0)
    if rows == -1 and columns == -1:
        rows = columns = least_rows if low == high == 0 else max(least_rows, least_columns)
    rows = least_rows if rows == -1 else rows
    columns = least_columns if columns == -1 else columns
    band = low < high
    shape = (*x.shape[: -2 if band else -1], rows, columns)
    return _set_band(node, x, broadcast_to(padding, shape), low, high, align, band=band)


@rule("MatrixSetDiag", "BatchMatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diag(
    x: Array, diagonal: Array, k: Ints = (0,), *, node: Node, align: str = "LEFT_LEFT"
) -> Array:
    low, high = k[0], k[-1]
    band = diagonal.ndim == x.ndim and low < high
    return _set_band(node, diagonal, x, low, high, align, band=band)


def _set_band(
    node: Node, diagonal: Array, x: Array, low: int, high: int, align: str, *, band: bool
) -> Array:
    """`x` with diagonals `low` to `high` set, from rows of `diagonal` if `band`."""
    rows, columns = x.shape[-2:]
    longest = diagonal.shape[-1]
    if longest == 0:
        return x
    _require_diagonals(node, low, high, rows, columns)
    if not band:
        # Each row is filled with its entry, or each column below the main diagonal, and the mask
        # selects one position.
        axis = x.ndim - (2 if low >= 0 else 1)
        if (missing := x.shape[axis] - longest) != 0:
            require(missing, "ge", 0, f"a diagonal has {longest} elements")
            ends = [(0, 0, 0)] * (diagonal.ndim - 1) + [(0, missing, 0)]
            diagonal = lax.pad(diagonal, lax.full((), 0, diagonal.dtype), ends)
        entries = lax.broadcast_in_dim(diagonal, x.shape, (*range(x.ndim - 2), axis))
        i, j = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - d) for d in (2, 1))
        i = lax.add(i, lax.full_like(i, low)) if low else i
        return lax.select(lax.eq(i, j), entries, x)
    i, j = _places(rows, columns)
    d = j - i
    xp = np if isinstance(d, np.ndarray) else jnp
    start, _ = _starts(d, (rows, columns), align, longest)
    inside = (low <= d) & (d <= high)
    place = xp.where(inside, xp.minimum(i, j) + start, 0)
    entries = diagonal[..., xp.where(inside, high - d, 0), place]
    return lax.select(broadcast_to(inside, x.shape), entries, x)
