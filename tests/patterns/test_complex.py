"""Complex functions come back from their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.patterns.recovery import positive, primitives, recover, same_program, same_values, struct

UNARY = (
    *(lax.exp, lax.exp2, lax.log, lax.expm1, lax.log1p, lax.sqrt, lax.rsqrt, lax.square),
    *(lax.sin, lax.cos, lax.tan, lax.sinh, lax.cosh, lax.tanh),
    *(lax.asin, lax.acos, lax.atan, lax.asinh, lax.acosh, lax.atanh),
    *(lax.abs, lax.sign, lax.conj, lax.real, lax.imag, lax.logistic),
)
BINARY = (lax.max, lax.min, lax.pow, lax.add, lax.div, lax.eq)
Z = (positive() + 1j * positive()[::-1]).astype(np.complex64)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary(function: Callable[..., Any], dtype: str) -> None:
    same_program(function, struct(dtype))


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary(function: Callable[..., Any]) -> None:
    same_program(function, struct("complex64"), struct("complex64"))


def test_conj_of_real() -> None:
    same_program(lax.conj, struct("float32"))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_convolution(padding: str) -> None:
    same_program(
        lambda x, y: lax.conv_general_dilated(x, y, (2, 1), padding),
        struct("complex64", (1, 2, 5, 6)),
        struct("complex64", (3, 2, 2, 2)),
    )


def _lexicographic(swap: bool) -> Callable[..., Any]:
    """The selection of `max`, or one that compares imaginary parts first."""

    def function(x: Any, y: Any) -> Any:
        parts = [(lax.real(x), lax.real(y)), (lax.imag(x), lax.imag(y))]
        (a, b), (c, d) = parts[::-1] if swap else parts
        return lax.select(lax.select(a == b, c > d, a > b), x, y)

    return function


def test_maximum_by_hand() -> None:
    assert primitives(recover(_lexicographic(False), Z, Z.T.reshape(Z.shape)))["max"] == 1


NEAR: dict[str, tuple[Callable[..., Any], str]] = {
    "imaginary parts first": (lambda x: _lexicographic(True)(x, -x), "max"),
    "the other part negated": (lambda x: lax.complex(-lax.real(x), lax.imag(x)), "conj"),
    "parts of two numbers": (lambda x: lax.complex(lax.real(x), -lax.imag(x + 1)), "conj"),
    "a constant imaginary part": (
        lambda x: lax.complex(lax.real(x), jnp.ones_like(lax.real(x))),
        "conj",
    ),
    "another numerator": (lambda x: 2 / (1 + jnp.exp(-x)), "logistic"),
}


@pytest.mark.parametrize("name", sorted(NEAR))
def test_near_miss(name: str) -> None:
    function, primitive = NEAR[name]
    module = recover(function, Z)
    assert primitive not in primitives(module)
    same_values(function, module, Z)


def test_interior_value_used_outside() -> None:
    def function(x: Any) -> Any:
        minus = -lax.imag(x)
        return lax.complex(lax.real(x), minus), minus

    module = recover(function, Z)
    assert "conj" not in primitives(module)
    same_values(function, module, Z)


def test_inside_control_flow() -> None:
    def nested(x: Any) -> Any:
        y, _ = lax.scan(lambda c, _: (jax.jit(lax.sin)(c), None), x, None, length=3)
        return lax.cond(jnp.real(y).sum() > 0, jnp.sqrt, jnp.conj, y)

    module = recover(nested, Z)
    counts = primitives(module)
    assert (counts["sin"], counts["sqrt"], counts["conj"]) == (1, 1, 1)
    same_values(nested, module, Z)


def test_derivative() -> None:
    def function(x: Any) -> Any:
        return jnp.abs(jnp.exp(x) * jnp.sqrt(x) + jnp.sin(x)).sum()

    module = recover(function, Z)
    np.testing.assert_allclose(jax.grad(module)(Z), jax.grad(function)(Z), rtol=1e-5, atol=1e-5)
