"""Decides which sizes of a model are arguments of its constructor, one text after another."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from typing import Any

from invert.emission.constructors.sizes import (
    CHANNELS,
    DIM,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LATENT_DIM,
    LENGTH,
    POSITIONS,
)
from invert.emission.layers.twins import Choice, Scaled
from invert.emission.python.naming import stem
from invert.emission.size_names import is_end, unclear
from invert.ir.sizes import Shape
from invert.ir.types import Var

# Sizes that never stand for others of their number.
_OWN = (HEADS, KV_HEADS, HEAD_DIM, LATENT_DIM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What a text shows about the sizes of a model.

    **Arguments:**

    - `scaled`: the shapes of the twin.
    - `arguments`: the arguments of the model, with their values for each instance.
    - `place`: the instance that is the twin.
    - `has_width`: whether a layer has the model's width as an argument; `has_one_width`: whether
        its widths are multiples of one.
    - `inside`: sizes that the layers inside have as numbers.
    - `limits`: numbers of positions that the text checks, which stay.
    """

    scaled: Scaled
    arguments: Mapping[str, tuple[Any, ...]]
    place: int
    has_width: bool
    has_one_width: bool
    inside: Set[tuple[Var, int]]
    limits: Set[object]


@dataclasses.dataclass
class ModelSizes(Choice):
    """The decisions on the sizes of a model.

    A model whose width is not among its arguments has only the sizes of its input, result and
    tables, unless all its sizes are arguments.

    **Arguments:**

    - `shape`: the shape of a parameter.
    """

    shape: Callable[[Var], Shape] = dataclasses.field(kw_only=True)
    _seen: dict[Hashable, Seen] = dataclasses.field(default_factory=dict, init=False)

    def refine(self, seen: Seen, settings: Hashable) -> bool:
        """Decide on sizes without names of their own.

        Returns whether the text has to be written again. That is not done for a decision that an
        earlier text of equal decisions tells.

        **Arguments:**

        - `seen`: what the text tells.
        - `settings`: all else that it depends on and that may change.
        """

        def decisions() -> Hashable:
            sets = frozenset(self.kept), frozenset(self.joined)
            return *sets, bool(self.one_width), self.adds, settings

        self._seen[decisions()] = seen
        again = False
        while (known := self._seen.get(decisions())) is not None and self._decide(known):
            again = True
        return again

    def _decide(self, seen: Seen) -> bool:
        """Decide on sizes from a text; return whether decisions changed."""
        arguments, scaled = seen.arguments, seen.scaled
        own = _Arguments(scaled, arguments, seen.place, self.shape)
        vague = unclear(arguments)
        if LENGTH in arguments and not own.is_given(LENGTH):
            vague.add(LENGTH)
        again = self._join(own, vague)
        # Such as the two rows of a GRU's bias.
        numbers = any(
            n > 1 and scaled.is_number(v, i) and (v, i) not in seen.inside for v, i, n in own.sizes
        )
        # They may have a common width, which is the better argument.
        several = sum(stem(n) in (HIDDEN, CHANNELS) or n.endswith("_size") for n in arguments) > 1
        tries = (numbers or bool(vague) or several) and not seen.has_width
        # An attention has heads beside its width.
        heads = {stem(n) for n in arguments} & {*_OWN} - {LATENT_DIM}
        if self.one_width is None and tries and not heads:
            self.one_width = again = True
        if again:
            return True
        if self.one_width and ({HIDDEN, CHANNELS} & arguments.keys() or not seen.has_one_width):
            self.one_width = False
            return True
        if (numbers or vague) and not (seen.has_width or self.one_width):
            vague |= {n for n in arguments if not is_end(n)}
        checked = {n for n, c in arguments.items() if n.endswith(POSITIONS) and c[0] in seen.limits}
        kept = own.axes(vague | checked)
        more = not kept <= self.kept
        self.kept |= kept
        return more

    def _join(self, own: _Arguments, vague: Set[str]) -> bool:
        """Make one argument of equal sizes of which one has no name of its own.

        Returns whether there are new ones.
        """
        # Those of queries and of values are one `head_dim`.
        units = {n: (stem(n) if stem(n) in _OWN else "", own.unit(n)) for n in own.arguments}
        counts = collections.Counter(unit for unit in units.values() if unit[1])
        after = ("_size", f"_{DIM}")  # a layer
        told = vague | {n for n in units if n.endswith(after) or n != stem(n)}
        equal = {units[n] for n in told & units.keys() if counts[units[n]] > 1}
        axes = own.axes(n for n, unit in units.items() if unit in equal)
        if axes <= self.joined:
            return False
        self.joined |= axes
        return True

    def step_back(self) -> bool:
        """Give up sums, then a common width, in a model that does not run at other sizes.

        Returns whether there was something to give up.
        """
        if self.adds:
            self.adds = False
        elif self.one_width:
            self.one_width = False
        else:
            return False
        return True


class _Arguments:
    """The arguments of a model, and the axes of its arrays that they are.

    **Attributes:**

    - `sizes`: the axes of parameters, with their sizes.
    """

    def __init__(
        self,
        scaled: Scaled,
        arguments: Mapping[str, tuple[Any, ...]],
        place: int,
        shape: Callable[[Var], Shape],
    ):
        self.arguments, self._scaled, self._place = arguments, scaled, place
        leaves = [v for _, v in scaled.source.leaves()]
        self.sizes = [(v, i, n) for v in leaves for i, n in enumerate(shape(v))]

    def axes(self, names: Iterable[str]) -> set[tuple[Var, int]]:
        """The axes of parameters whose sizes are some arguments."""
        columns = [(self.arguments[n][0], self.arguments[n][self._place]) for n in names]
        return {(v, i) for v, i, n in self.sizes if (n, self._scaled.size(v, i, n)) in columns}

    def unit(self, name: str) -> int:
        """The common divisor of the sizes that an argument determines; 0 if there is none."""
        found = {self._scaled.unit(v, i) for v, i in self.axes([name])}
        return found.pop() if len(found) == 1 else 0

    def is_given(self, name: str) -> bool:
        """Return whether a size is one of the model's input."""
        column = self.arguments[name][0], self.arguments[name][self._place]
        (layer,) = self._scaled.source.layers
        return any(
            (n, self._scaled.size(v, i, n)) == column
            for v in layer.inputs
            for i, n in enumerate(v.aval.shape)
        )
