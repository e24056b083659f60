"""Flax through jax2tf

A Flax model goes through `jax2tf.convert` with an open batch into a SavedModel, and comes back with
its own layers.
"""

import tempfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.experimental import jax2tf

import invert


class Mixer(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            y = nn.Dense(6)(nn.gelu(nn.Dense(12)(nn.LayerNorm()(x).swapaxes(1, 2))))
            x = x + y.swapaxes(1, 2)
        return nn.Dense(4, name="head")(jnp.mean(x, axis=1))


net = Mixer()
params = net.init(jax.random.key(0), jnp.zeros((1, 6, 8)))
apply = jax2tf.convert(net.apply, polymorphic_shapes=[None, "(batch, 6, 8)"])


class Served(tf.Module):
    def __init__(self):
        self.weights = tf.nest.map_structure(tf.Variable, params)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 6, 8])])
    def predict(self, x):
        return apply(self.weights, x)


with tempfile.TemporaryDirectory() as directory:
    tf.saved_model.save(Served(), f"{directory}/mixer")
    module = invert.load(f"{directory}/mixer")
