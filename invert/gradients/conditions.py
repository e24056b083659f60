"""Conditions that only one of two gradients has, and whether samples covered both outcomes.

Two programs that agree on samples may differ beyond a condition that no sample met, such as a norm
at which a rule clips, or a number of steps. Programs that compare the same numbers with what
depends on the same arguments have that condition in common.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import constants_as_arguments, consts_of, open_jaxpr, sub_jaxprs
from invert.ir import kinds
from invert.ir.interpret import bind, interpret
from invert.ir.jaxprs import equations
from invert.ir.loops import CondParts, ScanParts, WhileParts, while_loop_of
from invert.ir.sizes import DimSize
from invert.ir.substitution import sizes_read, unreached
from invert.ir.types import AnyJaxpr, Eqn, Jaxpr, Literal, Value

# What is compared, and with what: numbers, or the positions of arguments.
Condition: TypeAlias = tuple[str, frozenset[Hashable]]
# Whether one and the other outcome occurred.
Outcomes: TypeAlias = tuple[Value, Value]
# The results of a program, and the outcomes of its conditions by their places.
Watched: TypeAlias = tuple[list[Value], dict[Hashable, Outcomes]]

_ORDERS = frozenset(("lt", "le", "gt", "ge", "max", "min", "clamp"))
_EQUALITIES = frozenset(("eq", "ne"))
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "is_finite"))
# Casts from floats to integers round as well.
_ROUNDINGS = frozenset(("round", "floor", "ceil", "convert_element_type"))
# These keep part of a number: quotients and bits of integers, and remainders.
_PARTS = frozenset(("div", "rem", "shift_right_arithmetic", "shift_right_logical", "and", "or"))
_LOOKUPS = frozenset(("gather", "dynamic_slice"))
# Conditions that samples cannot show to be met.
_UNSEEN = frozenset(("lookup", "factor"))
# A comparison of booleans: the comparisons that made them decide it. It keeps a place in the list,
# since a size may be 0 or 1 in one choice of sizes and not in another.
_OF_BOOLS: Condition = "bools", frozenset()
# Comparisons of numbers in 32 bits allow for larger factors.
_CLOSE_TO_ONE = 1e-3
# Roundings that change a value by less may not show in the results.
_VISIBLE = 1e-2
# The same numbers in another shape or type.
_SAME_NUMBERS = frozenset(("broadcast_in_dim", "reshape", "convert_element_type", "copy"))
# Primitives that only move numbers, and the operands that hold these.
_MOVED = {
    **dict.fromkeys(("and", "or", "max", "min", "clamp", "select_n"), slice(None)),
    **dict.fromkeys((*_SAME_NUMBERS, "dynamic_slice", "slice", "squeeze", "transpose"), slice(1)),
    "dynamic_update_slice": slice(2),
}
_LOOPS = frozenset(("scan", "while", "cond"))
# Larger arrays are unlikely to be bounds, and copies of them take memory.
_MAX_NUMBERS = 1 << 12
# Sizes are assumed to be smaller.
_LARGEST_SIZE = frozenset((np.iinfo(np.int32).max,))


class Conditions:
    """The conditions that only one of two programs has.

    A rounding counts as met where it changes a value visibly and its result is not always zero; a
    quotient, remainder or part of the bits where it is neither zero nor the whole number. What
    samples do not show counts as not met: which numbers integers choose, and factors close to one,
    which may hide in roundings. A condition whose outcome no argument changes, such as that of a
    counter, does not count, nor does one of a number that a comparison made, such as the index of a
    branch. Outcomes inside of primitives other than loops, branches and calls are not observed:
    thresholds there count as not met.
    """

    def __init__(self) -> None:
        # By position, since the programs are added once for each choice of their open sizes.
        self._met: dict[Hashable, Outcomes] = {}

    def add(
        self, programs: Sequence[AnyJaxpr], is_open: bool
    ) -> list[Callable[[Sequence[Value]], Watched]]:
        """Add the conditions of two programs; return functions that run and watch them.

        Outside of loops, numbers that are compared with numbers count if `is_open`, as they may be
        sizes.
        """
        found = [_Search(is_open).sites(p) for p in programs]
        kinds = [{c for site in sites for c in site.all()} for sites in found]
        runs = []
        for i, (program, sites) in enumerate(zip(programs, found, strict=True)):
            places: list[Hashable] = []
            own = _only(sites, kinds[1 - i], (i,), places)
            self._met |= {p: (False, False) for p in places if p not in self._met}
            runs.append(functools.partial(_watched, program, own, places))
        return runs

    def add_sizes(
        self, programs: Sequence[AnyJaxpr], chosen: Sequence[Mapping[str, DimSize]]
    ) -> None:
        """Add the sizes of one of two programs that behave otherwise at larger values."""
        one, two = ({str(n) for n in unreached(sizes_read(p), chosen)} for p in programs)
        self._met |= dict.fromkeys(one ^ two, (False, False))

    def met(self, outcomes: Mapping[Hashable, Outcomes]) -> None:
        """Add the outcomes of a run."""
        for place, new in outcomes.items():
            old = self._met[place]
            self._met[place] = old[0] or bool(new[0]), old[1] or bool(new[1])

    @property
    def are_met(self) -> bool:
        """Whether samples covered both outcomes of each."""
        return all(map(all, self._met.values()))


class _Fact(NamedTuple):
    """A value's number, if it is one, and the arguments that it depends on.

    `is_bool` is whether it is the outcome of comparisons, or a number made of one, as an index of
    branches is.
    """

    number: Hashable = None
    inputs: frozenset[int] = frozenset()
    is_bool: bool = False

    @property
    def key(self) -> Hashable:
        return self.inputs if self.number is None else self.number

    def depending_on(self, other: _Fact) -> _Fact:
        is_bool = self.is_bool and other.is_bool
        return self._replace(inputs=self.inputs | other.inputs, is_bool=is_bool)

    def of_row(self) -> _Fact:
        return self._replace(number=None) if isinstance(self.number, bytes) else self


def _either(*facts: _Fact) -> _Fact:
    """The fact for a value that is one of several."""
    numbers = {fact.number for fact in facts}
    number = numbers.pop() if len(numbers) == 1 else None
    return _Fact(number, _inputs(facts), _are_bools(facts))


def _are_bools(facts: Sequence[_Fact]) -> bool:
    return all(fact.is_bool or fact.number in (0, 1) for fact in facts)


def _inputs(facts: Sequence[_Fact]) -> frozenset[int]:
    return frozenset[int]().union(*(fact.inputs for fact in facts))


@dataclasses.dataclass(frozen=True)
class _Site:
    """An equation that has conditions, or whose programs do."""

    eqn: Eqn
    conditions: Sequence[Condition]
    bodies: Sequence[Sequence[_Site]]

    def all(self) -> Iterator[Condition]:
        """Its conditions and those inside."""
        yield from self.conditions
        for body in self.bodies:
            for site in body:
                yield from site.all()


@dataclasses.dataclass(frozen=True)
class _Search:
    """Finds the conditions of a program."""

    is_open: bool

    def sites(self, program: AnyJaxpr) -> list[_Site]:
        """The equations of a program with conditions."""
        inputs = open_jaxpr(program).invars
        return self._of(program, [_Fact(None, frozenset((i,))) for i in range(len(inputs))])[0]

    def _of(
        self, program: AnyJaxpr, facts: Sequence[_Fact], in_loop: bool = False
    ) -> tuple[list[_Site], list[_Fact]]:
        """The equations with conditions, and the facts for the results."""
        sites: list[_Site] = []

        def on_eqn(eqn: Eqn, given: list[_Fact]) -> list[_Fact]:
            bodies, results = self._inside(eqn, given, in_loop)
            found = self._conditions(eqn, given, in_loop)
            if found or any(bodies):
                sites.append(_Site(eqn, found, bodies))
            return results

        known = [_Fact(_number(c)) for c in consts_of(program)]
        jaxpr = constants_as_arguments(open_jaxpr(program))
        return sites, interpret(jaxpr, [*known, *facts], on_eqn, _of_literal)

    def _inside(
        self, eqn: Eqn, given: list[_Fact], in_loop: bool
    ) -> tuple[list[list[_Site]], list[_Fact]]:
        """The equations with conditions in each program of an equation, and its results."""
        name = eqn.primitive.name
        if name == "scan":
            parts = ScanParts.of(eqn)
            consts, init, xs = map(list, parts.split(given))
            rows = [x.of_row() for x in xs]
            while True:
                sites, results = self._of(parts.body, [*consts, *init, *rows], True)
                if (carry := list(map(_either, init, results))) == init:
                    return [sites], [*init, *(y.of_row() for y in results[len(init) :])]
                init = carry
        if name == "while":
            loop = WhileParts.of(eqn)
            cond_consts, body_consts, init = map(list, loop.split(given))
            while True:
                tests, (test,) = self._of(loop.cond, [*cond_consts, *init], True)
                sites, results = self._of(loop.body, [*body_consts, *init], True)
                after = [r.depending_on(test) for r in results]
                carry = list(map(_either, init, after))
                if carry == init:
                    return [tests, sites], init
                init = carry
        if name == "cond":
            index, *operands = given
            made = [self._of(b, operands, in_loop) for b in CondParts.of(eqn).branches]
            joined = [_either(*facts) for facts in zip(*(r for _, r in made), strict=True)]
            return [sites for sites, _ in made], [fact.depending_on(index) for fact in joined]
        if (called := kinds.called(eqn)) is not None:
            sites, results = self._of(called, given, in_loop)
            return [sites], results
        number = given[0].number if name in _SAME_NUMBERS else None
        return [], [_Fact(number, _inputs(given), _makes_bools(eqn, given))] * len(eqn.outvars)

    def _conditions(self, eqn: Eqn, given: Sequence[_Fact], in_loop: bool) -> list[Condition]:
        if eqn.primitive.name in _LOOPS or kinds.called(eqn) is not None:
            return []
        if inner := list(sub_jaxprs(eqn)):
            return [c for jaxpr in inner for c in _thresholds(jaxpr)]
        counts = (self.is_open and not in_loop) or any(fact.inputs for fact in given)
        if not counts or _LARGEST_SIZE & {fact.number for fact in given}:
            return []
        is_made = any(fact.is_bool for fact in given) and _are_bools(given)
        if is_made and eqn.primitive.name in _ORDERS:
            return [_OF_BOOLS]
        keys = [fact.key for fact in given]
        if _looks_up(eqn, given):
            return [("lookup", frozenset(keys))]
        return _of(eqn, keys)


def _makes_bools(eqn: Eqn, given: Sequence[_Fact]) -> bool:
    """Return whether an equation compares, or computes with booleans and integers made of them."""
    name = eqn.primitive.name
    if name in _MOVED:
        return _are_bools(given[_MOVED[name]])
    is_bool = all(v.aval.dtype == np.bool_ for v in eqn.outvars)
    return is_bool and (name in _COMPARISONS or _are_bools(given))


def _looks_up(eqn: Eqn, given: Sequence[_Fact]) -> bool:
    """Return whether integers choose among numbers, as in `table[i]` and `jax.nn.one_hot(i, n)`."""
    name = eqn.primitive.name
    if name in _LOOKUPS:
        return _is_many(given[0]) and any(fact.inputs for fact in given[1:])
    return (
        name in _EQUALITIES
        and any(fact.inputs for fact in given)
        and any(
            _is_many(fact) and a.aval.shape and jnp.issubdtype(a.aval.dtype, jnp.integer)
            for a, fact in zip(eqn.invars, given, strict=True)
        )
    )


def _is_many(fact: _Fact) -> bool:
    """Return whether the elements of a value that depends on no argument may differ."""
    return not fact.inputs and not isinstance(fact.number, (int, float))


def _of_literal(literal: Literal) -> _Fact:
    return _Fact(_number(literal.val))


def _number(x: Value) -> Hashable:
    """A key that ignores type and shape; `None` for large arrays."""
    if np.size(x) > _MAX_NUMBERS:
        return None
    x = np.asarray(x)
    first = x.ravel()[:1]
    return first.tolist()[0] if x.size and (x == first).all() else x.tobytes()


def _thresholds(jaxpr: Jaxpr) -> Iterator[Condition]:
    """Comparisons of floating-point values with numbers but zero, whose sides samples cover."""
    for eqn in equations(jaxpr):
        numbers = [_number(a.val) if isinstance(a, Literal) else None for a in eqn.invars]
        is_float = any(jnp.issubdtype(a.aval.dtype, jnp.inexact) for a in eqn.invars)
        if is_float and not {0.0, None}.issuperset(numbers):
            yield from _of(eqn, numbers)


def _of(eqn: Eqn, given: list[Hashable]) -> list[Condition]:
    name = eqn.primitive.name
    if name in _ORDERS:
        return [("order", frozenset(pair)) for pair in pairwise(given)]
    if name == "sign":
        return [("order", frozenset((*given, 0)))]
    if name in _EQUALITIES:
        same = "itself" if eqn.invars[0] is eqn.invars[1] else None
        if same and not jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact):
            return []  # always equal
        return [("equality", frozenset((*given, same)))]
    if _rounds(eqn):
        return [("rounding", frozenset(given))]
    if _takes_part(eqn):
        return [("part", frozenset(given))]
    if name == "mul" and any(map(_is_close_to_one, given)):
        return [("factor", frozenset(filter(_is_close_to_one, given)))]
    return [("finite", frozenset())] if name == "is_finite" else []


def _rounds(eqn: Eqn) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return eqn.primitive.name in _ROUNDINGS
    old, new = (v.aval.dtype for v in (*eqn.invars, *eqn.outvars))
    return jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.integer)


def _is_close_to_one(number: Hashable) -> bool:
    return isinstance(number, float) and 0 < abs(abs(number) - 1) < _CLOSE_TO_ONE


def _takes_part(eqn: Eqn) -> bool:
    is_integer = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer)
    name = eqn.primitive.name
    return name == "rem" or (is_integer and name in _PARTS)


@dataclasses.dataclass(frozen=True)
class _Own:
    """A site of conditions that only one program has: their indices, by positions."""

    indices: Mapping[int, int]
    bodies: Sequence[Mapping[Eqn, _Own]]


def _only(
    sites: Sequence[_Site],
    common: Container[Condition],
    place: tuple[int, ...],
    places: list[Hashable],
) -> dict[Eqn, _Own]:
    """The sites with conditions that are not in `common`, whose places are added to `places`."""
    found: dict[Eqn, _Own] = {}
    for n, site in enumerate(sites):
        here = (*place, n)
        bodies = [_only(body, common, (*here, i), places) for i, body in enumerate(site.bodies)]
        indices: dict[int, int] = {}
        for k, condition in enumerate(site.conditions):
            if condition not in common and condition != _OF_BOOLS:
                if condition[0] not in _UNSEEN:
                    indices[k] = len(places)
                places.append((*here, k))
        if indices or any(bodies):
            found[site.eqn] = _Own(indices, bodies)
    return found


def _watched(
    program: AnyJaxpr,
    own: Mapping[Eqn, _Own],
    places: Sequence[Hashable],
    values: Sequence[Value],
) -> Watched:
    """The results of a program, and the outcomes of its conditions by their places."""
    met = [jnp.zeros((), bool)] * (2 * len(places))
    results = _run(program, own, values, met)
    return results, dict(zip(places, zip(met[::2], met[1::2], strict=True), strict=True))


def _run(
    program: AnyJaxpr, own: Mapping[Eqn, _Own], values: Sequence[Value], met: list[Value]
) -> list[Value]:
    """Run a program, and add the outcomes of its conditions to `met`, two for each."""

    def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        if (site := own.get(eqn)) is None:
            return bind(eqn, operands)
        for k, (one, other) in enumerate(_outcomes(eqn, operands)):
            if (i := site.indices.get(k)) is not None:
                met[2 * i] |= one
                met[2 * i + 1] |= other
        return _run_inside(eqn, site, operands, met) if any(site.bodies) else bind(eqn, operands)

    return interpret(program, values, on_eqn)


def _run_inside(eqn: Eqn, site: _Own, operands: list[Value], met: list[Value]) -> Sequence[Value]:
    """As `_run`, for the programs of a call, a branch or a loop."""
    name = eqn.primitive.name
    if name == "cond":
        index, *operands = operands

        def branch(program: AnyJaxpr, own: Mapping[Eqn, _Own], operands: list[Value]) -> Value:
            found = list(met)
            return _run(program, own, operands, found), found

        pairs = zip(CondParts.of(eqn).branches, site.bodies, strict=True)
        runs = [functools.partial(branch, *pair) for pair in pairs]
        results, met[:] = lax.switch(index.astype(np.int32), runs, operands)
        return results
    if name == "scan":
        scan = ScanParts.of(eqn)
        consts, init, xs = scan.split(operands)

        def step(carry: Value, rows: Sequence[Value]) -> Value:
            values, found = carry
            results = _run(scan.body, site.bodies[0], [*consts, *values, *rows], found)
            return (results[: len(init)], found), results[len(init) :]

        options = {name: eqn.params[name] for name in ("length", "reverse")}
        (carry, met[:]), ys = lax.scan(step, (list(init), list(met)), list(xs), **options)
        return [*carry, *ys]
    if name == "while":
        loop = WhileParts.of(eqn)
        cond_consts, body_consts, init = loop.split(operands)

        def test(values: Sequence[Value], found: list[Value]) -> Value:
            return _run(loop.cond, site.bodies[0], [*cond_consts, *values], found)

        def again(state: Sequence[Value]) -> Sequence[Value]:
            found = list(state[len(init) :])
            values = _run(loop.body, site.bodies[1], [*body_consts, *state[: len(init)]], found)
            test(values, found)
            return [*values, *found]

        test(init, met)
        state = while_loop_of(lambda s: test(s[: len(init)], list(met)), again, [*init, *met])
        met[:] = state[len(init) :]
        return state[: len(init)]
    return _run(eqn.params[kinds.CALLS[name]], site.bodies[0], operands, met)


def _outcomes(eqn: Eqn, operands: Sequence[Value]) -> Iterator[Outcomes]:
    """Both outcomes of each condition of an equation."""
    name = eqn.primitive.name
    if name in _ORDERS:
        for a, b in pairwise(operands):
            # Results that are not finite are not compared.
            is_finite = jnp.isfinite(a) & jnp.isfinite(b)
            yield jnp.any((a < b) & is_finite), jnp.any((a > b) & is_finite)
    elif name == "sign":
        (x,) = operands
        yield jnp.any((x < 0) & jnp.isfinite(x)), jnp.any((x > 0) & jnp.isfinite(x))
    elif _rounds(eqn):
        (x,) = operands
        change = jnp.abs(bind(eqn, [x])[0].astype(x.dtype) - x)
        is_visible = change > _VISIBLE * jnp.max(jnp.abs(x), initial=0)
        yield jnp.any(is_visible), jnp.any((jnp.abs(x) >= 1) & jnp.isfinite(x))
    elif _takes_part(eqn):
        (part,) = bind(eqn, operands)
        yield jnp.any(part != 0), jnp.any(part != operands[0])
    elif name in _EQUALITIES or name == "is_finite":
        is_so = jnp.isfinite(operands[0]) if name == "is_finite" else jnp.equal(*operands)
        yield jnp.any(is_so), ~jnp.all(is_so)
