"""Ops that graph optimizers fuse: a product or normalization with what surrounds it.

The attributes are those of tensorflow/core/kernels/conv_ops_fused_impl.h and
matmul_op_fused.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from invert.primitives.tf.conv import conv_of, grouped
from invert.primitives.tf.matmul import product
from invert.primitives.tf.nn import bias_add, leaky_relu, relu6
from invert.primitives.tf.normalization import batch_norm, normalize
from invert.primitives.tf.resize import resize_bilinear
from invert.primitives.tf.window import layout, refuse
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, ints, static

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "Elu": jax.nn.elu,
    "GeluApproximate": jax.nn.gelu,
    "GeluExact": functools.partial(jax.nn.gelu, approximate=False),
    "Identity": lambda x: x,
    "Relu": jax.nn.relu,
    "Relu6": relu6,
    "Sigmoid": jax.nn.sigmoid,
    "Tanh": lax.tanh,
}


@raises_tf("_FusedConv2D", "_FusedConv3D", "_FusedDepthwiseConv2dNative")
def _fused_conv(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, kernel, *args = arrays(values)
    kernel = grouped(kernel) if "Depthwise" in node.op else kernel
    return [_epilogue(node, conv_of(node, x.ndim)(x, kernel), args, layout(node, x.ndim).channel)]


@raises_tf("FusedPadConv2D", "FusedResizeAndPadConv2D")
def _padded_conv(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, *given, kernel = values
    x, kernel = arrays([x, kernel])
    if node.op == "FusedResizeAndPadConv2D":
        size = ints(static(node, given, 0))
        x = resize_bilinear(x, size, align=bool(node.attr("resize_align_corners", False)))
    pads = static(node, given, len(given) - 1).tolist()
    padded = jnp.pad(x, pads, mode=node.attr("mode").lower())
    return [conv_of(node, padded.ndim)(padded, kernel)]


@raises_tf("_FusedMatMul")
def _fused_matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y, *args = arrays(values)
    return [_epilogue(node, product(node, x, y), args, 1)]


def _epilogue(node: Node, y: Any, args: list[Any], channel: int) -> Any:
    rest = list(args)
    for op in node.attr("fused_ops", []):
        if op == "BiasAdd":
            y = bias_add(y, rest.pop(0), channel)
        elif op == "Add":
            y = y + rest.pop(0)
        elif op == "FusedBatchNorm":
            scale, offset, mean, variance = (rest.pop(0) for _ in range(4))
            where, epsilon = layout(node, y.ndim), node.attr("epsilon", 1e-4)
            y = normalize(y, mean, variance, scale, offset, where, epsilon)
        elif op == "LeakyRelu":
            y = leaky_relu(y, node.attr("leakyrelu_alpha", 0.2))
        elif op in ACTIVATIONS:
            y = ACTIVATIONS[op](y)
        else:
            raise refuse(node, f"is fused with {op}, which is not known here")
    return y


@raises_tf("_FusedBatchNormEx")
def _fused_batch_norm(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    y, *statistics = batch_norm(node, values)
    for side in values[5:]:
        y = y + array(side)
    activation = node.attr("activation_mode", "Identity")
    if activation not in ACTIVATIONS:
        raise refuse(node, f"is fused with {activation}, which is not known here")
    empty = jnp.zeros((0,), statistics[0].dtype)
    return [ACTIVATIONS[activation](y), *statistics, empty]
