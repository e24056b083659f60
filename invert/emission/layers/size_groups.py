"""The sizes of a class that change together: groups of them, each one argument of the class."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.flattened import flattened
from invert.emission.layers.proportions import LEAST_DIFFERENT, ratios
from invert.emission.layers.shared import Class
from invert.emission.layers.ties import Axis, Ties
from invert.emission.layers.tree import Node
from invert.ir import kinds
from invert.ir.sizes import DimSize
from invert.ir.types import Atom, Var

# Sizes of twins: primes, so that none is a multiple of another by a factor of a usual layer.
_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191)
# Sizes of images are multiples of this.
_HALVED = 32
# The least number of different widths that are multiples of one.
_LEAST_WIDTHS = 3


@dataclasses.dataclass
class Group:
    """Sizes that change together.

    **Arguments:**

    - `roots`: the axes that stand for them; `own`: those of parameters among the sizes.
    """

    roots: set[Axis]
    sizes: list[DimSize]
    own: set[int]

    def shares(self, other: Group) -> bool:
        """Return whether parameters have one size in both, the smallest of both or of neither.

        Two joined images have twice the channels of one; another layer may have as many by chance.
        """
        both = self.own & other.own
        return any((n == min(self.own)) == (n == min(other.own)) for n in both)

    def joined(self, other: Group) -> Group:
        """Both groups as one."""
        return Group(self.roots | other.roots, self.sizes + other.sizes, self.own | other.own)


def size_of(axis: Axis) -> int:
    """The size of an axis in the program."""
    _, v, i = axis
    return v.aval.shape[i]


class Groups:
    """Groups of sizes; groups that form one argument are joined.

    Equal numbers of features in different layers form one argument.

    **Arguments:**

    - `places`: where sizes must be the same for that; `None` if their numbers decide.
    - `several`: whether any sizes may be one argument.
    """

    def __init__(self, ties: Ties, places: Mapping[Axis, set[Hashable]] | None, *, several: bool):
        self._places, self._several = places, several
        # Whether a group holds the first (0) or the second axis (1) of a pair in `ties.apart`.
        self._roles: dict[Axis, set[int]] = collections.defaultdict(set)
        for pair in ties.apart:
            for role, axis in enumerate(pair):
                self._roles[ties.root(axis)].add(role)
        self._found: dict[int, Group] = {}
        self._number = itertools.count()
        # Groups indexed by what they may share: comparing all pairs would be quadratic.
        self._by: dict[Hashable, set[int]] = collections.defaultdict(set)

    @property
    def found(self) -> list[Group]:
        return [*self._found.values()]

    def add(self, group: Group) -> None:
        """Add a group, joined with those that are one argument with it."""
        near = sorted({i for key in self._keys(group) for i in self._by[key] if i in self._found})
        for i in [i for i in near if self._several and self._are_one(self._found[i], group)]:
            group = group.joined(self._found.pop(i))
        number = next(self._number)
        self._found[number] = group
        for key in self._keys(group):
            self._by[key].add(number)

    def _keys(self, group: Group) -> set[Hashable]:
        if self._places is None:
            return {*group.own}
        return {place for root in group.roots for place in self._places.get(root, ())}

    def _are_one(self, one: Group, other: Group) -> bool:
        mine, theirs = ({r for a in g.roots for r in self._roles.get(a, ())} for g in (one, other))
        if mine and theirs and mine.isdisjoint(theirs):
            return False
        return self._places is not None or one.shares(other)


def new_sizes(
    groups: Iterable[Group], kernels: Set[Axis], images: Set[Axis]
) -> dict[Axis, tuple[int, int]]:
    """For each axis of some groups, its unit and the new unit."""
    primes = itertools.cycle(_PRIMES)
    sizes: dict[Axis, tuple[int, int]] = {}
    for group in groups:
        unit = math.gcd(*group.sizes)
        new = unit + 2 if group.roots & kernels else next(primes)
        if not group.own and group.roots & images:
            new *= _HALVED  # so that halving it repeatedly and doubling it again restores it
        sizes |= dict.fromkeys(group.roots, (unit, new))
    return sizes


def with_words(groups: Sequence[Group], node: Node, ties: Ties) -> list[Group]:
    """The groups, after merging the number of words that a model predicts with that of its table.

    It is the last size of a result with an axis of positions, and equals the rows of one table.
    """
    results = [v for layer in node.layers for v in layer.results if len(v.aval.shape) > 2]
    ends = {ties.root(ties.axis(v, len(v.aval.shape) - 1)) for v in results}
    rows = {ties.root(ties.axis(v, 0)) for v in _tables(node)}
    tables = [g for g in groups if g.roots & rows and len({*g.sizes}) == 1]
    predicted = [g for g in groups if g.roots & ends and g not in tables]
    pairs = [(a, b) for a in predicted for b in tables if {*a.sizes} == {*b.sizes}]
    if len(pairs) != 1:
        return list(groups)
    ((one, other),) = pairs
    return [g for g in groups if g not in (one, other)] + [other.joined(one)]


def with_lookups(groups: Sequence[Group], node: Node, ties: Ties) -> list[Group]:
    """The groups, after merging the rows of tables of one size that one array looks up."""
    alike: dict[Hashable, set[Axis]] = collections.defaultdict(set)
    for layer in node.layers:
        for table, indices in _lookups(layer, {}):
            alike[indices, table.aval.shape[0]].add(ties.root(ties.axis(table, 0)))
    found = list(groups)
    for roots in alike.values():
        one = [g for g in found if g.roots & roots]
        if len(one) > 1:
            found = [g for g in found if g not in one] + [functools.reduce(Group.joined, one)]
    return found


def with_equal(groups: Sequence[Group], chosen: Set[Axis], node: Node, ties: Ties) -> list[Group]:
    """The groups, after merging chosen ones whose sizes are multiples of one.

    Sizes of arguments and rows of tables stay apart, as do those of results from others.
    """
    inputs = {a for x in node.layers for v in x.inputs for a in _roots(v, ties)}
    results = {a for x in node.layers for v in x.results for a in _roots(v, ties)}
    inputs |= {ties.root(ties.axis(v, 0)) for v in _tables(node)}
    found: dict[Hashable, Group] = {}
    for group in groups:
        alone = group.roots.isdisjoint(chosen) or group.roots & inputs
        key = id(group) if alone else (math.gcd(*group.sizes), group.roots.isdisjoint(results))
        found[key] = found[key].joined(group) if key in found else group
    return [*found.values()]


def of_one_width(groups: Sequence[Group], node: Node, ties: Ties) -> list[Group] | None:
    """The groups, after merging those that are multiples of the least width; `None` without one.

    The widths of a model are those that neither an argument nor a result has, and that several
    arrays have, apart from rows of a table.
    """
    ends = {a for x in node.layers for v in (*x.inputs, *x.results) for a in _roots(v, ties)}
    ends |= {ties.root(ties.axis(v, 0)) for v in _tables(node)}
    widths = [g for g in groups if g.own and len(g.sizes) > 1 and not g.roots & ends]
    flat = {count: image[-1] for count, image in flattened(node.walk())}
    own = {id(g): {flat.get(n, n) for n in g.own} for g in widths}
    numbers = {n for g in widths for n in own[id(g)] if n > 1}
    whole = {n: [g for g in widths if all(m % n == 0 for m in own[id(g)])] for n in numbers}
    base = max(numbers, key=lambda n: (len({min(own[id(g)]) for g in whole[n]}), n), default=1)
    joined = whole.get(base, [])
    # The gates of a recurrent layer are multiples of its state, and no width.
    if len({min(own[id(g)]) for g in joined}) < _LEAST_WIDTHS:
        return None
    return [*(g for g in groups if g not in joined), functools.reduce(Group.joined, joined)]


def _lookups(layer: Layer, given: Mapping[Var, Atom]) -> Iterator[tuple[Var, Var]]:
    """The tables of a layer, with the indices by which it looks up rows, in any layout.

    **Arguments:**

    - `given`: the values of the layer's inputs.
    """
    known = dict(given)
    for step in layer.steps:
        values = [known.get(a, a) if isinstance(a, Var) else a for a in step.invars]
        if isinstance(step, LayerCall):
            yield from _lookups(step.layer, dict(zip(step.layer.inputs, values, strict=False)))
        elif step.primitive.name == "gather" and isinstance(table := step.invars[0], Var):
            if isinstance(values[1], Var):
                yield table, values[1]
        elif step.primitive.name in kinds.LAYOUT | kinds.CONVERSIONS | {"add", "select_n"}:
            # Negative indices count from the end.
            whole = {v for v in values if isinstance(v, Var) and v.aval.dtype != bool}
            if len(whole) == 1:
                known[step.outvars[0]] = whole.pop()


def _tables(node: Node) -> Iterator[Var]:
    """The arrays of which a module, or a module inside, looks up rows."""
    steps = (s for inner in node.walk() for layer in inner.layers for s in layer.steps)
    tables = (s.invars[0] for s in steps if s.primitive.name == "gather")
    return (v for v in tables if isinstance(v, Var))


def _roots(v: Atom, ties: Ties) -> set[Axis]:
    """The axes that represent those of a variable."""
    axes = range(len(v.aval.shape)) if isinstance(v, Var) else ()
    return {ties.root(ties.axis(v, i)) for i in axes if isinstance(v, Var)}


# The sizes of an axis, by the number of the layer.
_Column: TypeAlias = Mapping[int, DimSize]


def columns_of(cls: Class, ties: Ties) -> dict[Axis, _Column]:
    """The sizes in the layers of a class, by the axes of the first layer's parameters."""
    every = [dict(d.node.leaves()) for d in cls.drafts]
    found: dict[Axis, _Column] = {}
    for path, v in every[0].items():
        shapes = {k: own[path].aval.shape for k, own in enumerate(every) if path in own}
        for i in range(len(v.aval.shape)):
            root = ties.root(ties.axis(v, i))
            if len(shapes) > len(found.get(root, ())):
                found[root] = {k: shape[i] for k, shape in shapes.items()}
    return found


def proportional(groups: Sequence[Group], columns: Mapping[Axis, _Column]) -> list[Group]:
    """The groups, after merging those that are multiples of each other in most layers."""
    # Others follow nothing, and there are many of them in a model without repeated layers.
    varied = {r: c for r, c in columns.items() if len({*c.values()}) >= LEAST_DIFFERENT}
    found: list[Group] = []
    for group in groups:
        own = [varied[r] for r in group.roots if r in varied]
        others = ((g, [varied[r] for r in g.roots if r in varied]) for g in found if own)
        other = next(
            (g for g, c in others if any(itertools.starmap(_follow, itertools.product(own, c)))),
            None,
        )
        if other is not None:
            found.remove(other)
            group = group.joined(other)
        found.append(group)
    return found


def sizes_of_one(cls: Class, ties: Ties) -> set[Axis]:
    """The sizes inside the layers of a class that are 1 in all of them, such as a single head."""
    layers = cls.drafts[0].node.layers
    ends = {a for x in layers for v in (*x.inputs, *x.results) for a in _roots(v, ties)}
    return {root for root, c in columns_of(cls, ties).items() if {*c.values()} == {1}} - ends


def _follow(one: _Column, other: _Column) -> bool:
    """Return whether the sizes of one column are multiples of the other's."""
    common = one.keys() & other.keys()
    left, right = ([column[k] for k in common] for column in (one, other))
    return (ratios(left, right) or ratios(right, left)) is not None
