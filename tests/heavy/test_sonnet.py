"""Sonnet networks: values, gradients, state in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert

pytestmark = [
    pytest.mark.slow,
    # Sonnet warns about its own code.
    pytest.mark.filterwarnings("ignore"),
]
RNG = np.random.default_rng(0)
# Sums of some hundreds of products, in single precision.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def snt() -> Any:
    snt = pytest.importorskip("sonnet")
    tf.random.set_seed(0)
    return snt


def convolutional(snt: Any) -> Any:
    return snt.Sequential(
        [
            snt.Conv2D(4, 3, stride=2),
            tf.nn.relu,
            snt.DepthwiseConv2D(3),
            snt.Conv2DTranspose(3, 3, stride=2),
            snt.GroupNorm(1),
            snt.Flatten(),
            snt.Linear(2),
        ]
    )


def normalized(snt: Any) -> Any:
    return snt.Sequential([snt.Linear(5), snt.LayerNorm(-1, True, True), snt.nets.MLP([4, 3])])


def unrolled(core: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def make(snt: Any) -> Any:
        cell = core(snt)
        run = tf.function(lambda x: snt.dynamic_unroll(cell, x, cell.initial_state(2))[0])
        run.module = cell
        return run

    return make


NETS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "MLP": (lambda snt: snt.nets.MLP([6, 4, 2]), normal(3, 5)),
    "normalized": (normalized, normal(3, 5)),
    "convolutional": (convolutional, normal(2, 8, 8, 3)),
    "Conv1D": (lambda snt: snt.Conv1D(3, 3, rate=2, padding=snt.pad.causal), normal(2, 9, 2)),
    "LSTM": (unrolled(lambda snt: snt.LSTM(3)), normal(4, 2, 3)),
    "GRU": (unrolled(lambda snt: snt.GRU(3)), normal(4, 2, 3)),
    "VanillaRNN": (unrolled(lambda snt: snt.VanillaRNN(3)), normal(4, 2, 3)),
}


@pytest.mark.parametrize("name", NETS)
def test_values_and_gradients_through_all_variables(name: str, snt: Any) -> None:
    make, x = NETS[name]
    net = make(snt)
    net(tf.constant(x))  # makes the variables
    fn = tf.function(lambda x: net(x), autograph=False)
    module = invert.convert(fn, x, config=invert.Config(verify=False))
    np.testing.assert_allclose(module(x), fn(tf.constant(x)).numpy(), **CLOSE)
    variables = getattr(net, "module", net).trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(fn(tf.constant(x))))
    wanted = tape.gradient(loss, variables)

    def total(weights: Any, rest: Any) -> Any:
        return jnp.sum(jnp.sin(eqx.combine(weights, rest)(x)))

    split = eqx.partition(module, invert.trainable(module))
    ours = jax.tree_util.tree_leaves(eqx.filter_grad(total)(*split))
    assert len(ours) == len(wanted) > 0
    # Variables of the same shape have different gradients, so each is found once.
    left = [np.asarray(g) for g in ours]
    for gradient in wanted:
        gradient = tf.convert_to_tensor(gradient).numpy()
        close = [
            i
            for i, g in enumerate(left)
            if g.shape == gradient.shape and np.allclose(g, gradient, **CLOSE)
        ]
        assert close, gradient.shape
        del left[close[0]]


def assert_same_steps(net: Any, x: np.ndarray, *, train: str) -> None:
    """Two training steps, then inference, each on the state of the previous one."""
    step = tf.function(lambda x: net(x, is_training=True), autograph=False)
    module = invert.convert(step, x, config=invert.Config(verify=False))
    state = eqx.nn.State(module)
    for factor in (1, 2):
        y, state = module(x * np.float32(factor), state)
        theirs = step(tf.constant(x * np.float32(factor)))
        theirs = theirs[train] if isinstance(theirs, dict) else theirs
        ours = y[train] if isinstance(y, dict) else y
        np.testing.assert_allclose(ours, theirs.numpy(), **CLOSE)


def test_batch_normalization_and_its_averages(snt: Any) -> None:
    class Net(snt.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = snt.Linear(4)
            self.norm = snt.BatchNorm(create_scale=True, create_offset=True)

        def __call__(self, x: Any, is_training: bool) -> Any:
            return self.norm(self.linear(x), is_training)

    net, x = Net(), normal(6, 3)
    net(tf.constant(x), is_training=True)
    assert_same_steps(net, x, train="")
    test = tf.function(lambda x: net(x, is_training=False), autograph=False)
    module = invert.convert(test, x)
    np.testing.assert_allclose(module(x), test(tf.constant(x)).numpy(), **CLOSE)


def test_vector_quantizer_with_moving_averages(snt: Any) -> None:
    net, x = snt.nets.VectorQuantizerEMA(3, 4, 0.25, 0.9), normal(8, 3)
    net(tf.constant(x), is_training=True)
    assert_same_steps(net, x, train="loss")


def test_vector_quantizer(snt: Any) -> None:
    net, x = snt.nets.VectorQuantizer(3, 4, 0.25), normal(8, 3)
    fn = tf.function(lambda x: net(x, is_training=False), autograph=False)
    fn(tf.constant(x))
    module = invert.convert(fn, x)
    for key, value in fn(tf.constant(x)).items():
        np.testing.assert_allclose(module(x)[key], value.numpy(), **CLOSE)


def test_a_residual_network(snt: Any) -> None:
    net = snt.nets.ResNet([1, 1, 1, 1], 3, channels_per_group_list=(4, 8, 8, 16))
    x = normal(1, 32, 32, 3)
    net(tf.constant(x), is_training=True)
    fn = tf.function(lambda x: net(x, is_training=False), autograph=False)
    module = invert.convert(fn, x, config=invert.Config(verify=False))
    np.testing.assert_allclose(module(x), fn(tf.constant(x)).numpy(), **CLOSE)
