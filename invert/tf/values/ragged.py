"""Ragged tensors as single values, which loops read row by row."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax import lax

from invert.ir.types import Value
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, ints


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class RaggedVariant:
    """A ragged tensor, or a row of one, in a tensor of type variant.

    **Arguments:**

    - `splits`: the row offsets, outermost partition first.
    - `values`: the values of the rows, concatenated.
    """

    splits: tuple[Value, ...]
    values: Value

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
        return RaggedVariant(tuple(inner), lax.slice_in_dim(array(self.values), first, last))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class CompositeVariant:
    """The components of a composite tensor, in one tensor of type variant."""

    components: tuple[Value, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
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
