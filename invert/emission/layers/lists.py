"""Lists of layers: consecutive layers that compute the same are a tuple, called in a loop."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Sequence

from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.stack import Stacker
from invert.emission.python.naming import plural
from invert.ir.types import Eqn, Var


@dataclasses.dataclass(eq=False)
class Loop(LayerCall):
    """The calls of all layers of a list, one after the other, in the place of an equation.

    `layer` is the first one; the operands are its inputs, the result is that of the last one.

    **Arguments:**

    - `carried`: the position, among the inputs, of the value that goes from layer to layer.
    """

    carried: int = 0


@dataclasses.dataclass
class Lists:
    """The lists in a tree of layers.

    **Attributes:**

    - `loops`: the call of a whole list, by the call of its first layer.
    - `covered`: the calls that loops stand for.
    """

    loops: dict[LayerCall, Loop] = dataclasses.field(default_factory=dict)
    covered: set[LayerCall] = dataclasses.field(default_factory=set)

    def looped(self, steps: Sequence[Eqn]) -> list[Eqn]:
        """Steps in which a loop stands for the calls of each list."""
        return [
            self.loops.get(s, s) if isinstance(s, LayerCall) else s
            for s in steps
            if not isinstance(s, LayerCall) or s in self.loops or s not in self.covered
        ]

    def find(self, layer: Layer, stacker: Stacker) -> None:
        """Finds the lists in a layer and in those inside it."""
        names = [s.layer.name for s in layer.steps if isinstance(s, LayerCall)]
        for run in stacker.runs(layer):
            first, last = run.calls[0], run.calls[-1]
            if len(run.carried) != 1 or len(first.layer.outputs) != 1:
                continue
            if any(type(c) is not LayerCall or c.layer.native is not None for c in run.calls):
                continue  # a stack, or a layer of Equinox
            if not _consecutive(run.calls, names):
                continue
            ((carried, _),) = run.carried
            if any(self._elsewhere(c.outvars[0], c, layer) for c in run.calls[:-1]):
                continue
            for call in run.calls:
                call.layer.listed = plural(call.layer.name)
            self.loops[first] = Loop(
                first.layer, list(first.invars), list(last.outvars), carried=carried
            )
            self.covered.update(run.calls)
        self._mixed(layer, names)
        for step in layer.steps:
            if isinstance(step, LayerCall):
                self.find(step.layer, stacker)

    def _mixed(self, layer: Layer, names: Sequence[str]) -> None:
        """Lists of blocks that differ, each of which takes the result of the one before it."""
        blocks: dict[str, list[LayerCall]] = collections.defaultdict(list)
        for call in layer.steps:
            if type(call) is LayerCall and call.layer.block and call not in self.covered:
                blocks[call.layer.block].append(call)
        for calls in blocks.values():
            single = all(len(c.invars) == len(c.outvars) == 1 for c in calls)
            if len(calls) < 2 or not single or not _consecutive(calls, names):
                continue
            pairs = list(itertools.pairwise(calls))
            if any(b.invars[0] is not a.outvars[0] for a, b in pairs):
                continue
            if any(self._elsewhere(c.outvars[0], c, layer) for c in calls[:-1]):
                continue
            for call in calls:
                call.layer.listed, call.layer.mixed = plural(call.layer.name), True
            first, last = calls[0], calls[-1]
            self.loops[first] = Loop(first.layer, list(first.invars), list(last.outvars))
            self.covered.update(calls)

    @staticmethod
    def _elsewhere(v: Var, call: LayerCall, layer: Layer) -> bool:
        """Whether more than the next layer uses the result of a layer of a list."""
        users = [s for s in layer.steps if any(a is v for a in s.invars)]
        return len(users) != 1 or any(a is v for a in layer.outputs)


def _consecutive(calls: Sequence[LayerCall], names: Sequence[str]) -> bool:
    """Whether layers are called `block_0`, `block_1`, ..., and no other layer of the same level is.

    Keras ends the names of scopes with a second number.
    """
    for k in (1, 2):
        parts = [p for c in calls if (p := _numbers(c.layer.name, k)) is not None]
        stems, numbers = {p[0] for p in parts}, [p[1] for p in parts]
        others = [p for n in names if (p := _numbers(n, k)) is not None and p[0] in stems]
        if len(stems) == 1 and len(others) == len(calls):
            return numbers == list(range(numbers[0], numbers[0] + len(calls)))
    return False


def _numbers(name: str, k: int) -> tuple[str, int] | None:
    """The parts of a name around its last number, or the last but one."""
    found = re.fullmatch(r"(.*[A-Za-z])_?(\d+)" + r"(?:_\d+)" * (k - 1), name)
    return None if found is None else (found[1], int(found[2]))
