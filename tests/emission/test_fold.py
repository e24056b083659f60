"""Layers that differ in an activation, a bias, or a number of axes share a class."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.emission.test_blocks import _arrays, _classes, _emitted

_ACTIVATIONS = (("first", "silu"), ("second", "gelu"), ("third", "gelu"),
                ("fourth", "gelu"), ("last", ""))  # fmt: skip


def test_the_activation_is_a_static_field() -> None:
    arrays = _arrays((4, 6), (6,), (6, 5), (5,), (5, 5), (5,), (5, 7), (7,), (7, 3), (3,), (2, 4))

    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def run(p: Any, x: Any) -> Any:
        for name, activation in _ACTIVATIONS:
            with jax.named_scope(name):
                x = x @ p[f"{name}/kernel"] + p[f"{name}/bias"]
                if activation:
                    x = gelu(x) if activation == "gelu" else getattr(jax.nn, activation)(x)
        return x

    *parameters, x = arrays
    names = [f"{s}/{n}" for s, _ in _ACTIVATIONS for n in ("kernel", "bias")]
    emission = _named(run, dict(zip(names, parameters, strict=True)), x)
    assert list(_classes(emission)) == ["Linear", "Network"]
    source = emission.source
    assert "activation=jax.nn.silu" in source and source.count("activation=gelu") == 3
    assert "return jax.nn.gelu(x, approximate=False)" in source
    # The function is one object, so that all instances have the same structure.
    key = jax.random.key(0)
    one, other = (type(emission.model)(key=key) for _ in range(2))
    assert jax.tree_util.tree_structure(one) == jax.tree_util.tree_structure(other)
    assert jax.tree_util.tree_structure(one) == jax.tree_util.tree_structure(emission.model)


def _named(run: Any, params: dict[str, np.ndarray], x: np.ndarray) -> Any:
    from tests.emission.models import recovered, with_params

    entry = with_params(run, params, x, name="network")
    module = recovered(entry)
    emission = module.emit()
    assert not emission.messages
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), module(x))
    return emission


@pytest.mark.parametrize("first", [True, False])
def test_a_bias_may_be_missing(first: bool) -> None:
    """Whichever comes first."""
    a, b, c, d, x = _arrays((4, 6), (6,), (6, 5), (5,), (2, 4))

    def run(a: Any, b: Any, c: Any, x: Any) -> Any:
        y = jnp.tanh(x @ a + b) if first else jnp.tanh(x @ a)
        return y @ c if first else y @ c + b

    emission = _emitted(run, [a, b if first else d, c], x)
    (linear, *_) = _classes(emission)
    assert linear == "Linear"
    assert '    bias: Float[Array, "n_out"] | None' in emission.source
    assert emission.source.count("use_bias=False") == 1
    model: Any = emission.model
    layers = [v for v in vars(model).values() if hasattr(v, "bias")]
    assert [v.bias is None for v in layers] == [not first, first]


def test_leading_axes_may_differ() -> None:
    """Weights of PyTorch are what comes out times what goes in."""
    a, b, c, d, x = _arrays((6, 4), (6,), (3, 6), (3,), (2, 5, 4))

    def run(a: Any, b: Any, c: Any, d: Any, x: Any) -> Any:
        return jnp.dot(jnp.tanh(jnp.dot(x, a.T) + b).mean(1), c.T) + d

    source = _emitted(run, [a, b, c, d], x).source
    assert 'weight: Float[Array, "n_out n_in"]' in source
    assert '"*batch n_in"' in source and '"*batch n_out"' in source


def test_other_differences_make_a_separate_class() -> None:
    a, b, c, d, x = _arrays((4, 6), (6,), (6, 5), (5,), (2, 4))

    def run(p: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            x = x @ p["first/kernel"] + p["first/bias"]
        with jax.named_scope("second"):
            return jnp.sin(x * x) @ p["second/kernel"] + p["second/bias"]

    names = ("first/kernel", "first/bias", "second/kernel", "second/bias")
    emission = _named(run, dict(zip(names, (a, b, c, d), strict=True)), x)
    assert list(_classes(emission)) == ["Linear", "Second", "Network"]


def test_numbers_are_written_as_their_expressions() -> None:
    w, x = _arrays((4, 4), (2, 4))

    def run(w: Any, x: Any) -> Any:
        return (x * np.float32(1 / 255)) @ w / np.float32(np.sqrt(48)) * np.float32(0.123)

    source = _emitted(run, [w], x).source
    assert " * (1 / 255)" in source
    assert "/ 48**0.5" in source
