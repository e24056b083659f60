"""Sorting with JAX's comparators and with any other."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import current_names, name_stack
from invert.ir.hints import Hint
from invert.stablehlo.ops import attributes, regions
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises


@raises("stablehlo.sort")
def _sort(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    attribute = op.get("dimension")
    dimension = -1 if attribute is None else attributes.integer(attribute)
    dimension %= max(operands[0].ndim, 1)
    attribute = op.get("is_stable")
    is_stable = attribute is not None and attributes.boolean(attribute)
    (region,) = op.regions
    found = regions.signature(region)
    dtypes = tuple(np.dtype(x.dtype) for x in operands)
    for num_keys in range(1, len(operands) + 1):
        if found is not None and found == regions.comparator(dtypes, num_keys):
            return lax.sort(
                tuple(operands), dimension=dimension, is_stable=is_stable, num_keys=num_keys
            )
    by_key = _sort_by_key(ctx, region, operands, dimension)
    if by_key is not None:
        return by_key
    with _by_assumption():
        return _merge_sort(ctx, region, operands, dimension)


def _by_assumption() -> contextlib.AbstractContextManager[None]:
    """For sorts that are right only if the comparator is a strict weak order.

    StableHLO leaves open what a sort by any other gives, and backends differ there.
    """
    return name_stack((*current_names(), Hint(assumes_order=True).encode()))


# Comparisons that say what comes first, and whether the largest does.
_DESCENDING = {"LT": False, "GT": True}


def _sort_by_key(
    ctx: Context, region: Any, operands: Sequence[Value], dimension: int
) -> list[Value] | None:
    """A stable sort by one number of each row: `None` where the comparator is not one comparison of
    the same expression of both rows."""
    block = region.blocks[0]
    terminator = block.operations[len(block.operations) - 1].operation
    owner = getattr(terminator.operands[0].owner, "operation", None)
    if owner is None or owner.name != "stablehlo.compare":
        return None
    op = Op(owner)
    direction = attributes.enum_name(op["comparison_direction"])
    if direction not in _DESCENDING:
        return None
    descending = _DESCENDING[direction]
    arguments = list(block.arguments)
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
    kind = op.get("compare_type")
    if jnp.issubdtype(key.dtype, jnp.floating):
        if kind is not None and attributes.enum_name(kind) == "TOTALORDER":
            key = _total_order_key(key)
        else:  # NaN is neither before nor after another number, nor its equal
            with _by_assumption():
                return _sorted(-key if descending else key, operands, dimension)
    if descending:
        key = lax.bitwise_not(key)
    return _sorted(key, operands, dimension)


def _sorted(key: Value, operands: Sequence[Value], dimension: int) -> list[Value]:
    return list(lax.sort((key, *operands), dimension=dimension, num_keys=1)[1:])


def _total_order_key(x: Value) -> Value:
    """Integers in the order in which IEEE's total order has numbers."""
    width = np.dtype(x.dtype).itemsize * 8
    bits = lax.bitcast_convert_type(x, np.dtype(f"int{width}"))
    largest = np.array(2 ** (width - 1) - 1, bits.dtype)
    sign = lax.shift_right_arithmetic(bits, np.array(width - 1, bits.dtype))
    return lax.bitwise_xor(bits, lax.bitwise_and(sign, largest))


def _merge_sort(
    ctx: Context, region: Any, operands: Sequence[Value], dimension: int
) -> list[Value]:
    """Stable sort by any comparator: a merge sort over positions, O(n log^2 n).

    `lax.sort` knows orders by numbers only. Runs of doubling length are merged: a binary search in
    the other run counts how many of its elements come before an element, which is its new place.
    """
    n = operands[0].shape[dimension]
    if n < 2:
        return list(operands)
    moved = [jnp.moveaxis(x, dimension, -1) for x in operands]
    batch = moved[0].shape[:-1]
    rows = [x.reshape(-1, n) for x in moved]
    order = jax.vmap(lambda *row: _order(ctx, region, row))(*rows)
    sorted_rows = [jnp.take_along_axis(row, order, axis=1) for row in rows]
    return [jnp.moveaxis(x.reshape(*batch, n), -1, dimension) for x in sorted_rows]


def _order(ctx: Context, region: Any, row: Sequence[Value]) -> Value:
    (n,) = row[0].shape
    compare = ctx.region(region)

    def before(i: Value, j: Value) -> Value:
        pairs = [x[k] for x in row for k in (i, j)]
        return compare(*pairs)[0]

    before = jax.vmap(before)
    position = jnp.arange(n, dtype=np.int32)

    def merge(state: tuple[Value, Value]) -> tuple[Value, Value]:
        width, order = state
        start = position // (2 * width) * (2 * width)
        middle = jnp.minimum(start + width, n)
        end = jnp.minimum(start + 2 * width, n)
        left = position < middle
        base = jnp.where(left, middle, start)

        def halve(state: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
            size, low, high = state
            probe = (low + high) // 2
            other = order[jnp.minimum(probe, n - 1)]
            # An element of the left run stays before its equals in the right run.
            smaller = jnp.where(left, before(other, order), ~before(order, other))
            open_ = low < high
            return (
                size // 2,
                jnp.where(open_ & smaller, probe + 1, low),
                jnp.where(open_ & ~smaller, probe, high),
            )

        bounds = 2 * width, base, jnp.where(left, end, middle)
        _, low, _ = lax.while_loop(lambda s: s[0] > 0, halve, bounds)
        place = start + (position - jnp.where(left, start, middle)) + (low - base)
        return 2 * width, jnp.zeros_like(order).at[place].set(order, unique_indices=True)

    # Loops, so that the program is of one length for all sizes.
    return lax.while_loop(lambda s: s[0] < n, merge, (jnp.asarray(1, np.int32), position))[1]
