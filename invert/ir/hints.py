"""Hints from source locations, kept as the last name scope of an equation.

Patterns use hints to choose among programs that lower to the same ops. Hints prove nothing, and are
removed before the program is returned.
"""

from __future__ import annotations

import dataclasses
import functools
import urllib.parse
from collections.abc import Hashable

import numpy as np

from invert._private.jax import last_name, names_of, open_jaxpr, with_names
from invert.ir.interpret import bind, retrace
from invert.ir.jaxprs import equations, map_equations, map_jaxprs
from invert.ir.passes import Made, rewritten
from invert.ir.types import AnyJaxpr, ClosedJaxpr, Eqn, J, Jaxpr, Literal, Value, Var

_SIGN = "="
_ARRAY, _ORDER, _BROADCAST = "array", "order", "broadcast"


@dataclasses.dataclass(frozen=True)
class Hint:
    """How an equation was written.

    **Attributes:**

    - `primitive`: its name in the location; `""` if the location does not say.
    - `operands`: the operands that the author broadcast explicitly, as pairs of position and number
        of the broadcast. Operands with the same number share one broadcast.
    - `broadcast`: the number of the broadcast, if the equation is such a broadcast.
    - `is_array`: whether it was a constant array filled with one number.
    - `assumes_order`: whether it is correct only if a comparator is a strict weak order.
    """

    primitive: str = ""
    operands: tuple[tuple[int, int], ...] = ()
    broadcast: int | None = None
    is_array: bool = False
    assumes_order: bool = False

    def encode(self) -> str:
        """The hint as a name scope."""
        parts = [urllib.parse.quote(self.primitive, safe="", errors="surrogatepass")]
        parts += [f"{position}:{number}" for position, number in self.operands]
        parts += [f"{_BROADCAST}:{self.broadcast}"] if self.broadcast is not None else []
        parts += [_ARRAY] * self.is_array + [_ORDER] * self.assumes_order
        return _SIGN + ";".join(parts)


NO_HINT = Hint()


def is_hint(scope: str) -> bool:
    """Return whether a name scope is a hint."""
    return scope.startswith(_SIGN)


@functools.lru_cache(maxsize=65536)
def decode(scope: str) -> Hint:
    """The hint that a name scope encodes."""
    primitive, *parts = scope.removeprefix(_SIGN).split(";")
    pairs = [part.split(":") for part in parts if ":" in part]
    numbers = [int(number) for name, number in pairs if name == _BROADCAST]
    return Hint(
        urllib.parse.unquote(primitive, errors="surrogatepass"),
        tuple((int(name), int(number)) for name, number in pairs if name != _BROADCAST),
        numbers[0] if numbers else None,
        _ARRAY in parts,
        _ORDER in parts,
    )


def hint_of(eqn: Eqn) -> Hint:
    """The hint of an equation, empty if it has none."""
    return decode(name) if is_hint(name := last_name(eqn)) else NO_HINT


def without_hint(names: tuple[str, ...]) -> tuple[str, ...]:
    """Name scopes without a trailing hint."""
    return names[:-1] if names and is_hint(names[-1]) else names


def without_hints(closed: J) -> J:
    """The program without hints."""

    def strip(eqn: Eqn) -> Eqn:
        return with_names(eqn, names_of(eqn)[:-1]) if is_hint(last_name(eqn)) else eqn

    return map_equations(closed, strip)


def names_primitives(closed: AnyJaxpr) -> bool:
    """Return whether any location of the program names a primitive."""
    return any(hint_of(eqn).primitive for eqn in equations(open_jaxpr(closed)))


def assumes_order(jaxpr: Jaxpr) -> bool:
    """Return whether any sort's comparator is not known to be a strict weak order."""
    return any(hint_of(eqn).assumes_order for eqn in equations(jaxpr))


def merge_broadcasts(closed: J) -> J:
    """Merge the copies of an explicit broadcast, one before each user.

    Users of another kind may have kept the broadcast itself.
    """

    def merge(jaxpr: Jaxpr) -> Jaxpr:
        kept: dict[Hashable, Var] = {}
        whole: dict[Hashable, Var] = {}

        def once(eqn: Eqn) -> Made | None:
            if (number := hint_of(eqn).broadcast) is not None:
                (out,) = eqn.outvars
                (x,) = eqn.invars
                value = np.asarray(x.val).tobytes() if isinstance(x, Literal) else x
                same = whole.get((out.aval, value), out)
                first = kept.setdefault((number, out.aval, value), same)
                return None if first is out else ([], [first])
            if eqn.primitive.name == "broadcast_in_dim":
                x = eqn.invars[0]
                if isinstance(x, Var) and x.aval.shape == ():
                    whole.setdefault((eqn.outvars[0].aval, x), eqn.outvars[0])
            return None

        return rewritten(jaxpr, once)

    return map_jaxprs(closed, merge)


_LARGEST_ARRAY = 4096


def restore_arrays(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Turn small arrays filled with one number back into constants.

    While patterns are matched they are broadcasts, so that their numbers are scalars. Large ones,
    and those in inner jaxprs, stay broadcasts.
    """
    jaxpr = open_jaxpr(closed)
    arrays: dict[Eqn, np.ndarray] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "broadcast_in_dim":
            continue
        (number,), aval = eqn.invars, eqn.outvars[0].aval
        if hint_of(eqn).is_array and aval.size <= _LARGEST_ARRAY and isinstance(number, Literal):
            arrays[eqn] = np.full(aval.shape, number.val, aval.dtype)
    if not arrays:
        return closed

    def on_eqn(eqn: Eqn, operands: list[Value]) -> list[Value]:
        return [arrays[eqn]] if eqn in arrays else bind(eqn, operands)

    return retrace(closed, on_eqn)
