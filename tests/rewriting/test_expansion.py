"""Programs compared by what their equations lower to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._private.jax import eval_closed, trace_closed
from invert.ir.types import ClosedJaxpr
from invert.rewriting import expansion
from invert.rewriting.expansion import lower_alike
from invert.stablehlo.lowered import raised_again

X = jax.ShapeDtypeStruct((3, 5), np.float32)


def _lowered(program: ClosedJaxpr) -> Any:
    """The program as a module would hold it."""
    types = [v.aval for v in program.jaxpr.invars]
    outs: Any = [v.aval for v in program.jaxpr.outvars]
    run = lambda *xs: eval_closed(program, xs)  # noqa: E731
    return raised_again(run, types, outs, platform="cpu", x64=False)


def _twice(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.gelu(x)) @ x.T


def _rows(x: jax.Array) -> jax.Array:
    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h + row * x.sum())
        return h, jnp.cumsum(h)

    return lax.scan(step, jnp.zeros(5), x)[1]


def _branches(x: jax.Array) -> jax.Array:
    return lax.cond(x.sum() > 0, jnp.cumsum, lambda v: jnp.arccosh(v.ravel()), x)


@pytest.mark.parametrize("function", [_twice, _rows, _branches, jnp.argmax, jnp.sinc, jnp.sort])
def test_a_program_is_alike_to_what_it_lowers_to(function: Callable[..., Any]) -> None:
    program = trace_closed(function, X)
    with jax.enable_x64(True):
        assert lower_alike(_lowered(program), program, (), platform="cpu", x64=False)


@pytest.mark.parametrize(
    "one, two",
    [
        (_twice, lambda x: jax.nn.softmax(jax.nn.gelu(x, approximate=False)) @ x.T),
        (_twice, lambda x: jax.nn.softmax(jax.nn.gelu(x), axis=0) @ x.T),
        (_rows, lambda x: _rows(x[::-1])),
        (jnp.cumsum, lambda x: lax.cumsum(x.ravel(), reverse=True)),
        (lambda x: x - x.mean(), lambda x: x.mean() - x),
        (lambda x: x**2, lambda x: x**3),
        (lambda x: x * 2.0, lambda x: x * np.float32(2.0000002)),
    ],
)
def test_other_programs_are_not(one: Callable[..., Any], two: Callable[..., Any]) -> None:
    a, b = trace_closed(one, X), trace_closed(two, X)
    with jax.enable_x64(True):
        assert not lower_alike(_lowered(a), b, (), platform="cpu", x64=False)


def test_nothing_that_both_programs_have_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[str] = []
    template = expansion.raise_call

    def counted(call: Any, platform: str) -> Any:
        lowered.append(str(call.key))
        return template(call, platform)

    monkeypatch.setattr(expansion, "raise_call", counted)
    a = trace_closed(lambda x: jnp.tanh(jnp.cumsum(jnp.sin(x) @ x.T)), X)
    assert lower_alike(_lowered(a), a, (), platform="cpu", x64=False)
    assert len([key for key in lowered if "cumsum" in key]) == 1
    assert not any(name in key for key in lowered for name in ("tanh", "sin", "dot_general"))
