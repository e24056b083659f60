"""Finds roundings whose derivative the author replaced by that of the identity.

Roundings have the derivative zero. Authors who train through them, as for quantized weights, let
the derivative pass (straight-through estimators), which leaves no trace in a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

from invert._private.jax import eval_closed, open_jaxpr
from invert.gradients.region import MarkedRegion
from invert.ir.interpret import bind
from invert.ir.jaxprs import names_in
from invert.ir.types import Eqn, JaxFunction, Value

_ROUNDINGS: Mapping[str, JaxFunction] = MappingProxyType(
    {"round": jnp.round, "floor": jnp.floor, "ceil": jnp.ceil, "sign": jnp.sign}
)


def with_passed_derivatives(region: MarkedRegion) -> Iterator[MarkedRegion]:
    """Variants of `region` whose derivative passes through all roundings, or through one kind."""
    names = names_in(open_jaxpr(region.forward))
    kinds = [name for name in _ROUNDINGS if name in names]
    for chosen in [kinds, *([kind] for kind in kinds if len(kinds) > 1)]:

        def passes(eqn: Eqn, chosen: Sequence[str] = chosen) -> bool:
            return eqn.primitive.name in chosen or _is_wrapper(eqn)

        if (other := region.with_instead(passes, _passed)) is not None:
            yield other


def _is_wrapper(eqn: Eqn) -> bool:
    """Return whether an equation, as of `jnp.round`, only calls a rounding that was replaced."""
    if eqn.primitive.name != "jit" or eqn.params["name"] not in _ROUNDINGS:
        return False
    return [e.primitive.name for e in open_jaxpr(eqn.params["jaxpr"]).eqns] == ["custom_jvp_call"]


def _passed(eqn: Eqn, x: Value) -> Sequence[Value]:
    if _is_wrapper(eqn):
        return eval_closed(eqn.params["jaxpr"], [x])
    name = eqn.primitive.name
    is_away = eqn.params.get("rounding_method") == lax.RoundingMethod.AWAY_FROM_ZERO

    def rounded(x: Value) -> Value:
        return bind(eqn, [x])[0] if is_away else _ROUNDINGS[name](x)

    rounded.__name__ = f"straight_through_{name}"
    function = jax.custom_jvp(rounded)
    function.defjvp(lambda primals, tangents: (function(*primals), *tangents))
    return [function(x)]
