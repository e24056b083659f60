"""Numbers that a program computes from literals only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.jaxprs import broadcast_in_place_of
from invert.ir.passes import Made, cleaned, rewritten
from invert.ir.types import Eqn, Jaxpr, Literal, ShapedArray, Var

# Operations that every compiler rounds alike.
_EXACT: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "square": np.square, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "ge": np.greater_equal, "gt": np.greater,
    "le": np.less_equal, "lt": np.less,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.bitwise_not,
    "select_n": lambda which, *cases: cases[int(which)],
}  # fmt: skip
# Those of which the result for zeros is zero.
_OF_ZEROS = frozenset(("add", "mul", "square"))
# Narrower types may be computed in wider ones.
_TYPES = frozenset(map(np.dtype, ("bool", "float32", "float64")))


def with_known_numbers(jaxpr: Jaxpr) -> Jaxpr:
    """Replace computations on numbers, and on arrays of one number, by their values.

    `x / jnp.maximum(1.0, jnp.full(3, 1e-7))` is `x / 1.0`. Results that are zero or not finite,
    and subnormal numbers stay as they are, since these may depend on the compiler; sums and
    products of zeros do not.
    """
    known: dict[Var, np.ndarray] = {}

    def computed(eqn: Eqn) -> Made | None:
        if (value := _value(eqn, known)) is None:
            return None
        (out,) = eqn.outvars
        known[out] = value
        if eqn.primitive.name in kinds.LAYOUT:
            return None
        number = Literal(value[()], ShapedArray((), out.aval.dtype))
        made = [broadcast_in_place_of(eqn, number, out, ())] if out.aval.shape else []
        return made, [out if made else number]

    return cleaned(jaxpr, rewritten(jaxpr, computed))


def _value(eqn: Eqn, known: Mapping[Var, np.ndarray]) -> np.ndarray | None:
    """The number that all elements of a result equal, if it is known."""
    name = eqn.primitive.name
    if name not in _EXACT and name not in kinds.LAYOUT:
        return None
    numbers = [known.get(a) if is_var(a) else np.asarray(a.val) for a in eqn.invars]
    if not numbers or any(n is None or n.shape for n in numbers):
        return None
    types = [a.aval.dtype for a in (*eqn.invars, *eqn.outvars)]
    if not _TYPES.issuperset(types):
        return None
    given = [n.astype(t) for n, t in zip(numbers, types, strict=False) if n is not None]
    if name in kinds.LAYOUT:
        return given[0]
    with np.errstate(all="ignore"):
        value = np.asarray(_EXACT[name](*given), types[-1])
    if any(map(_is_subnormal, (*given, value))):
        return None
    portable = value.dtype.kind == "b" or (np.isfinite(value) and value != 0)
    zeros = name in _OF_ZEROS and all(map(_is_zero, (*given, value)))
    return value if portable or zeros else None


def _is_zero(x: np.ndarray) -> bool:
    return bool(x == 0) and not np.signbit(x)


def _is_subnormal(x: np.ndarray) -> bool:
    return x.dtype.kind == "f" and bool(0 < abs(x) < jnp.finfo(x.dtype).tiny)
