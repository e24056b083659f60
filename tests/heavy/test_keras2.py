"""Keras 2 models (`tf_keras`): live ones, the SavedModels that it writes, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert

pytestmark = [
    pytest.mark.slow,
    # Keras 2 warns about its own code and about the format.
    pytest.mark.filterwarnings("ignore"),
]
# Sums of some dozens of products, in single precision.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def keras() -> Iterator[Any]:
    keras = pytest.importorskip("tf_keras")
    keras.utils.set_random_seed(1)
    yield keras
    keras.backend.clear_session()


def cnn(keras: Any) -> tuple[Any, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3, strides=2, padding="same", input_shape=(8, 8, 3), name="stem"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.DepthwiseConv2D(3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, name="head"),
        ],
        name="cnn",
    )
    return model, normal(2, 8, 8, 3)


def recurrent(keras: Any) -> tuple[Any, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(9, 4, mask_zero=True, input_length=5),
            layers.LSTM(3, return_sequences=True),
            layers.Bidirectional(layers.GRU(2)),
        ]
    )
    return model, np.int32([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])


def several_inputs(keras: Any) -> tuple[Any, Any]:
    layers = keras.layers
    inputs = {"image": layers.Input((4, 4, 2), name="image"), "age": layers.Input((1,), name="age")}
    flat = layers.Flatten()(inputs["image"])
    joined = layers.Concatenate()([flat, layers.Dense(3, "gelu")(inputs["age"])])
    outputs = {"mean": layers.Dense(1)(joined), "kind": layers.Dense(4, "softmax")(joined)}
    return keras.Model(inputs, outputs), {"image": normal(2, 4, 4, 2), "age": normal(2, 1)}


MODELS = {"cnn": cnn, "recurrent": recurrent, "several_inputs": several_inputs}


def assert_close(ours: Any, theirs: Any) -> None:
    theirs = tf.nest.map_structure(lambda t: t.numpy(), theirs)
    assert jax.tree_util.tree_structure(ours) == jax.tree_util.tree_structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_live_models_with_their_gradients(name: str, keras: Any) -> None:
    model, x = MODELS[name](keras)
    for weight in model.weights:  # of a trained model, not of a fresh one
        weight.assign(weight + 0.1 * normal(*weight.shape) ** 2)
    module = invert.convert(model, x, config=invert.Config(verify=False))
    assert_close(module(x), model(x))
    with tf.GradientTape() as tape:
        total = sum(tf.reduce_sum(y * y) for y in tf.nest.flatten(model(x)))
    theirs = tape.gradient(total, model.trainable_weights)

    def loss(weights: Any, rest: Any) -> Any:
        outputs = eqx.combine(weights, rest)(x)
        return sum(jnp.sum(y * y) for y in jax.tree_util.tree_leaves(outputs))

    gradients = eqx.filter_grad(loss)(*eqx.partition(module, invert.trainable(module)))
    leaves = {
        tuple(str(getattr(k, "key", k)) for k in path): g
        for path, g in jax.tree_util.tree_leaves_with_path(gradients.params)
    }
    assert len(leaves) == len(theirs)
    for weight, gradient in zip(model.trainable_weights, theirs, strict=True):
        path = tuple(weight.name.removesuffix(":0").split("/"))
        ours = next(g for p, g in leaves.items() if p[-1] == path[-1] and set(p) <= set(path))
        np.testing.assert_allclose(ours, tf.convert_to_tensor(gradient).numpy(), **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_saved_models(name: str, keras: Any, tmp_path: Path) -> None:
    model, x = MODELS[name](keras)
    model.save(tmp_path / "m", save_format="tf")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    signature = loaded.signatures["serving_default"]
    module = invert.load(tmp_path / "m", signature="serving_default")
    (name,) = signature.structured_input_signature[1] if not isinstance(x, dict) else ("",)
    # Keras 2 saves all inputs as numbers of single precision.
    x = x if isinstance(x, dict) else x.astype(np.float32)
    feeds = x if isinstance(x, dict) else {name: x}
    wanted = signature(**{k: tf.constant(v) for k, v in feeds.items()})
    assert_close(module(**feeds), wanted)
    # The function of the object takes what the model takes, with its dictionary.
    call = invert.convert(loaded.__call__, x, training=False)
    assert_close(call(x), model(x))


def test_parameters_have_the_names_of_keras(keras: Any, tmp_path: Path) -> None:
    model, _ = cnn(keras)
    model.save(tmp_path / "m", save_format="tf")
    module = invert.load(tmp_path / "m", signature="serving_default")
    paths = {
        "/".join(str(k.key) for k in path)
        for path, _ in jax.tree_util.tree_leaves_with_path(module.params)
    }
    assert paths >= {"stem/kernel", "stem/bias", "norm/gamma", "norm/moving_mean", "head/kernel"}


def test_the_training_function_of_a_saved_model_updates_its_averages(
    keras: Any, tmp_path: Path
) -> None:
    model, x = cnn(keras)
    model.save(tmp_path / "m", save_format="tf")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    module = invert.convert(loaded.__call__, x, training=True)
    state = eqx.nn.State(module)
    y, state = module(x, state=state)
    wanted = model(x, training=True)
    assert_close(y, wanted)
    # A second step starts from the averages of the first one.
    y, state = module(x, state=state)
    assert_close(y, model(x, training=True))
    averages = [np.asarray(v) for v in jax.tree_util.tree_leaves(state)]
    for weight in model.non_trainable_weights:
        assert any(a.shape == weight.shape and np.allclose(a, weight, **CLOSE) for a in averages)


def with_operators(keras: Any) -> tuple[Any, Any]:
    """Functions of TensorFlow as layers, which Keras 3 does not know."""
    x = keras.Input((6,))
    return keras.Model(x, tf.nn.relu(x)[:, 1:] * 2.0 + keras.layers.Dense(5)(x)), normal(2, 6)


FILES = MODELS | {"with_operators": with_operators}


@pytest.mark.parametrize("kind", ["h5", "keras"])
@pytest.mark.parametrize("name", FILES)
def test_files(name: str, kind: str, keras: Any, tmp_path: Path) -> None:
    model, x = FILES[name](keras)
    for weight in model.weights:
        weight.assign(weight + 0.1 * normal(*weight.shape) ** 2)
    model.save(tmp_path / f"model.{kind}")
    module = invert.load(tmp_path / f"model.{kind}")
    # Keras 2 takes numbers of single precision where an input says nothing.
    assert_close(module(x if isinstance(x, dict) else x.astype(np.float32)), model(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"function": "io.write_file"}}, "TFOpLambda: calls io.write_file"),
        ({"config": {"function": "py_function"}}, "TFOpLambda: calls py_function"),
        ({"config": {"function": "load_op_library"}}, "TFOpLambda: calls load_op_library"),
        ({"config": {"function": "compat.v1.load_library"}}, "TFOpLambda: calls compat.v1.load"),
        ({"config": {"function": ["math.add"]}}, "TFOpLambda: calls"),
        ({"class_name": "TensorFlowOpLayer"}, "contains or names Python code"),
        ({"class_name": "Lambda"}, "contains or names Python code"),
        ({"class_name": "system", "module": "os"}, "os.system: is not a class of Keras itself"),
        ({"class_name": "Dense", "config": {"name": "big", "units": 10**9}}, "take .* too many"),
    ],
)
def test_files_that_would_run_code_or_fill_the_memory(
    change: dict[str, Any], message: str, keras: Any, tmp_path: Path
) -> None:
    with_operators(keras)[0].save(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layers = config["config"]["layers"]
        # The layers before it have no functions; the one changed is the first that has.
        layer = next(x for x in layers if x["class_name"] == "TFOpLambda")
        if change.get("class_name") == "Dense":
            layer["config"].clear()
        layer["config"] |= change.get("config", {})
        layer |= {k: v for k, v in change.items() if k != "config"}
        file.attrs["model_config"] = json.dumps(config)
    with pytest.raises(invert.InvertError, match=f"(?s){message}"):
        invert.load(tmp_path / "model.h5")
