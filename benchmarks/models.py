"""Keras models on a CPU: the converted program, as it is and optimized, over TensorFlow.

    python benchmarks/models.py [model ...] [--batch 1 32] [--rounds 9] [--peers PEER ...] [--train]
        [--optimized] [--options NAME [KEY=VALUE ...]]
        [--large-pages | --kept-memory]

All run in one process, in turn, on all its threads; the ratios are those of the smallest CPU time
and of the median over the rounds, so that other processes on the machine do not count. Peers are
TensorFlow, TensorFlow compiled by XLA (`xla`), `tf2jax` and `call_tf`; one that refuses a model
has no ratio. `--train` measures a step of gradient descent by all trained weights, at inference's
behaviour of dropout and batch norms. `--optimized` leaves out the program as converted where
something is rewritten: XLA takes minutes to compile the gradients of some. `--options`, which may
be repeated, compiles the last of the two with these options of XLA as well, or with those of
`invert.compiler_options(finite=True)` if it names none.
`--large-pages` runs all of it with pages of 2 MB, `--kept-memory` so that the process keeps its
memory; the results are stored apart. Weights are random.

Results go into `benchmarks/models.json`; those of other models, batches and peers stay.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

import invert

try:
    tf2jax: Any = importlib.import_module("tf2jax")
except ImportError:
    tf2jax = None

L = keras.layers
Run = Callable[[], Any]
# Those of XLA's compiler.
Options = Mapping[str, str]
DATA = Path(__file__).with_name("models.json")
RATE = 1e-3
# What the C library reads when a process starts.
MEMORY: Mapping[str, Mapping[str, str]] = {
    "large pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "kept memory": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "8000000000",
    },
}


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


def case(model: keras.Model, batch: int) -> Any:
    """Inputs of a model: images, or token ids."""
    shape, kind = (batch, *model.input_shape[1:]), model.inputs[0].dtype
    rng = np.random.default_rng(0)
    if kind == "int32":
        return rng.integers(0, 5000, shape).astype(np.int32)
    return rng.normal(size=shape).astype(np.float32)


def stepped(weights: Any, gradient: Any) -> Any:
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradient)


def compiled(module: Any, x: Any, train: bool, options: Options | None = None) -> Run:
    """A converted module, or one step of gradient descent of it."""
    wanted = invert.trainable(module) if train else eqx.is_array
    arrays, rest = eqx.partition(module, wanted)
    fixed, rest = eqx.partition(rest, eqx.is_array)

    def forward(arrays: Any, fixed: Any, x: Any) -> Any:
        return eqx.combine(arrays, fixed, rest)(x)

    def step(arrays: Any, fixed: Any, x: Any) -> Any:
        gradient = jax.grad(lambda a: jnp.mean(forward(a, fixed, x) ** 2))(arrays)
        return stepped(arrays, gradient)

    run = jax.jit(step if train else forward, compiler_options=dict(options or {}))
    x = jax.device_put(x)
    return lambda: jax.block_until_ready(run(arrays, fixed, x))


def tensorflow(model: keras.Model, x: Any, train: bool, jit_compile: bool) -> Run:
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=False) ** 2)
        weights = model.trainable_variables
        gradient: Any = tape.gradient(loss, weights)
        # Those of embeddings come as slices.
        dense = map(tf.convert_to_tensor, gradient)
        return [w - RATE * g for w, g in zip(weights, dense, strict=True)]

    forward = lambda x: model(x, training=False)  # noqa: E731
    function = tf.function(step if train else forward, jit_compile=jit_compile)
    given = tf.constant(x)
    return lambda: [t.numpy() for t in tf.nest.flatten(function(given))]


def by_tf2jax(model: keras.Model, x: Any, train: bool) -> Run:
    if tf2jax is None:
        raise NotImplementedError("tf2jax is not installed")
    function = tf.function(lambda x: model(x, training=False), autograph=False)
    converted, params = tf2jax.convert(function, x)
    paths = {v.path for v in model.trainable_variables}
    held = {k: jnp.asarray(v) for k, v in params.items()}
    trained = {k: v for k, v in held.items() if not train or k.partition(":")[0] in paths}
    fixed = {k: v for k, v in held.items() if k not in trained}

    def forward(trained: Any, fixed: Any, x: Any) -> Any:
        return converted({**trained, **fixed}, x)[0]

    def step(trained: Any, fixed: Any, x: Any) -> Any:
        gradient = jax.grad(lambda t: jnp.mean(forward(t, fixed, x) ** 2))(trained)
        return stepped(trained, gradient)

    run = jax.jit(step if train else forward)
    return lambda: jax.block_until_ready(run(trained, fixed, x))


def by_call_tf(model: keras.Model, x: Any, train: bool) -> Run:
    from jax.experimental import jax2tf

    if train:
        raise NotImplementedError("its gradient is that of its arguments alone")
    function = tf.function(lambda x: model(x, training=False), autograph=False)
    run = jax.jit(jax2tf.call_tf(function))
    x = jax.device_put(x)
    return lambda: jax.block_until_ready(run(x))


PEERS: dict[str, Callable[[keras.Model, Any, bool], Run]] = {
    "TensorFlow": functools.partial(tensorflow, jit_compile=False),
    "xla": functools.partial(tensorflow, jit_compile=True),
    "tf2jax": by_tf2jax,
    "call_tf": by_call_tf,
}
# What a peer raises for a model that it does not take.
REFUSALS = (
    AssertionError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError,
    AttributeError, tf.errors.OpError,
)  # fmt: skip


def times(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """CPU seconds of each run, which take turns."""
    found: list[list[float]] = [[] for _ in runs]
    for i in range(rounds):
        for k in range(len(runs)) if i % 2 else reversed(range(len(runs))):
            start = time.process_time()
            runs[k]()
            found[k].append(time.process_time() - start)
    return found


def measure(model: keras.Model, batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each, and ratios: of each converted program over each peer, and of one that
    is compiled with options over the same without."""
    x, train = case(model, batch), asked.train
    module = invert.convert(model, tf.TensorSpec(x.shape, x.dtype))
    fast = invert.optimize(module, "cpu", verify=False)
    runs = {"converted": compiled(module, x, train)}
    if fast.report.rewrites != module.report.rewrites:
        runs = {} if asked.optimized else runs
        runs["optimized"] = compiled(fast, x, train)
    last = [*runs][-1]
    finite = invert.compiler_options("cpu", gradient=train, finite=True)
    chosen = {f"{last}, {k}": assignments(given) or finite for k, *given in asked.options}
    runs |= {name: compiled(fast, x, train, given) for name, given in chosen.items()}
    ours = [*runs]
    for name in asked.peers:
        try:
            run = PEERS[name](model, x, train)
            run()
        except REFUSALS as error:
            print(f"{name} refuses it: {type(error).__name__}: {str(error)[:100]}")
        else:
            runs[name] = run
    for run in runs.values():
        run()
    found = dict(zip(runs, times(list(runs.values()), asked.rounds), strict=True))
    smallest, middle = ({k: f(v) for k, v in found.items()} for f in (min, statistics.median))
    pairs = [(k, peer) for k in ours for peer in asked.peers if peer in runs]
    pairs += [(k, last) for k in chosen]
    return {
        "rounds": asked.rounds,
        "milliseconds": {k: round(1e3 * v, 2) for k, v in smallest.items()},
        "ratios": {
            f"{a} / {b}": [round(m[a] / m[b], 3) for m in (smallest, middle)] for a, b in pairs
        },
    }


def assignments(texts: Sequence[str]) -> Options:
    return dict(text.split("=", 1) for text in texts)


def store(key: str, row: dict[str, Any]) -> None:
    """Put a row into the results; ratios over peers that were not measured stay."""
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    ratios = {**data.get(key, {}).get("ratios", {}), **row["ratios"]}
    data[key] = {**row, "ratios": ratios}
    DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", metavar="model")
    parser.add_argument("--batch", nargs="*", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["TensorFlow"])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("--options", nargs="+", action="append", default=[])
    memory = parser.add_mutually_exclusive_group()
    for name in MEMORY:
        option = f"--{name.replace(' ', '-')}"
        memory.add_argument(option, action="store_const", const=name, dest="memory")
    options = parser.parse_args()
    wanted = MEMORY.get(options.memory, {})
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    print("CPU time over that of the peer, by the smallest and the median; below 1 is faster")
    for name in options.models or MODELS:
        model = MODELS[name]()
        for batch in options.batch:
            row = measure(model, batch, options)
            what = "step" if options.train else "forward"
            what += f", {options.memory}" if options.memory else ""
            store(f"{name}, batch {batch}, {what}", row)
            for pair, (smallest, middle) in row["ratios"].items():
                print(f"{name:<18} {batch:>5} {what:<8} {pair:<40} {smallest:6.2f} {middle:6.2f}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
