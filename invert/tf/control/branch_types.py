"""Traces branches and loop bodies once, with results and written state.

A branch or body is first traced into a separate jaxpr. This shows which state it writes and which
of its results are static, before `lax.cond` or `lax.while_loop` require results of one type. The
jaxpr is then evaluated inside them, so that a body is raised once, however deeply it is nested.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import eval_closed, open_jaxpr, trace_closed
from invert.ir.avals import type_text
from invert.ir.sizes import DimSize
from invert.ir.types import Atom, Aval, Value
from invert.tf.ops.state import Resource
from invert.tf.values.bounded import BoundedArray, resized
from invert.tf.values.constants import array, is_size
from invert.tf.values.dynamic_size import DynamicSize, holds_dynamic_size
from invert.tf.values.tensor_list import (
    Element,
    TensorList,
    is_same,
    known_element,
    merge,
    with_buffer,
)


class ShapeVariesError(Exception):
    """A value has different types in two branches or across a loop step."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(eq=False)
class Undefined:
    """A value undefined in one branch; it takes the type of the others."""


@jax.tree_util.register_pytree_node_class
class Optional:
    """The value of `OptionalFromValue`, in which branches store residuals of their gradients.

    `choices` holds the values it has in several branches, by kind, type and number of the branch.
    """

    def __init__(self, choices: Mapping[tuple[Hashable, ...], object]):
        self.choices = dict(choices)

    @classmethod
    def of(cls, value: Value, branch: int) -> Optional:
        form = form_of(value)
        if not isinstance(form, ArrayForm) and not isinstance(value, np.ndarray):
            return cls({("other", None, None, branch): value})
        kind = type_of(value) if isinstance(form, ArrayForm) else np.asarray(value)
        dtype = jax.dtypes.canonicalize_dtype(kind.dtype)
        return cls({("array", tuple(kind.shape), str(dtype), branch): value})

    def tree_flatten(self) -> tuple[tuple[Value, ...], Value]:
        leaves, put = flatten(list(self.choices.values()))
        return tuple(leaves), (tuple(self.choices), put)

    @classmethod
    def tree_unflatten(cls, aux: Value, children: Sequence[Value]) -> Optional:
        keys, put = aux
        return cls(dict(zip(keys, put(children), strict=True)))


def is_known(value: Value) -> bool:
    """Return whether a value is static: an array, a handle, or nothing."""
    return value is None or isinstance(value, np.ndarray | Resource | bool | int | float)


def truth(value: Value) -> Value:
    """A condition of an `If` or `While`: static, or a bool scalar.

    Numbers are true unless zero, other arrays unless empty
    (tensorflow/core/kernels/functional_ops.cc, `ToBool`, TensorFlow 2.21).
    """
    if np.ndim(value):
        return np.asarray(0 not in np.shape(value))
    if isinstance(value, np.ndarray):
        return np.asarray(bool(value))
    return value if value.dtype == np.bool_ else lax.ne(value, np.zeros((), value.dtype))


def flatten(
    values: Sequence[Value],
) -> tuple[list[Value], Callable[[Sequence[Value]], list[Value]]]:
    """The JAX values in `values`, and the function that rebuilds them from others."""
    # A size known only at run time is traced, and must not leave the trace as a static value.
    values = [array(v) if holds_dynamic_size(v) else v for v in values]
    static = {i: v for i, v in enumerate(values) if is_known(v)}
    traced = [None if i in static else v for i, v in enumerate(values)]
    leaves, tree = jax.tree_util.tree_flatten(traced)

    def rebuild(new: Sequence[Value]) -> list[Value]:
        values = jax.tree_util.tree_unflatten(tree, new)
        return [static.get(i, v) for i, v in enumerate(values)]

    return leaves, rebuild


def type_of(x: Value) -> jax.ShapeDtypeStruct:
    """The type of a JAX value, which may be a key."""
    dtype = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
    return jax.ShapeDtypeStruct(np.shape(x), dtype)


def strong(x: Value) -> Value:
    """`x` without its weak type."""
    x = jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype) if x.weak_type else x


class TracedBranch:
    """A function traced once.

    **Arguments:**

    - `fn`: takes one value for each of `inputs` and returns a list of values.
    - `inputs`: types of the arguments.
    """

    def __init__(self, fn: Callable[..., Sequence[Value]], inputs: Sequence[Value] = ()):
        rebuild: list[Callable[[Sequence[Value]], list[Value]]] = []

        def traced(*leaves: Value) -> list[Value]:
            results, put = flatten(fn(*leaves))
            rebuild.append(put)
            return [strong(x) for x in results]

        self.closed = trace_closed(traced, *inputs)
        self._rebuild = rebuild[-1]
        outvars: Sequence[Atom] = open_jaxpr(self.closed).outvars
        avals: list[Aval] = [v.aval for v in outvars]
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        self.results = self._rebuild(types)

    def flat(self, leaves: Sequence[Value]) -> list[Value]:
        """The JAX values among the results."""
        return eval_closed(self.closed, leaves)

    def __call__(self, *leaves: Value) -> list[Value]:
        return self._rebuild(self.flat(leaves))


# -- forms: the common types that values of several branches are converted to


@dataclasses.dataclass(frozen=True)
class Static:
    """A value equal in every branch: static, a handle, or a pytree."""

    value: Value


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """An array of one type."""

    type: jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class BoundedForm:
    """A bounded array; `type` is that of its data."""

    type: jax.ShapeDtypeStruct
    of: BoundedArray


@dataclasses.dataclass(frozen=True)
class ListForm:
    """A list with a buffer for `capacity` elements, `None` if still unknown.

    **Arguments:**

    - `size`: the size, if it is always the same.
    - `same`: the static value of every element, without a buffer.
    - `is_empty`: whether it has no element yet.
    """

    capacity: DimSize | None
    element: Element | None
    size: DimSize | None
    same: Value = None
    is_empty: bool = False


@dataclasses.dataclass(frozen=True)
class UnionForm:
    """A value that has different types in different branches; see `Optional`."""

    forms: Mapping[tuple[Hashable, ...], Form]


Form = Static | ArrayForm | BoundedForm | ListForm | UnionForm


def form_of(value: Value) -> Form:
    """The form of one value."""
    if isinstance(value, TensorList):
        size = value.size if is_size(value.size) else None
        element = known_element(value)
        return ListForm(value.capacity, element, size, value.common, size == 0)
    if isinstance(value, Optional):
        return UnionForm({key: form_of(x) for key, x in value.choices.items()})
    if isinstance(value, BoundedArray):
        return BoundedForm(type_of(value.data), value)
    if is_known(value) or isinstance(value, Undefined):
        return Static(value)
    return ArrayForm(type_of(value))


def key_of(form: Form) -> Hashable:
    """A key, stable across traces, equal for forms that loops need not distinguish."""
    if isinstance(form, Static):
        return "fixed", _value_key(form.value)
    if isinstance(form, ArrayForm):
        return "array", _type_key(form.type)
    if isinstance(form, BoundedForm):
        return "rows", _type_key(form.type), form.of.origin, form.of.pads_minus_one
    if isinstance(form, UnionForm):
        return "choices", tuple((key, key_of(f)) for key, f in form.forms.items())
    leaves, tree = jax.tree_util.tree_flatten(form.element)
    element = (tree, tuple(map(_type_key, leaves)))
    same = None if form.same is None else key_of(form_of(form.same))
    return "list", form.capacity, form.size, element, same, form.is_empty


def _type_key(t: Aval) -> Hashable:
    return tuple(t.shape), str(t.dtype)


def _value_key(value: Value) -> Hashable:
    """A key for a static value; printing would abbreviate a large array."""
    if isinstance(value, np.ndarray):
        if value.dtype != object:
            return str(value.dtype), value.shape, value.tobytes()
        return value.shape, tuple(map(_value_key, value.ravel()))
    if isinstance(value, DynamicSize):
        return "count", value.most, value.least
    if isinstance(value, Undefined):
        return "absent"
    return type(value), repr(value) if isinstance(value, float) else value


def join(one: Form, two: Form, *, growing: bool = False) -> Form:
    """The form that `bring` converts values of both forms to.

    `growing`: the second form is the first after a loop step, in which lists may grow.

    **Raises:** `ShapeVariesError`.
    """
    if isinstance(one, Static) and isinstance(one.value, Undefined):
        return two
    if isinstance(two, Static) and isinstance(two.value, Undefined):
        return one
    if isinstance(one, UnionForm) and isinstance(two, UnionForm):
        both = {k: join(one.forms[k], two.forms[k]) for k in one.forms if k in two.forms}
        return UnionForm({**one.forms, **two.forms, **both})
    if isinstance(one, UnionForm) or isinstance(two, UnionForm):
        raise _varies("is an optional", "not one", growing)
    if isinstance(one, ListForm) and isinstance(two, ListForm):
        return _join_lists(one, two, growing)
    if isinstance(one, ListForm) or isinstance(two, ListForm):
        raise _varies("is a list", "not one", growing)
    if isinstance(one, Static) and isinstance(two, Static) and _same(one.value, two.value):
        return one
    if isinstance(one, BoundedForm) or isinstance(two, BoundedForm):
        return _join_rows(one, two, growing)
    types = [_array_type(f, growing) for f in (one, two)]
    if types[0] != types[1]:
        raise _varies(f"has type {_text(types[0])}", _text(types[1]), growing)
    return ArrayForm(types[0])


def _varies(one: str, two: str, growing: bool) -> ShapeVariesError:
    first, second = "in one branch", "in another"
    if growing:
        first, second = "before a step of the loop", "after it"
    return ShapeVariesError(f"{one} {first} and {two} {second}")


def _join_rows(one: Form, two: Form, growing: bool) -> BoundedForm:
    """The form of two arrays, at least one of them bounded."""
    types = [f.type if isinstance(f, BoundedForm) else _array_type(f, growing) for f in (one, two)]
    capacities = [t.shape[:1] for t in types]
    same = types[0].dtype == types[1].dtype and types[0].shape[1:] == types[1].shape[1:]
    if not (same and all(capacities)) or (growing and capacities[0] < capacities[1]):
        raise _varies(f"has type {_text(types[0])}", _text(types[1]), growing)
    rows = [f.of for f in (one, two) if isinstance(f, BoundedForm)]
    pads_minus_one = all(r.pads_minus_one for r in rows)
    type_ = jax.ShapeDtypeStruct((*max(capacities), *types[0].shape[1:]), types[0].dtype)
    return BoundedForm(type_, BoundedArray(None, None, rows[0].origin, pads_minus_one))


def _join_lists(one: ListForm, two: ListForm, growing: bool) -> ListForm:
    size = one.size if one.size == two.size else None
    if growing:
        # A list that changes its size needs a capacity, which only the whole loop determines.
        capacity = one.capacity if size == one.size or one.size is None else None
    else:
        known = [c for c in (one.capacity, two.capacity) if c is not None]
        capacity = max(known) if len(known) == 2 else None
    element = merge(one.element, two.element)
    same = one.same
    if one.is_empty and one.same is None:
        same = two.same
    elif not two.is_empty and not is_same(one.same, two.same):
        same = None
    return ListForm(capacity, element, size, same, one.is_empty and two.is_empty)


def _array_type(form: Form, growing: bool) -> jax.ShapeDtypeStruct:
    if isinstance(form, ArrayForm):
        return form.type
    assert isinstance(form, Static)
    value = form.value
    if value is None or isinstance(value, Resource):
        raise _varies(f"is {value!r}", "something else", growing)
    x = np.asarray(value)
    dtype = np.dtype(np.int32) if x.dtype == object else jax.dtypes.canonicalize_dtype(x.dtype)
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a is b:
            return True
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.all(_bits(a) == _bits(b)))
    return type(a) is type(b) and bool(a == b)


def _bits(x: np.ndarray) -> np.ndarray:
    """The contents of an array, for comparison: NaN equals itself."""
    return x if x.dtype == object or not x.size else np.frombuffer(x.tobytes(), np.uint8)


def _text(t: jax.ShapeDtypeStruct) -> str:
    return type_text(t.dtype, t.shape)


def bring(value: Value, form: Form) -> Value:
    """Convert `value` to a form that `join` gave."""
    if isinstance(form, Static):
        return form.value
    if isinstance(form, ArrayForm):
        if isinstance(value, Undefined):
            return jnp.zeros(form.type.shape, form.type.dtype)
        return strong(array(value, form.type.dtype))
    if isinstance(form, BoundedForm):
        return _bring_rows(value, form)
    if isinstance(form, UnionForm):
        choices = {} if isinstance(value, Undefined) else value.choices
        return Optional({k: bring(choices.get(k, Undefined()), f) for k, f in form.forms.items()})
    assert isinstance(form, ListForm)
    if isinstance(value, Undefined):
        value = TensorList(None, None, form.size or 0, form.element, None)
    if form.is_empty and form.size == 0:
        return TensorList((), None, 0, form.element, value.dtype)
    if form.same is not None:
        size = form.size if form.size is not None else jnp.asarray(value.size, np.int32)
        return TensorList(None, None, size, form.element, value.dtype, form.same)
    if form.capacity is None:
        size = form.size if form.size is not None else jnp.asarray(value.size, np.int32)
        return TensorList(None, None, size, form.element, value.dtype, None, value.growth)
    if value.is_unallocated and not value.is_reserved and form.element is not None:
        value = dataclasses.replace(value, items=(None,) * form.capacity)
    lst = with_buffer(
        value, element=form.element, capacity=form.capacity, counted=form.size is None
    )
    return dataclasses.replace(lst, element=form.element, growth=0)


def _bring_rows(value: Value, form: BoundedForm) -> BoundedArray:
    origin, pads_minus_one = form.of.origin, form.of.pads_minus_one
    if isinstance(value, Undefined):
        return BoundedArray(jnp.zeros(form.type.shape, form.type.dtype), np.int32(0), origin)
    data = value.data if isinstance(value, BoundedArray) else array(value, form.type.dtype)
    length = value.length if isinstance(value, BoundedArray) else np.int32(data.shape[0])
    data = resized(strong(data), form.type.shape[0], -1 if pads_minus_one else 0)
    return BoundedArray(data, strong(length), origin, pads_minus_one)
