"""Mistakes that a converter easily makes without an error: one test for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config

R = tf.raw_ops
PLAIN = Config(patterns=False, verify=False)
F = np.float32
X = np.array([[1.0, -2, 0, 4], [0, 0, 3, -1], [2, 5, -6, 0]], F)
IDS = np.array([[0, 2, 2], [4, 0, -1]], np.int32)
NAN = np.array([[np.nan, 1, 3], [2, np.nan, np.nan], [np.nan] * 3], F)


def _arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(y) for y in jax.tree_util.tree_leaves(tree)]


def _transposed(kernel: Any, dy: Any) -> list[Any]:
    """Input sizes that several convolution inputs share: the op states which one it is."""
    return [
        R.Conv2DBackpropInput(
            input_sizes=[1, n, n, 2], filter=kernel, out_backprop=dy, strides=[1, 2, 2, 1],
            padding="VALID",
        )
        for n in (7, 8)
    ]  # fmt: skip


VALUES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "means of no integers": (
        lambda i, j: [tf.reduce_mean(i), tf.reduce_mean(i, 0), tf.reduce_mean(j)],
        (np.zeros((0, 2), np.int32), np.zeros((0, 3), np.uint8)),
    ),
    "select with a condition that broadcasts": (
        lambda c, x, y: tf.where(c, x, y), (np.array([[True], [False], [True]]), X, X[0])
    ),
    "exclusive sums and products along the last axis": (
        lambda x: [f(x, axis=-1, exclusive=True, reverse=r)
                   for f in (tf.cumsum, tf.math.cumprod) for r in (False, True)],
        (X,),
    ),
    "sizes of transposed convolutions": (
        _transposed, (np.ones((3, 3, 2, 1), F), np.ones((1, 3, 3, 1), F))
    ),
    "one hot with infinities, booleans and a leading axis": (
        lambda i: [tf.one_hot(i, 3, np.inf, -np.inf), tf.one_hot(i, 3, True, False),
                   tf.one_hot(i, 3, axis=0), tf.one_hot(i, 3, 0.0, -np.inf, axis=0)],
        (np.array([0, 2, -1, 3]),),
    ),
    "segments without rows": (
        lambda x: [f(x, tf.constant([0, 2, 2]), 4)
                   for f in (tf.math.unsorted_segment_max, tf.math.unsorted_segment_min)],
        (X,),
    ),
    "segment ids of two axes": (
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 5),
        (np.arange(12, dtype=F).reshape(2, 3, 2), IDS),
    ),
    "means of whole numbers": (
        lambda x: [tf.reduce_mean(x), tf.reduce_mean(x, 0)], (np.array([[1, -2], [2, -3]]),)
    ),
    "sums and products of bytes wrap around": (
        lambda x, y: [tf.reduce_sum(x), tf.add_n([y, y]), tf.reduce_prod(y)],
        (np.array([200, 100], np.uint8), np.array([100, 3, -7], np.int8)),
    ),
    "division of whole numbers": (
        lambda x, y: [R.Div(x=x, y=y), x // y, R.TruncateDiv(x=x, y=y)],
        (np.array([2**31 - 1, -7, 16777217], np.int32), np.array([1, 2, -1], np.int32)),
    ),
    "bands of a matrix of booleans": (
        lambda x: tf.linalg.band_part(x, 1, 0), (np.ones((3, 4), bool),)
    ),
    "the place of the largest among NaN": (
        lambda x: [tf.argmax(x, 1), tf.argmin(x, 1)], (NAN,)
    ),
    "relu6 of whole numbers": (
        lambda x: tf.nn.relu6(x), (np.array([-3, 0, 5, 6, 9], np.int32),)
    ),
    "slices from a place that depends on data": (
        lambda x, i: [tf.slice(x, [i, 1], [2, 2]), x[i], x[:, i]], (X, np.array(1, np.int32))
    ),
    "a shape inside of a branch": (
        lambda x: tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: tf.reshape(x, [tf.shape(x)[1], tf.shape(x)[0]]),
            lambda: tf.zeros(tf.reverse(tf.shape(x), [0])),
        ),
        (X,),
    ),
}  # fmt: skip

GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "maximum and minimum at ties": (
        lambda x, y: tf.maximum(x, y) + 2 * tf.minimum(x, y),
        (X, np.zeros((3, 4), F)),
    ),
    "absolute value at 0": (lambda x: tf.abs(x), (X,)),
    "leaky relu at 0": (lambda x: tf.nn.leaky_relu(x, 0.3), (X,)),
    "division that takes 0 for NaN, broadcast": (
        lambda x, y: tf.math.divide_no_nan(x, y),
        (X, X[1]),
    ),
    "product that takes 0 for NaN, broadcast": (
        lambda x, y: tf.math.multiply_no_nan(x, y),
        (X, X[:, :1]),
    ),
    "map": (lambda x: tf.map_fn(lambda r: tf.sin(r) * r[0], x), (X,)),
    "scan": (lambda x: tf.scan(lambda a, r: a * 0.5 + r * r, x), (X,)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    fn, args = VALUES[name]
    want = [t.numpy() for t in tf.nest.flatten(fn(*map(tf.constant, args)))]
    with jax.enable_x64(True):
        got = _arrays(invert.convert(tf.function(fn, autograph=False), *args, config=PLAIN)(*args))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn, args = GRADIENTS[name]
    tensors = [tf.constant(a) for a in args]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = fn(*tensors)
    weights = np.linspace(1, 2, int(tf.size(y))).reshape(y.shape).astype(F)
    want = [t.numpy() for t in tape.gradient(y, tensors, output_gradients=tf.constant(weights))]
    # Loops differentiate once the patterns have made scans of them.
    module = invert.convert(tf.function(fn, autograph=False), *args)
    np.testing.assert_allclose(module(*args), y.numpy(), rtol=1e-6, atol=1e-6)
    _, pull = jax.vjp(module, *args)
    for g, w in zip(pull(weights), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_half_precision_batch_statistics_equal_single_precision():
    x = (np.random.default_rng(0).normal(size=(64, 4, 4, 2)) + 300).astype(ml_dtypes.bfloat16)
    one = np.ones(2, F)

    def fn(x):
        found = R.FusedBatchNormV3(
            x=x, scale=one, offset=one * 0, mean=one[:0], variance=one[:0], is_training=True
        )
        return found[1], found[2]

    want = [t.numpy() for t in fn(tf.constant(x))]
    got = _arrays(invert.convert(tf.function(fn, autograph=False), x, config=PLAIN)(x))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == F
        np.testing.assert_allclose(g, w, rtol=1e-4)


def test_the_order_of_a_seed_matters():
    def fn(seed):
        return tf.random.stateless_uniform([4], seed)

    module = invert.convert(tf.function(fn), np.array([1, 2], np.int32), config=PLAIN)
    for seed in ([1, 2], [2, 1]):
        seed = np.array(seed, np.int32)
        np.testing.assert_array_equal(module(seed), fn(tf.constant(seed)))


def test_updates_in_nested_functions_are_returned():
    class Counter(tf.Module):
        def __init__(self):
            self.total = tf.Variable(np.zeros(4, F))

        @tf.function
        def inner(self, row):
            self.total.assign_add(row * 2.0)
            return tf.reduce_sum(self.total)

        @tf.function
        def outer(self, x):
            return [self.inner(x[i]) for i in range(3)]

    counter = Counter()
    concrete = counter.outer.get_concrete_function(tf.TensorSpec(X.shape))
    module = invert.convert(concrete, config=PLAIN)
    state = eqx.nn.State(module)
    for _ in range(2):
        got, state = module(X, state)
        np.testing.assert_allclose(_arrays(got), [t.numpy() for t in concrete(tf.constant(X))])


def test_second_derivatives_of_products_by_segment():
    """Also by the only zero of a segment, and around it."""
    ids = [0, 0, 1]
    x = np.array([[0, 1, -2, 3], [4, 0, 5, 6], [1, 2, 0, -1]], F)
    with tf.GradientTape() as outer:
        z = tf.constant(x)
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            y = tf.math.segment_prod(z, ids)
        first: Any = inner.gradient(y, z)
        total = tf.reduce_sum(first * (x + 2))
    second: Any = outer.gradient(total, z)
    # TensorFlow's second derivative of the unsorted product is NaN at these zeros.
    for op, count in ((tf.math.segment_prod, ()), (tf.math.unsorted_segment_prod, (2,))):
        fn = tf.function(lambda x, op=op, count=count: op(x, ids, *count), autograph=False)
        module = invert.convert(fn, x)
        slope = jax.grad(lambda x, m=module: m(x).sum())
        np.testing.assert_allclose(slope(x), first)
        again = jax.grad(lambda z, g=slope: (g(z) * (x + 2)).sum())(x)
        np.testing.assert_allclose(again, second)
