"""Random numbers in a text are drawn by the functions of `jax.random`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import invert

_DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "bernoulli": lambda key, x: jax.random.bernoulli(key, 0.3, x.shape),
    "beta": lambda key, x: jax.random.beta(key, jnp.exp(x), 2.0),
    "dirichlet": lambda key, x: jax.random.dirichlet(key, jnp.exp(x)),
    "gamma": lambda key, x: jax.random.gamma(key, jnp.exp(x)),
    "gumbel": lambda key, x: jax.random.gumbel(key, x.shape),
    "laplace": lambda key, x: jax.random.laplace(key, x.shape),
    "logistic": lambda key, x: jax.random.logistic(key, x.shape),
    "randint": lambda key, x: jax.random.randint(key, x.shape, -3, 11),
    "t": lambda key, x: jax.random.t(key, 3.0, x.shape),
    "truncated_normal": lambda key, x: jax.random.truncated_normal(key, -1, 2, x.shape),
    "uniform": lambda key, x: jax.random.uniform(key, x.shape, minval=-2, maxval=3.5),
}


@pytest.mark.parametrize("rows", [5, "b"])
@pytest.mark.parametrize("name", _DRAWS)
def test_a_draw_is_a_call(name: str, rows: Any) -> None:
    draw, key = _DRAWS[name], jax.random.key(7)
    shape = export.symbolic_shape(f"{rows}, 4")
    avals = jax.ShapeDtypeStruct((), key.dtype), jax.ShapeDtypeStruct(shape, jnp.float32)
    module = invert.from_exported(export.export(jax.jit(draw))(*avals))
    assert re.search(rf"return jax\.random\.{name}\(key, ", module.source), module.source
    assert "\ndef " not in module.source[: module.source.index("class ")]
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    for run in (module, module.model, jax.jit(module.model)):
        np.testing.assert_array_equal(run(key, x), jax.jit(draw)(key, x))


def test_bounds_that_are_computed_have_a_derivative() -> None:
    """That of the largest number below a bound is stopped in JAX, so it is in the text."""

    def draw(key: Any, x: Any) -> Any:
        return jax.random.truncated_normal(key, -jnp.exp(x), jnp.exp(x), x.shape)

    key, x = jax.random.key(3), np.linspace(-1, 1, 6, dtype=np.float32)
    artifact = export.export(jax.jit(draw))(key, x).serialize(vjp_order=1)
    module = invert.from_exported(artifact)
    want = jax.grad(lambda x: jnp.sum(draw(key, x) ** 2))(x)
    for run in (module, module.model):
        got = jax.grad(lambda x, run=run: jnp.sum(run(key, x) ** 2))(x)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_table_that_nested_loops_read_twice_is_one_array() -> None:
    """As in samplers by rejection: lowering merges arrays that a program makes at each use."""

    def tail(k: Any) -> Any:
        table = jnp.array([0.08, 0.04, 0.03, 0.02], jnp.float32)
        return jnp.where(k < 4, table[k], 0.1 / (k + 1))

    def one(key: Any, n: Any) -> Any:
        def is_rejected(state: tuple[Any, Any]) -> Any:
            k, _ = state
            return lax.cond(k > n, lambda: True, lambda: tail(k) - tail(n - k) > 0.02)

        def again(state: tuple[Any, Any]) -> tuple[Any, Any]:
            key, used = jax.random.split(state[1])
            return jax.random.randint(used, (), 0, 6), key

        return lax.while_loop(is_rejected, again, (n + 1, key))[0]

    @jax.jit
    def draw(key: Any, n: Any) -> Any:
        return lax.map(lambda each: one(*each), (jax.random.split(key, n.size), n))

    key, n = jax.random.key(1), np.array([4, 2, 5, 3, 4], np.int32)
    module = invert.from_exported(export.export(jax.jit(lambda k, n: draw(k, n)))(key, n))
    for run in (module, module.model, jax.jit(module.model)):
        np.testing.assert_array_equal(run(key, n), draw(key, n))


def test_scalar_draws_are_calls() -> None:
    def draw(key: Any) -> Any:
        return jax.random.bernoulli(key), jax.random.uniform(key, minval=0.5)

    key = jax.random.key(7)
    module = invert.from_exported(export.export(jax.jit(draw))(key))
    assert "\ndef " not in module.source[: module.source.index("class ")], module.source
    np.testing.assert_array_equal(module.model(key), draw(key))


_MAPPED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "draws": (
        lambda keys, x: jax.vmap(lambda k, x: x * jax.random.uniform(k, (4,)))(keys, x),
        "jax.random.uniform(key, (4,), jnp.float32",
    ),
    "splits": (
        lambda keys, x: jax.random.key_data(jax.vmap(lambda k: jax.random.split(k, 3))(keys)),
        "jax.vmap(lambda key: jax.random.split(key, 3))(keys)",
    ),
    "halves": (
        lambda keys, x: jax.random.key_data(jax.vmap(jax.random.split)(keys))[:, 1],
        "jax.vmap(jax.random.split)(keys)",
    ),
}


@pytest.mark.parametrize("rows", [3, "b"])
@pytest.mark.parametrize("name", _MAPPED)
def test_functions_of_many_keys_are_mapped(name: str, rows: Any) -> None:
    function, text = _MAPPED[name]
    keys = jax.random.split(jax.random.key(3), 3)
    (size,) = export.symbolic_shape(str(rows))
    avals = [jax.ShapeDtypeStruct((size,), keys.dtype), jax.ShapeDtypeStruct((size, 4), np.float32)]
    module = invert.from_exported(export.export(jax.jit(function))(*avals))
    assert text in module.source and ".bind(" not in module.source, module.source
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for run in (module, module.model):
        np.testing.assert_array_equal(run(keys, x), jax.jit(function)(keys, x))
