"""Non-maximum suppression.

The kernel takes candidates from a queue (tensorflow/core/kernels/image/non_max_suppression_op.cc,
TensorFlow 2.21). Taking the best remaining candidate and lowering the scores of those that overlap
it, `max_output_size` times, selects the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf import dynamic_size as dynamic
from invert.primitives.tf.dynamic_size import marks_rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.ops.node import Node


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
