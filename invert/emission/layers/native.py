"""A layer of `equinox.nn` that a part of a program was found to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


@dataclasses.dataclass(frozen=True)
class Native:
    """A layer of `equinox.nn` and how it is applied.

    **Arguments:**

    - `kind`: the name of its class.
    - `args`, `keywords`: what it is made with, but for the key.
    - `keyed`: whether it is made with a key.
    - `maps`: how many times `jax.vmap` is applied.
    - `before`, `after`: orders of the axes of what goes in and out; empty where they stay.
    - `into`, `out`: shapes of what goes in and out; `None` where they stay.
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
        """The layer, with types in the place of arrays."""
        cls = getattr(eqx.nn, self.kind)
        keywords = dict(self.keywords)

        def new(key: jax.Array) -> eqx.Module:
            return cls(*self.args, **keywords, **({"key": key} if self.keyed else {}))

        return eqx.filter_eval_shape(new, jax.random.key(0))

    def apply(self, layer: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """What the emitted text does with the layer."""
        if self.into is not None:
            x = x.reshape(self.into)
        x = x.transpose(self.before) if self.before else x
        for _ in range(self.maps):
            layer = jax.vmap(layer)
        x = layer(x)
        x = x.transpose(self.after) if self.after else x
        return x if self.out is None else x.reshape(self.out)
