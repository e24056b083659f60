"""Sizes that are multiples of others in the layers of a class."""

from __future__ import annotations

import collections
from collections.abc import Sequence

# The factors within an ordinary layer, such as between the two layers of an MLP. A doubling from
# layer to layer is common in networks, and not a rule of one layer.
_FACTORS = range(3, 9)
# The least number of different sizes that are no coincidence.
LEAST_DIFFERENT = 3


def ratios(column: Sequence[object], base: Sequence[object]) -> tuple[int, ...] | None:
    """Ratios of sizes to others, if all are integers and mostly equal."""
    if len(column) != len(base) or len(base) < LEAST_DIFFERENT:
        return None
    found: list[int] = []
    for n, unit in zip(column, base, strict=True):
        if type(n) is not int or type(unit) is not int or unit < 1 or n % unit:
            return None
        found.append(n // unit)
    ((usual, count),) = collections.Counter(found).most_common(1) or [(0, 0)]
    different = {unit for unit, k in zip(base, found, strict=True) if k == usual}
    rule = usual in _FACTORS and 3 * count >= 2 * len(found)
    return tuple(found) if rule and len(different) >= LEAST_DIFFERENT else None


def factor(column: Sequence[object], base: Sequence[object]) -> int | None:
    """The ratio of sizes to others, if it is the same for all."""
    found = ratios(column, base)
    return found[0] if found and len({*found}) == 1 else None
