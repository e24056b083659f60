"""CHLO ops: the functions of one name, whether as an op, a composite or a custom call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert.primitives.stablehlo import elementwise
from invert.primitives.stablehlo.precision import precision_config
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints
from invert.stablehlo.ops.interpreter import Context, Op, Value, data, raises


def _conj(x: Value) -> Value:
    # `lax.conj` makes real operands complex; here they stay as they are.
    return lax.conj(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


UNARY: dict[str, Callable] = {
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
    "square": lax.square,
    "tan": lax.tan,
}

BINARY: dict[str, Callable] = {
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

_COMPARE = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


def _register(name: str, function: Callable) -> None:
    raises(name)(lambda ctx, op, *operands: function(*operands))


for _name, _function in (UNARY | BINARY).items():
    _register(f"chlo.{_name}", _function)

# What jaxlib makes of the HLO ops of this kind that StableHLO lacks.
_register("mhlo.erf", lax.erf)
for _name in ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh"):
    _register(f"mhlo.{_name}", UNARY[_name])


def _together(op: Op, operands: tuple[Value, ...]) -> list[Value]:
    """The operands at their common shape; `broadcast_dimensions` places the smaller one."""
    attribute = op.get("broadcast_dimensions")
    if attribute is not None and len(operands) == 2:
        dims = dense_ints(attribute)
        rank = max(x.ndim for x in operands)
        operands = tuple(
            x
            if x.ndim == rank
            else x.reshape([x.shape[dims.index(i)] if i in dims else 1 for i in range(rank)])
            for x in operands
        )
    shape = jnp.broadcast_shapes(*(x.shape for x in operands))
    return [jnp.broadcast_to(x, shape) for x in operands]


def _register_broadcasting(name: str, function: Callable) -> None:
    @raises(f"chlo.broadcast_{name}")
    def rule(ctx: Context, op: Op, x: Value, y: Value) -> Value:
        return function(*_together(op, (x, y)))


for _name, _function in _BROADCASTING.items():
    _register_broadcasting(_name, _function)


@raises("chlo.broadcast_compare")
def _broadcast_compare(ctx: Context, op: Op, x: Value, y: Value) -> Value:
    direction = attributes.enum_name(op["comparison_direction"])
    kind = op.get("compare_type")
    x, y = _together(op, (x, y))
    total = kind is not None and attributes.enum_name(kind) == "TOTALORDER"
    if total and jnp.issubdtype(x.dtype, jnp.floating):
        return elementwise.total_order(direction, x, y)
    return _COMPARE[direction](x, y)


@raises("chlo.broadcast_select")
def _broadcast_select(ctx: Context, op: Op, pred: Value, x: Value, y: Value) -> Value:
    pred, x, y = _together(op, (pred, x, y))
    return lax.select(pred, x, y)


@raises("chlo.constant")
def _constant(ctx: Context, op: Op) -> Value:
    op.unread.discard("value")
    return attributes.constant(op.op)


@raises("chlo.constant_like")
def _constant_like(ctx: Context, op: Op, x: Value) -> Value:
    value = op["value"].value
    return jnp.full_like(x, np.asarray(value, x.dtype))


@raises("chlo.top_k")
def _top_k(ctx: Context, op: Op, x: Value) -> Value:
    op.get("is_stable")  # since jaxlib 0.12; `lax.top_k` takes the first of equal values either way
    largest = op.get("largest")
    return top_k(x, attributes.integer(op["k"]), largest is None or largest.value)


def top_k(x: Value, k: int, largest: bool = True) -> list[Value]:
    """`lax.top_k` over the last axis.

    **Raises:** `InvertError` where the smallest values are wanted.
    """
    if not largest:
        raise InvertError(
            "the smallest values are wanted, which `lax.top_k` does not give; export the program "
            "with a sort in its place"
        )
    values, indices = lax.top_k(x, k)
    return [values, indices]


@raises("chlo.ragged_dot")
def _ragged_dot(ctx: Context, op: Op, x: Value, y: Value, sizes: Value) -> Value:
    text = str(op["ragged_dot_dimension_numbers"])
    return ragged_dot(text, x, y, sizes, ctx.dtype(op), precision_config(op))


def ragged_dot(
    text: str, x: Value, y: Value, sizes: Value, dtype: np.dtype, precision: Any = None
) -> Value:
    """`lax.ragged_dot_general` from the printed attribute, which has no Python binding."""
    import re

    fields = {
        name: tuple(int(n) for n in re.findall(r"\d+", value))
        for name, value in re.findall(r"(\w+) = \[([^\]]*)\]", text)
    }
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(
            (
                fields.get("lhs_contracting_dimensions", ()),
                fields.get("rhs_contracting_dimensions", ()),
            ),
            (fields.get("lhs_batching_dimensions", ()), fields.get("rhs_batching_dimensions", ())),
        ),
        lhs_ragged_dimensions=fields.get("lhs_ragged_dimensions", ()),
        rhs_group_dimensions=fields.get("rhs_group_dimensions", ()),
    )
    return lax.ragged_dot_general(x, y, sizes, dims, precision, preferred_element_type=dtype)


@raises("chlo.scan", "mhlo.scan")
def _scan(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    """A scan over one axis: the body takes slices and carries, and gives the same in turn.

    That the body is associative is a permission, not a demand.
    """
    op.get("is_associative")
    count, _ = dense_ints(op["operandSegmentSizes"])
    outputs, _ = dense_ints(op["resultSegmentSizes"])
    axis, length, reverse = (
        attributes.integer(op["dimension"]),
        op.get("scan_dim_size"),
        op.get("is_reverse"),
    )
    (region,) = op.regions
    body = ctx.region(region)
    operands = tuple(map(data, operands))

    def step(carry: Sequence[Value], slices: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        results = list(map(data, body(*slices, *carry)))
        return results[outputs:], results[:outputs]

    carried, stacked = lax.scan(
        step,
        list(operands[count:]),
        [_moved(x, axis, 0) for x in operands[:count]],
        length=None if length is None else attributes.integer(length),
        reverse=reverse is not None and reverse.value,
    )
    return [*(_moved(x, 0, axis) for x in stacked), *carried]


def _moved(x: Value, source: int, target: int) -> Value:
    return x if source == target else jnp.moveaxis(x, source, target)
