"""Values that follow from constants alone, although the rules that made them traced them.

Rules fold the arithmetic that shapes are usually made of. Other ops compute shapes and axes as
well, such as a rolled or padded vector of them, and may do so over several ops. What follows from
constants is remembered here, and computed where a rule asks for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .. import _compat
from .._errors import Problem, UnsupportedOpError
from ..primitives.tf._static import is_static

Rule = Callable[[list[Any]], Sequence[Any]]


class Deferred:
    """How to compute the values of one run that follow from constants."""

    def __init__(self) -> None:
        # Traced values by identity, kept alive so that no other value gets the same one.
        self._made: dict[int, tuple[Any, Rule, Sequence[Any], int]] = {}
        self._known: dict[int, np.ndarray] = {}

    def clear(self) -> None:
        """Forgets all; traced values must not outlive their trace."""
        self._made.clear()
        self._known.clear()

    def note(self, rule: Rule, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Remembers the `results` of `rule` on `operands`, where they follow from constants."""
        if not operands or not all(is_static(v) or id(v) in self._made for v in operands):
            return
        for k, value in enumerate(results):
            # A value that a rule passes on is known by what made it.
            if _compat.is_tracer(value) and id(value) not in self._made:
                self._made[id(value)] = (value, rule, operands, k)

    def known(self, operands: Sequence[Any]) -> list[Any] | None:
        """The operands as numbers where they follow from constants; `None` where none does."""
        if not any(id(v) in self._made for v in operands):
            return None
        with jax.ensure_compile_time_eval():
            return [self._value(v) for v in operands]

    def _value(self, value: Any) -> Any:
        if id(value) not in self._made:
            return value
        if id(value) not in self._known:
            _, rule, operands, k = self._made[id(value)]
            known = [self._value(v) for v in operands]
            is_symbolic = any(isinstance(v, np.ndarray) and v.dtype == object for v in known)
            results = _moved(rule, known) if is_symbolic else rule(known)
            self._known[id(value)] = np.asarray(results[k])
        return self._known[id(value)]


# Numbers that stand for sizes that are not known: none of a shape, and the same in every integer
# type of shapes. In the second set the order of the sizes is another one, and they are negative.
_MARK = 1 << 29


def _moved(rule: Rule, operands: Sequence[Any]) -> list[np.ndarray]:
    """The results of an op that moves elements, symbolic sizes among them, and computes nothing.

    It runs on two sets of numbers in the place of the sizes. Whatever depends on the numbers
    themselves differs by more than them.

    **Raises:** `UnsupportedOpError` where that is so.
    """
    sizes = list({d: None for v in operands for d in _symbols(v)})
    marks = [_MARK + i for i in range(len(sizes))]
    runs = []
    for numbers in (marks, [-m for m in marks]):
        given = dict(zip(sizes, numbers, strict=True))
        results = rule([_replaced(v, given) for v in operands])
        found = dict(zip(numbers, sizes, strict=True))
        runs.append([_restored(np.asarray(r), found) for r in results])
    for one, two in zip(*runs, strict=True):
        if one.shape != two.shape or any(a is not b and a != b for a, b in _pairs(one, two)):
            raise UnsupportedOpError([Problem("shape", "is computed from an open size")])
    return runs[0]


def _symbols(value: Any) -> list[Any]:
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return []
    return [d for d in value.ravel().tolist() if not isinstance(d, int)]


def _replaced(value: Any, numbers: dict[Any, int]) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return value
    items = [d if isinstance(d, int) else numbers[d] for d in value.ravel().tolist()]
    return np.asarray(items, np.int32).reshape(value.shape)


def _restored(value: np.ndarray, sizes: dict[int, Any]) -> np.ndarray:
    items = value.ravel().tolist()
    if not any(isinstance(x, int) and x in sizes for x in items):
        return value
    out = np.empty(len(items), object)
    out[:] = [sizes.get(x, x) for x in items]
    return out.reshape(value.shape)


def _pairs(one: np.ndarray, two: np.ndarray) -> Iterator[tuple[Any, Any]]:
    return zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)
