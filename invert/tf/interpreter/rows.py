"""Common rules for bounded arrays; see `tf.values.bounded`.

They apply the op's usual rule to whole arrays, since each row of the result depends on one row
only. An op declares which of these applies by `rows=`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from invert.tf.interpreter.registry import RowRule, Rule, Value
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, common_length, refused, resized, stretched
from invert.tf.values.constants import array

if TYPE_CHECKING:
    from invert.tf.interpreter.context import Context


def rank_of(value: Value) -> int:
    """The number of axes of a value."""
    return value.data.ndim if isinstance(value, BoundedArray) else np.ndim(value)


def elementwise(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """Each result element depends only on operand elements at the same position."""
    rank = max(rank_of(v) for v in values)
    rows = [v for v in values if isinstance(v, BoundedArray)]
    if any(r.data.ndim < rank for r in rows):
        raise refused(node, values)
    others = [
        np.shape(v)[0] for v in values if not isinstance(v, BoundedArray) and np.ndim(v) == rank
    ]
    static = [n for n in others if not (isinstance(n, int) and n == 1)]
    if static:
        # As many rows as the other operands, or one row that is broadcast.
        data = [stretched(v, static[0]) if isinstance(v, BoundedArray) else v for v in values]
        return list(rule(ctx, node, data))
    length, size = common_length(rows)
    one_length = all(r.length is length for r in rows)

    def at_size(v: Value) -> Value:
        if not isinstance(v, BoundedArray):
            return v
        return resized(v.data, size) if one_length else stretched(v, size, length)

    results = rule(ctx, node, [at_size(v) for v in values])
    to = node.attr("DstT") if node.op == "Cast" else None
    if to is None or to.kind != "i":
        return [BoundedArray(array(y), length, rows[0].origin) for y in results]
    x = rows[0]
    segments = x.segments if to.itemsize >= 4 else None
    return [x.with_data(array(y), x.pads_minus_one, segments) for y in results]


def unchanged(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
    """The same values in the same positions."""
    x = values[0]
    checked = node.op.startswith("CheckNumerics")
    (y,) = rule(ctx, node, [x.filled(0) if checked else x.data])
    return [x.with_data(x.data if checked else y, x.pads_minus_one, x.segments)]


def rowwise(*shared: int, least_rank: int = 1) -> RowRule:
    """Each row of the results depends on the same row of the operands.

    **Arguments:**

    - `shared`: positions of the operands that every row uses.
    - `least_rank`: the minimum rank of operands with rows.
    """

    def rows_of(rule: Rule, ctx: Context, node: Node, values: list[Value]) -> list[Value]:
        # TensorFlow checks that operands have equally many rows.
        paired = [v for k, v in enumerate(values) if k not in shared]
        rows = [v for v in paired if isinstance(v, BoundedArray)]
        too_flat = any(r.data.ndim < least_rank for r in rows)
        if not rows or too_flat or node.attr("data_format") == "NCHW":
            raise refused(node, values)
        size = min(
            v.data.shape[0] if isinstance(v, BoundedArray) else np.shape(v)[0] for v in paired
        )
        data = [resized(v.data, size) if isinstance(v, BoundedArray) else v for v in values]
        results = rule(ctx, node, data)
        if len(rows) < len(paired):
            return list(results)
        return [BoundedArray(y, rows[0].length, rows[0].origin) for y in results]

    return rows_of
