"""The order of steps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn


def ordered(nodes: Sequence[tuple[int, Eqn]]) -> list[Eqn]:
    """Steps in topological order, and otherwise by their numbers."""
    steps = [s for _, s in nodes]
    makers: dict[Atom, int] = {v: k for k, s in enumerate(steps) for v in s.outvars}
    following: list[set[int]] = [set() for _ in steps]
    needed = [0] * len(steps)
    for k, step in enumerate(steps):
        for j in {makers[a] for a in step.invars if is_var(a) and a in makers}:
            following[j].add(k)
            needed[k] += 1
    ready = [(nodes[k][0], k) for k in range(len(steps)) if not needed[k]]
    heapq.heapify(ready)
    result: list[Eqn] = []
    while ready:
        _, k = heapq.heappop(ready)
        result.append(steps[k])
        for j in following[k]:
            needed[j] -= 1
            if not needed[j]:
                heapq.heappush(ready, (nodes[j][0], j))
    return result
