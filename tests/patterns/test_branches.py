"""Branches of `lax.cond` and `lax.switch` under `jax.vmap`: untaken ones add no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
from jax import Array, lax

import invert
from invert.testing import assert_roundtrip


def _roots(x: Array) -> Array:
    return lax.cond(x > 0, jnp.sqrt, jnp.sin, x)


def _four(x: Array) -> Array:
    which = jnp.clip(jnp.floor(x).astype(jnp.int32), 0, 3)
    return lax.switch(which, [jnp.sin, jnp.sqrt, jnp.log, lambda x: 1 / (x - 2)], x)


def _rows(row: Array) -> Array:
    return lax.cond(row[0] > 0, lambda r: r / r[0], jnp.cos, row)


def _nested(x: Array) -> Array:
    return lax.cond(x > 1, lambda x: jnp.sqrt(x - 1), _roots, x)


def _steps(x: Array) -> Array:
    return lax.scan(lambda c, _: (_roots(c) - 0.5, c), x, None, length=4)[0]


@pytest.mark.parametrize("f", [_roots, _four, _nested, _steps])
def test_a_branch_not_taken_adds_no_derivative(f: Callable[[Array], Array]) -> None:
    x = jnp.array([0.0, 1.0, -1.0, 2.0, 2.5, 3.0])
    module = assert_roundtrip(jax.vmap(f), x)
    expected = jax.grad(lambda x: jax.vmap(f)(x).sum())(x)
    callables: list[Any] = [module, module.model]
    for g in callables:
        np.testing.assert_allclose(jax.grad(lambda x, g=g: g(x).sum())(x), expected, rtol=1e-6)


@pytest.mark.parametrize("f", [_roots, _four, _nested, _steps])
def test_a_derivative_of_branches_has_derivatives_in_turn(f: Callable[[Array], Array]) -> None:
    x = jnp.array([0.0, 1.0, -1.0, 2.0, 2.5, 3.0])
    slopes = jax.grad(lambda x: jax.vmap(f)(x).sum())
    module = assert_roundtrip(slopes, x)
    expected = jax.grad(lambda x: slopes(x).sum())(x)
    callables: list[Any] = [module, module.model]
    for g in callables:
        np.testing.assert_allclose(jax.grad(lambda x, g=g: g(x).sum())(x), expected, rtol=1e-6)


@pytest.mark.parametrize("open_batch", [False, True])
def test_operands_of_more_axes_than_the_index(open_batch: bool) -> None:
    f, x = jax.vmap(_rows), jnp.array([[0.0, 1.0], [2.0, 0.0]])
    shape = jax.export.symbolic_shape("b, 2") if open_batch else x.shape
    exported = jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct(shape, x.dtype))
    module = invert.from_exported(exported)
    expected = jax.grad(lambda x: f(x).sum())(x)
    callables: list[Any] = [module, module.model]
    for g in callables:
        np.testing.assert_array_equal(jax.grad(lambda x, g=g: g(x).sum())(x), expected)
    assert module.report.certificate.kind == "exact"


def test_library_functions_that_hold_branches() -> None:
    x = jnp.array([0.0, 1.0, 0.5, 2.0, 3.0])
    assert_roundtrip(jax.scipy.special.spence, x)


@pytest.mark.parametrize(
    "factor", [lambda which: 1.0, lambda which: jnp.where(which == 1, 2.0, 1.0)]
)
def test_a_selection_between_equal_values_is_left_alone(factor: Callable[[Array], Any]) -> None:
    def f(x: Array, which: Array) -> Array:
        return jnp.where(which == 1, x, x) ** 3 * factor(which)

    module = assert_roundtrip(f, jnp.arange(3.0), jnp.arange(3))
    assert "stop_gradient" not in str(module.jaxpr)
