"""Programs evaluated under a trace: their equations are recorded unchanged."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

import invert
from invert._private.jax import eval_closed, names_of, open_jaxpr, trace_closed
from invert.ir.match import difference

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.1, 0.1),))


def program(x: Any) -> list[Any]:
    with jax.named_scope("scope"):
        y = jax.nn.silu(clipped(x)) + np.eye(3, 4, dtype=np.float32)
    return [jax.lax.scan(lambda c, row: (c + row, jnp.exp(c)), jnp.zeros(4), y)[1], y, x]


CLOSED = jax.make_jaxpr(program)(X)


def run(x: Any) -> list[Any]:
    return eval_closed(CLOSED, [x])


def test_equations_and_scopes_stay() -> None:
    again = trace_closed(run, X)
    assert difference(again, CLOSED) is None
    scopes = [names_of(e) for e in open_jaxpr(CLOSED).eqns]
    assert [names_of(e) for e in open_jaxpr(again).eqns] == scopes
    assert ("scope",) in scopes

    def outer(x: Any) -> list[Any]:
        with jax.named_scope("outer"):
            return run(x)

    found = [names_of(e) for e in open_jaxpr(trace_closed(outer, X)).eqns]
    assert found == [("outer", *names) for names in scopes]


def test_other_types_and_transforms_bind_again() -> None:
    def loss(f: Any) -> Any:
        return lambda x: sum(jnp.sum(y) for y in f(x))

    for f in (jax.grad, jax.jit, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))):
        np.testing.assert_array_equal(f(loss(run))(X), f(loss(program))(X))
    for got, wanted in zip(jax.vmap(run)(X[None]), jax.vmap(program)(X[None]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    weak = trace_closed(lambda: eval_closed(jax.make_jaxpr(jnp.sin)(1.0), [np.float32(2)]))
    assert not open_jaxpr(weak).outvars[0].aval.weak_type


def test_metadata_of_the_caller_reach_each_equation() -> None:
    module = invert.from_exported(jax.export.export(jax.jit(jnp.tanh))(X))
    with set_xla_metadata(key="value"):
        text = jax.jit(module).lower(X).as_text()
    assert 'key = "value"' in text
