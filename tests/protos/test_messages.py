"""Messages of TensorFlow's files: fields, damaged bytes, types and constants."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2
from tensorflow.core.framework import graph_pb2, op_def_pb2, tensor_pb2, variable_pb2
from tensorflow.core.protobuf import (
    saved_model_pb2,
    tensor_bundle_pb2,
    trackable_object_graph_pb2,
)

import invert
from invert import MalformedModelError
from invert.ir.arrays import aligned
from invert.protos import messages, types
from invert.protos.file_parts import own_graph
from invert.protos.messages import message, own, parse
from invert.protos.ops import definitions, op_def
from invert.protos.tensors import decode_dtype, decode_tensor, is_type, type_name
from invert.protos.types import GraphDef, OpList, TensorProto

ROOTS: dict[str, Any] = {
    "SavedModel": saved_model_pb2.SavedModel,
    "OpList": op_def_pb2.OpList,
    "VariableDef": variable_pb2.VariableDef,
    "BundleHeaderProto": tensor_bundle_pb2.BundleHeaderProto,
    "BundleEntryProto": tensor_bundle_pb2.BundleEntryProto,
    "TrackableObjectGraph": trackable_object_graph_pb2.TrackableObjectGraph,
}
# Enums that no graph as text holds, and which are integers here.
BINARY_ENUMS = ["BundleHeaderProto.endianness"]


def _differences(ours: Any, theirs: Any, path: str, seen: set[str]) -> list[str]:
    """Fields that differ from TensorFlow's declaration, in a message and those inside it."""
    if ours.name in seen:
        return []
    seen.add(ours.name)
    found = []
    for field in ours.fields:
        where = f"{path}.{field.name}"
        other = theirs.fields_by_number.get(field.number)
        if other is None or other.name != field.name or other.is_repeated != field.is_repeated:
            found.append(where)
            continue
        if field.message_type is not None:
            found += _differences(field.message_type, other.message_type, where, seen)
            continue
        wanted = other.type
        if field.enum_type is not None and other.enum_type is not None:
            names = [{v.name: v.number for v in f.enum_type.values} for f in (field, other)]
            wanted = field.type if names[0] == names[1] else None
        elif other.enum_type is not None and where not in BINARY_ENUMS:
            wanted = other.TYPE_ENUM
        elif other.enum_type is not None:
            wanted = field.TYPE_INT32
        groups = [getattr(f.containing_oneof, "name", "") for f in (field, other)]
        if field.type != wanted or groups[0] != groups[1]:
            found.append(where)
    return found


def test_the_stored_descriptor_is_that_of_the_types() -> None:
    stored = descriptor_pb2.FileDescriptorProto.FromString(
        Path(messages.__file__).with_name(messages.FILE).read_bytes()
    )
    assert stored == messages.described()


@pytest.mark.parametrize("name", ROOTS)
def test_fields_equal_tensorflows(name: str) -> None:
    ours = message(getattr(types, name))
    assert _differences(ours.DESCRIPTOR, ROOTS[name].DESCRIPTOR, name, set()) == []


def test_unknown_fields_are_kept() -> None:
    theirs = graph_pb2.GraphDef()
    node = theirs.node.add(name="x", op="Const")
    node.experimental_debug_info.original_node_names.append("y")  # which ours do not have
    ours = own(theirs, GraphDef, "the graph")
    assert graph_pb2.GraphDef.FromString(ours.SerializeToString()) == theirs


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x0a\x09\x0a\x02ab", "field 1 at byte 0 ends at byte 11"),
        (b"\x0a\x04\x0a\x02\xff\xfe", r"the text node\.name at byte 2 is not UTF-8"),
        (b"\x0a\x04\x0a\x09ab", r"field 1 at byte 2 \(in node\) ends at byte 13"),
        (b"\x1f\x00", "there is no field at byte 0"),
        (b"\x0a", "a number at byte 1 is cut off"),
    ],
)
def test_damaged_bytes_are_reported_with_their_place(data: bytes, what: str) -> None:
    with pytest.raises(MalformedModelError, match=rf"graph\.pb .*{what}.*export it again"):
        parse(GraphDef, data, "graph.pb")


def test_types_equal_tensorflows() -> None:
    for number in range(1, 40):
        try:
            theirs = tf.dtypes.as_dtype(number)
        except TypeError:
            assert not is_type(number)
            continue
        assert type_name(number) == theirs.name
        if theirs not in (tf.resource, tf.variant) and not theirs.is_quantized:
            assert decode_dtype(number) == np.dtype(theirs.as_numpy_dtype)
    assert not is_type(0) and not is_type(101)


_DRAWS: dict[str, Any] = {
    "half_val": lambda draw: draw.randrange(1 << 16),
    "float_val": lambda draw: draw.uniform(-9, 9),
    "double_val": lambda draw: draw.uniform(-9, 9),
    "int_val": lambda draw: draw.randrange(2),
    "string_val": lambda draw: draw.randbytes(3),
    "scomplex_val": lambda draw: draw.uniform(-9, 9),
    "dcomplex_val": lambda draw: draw.uniform(-9, 9),
    "int64_val": lambda draw: draw.randrange(-5, 5),
    "bool_val": lambda draw: draw.random() < 0.5,
    "uint32_val": lambda draw: draw.randrange(9),
    "uint64_val": lambda draw: draw.randrange(9),
}


def test_constants_equal_tensorflows() -> None:
    """Random messages of every type: values in fields, fewer than the shape needs, and as bytes."""
    draw = random.Random(0)
    compared = 0
    for _ in range(3000):
        proto = tensor_pb2.TensorProto()
        proto.dtype = draw.choice([i for i in range(1, 34) if i not in (20, 21)])
        for _ in range(draw.randrange(3)):
            proto.tensor_shape.dim.add().size = draw.randrange(4)
        if draw.random() < 0.2 and proto.dtype != 7:
            size = np.prod([d.size for d in proto.tensor_shape.dim], dtype=int)
            proto.tensor_content = bytes(size * decode_dtype(proto.dtype).itemsize)
        else:
            for field, value in _DRAWS.items():
                count = draw.choice([0, 1, 2, 4])
                getattr(proto, field).extend(value(draw) for _ in range(count))
            proto.float8_val = draw.randbytes(draw.choice([1, 2, 4]))
        try:
            want = tf.make_ndarray(proto)
        except (TypeError, ValueError):  # more values than the shape has
            continue
        want = want[want.dtype.names[0]] if want.dtype.names else want
        got = decode_tensor(own(proto, TensorProto, "a constant"))
        assert got.shape == want.shape
        if proto.dtype == 7:
            assert [v or b"" for v in got.ravel()] == [v or b"" for v in want.ravel()]
        else:
            assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
        compared += 1
    assert compared > 1000


def test_definitions_equal_tensorflows() -> None:
    from tensorflow.python.client import pywrap_tf_session as session

    theirs = message(OpList).FromString(session.TF_GetBuffer(session.TF_GetAllOpList()))
    wanted = {}
    for op in theirs.op:
        op.DiscardUnknownFields()
        wanted[op.name] = op
    # Later ones may have more.
    known = {name: op for name, op in definitions().items() if name in wanted}
    assert len(known) > 1500 and len(known) >= 0.95 * len(definitions())
    if tf.__version__.startswith("2.21"):
        assert definitions() == wanted
    assert op_def("NoSuchOp") is None


def test_a_large_constant_is_copied_once_and_releases_its_bytes() -> None:
    content = np.arange(1 << 20, dtype=np.float32)
    graph = message(GraphDef)()
    proto = graph.node.add(name="c", op="Const").attr["value"].tensor
    proto.dtype, proto.tensor_content = 1, content.tobytes()
    proto.tensor_shape.dim.add(size=content.size)
    given = graph.SerializeToString()
    small, parts = own_graph(given)
    held = small.node[0].attr["value"].tensor
    assert len(held.tensor_content) < 100
    seen: list[memoryview | bytes] = []

    def decode(data: bytes | memoryview) -> np.ndarray:
        seen.append(data)
        return decode_tensor(held, content=data)

    value = parts.array(held.tensor_content, decode)
    assert np.array_equal(value, content) and not value.flags.writeable
    # What was decoded is a view of the copy, which device arrays share too.
    assert np.shares_memory(value, np.frombuffer(seen[0], np.uint8))
    assert not np.shares_memory(value, np.frombuffer(given, np.uint8))
    assert aligned(value) is value
    assert parts.array(held.tensor_content, decode) is value


@pytest.mark.parametrize("given", ["graph.pb", Path("graph.pb"), None, {}])
def test_a_graph_that_is_not_a_message_is_refused(given: Any) -> None:
    with pytest.raises(MalformedModelError, match=f"graph is a {type(given).__name__}.*GraphDef"):
        invert.convert_graphdef(given, ["x:0"], ["y:0"])
