"""Reductions of arrays whose number of rows depends on data; see `tf.values.bounded`.

The rows too many hold a neutral element while a reduction runs over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.reduction import REDUCTIONS
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import RowRule, Rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, refused, resized
from invert.tf.values.constants import array, ints, static


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf
    return jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.inf
    return jnp.iinfo(dtype).max


# What the rows too many hold while a reduction runs over them.
_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "All": lambda dtype: True, "Any": lambda dtype: False, "EuclideanNorm": lambda dtype: 0,
    "Max": _lowest, "Mean": lambda dtype: 0, "Min": _highest, "Prod": lambda dtype: 1,
    "Sum": lambda dtype: 0,
}  # fmt: skip


def _reduce(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = values[0]
    if not isinstance(x, BoundedArray):
        raise refused(node, values)
    rank = x.data.ndim
    axes = {a % rank for a in ints(static(node, values, 1))}
    if 0 not in axes:
        (y,) = rule(ctx, node, [x.data, values[1]])
        return [x.with_data(y)]
    filled = x.filled(_NEUTRAL[node.op](x.data.dtype))
    (y,) = rule(ctx, node, [filled, values[1]])
    if node.op != "Mean":
        return [y]
    # Halves are added up in single precision. The mean of no rows is 0 / 0.
    inexact = jnp.issubdtype(x.data.dtype, jnp.inexact)
    wide = np.promote_types(x.data.dtype, np.float32) if inexact else x.data.dtype
    total = jnp.sum(filled, axis=tuple(axes), keepdims=bool(node.attr("keep_dims")), dtype=wide)
    number = x.count * np.int32(math.prod(x.data.shape[a] for a in axes if a))
    mean = lax.div(total, jnp.broadcast_to(number.astype(wide), total.shape))
    return [lax.convert_element_type(mean, y.dtype)]


def _sum_of_rows(rule: Rule, ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """Sums over all rows, of products or of single numbers."""
    products = node.op == "MatMul"
    if products and not isinstance(values[1], BoundedArray) and not node.attr("transpose_a", False):
        (y,) = rule(ctx, node, [values[0].data, values[1]])
        return [values[0].with_data(y)]
    if products and not (node.attr("transpose_a", False) and not node.attr("transpose_b", False)):
        raise refused(node, values)
    if node.attr("data_format") == "NCHW":
        raise refused(node, values)
    ready = [v.filled(0) if isinstance(v, BoundedArray) else array(v) for v in values]
    size = min(x.shape[0] for x in ready)
    return list(rule(ctx, node, [resized(x, size) for x in ready]))


SUMS: dict[str, RowRule] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "BiasAddGrad": _sum_of_rows,
    "L2Loss": _sum_of_rows,
    "MatMul": _sum_of_rows,
}
