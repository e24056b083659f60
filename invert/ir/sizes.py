"""Sizes of open dimensions: numbers, or JAX's dimension expressions.

A program with open dimensions is one jaxpr whose shapes and parameters hold expressions.
`listening` collects the names and constraints of its dimensions that are recorded during tracing.
"""

from __future__ import annotations

import bisect
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np

from invert._errors import SignatureError
from invert._private.jax import (
    DimExpr,
    InconclusiveDimensionOperation,
    dim_terms,
    explicit_constraints,
    from_nowhere,
    max_dim,
    min_dim,
    size_as_value,
)
from invert._private.jax import DimSize as DimSize
from invert.ir.types import Value

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Shape = tuple[DimSize, ...]


def is_open(size: object) -> TypeIs[DimExpr]:
    """Return whether a size is an expression of open dimensions."""
    return isinstance(size, DimExpr)


def scope(constraints: Sequence[str] = ()) -> jax.export.SymbolicScope:
    """The scope of dimensions under given constraints, shared by all programs with the same.

    A scope is immutable, so programs and templates may share it.
    """
    return _scope(tuple(constraints))


@functools.lru_cache(maxsize=256)
def _scope(constraints: tuple[str, ...]) -> jax.export.SymbolicScope:
    with from_nowhere():  # one scope serves many callers
        return jax.export.SymbolicScope(constraints)


def parsed(shape: Iterable[int | str], of: jax.export.SymbolicScope) -> Shape:
    """Parse the names and expressions in a shape."""
    return tuple(n if isinstance(n, int) else _parsed(n, of) for n in shape)


def _parsed(text: str, of: jax.export.SymbolicScope) -> DimSize:
    (size,) = jax.export.symbolic_shape(text, scope=of)
    return cast(DimSize, size)


def dimensions(size: DimSize) -> frozenset[str]:
    """The names of the dimensions in a size."""
    names: set[str] = set()
    for _, factors in dim_terms(size):
        for factor, _ in factors:
            if isinstance(factor, str):
                names.add(factor)
            else:
                names.update(*map(dimensions, factor[1]))
    return frozenset(names)


def variables(sizes: Iterable[DimSize]) -> list[DimSize]:
    """The dimensions that occur in `sizes`, each once, sorted by name."""
    named: dict[str, DimSize] = {}
    for size in filter(is_open, sizes):
        for name in dimensions(size):
            named.setdefault(name, parsed((name,), size.scope)[0])
    return [named[name] for name in sorted(named)]


def dimension(size: DimSize) -> str | None:
    """The name of a size that is a single dimension; `None` for other sizes."""
    match dim_terms(size):
        case [(1, [(str() as name, 1)])]:
            return name
    return None


def linear(size: DimSize) -> tuple[str, int, int] | None:
    """`(name, slope, offset)` of a size linear in one dimension, if it is."""
    term = None
    offset = 0
    for coefficient, factors in dim_terms(size):
        match factors:
            case []:
                offset = coefficient
            case [(str() as name, 1)] if term is None:
                term = name, coefficient
            case _:
                return None
    return None if term is None else (*term, offset)


_OPERATIONS: Mapping[str, Callable[[DimSize, DimSize], DimSize]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max_dim,
    "min": min_dim,
}


def evaluate(size: DimSize, values: Mapping[str, DimSize]) -> DimSize:
    """Substitute numbers or expressions for the dimensions of a size."""
    if not is_open(size):
        return size

    def compute(operation: str, operands: Sequence[DimSize]) -> DimSize:
        return _OPERATIONS[operation](*(evaluate(o, values) for o in operands))

    return sum(n * term for n, term in _terms(size, values, compute))


def _terms(
    size: DimSize,
    values: Mapping[str, DimSize],
    compute: Callable[[str, Sequence[DimSize]], DimSize],
) -> Iterator[tuple[int, DimSize]]:
    """The terms of a size and their coefficients, with operations computed from their operands."""
    for coefficient, factors in dim_terms(size):
        term: DimSize = 1
        for factor, exponent in factors:
            value = values[factor] if isinstance(factor, str) else compute(*factor)
            for _ in range(exponent):
                term = term * value
        yield coefficient, term


# Larger sizes are left as they are: the time is exponential in the depth.
_MOST_OPERATIONS = 6


def without_remainders(size: DimSize) -> DimSize:
    """The same size, with divisions in place of remainders where that leaves fewer terms.

    `-4*floordiv(-n, 4)` for `n + mod(4 - mod(n, 4), 4)`, a length padded to a multiple of 4.
    """
    found = [operation for operation, _ in operations(size)]
    if "mod" not in found or len(found) > _MOST_OPERATIONS:
        return size
    return min((_rebuilt(size, expand) for expand in (False, True)), key=_complexity)


def _rebuilt(size: DimSize, expand: bool) -> DimSize:
    """The same size with simpler operands; `expand`: its remainders are written as divisions."""

    def compute(operation: str, operands: Sequence[DimSize]) -> DimSize:
        match operation, operands:
            case "mod", (whole, int(divisor)) if divisor > 0:
                rest = _rest(whole, divisor)
                return rest - rest // divisor * divisor if expand else rest % divisor
        return _OPERATIONS[operation](*map(without_remainders, operands))

    return sum(n * term for n, term in _terms(size, _themselves(size), compute))


def _rest(size: DimSize, divisor: int) -> DimSize:
    """The shortest size with the same remainder: without multiples of the divisor."""

    def compute(operation: str, operands: Sequence[DimSize]) -> DimSize:
        return _OPERATIONS[operation](*operands)

    forms = [_rebuilt(size, expand) for expand in (False, True)]
    terms = [_terms(form, _themselves(form), compute) for form in forms]
    return min((sum(n * t for n, t in each if n % divisor) for each in terms), key=_complexity)


def _remainders(size: DimSize) -> Iterator[tuple[DimSize, int]]:
    """The remainders in a size that are not inside of others: the size divided, and the divisor."""
    for _, factors in dim_terms(size):
        for factor, _ in factors:
            match factor:
                case ("mod", (whole, int(divisor))) if divisor > 0:
                    yield whole, divisor
                case (_, operands):
                    yield from itertools.chain.from_iterable(map(_remainders, operands))


def _themselves(size: DimSize) -> dict[str, DimSize]:
    return {str(d): d for d in variables([size])}


def _complexity(size: DimSize) -> tuple[int, int]:
    """The number of a size's terms, and of its operations."""
    return len(dim_terms(size)), sum(1 for _ in operations(size))


def operations(size: DimSize) -> Iterator[tuple[str, Sequence[DimSize]]]:
    """The operations in a size, each with its operands."""
    for _, factors in dim_terms(size):
        for factor, _ in factors:
            if not isinstance(factor, str):
                yield factor
                for operand in factor[1]:
                    yield from operations(operand)


def numbers_of(size: DimSize) -> set[int]:
    """The absolute values of the numbers in a size."""
    parts = [size, *(o for _, operands in operations(size) for o in operands)]
    return {abs(coefficient) for part in parts for coefficient, _ in dim_terms(part)}


def comparisons(size: DimSize, values: Mapping[str, DimSize]) -> list[int]:
    """How the operands of each operation in a size compare; whether they reach a divisor."""
    found: list[int] = []
    for operation, operands in operations(size):
        one, two = (evaluate(o, values) for o in operands)
        is_division = operation in ("floordiv", "mod")
        found.append(one >= two if is_division else (one > two) - (one < two))
    return found


def solve(
    shapes: Iterable[Sequence[DimSize]], given: Iterable[Sequence[DimSize]]
) -> dict[str, DimSize] | None:
    """The dimensions at which `shapes` equal `given`, if there are any.

    Single dimensions are read off first; others are solved from expressions linear in them.
    """
    pairs = [
        (size, value)
        for shape, sizes in zip(shapes, given, strict=True)
        for size, value in zip(shape, sizes, strict=True)
    ]
    values: dict[str, DimSize] = {}
    for size, value in pairs:
        if (name := dimension(size)) is not None:
            values.setdefault(name, value)
    pending = [p for p in pairs if dimensions(p[0]) - values.keys()]
    while pending:
        count = len(pending)
        pending = [p for p in pending if not _solve_one(*p, values)]
        if len(pending) == count:
            return None
    same = all(evaluate(size, values) == value for size, value in pairs)
    # JAX's dimensions are at least one.
    return values if same and all(is_open(v) or v >= 1 for v in values.values()) else None


def _solve_one(size: DimSize, value: DimSize, values: dict[str, DimSize]) -> bool:
    """Solve a linear size for its one unknown dimension, rounded; `False` for other sizes."""
    unknown = dimensions(size) - values.keys()
    if len(unknown) > 1 or is_open(value):
        return not unknown
    for name in unknown:
        at = [evaluate(size, {**values, name: n}) for n in (0, 1, 2)]
        slope = at[1] - at[0]
        if is_open(slope) or at[2] - at[1] != slope or not slope:
            return False
        values[name] = (value - at[0]) // slope
    return True


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A condition on sizes: whether `left` and `right` compare by `relation`.

    `message` is the container's error message if it does not hold, or `""`.
    """

    relation: str
    left: DimSize
    right: DimSize
    message: str = ""

    def holds(self, values: Mapping[str, DimSize]) -> bool:
        """Return whether it holds for given sizes; true if undecided."""
        now = self.at(values)
        try:
            return bool(RELATIONS[self.relation](now.left, now.right))
        except InconclusiveDimensionOperation:
            return True

    def at(self, values: Mapping[str, DimSize]) -> Constraint:
        """The same relation between substituted sizes."""
        left, right = (evaluate(s, values) for s in (self.left, self.right))
        return Constraint(self.relation, left, right, self.message)

    def always_holds(self) -> bool:
        """Return whether it is an equality that is proved for all sizes.

        JAX knows few of these, and takes others as conditions.
        """
        return self.relation == "eq" and _is_zero(self.left - self.right)

    @property
    def dimensions(self) -> frozenset[str]:
        """The names of the dimensions in it."""
        return dimensions(self.left) | dimensions(self.right)

    def as_bound(self) -> Constraint:
        """`n >= k` for `max(n, k) == n`, also with a number added on both sides."""
        if self.relation == "eq":
            for _, factors in dim_terms(self.left):
                match factors:
                    case [(("max", (a, b)), 1)] if dim_terms(self.left - self.right + a) == [
                        (1, factors)
                    ]:
                        return dataclasses.replace(self, relation="ge", left=a, right=b)
        return self

    def tidy(self) -> Constraint:
        """The constraint on a dimension alone, if it is one.

        `t >= 3` for `t - 3 >= 0` or `t // 3 - 1 >= 0`, and `t <= 3` for `3 - t >= 0`.
        """
        if is_open(self.right):
            return self
        if (parts := linear(self.left)) is None:
            least = _least(self.left, self.right) if self.relation == "ge" else None
            return self if least is None else Constraint("ge", *least, self.message)
        left, right = self.left - parts[2], self.right - parts[2]
        if parts[1] > 0:
            return dataclasses.replace(self, left=left, right=right)
        return Constraint(_OPPOSITE[self.relation], -left, -right, self.message)

    def words(self) -> str:
        """`b >= 4`."""
        sign = {"ne": "!=", "lt": "<", "gt": ">"} | _SIGNS
        is_zero = self.relation == "eq" and not is_open(self.right) and self.right == 0
        left = _positive(self.left) if is_zero else self.left
        return f"{left} {sign[self.relation]} {self.right}"

    def text(self) -> str:
        """In the syntax of `jax.export.SymbolicScope`; `""` for `!=`, which it lacks."""
        relation, shift = {"lt": ("<=", -1), "gt": (">=", 1)}.get(
            self.relation, (_SIGNS.get(self.relation, ""), 0)
        )
        left, right = self.left, self.right
        # JAX substitutes the right side for `b`; if that contains `b`, as in `b == c - 2*b`, it
        # never ends.
        terms = dim_terms(left) if relation == "==" else []
        if len(terms) == 1 and is_open(left):
            times, factors = terms[0]
            again = sum(k for k, f in dim_terms(right) if f == factors)
            if again and times != 1:
                return ""
            left, right = left * (1 - again), right - left * again
        return f"{left} {relation} {right + shift}" if relation else ""


# Sizes with longer periods are not compared at all numbers of a period.
_LONGEST_PERIOD = 4096


def _is_zero(size: DimSize) -> bool:
    """Return whether a size of one dimension is proved to be always zero.

    A sum of multiples and divisions of a dimension grows by the same number over each period. So it
    is zero if it is zero throughout one period and at the start of the next.
    """
    dims, period = variables([size]), _period(size)
    if len(dims) != 1 or period is None or period > _LONGEST_PERIOD:
        return not is_open(size) and size == 0
    return all(evaluate(size, {str(dims[0]): n}) == 0 for n in range(1, period + 2))


def _period(size: DimSize) -> int | None:
    """A period of a size's divisions: the product of the divisors. `None` for other operations."""
    period: int | None = 1
    for _, factors in dim_terms(size):
        match factors:
            case [] | [(str(), 1)]:
                inner = 1
            case [(("floordiv" | "mod", (part, int() as divisor)), 1)] if divisor:
                inner = _period(part)
                inner = None if inner is None else inner * abs(divisor)
            case _:
                inner = None
        period = None if inner is None or period is None else period * inner
    return period


def _least(size: DimSize, limit: int) -> tuple[DimSize, int] | None:
    """A size's dimension, and its least value at which the size reaches `limit`.

    `None` if the size has several dimensions, can fall as its dimension grows, or stays below.
    """
    dims = variables([size])
    if len(dims) != 1 or not _rises(size):
        return None

    def reaches(n: int) -> bool:
        return evaluate(size, {str(dims[0]): n}) >= limit

    high = 1
    while not reaches(high):
        if high > _LARGEST:
            return None
        high *= 2
    # `high` reaches the limit and `high // 2` does not.
    candidates = range(high // 2 + 1, high + 1)
    return dims[0], candidates[bisect.bisect_left(candidates, True, key=reaches)]


# Larger than the size of any array.
_LARGEST = 2**62


def _rises(size: DimSize) -> bool:
    """Return whether a size never falls as one of its dimensions grows."""
    for coefficient, factors in dim_terms(size):
        match factors:
            case []:
                continue
            case [(str(), 1)]:
                rises = True
            case [(("floordiv", (part, int(divisor))), 1)]:
                rises = divisor > 0 and _rises(part)
            case [(("max" | "min", parts), 1)]:
                rises = all(map(_rises, parts))
            case _:
                return False
        if coefficient < 0 or not rises:
            return False
    return True


def _positive(size: DimSize) -> DimSize:
    """A remainder that is zero for the same numbers, without signs and multiples.

    `mod(b, 2)` for `mod(-b, 2)` and `mod(b - 2, 2)`.
    """
    match dim_terms(size):
        case [(1, [(("mod", (whole, int() as n)), 1)])]:
            part = linear(whole)
            if part is None or part[2] % n:
                return size
            return (whole - part[2]) * (1 if part[1] > 0 else -1) % n
        case _:
            return size


def renaming(sizes: Iterable[DimSize], names: Mapping[str, str]) -> dict[str, DimSize]:
    """Rename the dimensions in `sizes`, in a scope with the same constraints.

    Names already taken are skipped.
    """
    old = variables(sizes)
    new: dict[str, str] = {}
    for n in map(str, old):
        name = names.get(n, n)
        new[n] = n if name in new.values() or (name != n and name in map(str, old)) else name
    if not old or all(a == b for a, b in new.items()):
        return {}

    def under(of: jax.export.SymbolicScope) -> dict[str, DimSize]:
        return dict(zip(new, parsed(new.values(), of), strict=True))

    plain = under(scope())
    conditions = [
        f"{evaluate(a, plain)} {sign} {evaluate(b, plain)}" for a, sign, b in conditions_on(old)
    ]
    return under(scope(conditions))


def conditions_on(found: Sequence[DimSize]) -> list[tuple[DimSize, str, DimSize]]:
    """The conditions on some dimensions in their scope, as `(left, "==" or ">=", right)`.

    JAX has already replaced a dimension that equals another.
    """
    names = set(map(str, found))
    conditions = explicit_constraints(found[0]) if found else []
    return [c for c in conditions if dimensions(c[0]) | dimensions(c[2]) <= names]


@dataclasses.dataclass
class SizeStatements:
    """Statements of a container about open sizes, collected while its program is traced.

    **Attributes:**

    - `constraints`: conditions under which the program holds.
    - `assumptions`: conditions that may be needed for it to be traced at all.
    - `names`: its own names of dimensions, by the names under which it is traced.
    """

    constraints: list[Constraint] = dataclasses.field(default_factory=list)
    assumptions: list[Constraint] = dataclasses.field(default_factory=list)
    names: dict[str, str] = dataclasses.field(default_factory=dict)


_said: contextvars.ContextVar[SizeStatements | None] = contextvars.ContextVar("said", default=None)


def constrain(constraint: Constraint) -> None:
    """Record a constraint that the traced program requires."""
    said = _said.get()
    if said is not None and constraint not in said.constraints:
        said.constraints.append(constraint)


def suggest(constraint: Constraint) -> None:
    """Record a constraint without which the program cannot be traced."""
    said = _said.get()
    if said is not None and constraint not in said.assumptions:
        said.assumptions.append(constraint)


def require(left: DimSize, relation: str, right: DimSize, message: str) -> None:
    """Record a condition of the container, with its error message.

    **Raises:** `SignatureError` if it never holds.
    """
    holds = decided(relation, left, right)
    if holds is None and relation == "eq" and without_remainders(left - right) == 0:
        suggest_divisions(left - right)
    elif holds is None:
        # `b == c` for `4*b == 4*c`, so that the two can have one name.
        terms = [times for n in (left, right) if is_open(n) for times, _ in dim_terms(n)]
        common = math.gcd(*terms, *(int(n) for n in (left, right) if not is_open(n)))
        constrain(Constraint(relation, left // common, right // common, message))
    elif not holds:
        raise SignatureError(message, remedy="Pass arrays whose sizes satisfy this.")


def quotient(size: DimSize, divisor: int, message: str) -> DimSize:
    """`size / divisor`, with no remainder; see `require`."""
    if not is_open(size):
        require(size % divisor, "eq", 0, message)
        return size // divisor
    common = math.gcd(divisor, *(times for times, _ in dim_terms(size)))
    size, divisor = size // common, divisor // common
    require(size % divisor, "eq", 0, message)
    return size // divisor


def suggest_decided(left: DimSize, relation: str, right: DimSize) -> None:
    """Suggest a comparison if it is undecided; see `suggest`."""
    if decided(relation, left, right) is None:
        suggest(Constraint(relation, left, right))


def suggest_divisions(difference: DimSize) -> bool:
    """Suggest divisions for the remainders in a difference of sizes, if these cancel.

    JAX compares and divides multiples, but not sums with a remainder. Returns whether there are
    any to suggest.
    """
    if len(dim_terms(without_remainders(difference))) >= len(dim_terms(difference)):
        return False
    for whole, divisor in dict.fromkeys(_remainders(difference)):
        rest = _rest(whole, divisor)
        division = Constraint("eq", whole % divisor, rest - rest // divisor * divisor)
        if division.always_holds():
            suggest(division)
    return True


def suggest_equal(a: DimSize, b: DimSize) -> None:
    """Note that two sizes may have to be equal; see `suggest`."""
    if decided("eq", a, b) is not None or suggest_divisions(a - b):
        return
    difference = a - b
    always = _is_zero(difference)
    for times, factors in dim_terms(difference):
        match factors:
            case [(("floordiv", (whole, int() as n)), 1)] if always and abs(times) == 1:
                # JAX replaces the left side; `floordiv(-h, 2)` is how it writes "SAME" windows.
                if dim_terms(whole)[0][0] > 0:
                    half = whole // n
                    suggest(Constraint("eq", half, half - times * difference))
                    return
            case [(("floordiv", (whole, int() as n)), 1)] if abs(times) == abs(n):
                # `2*floordiv(h, 2)` is `h` if `h` is even.
                rest = difference - times * (whole // n)
                if decided("eq", rest * n, -whole * times):
                    suggest(Constraint("eq", whole % abs(n), 0))
                    return
            case _:
                pass
    suggest(Constraint("eq", a, b))


def call_dimension(size: DimSize, name: str) -> None:
    """Record the name of a dimension of the traced program."""
    said = _said.get()
    if said is not None and (traced := dimension(size)) is not None:
        said.names.setdefault(traced, name)


@contextlib.contextmanager
def listening() -> Iterator[SizeStatements]:
    """Collect the statements about sizes inside; enclosing listeners get them too."""
    said = SizeStatements()
    token = _said.set(said)
    try:
        yield said
    finally:
        _said.reset(token)
        if (outer := _said.get()) is not None:
            outer.constraints += [c for c in said.constraints if c not in outer.constraints]
            outer.assumptions += [c for c in said.assumptions if c not in outer.assumptions]
            outer.names = {**said.names, **outer.names}


RELATIONS: Mapping[str, Callable[[DimSize, DimSize], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}
_OPPOSITE = {"eq": "eq", "ne": "ne", "ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}
_SIGNS = {"eq": "==", "ge": ">=", "le": "<="}


def decided(relation: str, a: DimSize, b: DimSize) -> bool | None:
    """Compare two sizes (`"lt"`, ...); `None` if dimensions decide."""
    if relation in ("eq", "ne"):
        difference = a - b
        if not is_open(difference):
            return (difference == 0) == (relation == "eq")
        # They differ if one is always larger.
        larger = decided("gt", a, b) or decided("lt", a, b)
        return (relation == "ne") if larger else None
    try:
        return bool(RELATIONS[relation](a, b))
    except InconclusiveDimensionOperation:
        return None


# Larger factors occur in hashes, whose products wrap around on purpose.
LARGEST_FACTOR = 1 << 16


def may_wrap(size: DimSize, dtype: np.dtype) -> bool:
    """Return whether an open size may wrap around in a type, unlike Python's numbers."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return False
    is_unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
    large = any(abs(n) > LARGEST_FACTOR for n, _ in dim_terms(size))
    return dtype.itemsize < 4 or large or (is_unsigned and not decided("ge", size, 0))


def as_value(size: DimSize, dtype: np.dtype) -> Value:
    """A size as a value of a program: a number, or a traced integer."""
    return size_as_value(size, dtype) if is_open(size) else np.asarray(size, dtype)[()]
