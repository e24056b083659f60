"""The `TensorArray…` ops of TensorFlow 1 and its stacks: lists behind handles.

The first two versions differ in the type of the handle, and creating an array returns no flow. The
list is part of the state. The `flow` that orders reads and writes is a meaningless number. A
gradient array sums the values written to it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import FRAMES_REMEDY, Node
from invert.tf.ops.state import Resource
from invert.tf.values import tensor_list as lists
from invert.tf.values.constants import array
from invert.tf.values.tensor_list import TensorList

Shape = tuple[int | None, ...] | None

_FLOW = np.zeros((), np.float32)


def _versions(op: str) -> tuple[str, ...]:
    return op, f"{op}V2", f"{op}V3"


def _list(ctx: Context, node: Node, handle: Value) -> TensorList:
    lst = ctx.read(handle)
    if not isinstance(lst, TensorList):
        raise node.error("takes a value that is not an array of tensors", REPORT)
    return lst


@rule(
    *_versions("TensorArray"),
    effect="none",
    ignores=(
        "dynamic_size", "clear_after_read", "identical_element_shapes", "tensor_array_name",
    ),
)  # fmt: skip
def _tensor_array(
    size: Int, *, ctx: Context, node: Node, dtype: np.dtype, element_shape: Shape
) -> list[Value]:
    handle = Resource("tensor_array", f"{node.where}/{node.name}", dtype)
    ctx.write(handle, lists.empty(dtype, lists.element_type(element_shape, dtype), size))
    return [handle, _FLOW] if node.op.endswith("V3") else [handle]


@rule(*_versions("TensorArrayGrad"), "TensorArrayGradWithShape")
def _gradient_array(
    forward: Value,
    flow: Value,
    shape_to_prepend: Ints = (),
    *,
    ctx: Context,
    node: Node,
    source: str,
) -> list[Value]:
    handle = Resource("tensor_array_gradient", f"{forward.name}/{source}")
    if handle not in ctx.state:
        original = _list(ctx, node, forward)
        if not isinstance(original.size, int):
            raise node.error("has a size that depends on data", "Give the array a fixed size.")
        element = lists.known_element(original)
        if shape_to_prepend and element is not None:
            shape = *shape_to_prepend, *element.shape
            element = jax.ShapeDtypeStruct(shape, element.dtype)
        ctx.write(handle, lists.empty(original.dtype, element, original.size))
    return [handle] if node.op in ("TensorArrayGrad", "TensorArrayGradV2") else [handle, _FLOW]


@rule(*_versions("TensorArrayWrite"))
def _write(
    handle: Value, index: Value, value: Value, flow: Value, *, ctx: Context, node: Node
) -> Value:
    lst = _list(ctx, node, handle)
    if handle.kind == "tensor_array_gradient":
        value = _added(lst, index, value)
    ctx.write(handle, lists.set_item(lst, index, value, resize=_grows(lst, index)))
    return flow


def _grows(lst: TensorList, index: Value) -> bool:
    """Whether a write may extend the list; arrays of fixed size are never too short."""
    if not isinstance(lst.size, int):
        return True
    return lst.size == 0 or (isinstance(index, np.ndarray) and int(index) >= lst.size)


def _added(lst: TensorList, index: Value, value: Value) -> Value:
    if lst.items is not None and isinstance(index, np.ndarray) and lst.items[int(index)] is None:
        return value
    return lax.add(lists.get_item(lst, index, lists.element_of(value)), array(value))


@rule(*_versions("TensorArrayRead"), effect="none")
def _read(handle: Value, index: Value, flow: Value, *, ctx: Context, node: Node) -> Value:
    return lists.get_item(_list(ctx, node, handle), index)


@rule(*_versions("TensorArraySize"), effect="none")
def _size(handle: Value, flow: Value, *, ctx: Context, node: Node) -> Value:
    size = _list(ctx, node, handle).size
    return np.asarray(size, np.int32) if isinstance(size, int) else size


@rule(*_versions("TensorArrayGather"), effect="none")
def _gather(
    handle: Value,
    indices: Value,
    flow: Value,
    *,
    ctx: Context,
    node: Node,
    dtype: np.dtype,
    element_shape: Shape,
) -> Value:
    element = lists.element_type(element_shape, dtype)
    return lists.gathered(_list(ctx, node, handle), indices, element)


@rule(*_versions("TensorArrayScatter"))
def _scatter(
    handle: Value, indices: Ints, value: Array, flow: Value, *, ctx: Context, node: Node
) -> Value:
    lst, tensor = _list(ctx, node, handle), jnp.asarray(value)
    unwritten = lst.items is not None and all(x is None for x in lst.items)
    if unwritten and list(indices) == list(range(tensor.shape[0])) and lst.size <= len(indices):
        ctx.write(handle, lists.from_tensor(tensor, lst.dtype))
        return flow
    adds = handle.kind == "tensor_array_gradient"
    for position, index in enumerate(indices):
        place = np.asarray(index, np.int32)
        item = lax.index_in_dim(tensor, position, keepdims=False)
        item = _added(lst, place, item) if adds else item
        lst = lists.set_item(lst, place, item, resize=True)
    ctx.write(handle, lst)
    return flow


@rule("TensorArrayPack")
def _pack(
    handle: Value, flow: Value, *, ctx: Context, node: Node, dtype: np.dtype, element_shape: Shape
) -> Value:
    return lists.stacked(_list(ctx, node, handle), lists.element_type(element_shape, dtype))


@rule("TensorArrayUnpack")
def _unpack(handle: Value, value: Array, flow: Value, *, ctx: Context, node: Node) -> Value:
    ctx.write(handle, lists.from_tensor(jnp.asarray(value), _list(ctx, node, handle).dtype))
    return flow


@rule(*_versions("TensorArrayConcat"), effect="none", ignores=("element_shape_except0",))
def _concat(handle: Value, flow: Value, *, ctx: Context, node: Node) -> tuple[Array, np.ndarray]:
    lst = _list(ctx, node, handle)
    if lst.items is not None and all(x is not None for x in lst.items):
        items = [jnp.asarray(array(x)) for x in lst.items]
        return lax.concatenate(items, 0), np.asarray([x.shape[0] for x in items], np.int64)
    return lists.joined(lists.stacked(lst))


@rule(*_versions("TensorArraySplit"))
def _split(
    handle: Value, value: Array, lengths: Ints, flow: Value, *, ctx: Context, node: Node
) -> Value:
    parts = tuple(lax.split(value, lengths, 0))
    dtype = _list(ctx, node, handle).dtype
    ctx.write(handle, TensorList(parts, None, len(parts), None, dtype))
    return flow


@rule(*_versions("TensorArrayClose"), "StackClose", "StackCloseV2", effect="none")
def _close(handle: Value) -> None:
    return None


@rule("Stack", "StackV2", effect="none", ignores=("stack_name",))
def _stack(max_size: Value = None, *, ctx: Context, node: Node, elem_type: np.dtype) -> Resource:
    handle = Resource("stack", f"{node.where}/{node.name}", elem_type)
    ctx.write(handle, lists.empty(elem_type, None))
    return handle


@rule("StackPush", "StackPushV2", ignores=("swap_memory",))
def _push(handle: Value, value: Value, *, ctx: Context, node: Node) -> Value:
    lst = _list(ctx, node, handle)
    if isinstance(value, Resource):
        reason = "keeps a stack per step of an outer loop, as gradients of nested loops do"
        raise node.error(reason, FRAMES_REMEDY)
    ctx.write(handle, lists.push_back(lst, value))
    return value


@rule("StackPop", "StackPopV2")
def _pop(handle: Value, *, ctx: Context, node: Node) -> Value:
    lst, value = lists.pop_back(_list(ctx, node, handle))
    ctx.write(handle, lst)
    return value
