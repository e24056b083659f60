"""Passes positions to layers: callers count, layers look up their tables."""

from __future__ import annotations

from jax import lax

from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.links import users
from invert.ir.types import Eqn


def give_positions(layer: Layer) -> None:
    """Turn the `arange` of layers without inputs into their input, also inside other layers.

    So a transformer embeds positions like tokens.
    """
    steps: list[Eqn] = []
    for step in layer.steps:
        if isinstance(step, LayerCall):
            give_positions(step.layer)
            steps += _counted(step)
        steps.append(step)
    layer.steps = steps


def _counted(call: LayerCall) -> list[Eqn]:
    """The equation that moves out of a layer without inputs, if there is one."""
    layer = call.layer
    counts = [s for s in layer.steps if s.primitive is lax.iota_p and len(s.params["shape"]) == 1]
    if layer.inputs or call.invars or len(counts) != 1:
        return []
    (count,) = counts
    takers = users(count.outvars[0], layer.steps)
    if not takers or any(isinstance(s, LayerCall) for s in takers):
        return []
    layer.steps = [s for s in layer.steps if s is not count]
    layer.inputs, call.invars = list(count.outvars), list(count.outvars)
    return [count]
