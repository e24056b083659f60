"""Connectionist temporal classification.

The recursion is that of Graves et al. 2006, with the options of
tensorflow/core/util/ctc/ctc_loss_calculator.h, TensorFlow 2.21.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.dynamic_size import padded
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.ops.node import Node


@rule("CTCLoss", "CTCLossV2")
def _ctc_loss(
    logits: Array,
    indices: Array,
    labels: Array,
    lengths: Array,
    *,
    op: str,
    preprocess_collapse_repeated: bool,
    ctc_merge_repeated: bool,
    ignore_longer_outputs_than_inputs: bool,
) -> list[Array]:
    # In the first version the blank is the last class, in cuDNN's the first.
    blank = 0 if op == "CTCLossV2" else logits.shape[2] - 1
    batch, most = logits.shape[1], min(labels.shape[0], logits.shape[0])
    dense = jnp.full((batch, most), blank, labels.dtype)
    dense = dense.at[indices[:, 0], indices[:, 1]].set(labels, mode="drop")
    counts = jnp.zeros((batch,), jnp.int32).at[indices[:, 0]].add(1)
    if preprocess_collapse_repeated:
        dense, counts = _collapse(dense, counts, blank)

    def losses(logits: Array) -> Array:
        loss = _negative_log_likelihood(logits, dense, counts, lengths, blank, ctc_merge_repeated)
        return jnp.where(counts > lengths, 0, loss) if ignore_longer_outputs_than_inputs else loss

    loss, pullback = jax.vjp(losses, logits)
    return [loss, *pullback(jnp.ones_like(loss))]


def _collapse(labels: Array, counts: Array, blank: int) -> tuple[Array, Array]:
    """Labels with consecutive repeats removed."""
    places = jnp.arange(labels.shape[1], dtype=jnp.int32)
    used = places < counts[:, None]
    return packed(labels, used & ~repeats(labels), blank)


def repeats(labels: Array) -> Array:
    """Return whether each label equals the one before it."""
    return jnp.pad(labels[:, 1:] == labels[:, :-1], ((0, 0), (1, 0)))


def packed(labels: Array, kept: Array, fill: int) -> tuple[Array, Array]:
    """Each row's kept labels in front, padded with `fill`, and their number."""
    rows = jnp.arange(labels.shape[0], dtype=jnp.int32)[:, None]
    target = jnp.where(kept, jnp.cumsum(kept, axis=1, dtype=jnp.int32) - 1, labels.shape[1])
    moved = jnp.full_like(labels, fill).at[rows, target].set(labels, mode="drop")
    return moved, jnp.sum(kept, axis=1, dtype=jnp.int32)


def _negative_log_likelihood(
    logits: Array, labels: Array, counts: Array, lengths: Array, blank: int, merge: bool
) -> Array:
    """The loss per batch entry; infinite if labels do not fit.

    The states are the labels with a blank before, between and after them.
    """
    batch, most = labels.shape
    states = jnp.full((batch, 2 * most + 1), blank, labels.dtype).at[:, 1::2].set(labels)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), states[None], axis=2)
    is_blank = jnp.arange(2 * most + 1, dtype=jnp.int32) % 2 == 0
    before = jnp.pad(states, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    jumps = ~is_blank & ((states != before) if merge else True)
    stays = jnp.ones_like(is_blank) if merge else is_blank
    # Used instead of minus infinity, whose differences are NaN.
    low = jnp.asarray(-1e30, log_p.dtype)

    def shifted(alpha: Array, by: int) -> Array:
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=low)[:, :-by]

    def step(alpha: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        at, log_p = item
        new = jnp.logaddexp(jnp.where(stays, alpha, low), shifted(alpha, 1))
        if most:
            new = jnp.logaddexp(new, jnp.where(jumps, shifted(alpha, 2), low))
        return jnp.where((at < lengths)[:, None], new + log_p, alpha), None

    first = jnp.where(jnp.arange(2 * most + 1, dtype=jnp.int32) < 2, log_p[0], low)
    places = jnp.arange(1, logits.shape[0], dtype=lengths.dtype)
    alpha, _ = lax.scan(step, first, (places, log_p[1:]))
    end = (2 * counts)[:, None]
    last = jnp.take_along_axis(alpha, end, axis=1)[:, 0]
    label = jnp.take_along_axis(alpha, jnp.maximum(end - 1, 0), axis=1)[:, 0]
    total = jnp.where(counts > 0, jnp.logaddexp(last, label), last)
    return jnp.where(total > low / 2, -total, jnp.inf)


# -- decoders of connectionist temporal classification: best path and beam search
#
# Kernels: tensorflow/core/kernels/ctc_decoder_ops.cc and
# tensorflow/core/util/ctc/ctc_beam_search.h, TensorFlow 2.21. Their results are sparse matrices,
# here with an entry for each time step.

_INT64 = np.dtype(np.int64)


def _sparse(labels: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Indices, values and shape of packed labels."""
    batch, most = labels.shape
    where = jnp.arange(most, dtype=_INT64) < counts[:, None]
    rows = lax.broadcasted_iota(_INT64, (batch, most), 0)
    places = lax.broadcasted_iota(_INT64, (batch, most), 1)
    indices = jnp.where(where[..., None], jnp.stack([rows, places], -1), -1)
    # Valid entries come first, row by row, as in TensorFlow.
    order = jnp.argsort(~where.reshape(-1), stable=True)
    longest = jnp.max(counts, initial=0).astype(_INT64)
    shape = jnp.stack([jnp.asarray(batch, _INT64), longest])
    values = jnp.where(where, labels, 0).reshape(-1)[order].astype(_INT64)
    return indices.reshape(-1, 2)[order], values, shape


def _note_padding(ctx: Context, node: Node, x: Array) -> None:
    if not all(isinstance(d, int) for d in x.shape):
        raise node.error("decodes a batch of symbolic size", "Convert it at concrete sizes.")
    padded(ctx, node, x.shape[0] * x.shape[1], "indices of labels")


@rule("CTCGreedyDecoder")
def _greedy(
    logits: Array,
    lengths: Array,
    *,
    merge_repeated: bool,
    blank_index: int,
    ctx: Context,
    node: Node,
) -> list[Array]:
    _note_padding(ctx, node, logits)
    blank = blank_index % logits.shape[2]
    used = jnp.arange(logits.shape[0], dtype=lengths.dtype) < lengths[:, None]
    best = lax.argmax(logits, 2, np.int32).T
    score = -jnp.sum(jnp.where(used, jnp.max(logits, 2).T, 0), 1, keepdims=True)
    kept = used & (best != blank)
    if merge_repeated:
        kept = kept & ~repeats(best)
    return [*_sparse(*packed(best, kept, -1)), score]


@rule("CTCBeamSearchDecoder")
def _beam_search(
    logits: Array,
    lengths: Array,
    *,
    beam_width: int,
    top_paths: int,
    merge_repeated: bool,
    ctx: Context,
    node: Node,
) -> list[Array]:
    _note_padding(ctx, node, logits)
    if top_paths > beam_width:
        raise node.error(
            "returns more paths than its beam is wide",
            "Widen the beam, or return fewer paths.",
        )
    decode = jax.vmap(lambda x, n: _search(x, n, beam_width), (1, 0))
    labels, counts, score = decode(logits, lengths)
    results = []
    for path in range(top_paths):
        line, count = labels[:, path], counts[:, path]
        used = jnp.arange(line.shape[1], dtype=jnp.int32) < count[:, None]
        if merge_repeated:
            used = used & ~repeats(line)
        results.append(_sparse(*packed(line, used, -1)))
    indices, values, shapes = zip(*results, strict=True)
    return [*indices, *values, *shapes, score[:, :top_paths]]


# Labels of each prefix, their number, and log probabilities of ending in a blank or in a label.
_Beam: TypeAlias = tuple[Array, Array, Array, Array]


def _search(logits: Array, length: Int, width: int) -> tuple[Array, Array, Array]:
    """The prefixes in the beam, best first: labels, their number, log probability.

    Each prefix has a number; -1 marks a free slot in the beam.
    """
    steps = logits.shape[0]
    low = jnp.asarray(-jnp.inf, logits.dtype)
    first = jnp.arange(width, dtype=jnp.int32) == 0
    start = (
        jnp.full((width, steps), -1, jnp.int32),
        jnp.zeros((width,), jnp.int32),
        jnp.where(first, jnp.asarray(0, logits.dtype), low),  # ends in a blank
        jnp.full((width,), low),  # ends in its last label
    )

    def step(state: _Beam, item: tuple[Array, Array]) -> tuple[_Beam, None]:
        at, x = item
        after = _grown(state, x)
        return jax.tree.map(lambda a, b: jnp.where(at < length, a, b), after, state), None

    (labels, counts, blank, label), _ = lax.scan(
        step, start, (jnp.arange(steps, dtype=length.dtype), jax.nn.log_softmax(logits))
    )
    score, order = lax.top_k(jnp.logaddexp(blank, label), width)
    return labels[order], counts[order], score


def _grown(beam: _Beam, x: Array) -> _Beam:
    """The beam after one more step with log probabilities `x`, the blank last."""
    labels, counts, blank, label = beam
    width, steps = labels.shape
    classes = x.shape[0] - 1
    low = jnp.asarray(-jnp.inf, x.dtype)
    places = jnp.arange(width, dtype=jnp.int32)
    total = jnp.logaddexp(blank, label)
    last = jnp.take_along_axis(labels, jnp.maximum(counts - 1, 0)[:, None], 1)[:, 0]
    last = jnp.where(counts > 0, last, -1)
    # Each prefix may stay unchanged or be reached from its parent.
    own = jnp.where(counts > 0, x[last], low)
    cut = jnp.where(jnp.arange(steps, dtype=jnp.int32) < counts[:, None] - 1, labels, -1)
    parent = (counts[:, None] - 1 == counts) & jnp.all(cut[:, None] == labels, -1)
    parent = parent & (counts[:, None] > 0) & (total > low)
    through = jnp.where(last[:, None] == last, blank, total)
    reached = jnp.max(jnp.where(parent, through, low), 1)
    stay_label = jnp.logaddexp(label, reached) + own
    stay_blank = total + x[-1]
    # New prefixes that are not in the beam already.
    known = jnp.zeros((width, classes + 1), bool)
    child = jnp.where(parent, last[:, None], classes)
    known = known.at[jnp.broadcast_to(places, (width, width)), child].set(True)
    repeats = last[:, None] == jnp.arange(classes, dtype=jnp.int32)
    grown = jnp.where(repeats, blank[:, None], total[:, None])
    grown = jnp.where(known[:, :classes], low, grown + x[:-1])
    scores = jnp.concatenate([jnp.logaddexp(stay_blank, stay_label), grown.reshape(-1)])
    best, chosen = lax.top_k(scores, width)
    stays = chosen < width
    source = jnp.where(stays, chosen, (chosen - width) // classes)
    added = (chosen - width) % classes
    number = counts[source]
    new = labels[source]
    here = jnp.arange(steps, dtype=jnp.int32) == number[:, None]
    new = jnp.where(here & ~stays[:, None], added[:, None], new)
    return (
        new,
        number + ~stays,
        jnp.where(stays, stay_blank[source], low),
        jnp.where(stays, stay_label[source], best),
    )
