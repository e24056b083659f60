"""Passes positions to layers: callers count, layers look up their tables."""

from __future__ import annotations

from jax import lax

from invert.emission.layers.cut import Layer, LayerCall
from invert.ir.graph import is_var
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
    users = [s for s in layer.steps if any(is_var(a) and a is count.outvars[0] for a in s.invars)]
    if not users or any(isinstance(s, LayerCall) for s in users):
        return []
    layer.steps = [s for s in layer.steps if s is not count]
    layer.inputs, call.invars = list(count.outvars), list(count.outvars)
    return [count]
