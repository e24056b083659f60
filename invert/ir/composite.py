"""Composites: functions that compilers recognize by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.custom_batching
from jax import lax

from invert._private.jax import (
    consts_of,
    eval_closed,
    is_jaxpr,
    open_jaxpr,
    trace_closed,
)
from invert.ir.avals import type_of
from invert.ir.jaxprs import map_equations
from invert.ir.types import ClosedJaxpr, Eqn, Jaxpr, Params


# Emission copies this function into files that hold composites, so it uses nothing else of this
# package, not even its type aliases. `lax.composite` alone has no derivatives and no batching rule
# (jax 0.10, 0.12).
def composite(
    name: str, version: int = 0, attributes: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Mark a function for compilers that recognize it as the composite `name`.

    Derivatives and `jax.vmap` are those of the function itself.
    """

    def mark(function: Callable[..., object]) -> Callable[..., Any]:
        marked = lax.composite(lambda *args, **_: function(*args), name, version=version)

        @jax.custom_batching.custom_vmap
        def call(*args: object) -> Any:
            return marked(*args, **(attributes or {}))

        @call.def_vmap
        def batch(size: int, batched: list[bool], *args: object) -> Any:
            axes = tuple(0 if b else None for b in batched)
            results = jax.vmap(function, axes, axis_size=size)(*args)
            return results, jax.tree.map(lambda _: True, results)

        def named(*args: object) -> Any:
            return call(*args)

        named.__name__ = name
        differentiable = jax.custom_jvp(named)

        @differentiable.defjvp
        def tangent(primals: object, tangents: object) -> Any:
            return jax.jvp(function, primals, tangents)

        return differentiable

    return mark


def composite_of(eqn: Eqn) -> Eqn | None:
    """The `composite` equation that `composite` has wrapped in a `custom_jvp_call`, if any."""
    for param, primitive in (("call_jaxpr", "custom_vmap_call"), ("call", "composite")):
        eqns = open_jaxpr(eqn.params[param]).eqns
        if len(eqns) != 1 or eqns[0].primitive.name != primitive:
            return None
        (eqn,) = eqns
    return eqn


def body_of(eqn: Eqn) -> ClosedJaxpr:
    """The program of a `composite` equation."""
    # `jaxpr`, in jax 0.12 `call_jaxpr`.
    (closed,) = filter(is_jaxpr, eqn.params.values())
    return cast(ClosedJaxpr, closed)


def attributes_of(eqn: Eqn) -> Params:
    """The attributes of a `composite` equation, arrays unboxed."""
    # JAX wraps arrays in hashable boxes.
    return {
        n: tree.unflatten([getattr(leaf, "val", leaf) for leaf in leaves])
        for n, leaves, tree in eqn.params["attributes"]
    }


def renewed(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Derive the derivatives and batching rules of composites from their current bodies.

    A recognized loop has a reverse derivative, which the original loop did not.
    """
    made: dict[Jaxpr, Eqn] = {}  # calls of one function still share it

    def inner(eqn: Eqn) -> Eqn:
        known = composite_of(eqn) if eqn.primitive.name == "custom_jvp_call" else None
        if known is None:
            return eqn
        called = open_jaxpr(eqn.params["call_jaxpr"])
        if called not in made:
            made[called] = _renewed(eqn, known)
        return eqn.replace(params=made[called].params)

    return map_equations(closed, inner)


def _renewed(eqn: Eqn, known: Eqn) -> Eqn:
    closed, params = body_of(known), known.params
    mark = composite(params["name"], params["version"], dict(attributes_of(known)))
    made = trace_closed(mark(lambda *xs: eval_closed(closed, xs)), *map(type_of, eqn.invars))
    eqns = open_jaxpr(made).eqns
    if len(eqns) != 1 or consts_of(made):
        return eqn
    return eqn.replace(params=eqns[0].params)
