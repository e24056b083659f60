"""Lists of tensors, and the operations on them.

Outside loops a list is a tuple of its elements. A list that is indexed by data, or carried by a
loop, is a buffer of `capacity` elements and the number in use. Ops of both kinds of arrays,
`TensorList…` and `TensorArray…V3`, share these functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.ir.sizes import DimSize, as_value, decided, is_open
from invert.ir.types import Value
from invert.tf.values.bounds import counts_up
from invert.tf.values.constants import array, ints, is_size, is_static, pack_dims
from invert.tf.values.dynamic_size import int_max

Element = Value  # a pytree of jax.ShapeDtypeStruct


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class TensorList:
    """A list of tensors of one type.

    **Arguments:**

    - `items`: the elements, `None` for one not written yet; `None` for a list with a buffer.
    - `buffer`: the elements along the leading axis of each leaf.
    - `size`: number of elements: an `int`, symbolic, or a scalar array.
    - `element`: type of an element, if known.
    - `dtype`: type of the elements as declared in the graph; `None` for lists of lists.
    - `same`: the static value of every element, such as a shape that each loop step pushes for
        its gradient; there is then no buffer.
    - `growth`: for a list of unknown capacity (neither items nor buffer), a placeholder while a
        loop body is first traced: the number of elements added.
    """

    items: tuple[Value, ...] | None
    buffer: Value
    size: Value
    element: Element | None
    dtype: np.dtype | None
    same: Value = None
    growth: int = 0

    def tree_flatten(self) -> tuple[tuple[Value, ...], Value]:
        fixed = self.size if is_size(self.size) else None
        dynamic = None if is_size(self.size) else self.size
        aux = (fixed, _Uncompared((self.element, self.same)), self.dtype, self.growth)
        return (self.items, self.buffer, dynamic), aux

    @classmethod
    def tree_unflatten(cls, aux: Value, children: Value) -> TensorList:
        items, buffer, dynamic = children
        fixed, hidden, dtype, growth = aux
        element, same = hidden.value
        size = fixed if fixed is not None else dynamic
        return cls(items, buffer, size, element, dtype, same, growth)

    @property
    def capacity(self) -> Value:
        """The capacity; `None` if not known yet."""
        if self.items is not None:
            return len(self.items)
        if self.is_reserved:
            return self.size
        leaves = jax.tree_util.tree_leaves(self.buffer)
        return leaves[0].shape[0] if leaves else None

    @property
    def is_reserved(self) -> bool:
        """True if the list has a symbolic capacity and no element written."""
        return self.is_unallocated and is_size(self.size) and not isinstance(self.size, int)

    @property
    def is_unallocated(self) -> bool:
        return self.items is None and self.buffer is None and self.same is None

    @property
    def common(self) -> Value:
        """The static value shared by all elements, if any."""
        if self.same is not None or not self.items:
            return self.same
        first = self.items[0]
        return first if all(is_same(x, first) for x in self.items) else None


def is_same(a: Value, b: Value) -> bool:
    """Return whether two values are static and equal, or lists of such values."""
    if isinstance(a, TensorList) and isinstance(b, TensorList):
        if jax.tree_util.tree_leaves((a, b)):
            return False
        return a.size == b.size and is_same(a.common, b.common)
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and (a.dtype, a.shape) == (b.dtype, b.shape)
        and bool(np.all(a == b))
    )


def is_known(value: Value) -> bool:
    """Return whether a value is a static index or shape, or a list of those."""
    if not isinstance(value, TensorList):
        return is_static(value) and value.dtype.kind in "iubO"
    if value.items is not None:
        return all(x is None or is_known(x) for x in value.items)
    return value.same is not None or _known_buffer(value) is not None


def _known_buffer(lst: TensorList) -> np.ndarray | None:
    """The buffer of a list of static integers."""
    known = isinstance(lst.buffer, np.ndarray) and is_known(lst.buffer)
    return lst.buffer if known and is_size(lst.size) else None


_ONE = "Keep one type in each list, or let the number of steps follow from shapes."


class RaggedListError(UnsupportedOpError):
    """The elements of a list have several shapes where one is needed."""


class _Uncompared:
    """Keeps types and arrays out of the comparison of tree structures."""

    def __init__(self, value: Value):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Uncompared)

    def __hash__(self) -> int:
        return 0


def empty(dtype: np.dtype | None, element: Element | None, size: Value = 0) -> TensorList:
    """A list of `size` (an `int` or symbolic) elements, none of them written."""
    items = (None,) * size if isinstance(size, int) else None
    return TensorList(items, None, size, element, dtype)


def from_tensor(tensor: Value, dtype: np.dtype | None) -> TensorList:
    """The list of the slices of an array along its leading axis."""
    element = jax.ShapeDtypeStruct(tensor.shape[1:], tensor.dtype)
    return TensorList(None, tensor, tensor.shape[0], element, dtype)


def element_of(value: Value, sizes: np.dtype | None = None) -> Element:
    """The type of an element; `sizes` is the type of open sizes, by default int32."""

    def kind(x: Value) -> np.dtype:
        dtype = (sizes or np.dtype(np.int32)) if x.dtype == object else x.dtype
        return jax.dtypes.canonicalize_dtype(dtype)

    return jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(np.shape(x), kind(x)), value)


def element_type(shape: Sequence[int | None] | None, dtype: np.dtype | None) -> Element | None:
    """The type of elements of a declared shape; `None` if a size is open."""
    if dtype is None or shape is None:
        return None
    if not all(is_open(d) or (isinstance(d, int) and d >= 0) for d in shape):
        return None
    return jax.ShapeDtypeStruct(tuple(shape), jax.dtypes.canonicalize_dtype(dtype))


def zeros_of(element: Element) -> Value:
    return jax.tree_util.tree_map(lambda t: jnp.zeros(t.shape, t.dtype), element)


def known_element(lst: TensorList, value: Value = None) -> Element | None:
    """The type of elements and of `value`, declared or inferred from stored elements."""
    if lst.element is not None:
        return lst.element if value is None else merge(lst.element, element_of(value, lst.dtype))
    if lst.same is not None:
        return element_of(lst.same, lst.dtype)
    stored = [x for x in (*(lst.items or ()), value) if x is not None]
    if stored:
        return functools.reduce(merge, [element_of(x, lst.dtype) for x in stored])
    if lst.buffer is not None:
        types = element_of(lst.buffer)
        return jax.tree_util.tree_map(lambda t: jax.ShapeDtypeStruct(t.shape[1:], t.dtype), types)
    return None


def element_value(value: Value) -> Value:
    """A value in stored form: static values unchanged, lists with a buffer."""
    if isinstance(value, TensorList):
        common = value.common
        if common is not None:
            element = element_of(common, value.dtype)
            return TensorList(None, None, value.size, element, value.dtype, common)
        return with_buffer(value)
    if is_static(value) or not hasattr(value, "dtype"):
        return value
    return jnp.asarray(array(value))


def merge(one: Element | None, two: Element | None) -> Element | None:
    """The type that `conform` converts elements of both types to.

    **Raises:** `RaggedListError` if there is none.
    """
    if one is None or two is None:
        return two if one is None else one
    if isinstance(one, TensorList) and isinstance(two, TensorList):
        fixed = is_size(one.size) and one.size == two.size
        same = one.same if is_same(one.same, two.same) else None
        return TensorList(
            None,
            merge(one.buffer, two.buffer),
            one.size if fixed else jax.ShapeDtypeStruct((), np.dtype(np.int32)),
            merge(one.element, two.element),
            one.dtype,
            same,
        )
    types = [None if isinstance(t, TensorList) else _types(t) for t in (one, two)]
    if None in types or types[0] != types[1]:
        problem = Problem(
            "tf.TensorList", f"holds elements of several types: {one} and {two}", remedy=_ONE
        )
        raise RaggedListError([problem])
    return one


def _types(element: Element) -> tuple[Value, list[Value]]:
    leaves, tree = jax.tree_util.tree_flatten(element)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


def conform(value: Value, element: Element) -> Value:
    """Convert a stored value to the type that `merge` gave."""
    if not hasattr(value, "dtype"):
        return value
    if not isinstance(value, TensorList):
        typed = isinstance(element, jax.ShapeDtypeStruct)
        return jnp.asarray(array(value, element.dtype) if typed else array(value))
    if not isinstance(element, TensorList):
        return value
    if value.same is not None and element.same is None:
        leaves = jax.tree_util.tree_leaves(element.buffer)
        value = with_buffer(value, capacity=leaves[0].shape[0] if leaves else None)
    counted = not is_size(element.size)
    size = jnp.asarray(value.size, np.int32) if counted else value.size
    buffer = None if element.same is not None else value.buffer
    return TensorList(None, buffer, size, element.element, element.dtype, element.same)


def with_buffer(
    lst: TensorList,
    *,
    element: Element | None = None,
    capacity: DimSize | None = None,
    counted: bool = False,
) -> TensorList:
    """The list with a buffer.

    **Arguments:**

    - `element`: a type to merge with that of the elements, see `merge`.
    - `capacity`: the minimum capacity.
    - `counted`: whether the size becomes an array.
    """
    element = merge(element, known_element(lst))
    size = jnp.asarray(lst.size, np.int32) if counted else lst.size
    if lst.is_reserved and element is not None:
        return TensorList(None, _room(element, lst.size), size, element, lst.dtype)
    if lst.is_unallocated or element is None:
        return dataclasses.replace(lst, items=None, buffer=None, size=size, element=element)
    buffer = lst.buffer
    if lst.same is not None:
        room = lst.size if is_size(lst.size) else capacity
        if room is None:
            raise _problem("repeats one value without a known bound on the number of times")
        buffer = jax.tree_util.tree_map(
            lambda x: lax.broadcast(x, (room,)), conform(lst.same, element)
        )
        return with_buffer(
            TensorList(None, buffer, size, element, lst.dtype), capacity=capacity, counted=counted
        )
    if lst.items is not None:
        if all(x is None for x in lst.items):
            buffer = _room(element, len(lst.items))
        else:
            items = [zeros_of(element) if x is None else conform(x, element) for x in lst.items]
            try:
                buffer = jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *items)
            except (TypeError, ValueError) as error:
                problem = Problem(
                    "tf.TensorList", f"holds elements of several shapes: {error}", remedy=_ONE
                )
                raise RaggedListError([problem]) from error
    have = len(lst.items) if lst.items is not None else lst.capacity
    assert have is not None
    if capacity is not None and not decided("ge", have, capacity):
        more = int_max(have, capacity) - have
        buffer = jax.tree_util.tree_map(lambda b: _padded(b, more), buffer)
    return TensorList(None, buffer, size, element, lst.dtype)


def _room(element: Element, size: Value) -> Value:
    return jax.tree_util.tree_map(lambda t: lax.full((size, *t.shape), 0, t.dtype), element)


def _padded(x: Value, count: int) -> Value:
    if x.shape[0] == 0:
        return lax.full((count, *x.shape[1:]), 0, x.dtype)
    return lax.pad(x, np.zeros((), x.dtype), [(0, count, 0), *([(0, 0, 0)] * (x.ndim - 1))])


def _place(index: DimSize) -> np.ndarray:
    return pack_dims([index], np.dtype(np.int32)).reshape(())


def _problem(reason: str, remedy: str = "") -> UnsupportedOpError:
    return UnsupportedOpError([Problem("tf.TensorList", reason, remedy=remedy)])


def get_item(lst: TensorList, index: Value, element: Element | None = None) -> Value:
    """The element at `index`; zeros if none was written."""
    element = lst.element if lst.element is not None else element
    if lst.same is not None:
        return lst.same
    i = index.item() if isinstance(index, np.ndarray) else None
    if lst.items is not None and isinstance(i, int):
        if not 0 <= i < len(lst.items):
            raise _problem(f"reads element {i} of {len(lst.items)}")
        if lst.items[i] is not None:
            return lst.items[i]
    if isinstance(i, int) and (rows := _known_buffer(lst)) is not None:
        return np.asarray(rows[i])
    lst = with_buffer(lst, element=element)
    if lst.buffer is None:
        if lst.element is None:
            raise _problem(
                "reads an element that was not written and has no known shape",
                "Give the TensorArray an element_shape.",
            )
        return zeros_of(lst.element)
    return jax.tree_util.tree_map(lambda b: slice_at(b, index), lst.buffer)


def slice_at(x: Value, index: Value) -> Value:
    """`x[index]` for an index in range; static if the index is."""
    if isinstance(index, np.ndarray):
        i = index.item()
        if isinstance(i, int) or (is_open(i) and decided("ge", x.shape[0], i + 1)):
            return lax.squeeze(lax.slice_in_dim(x, i, i + 1), (0,))
        index = array(index)
    starts = (index, *([np.zeros((), index.dtype)] * (x.ndim - 1)))
    # Indices of a list are never negative, so they need no correction.
    row = lax.dynamic_slice_p.bind(x, *starts, slice_sizes=(1, *x.shape[1:]))
    return lax.squeeze(row, (0,))


def update_at(x: Value, value: Value, index: Value) -> Value:
    """`x` with `value` at `index` of its leading axis."""
    value = jnp.asarray(array(value))
    start = array(index)
    if isinstance(start, np.ndarray):
        start = start.astype(np.int32)
    dtype = start.dtype
    zeros = [np.zeros((), dtype)] * (x.ndim - 1)
    return lax.dynamic_update_slice_p.bind(x, lax.expand_dims(value, (0,)), start, *zeros)


def set_item(lst: TensorList, index: Value, value: Value, *, resize: bool = False) -> TensorList:
    """The list with `value` at `index`, extended if needed and `resize`."""
    value = element_value(value)
    i = index.item() if isinstance(index, np.ndarray) else None
    if lst.items is not None and isinstance(i, int):
        items = lst.items + (None,) * (i + 1 - len(lst.items) if resize else 0)
        if not 0 <= i < len(items):
            raise _problem(f"writes element {i} of {len(items)}")
        items = (*items[:i], value, *items[i + 1 :])
        return TensorList(items, None, len(items), lst.element, lst.dtype)
    element = known_element(lst, value)
    size = lst.size
    if resize:
        end = jnp.asarray(index, np.int32) + np.int32(1)
        size = lax.max(jnp.asarray(size, np.int32), end)
    growing = resize and isinstance(lst.size, int)  # only the enclosing loop determines how far
    if growing or (lst.same is not None and not is_size(lst.size)):
        lst = dataclasses.replace(lst, items=None, buffer=None, same=None)
    lst = with_buffer(lst, element=element)
    if lst.buffer is None:
        growth = lst.growth + int(resize)
        return dataclasses.replace(lst, size=size, element=element, growth=growth)
    return _written(lst, index, conform(value, element), size)


def _written(lst: TensorList, index: Value, value: Value, size: Value) -> TensorList:
    """A list of `size` elements whose buffer has `value` at `index`."""
    if isinstance(size, int) and size == 1:  # as layers that return the last step alone use it
        buffer = jax.tree_util.tree_map(lambda v: lax.expand_dims(v, (0,)), value)
    else:
        buffer = jax.tree_util.tree_map(lambda b, v: update_at(b, v, index), lst.buffer, value)
    return dataclasses.replace(lst, buffer=buffer, size=size)


def push_back(lst: TensorList, value: Value) -> TensorList:
    """The list with one more element at the end."""
    value = element_value(value)
    if lst.items is not None:
        items = (*lst.items, value)
        return TensorList(items, None, len(items), lst.element, lst.dtype)
    element = known_element(lst, value)
    longer = lst.size + (1 if is_size(lst.size) else np.int32(1))
    if lst.same is not None and is_same(lst.same, value):
        return dataclasses.replace(lst, size=longer)
    if lst.same is not None and is_size(lst.size):
        return push_back(with_buffer(lst), value)
    if lst.buffer is None:
        growth = lst.growth + 1
        return dataclasses.replace(lst, same=None, size=longer, element=element, growth=growth)
    index = lst.size
    if is_size(index):
        if not decided("ge", lst.capacity, longer):
            lst = with_buffer(lst, capacity=longer)
        index = _place(index)
    lst = dataclasses.replace(lst, element=element)
    return _written(lst, index, conform(value, element), longer)


def pop_back(lst: TensorList, element: Element | None = None) -> tuple[TensorList, Value]:
    """The list without its last element, and that element."""
    if is_size(lst.size):
        if lst.size == 0:
            raise _problem("pops an element of an empty list")
        last: Value = _place(lst.size - 1)
        size: Value = lst.size - 1
    else:
        last = size = lst.size - np.int32(1)
    value = get_item(lst, last, element)
    if lst.items is not None:
        last_one = lst.element is None and len(lst.items) == 1
        element = element_of(value, lst.dtype) if last_one else lst.element
        return TensorList(lst.items[:-1], None, size, element, lst.dtype), value
    return dataclasses.replace(lst, size=size), value


def resized(lst: TensorList, size: Value) -> TensorList:
    """The list truncated or extended to `size` elements."""
    if isinstance(size, np.ndarray) and isinstance(lst.size, int):
        n = int(size)
        if lst.items is not None:
            items = lst.items[:n] + (None,) * (n - len(lst.items))
            return TensorList(items, None, n, lst.element, lst.dtype)
        if lst.buffer is not None and n <= lst.size:
            return dataclasses.replace(lst, size=n)
        return dataclasses.replace(with_buffer(lst, capacity=n), size=n)
    return dataclasses.replace(with_buffer(lst), size=jnp.asarray(array(size), np.int32))


def stacked(lst: TensorList, element: Element | None = None) -> Value:
    """All elements along a new leading axis.

    **Raises:** `UnsupportedOpError` if their number depends on data.
    """
    if not is_size(lst.size):
        raise _problem(
            "is stacked, but the number of its elements depends on data",
            "Give the TensorArray a fixed size.",
        )
    if lst.items and all(isinstance(x, np.ndarray) and is_known(x) for x in lst.items):
        return np.stack(lst.items)
    lst = with_buffer(lst, element=element)
    if lst.buffer is None:
        if lst.element is None:
            raise _problem("is stacked, but nothing was written and no element_shape is known")
        lst = with_buffer(empty(lst.dtype, lst.element, lst.size))
    if lst.capacity == lst.size:
        return lst.buffer
    return jax.tree_util.tree_map(lambda b: lax.slice_in_dim(b, 0, lst.size), lst.buffer)


def gathered(lst: TensorList, indices: Value, element: Element | None = None) -> Value:
    """The elements at `indices` along a new leading axis."""
    if is_size(lst.size) and lst.size == np.size(indices) and counts_up(indices):
        return stacked(lst, element)
    if isinstance(indices, np.ndarray):
        places = ints(indices)
        return jnp.stack([get_item(lst, np.asarray(i, np.int32), element) for i in places])
    return jnp.take(with_buffer(lst, element=element).buffer, indices, axis=0, mode="clip")


def joined(rows: Value) -> tuple[Value, Value]:
    """Elements concatenated along their first axis, and the length of each."""
    count, length = rows.shape[:2]
    int64 = jax.dtypes.canonicalize_dtype(np.int64)
    if is_open(count):
        lengths = lax.full((count,), as_value(length, int64), int64)
    else:
        lengths = pack_dims([length] * count, int64)
    return lax.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:])), lengths
