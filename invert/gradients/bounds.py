"""Finds which gathers promise that their indices are in bounds, by search.

A gather that clips its indices and one that promises bounds lower to the same op. The container's
gradient tells them apart: out of bounds, the first passes it to the row at the edge, the second
drops it.
"""

from __future__ import annotations

import functools
import math

from invert._errors import only_refusals
from invert.gradients.compare import FAILURES, differences, may_not_end
from invert.gradients.region import MarkedRegion
from invert.ir.lookups import clipping
from invert.ir.types import AnyJaxpr, Eqn

# Each candidate is compiled.
_MAX_GATHERS = 12


def with_bounds(region: MarkedRegion, raw: AnyJaxpr, x64: bool) -> MarkedRegion | None:
    """The region with bounds promised where this makes autodiff agree numerically with `raw`.

    The search is greedy: each step changes the gather that helps most. `None` if it fails.
    """
    found = clipping(region.forward)
    if not 0 < len(found) <= _MAX_GATHERS or may_not_end(raw) or may_not_end(region.forward):
        return None

    @functools.cache
    def gap(chosen: frozenset[Eqn]) -> float:
        with only_refusals():
            total = 0.0
            for difference in differences(region.promising(chosen), raw, x64):
                total += difference
                if math.isinf(total):  # more points change nothing
                    break
            return total

    try:
        chosen = min(frozenset[Eqn](), frozenset(found), key=gap)
        while gap(chosen) > 0:
            best = min((chosen ^ {eqn} for eqn in found), key=gap)
            if gap(best) >= gap(chosen):
                return None
            chosen = best
    except FAILURES:
        return None
    return region.promising(chosen)
