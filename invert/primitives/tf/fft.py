"""Fourier transforms over the last axes, or over axes given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, Rule, add_table
from invert.tf.values.constants import array, ints, static

# How many axes at the end, by the ending of the name.
_RANKS = {"": 1, "2D": 2, "3D": 3}


def _last(fn: Callable[..., Any], rank: int) -> Rule:
    """A transform over the last `rank` axes, to the lengths of input 1 where there is one."""

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        x = array(values[0])
        lengths = ints(static(node, values, 1)) if len(values) == 2 else None
        return [_typed(fn(x, lengths, tuple(range(-rank, 0))), node)]

    return rule


def _typed(y: Any, node: Node) -> Any:
    """In the type that the op declares; `jnp` computes half precision in single."""
    name = "Treal" if node.op.startswith("IRFFT") else "Tcomplex"
    dtype = node.attr(name)
    return y if dtype is None or y.dtype == dtype else lax.convert_element_type(y, dtype)


def _any(fn: Callable[..., Any]) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        lengths, axes = (ints(static(node, values, i)) for i in (1, 2))
        return [_typed(fn(array(values[0]), lengths, axes), node)]

    return rule


_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "FFT": jnp.fft.fftn,
    "IFFT": jnp.fft.ifftn,
    "RFFT": jnp.fft.rfftn,
    "IRFFT": jnp.fft.irfftn,
}

add_table(
    {
        f"{kind}{end}": _last(fn, rank)
        for kind, fn in _TRANSFORMS.items()
        for end, rank in _RANKS.items()
    }
)
add_table(
    {
        f"Batch{kind}{end}": _last(_TRANSFORMS[kind], rank)
        for kind in ("FFT", "IFFT")
        for end, rank in _RANKS.items()
    }
)
add_table({f"{kind}ND": _any(fn) for kind, fn in _TRANSFORMS.items()})
