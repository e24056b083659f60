"""Sorting with JAX's comparators and with any other."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.mlir import ir
from invert.primitives.sorting import by_assumption, merge_sort, sorted_by, total_order_key
from invert.stablehlo.ops import attributes, regions
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import Array, Op, Value, rule


@rule("stablehlo.sort")
def _sort(
    *operands: Array, ctx: Context, op: Op, dimension: int = -1, is_stable: bool = False
) -> Sequence[Value]:
    dimension %= max(operands[0].ndim, 1)
    (region,) = op.regions
    # JAX's comparators use both elements of each key, and nothing else.
    used = [i for i, x in enumerate(region.blocks[0].arguments) if any(True for _ in x.uses)]
    num_keys = max(used, default=-1) // 2 + 1
    if num_keys and (signature := regions.signature(region)) is not None:
        dtypes = tuple(np.dtype(x.dtype) for x in operands)
        if signature == regions.comparator(dtypes, num_keys):
            return lax.sort(
                tuple(operands), dimension=dimension, is_stable=is_stable, num_keys=num_keys
            )
    by_key = _sort_by_key(ctx, region, operands, dimension)
    if by_key is not None:
        return by_key
    with by_assumption():
        return merge_sort(ctx.region(region), operands, dimension)


# Comparisons that define an order, and whether it is descending.
_DESCENDING = {"LT": False, "GT": True}


def _sort_by_key(
    ctx: Context, region: ir.Region, operands: Sequence[Value], dimension: int
) -> list[Value] | None:
    """A stable sort by one key.

    `None` unless the comparator compares one expression of both rows.
    """
    block = region.blocks[0]
    owner = regions.defining(regions.results_of(region)[0], "stablehlo.compare")
    if owner is None:
        return None
    direction = attributes.enum_name(owner.attributes["comparison_direction"])
    if direction not in _DESCENDING:
        return None
    descending = _DESCENDING[direction]
    arguments: list[ir.Value] = list(block.arguments)
    first, second = arguments[::2], arguments[1::2]
    one, two = owner.operands
    if regions.expression(block, [one], first) is None:
        first, second, descending = second, first, not descending
    expression = regions.expression(block, [one], first)
    if expression is None or expression != regions.expression(block, [two], second):
        return None
    if one in first:
        key = operands[first.index(one)]
    else:
        pairs = [x.reshape(-1) for x in operands for _ in range(2)]

        def run(*row: Value) -> Value:
            ctx.region(region)(*row)
            return ctx.env[one]

        key = jax.vmap(run)(*pairs).reshape(operands[0].shape)
    kind = owner.attributes.get("compare_type")
    if jnp.issubdtype(key.dtype, jnp.floating):
        if kind is not None and attributes.enum_name(kind) == "TOTALORDER":
            key = total_order_key(key)
        else:  # NaN is neither before, after nor equal to another number
            with by_assumption():
                return sorted_by(-key if descending else key, operands, dimension)
    if descending:
        key = lax.bitwise_not(key)
    return sorted_by(key, operands, dimension)
