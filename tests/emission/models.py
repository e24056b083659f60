"""Models with named parameters, recovered from `jax.export` so that no test needs TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import invert
from invert import _api
from invert._entry import EntryPoint, Param
from invert.frontends import exported


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.cumsum(nn.Dense(3)(nn.relu(nn.Dense(8)(x))), axis=1)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), strides=2)(x)
        x = nn.gelu(nn.BatchNorm(use_running_average=True)(x))
        x = nn.max_pool(nn.Conv(8, (3, 3), feature_group_count=2)(x), (2, 2), (2, 2))
        return nn.Dense(5)(x.reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        x = x + nn.SelfAttention(num_heads=2)(nn.LayerNorm()(x), mask)
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


class Transformer(nn.Module):
    layers: int = 2

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        mask = nn.make_causal_mask(x[..., 0])
        for _ in range(self.layers):
            x = Block()(x, mask)
        return nn.log_softmax(nn.Dense(11)(x))


class Shared(nn.Module):
    """One layer called twice, with something in between."""

    @nn.compact
    def __call__(self, x):
        dense = nn.Dense(x.shape[-1])
        return dense(jnp.tanh(dense(x)))


class LSTM(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.RNN(nn.LSTMCell(4))(x)[:, -1])


def ramp(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


MODELS: dict[str, tuple[nn.Module, np.ndarray]] = {
    "mlp": (MLP(), ramp(2, 3)),
    "cnn": (CNN(), ramp(2, 8, 8, 2)),
    "transformer": (Transformer(), ramp(2, 5, 3)),
    "shared": (Shared(), ramp(2, 3)),
    "lstm": (LSTM(), ramp(2, 4, 3)),
}


def with_params(
    apply: Callable[..., Any],
    params: Any,
    *args: Any,
    batch: str | None = None,
    rename: Callable[[str], str] = lambda name: name,
    arg_names: Sequence[str] | None = None,
    name: str = "model",
) -> EntryPoint:
    """`apply(params, *args)` exported, with its parameters as variables of a container.

    **Arguments:**

    - `batch`: name of the leading size of all arguments, which is open then.
    """

    def spec(x: Any) -> Any:
        shape: Any = np.shape(x)
        if batch is not None:
            rest = [str(n) for n in shape[1:]]
            shape = jax.export.symbolic_shape(", ".join([batch, *rest]))
        return jax.ShapeDtypeStruct(shape, jnp.result_type(x))

    specs = jax.tree_util.tree_map(spec, args)
    entry = exported.entry_point(
        jax.export.export(jax.jit(apply))(params, *specs), config=invert.Config()
    )
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    variables = tuple(
        Param(rename(jax.tree_util.keystr(path, simple=True, separator="/")), np.asarray(value))
        for path, value in leaves
    )
    inner = entry.fn
    return dataclasses.replace(
        entry,
        name=name,
        params=variables,
        args=entry.args[1:],
        arg_names=tuple(arg_names or entry.arg_names[1:]),
        fn=lambda values, *flat: inner((), *values, *flat),
    )


def assert_computes(
    model: Any, original: Any, *batches: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """A model has the values of a function, bit for bit, and its gradients up to rounding.

    Cotangents of a value with several uses are added in the order of these. Weights of
    `original` are bound by `jax.tree_util.Partial(f, *arrays)`, so that they are no constants.
    """
    slope = eqx.filter_jit(jax.grad(lambda x, f: jnp.sum(jnp.sin(f(x)))))
    for x in batches:
        np.testing.assert_array_equal(model(x), original(x))
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(slope(x, model), slope(x, original), rtol, atol)


def recovered(entry: EntryPoint, *examples: Any) -> invert.Module:
    return _api.from_entry(entry, invert.Config(), list(examples) or None)


def flax_model(name: str, *, batch: str | None = None) -> tuple[invert.Module, np.ndarray]:
    """One of `MODELS`, recovered, and an argument."""
    model, x = MODELS[name]
    params = model.init(jax.random.key(0), x)
    # Statistics of a trained network are neither zero nor one.
    params = jax.tree_util.tree_map(
        lambda v: v + 0.05 * jnp.cos(jnp.arange(v.size)).reshape(v.shape), params
    )
    entry = with_params(model.apply, params, x, batch=batch, name=name, arg_names=("x",))
    return recovered(entry), x
