"""Programs as plain data, for files: lists, text and numbers that JSON holds.

JAX's objects (primitives, dtypes, generators of random numbers) are stored by name and looked up in
tables, so reading a file runs no code. Objects without a name, such as derivative rules, cannot be
encoded. A decoded program equals the encoded one in every respect but source lines.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from invert._private import programs
from invert._private.jax import (
    DimExpr,
    DropVar,
    Primitive,
    ShapedArray,
    consts_of,
    eval_closed,
    is_jaxpr,
    key_rules,
    open_jaxpr,
)
from invert.ir.sizes import DimSize, parsed
from invert.ir.types import AnyJaxpr, Atom, Aval, ClosedJaxpr, Eqn, Literal, Params, Value, Var

# What `json` reads and writes.
Data = Any
_PLAIN = frozenset({int, bool, str, type(None)})
_MOST_BYTES = 1 << 16
# Raised here, and by JAX, for parts that do not fit. The decoder does not check each part of a
# text, which any process of the user may have written; tests check that it decodes what is encoded.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
# `reduce` holds a function next to its jaxpr.
_COMPUTATION = ["computation"]


class NotEncodable(Exception):
    """A value that has no name, or too large an array."""


class Damaged(Exception):
    """Data that does not decode to a program."""


def encoded(value: Value) -> Data:
    """Encode a program without effects, a parameter, or a tuple of these.

    **Raises:** `NotEncodable`.
    """
    return _Encoder().whole(value)


def decoded(data: Data, size: DimSize | None = None) -> Value:
    """The value that was encoded.

    **Arguments:**

    - `size`: an open size of the scope in which its open sizes are.

    **Raises:** `Damaged`.
    """
    try:
        return _Decoder(data, size).result
    except _FAULTS as error:
        raise Damaged(str(error)) from error


def key_of(*values: Value) -> Data:
    """A key as data; functions are named by where they are defined.

    **Raises:** `NotEncodable`, also for a function that is not found under its name.
    """
    return _KeyEncoder().whole(values)


class _Encoder:
    def __init__(self) -> None:
        self.types: list[Data] = []
        self.programs: list[Data] = []
        # The types and programs are kept alive, so that no id is reused.
        self._places: dict[int, tuple[int, object]] = {}

    def whole(self, value: Value) -> Data:
        data = self.value(value)
        return [self.types, self.programs, data]

    def type(self, aval: Aval) -> int:
        """The number of a type, encoded on first use."""
        if id(aval) not in self._places:
            if type(aval) is not ShapedArray:
                raise NotEncodable(f"the type {aval}")
            if aval != programs.array_type(aval.shape, aval.dtype, aval.weak_type):
                raise NotEncodable(f"the type {aval} on a mesh")
            shape = [self.value(n) for n in aval.shape]
            self.types.append([shape, self.value(aval.dtype), aval.weak_type])
            self._places[id(aval)] = len(self.types) - 1, aval
        return self._places[id(aval)][0]

    def program(self, program: AnyJaxpr) -> int:
        """The number of a program, encoded on first use after those inside it."""
        if id(program) not in self._places:
            made = self._program(program)
            self.programs.append(made)
            self._places[id(program)] = len(self.programs) - 1, program
        return self._places[id(program)][0]

    def _program(self, program: AnyJaxpr) -> Data:
        jaxpr, consts = open_jaxpr(program), consts_of(program)
        description = programs.described(jaxpr)
        if jaxpr.effects or jaxpr.is_high or description is None:
            raise NotEncodable("a program with effects")
        numbers: dict[Var, int] = {}

        def defined(variables: Sequence[Var]) -> Data:
            for v in variables:
                if type(v) is not DropVar:
                    numbers[v] = len(numbers)
            return [[self.type(v.aval), type(v) is DropVar] for v in variables]

        def used(atoms: Sequence[Atom]) -> Data:
            return [
                [self.type(a.aval), self.value(a.val)] if isinstance(a, Literal) else numbers[a]
                for a in atoms
            ]

        constvars, invars = defined(jaxpr.constvars), defined(jaxpr.invars)
        eqns = []
        for eqn in jaxpr.eqns:
            operands = used(eqn.invars)
            eqns.append([*self._operation(eqn), operands, defined(eqn.outvars)])
        closed = type(program) is ClosedJaxpr
        values = [self.value(c) for c in consts]
        return [closed, constvars, invars, eqns, used(jaxpr.outvars), values, description]

    def _operation(self, eqn: Eqn) -> Data:
        if not programs.is_plain(eqn):
            raise NotEncodable("an equation with effects")
        params = []
        for name, value in eqn.params.items():
            made = eqn.primitive.name == "reduce" and name == "computation"
            params.append([name, _COMPUTATION if made else self.value(value)])
        return [self.primitive(eqn.primitive), params, self.names(eqn)]

    def names(self, eqn: Eqn) -> Data:
        return programs.scopes(eqn)

    def primitive(self, primitive: Primitive) -> str:
        if programs.primitives().get(primitive.name) is not primitive:
            raise NotEncodable(f"the primitive {primitive}")
        return primitive.name

    def value(self, value: Value) -> Data:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind is tuple or kind is list:
            return [kind.__name__, *map(self.value, value)]
        if kind is programs.typed_int:
            return ["typed int", int(value), value.dtype.name]
        if kind is programs.typed_float:
            return ["typed float", float(value).hex(), value.dtype.name]
        if isinstance(value, np.dtype):
            return ["dtype", value.name]
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value)
        if isinstance(value, DimExpr):
            return ["size", str(value)]
        if is_jaxpr(value):
            return ["program", self.program(value)]
        if programs.RECORDS.get(kind.__name__) is kind:
            return ["record", kind.__name__, *map(self.value, value)]
        if programs.CHOICES.get(kind.__name__) is kind:
            return ["choice", kind.__name__, value.name]
        if value is programs.unspecified:
            return ["unspecified"]
        if kind is jax.sharding.Mesh and value == programs.no_mesh:
            return ["no mesh"]
        if kind is programs.Generator:
            return ["generator", self._generator(value)]
        if kind is programs.KeyType:
            return ["keys", self._generator(key_rules(value))]
        return self.other(value)

    def other(self, value: Value) -> Data:
        raise NotEncodable(f"a parameter of type {type(value)}")

    def _array(self, value: np.ndarray | np.generic) -> Data:
        kind = type(value)
        typed = kind is programs.typed_array
        if not (typed or kind is np.ndarray or isinstance(value, np.generic)):
            raise NotEncodable(f"an array of type {kind}")
        if value.nbytes > _MOST_BYTES or value.dtype.kind == "O":
            raise NotEncodable("a large array")
        name = "typed" if typed else "array" if kind is np.ndarray else "scalar"
        weak = typed and bool(getattr(value, "aval").weak_type)  # noqa: B009
        return [name, value.dtype.name, list(value.shape), value.tobytes().hex(), weak]

    def _generator(self, generator: Value) -> str:
        if programs.generators().get(generator.name) != generator:
            raise NotEncodable(f"the generator {generator.name}")
        return generator.name


class _KeyEncoder(_Encoder):
    """Encodes what names a program, too."""

    def names(self, eqn: Eqn) -> Data:
        return programs.name_text(eqn)

    def other(self, value: Value) -> Data:
        kind = type(value)
        if isinstance(value, Primitive):
            return ["primitive", self.primitive(value)]
        if kind is jax.ShapeDtypeStruct and value.sharding is None:
            return ["type", self.value(value.shape), self.value(value.dtype), value.weak_type]
        if isinstance(value, type):
            return ["class", value.__module__, value.__qualname__]
        if isinstance(value, tuple):
            return ["record", kind.__module__, kind.__qualname__, *map(self.value, value)]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind is frozenset:
            return ["set", *sorted(map(self.value, value))]
        if isinstance(value, enum.Enum):
            return ["choice", kind.__module__, kind.__qualname__, value.name]
        if callable(value):
            module = getattr(value, "__module__", "")
            name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
            found: ModuleType | None = sys.modules.get(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is value and name:
                return ["function", module, name]
        raise NotEncodable(f"a key of type {kind}")


@dataclasses.dataclass
class _Decoder:
    data: Data
    size: DimSize | None
    programs: list[AnyJaxpr] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        types, made, result = self.data
        self._types = [
            programs.array_type([self.value(n) for n in shape], self.value(dtype), weak)
            for shape, dtype, weak in types
        ]
        for data in made:
            self.programs.append(self._program(*data))
        self.result = self.value(result)

    def _program(
        self,
        closed: bool,
        constvars: Data,
        invars: Data,
        eqns: Data,
        outvars: Data,
        consts: Data,
        description: Data,
    ) -> AnyJaxpr:
        variables: list[Var] = []

        def defined(data: Data) -> list[Value]:
            made: list[Value] = [(DropVar if drop else Var)(self._types[n]) for n, drop in data]
            variables.extend(v for v in made if type(v) is not DropVar)
            return made

        def used(data: Data) -> list[Atom]:
            return [
                variables[a] if type(a) is int else Literal(self.value(a[1]), self._types[a[0]])
                for a in data
            ]

        held, given = defined(constvars), defined(invars)
        steps = []
        for name, params, names, operands, results in eqns:
            invars = used(operands)
            steps.append(
                programs.new_equation(
                    programs.primitives()[name],
                    invars,
                    defined(results),
                    self._params(params),
                    names,
                )
            )
        jaxpr = programs.new_jaxpr(held, given, used(outvars), steps, description)
        return programs.close(jaxpr, map(self.value, consts)) if closed else jaxpr

    def _params(self, data: Data) -> Params:
        params = {name: self.value(v) for name, v in data if v != _COMPUTATION}
        if len(params) == len(data):
            return params
        computation = functools.partial(_on_pairs, params["jaxpr"])
        # In the order of the encoded ones.
        return {name: params.get(name, computation) for name, _ in data}

    def value(self, data: Data) -> Value:
        if type(data) is not list:
            return data
        kind, *parts = data
        return _VALUES[kind](self, *parts)

    def _array(self, name: str, shape: Data, content: str, weak: bool) -> np.ndarray:
        flat = np.frombuffer(bytes.fromhex(content), jnp.dtype(name))
        return flat.reshape(tuple(shape)).copy()

    def _typed(self, name: str, shape: Data, content: str, weak: bool) -> np.ndarray:
        value = self._array(name, shape, content, weak)
        make: Callable[..., np.ndarray] = programs.typed_array
        return make(value, programs.array_type(value.shape, value.dtype, weak))

    def _open(self, text: str) -> Value:
        if not isinstance(self.size, DimExpr):
            raise ValueError("an open size without a scope")
        return parsed([text], self.size.scope)[0]


def _on_pairs(program: AnyJaxpr, x: Value, y: Value) -> Value:
    """The computation of a `reduce`, which takes and returns one value or several."""
    if not isinstance(x, (list, tuple)):
        return eval_closed(program, [x, y])[0]
    return tuple(eval_closed(program, [*x, *y]))


_VALUES: Mapping[str, Callable[..., Value]] = {
    "float": lambda _, text: float.fromhex(text),
    "tuple": lambda self, *parts: tuple(map(self.value, parts)),
    "list": lambda self, *parts: list(map(self.value, parts)),
    "dtype": lambda _, name: jnp.dtype(name),
    "array": _Decoder._array,
    "scalar": lambda self, *parts: self._array(*parts)[()],
    "typed": _Decoder._typed,
    "typed int": lambda _, number, name: programs.typed_int(number, jnp.dtype(name)),
    "typed float": lambda _, text, name: programs.typed_float(float.fromhex(text), jnp.dtype(name)),
    "size": _Decoder._open,
    "program": lambda self, number: self.programs[number],
    "record": lambda self, name, *parts: programs.RECORDS[name](*map(self.value, parts)),
    "choice": lambda _, kind, name: programs.CHOICES[kind][name],
    "unspecified": lambda _: programs.unspecified,
    "no mesh": lambda _: programs.no_mesh,
    "generator": lambda _, name: programs.generators()[name],
    "keys": lambda _, name: programs.KeyType(programs.generators()[name]),
}
