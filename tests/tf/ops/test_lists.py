"""Lists, arrays and stacks: all their ops, and graphs of old releases with them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.primitives.tf import REGISTRY
from tests.tf.ops.driver import PLAIN, check
from tests.tf.ops.samples import normal

R, v1 = tf.raw_ops, tf.compat.v1
X = normal(4, 3)


def test_every_op_has_a_rule():
    kinds = ("TensorList", "TensorArray", "Stack")
    ops = [name for name in dir(R) if name.startswith(kinds)]
    assert len(ops) >= 60
    assert [op for op in ops if REGISTRY.get(op) is None] == []


def test_push_back_batch():
    def fn(x, y):
        empty = R.EmptyTensorList(element_shape=[3], max_num_elements=-1, element_dtype=tf.float32)
        longer = R.TensorListPushBack(input_handle=empty, tensor=y)
        pushed = R.TensorListPushBackBatch(input_handles=tf.stack([empty, longer]), tensor=x)
        return [
            R.TensorListStack(
                input_handle=handle, element_shape=[3], element_dtype=tf.float32, num_elements=-1
            )
            for handle in tf.unstack(pushed)
        ]

    check(fn, normal(2, 3), normal(3), tf_grad=False, grad=False)


# Each takes the numbers of `X` and the ops of one version.
def _written(x, ops):
    array, flow = ops.array(4)
    for i in range(4):
        flow = ops("Write", handle=array, index=3 - i, value=x[i], flow_in=flow)
    one = ops("Read", handle=array, index=1, flow_in=flow, dtype=tf.float32)
    size = ops("Size", handle=array, flow_in=flow)
    some = ops("Gather", handle=array, indices=[2, 0], flow_in=flow, dtype=tf.float32)
    return tf.concat([some, one[None]], 0) * tf.cast(size, tf.float32)


def _split(x, ops):
    array, flow = ops.array(2)
    flow = ops("Split", handle=array, value=x, lengths=tf.constant([1, 3], tf.int64), flow_in=flow)
    return ops("Concat", handle=array, flow_in=flow, dtype=tf.float32)[0]


def _scattered(x, ops):
    array, flow = ops.array(4)
    flow = ops("Scatter", handle=array, indices=[3, 1, 0, 2], value=x, flow_in=flow)
    return ops("Gather", handle=array, indices=[0, 1, 2, 3], flow_in=flow, dtype=tf.float32)


def _slope(x, ops):
    array, flow = ops.array(4)
    flow = ops("Scatter", handle=array, indices=[0, 1, 2, 3], value=x, flow_in=flow)
    slope = R.TensorArrayGradV3(handle=array, flow_in=flow, source="gradients")
    for i in (0, 1, 1):  # what is written twice is added up
        flow = ops("Write", handle=slope[0], index=i, value=x[i], flow_in=slope[1])
    return ops("Gather", handle=slope[0], indices=[0, 1], flow_in=flow, dtype=tf.float32)


class _Ops:
    def array(self, size):
        return R.TensorArrayV3(size=size, dtype=tf.float32, clear_after_read=False)

    def __call__(self, kind, **inputs):
        return getattr(R, f"TensorArray{kind}V3")(**inputs)


def _stacks(x, ops):
    stack = R.StackV2(max_size=4, elem_type=tf.float32)
    first = R.StackPushV2(handle=stack, elem=x[0])
    with tf.control_dependencies([first]):
        second = R.StackPushV2(handle=stack, elem=x[1])
    with tf.control_dependencies([second]):
        third = R.StackPopV2(handle=stack, elem_type=tf.float32)
    with tf.control_dependencies([third]):
        fourth = R.StackPopV2(handle=stack, elem_type=tf.float32)
    return tf.stack([third, fourth * 2])


def _frozen(program):
    graph = tf.Graph()
    with graph.as_default(), v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, [4, 3], name="x")
        tf.identity(program(x, _Ops()), name="out")
        return graph.as_graph_def(), session.run("out:0", {"x:0": X})


def _older(graph, version):
    """The graph as earlier releases wrote it: other names, and no flow from creating an array."""
    old = v1.GraphDef()
    old.CopyFrom(graph)
    start = old.node.add(name="start", op="Const")
    start.attr["dtype"].type = tf.float32.as_datatype_enum
    start.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.0))
    made = {n.name for n in old.node if n.op in ("TensorArrayV3", "TensorArrayGradV3")}
    for node in old.node:
        for i, name in enumerate(node.input):
            if name.removesuffix(":1") in made and name.endswith(":1"):
                node.input[i] = "start"
        if node.op.startswith("TensorArray"):
            node.op = node.op.replace("V3", version)
            node.attr.pop("identical_element_shapes", None)
        if node.op.startswith("Stack") and not version:
            node.op = node.op.removesuffix("V2")
            del node.input[(0 if node.op == "Stack" else len(node.input)) :]
    old.versions.producer = 15 if not version else 20
    return old


@pytest.mark.parametrize("version", ["", "V2", "V3"])
@pytest.mark.parametrize("program", [_written, _split, _scattered, _slope])
def test_arrays_of_all_versions(program, version):
    graph, want = _frozen(program)
    graph = graph if version == "V3" else _older(graph, version)
    module = invert.convert_graphdef(graph, ["x:0"], ["out:0"], config=PLAIN)
    np.testing.assert_array_equal(module(X), want)


@pytest.mark.parametrize("version", ["", "V2"])
def test_stacks_of_all_versions(version):
    graph, want = _frozen(_stacks)
    graph = graph if version else _older(graph, version)
    module = invert.convert_graphdef(graph, ["x:0"], ["out:0"], config=PLAIN)
    np.testing.assert_array_equal(module(X), want)


def test_arrays_that_are_packed():
    graph, want = _frozen(_scattered)
    old = _older(graph, "")
    for node in old.node:
        if node.op == "TensorArrayGather":
            node.op = "TensorArrayPack"
            del node.input[1]
        if node.op == "TensorArrayScatter":
            node.op = "TensorArrayUnpack"
            del node.input[1]
    module = invert.convert_graphdef(old, ["x:0"], ["out:0"], config=PLAIN)
    np.testing.assert_array_equal(module(X), X)
    assert not np.array_equal(want, X)


def test_gradients_of_a_function():
    from tensorflow.python.framework import function
    from tensorflow.python.ops import functional_ops

    @function.Defun(tf.float32, tf.float32)
    def body(a, b):
        return tf.sin(a) * b + tf.reduce_sum(b)

    def fn(a, b, g):
        inputs = [a, b, g]
        return functional_ops.symbolic_gradient(inputs, [tf.float32] * 2, body)

    # TensorFlow has no Python gradient of it; the derivative here is that of the gradient.
    check(fn, X, X[0], X + 1, grad=False)
    module = invert.convert(tf.function(fn, autograph=False), X, X[0], X + 1, config=PLAIN)
    slope = jax.grad(lambda a: module(a, X[0], X + 1)[0].sum())(X)
    np.testing.assert_allclose(slope, -np.sin(X) * X[0] * (X + 1), rtol=1e-5, atol=1e-6)
