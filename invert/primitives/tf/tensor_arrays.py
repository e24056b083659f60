"""The `TensorArray…` ops of TensorFlow 1 and its stacks: lists behind handles.

The first two versions differ in the type of the handle, and in that making an array gives no flow.

The list is part of the state. The `flow` that orders reads and writes is a number that means
nothing. A gradient array adds up what is written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, add_table, raises_tf
from invert.tf.ops.node import FRAMES_REMEDY, Node
from invert.tf.ops.state import Resource
from invert.tf.values import tensor_list as lists
from invert.tf.values.constants import array, ints, static
from invert.tf.values.tensor_list import TensorList

_FLOW = np.zeros((), np.float32)


def _versions(op: str) -> tuple[str, ...]:
    return op, f"{op}V2", f"{op}V3"


def _list(ctx: Context, node: Node, handle: Any) -> TensorList:
    found = ctx.read(handle)
    if not isinstance(found, TensorList):
        problem = Problem(f"tf.{node.op}", "takes what is no array of tensors", node.location)
        raise UnsupportedOpError([problem])
    return found


@raises_tf(*_versions("TensorArray"), effect="none")
def _tensor_array(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (size,) = ints(static(node, values, 0))
    dtype = node.attr("dtype")
    handle = Resource("tensor_array", f"{node.where}/{node.name}", dtype)
    element = lists.element_type(node.attr("element_shape"), dtype)
    ctx.write(handle, lists.empty(dtype, element, size))
    return [handle, _FLOW] if node.op.endswith("V3") else [handle]


@raises_tf(*_versions("TensorArrayGrad"), "TensorArrayGradWithShape")
def _gradient_array(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    forward = values[0]
    handle = Resource("tensor_array_gradient", f"{forward.name}/{node.attr('source')}")
    if handle not in ctx.state:
        original = _list(ctx, node, forward)
        if not isinstance(original.size, int):
            reason = "has a size that depends on data"
            raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
        element = lists.known_element(original)
        if node.op == "TensorArrayGradWithShape" and element is not None:
            shape = *ints(static(node, values, 2)), *element.shape
            element = jax.ShapeDtypeStruct(shape, element.dtype)
        ctx.write(handle, lists.empty(original.dtype, element, original.size))
    return [handle] if node.op in ("TensorArrayGrad", "TensorArrayGradV2") else [handle, _FLOW]


@raises_tf(*_versions("TensorArrayWrite"))
def _write(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst, index, value = _list(ctx, node, values[0]), values[1], values[2]
    if values[0].kind == "tensor_array_gradient":
        value = _added(lst, index, value)
    ctx.write(values[0], lists.set_item(lst, index, value, resize=_grows(lst, index)))
    return [values[3]]


def _grows(lst: TensorList, index: Any) -> bool:
    """Whether a write may make the list longer: arrays of a fixed size are never too short."""
    if not isinstance(lst.size, int):
        return True
    return lst.size == 0 or (isinstance(index, np.ndarray) and int(index) >= lst.size)


def _added(lst: TensorList, index: Any, value: Any) -> Any:
    if lst.items is not None and isinstance(index, np.ndarray) and lst.items[int(index)] is None:
        return value
    return lax.add(lists.get_item(lst, index, lists.element_of(value)), array(value))


@raises_tf(*_versions("TensorArrayRead"), effect="none")
def _read(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lists.get_item(_list(ctx, node, values[0]), values[1])]


@raises_tf(*_versions("TensorArraySize"), effect="none")
def _size(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    size = _list(ctx, node, values[0]).size
    return [np.asarray(size, np.int32) if isinstance(size, int) else size]


@raises_tf(*_versions("TensorArrayGather"), effect="none")
def _gather(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst, indices = _list(ctx, node, values[0]), values[1]
    element = lists.element_type(node.attr("element_shape"), node.attr("dtype"))
    if isinstance(indices, np.ndarray):
        places = ints(indices)
        if isinstance(lst.size, int) and list(places) == list(range(lst.size)):
            return [lists.stacked(lst, element)]
        return [jnp.stack([lists.get_item(lst, np.asarray(i), element) for i in places])]
    rows = lists.with_buffer(lst, element=element).buffer
    return [jnp.take(rows, indices, axis=0, mode="clip")]


@raises_tf(*_versions("TensorArrayScatter"))
def _scatter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst, tensor = _list(ctx, node, values[0]), jnp.asarray(array(values[2]))
    adds = values[0].kind == "tensor_array_gradient"
    indices = ints(static(node, values, 1))
    unwritten = lst.items is not None and all(x is None for x in lst.items)
    if unwritten and list(indices) == list(range(tensor.shape[0])) and lst.size <= len(indices):
        ctx.write(values[0], lists.from_tensor(tensor, lst.dtype))
        return [values[3]]
    for position, index in enumerate(indices):
        place = np.asarray(index, np.int32)
        value = lax.index_in_dim(tensor, position, keepdims=False)
        value = _added(lst, place, value) if adds else value
        lst = lists.set_item(lst, place, value, resize=True)
    ctx.write(values[0], lst)
    return [values[3]]


@raises_tf("TensorArrayPack")
def _pack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    element = lists.element_type(node.attr("element_shape"), node.attr("dtype"))
    return [lists.stacked(_list(ctx, node, values[0]), element)]


@raises_tf("TensorArrayUnpack")
def _unpack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = _list(ctx, node, values[0]).dtype
    ctx.write(values[0], lists.from_tensor(jnp.asarray(array(values[1])), dtype))
    return [values[2]]


@raises_tf(*_versions("TensorArrayConcat"), effect="none")
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst = _list(ctx, node, values[0])
    if lst.items is not None and all(x is not None for x in lst.items):
        items = [jnp.asarray(array(x)) for x in lst.items]
        return [lax.concatenate(items, 0), np.asarray([x.shape[0] for x in items], np.int64)]
    rows = lists.stacked(lst)
    lengths = np.full(rows.shape[0], rows.shape[1], np.int64)
    return [lax.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:])), lengths]


@raises_tf(*_versions("TensorArraySplit"))
def _split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lengths = ints(static(node, values, 2))
    parts = tuple(lax.split(array(values[1]), lengths, 0))
    dtype = _list(ctx, node, values[0]).dtype
    ctx.write(values[0], TensorList(parts, None, len(parts), None, dtype))
    return [values[3]]


@raises_tf(*_versions("TensorArrayClose"), "StackClose", "StackCloseV2", effect="none")
def _close(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return []


@raises_tf("Stack", "StackV2", effect="none")
def _stack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    handle = Resource("stack", f"{node.where}/{node.name}", node.attr("elem_type"))
    ctx.write(handle, lists.empty(node.attr("elem_type"), None))
    return [handle]


def _pushed(node: Node, lst: TensorList, values: list[Any]) -> tuple[TensorList, Any]:
    if isinstance(values[1], Resource):
        reason = "keeps a stack for each step of an outer loop, as gradients of nested loops do"
        problem = Problem(f"tf.{node.op}", reason, node.location, FRAMES_REMEDY)
        raise UnsupportedOpError([problem])
    return lists.push_back(lst, values[1]), values[1]


def _on_stack(fn: Callable[[Node, TensorList, list[Any]], tuple[TensorList, Any]]) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        lst, result = fn(node, _list(ctx, node, values[0]), values)
        ctx.write(values[0], lst)
        return [result]

    return rule


add_table(
    {
        **dict.fromkeys(("StackPush", "StackPushV2"), _on_stack(_pushed)),
        **dict.fromkeys(
            ("StackPop", "StackPopV2"), _on_stack(lambda node, lst, _: lists.pop_back(lst))
        ),
    }
)
