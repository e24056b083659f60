"""Sizes of open dimensions: numbers, or JAX's dimension expressions.

A program with open dimensions is one jaxpr whose shapes and parameters hold expressions. It runs at
numbers, or at expressions of other dimensions, after `substitute` has put these in their place.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from invert._private.jax import (
    DimExpr,
    InconclusiveDimensionOperation,
    close_like,
    dim_as_value_p,
    dim_terms,
    explicit_constraints,
    is_jaxpr,
    mapped_thunk,
    max_dim,
    min_dim,
    open_jaxpr,
    size_as_value,
    trace_closed,
)
from invert._private.jax import DimSize as DimSize
from invert.ir.interpret import interpret
from invert.ir.jaxprs import equations, tuple_like
from invert.ir.traced_form import rule_of
from invert.ir.types import AnyJaxpr, Atom, Aval, Eqn, J, Jaxpr, Literal, Value, Var

_T = TypeVar("_T")

Shape = tuple[DimSize, ...]


def is_open(size: object) -> bool:
    """Whether a size is an expression of open dimensions."""
    return isinstance(size, DimExpr)


def scope(constraints: Sequence[str] = ()) -> jax.export.SymbolicScope:
    """The scope of dimensions under some constraints: one for all programs that have the same.

    A scope never changes, so programs may share it, and templates with them.
    """
    return _scope(tuple(constraints))


_scope = functools.lru_cache(maxsize=256)(jax.export.SymbolicScope)


def parsed(shape: Iterable[int | str], of: jax.export.SymbolicScope) -> Shape:
    """A shape with expressions for the names and expressions in it."""
    return tuple(
        n if isinstance(n, int) else jax.export.symbolic_shape(n, scope=of)[0] for n in shape
    )


def dimensions(size: DimSize) -> frozenset[str]:
    """The names of the dimensions in a size."""
    found: set[str] = set()
    for _, factors in dim_terms(size):
        for factor, _ in factors:
            if isinstance(factor, str):
                found.add(factor)
            else:
                found.update(*map(dimensions, factor[1]))
    return frozenset(found)


def variables(sizes: Iterable[DimSize]) -> list[DimSize]:
    """The dimensions in some sizes, each once, by name."""
    found: dict[str, DimSize] = {}
    for size in filter(is_open, sizes):
        for name in dimensions(size):
            found.setdefault(name, parsed((name,), size.scope)[0])  # pyright: ignore
    return [found[name] for name in sorted(found)]


def dimension(size: DimSize) -> str | None:
    """The name of the dimension that a size is; `None` for numbers and other expressions."""
    match dim_terms(size):
        case [(1, [(str() as name, 1)])]:
            return name
    return None


def linear(size: DimSize) -> tuple[str, int, int] | None:
    """`(name, slope, offset)` of a size that is linear in one dimension; `None` for others."""
    found = None
    offset = 0
    for coefficient, factors in dim_terms(size):
        match factors:
            case []:
                offset = coefficient
            case [(str() as name, 1)] if found is None:
                found = name, coefficient
            case _:
                return None
    return None if found is None else (*found, offset)


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max_dim,
    "min": min_dim,
}


def evaluate(size: DimSize, values: Mapping[str, DimSize]) -> DimSize:
    """A size at numbers, or at expressions, for its dimensions."""
    if not is_open(size):
        return size
    total: Any = 0
    for coefficient, factors in dim_terms(size):
        term: Any = coefficient
        for factor, exponent in factors:
            if isinstance(factor, str):
                value = values[factor]
            else:
                operation, operands = factor
                value = _OPERATIONS[operation](*(evaluate(o, values) for o in operands))
            for _ in range(exponent):
                term = term * value
        total = total + term
    return total


def solve(
    shapes: Iterable[Sequence[DimSize]], given: Iterable[Sequence[DimSize]]
) -> dict[str, DimSize] | None:
    """The values of the dimensions at which `shapes` are those `given`; `None` if there are none.

    Dimensions that stand alone are read off first; others are solved from an expression that is
    linear in them.
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
    """Adds the one unknown dimension of a size; `False` where it has more, or is not linear."""
    unknown = dimensions(size) - values.keys()
    if len(unknown) > 1 or is_open(value):
        return not unknown
    for name in unknown:
        at = [evaluate(size, {**values, name: n}) for n in (0, 1, 2)]
        slope = at[1] - at[0]
        if is_open(slope) or at[2] - at[1] != slope or not slope or (value - at[0]) % slope:
            return False
        values[name] = (value - at[0]) // slope
    return True


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A condition on sizes: whether `left` and `right` compare by `relation`.

    `message` is what the container says where it does not hold, or `""`.
    """

    relation: str
    left: DimSize
    right: DimSize
    message: str = ""

    def holds(self, values: Mapping[str, DimSize]) -> bool:
        """Whether it holds at some sizes; true where that cannot be told."""
        left, right = (evaluate(s, values) for s in (self.left, self.right))
        try:
            return bool(_RELATIONS[self.relation](left, right))
        except InconclusiveDimensionOperation:
            return True

    def at(self, values: Mapping[str, DimSize]) -> Constraint:
        """The same of other sizes."""
        left, right = (evaluate(s, values) for s in (self.left, self.right))
        return Constraint(self.relation, left, right, self.message)

    def words(self) -> str:
        """`b >= 4`."""
        sign = {"ne": "!=", "lt": "<", "gt": ">"} | _SIGNS
        return f"{self.left} {sign[self.relation]} {self.right}"

    def text(self) -> str:
        """As `jax.export.SymbolicScope` takes it; `""` for an inequality, which it does not."""
        relation, shift = {"lt": ("<=", -1), "gt": (">=", 1)}.get(
            self.relation, (_SIGNS.get(self.relation, ""), 0)
        )
        return f"{self.left} {relation} {self.right + shift}" if relation else ""


def renaming(sizes: Iterable[DimSize], names: Mapping[str, str]) -> dict[str, DimSize]:
    """The dimensions in some sizes under other names, in a scope with the same constraints.

    A name that is another's already is left out.
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
        f"{evaluate(a, plain)} {sign} {evaluate(b, plain)}"
        for a, sign, b in explicit_constraints(old[0])
    ]
    return under(scope(conditions))


@dataclasses.dataclass
class Said:
    """What a container says of open sizes, found while its program is traced.

    **Attributes:**

    - `constraints`: conditions under which the program holds.
    - `assumptions`: conditions that may be needed for it to be traced at all.
    - `names`: its own names of dimensions, by the names under which it is traced.
    """

    constraints: list[Constraint] = dataclasses.field(default_factory=list)
    assumptions: list[Constraint] = dataclasses.field(default_factory=list)
    names: dict[str, str] = dataclasses.field(default_factory=dict)


_said: contextvars.ContextVar[Said | None] = contextvars.ContextVar("said", default=None)


def constrain(constraint: Constraint) -> None:
    """Notes a condition under which the program that is being traced holds."""
    said = _said.get()
    if said is not None and constraint not in said.constraints:
        said.constraints.append(constraint)


def suggest(constraint: Constraint) -> None:
    """Notes a condition under which a program may be traced that is not without it."""
    said = _said.get()
    if said is not None and constraint not in said.assumptions:
        said.assumptions.append(constraint)


def call_dimension(size: DimSize, name: str) -> None:
    """Notes the name of a dimension of the program that is being traced."""
    said = _said.get()
    if said is not None and (traced := dimension(size)) is not None:
        said.names.setdefault(traced, name)


@contextlib.contextmanager
def listening() -> Iterator[Said]:
    """Gathers what is noted inside, for those outside too."""
    said = Said()
    token = _said.set(said)
    try:
        yield said
    finally:
        _said.reset(token)
        if (outer := _said.get()) is not None:
            outer.constraints += [c for c in said.constraints if c not in outer.constraints]
            outer.assumptions += [c for c in said.assumptions if c not in outer.assumptions]
            outer.names = {**said.names, **outer.names}


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
}
_SIGNS = {"eq": "==", "ge": ">=", "le": "<="}


def open_dimensions(program: AnyJaxpr) -> frozenset[str]:
    """The names of the dimensions in the types of a program's arguments."""
    invars: list[Any] = open_jaxpr(program).invars
    sizes = (n for v in invars for n in getattr(v.aval, "shape", ()))
    return frozenset(d for n in sizes if is_open(n) for d in dimensions(n))


def has_open_sizes(jaxpr: Jaxpr) -> bool:
    """Whether the type of a value in a program has an open size."""
    atoms = (a for e in equations(jaxpr) for a in (*e.invars, *e.outvars))
    return any(is_open(n) for a in (*jaxpr.invars, *atoms) for n in getattr(a.aval, "shape", ()))


# Sizes at which programs are run, one for each dimension: no two alike, powers of two, ones.
_SAMPLES = ((3, 5, 2, 7, 4), (8, 4, 16, 2, 12), (1, 1, 1, 1, 1), (17, 11, 13, 19, 23))


def samples(program: AnyJaxpr) -> list[dict[str, DimSize]]:
    """Some sizes for the dimensions of a program; `[{}]` where none is open."""
    avals: list[Any] = [v.aval for v in open_jaxpr(program).invars]
    sizes = variables(n for a in avals for n in getattr(a, "shape", ()))
    if not sizes:
        return [{}]
    names = [str(n) for n in sizes]
    conditions = explicit_constraints(sizes[0])
    found = []
    for numbers in _SAMPLES:
        values = {name: numbers[i % len(numbers)] for i, name in enumerate(names)}
        at = [(evaluate(a, values) - evaluate(b, values), sign) for a, sign, b in conditions]
        if all(n == 0 if sign == "==" else n >= 0 for n, sign in at):
            found.append(values)
    return found


def at_samples(program: J) -> list[J]:
    """A program at some sizes, itself where none of them is open."""
    return [substitute(program, sizes) if sizes else program for sizes in samples(program)]


def substitute(program: J, values: Mapping[str, DimSize]) -> J:
    """A program at some sizes: in shapes, parameters, inner programs and derivative rules."""
    return _Substitution(values).program(program)


class _Substitution:
    def __init__(self, values: Mapping[str, DimSize]):
        self.values = values
        # Shared programs stay shared; the originals are kept, so that their ids stay theirs.
        self._done: dict[int, tuple[AnyJaxpr, AnyJaxpr]] = {}

    def program(self, program: J) -> J:
        if id(program) not in self._done:
            new = close_like(program, self._jaxpr(open_jaxpr(program)))
            self._done[id(program)] = program, new
        return self._done[id(program)][1]  # pyright: ignore[reportReturnType]

    def _jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        names: dict[Var, Atom] = {}
        constvars, invars = ([self._var(v, names) for v in vs]
                             for vs in (jaxpr.constvars, jaxpr.invars))  # fmt: skip
        eqns = []
        for eqn in jaxpr.eqns:
            if eqn.primitive is dim_as_value_p and not is_open(n := self._size(eqn.params["dim"])):
                # As a Python number, which either setting of 64-bit types takes.
                names[eqn.outvars[0]] = Literal(n, eqn.outvars[0].aval)
                continue
            eqns.append(self._eqn(eqn, names))
        outvars = [self._atom(v, names) for v in jaxpr.outvars]
        return jaxpr.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)

    def _size(self, size: DimSize) -> DimSize:
        return evaluate(size, self.values)

    def _aval(self, aval: Aval) -> Aval:
        shape = getattr(aval, "shape", ())
        if not any(map(is_open, shape)):
            return aval
        return aval.update(shape=tuple(map(self._size, shape)))

    def _var(self, v: Var, names: dict[Var, Atom]) -> Var:
        aval = self._aval(v.aval)
        if aval is v.aval:
            return v
        names[v] = new = type(v)(aval)
        return new

    def _atom(self, atom: Atom, names: Mapping[Var, Atom]) -> Atom:
        return atom if isinstance(atom, Literal) else names.get(atom, atom)

    def _eqn(self, eqn: Eqn, names: dict[Var, Atom]) -> Eqn:
        invars = [self._atom(a, names) for a in eqn.invars]
        outvars = [self._var(v, names) for v in eqn.outvars]
        name = eqn.primitive.name
        params = eqn.params
        if name == "custom_jvp_call":
            thunk = mapped_thunk(params["jvp_jaxpr_fun"], self.program)
            params = {**params, "call_jaxpr": self.program(params["call_jaxpr"]),
                      "jvp_jaxpr_fun": thunk}  # fmt: skip
        elif name == "custom_vjp_call":
            params = self._with_vjp(eqn, [a.aval for a in invars])
        elif name == "custom_vmap_call":
            params = {**params, "call": self.program(params["call"])}
        else:
            params = {k: self._value(v) for k, v in params.items()}
        return eqn.replace(invars=invars, outvars=outvars, params=params)

    def _with_vjp(self, eqn: Eqn, avals: Sequence[Aval]) -> Mapping[str, Any]:
        """The parameters of a function with a rule for reverse mode.

        The rule is a Python function, which is traced before its sizes are known.
        """
        call = eqn.params["call_jaxpr"]
        program = self.program(call)
        if program is call and not has_open_sizes(open_jaxpr(call)):
            return eqn.params
        pull = rule_of(eqn)
        if isinstance(pull, str):
            raise LookupError(pull)
        pull = self.program(pull)
        smooth = [i for i, v in enumerate(eqn.invars) if _has_tangent(v.aval)]
        places = [i for i, v in enumerate(eqn.outvars) if _has_tangent(v.aval)]

        @jax.custom_vjp
        def function(*values: Value) -> list[Value]:
            return interpret(program, values)

        def back(operands: Sequence[Value], cotangents: Sequence[Value]) -> tuple[Value, ...]:
            found = interpret(pull, [*operands, *(cotangents[i] for i in places)])
            out: list[Value] = [None] * len(operands)
            for i, g in zip(smooth, found, strict=True):
                out[i] = g
            return tuple(out)

        function.defvjp(lambda *values: (function(*values), values), back)
        (made,) = open_jaxpr(trace_closed(function, *avals)).eqns
        return made.params

    def _value(self, value: Any) -> Any:
        """A parameter of an equation."""
        if is_open(value):
            return self._size(value)
        if is_jaxpr(value):
            return self.program(value)
        if isinstance(value, (tuple, list)):
            parts = [self._value(v) for v in value]
            if all(a is b for a, b in zip(parts, value, strict=True)):
                return value
            return parts if isinstance(value, list) else tuple_like(value, parts)
        if isinstance(value, jax.ShapeDtypeStruct) or hasattr(value, "weak_type"):
            return self._aval(value)
        return value


def _has_tangent(aval: Aval) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


def as_value(size: DimSize, dtype: np.dtype) -> Value:
    """A size as a value of a program: a number, or a traced integer."""
    return size_as_value(size, dtype) if is_open(size) else np.asarray(size, dtype)[()]


def sizes_of(jaxpr: Jaxpr) -> Iterator[DimSize]:
    """The open sizes in the types of a program's arguments, in order."""
    for v in jaxpr.invars:
        yield from (n for n in getattr(v.aval, "shape", ()) if is_open(n))
