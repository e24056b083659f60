"""NumPy dtypes and arrays from MLIR types and constants.

Two pitfalls of the bindings (jaxlib 0.10.2 and 0.12.0.1) that callers must know:

- `op.attributes[name]`, `.items()` and `.values()` raise `TypeError` if the attribute is a
  complex constant, and `op.attributes[index].attr` ends the process. Read the value of a
    `stablehlo.constant` with `constant` only.
- `bf16`, 4-, 6- and 8-bit floats and 2- and 4-bit integers have no buffer protocol. They are
    decoded from the printed attribute: MLIR prints more than 100 elements as the hex of the raw
    storage. It prints fewer as decimals that read back to the same bits, or as hex if they do not.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Sequence

import jax
import ml_dtypes
import numpy as np

from invert._errors import MalformedModelError, Problem, UnsupportedOpError
from invert._private.mlir import MlirObject, ir, stablehlo_dialect


class UnsupportedType(UnsupportedOpError):
    """A type or constant that has no JAX counterpart, such as a quantized tensor."""

    def __init__(self, type_text: str, reason: str, remedy: str = "") -> None:
        super().__init__([Problem(op=type_text, reason=reason, remedy=remedy)])


# --- Types ----------------------------------------------------------------------------------------

_BUFFER_DTYPES: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{f"f{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
}
_COMPLEX_PARTS: dict[str, str] = {"complex<f32>": "f32", "complex<f64>": "f64"}
_TEXT_DTYPES: dict[str, np.dtype] = {
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "ui2": np.dtype(ml_dtypes.uint2),
    "ui4": np.dtype(ml_dtypes.uint4),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E3M4": np.dtype(ml_dtypes.float8_e3m4),
    "f8E4M3": np.dtype(ml_dtypes.float8_e4m3),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
    "f6E2M3FN": np.dtype(ml_dtypes.float6_e2m3fn),
    "f6E3M2FN": np.dtype(ml_dtypes.float6_e3m2fn),
}
DTYPES: dict[str, np.dtype] = {
    **_BUFFER_DTYPES,
    **_TEXT_DTYPES,
    "complex<f32>": np.dtype(np.complex64),
    "complex<f64>": np.dtype(np.complex128),
}
_INT_BITS: dict[str, int] = {"i2": 2, "i4": 4, "ui2": 2, "ui4": 4}


def element_dtype(ir_type: ir.Type) -> np.dtype:
    """The NumPy or ml_dtypes dtype of an element type or shaped type.

    **Raises:** `UnsupportedType` for quantized types, tokens, tuples, `index` and unknown types.
    """
    if isinstance(ir_type, ir.ShapedType):
        ir_type = ir_type.element_type
    text = str(ir_type)
    dtype = DTYPES.get(text)
    if dtype is not None:
        return dtype
    if text.startswith("!quant."):
        raise UnsupportedType(
            text,
            "quantized types have no JAX dtype",
            "Dequantize the model first, for example with `stablehlo-legalize-quant-to-math`.",
        )
    raise UnsupportedType(text, "this element type has no JAX dtype")


def shape_of(ir_type: ir.Type) -> tuple[int | None, ...]:
    """Sizes of a ranked tensor type; `None` for a dynamic size."""
    if not isinstance(ir_type, ir.RankedTensorType):
        raise UnsupportedType(str(ir_type), "expected a ranked tensor type")
    if ir_type.has_static_shape:
        return tuple(ir_type.shape)
    return tuple(
        None if ir_type.is_dynamic_dim(i) else size for i, size in enumerate(ir_type.shape)
    )


def largest_sizes(ir_type: MlirObject) -> dict[int, int]:
    """The bounds of dynamic sizes (`#stablehlo.bounds`), by axis."""
    if not isinstance(ir_type, ir.RankedTensorType) or ir_type.encoding is None:
        return {}
    try:
        bounds = stablehlo_dialect.TypeExtensions(ir_type.encoding).bounds
    except ValueError:  # an encoding of another kind
        raise UnsupportedType(str(ir_type), "its encoding is unknown") from None
    return {axis: bound for axis, bound in enumerate(bounds) if bound >= 0}


def aval(ir_type: ir.Type) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a ranked tensor type with static sizes."""
    shape = shape_of(ir_type)
    static = tuple(size for size in shape if size is not None)
    if len(static) != len(shape):
        raise UnsupportedType(
            str(ir_type),
            "the shape has dynamic sizes",
            "Refine the module to static shapes first.",
        )
    return jax.ShapeDtypeStruct(static, element_dtype(ir_type))


def is_token(ir_type: ir.Type) -> bool:
    """Return whether the type is `!stablehlo.token`."""
    return str(ir_type) == "!stablehlo.token"


def is_tuple(ir_type: ir.Type) -> bool:
    """Return whether the type is a tuple; `tuple_types` gives its members."""
    return isinstance(ir_type, ir.TupleType)


def tuple_types(ir_type: ir.Type) -> tuple[ir.Type, ...]:
    """Member types of a tuple type."""
    if not isinstance(ir_type, ir.TupleType):
        raise UnsupportedType(str(ir_type), "expected a tuple type")
    return tuple(ir_type.get_type(i) for i in range(ir_type.num_types))


# --- Constants ------------------------------------------------------------------------------------

# The attribute by which a constant refers to bytes stored apart from its module.
LARGE = "invert.large"
# Bytes up to which a constant is copied out of its module.
_MOST_COPIED = 1 << 14
_TOKEN = re.compile(rb"[^\s,()\[\]]+")


def constant(op: ir.Operation | ir.OpView, large: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Value of a `stablehlo.constant`, bit for bit.

    **Arguments:**

    - `large`: the bytes of constants that the module only numbers.

    **Returns:** a read-only array; if large, a view of MLIR's own storage where possible. A splat
    has zero strides and takes no memory, whatever its shape.

    **Raises:** `UnsupportedType` if the element type has no JAX dtype.
    """
    op = op.operation
    result_type: MlirObject = op.results[0].type
    if LARGE in op.attributes:
        number: MlirObject = op.attributes[LARGE]
        name = str(result_type.element_type)
        if not 0 <= number.value < len(large):
            raise MalformedModelError(f"A constant refers to bytes that are missing: {number}.")
        raw = large[number.value]
        return _from_raw(raw, name, tuple(result_type.shape), element_dtype(result_type))
    if str(result_type.element_type) not in _COMPLEX_PARTS:
        return dense_elements(op.attributes["value"])
    # The attribute of a complex constant cannot be reached from Python, so the op is printed: a
    # copy outside of any function, since MLIR numbers the values of the whole function first.
    text: MlirObject = op.clone(False).get_asm(
        binary=True, print_generic_op_form=True, use_local_scope=True, assume_verified=True
    )
    if b"= dense_resource<" in text[:80]:
        return _from_resource(op.attributes["value"])
    return _from_text(text, result_type)


def dense_elements(attr: object) -> np.ndarray:
    """Value of a dense elements or dense resource attribute, bit for bit; see `constant`."""
    if isinstance(attr, ir.DenseElementsAttr):
        ir_type: MlirObject = attr.type
        if str(ir_type.element_type) in _BUFFER_DTYPES:
            return _from_buffer(attr, ir_type)
        return _from_text(str(attr).encode(), ir_type)
    text = str(attr)
    if text.startswith("dense_resource<"):
        return _from_resource(attr)
    raise UnsupportedType(text[:80], "expected a dense elements attribute")


def _from_buffer(attr: MlirObject, ir_type: MlirObject) -> np.ndarray:
    try:
        view = np.asarray(memoryview(attr))
        # The NumPy type of a C type such as `long long` may differ from the sized type, and JAX
        # refuses its scalars.
        return _apart_from_module(view.view(np.dtype(view.dtype.str)))
    except ValueError as e:  # NumPy's own limits on rank and size
        raise UnsupportedType(str(ir_type), f"NumPy refuses the shape: {e}") from e


def _apart_from_module(view: np.ndarray) -> np.ndarray:
    """Copy a small constant or splat, whose view would keep the module alive."""
    if view.size and not any(view.strides):
        return np.broadcast_to(view[(0,) * view.ndim], view.shape)
    if view.nbytes > _MOST_COPIED:
        return view
    copy = view.copy()
    copy.flags.writeable = False
    return copy


def _from_text(text: bytes, ir_type: MlirObject) -> np.ndarray:
    """Decode `... dense<payload> : tensor<...> ...` in time and memory linear in the payload."""
    begin = text.index(b"dense<") + 6
    shape = tuple(ir_type.shape)
    name = str(ir_type.element_type)
    if text[begin : begin + 3] == b'"0x':
        raw = binascii.unhexlify(memoryview(text)[begin + 3 : text.index(b'"', begin + 3)])
        return _from_raw(raw, name, shape, element_dtype(ir_type))
    tokens = _TOKEN.findall(text, begin, text.index(b">", begin))
    if name in _COMPLEX_PARTS:
        values = _complex_from_tokens(tokens, name, ir_type.context)
    else:
        values = _from_tokens(tokens, name, element_dtype(ir_type))
    return _shaped(values, shape, str(ir_type))


def _shaped(values: np.ndarray, shape: tuple[int, ...], type_text: str) -> np.ndarray:
    size = math.prod(shape)
    if values.size not in (1, size):
        raise MalformedModelError(
            f"The constant of type {type_text} has {values.size} elements instead of {size}"
        )
    if values.size == size:
        values = values.reshape(shape)
    else:
        try:
            values = np.broadcast_to(values[0], shape)
        except ValueError as e:
            raise UnsupportedType(type_text, f"NumPy refuses the shape: {e}") from e
    values.flags.writeable = False
    return values


def _complex_from_tokens(tokens: list[bytes], name: str, context: ir.Context) -> np.ndarray:
    # MLIR reads back what it printed, as pairs of reals: one parser decides every rounding.
    part = _COMPLEX_PARTS[name]
    pairs = f"dense<[{b', '.join(tokens).decode()}]> : tensor<{len(tokens)}x{part}>"
    attr: MlirObject = ir.Attribute.parse(pairs, context)
    return np.ascontiguousarray(memoryview(attr)).view(DTYPES[name])


def _from_tokens(tokens: list[bytes], name: str, dtype: np.dtype) -> np.ndarray:
    """Decode at most about 100 printed elements of a type without a buffer."""
    if name in _INT_BITS:
        return np.array([int(t) for t in tokens], np.int8).astype(dtype)
    # A decimal represents a value of at most 8 significant bits with a relative error below 1e-6.
    # So rounding it twice, to double and then to dtype, gives the same value.
    values = np.array([0.0 if t.startswith(b"0x") else float(t) for t in tokens]).astype(dtype)
    bits = values.view(np.uint16 if dtype.itemsize == 2 else np.uint8)
    for i, token in enumerate(tokens):
        if token.startswith(b"0x"):
            bits[i] = int(token, 16)
    return values


def _from_raw(
    raw: bytes | np.ndarray, name: str, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Reinterpret MLIR's little-endian storage, in which sub-byte elements take one byte."""
    size = math.prod(shape)
    if len(raw) != size * dtype.itemsize:
        raise MalformedModelError(
            f"A constant of {size} elements of {name} has {len(raw)} bytes instead of "
            f"{size * dtype.itemsize}"
        )
    bits = _INT_BITS.get(name)
    if bits is None:
        values = np.frombuffer(raw, dtype)
    else:
        # The unused high bits are unspecified; the shifts drop them and extend the sign.
        kind = np.uint8 if name.startswith("u") else np.int8
        values = ((np.frombuffer(raw, kind) << (8 - bits)) >> (8 - bits)).astype(dtype)
        values.flags.writeable = False
    return values.reshape(shape)


def _from_resource(attr: MlirObject) -> np.ndarray:
    # The bindings give no access to the blob, but a module with the attribute prints it, after
    # four bytes with its alignment.
    ir_type: MlirObject = ir.ShapedType(attr.type)
    holder = ir.Module.create(ir.Location.unknown(attr.context))
    holder.operation.attributes["invert.value"] = attr
    text = str(holder)
    match = re.search(r'dialect_resources:.*?: "0x[0-9A-Fa-f]{8}([0-9A-Fa-f]*)"', text, re.DOTALL)
    if match is None:
        raise MalformedModelError(
            f"The module names the constant {str(attr)[:80]} but does not hold its data",
            remedy="Export the model again with its resources.",
        )
    raw = binascii.unhexlify(match[1])
    name = str(ir_type.element_type)
    return _from_raw(raw, name, tuple(ir_type.shape), element_dtype(ir_type))
