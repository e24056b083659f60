"""Passes layers an array from which they read the open sizes they use.

A layer may broadcast a table of positions over a batch that none of its inputs has; the original
layer took an array only for its shape, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from invert._private.jax import dim_terms, open_jaxpr
from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.sizes.expressions import part_and_rest, term_text
from invert.ir import jaxprs, kinds
from invert.ir.graph import is_var
from invert.ir.sizes import DimSize, dimension, dimensions, is_open
from invert.ir.types import Atom, Eqn, Var

Shape = Callable[[Atom], Sequence[DimSize]]


def give_sizes(root: Layer, shape: Shape, *, every: bool) -> None:
    """Add inputs to layers that use open sizes not found in their inputs.

    **Arguments:**

    - `shape`: the shape of a variable, open sizes as expressions.
    - `every`: whether the sizes of results count as used.
    """
    missing: dict[Layer, tuple[str, ...]] = {}
    _find(root, shape, every, missing)
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


def _find(
    layer: Layer, shape: Shape, every: bool, missing: dict[Layer, tuple[str, ...]]
) -> Sequence[str]:
    """The open sizes that a layer and its inner layers need from above."""
    if layer not in missing:
        there = _having(layer.inputs, shape)
        sizes = (s for v in layer.inputs for s in shape(v))
        known = {parts[0] for s in sizes if (parts := part_and_rest(s)) is not None}
        wanted: set[str] = set()
        if every:
            wanted |= {d for v in layer.outputs for s in shape(v) for d in dimensions(s)}
        for size in _used(layer.steps, set()):
            wanted |= _names(size, known)
        for step in layer.steps:
            if isinstance(step, LayerCall):
                wanted |= {*_find(step.layer, shape, every, missing)}
        missing[layer] = tuple(sorted(wanted - there.keys()))
    return missing[layer]


def _names(size: DimSize, known: Set[str]) -> set[str]:
    """The dimensions in a size, outside of parts that are known."""
    names: set[str] = set()
    for coefficient, factors in dim_terms(size):
        if term_text(abs(coefficient), factors) in known:
            continue
        for factor, _ in factors:
            if isinstance(factor, str):
                names.add(factor)
            elif term_text(1, [(factor, 1)]) not in known:
                names |= {n for part in factor[1] for n in _names(part, known)}
    return names


def _used(steps: Sequence[Eqn], seen: set[int]) -> Iterator[DimSize]:
    """The open sizes that the text of some equations is likely to name.

    `seen` holds the ids of inner programs already visited: a function may be called many times.
    """
    users: dict[Atom, list[Eqn]] = {}
    for eqn in steps:
        for atom in filter(is_var, eqn.invars):
            users.setdefault(atom, []).append(eqn)
    spread = {eqn.outvars[0] for eqn in steps if eqn.primitive.name == "broadcast_in_dim"}

    def by_itself(eqn: Eqn) -> bool:
        # Implicit broadcasting: the other operand already has the whole shape.
        return eqn.primitive.name in kinds.ELEMENTWISE and any(
            is_var(a) and a not in spread and a.aval.shape == eqn.outvars[0].aval.shape
            for a in eqn.invars
        )

    for eqn in steps:
        if isinstance(eqn, LayerCall):
            continue
        for jaxpr in map(open_jaxpr, jaxprs.sub_jaxprs(eqn)):
            if id(jaxpr) not in seen:
                seen.add(id(jaxpr))
                yield from _used(jaxpr.eqns, seen)
        uses = users.get(eqn.outvars[0], []) if eqn.outvars else []
        if eqn.outvars and eqn.outvars[0] in spread and uses and all(map(by_itself, uses)):
            continue
        sizes = list(_sizes(list(eqn.params.values())))
        if eqn.primitive.name not in _NAMING:
            there = {n for a in eqn.invars if is_var(a) for n in a.aval.shape}
            sizes = [n for n in sizes if n not in there]
        yield from sizes


# These are written with every size of the result, others only with the sizes that change.
_NAMING = frozenset(("broadcast_in_dim", "iota", "reshape"))


def _sizes(value: Any) -> Iterator[DimSize]:
    if is_open(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _sizes(part)


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
