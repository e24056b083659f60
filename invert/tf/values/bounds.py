"""Bounds and equalities of numbers computed at run time.

A fact about a number says what it equals, as a sum of other numbers, and its lower and upper bound.
So `x[i : i + 2]` has two rows for every `i`. A loop that counts up to a data-dependent number is
bounded by the largest value of that number, as in `tf.linalg.expm`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from jax import numpy as jnp
from jax.typing import DTypeLike

from invert._private.jax import is_tracer, made_by
from invert.ir import kinds
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Aval, Params, Value

# Shapes and indices are short vectors. A larger array has one fact for all elements.
_MOST = 16
# Maximum number of equations to search for a bound.
DEEPEST = 32

# The index of a loop step, from zero.
STEP = "step"


@dataclasses.dataclass(frozen=True)
class Sum:
    """A constant plus multiples of other numbers.

    **Arguments:**

    - `constant`: a number, which may be infinite, or an open size.
    - `terms`: the nonzero coefficients of the other numbers.
    """

    constant: Value
    terms: Mapping[Hashable, int] = dataclasses.field(default_factory=dict)

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        constant = self.constant + factor * other.constant
        if not is_open(constant) and math.isinf(constant):
            return Sum(constant)
        terms = dict(self.terms)
        for key, n in other.terms.items():
            terms[key] = terms.get(key, 0) + factor * n
        return Sum(constant, {k: n for k, n in terms.items() if n})

    def times(self, factor: int) -> Sum:
        return Sum(self.constant * factor, {k: n * factor for k, n in self.terms.items() if factor})

    @property
    def number(self) -> Value:
        """The constant value; `None` if it depends on data or on an open size."""
        return None if self.terms or is_open(self.constant) else self.constant

    # -- sums of constants and the loop step only

    @property
    def step(self) -> int:
        """The increment per loop step."""
        return self.terms.get(STEP, 0)

    def at(self, k: int) -> int:
        return self.constant + self.step * k

    @property
    def least(self) -> float:
        """The minimum over all steps."""
        return self.constant if self.step >= 0 else -math.inf

    @property
    def most(self) -> float:
        return self.constant if self.step <= 0 else math.inf


def line(start: Value, step: int) -> Sum:
    """`start + step * k`, for loop step `k`."""
    return Sum(start, {STEP: step} if step else {})


@dataclasses.dataclass(frozen=True)
class Fact:
    """Facts about a number.

    **Arguments:**

    - `low`, `high`: its bounds; sums of a number and multiples of `STEP` only. NaN is within any
        bounds.
    - `equals`: its value as a sum, if known. Sums of integers wrap around like the integers.
    """

    low: Sum
    high: Sum
    equals: Sum | None = None

    @classmethod
    def of(cls, equals: Sum) -> Fact:
        known = not is_open(equals.constant) and set(equals.terms) <= {STEP}
        return cls(equals, equals, equals) if known else cls(_LEAST, _MOST_OF_ALL, equals)

    @classmethod
    def between(cls, low: float, high: float) -> Fact:
        return cls(Sum(low), Sum(high), Sum(low) if low == high else None)

    @property
    def line(self) -> Sum | None:
        """Its value in each loop step."""
        return self.equals if self.equals is not None and self.low == self.equals else None

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and upper bound."""
        return self.low.least, self.high.most


_LEAST, _MOST_OF_ALL = Sum(-math.inf), Sum(math.inf)
# The lower bound of unknown integers of 32 bits and more.
_LEAST_OF_TYPES = 1 - 2**31

# One fact per element, in order; or a single fact for all elements.
Facts = Sequence[Fact]


def hull(facts: Facts) -> Fact:
    """The fact that holds for all elements of a nonempty array."""
    first = facts[0]
    if all(f == first for f in facts):
        return first
    ends = [f.ends for f in facts]
    return Fact(Sum(min(low for low, _ in ends)), Sum(max(high for _, high in ends)))


class OuterFacts:
    """Facts of numbers defined elsewhere, such as the variables of a loop.

    `asked`: whether a number without a fact was looked up.
    """

    def __init__(self, values: Sequence[Value], facts: Sequence[Fact | None]):
        self.asked = False
        self._found = {id(v): (v, f) for v, f in zip(values, facts, strict=True)}

    def __contains__(self, value: Value) -> bool:
        return id(value) in self._found

    def of(self, value: Value) -> Fact | None:
        found = self._found[id(value)][1]
        self.asked = self.asked or found is None
        return found


class _Reader:
    """Derives facts from traced equations.

    **Arguments:**

    - `finite`: whether numbers of unknown origin may be assumed finite.
    - `within`: see `derived`.
    """

    def __init__(
        self, given: Sequence[OuterFacts] = (), finite: bool = False, within: int | None = None
    ):
        self._assumed, self._finite, self._within = given, finite, within
        # Values are kept alive, so that their ids stay unique.
        self._seen: dict[int, tuple[Value, Facts]] = {}

    def facts(self, value: Value, depth: int = 0) -> Facts:
        if not is_tracer(value):
            return of_constant(value)
        if id(value) not in self._seen:
            self._seen[id(value)] = value, self._read(value, depth)
        return self._seen[id(value)][1]

    def _read(self, value: Value, depth: int) -> Facts:
        found: Facts | None = None
        for given in self._assumed:
            if value in given:
                fact = given.of(value)
                return named(value, [fact] if fact is not None else None, id(value), self._finite)
        made = made_by(value)
        if made is not None and depth <= DEEPEST:
            name, operands, params = made
            if name in kinds.MOVES:
                operands = operands[:1]
            if name in RULES:
                facts = [self.facts(x, depth + 1) for x in operands]
                found = derived(name, facts, operands, value, params, self._within)
        return named(value, found, id(value), self._finite)


def distance(low: Value, high: Value) -> DimSize | None:
    """`high - low` of two integers, if it does not depend on data."""
    reader = _Reader()
    a, b = (hull(reader.facts(x)).equals for x in (low, high))
    difference = None if a is None or b is None else b.plus(a, -1)
    return None if difference is None or difference.terms else difference.constant


def size_of(value: Value) -> DimSize | None:
    """The size or number that a traced scalar equals, if known."""
    while value.dtype.itemsize >= 4:  # narrower types round sizes, or wrap around
        if jnp.issubdtype(value.dtype, jnp.integer):
            return distance(np.int32(0), value)
        made = made_by(value)
        if made is None or made[0] != "convert_element_type":
            break
        (value,) = made[1]
    return None


def known(array: Value) -> np.ndarray | None:
    """The value of a short traced integer array that does not depend on data.

    An example is the size of a count whose minimum and maximum number of bins are equal.
    """
    if isinstance(array, np.ndarray):
        return array
    count = _count(array.shape)
    if count is None or count > _MOST or not jnp.issubdtype(array.dtype, jnp.integer):
        return None
    facts = _Reader().facts(array)
    numbers = [None if f.equals is None else f.equals.number for f in facts]
    if None in numbers:
        return None
    whole = numbers * count if len(numbers) == 1 else numbers
    return np.asarray(whole, array.dtype).reshape(array.shape)


def counts_up(indices: Value) -> bool:
    """Return whether indices are known to be 0, 1, 2 and so on, perhaps of an open length."""
    if isinstance(indices, np.ndarray):
        return np.array_equal(indices, np.arange(indices.size))
    made = made_by(indices)
    return made is not None and made[0] == "iota" and np.ndim(indices) == 1


def fact_of(
    number: Value,
    given: Sequence[OuterFacts] = (),
    *,
    finite: bool = False,
    within: int | None = None,
) -> Fact:
    """The fact about one number.

    **Arguments:**

    - `given`: facts of numbers without a definition, such as the variables of a loop.
    - `finite`: whether numbers of unknown origin may be assumed finite.
    - `within`: see `derived`.
    """
    return hull(_Reader(given, finite, within).facts(number))


def is_whole(end: float, dtype: DTypeLike) -> bool:
    """Return whether a bound carries no information: infinite, or that of its type."""
    return math.isinf(end) or end in _whole(dtype)


def of_constant(value: Value) -> Facts:
    """Facts of a constant array."""
    if is_open(value):
        return [Fact.of(Sum(value))]
    x = np.asarray(value)
    if x.dtype == object:
        if 0 < x.size <= _MOST and all(is_open(d) or isinstance(d, int) for d in x.ravel()):
            return [Fact.of(Sum(d)) for d in x.ravel().tolist()]
        return [Fact(_LEAST, _MOST_OF_ALL)]
    if x.dtype != object and jnp.issubdtype(x.dtype, jnp.integer) and 0 < x.size <= _MOST:
        return [Fact.of(Sum(n)) for n in x.ravel().tolist()]
    numbers = jnp.issubdtype(x.dtype, jnp.number) or x.dtype == np.bool_
    if not numbers or jnp.iscomplexobj(x) or not x.size:
        return [Fact(_LEAST, _MOST_OF_ALL)]
    low, high = float(x.min()), float(x.max())
    if math.isnan(low) or math.isnan(high):
        return [Fact(_LEAST, _MOST_OF_ALL)]
    if jnp.issubdtype(x.dtype, jnp.integer):
        return [Fact.between(int(x.min()), int(x.max()))]
    return [Fact(Sum(low), Sum(high))]


def _count(shape: Sequence[DimSize]) -> int | None:
    """The number of elements; `None` if open."""
    return math.prod(shape) if all(isinstance(n, int) for n in shape) else None


def _terms(aval: Aval, params: Params) -> int | None:
    """The number of terms of a sum over axes; `None` if open."""
    return _count([aval.shape[axis] for axis in params["axes"]])


def named(aval: Aval, facts: Facts | None, symbol: Hashable, finite: bool = False) -> Facts:
    """Facts of a traced array; integers not known to equal a sum become symbols.

    **Arguments:**

    - `facts`: facts from its equation; `None` if there are none.
    - `symbol`: represents the array in sums.
    """
    low, high = map(Sum, _whole(aval.dtype, finite))
    facts = facts or [Fact(low, high)]
    count = _count(aval.shape)
    if count is None or not 0 < count <= _MOST or not jnp.issubdtype(aval.dtype, jnp.integer):
        return facts if len(facts) == 1 else [hull(facts)]
    if len(facts) == 1 and facts[0].equals is None:
        facts = [*facts] * count
    return [
        f if f.equals is not None else dataclasses.replace(f, equals=Sum(0, {(symbol, i): 1}))
        for i, f in enumerate(facts)
    ]


def derived(
    name: str,
    operands: Sequence[Facts],
    avals: Sequence[Aval],
    result: Aval,
    params: Params,
    within: int | None = None,
) -> Facts | None:
    """Facts of an equation's result; `None` if its type implies them.

    **Arguments:**

    - `name`: its primitive, one of `RULES`.
    - `avals`: the operands or their types; `result`: that of the result.
    - `within`: facts hold in the first `within` steps for all inputs. By default, integers of 32
        bits and more are assumed not to wrap around.
    """
    found = RULES[name](_Equation(name, operands, avals, result, params, within))
    if not found:
        return None
    spare = 0.0
    if name in _ROUNDED and jnp.issubdtype(result.dtype, jnp.floating):
        # At open sizes, the bounds of a sum are zero and infinity.
        terms = _terms(avals[0], params) if name == "reduce_sum" else 1
        spare = _rounding(result.dtype, terms or 1)
    facts = [_of_type(f, result.dtype, spare, within) for f in found]
    count = _count(result.shape)
    return facts if len(facts) in (1, count) else [hull(facts)]


def _rounding(dtype: DTypeLike, terms: int) -> float:
    """The largest relative error of a bound.

    That of a sum is at most n u / (1 - n u) times the sum of the absolute values of its n terms, in
    any order, where u is half a unit in the last place (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2). If a bound is reached, all terms have its sign.
    """
    eps = float(jnp.finfo(dtype).eps)
    part = terms * eps / 2
    return max(8 * eps, part / (1 - part)) if part < 1 else math.inf


def _of_type(fact: Fact, dtype: DTypeLike, spare: float, within: int | None) -> Fact:
    """A fact with the relative error `spare`, limited to a result type."""
    low, high = fact.low, fact.high
    least, most = _whole(dtype)
    unknown = Fact(Sum(least), Sum(most))
    if any(not is_open(x.constant) and math.isnan(x.constant) for x in (low, high)):
        return unknown
    if jnp.issubdtype(dtype, jnp.integer):
        number = None if fact.equals is None else fact.equals.number
        if number is not None:
            return Fact.of(Sum((number - least) % (most - least + 1) + least))
        fits = within is None or (
            min(low.at(0), low.at(within)) >= least and max(high.at(0), high.at(within)) <= most
        )
        if fact.line is not None and fits:
            return fact
        # Integers that are too large wrap around.
        if low.constant < least or high.constant > most or not fits:
            return dataclasses.replace(unknown, equals=fact.equals)
        low = dataclasses.replace(low, constant=math.floor(low.constant))
        high = dataclasses.replace(high, constant=math.ceil(high.constant))
        equals = low if not low.terms and low == high else fact.equals
        return Fact(low, high, equals)
    if spare:
        low, high = (Sum(x) for x in (low.least, high.most))
        low = Sum(low.constant - abs(low.constant) * spare) if low.constant else low
        high = Sum(high.constant + abs(high.constant) * spare) if high.constant else high
    return Fact(Sum(max(low.least, least)), Sum(min(high.most, most)))


def _whole(dtype: DTypeLike, finite: bool = False) -> tuple[float, float]:
    """The range of a type."""
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return int(limits.min), int(limits.max)
    if jnp.issubdtype(dtype, jnp.floating) and finite:
        largest = float(jnp.finfo(dtype).max)
        return -largest, largest
    return (0.0, 1.0) if dtype == np.bool_ else (-math.inf, math.inf)


# -- what primitives do


@dataclasses.dataclass(frozen=True)
class _Equation:
    name: str
    operands: Sequence[Facts]
    avals: Sequence[Aval]
    result: Aval
    params: Params
    within: int | None

    @property
    def hulls(self) -> list[Fact]:
        return [hull(facts) for facts in self.operands]


_Rule = Callable[[_Equation], Facts | None]


def _elementwise(rule: Callable[..., Fact]) -> _Rule:
    def run(eqn: _Equation) -> Facts:
        count = max(map(len, eqn.operands))
        if any(len(facts) not in (1, count) for facts in eqn.operands):
            return [rule(*eqn.hulls)]
        columns = [[*f] * count if len(f) == 1 else f for f in eqn.operands]
        return [rule(*column) for column in zip(*columns, strict=True)]

    return run


def _on_ends(rule: Callable[..., tuple[float, float]]) -> _Rule:
    """A rule on the bounds of each operand."""

    def run(*facts: Fact) -> Fact:
        low, high = rule(*(f.ends for f in facts))
        return Fact(Sum(low), Sum(high))

    return _elementwise(run)


def _add(x: Fact, y: Fact) -> Fact:
    equals = None if x.equals is None or y.equals is None else x.equals.plus(y.equals)
    if equals is not None and Fact.of(equals).line is not None:
        return Fact.of(equals)
    return Fact(x.low.plus(y.low), x.high.plus(y.high), equals)


def _negative(x: Fact) -> Fact:
    equals = None if x.equals is None else x.equals.times(-1)
    return Fact(x.high.times(-1), x.low.times(-1), equals)


def _larger(x: Fact, y: Fact, *, wraps: bool) -> Fact:
    # If sums of unknown numbers wrap around, their difference does not order them.
    ordered = not wraps or (x.line is not None and y.line is not None)
    if ordered and x.equals is not None and y.equals is not None:
        ahead = x.equals.plus(y.equals, -1).number
        if ahead is not None:
            return x if ahead >= 0 else y
    # Each is a lower bound of the maximum; the one that grows faster is better. An infinite one is
    # not a bound.
    lows = sorted((x.low, y.low), key=lambda s: s.constant <= _LEAST_OF_TYPES)
    low = lows[0]
    if lows[1].constant > _LEAST_OF_TYPES:
        low = max(lows, key=lambda s: (s.step, s.constant))
    level = x.high.step == y.high.step
    high = max(x.high, y.high, key=lambda s: s.constant) if level else _MOST_OF_ALL
    return Fact(low, high)


def _smaller(x: Fact, y: Fact, *, wraps: bool) -> Fact:
    return _negative(_larger(_negative(x), _negative(y), wraps=wraps))


def _clamped(low: Fact, x: Fact, high: Fact, *, wraps: bool) -> Fact:
    return _smaller(_larger(x, low, wraps=wraps), high, wraps=wraps)


def _ordering(rule: Callable[..., Fact]) -> _Rule:
    def run(eqn: _Equation) -> Facts | None:
        return _elementwise(functools.partial(rule, wraps=eqn.within is not None))(eqn)

    return run


def _product(x: Fact, y: Fact) -> Fact:
    for one, other in ((x.equals, y.equals), (y.equals, x.equals)):
        if one is not None and other is not None and one.number is not None:
            fact = Fact.of(other.times(one.number))
            if fact.line is not None:
                return fact
            low, high = _corners(x.ends, y.ends)
            return Fact(Sum(low), Sum(high), fact.equals)
    low, high = _corners(x.ends, y.ends)
    return Fact(Sum(low), Sum(high))


def _corners(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    corners = [a * b for a in x for b in y]
    is_known = all(not math.isnan(c) for c in corners)
    return (min(corners), max(corners)) if is_known else (-math.inf, math.inf)


def _quotient(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    if y[0] <= 0 <= y[1]:
        return -math.inf, math.inf
    return _corners(x, (1 / y[1], 1 / y[0]))


def _log(x: tuple[float, float]) -> tuple[float, float]:
    def of(end: float) -> float:
        if end <= 0:
            return -math.inf
        return math.log(end) if math.isfinite(end) else end

    return of(x[0]), of(x[1])


def _rounded(to: Callable[[float], float]) -> _Rule:
    def rule(x: tuple[float, float]) -> tuple[float, float]:
        low, high = (to(a) if math.isfinite(a) else a for a in x)
        return low, high

    return _on_ends(rule)


def _converted(eqn: _Equation) -> Facts:
    """Convert to another type; NaN may become any integer.

    Integers of less than 32 bits may wrap around. If the facts must hold for all inputs, larger
    ones may too, and the value in a wider type then differs from the sum.
    """
    to, source = eqn.result.dtype, eqn.avals[0].dtype
    facts = eqn.operands[0]
    if jnp.issubdtype(source, jnp.integer) and jnp.issubdtype(to, jnp.integer):
        if min(to.itemsize, source.itemsize) >= 4 and (
            eqn.within is None or to.itemsize <= source.itemsize
        ):
            return facts
        if eqn.within is not None:
            return [f if f.line is not None else Fact.between(*f.ends) for f in facts]
        return [Fact.between(*f.ends) for f in facts]
    if not (jnp.issubdtype(to, jnp.integer) and jnp.issubdtype(source, jnp.floating)):
        return [Fact(f.low, f.high) for f in facts]
    least = int(jnp.iinfo(to).min)
    tops = (f.ends[1] for f in facts)
    return [Fact(Sum(least), Sum(max(math.trunc(t) if math.isfinite(t) else t, 0))) for t in tops]


def _same_order(eqn: _Equation) -> Facts:
    facts = eqn.operands[0]
    return facts if len(facts) in (1, _count(eqn.result.shape)) else [hull(facts)]


def _some(eqn: _Equation) -> Facts:
    """Elements of the first operand, such as the maximum along an axis."""
    return [hull(eqn.operands[0])]


def _sliced(eqn: _Equation) -> Facts:
    facts = eqn.operands[0]
    if len(facts) == 1 or len(eqn.avals[0].shape) != 1:
        return [hull(facts)]
    p = eqn.params
    (start,), (stop,), steps = p["start_indices"], p["limit_indices"], p["strides"]
    return facts[start : stop : 1 if steps is None else steps[0]]


def _joined(eqn: _Equation) -> Facts:
    # Vectors, or scalars that are broadcast to one.
    counts = [_count(x.shape) for x in eqn.avals if len(x.shape) <= 1]
    whole = [n for n in counts if n is not None]
    if len(whole) < len(eqn.avals) or sum(whole) > _MOST:
        return [hull(eqn.hulls)]
    pairs = zip(eqn.operands, whole, strict=True)
    return [f for facts, n in pairs for f in (facts if len(facts) == n else [*facts] * n)]


def _added_up(eqn: _Equation) -> Facts:
    low, high = hull(eqn.operands[0]).ends
    count = _terms(eqn.avals[0], eqn.params)
    if count is None:
        return [Fact(Sum(-math.inf if low < 0 else 0.0), Sum(math.inf if high > 0 else 0.0))]
    low, high = _corners((low, high), (count, count)) if count else (0.0, 0.0)
    return [Fact(Sum(low), Sum(high))]


def _chosen(which: Fact, *cases: Fact) -> Fact:
    return hull(cases)


_ROUNDED = frozenset(("add", "convert_element_type", "div", "log", "mul", "reduce_sum", "sub"))
RULES: dict[str, _Rule] = {
    **dict.fromkeys(kinds.MOVES | {"reduce_max", "reduce_min"}, _some),
    # A transpose reorders the elements.
    **dict.fromkeys(kinds.LAYOUT - {"transpose"} | {"copy"}, _same_order),
    "abs": _on_ends(lambda x: (max(x[0], -x[1], 0), max(-x[0], x[1]))),
    "add": _elementwise(_add),
    "ceil": _rounded(math.ceil),
    "clamp": _ordering(_clamped),
    "concatenate": _joined,
    "convert_element_type": _converted,
    "dim_as_value": lambda eqn: [Fact.of(Sum(eqn.params["dim"]))],
    "div": _on_ends(_quotient),
    "floor": _rounded(math.floor),
    "log": _on_ends(_log),
    "max": _ordering(_larger),
    "min": _ordering(_smaller),
    "mul": _elementwise(_product),
    "neg": _elementwise(_negative),
    "reduce_sum": _added_up,
    "select_n": _elementwise(_chosen),
    "sign": _on_ends(lambda x: ((x[0] > 0) - (x[0] < 0), (x[1] > 0) - (x[1] < 0))),
    "slice": _sliced,
    "stack": _joined,
    "sub": _elementwise(lambda x, y: _add(x, _negative(y))),
}
