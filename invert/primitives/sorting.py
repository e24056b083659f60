"""Sorts by orders that `lax.sort` does not support."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import current_names, name_stack
from invert.ir.hints import Hint
from invert.ir.types import Value as Value

# Takes both elements of the first operand, then of the next; a list with one truth value.
Comparator = Callable[..., Sequence[Value]]


def by_assumption() -> contextlib.AbstractContextManager[None]:
    """For sorts that are right only if the comparator is a strict weak order.

    StableHLO does not specify sorts by other comparators, and backends differ.
    """
    return name_stack((*current_names(), Hint(assumes_order=True).encode()))


def sorted_by(key: Value, operands: Sequence[Value], dimension: int) -> list[Value]:
    """A stable sort of arrays by another array."""
    return list(lax.sort((key, *operands), dimension=dimension, num_keys=1)[1:])


def total_order_key(x: Value) -> Value:
    """Integers ordered like the numbers in IEEE's total order."""
    width = np.dtype(x.dtype).itemsize * 8
    bits = lax.bitcast_convert_type(x, np.dtype(f"int{width}"))
    largest = np.array(2 ** (width - 1) - 1, bits.dtype)
    sign = lax.shift_right_arithmetic(bits, np.array(width - 1, bits.dtype))
    return lax.bitwise_xor(bits, lax.bitwise_and(sign, largest))


def merge_sort(compare: Comparator, operands: Sequence[Value], dimension: int) -> list[Value]:
    """Stable sort by any comparator: a merge sort over positions, O(n log^2 n).

    `lax.sort` supports orders by numbers only. Runs of doubling length are merged. The new position
    of an element comes from a binary search in the other run, which counts the elements that
    precede it.
    """
    n = operands[0].shape[dimension]
    if n < 2:
        return list(operands)
    moved = [jnp.moveaxis(x, dimension, -1) for x in operands]
    batch = moved[0].shape[:-1]
    rows = [x.reshape(-1, n) for x in moved]
    order = jax.vmap(lambda *row: _order(compare, row))(*rows)
    sorted_rows = [jnp.take_along_axis(row, order, axis=1) for row in rows]
    return [jnp.moveaxis(x.reshape(*batch, n), -1, dimension) for x in sorted_rows]


def _order(compare: Comparator, row: Sequence[Value]) -> Value:
    (n,) = row[0].shape

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
            # An element of the left run stays before equal ones in the right run.
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

    # Loops, so that the length of the program does not depend on the size.
    return lax.while_loop(lambda s: s[0] < n, merge, (jnp.asarray(1, np.int32), position))[1]
