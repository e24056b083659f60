"""Trip counts: induction variables and the conditions on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from invert._private.jax import Literal, consts_of, is_tracer, max_dim, min_dim, open_jaxpr
from invert.ir.graph import Graph
from invert.ir.loops import CondParts, bodies
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import AnyJaxpr, Atom, Eqn, Value, Var
from invert.tf.values.bounds import (
    DEEPEST,
    RULES,
    STEP,
    Fact,
    Facts,
    Sum,
    derived,
    hull,
    is_whole,
    line,
    named,
    of_constant,
)


@dataclasses.dataclass(frozen=True)
class _Sums:
    """A floating-point variable to which each step adds `step`, in its own type."""

    start: Value
    step: Value

    def until(self, failed: Callable[[Value], bool]) -> int | None:
        """The first step in which a predicate holds, by adding like the loop."""
        value = self.start
        for k in range(_MOST_SUMS):
            if failed(float(value)):
                return k
            if value == (value := value + self.step):
                return None
        return None


# Longer loops stay a `while`, unless configured otherwise.
_MOST_SUMS = 1 << 16

# The fact about a number from outside the loop; the flag says that everything it is computed
# from is finite.
Outside = Callable[[Atom, bool], Fact]


def _nothing(value: Value, finite: bool) -> Fact:
    return Fact.between(-math.inf, math.inf)


class _Program:
    """A jaxpr with facts about its arguments, together with its branches and calls.

    **Arguments:**

    - `known`: the arguments' inductions, or their values as sums.
    - `outside`: the facts of a constant.
    - `outer`: for a branch or call, the enclosing program and the operands there.
    - `within`: see `bounds.derived`.
    """

    def __init__(
        self,
        closed: AnyJaxpr,
        known: Sequence[Sum | _Sums | None],
        outside: Outside = _nothing,
        outer: tuple[_Program, Sequence[Atom]] | None = None,
        within: int | None = None,
    ):
        graph = Graph(closed, consts_of(closed))
        self.jaxpr, self.producer = graph.jaxpr, graph.producer
        self.finite = False
        self._outside, self._within = outside, within
        self._truths: dict[Atom, bool] = {}
        self._inner: dict[tuple[int, int], _Program] = {}
        self._consts = graph.consts
        self._facts: dict[Atom, Facts] = {}
        self._enclosing: dict[Atom, tuple[_Program, Atom]] = {}
        self._sums: dict[Atom, _Sums] = {}
        for var, value in zip(self.jaxpr.invars, known, strict=outer is None):
            fact = Fact.of(value) if isinstance(value, Sum) else None
            self._facts[var] = named(var.aval, [fact] if fact else None, var)
            if isinstance(value, _Sums):
                self._sums[var] = value
        if outer is not None:
            program, operands = outer
            self._enclosing = {
                v: (program, a) for v, a in zip(self.jaxpr.invars, operands, strict=True)
            }
            self.finite = program.finite

    # -- origins of values

    def inside(self, eqn: Eqn, number: int) -> _Program:
        """A branch of a `cond`, or a callee."""
        key = id(eqn), number
        if key not in self._inner:
            closed, operands = bodies(eqn)[number]
            self._inner[key] = _Program(closed, (), self._outside, (self, operands), self._within)
        return self._inner[key]

    def way(self, eqn: Eqn, result: Var, number: int) -> tuple[_Program, Atom]:
        """The result of one branch of a `cond` or a `select_n`."""
        if eqn.primitive.name == "select_n":
            return self, eqn.invars[1 + number]
        inner = self.inside(eqn, number)
        return inner, inner.jaxpr.outvars[eqn.outvars.index(result)]

    def source(self, atom: Atom) -> tuple[_Program, Atom]:
        """The atom that defines another, with its program, across calls and known branches."""
        if isinstance(atom, Literal):
            return self, atom
        if atom in self._enclosing:
            program, operand = self._enclosing[atom]
            return program.source(operand)
        eqn = self.producer(atom)
        if eqn is None:
            return self, atom
        if eqn.primitive.name in _SAME and eqn.invars[0].aval.shape == atom.aval.shape:
            types = {a.aval.dtype for a in (eqn.invars[0], atom)}
            if len(types) == 1 or all(jnp.issubdtype(t, jnp.integer) for t in types):
                return self.source(eqn.invars[0])
        if eqn.primitive.name == "jit":
            inner, result = self.way(eqn, atom, 0)
            return inner.source(result)
        if _is_choice(eqn):
            taken = self.truth(eqn.invars[0])
            if taken is not None:
                inner, result = self.way(eqn, atom, int(taken))
                return inner.source(result)
        return self, atom

    # -- truth values

    def _base(self, atom: Atom) -> tuple[_Program, Atom, bool]:
        """The predicate or branch index behind an atom, and whether it is not negated."""
        program, atom = self.source(atom)
        eqn = program.producer(atom)
        if eqn is not None and (eqn.primitive.name == "not" or _is_index(eqn)):
            inner, base, same = program._base(eqn.invars[0])
            return inner, base, same != (eqn.primitive.name == "not")
        return program, atom, True

    def truth(self, atom: Atom) -> bool | None:
        """The known truth value of an atom or of the predicate behind an index."""
        program, atom, same = self._base(atom)
        known = atom.val if isinstance(atom, Literal) else program._truths.get(atom)
        return None if known is None else bool(known) == same

    def assume(self, atom: Atom, value: bool) -> None:
        """Assume a truth value and its consequences."""
        program, atom, same = self._base(atom)
        if isinstance(atom, Literal):
            return
        value = value == same
        program._truths[atom] = value
        eqn = program.producer(atom)
        if eqn is not None and eqn.primitive.name == ("and" if value else "or"):
            for operand in eqn.invars:
                program.assume(operand, value)
        elif eqn is not None and _is_choice(eqn):
            for taken in (False, True):
                if program.gives(eqn, atom, not taken) is (not value):
                    inner, result = program.way(eqn, atom, int(taken))
                    program.assume(eqn.invars[0], taken)
                    inner.assume(result, value)
                    break

    def gives(self, eqn: Eqn, result: Var, taken: bool) -> bool | None:
        """The truth value of one branch of a choice, if known."""
        inner, atom = self.way(eqn, result, int(taken))
        *chosen, turned = self._base(eqn.invars[0])
        *given, same = inner._base(atom)
        if given[0] is chosen[0] and given[1] is chosen[1]:
            return taken == (same == turned)
        return inner.truth(atom)

    def is_outside(self, atom: Atom) -> bool:
        """Return whether a truth value is the same in all steps."""
        program, base, _ = self._base(atom)
        return isinstance(base, Literal) or base in program._consts

    def arguments(self) -> dict[int, bool]:
        """The arguments whose truth value is known."""
        facts = self._truths
        return {i: facts[v] for i, v in enumerate(self.jaxpr.invars) if v in facts}

    # -- numbers

    def line(self, atom: Atom) -> Sum | None:
        """The value of an integer in each step."""
        return self.fact(atom).line

    def beyond(self, atom: Atom, variable: Var) -> int | None:
        """The constant difference of an integer and an unknown variable."""
        one, two = self.fact(atom).equals, self.fact(variable).equals
        return None if one is None or two is None else one.plus(two, -1).number

    def fact(self, atom: Atom) -> Fact:
        return hull(self._read(atom, 0))

    def _read(self, atom: Atom, depth: int) -> Facts:
        program, atom = self.source(atom)
        if isinstance(atom, Literal):
            return of_constant(atom.val)
        if atom not in program._facts:
            eqn = program.producer(atom)
            facts: Facts | None = None
            if eqn is None:
                facts = program._of_constant(program._consts[atom])
            elif eqn.primitive.name in RULES and depth <= DEEPEST:
                operands = [program._read(a, depth + 1) for a in eqn.invars]
                avals = [a.aval for a in eqn.invars]
                facts = derived(
                    eqn.primitive.name, operands, avals, atom.aval, eqn.params, program._within
                )
            program._facts[atom] = named(atom.aval, facts, atom)
        return program._facts[atom]

    def _of_constant(self, value: Value) -> Facts:
        if not is_tracer(value):
            return of_constant(value)
        whole = not np.ndim(value) and jnp.issubdtype(value.dtype, jnp.integer)
        return [self._outside(value, self.finite)] if whole else []

    # -- floating point numbers

    def sums(self, atom: Atom) -> _Sums | None:
        program, atom = self.source(atom)
        return None if isinstance(atom, Literal) else program._sums.get(atom)

    def number(self, atom: Atom) -> tuple[float, float]:
        """The range of what is the same in all steps, apart from NaN."""
        program, atom = self.source(atom)
        if isinstance(atom, Literal):
            return float(atom.val), float(atom.val)
        if (eqn := program.producer(atom)) is not None:
            eqn = program._extremum(eqn)
            name, ends = eqn.primitive.name, [program.number(a) for a in eqn.invars]
            if name in _EXTREMA:
                lows, highs = zip(*ends, strict=True)
                return _EXTREMA[name](lows), _EXTREMA[name](highs)
            # Of no numbers, the largest is minus infinity, and the smallest infinity.
            if name == "reduce_max":
                return -math.inf, ends[0][1]
            if name == "reduce_min":
                return ends[0][0], math.inf
            if name == "broadcast_in_dim":
                return ends[0]
        if atom not in program._consts or atom.aval.shape:
            return -math.inf, math.inf
        return program._outside(program._consts[atom], program.finite).ends

    def _extremum(self, eqn: Eqn) -> Eqn:
        """The `min` that a choice between it and its operand is, apart from NaN, or the `max`.

        `tf.minimum` is such a choice, which decides where the gradient goes at ties.
        """
        test = self.producer(eqn.invars[0], *_LESS) if eqn.primitive.name == "select_n" else None
        if test is None or len(eqn.invars) != 3:
            return eqn
        less = test.invars[int(_LESS[test.primitive.name][0])]
        for chosen, (other, case) in ((True, eqn.invars[:0:-1]), (False, eqn.invars[1:])):
            made = self.producer(case)
            if made is None or made.primitive.name not in _EXTREMA:
                continue
            pairs = [zip(made.invars, test.invars[::k], strict=True) for k in (1, -1)]
            alike = any(all(_is_same(a, b) for a, b in pair) for pair in pairs)
            is_least = _is_same(other, less) == chosen
            is_operand = any(_is_same(other, a) for a in made.invars)
            if alike and is_operand and is_least == (made.primitive.name == "min"):
                return made
        return eqn


_EXTREMA: Mapping[str, Callable[[Sequence[float]], float]] = {"min": min, "max": max}
# Equations that pass a scalar through; of those that move elements, only these occur before a
# counter.
_SAME = frozenset(("convert_element_type", "copy", "reduce_and", "reshape"))


def _is_same(one: Atom, two: Atom) -> bool:
    if isinstance(one, Literal) and isinstance(two, Literal):
        return bool(one.val == two.val)
    return one is two


def _is_choice(eqn: Eqn) -> bool:
    """Return whether an equation selects one of two branches."""
    if eqn.primitive.name == "cond":
        return len(CondParts.of(eqn).branches) == 2
    return (
        eqn.primitive.name == "select_n" and len(eqn.invars) == 3 and not eqn.invars[0].aval.shape
    )


def _is_index(eqn: Eqn) -> bool:
    """Return whether an equation converts a truth value to a branch index."""
    return eqn.primitive.name == "convert_element_type" and eqn.invars[0].aval.dtype == bool


def lines(
    body: AnyJaxpr,
    starts: Sequence[Value],
    holding: Mapping[int, bool] | None = None,
    within: int | None = None,
) -> list[Sum | None]:
    """The induction of each variable of a loop, if it has one.

    **Arguments:**

    - `body`: the closed jaxpr of the body, from variables to variables.
    - `starts`: initial values, if they are known numbers.
    - `holding`: variables whose truth value after a step is known.
    - `within`: see `bounds.derived`.
    """
    # Without facts about the variables, the results show the increment of each per step.
    program = _Program(body, [None] * len(starts), within=within)
    _hold(program, holding)
    sums: list[Sum | None] = []
    pairs = zip(program.jaxpr.invars, program.jaxpr.outvars, strict=True)
    for (variable, result), start in zip(pairs, starts, strict=True):
        step = None
        if start is not None and _is_whole_number(variable):
            step = program.beyond(result, variable)
        sums.append(None if step is None else line(start, step))
    return [
        one if one is not None else _follower(body, sums, position, start)
        for position, (one, start) in enumerate(zip(sums, starts, strict=True))
    ]


def _is_whole_number(variable: Var) -> bool:
    return not variable.aval.shape and jnp.issubdtype(variable.aval.dtype, jnp.integer)


def _hold(program: _Program, holding: Mapping[int, bool] | None) -> None:
    for i, value in (holding or {}).items():
        program.assume(program.jaxpr.outvars[i], value)


def _sums_of(
    body: AnyJaxpr, starts: Sequence[Value], holding: Mapping[int, bool]
) -> list[_Sums | None]:
    """The sums of each floating-point variable of a loop."""
    program = _Program(body, [None] * len(starts))
    _hold(program, holding)
    sums: list[_Sums | None] = []
    for variable, result, start in zip(
        program.jaxpr.invars, program.jaxpr.outvars, starts, strict=True
    ):
        sums.append(None)
        if start is None or not jnp.issubdtype(variable.aval.dtype, jnp.floating):
            continue
        where, atom = program.source(result)
        eqn = where.producer(atom)
        if eqn is None or eqn.primitive.name not in ("add", "sub"):
            continue
        operands = [where.source(a)[1] for a in eqn.invars]
        if eqn.primitive.name == "add" and operands[1] is variable:
            operands.reverse()
        step = operands[1].val if isinstance(operands[1], Literal) else None
        if operands[0] is variable and step is not None:
            step = np.asarray(step, variable.aval.dtype)[()]
            sums[-1] = _Sums(
                np.asarray(start, variable.aval.dtype)[()],
                step if eqn.primitive.name == "add" else -step,
            )
    return sums


@dataclasses.dataclass(frozen=True)
class FinalValue:
    """An integer after a loop: its value before plus `offset`.

    **Arguments:**

    - `above`: the position of a variable that is a lower bound; the final value is then the larger
        of the two initial values, plus `offset`.
    """

    offset: int
    above: int | None = None


def ends(body: AnyJaxpr, count: int, within: int | None = None) -> list[FinalValue | None]:
    """The final value of each variable of a loop of `count` steps, if known.

    `within`: see `bounds.derived`.
    """
    program = _Program(body, [None] * len(open_jaxpr(body).invars), within=within)
    variables, results = program.jaxpr.invars, program.jaxpr.outvars
    if count == 0:
        return [None] * len(variables)

    def by(position: int, atom: Atom) -> int | None:
        """The difference between a number and the variable at `position`."""
        return program.beyond(atom, variables[position])

    whole = [_is_whole_number(v) for v in variables]
    steps = [by(i, v) if whole[i] else None for i, v in enumerate(results)]
    finals = [None if step is None else FinalValue(step * count) for step in steps]
    for i, result in enumerate(results):
        eqn = program.producer(result)
        if not whole[i] or finals[i] is not None or eqn is None or eqn.primitive.name != "max":
            continue
        others = [a for a in eqn.invars if a is not variables[i]]
        for j, step in enumerate(steps if len(others) == 1 else ()):
            offset = None if step is None or step < 0 else by(j, others[0])
            if offset is not None and step is not None:
                finals[i] = FinalValue(step * (count - 1) + offset, above=j)
                break
    return finals


def written(body: AnyJaxpr) -> frozenset[int]:
    """The loop variables that are arrays updated in part by each step."""
    jaxpr: AnyJaxpr = open_jaxpr(body)
    writes = {
        e.outvars[0]: e.invars[0] for e in jaxpr.eqns if e.primitive.name == "dynamic_update_slice"
    }
    pairs = enumerate(zip(jaxpr.invars, jaxpr.outvars, strict=True))
    return frozenset(
        i for i, (v, out) in pairs if not isinstance(out, Literal) and writes.get(out) is v
    )


def _follower(
    body: AnyJaxpr, known: Sequence[Sum | None], position: int, start: int | None
) -> Sum | None:
    """The induction variable of a size `max(size, index + 1)`."""
    if start is None:
        return None
    program = _Program(body, known)
    jaxpr = program.jaxpr
    result = jaxpr.outvars[position]
    eqn = program.producer(result)
    if eqn is None or eqn.primitive.name != "max":
        return None
    others = [a for a in eqn.invars if a is not jaxpr.invars[position]]
    end = program.line(others[0]) if len(others) == 1 else None
    if end is None or end.step <= 0 or end.constant - end.step != start:
        return None
    return line(start, end.step)


def largest(body: AnyJaxpr, known: Sequence[Sum | None], position: int, count: int) -> int | None:
    """An upper bound of a variable over `count` steps."""
    one = known[position]
    if one is not None:
        return max(one.at(0), one.at(count))
    program = _Program(body, known)
    variable, result = program.jaxpr.invars[position], program.jaxpr.outvars[position]
    bounds: list[int] = []
    pending = [result]
    while pending:
        atom = pending.pop()
        if atom is variable:
            continue
        one = program.line(atom)
        eqn = program.producer(atom)
        if one is not None:
            bounds.append(max(one.at(0), one.at(max(count - 1, 0))))
        elif eqn is not None and eqn.primitive.name == "max":
            pending.extend(eqn.invars)
        else:
            return None
    return max(bounds, default=None)


@dataclasses.dataclass(frozen=True)
class TripCount:
    """Number of steps of a loop: at most `bound`, exactly so if `exact`.

    For a part of the condition, the number of steps in a row in which it can hold. From step
    `lasting` on it never holds again.
    """

    bound: int | None
    exact: bool
    lasting: int | None = None


def _all_of(parts: Sequence[TripCount]) -> TripCount:
    """The trip count of a conjunction."""
    bound = min((p.bound for p in parts if p.bound is not None), default=None)
    lasting = min((p.lasting for p in parts if p.lasting is not None), default=None)
    never = any(p.exact and p.bound == 0 for p in parts)
    return TripCount(bound, never or all(p.exact for p in parts), lasting)


def _one_of(parts: Sequence[TripCount]) -> TripCount:
    """The trip count of a disjunction, whose true part may vary by step."""
    ends = [p.lasting for p in parts if p.lasting is not None]
    last = max(ends, default=0) if len(ends) == len(parts) else None
    return TripCount(last, all(p.exact and p.bound == p.lasting for p in parts), last)


_UNKNOWN = TripCount(None, False)


def count(
    condition: AnyJaxpr,
    known: Sequence[Sum | None],
    body: AnyJaxpr | None = None,
    starts: Sequence[Value] = (),
    outside: Outside = _nothing,
    within: int | None = None,
) -> TripCount:
    """The trip count of a condition: a closed jaxpr from variables to bool.

    **Arguments:**

    - `known`: the inductions of the variables.
    - `body`: the closed jaxpr of a step.
    - `starts`: initial values of the variables, if they are known numbers.
    - `outside`: returns the facts of a number from outside the loop, given the number and whether
        the values it is computed from may be assumed finite.
    - `within`: as for `bounds.derived`; a larger bound proves nothing then.
    """
    found = _Condition(_Program(condition, known, outside, within=within)).count()
    if found.exact or body is None:
        return dataclasses.replace(found, exact=found.exact and found.bound is not None)
    # After each step but the last, the condition holds. So a variable that increases unless the
    # loop ends is an induction as long as the loop runs.
    program = _Program(condition, known, outside, within=within)
    program.assume(program.jaxpr.outvars[0], True)
    holding = program.arguments()
    on = lines(body, starts, holding, within) if holding else known
    sums = _sums_of(body, starts, holding)
    states = [one if one is not None else two for one, two in zip(on, sums, strict=True)]
    after = _Program(body, states, outside, within=within)
    found = _Condition(_Program(condition, states, outside, within=within), after).count()
    return TripCount(found.bound, exact=False)


def open_count(
    condition: AnyJaxpr, known: Sequence[Sum | None], outside: Outside = _nothing
) -> DimSize | None:
    """The trip count if it is an open size; arguments as for `count`."""
    return _Condition(_Program(condition, known, outside)).open_count()


class _Condition:
    """The condition of a loop; `after` is a loop step, before which it holds."""

    def __init__(self, program: _Program, after: _Program | None = None):
        self._program, self._after = program, after

    def count(self) -> TripCount:
        (result,) = self._program.jaxpr.outvars
        program, atom = self._program.source(result)
        # A loop whose only bound is infinite never ends.
        self._program.finite = program.finite = self._has_one_bound(program, atom)
        return self._steps(self._program, result, True)

    def _has_one_bound(self, program: _Program, atom: Atom) -> bool:
        """Return whether an atom is a comparison, perhaps with a loop-invariant condition."""
        program, atom = program.source(atom)
        if isinstance(atom, Literal) or (eqn := program.producer(atom)) is None:
            return False
        if eqn.primitive.name == "and":
            one, two = eqn.invars
            return (program.is_outside(one) and self._has_one_bound(program, two)) or (
                program.is_outside(two) and self._has_one_bound(program, one)
            )
        if _is_choice(eqn) and program.is_outside(eqn.invars[0]):
            for taken in (False, True):
                if program.gives(eqn, atom, not taken) is False:
                    return self._has_one_bound(*program.way(eqn, atom, int(taken)))
        return eqn.primitive.name in _LESS

    def open_count(self) -> DimSize | None:
        """The trip count of counters whose start or bound is an open size."""
        steps = self._open_steps(self._program, self._program.jaxpr.outvars[0])
        return steps if steps is not None and is_open(steps) else None

    def _open_steps(self, program: _Program, atom: Atom) -> DimSize | None:
        """After how many steps an atom is false for good, if known."""
        program, atom = program.source(atom)
        eqn = program.producer(atom)
        if eqn is None:
            return None
        if eqn.primitive.name == "and":
            one, two = (self._open_steps(program, a) for a in eqn.invars)
            return None if one is None or two is None else min_dim(one, two)
        if eqn.primitive.name not in _LESS:
            return None
        swapped, strict = _LESS[eqn.primitive.name]
        low, high = (program.fact(a).equals for a in eqn.invars[:: -1 if swapped else 1])
        if low is None or high is None:
            return None
        ahead = low.plus(high, -1).plus(Sum(0 if strict else -1))
        if set(ahead.terms) != {STEP} or ahead.step <= 0:
            return None
        return max_dim(-(ahead.constant // ahead.step), 0)

    def _steps(self, program: _Program, atom: Atom, value: bool) -> TripCount:
        """How many steps in a row an atom has this truth value."""
        program, atom = program.source(atom)
        if isinstance(atom, Literal):
            return TripCount(None, True) if bool(atom.val) == value else TripCount(0, True, 0)
        eqn = program.producer(atom)
        name = eqn.primitive.name if eqn is not None else ""
        if eqn is None:
            return self._later(program, atom, value)
        if name == "not":
            return self._steps(program, eqn.invars[0], not value)
        if _is_index(eqn):
            return self._steps(program, eqn.invars[0], value)
        if name in ("and", "or"):
            parts = [self._steps(program, a, value) for a in eqn.invars]
            return _all_of(parts) if (name == "and") == value else _one_of(parts)
        if _is_choice(eqn):
            ways = []
            for taken in (False, True):
                if program.gives(eqn, atom, taken) is (not value):
                    continue
                chosen = self._steps(program, eqn.invars[0], taken)
                then = self._steps(*program.way(eqn, atom, int(taken)), value)
                ways.append(_all_of([chosen, then]))
            return _one_of(ways)
        if len(eqn.invars) != 2:
            return _UNKNOWN
        one, two = eqn.invars
        if name == "ne" if value else name == "eq":
            a, b = program.line(one), program.line(two)
            steps = None if a is None or b is None else _until_zero(a.plus(b, -1))
            return TripCount(steps, steps is not None)
        if name not in _LESS:
            return _UNKNOWN
        swapped, strict = _LESS[name]
        if swapped != (not value):
            one, two = two, one
        return _until_not_less(program, one, two, strict == value, value)

    def _later(self, program: _Program, atom: Atom, value: bool) -> TripCount:
        """How many steps in a row a variable keeps this truth value."""
        after = self._after
        if after is None or program is not self._program or atom not in program.jaxpr.invars:
            return _UNKNOWN
        result = after.jaxpr.outvars[list[Atom](program.jaxpr.invars).index(atom)]
        steps = _Condition(after)._steps(after, result, value)
        bound, last = (None if n is None else n + 1 for n in (steps.bound, steps.lasting))
        return TripCount(bound, False, last)


# Comparisons as `a < b` or `a <= b`: whether operands are swapped, whether it is strict.
_LESS = {"lt": (False, True), "gt": (True, True), "le": (False, False), "ge": (True, False)}


def _until_not_less(
    program: _Program, one: Atom, two: Atom, strict: bool, ordered: bool
) -> TripCount:
    """How long `one < two` holds, or `one <= two` if not `strict`.

    `ordered`: whether it is also false if either is NaN.
    """
    if jnp.issubdtype(one.aval.dtype, jnp.integer):
        a, b = program.fact(one), program.fact(two)
        dtype = one.aval.dtype
        if is_whole(a.low.constant, dtype) or is_whole(b.high.constant, dtype):
            return _UNKNOWN
        d = a.low.plus(b.high, -1).plus(Sum(0 if strict else -1))
        steps = _until_not_below(d)
        limits = jnp.iinfo(dtype)
        if steps and (a.low.at(steps) > limits.max or b.high.at(steps) < limits.min):
            return _UNKNOWN  # it wraps around before
        exact = a.line is not None and b.line is not None and steps is not None
        return TripCount(steps, exact, steps if d.step >= 0 else None)
    if not jnp.issubdtype(one.aval.dtype, jnp.floating):
        return _UNKNOWN
    rising, falling = program.sums(one), program.sums(two)
    low, high = program.number(one)[0], program.number(two)[1]
    literal = any(isinstance(program.source(a)[1], Literal) for a in (one, two))
    if not (ordered or program.finite or literal):
        return _UNKNOWN  # a computed value may be NaN
    steps = None
    if rising is not None and rising.step > 0 and math.isfinite(high):
        steps = rising.until(lambda v: v >= high if strict else v > high)
    elif falling is not None and falling.step < 0 and math.isfinite(low):
        steps = falling.until(lambda v: v <= low if strict else v < low)
    return TripCount(steps, False, steps)


def _until_not_below(d: Sum) -> int | None:
    """The first step in which `d < 0` fails."""
    if d.constant >= 0:
        return 0
    return -(d.constant // d.step) if d.step > 0 else None


def _until_zero(d: Sum) -> int | None:
    if d.constant == 0:
        return 0
    if d.step == 0 or d.constant % d.step or -d.constant // d.step < 0:
        return None
    return -d.constant // d.step
