"""Arrays with a data-dependent number of rows: results equal TensorFlow's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config, UnsupportedOpError

keras: Any = pytest.importorskip("keras")
PLAIN = Config(patterns=False, verify=False)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def assert_equal(fn: Callable[..., Any], draws: Sequence[tuple[Any, ...]]) -> None:
    module = invert.convert(tf.function(fn, autograph=False), *draws[0], config=PLAIN)
    run = jax.jit(module)
    for args in draws:
        want = [t.numpy() for t in tf.nest.flatten(fn(*map(tf.constant, args)))]
        got = [np.asarray(y) for y in jax.tree_util.tree_leaves(run(*args))]
        for x, y in zip(got, want, strict=True):
            assert x.shape == y.shape
            # Sums in another order.
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def kept(x: Any) -> Any:
    return tf.boolean_mask(x, x[:, 0] > 0)


def shapes(x: Any) -> Any:
    count = tf.shape(kept(x))[0]
    return [
        tf.shape(kept(x)), tf.size(kept(x)), tf.cast(count, tf.float32) / 7,
        tf.reduce_sum(tf.range(2, count + 2)), tf.reduce_sum(tf.ones((count, 2))),
        tf.reduce_sum(tf.broadcast_to(x[:1], (count, 3))),
        tf.cond(count < 3, lambda: x[0], lambda: x[1]),
        tf.reduce_sum(tf.reshape(kept(x), [-1])[:, None] * 2), tf.shape(tf.reshape(kept(x), [-1])),
    ]  # fmt: skip


def reductions(x: Any) -> Any:
    y = kept(x)
    return [
        tf.reduce_mean(y), tf.reduce_mean(y, 0, keepdims=True), tf.reduce_sum(y, 0),
        tf.reduce_sum(tf.reduce_max(y, 1)), tf.reduce_max(y), tf.reduce_min(y, 0),
        tf.reduce_prod(y), tf.reduce_all(y > -1), tf.reduce_any(y > 1, 0), tf.norm(y),
        tf.reduce_sum(tf.boolean_mask(x, x > 0) ** 2),
        tf.reduce_sum(tf.boolean_mask(y, y[:, 1] > 0)),
    ]  # fmt: skip


def joined(x: Any) -> Any:
    one = tf.concat([kept(x), x, kept(-x)], 0)
    other = tf.concat([tf.ones((1, 3)), kept(x) * 2, kept(-x), x[1:]], 0)
    return tf.reduce_sum(one * other, 0)


def columns(x: Any) -> Any:
    one, two = tf.unstack(tf.where(x[:, :2] > 0), axis=1)
    return tf.reduce_sum(tf.gather(x[:, 0], one)), tf.reduce_max(two), tf.size(one)


def branches(x: Any) -> Any:
    y = tf.cond(x[0, 1] > 0, lambda: kept(x), lambda: x[:3])
    return tf.reduce_sum(y, 0), tf.scatter_nd(tf.range(tf.shape(y)[0])[:, None], y, (9, 3))


def loops(x: Any) -> Any:
    def shrink(i: Any, y: Any) -> Any:
        return i + 1, tf.boolean_mask(y, y[:, 0] > 0.2 * tf.cast(i, tf.float32))

    open_rows = (tf.TensorShape([]), tf.TensorShape([None, 3]))
    _, y = tf.while_loop(lambda i, y: i < 3, shrink, (0, kept(x)), shape_invariants=open_rows)
    return tf.reduce_sum(y, 0)


def counts(x: Any) -> Any:
    s = tf.sparse.from_dense(tf.cast(tf.nn.relu(3 * x), tf.int32))
    found = {"values": s.values, "size": 4, "weights": tf.cast(s.values, tf.float32) / 7}
    return [
        tf.raw_ops.SparseBincount(indices=s.indices, dense_shape=s.dense_shape, **found),
        tf.raw_ops.SparseBincount(indices=s.indices[:, 1:], dense_shape=[3], **found),
    ]


def slopes(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = kept(x)
        z = tf.tanh(tf.nn.bias_add(y @ tf.ones((3, 2)), tf.constant([0.1, 0.2])))
        loss = tf.reduce_mean(tf.nn.softmax(z) * tf.reduce_sum(y, 1, keepdims=True))
    return loss, tape.gradient(loss, x)


SOME = [(normal(7, 3),) for _ in range(4)]
NONE = (-np.abs(normal(7, 3)),)
ALL = (np.abs(normal(7, 3)),)


@pytest.mark.parametrize("fn", [shapes, columns, reductions, joined, branches, loops, counts])
def test_rows_that_a_mask_keeps(fn):
    assert_equal(fn, [*SOME, NONE, ALL])


def test_gradients_through_rows_that_a_mask_keeps():
    assert_equal(slopes, [*SOME, ALL])


def test_a_loss_over_the_valid_labels():
    w = tf.Variable(normal(3, 5))

    def loss(x, labels):
        with tf.GradientTape() as tape:
            there = labels >= 0
            logits, known = tf.boolean_mask(x, there) @ w, tf.boolean_mask(labels, there)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=known, logits=logits)
            total = tf.reduce_mean(losses)
        return total, tape.gradient(total, w)

    assert_equal(loss, [(normal(7, 3), np.int32(RNG.integers(-2, 5, 7))) for _ in range(4)])


def test_a_single_row_is_broadcast_to_the_other_operands():
    def product(x, y):
        return tf.reduce_sum(kept(x) * kept(y), 0), tf.shape(kept(x) * kept(y)), kept(x) * x

    def column(*numbers):
        return np.array(numbers, np.float32)[:, None]

    one, all_, none = column(-1, 7, -2), column(3, 4, 5), column(-1, -1, -1)
    assert_equal(lambda x, y: product(x, y)[:2], [(one, all_), (all_, one), (one, none)])
    assert_equal(lambda x, y: product(x, y)[2], [(one, one), (all_, one)])


@pytest.mark.parametrize("rows", [6, 9])
def test_quotients_of_slices_equal_keras(rows):
    """Keras forms the union of the slices' rows and of those divided by zero."""

    def draw():
        d = normal(9, 4)
        for _ in range(RNG.integers(0, 5)):
            d[RNG.integers(0, 9), RNG.integers(0, 4)] = RNG.choice([0, np.nan])
        return RNG.permutation(9)[:rows], normal(rows, 4), d

    def divide(ids, values, d):
        quotient = keras.ops.divide(tf.IndexedSlices(values, ids, tf.constant([9, 4])), d)
        table = tf.zeros((9, 4))
        return [
            tf.tensor_scatter_nd_add(table, quotient.indices[:, None], quotient.values),
            tf.math.unsorted_segment_max(quotient.values, quotient.indices, 9),
        ]

    assert_equal(divide, [draw() for _ in range(12)])


def of_unique(ids: Any, table: Any) -> Any:
    rows, which, often = tf.unique_with_counts(ids)
    count = tf.shape(rows)[0]
    return [
        tf.reduce_mean(tf.cast(rows, tf.float32)), tf.reduce_max(rows * often), count * 2, which,
        tf.reduce_mean(tf.gather(table, rows), 0), tf.reduce_sum(rows[: tf.minimum(2, count)]),
        tf.reduce_mean(tf.unique(table[:, 0])[0]), tf.reduce_sum(tf.zeros([count, 2]) + 1),
        tf.pad(rows, [[0, 9 - count]]), tf.reduce_mean(tf.pad(rows, [[1, 2]])),
        tf.pad(often[:, None], [[1, tf.maximum(0, 8 - count)], [0, 1]], constant_values=3),
    ]  # fmt: skip


def of_boxes(corners: Any, scores: Any) -> Any:
    boxes = tf.concat([corners, corners + 0.3], 1)
    best, kept = tf.image.non_max_suppression_with_scores(boxes, scores, 8, 0.1)
    return [
        tf.reduce_mean(tf.gather(boxes, best), 0), tf.reduce_mean(kept),
        tf.size(best), tf.gather(boxes, tf.pad(best, [[0, 8 - tf.size(best)]])),
    ]  # fmt: skip


def test_padded_ids_keep_their_length():
    draws = [(RNG.integers(0, 6, 8, np.int32), normal(6, 2)) for _ in range(3)]
    assert_equal(of_unique, draws)


def test_padded_boxes_keep_their_length():
    uniform = [RNG.uniform(size=(12, 2)).astype(np.float32) for _ in range(3)]
    assert_equal(of_boxes, [(corners, normal(12)) for corners in uniform])


@pytest.mark.parametrize(
    "fn",
    [
        kept,
        lambda x: tf.reduce_sum(tf.sort(kept(x), 0)),
        lambda x: tf.reduce_sum(tf.squeeze(kept(x))),
        lambda x: tf.reduce_sum(tf.reverse(kept(x), [0])),
        lambda x: tf.linalg.matmul(x[:4], kept(x), transpose_b=True),
    ],
)  # fmt: skip
def test_ops_that_would_see_padding_rows_are_refused(fn):
    with pytest.raises(UnsupportedOpError, match=r"tf.Where: has a result whose size depends on"):
        invert.convert(tf.function(fn, autograph=False), SOME[0][0], config=PLAIN)


@pytest.mark.parametrize("x", [[0.0, 2.0, -3.0, 4.0], [0.0, -2.0, -3.0, -4.0]])
def test_padding_rows_do_not_affect_gradients(x):
    """Later ops may have infinite derivatives at padding rows."""
    fn = tf.function(lambda x, w: tf.reduce_sum(tf.math.log(w * tf.boolean_mask(x, x > 0))))
    x, w = np.asarray(x, np.float32), np.float32(2)
    module = invert.convert(fn, x, w)
    with tf.GradientTape() as tape:
        inputs = [tf.constant(x), tf.constant(w)]
        tape.watch(inputs)
        want = fn(*inputs)
    np.testing.assert_allclose(module(x, w), want, rtol=1e-6, atol=1e-6)
    for got, wanted in zip(
        jax.grad(module, (0, 1))(x, w), tape.gradient(want, inputs), strict=True
    ):
        np.testing.assert_allclose(got, tf.convert_to_tensor(wanted), rtol=1e-6, atol=1e-6)
