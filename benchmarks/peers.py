"""TensorFlow graphs against tf2jax and against TensorFlow itself, as ratios within one process.

For each model: the cost of a conversion up to StableHLO, the compiled forward pass, and the
compiled gradient by the trained variables. All run on one thread and are measured in CPU time of
this process, so that other processes on the machine do not count; the candidates run in turn, and
the median of the ratios is printed, for conversions the ratio of the smallest times. Where tf2jax
is not installed, or refuses a model, its column says so. What the programs are called with is flat,
so that no time goes into trees.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import functools
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

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

CONVERSIONS = 5
ROUNDS = 9
SECONDS_PER_ROUND = 0.05
Run = Callable[[], Any]


def mlp() -> keras.Model:
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(6)]
    return keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])


def cnn() -> keras.Model:
    return keras.applications.MobileNetV2(
        (96, 96, 3), alpha=0.35, weights=cast(Any, None), classes=10
    )


def transformer(layers: int = 4, width: int = 64) -> keras.Model:
    x = given = keras.Input((32, width))
    for _ in range(layers):
        h = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(4, width // 4)(h, h)
        h = keras.layers.LayerNormalization()(x)
        h = keras.layers.Dense(4 * width, activation="gelu")(h)
        x = x + keras.layers.Dense(width)(h)
    return keras.Model(given, x)


def lstm() -> keras.Model:
    layers = [keras.layers.LSTM(64, return_sequences=True), keras.layers.LSTM(64)]
    return keras.Sequential([keras.Input((32, 32)), *layers, keras.layers.Dense(4)])


def gru() -> keras.Model:
    layers = [keras.layers.GRU(64, return_sequences=True), keras.layers.GRU(64)]
    both = map(keras.layers.Bidirectional, layers)
    return keras.Sequential([keras.Input((32, 32)), *both, keras.layers.Dense(4)])


def convnext() -> keras.Model:
    return keras.applications.ConvNeXtTiny(
        input_shape=(64, 64, 3), weights=cast(Any, None), classes=10, include_preprocessing=False
    )


MODELS: dict[str, tuple[Callable[[], keras.Model], int]] = {
    "MLP": (mlp, 32),
    "MobileNetV2": (cnn, 2),
    "transformer": (transformer, 4),
    "LSTM": (lstm, 8),
    "GRU": (gru, 8),
    "ConvNeXt": (convnext, 2),
}


def cpu_seconds(run: Run, count: int = 1) -> float:
    start = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - start) / count


def ratios(ours: Run, peer: Run, rounds: int, seconds: float = 0.0) -> float:
    """Median of the CPU time of `ours` over that of `peer`, which run in turn.

    Without `seconds` for each round, the smallest time over the smallest.
    """
    ours()
    peer()
    counts = [max(1, int(seconds / max(cpu_seconds(run), 1e-6))) for run in (ours, peer)]
    times: tuple[list[float], list[float]] = [], []
    for i in range(rounds):
        for k in (0, 1) if i % 2 else (1, 0):
            times[k].append(cpu_seconds((ours, peer)[k], counts[k]))
    if not seconds:
        return min(times[0]) / min(times[1])
    return statistics.median(a / b for a, b in zip(*times, strict=True))


def loss_of(values: Any, mean: Callable[[Any], Any]) -> Any:
    return mean(values * values)


class Case:
    """One model: a forward pass and a gradient by its variables, and a training step's gradient."""

    def __init__(self, model: keras.Model, batch: int):
        self.model = model
        shape = (batch, *model.input_shape[1:])
        self.x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        self.spec = tf.TensorSpec(shape, tf.float32)
        self.tensor = tf.constant(self.x)

    def forward(self, x: Any) -> Any:
        return self.model(x, training=False)

    def step(self, x: Any) -> list[Any]:
        """The gradient as a part of the graph, as in a training step."""
        with tf.GradientTape() as tape:
            loss = loss_of(self.forward(x), tf.reduce_mean)
        return tape.gradient(loss, self.model.trainable_variables)

    def function(self, fn: Callable[[Any], Any], jit_compile: bool | None = None) -> Any:
        made = tf.function(fn, autograph=False, jit_compile=jit_compile)
        made.get_concrete_function(self.spec)
        return made

    def tensorflow(self, fn: Callable[[Any], Any], jit_compile: bool) -> Run:
        made = self.function(fn, jit_compile)
        return lambda: [t.numpy() for t in tf.nest.flatten(made(self.tensor))]

    # -- conversion up to StableHLO

    def convert(self, function: Any) -> None:
        # The weights are arguments, as tf2jax has them.
        arrays, rest = eqx.partition(invert.convert(function, self.spec), eqx.is_array)
        jax.jit(lambda arrays, x: eqx.combine(arrays, rest)(x)).lower(arrays, self.x)

    def convert_tf2jax(self, function: Any) -> None:
        assert tf2jax is not None
        converted, params = tf2jax.convert(function, self.x)
        jax.jit(converted).lower(params, self.x)

    # -- compiled programs

    def ours(self, fn: Callable[[Any], Any], gradient: bool) -> Run:
        module = invert.convert(self.function(fn), self.spec)
        wanted = invert.trainable(module) if gradient else eqx.is_array
        values, rest = eqx.partition(module, wanted)
        leaves, tree = jax.tree_util.tree_flatten(values)

        def program(leaves: Sequence[Any], x: Any) -> Any:
            return eqx.combine(jax.tree_util.tree_unflatten(tree, leaves), rest)(x)

        return _compiled(program, leaves, self.x, gradient)

    def peer(self, fn: Callable[[Any], Any], gradient: bool) -> Run:
        assert tf2jax is not None
        converted, params = tf2jax.convert(self.function(fn), self.x)
        paths = {v.path for v in self.model.trainable_variables}
        wanted = {k: v for k, v in params.items() if not gradient or k.partition(":")[0] in paths}
        fixed = {k: jnp.asarray(v) for k, v in params.items() if k not in wanted}

        def program(leaves: Sequence[Any], x: Any) -> Any:
            return converted({**dict(zip(wanted, leaves, strict=True)), **fixed}, x)[0]

        return _compiled(program, list(map(jnp.asarray, wanted.values())), self.x, gradient)


def _compiled(program: Callable[..., Any], leaves: list[Any], x: Any, gradient: bool) -> Run:
    """A call of the compiled program, or of the gradient of a loss by `leaves`."""

    def loss(leaves: Sequence[Any], x: Any) -> Any:
        return loss_of(program(leaves, x), jnp.mean)

    run = jax.jit(jax.grad(loss)) if gradient else jax.jit(program)
    x = jax.device_put(x)
    return lambda: jax.block_until_ready(run(leaves, x))


def attempt(measure: Callable[[], float]) -> str:
    """The ratio, or the error of a peer that refuses the model."""
    if tf2jax is None:
        return "-"
    try:
        return f"{measure():.2f}"
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return f"({type(error).__name__})"


def measure(name: str, case: Case) -> None:
    """Prints the rows of a model."""
    for what, fn in (("forward", case.forward), ("gradient", case.step)):
        function = case.function(fn)
        ours, peer = (functools.partial(f, function) for f in (case.convert, case.convert_tf2jax))
        ratio = attempt(functools.partial(ratios, ours, peer, CONVERSIONS))
        print(f"{name:<12} {'convert ' + what:<22} {ratio:>12}", flush=True)
    for what, fn, gradient, reference in (
        ("forward", case.forward, False, case.forward),
        ("gradient", case.forward, True, case.step),
        ("gradient in the graph", case.step, False, case.step),
    ):
        run = case.ours(fn, gradient)
        timed = functools.partial(ratios, run, rounds=ROUNDS, seconds=SECONDS_PER_ROUND)
        made = functools.partial(case.peer, fn, gradient)
        peer = attempt(lambda timed=timed, made=made: timed(made()))
        own = [timed(case.tensorflow(reference, jit)) for jit in (True, False)]
        print(f"{name:<12} {what:<22} {peer:>12} {own[0]:8.2f} {own[1]:8.2f}", flush=True)


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if tf2jax is None:
        print("tf2jax is not installed: its columns are left out")
    print("CPU time of invert over that of the peer; below 1 is faster")
    print(f"{'model':<12} {'what':<22} {'tf2jax':>12} {'TF XLA':>8} {'TF':>8}")
    for name, (make, batch) in MODELS.items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            measure(name, Case(make(), batch))


if __name__ == "__main__":
    main()
