"""Constant arrays as text: lists, repetitions, or index arithmetic."""

from __future__ import annotations

import ast

import numpy as np

from invert.emission.expressions import literals
from invert.emission.python import syntax
from invert.emission.python.syntax import call, number

# Longer arrays are written as repetitions, if possible.
_SHORT = 8
# Shorter vectors are clear as they are.
_FEW = 6


def array(value: np.ndarray, library: str = "jnp") -> ast.expr:
    """A call of `jax.numpy` or, with `library="np"`, of NumPy that returns an array."""
    dtype = literals.dtype(value.dtype)
    if not value.size:  # lists do not tell all sizes
        return call(f"{library}.zeros", literals.shape(value.shape), dtype)
    if (text := _multiples(value, dtype, library)) is not None:
        return text
    whole = call(f"{library}.array", literals.value(value.tolist()), dtype)
    if value.size <= _SHORT or not value.ndim:
        return whole
    flat = value.reshape(-1)
    period = next(p for p in range(1, flat.size + 1) if _repeats(flat, p))
    text = _indices(flat, dtype, library)
    if text is None and period <= _SHORT:
        part = call(f"{library}.array", literals.value(flat[:period].tolist()), dtype)
        text = call(f"{library}.tile", part, number(flat.size // period))
    if text is None:
        return whole
    return text if value.ndim == 1 else syntax.method(text, "reshape", *map(number, value.shape))


def is_table(value: np.ndarray) -> bool:
    """Return whether an array can be written shorter than as a list."""
    if value.size <= _SHORT or value.dtype.kind not in "iuf":
        return False
    text = ast.unparse(array(value, "np"))
    return ".tile(" in text or ".arange(" in text


def _repeats(flat: np.ndarray, period: int) -> bool:
    times, rest = divmod(flat.size, period)
    return not rest and flat[:period].tobytes() * times == flat.tobytes()  # NaN and -0 among them


def _multiples(value: np.ndarray, dtype: ast.expr, library: str) -> ast.expr | None:
    """`0.25 * jnp.arange(8, dtype=jnp.float32)`, if a vector equals that bit for bit."""
    if value.ndim != 1 or value.size < _FEW or value.dtype not in (np.float32, np.float64):
        return None
    places = np.arange(value.size, dtype=value.dtype)
    if (places * value[1]).tobytes() != value.tobytes():
        return None
    counted = call(f"{library}.arange", number(value.size), dtype=dtype)
    step = float(value[1])
    return counted if step == 1 else syntax.infix(literals.value(step), "*", counted)


def _indices(flat: np.ndarray, dtype: ast.expr, library: str) -> ast.expr | None:
    """`jnp.clip((jnp.arange(8) + 1) // 2, 0, 3)`, if a vector has that form."""
    if not np.issubdtype(flat.dtype, np.integer):
        return None
    places = np.arange(flat.size)
    for step in range(1, _SHORT + 1):
        for shift in range(-step, step + 1):
            found = (places + shift) // step
            low, high = int(flat.min()), int(flat.max())
            if not (np.clip(found, low, high) == flat).all():
                continue
            text: ast.expr = call(f"{library}.arange", number(flat.size), dtype=dtype)
            if shift:
                text = syntax.infix(text, "+" if shift > 0 else "-", number(abs(shift)))
            text = text if step == 1 else syntax.infix(text, "//", number(step))
            if (found == flat).all():
                return text
            return call(f"{library}.clip", text, number(low), number(high))
    return None
