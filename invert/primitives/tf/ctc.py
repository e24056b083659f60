"""Connectionist temporal classification.

The recursion is that of Graves et al. 2006, with the options of
tensorflow/core/util/ctc/ctc_loss_calculator.h, TensorFlow 2.21.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.interpreter.registry import Array, rule


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
    """Whether each label equals the one before it."""
    return jnp.pad(labels[:, 1:] == labels[:, :-1], ((0, 0), (1, 0)))


def packed(labels: Array, kept: Array, fill: int) -> tuple[Array, Array]:
    """The kept labels of each row moved to the front, padded with `fill`; and their number."""
    rows = jnp.arange(labels.shape[0], dtype=jnp.int32)[:, None]
    target = jnp.where(kept, jnp.cumsum(kept, axis=1, dtype=jnp.int32) - 1, labels.shape[1])
    moved = jnp.full_like(labels, fill).at[rows, target].set(labels, mode="drop")
    return moved, jnp.sum(kept, axis=1, dtype=jnp.int32)


def _negative_log_likelihood(
    logits: Array, labels: Array, counts: Array, lengths: Array, blank: int, merge: bool
) -> Array:
    """A loss for each entry of the batch; infinite if the labels do not fit.

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
