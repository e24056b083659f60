"""Ten exported training steps of other libraries' models, compared with TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.heavy.keras_hub_models import BACKBONES, inputs_of
from tests.tf.training import STEPS, keras_step, specs_of, trained

pytestmark = [
    pytest.mark.slow,
    # The libraries warn about their own code.
    pytest.mark.filterwarnings("ignore"),
]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def mse(labels: Any, results: Any) -> Any:
    return tf.reduce_mean(tf.square(results - labels))


HUB = {
    "Llama": "Adam", "Mistral": "RMSprop", "Gemma": "AdamW", "BERT": "Adagrad", "GPT2": "Adam",
    "T5": "Lion", "Whisper": "Adam", "ViT": "AdamW", "SAM": "SGD", "ResNet": "SGD",
    "EfficientNet": "RMSprop", "Mixtral": "Adam", "DeBERTaV3": "Adafactor",
    "SwinTransformer": "SGD",
    "CLIP": "Adam", "MiT": "AdamW",
}  # fmt: skip


# Averages over few pixels amplify rounding at larger steps: 3e-15 becomes 6e-10 in ten, in doubles.
RATES = {"ResNet": 1e-5}


def scalar(_labels: Any, results: Any) -> Any:
    """A loss to which every element of every result contributes."""
    floating = [y for y in tf.nest.flatten(results) if y.dtype.is_floating]
    return tf.add_n([tf.reduce_mean(tf.square(tf.sin(y + 0.3))) for y in floating])


@pytest.mark.parametrize("name", HUB)
def test_backbones_of_keras_hub(name, keras, tmp_path):
    """Dropout is active where the backbone has it."""
    case = BACKBONES[name]
    model = case.make()
    optimizer = getattr(keras.optimizers, HUB[name])(RATES.get(name, 1e-3))
    # Unused labels come last.
    draws = [inputs_of(model, case, seed) for seed in range(STEPS)]
    batches = [(*tf.nest.flatten(x), np.float32(0)) for x in draws]
    pack = lambda inputs: tf.nest.pack_sequence_as(draws[0], inputs)  # noqa: E731
    step, variables = keras_step(model, optimizer, scalar, batches[0], pack)
    found = trained(step, variables, batches, folder=tmp_path)
    print(f"\n{name}, {HUB[name]}: {found}")
    found.check(last=1e-2)


KERAS_2: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda k: k.optimizers.Adam(0.01),
    "Adam, legacy": lambda k: k.optimizers.legacy.Adam(0.01),
    "RMSprop": lambda k: k.optimizers.RMSprop(0.01),
    "RMSprop, legacy": lambda k: k.optimizers.legacy.RMSprop(0.01),
    "SGD": lambda k: k.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("name", KERAS_2)
def test_train_step_of_keras_2(name, tmp_path):
    """`Model.train_step` of a model with an embedding, and its metrics."""
    keras = pytest.importorskip("tf_keras")
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Embedding(9, 4, input_length=5), keras.layers.LSTM(6),
        keras.layers.BatchNormalization(), keras.layers.Dense(3),
    ]  # fmt: skip
    model = keras.Sequential(layers)
    model.compile(KERAS_2[name](keras), "mse", metrics=["mae"])
    batches = [(RNG.integers(0, 9, (4, 5)).astype(np.int32), normal(4, 3)) for _ in range(STEPS)]
    model.train_step(tuple(map(tf.constant, batches[0])))  # makes slots and metrics
    step = tf.function(
        lambda *batch: model.train_step(batch),
        autograph=False,
        input_signature=specs_of(batches[0]),
    )
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    metrics = [v for m in model.metrics for v in m.variables]
    found = trained(step, [*model.variables, *variables, *metrics], batches, folder=tmp_path)
    print(f"\nKeras 2, {name}: {found}")
    found.check(last=1e-3)


@pytest.mark.parametrize("name", ["Adam", "Momentum", "RMSProp", "SGD"])
def test_optimizers_of_sonnet(name, tmp_path):
    snt = pytest.importorskip("sonnet")
    tf.random.set_seed(0)
    net = snt.Sequential([snt.Linear(16), tf.nn.relu, snt.Linear(3)])
    table = snt.Embed(9, 8)
    arguments = {"momentum": 0.9} if name == "Momentum" else {}
    optimizer = getattr(snt.optimizers, name)(0.01, **arguments)
    batches = [
        (normal(4, 8), RNG.integers(0, 9, 4).astype(np.int32), normal(4, 3)) for _ in range(STEPS)
    ]
    net(table(batches[0][1]))
    weights = [*net.trainable_variables, *table.trainable_variables]

    @tf.function(autograph=False, input_signature=specs_of(batches[0]))
    def step(x, which, y):
        with tf.GradientTape() as tape:
            loss = mse(y, net(x + table(which)))
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    step.get_concrete_function()  # makes the slots
    found = trained(step, weights, batches, folder=tmp_path)
    print(f"\nSonnet, {name}: {found}")
    found.check()
