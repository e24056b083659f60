"""How the steps of a layer depend on each other, and their order."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping, Sequence, Set

from invert.ir.graph import in_order, is_var, read_by
from invert.ir.order import postorder, reached
from invert.ir.types import Atom, Eqn


def users_of(steps: Sequence[Eqn]) -> dict[Atom, list[int]]:
    """The steps that use each value, by their numbers."""
    users: dict[Atom, list[int]] = collections.defaultdict(list)
    for i, step in enumerate(steps):
        for atom in read_by([step]):
            users[atom].append(i)
    return users


def users(v: Atom, steps: Iterable[Eqn]) -> list[Eqn]:
    """The steps that use a value."""
    return [s for s in steps if any(a is v for a in s.invars)]


class Links:
    """Which steps use the values of which, by their numbers.

    **Arguments:**

    - `outputs`: the results of the steps.
    - `inputs`: values from outside, whose numbers are negative.

    **Attributes:**

    - `before`: for each step, those whose values it uses, in the order of its operands.
    - `users`: the reverse.
    - `results`: the steps whose values are results.
    """

    def __init__(self, steps: Sequence[Eqn], outputs: Iterable[Atom], inputs: Sequence[Atom] = ()):
        self.steps = steps
        makers: dict[Atom, int] = {v: i for i, s in enumerate(steps) for v in s.outvars}
        makers |= {v: -1 - k for k, v in enumerate(inputs)}
        self.before = [
            list(dict.fromkeys(makers[a] for a in read_by([s]) if a in makers)) for s in steps
        ]
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for i, needed in enumerate(self.before):
            for j in needed:
                self.users[j].append(i)
        self.results = {makers[a] for a in outputs if is_var(a) and a in makers}

    def only_for(self, last: int) -> set[int]:
        """A step, and those whose values only it needs, directly or through others."""
        region = {last}
        for i in range(last - 1, -1, -1):
            if i not in self.results and self.users[i] and region.issuperset(self.users[i]):
                region.add(i)
        return region

    def needed(self, last: int) -> set[int]:
        """The steps whose values a step needs, directly or through others."""
        return _closure({last}, self.before, range(len(self.steps)))

    def between(self, members: Set[int]) -> set[int]:
        """Some steps, and those on the paths between them."""
        after = _closure(members, self.users, range(max(members)))
        before = _closure(members, self.before, range(min(members), max(members)))
        return {*members, *(after & before)}

    def ends(self, region: set[int]) -> set[int]:
        """The steps whose values are used outside of a region."""
        return {i for i in region if i in self.results or not region.issuperset(self.users[i])}

    def depth_first(self, last: int, region: set[int]) -> list[int]:
        """The steps of a region, each right after those that it needs."""

        def before(i: int) -> list[int]:
            needed = [j for j in self.before[i] if j in region]
            return needed if self.steps[i].primitive.name == "concatenate" else sorted(needed)

        return postorder([last], before)


def _closure(
    start: Iterable[int], links: Mapping[int, list[int]] | Sequence[list[int]], within: range
) -> set[int]:
    """The steps within a range that can be reached from others."""

    def following(i: int) -> list[int]:
        return [j for j in links[i] if j in within]

    return set(reached(itertools.chain.from_iterable(map(following, start)), following))


def ordered(nodes: Sequence[tuple[int, Eqn]]) -> list[Eqn]:
    """Steps in topological order, and otherwise by their numbers."""
    return in_order([s for _, s in nodes], [n for n, _ in nodes])


def passed_on(
    results: Sequence[Atom], inputs: Iterable[tuple[Atom, Atom]]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """The inputs of a call that are results of the call before it, and the others that differ.

    **Arguments:**

    - `results`: those of the call before.
    - `inputs`: those of both calls, in pairs.

    **Returns:** the places of the former, each with that of the result, and those of the latter.
    """
    places = {v: j for j, v in reversed([*enumerate(results)])}
    columns = list(enumerate(inputs))
    carried = tuple((i, places[own]) for i, (_, own) in columns if is_var(own) and own in places)
    taken = {i for i, _ in carried}
    return carried, tuple(i for i, (a, b) in columns if a is not b and i not in taken)
