"""Keras models on a CPU: the converted program, as it is and optimized, over TensorFlow.

    python benchmarks/models.py [model ...] [--batch 1 32] [--rounds 9] [--xla]

All run in one process, in turn, on all its threads; the ratios are those of the smallest CPU time
and of the median over the rounds, so that other processes on the machine do not count. `--xla`
compares with TensorFlow compiled by XLA too. Weights are random.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import equinox as eqx
import jax
import keras
import numpy as np
import tensorflow as tf

import invert

L = keras.layers
Run = Callable[[], Any]


def block(x: Any, width: int, heads: int, causal: bool) -> Any:
    h = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(heads, width // heads)(h, h, use_causal_mask=causal)
    h = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
    return x + L.Dense(width)(h)


def vit(layers: int = 6, width: int = 192) -> keras.Model:
    image = keras.Input((224, 224, 3))
    x = L.Reshape((196, width))(L.Conv2D(width, 16, 16)(image))
    for _ in range(layers):
        x = block(x, width, 3, False)
    return keras.Model(image, L.Dense(1000)(L.GlobalAveragePooling1D()(x)))


def text(causal: bool, layers: int = 4, width: int = 256) -> keras.Model:
    ids = keras.Input((128,), dtype="int32")
    x = L.Embedding(5000, width)(ids)
    for _ in range(layers):
        x = block(x, width, 4, causal)
    return keras.Model(ids, L.Dense(5000)(x))


def lstm() -> keras.Model:
    layers = [L.LSTM(128, return_sequences=True), L.LSTM(128), L.Dense(10)]
    return keras.Sequential([keras.Input((64, 64)), *layers])


def unet() -> keras.Model:
    def twice(x: Any, width: int) -> Any:
        for _ in range(2):
            x = L.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = L.ReLU()(L.BatchNormalization()(x))
        return x

    x = image = keras.Input((128, 128, 3))
    left = []
    for width in (16, 32, 64):
        left.append(x := twice(x, width))
        x = L.MaxPooling2D()(x)
    x = twice(x, 128)
    for width in (64, 32, 16):
        x = twice(L.Concatenate()([L.Conv2DTranspose(width, 2, 2)(x), left.pop()]), width)
    return keras.Model(image, L.Conv2D(1, 1)(x))


def application(name: str) -> keras.Model:
    return getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3))


NAMES = ("MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "ConvNeXtTiny", "ResNet50")
MODELS: dict[str, Callable[[], keras.Model]] = {
    **{name: functools.partial(application, name) for name in NAMES},
    "ViT": vit,
    "BERT": functools.partial(text, False),
    "GPT": functools.partial(text, True),
    "LSTM": lstm,
    "U-Net": unet,
}


def compiled(module: Any, x: Any) -> Run:
    arrays, rest = eqx.partition(module, eqx.is_array)
    run = jax.jit(lambda arrays, x: eqx.combine(arrays, rest)(x))
    x = jax.device_put(x)
    return lambda: jax.block_until_ready(run(arrays, x))


def tensorflow(model: keras.Model, x: Any, jit_compile: bool) -> Run:
    function = tf.function(lambda x: model(x, training=False), jit_compile=jit_compile)
    given = tf.constant(x)
    return lambda: function(given).numpy()


def times(runs: list[Run], rounds: int) -> list[list[float]]:
    """CPU seconds of each run, which take turns."""
    found: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for i in range(rounds):
        for k in range(len(runs)) if i % 2 else reversed(range(len(runs))):
            start = time.process_time()
            runs[k]()
            found[k].append(time.process_time() - start)
    return found


def measure(name: str, model: keras.Model, batch: int, rounds: int, xla: bool) -> None:
    shape, kind = (batch, *model.input_shape[1:]), model.inputs[0].dtype
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    if kind == "int32":
        x = rng.integers(0, 5000, shape).astype(np.int32)
    module = invert.convert(model, tf.TensorSpec(shape, kind))
    fast = invert.optimize(module, "cpu", verify=False)
    runs = [compiled(m, x) for m in (module, fast)]
    runs += [
        tensorflow(model, x, jit_compile) for jit_compile in ([False, True] if xla else [False])
    ]
    found = times(runs, rounds)
    smallest, middle = ([f(row) for row in found] for f in (min, statistics.median))
    cells = [
        f"{m[i] / m[k]:8.2f}"
        for k in range(2, len(runs))
        for i in (0, 1)
        for m in (smallest, middle)
    ]
    print(f"{name:<18} {batch:>5} {1e3 * smallest[2]:9.1f} {' '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", metavar="model")
    parser.add_argument("--batch", nargs="*", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--xla", action="store_true")
    options = parser.parse_args()
    print("CPU time over that of TensorFlow; below 1 is faster")
    heads = ["as it is", "optimized", *(["over TF XLA", "optimized"] if options.xla else [])]
    print(f"{'model':<18} {'batch':>5} {'TF, ms':>9} {' '.join(f'{h:>17}' for h in heads)}")
    for name in options.models or MODELS:
        model = MODELS[name]()
        for batch in options.batch:
            measure(name, model, batch, options.rounds, options.xla)


if __name__ == "__main__":
    main()
