"""Models of Keras: sequential, functional, subclassed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.exports.containers import Input

SIZES = {"b": 2, "l": 6}


def built(model: Any, *inputs: Any) -> tuple[Any, tuple[Any, ...]]:
    """Build a subclassed model by calling it once."""
    rng = np.random.RandomState(0)
    model(*keras.tree.map_structure(lambda i: i.array(SIZES, rng), inputs))
    return model, inputs


def mlp():
    x = inputs = keras.Input((6,), name="x")
    x = layers.Dense(12, activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.3)(x)
    x = layers.Dense(8, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(3)(x), name="mlp"), (Input("x", ("b", 6)),)


def cnn():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax"),
        ]
    )
    return model, (Input("image", ("b", 8, 8, 2)),)


def resnet():
    x = inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for channels, stride in ((4, 1), (8, 2)):
        y = layers.Conv2D(channels, 3, strides=stride, padding="same")(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(y))
        if stride > 1:
            x = layers.Conv2D(channels, 1, strides=stride)(x)
        x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3)(x)), (Input("image", ("b", 8, 8, 3)),)


def sentiment():
    x = inputs = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 6)(x)
    x = layers.LSTM(5)(x)
    x = layers.Dense(2, activation="softmax")(x)
    return keras.Model(inputs, x), (Input("tokens", ("b", "l"), 20),)


def forecast():
    model = keras.Sequential(
        [
            keras.Input((7, 4)),
            layers.Bidirectional(layers.GRU(5, return_sequences=True)),
            layers.GRU(4),
            layers.Dense(1),
        ]
    )
    return model, (Input("series", ("b", 7, 4)),)


class TwoHeads(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu")
        self.norm = layers.LayerNormalization()
        self.logits = layers.Dense(3)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs, training=False):
        x = self.hidden(ops.concatenate([inputs["a"], inputs["b"]], -1))
        return {"logits": self.logits(self.norm(x)) * self.scale, "hidden": x}


def two_heads():
    return built(TwoHeads(), {"a": Input("a", ("b", 3)), "b": Input("b", ("b", 4))})


class Block(layers.Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.width, self.heads = width, heads
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.qkv = layers.Dense(3 * width)
        self.project = layers.Dense(width)
        self.norm_2 = layers.LayerNormalization(epsilon=1e-5)
        self.up = layers.Dense(2 * width, activation="gelu")
        self.down = layers.Dense(width)
        self.dropout = layers.Dropout(0.1)

    def attend(self, x):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        split = (batch, length, self.heads, self.width // self.heads)
        q, k, v = (ops.reshape(t, split) for t in ops.split(self.qkv(x), 3, axis=-1))
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) / (self.width // self.heads) ** 0.5
        causal = ops.arange(length)[:, None] >= ops.arange(length)[None]
        weights = ops.softmax(ops.where(causal, scores, -1e9), axis=-1)
        mixed = ops.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.project(ops.reshape(mixed, (batch, length, self.width)))

    def call(self, x, training=False):
        x = x + self.dropout(self.attend(self.norm(x)), training=training)
        return x + self.dropout(self.down(self.up(self.norm_2(x))), training=training)


class GPT(keras.Model):
    def __init__(self):
        super().__init__(name="gpt")
        self.tokens = layers.Embedding(20, 8)
        self.positions = layers.Embedding(64, 8)
        self.blocks = [Block(8, 2, name=f"block_{i}") for i in range(2)]
        self.head = layers.Dense(20, use_bias=False)

    def call(self, ids, training=False):
        x = self.tokens(ids) + self.positions(ops.arange(ops.shape(ids)[1]))
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


def gpt():
    return built(GPT(), Input("ids", ("b", "l"), 20))


def encoder():
    x = inputs = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 8)(x)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
        y = layers.Dense(8)(layers.Dense(16, activation="relu")(x))
        x = layers.LayerNormalization()(x + y)
    x = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, x), (Input("tokens", ("b", "l"), 20),)


def frozen_base():
    """Transfer learning: a frozen base and a new head."""
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(image)
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    base = keras.Model(image, x, name="base")
    base.trainable = False
    inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Dense(6, activation="relu", name="head")(base(inputs, training=False))
    outputs = layers.Dense(2, name="logits")(x)
    return keras.Model(inputs, outputs), (Input("image", ("b", 8, 8, 3)),)


def text_cnn():
    x = inputs = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 6)(x)
    x = layers.Conv1D(8, 3, padding="same", activation="relu")(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(4, activation="relu")(layers.Dropout(0.2)(x))
    return keras.Model(inputs, layers.Dense(1)(x)), (Input("tokens", ("b", "l"), 20),)
