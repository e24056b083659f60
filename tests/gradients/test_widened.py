"""Gradients that seem to differ by rounding are compared again, computed in 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert._private.jax import trace_closed
from invert.gradients.widened import OneWidthError, wide, widened

X = np.array([0.3, -1.2, 2.5, 0.8], np.float32)


def with_rule(function: Callable[..., Any], slope: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    rule = jax.custom_vjp(function)
    rule.defvjp(lambda x: (function(x), x), lambda x, dy: (slope(x, dy),))
    return rule


@pytest.mark.parametrize(
    "function",
    [
        with_rule(
            jnp.tanh, lambda x, dy: dy * (1 - jnp.tanh(x) ** 2) * (1 + 3e-5 * jnp.sin(7 * x))
        ),
        with_rule(jnp.sin, lambda x, dy: dy * jnp.cos(x) * (1 + 1e-5)),
        # A large term hides the error of the other in 32 bits.
        with_rule(lambda x: 1e5 * x + x**2, lambda x, dy: dy * (1e5 + x)),
        with_rule(
            lambda x: (2 * x).astype(jnp.bfloat16), lambda x, dy: dy.astype(jnp.float32) * 2.03
        ),
        with_rule(
            lambda x: lax.fori_loop(0, 14, lambda i, y: 0.5 * (y + x / y), jnp.ones_like(x)),
            lambda x, dy: dy * (0.5 + 1e-5) / jnp.sqrt(x),
        ),
    ],
    ids=["factor", "close to one", "beside a large term", "in 16 bits", "of a fixed point"],
)
def test_a_small_difference_is_not_rounding(function: Callable[..., Any]) -> None:
    x = np.abs(X)
    exported = jax.export.export(jax.jit(function))(x)
    module: Any = invert.from_exported(exported.serialize(vjp_order=1))
    assert "kept as" in module.report.gradients[0]
    wanted, found = (jax.vjp(f, x)[1](jnp.ones_like(f(x)))[0] for f in (function, module))
    np.testing.assert_array_equal(found, wanted)


def test_rounding_is_not_a_difference() -> None:
    function = with_rule(
        lambda x: jnp.log(jnp.cosh(x)).sum(),
        lambda x, dy: dy * (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x)),
    )
    exported = jax.export.export(jax.jit(function))(X)
    module = invert.from_exported(exported.serialize(vjp_order=1))
    assert "agrees with autodiff numerically" in module.report.gradients[0]


def loops(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = lax.cond(row > 0, jnp.sin, lambda y: y * 0.1, carry)
        return carry, jax.nn.relu(carry) + row

    carry, rows = lax.scan(step, x, x)
    return lax.fori_loop(0, 3, lambda i, y: y * x + i, carry), jnp.sort(rows @ jnp.outer(x, x))


@pytest.mark.parametrize(
    "function",
    [
        loops,
        lambda x: jax.vjp(lambda x: jnp.linalg.inv(jnp.outer(x, x) + jnp.eye(4)), x)[1](jnp.eye(4)),
        lambda x: jnp.abs(jnp.fft.rfft(x)) + lax.reduce_precision(x[:3], 8, 23),
        jax.checkpoint(lambda x: jnp.cumsum(x).at[1].mul(3) * np.array([0.5, 1, 2, 3], np.float32)),
        lambda x: lax.top_k(x, 4)[0] * jnp.maximum(x, jnp.roll(x, 1)).max(),
    ],
)
def test_a_program_in_64_bits(function: Callable[..., Any]) -> None:
    program = trace_closed(function, X)
    with jax.enable_x64(True):
        results = widened(program, [wide(X)])
        wanted = jax.tree.leaves(function(wide(X)))
        for found, value in zip(results, wanted, strict=True):
            assert found.dtype == value.dtype
            np.testing.assert_allclose(found, value, rtol=1e-6)


def test_bits_have_one_width() -> None:
    program = trace_closed(lambda x: lax.bitcast_convert_type(x, np.int32), X)
    with jax.enable_x64(True), pytest.raises(OneWidthError, match="bitcast_convert_type"):
        widened(program, [wide(X)])
