"""Passes layers an array that has the open sizes of their results.

A layer may broadcast a table of positions over a batch that none of its inputs has: the original
layer also took an array just for its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from invert.emission.layers.cut import Layer, LayerCall
from invert.ir.sizes import DimSize, dimension, dimensions
from invert.ir.types import Atom, Var

Shape = Callable[[Atom], Sequence[DimSize]]


def give_sizes(root: Layer, shape: Shape) -> None:
    """Adds inputs to layers whose results have open sizes that none of their inputs has.

    **Arguments:**

    - `shape`: the shape of a variable, open sizes as expressions.
    """
    missing: dict[Layer, tuple[str, ...]] = {}
    _find(root, shape, missing)
    if any(missing.values()):
        _give(root, _having(root.inputs, shape), shape, missing, {})


def _having(variables: Sequence[Var], shape: Shape) -> dict[str, Var]:
    """For each open size, the first variable with that dimension."""
    variables_by_size: dict[str, Var] = {}
    for v in variables:
        for size in shape(v):
            if (name := dimension(size)) is not None:
                variables_by_size.setdefault(name, v)
    return variables_by_size


def _find(layer: Layer, shape: Shape, missing: dict[Layer, tuple[str, ...]]) -> Sequence[str]:
    """The open sizes that a layer and its inner layers need from above."""
    if layer not in missing:
        wanted = [d for v in layer.outputs for s in shape(v) for d in sorted(dimensions(s))]
        for step in layer.steps:
            if isinstance(step, LayerCall):
                wanted += _find(step.layer, shape, missing)
        there = _having(layer.inputs, shape)
        missing[layer] = tuple(sorted({d for d in wanted if d not in there}))
    return missing[layer]


def _give(
    layer: Layer,
    sources: Mapping[str, Var],
    shape: Shape,
    missing: Mapping[Layer, Sequence[str]],
    done: dict[Layer, Mapping[str, Var]],
) -> None:
    for step in layer.steps:
        if not isinstance(step, LayerCall):
            continue
        inner = step.layer
        arrays = list(dict.fromkeys(sources[d] for d in missing[inner] if d in sources))
        step.invars = [*step.invars, *arrays]
        if inner not in done:
            inner.inputs = [*inner.inputs, *arrays]
            done[inner] = _having(inner.inputs, shape)
            _give(inner, done[inner], shape, missing, done)
