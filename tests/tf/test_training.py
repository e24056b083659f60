"""Exported training steps, compared with TensorFlow's: ten steps, fresh data, all changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config
from tests.tf.training import STEPS, keras_step, specs_of, trained

keras: Any = pytest.importorskip("keras")
L, O = keras.layers, keras.optimizers  # noqa: E741

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras warns about its own code.
RNG = np.random.default_rng(0)
Made = tuple[Any, list[Any], list[tuple[Any, ...]]]  # a step, its variables, its batches


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def ids(*shape: int) -> Any:
    return RNG.integers(0, 9, shape).astype(np.int32)


def batches(*makers: Callable[[], Any]) -> list[tuple[Any, ...]]:
    return [tuple(make() for make in makers) for _ in range(STEPS)]


PAIRS = (lambda: normal(4, 8), lambda: normal(4, 3))


def slow_but(names: Iterable[str], quick: str) -> list[Any]:
    return [n if n == quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def mse(labels: Any, results: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.cast(results, tf.float32) - labels))


def mlp() -> Any:
    """A network with statistics updated in each step, and random numbers."""
    return keras.Sequential(
        [
            L.Input((8,)),
            L.Dense(16, activation="relu"),
            L.BatchNormalization(),
            L.Dropout(0.3),
            L.Dense(3),
        ]
    )


def embedding() -> Any:
    """A table whose gradient consists of rows, some of them repeated."""
    rows = [L.Input((5,), dtype="int32"), L.Embedding(9, 4), L.Flatten(), L.Dropout(0.3)]
    return keras.Sequential([*rows, L.Dense(3)])


def with_optimizer(make: Callable[[], Any], **options: Any) -> Callable[[], Made]:
    def made() -> Made:
        data = batches(*PAIRS)
        return (*keras_step(mlp(), make(), mse, data[0], **options), data)

    return made


# -- embeddings: Keras divides the rows of a gradient by those of a slot, and makes a union of both
# where it divides by zero

EMBEDDING_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "RMSprop": lambda: O.RMSprop(0.01, momentum=0.9, centered=True),
    "Adagrad": lambda: O.Adagrad(0.1),
    "Adadelta": lambda: O.Adadelta(1.0),
    "Adafactor": lambda: O.Adafactor(0.01),
    "ScheduleFreeAdamW": lambda: O.ScheduleFreeAdamW(0.01),
    "SGD": lambda: O.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": lambda: O.Adam(0.01, amsgrad=True),
    "AdamW": lambda: O.AdamW(0.01, clipnorm=0.5),
    "Adamax": lambda: O.Adamax(0.01),
    "Ftrl": lambda: O.Ftrl(0.05),
    "Lamb": lambda: O.Lamb(0.01),
    "Lion": lambda: O.Lion(0.01),
    "Muon": lambda: O.Muon(0.01),
    "Nadam": lambda: O.Nadam(0.01),
}


@pytest.mark.parametrize(
    "name",
    [
        n if n == "RMSprop" else pytest.param(n, marks=pytest.mark.slow)
        for n in EMBEDDING_OPTIMIZERS
    ],
)
def test_embeddings(name, tmp_path):
    data = batches(lambda: ids(6, 5), lambda: normal(6, 3))
    step, variables = keras_step(embedding(), EMBEDDING_OPTIMIZERS[name](), mse, data[0])
    # The newest gradients count most where a slot divides by their squares.
    trained(step, variables, data, folder=tmp_path).check(last=1e-3)


# -- kinds of steps


def recurrent(layer: Callable[[], Any]) -> Callable[[], Made]:
    def made() -> Made:
        model = keras.Sequential([L.Input((6, 4)), layer(), L.Dense(3)])
        data = batches(lambda: normal(4, 6, 4), lambda: normal(4, 3))
        return (*keras_step(model, O.Adam(0.01), mse, data[0]), data)

    return made


def mapped() -> Made:
    w, m = tf.Variable(normal(4, 3), name="w"), tf.Variable(tf.zeros((4, 3)), name="m")
    data = batches(lambda: normal(5, 6, 4), lambda: normal(5, 6, 3))

    @tf.function(input_signature=specs_of(data[0]))
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mse(y, tf.map_fn(lambda row: tf.tanh(row @ w), x))
        slope: Any = tape.gradient(loss, w)
        m.assign(0.9 * m + slope)
        w.assign_sub(0.1 * m)
        return loss

    return step, [w, m], data


def steps_in_a_loop(counted: bool) -> Callable[[], Made]:
    """Several steps per call, with their state carried by a loop."""

    def made() -> Made:
        model, optimizer = mlp(), O.Adam(0.01)
        optimizer.build(model.trainable_variables)
        how_often = iter(range(STEPS))
        counts = (lambda: np.int32(next(how_often) % 4),) if counted else ()
        data = batches(*counts, lambda: normal(4, 4, 8), lambda: normal(4, 4, 3))

        @tf.function(input_signature=specs_of(data[0]))
        def step(*batch):
            x, y = batch[-2:]
            loss = 0.0
            for i in tf.range(batch[0] if counted else 4):
                with tf.GradientTape() as tape:
                    loss = mse(y[i], model(x[i], training=True))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply(gradients, model.trainable_variables)
            return loss

        return step, [*model.variables, *optimizer.variables], data

    return made


def augmented() -> Made:
    layers = [
        L.RandomFlip(), L.RandomRotation(0.1), L.RandomZoom(0.1), L.RandomTranslation(0.1, 0.1),
        L.RandomContrast(0.1), L.RandomBrightness(0.1, value_range=(0, 1)), L.GaussianNoise(0.1),
        L.Conv2D(4, 3), L.SpatialDropout2D(0.3), L.GaussianDropout(0.2), L.AlphaDropout(0.2),
        L.GlobalAveragePooling2D(), L.Dense(3),
    ]  # fmt: skip
    model = keras.Sequential([L.Input((12, 12, 3)), *layers])
    data = batches(lambda: np.abs(normal(4, 12, 12, 3)) % 1, lambda: normal(4, 3))
    return (*keras_step(model, O.SGD(0.1, momentum=0.9), mse, data[0]), data)


def masked() -> Made:
    """A loss over the valid labels, whose number differs between batches."""
    model, optimizer = mlp(), O.Adam(0.01)
    optimizer.build(model.trainable_variables)
    data = batches(lambda: normal(6, 8), lambda: RNG.integers(-2, 3, 6).astype(np.int32))

    @tf.function(autograph=False, input_signature=specs_of(data[0]))
    def step(x, labels):
        with tf.GradientTape() as tape:
            there = labels >= 0
            logits = tf.boolean_mask(model(x, training=True), there)
            known = tf.boolean_mask(labels, there)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=known, logits=logits)
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, [*model.variables, *optimizer.variables], data


SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: O.schedules.ExponentialDecay(0.1, 4, 0.7, staircase=True),
    "cosine": lambda: O.schedules.CosineDecay(0.1, 8, warmup_steps=2, warmup_target=0.2),
    "restarts": lambda: O.schedules.CosineDecayRestarts(0.1, 3),
    "pieces": lambda: O.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01]),
    "polynomial": lambda: O.schedules.PolynomialDecay(0.1, 6, cycle=True),
    "inverse": lambda: O.schedules.InverseTimeDecay(0.1, 3, 0.5),
}
KINDS: dict[str, Callable[[], Made]] = {
    "plain": with_optimizer(lambda: O.Adam(0.01)),
    "LSTM": recurrent(lambda: L.LSTM(5, dropout=0.2, recurrent_dropout=0.2)),
    "GRU": recurrent(lambda: L.GRU(5, dropout=0.2)),
    "Bidirectional": recurrent(lambda: L.Bidirectional(L.LSTM(5))),
    "map_fn": mapped,
    "loop": steps_in_a_loop(False),
    "counted loop": steps_in_a_loop(True),
    "augmented": augmented,
    "masked": masked,
    "accumulated": with_optimizer(lambda: O.Adam(0.01, gradient_accumulation_steps=3)),
    "clipnorm": with_optimizer(lambda: O.SGD(0.1, clipnorm=0.3)),
    "global_clipnorm": with_optimizer(lambda: O.AdamW(0.01, global_clipnorm=0.3)),
    "clipvalue": with_optimizer(lambda: O.Adam(0.01, clipvalue=0.1)),
    "ema": with_optimizer(
        lambda: O.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
    ),
    "scaled": with_optimizer(lambda: O.Adam(0.01, loss_scale_factor=128.0)),
    **{
        f"schedule {name}": with_optimizer(lambda rate=rate: O.SGD(rate()))
        for name, rate in SCHEDULES.items()
    },
}


@pytest.mark.parametrize("name", slow_but(KINDS, "plain"))
def test_ten_steps(name, tmp_path):
    step, variables, data = KINDS[name]()
    trained(step, variables, data, folder=tmp_path).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "counted loop"])
def test_ten_steps_of_a_live_function(name):
    step, variables, data = KINDS[name]()
    trained(step, variables, data).check()


# -- halves: Keras keeps the variables in single precision and computes in half


HALVES: dict[str, tuple[str, Callable[[], Any], float]] = {
    "bfloat16": ("mixed_bfloat16", lambda: O.Adam(0.01), 2.0**-7),
    "float16": (
        "mixed_float16",
        lambda: O.LossScaleOptimizer(O.Adam(0.01), initial_scale=64.0, dynamic_growth_steps=3),
        2.0**-10,
    ),
    "float16 that overflows": (
        "mixed_float16",
        lambda: O.LossScaleOptimizer(O.Adam(0.01), initial_scale=2.0**26, dynamic_growth_steps=3),
        2.0**-10,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HALVES)
def test_mixed_precision(name, tmp_path):
    policy, make, epsilon = HALVES[name]
    data = batches(*PAIRS)
    keras.config.set_dtype_policy(policy)
    try:
        step, variables = keras_step(mlp(), make(), mse, data[0])
    finally:
        keras.config.set_dtype_policy("float32")
    # Some roundings of what goes through two layers and back, relative to the largest numbers.
    trained(step, variables, data, folder=tmp_path).check(first=8 * epsilon, last=16 * epsilon)


# -- what Keras writes itself


def compiled_model(model: Any, loss: str, metrics: list[Any], **options: Any) -> Any:
    model.compile(optimizer=O.Adam(0.01), loss=loss, metrics=metrics, **options)
    model.optimizer.build(model.trainable_variables)
    return model


def everything(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables, *model.metrics_variables]


def regression() -> tuple[Any, list[tuple[Any, ...]]]:
    model = compiled_model(mlp(), "mse", ["mae", keras.metrics.RootMeanSquaredError()])
    return model, batches(*PAIRS)


def classification() -> tuple[Any, list[tuple[Any, ...]]]:
    model = keras.Sequential([L.Input((8,)), L.Dense(5, activation="softmax")])
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    compiled_model(model, "sparse_categorical_crossentropy", metrics)
    labels = lambda: RNG.integers(0, 5, 4).astype(np.int32)  # noqa: E731
    weights = lambda: np.abs(normal(4))  # noqa: E731
    return model, batches(lambda: normal(4, 8), labels, weights)


def detection() -> tuple[Any, list[tuple[Any, ...]]]:
    model = keras.Sequential([L.Input((8,)), L.Dense(1, activation="sigmoid")])
    M = keras.metrics
    metrics = [
        M.AUC(), M.Precision(), M.Recall(), M.BinaryAccuracy(), M.F1Score(), M.MeanIoU(2),
        M.TruePositives(), M.CosineSimilarity(), M.R2Score(),
    ]  # fmt: skip
    compiled_model(model, "binary_crossentropy", metrics)
    labels = lambda: RNG.integers(0, 2, (6, 1)).astype(np.float32)  # noqa: E731
    return model, batches(lambda: normal(6, 8), labels)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "SimpleRNN"])
def test_the_gradient_of_a_recurrent_layer_is_proved(cell):
    """Unlike JAX's `scan`, TensorFlow's loop collects what it reads."""
    model = keras.Sequential(
        [keras.Input((5, 3)), getattr(keras.layers, cell)(4), keras.layers.Dense(1)]
    )

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return loss, *tape.gradient(loss, model.trainable_variables)

    x = normal(2, 5, 3)
    module = invert.convert(tf.function(step, autograph=False), x)
    assert str(module.report.certificate) == "exact"
    for found, want in zip(module(x), step(tf.constant(x)), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [regression, classification, detection], ids=lambda f: f.__name__)
def test_train_step_of_a_model(make, tmp_path):
    """`Model.train_step` with the metrics it was compiled with."""
    model, data = make()
    model._symbolic_build(data_batch=data[0])
    step = tf.function(
        lambda *batch: model.train_step(batch), autograph=False, input_signature=specs_of(data[0])
    )
    trained(step, everything(model), data, folder=tmp_path).check(last=1e-3)


@pytest.mark.slow
def test_function_of_a_model_that_trains():
    """`Model.train_function`: several steps per call, which TensorFlow cannot save."""
    model = compiled_model(mlp(), "mse", ["mae"], steps_per_execution=3, jit_compile=False)
    data = batches(lambda: normal(3, 4, 8), lambda: normal(3, 4, 3))
    model._symbolic_build(data_batch=tuple(x[0] for x in data[0]))
    model.make_train_function()

    @tf.function(autograph=False, input_signature=specs_of(data[0]))
    def step(x, y):
        return model.train_function(iter([(x[i], y[i]) for i in range(3)]))

    trained(step, everything(model), data).check(last=1e-3)


# -- optimizers of TensorFlow 1

V1 = tf.compat.v1.train
V1_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adadelta": lambda: V1.AdadeltaOptimizer(0.1),
    "Adagrad": lambda: V1.AdagradOptimizer(0.1),
    "Adam": lambda: V1.AdamOptimizer(0.1),
    "Ftrl": lambda: V1.FtrlOptimizer(0.1),
    "GradientDescent": lambda: V1.GradientDescentOptimizer(0.1),
    "Momentum": lambda: V1.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "ProximalAdagrad": lambda: V1.ProximalAdagradOptimizer(0.1, l1_regularization_strength=0.01),
    "ProximalGradientDescent": lambda: V1.ProximalGradientDescentOptimizer(0.1),
    "RMSProp": lambda: V1.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", V1_OPTIMIZERS)
def test_optimizers_of_version_1(name, tmp_path):
    w, table = tf.Variable(normal(8, 3), name="w"), tf.Variable(normal(9, 8), name="table")
    count = tf.Variable(tf.constant(0, tf.int64), name="count")
    optimizer = V1_OPTIMIZERS[name]()
    data = batches(lambda: normal(4, 8), lambda: ids(4), lambda: normal(4, 3))

    @tf.function(autograph=False, input_signature=specs_of(data[0]))
    def step(x, which, y):
        with tf.GradientTape() as tape:
            loss = mse(y, (x + tf.gather(table, which)) @ w)
        pairs = zip(tape.gradient(loss, [w, table]), [w, table], strict=True)
        with tf.control_dependencies([optimizer.apply_gradients(pairs, global_step=count)]):
            return tf.identity(loss)

    step(*map(tf.constant, data[0]))  # makes the slots
    # They sum the gradients of equal rows by `tf.unique`.
    config = Config(verify=False, dynamic_sizes="pad")
    variables = [w, table, count, *optimizer.variables()]
    trained(step, variables, data, folder=tmp_path, config=config).check()
