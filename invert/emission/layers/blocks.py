"""Blocks: repeated steps of a layer, turned into layers.

If every path from one value passes through another, the steps in between form a unit, such as a
residual branch with its sum. Units that repeat, alone or in groups, are blocks. So blocks need no
names, and may contain blocks.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import re
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from invert._private.jax import rename_operands
from invert.emission.layers import branches, prefixes, repeated
from invert.emission.layers.cut import (
    NUMBER,
    PART,
    Assign,
    Layer,
    LayerCall,
    Path,
    common_prefix,
    layers_in,
    plain_name,
)
from invert.emission.layers.library_names import without_number
from invert.emission.layers.links import Links, ordered, users_of
from invert.emission.layers.stack import kind_of
from invert.emission.layers.tree import called, parameters_of
from invert.emission.layers.wrap import wrap, wrapped
from invert.emission.python.naming import snake
from invert.ir import kinds
from invert.ir.graph import is_var, read_by
from invert.ir.jaxprs import holds_jaxprs
from invert.ir.types import Atom, Eqn, Var

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# Parts of an array are taken outside of blocks, such as the steps of a sequence.
_PARTS = kinds.PARTS | {"split"}
# Minimum number of repetitions to make a list of a single layer.
_FEW = 3


def group(layer: Layer, parameters: Mapping[Var, Path], model: str = "") -> None:
    """Make blocks of the steps of a layer and of the layers inside it.

    **Arguments:**

    - `model`: the name of the outermost layer, whose parts do not become another layer of the name.
    """
    _part_forms(layer, parameters)
    layer.steps = branches.in_order(layer.steps, layer.outputs)
    if runs := _Chains(layer).runs():
        _wrap_runs(layer, runs, parameters)
    prefixes.group(layer, parameters, {f"{snake(model)}_"} if model else frozenset())
    repeated.group(layer, parameters)
    branches.name_fields(layer, parameters)
    for inner in layers_in(layer):
        group(inner, parameters, model)


def _part_forms(layer: Layer, parameters: Mapping[Var, Path]) -> None:
    """Give each user of a reshaped parameter, such as a broadcast bias, its own equation."""
    users = collections.Counter(a for s in layer.steps for a in s.invars if is_var(a))
    makers: dict[Atom, Eqn] = {}
    placed: set[Atom] = set()
    steps: list[Eqn] = []
    for step in layer.steps:
        form = step.primitive.name in kinds.LAYOUT and is_var(step.invars[0])
        if form and step.invars[0] in parameters and step.outvars[0] not in layer.outputs:
            makers[step.outvars[0]] = step
            continue
        own: dict[Var, Atom] = {}
        for atom in [a for a in read_by([step]) if a in makers]:
            if users[atom] > 1 and not isinstance(step, LayerCall | Assign):
                own[atom] = copy = Var(atom.aval)
                steps.append(makers[atom].replace(outvars=[copy]))
            elif atom not in placed:
                placed.add(atom)
                steps.append(makers[atom])
        steps.append(rename_operands(step, own))
    layer.steps = steps


@dataclasses.dataclass(frozen=True)
class _Unit:
    """The steps between two values, by their numbers in the layer.

    **Arguments:**

    - `steps`: in order; the last one computes the value that is passed on.
    - `key`: equal for units that compute the same.
    - `names`: names of its layers, without numbers.
    - `parameters`: parameters of the enclosing layer that its equations use.
    - `primitives`: primitives of its equations.
    - `size`: how many parameters it and its layers have.
    - `uses`: how many of its steps use its initial value.
    - `new`: whether it is more than a single named layer.
    """

    steps: tuple[int, ...]
    key: Hashable
    names: tuple[str, ...]
    parameters: tuple[Var, ...]
    primitives: tuple[str, ...]
    size: int
    uses: int
    new: bool


# For each block, its steps.
_Run = Sequence[Sequence[int]]


class _Chains:
    """The chains of units in a layer, and the repetitions in them.

    The numbers of its inputs are negative.
    """

    def __init__(self, layer: Layer):
        self.layer, self.steps = layer, layer.steps
        links = Links(layer.steps, layer.outputs, layer.inputs)
        self.before, self.results = links.before, links.results
        self.users: dict[int, list[int]] = {}
        self.assigned: dict[int, list[int]] = {}
        for i, users in links.users.items():
            self.users[i] = [j for j in users if not isinstance(layer.steps[j], Assign)]
            self.assigned[i] = [j for j in users if isinstance(layer.steps[j], Assign)]

    def runs(self) -> list[_Run]:
        """The repetitions in the chains, starting with the longest."""
        layers = sum(isinstance(s, LayerCall) for s in self.steps)
        if layers + len(self.layer.parameters) < _FEW:
            return []
        chains = self._chains()
        by_length = self._parts(chains, inputs_first=False)
        found = self._runs_of(by_length)
        # What depends on no input, such as a mask or the form of a bias, lies inside of blocks; but
        # the latents of a Perceiver are what its blocks pass on.
        by_input = self._parts(chains, inputs_first=True)
        other = self._runs_of(by_input) if by_input != by_length else found
        return other if _size(other) > _size(found) else found

    def _runs_of(self, parts: Sequence[Sequence[int]]) -> list[_Run]:
        found: list[_Run] = []
        taken: set[int] = set()
        for chain in parts:
            units = self._units(chain)
            exact, alike = _repeated(units, 0, len(units)), _alike(units)
            for run in exact if _size(exact) >= _size(alike) else alike:
                steps = {i for block in run for i in block}
                if not steps & taken and not self._calls_again(run):
                    taken |= steps
                    found.append(run)
        return found

    def _calls_again(self, run: _Run) -> bool:
        """Return whether several blocks call one part of the program, which none of them owns."""
        steps = ([self.steps[i] for i in block] for block in run)
        parts = [{id(s.params["part"]) for s in own if s.primitive is PART} for own in steps]
        return len(set().union(*parts)) < sum(map(len, parts))

    def _chains(self) -> list[list[int]]:
        """For each start, the steps through which all paths from it pass."""
        end = len(self.steps)
        after: dict[int, int] = {}  # the next such step
        depth = {end: 0}
        numbers = range(-len(self.layer.inputs), end)
        for i in reversed(numbers):
            if i >= 0 and isinstance(self.steps[i], Assign):
                continue
            following = [*self.users.get(i, ()), *([end] if i in self.results else [])]
            at = following[0] if following else end
            for other in following[1:]:
                while at != other:
                    if depth[at] >= depth[other]:
                        at = after[at]
                    else:
                        other = after[other]
            after[i], depth[i] = at, depth[at] + 1
        starts = [i for i in numbers if i in after and (i < 0 or not self.before[i])]
        chains: list[list[int]] = []
        for i in starts:
            chain = [i]
            while after[chain[-1]] != end:
                chain.append(after[chain[-1]])
            chains.append(chain)
        return chains

    def _parts(self, chains: Sequence[list[int]], *, inputs_first: bool) -> list[list[int]]:
        """The chains, each without the steps of those before it; the longest first."""
        seen: set[int] = set()
        parts: list[list[int]] = []

        def rank(chain: list[int]) -> tuple[bool, bool, int]:
            # The steps of an unrolled loop begin with its first state, such as zeros.
            return not self._is_state(chain[0]), inputs_first and chain[0] >= 0, -len(chain)

        for chain in sorted(chains, key=rank):
            part = [i for i in chain if i not in seen]
            if len(part) > _FEW:
                seen.update(part)
                parts.append(part)
        return parts

    def _is_state(self, i: int) -> bool:
        """Return whether a step fills an array with a number, from which a product starts."""
        filled = i >= 0 and self.steps[i].primitive.name == "broadcast_in_dim"
        following = [self.steps[j].primitive.name for j in self.users.get(i, ())]
        return filled and not self.before[i] and "dot_general" in following

    def _units(self, chain: Sequence[int]) -> list[_Unit]:
        units: list[_Unit] = []
        taken = set(chain)
        for first, last in itertools.pairwise(chain):
            ahead = {first}
            for i in range(max(first + 1, 0), last + 1):
                if not ahead.isdisjoint(self.before[i]):
                    ahead.add(i)
            members = {last}
            for i in range(last - 1, max(first, -1), -1):
                if i in ahead and any(j in members for j in self.users.get(i, ())):
                    members.add(i)
            self._add_before(members, taken)
            taken |= members
            self._add_assigned(members)
            units.append(self._unit(sorted(members), first))
        return units

    def _add_before(self, members: set[int], taken: Set[int]) -> None:
        """Add values used only by some steps and not computed by a layer, such as a mask."""
        pending = {-j for i in members for j in self.before[i] if j >= 0} - {-i for i in members}
        ordered = sorted(pending)  # users come before what they use
        while ordered:
            i = -heapq.heappop(ordered)
            users = self.users.get(i, ())
            if i in taken or i in self.results or not members.issuperset(users):
                continue
            if isinstance(self.steps[i], LayerCall | Assign) or self._takes_part(i, members):
                continue
            members.add(i)
            for j in self.before[i]:
                if j >= 0 and -j not in pending and j not in members:
                    pending.add(-j)
                    heapq.heappush(ordered, -j)

    def _add_assigned(self, members: set[int]) -> None:
        """Add steps that assign to the state what only some steps compute."""
        ordered = sorted({j for i in members for j in self.assigned.get(i, ())})
        while ordered:
            i = heapq.heappop(ordered)
            if members.issuperset(self.before[i]) and i not in members:
                members.add(i)
                for j in self.assigned.get(i, ()):
                    heapq.heappush(ordered, j)

    def _takes_part(self, i: int, members: Collection[int]) -> bool:
        """Return whether a step takes a part of an array, possibly reshaped.

        Gates of a step that only this unit uses do not count.
        """
        name = self.steps[i].primitive.name
        if name == "split" and all(j in members for j in self.users.get(i, ())):
            return False
        if name in _PARTS:
            return True
        form = name in kinds.LAYOUT
        return form and any(j >= 0 and self._takes_part(j, members) for j in self.before[i])

    def _unit(self, members: Sequence[int], first: int) -> _Unit:
        steps = [self.steps[i] for i in members]
        names = tuple(_plain(s.layer.name) for s in steps if isinstance(s, LayerCall))
        uses = sum(first in self.before[i] for i in members)
        new = len(steps) > 1 or any(
            isinstance(s, LayerCall) and NUMBER in s.layer.name for s in steps
        )
        held = set(self.layer.parameters)
        own = tuple(a for s in steps for a in s.invars if isinstance(a, Var) and a in held)
        primitives = tuple(s.primitive.name for s in steps)
        size = len(own) + sum(len(parameters_of(s.layer)) for s in steps if _is_call(s))
        keys = tuple(map(_key, steps))
        return _Unit(tuple(members), keys, names, own, primitives, size, uses, new)


def _size(runs: Sequence[_Run]) -> int:
    return sum(len(block) for run in runs for block in run)


def _plain(name: str) -> str:
    """The name of a layer without numbers."""
    return re.sub(rf"[_{NUMBER}]?\d+(?=_|$)", "", name).strip("_") or "layer"


def _key(step: Eqn) -> Hashable:
    """Equal for steps that compute the same, with other parameters."""
    shapes = tuple(v.aval.shape for v in step.outvars)
    if isinstance(step, LayerCall):
        return _plain(step.layer.name), kind_of(step.layer), shapes
    if isinstance(step, Assign):
        return "assign"
    params = () if holds_jaxprs(step) else tuple((k, str(v)) for k, v in step.params.items())
    return step.primitive.name, shapes, params


def _repeated(units: Sequence[_Unit], start: int, end: int) -> list[_Run]:
    """Exact repetitions: the longest run, then those before and after it."""
    best: tuple[int, int, int, int, int] | None = None
    where = (0, 0, 0)
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(u.key, len(numbers)) for u in units]
    # Of the units before each: their layers and parameters, and those of more than one step.
    held = [0, *itertools.accumulate(len(u.names) + len(u.parameters) for u in units)]
    news = [0, *itertools.accumulate(int(u.new) for u in units)]
    if held[end] == held[start] or news[end] == news[start]:
        return []
    for period in range(1, (end - start) // 2 + 1):
        if best is not None and (end - start) // period * period <= best[0]:
            continue  # not even all units would be longer
        alike = 0  # the number of units from `i` on that equal those a period later
        for i in range(end - period - 1, start - 1, -1):
            alike = alike + 1 if keys[i] == keys[i + period] else 0
            count = 1 + alike // period
            # A block begins with its larger part, such as its attention.
            score = (count * period, -period, units[i].uses, units[i].size, -i)
            if count == 1 or (best is not None and score <= best):
                continue
            inside, new = held[i + period] - held[i], news[i + period] - news[i]
            if new and inside and (inside > 1 or count >= _FEW):
                best, where = score, (i, period, count)
    if best is None:
        return []
    i, period, count = where
    blocks = [
        [j for u in units[i + k * period : i + (k + 1) * period] for j in u.steps]
        for k in range(count)
    ]
    after = i + period * count
    return [blocks, *_repeated(units, start, i), *_repeated(units, after, end)]


def _alike(units: Sequence[_Unit]) -> list[_Run]:
    """Consecutive units of several layers each, with layers of the same names."""
    runs: list[_Run] = []
    # The run so far: each unit with the following units that have no layers.
    run: list[list[_Unit]] = []

    def finish() -> None:
        if len(run) > 1:
            tails = [[u.primitives for u in following] for _, *following in run]
            common = 1 + len(common_prefix(tails))
            runs.append([[i for u in block[:common] for i in u.steps] for block in run])
        run.clear()

    for unit in units:
        if not unit.names and run:
            run[-1].append(unit)
            continue
        if run and set(unit.names) != set(run[-1][0].names):
            finish()
        if len(unit.names) > 1:
            run.append([unit])
    finish()
    return runs


def _wrap_runs(layer: Layer, runs: Sequence[_Run], parameters: Mapping[Var, Path]) -> None:
    """Replace the steps of each block by the call of a new layer."""
    inside = {i for run in runs for block in run for i in block}
    runs = [_with_named(layer, run, parameters, inside) for run in runs]
    steps = list(layer.steps)
    inside = {i for run in runs for block in run for i in block}
    outer = [s.layer.name for i, s in enumerate(steps) if i not in inside and _is_call(s)]
    taken = set(map(_plain, outer))
    nodes: list[tuple[int, Eqn]] = [(i, s) for i, s in enumerate(steps) if i not in inside]
    for run in sorted(runs, key=lambda r: min(r[0])):
        shortcuts = _shortcuts(layer, run)
        aside = {i for members in shortcuts for i in members}
        every = [[s.layer for i in b if _is_call(s := steps[i]) and i not in aside] for b in run]
        # Activations and the like have the names of their kinds.
        calls = [own if (own := [*filter(parameters_of, b)]) else b for b in every]
        shared = _shared(layer, run)
        name, number = _name_of(calls, parameters) or ("cell" if shared else "block"), 1
        while name in taken:
            name, number = f"stage{number}_block" if number > 1 else "block", number + 1
        taken.add(name)
        _name_fields(calls, parameters)
        if shared:
            layer.parameters = [v for v in layer.parameters if v not in shared]
        first: Layer | None = None
        own = _own_names(calls, parameters)
        for k, members in enumerate(run):
            called_ = name if shared else own[k] if own else f"{name}_{k}"
            call = wrapped(layer, members, called_, parameters, shared)
            call.layer.same, call.layer.block = first, name
            if shortcuts[k]:
                _wrap_shortcut(call.layer, [steps[i] for i in shortcuts[k]], parameters)
            first = first or (call.layer if shared else None)
            nodes.append((min(members), call))
    layer.steps = ordered(nodes)


# `conv2_block1_` in the name of a layer.
_PLACED = re.compile(r".*\d_")


def _with_named(
    layer: Layer, run: _Run, parameters: Mapping[Var, Path], inside: Collection[int]
) -> _Run:
    """A run whose blocks include the layers of their names beside the path through them.

    Such a layer computes what only its block uses, such as the projection of a time. Layers without
    names are of a block if all blocks have such layers of one value.

    **Arguments:**

    - `inside`: the steps of all blocks.
    """
    links = Links(layer.steps, layer.outputs)
    found: list[dict[int, Hashable]] = []
    for block in run:
        inner = [s.layer for i in block if _is_call(s := layer.steps[i])]
        begin = {own[0] for x in inner if (own := _PLACED.match(called(x, parameters)))}
        beside: dict[int, Hashable] = {}
        for i, s in enumerate(layer.steps):
            if i in inside or i in links.results or not _is_call(s):
                continue
            if {*block}.issuperset(links.users[i]):
                if called(s.layer, parameters).startswith((*begin,)):
                    beside[i] = None
                elif NUMBER in s.layer.name:
                    beside[i] = _plain(s.layer.name), *map(id, s.invars)
        found.append(beside)
    # The first block is also the only one to use the layer before it.
    common = {*found[0].values()}.intersection(*(own.values() for own in found[1:]))
    kept = [[i for i, key in own.items() if key is None or key in common] for own in found]
    if len({*map(len, kept)}) > 1:
        return run
    return [sorted({*block, *own}) for block, own in zip(run, kept, strict=True)]


_SHORTCUT = "shortcut"


def _shortcuts(layer: Layer, run: _Run) -> list[list[int]]:
    """For each block, the layers on its shortcut; none if all blocks have equally many.

    A shortcut leads from the input of a block to its last sum, parallel to a longer path.
    """
    counts = {sum(_is_call(layer.steps[i]) for i in block) for block in run}
    return [_shortcut(layer, block) if len(counts) > 1 else [] for block in run]


def _shortcut(layer: Layer, block: Sequence[int]) -> list[int]:
    steps = layer.steps
    makers: dict[Atom, int] = {v: i for i in block for v in steps[i].outvars}
    users: collections.Counter[Atom] = collections.Counter()
    users.update(a for s in steps for a in s.invars if is_var(a))
    users.update(layer.results)
    sums = [i for i in block if steps[i].primitive.name == "add"]
    if not sums:
        return []
    ways: list[list[int]] = []
    summands = [a for a in steps[sums[-1]].invars if is_var(a)]
    if any(a not in makers for a in summands):
        return []  # the input itself is the shortcut
    for atom in summands:
        way: list[int] = []
        while (i := makers.get(atom)) is not None and _is_call(steps[i]):
            start = steps[i].invars[0]
            alone = len(steps[i].invars) == len(steps[i].outvars) == users[atom] == 1
            if not alone or not is_var(start):
                break
            way.append(i)
            atom = start
        if way and atom not in makers and users[atom] > 1:
            ways.append(way)
    ways.sort(key=len)
    if not ways or (len(ways) > 1 and len(ways[0]) == len(ways[1])):
        return []
    way, *_ = ways
    names = collections.Counter(_plain(s.layer.name) for i in block if _is_call(s := steps[i]))
    own = [_plain(s.layer.name) for i in way if _is_call(s := steps[i])]
    # A single layer with a name of its own, such as `downsample`, keeps it.
    return sorted(way) if len(own) > 1 or names[own[0]] > 1 else []


def _wrap_shortcut(block: Layer, members: Sequence[Eqn], parameters: Mapping[Var, Path]) -> None:
    """Make a layer of the layers on the shortcut of a block."""
    chosen = [i for i, s in enumerate(block.steps) if s in members]
    inner = [s.layer for s in members if _is_call(s)]
    if len(inner) == 1:
        inner[0].field = _SHORTCUT
        return
    names = [called(layer, parameters) for layer in inner]
    for layer, name in zip(inner, names, strict=True):
        layer.field = layer.kind = _plain(name.removeprefix(_prefix(names)))
    _number(inner)
    wrap(block, chosen, _SHORTCUT, parameters, min(chosen)).layer.field = _SHORTCUT


def _shared(layer: Layer, run: _Run) -> list[Var]:
    """The parameters shared by all blocks: these are one block, called several times."""
    inside = {i for block in run for i in block}
    steps = layer.steps
    if any(_is_call(steps[i]) or isinstance(steps[i], Assign) for i in inside):
        return []
    used = [
        {a for i in block for a in steps[i].invars if is_var(a) and a in layer.parameters}
        for block in run
    ]
    others = {*read_by(s for i, s in enumerate(steps) if i not in inside), *layer.results}
    if any(u != used[0] for u in used) or used[0] & others:
        return []
    return [v for v in layer.parameters if v in used[0]]


def _is_call(step: Eqn) -> TypeIs[LayerCall]:
    return isinstance(step, LayerCall)


def _name_of(blocks: Sequence[Sequence[Layer]], parameters: Mapping[Var, Path]) -> str:
    """A name for blocks: the common prefix of a block's layers, otherwise its only layer's name.

    It is `""` without layers.
    """
    if not any(blocks):
        return ""
    if all(len(layers) == 1 for layers in blocks):
        return _plain(called(blocks[0][0], parameters))
    begin = _prefix([called(layer, parameters) for layer in blocks[0]])
    return re.sub(r"[\d_]+$", "", begin) or "block"


def _own_names(blocks: Sequence[Sequence[Layer]], parameters: Mapping[Var, Path]) -> list[str]:
    """The names of blocks in those of their layers, `conv2_block1`; none if some lack one."""
    names = [_prefix([called(x, parameters) for x in layers]).rstrip("_") for layers in blocks]
    return names if all(names) and len(set(names)) == len(names) else []


def _prefix(names: Sequence[str]) -> str:
    """The common prefix of names, up to a number and an underscore: `conv2_block1_`."""
    found = _PLACED.match("".join(common_prefix(names)))
    return found[0] if len(names) > 1 and found is not None else ""


def _name_fields(blocks: Sequence[Sequence[Layer]], parameters: Mapping[Var, Path]) -> None:
    """Give corresponding layers of blocks the same name."""
    names: list[list[str]] = []
    for layers in blocks:
        own = [called(layer, parameters) for layer in layers]
        names.append([name.removeprefix(_prefix(own)) for name in own])
    same = all(n == names[0] for n in names)
    for layers, own in zip(blocks, names, strict=True):
        counts = collections.Counter(name.partition("_")[0] for name in own)
        for layer, name in zip(layers, own, strict=True):
            number, _, rest = name.partition("_")
            # Layers with the same number become one layer, see `prefixes`.
            alone = number.isdigit() and rest and counts[number] == 1
            layer.field = f"{rest}{number}" if alone else name
            if not same:
                layer.field = _plain(layer.field)
            if NUMBER not in name and not layer.field[:1].isdigit():
                layer.kind = without_number(layer.field)
        if not same:
            _number(layers)


def _number(layers: Sequence[Layer]) -> None:
    """Numbers layers of the same name."""
    counts = collections.Counter(layer.field for layer in layers)
    numbers: collections.Counter[str] = collections.Counter()
    for layer in layers:
        name = layer.field
        if counts[name] > 1:
            numbers[name] += 1
            layer.field = f"{name}_{numbers[name]}"


def name_layers(layer: Layer) -> None:
    """Names the layers of a program without names, inside a layer, and numbers them."""
    calls = layers_in(layer)
    free = [c for c in calls if NUMBER in c.name and not c.listed and c.field != _SHORTCUT]
    for inner in free:
        inner.field = plain_name(inner.name)
    linear = [c for c in free if c.field == "linear"]
    if len(linear) == 2:
        first, second = map(_width_of, linear)
        if first and second and first[0] == second[1] < first[1]:
            linear[0].field, linear[1].field = "up", "down"
    for inner, name in zip(linear, _gated(layer, linear), strict=False):
        inner.field = name
    if not layer.path and linear and linear[-1].field == "linear":
        last = linear[-1]
        if any(v in layer.outputs for v in last.outputs):
            last.field = "head"
    _number(free)
    for inner in calls:
        name_layers(inner)


def _gated(layer: Layer, linear: Sequence[Layer]) -> list[str]:
    """Names for the three products of a gated MLP, `[]` for other layers."""
    widths = [w for inner in linear if (w := _width_of(inner)) is not None]
    if len(linear) != 3 or len(widths) != 3:
        return []
    first, second, last = widths
    if first != second or last != first[::-1] or first[0] >= first[1]:
        return []
    users = users_of(layer.steps)
    results = {s.layer: s.outvars[0] for s in layer.steps if isinstance(s, LayerCall)}
    direct = [
        [layer.steps[j].primitive.name for j in users[results[inner]]] == ["mul"]
        for inner in linear[:2]
    ]
    if direct == [False, True]:
        return ["gate", "up", "down"]
    return ["up", "gate", "down"] if direct == [True, False] else []


def _width_of(layer: Layer) -> tuple[int, int] | None:
    """The number of features of the input and of the result of a layer."""
    shapes = [v.aval.shape for v in (*layer.inputs[:1], *layer.results[:1])]
    if len(shapes) != 2 or not all(shapes):
        return None
    return shapes[0][-1], shapes[1][-1]
