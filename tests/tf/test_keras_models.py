"""Whole Keras 3 models: applications, in inference and training, and optimizers."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.frontends.tf_function import Variables, entry_point
from tests.tf.ops.driver import compare
from tests.tf.ops.samples import normal

keras = pytest.importorskip("keras")
L = keras.layers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.drawn(1),
    # Keras warns about its own arguments.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras runs on JAX"),
]

FAMILIES = {
    "ConvNeXtTiny": 32, "DenseNet121": 32, "EfficientNetB0": 32, "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75, "InceptionV3": 75, "MobileNet": 32, "MobileNetV2": 32,
    "MobileNetV3Small": 32, "NASNetMobile": 32, "ResNet50": 32, "ResNet50V2": 32, "VGG16": 32,
    "Xception": 71,
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_application(name):
    size = FAMILIES[name]
    keras.utils.set_random_seed(0)
    shape = {"input_shape": (size, size, 3), "include_top": False, "pooling": "avg"}
    model = getattr(keras.applications, name)(weights=None, **shape)
    x = np.abs(normal(1, size, size, 3)) % 1
    call = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = call.get_concrete_function(tf.TensorSpec([None, size, size, 3]))
    entry = entry_point(concrete, config=invert.Config())
    (got,) = jax.jit(entry.fn)([p.value for p in entry.params], x)
    want = model(x, training=False).numpy()
    # A hundred layers, each with sums in another order.
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    keras.backend.clear_session()


@pytest.fixture
def double_precision():
    """Fifty normalizations over a batch of four amplify rounding beyond single precision."""
    keras.config.set_dtype_policy("float64")
    with jax.enable_x64(True):
        yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "name",
    ["DenseNet121", "InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2",
     "MobileNetV3Small", "NASNetMobile", "ResNet50", "ResNet50V2", "Xception"],
)  # fmt: skip
def test_application_in_training(name):
    """Results from batch statistics, the new averages, and gradients of all weights."""
    size = FAMILIES[name]
    keras.utils.set_random_seed(0)
    shape = {"input_shape": (size, size, 3), "include_top": False, "pooling": "avg"}
    model = getattr(keras.applications, name)(weights=None, **shape)
    x = np.abs(normal(4, size, size, 3, dtype=np.float64)) % 1
    call = tf.function(lambda x: model(x, training=True), autograph=False)
    names = {id(v.value): f"v{i}" for i, v in enumerate(model.variables)}
    concrete = call.get_concrete_function(tf.TensorSpec(x.shape, tf.float64))
    entry = entry_point(concrete, config=invert.Config(), variables=Variables(names))
    assert not entry.draws
    values = [p.value for p in entry.params]
    trained = {names[id(v.value)]: v.value for v in model.trainable_variables}
    places = [i for i, p in enumerate(entry.params) if p.name in trained]
    scale = normal(*model.output_shape[1:], dtype=np.float64)

    def loss(weights):
        full = list(values)
        for i, w in zip(places, weights, strict=True):
            full[i] = w
        y, *updated = entry.fn(full, x)
        return jax.numpy.sum(y * scale), (y, updated)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, (y, updated)), slopes = run([values[i] for i in places])
    with tf.GradientTape() as tape:
        want = call(tf.constant(x))
        total = tf.reduce_sum(want * scale)
    wanted = tape.gradient(total, [trained[entry.params[i].name] for i in places])
    by_name = {names[id(v.value)]: v.value for v in model.variables}
    after = [by_name[entry.params[i].name].numpy() for i in entry.assigned]
    wanted = [w.numpy() for w in wanted]
    assert updated
    compare([y], [want.numpy()], rtol=1e-6, atol=1e-8)
    compare(updated, after, rtol=1e-6, atol=1e-8, what="average")
    largest = max(np.abs(w).max() for w in wanted)
    compare(slopes, wanted, rtol=1e-5, atol=1e-7 * largest, what="gradient")
    keras.backend.clear_session()


def network():
    """Convolutions, normalization and a recurrent layer, in one model."""
    return keras.Sequential(
        [
            keras.Input((6, 8, 3)),
            L.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
            L.BatchNormalization(momentum=0.8),
            L.Activation("relu"),
            L.Reshape((3, 16)),
            L.LSTM(5),
            L.LayerNormalization(),
            L.Dense(3),
        ]
    )


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.02),
    "AdamW": lambda: keras.optimizers.AdamW(0.02, clipnorm=0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "Adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "Adamax": lambda: keras.optimizers.Adamax(0.02),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "Lamb": lambda: keras.optimizers.Lamb(0.02),
    "Lion": lambda: keras.optimizers.Lion(0.01),
    "Nadam": lambda: keras.optimizers.Nadam(0.02),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "SGD": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.7), momentum=0.9, nesterov=True
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_of_training(name):
    """A training step of Keras, with the gradients TensorFlow wrote into it."""
    keras.utils.set_random_seed(1)
    model, optimizer = network(), OPTIMIZERS[name]()
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    x, y = normal(4, 6, 8, 3), np.array([0, 1, 2, 1], np.int32)
    specs = [tf.TensorSpec(x.shape), tf.TensorSpec(y.shape, tf.int32)]
    concrete = tf.function(step, autograph=False).get_concrete_function(*specs)
    module = invert.convert(concrete, config=invert.Config(verify=False))
    state = eqx.nn.State(module)
    run = eqx.filter_jit(module)
    losses = []
    for i in range(10):
        seen = x + 0.1 * normal(*x.shape, seed=str(i))
        got, state = run(seen, y, state)
        losses.append((float(got), float(concrete(tf.constant(seen), tf.constant(y)))))
    got, want = np.transpose(losses)
    # Rounding errors of ten steps add up.
    np.testing.assert_allclose(got, want, rtol=2e-3)
    assert want[-1] != want[0]
