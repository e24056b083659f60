"""Evaluates programs with open dimensions at given sizes.

Numbers, or expressions of other dimensions, are substituted for the dimensions; nothing is traced
or recovered again for a new size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax

from invert._errors import InvertError
from invert._private.jax import (
    close_like,
    dim_as_value_p,
    is_jaxpr,
    mapped_thunk,
    open_jaxpr,
    renamed,
    trace_closed,
)
from invert.ir.avals import is_differentiable
from invert.ir.interpret import interpret
from invert.ir.jaxprs import equations, tuple_like, with_values
from invert.ir.sizes import (
    DimSize,
    comparisons,
    conditions_on,
    dimensions,
    evaluate,
    is_open,
    numbers_of,
    variables,
)
from invert.ir.traced_form import rule_of
from invert.ir.types import AnyJaxpr, Atom, Aval, Eqn, J, Jaxpr, Literal, Params, Value, Var

# Sizes at which programs are run, per dimension: distinct ones, powers of two, ones.
_SAMPLES = ((3, 5, 2, 7, 4), (8, 4, 16, 2, 12), (1, 1, 1, 1, 1), (17, 11, 13, 19, 23))
# Larger ones, if the conditions on the dimensions rule those out.
_LARGE = ((64, 64, 64, 64, 64), (128, 96, 160, 80, 112), (1024, 512, 768, 640, 896))
# For expressions that behave otherwise at larger sizes, as `n // 64`; so do numbers in them.
_LARGER = (64, 128, 1024)
_LARGEST, _HUGE = 4096, 1 << 40


def samples(program: AnyJaxpr) -> list[dict[str, DimSize]]:
    """Example sizes for the dimensions of a program; `[{}]` if none is open.

    **Raises:** `InvertError` if none of them meets the conditions, since nothing can be run then.
    """
    read = sizes_read(program)
    if not (sizes := variables(read)):
        return [{}]
    names = [str(n) for n in sizes]
    conditions = conditions_on(sizes)

    def meets(values: Mapping[str, DimSize]) -> bool:
        return all(_holds(c, values) for c in conditions)

    def fitting(rows: Sequence[Sequence[int]]) -> list[dict[str, DimSize]]:
        named = ({n: row[i % len(row)] for i, n in enumerate(names)} for row in rows)
        return list(filter(meets, named))

    if not (chosen := fitting(_SAMPLES) or fitting(_LARGE)[:1]):
        raise InvertError("none of the sizes tried meets the conditions on its open dimensions")
    for size in unreached(read, chosen) if len(chosen) > 1 else ():
        numbers = sorted({*_LARGER, *(k * n for n in numbers_of(size) for k in (1, 2))})
        tried = (chosen[0] | _all(size, n) for n in numbers if n <= _LARGEST)
        chosen += [v for v in filter(meets, tried) if not unreached([size], [v])][:1]
    return chosen


def sizes_read(program: AnyJaxpr) -> list[DimSize]:
    """The open sizes in a program, each once: those of its arrays, and those it computes with."""
    jaxpr = open_jaxpr(program)
    eqns = list(equations(jaxpr))
    # A part of a program may lack the array whose size it uses.
    read = [eqn.params["dim"] for eqn in eqns if eqn.primitive is dim_as_value_p]
    held: list[Var] = [*jaxpr.invars, *(v for eqn in eqns for v in eqn.outvars)]
    read += [n for v in held for n in getattr(v.aval, "shape", ())]
    return list(dict.fromkeys(filter(is_open, read)))


def unreached(sizes: Iterable[DimSize], chosen: Sequence[Mapping[str, DimSize]]) -> list[DimSize]:
    """The sizes that behave otherwise at large values, as `n // 2000`, than at those chosen."""

    def differs(size: DimSize) -> bool:
        wanted = comparisons(size, _all(size, _HUGE))
        return all(comparisons(size, values) != wanted for values in chosen)

    return list(filter(differs, sizes))


def _all(size: DimSize, value: int) -> dict[str, DimSize]:
    return dict.fromkeys(dimensions(size), value)


def _holds(condition: tuple[DimSize, str, DimSize], values: Mapping[str, DimSize]) -> bool:
    left, sign, right = condition
    gap = evaluate(left, values) - evaluate(right, values)
    return gap == 0 if sign == "==" else gap >= 0


def at_samples(program: J) -> list[J]:
    """A program at given sizes; unchanged if it has no open dimensions."""
    return [substitute(program, sizes) if sizes else program for sizes in samples(program)]


def substitute(program: J, values: Mapping[str, DimSize]) -> J:
    """Substitute sizes in shapes, parameters, inner programs and derivative rules."""
    return _Substitution(values).program(program)


class _Substitution:
    def __init__(self, values: Mapping[str, DimSize]):
        self.values = values
        # Shared programs stay shared; the originals are kept alive, so that ids stay unique.
        self._done: dict[int, tuple[AnyJaxpr, AnyJaxpr]] = {}

    def program(self, program: J) -> J:
        if id(program) not in self._done:
            new = close_like(program, self._jaxpr(open_jaxpr(program)))
            self._done[id(program)] = program, new
        return self._done[id(program)][1]  # pyright: ignore[reportReturnType]

    def _jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        names: dict[Var, Atom] = {}
        # Constants have no open sizes, and keep their values with their variables.
        invars = [self._var(v, names) for v in jaxpr.invars]
        eqns = []
        for eqn in jaxpr.eqns:
            if eqn.primitive is dim_as_value_p and not is_open(n := self._size(eqn.params["dim"])):
                # As a Python number, which works with and without x64.
                names[eqn.outvars[0]] = Literal(n, eqn.outvars[0].aval)
                continue
            eqns.append(self._eqn(eqn, names))
        outvars = renamed(jaxpr.outvars, names)
        return jaxpr.replace(invars=invars, eqns=eqns, outvars=outvars)

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

    def _eqn(self, eqn: Eqn, names: dict[Var, Atom]) -> Eqn:
        invars = renamed(eqn.invars, names)
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

    def _with_vjp(self, eqn: Eqn, avals: Sequence[Aval]) -> Params:
        """The parameters of a function with a rule for reverse mode.

        The rule is a Python function, traced at the open sizes on demand. The rule of a kept
        gradient holds the function itself, for the next derivative.
        """
        call = eqn.params["call_jaxpr"]
        program = self.program(call)
        if program is call and not has_open_sizes(open_jaxpr(call)):
            return eqn.params
        smooth = [i for i, v in enumerate(eqn.invars) if is_differentiable(v.aval)]
        places = [i for i, v in enumerate(eqn.outvars) if is_differentiable(v.aval)]

        @jax.custom_vjp
        def function(*values: Value) -> list[Value]:
            return interpret(program, values)

        def back(operands: Sequence[Value], cotangents: Sequence[Value]) -> tuple[Value, ...]:
            pull = rule_of(eqn)
            if isinstance(pull, str):
                raise LookupError(pull)
            results = interpret(self.program(pull), [*operands, *(cotangents[i] for i in places)])
            return tuple(with_values([None] * len(operands), smooth, results))

        function.defvjp(lambda *values: (function(*values), values), back)
        (made,) = open_jaxpr(trace_closed(function, *avals)).eqns
        return made.params

    def _value(self, value: Value) -> Value:
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


def has_open_sizes(jaxpr: Jaxpr) -> bool:
    """Return whether the type of a value in a program has an open size."""
    atoms = (a for e in equations(jaxpr) for a in (*e.invars, *e.outvars))
    return any(is_open(n) for a in (*jaxpr.invars, *atoms) for n in getattr(a.aval, "shape", ()))
