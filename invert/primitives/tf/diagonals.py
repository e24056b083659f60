"""Diagonals and bands of matrices (tensorflow/core/kernels/linalg/matrix_diag_op.cc)."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, static


@raises_tf("MatrixBandPart", "BatchMatrixBandPart")
def _band_part(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    if all(isinstance(v, np.ndarray) for v in values[1:]):
        (lower,), (upper,) = ints(values[1]), ints(values[2])
        x = jnp.tril(x, upper) if upper >= 0 else x
        return [jnp.triu(x, -lower) if lower >= 0 else x]
    lower, upper = (array(v) for v in values[1:])
    below = jnp.arange(x.shape[-2])[:, None] - jnp.arange(x.shape[-1])
    keep = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return [lax.select(broadcast_to(keep, x.shape), x, lax.full_like(x, 0))]


@raises_tf("Diag")
def _diag(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    square = jnp.diag(lax.reshape(x, (math.prod(x.shape),)))
    return [lax.reshape(square, (*x.shape, *x.shape))]


@raises_tf("DiagPart")
def _diag_part(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    shape = x.shape[: x.ndim // 2]
    size = math.prod(shape)
    return [lax.reshape(jnp.diagonal(lax.reshape(x, (size, size))), shape)]


def _length(d: int, rows: int, columns: int) -> int:
    return min(rows + min(d, 0), columns - max(d, 0))


def _offset(d: int, align: str, longest: int, length: int) -> int:
    """Where diagonal `d` starts in its row of a band."""
    above, below = (side == "LEFT" for side in align.split("_"))
    left = (d >= 0 and above) or (d <= 0 and below)
    return 0 if left else longest - length


def _range(node: Node, values: list[Any], index: int) -> tuple[int, int]:
    k = ints(static(node, values, index))
    return k[0], k[-1]


@raises_tf("MatrixDiagPart", "BatchMatrixDiagPart")
def _first_diag_part(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.diagonal(array(values[0]), axis1=-2, axis2=-1)]


@raises_tf("MatrixDiagPartV2", "MatrixDiagPartV3")
def _matrix_diag_part(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, padding = array(values[0]), array(values[2])
    low, high = _range(node, values, 1)
    if low == high:
        return [jnp.diagonal(x, low, axis1=-2, axis2=-1)]
    align = "LEFT_LEFT" if node.op.endswith("V2") else node.attr("align", "RIGHT_LEFT")
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
        return [picked]
    inside = broadcast_to(i >= 0, picked.shape)
    return [lax.select(inside, picked, broadcast_to(padding, picked.shape))]


@raises_tf("MatrixDiag", "BatchMatrixDiag")
def _first_matrix_diag(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    shape = (*x.shape, x.shape[-1])
    return [_place(x, lax.full(shape, 0, x.dtype), 0, 0, "LEFT_LEFT", band=False)]


@raises_tf("MatrixDiagV2", "MatrixDiagV3")
def _matrix_diag(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, padding = array(values[0]), array(values[4])
    low, high = _range(node, values, 1)
    (rows,), (columns,) = (ints(static(node, values, i)) for i in (2, 3))
    longest = x.shape[-1]
    least_rows, least_columns = longest - min(high, 0), longest + max(low, 0)
    if rows == -1 and columns == -1:
        rows = columns = least_rows if low == high == 0 else max(least_rows, least_columns)
    rows = least_rows if rows == -1 else rows
    columns = least_columns if columns == -1 else columns
    band = low < high
    shape = (*x.shape[: -2 if band else -1], rows, columns)
    align = "LEFT_LEFT" if node.op.endswith("V2") else node.attr("align", "RIGHT_LEFT")
    return [_place(x, broadcast_to(padding, shape), low, high, align, band=band)]


@raises_tf("MatrixSetDiag", "BatchMatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diag(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, diagonal = array(values[0]), array(values[1])
    low, high = _range(node, values, 2) if len(values) == 3 else (0, 0)
    align = node.attr("align", "RIGHT_LEFT") if node.op.endswith("V3") else "LEFT_LEFT"
    return [_place(diagonal, x, low, high, align, band=diagonal.ndim == x.ndim and low < high)]


def _place(diagonal: Any, x: Any, low: int, high: int, align: str, *, band: bool) -> Any:
    """`x` with the diagonals from `low` to `high` set; `band`: they are rows of `diagonal`."""
    rows, columns = x.shape[-2:]
    if low == high == 0 and not band:
        # Each row holds its entry everywhere, and the mask takes one of them.
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
    at = np.where(inside, np.minimum(i, j) + start, 0)
    entries = diagonal[..., np.where(inside, high - d, 0), at]
    return lax.select(broadcast_to(inside, x.shape), entries, x)
