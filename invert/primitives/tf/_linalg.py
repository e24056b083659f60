"""Products of matrices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from ._node import Node
from ._registry import Context, raises_tf
from ._static import array


@raises_tf("MatMul")
def _matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = array(values[0]), array(values[1])
    contract = (0 if node.attr("transpose_a") else 1, 1 if node.attr("transpose_b") else 0)
    return [lax.dot_general(x, y, (((contract[0],), (contract[1],)), ((), ())))]


@raises_tf("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = (
        _adjoint(array(v)) if node.attr(a) else array(v)
        for v, a in zip(values, ("adj_x", "adj_y"), strict=True)
    )
    dtype = node.attr("Tout")
    preferred = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
    return [jax.numpy.matmul(x, y, preferred_element_type=preferred)]


def _adjoint(x: Any) -> Any:
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    swapped = lax.transpose(x, order)
    return lax.conj(swapped) if np.issubdtype(x.dtype, np.complexfloating) else swapped
