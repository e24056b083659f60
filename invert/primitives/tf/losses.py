"""Softmax and the losses over it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, raises_tf
from invert.tf.values.constants import array, arrays, broadcast


@raises_tf("Softmax")
def _softmax(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.nn.softmax(array(values[0]))]


@raises_tf("LogSoftmax")
def _log_softmax(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.nn.log_softmax(array(values[0]))]


@raises_tf("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    logits, labels = broadcast(values)
    return [softmax_cross_entropy(logits, labels), jax.nn.softmax(logits) - labels]


@jax.custom_jvp
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Cross entropy along the last axis.

    TensorFlow takes `softmax(logits) - labels` for the derivative, which is that of labels that
    sum to one (tensorflow/core/kernels/xent_op.h and its gradient, TensorFlow 2.21).
    """
    return -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)


@softmax_cross_entropy.defjvp
def _cross_entropy_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (logits, labels), (d_logits, d_labels) = primals, tangents
    terms = (jax.nn.softmax(logits) - labels) * d_logits
    terms -= jax.nn.log_softmax(logits) * d_labels
    return softmax_cross_entropy(logits, labels), jnp.sum(terms, axis=-1)


@raises_tf("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    logits, labels = arrays(values)
    classes = logits.shape[-1]
    log_p = jax.nn.log_softmax(logits)
    # A label out of range gives NaN, as it does where TensorFlow runs on an accelerator.
    known = (labels >= 0) & (labels < classes)
    index = lax.expand_dims(jnp.where(known, labels, 0), (labels.ndim,))
    picked = jnp.take_along_axis(log_p, index, axis=-1).squeeze(-1)
    nan = jnp.full((), jnp.nan, logits.dtype)
    target = jax.nn.one_hot(labels, classes, dtype=logits.dtype)
    backprop = jnp.where(known[..., None], jax.nn.softmax(logits) - target, nan)
    return [jnp.where(known, -picked, nan), backprop]
