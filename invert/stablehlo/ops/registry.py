"""The registry of StableHLO rules: how to raise each op, and its sizes.

A rule is registered under the op's name, as JAX registers lowerings under primitives. Besides
operands and attributes, it may take `ctx`, `op`, `out` and `dtype`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from invert._errors import REPORT, Problem, UnsupportedOpError
from invert._private.mlir import MlirObject, attribute_names, ir
from invert.ir.size_algebra import Sizes, apply, lifted
from invert.ir.sizes import DimSize
from invert.primitives import binding, registry
from invert.stablehlo.ops import attributes, values
from invert.stablehlo.ops.values import Value as Value

if TYPE_CHECKING:
    from invert.stablehlo.ops.interpreter import Context


class Op:
    """An MLIR operation, or a composite or custom call that represents one.

    **Arguments:**

    - `operation`: the operation.
    - `name`: its name, or that of the op it represents.
    - `attributes`: an MLIR dictionary; by default that of the operation.
    """

    __slots__ = ("attributes", "name", "names", "operation")

    def __init__(
        self, operation: ir.Operation, name: str | None = None, attributes: MlirObject = None
    ) -> None:
        self.operation = operation
        self.name = name or operation.name
        self.attributes: MlirObject = operation.attributes if name is None else attributes
        self.names: set[str] = set(
            attribute_names(operation)
            if name is None
            else [entry.name for entry in attributes or ()]
        )

    @property
    def regions(self) -> Sequence[ir.Region]:
        return self.operation.regions

    @property
    def location(self) -> str:
        return attributes.location_text(self.operation.location)

    def result_types(self) -> list[ir.Type]:
        return [r.type for r in self.operation.results]

    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the results as shapes and dtypes."""
        return [attributes.aval(t) for t in self.result_types()]

    def error(self, reason: str, remedy: str) -> UnsupportedOpError:
        """An error that names the op and its place."""
        return UnsupportedOpError([Problem(self.name, reason, self.location, remedy)])


# The annotations of operands.
Array = Value  # a JAX value
Shape: TypeAlias = tuple[DimSize, ...]  # sizes: numbers, and expressions of open ones
Size: TypeAlias = DimSize  # a single one

# The annotations of attributes without a Python type.
Ints: TypeAlias = tuple[int, ...]
Bools: TypeAlias = tuple[bool, ...]
IntRows: TypeAlias = tuple[tuple[int, ...], ...]
Enum: TypeAlias = str  # the name of an enumerator
Enums: TypeAlias = tuple[str, ...]
Symbol: TypeAlias = str  # the name of a function
Attribute = MlirObject  # the MLIR attribute itself


def _array(ctx: Context, op: Op, operands: Sequence[Value], index: int) -> Value:
    return values.plain(operands[index])


def _shape(ctx: Context, op: Op, operands: Sequence[Value], index: int) -> Shape:
    return values.sizes(operands[index], op.name)


def _size(ctx: Context, op: Op, operands: Sequence[Value], index: int) -> DimSize:
    shape = _shape(ctx, op, operands, index)
    if len(shape) != 1:
        raise op.error(f"operand {index} must be one size, but holds {len(shape)}", REPORT)
    return shape[0]


# How an operand is converted, by its annotation.
_CONVERSIONS: dict[str, binding.Conversion] = {
    "Array": _array,
    # Unchanged: an array, `KnownSize`, `Sizes`, a tuple, a token.
    "Value": lambda ctx, op, operands, i: operands[i],
    "Shape": _shape,
    "Size": _size,
}

# How an attribute is read, by its annotation.
_ATTRIBUTES: dict[str, Callable[[MlirObject], Value]] = {
    "Accuracy": attributes.result_accuracy,
    "Algorithm": attributes.dot_algorithm,
    "Attribute": lambda attribute: attribute,
    "Bools": attributes.dense_bools,
    "ConvDims": attributes.conv_dims,
    "DotDims": attributes.dot_dims,
    "Enum": attributes.enum_name,
    "Enums": attributes.enum_names,
    "GatherDims": attributes.gather_dims,
    "IntRows": attributes.dense_int_rows,
    "Ints": attributes.dense_ints,
    "ScatterDims": attributes.scatter_dims,
    "Symbol": attributes.symbol_name,
    "bool": attributes.boolean,
    "float": attributes.real,
    "int": attributes.integer,
    "str": attributes.string,
}

# Attributes that do not affect values. Sharding is read where JAX puts it, on separate ops; on
# other ops it is the partitioner's annotation.
_SILENT_ATTRIBUTES = frozenset(
    {
        "mhlo.frontend_attributes",
        "mhlo.sharding",
        "sdy.sharding",
        "sdy.propagated_shardings",
        "xla_shape",
        "result_layout",  # on a transpose converted from HLO
        "result_layouts",
        "operand_layouts",
        "mhlo.original_value",
    }
)


# Attributes of a custom call besides those of its target.
CALL_ATTRIBUTES = frozenset(
    {
        "api_version",
        "backend_config",
        "call_target_name",
        "called_computations",
        "has_side_effect",
        "indices_of_shape_operands",
        "mhlo.backend_config",
        "mhlo.version",
        "output_operand_aliases",
    }
)


def _attribute(op: Op, name: str, note: str) -> Value:
    if name not in op.names:
        return binding.ABSENT
    return _ATTRIBUTES[note](op.attributes[name])


def _dtype(ctx: Context, op: Op) -> np.dtype:
    return attributes.element_dtype(op.operation.results[0].type)


def _out(ctx: Context, op: Op) -> jax.ShapeDtypeStruct:
    return attributes.aval(op.operation.results[0].type)


BINDER = binding.Binder(
    _CONVERSIONS,
    # Parameters that are neither operands nor attributes: the context, the op, the type of the
    # first result, and its dtype, for results of open size.
    {"ctx": lambda ctx, op: ctx, "op": lambda ctx, op: op, "out": _out, "dtype": _dtype},
    _attribute,
    lambda op: (op.name, op.location),
)

# The result of an op on sizes, from `(op, operands)`; `None` if it is not a size.
SizeRule = Callable[[Op, Sequence[Sizes]], "Sizes | None"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """How an op is raised, and its properties.

    **Arguments:**

    - `call`: takes `(ctx, op, operands)` and returns the list of results.
    - `sizes`: its result on operands that are sizes; `None`: data.
    - `makes_shapes`: whether it is one of the ops that assemble shapes.
    - `ignores`: attributes that do not affect values.
    - `takes_any`: whether its rule handles all attributes itself.
    - `refusal`: the reason and the remedy, for ops without a counterpart.
    """

    call: binding.Bound | None = None
    sizes: SizeRule | None = None
    makes_shapes: bool = False
    ignores: frozenset[str] = frozenset()
    takes_any: bool = False
    refusal: tuple[str, str] | None = None

    def unknown_attributes(self, op: Op) -> list[str]:
        """The attributes of an op that its rule does not take."""
        if self.takes_any or op.names <= self._allowed:
            return []
        unknown = op.names - self._allowed
        return sorted(name for name in unknown if not name.startswith("jax."))

    @functools.cached_property
    def _allowed(self) -> frozenset[str]:
        named = self.call.signature.attributes if self.call is not None else ()
        return self.ignores.union(named, _SILENT_ATTRIBUTES)

    def takes_shape(self) -> bool:
        """Return whether an operand holds sizes instead of data."""
        if self.call is None:
            return False
        signature = self.call.signature
        notes = [note for _, note in signature.operands]
        return not {"Shape", "Size"}.isdisjoint((*notes, signature.rest))

    def is_function(self) -> bool:
        """Return whether its rule is a function of operands and attributes only."""
        return self.call is not None and not self.call.signature.context & {"ctx", "op"}


REGISTRY = registry.Registry("the op", Entry, BINDER)
rule = REGISTRY.rule

CUSTOM_CALL = "stablehlo.custom_call"


def entry_of(op: Op) -> Entry | None:
    """How to raise an op; custom calls are registered as `stablehlo.custom_call @target`."""
    if op.name != CUSTOM_CALL:
        return REGISTRY.get(op.name)
    target = attributes.string(op.attributes["call_target_name"])
    return REGISTRY.get(f"{CUSTOM_CALL} @{target}") or REGISTRY.get(CUSTOM_CALL)


def refuse(table: Mapping[str, tuple[str, str]]) -> None:
    """Register ops without a counterpart, with reason and remedy for the error."""
    for op, refusal in table.items():
        REGISTRY.add(op, Entry(refusal=refusal))


def has_rule(op: str) -> bool:
    """Return whether an op of this name can be raised."""
    entry = REGISTRY.get(op)
    return entry is not None and entry.refusal is None


def elementwise_sizes(primitive: str) -> SizeRule:
    """An elementwise primitive on sizes; see `invert.ir.size_algebra.apply`."""

    def run(op: Op, operands: Sequence[Sizes]) -> Sizes | None:
        return apply(primitive, operands, attributes.element_dtype(op.result_types()[0]))

    return run


def moved_sizes(move: Callable[..., np.ndarray]) -> SizeRule:
    """A function of arrays of sizes and attributes, bound like a rule."""
    bound = REGISTRY.bound(move)

    def run(op: Op, operands: Sequence[Sizes]) -> Sizes | None:
        (numbers,) = bound(None, op, [x.numbers for x in operands])
        return Sizes(numbers, operands[0].dtype)

    return run


def sizes_of(entry: Entry, op: Op, operands: Sequence[Value]) -> Sizes | None:
    """The result of an op on sizes; `None` if data is involved."""
    arrays = [lifted(x) for x in operands]
    if entry.sizes is None or any(a is None for a in arrays):
        return None
    return entry.sizes(op, [a for a in arrays if a is not None])
