"""TensorFlow Hub modules in both formats, through its library and from their directory.

They are created by the tests; nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert

pytestmark = [
    pytest.mark.slow,
    # TensorFlow Hub warns about its own code.
    pytest.mark.filterwarnings("ignore"),
]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
# One rounding of a sum of three products.
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture
def hub() -> Any:
    return pytest.importorskip("tensorflow_hub")


class Encoder(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.w = tf.Variable(rng.normal(size=[3, 2]).astype(np.float32), name="w")
        self.table = tf.Variable(rng.normal(size=[5, 3]).astype(np.float32), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: Any) -> Any:
        return tf.tanh(x @ self.w)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="words")])
    def embed(self, words: Any) -> Any:
        return tf.gather(self.table, words)


@pytest.fixture
def second(tmp_path: Path) -> tuple[Encoder, str]:
    """A module in the TensorFlow 2 format, and its directory."""
    encoder = Encoder()
    tf.saved_model.save(encoder, tmp_path / "m", signatures={"serving_default": encoder.__call__})
    return encoder, str(tmp_path / "m")


def first(directory: Path, resource: bool) -> str:
    """A module in the TensorFlow 1 format: one graph without tags, another one for training."""
    v1 = tf.compat.v1
    builder = v1.saved_model.builder.SavedModelBuilder(str(directory))
    info = v1.saved_model.utils.build_tensor_info
    for tags in ([], ["train"]):
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [None, 3], name="x")
            w = v1.get_variable("layer/w", [3, 2], use_resource=resource)
            assert ("Resource" in type(w).__name__) == resource
            y = tf.tanh(x @ w)
            # The training graph computes something else, to tell the two graphs apart.
            y = 2 * y if tags else y
            outputs = {"default": info(y), "pre": info(x @ w)}
            signature = v1.saved_model.build_signature_def({"x": info(x)}, outputs, "m")
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                if not tags:
                    builder.add_meta_graph_and_variables(session, tags, {"default": signature})
                else:
                    builder.add_meta_graph(tags, {"default": signature})
    builder.save()
    # The mark of the format: version 3 of the module's own file.
    (directory / "tfhub_module.pb").write_bytes(b"\x08\x03")
    return str(directory)


def test_functions_and_signatures_of_a_loaded_module(hub: Any, second: Any) -> None:
    encoder, path = second
    loaded = hub.load(path)
    module = invert.convert(loaded.__call__, X)
    assert list(module.params) == ["w"]
    np.testing.assert_allclose(module(X), encoder(X).numpy(), **CLOSE)
    np.testing.assert_allclose(invert.convert(loaded, X)(X), encoder(X).numpy(), **CLOSE)
    words = np.int32([3, 0, 3])
    embed = invert.convert(loaded.embed, words)
    np.testing.assert_array_equal(embed(words), encoder.embed(words).numpy())
    signature = invert.convert(loaded.signatures["serving_default"])
    np.testing.assert_allclose(signature(x=X)["output_0"], encoder(X).numpy(), **CLOSE)


def test_the_directory_of_a_module(second: Any) -> None:
    encoder, path = second
    module = invert.load(path)
    assert set(module.params) == {"w", "table"}
    np.testing.assert_allclose(module(X), encoder(X).numpy(), **CLOSE)
    np.testing.assert_array_equal(module.embed(np.int32([1])), encoder.embed([1]).numpy())
    with pytest.raises(invert.SignatureError, match="tagged"):
        invert.load(path, tags=["train"])


def test_keras_layers_around_a_module(hub: Any, second: Any) -> None:
    keras = pytest.importorskip("tf_keras")
    encoder, path = second
    layer = hub.KerasLayer(path)
    module = invert.convert(layer, X)
    np.testing.assert_allclose(module(X), encoder(X).numpy(), **CLOSE)
    model = keras.Sequential([hub.KerasLayer(path, input_shape=(3,)), keras.layers.Dense(2)])
    module = invert.convert(model, X)
    np.testing.assert_allclose(module(X), model(X).numpy(), **CLOSE)
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        loss = tf.reduce_sum(model(x) ** 2)
    ours = jax.grad(lambda x: jnp.sum(module(x) ** 2))(X)
    np.testing.assert_allclose(ours, tape.gradient(loss, x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_modules_of_the_first_format(hub: Any, resource: bool, tmp_path: Path) -> None:
    path = first(tmp_path / "m", resource)
    signature = hub.load(path).signatures["default"]
    wanted = {k: v.numpy() for k, v in signature(tf.constant(X)).items()}
    assert set(wanted) == {"default", "pre"}
    for module in (
        invert.convert(signature),
        invert.load(path),
        invert.load(path, signature="default"),
        invert.load(path, tags=[]),
    ):
        got = module(x=X)
        assert set(got) == set(wanted)
        for key, value in wanted.items():
            np.testing.assert_allclose(got[key], value, **CLOSE)
        assert [tuple(v.shape) for v in jax.tree_util.tree_leaves(module.params)] == [(3, 2)]
    training = invert.load(path, tags=["train"])
    np.testing.assert_allclose(training(x=X)["default"], 2 * wanted["default"], **CLOSE)
    layer = hub.KerasLayer(path, signature="default", output_key="pre")
    np.testing.assert_allclose(invert.convert(layer, X)(X), wanted["pre"], **CLOSE)
    # The gradient reaches the variable.
    module = invert.load(path)
    grad = jax.grad(lambda m: jnp.sum(m(x=X)["default"]), allow_int=True)(module)
    ours = jax.tree_util.tree_leaves(grad.params)[0]
    expected = X.T @ (1 - wanted["default"] ** 2)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
