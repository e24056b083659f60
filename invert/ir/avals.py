"""Types of values: shape and dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np

from invert.ir.sizes import DimSize
from invert.ir.types import Atom, Aval, Value


def type_of(atom: Atom) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a variable or literal."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def type_of_value(value: Value) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array, a number or a type."""
    return jax.ShapeDtypeStruct(np.shape(value), jax.dtypes.result_type(value))


def type_text(dtype: np.dtype, shape: Sequence[DimSize | str | None]) -> str:
    """A type in words, as `float32[3, b, ?]`; `None` is a size that is not known."""
    return f"{dtype}[{', '.join('?' if n is None else str(n) for n in shape)}]"


def fits_shape(shape: Sequence[DimSize | None], declared: Sequence[DimSize | None]) -> bool:
    """Return whether a shape is the declared one, in which `None` is any size."""
    return len(shape) == len(declared) and all(
        want is None or want == have for want, have in zip(declared, shape, strict=True)
    )


def type_of_key() -> jax.ShapeDtypeStruct:
    """The type of `jax.random.key(0)`, which compiles four programs where it is called."""
    return jax.eval_shape(jax.random.key, jax.ShapeDtypeStruct((), np.uint32))


def is_key(v: Atom) -> bool:
    """Return whether a value is a single PRNG key."""
    return not v.aval.shape and is_keys(v)


def is_keys(v: Atom) -> bool:
    """Return whether a value is a PRNG key or an array of them."""
    return jax.dtypes.issubdtype(v.aval.dtype, jax.dtypes.prng_key)


def is_weak(v: Atom) -> bool:
    """Return whether the type of a value is weak."""
    return bool(getattr(v.aval, "weak_type", False))


def is_differentiable(aval: Aval) -> bool:
    """Return whether values of this type have tangents."""
    return jax.dtypes.issubdtype(aval.dtype, np.inexact)


def with_float0(found: Iterable[Value], atoms: Sequence[Atom]) -> list[Value]:
    """A tangent for each value: those in `found`, with `float0` where there are none.

    Its shape may be open, which NumPy's arrays cannot have.
    """
    rest, zero = iter(found), np.zeros((), jax.dtypes.float0)
    return [
        next(rest) if is_differentiable(v.aval) else jax.lax.broadcast(zero, v.aval.shape)
        for v in atoms
    ]
