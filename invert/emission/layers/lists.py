"""Lists of layers: consecutive equal layers become a tuple, called in a loop."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from invert.emission.layers import links
from invert.emission.layers.branches import BRANCH
from invert.emission.layers.cut import Layer, LayerCall, layers_in
from invert.emission.layers.library_names import LETTERED, without_letter
from invert.emission.layers.links import passed_on
from invert.emission.layers.stack import Stacker, equations, kind_of
from invert.emission.python.naming import NUMBERED_LIST, plural
from invert.ir import kinds
from invert.ir.graph import Graph, is_var, read_by
from invert.ir.sizes import Shape
from invert.ir.types import Atom, Eqn, Var

# At least this many blocks of several kinds become a list that the original does not have. Layers
# of one kind, but of different sizes, do not.
_MANY = 3


@dataclasses.dataclass(frozen=True)
class Total:
    """One result of all layers of a list, combined from the first to the last by one operation.

    **Arguments:**

    - `place`: its position among the outputs of a layer.
    - `eqn`: the equation that adds the result of the last layer, `of`, to `before`.
    - `start`: what the first of these equations begins with.
    """

    place: int
    eqn: Eqn
    before: Var
    of: Var
    start: Atom


@dataclasses.dataclass(eq=False)
class Loop(LayerCall):
    """Successive calls of the layers of a list; replaces an equation.

    `layer` is the first one that the loop calls. The operands are its inputs, with whole arrays
    instead of their rows, then what totals start with; the results are the carried values of the
    last one, then the totals.

    **Arguments:**

    - `carried`: for each value passed from layer to layer, its positions among the inputs and the
        outputs; the first one is the stream.
    - `totals`: the results that are combined.
    - `skipped`: how many layers are called before the loop.
    - `rows`: the positions of the inputs of which each layer is given one row.
    """

    carried: Sequence[tuple[int, int]] = ((0, 0),)
    totals: Sequence[Total] = ()
    skipped: int = 0
    rows: Sequence[int] = ()

    @property
    def stream(self) -> int:
        """The position of the stream among the inputs."""
        return self.carried[0][0]

    @property
    def given(self) -> Sequence[Atom]:
        """The operands that are inputs of the layer."""
        return self.invars[: len(self.invars) - len(self.totals)]


@dataclasses.dataclass(eq=False)
class Unrolled(LayerCall):
    """Successive calls of one layer: each takes the result of the last, and maybe part of an array.

    `layer` is that of the first call; the operands are its inputs, with the whole array instead of
    its part.

    **Arguments:**

    - `carried`, `element`: the positions, among the inputs, of the value passed from call to call
        and of the part; `element` is `None` if there is no array.
    - `split`: the equation that makes the parts; `forms` reshape the first one.
    - `axis`: the axis along which the parts are single rows, if there is no split; `count` is
        their number.
    """

    split: Eqn | None = None
    forms: Sequence[Eqn] = ()
    axis: int = 0
    count: int = 0
    carried: int = 0
    element: int | None = None


@dataclasses.dataclass
class Lists:
    """The lists in a tree of layers.

    **Arguments:**

    - `called`: what a layer is called; by default its scope.
    - `lists_of`: the names of the author's lists, by those of their layers without the number.

    **Attributes:**

    - `loops`: the call of a whole list, by the call of its first layer.
    - `covered`: the calls that loops replace, and the equations that make their parts.
    - `series`: the loop that calls a layer, or follows its call.
    """

    called: Callable[[Layer], str] = operator.attrgetter("name")
    lists_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    loops: dict[LayerCall, LayerCall] = dataclasses.field(default_factory=dict)
    covered: set[Eqn] = dataclasses.field(default_factory=set)
    series: dict[Layer, Loop] = dataclasses.field(default_factory=dict)

    def looped(self, steps: Sequence[Eqn]) -> list[Eqn]:
        """Steps in which a loop replaces the calls of each list."""
        return [
            self.loops.get(s, s) if isinstance(s, LayerCall) else s
            for s in steps
            if s not in self.covered or s in self.loops
        ]

    def passed(self, call: LayerCall) -> set[Var]:
        """The results of a layer that are the stream of the loop after it."""
        loop = self.series.get(call.layer)
        return {v for v in call.outvars if loop is not None and v is loop.invars[loop.stream]}

    def unroll(self, layer: Layer) -> None:
        """Find calls of a layer on its own results, in a layer and the layers inside it."""
        again: dict[Layer, list[LayerCall]] = {}
        for inner in layers_in(layer):
            self.unroll(inner)
        for step in layer.steps:
            if isinstance(step, LayerCall):
                again.setdefault(step.layer.same or step.layer, []).append(step)
        makers: dict[Atom, Eqn] = {v: s for s in layer.steps for v in s.outvars}
        for calls in again.values():
            if len(calls) > 2 and not any(c in self.covered for c in calls):
                self._unrolled(layer, calls, makers)

    def _unrolled(
        self, layer: Layer, calls: Sequence[LayerCall], makers: Mapping[Atom, Eqn]
    ) -> None:
        first = calls[0]
        if any(len(c.outvars) != 1 or len(c.invars) != len(first.invars) for c in calls):
            return
        carried, others = _passed_on(calls)
        if len(carried) != 1 or len(others) > 1:
            return
        state, last = carried[0][0], calls[-1].outvars[0]
        if not others:
            if not self._are_used(layer, {*calls}, last):
                self.loops[first] = Unrolled(
                    first.layer, list(first.invars), [last], count=len(calls), carried=state
                )
                self.covered |= {*calls}
            return
        (element,) = others
        parts = _parts([c.invars[element] for c in calls], makers)
        if parts is None or len({tuple(map(_form, forms)) for forms in parts.forms}) > 1:
            return
        inside = {*calls, *parts.steps}
        if self._are_used(layer, inside, last):
            return
        invars = list(first.invars)
        invars[element] = parts.whole
        self.loops[first] = Unrolled(
            first.layer, invars, [last], split=parts.split, forms=parts.forms[0],
            axis=parts.axis, count=len(calls), carried=state, element=element,
        )  # fmt: skip
        self.covered |= inside

    @staticmethod
    def _are_used(layer: Layer, inside: Set[Eqn], last: Var) -> bool:
        """Return whether other steps use a result of these steps other than the last."""
        made = {v for e in inside for v in e.outvars} - {last}
        return not made.isdisjoint(_read_outside(layer, inside))

    def find(self, layer: Layer, stacker: Stacker) -> None:
        """Find the lists in a layer and in the layers inside it."""
        names = {s: self.called(s.layer) for s in layer.steps if isinstance(s, LayerCall)}
        self._in_branches(layer, names)
        self._mixed(layer, names, _numbered(names))
        for run in stacker.runs(layer, _given(layer)):
            first = run.calls[0]
            if any(c.layer.native is not None for c in run.calls):
                continue  # a layer of Equinox
            if any(c in self.covered for c in run.calls) or not _consecutive(run.calls, names):
                continue
            if _is_short(run.calls) or _is_a_part(run.calls, names):
                continue
            if layer.block and len(run.calls) == 2:
                continue  # other blocks may not have two that are alike
            name = plural(first.layer.kind or first.layer.field or first.layer.name)
            if any(c.layer.listed == name for c in names):
                continue  # there cannot be two lists of one name
            if (series := _series(run.calls, layer)) is not None:
                self._list(run.calls, name, series, mixed=False)
        blocks: dict[str, list[LayerCall]] = collections.defaultdict(list)
        for call in names:
            if call.layer.block and call not in self.covered:
                blocks[call.layer.block].append(call)
        self._mixed(layer, names, blocks.values())
        self._with_first(layer)
        self._index(names)
        self._beside(layer, names)
        for inner in layers_in(layer):
            self.find(inner, stacker)

    def _mixed(
        self,
        layer: Layer,
        names: Mapping[LayerCall, str],
        groups: Iterable[Sequence[LayerCall]],
    ) -> None:
        """Lists of different blocks, each of which takes the result of the previous one."""
        for calls in groups:
            if len(calls) < 2 or not _consecutive(calls, names) or _is_a_part(calls, names):
                continue
            if (series := _series(calls, layer)) is None:
                continue
            first = calls[0].layer
            name = plural(LETTERED.sub(r"\1", first.kind or first.field or first.name).rstrip("_"))
            if not any(c.layer.listed == name for c in names):
                self._list(calls, name, series)

    def _in_branches(self, layer: Layer, names: Mapping[LayerCall, str]) -> None:
        """Make a list of the layers of each branch: `branch3_1`, `branch3_2`, ....

        A branch with layers side by side, such as `branch3_3a`, has no list.
        """
        parted = {c.layer.field.rpartition("_")[0] for c in names if c.layer.field[-1:].isalpha()}
        found: dict[str, list[LayerCall]] = collections.defaultdict(list)
        for call in names:
            if (place := re.fullmatch(rf"({BRANCH}\d+)_\d+", call.layer.field)) is not None:
                found[place[1]].append(call)
        for name, calls in found.items():
            if len(calls) > 1 and name not in parted:
                series = _series(calls, layer)
                if series is not None and len(calls[0].outvars) == 1:
                    self._list(calls, name, series)

    def _list(
        self, calls: Sequence[LayerCall], name: str, series: _Series, *, mixed: bool = True
    ) -> None:
        for call in calls:
            call.layer.listed, call.layer.mixed = name, mixed
            self.series[call.layer] = series.loop
        self.loops[calls[series.loop.skipped]] = series.loop
        self.covered |= series.covered

    def _with_first(self, layer: Layer) -> None:
        """Add the block before a list, if its layers are some of those of each block in the list.

        An example is the first block of MobileNetV2, which has a different name.
        """
        makers: dict[Atom, Eqn] = {v: s for s in layer.steps for v in s.outvars}
        for first, loop in list(self.loops.items()):
            before = makers.get(loop.invars[0])
            if first not in layer.steps or type(loop) is not Loop or len(loop.invars) != 1:
                continue
            if len(loop.outvars) != 1:
                continue
            if type(before) is not LayerCall or before.layer.listed or len(before.invars) != 1:
                continue
            (own, inner) = ([*map(self.called, layers_in(c.layer))] for c in (before, first))
            if len(own) < 2 or not set(own) <= set(inner) or len(before.outvars) != 1:
                continue
            if _elsewhere(before.outvars[0], layer):
                continue
            listed = first.layer.listed
            for step in layer.steps:
                if type(step) is LayerCall and (step.layer.listed == listed or step is before):
                    step.layer.listed, step.layer.mixed = listed, True
            del self.loops[first]
            loop = Loop(before.layer, list(before.invars), list(loop.outvars))
            self.loops[before] = loop
            self.covered.add(before)
            members = (s.layer for s in layer.steps if isinstance(s, LayerCall))
            self.series |= {x: loop for x in members if x.listed == listed}

    def _index(self, names: Mapping[LayerCall, str]) -> None:
        """Add the lists of the author whose layers are called one by one."""
        found: dict[str, dict[int, Layer]] = collections.defaultdict(dict)
        for call, name in names.items():
            item = re.fullmatch(r"(.*)_(\d+)", name)
            alone = type(call) is LayerCall and call.layer.native is None
            if item and alone and item[1] in self.lists_of and not call.layer.listed:
                found[item[1]].setdefault(int(item[2]), call.layer)
        for stem, layers in found.items():
            name = self.lists_of[stem]
            if sorted(layers) != list(range(len(layers))) or len(layers) < 2:
                continue
            if any(c.layer.listed == name for c in names):
                continue
            for layer in layers.values():  # of any classes, since no loop calls them
                layer.listed, layer.mixed, layer.indexed = name, True, True

    def _beside(self, layer: Layer, names: Mapping[LayerCall, str]) -> None:
        """Add lists of numbered layers side by side whose results are joined in their order.

        Each may take a part of an array, such as the table of one column, or all the same value.
        """
        groups: dict[str, list[LayerCall]] = collections.defaultdict(list)
        for call, name in names.items():
            if type(call) is LayerCall and call.layer.native is None and not call.layer.listed:
                groups[_numbers(name, 1)[0]].append(call)
        users: dict[Atom, list[Eqn]] = collections.defaultdict(list)
        for step in layer.steps:
            for atom in filter(is_var, step.invars):
                users[atom].append(step)
        for calls in groups.values():
            if len(calls) < _MANY or not _consecutive(calls, names):
                continue
            if len({tuple(e.primitive.name for e in equations(c.layer)) for c in calls}) > 1:
                continue
            name = plural(_numbers(names[calls[0]], 1)[0])
            joined = [_joined(c, users, layer.outputs) for c in calls]
            if None in joined or any(c.layer.listed == name for c in names):
                continue
            ends = {place[0] for place in joined if place is not None}
            if len(ends) == 1 and [p[1] for p in joined if p is not None] == [*range(len(calls))]:
                for call in calls:
                    call.layer.listed, call.layer.mixed, call.layer.indexed = name, True, True

    def chains(self) -> bool:
        """Return whether enough lists are called apart from each other for a helper function."""
        loops = [x for x in self.loops.values() if type(x) is Loop]
        made = {v for x in loops for v in x.outvars}
        apart = [x for x in loops if x.invars[x.stream] not in made]
        return len(apart) >= _MANY and all(len(x.invars) == len(x.outvars) == 1 for x in loops)


@dataclasses.dataclass(frozen=True)
class _Series:
    """The loop over some calls, with the calls and equations that it replaces."""

    loop: Loop
    covered: Set[Eqn]


def _passed_on(calls: Sequence[LayerCall]) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
    """`links.passed_on` between consecutive calls, if it is the same for all of them."""
    found = {
        passed_on(a.outvars, zip(a.invars, b.invars, strict=True))
        for a, b in itertools.pairwise(calls)
    }
    return found.pop() if len(found) == 1 else ((), ())


def _series(calls: Sequence[LayerCall], layer: Layer) -> _Series | None:
    """The loop over calls that pass results on to the next one, or `None`.

    All other inputs are the same for each call, or consecutive rows of an array; of all other
    results only a total is used.
    """
    first, last = calls[0], calls[-1]
    forms = {(len(c.invars), len(c.outvars)) for c in calls}
    if len(forms) > 1 or not all(type(c) is LayerCall for c in calls):
        return None
    carried, others = _passed_on(calls)
    if not carried or len({j for _, j in carried}) < len(carried):
        return None
    rows = {k: _rows([c.invars[k] for c in calls], layer) for k in others}
    members = set(calls)
    users: dict[Atom, list[Eqn]] = collections.defaultdict(list)
    for step in layer.steps:
        for atom in read_by([step]):
            users[atom].append(step)
    results = set(layer.results)
    totals: list[Total] = []
    covered: set[Eqn] = {*calls}
    passing = {j for _, j in carried}
    for j in range(len(first.outvars)):
        every = [c.outvars[j] for c in calls]
        outside = [v for v in every if v in results or not members.issuperset(users[v])]
        if not outside or (j in passing and outside == [last.outvars[j]]):
            continue
        total = None if j in passing or results & {*every} else _total(j, every, users, results)
        if total is None:
            return None
        totals.append(total)
        covered |= {e for v in every for e in users[v]}
    skipped = {int(t.start is first.outvars[t.place]) for t in totals} or {0}
    if len(skipped) > 1:
        return None
    (begin,) = skipped
    invars = list(calls[begin].invars)
    for k, found in rows.items():
        if found is None or begin:
            return None
        invars[k], made_rows = found
        covered |= made_rows
    before = set(first.outvars) | {v for s in _before(layer.steps, first) for v in s.outvars}
    made = {v for s in layer.steps for v in s.outvars}
    if any(is_var(t.start) and t.start in made - before for t in totals):
        return None
    start = calls[begin]
    outvars = [*(last.outvars[j] for _, j in carried), *(t.eqn.outvars[0] for t in totals)]
    loop = Loop(
        start.layer, [*invars, *(t.start for t in totals)], outvars,
        carried=carried, totals=totals, skipped=begin, rows=list(rows),
    )  # fmt: skip
    return _Series(loop, covered - {*calls[:begin]})


def _given(layer: Layer) -> Callable[[Atom, Atom], bool]:
    """A test of whether two values of a layer are parts of one array."""
    makers: dict[Atom, Eqn] = {v: s for s in layer.steps for v in s.outvars}

    def given(a: Atom, b: Atom) -> bool:
        first, second = _way(a, makers), _way(b, makers)
        if first is None or second is None:
            return False
        return first[0].invars[0] is second[0].invars[0]

    return given


def _read_outside(layer: Layer, inside: Set[Eqn]) -> list[Var]:
    """The variables that the other steps of a layer read or that it returns."""
    atoms = [a for s in layer.steps if s not in inside for a in s.invars]
    return [a for a in (*atoms, *layer.outputs) if is_var(a)]


def _rows(values: Sequence[Atom], layer: Layer) -> tuple[Var, set[Eqn]] | None:
    """The array that has these values as its rows, and the steps that take them."""
    parts = _parts(values, {v: s for s in layer.steps for v in s.outvars})
    if parts is None or parts.axis:
        return None
    split = parts.split
    if split is not None and (split.primitive.name != "unstack" or any(parts.forms)):
        return None
    made = {v for e in parts.steps for v in e.outvars} - {*values}
    read = _read_outside(layer, parts.steps)
    # Only one layer reads each row.
    if any(a in made for a in read) or sum(a in values for a in read) > len(values):
        return None
    # A model of another depth needs a row for each layer.
    if not isinstance(parts.whole, Var) or parts.whole.aval.shape[0] != len(values):
        return None
    return parts.whole, parts.steps


def _before(steps: Sequence[Eqn], step: Eqn) -> Iterator[Eqn]:
    return itertools.takewhile(lambda s: s is not step, steps)


def _joined(
    call: LayerCall, users: Mapping[Atom, Sequence[Eqn]], results: Sequence[Atom]
) -> tuple[Eqn, int] | None:
    """The step that joins a result with others, perhaps after other steps, and its place there."""
    if len(call.outvars) != 1 or len(call.invars) != 1:
        return None
    (v,) = call.outvars
    for _ in range(_FEW_STEPS):
        if len(users[v]) != 1 or any(a is v for a in results):
            return None
        (step,) = users[v]
        if step.primitive.name in _JOINS:
            return step, next(i for i, a in enumerate(step.invars) if a is v)
        if isinstance(step, LayerCall) or len(step.outvars) != 1:
            return None
        if sum(map(is_var, step.invars)) != 1:
            return None
        (v,) = step.outvars
    return None


# What joins results in their order, and the most steps between a layer and that.
_JOINS, _FEW_STEPS = ("concatenate", "stack"), 6
# Operations by which the results of layers are combined.
_TOTALS = frozenset(("add", "max", "min", "mul"))


def _total(
    place: int, every: Sequence[Var], users: Mapping[Atom, Sequence[Eqn]], results: Set[Atom]
) -> Total | None:
    """The combination of one result of each layer, each step of which only the next one uses."""
    eqns = [users[v][0] for v in every if len(users[v]) == 1]
    if len(eqns) < len(every) or len({e.primitive.name for e in eqns}) > 1:
        return None
    if eqns[0].primitive.name not in _TOTALS:
        return None
    steps = list(zip(every, eqns, strict=True))
    if eqns[0] is eqns[1]:
        start: Atom = every[0]
        steps = steps[1:]
    else:
        start = next((a for a in eqns[0].invars if a is not every[0]), every[0])
    before = start
    for v, eqn in steps:
        ahead = [a for a in eqn.invars if a is not v]
        # The loop has one line for all steps, so their operands must be in the same order.
        ordered = [a is v for a in eqn.invars] == [a is every[-1] for a in eqns[-1].invars]
        if len(ahead) != 1 or ahead[0] is not before or not ordered:
            return None
        (before,) = eqn.outvars
        if v is not every[-1] and (before in results or len(users[before]) != 1):
            return None
    final = eqns[-1]
    before = next(a for a in final.invars if a is not every[-1])
    return Total(place, final, before, every[-1], start) if isinstance(before, Var) else None


def starts_loop(eqn: LayerCall, graph: Graph) -> bool:
    """Return whether the result of a layer is only what a loop over layers starts with."""
    users = graph.after(eqn)
    return len(users) == 1 and isinstance(users[0], Loop)


def _elsewhere(v: Var, layer: Layer) -> bool:
    """Return whether the result of a layer in a list is used by more than the next layer."""
    return len(links.users(v, layer.steps)) != 1 or any(a is v for a in layer.outputs)


def _shapes(call: LayerCall) -> tuple[Shape, ...]:
    """The shapes of the parameters of a layer and of the layers inside."""
    own = [v.aval.shape for v in call.layer.parameters]
    inner = (_shapes(s) for s in call.layer.steps if isinstance(s, LayerCall))
    return (*own, *itertools.chain(*inner))


def _numbered(names: Mapping[LayerCall, str]) -> list[list[LayerCall]]:
    """Blocks of several kinds that are numbered, by the rest of their names.

    The first of `block`, `block_1`, `block_2` has no number.
    """
    blocks = {c: without_letter(name) for c, name in names.items() if layers_in(c.layer)}
    stems = {stem for name in blocks.values() if (stem := _numbers(name, 1)[0]) != name}
    found: dict[str, list[LayerCall]] = collections.defaultdict(list)
    for call, name in blocks.items():
        if (stem := _numbers(name, 1)[0]) in stems:
            found[stem].append(call)
    several = (own for own in found.items() if len({kind_of(c.layer) for c in own[1]}) > 1)
    return [
        calls
        for stem, calls in several
        # A list that is numbered itself is one of the original.
        if (len(calls) >= _MANY or stem[-1:].isdigit()) and not _is_short(calls)
    ]


def _is_a_part(calls: Sequence[LayerCall], names: Mapping[LayerCall, str]) -> bool:
    """Return whether an author numbered two calls, among others, such as `fire2` to `fire6`."""
    stems = {_numbers(names[c], 1)[0] for c in calls}
    others = [n for c, n in names.items() if c not in calls and layers_in(c.layer)]
    return len(calls) == 2 and len(stems) == 1 and any(_numbers(n, 1)[0] in stems for n in others)


def _is_short(calls: Sequence[LayerCall]) -> bool:
    """Return whether a list would be as long as its layers one by one.

    They are few, of several sizes, and each has one kernel: they are steps rather than blocks.
    """
    shapes = list(map(_shapes, calls))
    steps = all(sum(len(shape) > 1 for shape in own) < 2 for own in shapes)
    return steps and len(calls) <= _MANY and len(set(shapes)) > 1


def _way(atom: Atom, makers: Mapping[Atom, Eqn]) -> tuple[Eqn, Var, list[Eqn]] | None:
    """The split that produces a value, the number of the part, and the reshapes after it."""
    forms: list[Eqn] = []
    while is_var(atom) and (eqn := makers.get(atom)) is not None:
        if eqn.primitive.name in ("split", "slice", "unstack"):
            return eqn, atom, forms[::-1]
        if eqn.primitive.name not in kinds.LAYOUT or len(eqn.invars) != 1:
            return None
        forms.append(eqn)
        atom = eqn.invars[0]
    return None


class _Parts(NamedTuple):
    """Consecutive parts of an array, from the first on.

    **Arguments:**

    - `split`: the equation that makes all of them; `None` if they are slices of single rows.
    - `axis`: the axis along which they follow each other.
    - `forms`: the reshapes of each.
    - `steps`: all equations between the array and the parts.
    """

    whole: Atom
    split: Eqn | None
    axis: int
    forms: Sequence[Sequence[Eqn]]
    steps: set[Eqn]


def _parts(values: Sequence[Atom], makers: Mapping[Atom, Eqn]) -> _Parts | None:
    """The array of which these values are the rows, or the first rows."""
    found = [way for value in values if (way := _way(value, makers)) is not None]
    if len(found) < len(values):
        return None
    split, axis = found[0][0], _axis_of_rows(found)
    if axis is None and [part for _, part, _ in found] != list(split.outvars):
        return None
    forms = [own for _, _, own in found]
    steps = {e for maker, _, own in found for e in (maker, *own)}
    whole = split.invars[0]
    if axis is not None:
        return _Parts(whole, None, axis, forms, steps)
    return _Parts(whole, split, split.params.get("axis", 0), forms, steps)


def _axis_of_rows(found: Sequence[tuple[Eqn, Var, list[Eqn]]]) -> int | None:
    """The axis along which the parts are consecutive first rows, with the axis removed."""
    slices = [eqn for eqn, _, _ in found]
    if any(e.primitive.name != "slice" or e.params["strides"] for e in slices):
        return None
    shape, whole = slices[0].invars[0].aval.shape, slices[0].invars[0]
    starts = list(zip(*(e.params["start_indices"] for e in slices), strict=True))
    moving = [k for k, column in enumerate(starts) if column == tuple(range(len(slices)))]
    if len(moving) != 1 or any(e.invars[0] is not whole for e in slices):
        return None
    (axis,) = moving
    row = (*shape[:axis], *shape[axis + 1 :])
    for eqn, _, forms in found:
        part = (*shape[:axis], 1, *shape[axis + 1 :])
        ended = [e.outvars[0].aval.shape for e in (eqn, *forms)]
        if ended != [part, row]:
            return None
    return axis


def _form(eqn: Eqn) -> tuple[str, str]:
    return eqn.primitive.name, str(eqn.params)


def _consecutive(calls: Sequence[LayerCall], names: Mapping[LayerCall, str]) -> bool:
    """Return whether these layers, and no others of their level, are `block_0`, `block_1`, ...

    Or `block1a`, `block2a`, `block2b`, ....

    Blocks, which consist of layers, may have others of the name beside them, such as a `block_0`
    with a shortcut. Keras appends a second number to the names of scopes, and begins with `block`,
    `block_1`.
    """
    lettered = [LETTERED.fullmatch(names[c]) for c in calls]
    if all(lettered) and all(layers_in(c.layer) for c in calls):
        places = [(found[1], int(found[2]), ord(found[3])) for found in lettered if found]
        return all(
            b in ((stem, n, letter + 1), (stem, n + 1, ord("a")))
            for (stem, n, letter), b in itertools.pairwise(places)
        )
    for k in (1, 2):
        parts = [_numbers(names[c], k) for c in calls]
        stems, numbers = {p[0] for p in parts}, [p[1] for p in parts]
        others = [n for n in names.values() if _numbers(n, k)[0] in stems]
        alone = len(others) == len(calls) or all(layers_in(c.layer) for c in calls)
        if len(stems) == 1 and alone and numbers[-1]:
            return numbers == list(range(numbers[0], numbers[0] + len(calls)))
    return False


def _numbers(name: str, k: int) -> tuple[str, int]:
    """The parts of a name around its last number, or the last but one; `block` is `block_0`."""
    if k == 1 and (listed := NUMBERED_LIST.fullmatch(name)) is not None:
        return listed[1], int(listed[2])
    found = re.fullmatch(r"(.*[A-Za-z])_?(\d+)" + r"(?:_\d+)" * (k - 1), name)
    return (name, 0) if found is None else (found[1], int(found[2]))
