"""Settings of a session: what is recovered and written does not depend on them."""

from __future__ import annotations

import contextlib
import warnings

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

SETTINGS = {
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "dtype promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no jit": lambda: jax.disable_jit(),
    "NaN": lambda: jax.debug_nans(True),
    "inf": lambda: jax.debug_infs(True),
    "transfers": lambda: jax.transfer_guard("disallow"),
    "64 bits": lambda: jax.enable_x64(True),
    "leaks": lambda: jax.checking_leaks(),
}


@jax.custom_vjp
def log(x):
    return jnp.log(x)


# Differs from autodiff, which comparing on numbers shows: NaN and infinities among them.
log.defvjp(lambda x: (log(x), x), lambda x, c: (jnp.where(x > 0, 1.5 * c / x, 0.0),))


@jax.jit
def program(x, key):
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, x.shape)
    half = x.astype(jnp.bfloat16) @ jnp.ones((3, 3), jnp.bfloat16)
    start = jax.lax.stop_gradient(x.sum())
    half *= jax.lax.while_loop(lambda n: n < 3, lambda n: 2 * n * n + 1, start).astype(half.dtype)
    y = jax.nn.softmax(half.astype(jnp.float32) + jnp.arange(3.0))
    return jnp.where(kept, log(y), 0.0)


@pytest.fixture(scope="module")
def artifact() -> bytes:
    types = jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((2,), np.uint32)
    return bytes(jax.export.export(program)(*types).serialize(vjp_order=1))


def _recovered(artifact: bytes) -> tuple[str, str, tuple[str, ...]]:
    module = invert.from_exported(artifact)
    return module.source, module.report.certificate.kind, module.report.gradients


@pytest.fixture(scope="module")
def usual(artifact: bytes) -> tuple[str, str, tuple[str, ...]]:
    found = _recovered(artifact)
    assert "softmax" in found[0] and "bernoulli" in found[0]
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_text_is_the_same_under_all_settings(artifact, usual, setting: str) -> None:
    # Tables and templates of earlier conversions would hide what a setting changes.
    jax.clear_caches()
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("error")
        stack.enter_context(SETTINGS[setting]())
        assert _recovered(artifact) == usual
