"""The precision of products and convolutions."""

from __future__ import annotations

from typing import Any

from jax import lax

from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Op

_PRECISION = {
    "DEFAULT": lax.Precision.DEFAULT,
    "HIGH": lax.Precision.HIGH,
    "HIGHEST": lax.Precision.HIGHEST,
}


def precision_config(op: Op) -> Any:
    """What `lax` takes as `precision`; `None` for the default."""
    attribute = op.get("precision_config")
    if attribute is None:
        return None
    names = attributes.enum_names(attribute)
    if all(n == "DEFAULT" for n in names):
        return None
    return tuple(_PRECISION[n] for n in names)
