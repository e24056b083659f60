"""A small transformer without a library, for the measurements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def parameters(layers: int, width: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Weights of each layer."""
    rng = np.random.RandomState(seed)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    return [
        {
            "qkv": weight(width, 3 * width),
            "out": weight(width, width),
            "up": weight(width, 4 * width),
            "down": weight(4 * width, width),
            "scale": np.ones((2, width), np.float32),
        }
        for _ in range(layers)
    ]


def _norm(x: Any, scale: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def apply(params: Any, x: Any, heads: int = 4) -> Any:
    """Causal self-attention and a gelu MLP in every layer; `x` is `(length, width)`."""
    n, width = x.shape
    mask = jnp.tril(jnp.ones((n, n), bool))
    for p in params:
        y = _norm(x, p["scale"][0])
        q, k, v = (
            part.reshape(n, heads, -1).swapaxes(0, 1) for part in jnp.split(y @ p["qkv"], 3, -1)
        )
        scores = jnp.where(mask, q @ k.swapaxes(1, 2) / np.sqrt(width // heads), -1e9)
        mixed = (jax.nn.softmax(scores) @ v).swapaxes(0, 1).reshape(n, width)
        x = x + mixed @ p["out"]
        x = x + jax.nn.gelu(_norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
    return x
