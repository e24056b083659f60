"""Matching: finds a template in a program, and decides whether two programs are isomorphic."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from jax import lax

from invert._private.jax import (
    by_jaxpr,
    consts_of,
    is_jaxpr,
    names_of,
    open_jaxpr,
    plain_params,
    rule_name,
    source_line,
)
from invert.ir.graph import Graph, is_var
from invert.ir.hints import is_hint
from invert.ir.jaxprs import broadcasts, drawn_under
from invert.ir.narrow_operands import is_implied
from invert.ir.order import reached
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Literal, Params, Value

# An atom of the template and the atom of the program to match it with.
_Pair: TypeAlias = tuple[Atom, Atom]


@dataclasses.dataclass(frozen=True)
class Miss:
    """The place at which a match failed.

    **Arguments:**

    - `compared`: how many equations matched before.
    - `eqn`: the equation of the program where template and program differ.
    - `reason`: what each of them has there.
    """

    compared: int
    eqn: Eqn
    reason: str


class Match:
    """One attempt to match a template in a graph.

    If `misses` is a list, each failure is appended to it.
    """

    def __init__(self, template: Graph, graph: Graph, misses: list[Miss] | None = None):
        self.template, self.graph, self.misses = template, graph, misses
        self._before = len(misses or ())
        self.atoms: dict[Atom, Atom] = {}
        self.eqns: dict[Eqn, Eqn] = {}
        self.taken: set[Eqn] = set()
        self._trail: list[Eqn | Atom] = []
        self._last: _Pair | None = None

    def seed(self, eqn: Eqn, target: Eqn) -> bool:
        """Match an equation and everything it is computed from."""
        mark = len(self._trail)
        self._last = eqn.outvars[0], target.outvars[0]
        pending: list[_Pair] = []
        if self._pair(eqn, target, pending) and self.run(pending):
            return True
        if self.misses is not None:
            self.misses.append(self._miss(target))
        self._undo(mark)
        return False

    def run(self, pending: list[_Pair]) -> bool:
        template, graph = self.template, self.graph
        while pending:
            atom, found = pending.pop()
            self._last = atom, found
            if isinstance(atom, Literal):
                if not isinstance(found, Literal) or not same_value(atom.val, found.val):
                    return False
                continue
            known = self.atoms.get(atom)
            if known is not None:
                if not (_same_atom(known, found) or self._same_constant(atom, found)):
                    return False
                continue
            eqn = template.producers.get(atom)
            if eqn is None:
                if not self.bind_input(atom, found):
                    return False
                continue
            target = graph.producer(found)
            if target is None or not self._pair(eqn, target, pending):
                return False
            if not _same_atom(self.atoms.get(atom), found):
                return False
        return True

    @property
    def failure(self) -> str:
        """The place at which the last attempt failed, in words."""
        if self._last is None:
            return "nothing was compared"
        sides = self._sides(*self._last)
        return sides if isinstance(sides, str) else " against ".join(sides)

    def _miss(self, root: Eqn) -> Miss:
        """The failure of a seed at `root`, before its matches are undone."""
        assert self._last is not None
        atom, found = self._last
        users = ((e, self.eqns[e]) for e in self.template.eqns if e in self.eqns)
        pairs = ((p, *ab) for e, p in users for ab in zip(e.invars, p.invars, strict=True))
        eqn = next((p for p, a, b in pairs if a is atom and b is found), root)
        sides = self._sides(atom, found)
        known = None if isinstance(atom, Literal) else self.atoms.get(atom)
        if known is not None and not _same_atom(known, found):
            one, two = _describe_atom(self.graph, known), _describe_atom(self.graph, found)
            return Miss(len(self.eqns), eqn, f"one value in the pattern, two here: {one}; {two}")
        return Miss(len(self.eqns), eqn, contrast(sides))

    def _sides(self, atom: Atom, found: Atom) -> str | tuple[str, str]:
        """The template's side and the program's side, or the call inside which they differ."""
        eqn, target = self.template.producer(atom), self.graph.producer(found)
        if (
            eqn is not None
            and target is not None
            and eqn.primitive is target.primitive
            and (differing := other_params(eqn, target)) is not None
        ):
            return differing
        return _describe_atom(self.template, atom), _describe_atom(self.graph, found)

    def bind_input(self, atom: Atom, found: Atom) -> bool:
        if atom.aval.shape != found.aval.shape or atom.aval.dtype != found.aval.dtype:
            return False
        if atom in self.template.consts and not self._same_constant(atom, found):
            return False
        self._set_atom(atom, found)
        return True

    def _same_constant(self, atom: Atom, found: Atom) -> bool:
        """Return whether a constant of the template equals an atom of the program."""
        if atom not in self.template.consts:
            return False
        if isinstance(found, Literal):
            return same_value(self.template.consts[atom], found.val)
        consts = self.graph.consts
        return found in consts and same_value(self.template.consts[atom], consts[found])

    def _pair(self, eqn: Eqn, target: Eqn, pending: list[_Pair]) -> bool:
        known = self.eqns.get(eqn)
        if known is not None:
            return known is target
        if (
            eqn.primitive is not target.primitive
            or drawn_under(eqn) != drawn_under(target)
            or target in self.taken
            or len(eqn.invars) != len(target.invars)
            or len(eqn.outvars) != len(target.outvars)
        ):
            return False
        for a, b in zip(eqn.outvars, target.outvars, strict=True):
            if a.aval.shape != b.aval.shape or a.aval.dtype != b.aval.dtype:
                return False
        if not same_params(eqn.params, target.params):
            return False
        self.eqns[eqn] = target
        self.taken.add(target)
        self._trail.append(eqn)
        for a, b in zip(eqn.outvars, target.outvars, strict=True):
            self._set_atom(a, b)
        for a, b in zip(eqn.invars, target.invars, strict=True):
            is_narrow = is_var(a) and is_var(b) and a.aval.shape != b.aval.shape
            pending.append((a, self._broadcast(b, a) if is_narrow else b))
        return True

    def _broadcast(self, narrow: Atom, atom: Atom) -> Atom:
        """The program's broadcast of an operand, where the template has it at its full shape.

        Raising lets operations broadcast their operands themselves, which it sees in the program,
        but not in a template that takes the broadcast as an argument.
        """
        known = self.atoms.get(atom)
        for eqn in self.graph.users.get(narrow, ()):
            if broadcasts(eqn) and is_implied(eqn):
                (out,) = eqn.outvars
                if out.aval.shape == atom.aval.shape and (known is None or known is out):
                    return out
        return narrow

    def _set_atom(self, atom: Atom, found: Atom) -> None:
        self.atoms[atom] = found
        self._trail.append(atom)

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            last = self._trail.pop()
            if isinstance(last, Eqn):
                self.taken.discard(self.eqns.pop(last))
            else:
                del self.atoms[last]

    def extend(self) -> None:
        """Match the remaining equations, from operands to users.

        An equation without a match computes a result that the program does not use. Equations that
        produce results go first, as soon as an operand is known. Otherwise one for an unused result
        could claim an identical one for a used result.
        """
        template = self.template
        ends = list(template.makers(template.jaxpr.outvars))
        for end in ends:
            self._claim(end)
        for eqn in template.eqns:
            if self._claim(eqn):
                for end in ends:
                    self._claim(end)

    def _claim(self, eqn: Eqn) -> bool:
        """Match a further equation with a user of its known operands."""
        if eqn in self.eqns:
            return False
        known = [
            self.atoms[a] for a in eqn.invars if not isinstance(a, Literal) and a in self.atoms
        ]
        known = [a for a in known if not isinstance(a, Literal)]
        if not known:
            return False
        users = min((self.graph.users.get(a, []) for a in known), key=len)
        return any(u.primitive is eqn.primitive and self.seed(eqn, u) for u in users)

    def outputs(self) -> list[Atom | None] | None:
        """The program's variables for the template's results; `None` for an unused result.

        **Returns:** `None` if the match cannot be replaced: no result is matched, or an interior
        value is used outside.
        """
        matched = self._results()
        if all(v is None for v in matched):
            return None
        return None if self._leak(matched) is not None else matched

    def _results(self) -> list[Atom | None]:
        results = self.template.jaxpr.outvars
        return [None if isinstance(v, Literal) else self.atoms.get(v) for v in results]

    def _leak(self, results: Sequence[Atom | None]) -> tuple[Eqn, Eqn | None] | None:
        """An interior equation used outside, with its user (`None` for a result)."""
        produced = {v for v in results if v is not None and not isinstance(v, Literal)}
        for target in self.eqns.values():
            for v in target.outvars:
                if v in produced or _is_constant(target):
                    continue
                if v in self.graph.results:
                    return target, None
                for user in self.graph.users.get(v, ()):
                    if user not in self.taken:
                        return target, user
        return None

    def refused(self, root: Eqn, reason: str = "") -> None:
        """Record in `misses` why the match at `root` cannot be replaced."""
        if self.misses is None:
            return
        if reason:
            self.misses.append(Miss(len(self.eqns), root, reason))
            return
        if len(self.misses) > self._before and len(self.eqns) < len(self.template.eqns):
            return  # the failure of a further equation is recorded already
        matched = self._results()
        leak = self._leak(matched)
        if all(v is None for v in matched):
            eqn, reason = root, "no result of the pattern is a value of the program"
        elif leak is not None:
            eqn, user = leak
            by = "as a result of the program" if user is None else f"by {describe(user)}"
            reason = f"an interior value of the pattern is used elsewhere, {by}"
        elif self.inputs() is None:
            eqn, reason = root, "not all operands of the pattern are values of the program"
        else:
            eqn, reason = root, "an operand is computed from a result"
        self.misses.append(Miss(len(self.eqns), eqn, reason))

    def removed(self) -> frozenset[Eqn]:
        """The equations that the match replaces. Constants stay, since others may share them."""
        return frozenset(e for e in self.eqns.values() if not _is_constant(e))

    def inputs(self) -> list[Atom] | None:
        """The program's atoms for the template's arguments; `None` if one is unmatched."""
        operands = [self.atoms.get(v) for v in self.template.jaxpr.invars]
        known = [v for v in operands if v is not None]
        return known if len(known) == len(operands) else None

    def needs_itself(self) -> bool:
        """Return whether an argument of the match is computed from one of its results.

        Equations are in topological order, so the search stops at the first of the match.
        """
        graph, removed = self.graph, self.removed()
        first = min((graph.index[e] for e in removed), default=len(graph.eqns))
        operands = [self.atoms[v] for v in self.template.jaxpr.invars]

        def late(atoms: Iterable[Atom]) -> Iterator[Eqn]:
            return (e for e in graph.makers(atoms) if graph.index[e] >= first)

        def before(eqn: Eqn) -> Iterator[Eqn]:
            return late(eqn.invars)

        return not removed.isdisjoint(reached(late(operands), before))


def _is_constant(eqn: Eqn) -> bool:
    """Return whether the equation is a broadcast literal or an iota, which modules share."""
    return eqn.primitive.name in ("broadcast_in_dim", "iota") and not any(map(is_var, eqn.invars))


def _describe_atom(graph: Graph, atom: Atom) -> str:
    """An atom in words: its value, or its equation and place."""
    if isinstance(atom, Literal):
        return f"{atom.val}"
    eqn = graph.producer(atom)
    if eqn is None:
        return f"an argument of type {atom.aval}"
    scope = scope_of(eqn)
    return f"{eqn.primitive.name}:{atom.aval}" + (f" in {scope}" if scope else "")


def scope_of(eqn: Eqn) -> str:
    """The name scopes of an equation without hints; `""` if there are none."""
    return "/".join(n for n in names_of(eqn) if not is_hint(n))


def place_of(eqn: Eqn) -> str:
    """The name scopes and source line of an equation, where known."""
    return ", ".join(filter(None, (scope_of(eqn), source_line(eqn))))


def describe(eqn: Eqn) -> str:
    """An equation in words: its primitive and its place, if known."""
    place = place_of(eqn)
    return f"{eqn.primitive.name} at {place}" if place else eqn.primitive.name


def _same_atom(a: Atom | None, b: Atom | None) -> bool:
    if a is b:
        return True
    return isinstance(a, Literal) and isinstance(b, Literal) and same_value(a.val, b.val)


def same_value(a: Value, b: Value) -> bool:
    """Return whether two constants are equal bit for bit."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a is b or a.tobytes() == b.tobytes()


@dataclasses.dataclass(frozen=True)
class Deferred:
    """A parameter that is computed only if its key does not decide a comparison.

    Parameters with equal keys are equal; parameters with different keys may be equal too.
    """

    key: Hashable
    make: Callable[[], Value]

    @functools.cached_property
    def value(self) -> Value:
        return self.make()

    @property
    def is_made(self) -> bool:
        """Return whether a comparison took more than the key."""
        return "value" in vars(self)


def _made(param: Value) -> Value:
    return param.value if isinstance(param, Deferred) else param


def _same_key(a: Value, b: Value) -> bool:
    return isinstance(a, Deferred) and isinstance(b, Deferred) and a.key == b.key


# Parameters that name or place a computation without changing it.
_FREE_PARAMS = frozenset(
    "name computation donated_invars in_shardings out_shardings in_layouts out_layouts "
    "keep_unused inline ctx_mesh compiler_options_kvs debug_info".split()
)


def same_params(a: Params, b: Params) -> bool:
    """Return whether two equations of one primitive have equal parameters and inner jaxprs."""
    a, b = _compared(a), _compared(b)
    return all(name in _FREE_PARAMS or _same_param(value, b.get(name)) for name, value in a.items())


def _compared(params: Params) -> Params:
    """The parameters that distinguish an equation from others."""
    params = plain_params(params)
    for name, inner in (("call_jaxpr", "custom_vmap_call"), ("call", "composite")):
        if is_jaxpr(called := params.get(name)):
            eqns = open_jaxpr(called).eqns
            if len(eqns) == 1 and eqns[0].primitive.name == inner:
                # The rules of `ir.composite` are those of the body, which is compared. No program
                # of a container has another `custom_vmap_call`.
                return {name: called}
    return params


def other_params(eqn: Eqn, target: Eqn) -> str | tuple[str, str] | None:
    """The first differing parameter of two equations of one primitive, in words."""
    found_params = _compared(target.params)
    for name, value in _compared(eqn.params).items():
        other = found_params.get(name)
        if not _same_key(value, other):
            value, other = _made(value), _made(other)
        if pairs := _pairs_of_jaxprs(value, other):
            found = (difference(x, y) for x, y in pairs if not _same_param(x, y))
            if (inner := next(filter(None, found), None)) is not None:
                return f"in {eqn.primitive.name}: {inner}"
        elif name == "jvp_jaxpr_fun" and not _same_param(value, other):
            return rule_name(eqn.params), f"another rule, {rule_name(target.params)},"
        elif name not in _FREE_PARAMS and not _same_param(value, other):
            return f"{eqn.primitive.name}[{name}={value}]", f"{name}={other}"
    return None


def _pairs_of_jaxprs(a: Value, b: Value) -> list[tuple[AnyJaxpr, AnyJaxpr]]:
    """Two jaxprs, or as many branches, in pairs; otherwise none."""
    ones, others = (list(v) if isinstance(v, tuple) else [v] for v in (a, b))
    pairs = list(zip(ones, others, strict=False)) if len(ones) == len(others) else []
    return pairs if all(is_jaxpr(x) and is_jaxpr(y) for x, y in pairs) else []


def contrast(sides: str | tuple[str, str]) -> str:
    """Join the pattern's and the program's side in one sentence."""
    return (
        sides if isinstance(sides, str) else "{} in the pattern, {} in the program".format(*sides)
    )


@by_jaxpr
def _comparisons(jaxpr: Jaxpr) -> weakref.WeakKeyDictionary[AnyJaxpr, bool]:
    """Results of earlier comparisons, so that functions called often are compared once."""
    return weakref.WeakKeyDictionary()


def _same_param(a: object, b: object) -> bool:
    if a is b:
        return True
    if isinstance(a, Deferred) or isinstance(b, Deferred):
        return _same_key(a, b) or _same_param(_made(a), _made(b))
    if is_jaxpr(a):
        if not is_jaxpr(b):
            return False
        known = _comparisons(a)
        if b not in known:
            known[b] = equivalent(a, b)
        return known[b]
    if isinstance(a, (tuple, list)):
        return (
            isinstance(b, (tuple, list))
            and len(a) == len(b)
            and all(_same_param(x, y) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return same_value(a, b)
    if isinstance(a, lax.Tolerance) and isinstance(b, lax.Tolerance):  # which has no `==`
        return vars(a) == vars(b)
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return False


def equivalent(a: AnyJaxpr, b: AnyJaxpr, constants: Sequence[Value] = ()) -> bool:
    """Return whether two jaxprs are isomorphic: equal up to names and the order of equations.

    `constants` are values of the leading arguments, as for `difference`.
    """
    return _compared_jaxprs(a, b, constants) is None


def difference(a: AnyJaxpr, b: AnyJaxpr, constants: Sequence[Value] = ()) -> str | None:
    """`None` if two jaxprs are isomorphic, otherwise the first difference found, in words.

    `constants` are values of the leading arguments, where known. Those are then compared by value
    instead of by position.
    """
    found = _compared_jaxprs(a, b, constants)
    return found.failure if isinstance(found, Match) else found


def _compared_jaxprs(a: AnyJaxpr, b: AnyJaxpr, constants: Sequence[Value]) -> Match | str | None:
    """As `difference`, but a match that failed is not put into words, which takes longer."""
    x, y = Graph(a, consts_of(a)), Graph(b, consts_of(b))
    for what, values in (
        ("arguments", (x.jaxpr.invars, y.jaxpr.invars)),
        ("results", (x.jaxpr.outvars, y.jaxpr.outvars)),
    ):
        if len(values[0]) != len(values[1]):
            return f"{len(values[0])} {what} against {len(values[1])}"
    for graph in (x, y):
        graph.consts.update(zip(graph.jaxpr.invars, constants, strict=False))
    match = Match(x, y)
    for v, w in list(zip(x.jaxpr.invars, y.jaxpr.invars, strict=True))[len(constants) :]:
        if not match.bind_input(v, w):
            return f"an argument of type {v.aval} against {w.aval}"
    if not match.run(list(zip(x.jaxpr.outvars, y.jaxpr.outvars, strict=True))):
        return match
    if len(match.eqns) != len(x.eqns) or len(x.eqns) != len(y.eqns):
        return f"{len(x.eqns)} equations against {len(y.eqns)}"
    return None
