"""Softmax and the losses over it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.interpreter import rows
from invert.tf.interpreter.registry import Array, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.values.constants import broadcast


@rule("Softmax", rows=rows.rowwise(least_rank=2))
def _softmax(logits: Array) -> Array:
    return jax.nn.softmax(logits)


@rule("LogSoftmax", rows=rows.rowwise(least_rank=2))
def _log_softmax(logits: Array) -> Array:
    return jax.nn.log_softmax(logits)


@rule("SoftmaxCrossEntropyWithLogits", rows=rows.elementwise)
def _cross_entropy(features: Array, labels: Array) -> tuple[Array, Array]:
    logits, labels = broadcast([features, labels])
    return softmax_cross_entropy(logits, labels), jax.nn.softmax(logits) - labels


def _cross_entropy_tangent(
    y: Array, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> Array:
    (logits, labels), (d_logits, d_labels) = primals, tangents
    terms = (jax.nn.softmax(logits) - labels) * d_logits
    terms -= jax.nn.log_softmax(logits) * d_labels
    return jnp.sum(terms, axis=-1)


@with_tangent(_cross_entropy_tangent)
def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross entropy along the last axis.

    TensorFlow uses `softmax(logits) - labels` as the derivative, which is right if labels sum to
    one (tensorflow/core/kernels/xent_op.h and its gradient, TensorFlow 2.21).
    """
    return -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)


@rule("SparseSoftmaxCrossEntropyWithLogits", rows=rows.rowwise())
def _sparse_cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    classes = logits.shape[-1]
    log_p = jax.nn.log_softmax(logits)
    # A label out of range gives NaN, as in TensorFlow on an accelerator.
    known = (labels >= 0) & (labels < classes)
    index = lax.expand_dims(jnp.where(known, labels, 0), (labels.ndim,))
    picked = jnp.take_along_axis(log_p, index, axis=-1).squeeze(-1)
    nan = jnp.full((), jnp.nan, logits.dtype)
    target = jax.nn.one_hot(labels, classes, dtype=logits.dtype)
    backprop = jnp.where(known[..., None], jax.nn.softmax(logits) - target, nan)
    return jnp.where(known, -picked, nan), backprop
