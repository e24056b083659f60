"""Results of ops are compared with the shapes that the graph declares."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.tf.ops.definition import shape_problem
from invert.tf.ops.node import Node

v1 = tf.compat.v1


def _transposed(shape, declared):
    """A graph of a transpose, with a declared result shape."""
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, shape, name="x")
        tf.transpose(x, name="out")
        definition = g.as_graph_def(add_shapes=True)
    (node,) = (n for n in definition.node if n.name == "out")
    proto = tf.TensorShape(declared).as_proto()
    node.attr["_output_shapes"].list.shape[0].CopyFrom(proto)
    return invert.convert_graphdef(definition, ["x:0"], ["out:0"])


@pytest.mark.parametrize("declared", [[3, 2], [None, 2], None])
def test_shapes_that_agree(declared):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(_transposed([2, 3], declared)(x), x.T)


@pytest.mark.parametrize("declared", [[2, 3], [3], [3, 2, 1], [None, 3]])
def test_shapes_that_contradict(declared):
    with pytest.raises(invert.UnsupportedOpError) as error:
        _transposed([2, 3], declared)
    told = str(tuple(declared))
    assert all(text in str(error.value) for text in ("tf.Transpose", "'out'", "(3, 2)", told))


def test_an_open_size_is_not_compared():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(_transposed([None, 3], [3, 7])(x), x.T)


def test_the_other_sizes_of_a_shape_with_an_open_one_are():
    with pytest.raises(invert.UnsupportedOpError, match="declares"):
        _transposed([None, 3], [4, None])(np.zeros((2, 3), np.float32))


def test_a_scalar_denotes_a_shape_of_unknown_rank():
    with tf.Graph().as_default() as g:
        x = v1.placeholder(tf.float32, [2], name="x")
        tf.shape(x, name="out")
        definition = g.as_graph_def(add_shapes=True)
    (node,) = (n for n in definition.node if n.name == "out")
    shape = Node("Shape", "out", node.attr)
    assert shape_problem(shape, [np.asarray(-1, np.int32)]) is None
    assert shape_problem(shape, [np.asarray([2, 3], np.int32)]) is not None
