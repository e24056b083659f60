"""Keras models as users pass them: without examples, in training mode, frozen, misused."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import invert

L = keras.layers
X = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
FAST = invert.Config(patterns=False, verify=False)


def frozen_model():
    inputs = keras.Input((8,))
    x = L.Dense(4, name="frozen")(inputs)
    x = L.BatchNormalization(name="bn")(x)
    model = keras.Model(inputs, L.Dense(2, name="head")(x), name="net")
    for name in ("frozen", "bn"):
        model.get_layer(name).trainable = False
    return model


def trained(module):
    kept, _ = eqx.partition(module, invert.trainable(module))
    return [name for name, value in kept.named_params().items() if value is not None]


def _exported(model, path: Path):
    model.export(str(path / "sm"), verbose=False)
    return invert.load(path / "sm", config=FAST)


def _archived(model, path: Path):
    model.save(path / "model.keras")
    return invert.load(path / "model.keras", config=FAST)


def _function(model):
    return tf.function(lambda x: model(x))


@pytest.mark.parametrize(
    "container",
    [
        lambda model, _: invert.convert(model, config=FAST),
        lambda model, _: invert.convert(lambda x: model(x), X, config=FAST),
        lambda model, _: invert.convert(_function(model), X, config=FAST),
        lambda model, _: invert.convert(_function(model).get_concrete_function(X), config=FAST),
        _exported,
        _archived,
    ],
    ids=["model", "callable", "function", "concrete", "exported", "archive"],
)
def test_frozen_layers_stay_frozen(container, tmp_path):
    module = container(frozen_model(), tmp_path)
    assert trained(module) == ["head/kernel", "head/bias"]
    module(X)
    assert "frozen" not in " ".join(module.report.notes)


def test_a_frozen_model_trains_nothing(tmp_path):
    model = frozen_model()
    model.trainable = False
    assert trained(_exported(model, tmp_path)) == []
    model.trainable = True
    assert len(trained(invert.convert(model, config=FAST))) == 6


def test_a_file_without_information_on_frozen_layers(tmp_path):
    tf.saved_model.save(frozen_model(), str(tmp_path / "sm"))
    module = invert.load(tmp_path / "sm", signature="serving_default", config=FAST)
    module(inputs=X)
    (note,) = [n for n in module.report.notes if "frozen" in n]
    assert "6 variables" in note
    invert.save(module, tmp_path / "saved")
    page = (tmp_path / "saved" / "README.md").read_text()
    assert page.count("| not stated |") == 6 and page.count("| no |") == 2


def test_the_readme_lists_frozen_layers(tmp_path):
    module = invert.convert(frozen_model(), X, config=FAST)
    invert.save(module, tmp_path / "saved")
    page = (tmp_path / "saved" / "README.md").read_text()
    assert page.count("| yes |") == 2 and page.count("| no |") == 6


def test_frozen_layers_of_keras_2():
    keras2 = pytest.importorskip("tf_keras")
    inputs = keras2.Input((8,))
    x = keras2.layers.Dense(4, name="frozen")(inputs)
    model = keras2.Model(inputs, keras2.layers.Dense(2, name="head")(x))
    model.get_layer("frozen").trainable = False
    assert trained(invert.convert(model, config=FAST)) == ["head/kernel", "head/bias"]


def test_python_values_are_static():
    model = keras.Sequential([keras.Input((8,)), L.BatchNormalization(momentum=0.5)], name="net")
    module = invert.convert(model, X, training=True, config=FAST)
    assert list(inspect.signature(module).parameters) == ["inputs", "state"]
    out, _ = module(X, eqx.nn.State(module))
    np.testing.assert_allclose(out.mean(0), np.zeros(8), atol=1e-5)
    assert invert.convert(model, training=True, config=FAST)._function.state_name == "state"
    assert invert.convert(model, X, training=False, config=FAST)._function.state_name is None

    summed = invert.convert(lambda x, axis, name: tf.reduce_sum(x, axis), X, 1, "s", config=FAST)
    np.testing.assert_allclose(summed(X), X.sum(1), rtol=1e-5, atol=1e-6)
    scaled = invert.convert(lambda d: d["x"] * d["k"], {"x": X, "k": 2}, config=FAST)
    np.testing.assert_allclose(scaled({"x": X, "k": None}), 2 * X, rtol=1e-6, atol=1e-6)


def test_static_values_pick_a_trace_of_an_open_size():
    @tf.function
    def fn(x, plus, *, double):
        return (x + plus) * (2 if double else 1)

    for double in (True, False):
        fn.get_concrete_function(tf.TensorSpec([None, 8]), 1, double=double)
    module = invert.convert(fn, X, 1, double=True, config=FAST)
    np.testing.assert_allclose(module(X[:1]), (X[:1] + 1) * 2, rtol=1e-6, atol=1e-6)


def test_a_model_knows_its_inputs():
    model = frozen_model()
    module = invert.convert(model, config=FAST)
    assert (module._function.entry.name, module._function.entry.source) == (
        "net",
        "Keras model net",
    )
    for n in (1, 5):
        x = np.ones((n, 8), np.float32)
        np.testing.assert_allclose(module(x), model(x), rtol=1e-5, atol=1e-6)
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    two = invert.convert(keras.Model({"a": a, "b": b}, L.Add()([a, b])), config=FAST)
    np.testing.assert_allclose(
        two({"a": X[:, :4], "b": X[:, 4:]}), X[:, :4] + X[:, 4:], rtol=1e-6, atol=1e-6
    )


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.dense = L.Dense(2)

    def call(self, features, training=None):
        return self.dense(features)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: invert.convert(Subclassed()), r"own does not declare its inputs.*tf.TensorSpec"),
        (lambda: invert.convert(keras.Sequential([L.Dense(2)])), "does not declare its inputs"),
        (lambda: invert.convert(L.Dense(3)), "does not declare its inputs"),
        (
            lambda: invert.convert(frozen_model(), X[:, :3]),
            "net cannot be called like this: .*expected",
        ),
        (lambda: invert.convert(Subclassed(), X, foo=1), "unexpected keyword argument 'foo'"),
        (
            lambda: invert.convert(
                keras.Sequential([keras.Input((8,)), L.BatchNormalization()]),
                X,
                training=np.array(True),
            ),
            "where Python needs a value: .* is not allowed. Pass the value itself",
        ),
        (lambda: invert.convert(lambda x: x if tf.reduce_sum(x) > 0 else -x, X), "tf.function"),
        (lambda: invert.convert(lambda x, y: x, X), "missing a required argument: 'y'"),
        (lambda: invert.convert(tf.function(lambda x, y: x), X), "a required argument: 'y'"),
        (lambda: invert.convert(lambda x: jnp.sin(x), X), "a JAX function.*invert.rewrite"),
        (lambda: invert.convert(tf.function(jnp.sin), X), "a JAX function"),
        (lambda: invert.convert(jax.nn.relu, X), "a JAX function.*invert.roundtrip"),
        (
            lambda: invert.convert(eqx.nn.Linear(8, 4, key=jax.random.key(0)), X[0]),
            "a JAX function",
        ),
        (lambda: invert.load(frozen_model()), "invert.convert"),  # pyright: ignore
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(invert.SignatureError, match=message) as caught:
        call()
    assert "\x1b" not in str(caught.value) and "Arguments received" not in str(caught.value)


def test_the_batch_of_an_archive_is_open(tmp_path):
    module = _archived(frozen_model(), tmp_path)
    assert json.dumps(module._function.specs[0].shape) == "[null, 8]"
