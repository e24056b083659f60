"""Models of Haiku, of Equinox, and of plain functions over dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.exports.containers import Input, Net

KEY = jax.random.key(0)
SIZES = {"b": 2, "l": 6}


def haiku(function: Callable[[Any], Callable[..., Any]], *inputs: Any) -> Net:
    """`function(hk)` is the forward function; its parameters and states are one dictionary."""
    hk = pytest.importorskip("haiku")
    transformed = hk.without_apply_rng(hk.transform_with_state(function(hk)))
    rng = np.random.RandomState(0)
    params, state = transformed.init(KEY, *(jnp.asarray(i.array(SIZES, rng)) for i in inputs))

    def apply(variables: Any, *args: Any) -> Any:
        return transformed.apply(variables["params"], variables["state"], *args)[0]

    variables = jax.tree_util.tree_map(np.asarray, {"params": params, "state": state})
    return Net(apply, variables, inputs, lambda path: path.startswith("state"))


def haiku_mlp():
    return haiku(lambda hk: lambda x: hk.nets.MLP([12, 12, 3])(x), Input("x", ("b", 6)))


def haiku_cnn():
    def forward(hk):
        def run(x):
            x = hk.Conv2D(4, 3, with_bias=False)(x)
            x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training=hk.running_init()))
            x = hk.MaxPool(2, 2, "VALID")(x)
            x = jax.nn.relu(hk.Conv2D(6, 3, stride=2)(x))
            return hk.Linear(4)(hk.Flatten()(x))

        return run

    return haiku(forward, Input("image", ("b", 8, 8, 2)))


def haiku_lstm():
    def forward(hk):
        def run(x):
            core = hk.LSTM(6)
            out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[0]), time_major=False)
            return jax.nn.log_softmax(hk.BatchApply(hk.Linear(3))(out))

        return run

    return haiku(forward, Input("series", ("b", 7, 4)))


def haiku_transformer():
    def forward(hk):
        def norm(x):
            return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)

        def run(tokens):
            length = tokens.shape[1]
            init = hk.initializers.TruncatedNormal(0.1)
            positions = hk.get_parameter("positions", (64, 8), init=init)
            x = hk.Embed(20, 8)(tokens) + positions[jnp.arange(length)]
            causal = jnp.tril(jnp.ones((1, 1, length, length)))
            for _ in range(2):
                y = norm(x)
                x = x + hk.MultiHeadAttention(2, 4, w_init=init, model_size=8)(y, y, y, causal)
                x = x + hk.nets.MLP([16, 8], activation=jax.nn.gelu)(norm(x))
            return hk.Linear(20)(norm(x))

        return run

    return haiku(forward, Input("tokens", ("b", "l"), 20))


def haiku_gelu():
    def forward(hk):
        return lambda x: hk.nets.MLP([10, 3], activation=jax.nn.gelu)(x)

    return haiku(forward, Input("x", ("b", 6)))


def equinox(model: Any, *inputs: Any, single: bool = True) -> Net:
    """An Equinox model of one example or a batch; its arrays are the parameters."""
    model = eqx.nn.inference_mode(model)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, tree = jax.tree_util.tree_flatten_with_path(arrays)
    names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in flat]

    def apply(params: Any, *args: Any) -> Any:
        arrays = jax.tree_util.tree_unflatten(tree, [params[n] for n in names])
        model = eqx.combine(arrays, rest)
        return (jax.vmap(model) if single else model)(*args)

    params = {name: np.asarray(v) for name, (_, v) in zip(names, flat, strict=True)}
    return Net(apply, params, inputs)


class ConvNet(eqx.Module):
    layers: list

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(2, 4, 3, padding=1, key=keys[0]),
            jax.nn.relu,
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(4, 4, 3, key=keys[1]),
            jax.nn.relu,
            jnp.ravel,
            eqx.nn.Dropout(0.5),
            eqx.nn.Linear(16, 3, key=keys[2]),
            jax.nn.log_softmax,
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, xs):
        def step(hidden, x):
            return self.cell(x, hidden), None

        hidden, _ = lax.scan(step, jnp.zeros(self.cell.hidden_size), xs)
        return self.head(hidden)


class Attention(eqx.Module):
    embed: eqx.nn.Embedding
    positions: jax.Array
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    head: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(20, 8, key=keys[0])
        self.positions = 0.1 * jax.random.normal(keys[1], (64, 8))
        self.norm = eqx.nn.LayerNorm(8)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=keys[2])
        self.head = eqx.nn.MLP(8, 3, 12, 1, key=keys[3])

    def __call__(self, tokens):
        x = jax.vmap(self.embed)(tokens) + self.positions[jnp.arange(tokens.shape[0])]
        y = jax.vmap(self.norm)(x)
        mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        x = x + self.attention(y, y, y, mask)
        return jax.vmap(self.head)(x)


def equinox_mlp():
    return equinox(eqx.nn.MLP(6, 3, 12, 2, key=KEY), Input("x", ("b", 6)))


def equinox_cnn():
    return equinox(ConvNet(KEY), Input("image", ("b", 2, 8, 8)))


def equinox_gru():
    model = Recurrent(eqx.nn.GRUCell(4, 6, key=KEY), eqx.nn.Linear(6, 2, key=KEY))
    return equinox(model, Input("series", ("b", 7, 4)))


def equinox_attention():
    return equinox(Attention(KEY), Input("tokens", ("b", "l"), 20))


def _dense(rng: np.random.RandomState, n: int, m: int) -> dict[str, np.ndarray]:
    w = rng.standard_normal((n, m)).astype(np.float32) / np.sqrt(n).astype(np.float32)
    return {"w": w, "b": np.zeros(m, np.float32)}


def _linear(p, x):
    return x @ p["w"] + p["b"]


def logistic():
    def apply(params, x):
        return jax.nn.log_softmax(x @ params["w"] + params["b"])

    return Net(apply, _dense(np.random.RandomState(0), 6, 4), (Input("x", ("b", 6)),))


def plain_mlp():
    rng = np.random.RandomState(0)
    params = [_dense(rng, 6, 16), _dense(rng, 16, 16), _dense(rng, 16, 3)]

    def apply(params, x):
        *hidden, last = params
        for layer in hidden:
            x = jax.nn.relu(_linear(layer, x))
        return _linear(last, x)

    return Net(apply, params, (Input("x", ("b", 6)),))


def plain_gpt():
    rng = np.random.RandomState(0)
    width, heads = 8, 2

    def block():
        return {
            "norm": {"scale": np.ones(width, np.float32), "shift": np.zeros(width, np.float32)},
            "qkv": _dense(rng, width, 3 * width),
            "out": _dense(rng, width, width),
            "up": _dense(rng, width, 2 * width),
            "down": _dense(rng, 2 * width, width),
        }

    params = {
        "embed": rng.standard_normal((20, width)).astype(np.float32),
        "positions": rng.standard_normal((64, width)).astype(np.float32),
        "blocks": [block(), block()],
        "head": _dense(rng, width, 20),
    }

    def norm(p, x):
        mean = x.mean(-1, keepdims=True)
        var = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(var + 1e-5) * p["scale"] + p["shift"]

    def attend(p, x):
        batch, length, _ = x.shape
        q, k, v = jnp.split(_linear(p["qkv"], x), 3, axis=-1)
        q, k, v = (t.reshape(batch, length, heads, width // heads) for t in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
        causal = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return _linear(p["out"], mixed.reshape(batch, length, width))

    def apply(params, tokens):
        x = params["embed"][tokens] + params["positions"][jnp.arange(tokens.shape[1])]
        for p in params["blocks"]:
            x = x + attend(p, norm(p["norm"], x))
            x = x + _linear(p["down"], jax.nn.relu(_linear(p["up"], x)))
        return _linear(params["head"], x)

    return Net(apply, params, (Input("tokens", ("b", "l"), 20),))


def plain_lstm():
    rng = np.random.RandomState(0)
    params = {"x": _dense(rng, 4, 24), "h": _dense(rng, 6, 24)["w"], "head": _dense(rng, 6, 2)}

    def apply(params, xs):
        def step(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(_linear(params["x"], x) + h @ params["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[0], 6))
        _, hs = lax.scan(step, (zeros, zeros), jnp.swapaxes(xs, 0, 1))
        return _linear(params["head"], jnp.swapaxes(hs, 0, 1))

    return Net(apply, params, (Input("xs", ("b", "l", 4)),))


def two_towers():
    rng = np.random.RandomState(0)
    params = {
        "users": rng.standard_normal((10, 4)).astype(np.float32),
        "items": [_dense(rng, 5, 8), _dense(rng, 8, 4)],
    }

    def apply(params, batch):
        user = params["users"][batch["user"]]
        first, last = params["items"]
        item = _linear(last, jax.nn.relu(_linear(first, batch["item"])))
        score = jnp.sum(user * item, axis=-1)
        return {"score": jax.nn.sigmoid(score), "item": item}

    inputs = {"user": Input("user", ("b",), 10), "item": Input("item", ("b", 5))}
    return Net(apply, params, (inputs,))
