"""Ops on an open batch: one program, exported at a symbolic size and run at several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from invert import Config
from invert.frontends.tf_function import entry_point

CASES = {
    "tile": lambda x: tf.tile(x, [tf.shape(x)[0], 1]),
    "range": lambda x: tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None] * x,
    "onehot": lambda x: tf.one_hot(tf.argmax(x, 1), 6),
    "pad": lambda x: tf.pad(x, [[1, 2], [0, 1]]),
    "split": lambda x: tf.split(x, 2, axis=1)[0],
    "gather": lambda x: tf.gather(x, [0, 2], axis=1),
    "gather_b": lambda x: tf.gather(x, tf.argsort(x, 1), axis=1, batch_dims=1),
    "topk": lambda x: tf.math.top_k(x, 2)[0],
    "cumsum": lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True),
    "mean": lambda x: tf.reduce_mean(x, [0], keepdims=True),
    "einsum": lambda x: tf.einsum("bi,bj->bij", x, x),
    "diag": lambda x: tf.linalg.diag(x),
    "band": lambda x: tf.linalg.band_part(tf.matmul(x, x, transpose_b=True), 0, -1),
    "seg": lambda x: tf.math.unsorted_segment_sum(x, tf.zeros([tf.shape(x)[0]], tf.int32), 3),
    "slice": lambda x: x[1:, ::2],
    "rev": lambda x: x[::-1],
    "scatter": lambda x: tf.tensor_scatter_nd_update(x, [[0]], tf.ones([1, 6])),
    "stack": lambda x: tf.stack([x, x], 1),
    "roll": lambda x: tf.roll(x, 1, 0),
    "maxdim": lambda x: tf.zeros([tf.maximum(tf.shape(x)[0], 2)]),
    "broadcast": lambda x: x + tf.broadcast_to(x[:1], tf.shape(x)),
    "s2d": lambda x: tf.nn.space_to_depth(tf.reshape(x, [-1, 2, 3, 1])[:, :, :2], 2),
    "grad": lambda x: tf.gradients(tf.reduce_mean(x * x), [x])[0],
    "fft": lambda x: tf.signal.rfft(x),
    "linspace": lambda x: tf.linspace(0.0, 1.0, tf.shape(x)[0]),
    "eq": lambda x: tf.cast(tf.equal(tf.shape(x)[0], 3), tf.float32),
}


@pytest.fixture(scope="module")
def exported():
    def program(x):
        return {name: fn(x) for name, fn in CASES.items()}

    spec = tf.TensorSpec((None, 6), tf.float32)
    concrete = tf.function(program, autograph=False).get_concrete_function(spec)
    (b,) = jax.export.symbolic_shape("b", constraints=["b >= 3"])
    with jax.enable_x64(True):
        entry = entry_point(concrete, config=Config())

        def call(x):
            return jax.tree_util.tree_unflatten(entry.out_tree, entry.fn([], x))

        aval = jax.ShapeDtypeStruct((b, 6), jnp.float32)
        return jax.export.export(jax.jit(call))(aval), concrete


@pytest.mark.parametrize("size", [3, 5])
def test_open_batch(exported, size):
    module, concrete = exported
    x = np.random.default_rng(size).normal(size=(size, 6)).astype(np.float32)
    with jax.enable_x64(True):
        got = module.call(x)
    want = concrete(tf.constant(x))
    assert set(got) == set(CASES)
    for name, value in got.items():
        # Sums and transforms are ordered differently.
        np.testing.assert_allclose(value, want[name].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
