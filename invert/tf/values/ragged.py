"""Ragged tensors as single values, which loops read row by row."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from invert.ir.types import Value
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, ints


@jax.tree_util.register_pytree_node_class
class RaggedVariant:
    """A ragged tensor, or a row of one, in a tensor of type variant.

    **Arguments:**

    - `splits`: the row offsets, outermost partition first.
    - `values`: the values of the rows, concatenated.
    """

    def __init__(self, splits: Sequence[Value], values: Value):
        self.splits, self.values = tuple(splits), values

    @property
    def rows(self) -> int:
        return len(self.splits[0]) - 1 if self.splits else np.shape(self.values)[0]

    def row(self, index: int) -> RaggedVariant:
        """A row, if the partitions are known."""
        first, last = ints(self.splits[0][index : index + 2])
        inner = []
        for split in self.splits[1:]:
            part = split[first : last + 1]
            inner.append(part - part[0])
            first, last = ints(part[[0, -1]])
        return RaggedVariant(inner, lax.slice_in_dim(array(self.values), first, last))

    def tree_flatten(self) -> tuple[tuple[Value, Value], None]:
        return (self.splits, self.values), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Value) -> RaggedVariant:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class CompositeVariant:
    """The components of a composite tensor, in one tensor of type variant."""

    def __init__(self, components: Sequence[Value]):
        self.components = tuple(components)

    def tree_flatten(self) -> tuple[tuple[Value, ...], None]:
        return self.components, None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Value) -> CompositeVariant:
        return cls(children)


class DynamicRagged(RaggedVariant):
    """The rows of a ragged tensor, with a partition that depends on data."""

    def at(self, node: Node, index: Value) -> RaggedVariant:
        (split,) = self.splits
        bounds = [lax.dynamic_index_in_dim(split, index + i, keepdims=False) for i in (0, 1)]
        x = array(self.values)
        # Wherever a row begins, it may be as long as all rows together.
        padded = lax.pad(
            x, np.zeros((), x.dtype), [(0, x.shape[0], 0)] + [(0, 0, 0)] * (x.ndim - 1)
        )
        row = lax.dynamic_slice_in_dim(padded, bounds[0], x.shape[0])
        reason = "returns a row of a ragged tensor, whose length depends on data"
        problem = node.problem(reason, "Pad the rows.")
        return RaggedVariant(
            (), BoundedArray(row, (bounds[1] - bounds[0]).astype(np.int32), problem)
        )


jax.tree_util.register_pytree_node(
    DynamicRagged,
    lambda a: ((a.splits, a.values), None),
    lambda _, children: DynamicRagged(*children),
)
