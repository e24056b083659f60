"""Sorting with JAX's comparators and with any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._raise import Context, Op, Value, raises
from invert.primitives.stablehlo import _attributes, _regions


@raises("stablehlo.sort")
def _sort(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    attribute = op.get("dimension")
    dimension = -1 if attribute is None else _attributes.integer(attribute)
    dimension %= max(operands[0].ndim, 1)
    attribute = op.get("is_stable")
    is_stable = attribute is not None and _attributes.boolean(attribute)
    (region,) = op.regions
    found = _regions.signature(region)
    dtypes = tuple(np.dtype(x.dtype) for x in operands)
    for num_keys in range(1, len(operands) + 1):
        if found is not None and found == _regions.comparator(dtypes, num_keys):
            return lax.sort(
                tuple(operands), dimension=dimension, is_stable=is_stable, num_keys=num_keys
            )
    return _merge_sort(ctx, region, operands, dimension)


def _merge_sort(
    ctx: Context, region: Any, operands: Sequence[Value], dimension: int
) -> list[Value]:
    """Stable sort by any comparator: a merge sort over positions, O(n log^2 n).

    `lax.sort` knows one order only. Runs of doubling length are merged: a binary search in the
    other run counts how many of its elements come before an element, which is its new place.
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
    order = jnp.arange(n, dtype=np.int32)
    position = jnp.arange(n, dtype=np.int32)
    width = 1
    while width < n:
        start = position // (2 * width) * (2 * width)
        middle = jnp.minimum(start + width, n)
        end = jnp.minimum(start + 2 * width, n)
        left = position < middle
        low = jnp.where(left, middle, start)
        base = low
        high = jnp.where(left, end, middle)
        for _ in range(width.bit_length() + 1):
            probe = (low + high) // 2
            other = order[jnp.minimum(probe, n - 1)]
            # An element of the left run stays before its equals in the right run.
            smaller = jnp.where(left, before(other, order), ~before(order, other))
            go = (low < high) & smaller
            high = jnp.where((low < high) & ~smaller, probe, high)
            low = jnp.where(go, probe + 1, low)
        place = start + (position - jnp.where(left, start, middle)) + (low - base)
        order = jnp.zeros_like(order).at[place].set(order, unique_indices=True)
        width *= 2
    return order
