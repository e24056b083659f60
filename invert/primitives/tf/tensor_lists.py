"""The `TensorList…` ops, which `tf.TensorArray` and the gradients of loops are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node, canonical
from invert.tf.values import tensor_list as lists
from invert.tf.values.constants import array, as_sizes, ints, is_size, static
from invert.tf.values.ragged import Apart, Encoded
from invert.tf.values.tensor_list import Element, TensorList


def _dtype(node: Node) -> np.dtype | None:
    dtype = node.attr("element_dtype")
    return None if dtype is None or dtype.kind == "O" else dtype


def _element(node: Node, values: Sequence[Any], index: int) -> Element | None:
    """The type that input `index` states: a shape, or the scalar -1 for an unknown rank."""
    value = values[index]
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.dtype == object:
        return None
    return lists.element_type(ints(value), _dtype(node))


def _list(node: Node, value: Any) -> TensorList:
    if not isinstance(value, TensorList):
        reason = f"takes a {type(value).__name__} for a list"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    return value


@raises_tf("EmptyTensorList")
def _empty(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lists.empty(_dtype(node), _element(node, values, 0))]


@raises_tf("TensorListReserve")
def _reserve(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (size,) = ints(static(node, values, 1))
    return [lists.empty(_dtype(node), _element(node, values, 0), size)]


@raises_tf("TensorListFromTensor")
def _from_tensor(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if isinstance(values[0], Batch):
        items = values[0].items
        return [TensorList(items, None, len(items), None, _dtype(node))]
    if isinstance(values[0], Apart):
        return [values[0]]
    known = lists.is_known(values[0]) and values[0].dtype != object
    rows = canonical(values[0]) if known else jnp.asarray(array(values[0]))
    return [lists.from_tensor(rows, _dtype(node))]


@raises_tf("TensorListPushBack")
def _push_back(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lists.push_back(_list(node, values[0]), values[1])]


@raises_tf("TensorListPopBack")
def _pop_back(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return list(lists.pop_back(_list(node, values[0]), _element(node, values, 1)))


@raises_tf("TensorListLength")
def _length(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if isinstance(values[0], Apart):
        return [np.asarray(values[0].rows, np.int32)]
    size = _list(node, values[0]).size
    return [as_sizes(size, np.dtype(np.int32)) if is_size(size) else size]


@raises_tf("TensorListElementShape")
def _element_shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if isinstance(values[0], Apart):
        return [np.asarray(-1, node.attr("shape_type"))]
    try:
        element = lists.known_element(_list(node, values[0]))
    except lists.RaggedListError:
        element = None  # of several shapes, which TensorFlow calls an unknown one
    dtype = node.attr("shape_type")
    if not isinstance(element, jax.ShapeDtypeStruct):
        return [np.asarray(-1, dtype)]
    return [np.asarray(element.shape, dtype)]


@raises_tf("TensorListResize")
def _resize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lists.resized(_list(node, values[0]), values[1])]


@raises_tf("TensorListGetItem")
def _get_item(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if isinstance(values[0], Apart):
        return [values[0].at(node, array(values[1]))]
    return [lists.get_item(_list(node, values[0]), values[1], _element(node, values, 2))]


@raises_tf("TensorListSetItem")
def _set_item(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    resize = node.attr("resize_if_index_out_of_bounds", False)
    return [lists.set_item(_list(node, values[0]), values[1], values[2], resize=resize)]


@raises_tf("TensorListStack")
def _stack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    items = _list(node, values[0]).items
    if node.attr("element_dtype").kind == "O" and items is not None:
        return [Batch(items, (len(items),))]
    return [lists.stacked(_list(node, values[0]), _element(node, values, 1))]


@raises_tf("TensorListGather")
def _gather(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst, indices = _list(node, values[0]), values[1]
    element = _element(node, values, 2)
    if isinstance(indices, np.ndarray):
        places = [np.asarray(i, np.int32) for i in ints(indices)]
        if isinstance(lst.size, int) and [int(i) for i in places] == list(range(lst.size)):
            return [lists.stacked(lst, element)]
        return [jnp.stack([lists.get_item(lst, i, element) for i in places])]
    rows = lists.with_buffer(lst, element=element).buffer
    return [jnp.take(rows, indices, axis=0, mode="clip")]


@raises_tf("TensorListScatter", "TensorListScatterV2", "TensorListScatterIntoExistingList")
def _scatter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if node.op == "TensorListScatterIntoExistingList":
        lst, tensor, indices = _list(node, values[0]), array(values[1]), values[2]
    else:
        tensor, indices = array(values[0]), values[1]
        fixed = ints(static(node, values, 3))[0] if node.op == "TensorListScatterV2" else -1
        size = fixed if fixed != -1 else 1 + max(ints(static(node, values, 1)), default=-1)
        lst = lists.empty(_dtype(node), lists.element_of(tensor[0]) if len(tensor) else None, size)
    if isinstance(indices, np.ndarray):
        for position, index in enumerate(ints(indices)):
            item = lax.index_in_dim(tensor, position, keepdims=False)
            lst = lists.set_item(lst, np.asarray(index, np.int32), item, resize=True)
        return [lst]
    element = jax.ShapeDtypeStruct(tensor.shape[1:], tensor.dtype)
    lst = lists.with_buffer(lst, element=element)
    buffer = (
        jnp.asarray(lst.buffer).at[indices].set(tensor, mode="drop", wrap_negative_indices=False)
    )
    return [TensorList(None, buffer, lst.size, element, lst.dtype)]


@raises_tf("TensorListConcat", "TensorListConcatV2")
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    lst = _list(node, values[0])
    length_type = np.int64
    if lst.items is not None:
        items = [
            _unwritten(node, lst, values, i) if x is None else x for i, x in enumerate(lst.items)
        ]
        if not items:
            empty = _element(node, values, 1) if len(values) > 1 else None
            items = [lists.zeros_of(empty)[:0]] if empty is not None else []
        lengths = np.asarray([x.shape[0] for x in items][: len(lst.items)], length_type)
        return [lax.concatenate(items, 0), lengths]
    rows = lists.stacked(lst)
    lengths = np.full(rows.shape[0], rows.shape[1], length_type)
    return [lax.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:])), lengths]


def _unwritten(node: Node, lst: TensorList, values: Sequence[Any], index: int) -> Any:
    """Zeros for an element that was not written, of the length that the op states for it."""
    lengths = ints(static(node, values, 2)) if len(values) > 2 else ()
    if not lengths:
        return lists.zeros_of(lists.known_element(lst))
    other = next((x for x in lst.items or () if x is not None), None)
    rest = np.shape(other)[1:] if other is not None else ints(static(node, values, 1))[1:]
    dtype = jax.dtypes.canonicalize_dtype(lst.dtype)
    return jnp.zeros((lengths[index], *rest), dtype)


@raises_tf("TensorListSplit")
def _split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    tensor, lengths = array(values[0]), ints(static(node, values, 2))
    return [
        TensorList(tuple(lax.split(tensor, lengths, 0)), None, len(lengths), None, _dtype(node))
    ]


@raises_tf("TensorListConcatLists")
def _concat_lists(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    one, two = _list(node, values[0]), _list(node, values[1])
    if one.items is not None and two.items is not None:
        items = (*one.items, *two.items)
        return [TensorList(items, None, len(items), one.element, one.dtype)]
    rows = jax.tree_util.tree_map(
        lambda a, b: lax.concatenate([a, b], 0), lists.stacked(one), lists.stacked(two)
    )
    total = jax.tree_util.tree_leaves(rows)[0].shape[0]
    return [TensorList(None, rows, total, lists.known_element(one), one.dtype)]


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Batch:
    """A tensor of lists.

    **Arguments:**

    - `items`: the lists, in the order of rows.
    - `shape`: the shape of the tensor.
    """

    items: tuple[Any, ...]
    shape: tuple[int, ...]

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        return self.items, self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], items: Any) -> Batch:
        return cls(tuple(items), shape)


def _batch(value: Any) -> Batch:
    return value if isinstance(value, Batch) else Batch((value,), ())


@raises_tf("TensorListPushBackBatch")
def _push_back_batch(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    batch, tensor = _batch(values[0]), array(values[1])
    rows = lax.reshape(tensor, (len(batch.items), *tensor.shape[len(batch.shape) :]))
    parts = [lax.index_in_dim(rows, i, keepdims=False) for i in range(len(batch.items))]
    pushed = [
        lists.push_back(_list(node, x), part) for x, part in zip(batch.items, parts, strict=True)
    ]
    return [Batch(tuple(pushed), batch.shape) if batch.shape else pushed[0]]


# Ops on values of any type that take lists too. `Graph.rule` finds these for the type variant.


@raises_tf("Pack:variant")
def _pack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if any(isinstance(v, Batch) for v in values):
        reason = "stacks tensors of lists, of which only single lists are supported"
        raise UnsupportedOpError([Problem("tf.Pack", reason, node.location)])
    return [Batch(tuple(values), (len(values),))]


@raises_tf("Unpack:variant")
def _unpack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return list(_batch(values[0]).items)


@raises_tf("ZerosLike:variant")
def _zeros_like(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_combine(lambda x: jnp.zeros_like(x), values[0])]


@raises_tf("AddN:variant")
def _add_lists(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    total = values[0]
    for value in values[1:]:
        total = _combine(lax.add, total, value)
    return [total]


def _combine_present(fn: Callable[..., Any], parts: Sequence[Any]) -> Any:
    """`fn` of elements; one that was not written is zero, which changes no sum."""
    present = [array(x) if hasattr(x, "shape") else x for x in parts if x is not None]
    if len(present) > 1 or (present and len(parts) == 1):
        return _combine(fn, *present)
    return present[0] if present else None


def _combine(fn: Callable[..., Any], *values: Any) -> Any:
    """Applies `fn` to the elements of lists, and of lists in lists; sizes stay as they are."""
    if isinstance(values[0], Encoded):
        return Encoded(values[0].splits, fn(*(array(v.values) for v in values)))
    if not any(isinstance(v, TensorList) for v in values):
        return fn(*values)
    if len({v.size for v in values if v.items is not None}) == 1 and None not in (
        v.items for v in values
    ):
        items = tuple(
            _combine_present(fn, parts) for parts in zip(*(v.items for v in values), strict=True)
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
