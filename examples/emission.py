"""A small transformer goes through `jax.export` and comes back as the source of Equinox classes.

Prints the emitted source and how many lines it has against those of the Flax classes below. Saves
it, and loads it in a process that has neither `invert` nor TensorFlow. Exits with 1 if the outputs
differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import invert


class Norm(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        offset = self.param("offset", nn.initializers.zeros, (x.shape[-1],))
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        return centered * jax.lax.rsqrt(variance + 1e-6) * scale + offset


class Linear(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        return x @ kernel + bias


class Attention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query = Linear(width, name="query")(x).reshape(split)
        key = Linear(width, name="key")(x).reshape(split)
        value = Linear(width, name="value")(x).reshape(split)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(split[-1])
        weights = jax.nn.softmax(scores)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return Linear(width, name="out")(mixed.reshape(x.shape))


class Block(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        x = x + Attention(self.heads, name="attention")(Norm(name="norm_1")(x))
        hidden = jax.nn.gelu(Linear(4 * width, name="up")(Norm(name="norm_2")(x)))
        return x + Linear(width, name="down")(hidden)


class Transformer(nn.Module):
    layers: int
    heads: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.layers):
            x = Block(self.heads, name=f"block_{i}")(x)
        x = Norm(name="norm")(x)
        return Linear(self.classes, name="head")(jnp.mean(x, axis=1))


ORIGINAL = (Norm, Linear, Attention, Block, Transformer)


def export(model: nn.Module, params: Any, x: jax.Array) -> bytes:
    """The model with its weights inside and an open batch."""
    shape = jax.export.symbolic_shape(", ".join(["batch", *map(str, x.shape[1:])]))
    spec = jax.ShapeDtypeStruct(shape, x.dtype)
    return bytes(jax.export.export(jax.jit(lambda x: model.apply(params, x)))(spec).serialize())


def code_lines(text: str) -> int:
    """Lines that are neither empty nor comments nor imports."""
    lines = (line.strip() for line in text.splitlines())
    return sum(
        bool(line) and not line.startswith(("#", "import ", "from ", '"""')) for line in lines
    )


def main() -> int:
    model = Transformer(layers=2, heads=2, classes=5)
    x = jax.random.normal(jax.random.key(0), (3, 6, 8))
    leaves, tree = jax.tree_util.tree_flatten(model.init(jax.random.key(1), x))
    # Trained weights are neither zero nor one, and no two of them are equal.
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [v + 0.1 * jax.random.normal(k, v.shape) for v, k in zip(leaves, keys, strict=True)]
    params = jax.tree_util.tree_unflatten(tree, moved)
    module = invert.from_exported(export(model, params, x))
    print(module.source)
    written = module.source.split("\ndef load(")[0]
    original = sum(code_lines(inspect.getsource(cls)) for cls in ORIGINAL)
    print(f"# lines: {code_lines(written)} emitted, {original} written by hand")
    with tempfile.TemporaryDirectory() as directory:
        invert.save(module, directory)
        np.save(Path(directory) / "x.npy", x)
        program = (
            "import numpy as np, model\n"
            "module = model.load()\n"
            "np.save('y.npy', module(np.load('x.npy')))\n"
        )
        subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)
        alone = np.load(Path(directory) / "y.npy")
    same = np.array_equal(alone, module(x))
    print("# outputs of the saved module in another process:", "equal" if same else "DIFFERENT")
    return 0 if same and dataclasses.is_dataclass(module.model) else 1


if __name__ == "__main__":
    sys.exit(main())
