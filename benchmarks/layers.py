"""What a stack of layers costs to compile and to run, as classes and as one scanned stack.

`python benchmarks/layers.py [layers ...]` exports a transformer, recovers it, writes it both ways
and compiles outputs and gradients of both. Times are of the processor, in one process.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import invert


class Block(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + nn.SelfAttention(self.heads, name="attention")(nn.LayerNorm(name="norm_1")(x))
        hidden = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(nn.LayerNorm(name="norm_2")(x)))
        return x + nn.Dense(x.shape[-1], name="down")(hidden)


class Transformer(nn.Module):
    layers: int
    heads: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(16, name="embed")(x)
        for i in range(self.layers):
            x = Block(self.heads, name=f"block_{i}")(x)
        return nn.Dense(5, name="head")(nn.LayerNorm(name="norm")(x))


def recovered(layers: int, x: Any) -> invert.Module:
    """The transformer with its weights inside and an open batch, through `jax.export`."""
    model = Transformer(layers)
    leaves, tree = jax.tree.flatten(jax.jit(model.init)(jax.random.key(0), x))
    # Trained weights are neither zero nor one, and no two of them are equal.
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [v + 0.1 * jax.random.normal(k, v.shape) for v, k in zip(leaves, keys, strict=True)]
    params = jax.tree.unflatten(tree, moved)
    shape = jax.export.symbolic_shape(", ".join(["batch", *map(str, x.shape[1:])]))
    spec = jax.ShapeDtypeStruct(shape, x.dtype)
    exported = jax.export.export(jax.jit(lambda x: model.apply(params, x)))(spec)
    return invert.from_exported(exported, config=invert.Config(verify=False))


def loss(model: Any, x: Any) -> Any:
    return jnp.mean(jnp.sin(3 * model(x)))


ROUNDS = 7


class Compiled(NamedTuple):
    """A compiled function: processor seconds to trace and compile, and to run, and its result."""

    seconds: float
    run: float
    result: Any


def compiled(function: Any, *args: Any) -> Compiled:
    start = time.process_time()
    jitted: Any = eqx.filter_jit(function)
    lowered = jitted.lower(*args).compile()
    seconds, runs = time.process_time() - start, []
    result = lowered(*args)
    for _ in range(ROUNDS):
        start = time.process_time()
        jax.block_until_ready(lowered(*args))
        runs.append(time.process_time() - start)
    return Compiled(seconds, min(runs), result)


# Those of more layers, as classes, take XLA long to compile.
MOST_WITH_GRADIENT = 32


def measure(layers: int) -> None:
    x = jax.random.normal(jax.random.key(1), (2, 6, 8))
    module = recovered(layers, x)
    whole = layers <= MOST_WITH_GRADIENT
    found: dict[str, list[Compiled]] = {}
    print(f"{layers} layers  {'lines':>6} {'write':>8} {'compile':>9} {'run':>9} {'gradient':>9} "
          f"{'run':>9}", flush=True)  # fmt: skip
    for name in ("classes", "scan"):
        start = time.process_time()
        emission = module.emit(layers="scan" if name == "scan" else ())
        spent = time.process_time() - start
        found[name] = [compiled(lambda m, x: m(x), emission.model, x)]
        if whole or name == "scan":
            found[name].append(compiled(eqx.filter_grad(loss), emission.model, x))
        times = " ".join(f"{c.seconds:>8.2f}s {1e3 * c.run:>7.2f}ms" for c in found[name])
        lines = len(emission.source.splitlines())
        print(f"{name:>9}  {lines:>6} {spent:>7.2f}s {times}", flush=True)
    pairs = list(zip(found["classes"], found["scan"], strict=False))
    ratios = ", its gradient ".join(f"{a.seconds / b.seconds:.1f} times" for a, b in pairs)
    print(f"the stack compiles faster: {ratios}")
    wanted, given = (found[n][0].result for n in ("classes", "scan"))
    print("largest difference of outputs:", float(np.abs(wanted - given).max()),
          "of", float(np.abs(wanted).max()))  # fmt: skip
    if not whole:
        return
    slopes, stacked = found["classes"][1].result, found["scan"][1].result
    rows = jax.tree.map(lambda *v: np.stack(v), *slopes.blocks)
    worst = max(
        float(np.abs(a - b).max() / np.abs(a).max())
        for a, b in zip(jax.tree.leaves(rows), jax.tree.leaves(stacked.blocks), strict=True)
        if np.abs(a).max() > 1e-7
    )
    print("largest difference of gradients, of the largest in its array:", worst)


def main() -> int:
    for layers in map(int, sys.argv[1:] or ("12", "48")):
        measure(layers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
