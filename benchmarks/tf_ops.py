"""TensorFlow ops, one by one: the recovered program over TensorFlow, and what a conversion takes.

For each case the median ratios of the processor time of the recovered, compiled program over that
of TensorFlow compiled by XLA and of TensorFlow as it is, forward and gradient, on one thread, run
in turn; and the seconds of a first and of a second conversion. `-`: TensorFlow does not compile or
run it. `python benchmarks/tf_ops.py [case ...]`.
"""

from __future__ import annotations

import os

# One thread for all: JAX's linear algebra runs in SciPy's OpenBLAS, which has threads of its own.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from _op_cases import CASES

import invert

ROUNDS = 5
SECONDS_PER_ROUND = 0.01
CONFIG = invert.Config(dynamic_sizes="pad")
Run = Callable[[], Any]


def cpu_seconds(run: Run, count: int = 1) -> float:
    start = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - start) / count


def ratio(ours: Run, peer: Run) -> float:
    """Median of the processor time of `ours` over that of `peer`, which run in turn."""
    runs = (ours, peer)
    for run in runs:
        run()
    counts = [max(1, int(SECONDS_PER_ROUND / max(cpu_seconds(run), 1e-6))) for run in runs]
    found = []
    for i in range(ROUNDS):
        times: dict[int, float] = {}
        for k in (0, 1) if i % 2 else (1, 0):
            times[k] = cpu_seconds(runs[k], counts[k])
        found.append(times[0] / times[1])
    return statistics.median(found)


def tensorflow_gradient(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    def gradient(*xs: Any) -> Any:
        with tf.GradientTape() as tape:
            for i in places:
                tape.watch(xs[i])
            numbers = [y for y in tf.nest.flatten(function(*xs)) if y.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(y * y) for y in numbers])
        found = tape.gradient(loss, [xs[i] for i in places])
        if None in found:
            raise LookupError("TensorFlow has no gradient")
        return found

    return gradient


def jax_gradient(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    def loss(given: Sequence[Any], xs: Sequence[Any]) -> Any:
        values = list(xs)
        for i, x in zip(places, given, strict=True):
            values[i] = x
        results = jax.tree.leaves(function(*values))
        return sum(jnp.sum(y * y) for y in results if jnp.issubdtype(y.dtype, jnp.floating))

    return lambda *xs: jax.grad(loss)([xs[i] for i in places], xs)


def convert(function: Callable[..., Any], args: Sequence[np.ndarray]) -> tuple[float, Any]:
    """Seconds of the processor that a conversion takes, and the module."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in args]
    made = tf.function(function, autograph=False)
    made.get_concrete_function(*specs)
    start = time.process_time()
    module = invert.convert(made, *specs, config=CONFIG)
    return time.process_time() - start, module


def against(
    ours: Callable[..., Any], theirs: Callable[..., Any], args: Sequence[np.ndarray]
) -> list[str]:
    """The ratios over TensorFlow compiled by XLA, and as it is."""
    compiled, given = jax.jit(ours), jax.device_put(list(args))
    tensors = [tf.constant(x) for x in args]

    def run() -> Any:
        return jax.block_until_ready(compiled(*given))

    run()
    found = []
    for jit_compile in (True, False):
        function = tf.function(theirs, autograph=False, jit_compile=jit_compile)
        try:
            found.append(f"{ratio(run, functools.partial(function, *tensors)):.2f}")
        except (tf.errors.OpError, LookupError, NotImplementedError, ValueError):
            found.append("-")
    return found


def measure(name: str) -> str:
    """The row of a case."""
    function, args, has_gradient = CASES[name]
    first, module = convert(function, args)
    again, _ = convert(function, args)
    columns = against(module.__call__, function, args)
    places = [i for i, x in enumerate(args) if x.dtype == np.float32]
    if has_gradient and places:
        pair = jax_gradient(module, places), tensorflow_gradient(function, places)
        columns += against(*pair, args)
    columns += [""] * (4 - len(columns))
    numbers = " ".join(f"{c:>7}" for c in columns)
    return f"{name:<24} {first:7.2f} {again:7.2f} {numbers}"


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x = np.ones((2, 2), np.float32)
    convert(lambda x: x + 1.0, [x])  # what is loaded once is not the op's
    print("processor time over TensorFlow's; below 1 is faster")
    titles = " ".join(f"{t:>7}" for t in ("/ XLA", "/ TF", "grad", "grad"))
    print(f"{'case':<24} {'first':>7} {'again':>7} {titles}")
    for name in sys.argv[1:] or CASES:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
