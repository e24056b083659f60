"""Ragged tensors as single values, of type variant in a graph, which loops take row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from invert._errors import Problem
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, ints


@jax.tree_util.register_pytree_node_class
class Encoded:
    """A ragged tensor, or a row of one, in a tensor of type variant.

    **Arguments:**

    - `splits`: where rows begin and end, from the outermost partition on.
    - `values`: what is in the rows.
    """

    def __init__(self, splits: Sequence[Any], values: Any):
        self.splits, self.values = tuple(splits), values

    @property
    def rows(self) -> int:
        return len(self.splits[0]) - 1 if self.splits else np.shape(self.values)[0]

    def row(self, index: int) -> Encoded:
        """A row, where the partitions are known."""
        first, last = ints(self.splits[0][index : index + 2])
        inner = []
        for split in self.splits[1:]:
            part = split[first : last + 1]
            inner.append(part - part[0])
            first, last = ints(part[[0, -1]])
        return Encoded(inner, lax.slice_in_dim(array(self.values), first, last))

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self.splits, self.values), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> Encoded:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class Composite:
    """The tensors that a value of several tensors is made of, in one tensor of type variant."""

    def __init__(self, components: Sequence[Any]):
        self.components = tuple(components)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.components, None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> Composite:
        return cls(children)


class Apart(Encoded):
    """The rows of a ragged tensor of one partition that depends on data, a vector of variants."""

    def at(self, node: Node, index: Any) -> Encoded:
        (split,) = self.splits
        bounds = [lax.dynamic_index_in_dim(split, index + i, keepdims=False) for i in (0, 1)]
        x = array(self.values)
        # Room for a row that is as long as all of them, wherever it begins.
        room = lax.pad(x, np.zeros((), x.dtype), [(0, x.shape[0], 0)] + [(0, 0, 0)] * (x.ndim - 1))
        found = lax.dynamic_slice_in_dim(room, bounds[0], x.shape[0])
        reason = "gives a row of a ragged tensor, whose length depends on data"
        problem = Problem(f"tf.{node.op}", reason, node.location, "Pad the rows.")
        return Encoded((), BoundedArray(found, (bounds[1] - bounds[0]).astype(np.int32), problem))


jax.tree_util.register_pytree_node(
    Apart, lambda a: ((a.splits, a.values), None), lambda _, children: Apart(*children)
)
