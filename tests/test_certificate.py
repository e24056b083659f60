"""A certificate is `exact` only for equal programs, and otherwise measures the difference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert import Certificate
from invert._opaque import custom_call
from invert._private.jax import eval_jaxpr, open_jaxpr, trace_closed
from invert._verify import after_change, certify, compared
from invert.ir.jaxprs import has_wide_types
from invert.ir.types import Jaxpr
from invert.stablehlo.lowered import raised_again

X = jax.ShapeDtypeStruct((3, 4), np.float32)


def program(function: Callable[..., Any], *types: Any) -> Jaxpr:
    with jax.enable_x64(True):
        return open_jaxpr(trace_closed(function, *(types or (X,))))


def certified(one: Callable[..., Any], two: Callable[..., Any], *types: Any) -> Certificate:
    raw = program(one, *types)
    return certify(raw, program(two, *types), platform="cpu", x64=False)


def _sums(x: Any) -> Any:
    """`jnp.cumsum` along the rows, as it is lowered."""
    return lax.reduce_window(x, np.float32(0), lax.add, (1, 4), (1, 1), ((0, 0), (3, 0)))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x: jnp.sin(x) + 1, lambda x: jnp.sin(x) + 1),
        (lambda x: (jnp.sin(x), jnp.cos(x)), lambda x: (jnp.cos(x), jnp.sin(x))[::-1]),
        (lambda x: jnp.sin(x) * jnp.sin(x), lambda x: (lambda y: y * y)(jnp.sin(x))),
        (lambda x: jnp.sin(x), lambda x: (jnp.cos(x), jnp.sin(x))[1]),
        (lambda x: jnp.sin(x) + 1, lambda x: jax.jit(jnp.sin)(x) + 1),
        (_sums, lambda x: jnp.cumsum(x, axis=1)),
    ],
    ids=["same", "order", "shared", "dead", "called", "library"],
)
def test_equal_programs(one: Any, two: Any) -> None:
    assert str(certified(one, two)) == "exact"
    assert str(certified(two, one)) == "exact"


@pytest.mark.parametrize(
    ("one", "two", "error"),
    [
        (lambda x: x + 1, lambda x: x + np.float32(1.25), 0.25),
        (lambda x: (x, x + 1), lambda x: (x, x + 3), 2.0),
        (lambda x: x - x, lambda x: x * 0, 0.0),
        (lambda x: x - x, lambda x: jnp.where(x != 0, np.float32(0.5), 0), 0.5),
    ],
    ids=["number", "second result", "equal on numbers", "other values"],
)
def test_different_programs(one: Any, two: Any, error: float) -> None:
    certificate = certified(one, two)
    assert certificate.kind == "numerical" and certificate.reason
    assert certificate.largest_error == pytest.approx(error, abs=1e-6)


def test_doubles_are_compared_as_doubles() -> None:
    types = [jax.ShapeDtypeStruct((3,), np.float64)]
    certificate = certified(lambda x: x + 1, lambda x: x + (1 + 1e-12), *types)
    assert certificate.kind == "numerical"
    assert 5e-13 < (certificate.largest_error or 0) < 5e-12


def test_constants_are_the_leading_arguments() -> None:
    """They have their values where the programs are run."""
    table = np.linspace(1, 2, 4, dtype=np.float32)
    types = [jax.ShapeDtypeStruct((4,), np.float32), X]

    def certificate(two: Any) -> Certificate:
        raw, recovered = program(lambda t, x: x * t, *types), program(two, *types)
        return certify(raw, recovered, [table], platform="cpu", x64=False)

    assert str(certificate(lambda t, x: jax.jit(lambda y: y * t)(x))) == "exact"
    other = certificate(lambda t, x: x * t + t)
    assert other.kind == "numerical"
    assert other.largest_error == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize("x64", [False, True])
def test_a_program_of_another_setting_of_64_bits(x64: bool) -> None:
    """The counter of a scan has 64 bits if it was lowered with x64."""
    recovered = program(lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x))
    outs = [v.aval for v in recovered.outvars]
    run = functools.partial(eval_jaxpr, recovered)
    raw = raised_again(lambda *xs: run(xs), [X], outs, platform="cpu", x64=True)
    assert has_wide_types(open_jaxpr(raw))
    assert str(certify(open_jaxpr(raw), recovered, platform="cpu", x64=x64)) == "exact"


def test_opaque_calls_are_not_run() -> None:
    def call(x: Any, scale: float) -> Any:
        (y,) = custom_call(x, target="of_an_author", attributes=(), avals=(X,))
        return y * np.float32(scale)

    certificate = certified(lambda x: call(x, 2), lambda x: call(x, 3))
    assert certificate.kind == "unverified" and certificate.largest_error is None
    assert "opaque custom calls cannot be run" in certificate.reason


def test_open_sizes_are_compared_at_several() -> None:
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b,), np.float32)
    # The programs agree at one row.
    one, two = (program(f, x) for f in (lambda x: jnp.sum(x), lambda x: x[0]))
    error = compared(one, two, ())
    assert isinstance(error, float) and error > 0.1


BEFORE = {
    "exact": Certificate("exact", sizes="b >= 1"),
    "numerical": Certificate("numerical", "sums differ", 0.5, sizes="b >= 1"),
    "unverified": Certificate("unverified", "opaque calls", sizes="b >= 1"),
}


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("verify", [False, True])
def test_a_change_on_request(kind: str, verify: bool) -> None:
    before = BEFORE[kind]
    one, two = program(lambda x: x + 1), program(lambda x: x + np.float32(1.25))
    made = after_change(before, "rounded", one, two, (), verify=verify)
    assert made.before is before and made.sizes == "b >= 1"
    assert (
        made.reason
        == {
            "exact": "rounded; exact before",
            "numerical": "rounded; numerical before (sums differ)",
            "unverified": "rounded; unverified before (opaque calls)",
        }[kind]
    )
    if kind == "unverified" or not verify:
        assert made.kind == "unverified" and made.largest_error is None
    else:
        # The errors of both steps add up.
        assert made.kind == "numerical"
        assert made.largest_error == pytest.approx(0.25 + (before.largest_error or 0))
    twice = after_change(made, "optimized", one, one, (), verify=verify)
    assert twice.before is before
