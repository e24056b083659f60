"""Turns some steps of a layer into a layer of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from invert.emission.layers.cut import Assign, Layer, LayerCall, Path
from invert.emission.layers.links import ordered
from invert.ir.graph import read_by
from invert.ir.types import Var


def wrap(
    layer: Layer, members: Collection[int], name: str, parameters: Mapping[Var, Path], at: int
) -> LayerCall:
    """Replace steps by the call of a layer of them, in the order of step `at`."""
    call, chosen = wrapped(layer, members, name, parameters), set(members)
    rest = [(i, s) for i, s in enumerate(layer.steps) if i not in chosen]
    layer.steps = ordered([*rest, (at, call)])
    return call


def wrapped(
    layer: Layer,
    members: Collection[int],
    name: str,
    parameters: Mapping[Var, Path],
    shared: Sequence[Var] = (),
) -> LayerCall:
    """The call of a layer of some steps.

    **Arguments:**

    - `shared`: the parameters that it shares with the other blocks.
    """
    chosen = set(members)
    steps = [layer.steps[i] for i in sorted(members)]
    made = {v for s in steps for v in s.outvars}
    others = [s for i, s in enumerate(layer.steps) if i not in chosen]
    outside = {*read_by(others), *layer.results}
    assigned = {s.variable for s in others if isinstance(s, Assign)}
    used = read_by(steps)
    used |= dict.fromkeys(s.variable for s in steps if isinstance(s, Assign))
    own = [v for v in layer.parameters if v in used and v not in outside and v not in assigned]
    layer.parameters = [v for v in layer.parameters if v not in own]
    own += shared
    inner = Layer((*layer.path, name), steps, own)
    inputs = [v for v in used if v not in made and v not in own]
    # Values held by the layers above come last.
    inner.inputs = sorted(inputs, key=lambda v: v in parameters)
    inner.outputs = [v for s in steps for v in s.outvars if v in outside]
    inner.children = {s.layer.name: s.layer for s in steps if isinstance(s, LayerCall)}
    for child in inner.children:
        layer.children.pop(child, None)
    layer.children[name] = inner
    _merge_only(inner)
    return LayerCall(inner, list(inner.inputs), inner.results)


def _merge_only(layer: Layer) -> None:
    """Merge a layer that contains one layer, and no other parameters, with that layer."""
    calls = [s for s in layer.steps if isinstance(s, LayerCall)]
    if len(calls) != 1 or layer.parameters:
        return
    (call,) = calls
    inner = call.layer
    at = layer.steps.index(call)
    layer.steps[at : at + 1] = inner.steps
    layer.parameters = inner.parameters
    layer.children = inner.children
    layer.alias = inner.alias or inner.name
