"""Orbax

A JAX function with its parameters, exported by `orbax.export` to a SavedModel and loaded from the
disk. Reading it needs no TensorFlow.
"""

import tempfile

import jax
import jax.numpy as jnp
import tensorflow as tf
from orbax.export import ExportManager, JaxModule, ServingConfig

import invert


def classify(params, features):
    hidden = jax.nn.silu(features @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return jax.nn.softmax(hidden @ params["head"]["kernel"] + params["head"]["bias"])


params = {
    "hidden": {"kernel": jnp.full((5, 8), 0.1), "bias": jnp.zeros(8)},
    "head": {"kernel": jnp.full((8, 3), 0.2), "bias": jnp.zeros(3)},
}
served = JaxModule(params, classify, trainable=True, input_polymorphic_shape="b, ...")
spec = tf.TensorSpec([None, 5], tf.float32, name="features")
config = ServingConfig("serving_default", input_signature=[spec])
with tempfile.TemporaryDirectory() as directory:
    ExportManager(served, [config]).save(f"{directory}/classifier")
    module = invert.load(f"{directory}/classifier", signature="serving_default")
