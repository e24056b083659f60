"""Image models of Keras, saved and run without invert and TensorFlow."""

from __future__ import annotations

import ast
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.emission.test_modules import in_another_process, slope


def application(name: str) -> tuple[Any, tuple[int, ...]]:
    import keras

    shape = (64, 64, 3)
    build = getattr(keras.applications, name)
    return build(weights=None, input_shape=shape, classes=10), shape


def diffusion_network() -> tuple[Any, tuple[int, ...]]:
    """A U-Net as diffusion models have it: residual blocks, attention in the middle, skips."""
    import keras
    from keras import layers

    def block(x: Any, channels: int) -> Any:
        h = x
        for _ in range(2):
            h = layers.Activation("swish")(layers.GroupNormalization(4)(h))
            h = layers.Conv2D(channels, 3, padding="same")(h)
        same = x.shape[-1] == channels
        return layers.Add()([h, x if same else layers.Conv2D(channels, 1)(x)])

    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same")(image)
    skips = []
    for channels in (8, 16):
        x = block(x, channels)
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    h = layers.Reshape((16, 16))(x)
    h = layers.MultiHeadAttention(2, 8)(h, h)
    x = layers.Add()([x, layers.Reshape((4, 4, 16))(h)])
    for channels in (16, 8):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skips.pop()])
        x = block(x, channels)
    return keras.Model(image, layers.Conv2D(3, 3, padding="same")(x)), (16, 16, 3)


# Most lines that the methods of the classes may have, without constructors, which grow with the
# layers of a model. A class for each size of a layer would take several times as many:
# EfficientNetB0 has 237 layers.
MODELS = {
    "MobileNetV2": 90,
    "ResNet50": 45,
    "EfficientNetB0": 200,
    "ConvNeXtTiny": 75,
    "diffusion": 70,
}


def lines_of_methods(source: str) -> int:
    classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    functions = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]
    lines = {f: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno is not None}
    return sum(n for f, n in lines.items() if f.name != "__init__")


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_image_model_runs_without_invert_and_tensorflow(name: str, tmp_path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    network, shape = diffusion_network() if name == "diffusion" else application(name)
    spec = tf.TensorSpec((None, *shape), tf.float32, name="image")
    module = invert.convert(
        tf.function(lambda image: network(image, training=False), input_signature=[spec])
    )
    assert module._emission().messages == ()
    assert lines_of_methods(module.source) <= MODELS[name]
    assert max(map(len, module.source.splitlines())) <= 120
    invert.save(module, tmp_path)
    rng = np.random.default_rng(1)
    inputs = {f"of_{n}": rng.normal(size=(n, *shape)).astype(np.float32) for n in (1, 3)}
    found = in_another_process(tmp_path, inputs)
    for key, x in inputs.items():
        # The same equations, compiled by the same compiler.
        assert np.array_equal(found[f"{key}_out"], module(x))
        for i, leaf in enumerate(jax.tree_util.tree_leaves(slope(module.model, x))):
            assert np.array_equal(found[f"{key}_grad_{i}"], leaf)
        # Convolutions of TensorFlow add in another order.
        assert np.allclose(module(x), network(x, training=False), rtol=1e-4, atol=1e-4)
