"""Lazy constant folding.

Rules fold the arithmetic that shapes usually need. Other ops may compute shapes and axes too, such
as a rolled or padded vector, in several steps. Traced values that follow from constants are
recorded here, and computed when a rule asks for numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Sequence

import jax
import numpy as np

from invert._errors import Problem, UnsupportedOpError
from invert._private.jax import DimSize, is_tracer, open_jaxpr, trace_closed
from invert.ir import jaxprs, kinds
from invert.ir.interpret import interpret
from invert.ir.types import AnyJaxpr, Eqn, Value
from invert.tf.interpreter.registry import REGISTRY
from invert.tf.interpreter.rows import elementwise
from invert.tf.values.constants import MOST_COMPUTED, is_static

Rule = Callable[[list[Value]], Sequence[Value]]


@dataclasses.dataclass(frozen=True)
class RepeatedArray:
    """A known array that repeats along axes of open sizes.

    **Arguments:**

    - `data`: the array, with one element along those axes.
    - `shape`: its shape, with the open sizes.
    """

    data: np.ndarray
    shape: tuple[Value, ...]


@dataclasses.dataclass(frozen=True)
class _Origin:
    """The origin of a traced value: result `k` of an op."""

    value: Value
    op: str
    rule: Rule
    operands: Sequence[Value]
    k: int
    dtype: Callable[[int], np.dtype | None]


class Folding:
    """The values of one run that follow from constants, and how to compute them."""

    def __init__(self) -> None:
        # Traced values by identity, kept alive so that ids stay unique.
        self._origins: dict[int, _Origin] = {}
        self._known: dict[int, np.ndarray | RepeatedArray | None] = {}
        self._bytes = 0

    def computed(self, size: int) -> int:
        """Count the bytes of values that are computed at conversion; return those of all."""
        self._bytes += size
        return self._bytes

    def note(
        self,
        op: str,
        rule: Rule,
        operands: Sequence[Value],
        results: Sequence[Value],
        dtype: Callable[[int], np.dtype | None],
    ) -> None:
        """Record the `results` of `rule` on `operands`, if they follow from constants.

        **Arguments:**

        - `dtype`: the declared dtypes of the operands, by place.
        """
        if not operands or not all(is_static(v) or id(v) in self._origins for v in operands):
            return
        for k, value in enumerate(results):
            # A value that a rule returns unchanged is recorded where it was made.
            if is_tracer(value) and id(value) not in self._origins:
                self._origins[id(value)] = _Origin(value, op, rule, operands, k, dtype)

    def known(self, operands: list[Value]) -> list[Value]:
        """The operands, with those that follow from constants as NumPy arrays."""
        if not any(id(v) in self._origins for v in operands):
            return operands
        with jax.ensure_compile_time_eval():
            values = [self._value(v) for v in operands]
        found = [
            v if isinstance(v, np.ndarray) else old for v, old in zip(values, operands, strict=True)
        ]
        return operands if all(map(operator.is_, found, operands)) else found

    def _value(self, value: Value) -> Value:
        """The known value of a result; `None` if it depends on open sizes, or all are too large."""
        origin = self._origins.get(id(value))
        if origin is None:
            return value
        if id(value) not in self._known and self.computed(_bytes(value)) > MOST_COMPUTED:
            self._known[id(value)] = None
        if id(value) not in self._known:
            operands = [self._value(v) for v in origin.operands]
            try:
                self._known[id(value)] = _computed(origin, operands)
            except UnsupportedOpError:
                self._known[id(value)] = None
        return self._known[id(value)]


def _bytes(value: Value) -> int:
    """The bytes of a value, as far as its sizes are known."""
    return math.prod(n for n in value.shape if isinstance(n, int)) * value.dtype.itemsize


def _computed(origin: _Origin, operands: list[Value]) -> np.ndarray | RepeatedArray | None:
    """The result of an op on known operands.

    **Raises:** `UnsupportedOpError` if it depends on open sizes.
    """
    if any(v is None for v in operands):
        return None
    if any(isinstance(v, RepeatedArray) for v in operands):
        return _on_repeated(origin, operands)
    symbolic = [i for i, v in enumerate(operands) if v.dtype == object]
    if not symbolic:
        return np.asarray(origin.rule(operands)[origin.k])
    entry = REGISTRY.get(origin.op)
    if entry is not None and symbolic == [entry.repeats_to]:
        return _repeated(origin, operands, symbolic[0])
    # The size of a result cannot be replaced by an example number.
    if entry is not None and {*entry.size_operands, entry.repeats_to}.intersection(symbolic):
        return None
    return _moved(origin, operands)


def _repeated(origin: _Origin, operands: list[Value], place: int) -> RepeatedArray:
    """A constant repeated along open sizes, to the shape given by operand `place`."""
    shape = tuple(operands[place].ravel().tolist())
    given = list(operands)
    given[place] = np.asarray([d if isinstance(d, int) else 1 for d in shape], np.int32)
    return RepeatedArray(np.asarray(origin.rule(given)[origin.k]), shape)


def _on_repeated(origin: _Origin, operands: list[Value]) -> np.ndarray | RepeatedArray | None:
    """The result of an op on arrays that repeat along open sizes."""
    data = [v.data if isinstance(v, RepeatedArray) else v for v in operands]
    if any(v.dtype == object for v in data):
        return None
    shapes = [v.shape for v in operands]
    entry = REGISTRY.get(origin.op)
    if entry is None:
        return None
    if entry.idempotent:
        (whole, rank) = shapes[0], len(shapes[0])
        axes = {int(a) % rank for a in data[1].ravel()}
        result = np.asarray(origin.rule(data)[origin.k])
        if result.ndim == rank:  # with axes of one
            return None
        shape = tuple(d for i, d in enumerate(whole) if i not in axes)
    elif entry.rows is elementwise:
        result = np.asarray(origin.rule(data)[origin.k])
        shape = jax.lax.broadcast_shapes(*shapes)
    else:
        return None
    return result if result.shape == shape else RepeatedArray(result, shape)


# Example numbers for unknown sizes, chosen not to occur in shapes.
_MARK = 1 << 29
# The operands whose elements a primitive moves; others are positions or used in computation.
_MOVED: dict[str, slice] = {
    **dict.fromkeys(kinds.MOVES | kinds.IDENTITIES | {"gather", "split"}, slice(1)),
    "concatenate": slice(None),
    "dynamic_update_slice": slice(2),
    "pad": slice(2),
    "scatter": slice(0, 3, 2),
    "select_n": slice(1, None),
}


def _moved(origin: _Origin, operands: Sequence[Value]) -> np.ndarray:
    """The result of an op that only moves elements, some of them open sizes.

    **Raises:** `UnsupportedOpError` if it computes with a size, or compares one.
    """
    sizes = list({d: None for v in operands for d in _symbols(v)})
    whole = {n for v in operands if v.dtype.kind in "iuO" for n in v.ravel().tolist()}
    marks = itertools.islice((n for n in itertools.count(_MARK) if n not in whole), len(sizes))
    numbers = dict(zip(sizes, marks, strict=True))
    given = [_replaced(v, numbers, origin.dtype(i)) for i, v in enumerate(operands)]
    places = [i for i, v in enumerate(operands) if v.dtype == object]

    def run(*values: Value) -> Value:
        return origin.rule(jaxprs.with_values(given, places, values))[origin.k]

    try:
        program = trace_closed(run, *(given[i] for i in places))
    except jax.errors.JAXTypeError:  # it asks for the number
        program = None
    if program is None or not _only_moves(program):
        raise UnsupportedOpError(
            [
                Problem(
                    "shape", "is computed from an open size", remedy="Convert it at concrete sizes."
                )
            ]
        )
    found = {n: d for d, n in numbers.items()}
    return _restored(np.asarray(origin.rule(given)[origin.k]), found)


class _Computes(Exception):
    """An equation computes with a size, or compares one."""


def _only_moves(program: AnyJaxpr) -> bool:
    """Return whether a program only moves elements of its arguments."""
    try:
        _hold_sizes(program, [True] * len(open_jaxpr(program).invars))
    except _Computes:
        return False
    return True


def _hold_sizes(program: AnyJaxpr, sizes: Sequence[bool]) -> list[bool]:
    """Find the results that hold sizes, given the arguments that do."""
    jaxpr, constants = jaxprs.split_constants(program)
    return interpret(jaxpr, [*[False] * len(constants), *sizes], _on_eqn, lambda _: False)


def _on_eqn(eqn: Eqn, sizes: list[bool]) -> list[bool]:
    if not any(sizes):
        return [False] * len(eqn.outvars)
    if eqn.primitive.name == "jit":
        return _hold_sizes(eqn.params["jaxpr"], sizes)
    moved = _MOVED.get(eqn.primitive.name, slice(0))
    if eqn.primitive.name == "convert_element_type" and _is_wide(eqn.params["new_dtype"]):
        moved = slice(1)
    if sum(sizes[moved]) != sum(sizes):
        raise _Computes
    return [True] * len(eqn.outvars)


def _is_wide(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" and dtype.itemsize >= 4


def _symbols(value: Value) -> list[Value]:
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return []
    return [d for d in value.ravel().tolist() if not isinstance(d, int)]


def _replaced(value: Value, numbers: dict[Hashable, int], dtype: np.dtype | None) -> Value:
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return value
    items = [d if isinstance(d, int) else numbers[d] for d in value.ravel().tolist()]
    return np.asarray(items, np.int32 if dtype is None else dtype).reshape(value.shape)


def _restored(value: np.ndarray, sizes: dict[int, DimSize]) -> np.ndarray:
    items = value.ravel().tolist()
    if not any(isinstance(x, int) and x in sizes for x in items):
        return value
    out = np.empty(len(items), object)
    out[:] = [sizes.get(x, x) for x in items]
    return out.reshape(value.shape)
