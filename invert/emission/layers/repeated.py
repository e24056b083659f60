"""Sequences of layers that repeat with others in between, such as the pairs of a U-Net.

The layers of each sequence become one layer, if a library named them: an author's names already say
what belongs together.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from invert.emission.layers.cut import NUMBER, Assign, Layer, LayerCall, Path
from invert.emission.layers.library_names import (
    CONV_BLOCK,
    KINDS_OF_LAYERS,
    is_automatic,
    without_number,
)
from invert.emission.layers.links import ordered, users_of
from invert.emission.layers.tree import called
from invert.emission.layers.wrap import wrapped
from invert.emission.python.naming import camel
from invert.ir.graph import read_by
from invert.ir.types import Eqn, Var

# The least number of calls that a new class saves, and the most steps of a sequence.
_FEW, _LONGEST = 6, 24
_DOUBLE, _BLOCK = "double_conv", "block"
# The names of convolutions in Keras, and of those with a normalization.
_CONVS = frozenset(("conv1d", "conv2d", "conv3d", CONV_BLOCK))

# The steps of a sequence, by their numbers, and what each of them computes.
_Chain: TypeAlias = "list[tuple[int, Hashable]]"


@dataclasses.dataclass(frozen=True)
class _Found:
    """A repeated sequence.

    **Arguments:**

    - `size`: its number of steps; `layers`: how many of them are layers.
    - `places`: the chain and the first position of each repetition.
    """

    size: int
    layers: int
    places: Sequence[tuple[_Chain, int]]

    @property
    def saved(self) -> tuple[int, int]:
        """By how many calls the layer becomes shorter, then the number of steps."""
        return (len(self.places) * (self.layers - 1), self.size)


def group(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Make layers of the repeated sequences of calls in a layer, the most repeated first."""
    taken = {called(s.layer, parameters) for s in layer.steps if isinstance(s, LayerCall)}
    while (found := _best(_chains(layer, parameters))) is not None:
        inside = [[i for i, _ in chain[k : k + found.size]] for chain, k in found.places]
        first = [layer.steps[i] for i in inside[0]]
        convolves = {_is_conv(s, parameters) for s in first if isinstance(s, LayerCall)}
        name = _DOUBLE if convolves == {True} and found.layers == 2 else _BLOCK
        if any(without_number(n) == name for n in taken):
            return
        taken.add(name)
        members = {i for own in inside for i in own}
        nodes = [(i, s) for i, s in enumerate(layer.steps) if i not in members]
        for number, own in enumerate(sorted(inside), 1):
            steps = [s for i in own if isinstance(s := layer.steps[i], LayerCall)]
            _name(steps, parameters)
            call = wrapped(layer, own, f"{name}_{number}", parameters)
            call.layer.block = name
            nodes.append((own[0], call))
        layer.steps = ordered(sorted(nodes, key=lambda node: node[0]))


def _is_conv(step: LayerCall, parameters: Mapping[Var, Path]) -> bool:
    return "conv" in (step.layer.field or called(step.layer, parameters)).lower()


def _name(steps: Sequence[LayerCall], parameters: Mapping[Var, Path]) -> None:
    """Name the fields of a sequence by their kinds, numbered if there are several."""
    names = [without_number(s.layer.field or called(s.layer, parameters)) for s in steps]
    for k, (step, name) in enumerate(zip(steps, names, strict=True)):
        field = "conv" if name in _CONVS else name
        step.layer.kind = step.layer.kind or name
        number = names[: k + 1].count(name)
        step.layer.field = f"{field}{number}" if names.count(name) > 1 else field


def _chains(layer: Layer, parameters: Mapping[Var, Path]) -> list[_Chain]:
    """Steps of which each takes only the value of the one before it, which nothing else takes."""
    users = users_of(layer.steps)
    held, results = set(layer.parameters), set(layer.results)
    again = collections.Counter(s.layer for s in layer.steps if isinstance(s, LayerCall))
    at: dict[Var, _Chain] = {}
    chains: list[_Chain] = []
    for i, step in enumerate(layer.steps):
        values = list(read_by([step]))
        before = at.get(values[0]) if len(values) == 1 else None
        free = len(step.outvars) == 1 and not held.intersection(values)
        key = _key(step, parameters) if free else None
        if key is None or (isinstance(step, LayerCall) and again[step.layer] > 1):
            continue
        chain = before if before is not None else []
        chain.append((i, key))
        if before is None:
            chains.append(chain)
        (result,) = step.outvars
        if len(users[result]) == 1 and result not in results:
            at[result] = chain
    return chains


def _key(step: Eqn, parameters: Mapping[Var, Path]) -> Hashable | None:
    """Equal for steps that compute the same for any sizes; `None` for those outside sequences."""
    if isinstance(step, Assign) or type(step) is not LayerCall:
        return None if isinstance(step, LayerCall | Assign) else step.primitive.name
    inner = step.layer
    name = inner.field or called(inner, parameters)
    own = not is_automatic(name) and camel(without_number(name)) not in KINDS_OF_LAYERS
    if own or inner.block or inner.listed or inner.same or len(step.invars) != 1:
        return None
    if NUMBER in inner.name or inner.native is not None:
        return None
    return tuple(_primitives(inner))


def _primitives(layer: Layer) -> Iterator[str]:
    for step in layer.steps:
        if isinstance(step, LayerCall):
            yield from _primitives(step.layer)
        else:
            yield step.primitive.name


def _best(chains: Sequence[_Chain]) -> _Found | None:
    """The repeated sequence that saves most, if it is worth a class."""
    places: dict[tuple[Hashable, ...], list[tuple[_Chain, int]]] = collections.defaultdict(list)
    for chain in chains:
        every = [key for _, key in chain]
        for k in (k for k, key in enumerate(every) if _is_layer(key)):
            for end in range(k + 2, min(k + _LONGEST, len(every)) + 1):
                places[tuple(every[k:end])].append((chain, k))
    found = [f for keys, own in places.items() if len((f := _found(keys, own)).places) > 1]
    best = max(found, key=lambda f: f.saved, default=None)
    return best if best is not None and best.saved[0] >= _FEW else None


def _is_layer(key: Hashable) -> bool:
    return isinstance(key, tuple)


def _first_layer(chain: _Chain, places: range) -> Hashable | None:
    """The key of the first layer at some places of a chain."""
    return next((chain[i][1] for i in places if _is_layer(chain[i][1])), None)


def _found(keys: tuple[Hashable, ...], places: Sequence[tuple[_Chain, int]]) -> _Found:
    """The places of a sequence where it stands alone: next to none of its own layers."""
    own = set(filter(_is_layer, keys))
    alone: list[tuple[_Chain, int]] = []
    for chain, k in places:
        end = k + len(keys)
        before = _first_layer(chain, range(k - 1, -1, -1))
        after = _first_layer(chain, range(end, len(chain)))
        apart = not alone or alone[-1][0] is not chain or alone[-1][1] + len(keys) <= k
        if apart and own.isdisjoint((before, after)):
            alone.append((chain, k))
    return _Found(len(keys), sum(map(_is_layer, keys)), alone)
