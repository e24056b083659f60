"""A Keras transformer

A subclassed block of Keras layers, with open batch and length. The layers come back as classes;
both blocks share one.
"""

import keras

import invert

layers = keras.layers


class Block(layers.Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.norm_1 = layers.LayerNormalization(name="norm_1")
        self.attention = layers.MultiHeadAttention(heads, width // heads, name="attention")
        self.norm_2 = layers.LayerNormalization(name="norm_2")
        self.up = layers.Dense(4 * width, "gelu", name="up")
        self.down = layers.Dense(width, name="down")

    def call(self, x):
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed)
        return x + self.down(self.up(self.norm_2(x)))


tokens = keras.Input((None,), dtype="int32", name="tokens")
x = layers.Embedding(50, 16, name="embedding")(tokens)
for i in range(2):
    x = Block(16, heads=2, name=f"block_{i}")(x)
x = layers.GlobalAveragePooling1D(name="pool")(x)
model = keras.Model(tokens, layers.Dense(3, name="head")(x), name="transformer")

module = invert.convert(model)
