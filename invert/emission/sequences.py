"""Computes constants that are arithmetic sequences, causal masks or one number where they are used.

The exponents of a rotary embedding are constants in a TensorFlow graph, which has folded them, and
so is a causal mask that an author makes with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from invert._private.jax import names_of, open_jaxpr, rename_operands, trace_closed, with_names
from invert.ir.graph import is_var, read_by, reads
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# Shorter vectors are clear as they are.
_FEW = 4


def compute_sequences(
    jaxpr: Jaxpr, constants: Sequence[np.ndarray]
) -> tuple[Jaxpr, list[np.ndarray], list[int]]:
    """A program that computes its sequences and masks next to each use of them.

    They equal the constants bit for bit where divisions are rounded as IEEE 754 requires.

    **Arguments:**

    - `constants`: the values of its leading arguments.

    **Returns:** the program over the other constants, these, and their numbers in `constants`.
    """
    own = jaxpr.invars[: len(constants)]
    results = {a for a in jaxpr.outvars if is_var(a)}
    made = {
        v: formula
        for v, value in zip(own, constants, strict=True)
        if v not in results and (formula := _formula(value, _is_summand(v, jaxpr)))
    }
    if not made:
        return jaxpr, list(constants), list(range(len(constants)))
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        new: dict[Var, Atom] = {}
        for v in [a for a in read_by([eqn]) if a in made]:
            traced = open_jaxpr(trace_closed(made[v]))
            eqns += [with_names(e, names_of(eqn)) for e in traced.eqns]
            (new[v],) = traced.outvars
        eqns.append(rename_operands(eqn, new))
    kept = [i for i, v in enumerate(own) if v not in made]
    invars = [*(own[i] for i in kept), *jaxpr.invars[len(own) :]]
    return jaxpr.replace(invars=invars, eqns=eqns), [constants[i] for i in kept], kept


def _formula(value: np.ndarray, summand: bool) -> Callable[[], jax.Array] | None:
    """A function that returns an array, if that is a mask, a sequence of floats or one number.

    The product with a step is none for a `summand`: XLA may round a product and a sum at once.
    """
    dtype = value.dtype
    if value.size and value.ndim and dtype.kind in "if":
        number = value.flat[0]
        if np.full_like(value, number).tobytes() == value.tobytes():
            return lambda: jnp.full(value.shape, number, dtype)
    if value.ndim > 1:
        return _triangle(value)
    if value.ndim != 1 or value.size < _FEW or value.dtype not in (np.float32, np.float64):
        return None
    count, step = value.size, value[1]
    places = np.arange(count, dtype=dtype)
    total = round(float(step) * count) if np.isfinite(step) else 0
    if abs(total) == 1 and (total * (places / dtype.type(count))).tobytes() == value.tobytes():
        if total < 0:
            return lambda: -(jnp.arange(count, dtype=dtype) / count)
        return lambda: jnp.arange(count, dtype=dtype) / count
    if summand or not step or not np.isfinite(step) or (places * step).tobytes() != value.tobytes():
        return None
    return lambda: float(step) * jnp.arange(count, dtype=dtype)


def _triangle(value: np.ndarray) -> Callable[[], jax.Array] | None:
    """A function that returns an array of zeros but for one number, on one side of a diagonal."""
    if min(value.shape[-2:]) < _FEW or value.dtype.kind not in "bif":
        return None
    below, above = value[..., -1, 0].flat[0], value[..., 0, -1].flat[0]
    if bool(below) == bool(above):
        return None
    x, start = (below, 0) if below else (above, 1)
    part = np.tril if below else np.triu
    if part(np.full_like(value, x), start).tobytes() != value.tobytes():
        return None
    written = jnp.tril if below else jnp.triu
    return lambda: written(jnp.full(value.shape, x, value.dtype), start)


def _is_summand(v: Var, jaxpr: Jaxpr) -> bool:
    """Return whether an array, possibly in another shape, is added to another."""
    forms = {v}
    for eqn in jaxpr.eqns:
        if reads(eqn, forms):
            if eqn.primitive.name in ("add", "sub"):
                return True
            if eqn.primitive.name in ("reshape", "broadcast_in_dim", "transpose"):
                forms.add(eqn.outvars[0])
    return False
