"""Reductions of arrays whose number of rows depends on data; see `tf.values.bounded`.

Padding rows are set to the neutral element of the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.reduction import REDUCTIONS, highest, lowest
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, Value, row_rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, refused, resized
from invert.tf.values.constants import array, ints, static

_NEUTRAL: dict[str, Callable[[np.dtype], Value]] = {
    "All": lambda dtype: True, "Any": lambda dtype: False, "EuclideanNorm": lambda dtype: 0,
    "Max": lowest, "Mean": lambda dtype: 0, "Min": highest, "Prod": lambda dtype: 1,
    "Sum": lambda dtype: 0,
}  # fmt: skip


@row_rule(*REDUCTIONS)
def _reduce(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
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
    # Half precision accumulates in single precision. The mean of no rows is 0 / 0.
    inexact = jnp.issubdtype(x.data.dtype, jnp.inexact)
    dtype = np.promote_types(x.data.dtype, np.float32) if inexact else x.data.dtype
    total = jnp.sum(filled, axis=tuple(axes), keepdims=bool(node.attr("keep_dims")), dtype=dtype)
    number = x.length * np.int32(math.prod(x.data.shape[a] for a in axes if a))
    mean = lax.div(total, jnp.broadcast_to(number.astype(dtype), total.shape))
    return [lax.convert_element_type(mean, y.dtype)]


@row_rule("MatMul")
def _matmul(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    transposed = bool(node.attr("transpose_a", False)), bool(node.attr("transpose_b", False))
    if not isinstance(values[1], BoundedArray) and not transposed[0]:
        (y,) = rule(ctx, node, [values[0].data, values[1]])
        return [values[0].with_data(y)]
    if transposed != (True, False):
        raise refused(node, values)
    return _sum_of_rows(rule, ctx, node, values)


@row_rule("BiasAddGrad", "L2Loss")
def _sum_of_rows(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """Sums over all rows, of products or of single numbers."""
    if node.attr("data_format") == "NCHW":
        raise refused(node, values)
    filled = [v.filled(0) if isinstance(v, BoundedArray) else array(v) for v in values]
    size = min(x.shape[0] for x in filled)
    return list(rule(ctx, node, [resized(x, size) for x in filled]))
