"""Calls that the lowering puts around one primitive."""

from __future__ import annotations

from collections.abc import Container

from invert.ir.types import JaxFunction, Value
from invert.rewriting.pattern import EquationPattern, Site

# Primitives that JAX lowers to a call of a private function with the expansion.
OUTLINED = frozenset(
    "argmax argmin cumlogsumexp cummax cummin cumprod cumsum threefry2x32 threefry4x32 "
    "philox2x32 philox4x32".split()
)


def _outlined(site: Site) -> JaxFunction | None:
    """`jit[{ cumsum x }] -> cumsum x`, which lowering outlines again."""
    return opened(site, OUTLINED)


def opened(site: Site, names: Container[str]) -> JaxFunction | None:
    """The single equation of a call, if its primitive has one of these names."""
    jaxpr = site.eqn.params["jaxpr"].jaxpr
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name not in names:
        return None
    (eqn,) = jaxpr.eqns
    if list(eqn.invars) != list(jaxpr.invars) or not set(jaxpr.outvars) <= set(eqn.outvars):
        return None
    # Unused results are left out.
    kept = [eqn.outvars.index(v) for v in jaxpr.outvars]

    def call(*args: Value) -> Value:
        result = eqn.primitive.bind(*args, **eqn.params)
        results = result if eqn.primitive.multiple_results else [result]
        return [results[i] for i in kept]

    return call


PATTERNS = (EquationPattern("outlined_call", ("jit",), _outlined),)
