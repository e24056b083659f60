"""Python values from MLIR attributes; re-exports constants, types and locations.

See `constants.py` for two pitfalls of the bindings, one of which ends the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np

from invert._errors import MalformedModelError
from invert._private.mlir import MlirObject, ir, stablehlo_dialect
from invert.stablehlo.ops.constants import DTYPES as DTYPES
from invert.stablehlo.ops.constants import UnsupportedType as UnsupportedType
from invert.stablehlo.ops.constants import aval as aval
from invert.stablehlo.ops.constants import constant as constant
from invert.stablehlo.ops.constants import dense_elements as dense_elements
from invert.stablehlo.ops.constants import element_dtype as element_dtype
from invert.stablehlo.ops.constants import is_token as is_token
from invert.stablehlo.ops.constants import is_tuple as is_tuple
from invert.stablehlo.ops.constants import largest_sizes as largest_sizes
from invert.stablehlo.ops.constants import shape_of as shape_of
from invert.stablehlo.ops.constants import tuple_types as tuple_types
from invert.stablehlo.ops.locations import location_name as location_name
from invert.stablehlo.ops.locations import location_text as location_text

_ENUM = re.compile(r"(\w+)[>\"]*$")

# --- Small attributes -----------------------------------------------------------------------------


def dense_ints(attr: ir.Attribute) -> tuple[int, ...]:
    """Values of a `DenseI64ArrayAttr` (or of another width) or of an integer elements attribute."""
    if isinstance(attr, ir.DenseIntElementsAttr) and not _is_index(attr):
        return tuple(dense_elements(attr).ravel().tolist())
    return tuple(attr)  # pyright: ignore[reportArgumentType]


def _is_index(attr: ir.DenseIntElementsAttr) -> bool:
    """Return whether the elements have MLIR's type `index`, as in layouts, which has no dtype."""
    return isinstance(ir.ShapedType(attr.type).element_type, ir.IndexType)


def dense_int_rows(attr: ir.Attribute) -> tuple[tuple[int, ...], ...]:
    """Rows of a rank-2 integer elements attribute, such as `padding` or `replica_groups`."""
    return tuple(map(tuple, dense_elements(attr).tolist()))


def dense_bools(attr: ir.Attribute) -> tuple[bool, ...]:
    """Values of a `DenseBoolArrayAttr` or of an `i1` elements attribute."""
    if isinstance(attr, ir.DenseElementsAttr):
        return tuple(dense_elements(attr).ravel().tolist())
    return tuple(attr)  # pyright: ignore[reportArgumentType]


def discardable(named: MlirObject, key: str) -> ir.Attribute:
    """An attribute that the definition of its op does not have, so that MLIR does not verify it.

    **Raises:** `MalformedModelError` if it is a location, for which there are no bindings.
    """
    try:
        return named[key]
    except TypeError as error:
        raise MalformedModelError(f"Attribute {key!r} of the module is damaged") from error


def string(attr: MlirObject) -> str:
    """Text of a `StringAttr`.

    **Raises:** `UnicodeDecodeError`; the binding's own `value` would end the process.
        `MalformedModelError` for another attribute.
    """
    return string_bytes(attr).decode()


def _typed(attr: MlirObject, kind: type[ir.Attribute], words: str) -> MlirObject:
    if not isinstance(attr, kind):
        raise MalformedModelError(f"An attribute of the module is {attr}, not {words}")
    return attr


def string_bytes(attr: MlirObject) -> bytes:
    """Bytes of a `StringAttr`, which need not be UTF-8."""
    return _typed(attr, ir.StringAttr, "a text").value_bytes


def integer(attr: MlirObject) -> int:
    """Value of an `IntegerAttr`.

    **Raises:** `MalformedModelError` for another attribute.
    """
    return _typed(attr, ir.IntegerAttr, "an integer").value


def real(attr: MlirObject) -> float:
    """Value of a `FloatAttr`."""
    return attr.value


def boolean(attr: MlirObject) -> bool:
    """Value of a `BoolAttr`."""
    return bool(attr.value)


def symbol_name(attr: MlirObject) -> str:
    """Name of a `FlatSymbolRefAttr`, or the last name of a nested symbol."""
    value = attr.value
    return value if isinstance(value, str) else value[-1]


def enum_name(attr: ir.Attribute) -> str:
    """Name of an enumerator, such as `GT`, `HIGHEST`, `RFFT`, `THREE_FRY`, `ADJOINT`.

    For `ComparisonDirectionAttr`, `ComparisonTypeAttr`, `PrecisionAttr`, `FftTypeAttr`,
    `RngAlgorithmAttr`, `RngDistributionAttr`, `TransposeAttr` and `ResultAccuracyModeAttr`, which
    all print as `#stablehlo<kind NAME>` or `#stablehlo.kind<NAME>`; composites hold `"NAME"`.
    """
    return _ENUM.search(str(attr))[1]  # pyright: ignore[reportOptionalSubscript]


def enum_names(attr: Iterable[ir.Attribute]) -> tuple[str, ...]:
    """Names in an array of enumerators, such as `precision_config`."""
    return tuple(map(enum_name, attr))


# --- StableHLO structs ----------------------------------------------------------------------------

_T = TypeVar("_T", bound=NamedTuple)


class GatherDims(NamedTuple):
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int


class ScatterDims(NamedTuple):
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scattered_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int


class DotDims(NamedTuple):
    lhs_batching_dimensions: tuple[int, ...]
    rhs_batching_dimensions: tuple[int, ...]
    lhs_contracting_dimensions: tuple[int, ...]
    rhs_contracting_dimensions: tuple[int, ...]


class ConvDims(NamedTuple):
    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]


class Algorithm(NamedTuple):
    lhs_precision_type: np.dtype | str
    rhs_precision_type: np.dtype | str
    accumulation_type: np.dtype | str
    lhs_component_count: int
    rhs_component_count: int
    num_primitive_operations: int
    allow_imprecise_accumulation: bool


class Accuracy(NamedTuple):
    atol: float
    rtol: float
    ulps: int
    mode: str


def _fields(struct: type[_T], view: MlirObject) -> _T:
    values = (getattr(view, name) for name in struct._fields)
    return struct._make(tuple(v) if isinstance(v, list) else v for v in values)


# `op.attributes` returns structs and enumerators as plain `Attribute`s, so each is cast here.


def _reader(
    struct: type[_T], view: Callable[[ir.Attribute], MlirObject]
) -> Callable[[ir.Attribute], _T]:
    """Read the fields of an attribute, such as `#stablehlo.gather`."""
    return lambda attr: _fields(struct, view(attr))


gather_dims = _reader(GatherDims, stablehlo_dialect.GatherDimensionNumbers)
scatter_dims = _reader(ScatterDims, stablehlo_dialect.ScatterDimensionNumbers)
dot_dims = _reader(DotDims, stablehlo_dialect.DotDimensionNumbers)
conv_dims = _reader(ConvDims, stablehlo_dialect.ConvDimensionNumbers)


def dot_algorithm(attr: ir.Attribute) -> Algorithm:
    """Fields of `#stablehlo.dot_algorithm`; `tf32`, which has no dtype, stays a string."""
    view: MlirObject = stablehlo_dialect.DotAlgorithm(attr)

    def dtype(ir_type: ir.Type) -> np.dtype | str:
        return "tf32" if str(ir_type) == "tf32" else element_dtype(ir_type)

    return _fields(Algorithm, view)._replace(
        lhs_precision_type=dtype(view.lhs_precision_type),
        rhs_precision_type=dtype(view.rhs_precision_type),
        accumulation_type=dtype(view.accumulation_type),
    )


def result_accuracy(attr: ir.Attribute) -> Accuracy:
    """Fields of `#stablehlo.result_accuracy`; `mode` is `DEFAULT`, `HIGHEST` or `TOLERANCE`."""
    view: MlirObject = stablehlo_dialect.ResultAccuracyAttr(attr)
    return _fields(Accuracy, view)._replace(mode=enum_name(view.mode))
