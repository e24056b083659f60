"""CHLO ops, also as composites and custom calls of the same names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.mlir import ir
from invert.primitives.stablehlo import elementwise
from invert.primitives.stablehlo.elementwise import COMPARE
from invert.primitives.stablehlo.linear import precision_of
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import (
    CALL_ATTRIBUTES,
    CUSTOM_CALL,
    Array,
    Attribute,
    Enum,
    Enums,
    Ints,
    Op,
    Size,
    Value,
    rule,
)
from invert.stablehlo.ops.values import data


def _conj(x: Value) -> Value:
    # `lax.conj` makes real operands complex; here they stay real.
    return lax.conj(x) if jnp.iscomplexobj(x) else x


def _square(x: Array) -> Value:
    """`x * x` for floats, as an export has it: functions are recognized by that."""
    return lax.mul(x, x) if jnp.issubdtype(x.dtype, jnp.floating) else lax.square(x)


_UNARY: dict[str, Callable] = {
    "acos": lax.acos,
    "acosh": lax.acosh,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "bessel_i1e": lax.bessel_i1e,
    "conj": _conj,
    "cosh": lax.cosh,
    "digamma": lax.digamma,
    "erf": lax.erf,
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "is_inf": jnp.isinf,
    "is_neg_inf": jnp.isneginf,
    "is_pos_inf": jnp.isposinf,
    "lgamma": lax.lgamma,
    "sinh": lax.sinh,
    "square": _square,
    "tan": lax.tan,
}

_BINARY: dict[str, Callable] = {
    "mulhi": lax.mulhi,
    "next_after": lax.nextafter,
    "polygamma": lax.polygamma,
    "zeta": lax.zeta,
}

_BROADCASTING: dict[str, Callable] = {
    "add": jnp.add,
    "and": jnp.bitwise_and,
    "atan2": jnp.arctan2,
    "complex": lax.complex,
    "divide": lax.div,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "multiply": jnp.multiply,
    "next_after": lax.nextafter,
    "or": jnp.bitwise_or,
    "polygamma": lax.polygamma,
    "power": lax.pow,
    "remainder": lax.rem,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "subtract": jnp.subtract,
    "xor": jnp.bitwise_xor,
    "zeta": lax.zeta,
}

# jaxlib converts HLO ops that StableHLO lacks to these.
_OF_HLO = frozenset("acos acosh asin asinh atanh cosh erf sinh".split())


def _binary(function: Callable) -> Callable:
    def call(x: Array, y: Array) -> Value:
        return function(x, y)

    return call


for _name, _function in _UNARY.items():
    _ops = [f"chlo.{_name}"] + [f"mhlo.{_name}"] * (_name in _OF_HLO)
    rule(*_ops)(elementwise.unary(_function))
for _name, _function in _BINARY.items():
    rule(f"chlo.{_name}")(_binary(_function))


def _together(operands: Sequence[Value], dims: Ints | None) -> Sequence[Value]:
    """The operands broadcast to their common shape; `dims` places the smaller of two."""
    if dims is not None and len(operands) == 2:
        rank = max(x.ndim for x in operands)
        operands = tuple(
            x
            if x.ndim == rank
            else x.reshape([x.shape[dims.index(i)] if i in dims else 1 for i in range(rank)])
            for x in operands
        )
    shape = jnp.broadcast_shapes(*(x.shape for x in operands))
    return [jnp.broadcast_to(x, shape) for x in operands]


def _broadcasting(function: Callable) -> Callable:
    def call(x: Array, y: Array, *, broadcast_dimensions: Ints | None = None) -> Value:
        return function(*_together((x, y), broadcast_dimensions))

    return call


for _name, _function in _BROADCASTING.items():
    rule(f"chlo.broadcast_{_name}")(_broadcasting(_function))


@rule("chlo.broadcast_compare")
def _broadcast_compare(
    x: Array,
    y: Array,
    *,
    comparison_direction: Enum,
    compare_type: Enum | None = None,
    broadcast_dimensions: Ints | None = None,
) -> Value:
    x, y = _together((x, y), broadcast_dimensions)
    if compare_type == "TOTALORDER" and jnp.issubdtype(x.dtype, jnp.floating):
        return elementwise.total_order(comparison_direction, x, y)
    return COMPARE[comparison_direction](x, y)


@rule("chlo.broadcast_select")
def _broadcast_select(
    pred: Array, x: Array, y: Array, *, broadcast_dimensions: Ints | None = None
) -> Value:
    pred, x, y = _together((pred, x, y), broadcast_dimensions)
    return lax.select(pred, x, y)


@rule("chlo.constant", ignores=("value",))
def _constant(*, op: Op) -> Value:
    return attributes.constant(op.operation)


@rule("chlo.constant_like")
def _constant_like(x: Array, *, value: Attribute) -> Value:
    return jnp.full_like(x, np.asarray(value.value, x.dtype))


@rule(f"{CUSTOM_CALL} @stablehlo.dynamic_top_k", ignores=CALL_ATTRIBUTES)
def _open_top_k(x: Array, k: Size) -> Sequence[Value]:
    return lax.top_k(x, k)


# `is_stable` since jaxlib 0.12; `lax.top_k` takes the first of equal values either way.
@rule("chlo.top_k", "mhlo.topk", ignores=("is_stable",))
def _top_k(x: Array, *, k: int, largest: bool = True) -> Sequence[Value]:
    if not largest:
        raise InvertError(
            "it selects the smallest values, which `lax.top_k` does not do; export the program "
            "with a sort instead"
        )
    return lax.top_k(x, k)


_RAGGED_FIELDS = (
    *("lhs_batching_dimensions", "rhs_batching_dimensions"),
    *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
    *("lhs_ragged_dimensions", "rhs_group_dimensions"),
)


@rule("chlo.ragged_dot")
def _ragged_dot(
    x: Array,
    y: Array,
    sizes: Array,
    *,
    dtype: np.dtype,
    ragged_dot_dimension_numbers: Attribute,
    precision_config: Enums = (),
) -> Value:
    """`lax.ragged_dot_general` from the printed attribute, which has no Python binding.

    A composite, used for GPUs, lists the six fields without names.
    """
    text = str(ragged_dot_dimension_numbers)
    if text.startswith("["):
        lists = re.findall(r"dense<([^>]*)>", text)
        written = dict(zip(_RAGGED_FIELDS, lists, strict=True))
    else:
        written = dict(re.findall(r"(\w+) = \[([^\]]*)\]", text))
    lhs_batch, rhs_batch, lhs_contracted, rhs_contracted, ragged, groups = (
        tuple(int(n) for n in re.findall(r"\d+", written.get(name, ""))) for name in _RAGGED_FIELDS
    )
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=((lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch)),
        lhs_ragged_dimensions=ragged,
        rhs_group_dimensions=groups,
    )
    precision = precision_of(precision_config)
    return lax.ragged_dot_general(x, y, sizes, dims, precision, preferred_element_type=dtype)


@rule("chlo.scan", "mhlo.scan")
def _scan(
    *operands: Array,
    ctx: Context,
    op: Op,
    dimension: int,
    operandSegmentSizes: Ints,
    resultSegmentSizes: Ints,
    scan_dim_size: int | None = None,
    is_reverse: bool = False,
    is_associative: bool = False,
) -> Sequence[Value]:
    """A scan over one axis, from slices and carries to outputs and carries.

    A sum in any order is `cumsum`, as JAX lowers it for GPUs (jax 0.11 and 0.12).
    """
    count, _ = operandSegmentSizes
    outputs, _ = resultSegmentSizes
    (region,) = op.regions
    if is_associative and count == outputs == 1 and _sums(region) and _is_zero(ctx, operands[1:]):
        sums = lax.cumsum(operands[0], dimension, is_reverse)
        last = 0 if is_reverse else -1
        return [sums, lax.index_in_dim(sums, last, dimension, keepdims=False)]
    body = ctx.region(region)

    def step(carry: Sequence[Value], slices: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        results = list(map(data, body(*slices, *carry)))
        return results[outputs:], results[:outputs]

    carried, stacked = lax.scan(
        step,
        list(operands[count:]),
        [_moved(x, dimension, 0) for x in operands[:count]],
        length=scan_dim_size,
        reverse=is_reverse,
    )
    return [*(_moved(x, 0, dimension) for x in stacked), *carried]


def _sums(region: ir.Region) -> bool:
    """Return whether a body returns the sum of slice and carry, as output and carry."""
    (block,) = region.blocks
    first, *rest = (view.operation for view in block.operations)
    return (
        first.name == "stablehlo.add"
        and len(rest) == 1
        and set(first.operands) == set(block.arguments)
        and list(rest[0].operands) == [first.results[0]] * 2
    )


def _is_zero(ctx: Context, values: Sequence[Value]) -> bool:
    """Return whether the one value is a positive zero, repeated or alone."""
    (value,) = values
    scalar = (ctx.scalar(value) or (value, value))[1]
    return isinstance(scalar, (np.ndarray, np.generic)) and not any(scalar.tobytes())


def _moved(x: Value, source: int, target: int) -> Value:
    return x if source == target else jnp.moveaxis(x, source, target)
