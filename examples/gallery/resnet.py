"""A ResNet

A functional Keras model in inference mode. Convolutions that compute the same share a class.
"""

import keras

import invert

layers = keras.layers


def block(x, name):
    y = layers.Conv2D(8, 3, padding="same", use_bias=False, name=f"{name}_conv_1")(x)
    y = layers.ReLU(name=f"{name}_relu_1")(layers.BatchNormalization(name=f"{name}_norm_1")(y))
    y = layers.Conv2D(8, 3, padding="same", use_bias=False, name=f"{name}_conv_2")(y)
    y = layers.BatchNormalization(name=f"{name}_norm_2")(y)
    return layers.ReLU(name=f"{name}_relu_2")(layers.Add(name=f"{name}_add")([x, y]))


image = keras.Input((16, 16, 3), name="image")
x = layers.Conv2D(8, 3, strides=2, padding="same", name="stem")(image)
for i in range(2):
    x = block(x, f"block_{i}")
x = layers.GlobalAveragePooling2D(name="pool")(x)
model = keras.Model(image, layers.Dense(10, name="head")(x), name="resnet")

module = invert.convert(model)
