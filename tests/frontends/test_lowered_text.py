"""The text of `jax.jit(f).lower(x)` gives the program that an export of `f` gives.

JAX writes defaults of attributes out, and a constant for each use; exporting drops and merges them,
and expands ops of CHLO.
"""

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

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32) + 4 * np.eye(4, dtype="f4")
FUNCTIONS = {
    "cholesky": lax.linalg.cholesky,
    "eigh": jnp.linalg.eigh,
    "qr": jnp.linalg.qr,
    "svd": jnp.linalg.svd,
    "schur": lax.linalg.schur,
    "hessenberg": lax.linalg.hessenberg,
    "tridiagonal": lax.linalg.tridiagonal,
    "lu": lax.linalg.lu,
    "slogdet": jnp.linalg.slogdet,
    "inv": jnp.linalg.inv,
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "sort of two": lambda x: lax.sort((x, -x), num_keys=2),
    "sort of complex": lambda x: jnp.sort(x + 1j * x.T),
    "igamma": lambda x: lax.igamma(jnp.abs(x), jnp.abs(x.T)),
    "igammac": lambda x: lax.igammac(jnp.abs(x), jnp.abs(x.T)),
    "igamma_grad_a": lambda x: lax.igamma_grad_a(jnp.abs(x), jnp.abs(x.T)),
    "betainc": lambda x: lax.betainc(jnp.abs(x), jnp.abs(x.T), x),
    "erfcx": jax.scipy.special.erfcx,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_text_of_a_lowering_is_the_program_of_its_export(name: str) -> None:
    jitted = jax.jit(FUNCTIONS[name])
    text = invert.from_stablehlo(jitted.lower(X).as_text())
    exported = invert.from_exported(jax.export.export(jitted)(X))
    want, got = exported(X), text(X)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(got), jax.tree.leaves(want))
    assert not text.report.opaque
    assert text.report.certificate.kind == "exact"
    assert text.report.primitives == exported.report.primitives


@pytest.mark.parametrize("function", [jnp.linalg.slogdet, jnp.linalg.eigh, jnp.linalg.inv])
def test_the_text_of_a_lowering_has_derivatives(function: Callable[..., Any]) -> None:
    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)))

    module = invert.from_stablehlo(jax.jit(function).lower(X).as_text())
    got = jax.jit(jax.grad(total(module)))(X)
    np.testing.assert_allclose(got, jax.jit(jax.grad(total(function)))(X), rtol=1e-5)
