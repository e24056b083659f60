"""The order of the arguments and the results of layers.

A layer takes its arguments in the order of their first use. Arguments that are computed alike, such
as a mean and a logarithm of a variance, are in the order in which the caller computes them. Keys
come last among the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp

from invert.emission.layers.cut import Layer, LayerCall
from invert.emission.layers.memory import Memories
from invert.emission.layers.stack import equations
from invert.ir.avals import is_key
from invert.ir.graph import is_var
from invert.ir.order import reached
from invert.ir.types import Atom, Eqn, Var

_T = TypeVar("_T")
# The places of the arguments of a layer in their old order.
_Order = Sequence[int]


def arrange(root: Layer, memories: Memories) -> None:
    """Arrange arguments and results of a layer's inner layers; memories stay in place."""
    _Arranger(memories).inside(root)


@dataclasses.dataclass
class _Arranger:
    """Arranges layers from the outermost inwards.

    **Arguments:**

    - `orders`: the order of the arguments of each kind of layers.
    """

    memories: Memories
    orders: dict[Hashable, _Order] = dataclasses.field(default_factory=dict)
    _kinds: dict[Layer, Hashable] = dataclasses.field(default_factory=dict)
    _done: set[Layer] = dataclasses.field(default_factory=set)

    def inside(self, layer: Layer) -> None:
        """Arrange the layers that a layer calls, and those inside them."""
        caller = _Caller(layer, self.kind)
        new: list[Layer] = []
        for call in layer.steps:
            if not isinstance(call, LayerCall):
                continue
            inner = call.layer
            # Layers that compute the same may share a class, and so have one order.
            kind = self.kind(inner)
            if kind not in self.orders:
                self.orders[kind] = caller.order(call, self.memories.of(inner))
            new.append(inner)
            call.invars = _permuted(call.invars, self.orders[kind])
            call.outvars = sorted(call.outvars, key=is_key)
        for inner in dict.fromkeys(new):
            if inner in self._done:
                continue
            self._done.add(inner)
            inner.inputs = _permuted(inner.inputs, self.orders[self.kind(inner)])
            inner.outputs = sorted(inner.outputs, key=is_key)
            self.inside(inner)

    def kind(self, layer: Layer) -> Hashable:
        """Features that are equal for layers of one class, whatever their sizes."""
        if layer not in self._kinds:
            names = (
                (e.primitive.name, *(len(v.aval.shape) for v in e.outvars))
                for e in equations(layer)
            )
            arrays = (*layer.inputs, *layer.results)
            self._kinds[layer] = (*names, *((len(v.aval.shape), v.aval.dtype) for v in arrays))
        return self._kinds[layer]


def _is_stream(atom: Atom) -> bool:
    """Return whether a value has features of a sequence or an image."""
    return len(atom.aval.shape) > 2 and jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def _permuted(items: Sequence[_T], order: _Order) -> list[_T]:
    return [items[i] for i in order] if len(items) == len(order) else list(items)


class _Caller:
    """The values of a layer, and how they are made."""

    def __init__(self, layer: Layer, kind: Callable[[Layer], Hashable]):
        self._kind = kind
        self.places: dict[Atom, tuple[int, int]] = {v: (-1, i) for i, v in enumerate(layer.inputs)}
        self._makers: dict[Atom, Eqn] = {}
        for i, step in enumerate(layer.steps):
            for k, v in enumerate(step.outvars):
                self.places[v], self._makers[v] = (i, k), step

    def order(self, call: LayerCall, kept: Mapping[Var, str]) -> _Order:
        """The order of a call's arguments: those made alike are sorted."""
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
        # A mask that is read first still follows the stream of features.
        return sorted(order, key=lambda i: not _is_stream(call.invars[i]))

    def _alike(self, one: Atom, other: Atom) -> bool:
        """Return whether two independent values have equal types and producers of one kind."""
        if one is other or (one.aval.shape, one.aval.dtype) != (other.aval.shape, other.aval.dtype):
            return False
        first, second = self._makers.get(one), self._makers.get(other)
        if first is second:
            return True  # both given, or made by one step
        if not isinstance(first, LayerCall) or not isinstance(second, LayerCall):
            return False
        alike = self._kind(first.layer) == self._kind(second.layer)
        return alike and not self._needs(one, second) and not self._needs(other, first)

    def _needs(self, value: Atom, step: Eqn) -> bool:
        """Return whether a step reads a value, or what is computed from it."""

        def before(step: Eqn) -> Iterator[Eqn]:
            return (self._makers[a] for a in step.invars if is_var(a) and a in self._makers)

        return any(a is value for s in reached([step], before) for a in s.invars)
