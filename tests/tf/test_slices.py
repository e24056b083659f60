"""Slices with data-dependent bounds that are a constant apart."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
import tensorflow as tf

import invert

X = np.arange(24, dtype=np.float32).reshape(8, 3)

SLICES = {
    "i:i+2": lambda x, i: x[i : i + 2],
    "2i:2(i+1), other axes": lambda x, i: x[i * 2 : (i + 1) * 2, tf.newaxis, ..., 1:],
    "one that is 1": lambda x, i: x[i + 1 : i + 2],
    "stride": lambda x, i: x[i - 1 : i + 4 : 2, 1],
    "backwards": lambda x, i: x[i + 3 : i : -1],
    "backwards by two": lambda x, i: x[i + 4 : i - 1 : -2],
    "with an index": lambda x, i: x[i : i + 3, i % 3],
    "no length": lambda x, i: x[i:i],
    "from a number": lambda x, i: x[2 : i - i + 4],
    "wider index": lambda x, i: x[tf.cast(i, tf.int64) : tf.cast(i, tf.int64) + 2],
    "tf.slice with a computed size": lambda x, i: tf.slice(x, [i, 0], [(i + 2) - i, 3]),
}


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("name", SLICES)
def test_slices(name, place):
    fn = tf.function(SLICES[name])
    i = np.int32(place)
    module = invert.convert(fn, X, i)
    np.testing.assert_array_equal(module(X, i), fn(X, i))
    batch = jax.vmap(module, (None, 0))(X, np.arange(1, 4, dtype=np.int32))
    np.testing.assert_array_equal(batch[place - 1], fn(X, i))


def test_negative_places_count_from_the_end():
    fn = tf.function(SLICES["i:i+2"])
    module = invert.convert(fn, X, np.int32(0))
    for place in (-8, -5, -2, 0, 6):
        want = X[place : place + 2] if place != -2 else X[-2:]
        np.testing.assert_array_equal(module(X, np.int32(place)), want)
    assert any("at a place that depends on data" in note for note in module.report.notes)


def test_gradients_and_updates():
    v = tf.Variable(X)

    def step(x, i):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(x[i + 3 : i : -2, 1:]) * 2)
        v[i : i + 2, 1:].assign(x[:2, 1:] * 10)
        return tape.gradient(y, x), v * 1

    fn = tf.function(step)
    i = np.int32(3)
    module = invert.convert(fn, X, i)
    (gradient, new), state = module(X, i, eqx.nn.State(module))
    want = fn(X, i)
    np.testing.assert_allclose(gradient, want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(new, want[1])
    again = module(X, i, state)[0][1]
    np.testing.assert_array_equal(again, want[1])

    def grad(x):
        return jax.grad(lambda x: jax.numpy.sum(2 * jax.numpy.sin(forward(x, i))))(x)

    forward = invert.convert(tf.function(lambda x, i: x[i + 3 : i : -2, 1:]), X, i)
    np.testing.assert_allclose(grad(X), want[0], rtol=1e-6, atol=1e-6)


def test_blocks_in_a_loop():
    fn = tf.function(
        lambda x: tf.map_fn(
            lambda j: tf.reduce_sum(x[j * 2 : (j + 1) * 2]),
            tf.range(4),
            fn_output_signature=tf.float32,
        )
    )
    np.testing.assert_array_equal(invert.convert(fn, X)(X), fn(X))


# Arrays of positive numbers, with as many rows as depends on data.
STRETCHES = {
    ":i": lambda x, i: tf.reduce_sum(tf.math.log(x[:i])),
    "i:": lambda x, i: tf.reduce_mean(x[i:], 0),
    "i:2i": lambda x, i: tf.reduce_max(x[i : 2 * i]),
    "i::2, other axes": lambda x, i: tf.reduce_sum(x[i::2, 1:] * 2),
    "backwards": lambda x, i: tf.reduce_sum(x[i::-1] * tf.cumsum(tf.ones([3]))),
    ":i:-2": lambda x, i: tf.reduce_sum(x[:i:-2]),
    "the last": lambda x, i: x[:i][-1],
    "of a slice": lambda x, i: tf.reduce_sum(x[1:i][: i // 2]),
    "tf.slice": lambda x, i: tf.reduce_sum(tf.slice(x, [i, 0], [-1, 2])),
    "shape": lambda x, i: tf.shape(x[i:]),
    "written": lambda x, i: tf.raw_ops.TensorStridedSliceUpdate(
        input=x, begin=[i, 1], end=[2 * i, 3], strides=[1, 1], value=x[:i, 1:] * 10
    ),
    "gradient": lambda x, i: tf.gradients(tf.reduce_sum(tf.sin(x[i:, 1:])), x),
    "gradient of a slice of a slice": lambda x, i: tf.gradients(tf.reduce_sum(x[:i][1:] ** 2), x),
    "gradient of the last": lambda x, i: tf.gradients(x[:i][-1, 1], x),
}


@pytest.mark.parametrize("name", STRETCHES)
def test_lengths_that_depend_on_data(name):
    fn = tf.function(STRETCHES[name], autograph=False)
    module = jax.jit(invert.convert(fn, X + 1, np.int32(1)))
    compared = 0
    for i in np.asarray([1, 2, 3, 0, 7, 8, 20, -1, -3, -30], np.int32):
        try:
            want = tf.nest.flatten(fn(X + 1, i))
        except (tf.errors.InvalidArgumentError, ValueError):
            continue  # there is no last row, or no room for what is written
        got = jax.tree_util.tree_leaves(module(X + 1, i))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
        compared += 1
    assert compared > 3


def test_gradient_through_padding_rows():
    fn = tf.function(lambda x, i: tf.reduce_sum(tf.sqrt(x[:i])))
    x = np.float32([4, 1, 0, 0])
    gradient = jax.grad(invert.convert(fn, x, np.int32(1)))(x, np.int32(2))
    np.testing.assert_array_equal(gradient, np.float32([0.25, 0.5, 0, 0]))


def test_a_length_that_depends_on_data_is_refused_in_other_axes():
    with pytest.raises(invert.UnsupportedOpError, match="length of a slice depends on data"):
        invert.convert(tf.function(lambda x, i: x[:, :i]), X, np.int32(2))


def test_a_result_whose_length_depends_on_data_is_refused():
    with pytest.raises(invert.UnsupportedOpError, match="length of a slice depends on data"):
        invert.convert(tf.function(lambda x, i: x[:i]), X, np.int32(2))


def test_lengths_computed_by_the_sign_of_a_size():
    def roll(x):
        """Rolls rows by one place, as graphs of jax2tf write it."""
        n = tf.shape(x)[0]
        quotient = tf.math.floordiv(-1, n)
        inexact = (tf.sign(-1) != tf.sign(n)) & (tf.math.floormod(-1, n) != 0)
        start = -1 - tf.where(inexact, quotient + 1, quotient) * n
        start = tf.where(start < 0, start + n, start)
        return tf.concat([x[start:], x[:start]], 0)

    fn = tf.function(roll, input_signature=[tf.TensorSpec([None, X.shape[1]])])
    np.testing.assert_array_equal(invert.convert(fn)(X), np.roll(X, 1, 0))
