"""Options of XLA's compiler: the installed one takes them, and results stay."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert


def slopes(x: Any, kernel: Any) -> Any:
    def loss(kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return jax.nn.relu(y).sum()

    return jax.grad(loss)(kernel)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit])
def test_the_installed_compiler_takes_them(jit: Any, gradient: bool) -> None:
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(8, 16, 16, 8)), rng.normal(size=(3, 3, 8, 8))
    options = invert.compiler_options("cpu", gradient=gradient, finite=True)
    run = jit(slopes, compiler_options=options)
    got = run(x.astype(np.float32), kernel.astype(np.float32))
    with jax.enable_x64(True):
        wanted = slopes(x, kernel)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.max(np.abs(wanted)))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("act", [jax.nn.relu, functools.partial(jax.nn.gelu, approximate=False)])
def test_a_barrier_keeps_the_nan_of_a_convolution(
    act: Callable[[jax.Array], jax.Array], gradient: bool
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 16, 16, 8)).astype(np.float32)
    x[0, 3, 3, 0], x[1, 3, 3, 0], x[2, 3, 3, 0] = np.nan, np.inf, -np.inf
    kernel, bias = rng.normal(size=(3, 3, 8, 16)), rng.normal(size=16)
    kernel, bias = kernel.astype(np.float32), bias.astype(np.float32)

    def layer(x: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return act(lax.optimization_barrier(y) + bias)

    run = jax.grad(lambda x: jnp.sum(layer(x))) if gradient else layer
    options = invert.compiler_options("cpu", gradient=gradient, finite=True)
    got, wanted = jax.jit(run, compiler_options=options)(x), jax.jit(run)(x)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_none_where_nothing_was_measured(monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0.1")
    options = invert.compiler_options(finite=True)
    assert {} != options != invert.compiler_options(gradient=True, finite=True) != {}
    assert invert.compiler_options() == invert.compiler_options(gradient=True) == {}
    assert invert.compiler_options("gpu", finite=True) == {}
    assert invert.compiler_options("tpu", gradient=True, finite=True) == {}
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert invert.compiler_options(finite=True) == {}
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for version in ("0.10.2", "0.99.1"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, v=version: v)
        assert invert.compiler_options(finite=True) == {}
