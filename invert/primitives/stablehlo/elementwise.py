"""Elementwise ops: a table, and the few ops that need more than their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.devices import index_axis
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises

# JAX writes `x + 1.0` with a scalar operand, and `x - m` with one whose sizes are partly one, and
# broadcasts them on lowering. Operands that are such a broadcast are put back, as long as the
# others give the result its shape.


def _unbroadcast(ctx: Context, operands: tuple[Value, ...]) -> list[Value]:
    shape = operands[0].shape
    found = [ctx.scalar(x) or ctx.stretched.get(id(x)) for x in operands]
    narrow = [x if f is None else f[1] for x, f in zip(operands, found, strict=True)]
    for i, f in enumerate(found):
        sizes = [x.shape for x in narrow if x.shape] or [()]
        # The size that is not one, where there is such: open sizes cannot be compared with it.
        wide = [max(axis, key=lambda n: n != 1) for axis in zip(*sizes, strict=True)]
        if tuple(wide) == shape:
            break
        if f is not None:
            narrow[i] = operands[i]
    return narrow


def _dtype(x: Value) -> np.dtype:
    return np.dtype(x.dtype)


def _is_bool(x: Value) -> bool:
    return x.dtype == np.bool_


def _abs(x: Value) -> Value:
    return x if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x)


def _is_complex(x: Value) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _real(x: Value) -> Value:
    """The specification takes real operands too, which `lax.real` does not."""
    return lax.real(x) if _is_complex(x) else x


def _imag(x: Value) -> Value:
    return lax.imag(x) if _is_complex(x) else lax.full_like(x, 0)


def _integer_power(x: Value, y: Value) -> Value:
    """Integer power by squaring, modulo two to the number of bits, as the specification says.

    A negative exponent gives 1, -1 or 0. XLA takes the lowest six bits of an exponent only, for odd
    bases up to jaxlib 0.12 and for all before it; there, numbers differ from exponents of 64 on.
    """
    dtype = _dtype(x)
    bits = jnp.iinfo(dtype).bits
    one, zero = np.ones((), dtype), np.zeros((), dtype)

    def step(_: Any, carry: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        result, base, rest = carry
        odd = lax.ne(lax.bitwise_and(rest, one), zero)
        result = lax.select(odd, lax.mul(result, base), result)
        return result, lax.mul(base, base), lax.shift_right_logical(rest, one)

    result, _, _ = lax.fori_loop(0, bits, step, (lax.full_like(x, 1), x, y))
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return result
    minus_one = np.bitwise_not(zero)
    even = lax.eq(lax.bitwise_and(y, one), zero)
    unit = lax.select(even, lax.full_like(x, 1), lax.full_like(x, minus_one))
    inverse = lax.select(lax.eq(x, one), lax.full_like(x, 1), lax.full_like(x, 0))
    inverse = lax.select(lax.eq(x, minus_one), unit, inverse)
    return lax.select(lax.lt(y, zero), inverse, result)


def _power(x: Value, y: Value) -> Value:
    if jnp.issubdtype(x.dtype, jnp.integer):
        shape = jnp.broadcast_shapes(x.shape, y.shape)
        return _integer_power(jnp.broadcast_to(x, shape), jnp.broadcast_to(y, shape))
    return lax.pow(x, y)


def _sign(x: Value) -> Value:
    return lax.sign(x)


def _boolean(arithmetic: Callable, logical: Callable) -> Callable:
    """StableHLO's arithmetic on i1 is logic; `lax` has the logical op for it."""
    return lambda x, y: logical(x, y) if _is_bool(x) else arithmetic(x, y)


_UNARY: dict[str, Callable] = {
    "abs": _abs,
    "cbrt": lax.cbrt,
    "ceil": lax.ceil,
    "cosine": lax.cos,
    "count_leading_zeros": lax.clz,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "floor": lax.floor,
    "imag": _imag,
    "is_finite": lax.is_finite,
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "logistic": lax.logistic,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "popcnt": lax.population_count,
    "real": _real,
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "rsqrt": lax.rsqrt,
    "sign": _sign,
    "sine": lax.sin,
    "sqrt": lax.sqrt,
    "tan": lax.tan,
    "tanh": lax.tanh,
}

_BINARY: dict[str, Callable] = {
    "add": _boolean(lax.add, lax.bitwise_or),
    "and": lax.bitwise_and,
    "atan2": lax.atan2,
    "complex": lax.complex,
    "divide": lax.div,
    "maximum": _boolean(lax.max, lax.bitwise_or),
    "minimum": _boolean(lax.min, lax.bitwise_and),
    "multiply": _boolean(lax.mul, lax.bitwise_and),
    "or": lax.bitwise_or,
    "power": _power,
    "remainder": lax.rem,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "subtract": lax.sub,
    "xor": lax.bitwise_xor,
}

# The functions whose `accuracy` can be asked for (StableHLO's `result_accuracy`).
_ACCURATE = frozenset(
    "cbrt cosine exponential exponential_minus_one log log_plus_one logistic rsqrt sine sqrt tan "
    "tanh".split()
)


def _accuracy(attribute: Any) -> lax.Tolerance | lax.AccuracyMode | None:
    """What `lax` takes as `accuracy`; `None` for the default."""
    fields = attributes.result_accuracy(attribute)
    if fields.mode == "TOLERANCE":
        return lax.Tolerance(fields.atol, fields.rtol, fields.ulps)
    return lax.AccuracyMode.HIGHEST if fields.mode == "HIGHEST" else None


def _unary_rule(name: str, function: Callable) -> None:
    def rule(ctx: Context, op: Op, x: Value) -> Value:
        attribute = op.get("result_accuracy") if name in _ACCURATE else None
        accuracy = None if attribute is None else _accuracy(attribute)
        return function(x) if accuracy is None else function(x, accuracy=accuracy)

    raises(f"stablehlo.{name}")(rule)


def _binary_rule(name: str, function: Callable) -> None:
    def rule(ctx: Context, op: Op, x: Value, y: Value) -> Value:
        return function(*_unbroadcast(ctx, (x, y)))

    raises(f"stablehlo.{name}")(rule)


for _name, _function in _UNARY.items():
    _unary_rule(_name, _function)
for _name, _function in _BINARY.items():
    _binary_rule(_name, _function)

_COMPARE = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


def total_order(direction: str, x: Value, y: Value) -> Value:
    """Comparison in the IEEE total order: -NaN < -inf < ... < -0 < +0 < ... < +inf < NaN."""
    if direction in ("GT", "GE"):
        x, y = y, x
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LT":
        return lax.lt_to_p.bind(x, y)
    if direction == "LE":
        return lax.le_to_p.bind(x, y)
    equal = lax.eq_to_p.bind(x, y)
    return equal if direction == "EQ" else lax.bitwise_not(equal)


@raises("stablehlo.compare")
def _compare(ctx: Context, op: Op, x: Value, y: Value) -> Value:
    direction = attributes.enum_name(op["comparison_direction"])
    kind = op.get("compare_type")
    x, y = _unbroadcast(ctx, (x, y))
    total = kind is not None and attributes.enum_name(kind) == "TOTALORDER"
    if total and jnp.issubdtype(x.dtype, jnp.floating):
        if x.shape != y.shape:  # the total-order primitives do not broadcast
            x, y = jnp.broadcast_arrays(x, y)
        return total_order(direction, x, y)
    return _COMPARE[direction](x, y)


@raises("stablehlo.select")
def _select(ctx: Context, op: Op, pred: Value, on_true: Value, on_false: Value) -> Value:
    scalar = ctx.scalar(pred)
    pred = pred if scalar is None else scalar[1]
    return lax.select_n(pred, on_false, on_true)


@raises("stablehlo.clamp")
def _clamp(ctx: Context, op: Op, low: Value, x: Value, high: Value) -> Value:
    low, high = (v if (s := ctx.scalar(v)) is None else s[1] for v in (low, high))
    return lax.clamp(low, x, high)


@raises("stablehlo.convert")
def _convert(ctx: Context, op: Op, x: Value) -> Value:
    dtype = ctx.dtype(op)
    if ctx.manual is not None and not x.ndim:
        name = index_axis(op.op.results[0], ctx.manual.mesh)
        if name in ctx.manual.axes:
            return lax.axis_index(name)
    if x.dtype == dtype:
        return x
    if _is_complex(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        # By the specification the imaginary part is dropped; JAX warns, and for booleans keeps it.
        x = lax.real(x)
        if x.dtype == dtype:
            return x
    return lax.convert_element_type(x, dtype)


@raises("stablehlo.bitcast_convert")
def _bitcast_convert(ctx: Context, op: Op, x: Value) -> Value:
    return lax.bitcast_convert_type(x, ctx.dtype(op))


@raises("stablehlo.reduce_precision")
def _reduce_precision(ctx: Context, op: Op, x: Value) -> Value:
    return lax.reduce_precision(
        x,
        exponent_bits=attributes.integer(op["exponent_bits"]),
        mantissa_bits=attributes.integer(op["mantissa_bits"]),
    )


@raises("stablehlo.map")
def _map(ctx: Context, op: Op, *operands: Value) -> Value:
    """The computation runs on whole arrays: it is elementwise by the specification."""
    op.get("dimensions")
    body = ctx.region(op.regions[0])
    scalar = body
    for _ in range(len(ctx.aval(op).shape)):
        scalar = jax.vmap(scalar)
    return scalar(*operands)
