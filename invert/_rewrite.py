"""The rewrite engine: patterns, matching by generate and test, and the driver.

A *preimage* pattern proposes a JAX call. The call is lowered at the site's own types, raised and
brought to the same form as the program, and must then be the same subgraph, equation by equation,
with no interior value used outside. The proposal is a guess; the match is the proof.

A *structural* pattern (loops, calls) inspects one equation and returns its replacement.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from invert import _compat, _jaxpr
from invert._compat import core
from invert._errors import InvertError
from invert._raise import HINT


@dataclasses.dataclass(frozen=True)
class Call:
    """A proposed JAX call.

    **Arguments:**

    - `key`: hashable; equal keys mean the same function.
    - `function`: takes arrays of the types `avals` and returns an array or a sequence of arrays.
    - `avals`: types of its arguments.
    - `x64`: whether 64-bit types are enabled where it is traced, though no argument has one:
        positions and counters inside are then of 64 bits.
    - `is_call`: whether it stands for a call equation. Otherwise a call that is all of the template
        is opened, as JAX outlines some primitives into functions.
    """

    key: Hashable
    function: Callable[..., Any] = dataclasses.field(compare=False)
    avals: tuple[jax.ShapeDtypeStruct, ...]
    x64: bool = False
    is_call: bool = False

    @property
    def wide(self) -> bool:
        """Whether the call has to be traced with 64-bit types enabled."""
        return self.x64 or any(_jaxpr.is_wide_dtype(a.dtype) for a in self.avals)


def bind(primitive: Any, *avals: Any, **params: Any) -> Call:
    """The call of a primitive with these parameters."""
    key = (primitive, tuple(sorted(params.items(), key=lambda item: item[0])))
    return Call(key, functools.partial(primitive.bind, **params), tuple(avals))


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A preimage pattern.

    **Arguments:**

    - `name`: how the report and `Config(disabled_patterns=...)` call it.
    - `roots`: names of the primitives at which it may apply.
    - `propose`: `propose(site)` yields the calls to try, the likeliest first.
    - `marker`: a number that occurs in every program the pattern stands for, or several of which
        one does (by dtype); where the program holds no literal near it, nothing is proposed.
    """

    name: str
    roots: tuple[str, ...]
    propose: Callable[[Site], Iterable[Call]]
    marker: float | tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Structural:
    """A pattern that rewrites one equation by itself.

    `rewrite(site)` returns the replacement as a function of the equation's operands, to be traced,
    or `None` where it does not apply.
    """

    name: str
    roots: tuple[str, ...]
    rewrite: Callable[[Site], Callable[..., Any] | None]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A pattern that rewrites a program as a whole, after the others of its stage.

    `rewrite(closed)` returns the new closed jaxpr over the same arguments, or `None` where it does
    not apply.
    """

    name: str
    rewrite: Callable[[Any], Any | None]
    roots: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Stage:
    """Patterns that run together, to a fixpoint.

    **Arguments:**

    - `patterns`: tried in this order.
    - `outermost_first`: one pass from the outermost body inwards, for patterns that look into the
        bodies of calls as the program has them.
    - `inside_rules`: whether it looks into functions that have derivative rules of their own.
    """

    patterns: tuple[Pattern | Structural | Whole, ...]
    outermost_first: bool = False
    inside_rules: bool = True


@dataclasses.dataclass(frozen=True)
class Site:
    """An equation at which a pattern is tried, in its body.

    `named` says whether locations of the program name primitives at all.
    """

    graph: Graph
    eqn: Any
    platform: str
    named: bool = True

    def aval(self, atom: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """Type of the first result."""
        return self.aval(self.eqn.outvars[0])

    @property
    def hint(self) -> str:
        """What the location of the equation calls the primitive; `""` where it says nothing."""
        return hint_of(self.eqn).split(";")[0]

    def producer(self, atom: Any) -> Any | None:
        """The equation that defines `atom`, if any."""
        return None if isinstance(atom, core.Literal) else self.graph.producers.get(atom)


def hint_of(eqn: Any) -> str:
    """The hint that raising left in the name scopes of an equation."""
    names = _compat.names_of(eqn)
    return names[-1][1:] if names and names[-1].startswith(HINT) else ""


class Graph:
    """A body with its use-def maps."""

    def __init__(self, jaxpr: Any, consts: Sequence[Any] = ()):
        self.jaxpr = _compat.open_jaxpr(jaxpr)
        self.eqns = list(self.jaxpr.eqns)
        self.consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self.producers: dict[Any, Any] = {v: e for e in self.eqns for v in e.outvars}
        self.index = {id(e): i for i, e in enumerate(self.eqns)}

    @functools.cached_property
    def users(self) -> dict[Any, list[Any]]:
        """The equations that use a variable."""
        found: dict[Any, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            for atom in dict.fromkeys(a for a in eqn.invars if not isinstance(a, core.Literal)):
                found[atom].append(eqn)
        return found

    @functools.cached_property
    def results(self) -> set[Any]:
        return {v for v in self.jaxpr.outvars if not isinstance(v, core.Literal)}

    @functools.cached_property
    def by_primitive(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            found[eqn.primitive.name].append(eqn)
        return found

    @functools.cached_property
    def numbers(self) -> set[int]:
        """The scalar float and integer literals, rounded as `_rounded` does."""
        atoms = (a for e in self.eqns for a in e.invars if isinstance(a, core.Literal))
        found = {_rounded(a.val) for a in atoms if np.ndim(a.val) == 0}
        for eqn in self.eqns:
            for inner in _jaxpr.sub_jaxprs(eqn):
                found |= _numbers_of(inner)
        return found - {None}


@functools.lru_cache(maxsize=4096)
def _numbers_of(jaxpr: Any) -> set[int]:
    return Graph(jaxpr).numbers


def _rounded(value: Any) -> Any:
    """Key under which a literal and the number it was written as meet, whatever the dtype."""
    number = np.asarray(value)
    if number.dtype.kind == "c" or number.dtype == bool:
        return None
    number = float(number.astype(np.float64))
    if not np.isfinite(number) or number == 0:
        return None
    mantissa, exponent = np.frexp(abs(number))
    return (int(exponent), round(float(mantissa) * 64))  # bfloat16 keeps 8 bits


class Match:
    """One attempt to find a template in a graph."""

    def __init__(self, template: Graph, graph: Graph):
        self.template, self.graph = template, graph
        self.atoms: dict[Any, Any] = {}
        self.eqns: dict[int, Any] = {}
        self.taken: set[int] = set()
        self._trail: list[tuple[str, Any]] = []
        self._last: tuple[Any, Any] | None = None

    def seed(self, eqn: Any, target: Any) -> bool:
        """Matches an equation with all it is computed from."""
        mark = len(self._trail)
        pending: list[tuple[Any, Any]] = []
        if self._pair(eqn, target, pending) and self.run(pending):
            return True
        self._undo(mark)
        return False

    def run(self, pending: list[tuple[Any, Any]]) -> bool:
        template, graph = self.template, self.graph
        while pending:
            atom, found = pending.pop()
            self._last = atom, found
            if isinstance(atom, core.Literal):
                if not isinstance(found, core.Literal) or not same_value(atom.val, found.val):
                    return False
                continue
            known = self.atoms.get(atom)
            if known is not None:
                if not _same_atom(known, found):
                    return False
                continue
            eqn = template.producers.get(atom)
            if eqn is None:
                if not self.bind_input(atom, found):
                    return False
                continue
            target = None if isinstance(found, core.Literal) else graph.producers.get(found)
            if target is None or not self._pair(eqn, target, pending):
                return False
            if not _same_atom(self.atoms.get(atom), found):
                return False
        return True

    @property
    def failure(self) -> str:
        """Where the last attempt ended: what the template has and what the program has."""
        if self._last is None:
            return "nothing was compared"
        atom, found = self._last
        literal = isinstance(atom, core.Literal) or isinstance(found, core.Literal)
        eqn = None if literal else self.template.producers.get(atom)
        target = None if literal else self.graph.producers.get(found)
        if eqn is not None and target is not None and eqn.primitive is target.primitive:
            for name, value in eqn.params.items():
                other = target.params.get(name)
                if _compat.is_jaxpr(value) and _compat.is_jaxpr(other):
                    if (inner := difference(value, other)) is not None:
                        return f"in {eqn.primitive.name}: {inner}"
                elif name not in _FREE_PARAMS and not _same_param(value, other):
                    return f"{eqn.primitive.name}[{name}={value}] against {name}={other}"
        return f"{_said(self.template, atom)} against {_said(self.graph, found)}"

    def bind_input(self, atom: Any, found: Any) -> bool:
        if atom.aval.shape != found.aval.shape or atom.aval.dtype != found.aval.dtype:
            return False
        if atom in self.template.consts:
            if isinstance(found, core.Literal):
                value = found.val
            elif found in self.graph.consts:
                value = self.graph.consts[found]
            else:
                return False
            if not same_value(self.template.consts[atom], value):
                return False
        self._set_atom(atom, found)
        return True

    def _pair(self, eqn: Any, target: Any, pending: list[tuple[Any, Any]]) -> bool:
        known = self.eqns.get(id(eqn))
        if known is not None:
            return known is target
        if (
            eqn.primitive is not target.primitive
            or id(target) in self.taken
            or len(eqn.invars) != len(target.invars)
            or len(eqn.outvars) != len(target.outvars)
        ):
            return False
        for a, b in zip(eqn.outvars, target.outvars, strict=True):
            if a.aval.shape != b.aval.shape or a.aval.dtype != b.aval.dtype:
                return False
        if not same_params(eqn.params, target.params):
            return False
        self.eqns[id(eqn)] = target
        self.taken.add(id(target))
        self._trail.append(("eqn", (id(eqn), id(target))))
        for a, b in zip(eqn.outvars, target.outvars, strict=True):
            self._set_atom(a, b)
        pending.extend(zip(eqn.invars, target.invars, strict=True))
        return True

    def _set_atom(self, atom: Any, found: Any) -> None:
        self.atoms[atom] = found
        self._trail.append(("atom", atom))

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            kind, item = self._trail.pop()
            if kind == "eqn":
                del self.eqns[item[0]]
                self.taken.discard(item[1])
            else:
                del self.atoms[item]

    def extend(self) -> None:
        """Matches, from operands to users, what the seed is not computed from.

        An equation for which nothing is found serves a result that the program does not use.
        """
        for eqn in self.template.eqns:
            if id(eqn) in self.eqns:
                continue
            known = [
                self.atoms[a]
                for a in eqn.invars
                if not isinstance(a, core.Literal) and a in self.atoms
            ]
            known = [a for a in known if not isinstance(a, core.Literal)]
            if not known:
                continue
            for target in min((self.graph.users.get(a, []) for a in known), key=len):
                if target.primitive is eqn.primitive and self.seed(eqn, target):
                    break

    def outputs(self) -> list[Any] | None:
        """The program's variables for the template's results; `None` for one that is not used.

        **Returns:** `None` where the match is no replacement: nothing is produced, an equation of
        a result that was found is missing, or an interior value is used outside.
        """
        results = self.template.jaxpr.outvars
        found = [None if isinstance(v, core.Literal) else self.atoms.get(v) for v in results]
        if all(v is None for v in found):
            return None
        produced = {v for v in found if v is not None and not isinstance(v, core.Literal)}
        for target in self.eqns.values():
            for v in target.outvars:
                if v in produced or _is_constant(target):
                    continue
                if v in self.graph.results:
                    return None
                if any(id(u) not in self.taken for u in self.graph.users.get(v, ())):
                    return None
        return found

    def removed(self) -> frozenset[int]:
        """The equations that the match replaces. Constants stay, as others may share them."""
        return frozenset(id(e) for e in self.eqns.values() if not _is_constant(e))

    def inputs(self) -> list[Any] | None:
        """The program's atoms for the template's arguments; `None` where one was not met."""
        found = [self.atoms.get(v) for v in self.template.jaxpr.invars]
        return None if any(v is None for v in found) else found


def _is_constant(eqn: Any) -> bool:
    """Whether the equation is a broadcast literal or an iota: modules hold equal ones once."""
    return eqn.primitive.name in ("broadcast_in_dim", "iota") and not any(map(_is_var, eqn.invars))


def _said(graph: Graph, atom: Any) -> str:
    """An atom in words: its value, or the equation it comes from and the place of that."""
    if isinstance(atom, core.Literal):
        return f"the number {atom.val}"
    eqn = graph.producers.get(atom)
    if eqn is None:
        return f"an argument of type {atom.aval}"
    names = "/".join(n for n in _compat.names_of(eqn) if not n.startswith(HINT))
    return f"{eqn.primitive.name}:{atom.aval}" + (f" in {names}" if names else "")


def _same_atom(a: Any, b: Any) -> bool:
    if a is b:
        return True
    literals = isinstance(a, core.Literal) and isinstance(b, core.Literal)
    return literals and same_value(a.val, b.val)


def same_value(a: Any, b: Any) -> bool:
    """Whether two constants are equal bit for bit."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a is b or a.tobytes() == b.tobytes()


# Parameters that name or place a computation without changing it.
_FREE_PARAMS = frozenset(
    "name computation donated_invars in_shardings out_shardings in_layouts out_layouts "
    "keep_unused inline ctx_mesh compiler_options_kvs debug_info".split()
)


def same_params(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two equations of one primitive have the same parameters, inner jaxprs included."""
    return all(
        name in _FREE_PARAMS or _same_param(value, b.get(name)) for name, value in a.items()
    )


def _same_param(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if _compat.is_jaxpr(a):
        return _compat.is_jaxpr(b) and equivalent(a, b)
    if isinstance(a, (tuple, list)):
        return (
            isinstance(b, (tuple, list))
            and len(a) == len(b)
            and all(_same_param(x, y) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return same_value(a, b)
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return False


def equivalent(a: Any, b: Any) -> bool:
    """Whether two jaxprs are the same program: equal up to names and order of equations."""
    return difference(a, b) is None


def difference(a: Any, b: Any) -> str | None:
    """`None` where two jaxprs are the same program, else what differs, as far as it can be said."""
    x, y = Graph(a, _compat.consts_of(a)), Graph(b, _compat.consts_of(b))
    for what, values in (
        ("arguments", (x.jaxpr.invars, y.jaxpr.invars)),
        ("results", (x.jaxpr.outvars, y.jaxpr.outvars)),
    ):
        if len(values[0]) != len(values[1]):
            return f"{len(values[0])} {what} against {len(values[1])}"
    match = Match(x, y)
    for v, w in zip(x.jaxpr.invars, y.jaxpr.invars, strict=True):
        if not match.bind_input(v, w):
            return f"an argument of type {v.aval} against {w.aval}"
    if not match.run(list(zip(x.jaxpr.outvars, y.jaxpr.outvars, strict=True))):
        return match.failure
    if len(match.eqns) != len(x.eqns) or len(x.eqns) != len(y.eqns):
        return f"{len(x.eqns)} equations against {len(y.eqns)}"
    return None


@dataclasses.dataclass
class Rewriter:
    """The driver: runs stages of patterns over a program, innermost bodies first.

    **Arguments:**

    - `stages`: groups of patterns in their order. Templates of a stage are themselves rewritten by
        the stages before it, so that both sides of a match have taken the same road.
    - `raise_call`: lowers and raises a call: `raise_call(call, platform) -> closed jaxpr`.
    - `platform`: the platform the program was lowered for.
    - `x64`: whether the program holds 64-bit types, so that calls are lowered with them too.
    - `named`: whether the locations of the program name primitives.
    """

    stages: Sequence[Stage]
    raise_call: Callable[[Call, str], Any]
    platform: str = "cpu"
    x64: bool = False
    named: bool = True
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    _bodies: dict[tuple[int, int], tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    _templates: dict[Any, Graph | None] = dataclasses.field(default_factory=dict)

    def run(self, closed: Any, stages: int | None = None) -> Any:
        """The program rewritten by the first `stages` stages (all, by default)."""
        for number in range(len(self.stages) if stages is None else stages):
            closed = self._body(closed, number)
            for pattern in self.stages[number].patterns:
                if not isinstance(pattern, Whole):
                    continue
                if (rewritten := pattern.rewrite(closed)) is not None:
                    closed = rewritten
                    self.counts[pattern.name] += 1
        return closed

    def _body(self, jaxpr: Any, number: int) -> Any:
        """One stage over one jaxpr and those inside of it; a shared jaxpr stays shared."""
        key = (id(jaxpr), number)
        if key not in self._bodies:
            # The key holds the jaxpr alive, so that its id is not reused.
            self._bodies[key] = (jaxpr, self._rewrite(jaxpr, number))
        return self._bodies[key][1]

    def _rewrite(self, closed: Any, number: int) -> Any:
        consts = _compat.consts_of(closed)
        jaxpr = _compat.open_jaxpr(closed)
        if self.stages[number].outermost_first:
            if replacements := self._sweep(graph := Graph(jaxpr, consts), number):
                jaxpr = _replace(graph, replacements)
            jaxpr = self._inside(jaxpr, number)
            return _compat.close_like(closed, jaxpr)
        jaxpr = self._inside(jaxpr, number)
        while replacements := self._sweep(graph := Graph(jaxpr, consts), number):
            jaxpr = _replace(graph, replacements)
        return _compat.close_like(closed, jaxpr)

    def _inside(self, jaxpr: Any, number: int) -> Any:
        eqns = [self._inner(eqn, number) for eqn in jaxpr.eqns]
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(eqns=eqns)

    def _inner(self, eqn: Any, number: int) -> Any:
        if not _compat.holds_jaxprs(eqn):
            return eqn
        if eqn.primitive.name in _WITH_RULES and not self.stages[number].inside_rules:
            return eqn
        params = {}
        for name, value in eqn.params.items():
            new = self._param(value, number)
            if new is not value:
                params[name] = new
        return eqn.replace(params={**eqn.params, **params}) if params else eqn

    def _param(self, value: Any, number: int) -> Any:
        if _compat.is_jaxpr(value):
            return self._body(value, number)
        if isinstance(value, tuple) and any(_compat.is_jaxpr(v) for v in value):
            new = tuple(self._param(v, number) for v in value)
            if all(a is b for a, b in zip(new, value, strict=True)):
                return value
            return _compat.tuple_like(value, new)
        return value

    def _sweep(self, graph: Graph, number: int) -> list[Replacement]:
        found: list[Replacement] = []
        claimed: set[int] = set()
        for pattern in self.stages[number].patterns:
            marker = getattr(pattern, "marker", None)
            # The last equation first: of nested matches the larger one is meant.
            roots = [e for name in pattern.roots for e in reversed(graph.by_primitive.get(name, ()))]
            if not roots or not _holds(graph, marker):
                continue
            for eqn in roots:
                if id(eqn) in claimed:
                    continue
                site = Site(graph, eqn, self.platform, self.named)
                if isinstance(pattern, Structural):
                    function = pattern.rewrite(site)
                    replacement = None if function is None else _structural(eqn, function)
                else:
                    replacement = self._try(pattern, site, number)
                if replacement is None or claimed & replacement.removed:
                    continue
                claimed |= replacement.removed
                found.append(replacement)
                self.counts[pattern.name] += 1
        return found

    def _try(self, pattern: Pattern, site: Site, number: int) -> Replacement | None:
        for call in self._variants(pattern.propose(site)):
            template = self._template(call, number)
            if template is None:
                continue
            for eqn in _anchors(template, site.eqn):
                match = Match(template, site.graph)
                if not match.seed(eqn, site.eqn):
                    continue
                match.extend()
                inputs, outputs = match.inputs(), match.outputs()
                if inputs is None or outputs is None:
                    continue
                jaxpr = _trace(call)
                if _no_progress(jaxpr, template):
                    continue
                return Replacement(jaxpr, inputs, outputs, match.removed(), site.eqn)
        return None

    def _variants(self, calls: Iterable[Call]) -> Iterator[Call]:
        """The calls, in a program of 64-bit types as JAX lowers them with such types enabled."""
        for call in calls:
            if self.x64 and not call.wide:
                yield dataclasses.replace(call, x64=True)
            yield call

    def _template(self, call: Call, number: int) -> Graph | None:
        key = (call, number)
        if key not in self._templates:
            closed = self.raise_call(call, self.platform)
            if closed is not None:
                inner = Rewriter(
                    self.stages,
                    self.raise_call,
                    self.platform,
                    call.wide,
                    _templates=self._templates,
                )
                closed = inner.run(closed, number)
            self._templates[key] = (
                None if closed is None else Graph(closed, _compat.consts_of(closed))
            )
        return self._templates[key]


_WITH_RULES = frozenset({"custom_jvp_call", "custom_vjp_call"})


def _holds(graph: Graph, marker: float | tuple[float, ...] | None) -> bool:
    """Whether a body has a literal near one of the numbers."""
    markers = marker if isinstance(marker, tuple) else (marker,)
    return marker is None or any(_rounded(m) in graph.numbers for m in markers)


def _anchors(template: Graph, eqn: Any) -> Iterator[Any]:
    """The template's equations that may stand for the site's: one that gives a result first."""
    ends = {id(template.producers.get(v)) for v in template.jaxpr.outvars if _is_var(v)}
    same = template.by_primitive.get(eqn.primitive.name, [])
    first = [e for e in same if id(e) in ends]
    yield from first
    # Equations of a kind that is rare in the template need not give a result: custom calls, loops.
    if len(same) <= 4:
        yield from (e for e in same if id(e) not in ends)


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, core.Literal)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Equations to put in the place of others."""

    jaxpr: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    removed: frozenset[int]
    root: Any


def _trace(call: Call) -> Any:
    with jax.enable_x64(call.wide):
        return _compat.trace_closed(call.function, *call.avals)


def _structural(eqn: Any, function: Callable[..., Any]) -> Replacement:
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars]
    closed = _compat.trace_closed(function, *avals)
    return Replacement(closed, eqn.invars, eqn.outvars, frozenset({id(eqn)}), eqn)


def _no_progress(closed: Any, template: Graph) -> bool:
    """Whether a call lowers to what it already is, which would be rewritten for ever."""
    jaxpr = _compat.open_jaxpr(closed)
    return len(jaxpr.eqns) == len(template.eqns) and equivalent(closed, template.jaxpr)


def _replace(graph: Graph, replacements: Sequence[Replacement]) -> Any:
    """The body with the replacements made, in topological order and without dead equations."""
    removed = frozenset().union(*(r.removed for r in replacements))
    eqns = [e for e in graph.eqns if id(e) not in removed]
    renamed: dict[Any, Any] = {}
    for r in replacements:
        eqns.extend(_splice(r, renamed))
    jaxpr = graph.jaxpr

    def rename(atom: Any) -> Any:
        while _is_var(atom) and atom in renamed:
            atom = renamed[atom]
        return atom

    eqns = [
        e.replace(invars=[rename(a) for a in e.invars])
        if any(_is_var(a) and a in renamed for a in e.invars)
        else e
        for e in eqns
    ]
    outvars = [rename(v) for v in jaxpr.outvars]
    eqns = _topological(eqns)
    return _compat.dce(jaxpr.replace(eqns=eqns, outvars=outvars))


def _splice(r: Replacement, renamed: dict[Any, Any]) -> list[Any]:
    """The equations of a replacement, on the program's variables."""
    inner = _compat.open_jaxpr(r.jaxpr)
    consts = _compat.consts_of(r.jaxpr)
    env: dict[Any, Any] = dict(zip(inner.invars, r.inputs, strict=True))
    for v, c in zip(inner.constvars, consts, strict=True):
        if np.ndim(c) != 0:
            raise InvertError("a replacement may not bring an array constant")
        env[v] = core.Literal(np.asarray(c)[()], v.aval)
    for v, out in zip(inner.outvars, r.outputs, strict=True):
        if out is None or not _is_var(out):
            continue
        if _is_var(v) and v not in env:
            env[v] = out
        else:  # an argument or a literal comes out as it is, or a value comes out twice
            renamed[out] = env[v] if _is_var(v) else v

    def read(atom: Any) -> Any:
        return env[atom] if _is_var(atom) else atom

    eqns = []
    for eqn in inner.eqns:
        outvars = [env.setdefault(v, core.Var(v.aval)) if _is_named(v) else v for v in eqn.outvars]
        new = eqn.replace(invars=[read(a) for a in eqn.invars], outvars=outvars)
        eqns.append(_compat.with_names(new, _compat.names_of(r.root)))
    return eqns


def _is_named(v: Any) -> bool:
    return not isinstance(v, core.DropVar)


def _topological(eqns: list[Any]) -> list[Any]:
    """The equations with definitions before uses; stable, linear in their number."""
    producers = {v: e for e in eqns for v in e.outvars}
    done: set[int] = set()
    ordered: list[Any] = []
    for start in eqns:
        pending = [start]
        while pending:
            eqn = pending[-1]
            if id(eqn) in done:
                pending.pop()
                continue
            missing = [
                p
                for a in eqn.invars
                if _is_var(a) and (p := producers.get(a)) is not None and id(p) not in done
            ]
            if missing:
                pending.extend(missing)
            else:
                pending.pop()
                done.add(id(eqn))
                ordered.append(eqn)
    return ordered
