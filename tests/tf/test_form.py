"""Facts that follow from a node's attributes are shared by nodes with equal ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from invert.protos.messages import message
from invert.protos.ops import op_def
from invert.protos.types import NodeDef
from invert.tf.ops.form import form_of
from invert.tf.ops.node import Node


def _pool(*, strides: tuple[int, ...] = (1, 2, 2, 1), dtype: Any = tf.float32) -> Any:
    node: Any = message(NodeDef)(name="pool", op="MaxPool")
    node.attr["T"].type = dtype.as_datatype_enum
    node.attr["ksize"].list.i[:] = (1, 2, 2, 1)
    node.attr["strides"].list.i[:] = strides
    node.attr["padding"].s = b"SAME"
    return node


def _form(proto: Any) -> Any:
    definition = op_def(proto.op)
    assert definition is not None
    return form_of(proto, definition)


def test_equal_attributes_share_a_form() -> None:
    assert _form(_pool()) is _form(_pool())
    assert _form(_pool()) is not _form(_pool(strides=(1, 1, 1, 1)))
    one, two = _form(_pool()), _form(_pool(dtype=tf.float64))
    assert one.dtypes == [tf.float32.as_numpy_dtype] and two.dtypes == [tf.float64.as_numpy_dtype]


def test_no_node_changes_the_attributes_of_another() -> None:
    protos = [_pool(), _pool()]
    one, two = (Node(p.op, p.name, p.attr, form=_form(p)) for p in protos)
    one.attr("strides").append(7)
    assert two.attr("strides") == one.attr("strides") == [1, 2, 2, 1]
    # Filled in.
    assert two.attr("data_format") == "NHWC"


def test_problems_are_those_of_one_node() -> None:
    wrong = _pool(dtype=tf.string)
    assert any("'T'" in problem for problem in _form(wrong).problems)
    assert not _form(_pool()).problems


def test_attributes_that_the_op_does_not_declare_are_those_of_one_node() -> None:
    protos = [_pool(), _pool(), _pool()]
    protos[0].attr["further"].func.name = "f"
    protos[1].attr["further"].func.name = "g"
    nodes = [Node(p.op, p.name, p.attr, form=_form(p)) for p in protos]
    assert nodes[0].form is nodes[1].form is nodes[2].form
    assert [n.functions for n in nodes] == [("f",), ("g",), ()]
    assert [n.attr("further") for n in nodes] == ["f", "g", None]


def test_messages_are_not_kept() -> None:
    protos = [_constant(), _constant()]
    one, two = (Node(p.op, p.name, p.attr, form=_form(p)) for p in protos)
    assert one.form is two.form
    # A message belongs to its graph, which it keeps alive.
    protos[0].attr["value"].tensor.float_val[0] = 3.0
    assert [n.attr("value").float_val[0] for n in (one, two)] == [3.0, 1.0]


def _constant() -> Any:
    node: Any = message(NodeDef)(name="c", op="Const")
    node.attr["dtype"].type = 1
    node.attr["value"].tensor.dtype = 1
    node.attr["value"].tensor.float_val[:] = [1.0, 2.0]
    return node
