"""Modules of 64-bit programs in a session without x64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert

X = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)

KEY = jax.random.key(0, impl="rbg")

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    # Lowering, differentiation and transposition each make arrays of the session's types.
    "betainc": lambda x: jax.scipy.special.betainc(2.0, 3.0, x),
    "gather": lambda x: jnp.take(x, jnp.array([1, 0, 1]), axis=0),
    "convolve": lambda x: jnp.convolve(x[0], x[1]),
    "sort": lambda x: (jnp.sort(x), jnp.argsort(x)),
    "scan": lambda x: lax.scan(lambda c, t: (jnp.sin(c) * t, c), x[0], x),
    "bits": lambda x: (
        x[0] * jax.random.bits(jax.random.key(0, impl="rbg"), (3,), jnp.uint64) / 2e19
    ),
}


def loss(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def scalar(x: Any) -> Any:
        floats = [r for r in jax.tree.leaves(f(x)) if jnp.issubdtype(r.dtype, jnp.floating)]
        return sum(jnp.sin(r.astype(jnp.float32)).sum() for r in floats)

    return scalar


USES: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.jit(jax.vmap(f))(jnp.stack([x, x + 0.01])),
    "grad": lambda f: jax.jit(jax.grad(loss(f))),
    "jvp": lambda f: lambda x: jax.jvp(loss(f), (x,), (jnp.ones_like(x),))[1],
    "hessian": lambda f: jax.jit(jax.hessian(loss(f))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_transformations_of_a_64_bit_program_without_x64(name: str) -> None:
    f = PROGRAMS[name]
    with jax.enable_x64(True):
        exported = jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct(X.shape, np.float64))
        module = invert.from_exported(exported)
        wanted = {use: transform(f)(jnp.asarray(X, np.float64)) for use, transform in USES.items()}
    for use, transform in USES.items():
        found = transform(lambda x: module(x))(jnp.asarray(X))
        for have, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted[use]), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=use)
