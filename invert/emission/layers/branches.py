"""Branches: layers side by side, whose results are joined by `concatenate`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from invert.emission.layers.cut import Layer, LayerCall, Path, layers_in
from invert.emission.layers.library_names import is_automatic
from invert.emission.layers.links import Links
from invert.emission.layers.tree import called
from invert.ir.graph import Graph, is_var
from invert.ir.types import Atom, Eqn, Var

# The name of the fields of branches, followed by a number, and of their results.
BRANCH = "branch"
_POOL = "branch_pool"


def in_order(steps: Sequence[Eqn], results: Iterable[Atom]) -> list[Eqn]:
    """The steps, with those of joined branches in the order of the join.

    A graph may list the first steps of all branches before the second ones. The steps that only
    one `concatenate` needs come right before it, each branch as a whole.
    """
    links = Links(steps, results)
    order = list(range(len(steps)))
    placed: set[int] = set()
    for last in reversed(range(len(steps))):
        if steps[last].primitive.name != "concatenate" or last in placed:
            continue
        region = links.only_for(last)
        placed |= region
        inside = links.depth_first(last, region)
        if inside != sorted(region):
            at = order.index(last)
            rest = [i for i in order[:at] if i not in region]
            order = [*rest, *inside, *order[at + 1 :]]
    return [steps[i] for i in order]


def name_fields(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Name the layers of joined branches: `branch1`, and `branch2_1` where there are several.

    Parallel layers within a branch are `branch2_2a` and `branch2_2b`. The only branch with a
    pooling has `branch_pool`. An author's names are kept.
    """
    names = [x.field or called(x, parameters) for x in layers_in(layer)]
    if not all(map(is_automatic, names)):
        return
    branches = _branches(layer)
    every = [calls for _, calls in branches]
    if sum(map(bool, every)) < 2 or sum(map(len, every)) < len(names):
        return
    for name, calls in zip(_names(layer, branches), every, strict=True):
        for call, place in zip(calls, _places(calls), strict=True):
            inner = call.layer
            inner.kind = inner.kind or inner.field
            inner.field = f"{name}_{place}" if len(calls) > 1 else name


# The last step of a branch and the calls of layers before it.
_Branch: TypeAlias = tuple[Eqn, Sequence[LayerCall]]


def _names(layer: Layer, branches: Sequence[_Branch]) -> list[str]:
    """`branch1`, `branch2`, and `branch_pool` for the only branch with a pooling."""
    links = Links(layer.steps, layer.outputs)
    places = {step: i for i, step in enumerate(layer.steps)}
    pools: list[bool] = []
    for step, calls in branches:
        inside = (layer.steps[i] for i in (places[step], *links.only_for(places[step])))
        pooling = any(s.primitive.name.startswith("reduce_window") for s in inside)
        pools.append(pooling and len(calls) < 2)
    numbers = itertools.count(1)
    alone = sum(pools) == 1
    return [_POOL if pool and alone else f"{BRANCH}{next(numbers)}" for pool in pools]


def _places(calls: Sequence[LayerCall]) -> list[str]:
    """Positions of layers in a branch: 1, 2; 2a, 2b with the same input."""
    given = [c.invars[0] for c in calls]
    order = list(dict.fromkeys(given))
    numbers = [order.index(a) + 1 for a in given]
    letters = ["abcdefgh"[given[:i].count(a) % 8] for i, a in enumerate(given)]
    return [
        f"{n}{letter}" if given.count(a) > 1 else str(n)
        for a, n, letter in zip(given, numbers, letters, strict=True)
    ]


def results(layer: Layer) -> dict[Var, str]:
    """Names for joined values, where branches name their layers."""
    if not any(x.field.startswith(BRANCH) for x in layers_in(layer)):
        return {}
    branches = _branches(layer)
    named = zip(_names(layer, branches), branches, strict=True)
    return {s.outvars[0]: name for name, (s, _) in named if not isinstance(s, LayerCall)}


def _branches(layer: Layer) -> list[_Branch]:
    """The last step of each array joined to the result, and calls before it."""
    made = {v: i for i, s in enumerate(layer.steps) for v in s.outvars}
    last = next((made[a] for a in layer.outputs if is_var(a) and a in made), None)
    if last is None or layer.steps[last].primitive.name != "concatenate":
        return []
    if len(layer.outputs) > 1:
        return []
    links = Links(layer.steps, layer.outputs)
    return [
        (
            layer.steps[k],
            [s for i in sorted(links.only_for(k)) if type(s := layer.steps[i]) is LayerCall],
        )
        for k in links.before[last]
    ]


def is_passed_on(eqn: Eqn, graph: Graph) -> bool:
    """Return whether a value only goes to the next layer, or is joined to the result of one."""
    (v,) = eqn.outvars
    users = graph.users.get(v, ())
    return len(users) == 1 and (
        isinstance(users[0], LayerCall) or graph.results.issuperset(users[0].outvars)
    )
