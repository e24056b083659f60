"""Passes a self-attention's input twice, if another attention takes a memory.

The two then share a class: `self.attention(x, x)` and `self.attention(x, memory)`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from invert.emission.layers.cut import Layer, LayerCall, Path
from invert.emission.layers.memory import MEMORY, Memories
from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn, ShapedArray, Var

# For each use of parameters, the input of the layer that it combines with these.
_Reads = dict[Hashable, Var]


def separate(root: Layer, parameters: Mapping[Var, Path], memories: Memories) -> None:
    """Give self-attentions a second input.

    **Arguments:**

    - `parameters`: the names of parameters.
    """
    callers: dict[Layer, list[LayerCall]] = {}
    pending = [root]
    while pending:
        for call in (s for s in pending.pop().steps if isinstance(s, LayerCall)):
            if call.layer not in callers:
                pending.append(call.layer)
            callers.setdefault(call.layer, []).append(call)
    # In order, since the last of several patterns counts.
    single = [x for x in callers if x.same is None and all(y.same is not x for y in callers)]
    reads = {x: _reads(x, parameters) for x in single}
    patterns: dict[Hashable, set[Hashable]] = {}
    for layer in single:
        named = memories.of(layer)
        for i, v in enumerate(layer.inputs[1:]):
            first = layer.inputs[i]
            both = {*reads[layer].values()} == {first, v}
            if named.get(v) == MEMORY and both and _are_alike(first, v):
                taken = {k for k, w in reads[layer].items() if w is v}
                patterns[_kind(reads[layer], layer.inputs)] = taken
    for layer in single:
        own = reads[layer]
        if len({*own.values()}) != 1:
            continue
        (x,) = {*own.values()}
        place = layer.inputs.index(x)
        twice = [*layer.inputs[:place], x, *layer.inputs[place:]]
        if taken := patterns.get(_kind(own, twice)):
            _split(layer, x, taken, parameters, callers[layer])


def _are_alike(one: Var, other: Var) -> bool:
    same = one.aval.dtype == other.aval.dtype
    return same and len(one.aval.shape) == len(other.aval.shape)


def _kind(reads: _Reads, inputs: Sequence[Var]) -> Hashable:
    types = tuple((v.aval.dtype, len(v.aval.shape)) for v in inputs)
    return frozenset(reads), types


def _reads(layer: Layer, parameters: Mapping[Var, Path]) -> _Reads:
    """The uses of parameters that read an input itself."""
    found: _Reads = {}
    for step in layer.steps:
        key = _use(step, parameters)
        own = [a for a in step.invars if is_var(a) and a in layer.inputs]
        if key is not None and len(own) == 1:
            found[key] = own[0]
    return found


def _use(step: Eqn, parameters: Mapping[Var, Path]) -> Hashable | None:
    """What tells the use of parameters from others in the layer."""
    if isinstance(step, LayerCall):
        return re.sub(r"(_\d+)+$", "", step.layer.field or step.layer.name)
    own = [a for a in step.invars if is_var(a) and a in parameters]
    return parameters[own[0]][-1] if len(own) == 1 else None


def _split(
    layer: Layer,
    x: Var,
    taken: set[Hashable],
    parameters: Mapping[Var, Path],
    calls: Sequence[LayerCall],
) -> None:
    """Give a layer a second input, which some parameters use."""
    memory = Var(ShapedArray(x.aval.shape, x.aval.dtype))
    for i, step in enumerate(layer.steps):
        if _use(step, parameters) in taken:
            invars: list[Atom] = [memory if a is x else a for a in step.invars]
            if isinstance(step, LayerCall):
                step.invars = invars
            else:
                layer.steps[i] = step.replace(invars=invars)
    place = layer.inputs.index(x)
    layer.inputs = [*layer.inputs[: place + 1], memory, *layer.inputs[place + 1 :]]
    for call in calls:
        call.invars = [*call.invars[: place + 1], call.invars[place], *call.invars[place + 1 :]]
