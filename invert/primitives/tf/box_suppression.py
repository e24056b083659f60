"""Non-maximum suppression.

The kernel takes candidates from a queue (tensorflow/core/kernels/image/non_max_suppression_op.cc,
TensorFlow 2.21). Taking the best remaining candidate and lowering the scores of those that overlap
it, `max_output_size` times, selects the same ones in the same order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf import dynamic_size as dynamic
from invert.primitives.tf.dynamic_size import marks_rows
from invert.primitives.tf.window import refuse
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static


def _overlaps(boxes: Any, box: Any) -> Any:
    """Intersection over union of each of `boxes` with `box`; corners come in either order."""
    low, high = (f(boxes[:, :2], boxes[:, 2:]) for f in (jnp.minimum, jnp.maximum))
    box_low, box_high = (f(box[:2], box[2:]) for f in (jnp.minimum, jnp.maximum))
    area, box_area = jnp.prod(high - low, axis=-1), jnp.prod(box_high - box_low)
    sides = jnp.minimum(high, box_high) - jnp.maximum(low, box_low)
    common = jnp.prod(jnp.maximum(sides, 0), axis=-1)
    known = (area > 0) & (box_area > 0)
    return jnp.where(known, common / jnp.where(known, area + box_area - common, 1), 0)


def suppress(
    overlaps: Any, scores: Any, size: Any, limit: Any, threshold: Any, sigma: Any = None
) -> tuple[Any, Any, Any]:
    """Selects up to `size` candidates.

    **Arguments:**

    - `overlaps`: gives how much each candidate overlaps the one with an index.
    - `scores`: one for each candidate.
    - `limit`: candidates that overlap a selected one by more than this are out.
    - `threshold`: so are those whose score is not more than this.
    - `sigma`: where it is positive, the scores of those that overlap are lowered instead.

    **Returns:** indices and scores of those selected, zeros behind them, and their number.
    """
    if scores.shape[0] == 0:
        nothing = jnp.zeros((size,), jnp.int32), jnp.zeros((size,), scores.dtype)
        return *nothing, jnp.zeros((), jnp.int32)
    low = jnp.asarray(-np.inf, scores.dtype)

    def step(scores: Any, _: None) -> tuple[Any, tuple[Any, Any, Any]]:
        best = lax.argmax(scores, 0, jnp.int32)
        score = scores[best]
        found = score > low
        overlap = overlaps(best)
        kept = scores
        out = found & (overlap > limit)
        if sigma is not None:
            soft = sigma > 0
            factor = jnp.exp(-0.5 / jnp.where(soft, sigma, 1) * lax.square(overlap))
            lowered = jnp.where(soft & found & (scores > low), scores * factor, scores)
            kept = jnp.where(lowered > threshold, lowered, low)
            out = out & ~soft
        kept = jnp.where(out, low, kept).at[best].set(low)
        return kept, (jnp.where(found, best, 0), jnp.where(found, score, 0), found)

    candidates = jnp.where(scores > threshold, scores, low)
    _, (indices, best, found) = lax.scan(step, candidates, None, length=size)
    return indices, best, jnp.sum(found, dtype=jnp.int32)


def _size(node: Node, values: list[Any]) -> int:
    (size,) = ints(static(node, values, 2))
    return max(size, 0)


@raises_tf(
    "NonMaxSuppression",
    "NonMaxSuppressionV2",
    "NonMaxSuppressionV3",
    "NonMaxSuppressionV4",
    "NonMaxSuppressionV5",
    "NonMaxSuppressionWithOverlaps",
    pads_rows=marks_rows,
)
def _non_max_suppression(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # Constants are indexed by traced numbers below.
    given, scores = (jnp.asarray(array(v)) for v in values[:2])
    size = _size(node, values)
    options = [array(v).astype(scores.dtype) for v in values[3:]]
    limit = options[0] if options else jnp.asarray(node.attr("iou_threshold", 0.5), scores.dtype)
    threshold = options[1] if len(options) > 1 else jnp.asarray(-np.inf, scores.dtype)
    sigma = options[2] if len(options) > 2 else None

    def overlaps(best: Any) -> Any:
        if node.op == "NonMaxSuppressionWithOverlaps":
            return given[:, best]
        return _overlaps(given, given[best])

    indices, best, count = suppress(overlaps, scores, size, limit, threshold, sigma)
    padded = bool(node.attr("pad_to_max_output_size", False))
    if not padded:
        indices = jnp.where(jnp.arange(size, dtype=jnp.int32) < count, indices, -1)
        indices = dynamic.counted(ctx, node, indices, count, "indices", pads_minus_one=True)
        best = dynamic.counted(ctx, node, best, count, "scores", "0")
    if node.op == "NonMaxSuppressionV5":
        return [indices, best, count]
    return [indices, count] if node.op == "NonMaxSuppressionV4" else [indices]


@raises_tf("CombinedNonMaxSuppression")
def _combined(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    boxes, scores = array(values[0]), array(values[1])
    per_class = _size(node, values)
    (total,) = ints(static(node, values, 3))
    limit, threshold = array(values[4]), array(values[5])
    classes = scores.shape[2]
    if boxes.shape[2] == 1 and classes != 1:
        boxes = jnp.broadcast_to(boxes, (*boxes.shape[:2], classes, 4))
    if not isinstance(boxes.shape[1], int):
        raise refuse(node, "selects from boxes whose number is not known")
    per_class = min(per_class, boxes.shape[1])
    size = min(total, per_class * classes) if node.attr("pad_per_class") else total

    def of_class(boxes: Any, scores: Any) -> tuple[Any, Any, Any]:
        def overlaps(best: Any) -> Any:
            return _overlaps(boxes, boxes[best])

        indices, best, count = suppress(overlaps, scores, per_class, limit, threshold)
        return boxes[indices], best, jnp.arange(per_class, dtype=jnp.int32) < count

    def of_image(boxes: Any, scores: Any) -> tuple[Any, Any, Any, Any]:
        found, best, used = jax.vmap(of_class, in_axes=1)(boxes, scores)
        flat = jnp.where(used, best, -np.inf).reshape(-1)
        # The best of all classes; equal scores in the order of the classes.
        best, order = lax.top_k(flat, min(size, flat.shape[0]))
        kept = used.reshape(-1)[order]
        labels = (order // per_class).astype(scores.dtype)
        rows = found.reshape(-1, 4)[order]
        rows = jnp.clip(rows, 0, 1) if node.attr("clip_boxes", True) else rows
        missing = (0, size - order.shape[0])
        return (
            jnp.pad(jnp.where(kept[:, None], rows, 0), (missing, (0, 0))),
            jnp.pad(jnp.where(kept, best, 0), missing),
            jnp.pad(jnp.where(kept, labels, 0), missing),
            jnp.sum(kept, dtype=jnp.int32),
        )

    return list(jax.vmap(of_image)(boxes, scores))
