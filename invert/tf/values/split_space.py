"""Dilated convolutions that TensorFlow writes as convolutions between space and batch.

`SpaceToBatchND(x)`, convolved with stride one, and `BatchToSpaceND` of the result are one
convolution of `x` whose dilation is the block (`with_space_to_batch` in
tensorflow/python/ops/nn_ops.py, TensorFlow 2.21).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
from jax import lax

from invert.ir.types import Value

Pads = list[tuple[Value, Value]]


@dataclasses.dataclass(frozen=True)
class SplitSpace:
    """The origin of an array whose axes were split into batch blocks.

    **Arguments:**

    - `source`: the array before it was split and padded.
    - `block`, `pads`: block size and padding for each axis of `source`.
    - `convolve`: `convolve(pads)` convolves `source`, dilated; `None` if nothing was convolved yet.
    - `axes`: for each axis of the array, that of `source`.
    """

    source: jax.Array
    block: tuple[int, ...]
    pads: tuple[tuple[Value, Value], ...]
    axes: tuple[int, ...]
    convolve: Callable[[Pads], jax.Array] | None = None

    @classmethod
    def of(cls, x: jax.Array, block: Sequence[int], pads: Pads) -> SplitSpace:
        rest = x.ndim - 1 - len(block)
        blocks = (1, *block, *[1] * rest)
        return cls(x, blocks, ((0, 0), *pads, *[(0, 0)] * rest), tuple(range(x.ndim)))

    def expanded(self, axis: int) -> SplitSpace | None:
        """Add an axis of size one."""
        if self.convolve is not None:
            return None
        axis %= self.source.ndim + 1
        block, pads = list(self.block), list(self.pads)
        block.insert(axis, 1)
        pads.insert(axis, (0, 0))
        source = lax.expand_dims(self.source, (axis,))
        return SplitSpace(source, tuple(block), tuple(pads), tuple(range(source.ndim)))

    def squeezed(self, axes: Sequence[int]) -> SplitSpace | None:
        """Remove axes of size one; `None` before a convolution, or if one is split."""
        gone = {a % len(self.axes) for a in axes}
        if (convolve := self.convolve) is None or any(self.block[self.axes[a]] > 1 for a in gone):
            return None
        return dataclasses.replace(
            self,
            convolve=lambda pads: lax.squeeze(convolve(pads), sorted(gone)),
            axes=tuple(axis for a, axis in enumerate(self.axes) if a not in gone),
        )

    def joined(self, block: Sequence[int], crops: Pads) -> jax.Array | None:
        """The array with its blocks moved back, if one convolution computes that."""
        if self.convolve is None:
            return None
        pads, left = list(self.pads), dict(enumerate(self.block))
        for axis, size, (low, high) in zip(self.axes[1:], block, crops, strict=False):
            if left.pop(axis) != size:
                return None
            pads[axis] = pads[axis][0] - low, pads[axis][1] - high
        return None if any(size > 1 for size in left.values()) else self.convolve(pads)
