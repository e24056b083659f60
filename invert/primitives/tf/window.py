"""Data formats, strides and padding, which convolutions and pools share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, Ints
from invert.tf.ops.node import Node

Padding = str | list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of the batch, channel and spatial axes.

    **Arguments:**

    - `spec`: one letter for each axis, such as `"NHWC"`.
    """

    spec: str

    @property
    def channel(self) -> int:
        return self.spec.index("C")

    @property
    def spatial(self) -> tuple[int, ...]:
        return tuple(i for i, letter in enumerate(self.spec) if letter not in "NC")

    @property
    def kernel(self) -> str:
        """The axes of a filter, the same in every data format."""
        return "".join(self.spec[i] for i in self.spatial) + "IO"

    def of_spatial(self, items: Sequence[Int]) -> Ints:
        """The spatial entries of a sequence over all axes."""
        return tuple(items[i] for i in self.spatial)

    def along_channels(self, x: Array, rank: int) -> Array:
        """A vector with one entry for each channel, ready to broadcast."""
        return lax.reshape(x, [x.shape[0] if i == self.channel else 1 for i in range(rank)])


def layout(node: Node, rank: int) -> Layout:
    """The data format of `node` for an input with `rank` axes."""
    channels_first = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
    channels_last = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
    text: str | None = node.attr("data_format") or channels_last.get(rank)
    if text == "CHANNELS_FIRST":
        text = channels_first.get(rank)
    elif text == "CHANNELS_LAST":
        text = channels_last.get(rank)
    if not text or text not in (channels_first.get(rank), channels_last.get(rank)):
        raise node.error(
            f"has the data format {text} for a tensor with {rank} axes",
            "Use channels first or last.",
        )
    return Layout(text)


def padding_of(node: Node, axes: int) -> Padding:
    """The padding of every axis: `"SAME"`, `"VALID"`, or pairs."""
    padding = node.attr("padding", "VALID")
    if padding != "EXPLICIT":
        return padding
    flat = node.attr("explicit_paddings", [])
    if len(flat) != 2 * axes:
        raise node.error(
            f"needs {2 * axes} explicit paddings but has {len(flat)}",
            "Export it with a pair for each axis.",
        )
    return [(flat[2 * i], flat[2 * i + 1]) for i in range(axes)]


def spatial_padding(padding: Padding, where: Layout) -> Padding:
    """`padding` of the spatial axes only."""
    return padding if isinstance(padding, str) else list(where.of_spatial(padding))


def explicit(
    padding: Padding,
    sizes: Sequence[Int],
    window: Sequence[Int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[Int, Int]]:
    """`padding` as pairs, for axes of these sizes."""
    if not isinstance(padding, str):
        return padding
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    return list(lax.padtype_to_pads(sizes, reach, strides, padding))


def per_axis(node: Node, name: str, rank: int) -> list[int]:
    """A list attribute with an item per axis; ones if the node lacks it."""
    return node.attr(name) or [1] * rank


def is_half(dtype: np.dtype) -> bool:
    """Return whether sums of this type are computed in single precision."""
    return np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu"
