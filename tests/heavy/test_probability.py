"""TensorFlow Probability besides its distributions: bijectors, models, functions, Markov chains.

Values and gradients of the table in `probability`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.heavy.probability import ROWS
from tests.tf.ops.driver import QUICK, compare, inexact
from tests.tf.ops.samples import weigh

pytestmark = [
    pytest.mark.slow,
    # TensorFlow Probability warns about its own code.
    pytest.mark.filterwarnings("ignore"),
]
CONFIG = invert.Config(verify=False)


@pytest.fixture(autouse=True)
def _reshape_of_older_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow Probability 0.25 passes `newshape`, which NumPy 2.4 no longer accepts."""
    reshape = np.reshape

    def either(a: Any, *args: Any, **kwargs: Any) -> Any:
        args += tuple(kwargs.pop(name) for name in ("newshape",) if name in kwargs)
        return reshape(a, *args, **kwargs)

    monkeypatch.setattr(np, "reshape", either)


@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients_equal_tensorflows(name: str) -> None:
    tfp = pytest.importorskip("tensorflow_probability")
    row = ROWS[name]
    arrays = row.arrays()
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]

    def results_of(*xs: Any) -> Any:
        return [tf.convert_to_tensor(y) for y in tf.nest.flatten(row.fn(tfp, *xs))]

    fn = tf.function(results_of, autograph=False)

    @tf.function(autograph=False)
    def gradients(*xs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([xs[i] for i in floats])
            # A call of `fn` here fails in TensorFlow where it draws random numbers by branches.
            total = weigh([y for y in results_of(*xs) if y.dtype.is_floating], tf.cast)
        return tape.gradient(total, [xs[i] for i in floats], unconnected_gradients="zero")

    tensors = [tf.constant(a) for a in arrays]
    module = invert.convert(fn, *arrays, config=CONFIG)
    # Elementary functions of another library, and sums in another order.
    compare(module(*arrays), [y.numpy() for y in fn(*tensors)], rtol=1e-4, atol=2e-5)
    if not row.grad:
        return

    def loss(given: list[Any]) -> Any:
        full: list[Any] = list(arrays)
        for i, x in zip(floats, given, strict=True):
            full[i] = x
        results = [y for y in module(*full) if inexact(y)]
        return weigh(results, jax.lax.convert_element_type)

    slopes = jax.jit(jax.grad(loss), compiler_options=QUICK)([arrays[i] for i in floats])
    wanted = [np.asarray(w) for w in gradients(*tensors)]
    compare(slopes, wanted, rtol=1e-3, atol=1e-4, what="gradient")
