"""An LSTM

Keras runs it with `tf.while_loop` over tensor arrays. It comes back as a `lax.scan`.
"""

import keras

import invert

layers = keras.layers
tokens = keras.Input((None,), dtype="int32", name="tokens")
x = layers.Embedding(30, 8, name="embedding")(tokens)
x = layers.LSTM(6, name="lstm")(x)
model = keras.Model(tokens, layers.Dense(2, "softmax", name="head")(x), name="classifier")

module = invert.convert(model)
