"""A first conversion in a fresh process against later ones, in processor time.

    python benchmarks/cold.py [program ...] [--models] [--profile]

Each program is exported in one process and converted in another, which has imported JAX and
`invert` and nothing else. Per program:

- `new`: CPU seconds of the first conversion of a file, with an empty cache directory.
- `first`, `later`: those of the first conversion in the next process, which finds what that one
  lowered, and of the fastest of two more.
- `JAX first`, `later`: CPU seconds in which plain JAX traces and lowers the same function, in a
  fresh process of its own: what no converter that lowers once can do without.

With `--models` the programs are the Keras models of `models.py`, exported as SavedModels.

Reading untrusted bytes in a child process is not counted. A collection of all garbage, which takes
as long as a small conversion and falls into one by chance, comes before each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

KERAS = "Keras CNN"
F32 = np.float32


def _type(*shape: Any, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(x: Any, *weights: Any) -> Any:
        for w in weights[:-1]:
            x = jax.nn.relu(x @ w + 0.1)
        return jax.nn.log_softmax(x @ weights[-1])

    return apply, (_type(8, 32), _type(32, 32), _type(32, 32), _type(32, 10))


def cnn() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(x: Any, a: Any, b: Any, w: Any) -> Any:
        for kernel in (a, b):
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
            x = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-3))
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.nn.softmax(jnp.mean(x, (1, 2)) @ w)

    return apply, (_type(2, 16, 16, 3), _type(3, 3, 3, 8), _type(3, 3, 8, 8), _type(8, 10))


def transformer() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from _transformer import apply, parameters

    types = jax.tree_util.tree_map(lambda a: _type(*a.shape), parameters(3, 64))
    return apply, (types, _type(16, 64))


def lstm() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(xs: Any, w: Any, u: Any, b: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((4, 16))
        return jax.lax.scan(step, (zero, zero), xs)

    return apply, (_type(10, 4, 8), _type(8, 64), _type(16, 64), _type(64))


def cumulative() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(x: Any) -> Any:
        return jnp.cumsum(x, 0), jnp.sort(x, 1), jnp.argmax(x, 1), jax.lax.cummax(x, 1)

    return apply, (_type(32, 16),)


def linalg() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(x: Any, b: Any) -> Any:
        spd = x @ x.T + jnp.eye(8)
        q, r = jnp.linalg.qr(x)
        return jnp.linalg.cholesky(spd), jnp.linalg.solve(x, b), q, r, jnp.linalg.eigh(spd)[0]

    return apply, (_type(8, 8), _type(8))


def keys() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(seed: Any) -> Any:
        one, two, three = jax.random.split(jax.random.key(seed), 3)
        noise = jax.random.normal(one, (16,)) + jax.random.uniform(two, (16,))
        return noise * jax.random.bernoulli(three, 0.5, (16,))

    return apply, (_type(dtype=np.int32),)


def special() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def apply(x: Any) -> Any:
        y = jax.nn.gelu(x, approximate=False) + jax.scipy.special.gammaln(x + 2.0)
        return jnp.logaddexp(y, x), jax.scipy.special.erfinv(jnp.tanh(x)), jax.nn.logsumexp(x)

    return apply, (_type(16),)


def symbolic() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    apply, (_, *weights) = mlp()
    (batch,) = jax.export.symbolic_shape("batch")
    return apply, (_type(batch, 32), *weights)


PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "MLP": mlp,
    "CNN": cnn,
    "transformer": transformer,
    "LSTM": lstm,
    "cumsum, sort": cumulative,
    "linalg": linalg,
    "random keys": keys,
    "special functions": special,
    "symbolic batch": symbolic,
}


def keras_model() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def tf_loop() -> Any:
    import tensorflow as tf

    def step(i: Any, x: Any) -> Any:
        return i + 1, tf.nn.softplus(tf.nn.softmax(x) @ x) + tf.math.lgamma(x)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((8, 8))])
    def apply(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 10, step, (tf.constant(0), x))[1]

    return apply


def tf_random() -> Any:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((8, 8))])
    def apply(x: Any) -> Any:
        return x + tf.random.stateless_normal((8, 8), (1, 2)) + tf.random.uniform((8, 8))

    return apply


GRAPHS: dict[str, Callable[[], Any]] = {"TF loop": tf_loop, "TF random numbers": tf_random}


MODELS = (
    *("MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "ConvNeXtTiny", "ResNet50"),
    *("ViT", "BERT", "GPT", "Keras LSTM", "U-Net"),
)


def write(name: str, path: Path) -> None:
    if name == KERAS:
        keras_model().export(str(path), verbose=False)
    elif name in MODELS:
        import models

        models.MODELS[name.removeprefix("Keras ")]().export(str(path), verbose=False)
    elif name in GRAPHS:
        import tensorflow as tf

        module: Any = tf.Module()
        module.apply = GRAPHS[name]()
        tf.saved_model.save(module, str(path), signatures={"serving_default": module.apply})
    else:
        function, avals = PROGRAMS[name]()
        path.write_bytes(jax.export.export(jax.jit(function))(*avals).serialize())


def timed(*runs: Callable[[], Any]) -> list[float]:
    seconds = []
    for run in runs:
        gc.collect()
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return seconds


def convert(name: str, path: Path, profile: bool) -> list[float]:
    import invert

    # What is imported on first use is imported here, so that only conversions are measured.
    import invert.frontends.exported
    import invert.frontends.saved_model

    invert.Config()
    jax.devices()

    def run() -> Any:
        # TensorFlow writes folders.
        model = invert.load(str(path)) if path.is_dir() else invert.from_exported(path.read_bytes())
        return model.report.certificate

    if profile:
        import cProfile
        import pstats

        profiler = cProfile.Profile(time.process_time)
        profiler.runcall(run)
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(70)
    return timed(run, run, run)


def lower(name: str) -> list[float]:
    if name not in PROGRAMS:
        return [float("nan")] * 3
    jax.devices()
    function, avals = PROGRAMS[name]()
    return timed(
        *[lambda: jax.export.export(jax.jit(lambda *a: function(*a)))(*avals) for _ in range(3)]
    )


def child(task: str, name: str, path: Path, *, environment: dict[str, str] | None = None) -> Any:
    command = [sys.executable, __file__, "--task", task, "--path", str(path), name]
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--task", choices=("write", "convert", "profile", "lower"))
    parser.add_argument("--path", type=Path)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if given.task is not None:
        (name,) = given.programs
        if given.task == "write":
            found = write(name, given.path)
        elif given.task == "lower":
            found = lower(name)
        else:
            found = convert(name, given.path, given.task == "profile")
        print(json.dumps(found))
        return
    names = MODELS if given.models else (*PROGRAMS, KERAS, *GRAPHS)
    with tempfile.TemporaryDirectory() as folder:
        print(
            f"{'program':18} {'new':>7} {'first':>7} {'later':>7} {'ratios':>12} "
            f"{'JAX first':>9} {'later':>7} {'ratio':>6}"
        )
        for i, name in enumerate(given.programs or names):
            path = Path(folder) / f"program_{i}"
            child("write", name, path)
            if given.profile:
                command = [sys.executable, __file__, "--task", "profile", "--path", path, name]
                subprocess.run(command, check=True)
                continue
            own = {"INVERT_CACHE_DIR": str(Path(folder) / f"cache_{i}")}
            new, *_ = child("convert", name, path, environment=own)
            first, *rest = child("convert", name, path, environment=own)
            later = min(rest)
            jax_first, *jax_rest = child("lower", name, path)
            jax_later = min(jax_rest)
            print(
                f"{name:18} {new:7.3f} {first:7.3f} {later:7.3f} "
                f"{new / later:6.1f}{first / later:6.1f} "
                f"{jax_first:9.3f} {jax_later:7.3f} {jax_first / jax_later:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
