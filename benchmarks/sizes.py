"""What open sizes cost: a new size, and a conversion at symbolic sizes, in processor time.

    python benchmarks/sizes.py

Per program:

- `new size`: the recovered program at sizes that it has not had, traced, compiled and run, over the
  same function in plain JAX; the median over the sizes, each of the two first in turn.
- `conversion`: the conversion at open sizes over that at fixed ones, minimum of five each.
- `source`: the same for conversion and text together.

Exports come from `jax.export`; the masked LSTM comes from Keras.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from _transformer import apply, parameters

import invert

SIZES = (5, 9, 14, 19, 23, 27)


def seconds(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def transformer(layers: int) -> tuple[Callable[..., Any], tuple[str, ...]]:
    weights = parameters(layers, 64)
    return jax.vmap(functools.partial(apply, weights)), ("batch, length, 64",)


def lstm() -> tuple[Callable[..., Any], tuple[str, ...]]:
    rng = np.random.default_rng(0)
    w, u = (rng.normal(size=(n, 64)).astype(np.float32) for n in (8, 16))

    def run(xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], 16))
        return jax.lax.scan(step, (zero, zero), xs)

    return run, ("length, batch, 8",)


def convolutions() -> tuple[Callable[..., Any], tuple[str, ...]]:
    kernels = np.random.default_rng(1).normal(size=(6, 3, 3, 8, 8)).astype(np.float32) / 8

    def run(x: Any) -> Any:
        for kernel in kernels:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return x.mean((1, 2))

    return run, ("batch, 16, 16, 8",)


def exported(function: Callable[..., Any], shapes: Sequence[str], sizes: dict[str, int]) -> Any:
    if sizes:
        at = [tuple(sizes.get(d.strip(), d) for d in s.split(",")) for s in shapes]
        types = [jax.ShapeDtypeStruct(tuple(int(d) for d in s), np.float32) for s in at]
    else:
        scope = jax.export.SymbolicScope()
        types = [
            jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32)
            for s in shapes
        ]
    return jax.export.export(jax.jit(function))(*types)


def masked_lstm(fixed: bool) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    ids = keras.Input((12,) if fixed else (None,), batch_size=4 if fixed else None, dtype="int32")
    x = keras.layers.Embedding(50, 8, mask_zero=True)(ids)
    x = keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True))(x)
    return keras.Model(ids, keras.layers.Dense(2)(x))


def ratio(
    convert: Callable[[Any], Any], at_open: Any, at_fixed: Any, *, source: bool = False
) -> float:
    def run(model: Any) -> float:
        return seconds(lambda: convert(model).source if source else convert(model))

    _ = run(at_open), run(at_fixed)
    pairs = [(run(at_open), run(at_fixed)) for _ in range(5)]
    return min(a for a, _ in pairs) / min(b for _, b in pairs)


def new_size(module: Any, function: Callable[..., Any], shapes: Sequence[str]) -> float:
    recovered, original = jax.jit(lambda *xs: module(*xs)), jax.jit(function)
    rng = np.random.default_rng(0)
    ratios = []
    for k, n in enumerate(SIZES):
        sizes = {"batch": n % 7 + 2, "length": n}
        args = [
            rng.normal(size=[sizes.get(d.strip()) or int(d) for d in s.split(",")]).astype(
                np.float32
            )
            for s in shapes
        ]
        runs = {
            name: functools.partial(lambda f, a: jax.block_until_ready(f(*a)), f, args)
            for name, f in (("recovered", recovered), ("original", original))
        }
        times = {name: seconds(runs[name]) for name in sorted(runs, reverse=bool(k % 2))}
        ratios.append(times["recovered"] / times["original"])
    return statistics.median(ratios[1:])


def main() -> None:
    print("| program | new size | conversion | source |\n|---|---|---|---|")
    programs = {
        "transformer, 2 layers": transformer(2),
        "transformer, 8 layers": transformer(8),
        "LSTM": lstm(),
        "convolutions": convolutions(),
    }
    for name, (function, shapes) in programs.items():
        both = (
            exported(function, shapes, {}),
            exported(function, shapes, {"batch": 4, "length": 12}),
        )
        module = invert.from_exported(both[0])
        row = (
            new_size(module, function, shapes),
            ratio(invert.from_exported, *both),
            ratio(invert.from_exported, *both, source=True),
        )
        print(f"| {name} | {row[0]:.2f} | {row[1]:.2f} | {row[2]:.2f} |", flush=True)
    both = masked_lstm(fixed=False), masked_lstm(fixed=True)
    row = ratio(invert.convert, *both), ratio(invert.convert, *both, source=True)
    print(f"| masked LSTM of Keras | | {row[0]:.2f} | {row[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
