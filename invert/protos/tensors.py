"""Types and constants as TensorFlow writes them: `DataType`, `TensorShapeProto`, `TensorProto`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from invert._errors import MalformedModelError
from invert.ir.arrays import aligned
from invert.protos.types import TensorProto, TensorShapeProto


class _Type(NamedTuple):
    """A type: name, NumPy type, and the `TensorProto` field of its values."""

    name: str
    dtype: np.dtype
    field: str


def _type(name: str, field: str, stored: type | None = None) -> _Type:
    kind = stored or getattr(np, name, None) or getattr(ml_dtypes, name)
    return _Type(name, np.dtype(kind), field)


# The numbers of tensorflow/core/framework/types.proto (TensorFlow 2.21). Quantized types are the
# integers that store them.
_TYPES = {
    1: _type("float32", "float_val"),
    2: _type("float64", "double_val"),
    3: _type("int32", "int_val"),
    4: _type("uint8", "int_val"),
    5: _type("int16", "int_val"),
    6: _type("int8", "int_val"),
    7: _type("string", "string_val", np.object_),
    8: _type("complex64", "scomplex_val"),
    9: _type("int64", "int64_val"),
    10: _type("bool", "bool_val"),
    11: _type("qint8", "int_val", np.int8),
    12: _type("quint8", "int_val", np.uint8),
    13: _type("qint32", "int_val", np.int32),
    14: _type("bfloat16", "half_val"),
    15: _type("qint16", "int_val", np.int16),
    16: _type("quint16", "int_val", np.uint16),
    17: _type("uint16", "int_val"),
    18: _type("complex128", "dcomplex_val"),
    19: _type("float16", "half_val"),
    20: _type("resource", "", np.object_),
    21: _type("variant", "", np.object_),
    22: _type("uint32", "uint32_val"),
    23: _type("uint64", "uint64_val"),
    24: _type("float8_e5m2", "float8_val"),
    25: _type("float8_e4m3fn", "float8_val"),
    26: _type("float8_e4m3fnuz", "float8_val"),
    27: _type("float8_e4m3b11fnuz", "float8_val"),
    28: _type("float8_e5m2fnuz", "float8_val"),
    29: _type("int4", "int_val"),
    30: _type("uint4", "int_val"),
    31: _type("int2", "int_val"),
    32: _type("uint2", "int_val"),
    33: _type("float4_e2m1fn", "float8_val"),
}

STRING, RESOURCE, VARIANT = 7, 20, 21

# A reference to a type is its number plus this.
REFERENCE = 100

# The largest NumPy array.
_MOST_BYTES = (1 << 63) - 1
_MOST_AXES = 64

# A `TensorProto` omits repeats of its last value (tensorflow/core/framework/tensor.proto). If it
# also holds other values, at most this many are restored.
_MOST_PADDING = 1 << 28

_SHARED_BYTES = 1 << 16

# Fields that hold the bits of a value as an integer.
_BITS = {"half_val": np.uint16, "float8_val": np.uint8}
_PARTS = {"scomplex_val": np.float32, "dcomplex_val": np.float64}


# A reference to a type has its number plus this one (tensorflow/core/framework/types.proto).
_REFERENCE = 100


def decode_dtype(enum: int) -> np.dtype:
    """The NumPy (or ml_dtypes) dtype of a `DataType`; `object` for strings and handles.

    Quantized types are the integers that store them.
    """
    if not is_type(enum):
        raise MalformedModelError(f"the graph has the unknown type number {enum}")
    return _TYPES[enum].dtype


def is_type(enum: int) -> bool:
    """Return whether a `DataType` is a type of values, not of references to them."""
    return enum in _TYPES


def value_type(enum: int) -> int:
    """The `DataType` of the values, also for references to them, as `DT_FLOAT_REF`."""
    return enum - _REFERENCE if enum > _REFERENCE else enum


def type_name(enum: int) -> str:
    """TensorFlow's name of a type."""
    return _TYPES[enum].name if enum in _TYPES else f"type {enum}"


def decode_shape(proto: TensorShapeProto) -> tuple[int | None, ...] | None:
    """A `TensorShapeProto` as a tuple with `None` for open sizes; `None` for unknown rank."""
    if proto.unknown_rank:
        return None
    return tuple(None if d.size < 0 else int(d.size) for d in proto.dim)


def no_array(sizes: Sequence[int], dtype: np.dtype) -> str | None:
    """Why NumPy has no array of these sizes; it multiplies even those beside a zero."""
    if len(sizes) > _MOST_AXES:
        return f"has {len(sizes)} axes, more than arrays have"
    if math.prod(n for n in sizes if n) * dtype.itemsize > _MOST_BYTES:
        return "is too large for any array"
    return None


def decode_tensor(
    proto: TensorProto, location: str = "", content: bytes | memoryview | None = None
) -> np.ndarray:
    """A `TensorProto` as an array, with at most one lasting copy.

    A splat is a view of one value, however large. `content` are its bytes, where it does not hold
    them itself.

    **Raises:** `MalformedModelError` if its content does not fit its type and shape.
    """
    shape = decode_shape(proto.tensor_shape)
    dtype = decode_dtype(proto.dtype)
    what = "a constant" + (f" ({location})" if location else "")
    if shape is None or None in shape or proto.dtype in (RESOURCE, VARIANT):
        raise MalformedModelError(f"{what} is not of one type and shape")
    sizes = [n for n in shape if n is not None]
    if (reason := no_array(sizes, dtype)) is not None:
        raise _malformed(what, proto, sizes[:_MOST_AXES], reason)
    size = math.prod(sizes)
    content = proto.tensor_content if content is None else content
    if content and dtype.kind != "O":
        if len(content) != size * dtype.itemsize:
            raise _malformed(what, proto, sizes, f"holds {len(content)} bytes")
        value = np.frombuffer(content, dtype, count=size).reshape(sizes)
        # The module then shares it. For a small one a copy does not matter.
        return aligned(value) if value.nbytes >= _SHARED_BYTES else value
    values = _values(proto, _TYPES[proto.dtype])
    if not len(values):
        values = np.array([b""], object) if dtype.kind == "O" else np.zeros(1, dtype)
    if len(values) == size == 1:  # repeating it would take far longer
        values.flags.writeable = False
        return values.reshape(sizes)
    if len(values) == 1:
        return np.broadcast_to(values[0] if dtype.kind != "O" else values.reshape(()), sizes)
    if size > len(values) + _MOST_PADDING:
        raise _malformed(what, proto, sizes, f"holds {len(values)} values")
    # Trailing repeats of the last value are omitted, and excess values are ignored.
    padding = np.repeat(values[-1:], max(0, size - len(values)))
    return np.concatenate([values[:size], padding]).reshape(sizes)


def _malformed(
    what: str, proto: TensorProto, sizes: Sequence[int], reason: str
) -> MalformedModelError:
    return MalformedModelError(f"{what} of {type_name(proto.dtype)}{sizes} {reason}")


def _values(proto: TensorProto, entry: _Type) -> np.ndarray:
    field: Sequence[object] | bytes = getattr(proto, entry.field)
    if entry.field == "string_val":
        values = np.empty(len(field), object)
        values[:] = list(field)
        return values
    if isinstance(field, bytes):
        return np.frombuffer(field, np.uint8).view(entry.dtype)
    if entry.field in _BITS:
        return np.array(field, np.int64).astype(_BITS[entry.field]).view(entry.dtype)
    if entry.field in _PARTS:
        whole = len(field) // 2 * 2
        return np.array(field[:whole], _PARTS[entry.field]).view(entry.dtype)
    if entry.field == "int_val":  # the low bits count, as in TensorFlow
        return np.array(field, np.int64).astype(entry.dtype)
    return np.array(field, entry.dtype)
