"""Ops that only TensorFlow's graph optimizer writes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from invert import UnsupportedOpError
from tests.tf.ops.driver import check, converted
from tests.tf.ops.samples import normal
from tests.tf.ops.test_nn import statistics


def attr(value):
    message = tf.compat.v1.AttrValue()
    if isinstance(value, bool):
        message.b = value
    elif isinstance(value, int):
        message.i = value
    elif isinstance(value, float):
        message.f = value
    elif isinstance(value, str):
        message.s = value.encode()
    elif isinstance(value, tf.DType):
        message.type = value.as_datatype_enum
    elif value and isinstance(value[0], int):
        message.list.i.extend(value)
    elif value and isinstance(value[0], tf.DType):
        message.list.type.extend(v.as_datatype_enum for v in value)
    else:
        message.list.s.extend(v.encode() for v in value)
    return message


def op(name, inputs, results=1, **attrs):
    made = tf.compat.v1.get_default_graph().create_op(
        name,
        list(inputs),
        [tf.float32] * results,
        name="fused",
        attrs={k: attr(v) for k, v in {"T": tf.float32, **attrs}.items()},
    )
    return made.outputs


CONV = {"strides": [1, 1, 1, 1], "padding": "SAME"}
ACTIVATIONS = {
    "Relu": tf.nn.relu,
    "Relu6": tf.nn.relu6,
    "Elu": tf.nn.elu,
    "LeakyRelu": lambda x: tf.nn.leaky_relu(x, 0.3),
    "Tanh": tf.tanh,
    "Sigmoid": tf.sigmoid,
    "GeluExact": lambda x: tf.nn.gelu(x, approximate=False),
    "GeluApproximate": lambda x: tf.nn.gelu(x, approximate=True),
}


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_fused_with_a_bias(activation):
    fused = ["BiasAdd", activation] if activation else ["BiasAdd"]
    given = {"num_args": 1, "fused_ops": fused, "leakyrelu_alpha": 0.3}
    then = ACTIVATIONS[activation] if activation else tf.identity

    def fn(x, w, d, b, m, n):
        conv = {"TArgs": [tf.float32], "num_host_args": 0, **given, **CONV}
        return (
            *op("_FusedConv2D", [x, w, b], **conv),
            *op("_FusedDepthwiseConv2dNative", [x, d, b[:3]], **given, **CONV),
            *op("_FusedMatMul", [m, n, b], **given),
            *op("_FusedMatMul", [n, m, b[:2]], transpose_a=True, transpose_b=True, **given),
        )

    def reference(x, w, d, b, m, n):
        products = [
            (tf.nn.conv2d(x, w, 1, "SAME"), b),
            (tf.nn.depthwise_conv2d(x, d, [1, 1, 1, 1], "SAME"), b[:3]),
            (tf.matmul(m, n), b),
            (tf.matmul(n, m, transpose_a=True, transpose_b=True), b[:2]),
        ]
        return [then(tf.nn.bias_add(y, bias)) for y, bias in products]

    args = normal(2, 5, 6, 3), normal(3, 3, 3, 4), normal(3, 3, 3, 1), normal(4)
    check(fn, *args, normal(2, 3), normal(3, 4), reference=reference, grad=False)


def test_fused_with_a_normalization():
    fused = {"num_args": 4, "fused_ops": ["FusedBatchNorm", "Relu"], "epsilon": 0.01}

    def fn(x, w, *stats):
        conv = {"TArgs": [tf.float32] * 4, "num_host_args": 0, **fused, **CONV}
        return op("_FusedConv2D", [x, w, *stats], **conv)

    def reference(x, w, scale, offset, mean, variance):
        y = tf.nn.conv2d(x, w, 1, "SAME")
        return tf.nn.relu(tf.nn.batch_normalization(y, mean, variance, offset, scale, 0.01))

    args = normal(2, 5, 6, 3), normal(3, 3, 3, 2), *statistics()
    check(fn, *args, reference=reference, grad=False)


def test_fused_batch_norm_with_following_ops():
    def fn(x, side, *stats):
        given = {"U": tf.float32, "epsilon": 0.01, "is_training": False, "num_side_inputs": 1}
        inputs = [x, *stats, side]
        return op("_FusedBatchNormEx", inputs, 6, activation_mode="Relu", **given)[:1]

    def reference(x, side, scale, offset, mean, variance):
        y = tf.nn.batch_normalization(x, mean, variance, offset, scale, 0.01)
        return tf.nn.relu(y + side)

    # TensorFlow wants a number of channels that four divides.
    stats = [np.concatenate([s, s + 1]) for s in statistics()]
    args = normal(2, 5, 6, 4), normal(2, 5, 6, 4, seed="side"), *stats
    check(fn, *args, reference=reference, grad=False)


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_fused_with_padding(mode):
    pads = [[0, 0], [2, 1], [1, 2], [0, 0]]

    def fn(x, w):
        args = {"filter": w, "paddings": pads, "mode": mode}
        args |= {"strides": [1, 2, 1, 1], "padding": "VALID"}
        return (
            tf.raw_ops.FusedPadConv2D(input=x, **args),
            tf.raw_ops.FusedResizeAndPadConv2D(input=x, size=[7, 9], **args),
        )

    # One image: TensorFlow's kernel repeats the result of the first one for the others.
    check(fn, normal(1, 5, 6, 3), normal(3, 3, 3, 4), grad=False)


def test_unknown_fusions_are_refused():
    def fn(m, n, b):
        return op("_FusedMatMul", [m, n, b], num_args=1, fused_ops=["BiasAdd", "Whatever"])

    args = normal(2, 3), normal(3, 4), normal(4)
    with pytest.raises(UnsupportedOpError, match=r"fused with Whatever"):
        converted(fn, [np.asarray(a) for a in args])(*args)
