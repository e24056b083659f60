"""Nodes of a TensorFlow graph, decoded from their protos."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import numpy as np

from invert._errors import (
    InvertError,
    MalformedModelError,
    MissingDependencyError,
    Problem,
    UnsupportedOpError,
)


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow on first use; nothing else in the package imports it.

    **Returns:**

    The `tensorflow` module.

    **Raises:**

    - `MissingDependencyError`: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as e:
        raise MissingDependencyError(
            "TensorFlow is needed to read this model and could not be imported "
            f"({e}). Install it with `pip install 'invert[tensorflow]'`."
        ) from e
    return tf


class Node:
    """One op of a graph.

    **Arguments:**

    - `op`, `name`: op type and node name.
    - `inputs`: data inputs as `(node index, output index)`.
    - `control`: indices of the nodes this one only waits for.
    - `attrs`: the proto map of attributes.
    - `where`: name of the function the node is in; empty for the outermost graph.

    **Attributes:**

    - `message`: what an `Assert` says.
    - `read`: names of the attributes that were asked for.
    """

    __slots__ = ("attrs", "control", "inputs", "message", "name", "op", "read", "where")

    def __init__(self, op: str, name: str, attrs: Any, where: str = ""):
        self.op = op
        self.name = name
        self.attrs = attrs
        self.where = where
        self.inputs: tuple[tuple[int, int], ...] = ()
        self.control: tuple[int, ...] = ()
        self.message = ""
        self.read: set[str] = set()

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name` as a Python value, or `default` where the node has none."""
        self.read.add(name)
        if name not in self.attrs:
            return default
        return decode_attr(self.attrs[name])

    @property
    def location(self) -> str:
        return f"node {self.name!r}" + (f" of function {self.where!r}" if self.where else "")


@dataclasses.dataclass(frozen=True)
class Body:
    """One graph or function.

    **Arguments:**

    - `nodes`: all nodes; those that stand for arguments have the op `_Arg`.
    - `args`: indices of the arguments.
    - `outputs`: results as `(node index, output index)`.
    - `controls`: indices of the nodes that have to run besides.
    - `order`: indices of the nodes that run, each after those it uses or waits for.
    """

    name: str
    nodes: tuple[Node, ...]
    args: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    controls: tuple[int, ...]
    order: tuple[int, ...]


def decode_attr(value: Any) -> Any:
    """An `AttrValue` proto as a Python value: a dtype as `np.dtype`, a function as its name."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "list":
        for field in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            items = getattr(value.list, field)
            if len(items):
                return [_DECODE[field](item) for item in items]
        return []
    return _DECODE[kind](getattr(value, kind))


# What helps where control flow of TensorFlow 1 cannot be read.
FRAMES_REMEDY = "Export the model with tf.compat.v1.enable_control_flow_v2()."


def attr_functions(node: Node) -> list[str]:
    """Names of the library functions that the attributes of `node` refer to."""
    names = []
    for key in sorted(node.attrs):
        if key.startswith("_"):  # a hint
            continue
        value = node.attrs[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(value.func.name)
        elif kind == "list":
            names.extend(f.name for f in value.list.func)
    return names


def variable_name(node: Node) -> str:
    """The name that says which variable a node such as `VarHandleOp` stands for."""
    return node.attr("shared_name") or node.name


def decode_dtype(enum: int) -> np.dtype:
    """The NumPy (or ml_dtypes) dtype of a `DataType` enum; `object` for strings and handles.

    Quantized numbers are the whole numbers that they are stored as.
    """
    if enum in _QUANTIZED:
        return np.dtype(_QUANTIZED[enum])
    if enum in (_RESOURCE, _VARIANT):  # have none in TensorFlow
        return np.dtype(object)
    if not is_type(enum):
        raise MalformedModelError(f"the graph names a type by {enum}, which stands for none")
    return np.dtype(import_tensorflow().dtypes.as_dtype(enum).as_numpy_dtype)


@functools.cache
def is_type(enum: int) -> bool:
    """Whether a `DataType` enum stands for a type of values, and not for references to them."""
    try:
        return import_tensorflow().dtypes.as_dtype(enum).as_datatype_enum < REFERENCE
    except TypeError:
        return False


def type_name(enum: int) -> str:
    """What TensorFlow calls a type."""
    return import_tensorflow().dtypes.as_dtype(enum).name if is_type(enum) else f"type {enum}"


def decode_shape(proto: Any) -> tuple[int | None, ...] | None:
    """A `TensorShapeProto` as a tuple with `None` for open sizes; `None` for unknown rank."""
    if proto.unknown_rank:
        return None
    return tuple(None if d.size < 0 else int(d.size) for d in proto.dim)


def decode_tensor(proto: Any, location: str = "") -> np.ndarray:
    """A `TensorProto` as an array, with one copy of its bytes at most.

    What repeats one value is a view of that, however large.

    **Raises:** `MalformedModelError` where its content does not fit its type and shape.
    """
    tf = import_tensorflow()
    place = f" ({location})" if location else ""
    shape = tuple(int(d.size) for d in proto.tensor_shape.dim)
    np_dtype = decode_dtype(proto.dtype)
    unknown = proto.tensor_shape.unknown_rank or any(n < 0 for n in shape)
    if unknown or proto.dtype in (_RESOURCE, _VARIANT):
        raise MalformedModelError(f"a constant{place} is not of one type and shape")
    said = f"a constant{place} of {np_dtype.name}{list(shape)}"
    size = math.prod(shape)
    if size * np_dtype.itemsize > _MOST_BYTES:
        raise MalformedModelError(f"{said} is too large for any array")
    content = proto.tensor_content
    if content and np_dtype.kind != "O":
        if len(content) != size * np_dtype.itemsize:
            raise MalformedModelError(f"{said} holds {len(content)} bytes")
        return np.frombuffer(content, np_dtype, count=size).reshape(shape)
    count = max(len(getattr(proto, field)) for field in _VALUES)
    count = max(count // 2 if np_dtype.kind == "c" else count, 1)
    if count > 1 and size > count + _MOST_PADDING:
        raise MalformedModelError(f"{said} holds {count} values")
    flat = type(proto)()
    flat.CopyFrom(proto)
    flat.tensor_shape.Clear()
    flat.tensor_shape.dim.add().size = count
    try:
        value = np.asarray(tf.make_ndarray(flat))
    except (TypeError, ValueError) as error:
        raise MalformedModelError(f"{said} cannot be read: {error}") from error
    value = value[value.dtype.names[0]] if value.dtype.names else value
    if count == 1:
        return np.broadcast_to(value, shape) if size != 1 else value.reshape(shape)
    # Trailing repeats of the last value are left out, and what is too much is not looked at.
    padding = np.full(max(0, size - count), value[-1], value.dtype)
    return np.concatenate([value[:size], padding]).reshape(shape)


def canonical(value: Any) -> Any:
    """`value` as JAX takes it: NumPy arrays in the dtype that the x64 setting allows."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        if dtype != value.dtype:
            return np.broadcast_to(unrepeated(value).astype(dtype), value.shape)
    return value


def unrepeated(value: np.ndarray) -> np.ndarray:
    """`value` with one element along the axes that it repeats in memory."""
    strides = zip(value.strides, value.shape, strict=True)
    return value[tuple(slice(1) if not step and size else slice(None) for step, size in strides)]


# A reference to a type is its number in tensorflow/core/framework/types.proto plus this.
REFERENCE = 100

# DT_RESOURCE and DT_VARIANT of the same file.
_RESOURCE, _VARIANT = 20, 21

# The quantized types of the same file, which TensorFlow gives NumPy as records of one field.
_QUANTIZED = {11: np.int8, 12: np.uint8, 13: np.int32, 15: np.int16, 16: np.uint16}

# No array of NumPy is larger.
_MOST_BYTES = (1 << 63) - 1

# A `TensorProto` leaves out repeats of its last value (tensorflow/core/framework/tensor.proto).
# So many are put back where it holds others besides.
_MOST_PADDING = 1 << 28

# The fields of a `TensorProto` with values, one for each type or several that share it.
_VALUES = (
    "half_val float_val double_val int_val string_val scomplex_val int64_val bool_val dcomplex_val "
    "uint32_val uint64_val float8_val"
).split()

_DECODE = {
    "s": lambda v: v.decode("utf-8", "surrogateescape"),
    "i": int,
    "f": float,
    "b": bool,
    "type": decode_dtype,
    "shape": decode_shape,
    "tensor": lambda v: v,
    "func": lambda v: v.name,
    "placeholder": str,
}


@contextlib.contextmanager
def naming(node: Node) -> Iterator[None]:
    """Errors that JAX or NumPy raises while the op is converted, with its name and place."""
    try:
        yield
    except InvertError:
        raise
    except (TypeError, ValueError, NotImplementedError, OverflowError, MemoryError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)]) from error
