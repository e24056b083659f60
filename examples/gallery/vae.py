"""A variational autoencoder

The seed generator of Keras becomes the key of the call, and its numbers those of `jax.random`.
"""

import keras

import invert

layers = keras.layers


class Sample(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed = keras.random.SeedGenerator(0, name="seed")

    def call(self, mean, log_var):
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed)
        return mean + keras.ops.exp(0.5 * log_var) * noise


image = keras.Input((12,), name="image")
hidden = layers.Dense(8, "relu", name="encoder")(image)
mean = layers.Dense(2, name="mean")(hidden)
log_var = layers.Dense(2, name="log_var")(hidden)
code = Sample(name="sample")(mean, log_var)
hidden = layers.Dense(8, "relu", name="decoder")(code)
model = keras.Model(image, layers.Dense(12, "sigmoid", name="pixels")(hidden), name="vae")

module = invert.convert(model, config=invert.Config(random="jax"))
