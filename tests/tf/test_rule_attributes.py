"""Attributes of ops: accepted if they do not affect results, refused if unsupported."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config, UnsupportedOpError

PLAIN = Config(patterns=False, verify=False)
IDS = np.array([0, 1, 1], np.int32)


def pooled_gradient(x):
    options = {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "VALID"}
    image = tf.reshape(x, [1, 3, 3, 1])
    y, places = tf.raw_ops.MaxPoolWithArgmax(input=image, Targmax=tf.int64, **options)
    return tf.raw_ops.MaxPoolGradWithArgmax(input=image, grad=y, argmax=places, **options)


# Functions of a matrix of three rows and columns.
WITHOUT_EFFECT = {
    "AccumulateNV2": lambda x: tf.raw_ops.AccumulateNV2(inputs=[x, x], shape=[3, 3]),
    "BatchMatMulV2": lambda x: tf.raw_ops.BatchMatMulV2(x=x, y=x, grad_x=True, grad_y=True),
    "Conv2D": lambda x: tf.raw_ops.Conv2D(
        input=tf.reshape(x, [1, 3, 3, 1]),
        filter=tf.reshape(x, [3, 3, 1, 1]),
        strides=[1, 1, 1, 1],
        padding="SAME",
        use_cudnn_on_gpu=False,
    ),
    "Gather": lambda x: tf.raw_ops.Gather(params=x, indices=IDS, validate_indices=False),
    "MatMul": lambda x: tf.raw_ops.MatMul(a=x, b=x, grad_a=True, grad_b=True),
    "MaxPoolGradWithArgmax": pooled_gradient,
    "ScatterNd": lambda x: tf.raw_ops.ScatterNd(
        indices=IDS[:, None], updates=x, shape=[3, 3], bad_indices_policy="IGNORE"
    ),
    "SparseMatMul": lambda x: tf.raw_ops.SparseMatMul(a=x, b=x, a_is_sparse=True),
    "SparseSegmentSum": lambda x: tf.raw_ops.SparseSegmentSum(
        data=x, indices=IDS, segment_ids=IDS, sparse_gradient=True
    ),
    "SparseToDense": lambda x: tf.raw_ops.SparseToDense(
        sparse_indices=[2, 0, 1],
        output_shape=[3],
        sparse_values=x[0],
        default_value=0.0,
        validate_indices=False,
    ),
    "TridiagonalSolve": lambda x: tf.raw_ops.TridiagonalSolve(
        diagonals=tf.add(x, [[0.0], [9.0], [0.0]]), rhs=x, partial_pivoting=False
    ),
}


@pytest.mark.parametrize("op", WITHOUT_EFFECT)
def test_attributes_that_do_not_change_the_result(op: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    function = tf.function(WITHOUT_EFFECT[op], autograph=False)
    module = invert.convert(function, tf.TensorSpec(x.shape), config=PLAIN)
    np.testing.assert_allclose(module(x), function(x), rtol=1e-5, atol=1e-5)


def test_gradients_of_products_convert() -> None:
    @tf.function(autograph=False)
    def gradient(x):
        return tf.gradients(tf.reduce_sum(tf.matmul(x, x, transpose_b=True) ** 2), x)[0]

    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    module = invert.convert(gradient, tf.TensorSpec(x.shape), config=PLAIN)
    np.testing.assert_allclose(module(x), gradient(x), rtol=1e-5, atol=1e-6)


def test_attributes_without_support_are_refused() -> None:
    def solve(x):
        return tf.raw_ops.TridiagonalSolve(diagonals=x, rhs=x, perturb_singular=True)

    with pytest.raises(UnsupportedOpError, match=r"tf\.TridiagonalSolve: .*'perturb_singular'"):
        invert.convert(tf.function(solve), tf.TensorSpec((3, 3)), config=PLAIN)


def test_a_rule_takes_the_attributes_of_the_op_as_parameters() -> None:
    """XlaReducePrecision is the primitive, with the parameters that the op has as attributes."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    def function(x):
        return gen_xla_ops.xla_reduce_precision(x, exponent_bits=5, mantissa_bits=3)

    module = invert.convert(tf.function(function, autograph=False), tf.TensorSpec([7], tf.float32))
    (eqn,) = module.jaxpr.eqns
    assert eqn.primitive.name == "reduce_precision"
    assert (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (5, 3)
