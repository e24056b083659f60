"""Special functions come back from their expansions; look-alikes do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._private.jax import iota_2x32_shape
from tests.patterns.recovery import (
    equations,
    positive,
    primitives,
    recover,
    same_program,
    same_values,
    struct,
)

UNARY = (
    lax.erfc,
    lax.erf_inv,
    lax.lgamma,
    lax.digamma,
    lax.bessel_i0e,
    lax.bessel_i1e,
    lax.exp2,
    lax.atan,
    lax.asin,
    lax.logistic,
    lax.square,
)
BINARY = (lax.nextafter, lax.polygamma, lax.igamma, lax.igammac, lax.igamma_grad_a)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary(function: Callable[..., Any], dtype: str) -> None:
    same_program(function, struct(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary(function: Callable[..., Any], dtype: str) -> None:
    same_program(function, struct(dtype), struct(dtype))


@pytest.mark.parametrize("shape", [(), (1, 3)], ids=["scalar", "stretched"])
@pytest.mark.parametrize("function", [lax.igamma, lax.nextafter], ids=lambda f: f.__name__)
def test_operands_of_other_shapes(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    y = np.ones(shape, np.float32)
    module = recover(lambda x: function(x, y) if shape else function(x, 2.5), struct("float32"))
    assert primitives(module)[function.__name__] == 1
    assert "select_n" not in primitives(module)


def test_betainc() -> None:
    same_program(lax.betainc, *[struct("float32")] * 3)


@pytest.mark.parametrize("dtype", ["uint8", "uint32"])
def test_sign_of_unsigned(dtype: str) -> None:
    same_program(lax.sign, struct(dtype))


@pytest.mark.parametrize("which", [(), (2, 3)], ids=["scalar", "array"])
@pytest.mark.parametrize("cases", [2, 3, 4, 7])
def test_select_n(cases: int, which: tuple[int, ...]) -> None:
    same_program(lax.select_n, struct("int32", which), *[struct("float32")] * cases)


@pytest.mark.parametrize("shape", [(3,), (3, 4)])
def test_iota_2x32_shape(shape: tuple[int, ...]) -> None:
    module = recover(lambda: iota_2x32_shape(shape))
    assert primitives(module) == {"iota_2x32_shape": 1}


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "complex64"])
@pytest.mark.parametrize("y", [-5, -3, -2, -1, 2, 3, 4, 5, 8, 11, 31])
def test_integer_pow(y: int, dtype: str) -> None:
    if y > 0 or dtype != "int32":
        same_program(lambda x: lax.integer_pow(x, y), struct(dtype))


@pytest.mark.parametrize("new", ["bool", "float32", "int32", "complex64"])
@pytest.mark.parametrize("old", ["int8", "bfloat16", "complex64"])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_convert_element_type(old: str, new: str) -> None:
    if old != new:
        same_program(lambda x: lax.convert_element_type(x, new), struct(old))


@pytest.mark.parametrize("function", [lax.max, lax.min], ids=lambda f: f.__name__)
def test_extremum_of_bool(function: Callable[..., Any]) -> None:
    same_program(function, struct("bool"), struct("bool"))


def test_integer_exponent() -> None:
    same_program(lax.pow, struct("float32"), struct("int32"))


X = positive()
NEAR: dict[str, tuple[Callable[..., Any], str]] = {
    "another constant in exp2": (lambda x: jnp.exp(x * 0.6931), "exp2"),
    "another numerator": (lambda x: 2 / (1 + jnp.exp(-x)), "logistic"),
    "another denominator": (lambda x: 1 / (2 + jnp.exp(-x)), "logistic"),
    "another sign": (lambda x: 1 / (1 - jnp.exp(-x)), "logistic"),
    "another atan2": (lambda x: lax.atan2(x, jnp.full_like(x, 2)), "atan"),
    "atan2 the other way": (lambda x: lax.atan2(jnp.ones_like(x), x), "atan"),
    "a product of two": (lambda x: x * (x + 1), "integer_pow"),
    "a product by hand": (lambda x: x * x, "square"),
    "three factors by hand": (lambda x: x * x * x, "integer_pow"),
    "another association": (lambda x: x * x * x * x * x, "integer_pow"),
    "another index": (
        lambda x: jnp.where(x < 0.5, x, jnp.where(x < 0.7, x + 1, x + 2)),
        "nextafter",
    ),
}


@pytest.mark.parametrize("name", sorted(NEAR))
def test_near_miss(name: str) -> None:
    function, primitive = NEAR[name]
    module = recover(function, X)
    assert primitive not in primitives(module)
    same_values(function, module, X)


@pytest.mark.parametrize("bounds", [(2, 1), (1, 3), (0, 1)])
def test_selection_by_other_bounds(bounds: tuple[int, int]) -> None:
    def function(i: Any, a: Any, b: Any, c: Any) -> Any:
        return lax.select(i < bounds[0], a, lax.select(i < bounds[1], b, c))

    args = np.array([0, 1, 2], np.int32), *(np.full(3, n, np.float32) for n in (1, 2, 3))
    module = recover(function, *args)
    selections = [e for e in module.jaxpr.eqns if e.primitive.name == "select_n"]
    assert [len(e.invars) for e in selections] == [3, 3]
    same_values(function, module, *args)


def test_shared_constants_do_not_hide_a_second_use() -> None:
    def function(x: Any) -> Any:
        return lax.lgamma(x) + lax.lgamma(x + 1) * lax.digamma(x)

    counts = primitives(recover(function, X))
    assert (counts["lgamma"], counts["digamma"]) == (2, 1)


def test_interior_value_used_outside() -> None:
    def function(x: Any) -> Any:
        y = x * x
        return y * y, y

    module = recover(function, X)
    assert primitives(module) == {"mul": 2}
    same_values(function, module, X)


@pytest.mark.parametrize(
    "function", [lax.erfc, lax.logistic, lambda x: x**5], ids="erfc logistic pow".split()
)
def test_inside_control_flow(function: Callable[..., Any]) -> None:
    def nested(x: Any) -> Any:
        def step(c: Any, _: None) -> Any:
            return jax.jit(function)(c), None

        y, _ = lax.scan(step, x, None, length=3)
        return lax.cond(y.sum() > 0, function, lambda y: y, y)

    module = recover(nested, X)
    (name,) = primitives(recover(function, X))
    want = {e.primitive.name for e in equations(jax.make_jaxpr(nested)(X))}
    assert name in want
    assert set(primitives(module)) == want
    same_values(nested, module, X)


def test_derivatives() -> None:
    def function(x: Any) -> Any:
        return (lax.lgamma(x) + lax.erf_inv(x) + lax.logistic(x) ** 3).sum()

    module = recover(function, X)
    for transform in (jax.grad, jax.hessian):
        want, got = transform(function)(X), transform(module)(X)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_switched_off() -> None:
    module = recover(lax.bessel_i0e, X, disabled_patterns=("bessel_i0e",))
    assert "bessel_i0e" not in primitives(module)
    same_values(lax.bessel_i0e, module, X)
