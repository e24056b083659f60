"""Composites: functions that compilers know by a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.custom_batching
from jax import lax


# Emission writes this very function into the files that hold composites, so it uses nothing else
# of this package. `lax.composite` alone has no derivatives and no batching rule (jax 0.10, 0.12).
def composite(
    name: str, version: int = 0, attributes: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Mark a function for compilers that know it as the composite `name`.

    Derivatives and `jax.vmap` are those of the function itself.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        marked = lax.composite(lambda *args, **_: function(*args), name, version=version)

        @jax.custom_batching.custom_vmap
        def call(*args: Any) -> Any:
            return marked(*args, **(attributes or {}))

        @call.def_vmap
        def batch(size: int, batched: list[bool], *args: Any) -> Any:
            axes = tuple(0 if b else None for b in batched)
            results = jax.vmap(function, axes, axis_size=size)(*args)
            return results, jax.tree.map(lambda _: True, results)

        def named(*args: Any) -> Any:
            return call(*args)

        named.__name__ = name
        differentiable = jax.custom_jvp(named)

        @differentiable.defjvp
        def tangent(primals: Any, tangents: Any) -> Any:
            return jax.jvp(function, primals, tangents)

        return differentiable

    return mark
