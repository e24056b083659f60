"""Sparse tensors, quantized numbers, half precision, and ops of earlier releases."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config

R = tf.raw_ops
PLAIN = Config(patterns=False, verify=False)
G = np.random.default_rng(0)

INDICES = np.array([[0, 1], [1, 0], [2, 1], [2, 3]])
WEIGHTS = np.array([1.0, 2.0, -3.0, 4.0], np.float32)
DENSE = G.normal(size=(3, 4)).astype(np.float32)


def sparse(indices, weights):
    return tf.SparseTensor(indices, weights, [3, 4])


def check(fn, *args, rtol=1e-5, atol=1e-6, jit_compile=None):
    compiled = tf.function(fn, autograph=False, jit_compile=jit_compile)
    want = [t.numpy() for t in tf.nest.flatten(compiled(*map(tf.constant, args)))]
    module = invert.convert(tf.function(fn, autograph=False), *args, config=PLAIN)
    with jax.enable_x64(True):
        got = jax.tree_util.tree_leaves(module(*args))
    for g, w in zip(map(np.asarray, got), want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        np.testing.assert_allclose(g.astype(float), w.astype(float), rtol=rtol, atol=atol)


@pytest.mark.parametrize("adjoint", [False, True])
def test_products_with_a_dense_matrix(adjoint):
    def fn(indices, weights, b):
        with tf.GradientTape() as tape:
            tape.watch([weights, b])
            y = tf.sparse.sparse_dense_matmul(
                sparse(indices, weights), b, adjoint_a=adjoint, adjoint_b=adjoint
            )
        return y, tape.gradient(y, [weights, b])

    b = G.normal(size=(5, 3) if adjoint else (4, 5)).astype(np.float32)
    check(fn, INDICES, WEIGHTS, b)


def test_elementwise_with_a_dense_matrix():
    def fn(indices, weights, dense):
        args = {"sp_indices": indices, "sp_values": weights, "sp_shape": [3, 4]}
        return (
            R.SparseDenseCwiseAdd(**args, dense=dense[0]),
            R.SparseDenseCwiseMul(**args, dense=dense),
            R.SparseDenseCwiseDiv(**args, dense=dense),
            R.SparseTensorDenseAdd(a_indices=indices, a_values=weights, a_shape=[3, 4], b=dense),
        )

    check(fn, INDICES, WEIGHTS, DENSE)


def test_reductions_of_sparse_tensors():
    def fn(indices, weights):
        x = sparse(indices, weights)
        found = [tf.sparse.softmax(x).values]
        for axes, keep in (([0], True), ([-1], False), ([0, 1], True), (None, False)):
            found += [tf.sparse.reduce_sum(x, axes, keep), tf.sparse.reduce_max(x, axes, keep)]
        return found

    check(fn, INDICES, WEIGHTS)


def test_small_ops():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    check(lambda i: tf.unravel_index(i, [3, 4, 5]), np.array([3, 59, 17], np.int32))
    for op in (R.InplaceAdd, R.InplaceSub, R.InplaceUpdate):
        # A copy, since TensorFlow's own kernels write to what they are given.
        check(lambda x, i, v, op=op: op(x=x + 0, i=i, v=v), x, np.array([1, -2], np.int32), x * 2)


QUANTIZED = [
    (tf.qint8, "MIN_COMBINED"), (tf.quint8, "MIN_COMBINED"), (tf.qint8, "MIN_FIRST"),
    (tf.quint16, "MIN_FIRST"), (tf.qint8, "SCALED"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "mode"), QUANTIZED)
def test_quantize_and_dequantize(dtype, mode):
    def fn(x):
        found = []
        for low, high in ((-3.0, 4.0), (0.0, 6.0), (1.0, 2.0)):
            y, a, b = R.QuantizeV2(input=x, min_range=low, max_range=high, T=dtype, mode=mode)
            found += [R.Dequantize(input=y, min_range=a, max_range=b, mode=mode), a, b]
        return found

    check(fn, (G.normal(size=(3, 20)) * 3).astype(np.float32))


def test_quantize_by_channel():
    def fn(x):
        args = {"mode": "SCALED", "axis": 0, "narrow_range": True}
        y, a, b = R.QuantizeV2(
            input=x, min_range=[-3.0, -1, 0], max_range=[4.0, 1, 5], T=tf.qint8, **args
        )
        return R.Dequantize(input=y, min_range=a, max_range=b, **args), a, b

    check(fn, (G.normal(size=(3, 20)) * 3).astype(np.float32))


def _requantized(y, low, high):
    """The steps after a product of quantized numbers, in ordinary types."""
    least, most = R.RequantizationRange(input=y, input_min=low, input_max=high)
    z, a, b = R.Requantize(
        input=y, input_min=low, input_max=high, requested_output_min=least,
        requested_output_max=most, out_type=tf.quint8,
    )  # fmt: skip
    shrunk = R.QuantizeDownAndShrinkRange(
        input=y, input_min=low, input_max=high, out_type=tf.quint8
    )
    relu, relu6 = (
        op(features=z, min_features=a, max_features=b, out_type=tf.quint8)[0]
        for op in (R.QuantizedRelu, R.QuantizedRelu6)
    )
    numbers = [tf.bitcast(q, tf.uint8) for q in (z, shrunk[0], relu, relu6)]
    return tf.bitcast(y, tf.int32), low, high, least, most, a, b, *shrunk[1:], *numbers


def test_quantized_products():
    def fn(a, b):
        ranges = {"min_a": -4.0, "max_a": 5.0, "min_b": -2.0, "max_b": 2.5}
        qa, qb = (tf.bitcast(v, tf.quint8) for v in (a, b))
        y, low, high = R.QuantizedMatMul(a=qa, b=qb, **ranges, Toutput=tf.qint32, transpose_b=True)
        return _requantized(y, low, high)

    a, b = (G.integers(0, 256, shape).astype(np.uint8) for shape in ((5, 8), (6, 8)))
    check(fn, a, b)


@pytest.mark.parametrize(("padding", "stride"), [("SAME", 2), ("VALID", 1)])
def test_quantized_convolution(padding, stride):
    def fn(x, kernel):
        ranges = {"min_input": -4.0, "max_input": 5.0, "min_filter": -2.0, "max_filter": 2.5}
        x, kernel = (tf.bitcast(v, tf.quint8) for v in (x, kernel))
        y, low, high = R.QuantizedConv2D(
            input=x, filter=kernel, **ranges, strides=[1, stride, stride, 1], padding=padding
        )
        return _requantized(y, low, high)

    shapes = ((2, 6, 7, 3), (3, 3, 3, 4))
    check(fn, *(G.integers(0, 256, shape).astype(np.uint8) for shape in shapes))


def test_decompositions_in_half_precision():
    a = G.normal(size=(2, 3, 3))
    definite = (a @ a.swapaxes(-1, -2) + 3 * np.eye(3)).astype(np.float16)
    b = G.normal(size=(2, 3, 2)).astype(np.float16)
    wide = {"rtol": 4e-3, "atol": 4e-3}
    check(tf.linalg.inv, definite, **wide)
    check(lambda x: tf.linalg.qr(x), definite, **wide)
    check(lambda x, y: (tf.linalg.cholesky(x), tf.linalg.solve(x, y)), definite, b,
          jit_compile=True, **wide)  # fmt: skip
    check(lambda x: R.Ndtri(x=x), np.array([0.1, 0.5, 0.9], np.float16), jit_compile=True, **wide)
