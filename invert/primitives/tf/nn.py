"""Activations, biases and the ops of their gradients: tables first.

Derivatives at kinks are those of TensorFlow's gradient ops, which are not always those of the
`jax.nn` function of the same name (tensorflow/core/kernels/relu_op_functor.h, TensorFlow 2.21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.window import refuse
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, add_table, raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, is_static

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


def relu6(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.integer):  # `jax.nn.relu6` computes in floating point
        return lax.clamp(jnp.zeros((), x.dtype), x, jnp.full((), 6, x.dtype))
    return jax.nn.relu6(x)


def leaky_relu(x: Any, slope: float) -> Any:
    # The slope at zero is that of the negative side; `jax.nn.leaky_relu` has the other.
    return jnp.where(x > 0, x, x * slope)


def _selu(x: Any) -> Any:
    # The slope at zero is that of the positive side; `jax.nn.selu` has the other.
    below = _SELU_SCALE_ALPHA * jnp.expm1(jnp.where(x < 0, x, 0))
    return jnp.where(x < 0, below, _SELU_SCALE * x)


def _selu_grad(g: Any, y: Any) -> Any:
    return jnp.where(y < 0, g * (y + _SELU_SCALE_ALPHA), g * _SELU_SCALE)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Elu": jax.nn.elu,
    "Relu6": relu6,
    "Selu": _selu,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
}

# op: function of the incoming gradient and the argument, or for Elu and Selu the result
GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "EluGrad": lambda g, y: jnp.where(y < 0, g * (y + 1), g),
    "Relu6Grad": lambda g, x: jnp.where((x > 0) & (x < 6), g, 0),
    "ReluGrad": lambda g, x: jnp.where(x > 0, g, 0),
    "SeluGrad": _selu_grad,
    "SoftplusGrad": lambda g, x: g * lax.logistic(x),
    "SoftsignGrad": lambda g, x: g / lax.square(1 + lax.abs(x)),
}


def _unary(fn: Callable[[Any], Any]) -> Rule:
    return lambda ctx, node, values: [fn(array(values[0]))]


def _gradient(fn: Callable[[Any, Any], Any]) -> Rule:
    return lambda ctx, node, values: [fn(*arrays(values))]


add_table({op: _unary(fn) for op, fn in ACTIVATIONS.items()}, rows=rows.elementwise)
add_table({op: _gradient(fn) for op, fn in GRADIENTS.items()}, rows=rows.elementwise)


@raises_tf("L2Loss")
def _l2_loss(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.sum(lax.square(array(values[0]))) / 2]


@raises_tf("LeakyRelu", rows=rows.elementwise)
def _leaky_relu(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [leaky_relu(array(values[0]), node.attr("alpha", 0.2))]


@raises_tf("LeakyReluGrad", rows=rows.elementwise)
def _leaky_relu_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    g, x = arrays(values)
    return [jnp.where(x > 0, g, g * node.attr("alpha", 0.2))]


@raises_tf("BiasAddV1")
@raises_tf("BiasAdd", rows=rows.rowwise(1))
def _bias_add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, bias = arrays(values)
    return [bias_add(x, bias, _bias_axis(node, x.ndim))]


def bias_add(x: Any, bias: Any, axis: int) -> Any:
    """`x + bias`, with the bias along one axis."""
    if axis != x.ndim - 1:
        bias = lax.expand_dims(bias, range(1, x.ndim - axis))
    return x + bias


@raises_tf("BiasAddGrad")
def _bias_add_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    g = array(values[0])
    axis = _bias_axis(node, g.ndim)
    return [jnp.sum(g, axis=[i for i in range(g.ndim) if i != axis], dtype=g.dtype)]


def _bias_axis(node: Node, rank: int) -> int:
    # Channels first puts them behind the batch for any rank from three on
    # (tensorflow/core/kernels/bias_op.cc, GetBiasValueDims).
    return 1 if node.attr("data_format") == "NCHW" and rank > 2 else rank - 1


@raises_tf("DataFormatDimMap")
def _dim_map(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    source, target = node.attr("src_format", "NHWC"), node.attr("dst_format", "NCHW")
    where = np.asarray([target.index(letter) for letter in source], np.int32)
    if is_static(values[0]):
        return [where[values[0]].astype(values[0].dtype)]
    x = array(values[0])
    return [jnp.asarray(where, x.dtype)[jnp.where(x < 0, x + len(source), x)]]


@raises_tf("DataFormatVecPermute")
def _vec_permute(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    source, target = node.attr("src_format", "NHWC"), node.attr("dst_format", "NCHW")
    x = values[0] if is_static(values[0]) else array(values[0])
    if x.shape[0] == len(source) - 2:  # the spatial axes alone
        source, target = (s.replace("N", "").replace("C", "") for s in (source, target))
    if sorted(source) != sorted(target) or len(source) != x.shape[0]:
        raise refuse(node, f"permutes a vector of {x.shape[0]} from {source} to {target}")
    return [x[np.asarray([source.index(letter) for letter in target])]]
