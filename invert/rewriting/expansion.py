"""Compares two programs by lowering only the equations that differ."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

import jax

from invert._cache import Cache
from invert._opaque import custom_call_p
from invert._private.jax import bind_equation, close_like, consts_of, open_jaxpr, renamed
from invert._private.programs import close, new_jaxpr
from invert.ir import jaxprs
from invert.ir.avals import type_of
from invert.ir.graph import Graph, is_var
from invert.ir.lowered_form import lowered_form, without_calls
from invert.ir.match import difference
from invert.ir.merging import atom_key, operation_key, type_key
from invert.ir.stored import Entry
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, Jaxpr, Value, Var
from invert.rewriting.pattern import bind
from invert.rewriting.templates import raised_before
from invert.rewriting.traced_scans import with_traced_scans
from invert.stablehlo.lowered import lower


def lower_alike(
    a: AnyJaxpr, b: AnyJaxpr, constants: Sequence[Value], *, platform: str, x64: bool
) -> bool:
    """Return whether two programs are equal, perhaps after lowering and raising equations again.

    Expands equations of `b` whose kind does not occur in `a`. If that proves nothing, expands
    equations of both whose kind occurs in only one of them, or more often in `b`; at last, all.
    Expansions are cached by kind, so later programs lower little or nothing. A `scan` is first
    replaced by the loop that JAX traces to lower it.

    **Arguments:**

    - `a`, `b`: programs of the same arguments; `a` may be the output of a lowering.
    - `constants`: the values of the leading ones, where known.
    - `platform`, `x64`: the platform they are lowered for, and whether with 64-bit types.

    **Returns:** `False` as well if an equation does not lower on its own or has effects.

    **Raises:** JAX's exceptions for equations that it cannot lower.
    """
    looped = [with_traced_scans(p, platform=platform, x64=x64) for p in (a, b)]
    one, two = (without_calls(jaxprs.as_lowered(p)) for p in looped)
    # Most loops agree as they are, and the normal form of two programs takes ten comparisons.
    if difference(one, two, constants) is None:
        return True
    one, two = lowered_form(one), lowered_form(two)
    if difference(one, two, constants) is None:
        return True
    expansion = _Expansion(platform, x64)
    ours, theirs = (
        collections.Counter(call.kind for call in expansion.calls(p) if call.kind)
        for p in (one, two)
    )
    common = ours.keys() & theirs
    # Expansion never removes an equation whose kind is kept.
    alike = {kind for kind in common if ours[kind] >= theirs[kind]}
    attempts = [(alike, True), (set[Hashable](), True)]
    if alike == common:
        attempts.insert(0, (set(ours), False))
    for expansion.kept, both in attempts:
        expansion.learn([one, two] if both else [two])
        try:
            expanded = expansion(one) if both else one, expansion(two)
        except _DoesNotLower:
            return False
        if difference(*expanded, constants) is None:
            return True
    return False


class _DoesNotLower(Exception):
    """An equation that cannot be expanded on its own."""


@dataclasses.dataclass(frozen=True)
class _Call:
    """An equation as a function of its array operands.

    Arrays filled with one number are part of the call: raising gives their users the number.

    **Attributes:**

    - `kind`: equal for equations that lower alike; `None` if that is unknown.
    """

    eqn: Eqn
    kind: Hashable | None
    operands: Sequence[Var]
    numbers: Mapping[Atom, Eqn]

    @classmethod
    def of(cls, eqn: Eqn, graph: Graph) -> _Call:
        numbers = {
            a: e for a in eqn.invars if (e := graph.producer(a)) is not None and jaxprs.fills(e)
        }
        operands = [a for a in eqn.invars if is_var(a) and a not in numbers]
        operation = operation_key(eqn, with_jaxprs=True)
        if operation is None:
            return cls(eqn, None, operands, numbers)
        keys = tuple(_operand_key(a, numbers) for a in eqn.invars)
        return cls(eqn, (operation, keys, tuple(map(type_key, eqn.outvars))), operands, numbers)

    def entry(self, platform: str, x64: bool) -> Entry:
        """The place of the expansion of all equations of this kind."""
        eqn = self.eqn
        operands = tuple(_operand_key(a, self.numbers) for a in eqn.invars)
        params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
        named = eqn.primitive, params, operands, tuple(map(type_key, eqn.outvars))
        sizes = [n for v in (*self.operands, *eqn.outvars) for n in v.aval.shape]
        return Entry("expanded", *named, x64, platform=platform, sizes=sizes)

    def __call__(self, *values: Value) -> list[Value]:
        rest = iter(values)

        def operand(atom: Atom) -> Value:
            if not is_var(atom):
                return atom.val
            if (eqn := self.numbers.get(atom)) is None:
                return next(rest)
            return bind_equation(eqn, [a.val for a in eqn.invars if not is_var(a)])[0]

        return bind_equation(self.eqn, list(map(operand, self.eqn.invars)))


@dataclasses.dataclass(frozen=True)
class _Template:
    """The expansion of an equation, with its constants."""

    eqns: Sequence[Eqn]
    invars: Sequence[Var]
    outvars: Sequence[Atom]
    constants: Mapping[Var, Value]

    @classmethod
    def of(cls, closed: AnyJaxpr) -> _Template:
        jaxpr = open_jaxpr(closed)
        constants = dict(zip(jaxpr.constvars, consts_of(closed), strict=True))
        return cls(jaxpr.eqns, jaxpr.invars, jaxpr.outvars, constants)

    def program(self) -> ClosedJaxpr:
        """The expansion as a program of its own."""
        made = new_jaxpr(list(self.constants), self.invars, self.outvars, self.eqns)
        return close(made, self.constants.values())

    def on(self, operands: Sequence[Atom]) -> tuple[list[Eqn], list[Atom]]:
        """The equations on these operands, and their results.

        **Raises:** `_DoesNotLower` if they hold an array, which the jaxpr of a loop cannot.
        """
        held = jaxprs.as_literals(self.constants)
        if held is None:
            raise _DoesNotLower
        env = {**held, **dict(zip(self.invars, operands, strict=True))}
        eqns = jaxprs.copied(self.eqns, env)
        return eqns, [env[v] if is_var(v) else v for v in self.outvars]


# By kind, platform and x64.
_TEMPLATES: Cache[Hashable, _Template] = Cache(4096)


class _Expansion:
    """Expands the equations of a program whose kind is not in `kept`."""

    def __init__(self, platform: str, x64: bool):
        self.kept: Collection[Hashable] = ()
        self._platform, self._x64 = platform, x64
        self._of_kind: dict[Hashable, _Template] = {}
        self._of_eqn: dict[Eqn, _Template] = {}
        self._calls: dict[Eqn, _Call] = {}

    def calls(self, program: AnyJaxpr) -> Iterator[_Call]:
        """The equations of a program and of its loops and branches, as calls."""
        return (self._call(eqn, graph) for eqn, graph in _steps(Graph(program)))

    def _call(self, eqn: Eqn, graph: Graph) -> _Call:
        if (call := self._calls.get(eqn)) is None:
            call = self._calls[eqn] = _Call.of(eqn, graph)
        return call

    def learn(self, programs: Sequence[AnyJaxpr]) -> None:
        """Lower, as one module, the equations to expand that are not cached yet."""
        calls: dict[Hashable, _Call] = {}
        for program in programs:
            for call in self.calls(program):
                known = call.kind in self._of_kind if call.kind else call.eqn in self._of_eqn
                if not known and not self._stays(call):
                    calls[call.kind or call.eqn] = call
        wide, narrow = [], []
        for kind, call in calls.items():
            is_wide = self._x64 or any(jaxprs.is_wide(v) for v in call.operands)
            template = self._known(call, is_wide) if call.kind else None
            if template is not None:
                self._of_kind[kind] = template
            else:
                (wide if is_wide else narrow).append(call)
        for unknown, x64 in ((wide, True), (narrow, False)):
            for call, template in zip(unknown, _lowered(unknown, self._platform, x64), strict=True):
                if call.kind is None:
                    self._of_eqn[call.eqn] = template
                    continue
                self._of_kind[call.kind] = template
                self._keep(call, template)
                call.entry(self._platform, x64).write(template.program())

    def _known(self, call: _Call, x64: bool) -> _Template | None:
        """The expansion of an equation, if it need not be lowered."""
        template = _TEMPLATES.get((call.kind, self._platform, self._x64))
        template = template or _of_pattern(call, self._platform, x64)
        if template is None and (closed := call.entry(self._platform, x64).read()) is not None:
            self._keep(call, template := _Template.of(closed))
        return template

    def _keep(self, call: _Call, template: _Template) -> None:
        if jaxprs.holds_jaxprs(call.eqn):
            return  # such an entry would keep the loop of a finished program alive
        _TEMPLATES[call.kind, self._platform, self._x64] = template

    def _stays(self, call: _Call) -> bool:
        eqn = call.eqn
        return eqn.primitive is custom_call_p or (call.kind is not None and call.kind in self.kept)

    def __call__(self, program: AnyJaxpr) -> AnyJaxpr:
        jaxpr = open_jaxpr(program)
        if jaxpr.constvars:
            raise _DoesNotLower
        return lowered_form(jaxprs.as_lowered(self._expanded(jaxpr)))

    def _expanded(self, jaxpr: Jaxpr) -> Jaxpr:
        if jaxpr.effects:
            raise _DoesNotLower
        graph = Graph(jaxpr)
        eqns: list[Eqn] = []
        names: dict[Var, Atom] = {}
        for eqn in jaxpr.eqns:
            operands = renamed(eqn.invars, names)
            if eqn.primitive.name in _REGIONS:
                eqns.append(self._with_bodies(eqn).replace(invars=operands))
                continue
            call = self._call(eqn, graph)
            if self._stays(call):
                eqns.append(eqn.replace(invars=operands))
                continue
            template = self._of_eqn[eqn] if call.kind is None else self._of_kind[call.kind]
            pairs = zip(eqn.invars, operands, strict=True)
            given = [x for a, x in pairs if is_var(a) and a not in call.numbers]
            expanded, results = template.on(given)
            eqns += expanded
            names.update(zip(eqn.outvars, results, strict=True))
        return jaxpr.replace(eqns=eqns, outvars=renamed(jaxpr.outvars, names))

    def _with_bodies(self, eqn: Eqn) -> Eqn:
        names = _REGIONS[eqn.primitive.name]
        bodies = {name: jaxprs.map_param(eqn.params[name], self._body) for name in names}
        return eqn.replace(params={**eqn.params, **bodies})

    def _body(self, program: AnyJaxpr) -> AnyJaxpr:
        return close_like(program, self._expanded(open_jaxpr(program)))


# Loops and branches are expanded inside their jaxprs, not as a whole.
_REGIONS = {"while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}


def _steps(graph: Graph) -> Iterator[tuple[Eqn, Graph]]:
    """The equations of a program, its loops and branches, with their graphs."""
    for eqn in graph.eqns:
        if eqn.primitive.name not in _REGIONS:
            yield eqn, graph
        else:
            for jaxpr in jaxprs.sub_jaxprs(eqn):
                yield from _steps(Graph(jaxpr))


def _of_pattern(call: _Call, platform: str, x64: bool) -> _Template | None:
    """The expansion of an equation that a pattern proposed at the same types."""
    eqn = call.eqn
    if len(call.operands) < len(eqn.invars) or jaxprs.holds_jaxprs(eqn):
        return None
    proposed = bind(eqn.primitive, *map(type_of, call.operands), **eqn.params)
    if proposed.needs_x64 != x64:
        proposed = dataclasses.replace(proposed, x64=x64)
    closed = raised_before(proposed, platform)
    return None if closed is None else _Template.of(closed)


def _lowered(calls: Sequence[_Call], platform: str, x64: bool) -> list[_Template]:
    """Lower calls together: one module costs far less than one for each."""
    if not calls:
        return []
    counts = [len(call.operands) for call in calls]
    ends = [len(call.eqn.outvars) for call in calls]

    def run(*values: Value) -> list[Value]:
        rest = iter(values)
        groups = [[next(rest) for _ in range(n)] for n in counts]
        return [r for call, group in zip(calls, groups, strict=True) for r in call(*group)]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for c in calls for v in c.operands]
    outs = [v.aval for call in calls for v in call.eqn.outvars]
    closed = lower(run, avals, outs, platform=platform, x64=x64).raised()
    graph = Graph(closed, consts_of(closed))
    arguments, results = iter(graph.jaxpr.invars), iter(graph.jaxpr.outvars)
    templates = []
    for n, m in zip(counts, ends, strict=True):
        invars, outvars = [next(arguments) for _ in range(n)], [next(results) for _ in range(m)]
        eqns, outside = graph.needed(outvars, set(invars))
        constants = {v: graph.consts[v] for v in outside}
        templates.append(_Template(eqns, invars, outvars, constants))
    return templates


def _operand_key(atom: Atom, numbers: Mapping[Atom, Eqn]) -> Hashable:
    if not is_var(atom):
        return atom_key(atom)
    made = numbers.get(atom)
    return type_key(atom) if made is None else (type_key(atom), atom_key(made.invars[0]))
