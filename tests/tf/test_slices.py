"""Slices between places that depend on data, but not how far they are apart."""

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
    np.testing.assert_allclose(gradient, want[0], rtol=1e-6)
    np.testing.assert_array_equal(new, want[1])
    again = module(X, i, state)[0][1]
    np.testing.assert_array_equal(again, want[1])

    def grad(x):
        return jax.grad(lambda x: jax.numpy.sum(2 * jax.numpy.sin(forward(x, i))))(x)

    forward = invert.convert(tf.function(lambda x, i: x[i + 3 : i : -2, 1:]), X, i)
    np.testing.assert_allclose(grad(X), want[0], rtol=1e-6)


def test_blocks_in_a_loop():
    fn = tf.function(
        lambda x: tf.map_fn(
            lambda j: tf.reduce_sum(x[j * 2 : (j + 1) * 2]),
            tf.range(4),
            fn_output_signature=tf.float32,
        )
    )
    np.testing.assert_array_equal(invert.convert(fn, X)(X), fn(X))


@pytest.mark.parametrize("fn", [lambda x, i: x[:i], lambda x, i: x[i : 2 * i]])
def test_a_length_that_depends_on_data_is_refused(fn):
    with pytest.raises(invert.UnsupportedOpError, match="length of a slice depends on data"):
        invert.convert(tf.function(fn), X, np.int32(2))
