"""Elementwise ops: a table, and the few ops that need more than their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import is_tracer
from invert.ir.arrays import converted
from invert.ir.narrow_operands import narrowable
from invert.ir.size_algebra import Sizes, apply
from invert.ir.sizes import as_value
from invert.ir.types import Aval, JaxFunction
from invert.primitives.recorded import Recorded
from invert.stablehlo.ops.attributes import Accuracy, enum_name
from invert.stablehlo.ops.devices import index_axis
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import Array, Enum, Ints, Op, Value, elementwise_sizes, rule
from invert.stablehlo.ops.values import plain

# JAX traces `x + 1.0` with a scalar operand, and `x - m` with sizes of one, and broadcasts them on
# lowering. Such broadcasts are undone if the other operands determine the shape of the result.


def _unbroadcast(ctx: Context, operands: tuple[Value, ...]) -> Sequence[Value]:
    if len(operands) > 1 and all(x is operands[0] for x in operands):
        return operands  # a square: JAX would have broadcast both
    found = [ctx.scalar(x) or ctx.stretched.get(id(x)) for x in operands]
    narrow = [x if f is None else f[1] for x, f in zip(operands, found, strict=True)]
    shapes = [x.shape for x in operands]
    can = narrowable(shapes[0], shapes, [x.shape for x in narrow])
    return [n if c else x for x, n, c in zip(operands, narrow, can, strict=True)]


def _abs(x: Value) -> Value:
    return x if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x)


def _integer_power(x: Value, y: Value) -> Value:
    """Integer power by squaring, modulo two to the number of bits, as specified.

    A negative exponent gives 1, -1 or 0. XLA uses only the lowest six bits of an exponent, for odd
    bases in jaxlib 0.12 and for all bases before. So its results differ for exponents from 64 on.
    """
    dtype = np.dtype(x.dtype)
    bits = jnp.iinfo(dtype).bits
    one, zero = np.ones((), dtype), np.zeros((), dtype)

    def step(_: object, carry: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
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


def _boolean(arithmetic: Callable, logical: Callable) -> Callable:
    """StableHLO's arithmetic on i1 is logical; use the logical op of `lax`."""
    return lambda x, y: logical(x, y) if x.dtype == np.bool_ else arithmetic(x, y)


_UNARY: dict[str, Callable] = {
    "abs": _abs,
    "cbrt": lax.cbrt,
    "ceil": lax.ceil,
    "cosine": lax.cos,
    "count_leading_zeros": lax.clz,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "floor": lax.floor,
    # The specification allows real operands too, `lax.real` and `lax.imag` do not.
    "imag": lambda x: lax.imag(x) if jnp.iscomplexobj(x) else lax.full_like(x, 0),
    "is_finite": lax.is_finite,
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "logistic": lax.logistic,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "popcnt": lax.population_count,
    "real": lambda x: lax.real(x) if jnp.iscomplexobj(x) else x,
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "rsqrt": lax.rsqrt,
    "sign": lax.sign,
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

# The primitives of some of them on sizes, and those that assemble shapes.
_ON_SIZES = {
    "abs": "abs",
    "add": "add",
    "and": "and",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "negate": "neg",
    "not": "not",
    "or": "or",
    "remainder": "rem",
    "sign": "sign",
    "subtract": "sub",
}
_MAKE_SHAPES = frozenset({"add", "subtract"})

# The functions with an `accuracy` parameter (StableHLO's `result_accuracy`).
_ACCURATE = frozenset(
    "cbrt cosine exponential exponential_minus_one log log_plus_one logistic rsqrt sine sqrt tan "
    "tanh".split()
)


def _accuracy(wanted: Accuracy | None) -> lax.Tolerance | lax.AccuracyMode | None:
    """The `accuracy` argument of `lax`; `None` for the default."""
    if wanted is None:
        return None
    if wanted.mode == "TOLERANCE":
        return lax.Tolerance(wanted.atol, wanted.rtol, wanted.ulps)
    return lax.AccuracyMode.HIGHEST if wanted.mode == "HIGHEST" else None


def _register(name: str, function: JaxFunction) -> None:
    primitive = _ON_SIZES.get(name)
    rule(
        f"stablehlo.{name}",
        sizes=None if primitive is None else elementwise_sizes(primitive),
        makes_shapes=name in _MAKE_SHAPES,
    )(function)


def unary(function: Callable) -> Callable:
    """A function of one array as a rule."""

    def call(x: Array) -> Value:
        return function(x)

    return call


def _accurate(function: Callable) -> Callable:
    def call(x: Array, *, result_accuracy: Accuracy | None = None) -> Value:
        accuracy = _accuracy(result_accuracy)
        return function(x) if accuracy is None else function(x, accuracy=accuracy)

    return call


def _binary(function: Callable) -> Callable:
    repeated = Recorded(function)

    def call(x: Array, y: Array, *, ctx: Context) -> Value:
        return repeated(*_unbroadcast(ctx, (x, y)))

    return call


for _name, _function in _UNARY.items():
    _register(_name, (_accurate if _name in _ACCURATE else unary)(_function))
for _name, _function in _BINARY.items():
    _register(_name, _binary(_function))

COMPARE = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


def total_order(direction: str, x: Value, y: Value) -> Value:
    """Compare in the IEEE total order, from -NaN over -0 and +0 to NaN."""
    if direction in ("GT", "GE"):
        x, y = y, x
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LT":
        return lax.lt_to_p.bind(x, y)
    if direction == "LE":
        return lax.le_to_p.bind(x, y)
    equal = lax.eq_to_p.bind(x, y)
    return equal if direction == "EQ" else lax.bitwise_not(equal)


def _compare_sizes(op: Op, operands: Sequence[Sizes]) -> Sizes | None:
    direction = enum_name(op.attributes["comparison_direction"]).lower()
    return apply(direction, operands, np.dtype(bool))


# The comparison that does not fit a kind of integers, which XLA refuses, too.
_OTHER_SIGN = {"i": "UNSIGNED", "u": "SIGNED"}


def _is_false(y: Value) -> bool:
    return not is_tracer(y) and not y.ndim and not y


@rule("stablehlo.compare", sizes=_compare_sizes)
def _compare(
    x: Array,
    y: Array,
    *,
    ctx: Context,
    comparison_direction: Enum,
    compare_type: Enum | None = None,
) -> Value:
    x, y = _unbroadcast(ctx, (x, y))
    if compare_type is not None and compare_type == _OTHER_SIGN.get(np.dtype(x.dtype).kind):
        raise InvertError(f"stablehlo.compare: {compare_type} is not the order of {x.dtype}")
    if comparison_direction == "NE" and x.dtype == bool and _is_false(y):
        return x  # as JAX lowers the conversion of a weakly typed bool
    if compare_type == "TOTALORDER" and jnp.issubdtype(x.dtype, jnp.floating):
        if x.shape != y.shape:  # the total-order primitives do not broadcast
            x, y = jnp.broadcast_arrays(x, y)
        return total_order(comparison_direction, x, y)
    return COMPARE[comparison_direction](x, y)


@rule("stablehlo.select", sizes=elementwise_sizes("select"))
def _select(pred: Array, on_true: Array, on_false: Array, *, ctx: Context) -> Value:
    scalar = ctx.scalar(pred)
    pred = pred if scalar is None else scalar[1]
    return lax.select_n(pred, on_false, on_true)


@rule("stablehlo.clamp", sizes=elementwise_sizes("clamp"), makes_shapes=True)
def _clamp(low: Array, x: Array, high: Array, *, ctx: Context) -> Value:
    low, high = (v if (s := ctx.scalar(v)) is None else s[1] for v in (low, high))
    return lax.clamp(low, x, high)


@rule("stablehlo.convert", sizes=elementwise_sizes("convert_element_type"), makes_shapes=True)
def _convert(x: Value, *, ctx: Context, op: Op, dtype: np.dtype) -> Value:
    if isinstance(x, Sizes) and not x.shape and (number := x.sizes()) is not None:
        return as_value(number[0], dtype)
    x = plain(x)
    if ctx.manual is not None and not x.ndim:
        name = index_axis(op.operation.results[0], ctx.manual.mesh)
        if name in ctx.manual.axes:
            return lax.axis_index(name)
    if x.dtype == dtype:
        return x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        # The specification drops the imaginary part; JAX warns, and keeps it for booleans.
        x = lax.real(x)
        if x.dtype == dtype:
            return x
    return converted(x, dtype)


@rule("stablehlo.bitcast_convert")
def _bitcast_convert(x: Array, *, dtype: np.dtype) -> Value:
    return lax.bitcast_convert_type(x, dtype)


@rule("stablehlo.reduce_precision")
def _reduce_precision(x: Array, *, exponent_bits: int, mantissa_bits: int) -> Value:
    return lax.reduce_precision(x, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)


@rule("stablehlo.map")
def _map(*operands: Array, ctx: Context, op: Op, out: Aval, dimensions: Ints) -> Value:
    """Run the computation on whole arrays: by the specification it is elementwise."""
    del dimensions  # all of them
    scalar = ctx.region(op.regions[0])
    for _ in out.shape:
        scalar = jax.vmap(scalar)
    return scalar(*operands)
