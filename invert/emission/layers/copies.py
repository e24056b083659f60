"""Finds parts of a program that run several times with the same parameters.

Examples are the towers of a siamese network, and an encoder of both queries and items. Names play
no role: equations are copies of each other if they use the same parameters in the same way, or
compute the same from copies. The program then calls one layer several times.
"""

from __future__ import annotations

import collections
import dataclasses
import graphlib
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set

from invert._errors import EmissionError
from invert._private.jax import with_names
from invert.emission.layers import turns
from invert.emission.layers.cut import (
    PART,
    Layer,
    LayerCall,
    Path,
    common_prefix,
    layers_in,
    scope_of,
)
from invert.emission.layers.links import ordered, users_of
from invert.emission.python.naming import Names
from invert.ir import kinds
from invert.ir.graph import from_outside, is_var, read_by
from invert.ir.jaxprs import is_jaxpr, sub_jaxprs
from invert.ir.order import reached
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Primitives that make a layer: products with parameters, and lookups.
_LAYERS = kinds.CONTRACTIONS | {"gather", "jit", "scan"}
_NAME = "tower"


@dataclasses.dataclass(eq=False)
class Part:
    """A part of a program with several calls, by its first call's equations.

    **Arguments:**

    - `body`: its program, over its inputs.
    - `parameters`: those that nothing else uses.
    - `path`: its name scopes; the last one is its name.
    - `layer`: the layer that it becomes.
    """

    body: Jaxpr
    parameters: Sequence[Var]
    path: Path
    layer: Layer | None = None

    @property
    def root(self) -> Layer:
        """The layer, once it is known."""
        assert self.layer is not None
        return self.layer

    def __str__(self) -> str:
        return "/".join(self.path)


def is_call(eqn: Eqn) -> bool:
    """Return whether an equation stands for a copy."""
    return eqn.primitive is PART


def outlined(jaxpr: Jaxpr, parameters: Mapping[Var, Path]) -> tuple[Jaxpr, list[Part]]:
    """The program with an equation for each copy of a part, and the parts.

    **Arguments:**

    - `parameters`: variables of the parameters that no state holds, with their names.
    """
    copies = _Copies(jaxpr, parameters)
    if not copies.wanted():
        return jaxpr, []
    again = copies.used_again()
    refused: set[Path] = set()
    while True:
        whole, found = turns.find(jaxpr, parameters, again, refused)
        copies = _Copies(whole, parameters, found)
        outline = copies.outline()
        if not copies.refused:
            return outline
        refused |= copies.refused


def call(layer: Layer) -> None:
    """Replace the equations for copies in a layer and its inner layers by calls.

    **Raises:** `EmissionError` if copies of a part are in different layers.
    """

    def visit(layer: Layer) -> None:
        inner: dict[Layer, None] = {}
        for i, step in enumerate(layer.steps):
            if is_call(step):
                part: Part = step.params["part"]
                if part.root not in inner:
                    name = Names(layer.children).new(part.root.name)
                    layer.children[name] = part.root
                layer.steps[i] = step = LayerCall(part.root, list(step.invars), step.outvars)
            if isinstance(step, LayerCall):
                inner[step.layer] = None
        for child in inner:
            visit(child)

    visit(layer)
    if any(n != 1 for n in collections.Counter(_homes(layer)).values()):
        raise EmissionError("copies of a part of the program are in different layers")


def _homes(layer: Layer) -> Iterator[Layer]:
    """The layers inside a layer, once for each layer that calls them."""
    for inner in layers_in(layer):
        yield inner
        yield from _homes(inner)


@dataclasses.dataclass(eq=False)
class _Group:
    """Copies of a part: for each, its equations by what they compute.

    **Arguments:**

    - `turns`: the layer that it is, if its name scope tells; only then may copies depend on each
        other.
    """

    copies: list[dict[int, int]]
    turns: turns.Turns | None = None

    @property
    def members(self) -> Iterator[int]:
        return (i for copy in self.copies for i in copy.values())


class _Copies:
    """The copies in a program.

    **Attributes:**

    - `number`: equal for equations that compute the same, apart from the inputs of their copies.
    - `refused`: the scopes of layers of which not all calls compute the same.
    """

    def __init__(
        self, jaxpr: Jaxpr, parameters: Mapping[Var, Path], found: Sequence[turns.Turns] = ()
    ):
        self.jaxpr, self.parameters = jaxpr, parameters
        self.turns, self.refused = found, set[Path]()
        self.eqns: list[Eqn] = list(jaxpr.eqns)
        self.makers: dict[Atom, int] = {v: i for i, e in enumerate(self.eqns) for v in e.outvars}
        self.users = users_of(self.eqns)
        # The parameters of values that depend only on parameters and numbers.
        self.sources: dict[Atom, frozenset[Var]] = {v: frozenset((v,)) for v in parameters}
        self.constant: list[bool] = []
        for eqn in self.eqns:
            atoms = [a for a in eqn.invars if is_var(a)]
            constant = all(a in self.sources for a in atoms) and not eqn.effects
            self.constant.append(constant)
            if constant:
                own = frozenset[Var]().union(*(self.sources[a] for a in atoms))
                self.sources |= dict.fromkeys(eqn.outvars, own)
        self.results = {v for v in jaxpr.outvars if is_var(v)}
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[Atom, int] = {}
        self.number: list[int] = []

    def wanted(self) -> bool:
        """Return whether two equations use one parameter in products or lookups."""
        return any(name in _LAYERS and len(places) > 1 for (_, name), places in self._uses())

    def used_again(self) -> set[Path]:
        """The common scopes of equations that use one parameter in the same operation."""
        return {
            common_prefix(scope_of(self.eqns[i]) for i in places)
            for _, places in self._uses()
            if len(places) > 1
        }

    def _uses(self) -> Iterable[tuple[tuple[Var, str], list[int]]]:
        """For each parameter and primitive, the equations that use the parameter."""
        uses: dict[tuple[Var, str], list[int]] = collections.defaultdict(list)
        for i, eqn in enumerate(self.eqns):
            for v in self._parameters_of(i):
                uses[v, eqn.primitive.name].append(i)
        return uses.items()

    def _parameters_of(self, i: int) -> set[Var]:
        """The parameters that an equation uses."""
        none: frozenset[Var] = frozenset()
        return {v for a in self.eqns[i].invars if is_var(a) for v in self.sources.get(a, none)}

    def outline(self) -> tuple[Jaxpr, list[Part]]:
        """The program with its copies outlined."""
        self._count()
        parts: list[Part] = []
        gone: set[int] = set()
        nodes: list[tuple[int, Eqn]] = []
        groups = [g for g in self._groups() if self._independent(g.copies)]
        for group in (*self._in_turns(), *self._apart(groups)):
            made = self._outlined(group, gone) if gone.isdisjoint(group.members) else None
            if made is not None:
                part, calls = made
                parts.append(part)
                nodes += calls
            elif group.turns is not None:
                self.refused.add(group.turns.scope)
        if not parts:
            return self.jaxpr, []
        rest = [(i, e) for i, e in enumerate(self.eqns) if i not in gone]
        jaxpr = self.jaxpr.replace(eqns=ordered([*rest, *nodes]))
        inside = {a for p in parts for a in p.parameters}
        used = read_by(jaxpr.eqns).keys() | self.results | inside
        # Drop equations that only the copies used, such as a broadcast of their bias.
        while True:
            eqns = [e for e in jaxpr.eqns if e.effects or any(v in used for v in e.outvars)]
            if len(eqns) == len(jaxpr.eqns):
                return jaxpr, parts
            jaxpr = jaxpr.replace(eqns=eqns)
            used = read_by(eqns).keys() | self.results

    def _count(self) -> None:
        """Numbers equations by what they compute."""
        for v in self.jaxpr.invars:
            self._values[v] = self._new(v if v in self.parameters else str(v.aval))
        for i, eqn in enumerate(self.eqns):
            known = [a for a in eqn.invars if is_var(a) and self.sources.get(a)]
            free = bool(known) and not self.constant[i]
            # The other operands of equations with parameters may be computed in any way.
            operands = tuple(
                self._value(a) if not free or a in known or not is_var(a) else str(a.aval)
                for a in eqn.invars
            )
            number = self._new((_kind(eqn), operands))
            self.number.append(number)
            for k, v in enumerate(eqn.outvars):
                self._values[v] = self._new((number, k))

    def _new(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _value(self, atom: Atom) -> Hashable:
        return self._values.get(atom, id(atom)) if is_var(atom) else str(atom)

    def _groups(self) -> list[_Group]:
        """Equal copies: each is connected, and no two of its equations compute the same."""
        classes: dict[int, list[int]] = collections.defaultdict(list)
        for i, number in enumerate(self.number):
            if not self.constant[i] and not self.eqns[i].effects:
                classes[number].append(i)
        # For each equation its copy: the equations in it, by what they compute.
        copy_of: dict[int, dict[int, int]] = {}
        for number, members in classes.items():
            if len(members) < 2:
                continue
            merged: list[list[dict[int, int]]] = []
            seen: set[int] = set()
            apart = True
            for i in members:
                beside = itertools.chain(self._before(i), self._after(i))
                near = {id(c): c for j in beside if (c := copy_of.get(j)) is not None}
                merged.append(list(near.values()))
                sizes = {len(classes[n]) for c in near.values() for n in c}
                every = [n for c in near.values() for n in c]
                apart &= sizes <= {len(members)} and len(set(every)) == len(every)
                apart &= seen.isdisjoint(near)
                seen |= near.keys()
            alike = {frozenset(n for c in own for n in c) for own in merged}
            if not apart or len(alike) > 1:
                continue
            for i, own in zip(members, merged, strict=True):
                whole = {number: i}
                for c in own:
                    whole |= c
                copy_of |= dict.fromkeys(whole.values(), whole)
        alike_copies: dict[frozenset[int], list[dict[int, int]]] = collections.defaultdict(list)
        for own in {id(c): c for c in copy_of.values()}.values():
            alike_copies[frozenset(own)].append(own)
        groups = [_Group(c) for c in alike_copies.values() if len(c) > 1]
        return sorted(groups, key=lambda g: min(g.copies[0].values()))

    def _in_turns(self) -> list[_Group]:
        """The layers that are called in turns, as far as all calls can be made in some order."""
        place = {id(eqn): i for i, eqn in enumerate(self.eqns)}
        groups: list[_Group] = []
        for found in self.turns:
            copies = [dict(enumerate(place[id(e)] for e in call)) for call in found.calls]
            known = [copy for group in groups for copy in group.copies]
            alike = len({tuple(map(_kind, call)) for call in found.calls}) == 1
            if alike and self._in_order([*known, *copies]):
                groups.append(_Group(copies, found))
            else:
                self.refused.add(found.scope)
        return groups

    def _in_order(self, copies: Sequence[Mapping[int, int]]) -> bool:
        """Return whether copies can be computed as a whole, one after the other."""
        node = {i: -1 - k for k, copy in enumerate(copies) for i in copy.values()}
        before: dict[int, set[int]] = collections.defaultdict(set)
        for i in range(len(self.eqns)):
            before[node.get(i, i)] |= {node.get(j, j) for j in self._before(i)}
        sorter = graphlib.TopologicalSorter({n: own - {n} for n, own in before.items()})
        try:
            sorter.prepare()
        except graphlib.CycleError:
            return False
        return True

    def _apart(self, groups: Sequence[_Group]) -> list[_Group]:
        """Groups outside other repetitions, such as the steps of a loop."""
        inside = {i for g in groups for c in g.copies for i in c.values()}
        counts = collections.Counter(self.number)
        others = [
            i
            for i, eqn in enumerate(self.eqns)
            if i not in inside and counts[self.number[i]] > 1 and self._is_layer(i, eqn)
        ]
        if not others:
            return list(groups)
        around = {*reached(others, self._before), *reached(others, self._after)}
        return [g for g in groups if all(around.isdisjoint(c.values()) for c in g.copies)]

    def _is_layer(self, i: int, eqn: Eqn) -> bool:
        """Return whether an equation is a product of parameters with other values, or a lookup."""
        return (
            not self.constant[i] and eqn.primitive.name in _LAYERS and bool(self._parameters_of(i))
        )

    def _before(self, i: int) -> Iterator[int]:
        """The producers of an equation's operands."""
        return (self.makers[a] for a in self.eqns[i].invars if is_var(a) and a in self.makers)

    def _after(self, i: int) -> Iterator[int]:
        """The users of an equation's results."""
        return (j for v in self.eqns[i].outvars for j in self.users.get(v, ()))

    def _outlined(self, group: _Group, gone: set[int]) -> tuple[Part, list[tuple[int, Eqn]]] | None:
        """A part and its calls, if the copies form a layer and are independent."""
        base = common_prefix(s for s in map(scope_of, self.eqns) if s)
        known = group.turns
        scopes = [known.scope if known else self._scope(c, base) for c in group.copies]
        copies = self._within_scopes(group.copies, scopes)
        order = sorted(copies[0], key=copies[0].__getitem__)
        copies = sorted(copies, key=lambda c: min(c.values(), default=0))
        owned = set(known.owned) if known else self._owned([set(c.values()) for c in copies])
        path = self._path(scopes, base, owned)
        works = [
            self.eqns[i].primitive.name
            for i in copies[0].values()
            if not owned.isdisjoint(self._parameters_of(i))
        ]
        # A product alone is not worth a layer, unless it has a name.
        if path[-1] == _NAME and len(copies[0]) == 1:
            works = [name for name in works if name not in kinds.PRODUCTS]
        if known is None and (_LAYERS.isdisjoint(works) or not self._independent(copies)):
            return None
        maps = self._maps(order, copies, owned)
        if maps is None:
            return None
        eqns = [self.eqns[copies[0][n]] for n in order]
        inside = self._constants(eqns, owned)
        inputs = [v for v in from_outside([*inside, *eqns]) if v not in owned]
        outputs = [
            v
            for e in eqns
            for v in e.outvars
            if any(self._leaves(m.get(v, v), c) for m, c in zip(maps, copies, strict=True))
        ]
        # In the order of the program, in which names are found.
        parameters = [v for v in self.parameters if v in owned]
        body = self.jaxpr.replace(
            invars=[*parameters, *inputs], outvars=outputs, eqns=[*inside, *eqns]
        )
        part = Part(body, parameters, path)
        around = common_prefix(scopes)
        around = around[:-1] if around in scopes and len(around) > len(base) else around
        calls: list[tuple[int, Eqn]] = []
        for own, copy in zip(maps, copies, strict=True):
            gone |= set(copy.values())
            first = eqns[0].replace(
                primitive=PART,
                invars=[own.get(v, v) for v in inputs],
                outvars=[own[v] for v in outputs],
                params={"part": part},
            )
            calls.append((max(copy.values()), with_names(first, around)))
        return part, calls

    def _scope(self, copy: Mapping[int, int], base: Path) -> Path:
        """The scope of a copy: that of its equations with parameters."""
        using = [i for i in copy.values() if self._parameters_of(i)]
        scope = common_prefix(scope_of(self.eqns[i]) for i in using)
        return scope if len(scope) > len(base) else base

    def _within_scopes(
        self, copies: Sequence[dict[int, int]], scopes: Sequence[Path]
    ) -> list[dict[int, int]]:
        """The copies without equations of other scopes."""
        left = {
            number
            for copy, scope in zip(copies, scopes, strict=True)
            for number, i in copy.items()
            if (own := scope_of(self.eqns[i])) and own[: len(scope)] != scope
        }
        return [{n: i for n, i in copy.items() if n not in left} for copy in copies]

    def _owned(self, copies: Sequence[set[int]]) -> set[Var]:
        """The parameters that only these copies use."""
        inside = set().union(*copies)
        outside = {
            v
            for i in range(len(self.eqns))
            if i not in inside and not self.constant[i]
            for v in self._parameters_of(i)
        }
        none: frozenset[Var] = frozenset()
        outside |= {v for a in self.results for v in self.sources.get(a, none)}
        return {v for i in inside for v in self._parameters_of(i)} - outside

    def _independent(self, copies: Sequence[Mapping[int, int]]) -> bool:
        """Return whether no copy depends on results of another copy, or on its own."""
        member = {i: k for k, copy in enumerate(copies) for i in copy.values()}
        after: dict[int, set[int]] = {}
        for i, eqn in enumerate(self.eqns):
            before = [self.makers[a] for a in eqn.invars if is_var(a) and a in self.makers]
            own = member.get(i)
            found: set[int] = set()
            for j in before:
                if own is not None and member.get(j) == own:
                    continue
                found |= after[j]
            if own is not None:
                if found:
                    return False
                found = {own}
            after[i] = found
        return True

    def _maps(
        self, order: Sequence[int], copies: Sequence[Mapping[int, int]], owned: Set[Var]
    ) -> list[dict[Atom, Var]] | None:
        """Each copy's variables by those of the first, if they correspond."""

        def is_fixed(atom: Atom) -> bool:
            own = self.sources.get(atom) if is_var(atom) else frozenset[Var]()
            return own is not None and own <= owned

        maps: list[dict[Atom, Var]] = []
        for copy in copies:
            own: dict[Atom, Var] = {}
            for n in order:
                one, other = self.eqns[copies[0][n]], self.eqns[copy[n]]
                for a, b in zip(one.invars, other.invars, strict=True):
                    fixed = is_fixed(a)
                    if fixed != is_fixed(b) or (fixed and self._value(a) != self._value(b)):
                        return None
                    if not fixed and (not isinstance(b, Var) or own.setdefault(a, b) is not b):
                        return None
                own |= zip(one.outvars, other.outvars, strict=True)
            inside = {v for n in order for v in self.eqns[copies[0][n]].outvars}
            theirs = {v for n in order for v in self.eqns[copy[n]].outvars}
            if any((a in inside) != (b in theirs) for a, b in own.items()):
                return None
            maps.append(own)
        return maps

    def _constants(self, eqns: Sequence[Eqn], owned: Set[Var]) -> list[Eqn]:
        """The equations, in order, of values computed only from numbers and own parameters."""

        def before(eqn: Eqn) -> Iterator[int]:
            for atom in eqn.invars:
                i = self.makers.get(atom) if is_var(atom) else None
                if i is not None and self.constant[i] and not self.sources[atom] - owned:
                    yield i

        roots = itertools.chain.from_iterable(map(before, eqns))
        return [self.eqns[i] for i in sorted(reached(roots, lambda i: before(self.eqns[i])))]

    def _leaves(self, v: Atom, copy: Mapping[int, int]) -> bool:
        """Return whether a value of a copy is used outside it."""
        inside = set(copy.values())
        return v in self.results or any(j not in inside for j in self.users.get(v, ()))

    def _path(self, scopes: Sequence[Path], base: Path, owned: Collection[Var]) -> Path:
        """The path of the part: its scope's or its parameters', if these have one."""
        if len(scopes[0]) > len(base):
            return scopes[0]
        shared = common_prefix(self.parameters[v][:-1] for v in owned)
        others = (p[: len(shared)] for v, p in self.parameters.items() if v not in owned)
        if shared and shared not in others:
            return shared
        return (*base, _NAME)


def _kind(eqn: Eqn) -> Hashable:
    """Equal for equations that compute the same from the same operands."""
    return eqn.primitive.name, _params(eqn), tuple(str(v.aval) for v in eqn.outvars)


def _params(eqn: Eqn) -> Hashable:
    """The parameters of an equation, with inner programs replaced by their primitives."""
    inner = tuple(e.primitive.name for j in sub_jaxprs(eqn) for e in j.eqns)
    found: list[Hashable] = [inner]
    for name, value in eqn.params.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not any(is_jaxpr(v) or callable(v) for v in values):
            found.append((name, str(value)))
    return tuple(found)
