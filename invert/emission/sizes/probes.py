"""Sizes that had no part in writing a text, at which it is compared with its program.

A text is written from programs at a few sizes, by expressions through the numbers in which these
differ. What is no such expression (`min(batch, 16)`, a branch on a size) may look like one there.
So the text is traced at other sizes too. To recover the program at each of them would take long:
the raw programs are compared first, number by number. Where one is as the others say, the text
follows the same expressions; where one is not, it is recovered and the text compared with it.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from invert._errors import EmissionError, InvertError
from invert._private.jax import Literal, consts_of, is_jaxpr, open_jaxpr
from invert.emission.sizes.size import Points

# Small sizes, odd ones, powers of two and their neighbours. One more is beyond the numbers of the
# program and the lengths at which models are usually cut.
_LADDER = (1, 2, 3, 8, 17, 129)
_BEYOND = 4099
# How many of those that are not as expected are recovered.
_MOST_RECOVERED = 6
# A larger number is not a size that a program has been built for.
_LARGEST = 8192

Sizes = Mapping[str, int]


class SizeError(EmissionError):
    """A text that was written for all sizes does not hold at one of them."""


class DoesNotRun(EmissionError):
    """A text that raises where it is traced."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """At which sizes a text was compared with its program.

    **Attributes:**

    - `recovered`: sizes at which the text traces to the recovered program.
    - `raw`: sizes at which the program that was read has the numbers that the text says.
    - `run`: sizes at which the two gave the same on random inputs, and no more is shown.
    - `refused`: sizes that the program itself refuses.
    - `raises`: sizes at which the text raises an error.
    - `limits`: the largest size of a dimension up to which the program follows the same
        expressions, as the length of a table of positions: the text has to refuse larger ones.
    """

    recovered: Sequence[Sizes] = ()
    raw: Sequence[Sizes] = ()
    run: Sequence[Sizes] = ()
    refused: Sequence[Sizes] = ()
    raises: Sequence[Sizes] = ()
    limits: Sizes = dataclasses.field(default_factory=dict)


def probes(dimensions: Sequence[str], beyond: int, taken: Sequence[Sizes]) -> list[dict[str, int]]:
    """Sizes for each dimension: all ones, different ones, and all beyond every number."""
    ladder = (*_LADDER, beyond)
    found = [dict.fromkeys(dimensions, 1)]
    for i in range(1, len(ladder)):
        # Other dimensions go through the ladder in other steps, so that sizes are seldom equal.
        steps = [ladder[(i * (2 * k + 1) + 4 * k) % len(ladder)] for k in range(len(dimensions))]
        found.append(dict(zip(dimensions, steps, strict=True)))
    found.append(dict.fromkeys(dimensions, beyond))
    unique = {tuple(sizes.items()): sizes for sizes in found if sizes not in taken}
    return list(unique.values())


class _Print:
    """What a program is, apart from its sizes; and all whole numbers in it, in order.

    `digests` keeps what was read of arrays that several programs share, and the arrays, by id.
    """

    def __init__(self, closed: Any, digests: dict[int, tuple[Any, int]]):
        self.structure: list[Any] = []
        self.numbers: list[int] = []
        self._digests = digests
        self._names: dict[Any, int] = {}
        self._consts: dict[Any, Any] = {}
        self._value(closed)

    def _jaxpr(self, closed: Any) -> None:
        jaxpr = open_jaxpr(closed)
        # Constants count where they are used: of shapes, nothing may be.
        self._consts.update(zip(jaxpr.constvars, consts_of(closed), strict=False))
        for v in jaxpr.invars:
            self._define(v)
        for eqn in jaxpr.eqns:
            self.structure.append(eqn.primitive.name)
            for atom in eqn.invars:
                self._atom(atom)
            for name in sorted(eqn.params):
                self.structure.append(name)
                self._value(eqn.params[name])
            for v in eqn.outvars:
                self._define(v)
        for atom in jaxpr.outvars:
            self._atom(atom)

    def _define(self, v: Any) -> None:
        self._names[v] = len(self._names)
        self._value(tuple(getattr(v.aval, "shape", ())))

    def _atom(self, atom: Any) -> None:
        if isinstance(atom, Literal):
            self._array(atom.val)
        elif atom in self._consts:
            self._array(self._consts[atom])
        else:
            self.structure.append(self._names.get(atom))

    def _array(self, value: Any) -> None:
        if not hasattr(value, "dtype") and not isinstance(value, (bool, int, float, complex)):
            self.structure.append(type(value).__name__)
            return
        dtype = getattr(value, "dtype", np.asarray(value).dtype)
        self.structure.append(str(dtype))
        self._value(tuple(np.shape(value)))
        if not isinstance(dtype, np.dtype):
            return
        real = np.ndim(value) == 0 and dtype.kind in "iuf"
        number = float(np.asarray(value)) if real else math.nan
        if math.isfinite(number) and number == int(number):
            self.numbers.append(int(number))
            return
        if id(value) not in self._digests:
            array = np.ascontiguousarray(value).reshape(-1)
            self._digests[id(value)] = value, zlib.crc32(array.view(np.uint8).data)
        self.structure.append(self._digests[id(value)][1])

    def _value(self, value: Any) -> None:
        if is_jaxpr(value):
            self._jaxpr(value)
        elif isinstance(value, (bool, str, bytes, float)) or value is None:
            self.structure.append(value)
        elif isinstance(value, (int, np.integer)):
            self.numbers.append(int(value))
        elif isinstance(value, (tuple, list)):
            self.structure.append(len(value))
            for part in value:
                self._value(part)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(value)
        else:
            self.structure.append(type(value).__name__)


def compare(
    points: Points,
    raw: Callable[[Sizes], Any],
    check: Callable[[Sizes], bool | None],
) -> Shown:
    """Compares a text with its program at sizes that had no part in writing it.

    **Arguments:**

    - `raw`: gives the program that was read, at some sizes.
    - `check`: recovers the program at some sizes and compares; gives whether the two are proved to
        be the same, `None` where the program refuses the sizes.

    **Raises:** what `check` raises where the text is another program; not `DoesNotRun`.
    """
    corners = [points.sizes(c) for c in points.corners]
    programs = [raw(sizes) for sizes in corners]
    digests: dict[int, tuple[Any, int]] = {}
    prints = [_Print(p, digests) for p in programs]
    first = prints[0]
    alike = all(
        p.structure == first.structure and len(p.numbers) == len(first.numbers) for p in prints
    )
    columns = list(zip(*(p.numbers for p in prints), strict=True)) if alike else []
    terms = {column: points.terms(column) for column in set(columns)}
    largest = max((n for p in prints for n in p.numbers if n <= _LARGEST), default=1)
    others = probes(points.dimensions, max(2 * largest + 1, _BEYOND), corners)
    # What JAX does for sizes of one is its own: those are recovered in any case. So is one where
    # several sizes differ.
    always = min(len(points.dimensions), 2)
    chosen, bent = others[:always], []
    followed: list[Sizes] = []
    refused: list[Sizes] = []

    def follows(sizes: Sizes) -> bool | None:
        try:
            other = _Print(raw(sizes), digests)
        except (InvertError, TypeError, ValueError):
            return None
        return alike and _follows(other, first, columns, terms, sizes)

    for sizes in others[always:]:
        same = follows(sizes)
        (refused if same is None else followed if same else bent).append(sizes)
    # The smallest and the largest of those that are not as expected.
    half = _MOST_RECOVERED // 2
    chosen += bent if len(bent) <= _MOST_RECOVERED else [*bent[:half], *bent[-half:]]
    recovered: list[Sizes] = list(corners)
    run: list[Sizes] = []
    raises: list[Sizes] = []
    limits: dict[str, int] = {}

    def within(sizes: Sizes) -> bool:
        return all(sizes[d] <= n for d, n in limits.items())

    while chosen:
        sizes = chosen.pop(0)
        if not within(sizes):
            continue
        try:
            proved = check(sizes)
        except DoesNotRun:
            raises.append(sizes)
            continue
        except SizeError:
            found = _limits(points, sizes, follows)
            if not found or all(d in limits for d in found):
                raise
            limits |= found
            chosen.append({**points.sizes(()), **found})
            continue
        (refused if proved is None else recovered if proved else run).append(sizes)
    return Shown(
        *([s for s in some if within(s)] for some in (recovered, followed, run, refused, raises)),
        limits=limits,
    )


def _limits(
    points: Points, sizes: Sizes, follows: Callable[[Sizes], bool | None]
) -> dict[str, int]:
    """For the dimensions that are too large at some sizes, the largest that are not."""
    found: dict[str, int] = {}
    for i, d in enumerate(points.dimensions):
        low, high = points.high[i], sizes[d]
        if high <= low or follows({**points.sizes(()), d: high}):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if follows({**points.sizes(()), d: middle}):
                low = middle
            else:
                high = middle
        if low == points.high[i]:
            return {}  # it bends right behind the sizes that the text was written from
        found[d] = low
    return found


def _follows(
    other: _Print,
    first: _Print,
    columns: Sequence[tuple[int, ...]],
    terms: Mapping[tuple[int, ...], Any],
    sizes: Sizes,
) -> bool:
    """Whether a program has the numbers that the expressions through the others say."""
    if other.structure != first.structure or len(other.numbers) != len(columns):
        return False
    for number, column in zip(other.numbers, columns, strict=True):
        found = terms[column]
        if found is None:
            return False
        if number != sum(f * math.prod(sizes[d] for d in t) for t, f in found.items()):
            return False
    return True


def words(shown: Sequence[Sizes]) -> str:
    """`batch = 1, 2 and 7`; `(batch, length) = (1, 1) and (7, 11)`."""
    if not shown:
        return ""
    names = list(shown[0])
    rows = sorted({tuple(sizes[n] for n in names) for sizes in shown})
    texts = [str(row[0]) if len(row) == 1 else str(row) for row in rows]
    left = names[0] if len(names) == 1 else f"({', '.join(names)})"
    listed = ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]
    return f"{left} = {listed}"
