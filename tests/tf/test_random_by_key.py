"""`Config(random="jax")`: draws by key in place of seeds and generator states."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

import invert

CONFIG = invert.Config(random="jax")
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def _convert(function: Any, *args: Any) -> Any:
    return invert.convert(tf.function(function), *args, config=CONFIG)


def _parameters(module: Any) -> list[str]:
    return list(inspect.signature(module).parameters)


class Sampling(keras.layers.Layer):
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        shape = keras.ops.shape(mean)
        return mean + keras.ops.exp(0.5 * log_var) * keras.random.normal(shape, seed=self.seeds)


def _autoencoder() -> Any:
    x = keras.Input((3,))
    mean, log_var = keras.layers.Dense(2)(x), keras.layers.Dense(2)(x)
    return keras.Model(x, keras.layers.Dense(3)(Sampling()([mean, log_var])))


@pytest.mark.parametrize("container", ["model", "SavedModel"])
def test_a_seed_generator_is_a_key(container: str, tmp_path: Path):
    model = _autoencoder()
    if container == "model":
        module: Any = invert.convert(model, config=CONFIG)
    else:
        model.export(tmp_path, verbose=False)
        module = invert.load(tmp_path, config=CONFIG)
    assert _parameters(module)[1:] == ["key"]
    assert "jax.random.normal" in module.source
    assert "philox" not in module.source
    assert not any("seed" in name for name in module.params)
    draw = jax.vmap(lambda key: module(X, key=key))(jax.random.split(jax.random.key(0), 4000))
    again = module.model(X, key=jax.random.key(3))
    np.testing.assert_array_equal(module(X, key=jax.random.key(3)), again)
    # The mean over keys is the result for the means; the deviation follows from the variances.
    one, two, last = (layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    mean, deviation = np.asarray(one(X)), np.exp(0.5 * np.asarray(two(X)))
    kernel = np.asarray(last.kernel)
    np.testing.assert_allclose(draw.mean(0), np.asarray(last(mean)), atol=0.1)
    wanted = np.sqrt((deviation[..., None] ** 2 * kernel**2).sum(1))
    np.testing.assert_allclose(draw.std(0), wanted, rtol=0.08, atol=0.02)


def test_dropout():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.25)])
    module: Any = invert.convert(model, training=True, config=CONFIG)
    assert _parameters(module)[1:] == ["key"]
    x = np.ones((2000, 3), np.float32)
    y = np.asarray(module(x, key=jax.random.key(1)))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.03
    assert (y != np.asarray(module(x, key=jax.random.key(2)))).any()


def test_a_generator_leaves_no_state():
    generator = tf.random.Generator.from_seed(5)

    def function(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.shape(x)[0]
        return (
            x + generator.normal(tf.shape(x)),
            generator.uniform([rows, 2], 3, 9, tf.int32),
            generator.truncated_normal([rows]),
            generator.binomial([5], [10.0], [0.5]),
        )

    module = _convert(function, tf.TensorSpec([None, 3]))
    assert _parameters(module) == ["x", "key"]
    noise, whole, near, counts = module(np.zeros((2000, 3), np.float32), key=jax.random.key(0))
    assert abs(float(noise.mean())) < 0.06
    assert abs(float(noise.std()) - 1) < 0.05
    assert set(np.unique(whole)) == set(range(3, 9))
    assert float(np.abs(near).max()) <= 2
    assert counts.shape == (5,)
    assert ">= 1" in module.report.certificate.sizes


@pytest.mark.slow
def test_draws_differ_from_each_other():
    generator = tf.random.Generator.from_seed(5)

    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            rows = rows.write(i, x + generator.normal([3]))
        return rows.stack(), generator.normal([3])

    rows, last = _convert(function, np.zeros(3, np.float32))(
        np.zeros(3, np.float32), key=jax.random.key(0)
    )
    found = np.concatenate([np.asarray(rows), np.asarray(last)[None]])
    assert len(np.unique(found)) == found.size


def test_a_constant_seed_stays():
    module = _convert(lambda x: x + tf.random.stateless_normal([3], seed=(1, 2)), X[0])
    assert _parameters(module) == ["x"]
    key = jax.random.wrap_key_data(np.array([1, 2], np.uint32), impl="threefry2x32")
    np.testing.assert_array_equal(module(X[0] * 0), jax.random.normal(key, (3,)))


def test_a_seed_that_is_an_argument_is_the_key():
    def function(seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (
            tf.random.stateless_uniform([3], seed),
            tf.random.stateless_gamma([3], seed, alpha=2.0),
            tf.random.stateless_poisson([3], seed, 4.0),
            tf.random.stateless_categorical(tf.zeros([2, 3]), 4, seed),
            tf.random.experimental.stateless_shuffle(tf.range(5), seed),
        )

    seed = np.array([3, 4], np.int32)
    module = _convert(function, seed)
    assert _parameters(module) == ["seed"]
    key = jax.random.wrap_key_data(seed.astype(np.uint32), impl="threefry2x32")
    uniform, gamma, poisson, classes, order = module(seed)
    np.testing.assert_array_equal(uniform, jax.random.uniform(key, (3,)))
    np.testing.assert_array_equal(gamma, jax.random.gamma(key, 2.0, (3,)))
    np.testing.assert_array_equal(poisson, jax.random.poisson(key, 4.0, (3,)))
    assert classes.shape == (2, 4)
    assert sorted(np.asarray(order).tolist()) == list(range(5))


def test_a_state_with_other_readers_is_kept():
    generator = tf.random.Generator.from_seed(5)

    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x + generator.normal([3]), generator.state.read_value()

    module = _convert(function, X[0])
    assert _parameters(module) == ["x", "state", "key"]


def test_gradients_pass_through_samples():
    generator = tf.random.Generator.from_seed(5)
    module = _convert(lambda x: tf.exp(x) * generator.normal([3]), X[0])
    key = jax.random.key(0)
    slope = jax.grad(lambda x: module(x, key=key).sum())(X[0])
    np.testing.assert_allclose(slope, module(X[0], key=key), rtol=1e-6, atol=1e-6)


def test_by_default_the_numbers_equal_tensorflows():
    seed = np.array([3, 4], np.int32)
    function = tf.function(lambda seed: tf.random.stateless_uniform([7], seed))
    np.testing.assert_array_equal(invert.convert(function, seed)(seed), function(seed))


@pytest.mark.parametrize("random", ["tensorflow", "jax"])
@pytest.mark.parametrize("container", ["live", "keras", "export"])
def test_seeds_that_nothing_draws_from_are_left_out(random: Any, container: str, tmp_path: Path):
    """Recurrent Keras layers with dropout advance a seed even if nothing is dropped."""
    layers = keras.layers
    lstm = layers.Bidirectional(layers.LSTM(4, dropout=0.5, return_sequences=True))
    model = keras.Sequential([keras.Input((5, 3)), lstm, layers.GRU(3, recurrent_dropout=0.2)])
    config = invert.Config(random=random)
    if container == "live":
        module = invert.convert(model, config=config)
    elif container == "keras":
        model.save(tmp_path / "model.keras")
        module = invert.load(tmp_path / "model.keras", config=config)
    else:
        model.export(tmp_path / "model", verbose=False)
        module = invert.load(tmp_path / "model", config=config)
    assert len(_parameters(module)) == 1
    assert {a.dtype for a in jax.tree.leaves(module)} == {np.dtype(np.float32)}
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(module(x), model(x), rtol=1e-5, atol=1e-6)


def test_counts_and_seeds_in_use_are_kept():
    count, generator = tf.Variable(0), keras.random.SeedGenerator(3)

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def function(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        return x + keras.random.normal((2,), seed=generator)

    module = invert.convert(function)
    assert _parameters(module) == ["x", "state"]
    assert len(jax.tree.leaves(eqx.nn.State(module))) == 2
