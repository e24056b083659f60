"""Sizes that are multiples of others in all layers of a class."""

from __future__ import annotations

from collections.abc import Sequence

# The factors of a usual layer, such as between the two layers of an MLP. Twice as many features
# in each layer is what networks are made of, and not a rule of one.
_FACTORS = range(3, 9)
# The least number of different sizes that are no coincidence.
_LEAST_DIFFERENT = 3


def factor(column: Sequence[object], base: Sequence[object]) -> int | None:
    """The number by which sizes are multiples of others, if many different ones are."""
    if len(column) != len(base) or len(set(base)) < _LEAST_DIFFERENT:
        return None
    for k in _FACTORS:
        if all(
            type(n) is int and type(unit) is int and n == k * unit
            for n, unit in zip(column, base, strict=True)
        ):
            return k
    return None
