"""The order of the arguments and the results of layers.

A layer takes its arguments in the order of their first use. Two that are made alike, such as the
mean and the logarithm of a variance, are in the order in which the caller makes them. Keys are last
among the results.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.memory import Memories
from invert.emission.layers.stack import equations
from invert.ir.avals import is_key
from invert.ir.graph import is_var
from invert.ir.types import Atom, Var

_T = TypeVar("_T")
# The places of the arguments of a layer in their old order.
_Order = Sequence[int]


def arrange(root: Layer, memories: Memories) -> None:
    """Arranges the arguments and results of all layers in a layer; a memory stays where it is."""
    _arrange(root, {}, set(), memories)


def _arrange(
    layer: Layer,
    orders: dict[Hashable, _Order],
    done: set[Layer],
    memories: Memories,
) -> None:
    caller = _Caller(layer)
    new: list[Layer] = []
    for call in layer.steps:
        if not isinstance(call, LayerCall):
            continue
        inner = call.layer
        # Layers that compute the same may share a class, and so have one order.
        kind = _kind(inner)
        if kind not in orders:
            orders[kind] = caller.order(call, memories.of(inner))
        call.invars = _permuted(call.invars, orders[kind])
        if inner not in done:
            done.add(inner)
            inner.inputs = _permuted(inner.inputs, orders[kind])
            inner.outputs = sorted(inner.outputs, key=is_key)
            new.append(inner)
        call.outvars = sorted(call.outvars, key=is_key)
    for inner in new:
        _arrange(inner, orders, done, memories)


def _permuted(items: Sequence[_T], order: _Order) -> list[_T]:
    return [items[i] for i in order] if len(items) == len(order) else list(items)


def _kind(layer: Layer) -> Hashable:
    """Features that are equal for layers of one class, whatever their sizes."""
    names = ((e.primitive.name, *(len(v.aval.shape) for v in e.outvars)) for e in equations(layer))
    types = ((len(v.aval.shape), v.aval.dtype) for v in (*layer.inputs, *layer.results))
    return (*names, *types)


class _Caller:
    """The values of a layer, and how they are made."""

    def __init__(self, layer: Layer):
        self.places: dict[Atom, tuple[int, int]] = {v: (-1, i) for i, v in enumerate(layer.inputs)}
        self._makers: dict[Atom, LayerCall] = {}
        self._before: dict[Atom, set[Atom]] = {}
        for i, step in enumerate(layer.steps):
            operands: set[Atom] = {a for a in step.invars if is_var(a)}
            for a in list(operands):
                operands |= self._before.get(a, set())
            for k, v in enumerate(step.outvars):
                self.places[v], self._before[v] = (i, k), operands
                if isinstance(step, LayerCall):
                    self._makers[v] = step

    def order(self, call: LayerCall, kept: Mapping[Var, str]) -> _Order:
        """The order of the arguments of a call: those made alike change places."""
        order = list(range(len(call.invars)))
        free = [
            i
            for i, (a, v) in enumerate(zip(call.invars, call.layer.inputs, strict=False))
            if a in self.places and v not in kept
        ]
        while free:
            first, *free = free
            alike = [first, *(i for i in free if self._alike(call.invars[first], call.invars[i]))]
            free = [i for i in free if i not in alike]
            new = sorted(alike, key=lambda i: self.places[call.invars[i]])
            for i, k in zip(alike, new, strict=True):
                order[i] = k
        return order

    def _alike(self, one: Atom, other: Atom) -> bool:
        """Whether two values have one type, one kind of maker, and do not need each other."""
        if one is other or (one.aval.shape, one.aval.dtype) != (other.aval.shape, other.aval.dtype):
            return False
        makers = [self._makers.get(a) for a in (one, other)]
        if makers == [None, None]:
            return self.places[one][0] == self.places[other][0]  # both given, or of one step
        if None in makers:
            return False
        first, second = (m for m in makers if m is not None)
        apart = one not in self._before[other] and other not in self._before[one]
        return apart and (first is second or _kind(first.layer) == _kind(second.layer))
