"""Ops that graph optimizers fuse: a product or normalization with its neighbours.

The attributes are those of tensorflow/core/kernels/conv_ops_fused_impl.h and
matmul_op_fused.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from invert.primitives.tf.conv import conv_of, grouped
from invert.primitives.tf.matmul import product
from invert.primitives.tf.nn import bias_add, leaky_relu, relu6
from invert.primitives.tf.normalization import batch_norm, normalize
from invert.primitives.tf.resize import resize_bilinear
from invert.primitives.tf.window import Layout, layout
from invert.tf.interpreter.registry import Array, Ints, Static, rule
from invert.tf.ops.node import Node

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Elu": jax.nn.elu,
    "GeluApproximate": jax.nn.gelu,
    "GeluExact": functools.partial(jax.nn.gelu, approximate=False),
    "Identity": lambda x: x,
    "Relu": jax.nn.relu,
    "Relu6": relu6,
    "Sigmoid": jax.nn.sigmoid,
    "Tanh": lax.tanh,
}


@rule(
    "_FusedConv2D",
    "_FusedConv3D",
    "_FusedDepthwiseConv2dNative",
    ignores=("num_args", "use_cudnn_on_gpu"),
)
def _fused_conv(x: Array, kernel: Array, *args: Array, node: Node) -> Array:
    kernel = grouped(kernel) if "Depthwise" in node.op else kernel
    return _epilogue(node, conv_of(node, x.ndim)(x, kernel), args, layout(node, x.ndim))


@rule("FusedPadConv2D")
def _padded_conv(x: Array, paddings: Static, kernel: Array, *, mode: str, node: Node) -> Array:
    padded = jnp.pad(x, paddings.tolist(), mode=mode.lower())
    return conv_of(node, padded.ndim)(padded, kernel)


@rule("FusedResizeAndPadConv2D")
def _resized_conv(
    x: Array,
    size: Ints,
    paddings: Static,
    kernel: Array,
    *,
    resize_align_corners: bool,
    mode: str,
    node: Node,
) -> Array:
    x = resize_bilinear(x, size, align=resize_align_corners)
    return _padded_conv(x, paddings, kernel, mode=mode, node=node)


@rule("_FusedMatMul")
def _fused_matmul(a: Array, b: Array, *args: Array, node: Node) -> Array:
    return _epilogue(node, product(node, a, b), args, Layout("NC"))


def _epilogue(node: Node, y: Array, args: Sequence[Array], where: Layout) -> Array:
    """Apply the fused ops of a node to `y`, with their further operands `args`."""
    epsilon, slope = node.attr("epsilon"), node.attr("leakyrelu_alpha")
    rest = list(args)
    for op in node.attr("fused_ops"):
        if op == "BiasAdd":
            y = bias_add(y, rest.pop(0), where.channel)
        elif op == "Add":
            y = y + rest.pop(0)
        elif op == "FusedBatchNorm":
            scale, offset, mean, variance = (rest.pop(0) for _ in range(4))
            y = normalize(y, mean, variance, scale, offset, where, epsilon)
        elif op == "LeakyRelu":
            y = leaky_relu(y, slope)
        else:
            y = _activated(node, op, y)
    return y


def _activated(node: Node, activation: str, y: Array) -> Array:
    if activation not in ACTIVATIONS:
        raise node.error(
            f"is fused with {activation}, which has no rule",
            "Export the graph before TensorFlow fuses its ops.",
        )
    return ACTIVATIONS[activation](y)


@rule("_FusedBatchNormEx")
def _fused_batch_norm(*operands: Array, activation_mode: str, node: Node) -> list[Array]:
    y, *statistics = batch_norm(node, *operands[:5])
    for side in operands[5:]:
        y = y + side
    empty = jnp.zeros((0,), statistics[0].dtype)
    return [_activated(node, activation_mode, y), *statistics, empty]
