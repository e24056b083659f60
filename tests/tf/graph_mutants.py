"""Real graphs, and seeded damage to their structure."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from tests.damaged_files import damaged

v1 = tf.compat.v1
_X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Source:
    """A graph with the names of its inputs and outputs, and a value for each input."""

    name: str
    graph: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: tuple[np.ndarray, ...]


def _traced(name: str, fn: Callable[..., Any], *values: np.ndarray) -> Source:
    """The graph of a function, with calls and control flow as library functions."""
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in values]
    concrete = tf.function(fn, autograph=False).get_concrete_function(*specs)
    return Source(
        name,
        concrete.graph.as_graph_def(),
        tuple(t.name for t in concrete.inputs),
        tuple(t.name for t in concrete.outputs),
        values,
    )


def _frozen(name: str, layers: list[Any], value: np.ndarray) -> Source:
    """The graph of a Keras model with its weights as constants."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(value.shape[1:], batch_size=len(value)), *layers])
    spec = tf.TensorSpec(value.shape, value.dtype)
    fn = tf.function(lambda x: model(x, training=False), autograph=False)
    concrete = convert_variables_to_constants_v2(
        fn.get_concrete_function(spec), lower_control_flow=False
    )
    return Source(
        name,
        concrete.graph.as_graph_def(),
        tuple(t.name for t in concrete.inputs),
        tuple(t.name for t in concrete.outputs),
        (value,),
    )


def _loops(x: Any) -> Any:
    def step(i: Any, a: Any) -> Any:
        return i + 1, tf.cond(tf.reduce_sum(a) > 0, lambda: tf.tanh(a), lambda: a * 0.5 + 1.0)

    _, y = tf.while_loop(lambda i, a: i < 3, step, [0, x])
    index = tf.cast(tf.reduce_max(y) > 0.5, tf.int32)
    return tf.switch_case(index, [lambda: tf.sin(y), lambda: tf.cos(y), lambda: y])


def _lists(x: Any) -> Any:
    return tf.map_fn(lambda r: tf.sin(r) * 2.0, x) + tf.scan(lambda a, r: a * 0.5 + r, x)


def _calls(x: Any) -> Any:
    @tf.function(autograph=False)
    def inner(a: Any, b: Any) -> Any:
        return tf.matmul(a, b), a[1:, ::2]

    @tf.function(autograph=False)
    def outer(a: Any) -> Any:
        product, part = inner(a, tf.transpose(a))
        return tf.concat([product, tf.pad(part, [[1, 0], [0, 1]])], 1)

    return outer(x) + outer(x * 2.0)


def _text(x: Any) -> Any:
    words = tf.strings.split(tf.constant(["a b c", "d", "e f"]))
    lengths = tf.strings.length(words.flat_values)
    numbers = tf.strings.to_number(tf.strings.join([["1", "2"], ["5", "0"]]))
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(6, dtype=tf.float32), [2, 1, 3])
    rows = tf.reduce_sum(ragged, 1)
    return x * tf.reduce_sum(rows) + tf.cast(tf.reduce_sum(lengths), tf.float32) + numbers[0]


def _arrays(x: Any) -> Any:
    parts = tf.split(x, 3, axis=1)
    y = tf.stack(parts, axis=1)
    y = tf.gather(y, [2, 0], axis=1) + tf.reshape(tf.one_hot([0, 1], 2), [1, 2, 2])
    y = tf.where(y > 0.0, tf.math.top_k(y, 2).values, tf.zeros_like(y))
    z = tf.math.segment_sum(tf.reshape(y, [4, -1]), [0, 0, 1, 2])
    total = tf.einsum("ij,kj->ik", z, z) + tf.reduce_mean(tf.linalg.diag(x[0]))
    return tf.scatter_nd([[0], [2]], total[:2], [4, 3]), tf.cast(tf.argmax(x, 1), tf.int32)


def _frames(x: Any) -> Any:
    def step(i: Any, a: Any) -> Any:
        return i + 1, v1.cond(tf.reduce_sum(a) > 0, lambda: tf.tanh(a), lambda: a - 1.0)

    return v1.while_loop(lambda i, a: i < 3, step, [0, x])[1] * 2.0


def _version_1() -> Source:
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [4, 6], name="x")
            tf.identity(_frames(x), name="out")
    finally:
        v1.enable_control_flow_v2()
    return Source("frames", graph.as_graph_def(), ("x:0",), ("out:0",), (_X,))


@functools.cache
def sources() -> tuple[Source, ...]:
    """Intact graphs of several kinds."""
    dense, conv = keras.layers.Dense, keras.layers.Conv2D
    image = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    sequence = np.random.default_rng(2).normal(size=(2, 5, 3)).astype(np.float32)
    return (
        _frozen("mlp", [dense(5, "relu"), keras.layers.LayerNormalization(), dense(2)], _X),
        _frozen(
            "cnn",
            [
                conv(4, 3, activation="relu", padding="same"),
                keras.layers.BatchNormalization(),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                dense(3, "softmax"),
            ],
            image,
        ),
        _frozen("lstm", [keras.layers.LSTM(4), dense(2)], sequence),
        _traced("loops", _loops, _X),
        _version_1(),
        _traced("lists", _lists, _X),
        _traced("calls", _calls, _X),
        _traced("text", _text, _X),
        _traced("arrays", _arrays, _X),
    )


# -- damage


def _any_dtype(r: random.Random) -> int:
    return r.choice([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 14, 19, 20, 21, 22, 101, 107, 77])


def _any_size(r: random.Random) -> int:
    return r.choice([-2, -1, 0, 1, 2, 3, 5, 1000, 2**31, 2**40, 2**62])


def _any_name(r: random.Random, names: list[str]) -> str:
    return r.choice([*r.sample(names, min(3, len(names))), "", "nowhere", "^", ":", "é\u202e"])


def _bodies(graph: Any) -> list[Any]:
    return [graph.node, *(f.node_def for f in graph.library.function if len(f.node_def))]


def _nodes(r: random.Random, graph: Any) -> Any:
    return r.choice([b for b in _bodies(graph) if len(b)])


def _damage_input(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    node = r.choice([n for n in nodes if n.input] or list(nodes))
    names = [n.name for n in nodes]
    kind = r.randrange(8)
    if kind == 0 or not node.input:
        node.input.append(_any_name(r, names))
        return
    i = r.randrange(len(node.input))
    base = node.input[i].split(":")[0]
    if kind == 1:
        del node.input[i]
    elif kind == 2:
        node.input[i] = _any_name(r, names)
    elif kind == 3:
        node.input[i] = f"{base}:{r.choice(['1', '2', '7', '99999999999', '-1', 'x', '', 'y:0'])}"
    elif kind == 4:
        node.input[i] = f"{base}:{r.choice(['output', 'z', 'nowhere'])}:{r.choice(['0', '1', '9'])}"
    elif kind == 5:
        node.input[i] = f"^{base.lstrip('^')}"
    elif kind == 6:
        j = r.randrange(len(node.input))
        node.input[i], node.input[j] = node.input[j], node.input[i]
    else:
        node.input.insert(i, node.input[i])


def _damage_port(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    node = r.choice([n for n in nodes if n.input] or list(nodes))
    if node.input:
        other = r.choice(list(nodes)).name
        # In functions, tensors have the name of the output in the middle.
        ports = ["", ":0", ":1", ":output:0", ":z:0", ":y:0", ":product:0"]
        node.input[r.randrange(len(node.input))] = other + r.choice(ports)


def _set_attr(r: random.Random, value: Any) -> None:
    """Set an attribute to a value of another kind, or another value of its kind."""
    kind = value.WhichOneof("value")
    if r.random() < 0.3 or kind is None:
        value.Clear()
        kind = r.choice(["i", "f", "b", "s", "type", "shape", "tensor", "list", "func", None])
    if kind == "i":
        value.i = _any_size(r)
    elif kind == "f":
        value.f = r.choice([0.0, -1.0, float("nan"), float("inf"), 1e-40])
    elif kind == "b":
        value.b = not value.b
    elif kind == "s":
        value.s = r.choice([b"", b"NCHW", b"VALID", b"SAME", b"\xff\xfe", b"x" * 100, b"ij->kkk"])
    elif kind == "type":
        value.type = _any_dtype(r)
    elif kind == "shape":
        _damage_shape(r, value.shape)
    elif kind == "func":
        value.func.name = r.choice(["", "nowhere", value.func.name + "_"])
    elif kind == "tensor":
        _damage_tensor(r, value.tensor)
    elif kind == "list":
        _damage_list(r, value.list)


def _damage_shape(r: random.Random, shape: Any) -> None:
    kind = r.randrange(4)
    if kind == 0:
        shape.unknown_rank = True
    elif kind == 1 and shape.dim:
        del shape.dim[r.randrange(len(shape.dim))]
    elif kind == 2 and shape.dim:
        r.choice(list(shape.dim)).size = _any_size(r)
    else:
        shape.dim.add().size = _any_size(r)


def _damage_tensor(r: random.Random, tensor: Any) -> None:
    kind = r.randrange(5)
    if kind == 0:
        tensor.dtype = _any_dtype(r)
    elif kind == 1:
        _damage_shape(r, tensor.tensor_shape)
    elif kind == 2:
        tensor.tensor_content = tensor.tensor_content[: r.randrange(8)]
    elif kind == 3:
        tensor.tensor_content = bytes(r.randrange(256) for _ in range(r.choice([1, 4, 8, 24])))
    else:
        tensor.int_val.extend([r.choice([-1, 0, 1, 5, 2**31 - 1])])


def _damage_list(r: random.Random, lists: Any) -> None:
    filled = [f for f in ("i", "f", "b", "s", "type", "shape", "func") if len(getattr(lists, f))]
    if not filled:
        lists.i.append(_any_size(r))
        return
    items = getattr(lists, r.choice(filled))
    i = r.randrange(len(items))
    kind = r.randrange(4)
    if kind == 0:
        del items[i]
    elif kind == 1:
        items.append(items[i])
    elif kind == 2:
        lists.Clear()
    elif items is lists.i or filled == ["i"]:
        items[i] = _any_size(r)
    elif filled == ["type"]:
        items[i] = _any_dtype(r)
    else:
        del items[:]


def _damage_attr(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    node = r.choice([n for n in nodes if n.attr])
    key = r.choice(sorted(node.attr))
    if r.random() < 0.25:
        del node.attr[key]
    else:
        _set_attr(r, node.attr[key])


def _damage_type(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    typed = [(n, k) for n in nodes for k in sorted(n.attr) if n.attr[k].type]
    if typed:
        node, key = r.choice(typed)
        node.attr[key].type = _any_dtype(r)


def _damage_constant(r: random.Random, graph: Any) -> None:
    constants = [n for nodes in _bodies(graph) for n in nodes if n.op == "Const"]
    if constants:
        value = r.choice(constants).attr["value"]
        tensor = value.tensor
        if r.random() < 0.5:
            _damage_tensor(r, tensor)
            return
        # Another whole value, such as an axis or a shape that does not fit.
        array = tf.make_ndarray(tensor)
        if array.dtype.kind in "iu":
            shape = r.choice([array.shape, (), (1,), (2,), (3,)])
            new = np.asarray(np.full(shape, r.choice([-9, -1, 0, 1, 2, 7])), array.dtype)
            tensor.CopyFrom(tf.make_tensor_proto(new))


def _delete(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    del nodes[r.randrange(len(nodes))]


def _rename(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    r.choice(list(nodes)).name = _any_name(r, [n.name for n in nodes])


_OPS = (
    "Add AddN ArgMax BatchMatMulV2 BiasAdd BroadcastTo Cast Concat ConcatV2 Conv2D Cumsum "
    "DepthwiseConv2dNative Einsum ExpandDims Fill FusedBatchNormV3 Gather GatherNd GatherV2 "
    "Identity IdentityN If MatMul MaxPool Mean Merge NextIteration NoOp OneHot Pack Pad "
    "PartitionedCall Placeholder Range ReadVariableOp Relu Reshape ResizeBilinear Reverse "
    "ScatterNd Select SelectV2 Shape Slice Softmax Split SplitV Squeeze StatelessWhile "
    "StridedSlice StringJoin Sum Switch TensorListGetItem TensorListReserve TensorListStack Tile "
    "TopKV2 Transpose Unpack UnsortedSegmentSum VarHandleOp Where While XlaCallModule Nonsense"
).split()


def _other_op(r: random.Random, graph: Any) -> None:
    nodes = _nodes(r, graph)
    node = r.choice(list(nodes))
    node.op = r.choice([*_OPS, r.choice(list(nodes)).op])


def _damage_function(r: random.Random, graph: Any) -> None:
    if not graph.library.function:
        _damage_attr(r, graph)
        return
    function = r.choice(list(graph.library.function))
    signature = function.signature
    kind = r.randrange(7)
    if kind == 0:
        graph.library.function.remove(function)
    elif kind == 1:
        signature.name = r.choice(["", "nowhere", graph.library.function[0].signature.name])
    elif kind == 2 and signature.input_arg:
        del signature.input_arg[r.randrange(len(signature.input_arg))]
    elif kind == 3 and signature.output_arg:
        del signature.output_arg[r.randrange(len(signature.output_arg))]
    elif kind == 4 and function.ret:
        key = r.choice(sorted(function.ret))
        ends = [n.name for n in function.node_def] + [a.name for a in signature.input_arg]
        function.ret[key] = _any_name(r, ends) + r.choice(["", ":0", ":output:0", ":z:0"])
    elif kind == 5 and function.ret:
        del function.ret[r.choice(sorted(function.ret))]
    elif signature.input_arg:
        arg = r.choice(list(signature.input_arg))
        arg.type = _any_dtype(r)
        if r.random() < 0.3:
            arg.name = _any_name(r, [a.name for a in signature.input_arg])


_DAMAGE = (
    _damage_input, _damage_input, _damage_port, _damage_attr, _damage_attr, _damage_type,
    _damage_constant, _delete, _rename, _other_op, _damage_function,
)  # fmt: skip


def mutant(seed: int, number: int) -> tuple[Source, Any]:
    """A source, and a copy of its graph with damage in one to three places."""
    r = random.Random(f"{seed} {number}")
    source = r.choice(sources())
    graph = type(source.graph)()
    graph.CopyFrom(source.graph)
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        r.choice(_DAMAGE)(r, graph)
    return source, graph


def damaged_bytes(seed: int, number: int) -> tuple[Source, bytes]:
    """A source, and the damaged bytes of its graph."""
    r = random.Random(f"bytes {seed} {number}")
    source = r.choice(sources())
    return source, damaged(source.graph.SerializeToString(deterministic=True), r)
