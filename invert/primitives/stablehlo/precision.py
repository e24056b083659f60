"""The precision of products and convolutions."""

from __future__ import annotations

from typing import Any

from jax import lax

from invert.stablehlo.ops.registry import Enums


def precision_of(names: Enums) -> Any:
    """The `precision` argument of `lax`; `None` for the default."""
    if all(name == "DEFAULT" for name in names):
        return None
    return tuple(lax.Precision[name] for name in names)
