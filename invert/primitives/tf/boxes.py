"""Boxes: sampling them, and the suppression of overlapping ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf import dynamic_size as dynamic
from invert.primitives.tf.dynamic_size import marks_rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.numerics.philox import Stream, unit
from invert.tf.ops.node import Node

_F32, _I32, _U32, _U64 = (np.dtype(t) for t in (np.float32, np.int32, np.uint32, np.uint64))


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words of a stream in order; `at` is the next position."""

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
    """Return whether a crop is not empty and covers the required fraction of some box."""
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


# -- non-maximum suppression
#
# The kernel takes candidates from a queue
# (tensorflow/core/kernels/image/non_max_suppression_op.cc, TensorFlow 2.21). Taking the best
# remaining candidate and lowering the scores of those that overlap it, `max_output_size` times,
# selects the same ones in the same order.


def _overlaps(boxes: Array, box: Array) -> Array:
    """Intersection over union of each of `boxes` with `box`; corners come in either order."""
    low, high = (f(boxes[:, :2], boxes[:, 2:]) for f in (jnp.minimum, jnp.maximum))
    box_low, box_high = (f(box[:2], box[2:]) for f in (jnp.minimum, jnp.maximum))
    area, box_area = jnp.prod(high - low, axis=-1), jnp.prod(box_high - box_low)
    sides = jnp.minimum(high, box_high) - jnp.maximum(low, box_low)
    common = jnp.prod(jnp.maximum(sides, 0), axis=-1)
    known = (area > 0) & (box_area > 0)
    return jnp.where(known, common / jnp.where(known, area + box_area - common, 1), 0)


def suppress(
    overlaps: Callable[[Array], Array],
    scores: Array,
    size: int,
    limit: Array,
    threshold: Array,
    sigma: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Select up to `size` candidates.

    **Arguments:**

    - `overlaps`: returns the overlap of each candidate with the one of the given index.
    - `scores`: one for each candidate.
    - `limit`: candidates that overlap a selected one by more than this are dropped.
    - `threshold`: candidates with scores up to this are dropped.
    - `sigma`: if positive, the scores of overlapping candidates are lowered instead.

    **Returns:** indices and scores of the selected candidates, padded with zeros, and their number.
    """
    if scores.shape[0] == 0:
        nothing = jnp.zeros((size,), jnp.int32), jnp.zeros((size,), scores.dtype)
        return *nothing, jnp.zeros((), jnp.int32)
    low = jnp.asarray(-np.inf, scores.dtype)

    def step(scores: Array, _: None) -> tuple[Array, tuple[Array, Array, Array]]:
        best = lax.argmax(scores, 0, jnp.int32)
        score = scores[best]
        selected = score > low
        overlap = overlaps(best)
        kept = scores
        out = selected & (overlap > limit)
        if sigma is not None:
            soft = sigma > 0
            factor = jnp.exp(-0.5 / jnp.where(soft, sigma, 1) * lax.square(overlap))
            lowered = jnp.where(soft & selected & (scores > low), scores * factor, scores)
            kept = jnp.where(lowered > threshold, lowered, low)
            out = out & ~soft
        kept = jnp.where(out, low, kept).at[best].set(low)
        return kept, (jnp.where(selected, best, 0), jnp.where(selected, score, 0), selected)

    candidates = jnp.where(scores > threshold, scores, low)
    _, (indices, best, selected) = lax.scan(step, candidates, None, length=size)
    return indices, best, jnp.sum(selected, dtype=jnp.int32)


@rule(
    "NonMaxSuppression",
    "NonMaxSuppressionV2",
    "NonMaxSuppressionV3",
    "NonMaxSuppressionV4",
    "NonMaxSuppressionV5",
    "NonMaxSuppressionWithOverlaps",
    pads_rows=marks_rows,
)
def _non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_size: Int,
    limit: Array | None = None,
    threshold: Array | None = None,
    sigma: Array | None = None,
    *,
    iou_threshold: float = 0.5,
    pad_to_max_output_size: bool = False,
    ctx: Context,
    node: Node,
) -> list[Array]:
    # Converted since constants are indexed by traced numbers below.
    boxes, scores = jnp.asarray(boxes), jnp.asarray(scores)
    size = max(max_output_size, 0)
    limit, threshold, sigma = (
        None if v is None else v.astype(scores.dtype) for v in (limit, threshold, sigma)
    )
    limit = jnp.asarray(iou_threshold, scores.dtype) if limit is None else limit
    threshold = jnp.asarray(-np.inf, scores.dtype) if threshold is None else threshold

    def overlaps(best: Array) -> Array:
        if node.op == "NonMaxSuppressionWithOverlaps":
            return boxes[:, best]
        return _overlaps(boxes, boxes[best])

    indices, best, count = suppress(overlaps, scores, size, limit, threshold, sigma)
    if not pad_to_max_output_size:
        indices = jnp.where(jnp.arange(size, dtype=jnp.int32) < count, indices, -1)
        indices = dynamic.counted(ctx, node, indices, count, "indices", pads_minus_one=True)
        best = dynamic.counted(ctx, node, best, count, "scores", "0")
    if node.op == "NonMaxSuppressionV5":
        return [indices, best, count]
    return [indices, count] if node.op == "NonMaxSuppressionV4" else [indices]


@rule("CombinedNonMaxSuppression")
def _combined(
    boxes: Array,
    scores: Array,
    max_output_size_per_class: Int,
    max_total_size: Int,
    limit: Array,
    threshold: Array,
    *,
    pad_per_class: bool,
    clip_boxes: bool,
    node: Node,
) -> list[Array]:
    classes = scores.shape[2]
    if boxes.shape[2] == 1 and classes != 1:
        boxes = jnp.broadcast_to(boxes, (*boxes.shape[:2], classes, 4))
    if not isinstance(boxes.shape[1], int):
        raise node.error(
            "selects from a symbolic number of boxes", "Convert it at a fixed number of boxes."
        )
    per_class = min(max(max_output_size_per_class, 0), boxes.shape[1])
    size = min(max_total_size, per_class * classes) if pad_per_class else max_total_size

    def of_class(boxes: Array, scores: Array) -> tuple[Array, Array, Array]:
        def overlaps(best: Array) -> Array:
            return _overlaps(boxes, boxes[best])

        indices, best, count = suppress(overlaps, scores, per_class, limit, threshold)
        return boxes[indices], best, jnp.arange(per_class, dtype=jnp.int32) < count

    def of_image(boxes: Array, scores: Array) -> tuple[Array, Array, Array, Array]:
        selected, best, used = jax.vmap(of_class, in_axes=1)(boxes, scores)
        flat = jnp.where(used, best, -np.inf).reshape(-1)
        # The best of all classes; ties in the order of the classes.
        best, order = lax.top_k(flat, min(size, flat.shape[0]))
        kept = used.reshape(-1)[order]
        labels = (order // per_class).astype(scores.dtype)
        rows = selected.reshape(-1, 4)[order]
        rows = jnp.clip(rows, 0, 1) if clip_boxes else rows
        missing = (0, size - order.shape[0])
        return (
            jnp.pad(jnp.where(kept[:, None], rows, 0), (missing, (0, 0))),
            jnp.pad(jnp.where(kept, best, 0), missing),
            jnp.pad(jnp.where(kept, labels, 0), missing),
            jnp.sum(kept, dtype=jnp.int32),
        )

    return list(jax.vmap(of_image)(boxes, scores))
