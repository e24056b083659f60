"""Decoders of connectionist temporal classification: best path and beam search.

Kernels: tensorflow/core/kernels/ctc_decoder_ops.cc and tensorflow/core/util/ctc/ctc_beam_search.h,
TensorFlow 2.21. Their results are sparse matrices, here with an entry for each time step.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.ctc import packed, repeats
from invert.primitives.tf.dynamic_size import padded
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.ops.node import Node

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
            "has more paths than its beam is wide", "Widen the beam, or ask for fewer paths."
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
