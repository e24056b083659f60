"""Calls that the lowering introduced around one primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from invert._rewrite import Site, Structural

# Primitives that JAX lowers as a call of a private function that holds the expansion.
OUTLINED = frozenset(
    "argmax argmin cumlogsumexp cummax cummin cumprod cumsum threefry2x32 threefry4x32 "
    "philox2x32 philox4x32".split()
)


def _outlined(site: Site) -> Callable[..., Any] | None:
    """`jit[{ cumsum x }] -> cumsum x`: lowering outlines the primitive again."""
    jaxpr = site.eqn.params["jaxpr"].jaxpr
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name not in OUTLINED:
        return None
    (eqn,) = jaxpr.eqns
    if list(eqn.invars) != list(jaxpr.invars) or list(eqn.outvars) != list(jaxpr.outvars):
        return None

    def call(*args: Any) -> Any:
        result = eqn.primitive.bind(*args, **eqn.params)
        return result if eqn.primitive.multiple_results else [result]

    return call


PATTERNS = (Structural("outlined_call", ("jit",), _outlined),)
