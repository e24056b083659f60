"""A graph of TensorFlow 1

A frozen graph with `Switch`, `Merge` and `NextIteration`, as sessions ran it. The loop comes back.
"""

import tensorflow as tf

import invert

v1 = tf.compat.v1
v1.disable_control_flow_v2()
with tf.Graph().as_default() as graph:
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    kernel = tf.constant([[0.2 * (i - j) for j in range(4)] for i in range(4)], name="kernel")

    def step(i, x):
        return i + 1, tf.tanh(tf.matmul(x, kernel))

    _, y = v1.while_loop(lambda i, x: i < 5, step, [0, x], name="steps")
    tf.identity(tf.reduce_sum(y, axis=1), name="y")
v1.enable_control_flow_v2()

module = invert.convert_graphdef(graph.as_graph_def(), ["x:0"], ["y:0"])
