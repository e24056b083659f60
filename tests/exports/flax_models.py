"""Flax models, as users write them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.exports.containers import Input, Net

KEY = jax.random.key(0)
SIZES = {"b": 2, "l": 6}


def linen(model: nn.Module, *inputs: Any) -> Net:
    """A Flax Linen model with its variables, statistics included."""
    rng = np.random.RandomState(0)
    examples = [
        jax.tree_util.tree_map(lambda i: jnp.asarray(i.array(SIZES, rng)), x) for x in inputs
    ]
    variables = jax.tree_util.tree_map(np.asarray, model.init(KEY, *examples))
    return Net(model.apply, variables, inputs, lambda path: "batch_stats" in path)


def of_nnx(model: nnx.Module, *inputs: Any) -> Net:
    """A Flax NNX model, split as its export guide says."""
    model.eval()
    # Keys of dropout and of initial states are not numbers to train or to export.
    graph, keys, state = nnx.split(model, nnx.RngState, ...)
    params = jax.tree_util.tree_map(np.asarray, nnx.to_pure_dict(state))
    template = state

    def apply(params: Any, *args: Any) -> Any:
        state = jax.tree_util.tree_map(lambda x: x, template)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, keys, state)(*args)

    return Net(apply, params, inputs, lambda path: path.endswith(("mean", "var")))


class MLP(nn.Module):
    width: int = 16

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(self.width, name="hidden")(x))
        x = nn.relu(nn.Dense(self.width, name="hidden_2")(x))
        return nn.Dense(3, name="head")(x)


class GeluNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.gelu(nn.Dense(12)(x)))
        x = nn.Dropout(0.5, deterministic=True)(x)
        return nn.softmax(nn.Dense(4)(x))


class CNN(nn.Module):
    """The network of Flax's MNIST example, with batch normalization."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = nn.Conv(6, (3, 3))(x)
        x = nn.avg_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.Dropout(0.3, deterministic=True)(nn.relu(nn.Dense(10)(x)))
        return nn.log_softmax(nn.Dense(5)(x))


class ResidualBlock(nn.Module):
    channels: int
    stride: int

    @nn.compact
    def __call__(self, x):
        norm = lambda: nn.BatchNorm(use_running_average=True)  # noqa: E731
        y = nn.Conv(self.channels, (3, 3), (self.stride, self.stride), use_bias=False)(x)
        y = nn.relu(norm()(y))
        y = norm()(nn.Conv(self.channels, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = nn.Conv(self.channels, (1, 1), (self.stride, self.stride), use_bias=False)(x)
            x = norm()(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        for channels, stride in ((4, 1), (8, 2)):
            x = ResidualBlock(channels, stride)(x)
        return nn.Dense(3)(jnp.mean(x, axis=(1, 2)))


class Encoder(nn.Module):
    """A transformer that classifies text, with a table of positions."""

    @nn.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        table = self.param("positions", nn.initializers.normal(0.1), (64, 8))
        x = nn.Embed(20, 8)(tokens) + table[jnp.arange(length)]
        for _ in range(2):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2, deterministic=True)(y, y)
            y = nn.Dense(16)(nn.LayerNorm()(x))
            x = x + nn.Dropout(0.1, deterministic=True)(nn.Dense(8)(nn.gelu(y)))
        return nn.Dense(3)(nn.LayerNorm()(x).mean(axis=1))


class GPT(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        mask = nn.make_causal_mask(tokens)
        positions = nn.Embed(64, 8, name="positions")(jnp.arange(tokens.shape[1]))
        x = nn.Embed(20, 8, name="tokens")(tokens) + positions
        for _ in range(2):
            x = x + nn.SelfAttention(num_heads=2)(nn.LayerNorm()(x), mask)
            x = x + nn.Dense(8)(nn.relu(nn.Dense(16)(nn.LayerNorm()(x))))
        return nn.log_softmax(nn.Dense(20)(x))


class Tagger(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.OptimizedLSTMCell(6))(x)
        return nn.Dense(3)(x)


class GRUForecast(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.GRUCell(6))(x)
        return nn.Dense(1)(nn.relu(nn.Dense(5)(x[:, -1])))


class AutoEncoder(nn.Module):
    @nn.compact
    def __call__(self, image):
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(image))
        code = nn.Dense(3, name="code")(x.reshape(x.shape[0], -1))
        x = nn.relu(nn.Dense(4 * 4 * 4)(code)).reshape(-1, 4, 4, 4)
        x = nn.ConvTranspose(1, (3, 3), strides=(2, 2))(x)
        return {"code": code, "image": nn.sigmoid(x)}


class BagOfWords(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(30, 8)(tokens)
        used = (tokens > 0).astype(x.dtype)[..., None]
        x = jnp.sum(x * used, axis=1) / jnp.maximum(jnp.sum(used, axis=1), 1.0)
        return nn.log_softmax(nn.Dense(4)(nn.relu(nn.Dense(8)(x))))


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(6, 12, rngs=rngs)
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.head = nnx.Linear(12, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


class NnxCNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(3, 4, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.conv_2 = nnx.Conv(4, 6, kernel_size=(3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(2 * 2 * 6, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        x = nnx.gelu(self.conv_2(x))
        return nnx.log_softmax(self.head(x.reshape(x.shape[0], -1)))


class NnxBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            2, in_features=width, qkv_features=width, decode=False, rngs=rngs
        )
        self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class NnxGPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(20, 8, rngs=rngs)
        self.positions = nnx.Embed(64, 8, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(8, rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 20, rngs=rngs)

    def __call__(self, tokens):
        mask = nnx.make_causal_mask(tokens)
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class NnxLSTM(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.rnn = nnx.RNN(nnx.LSTMCell(5, 6, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x):
        zeros = jnp.zeros((x.shape[0], 6))
        return self.head(self.rnn(x, initial_carry=(zeros, zeros))[:, -1])


def mlp():
    return linen(MLP(), Input("x", ("b", 6)))


def gelu_net():
    return linen(GeluNet(), Input("x", ("b", 6)))


def cnn():
    return linen(CNN(), Input("image", ("b", 8, 8, 2)))


def resnet():
    return linen(ResNet(), Input("image", ("b", 8, 8, 3)))


def encoder():
    return linen(Encoder(), Input("tokens", ("b", "l"), 20))


def gpt():
    return linen(GPT(), Input("tokens", ("b", "l"), 20))


def tagger():
    return linen(Tagger(), Input("x", ("b", 7, 4)))


def gru_forecast():
    return linen(GRUForecast(), Input("series", ("b", 7, 3)))


def autoencoder():
    return linen(AutoEncoder(), Input("image", ("b", 8, 8, 1)))


def bag_of_words():
    return linen(BagOfWords(), Input("tokens", ("b", "l"), 30))


def nnx_mlp():
    return of_nnx(NnxMLP(nnx.Rngs(0)), Input("x", ("b", 6)))


def nnx_cnn():
    return of_nnx(NnxCNN(nnx.Rngs(0)), Input("image", ("b", 8, 8, 3)))


def nnx_gpt():
    return of_nnx(NnxGPT(nnx.Rngs(0)), Input("tokens", ("b", "l"), 20))


def nnx_lstm():
    return of_nnx(NnxLSTM(nnx.Rngs(0)), Input("series", ("b", 7, 5)))
