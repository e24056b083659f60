"""Arithmetic of sizes while a program is raised.

Lowering computes sizes by ordinary integer ops. If all operands are sizes, so is the result: JAX's
dimension expressions support `+ * min max`. An op that depends on an undecided sign or comparison
stays a `Term`. The steps of a floor division stay terms too, until the whole is recognized as JAX's
own floor division.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import (
    dim_terms,
    max_dim,
    min_dim,
    open_jaxpr,
    trace_closed,
)
from invert.ir import sizes
from invert.ir.interpret import interpret
from invert.ir.sizes import LARGEST_FACTOR, RELATIONS, Constraint, DimSize, as_value, is_open
from invert.ir.types import Eqn, JaxFunction, Literal, Value


@dataclasses.dataclass(frozen=True)
class Term:
    """An operation on sizes that has no dimension expression: its primitive and its operands."""

    primitive: str
    operands: tuple[Number, ...]


# A number, a boolean, a dimension expression, or a term that is none of these.
Number: TypeAlias = "DimSize | bool | Term"
# An operation on numbers; `None` where it is not defined on them.
Operation: TypeAlias = "Callable[..., Number | None]"


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """An array of sizes that a program computes, some of them open.

    **Arguments:**

    - `numbers`: a NumPy array of objects, each a `Number`.
    - `dtype`: their dtype in the program, an integer or `bool`.
    """

    numbers: np.ndarray
    dtype: np.dtype

    @classmethod
    def of(cls, number: Number, dtype: np.dtype) -> Sizes:
        """An array that holds one number."""
        array = np.empty((), object)
        array[()] = number.item() if isinstance(number, np.generic) else number
        return cls(array, np.dtype(dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def ndim(self) -> int:
        return self.numbers.ndim

    @property
    def size(self) -> int:
        return self.numbers.size

    @property
    def key(self) -> Hashable:
        """Equal for arrays of the same numbers."""
        return self.shape, self.dtype, tuple(self.numbers.reshape(-1))

    def is_known(self) -> bool:
        """Return whether all elements are numbers."""
        return all(_is_number(n) for n in self.numbers.reshape(-1))

    def sizes(self) -> tuple[DimSize, ...] | None:
        """The elements as sizes, in order; `None` where one is a `Term`."""
        flat = [_settled(n) for n in self.numbers.reshape(-1)]
        known = [n if is_open(n) else int(n) for n in flat if not isinstance(n, Term)]
        return tuple(known) if len(known) == len(flat) else None

    def value(self) -> Value:
        """The array as a value of a program: constant, or traced integers."""
        if self.is_known():
            return self.numbers.astype(self.dtype)
        flat = [_as_value(n, self.dtype) for n in self.numbers.reshape(-1)]
        if not self.shape:
            return flat[0]
        return lax.reshape(lax.concatenate([lax.reshape(x, (1,)) for x in flat], 0), self.shape)


# Characters. JAX decides on sizes in a time that is exponential in the depth of an expression;
# terms name an operand of a floor division several times.
_LONGEST, _LONGEST_TERM = 1 << 9, 1 << 14


def _is_long(n: Number) -> bool:
    """Return whether a size is so long an expression that it takes too long to decide on it."""
    longest = _LONGEST_TERM if isinstance(n, Term) else _LONGEST
    return not _is_number(n) and len(str(n)) > longest


def _is_number(n: Number | None) -> TypeGuard[int]:
    return not is_open(n) and not isinstance(n, Term)


def _is_size(n: Number) -> TypeGuard[DimSize]:
    return not isinstance(n, Term)


def _as_value(n: Number, dtype: np.dtype) -> Value:
    if not isinstance(n, Term):
        return as_value(n, dtype) if dtype != np.bool_ else np.asarray(n, dtype)[()]
    inner = _inner_dtype(n, dtype)
    return _LAX[n.primitive](*(_as_value(o, d) for o, d in zip(n.operands, inner, strict=True)))


def _inner_dtype(n: Term, dtype: np.dtype) -> Sequence[np.dtype]:
    """The dtypes of the operands of a term: comparisons take integers."""
    if n.primitive == "select":
        return [np.dtype(bool), dtype, dtype]
    if n.primitive == "as_integer":
        return [np.dtype(bool)]
    compares = n.primitive in RELATIONS and not any(map(_is_truth, n.operands))
    return [np.dtype(np.int32) if compares else dtype] * len(n.operands)


def _is_truth(n: Number) -> bool:
    if isinstance(n, Term):
        return n.primitive in RELATIONS or n.primitive in ("and", "or", "not")
    return isinstance(n, (bool, np.bool_))


def lifted(value: object) -> Sizes | None:
    """A value as sizes: its expressions, or a small known array of integers."""
    if isinstance(value, Sizes):
        return value
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    if value.size > _MOST_SIZES or value.dtype.kind not in "ib":
        return None
    return Sizes(np.asarray(value).astype(object), np.dtype(value.dtype))


# Shapes and paddings do not have more elements than this.
_MOST_SIZES = 64


def apply(
    primitive: str, operands: Sequence[Sizes], dtype: np.dtype, recognize: bool = True
) -> Sizes | None:
    """Apply an elementwise primitive to sizes; `None` if it is not defined on them.

    **Arguments:**

    - `primitive`: the name of the primitive in `jax.lax`; `select` is that of StableHLO.
    - `dtype`: the dtype of the result.
    """
    function: Operation | None = _OPERATIONS.get(primitive)
    # Small integers wrap around at values that sizes reach.
    if function is None or dtype.kind not in "ib" or (dtype.kind == "i" and dtype.itemsize < 4):
        return None
    if dtype.kind == "i":
        function = _BITWISE.get(primitive, function)
    elif primitive == "convert_element_type":
        function = _as_truth
    arrays = np.broadcast_arrays(*(o.numbers for o in operands))
    out = np.empty(arrays[0].shape, object)
    for index in np.ndindex(out.shape):
        number = function(*(a.item(index) for a in arrays))
        if number is None or _is_long(number):
            return None
        if recognize and isinstance(number, Term):
            number = _recognized(number, dtype)
        if _is_number(number) and dtype.kind == "i":
            bits = 8 * dtype.itemsize
            number = (int(number) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        out[index] = number
    return Sizes(out, np.dtype(dtype))


def _any_term(*operands: Number) -> bool:
    return any(isinstance(o, Term) for o in operands)


def _plain(name: str, function: Callable[..., DimSize]) -> Operation:
    def run(*operands: Number) -> Number:
        return Term(name, operands) if _any_term(*operands) else function(*operands)

    return run


def decided(relation: str, a: Number, b: Number) -> bool | None:
    """Return whether the relation holds between two numbers; `None` if undecided."""
    a, b = _settled(a), _settled(b)
    if isinstance(a, Term) or isinstance(b, Term):
        return relation in ("eq", "ge", "le") if a == b else None
    return sizes.decided(relation, a, b)


def _compare(relation: str) -> Callable[[Number, Number], Number]:
    def run(a: Number, b: Number) -> Number:
        known = decided(relation, a, b)
        return Term(relation, (a, b)) if known is None else known

    return run


def _sign(a: Number) -> Number:
    if _is_number(a):
        return (a > 0) - (a < 0)
    if decided("gt", a, 0):
        return 1
    if decided("lt", a, 0):
        return -1
    return Term("sign", (a,))


def _abs(a: Number) -> Number:
    if decided("ge", a, 0):
        return a
    if _is_size(a) and decided("le", a, 0):
        return -a
    return Term("abs", (a,))


def _multiply(a: Number, b: Number) -> Number | None:
    if any(_is_number(n) and abs(int(n)) > LARGEST_FACTOR for n in (a, b)):
        return None
    if isinstance(a, Term) or isinstance(b, Term):
        return Term("mul", (a, b))
    product = a * b
    large = is_open(product) and any(abs(n) > LARGEST_FACTOR for n, _ in dim_terms(product))
    return None if large else product


def _toward_zero(name: str) -> Operation:
    """Division or remainder, rounding toward zero: down for positive numbers."""

    def run(a: Number, b: Number) -> Number | None:
        if _is_number(a) and _is_number(b):
            if not b:
                return None
            quotient = abs(int(a)) // abs(int(b))
            quotient = quotient if (a >= 0) == (b > 0) else -quotient
            return quotient if name == "div" else a - quotient * b
        if _is_size(a) and _is_size(b) and decided("gt", a, 0) and decided("gt", b, 0):
            return _UP[name](a, b)
        # If its sign is undecided, it may be a step of a floor division; see `_settled`.
        return Term(name, (a, b))

    return run


def _settled(n: Number) -> Number:
    """Replace divisions of numbers that are not negative by floor divisions."""
    if not isinstance(n, Term):
        return n
    operands = tuple(map(_settled, n.operands))
    if (up := _UP.get(n.primitive)) is not None:
        a, b = operands
        if _is_size(a) and _is_size(b) and decided("ge", a, 0) and decided("gt", b, 0):
            return up(a, b)
    if operands == n.operands:
        return n
    made = _OPERATIONS["convert_element_type" if n.primitive == "as_integer" else n.primitive]
    known = made(*operands)
    return n if known is None else known


def _select(chosen: Number, yes: Number, no: Number) -> Number:
    if isinstance(chosen, Term):
        return yes if _equal(yes, no) else Term("select", (chosen, yes, no))
    return yes if chosen else no


def _equal(a: Number, b: Number) -> bool:
    return type(a) is type(b) and bool(a == b)


def _logical(name: str, decides: bool) -> Callable[[Number, Number], Number]:
    """A conjunction or disjunction; an operand equal to `decides` decides it."""

    def run(a: Number, b: Number) -> Number:
        for one, other in ((a, b), (b, a)):
            if not isinstance(one, Term):
                return decides if bool(one) == decides else other
        return Term(name, (a, b))

    return run


def _not(a: Number) -> Number:
    return Term("not", (a,)) if isinstance(a, Term) else not a


def _on_bits(function: Callable[..., int]) -> Operation:
    """A bitwise function; `None` for open sizes, whose bits are unknown."""

    def run(*operands: Number) -> Number | None:
        return function(*operands) if all(map(_is_number, operands)) else None

    return run


def _clamp(low: Number, x: Number, high: Number) -> Number:
    if isinstance(low, Term) or isinstance(x, Term) or isinstance(high, Term):
        return Term("clamp", (low, x, high))
    return min_dim(max_dim(x, low), high)


def _as_integer(a: Number) -> Number:
    if isinstance(a, Term):
        return Term("as_integer", (a,)) if _is_truth(a) else a
    return int(a) if _is_number(a) else a


def _as_truth(a: Number) -> Number:
    return a if _is_truth(a) else _compare("ne")(a, 0)


_OPERATIONS: Mapping[str, Operation] = {
    "add": _plain("add", operator.add),
    "sub": _plain("sub", operator.sub),
    "mul": _multiply,
    "neg": _plain("neg", lambda a: -a),
    "div": _toward_zero("div"),
    "rem": _toward_zero("rem"),
    "sign": _sign,
    "abs": _abs,
    "max": _plain("max", max_dim),
    "min": _plain("min", min_dim),
    "clamp": _clamp,
    "select": _select,
    "and": _logical("and", False),
    "or": _logical("or", True),
    "not": _not,
    "convert_element_type": _as_integer,
    **{name: _compare(name) for name in RELATIONS},
}

# For integers; booleans are handled above.
_BITWISE: Mapping[str, Operation] = {
    "and": _on_bits(operator.and_),
    "or": _on_bits(operator.or_),
    "not": _on_bits(lambda a: ~a),
}

# Rounded down.
_UP: Mapping[str, Callable[[DimSize, DimSize], DimSize]] = {
    "div": operator.floordiv,
    "rem": operator.mod,
}

# Other operations have the names of functions of `lax`.
_LAX: Mapping[str, JaxFunction] = {
    **{name: getattr(lax, name) for name in _OPERATIONS if hasattr(lax, name)},
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "not": lax.bitwise_not,
    "as_integer": lambda x: lax.convert_element_type(x, np.int32),
}


_ROUNDED_DOWN: Sequence[tuple[JaxFunction, Callable[[DimSize, DimSize], DimSize]]] = (
    (jnp.floor_divide, operator.floordiv),
    (jnp.remainder, operator.mod),
)


def _recognized(term: Term, dtype: np.dtype) -> Number:
    """The dimension expression of a floor division or its remainder, as JAX writes it."""
    if term.primitive != "select":
        return term
    for leaf in _divisions(term):
        a, b = leaf.operands
        if isinstance(a, Term) or isinstance(b, Term) or not decided("ne", b, 0):
            continue
        for function, meaning in _ROUNDED_DOWN:
            if _traced(function, a, b, dtype) == term:
                return meaning(a, b)
    return term


def _divisions(term: Term) -> list[Term]:
    """The divisions and remainders in a term."""
    divisions = [term] if term.primitive in ("div", "rem") else []
    for operand in term.operands:
        if isinstance(operand, Term):
            divisions += _divisions(operand)
    return list(dict.fromkeys(divisions))


class _NotOfSizesError(Exception):
    """A program computes with a primitive that terms do not have."""


def _traced(function: JaxFunction, a: Number, b: Number, dtype: np.dtype) -> Number | None:
    """The term that a function of `jax.numpy` traces to, for two sizes."""
    number = jax.ShapeDtypeStruct((), dtype)
    with jax.enable_x64(True):
        program = trace_closed(function, number, number)

    def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        if eqn.primitive.name == "jit":
            return interpret(eqn.params["jaxpr"], operands, on_eqn, on_literal)
        name, values = eqn.primitive.name, list(operands)
        if name == "select_n":
            name, values = "select", [values[0], values[2], values[1]]
        result = apply(name, values, np.dtype(eqn.outvars[0].aval.dtype), recognize=False)
        if result is None:
            raise _NotOfSizesError
        return [result]

    def on_literal(literal: Literal) -> Value:
        return Sizes.of(literal.val, np.dtype(literal.aval.dtype))

    try:
        args = [Sizes.of(a, dtype), Sizes.of(b, dtype)]
        (result,) = interpret(open_jaxpr(program), args, on_eqn, on_literal)
    except _NotOfSizesError:
        return None
    return result.numbers[()]


def constraint_of(truth: Number, message: str) -> Constraint | None:
    """An undecided comparison of sizes as a constraint; `None` for other terms."""
    truth = _settled(truth)
    if isinstance(truth, Term) and truth.primitive in RELATIONS:
        left, right = truth.operands
        if _is_size(left) and _is_size(right):
            return Constraint(truth.primitive, left, right, message)
    return None
