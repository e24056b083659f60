"""Library functions with custom derivative rules, also at ties, bounds and steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
from jax import lax, nn

import invert
from tests.patterns.recovery import recover, same_values

# Ties, zeros and the bounds of relu6.
X = np.array([[0.0, 1.0, -1.0, 6.0], [6.0, 0.0, 2.0, 2.0], [-3.0, -3.0, 0.0, 7.0]], np.float32)

FUNCTIONS = {
    "relu": nn.relu,
    "relu6": nn.relu6,
    "softplus": nn.softplus,
    "log_sigmoid": nn.log_sigmoid,
    "log_softmax": nn.log_softmax,
    "softmax": nn.softmax,
    "softmax, axis 0": lambda x: nn.softmax(x, axis=0),
    "logsumexp": nn.logsumexp,
    "logsumexp, axis": lambda x: nn.logsumexp(x, axis=1, keepdims=True),
    "logaddexp": lambda x: jnp.logaddexp(x, x[::-1]),
    "logaddexp2": lambda x: jnp.logaddexp2(x, x),
    "sinc": jnp.sinc,
    "i0": jnp.i0,
    "log1mexp": nn.log1mexp,
    "entr": jax.scipy.special.entr,
    "erfcx": jax.scipy.special.erfcx,
    "dawsn": jax.scipy.special.dawsn,
    # Far from the real axis, where the derivative of the equations overflows.
    "wofz": lambda x: jax.scipy.special.wofz(lax.complex(x, 4 * x)).imag,
    "frexp": lambda x: jnp.multiply(*jnp.frexp(x)),
    "frexp, mantissa": lambda x: jnp.frexp(x)[0],
    "xlogy": lambda x: jax.scipy.special.xlogy(x, jnp.abs(x)),
    "det": lambda x: jnp.linalg.det(x @ x.T),
    "slogdet": lambda x: jnp.linalg.slogdet(x @ x.T + jnp.eye(3))[1],
    "pinv": jnp.linalg.pinv,
    "expi": lambda x: jax.scipy.special.expi(jnp.abs(x) + 0.5),
    # The derivatives of the equations are NaN at zero.
    "sici": lambda x: jnp.stack(jax.scipy.special.sici(x)),
    "sici, sine": lambda x: jax.scipy.special.sici(x)[0],
    "sici, cosine": lambda x: jax.scipy.special.sici(x)[1],
    "fresnel": lambda x: jnp.stack(jax.scipy.special.fresnel(x)),
    # Bounds, where the derivatives of the equations are zero in jax 0.12.
    "ndtri": lambda x: jax.scipy.special.ndtri(x / 7),
    "hypot": lambda x: jnp.hypot(x, 1e25 * x[::-1]),
    "rel_entr": lambda x: jax.scipy.special.rel_entr(jnp.abs(x) + 1, jnp.abs(x[::-1]) + 0.5),
    "kl_div": lambda x: jax.scipy.special.kl_div(jnp.abs(x) + 1, jnp.abs(x[::-1]) + 0.5),
    # Those of `abs` and `where` at zero and at one.
    "owens_t": lambda x: jax.scipy.special.owens_t(x, x[::-1]),
    # The primitive has none.
    "zeta": lambda x: jax.scipy.special.zeta(jnp.abs(x) + 2, jnp.square(x) + 1),
    # Their loops have no reverse derivatives.
    "exp1": lambda x: jax.scipy.special.exp1(jnp.abs(x) + 0.5),
    "expn": lambda x: jax.scipy.special.expn(3, jnp.abs(x) + 0.5),
    "hyp1f1": lambda x: jax.scipy.special.hyp1f1(jnp.abs(x) + 1, 2.0, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_equal_the_functions(name: str) -> None:
    function = FUNCTIONS[name]
    module = recover(function, X)
    assert module.report.certificate.kind == "exact"
    same_values(function, module, X)
    for transform in (jax.jacrev, jax.jacfwd):
        want, got = (jax.jit(transform(f))(X) for f in (function, module))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("result", [0, 1])
def test_one_result_of_slogdet(result: int) -> None:
    """A singular matrix has no finite derivative: the equations divide by other zeros."""
    function = lambda x: jnp.linalg.slogdet(x)[result]  # noqa: E731
    for x in (
        X[:, :3] @ X[:, :3].T + jnp.eye(3),
        jnp.ones((3, 3)),
        jnp.diag(jnp.array([2.0, 0, 1])),
    ):
        module = recover(function, x)
        want, got = (jax.jit(jax.grad(f))(x) for f in (function, module))
        np.testing.assert_array_equal(got, want)


def test_the_second_derivative_of_i1_near_zero() -> None:
    # That of the equations is 1 at zero, and far off around it.
    function, x = jax.scipy.special.i1, X * 1e-5
    want, got = (jax.jacfwd(jax.jacfwd(f))(x) for f in (function, recover(function, x)))
    np.testing.assert_array_equal(got, want)


def test_a_rule_that_an_inlined_function_calls() -> None:
    # The rule of `p log p` is finite times `log p + 1` where that of `xlogy` divides infinities.
    function = lambda p, q: 2 * jax.scipy.special.rel_entr(p, q)  # noqa: E731
    p, q, d = jnp.array([jnp.inf, 2.0]), jnp.array([1.0, 3.0]), (jnp.ones(2), -jnp.ones(2))
    module = recover(function, p, q)
    # A call of its own in jax 0.12.
    assert {"rel_entr", "library_call"} & set(module.report.rewrites)
    want, got = (jax.jvp(f, (p, q), d) for f in (function, module))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("function", [jnp.sinc, jnp.i0])
def test_a_program_that_is_a_library_function_itself(function: Any) -> None:
    x = jnp.array([0.0, 1.0, 6.0])
    exported = jax.export.export(function)(x)
    for module in (
        invert.from_exported(exported),
        invert.from_stablehlo(exported.mlir_module_serialized),
        invert.from_stablehlo(function.lower(x).as_text()),
    ):
        for transform in (jax.jacfwd, lambda f: jax.jacfwd(jax.jacrev(f))):
            want, got = (jax.jit(transform(f))(x) for f in (function, module))
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_derivative_of_ldexp() -> None:
    # In jax 0.12 its equations are operations on bits, which have none.
    x, i = jnp.array([0.3, -2.0, 5.0]), jnp.array([2, -1, 3])
    for function in (jnp.ldexp, lambda x, i: 2 * jnp.ldexp(x, i)):
        module = recover(function, x, i)
        want, got = (jax.jacfwd(f)(x, i) for f in (function, module))
        assert np.any(want)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: lax.fori_loop(0, 4, lambda _, y: jnp.ldexp(y, i), x),
        lambda x, i: lax.scan(lambda y, _: (jnp.ldexp(y, i) + i, y), x, length=3)[0],
        lambda x, i: lax.while_loop(lambda y: y[0] < 9, lambda y: jnp.ldexp(y, i), x),
        lambda x, i: lax.cond(x[0] > 0, jnp.ldexp, lambda x, i: x * i, x, i),
    ],
    ids=["fori_loop", "scan", "while_loop", "cond"],
)
def test_ldexp_in_control_flow(function: Any) -> None:
    # In jax 0.12 it is a primitive that lowering expands only in programs marked as holding one.
    x, i = jnp.array([0.3, -2.0, 5.0]), jnp.array([2, -1, 3])
    module = recover(function, x, i)
    for run in (module, jax.jit(module), module.model):
        np.testing.assert_array_equal(run(x, i), function(x, i))


@pytest.mark.parametrize("function", [jnp.logaddexp, jnp.logaddexp2])
def test_the_derivative_of_complex_logarithms_of_sums(function: Any) -> None:
    # Where neither is the larger one, and where the selection of `max` has no derivative.
    x, y = jnp.array([1 + 2j, 5, 0, 30]), jnp.array([0.3 + 1j, 5, 0, -30])
    module = recover(function, x, y)
    assert module.report.rewrites["complex_logaddexp"] == 1
    want, got = (jax.vjp(f, x, y)[1](x) for f in (function, module))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_users_function_of_that_name_is_left_alone() -> None:
    def relu6(x: Any) -> Any:
        return jnp.minimum(jnp.maximum(x, 0.0), 5.0)

    module = invert.from_exported(jax.export.export(jax.jit(relu6))(jnp.ones(3)))
    assert [e.primitive.name for e in module.jaxpr.eqns][-1] != "jit"
    assert "library_call" not in module.report.rewrites


LOOK_ALIKE = {
    "max with one": lambda x: jnp.maximum(x, 1.0),
    "zero first": lambda x: jnp.minimum(x, 0.0),
    "sum before max": lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=1, keepdims=True),
    "another axis": lambda x: (
        jnp.exp(x - x.max(1, keepdims=True))
        / jnp.exp(x - x.max(0, keepdims=True)).sum(1, keepdims=True)
    ),
    "no guard": lambda x: jnp.log(jnp.sum(jnp.exp(x - x.max()))) + x.max(),
}


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_look_alikes_are_left(name: str) -> None:
    function = LOOK_ALIKE[name]
    module = recover(function, X)
    rules = {"library_call", "softmax", "logsumexp", "logaddexp"}
    assert not rules & set(module.report.rewrites)
    same_values(function, module, X)


def test_inside_loops_and_branches() -> None:
    def function(x):
        y = lax.scan(lambda c, a: (nn.relu(c - a), nn.softmax(c)), x[0], x)[1]
        return lax.cond(x.sum() > 0, nn.log_softmax, nn.relu, y)

    module = recover(function, X)
    assert module.report.rewrites["softmax"] == 1
    assert module.report.rewrites["library_call"] >= 2

    def grad(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())(X)

    np.testing.assert_allclose(grad(module), grad(function), rtol=1e-5, atol=1e-6)


def test_an_interior_value_used_elsewhere_refuses_the_function() -> None:
    def function(x):
        m = x.max(axis=1, keepdims=True)
        e = jnp.exp(x - lax.stop_gradient(m))
        return e / e.sum(axis=1, keepdims=True), e

    module = recover(function, X)
    assert "softmax" not in module.report.rewrites
    same_values(function, module, X)
