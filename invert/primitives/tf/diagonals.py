"""Diagonals and bands of matrices (tensorflow/core/kernels/linalg/matrix_diag_op.cc)."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.values.constants import array, broadcast_to, ints


def tril(x: Array, k: int = 0) -> Array:
    """`jnp.tril`, which counts open sizes in 64 bits only where the matrices have them."""
    return _triangle(jnp.tril, x, k)


def _triangle(function: Callable[..., Array], x: Array, k: int) -> Array:
    with jax.enable_x64(x.dtype.itemsize > 4):
        return function(x, np.int32(k))


@rule("MatrixBandPart", "BatchMatrixBandPart")
def _band_part(x: Array, num_lower: Value, num_upper: Value) -> Array:
    if isinstance(num_lower, np.ndarray) and isinstance(num_upper, np.ndarray):
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


def _length(d: int, rows: int, columns: int) -> int:
    return min(rows + min(d, 0), columns - max(d, 0))


def _offset(d: int, align: str, longest: int, length: int) -> int:
    """The start of diagonal `d` in its row of a band."""
    above, below = (side == "LEFT" for side in align.split("_"))
    left = (d >= 0 and above) or (d <= 0 and below)
    return 0 if left else longest - length


@rule("MatrixDiagPart", "BatchMatrixDiagPart")
def _main_diag_part(x: Array) -> Array:
    return jnp.diagonal(x, axis1=-2, axis2=-1)


@rule("MatrixDiagPartV2", "MatrixDiagPartV3")
def _matrix_diag_part(x: Array, k: Ints, padding: Array, *, align: str = "LEFT_LEFT") -> Array:
    low, high = k[0], k[-1]
    if low == high:
        return jnp.diagonal(x, low, axis1=-2, axis2=-1)
    rows, columns = x.shape[-2:]
    longest = min(rows + min(high, 0), columns - max(low, 0))
    i, j = np.full((2, high - low + 1, longest), -1, np.int32)
    for band, d in enumerate(range(high, low - 1, -1)):
        n = _length(d, rows, columns)
        start = _offset(d, align, longest, n)
        i[band, start : start + n] = np.arange(n) - min(d, 0)
        j[band, start : start + n] = np.arange(n) + max(d, 0)
    picked = x[..., np.maximum(i, 0), np.maximum(j, 0)]
    if (i >= 0).all():
        return picked
    inside = broadcast_to(i >= 0, picked.shape)
    return lax.select(inside, picked, broadcast_to(padding, picked.shape))


@rule("MatrixDiag", "BatchMatrixDiag")
def _main_matrix_diag(x: Array) -> Array:
    shape = (*x.shape, x.shape[-1])
    return _set_band(x, lax.full(shape, 0, x.dtype), 0, 0, "LEFT_LEFT", band=False)


@rule("MatrixDiagV2", "MatrixDiagV3")
def _matrix_diag(
    x: Array, k: Ints, rows: Int, columns: Int, padding: Array, *, align: str = "LEFT_LEFT"
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
    return _set_band(x, broadcast_to(padding, shape), low, high, align, band=band)


@rule("MatrixSetDiag", "BatchMatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diag(x: Array, diagonal: Array, k: Ints = (0,), *, align: str = "LEFT_LEFT") -> Array:
    low, high = k[0], k[-1]
    band = diagonal.ndim == x.ndim and low < high
    return _set_band(diagonal, x, low, high, align, band=band)


def _set_band(diagonal: Array, x: Array, low: int, high: int, align: str, *, band: bool) -> Array:
    """`x` with the diagonals from `low` to `high` set; if `band`, they are rows of `diagonal`."""
    rows, columns = x.shape[-2:]
    if low == high == 0 and not band:
        # Each row is filled with its entry, and the mask selects one position.
        if rows != diagonal.shape[-1]:
            ends = [(0, 0, 0)] * (diagonal.ndim - 1) + [(0, rows - diagonal.shape[-1], 0)]
            diagonal = lax.pad(diagonal, lax.full((), 0, diagonal.dtype), ends)
        entries = lax.broadcast_in_dim(diagonal, x.shape, tuple(range(x.ndim - 1)))
        i, j = (lax.broadcasted_iota(np.int32, x.shape, x.ndim - d) for d in (2, 1))
        return lax.select(lax.eq(i, j), entries, x)
    if not band:
        diagonal = lax.expand_dims(diagonal, (diagonal.ndim - 1,))
    longest = diagonal.shape[-1]
    i, j = np.indices((rows, columns))
    d = j - i
    inside = (low <= d) & (d <= high)
    starts = {
        k: _offset(k, align, longest, _length(k, rows, columns)) for k in range(low, high + 1)
    }
    start = np.vectorize(lambda k: starts.get(k, 0), otypes=[int])(d)
    place = np.where(inside, np.minimum(i, j) + start, 0)
    entries = diagonal[..., np.where(inside, high - d, 0), place]
    return lax.select(broadcast_to(inside, x.shape), entries, x)
