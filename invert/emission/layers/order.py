"""The order of steps."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

from invert.ir.graph import is_var
from invert.ir.types import Eqn


def ordered(nodes: Sequence[tuple[int, Eqn]]) -> list[Eqn]:
    """Steps in topological order, and otherwise by their numbers."""
    steps = [s for _, s in nodes]
    read = [[a for a in s.invars if is_var(a)] for s in steps]
    return [steps[k] for k in by_number([n for n, _ in nodes], [s.outvars for s in steps], read)]


def by_number(
    numbers: Sequence[int],
    made: Sequence[Iterable[Hashable]],
    read: Sequence[Iterable[Hashable]],
) -> list[int]:
    """The indices of some steps in topological order, and otherwise by their numbers.

    **Arguments:**

    - `made`, `read`: for each step, the values that it makes and those that it needs.
    """
    makers = {v: k for k, values in enumerate(made) for v in values}
    following: list[set[int]] = [set() for _ in numbers]
    needed = [0] * len(numbers)
    for k, values in enumerate(read):
        for j in {makers[v] for v in values if v in makers} - {k}:
            following[j].add(k)
            needed[k] += 1
    ready = [(numbers[k], k) for k in range(len(numbers)) if not needed[k]]
    heapq.heapify(ready)
    result: list[int] = []
    while ready:
        _, k = heapq.heappop(ready)
        result.append(k)
        for j in following[k]:
            needed[j] -= 1
            if not needed[j]:
                heapq.heappush(ready, (numbers[j], j))
    return result
