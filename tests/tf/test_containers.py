"""Containers of models: Keras objects and exports, modules, signatures, structures."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import invert

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
Y = RNG.normal(size=(4, 3)).astype(np.float32)


def network(*layers):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.layers.Input(X.shape[1:]), *layers, keras.layers.Dense(3)])


def test_keras_object():
    model = network(keras.layers.Dense(5, activation="relu"), keras.layers.BatchNormalization())
    module = invert.convert(model, X)
    np.testing.assert_allclose(module(X), model(X, training=False).numpy(), rtol=2e-5, atol=1e-6)


def test_keras_export(tmp_path):
    model = network(keras.layers.Dense(5, activation="relu"))
    model.export(tmp_path / "m", verbose=False)
    module = invert.load(tmp_path / "m")
    for batch in (1, 4):
        want = model(X[:batch], training=False).numpy()
        np.testing.assert_allclose(module(X[:batch]), want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        "LSTM",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("GRU", "SimpleRNN", "Bidirectional")),
    ],
)
def test_recurrent_layers_differentiate_backwards(kind):
    layer = getattr(keras.layers, kind)
    layer = layer(keras.layers.LSTM(4)) if kind == "Bidirectional" else layer(4)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((7, 5)), layer, keras.layers.Dense(3)])
    x = RNG.normal(size=(2, 7, 5)).astype(np.float32)
    fn = tf.function(lambda x: model(x, training=False))
    module = invert.convert(fn, x)
    assert "while" not in module.report.primitives and "cond" not in module.report.primitives
    np.testing.assert_allclose(module(x), fn(x).numpy(), rtol=2e-5, atol=1e-6)
    with tf.GradientTape() as tape:
        value = tf.constant(x)
        tape.watch(value)
        loss = tf.reduce_sum(tf.square(fn(value)))
    want, params = tape.gradient(loss, [value, model.trainable_variables])
    loss = eqx.filter_grad(lambda both: jnp.sum(jnp.square(both[0](both[1]))))
    got_params, got = loss((module, jnp.asarray(x)))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-6)
    sizes = [sorted(float(np.abs(g).sum()) for g in grads) for grads in (
        [p.numpy() for p in params], jax.tree_util.tree_leaves(got_params.params),
    )]  # fmt: skip
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=1e-4)


class Model(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(np.ones((8, 3), np.float32), name="kernel")
        self.steps = tf.Variable(0, name="steps", trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    def predict(self, x):
        return x @ self.kernel

    @tf.function(input_signature=[tf.TensorSpec([None, 8]), tf.TensorSpec([None, 3])])
    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.predict(x) - y))
        self.kernel.assign_sub(0.1 * tape.gradient(loss, self.kernel))
        self.steps.assign_add(1)
        return {"loss": loss}


def test_method_of_a_module():
    model = Model()
    module = invert.convert(model.train, X, Y)
    out, state = module(X, Y, eqx.nn.State(module))
    np.testing.assert_allclose(out["loss"], model.train(X, Y)["loss"].numpy(), rtol=1e-6, atol=1e-6)
    assert state.get(module.params["steps"]) == 1


def test_several_functions_share_their_parameters(tmp_path):
    model = Model()
    tf.saved_model.save(model, tmp_path)
    module = invert.load(tmp_path)
    assert isinstance(module, invert.Methods)
    assert list(inspect.signature(module.predict).parameters) == ["x", "state"]
    state = eqx.nn.State(module)
    for _ in range(3):
        out, state = module.train(X, Y, state)
        np.testing.assert_allclose(
            out["loss"], model.train(X, Y)["loss"].numpy(), rtol=1e-5, atol=1e-6
        )
    np.testing.assert_allclose(
        module.predict(X, state), model.predict(X).numpy(), rtol=1e-5, atol=1e-6
    )
    assert set(module.reports) == {"predict", "train"}
    one = invert.load(tmp_path, signature="predict")
    assert isinstance(one, invert.Module)


def test_a_function_that_fails_leaves_the_others(tmp_path):
    root = tf.Module()
    spec = [tf.TensorSpec([2])]
    root.good = tf.function(lambda x: x + 1.0, input_signature=spec)

    def bad(x):
        tf.io.write_file("/nowhere/at/all", "content")
        return x

    root.bad = tf.function(bad, input_signature=spec)
    tf.saved_model.save(root, tmp_path)
    module = invert.load(tmp_path)
    np.testing.assert_array_equal(module.good(np.ones(2, np.float32)), [2.0, 2.0])
    assert set(module.failed) == {"bad"}
    with pytest.raises(invert.UnsupportedOpError, match="WriteFile"):
        module.bad(np.ones(2, np.float32))


def test_structures_are_kept():
    fn = tf.function(lambda d: {"o": (d["a"][0] + d["b"], None, [d["a"][1]])})
    module = invert.convert(fn, {"a": (X, X + 1), "b": X})
    out = module({"a": (X, X + 1), "b": X})
    assert out["o"][1] is None and isinstance(out["o"][2], list)
    np.testing.assert_allclose(out["o"][0], 2 * X)


def test_ragged_tensors_are_passed_as_components():
    fn = tf.function(lambda r: r.with_flat_values(r.flat_values * 2.0))
    ragged = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    module = invert.convert(fn, ragged)
    out = module(
        {"flat_values": ragged.flat_values.numpy(), "row_splits_0": ragged.row_splits.numpy()}
    )
    np.testing.assert_array_equal(out["flat_values"], [2.0, 4.0, 6.0])
    np.testing.assert_array_equal(out["row_splits_0"], [0, 2, 2, 3])


def test_callables_accept_ragged_tensors():
    def fn(r, options):
        return {"sum": tf.reduce_sum(r.values), "scaled": r * options["by"] ** options["power"]}

    ragged = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    module = invert.convert(fn, ragged, {"by": np.float32(3.0), "power": 2})
    splits = ragged.row_splits.numpy()
    parts = {"flat_values": ragged.flat_values.numpy(), "row_splits_0": splits}
    out = module(parts, {"by": np.float32(2.0), "power": None})
    np.testing.assert_array_equal(out["sum"], 6.0)
    np.testing.assert_array_equal(out["scaled"]["flat_values"], [4.0, 8.0, 12.0])
    np.testing.assert_array_equal(out["scaled"]["row_splits_0"], splits)


def test_sparse_tensors_are_passed_as_components():
    sparse = tf.sparse.from_dense([[1.0, 0.0], [0.0, 3.0]])
    parts = {k: getattr(sparse, k).numpy() for k in ("indices", "values", "dense_shape")}
    fn = tf.function(lambda s: tf.sparse.map_values(tf.square, s))
    module = invert.convert(fn, sparse)
    out = module(parts)
    np.testing.assert_array_equal(out["values"], [1.0, 9.0])
    np.testing.assert_array_equal(out["indices"], parts["indices"])


def test_a_specification_with_an_open_size_is_a_signature():
    module = invert.convert(tf.function(lambda x: x * 2.0), tf.TensorSpec([None, 3]))
    for n in (1, 4):
        np.testing.assert_array_equal(module(np.ones((n, 3), np.float32)), np.full((n, 3), 2))


def test_the_report_says_which_half_the_certificate_covers(tmp_path: Path) -> None:
    line = "the rules that raised its TensorFlow ops"
    module = invert.convert(tf.function(lambda x: tf.sin(x) * 2.0), tf.TensorSpec([3], tf.float32))
    assert f"  outside the certificate: {line}\n" in str(module.report)
    invert.save(module, tmp_path / "of_tensorflow")
    pages = [p.read_text() for p in (tmp_path / "of_tensorflow").glob("*.md")]
    assert any(f"Outside of the certificate: {line}." in page for page in pages)
    spec = jax.ShapeDtypeStruct((3,), np.float32)
    other = invert.from_exported(jax.export.export(jax.jit(jnp.sin))(spec))
    assert "outside" not in str(other.report)
