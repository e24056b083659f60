"""Random crops of an image that show enough of its objects.

Kernel: tensorflow/core/kernels/image/sample_distorted_bounding_box_op.cc, TensorFlow 2.21. It tries
until a crop fits. The op with a seed draws the kernel's numbers, the others use the key.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, rule
from invert.tf.numerics.philox import Stream, unit
from invert.tf.ops.node import Node

_F32, _I32, _U32, _U64 = (np.dtype(t) for t in (np.float32, np.int32, np.uint32, np.uint64))


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words of a stream in order; `at` is the position of the next one."""

    stream: Stream
    at: Array

    def word(self) -> tuple[Array, _Words]:
        block = self.stream.words((self.at // np.uint64(4))[None])[0]
        return block[self.at % np.uint64(4)], dataclasses.replace(self, at=self.at + np.uint64(1))

    def fraction(self) -> tuple[Array, _Words]:
        """A number in [0, 1)."""
        word, rest = self.word()
        return unit(word, _F32), rest

    def below(self, count: Array) -> tuple[Array, _Words]:
        """An unbiased integer below `count`: words that would cause bias are rejected."""
        count = jnp.maximum(count, 1).astype(_U32)
        few = (np.uint32(0xFFFFFFFF) % count) + np.uint32(1)
        few = jnp.where(few == count, np.uint32(0), few)  # a power of two accepts every word

        def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
            word, rest = dataclasses.replace(self, at=state[1]).word()
            return word, rest.at

        first, rest = self.word()
        word, at = lax.while_loop(lambda s: s[0] < few, again, (first, rest.at))
        return (word % count).astype(_I32), dataclasses.replace(self, at=at)

    def below_if(self, wanted: Array, count: Array) -> tuple[Array, _Words]:
        """`below` if `wanted`; otherwise 0, without drawing a word."""
        number, rest = self.below(count)
        at = jnp.where(wanted, rest.at, self.at)
        return jnp.where(wanted, number, 0), dataclasses.replace(self, at=at)


def _rounded(x: Array) -> Array:
    return jnp.round(x).astype(_I32)


def _crop(
    words: _Words, size: tuple[Array, Array], areas: tuple[Array, Array], ratio: Array
) -> tuple[Array, Array, _Words]:
    """A crop of an aspect ratio: its bounds, and whether it exists."""
    height, width = size
    least, most = (a * width.astype(_F32) * height.astype(_F32) for a in areas)

    def wide(rows: Array) -> Array:
        return _rounded(rows.astype(_F32) * ratio)

    rows, tallest = _rounded(lax.sqrt(least / ratio)), _rounded(lax.sqrt(most / ratio))
    eps = float(np.float32(1e-7))
    fitting = ((width + 0.5 - eps) / ratio.astype(np.float64)).astype(_I32)
    fitting = fitting - (wide(fitting) > width)
    tallest = jnp.minimum(jnp.where(wide(tallest) > width, fitting, tallest), height)
    rows = jnp.minimum(rows, tallest)
    more, words = words.below_if(rows < tallest, tallest - rows + 1)
    rows = rows + more

    def area(rows: Array) -> Array:
        return (wide(rows) * rows).astype(_F32)

    # Rounding may make a crop too small or too large: one row taller or shorter may fit.
    rows = rows + (area(rows) < least)
    rows = rows - (area(rows) > most)
    columns, covered = wide(rows), area(rows)
    fits = (covered >= least) & (covered <= most) & (columns <= width) & (rows <= height)
    fits = fits & (columns > 0) & (rows > 0) & (areas[0] <= areas[1])
    y, words = words.below_if(fits & (rows < height), height - rows)
    x, words = words.below_if(fits & (columns < width), width - columns)
    return jnp.stack([y, x, y + rows, x + columns]), fits, words


def _shows(crop: Array, boxes: Array, share: Array) -> Array:
    """Whether a crop is not empty and covers the required fraction of some box."""
    low, high = jnp.maximum(crop[:2], boxes[:, :2]), jnp.minimum(crop[2:], boxes[:, 2:])
    sides = jnp.maximum(high - low, 0)
    own = _area(boxes)
    covered = jnp.prod(sides, -1).astype(_F32) / jnp.where(own < 1, 1, own)
    return (_area(crop) >= 1) & jnp.any((own >= 1) & (covered >= share))


def _area(box: Array) -> Array:
    return jnp.prod(box[..., 2:] - box[..., :2], -1).astype(_F32)


@rule(
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "StatelessSampleDistortedBoundingBox",
    ignores=("seed", "seed2"),
)
def _sample(
    image_size: Array,
    bounding_boxes: Array,
    least_covered: Array | None = None,
    seeds: Array | None = None,
    *,
    min_object_covered: float = 0.1,
    aspect_ratio_range: list[float],
    area_range: list[float],
    max_attempts: int,
    use_image_if_no_bounding_boxes: bool,
    ctx: Context,
    node: Node,
) -> list[Array]:
    shape, corners = jnp.asarray(image_size), jnp.asarray(bounding_boxes)
    size = shape[0].astype(_I32), shape[1].astype(_I32)
    whole = jnp.stack([np.int32(0), np.int32(0), *size])
    share = np.float32(min_object_covered) if least_covered is None else least_covered
    if corners.size:
        sides = jnp.stack([*size, *size]).astype(_F32)
        boxes = (lax.reshape(corners, (corners.size // 4, 4)) * sides).astype(_I32)
    elif use_image_if_no_bounding_boxes:
        boxes = whole[None]
    else:
        raise node.error("has no boxes", "Set use_image_if_no_bounding_boxes.")
    least, most = (np.float32(a) for a in area_range)
    low, high = (np.float32(a) for a in aspect_ratio_range)
    stream = _stream(ctx, seeds)

    def attempt(state: tuple[Array, ...]) -> tuple[Array, ...]:
        count, at, _, _ = state
        u, words = _Words(stream, at).fraction()
        crop, fits, words = _crop(words, size, (least, most), u * (high - low) + low)
        return count + 1, words.at, fits & _shows(crop, boxes, share), crop

    start = np.int32(0), np.uint64(0), np.bool_(False), whole
    _, _, succeeded, crop = lax.while_loop(lambda s: (s[0] < max_attempts) & ~s[2], attempt, start)
    crop = jnp.where(succeeded, crop, whole)
    begin = jnp.stack([crop[0], crop[1], np.int32(0)]).astype(shape.dtype)
    extent = jnp.stack([crop[2] - crop[0], crop[3] - crop[1], np.int32(-1)]).astype(shape.dtype)
    sides = jnp.stack([*size, *size]).astype(_F32)
    return [begin, extent, (crop.astype(_F32) / sides)[None, None]]


def _stream(ctx: Context, seeds: Array | None) -> Stream:
    if seeds is not None:
        return Stream.from_seed(seeds)
    zero = jnp.zeros((), _U64)
    return Stream(jax.random.bits(ctx.key(), (), _U64), zero, zero)
