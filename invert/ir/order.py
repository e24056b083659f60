"""Topological order, and the nodes reached from some nodes of a graph."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

_N = TypeVar("_N", bound=Hashable)


def reached(roots: Iterable[_N], following: Callable[[_N], Iterable[_N]]) -> dict[_N, None]:
    """The roots and everything reachable from them, each once, the nearest first."""
    reached = dict.fromkeys(roots)
    pending = list(reached)
    for node in pending:  # grows
        for other in following(node):
            if other not in reached:
                reached[other] = None
                pending.append(other)
    return reached


def postorder(
    roots: Iterable[_N],
    before: Callable[[_N], Sequence[_N]],
    loop: Callable[[_N], Exception] = ValueError,
) -> list[_N]:
    """The roots and all their predecessors, depth first, each after its predecessors.

    **Raises:** the error that `loop` makes for a node that precedes itself.
    """
    order: list[_N] = []
    done: dict[_N, bool] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        if node not in done:
            done[node] = False
            for other in reversed(before(node)):
                if other not in done:
                    stack.append(other)
                elif not done[other]:
                    raise loop(other)
            continue
        stack.pop()
        if not done[node]:
            done[node] = True
            order.append(node)
    return order


def topological(numbers: Sequence[int], before: Sequence[Collection[int]]) -> list[int]:
    """Indices in topological order, and otherwise by their numbers.

    **Arguments:**

    - `before`: for each index, those that precede it, each once.
    """
    following: list[list[int]] = [[] for _ in numbers]
    for k, needed in enumerate(before):
        for j in needed:
            following[j].append(k)
    missing = list(map(len, before))
    ready = [(numbers[k], k) for k, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    result: list[int] = []
    while ready:
        _, k = heapq.heappop(ready)
        result.append(k)
        for j in following[k]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (numbers[j], j))
    return result


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
    before = [{makers[v] for v in vs if v in makers} - {k} for k, vs in enumerate(read)]
    return topological(numbers, before)
