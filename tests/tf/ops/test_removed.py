"""Ops that TensorFlow keeps for old graphs, and runs only in graphs of old versions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import invert
from tests.tf.ops.samples import normal

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1
PLAIN = invert.Config(patterns=False, verify=False)


def old_graph(op: str, version: int, inputs: list[np.ndarray], results: int, **attrs: Any) -> Any:
    """A graph of one op, as written by the release with graphs of `version`."""
    graph = v1.GraphDef()
    graph.versions.producer = version
    node = v1.NodeDef(name="op", op=op)
    for i, x in enumerate(inputs):
        feed = graph.node.add(name=f"x{i}", op="Placeholder")
        feed.attr["dtype"].type = tf.as_dtype(x.dtype).as_datatype_enum
        for size in x.shape:
            feed.attr["shape"].shape.dim.add(size=size)
        node.input.append(f"x{i}")
    node.attr["T"].type = tf.as_dtype(inputs[0].dtype).as_datatype_enum
    for name, value in attrs.items():
        kind = {bool: "b", int: "i", float: "f", bytes: "s"}.get(type(value))
        if kind is None:
            node.attr[name].list.i.extend(value)
        else:
            setattr(node.attr[name], kind, value)
    graph.node.append(node)
    for k in range(results):
        out = graph.node.add(name=f"out{k}", op="Identity", input=[f"op:{k}"])
        out.attr["T"].type = node.attr["T"].type
    return graph


def run(graph: Any, inputs: list[np.ndarray], results: int) -> list[np.ndarray]:
    with v1.Graph().as_default() as fresh, v1.Session(graph=fresh) as session:
        v1.import_graph_def(graph, name="")
        feeds = {f"x{i}:0": x for i, x in enumerate(inputs)}
        return session.run([f"out{k}:0" for k in range(results)], feeds)


_CONV = {"strides": [1, 1, 2, 1, 1], "padding": b"SAME"}
_VOLUMES = [(2, 4, 5, 3, 2), (2, 3, 2, 2, 4), (2, 4, 3, 3, 4)]
_NORM = [(2, 3, 4, 5), (5,), (5,), (5,), (2, 3, 4, 5)]

# Op, version of the graph, shapes of the inputs, number of results, attributes.
CASES: dict[str, tuple[str, int, list[tuple[int, ...]], int, dict[str, Any]]] = {
    "conv input": ("Conv3DBackpropInput", 9, _VOLUMES, 1, _CONV),
    "conv filter": ("Conv3DBackpropFilter", 9, _VOLUMES, 1, _CONV),
    "quantize": ("QuantizeAndDequantize", 21, [(3, 5)], 1, {}),
    "quantize unsigned": (
        "QuantizeAndDequantize", 21, [(3, 5)], 1, {"signed_input": False, "num_bits": 4},
    ),
    "quantize in a range": (
        "QuantizeAndDequantize", 21, [(3, 5)], 1,
        {"range_given": True, "input_min": -1.0, "input_max": 1.5},
    ),
    **{
        f"normalization {after}": (
            "BatchNormWithGlobalNormalizationGrad", 8, _NORM, 5,
            {"variance_epsilon": 2.0, "scale_after_normalization": after},
        )
        for after in (True, False)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_removed_op(name: str) -> None:
    op, version, shapes, count, attrs = CASES[name]
    inputs = [normal(*shape, seed=name + str(i)) for i, shape in enumerate(shapes)]
    if op.startswith("BatchNorm"):
        inputs[2] = np.abs(inputs[2])
    graph = old_graph(op, version, inputs, count, **attrs)
    names = [f"x{i}:0" for i in range(len(inputs))], [f"out{k}:0" for k in range(count)]
    module = invert.convert_graphdef(graph, *names, config=PLAIN)
    ours = jax.tree_util.tree_leaves(module(*inputs))
    for x, y in zip(ours, run(graph, inputs, count), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_normal_numbers_of_the_first_generators() -> None:
    graph = v1.GraphDef()
    with v1.Graph().as_default() as made:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[4], name="state")
        first = tf.constant([1, 2**40, 5, -(2**50)], tf.int64)  # Philox, a counter and a key
        tf.raw_ops.AssignVariableOp(resource=handle, value=first, name="assign")
        tf.constant([5, 3], name="shape")
        graph.CopyFrom(made.as_graph_def())
    graph.versions.producer = 28
    draw = graph.node.add(name="op", op="StatefulStandardNormal")
    draw.input.extend(["state", "shape", "^assign"])
    draw.attr["dtype"].type = tf.float32.as_datatype_enum
    draw.attr["shape_dtype"].type = tf.int32.as_datatype_enum
    left = graph.node.add(name="out1", op="ReadVariableOp", input=["state", "^op"])
    left.attr["dtype"].type = tf.int64.as_datatype_enum
    out = graph.node.add(name="out0", op="Identity", input=["op"])
    out.attr["T"].type = tf.float32.as_datatype_enum
    module = invert.convert_graphdef(graph, [], ["out0:0", "out1:0"], config=PLAIN)
    with jax.enable_x64(True):
        ours = jax.tree_util.tree_leaves(module())
    numbers, state = run(graph, [], 2)
    np.testing.assert_allclose(ours[0], numbers, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ours[1], state)
