"""Finds roundings whose derivative the author replaced by that of the identity.

Roundings have the derivative zero. Authors who train through them, as for quantized weights, let
the derivative pass (straight-through estimators), which leaves no trace in a module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax import lax

from invert._private.jax import eval_closed, open_jaxpr, sub_jaxprs
from invert.gradients.region import MarkedRegion
from invert.ir import kinds
from invert.ir.avals import is_differentiable
from invert.ir.interpret import bind
from invert.ir.jaxprs import names_in
from invert.ir.types import Atom, Eqn, JaxFunction, Jaxpr, Value, Var

_ROUNDINGS: Mapping[str, JaxFunction] = MappingProxyType(
    {"round": jnp.round, "floor": jnp.floor, "ceil": jnp.ceil, "sign": jnp.sign}
)


def with_passed_derivatives(region: MarkedRegion) -> Iterator[MarkedRegion]:
    """Variants of `region` whose derivative passes through all roundings, or through one kind."""
    forward = open_jaxpr(region.forward)
    reached = {*_reached(forward, {forward.invars[i] for i in region.moved})}
    names = {eqn.primitive.name for eqn in reached}
    used = [name for name in _ROUNDINGS if name in names]
    for chosen in [used, *([name] for name in used if len(used) > 1)]:

        def passes(eqn: Eqn, chosen: Sequence[str] = chosen) -> bool:
            return eqn in reached and (eqn.primitive.name in chosen or _is_wrapper(eqn))

        if (other := region.with_instead(passes, _passed)) is not None:
            yield other


def _reached(jaxpr: Jaxpr, moving: Set[Atom]) -> Iterator[Eqn]:
    """The equations, inner ones included, that derivatives by `moving` reach.

    The positions that a resized image is read at are rounded, too, and have no derivative.
    """
    if names_in(jaxpr).isdisjoint(_ROUNDINGS):
        return
    moving = {*moving}
    for eqn in jaxpr.eqns:
        moves = [isinstance(a, Var) and a in moving for a in eqn.invars]
        if not any(moves):
            continue
        yield eqn
        moving.update(v for v in eqn.outvars if is_differentiable(v.aval))
        for inner in sub_jaxprs(eqn):
            is_call = kinds.called(eqn) is not None
            inputs = itertools.compress(inner.invars, moves) if is_call else inner.invars
            yield from _reached(inner, {v for v in inputs if is_differentiable(v.aval)})


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
