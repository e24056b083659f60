"""Layers of `equinox.nn` with their hyperparameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from invert.ir.avals import type_of_key


@dataclasses.dataclass(frozen=True)
class Native:
    """A layer of `equinox.nn` and how it is applied.

    **Arguments:**

    - `kind`: the name of its class.
    - `args`, `keywords`: arguments of its constructor, besides the key.
    - `keyed`: whether its constructor takes a key.
    - `maps`: how many times `jax.vmap` is applied.
    - `before`, `after`: permutations of the axes of the input and the output; empty for none.
    - `into`, `out`: shapes to which the input and the output are reshaped, if any.
    """

    kind: str
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()
    keyed: bool = True
    maps: int = 0
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    into: tuple[int, ...] | None = None
    out: tuple[int, ...] | None = None

    def make(self) -> eqx.Module:
        """The layer with types in place of arrays."""
        cls = getattr(eqx.nn, self.kind)
        keywords = dict(self.keywords)

        def new(key: jax.Array) -> eqx.Module:
            return cls(*self.args, **keywords, **({"key": key} if self.keyed else {}))

        return eqx.filter_eval_shape(new, type_of_key())

    def apply(self, layer: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """Apply the layer as the emitted text does."""
        if self.into is not None:
            x = x.reshape(self.into)
        x = x.transpose(self.before) if self.before else x
        for _ in range(self.maps):
            layer = jax.vmap(layer)
        x = layer(x)
        x = x.transpose(self.after) if self.after else x
        return x if self.out is None else x.reshape(self.out)
