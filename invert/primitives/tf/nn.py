"""Activations, biases and the ops of their gradients.

Derivatives at kinks are those of TensorFlow's gradient ops, which are not always those of the
`jax.nn` function of the same name (tensorflow/core/kernels/relu_op_functor.h, TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter import rows
from invert.tf.interpreter.registry import Array, Value, rule, rules
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast, is_static, promote

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


def relu6(x: Array) -> Array:
    if jnp.issubdtype(x.dtype, jnp.integer):  # `jax.nn.relu6` computes in floating point
        return lax.clamp(jnp.zeros((), x.dtype), x, jnp.full((), 6, x.dtype))
    return jax.nn.relu6(x)


def leaky_relu(x: Array, slope: float) -> Array:
    # The slope at zero is that of the negative side; `jax.nn.leaky_relu` has the other.
    return jnp.where(x > 0, x, x * slope)


def _selu(x: Array) -> Array:
    # The slope at zero is that of the positive side; `jax.nn.selu` has the other.
    below = _SELU_SCALE_ALPHA * jnp.expm1(jnp.where(x < 0, x, 0))
    return jnp.where(x < 0, below, _SELU_SCALE * x)


ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "Elu": lambda x: jax.nn.elu(x),
    "Relu6": relu6,
    "Selu": _selu,
    "Softplus": lambda x: jax.nn.softplus(x),
    "Softsign": lambda x: jax.nn.soft_sign(x),
}

# op: function of the incoming gradient and the argument, or for Elu and Selu the result
GRADIENTS: dict[str, Callable[..., Array]] = {
    "EluGrad": lambda g, y: jnp.where(y < 0, g * (y + 1), g),
    "Relu6Grad": lambda g, x: jnp.where((x > 0) & (x < 6), g, 0),
    "ReluGrad": lambda g, x: jnp.where(x > 0, g, 0),
    "SeluGrad": lambda g, y: jnp.where(y < 0, g * (y + _SELU_SCALE_ALPHA), g * _SELU_SCALE),
    "SoftplusGrad": lambda g, x: g * lax.logistic(x),
    "SoftsignGrad": lambda g, x: g / lax.square(1 + lax.abs(x)),
}


rules(ACTIVATIONS | GRADIENTS, rows=rows.elementwise)


@rule("L2Loss")
def _l2_loss(x: Array) -> Array:
    return jnp.sum(lax.square(x)) / 2


@rule("LeakyRelu", rows=rows.elementwise)
def _leaky_relu(x: Array, *, alpha: float) -> Array:
    return leaky_relu(x, alpha)


@rule("LeakyReluGrad", rows=rows.elementwise)
def _leaky_relu_grad(g: Array, x: Array, *, alpha: float) -> Array:
    return jnp.where(x > 0, g, g * alpha)


@rule("BiasAddV1")
@rule("BiasAdd", rows=rows.rowwise(1))
def _bias_add(x: Array, bias: Array, *, data_format: str = "NHWC") -> Array:
    return bias_add(x, bias, _bias_axis(data_format, x.ndim))


def bias_add(x: Array, bias: Array, axis: int) -> Array:
    """`x + bias`, with the bias along one axis."""
    if axis != x.ndim - 1:
        bias = lax.expand_dims(bias, range(1, x.ndim - axis))
    return lax.add(*promote([x, bias]))


@rule("BiasAddGrad")
def _bias_add_grad(g: Array, *, data_format: str) -> Array:
    axis = _bias_axis(data_format, g.ndim)
    return jnp.sum(g, axis=[i for i in range(g.ndim) if i != axis], dtype=g.dtype)


def _bias_axis(data_format: str, rank: int) -> int:
    # Channels first puts them after the batch for rank three and more
    # (tensorflow/core/kernels/bias_op.cc, GetBiasValueDims).
    return 1 if data_format == "NCHW" and rank > 2 else rank - 1


@rule("DataFormatDimMap")
def _dim_map(x: Value, *, src_format: str, dst_format: str) -> Value:
    target = np.asarray([dst_format.index(letter) for letter in src_format], np.int32)
    if is_static(x):
        return target[x].astype(x.dtype)
    x = array(x)
    return jnp.asarray(target, x.dtype)[jnp.where(x < 0, x + len(src_format), x)]


@rule("DataFormatVecPermute")
def _vec_permute(x: Value, *, src_format: str, dst_format: str, node: Node) -> Value:
    source, target = src_format, dst_format
    x = x if is_static(x) else array(x)
    if x.shape[0] == len(source) - 2:  # only the spatial axes
        source, target = (s.replace("N", "").replace("C", "") for s in (source, target))
    if sorted(source) != sorted(target) or len(source) != x.shape[0]:
        raise node.error(
            f"permutes a vector of {x.shape[0]} from {source} to {target}",
            "Permute a vector with an element for each axis, or one for each spatial axis.",
        )
    return x[np.asarray([source.index(letter) for letter in target])]


# -- softmax and the losses over it


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
