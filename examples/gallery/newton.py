"""A function with loops

AutoGraph turned Python control flow into graph ops; they come back as loops and branches of JAX.
"""

import tensorflow as tf

import invert


@tf.function
def square_root(x):
    guess = tf.maximum(x, 1.0)
    steps = 0
    while tf.abs(guess * guess - x) > 1e-4:
        guess = 0.5 * (guess + x / guess)
        steps += 1
    return guess, steps


module = invert.convert(square_root, tf.TensorSpec([]))
