"""The `TensorList…` ops, used by `tf.TensorArray` and the gradients of loops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.ir.sizes import as_value, decided, is_open
from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import FRAMES_REMEDY, Node, canonical
from invert.tf.ops.state import Resource
from invert.tf.values import tensor_list as lists
from invert.tf.values.bounds import counts_up
from invert.tf.values.constants import array, as_sizes, ints, is_size, pack_dims, static
from invert.tf.values.ragged import DynamicRagged, RaggedVariant
from invert.tf.values.tensor_list import Element, TensorList


def _dtype(element_dtype: np.dtype) -> np.dtype | None:
    return None if element_dtype.kind == "O" else element_dtype


def _element(shape: Value, element_dtype: np.dtype) -> Element | None:
    """The element type declared by a shape, or -1 for unknown rank."""
    if not isinstance(shape, np.ndarray) or shape.ndim == 0:
        return None
    return lists.element_type(ints(shape), _dtype(element_dtype))


def _list(node: Node, value: Value) -> TensorList:
    if not isinstance(value, TensorList):
        raise node.error(f"takes a {type(value).__name__} as a list", REPORT)
    return value


def _scalar(node: Node, value: Value) -> Value:
    """A position or a length, whose rank TensorFlow's shape functions leave to the kernels."""
    if np.ndim(value):
        raise node.error(
            f"takes an array of shape {list(np.shape(value))} as one number", "Pass a scalar."
        )
    return value


@rule("EmptyTensorList")
def _empty(element_shape: Value, max_size: Value, *, element_dtype: np.dtype) -> TensorList:
    return lists.empty(_dtype(element_dtype), _element(element_shape, element_dtype))


@rule("TensorListReserve")
def _reserve(element_shape: Value, size: Int, *, node: Node, element_dtype: np.dtype) -> TensorList:
    return _of_given_size(node, _dtype(element_dtype), _element(element_shape, element_dtype), size)


def _of_given_size(
    node: Node, dtype: np.dtype | None, element: Element | None, size: Int
) -> TensorList:
    """`lists.empty` of a size that the graph states."""
    if isinstance(size, int):
        check_bytes(node, "a list of elements", size * np.dtype(np.int64).itemsize)
    return lists.empty(dtype, element, size)


@rule("TensorListFromTensor")
def _from_tensor(tensor: Value, element_shape: Value, *, element_dtype: np.dtype) -> Value:
    if isinstance(tensor, Batch):
        return TensorList(tensor.items, None, len(tensor.items), None, _dtype(element_dtype))
    if isinstance(tensor, DynamicRagged):
        return tensor
    known = lists.is_known(tensor) and tensor.dtype != object
    rows = canonical(tensor) if known else jnp.asarray(array(tensor))
    return lists.from_tensor(rows, _dtype(element_dtype))


@rule("TensorListPushBack")
def _push_back(handle: Value, tensor: Value, *, node: Node) -> TensorList:
    return lists.push_back(_list(node, handle), tensor)


@rule("TensorListPopBack")
def _pop_back(
    handle: Value, element_shape: Value, *, node: Node, element_dtype: np.dtype
) -> tuple[TensorList, Value]:
    return lists.pop_back(_list(node, handle), _element(element_shape, element_dtype))


@rule("TensorListLength")
def _length(handle: Value, *, node: Node) -> Value:
    if isinstance(handle, DynamicRagged):
        return np.asarray(handle.rows, np.int32)
    size = _list(node, handle).size
    return as_sizes(size, np.dtype(np.int32)) if is_size(size) else size


@rule("TensorListElementShape")
def _element_shape(handle: Value, *, node: Node, shape_type: np.dtype) -> np.ndarray:
    try:
        element = (
            None if isinstance(handle, DynamicRagged) else lists.known_element(_list(node, handle))
        )
    except lists.RaggedListError:
        element = None  # several shapes, which TensorFlow declares as unknown
    if not isinstance(element, jax.ShapeDtypeStruct):
        return np.asarray(-1, shape_type)
    return pack_dims(element.shape, shape_type)


@rule("TensorListResize")
def _resize(handle: Value, size: Value, *, node: Node) -> TensorList:
    return lists.resized(_list(node, handle), _scalar(node, size))


@rule("TensorListGetItem")
def _get_item(
    handle: Value, index: Value, element_shape: Value, *, node: Node, element_dtype: np.dtype
) -> Value:
    if isinstance(handle, DynamicRagged):
        return handle.at(node, array(_scalar(node, index)))
    return lists.get_item(
        _list(node, handle), _scalar(node, index), _element(element_shape, element_dtype)
    )


@rule("TensorListSetItem")
def _set_item(
    handle: Value, index: Value, item: Value, *, node: Node, resize_if_index_out_of_bounds: bool
) -> TensorList:
    resize = resize_if_index_out_of_bounds
    return lists.set_item(_list(node, handle), _scalar(node, index), item, resize=resize)


@rule("TensorListStack", ignores=("num_elements",))
def _stack(handle: Value, element_shape: Value, *, node: Node, element_dtype: np.dtype) -> Value:
    lst = _list(node, handle)
    if element_dtype.kind == "O" and lst.items is not None:
        return Batch(lst.items, (len(lst.items),))
    return lists.stacked(lst, _element(element_shape, element_dtype))


@rule("TensorListGather")
def _gather(
    handle: Value, indices: Value, element_shape: Value, *, node: Node, element_dtype: np.dtype
) -> Value:
    element = _element(element_shape, element_dtype)
    return lists.gathered(_list(node, handle), indices, element)


@rule("TensorListScatterIntoExistingList")
def _scatter_into(handle: Value, tensor: Array, indices: Value, *, node: Node) -> TensorList:
    return _scattered(_list(node, handle), tensor, indices)


@rule("TensorListScatter", "TensorListScatterV2")
def _scatter(
    tensor: Array,
    indices: Value,
    element_shape: Value,
    size: Int = -1,
    *,
    node: Node,
    element_dtype: np.dtype,
) -> TensorList:
    if size == -1:
        size = 1 + max(ints(static(node, [tensor, indices], 1)), default=-1)
    element = lists.element_of(tensor[0]) if len(tensor) else None
    return _scattered(_of_given_size(node, _dtype(element_dtype), element, size), tensor, indices)


def _scattered(lst: TensorList, tensor: Array, indices: Value) -> TensorList:
    if isinstance(indices, np.ndarray):
        for position, index in enumerate(ints(indices)):
            item = lax.index_in_dim(tensor, position, keepdims=False)
            lst = lists.set_item(lst, np.asarray(index, np.int32), item, resize=True)
        return lst
    element = jax.ShapeDtypeStruct(tensor.shape[1:], tensor.dtype)
    lst = lists.with_buffer(lst, element=element)
    at = jnp.asarray(lst.buffer).at[indices]
    buffer = at.set(tensor, mode="drop", wrap_negative_indices=False)
    return TensorList(None, buffer, lst.size, element, lst.dtype)


@rule("TensorListConcat", "TensorListConcatV2", ignores=("element_shape",))
def _concat(
    handle: Value,
    element_shape: Value = None,
    leading_dims: Value = None,
    *,
    node: Node,
    element_dtype: np.dtype,
) -> tuple[Array, Value]:
    lst = _list(node, handle)
    if lst.items is None:
        return lists.joined(lists.stacked(lst))
    lengths = ()
    if leading_dims is not None and any(x is None for x in lst.items):
        lengths = ints(static(node, [handle, element_shape, leading_dims], 2))
    items = [
        _unwritten(lst, element_shape, lengths[i] if lengths else None) if x is None else x
        for i, x in enumerate(lst.items)
    ]
    sizes = pack_dims([x.shape[0] for x in items], np.dtype(np.int64))
    if not items:
        element = _element(element_shape, element_dtype)
        items = [lists.zeros_of(element)[:0]] if element is not None else []
    return lax.concatenate(items, 0), sizes


def _unwritten(lst: TensorList, element_shape: Value, length: int | None) -> Array:
    """Zeros for an unwritten element, of the length that the op declares for it."""
    if length is None:
        return lists.zeros_of(lists.known_element(lst))
    other = next((x for x in lst.items or () if x is not None), None)
    rest = np.shape(other)[1:] if other is not None else ints(element_shape)[1:]
    return jnp.zeros((length, *rest), jax.dtypes.canonicalize_dtype(lst.dtype))


@rule("TensorListSplit")
def _split(
    tensor: Array, element_shape: Value, lengths: Ints, *, element_dtype: np.dtype
) -> TensorList:
    parts = tuple(lax.split(tensor, lengths, 0))
    return TensorList(parts, None, len(lengths), None, _dtype(element_dtype))


@rule("TensorListConcatLists")
def _concat_lists(first: Value, second: Value, *, node: Node) -> TensorList:
    one, two = _list(node, first), _list(node, second)
    if one.items is not None and two.items is not None:
        items = (*one.items, *two.items)
        return TensorList(items, None, len(items), one.element, one.dtype)
    rows = jax.tree_util.tree_map(
        lambda a, b: lax.concatenate([a, b], 0), lists.stacked(one), lists.stacked(two)
    )
    total = jax.tree_util.tree_leaves(rows)[0].shape[0]
    return TensorList(None, rows, total, lists.known_element(one), one.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """A tensor of lists.

    **Arguments:**

    - `items`: the lists, in row-major order.
    - `shape`: the shape of the tensor.
    """

    items: tuple[Value, ...]
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def _batch(value: Value) -> Batch:
    return value if isinstance(value, Batch) else Batch((value,), ())


@rule("TensorListPushBackBatch")
def _push_back_batch(handles: Value, tensor: Array, *, node: Node) -> Value:
    batch = _batch(handles)
    rows = lax.reshape(tensor, (len(batch.items), *tensor.shape[len(batch.shape) :]))
    parts = [lax.index_in_dim(rows, i, keepdims=False) for i in range(len(batch.items))]
    pushed = [
        lists.push_back(_list(node, x), part) for x, part in zip(batch.items, parts, strict=True)
    ]
    return Batch(tuple(pushed), batch.shape) if batch.shape else pushed[0]


# Ops on values of any type, lists among them. `Graph.entry` looks these up for the type variant.
# Handles are scalars or a vector, which have one axis to stack along.


@rule("Pack:variant", ignores=("axis",))
def _pack(*values: Value, node: Node) -> Batch:
    if any(isinstance(v, Batch) for v in values):
        raise node.error(
            "stacks tensors of lists; only single lists are supported",
            "Stack the tensors of each list first.",
        )
    return Batch(values, (len(values),))


@rule("Unpack:variant", ignores=("axis",))
def _unpack(value: Value) -> Sequence[Value]:
    return _batch(value).items


@rule("ZerosLike:variant")
def _zeros_like(x: Value) -> Value:
    return _combine(jnp.zeros_like, x)


@rule("AddN:variant")
def _add_lists(*values: Value) -> Value:
    return functools.reduce(functools.partial(_combine, lax.add), values)


def _combine_written(fn: Callable[..., Array], parts: Sequence[Value]) -> Value:
    """`fn` on elements; an unwritten one is zero, which does not change sums."""
    written = [array(x) if hasattr(x, "shape") else x for x in parts if x is not None]
    if len(written) > 1 or (written and len(parts) == 1):
        return _combine(fn, *written)
    return written[0] if written else None


def _combine(fn: Callable[..., Array], *values: Value) -> Value:
    """Apply `fn` to the elements of lists and nested lists, keeping sizes."""
    if isinstance(values[0], RaggedVariant):
        return RaggedVariant(values[0].splits, fn(*(array(v.values) for v in values)))
    if not any(isinstance(v, TensorList) for v in values):
        return fn(*values)
    if len({v.size for v in values if v.items is not None}) == 1 and None not in (
        v.items for v in values
    ):
        items = tuple(
            _combine_written(fn, parts) for parts in zip(*(v.items for v in values), strict=True)
        )
        element = next((v.element for v in values if v.element is not None), None)
        return TensorList(items, None, len(items), element, values[0].dtype)
    known = [v for v in values if isinstance(v, TensorList) and lists.known_element(v) is not None]
    if not known:
        return values[0]
    element = lists.known_element(known[0])
    buffered = [lists.with_buffer(v, element=element) for v in values]
    allocated = [v for v in buffered if v.buffer is not None]
    if len(allocated) < len(values):
        return allocated[0] if allocated else buffered[0]
    buffer = _combine(fn, *(v.buffer for v in buffered))
    first = buffered[0]
    return TensorList(None, buffer, first.size, element, first.dtype)


# -- the `TensorArray…` ops of TensorFlow 1 and its stacks: lists behind handles
#
# The first two versions differ in the type of the handle, and creating an array returns no flow.
# The list is part of the state. The `flow` that orders reads and writes is a meaningless number.
# A gradient array sums the values written to it.

Shape = tuple[int | None, ...] | None

_FLOW = np.zeros((), np.float32)


def _versions(op: str) -> tuple[str, ...]:
    return op, f"{op}V2", f"{op}V3"


def _array_list(ctx: Context, node: Node, handle: Value) -> TensorList:
    lst = ctx.read(handle)
    if not isinstance(lst, TensorList):
        raise node.error("takes a value that is not an array of tensors", REPORT)
    return lst


@rule(
    *_versions("TensorArray"),
    effect="none",
    ignores=("clear_after_read", "identical_element_shapes", "tensor_array_name"),
)
def _tensor_array(
    size: Int,
    *,
    ctx: Context,
    node: Node,
    dtype: np.dtype,
    element_shape: Shape,
    dynamic_size: bool = False,
) -> list[Value]:
    kind = "growing_tensor_array" if dynamic_size else "tensor_array"
    handle = Resource(kind, f"{node.where}/{node.name}", dtype)
    if dynamic_size and is_open(size):  # a symbolic size is one that never grows
        size = as_value(size, np.dtype(np.int32))
    ctx.write(handle, _of_given_size(node, dtype, lists.element_type(element_shape, dtype), size))
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
        original = _array_list(ctx, node, forward)
        if not is_size(original.size):
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
    lst = _array_list(ctx, node, handle)
    if handle.kind == "tensor_array_gradient":
        value = _added(lst, index, value)
    ctx.write(handle, lists.set_item(lst, index, value, resize=_grows(handle, lst, index)))
    return flow


def _grows(handle: Value, lst: TensorList, index: Value) -> bool:
    """Return whether a write may extend the list, unlike an array of fixed size."""
    if handle.kind != "tensor_array_gradient":
        return handle.kind == "growing_tensor_array"
    if not isinstance(lst.size, int):
        return not is_size(lst.size)
    return lst.size == 0 or (isinstance(index, np.ndarray) and int(index) >= lst.size)


def _added(lst: TensorList, index: Value, value: Value) -> Value:
    if lst.items is not None and isinstance(index, np.ndarray) and lst.items[int(index)] is None:
        return value
    return lax.add(lists.get_item(lst, index, lists.element_of(value)), array(value))


@rule(*_versions("TensorArrayRead"), effect="none")
def _read(handle: Value, index: Value, flow: Value, *, ctx: Context, node: Node) -> Value:
    return lists.get_item(_array_list(ctx, node, handle), index)


@rule(*_versions("TensorArraySize"), effect="none")
def _size(handle: Value, flow: Value, *, ctx: Context, node: Node) -> Value:
    size = _array_list(ctx, node, handle).size
    return np.asarray(size, np.int32) if isinstance(size, int) else size


@rule(*_versions("TensorArrayGather"), effect="none")
def _array_gather(
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
    return lists.gathered(_array_list(ctx, node, handle), indices, element)


@rule(*_versions("TensorArrayScatter"))
def _array_scatter(
    handle: Value, indices: Value, value: Array, flow: Value, *, ctx: Context, node: Node
) -> Value:
    lst, tensor = _array_list(ctx, node, handle), jnp.asarray(value)
    unwritten = lst.is_reserved or (lst.items is not None and all(x is None for x in lst.items))
    if unwritten and counts_up(indices) and decided("le", lst.size, tensor.shape[0]):
        ctx.write(handle, lists.from_tensor(tensor, lst.dtype))
        return flow
    if handle.kind != "tensor_array_gradient":
        ctx.write(handle, _scattered(lst, tensor, indices))
        return flow
    for position, index in enumerate(ints(static(node, [handle, indices], 1))):
        place = np.asarray(index, np.int32)
        item = lax.index_in_dim(tensor, position, keepdims=False)
        lst = lists.set_item(lst, place, _added(lst, place, item), resize=True)
    ctx.write(handle, lst)
    return flow


@rule("TensorArrayPack")
def _array_pack(
    handle: Value, flow: Value, *, ctx: Context, node: Node, dtype: np.dtype, element_shape: Shape
) -> Value:
    return lists.stacked(_array_list(ctx, node, handle), lists.element_type(element_shape, dtype))


@rule("TensorArrayUnpack")
def _array_unpack(handle: Value, value: Array, flow: Value, *, ctx: Context, node: Node) -> Value:
    ctx.write(handle, lists.from_tensor(jnp.asarray(value), _array_list(ctx, node, handle).dtype))
    return flow


@rule(*_versions("TensorArrayConcat"), effect="none", ignores=("element_shape_except0",))
def _array_concat(handle: Value, flow: Value, *, ctx: Context, node: Node) -> tuple[Array, Value]:
    lst = _array_list(ctx, node, handle)
    if lst.items is not None and all(x is not None for x in lst.items):
        items = [jnp.asarray(array(x)) for x in lst.items]
        lengths = pack_dims([x.shape[0] for x in items], np.dtype(np.int64))
        return lax.concatenate(items, 0), lengths
    return lists.joined(lists.stacked(lst))


@rule(*_versions("TensorArraySplit"))
def _array_split(
    handle: Value, value: Array, lengths: Ints, flow: Value, *, ctx: Context, node: Node
) -> Value:
    parts = tuple(lax.split(value, lengths, 0))
    dtype = _array_list(ctx, node, handle).dtype
    ctx.write(handle, TensorList(parts, None, len(parts), None, dtype))
    return flow


@rule(*_versions("TensorArrayClose"), "StackClose", "StackCloseV2", effect="none")
def _close(handle: Value) -> None:
    return None


@rule("Stack", "StackV2", effect="none", ignores=("stack_name",))
def _array_stack(
    max_size: Value = None, *, ctx: Context, node: Node, elem_type: np.dtype
) -> Resource:
    handle = Resource("stack", f"{node.where}/{node.name}", elem_type)
    ctx.write(handle, lists.empty(elem_type, None))
    return handle


@rule("StackPush", "StackPushV2", ignores=("swap_memory",))
def _push(handle: Value, value: Value, *, ctx: Context, node: Node) -> Value:
    lst = _array_list(ctx, node, handle)
    if isinstance(value, Resource):
        reason = "keeps a stack per step of an outer loop, as gradients of nested loops do"
        raise node.error(reason, FRAMES_REMEDY)
    ctx.write(handle, lists.push_back(lst, value))
    return value


@rule("StackPop", "StackPopV2")
def _pop(handle: Value, *, ctx: Context, node: Node) -> Value:
    lst, value = lists.pop_back(_array_list(ctx, node, handle))
    ctx.write(handle, lst)
    return value
