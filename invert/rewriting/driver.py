"""The driver: applies patterns to a program, stage by stage."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias, cast

import jax
import numpy as np

from invert._errors import InvertError, PatternError, optional_step
from invert._private.jax import (
    Literal,
    close_like,
    constants_as_arguments,
    consts_of,
    dce,
    live_part,
    names_of,
    open_jaxpr,
    params_of_jaxprs,
    trace_as_lowered,
    trace_closed,
    with_names,
)
from invert._private.meshes import on_shards, on_whole_values
from invert.ir import jaxprs, kinds
from invert.ir.avals import type_of
from invert.ir.graph import Graph, in_order, is_var, reads, rounded
from invert.ir.hints import without_hint
from invert.ir.loops import CondParts, ScanParts, WhileParts
from invert.ir.match import Match, Miss, equivalent, same_value
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, J, Jaxpr, Value, Var
from invert.rewriting.pattern import (
    Call,
    EquationPattern,
    Pattern,
    ProgramPattern,
    Site,
    Stage,
    kept_by_call,
)

# Values of the leading arguments of a body; `None` for those that are not constant.
Known: TypeAlias = tuple[Value | None, ...]
# Values of closed-over variables.
Consts: TypeAlias = Mapping[Var, Value]
# Patterns still match after as many rounds over one body only if they match what they make.
_MOST_SWEEPS = 1000
# Lowers and raises a call for a platform; `None` where JAX refuses it.
RaiseCall: TypeAlias = Callable[[Call, str], ClosedJaxpr | None]


@dataclasses.dataclass
class Rewriter:
    """Runs stages of patterns over a program, innermost bodies first.

    **Arguments:**

    - `stages`: groups of patterns, in order. Templates of a stage are rewritten by the earlier
        stages too, so that both sides of a match have gone through the same rewrites.
    - `raise_call`: lowers and raises a call: `raise_call(call, platform) -> closed jaxpr`.
    - `platform`: the platform the program was lowered for.
    - `x64`: whether the program holds 64-bit types, so that calls are lowered with them too.
    - `x64_first`: whether that form is tried first.
    - `named`: whether the locations of the program name primitives.
    - `defects`: receives a line for each pattern left out because of a defect.
    - `trials`: if a list, receives the outcome at each equation that was tried.
    """

    stages: Sequence[Stage]
    raise_call: RaiseCall
    platform: str = "cpu"
    x64: bool = False
    x64_first: bool = False
    named: bool = True
    defects: list[str] = dataclasses.field(default_factory=list)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    trials: list[Trial] | None = None
    _bodies: dict[tuple[AnyJaxpr, int, str, tuple[int, ...]], tuple[Known, AnyJaxpr]] = (
        dataclasses.field(default_factory=dict)
    )
    # The name of the call whose body is being rewritten; `""` outside of calls.
    _called: str = ""
    _templates: dict[tuple[Call, int], Graph | None] = dataclasses.field(default_factory=dict)
    _last: tuple[Graph, Consts] | None = None

    def __post_init__(self) -> None:
        self._roots = [{r for p in stage.patterns for r in p.roots} for stage in self.stages]
        # Earlier stages rewrite the templates of a stage.
        self._stored = list(itertools.accumulate((s.stored for s in self.stages), operator.and_))

    def run(self, closed: J, stages: int | None = None) -> J:
        """The program rewritten by the first `stages` stages (all, by default)."""
        for number in range(len(self.stages) if stages is None else stages):
            closed = self.run_stage(closed, number)
        return closed

    def run_stage(self, closed: J, number: int) -> J:
        """The program rewritten by one stage."""
        closed = self._body(closed, number)
        for pattern in self.stages[number].patterns:
            if not isinstance(pattern, ProgramPattern):
                continue
            step = f"the pattern {pattern.name}"
            rewritten = optional_step(step, self.defects, pattern.rewrite, closed)
            if rewritten is not None:
                closed = cast(J, rewritten)
                self.counts[pattern.name] += 1
        return closed

    def matches(self, closed: AnyJaxpr) -> bool:
        """Return whether a pattern of the first stage applies outside inner jaxprs."""
        return bool(self._sweep(Graph(open_jaxpr(closed)), 0))

    def _body(self, jaxpr: J, number: int, known: Known = ()) -> J:
        """Rewrite a jaxpr and its inner ones by one stage, keeping sharing.

        `known` are the values of leading arguments, `None` for those that are not constant.
        """
        # The entry keeps the known values alive, so that no id is reused.
        key = jaxpr, number, self._called, tuple(map(id, known))
        if key not in self._bodies:
            self._bodies[key] = known, self._rewrite(jaxpr, number, known)
        return cast(J, self._bodies[key][1])

    def _rewrite(self, closed: J, number: int, known: Known) -> J:
        jaxpr = open_jaxpr(closed)
        if self._roots[number].isdisjoint(jaxprs.names_in(jaxpr)):
            return closed
        consts = dict(zip(jaxpr.constvars, consts_of(closed), strict=False))
        consts.update((v, c) for v, c in zip(jaxpr.invars, known, strict=False) if c is not None)
        if self.stages[number].outermost_first:
            if replacements := self._sweep(graph := self._graph(jaxpr, consts), number):
                jaxpr = replace(graph, replacements)
            jaxpr = self._inside(jaxpr, number, consts)
            return close_like(closed, jaxpr)
        jaxpr = self._inside(jaxpr, number, consts)
        before = self.counts.copy()
        for _ in range(_MOST_SWEEPS):
            if not (replacements := self._sweep(graph := self._graph(jaxpr, consts), number)):
                return close_like(closed, jaxpr)
            jaxpr = replace(graph, replacements)
        # Others match much less often.
        ((name, _),) = (self.counts - before).most_common(1)
        raise PatternError(
            f"pattern {name!r} matches its own results without end",
            remedy="Let `rewrite` return None for what it makes itself.",
        )

    def _graph(self, jaxpr: Jaxpr, consts: Consts) -> Graph:
        """The graph of a body, shared with the next stage while unchanged."""
        last = self._last
        if last is not None and last[0].jaxpr is jaxpr and _same_values(last[1], consts):
            return last[0]
        graph = Graph(jaxpr)
        graph.consts.update(consts)
        self._last = graph, consts
        return graph

    def _inside(self, jaxpr: Jaxpr, number: int, consts: Consts) -> Jaxpr:
        eqns, roots = list(jaxpr.eqns), self._roots[number]
        for i, inner in jaxprs.held(jaxpr).items():
            if any(not roots.isdisjoint(jaxprs.names_in(j)) for j in inner):
                eqns[i] = self._inner(eqns[i], number, consts)
        return jaxprs.with_equations(jaxpr, eqns)

    def _inner(self, eqn: Eqn, number: int, consts: Consts) -> Eqn:
        if eqn.primitive.name in kinds.WITH_RULES and not self.stages[number].inside_rules:
            return eqn
        params = {}
        outer, self._called = self._called, _call_name(eqn)
        for name, value in params_of_jaxprs(eqn).items():
            # Array constants are defined outside the bodies that use them.
            values = [consts.get(a) if is_var(a) else None for a in _fixed_operands(eqn, name)]
            known = () if all(c is None for c in values) else tuple(values)
            with on_shards(eqn):
                new = jaxprs.map_param(value, lambda j: self._body(j, number, known))  # noqa: B023
            if new is not value:
                params[name] = new
        self._called = outer
        return eqn.replace(params={**eqn.params, **params}) if params else eqn

    def _sweep(self, graph: Graph, number: int) -> list[Replacement]:
        replacements: list[Replacement] = []
        claimed: set[Eqn] = set()
        template = functools.partial(self.template, number=number)
        begin = len(self.trials or ())
        for pattern in self.stages[number].patterns:
            # The last equation first: of nested matches, the largest is wanted.
            roots = [
                e for name in pattern.roots for e in reversed(graph.by_primitive.get(name, ()))
            ]
            if not roots or not self._may_match(pattern, graph):
                continue
            step = f"the pattern {pattern.name}"
            for eqn in roots:
                if eqn in claimed:
                    continue
                misses = None if self.trials is None else []
                site = Site(graph, eqn, self.platform, self.named, template, misses)
                if isinstance(pattern, EquationPattern):
                    replacement = optional_step(step, self.defects, _structural, pattern, site)
                elif isinstance(pattern, Pattern):
                    replacement = optional_step(
                        step, self.defects, self._try, pattern, site, number
                    )
                else:  # a program pattern has no site
                    continue
                if replacement is not None and claimed & replacement.removed:
                    if misses is not None:
                        misses.append(Miss(0, eqn, "it shares equations with another match"))
                    replacement = None
                if self.trials is not None:
                    self.trials.append(Trial(eqn, replacement is not None, misses or ()))
                if replacement is None:
                    continue
                claimed |= replacement.removed
                replacements.append(replacement)
                self.counts[pattern.name] += 1
        if replacements and self.trials is not None and not self.stages[number].outermost_first:
            # Failed trials are repeated on the new body.
            self.trials[begin:] = [a for a in self.trials[begin:] if a.matched]
        return replacements

    def _may_match(self, pattern: Pattern | EquationPattern | ProgramPattern, graph: Graph) -> bool:
        """Return whether a body or its inner jaxprs have what every match of the pattern needs."""
        if not isinstance(pattern, Pattern):
            return True
        if pattern.holds is not None and pattern.holds not in jaxprs.names_in(graph.jaxpr):
            return False
        literal = pattern.literal
        literals = literal if isinstance(literal, tuple) else (literal,)
        return literal is None or any(rounded(m) in graph.numbers for m in literals)

    def _try(self, pattern: Pattern, site: Site, number: int) -> Replacement | None:
        for call in self._variants(pattern.propose(site), number):
            template = self.template(call, number)
            if template is None:
                continue
            for eqn in _anchors(template, site.eqn):
                match = Match(template, site.graph, site.misses)
                if not match.seed(eqn, site.eqn):
                    continue
                match.extend()
                inputs, outputs = match.inputs(), match.outputs()
                if inputs is None or outputs is None or match.needs_itself():
                    match.refused(site.eqn)
                    continue
                closed = _trace(call)
                if _no_progress(closed, template) or _is_call_of(closed, site.graph, self._called):
                    match.refused(site.eqn, "the program already contains the replacement")
                    continue
                if _constants_in(site.graph, closed) is None:
                    match.refused(site.eqn, _HOLDS_AN_ARRAY)
                    continue
                return Replacement(closed, inputs, outputs, match.removed(), site.eqn)
        return None

    def _variants(self, calls: Iterable[Call], number: int) -> Iterator[Call]:
        """The calls, also with 64-bit types enabled if the program has such types."""
        for call in calls:
            call = self._marked(call, number)
            forms = [call]
            if self.x64 and not call.needs_x64:
                forms.append(dataclasses.replace(call, x64=True))
            yield from reversed(forms) if self.x64_first else forms

    def _marked(self, call: Call, number: int) -> Call:
        return dataclasses.replace(call, stored=True) if self._stored[number] else call

    def template(self, call: Call, number: int) -> Graph | None:
        key = call, number
        if key not in self._templates:
            stages = tuple(self.stages[:number])
            call = self._marked(call, number)
            template, defects = _template(call, stages, self.raise_call, self.platform)
            self.defects += [line for line in defects if line not in self.defects]
            self._templates[key] = template
        return self._templates[key]


@dataclasses.dataclass(frozen=True)
class Trial:
    """An equation where a pattern was tried, and where each match failed."""

    eqn: Eqn
    matched: bool
    misses: Sequence[Miss]


def _commuted(closed: J, places: Set[int]) -> J:
    """Swap the operands of the equations at these positions."""
    if not places:
        return closed
    jaxpr = open_jaxpr(closed)
    eqns = [
        e.replace(invars=list(reversed(e.invars))) if i in places else e
        for i, e in enumerate(jaxpr.eqns)
    ]
    return close_like(closed, jaxpr.replace(eqns=eqns))


@kept_by_call
def _template(
    call: Call, stages: tuple[Stage, ...], raise_call: RaiseCall, platform: str
) -> tuple[Graph | None, Sequence[str]]:
    """The template of a call after `stages`, and defects met in making it.

    It depends on the arguments alone, so that programs recovered one after another share it.
    """
    with on_whole_values():
        names = tuple(tuple(p.name for p in stage.patterns) for stage in stages)
        entry = call.entry("rewritten", names, raise_call, platform=platform)
        if entry is not None and (known := entry.read()) is not None:
            return Graph(known, consts_of(known)), ()
        closed = raise_call(dataclasses.replace(call, commuted=frozenset()), platform)
        if closed is None:
            return None, ()
        x64 = call.needs_x64
        inner = Rewriter(stages, raise_call, platform, x64, x64)
        closed = _commuted(inner.run(closed), call.commuted)
        if entry is not None and not inner.defects:
            entry.write(closed)
    return Graph(closed, consts_of(closed)), tuple(inner.defects)


def _same_values(a: Consts, b: Consts) -> bool:
    return a.keys() == b.keys() and all(a[v] is b[v] for v in a)


def _fixed_operands(eqn: Eqn, name: str) -> Sequence[Atom]:
    """The operands bound to an inner jaxpr's leading arguments whenever it runs."""
    match eqn.primitive.name:
        case "jit":
            return eqn.invars
        case "cond":
            return CondParts.of(eqn).operands
        case "scan":
            return ScanParts.of(eqn).consts
        case "while":
            parts = WhileParts.of(eqn)
            return parts.cond_consts if name == "cond_jaxpr" else parts.body_consts
        case _:
            return ()


def _anchors(template: Graph, eqn: Eqn) -> Iterator[Eqn]:
    """Equations of the template that may match the site's, results first."""
    ends = {*template.makers(template.jaxpr.outvars)}
    same = template.by_primitive.get(eqn.primitive.name, [])
    first = [e for e in same if e in ends]
    yield from first
    # If few equations have this primitive (custom calls, loops), one need not give a result.
    if len(same) <= 4:
        yield from (e for e in same if e not in ends)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Equations that replace others."""

    jaxpr: AnyJaxpr
    inputs: Sequence[Atom]
    outputs: Sequence[Atom | None]
    removed: frozenset[Eqn]
    root: Eqn


@kept_by_call
def _trace(call: Call) -> ClosedJaxpr:
    def trace() -> ClosedJaxpr:
        with jax.enable_x64(call.needs_x64):
            return trace_as_lowered(call.function, *call.avals)

    entry = call.entry("traced")
    return trace() if entry is None else entry.stored(trace)


def _structural(pattern: EquationPattern, site: Site) -> Replacement | None:
    function, eqn = pattern.rewrite(site), site.eqn
    if function is None:
        return None
    avals = [type_of(a) for a in eqn.invars]
    closed = trace_closed(function, *avals)
    return Replacement(closed, eqn.invars, eqn.outvars, frozenset({eqn}), eqn)


_HOLDS_AN_ARRAY = "the replacement uses an array constant that the program does not have here"


def _constants_in(graph: Graph, closed: AnyJaxpr) -> list[Atom] | None:
    """The atoms of a body for the constants that a jaxpr uses.

    A body cannot get further constants, so it must read the arrays already; `None` if it does not
    read one of them.
    """
    jaxpr, constants = _live(closed)
    atoms: list[Atom] = []
    for v, value in zip(jaxpr.invars, constants, strict=False):
        if np.ndim(value) == 0:
            atoms.append(Literal(np.asarray(value)[()], v.aval))
            continue
        same = (a for a, known in graph.consts.items() if same_value(known, value))
        if (atom := next(same, None)) is None:
            return None
        atoms.append(atom)
    return atoms


def _no_progress(closed: AnyJaxpr, template: Graph) -> bool:
    """Return whether a call lowers to itself, so that it would be rewritten forever."""
    jaxpr = open_jaxpr(closed)
    return len(jaxpr.eqns) == len(template.eqns) and equivalent(closed, template.jaxpr)


def _is_call_of(closed: AnyJaxpr, graph: Graph, name: str) -> bool:
    """Return whether a replacement is a call, by this name, of the body around it."""
    eqns = open_jaxpr(closed).eqns
    if not name or len(eqns) != 1 or _call_name(eqns[0]) != name:
        return False
    return equivalent(eqns[0].params["jaxpr"], graph.jaxpr)


def _call_name(eqn: Eqn) -> str:
    return eqn.params["name"] if eqn.primitive.name == "jit" else ""


def replace(graph: Graph, replacements: Sequence[Replacement]) -> Jaxpr:
    """Make the replacements, sort topologically and remove dead equations.

    Replacements that are acyclic alone may form a cycle together; then only the first is made.
    """
    try:
        return _replace_all(graph, replacements)
    except _CycleError:
        return _replace_all(graph, replacements[:1])


class _CycleError(InvertError):
    """Two replacements need each other's results."""


def _replace_all(graph: Graph, replacements: Sequence[Replacement]) -> Jaxpr:
    removed = {e for r in replacements for e in r.removed}
    renamed: dict[Atom, Atom] = {}
    # A replacement goes where the last replaced equation was: the order of equations is the
    # order in which cotangents are summed.
    made: dict[int, list[Eqn]] = {}
    for r in replacements:
        last = max((graph.index[e] for e in r.removed if e in graph.index), default=-1)
        made.setdefault(last, []).extend(_splice(r, graph, renamed))
    eqns = made.pop(-1, [])
    for i, e in enumerate(graph.eqns):
        if e not in removed:
            eqns.append(e)
        eqns.extend(made.get(i, ()))
    jaxpr = graph.jaxpr

    def rename(atom: Atom) -> Atom:
        while is_var(atom) and atom in renamed:
            atom = renamed[atom]
        return atom

    eqns = [
        e.replace(invars=[rename(a) for a in e.invars]) if reads(e, renamed) else e for e in eqns
    ]
    ordered = in_order(eqns)
    if len(ordered) < len(eqns):
        raise _CycleError("replacements depend on each other's results")
    return dce(jaxpr.replace(eqns=ordered, outvars=[rename(v) for v in jaxpr.outvars]))


def _live(closed: AnyJaxpr) -> tuple[Jaxpr, list[Value]]:
    """A jaxpr over the constants it uses as leading arguments, and their values."""
    consts = consts_of(closed)
    jaxpr = constants_as_arguments(open_jaxpr(closed))
    if all(np.ndim(c) == 0 for c in consts):
        return jaxpr, list(consts)
    # A body taken from the program may keep constants that it does not use.
    kept = [i >= len(consts) for i in range(len(jaxpr.invars))]
    jaxpr, used = live_part(jaxpr, [True] * len(jaxpr.outvars), kept)
    return jaxpr, [c for c, u in zip(consts, used, strict=False) if u]


def _splice(r: Replacement, graph: Graph, renamed: dict[Atom, Atom]) -> list[Eqn]:
    """The equations of a replacement, on the program's variables."""
    inner, _ = _live(r.jaxpr)
    constants = _constants_in(graph, r.jaxpr)
    if constants is None:
        raise InvertError(_HOLDS_AN_ARRAY)
    env: dict[Var, Atom] = dict(zip(inner.invars, [*constants, *r.inputs], strict=True))
    for v, out in zip(inner.outvars, r.outputs, strict=True):
        if out is None or not is_var(out):
            continue
        if is_var(v) and v not in env:
            env[v] = out
        else:  # a result is an argument or a literal, or occurs twice
            renamed[out] = env[v] if is_var(v) else v

    eqns = []
    for eqn in jaxprs.copied(inner.eqns, env):
        names, own = names_of(r.root), names_of(eqn)
        eqns.append(with_names(eqn, (*(without_hint(names) if own else names), *own)))
    return eqns
