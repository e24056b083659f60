"""Flax, Haiku-style and Equinox models: jax2tf, a SavedModel, and back.

Variables are parameters of the recovered module; gradients with respect to them and to the inputs
equal the original's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from tests.emission.models import CNN
from tests.harness_cases import assert_same

KEY = jax.random.key(0)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(8)(x)))


class Transformer(nn.Module):
    layers: int = 2

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x = x + nn.SelfAttention(num_heads=2)(nn.LayerNorm()(x), mask)
            x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.log_softmax(nn.Dense(11)(x))


def haiku_style(params, x):
    """A function of nested dictionaries keyed by module paths, as `hk.transform` returns."""
    for name in ("mlp/~/linear_0", "mlp/~/linear_1"):
        x = jnp.tanh(x @ params[name]["w"] + params[name]["b"])
    return x


class LSTM(eqx.Module):
    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __call__(self, xs):
        def step(state, x):
            return self.cell(x, state), None

        zeros = jnp.zeros(self.cell.hidden_size)
        (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), xs)
        return self.head(hidden)


def _flax(model: nn.Module, x: np.ndarray) -> tuple[Callable, Any, np.ndarray]:
    variables = model.init(KEY, x)
    # Statistics of a trained network are neither zero nor one.
    variables = jax.tree_util.tree_map(
        lambda v: v + 0.05 * jnp.cos(jnp.arange(v.size)).reshape(v.shape), variables
    )
    return model.apply, variables, x


def _equinox(model: Any, x: np.ndarray) -> tuple[Callable, Any, np.ndarray]:
    arrays, rest = eqx.partition(model, eqx.is_array)
    leaves, tree = jax.tree_util.tree_flatten(arrays)

    def apply(params, x):
        arrays = jax.tree_util.tree_unflatten(tree, [params[f"p{i}"] for i in range(len(leaves))])
        return eqx.combine(arrays, rest)(x)

    return apply, {f"p{i}": v for i, v in enumerate(leaves)}, x


def _haiku() -> tuple[Callable, Any, np.ndarray]:
    rng = np.random.RandomState(0)
    params = {
        f"mlp/~/linear_{i}": {
            "w": rng.standard_normal((3, 3)).astype(np.float32),
            "b": rng.standard_normal(3).astype(np.float32),
        }
        for i in range(2)
    }
    return haiku_style, params, X


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
IMAGE = np.linspace(-1, 1, 2 * 8 * 8 * 2, dtype=np.float32).reshape(2, 8, 8, 2)
TOKENS = np.array([[1, 4, 2, 7, 10]], np.int32)

MODELS = {
    "flax_mlp": lambda: _flax(MLP(), X),
    "flax_cnn": lambda: _flax(CNN(), IMAGE),
    "flax_transformer": lambda: _flax(Transformer(), TOKENS),
    "haiku_style": _haiku,
    "equinox_mlp": lambda: _equinox(eqx.nn.MLP(3, 2, 8, 2, key=KEY), X[0]),
    "equinox_lstm": lambda: _equinox(
        LSTM(eqx.nn.LSTMCell(3, 4, key=KEY), eqx.nn.Linear(4, 2, key=KEY)), X
    ),
}


def saved(apply: Callable, params: Any, x: np.ndarray, path: Any) -> dict[str, Any]:
    """Save the model with its parameters as variables; return them by variable name."""
    holder = tf.Module()
    holder.params = tf.nest.map_structure(lambda v: tf.Variable(np.asarray(v)), params)
    converted = jax2tf.convert(apply, with_gradient=True)
    holder.f = tf.function(
        lambda x: converted(holder.params, x),
        autograph=False,
        input_signature=[tf.TensorSpec(x.shape, x.dtype, name="x")],
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(holder, str(path), options=options)
    return holder


# Each of the others has more in it than these.
_SIMPLE = ("flax_mlp", "equinox_mlp")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in _SIMPLE else []) for n in MODELS]
)
def test_model(name: str, tmp_path) -> None:
    apply, params, x = MODELS[name]()
    saved(apply, params, x, tmp_path)
    module = invert.load(tmp_path, signature="f")
    assert module.report.certificate.kind == "exact"
    # Proved, not by numbers: what was recovered differentiates to the very gradient in the file.
    assert [text.partition(": ")[2] for text in module.report.gradients] == ["agrees with autodiff"]
    want = jax.jit(apply)(params, x)
    assert_same(module(x), want)
    assert_same(jax.jit(lambda m, x: m(x))(module, x), want)

    def loss(out: Any) -> Any:
        return jnp.sum(jnp.sin(out * 3))

    # Parameters come back in the same order: both are nested dictionaries with the same keys.
    expected = jax.jit(jax.grad(lambda p: loss(apply(p, x))))(params)
    found = eqx.filter_jit(eqx.filter_grad(lambda m: loss(m(x))))(module).params
    by_size = lambda tree: sorted(jax.tree_util.tree_leaves(tree), key=_order)  # noqa: E731
    assert_same(by_size(found), by_size(expected), factor=10)
    if np.issubdtype(x.dtype, np.floating):
        expected = jax.jit(jax.grad(lambda x: loss(apply(params, x))))(x)
        assert_same(jax.jit(jax.grad(lambda x: loss(module(x))))(x), expected, factor=10)


def _order(value: Any) -> tuple[Any, ...]:
    """Leaves are matched by shape and value, since names differ between containers."""
    value = np.asarray(value)
    return (value.shape, float(np.round(value, 3).reshape(-1)[0]))


def test_vmap_and_hessian_of_a_small_model(tmp_path) -> None:
    apply, params, x = MODELS["haiku_style"]()
    saved(apply, params, x, tmp_path)
    module = invert.load(tmp_path, signature="f")
    batch = np.stack([x, -x, x * 2])
    assert_same(jax.vmap(module)(batch), jax.vmap(lambda x: apply(params, x))(batch))
    got = jax.jit(jax.hessian(lambda x: module(x).sum()))(x)
    assert_same(got, jax.jit(jax.hessian(lambda x: apply(params, x).sum()))(x), factor=10)
