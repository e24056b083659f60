"""Passes an input twice to a layer, if a similar layer takes two.

The two then share a class: `self.attention(x, x)` and `self.attention(x, memory)`. Layers are
similar if they are attentions, or have one name but for numbers, and use their inputs alike.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterator, Mapping, Sequence

from invert.emission.layers.cut import Layer, LayerCall, Path
from invert.emission.layers.memory import MEMORY, Memories
from invert.emission.python.naming import stem
from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn, ShapedArray, Var

# For each use of an input of a layer, the input.
_Reads = dict[Hashable, Var]


def separate(root: Layer, parameters: Mapping[Var, Path], memories: Memories) -> None:
    """Give layers a second input that similar layers have.

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
    again = {y.same for y in callers}
    single = [x for x in callers if x.same is None and x not in again]
    for every in (False, True):
        reads = {x: _reads(x, parameters, every=every) for x in single}
        patterns: dict[Hashable, set[Hashable]] = {}
        for layer in single:
            named = memories.of(layer)
            for i, v in enumerate(layer.inputs[1:]):
                first = layer.inputs[i]
                both = {*reads[layer].values()} == {first, v}
                if (every or named.get(v) == MEMORY) and both and _are_alike(first, v):
                    taken = {k for k, w in reads[layer].items() if w is v}
                    kind = _kind(layer, reads[layer], (first, v), named=every)
                    patterns[kind] = taken
        for layer in single:
            own = reads[layer]
            if len({*own.values()}) != 1:
                continue
            (x,) = {*own.values()}
            if taken := patterns.get(_kind(layer, own, (x, x), named=every)):
                _split(layer, x, taken, parameters, callers[layer], every=every)


def _are_alike(one: Var, other: Var) -> bool:
    same = one.aval.dtype == other.aval.dtype
    return same and len(one.aval.shape) == len(other.aval.shape)


def _kind(layer: Layer, reads: _Reads, inputs: Sequence[Var], *, named: bool) -> Hashable:
    types = tuple((v.aval.dtype, len(v.aval.shape)) for v in inputs)
    return frozenset(reads), types, stem(layer.name) if named else ""


def _reads(layer: Layer, parameters: Mapping[Var, Path], *, every: bool) -> _Reads:
    """The uses of inputs themselves."""
    found: _Reads = {}
    for step, key in zip(layer.steps, _keys(layer, parameters, every=every), strict=True):
        own = [a for a in step.invars if is_var(a) and a in layer.inputs]
        if key is not None and len(own) == 1:
            found[key] = own[0]
    return found


def _keys(
    layer: Layer, parameters: Mapping[Var, Path], *, every: bool
) -> Iterator[Hashable | None]:
    """Key the steps of a layer that use inputs, to tell them apart; `None` for other steps.

    **Arguments:**

    - `every`: whether steps are among them that use an input without parameters.
    """
    counts = collections.Counter[str]()
    for step in layer.steps:
        own = [k for k, a in enumerate(step.invars) if is_var(a) and a in layer.inputs]
        key = _use(step, parameters)
        if every and key is None and own:
            name = step.primitive.name
            counts[name] += 1
            key = name, counts[name], own[0]
        yield key


def _use(step: Eqn, parameters: Mapping[Var, Path]) -> Hashable | None:
    """Key the use of parameters, to tell it from others in the layer."""
    if isinstance(step, LayerCall):
        return stem(step.layer.field or step.layer.name)
    own = [a for a in step.invars if is_var(a) and a in parameters]
    return parameters[own[0]][-1] if len(own) == 1 else None


def _split(
    layer: Layer,
    x: Var,
    taken: set[Hashable],
    parameters: Mapping[Var, Path],
    calls: Sequence[LayerCall],
    *,
    every: bool,
) -> None:
    """Give a layer a second input, which some uses read."""
    memory = Var(ShapedArray(x.aval.shape, x.aval.dtype))
    for i, key in enumerate(_keys(layer, parameters, every=every)):
        if key in taken:
            _read_instead(layer, i, x, memory)
    place = layer.inputs.index(x)
    layer.inputs = [*layer.inputs[: place + 1], memory, *layer.inputs[place + 1 :]]
    for call in calls:
        call.invars = [*call.invars[: place + 1], call.invars[place], *call.invars[place + 1 :]]


def _read_instead(layer: Layer, i: int, x: Var, memory: Var) -> None:
    """Let a step read another variable, and so the steps of the layer that it calls."""
    step = layer.steps[i]
    invars: list[Atom] = [memory if a is x else a for a in step.invars]
    if not isinstance(step, LayerCall):
        layer.steps[i] = step.replace(invars=invars)
        return
    step.invars, inner = invars, step.layer
    if x in inner.inputs:
        inner.inputs = [memory if v is x else v for v in inner.inputs]
        for k, own in enumerate(inner.steps):
            if x in own.invars:
                _read_instead(inner, k, x, memory)
