"""Elementwise ops, most of them in tables.

Kernels: tensorflow/core/kernels/cwise_ops.h, gradients: tensorflow/python/ops/math_grad.py
(TensorFlow 2.21). Where JAX's derivative of the plain form differs from TensorFlow's at ties or
zeros, functions are written so that autodiff gives TensorFlow's. Remaining differences:

- `Sqrt` and `Rsqrt` at 0 and `Reciprocal` at 0: a cotangent of 0 gives 0 in TensorFlow, NaN in JAX.
- `MulNoNan` at infinity or NaN and 0: its derivative in the second operand is the first in
  TensorFlow, 0 here.
- `Pow` at base 0 and exponent 0: TensorFlow has NaN for the derivative in the base, JAX 0.
- Gradients of complex `MulNoNan`, `SquaredDifference` and `Xlogy`, `Xlog1py`, `Xdivy`: TensorFlow
  omits the conjugation.
- Floats out of the range of an integer type, undefined in C++: TensorFlow's kernels wrap them;
  compiled with XLA they are clamped, as here.
- Integer division by zero is an error in TensorFlow; here it gives XLA's result.
- Shifts by a negative amount or by the whole width are undefined in TensorFlow.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import InconclusiveDimensionOperation
from invert.ir.arrays import computed_now, converted, converted_now
from invert.tf.interpreter import rows
from invert.tf.interpreter.registry import Array, Ints, Value, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.values.constants import (
    array,
    broadcast,
    broadcast_to,
    fold_binary,
    fold_unary,
    is_static,
    max_size,
    min_size,
    promote,
    same_size,
)

_BOOL = np.dtype(bool)  # attributes of ops without type attributes

Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]


def is_inexact(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


# Functions that NumPy also computes for symbolic sizes.
_OF_SIZES = (lax.neg, lax.square)


def _unary(fn: Unary, fold: Unary | None) -> Callable[..., Value]:
    def unary(x: Value) -> Value:
        if fold is not None and is_static(x) and (x.dtype != object or fn in _OF_SIZES):
            return computed_now(fn, x) if x.dtype.kind == "f" else fold_unary(fold, x)
        return fn(array(x))

    return unary


def _binary(fn: Binary, fold: Binary | None) -> Callable[..., Value]:
    """`fold` computes integers and sizes with NumPy, in agreement with `fn`."""
    ready = promote if fn in _BROADCASTING else broadcast

    def binary(x: Value, y: Value, *, T: np.dtype = _BOOL) -> Value:
        def computed(x: Value, y: Value) -> Array:
            return fn(*ready([x, y], T))

        if fold is not None and is_static(x) and is_static(y):
            numbers = functools.partial(computed_now, computed) if T.kind == "f" else fold
            folded = fold_binary(numbers, x, y, T)
            if folded is not None:
                return folded
        return computed(x, y)

    return binary


def _reciprocal(x: Array) -> Array:
    return lax.div(lax.full_like(x, 1), x)


def _conj(x: Array) -> Array:
    return lax.conj(x) if jnp.iscomplexobj(x) else x


def _round_even(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if is_inexact(x) else x


def _trunc_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype == object or y.dtype == object:
        if not np.all(x >= 0):
            raise InconclusiveDimensionOperation("the rounding of a size depends on its sign")
        return x // y
    return (x - np.fmod(x, y)) // y


def _truncate_div(x: Array, y: Array) -> Array:
    quotient = lax.div(x, y)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return quotient
    return lax.select(
        lax.lt(quotient, lax.full_like(x, 0)), lax.ceil(quotient), lax.floor(quotient)
    )


def _abs(x: Array) -> Array:
    # The derivative at 0 is 0, that of `lax.abs` is 1.
    return lax.mul(x, lax.sign(x)) if is_inexact(x) else lax.abs(x)


def _maximum(x: Array, y: Array) -> Array:
    # At a tie, TensorFlow's gradient goes to x only; that of `lax.max` is split in half.
    largest = lax.max(x, y)
    return lax.select(lax.ge(x, y), x, largest) if is_inexact(x) else largest


def _minimum(x: Array, y: Array) -> Array:
    least = lax.min(x, y)
    return lax.select(lax.le(x, y), x, least) if is_inexact(x) else least


def _squared_difference(x: Array, y: Array) -> Array:
    d = lax.sub(x, y)
    return lax.mul(lax.conj(d), d) if jnp.iscomplexobj(d) else lax.square(d)


def _zero_where(zero: Array, fn: Binary, x: Array, y: Array) -> Array:
    """`fn(x, y)`; where `zero`, 0 with derivative 0, and `fn` gets 1 instead."""
    y = lax.select(zero, lax.full_like(y, 1), y)
    return lax.select(zero, lax.full_like(x, 0), fn(x, y))


def _mul_no_nan(x: Array, y: Array) -> Array:
    # Its derivative in y is x, even where y is 0.
    lost = lax.bitwise_and(_is_zero(y), lax.bitwise_not(jnp.isfinite(x)))
    return lax.mul(lax.select(lost, lax.full_like(x, 0), x), y)


def _unless_zero(fn: Binary) -> Binary:
    """`fn(x, y)`; 0 where x is 0, for every y."""
    return lambda x, y: _zero_where(_is_zero(x), fn, x, y)


def _right_shift(x: Array, y: Array) -> Array:
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(x, y)


def _grad(fn: Binary, singular: Unary = lambda y: lax.bitwise_not(jnp.isfinite(y))) -> Binary:
    """A gradient by result y: 0 where the cotangent is, even if `singular`."""

    def grad(y: Array, dy: Array) -> Array:
        lost = lax.bitwise_and(_is_zero(dy), singular(y))
        return fn(_conj(lax.select(lost, lax.full_like(y, 1), y)), dy)

    return grad


@with_tangent(lambda y, primals, tangents: tangents[0])
def _next_after(x: Array, y: Array) -> Array:
    """`nextafter`: the derivative in x is 1, that in y is 0."""
    return lax.nextafter(x, y)


# The derivative of `lax.acosh` has the wrong sign left of the imaginary axis.
@with_tangent(lambda y, primals, tangents: lax.div(tangents[0], lax.sinh(y)))
def _complex_acosh(x: Array) -> Array:
    return lax.acosh(x)


def _is_zero(x: Array) -> Array:
    return lax.eq(x, lax.full_like(x, 0))


def _scaled(x: Array, factor: float) -> Array:
    return lax.mul(x, lax.full_like(x, factor))


# op: (function on arrays, the same on static values or None)
UNARY: dict[str, tuple[Unary, Unary | None]] = {
    "Abs": (_abs, np.abs),
    "Acos": (lax.acos, None),
    "Acosh": (lambda x: _complex_acosh(x) if jnp.iscomplexobj(x) else lax.acosh(x), None),
    "Angle": (lambda x: lax.atan2(lax.imag(x), lax.real(x)), None),
    "Asin": (lax.asin, None),
    "Asinh": (lax.asinh, None),
    "Atan": (lax.atan, None),
    "Atanh": (lax.atanh, None),
    "Ceil": (lax.ceil, np.ceil),
    "ComplexAbs": (lax.abs, None),
    "Conj": (_conj, None),
    "Cos": (lax.cos, None),
    "Cosh": (lax.cosh, None),
    "Exp": (lax.exp, None),
    "Expm1": (lax.expm1, None),
    "Floor": (lax.floor, np.floor),
    "Imag": (lax.imag, None),
    "Inv": (_reciprocal, None),
    "Invert": (lax.bitwise_not, None),
    "IsFinite": (lax.is_finite, None),
    "IsInf": (lambda x: lax.eq(lax.abs(x), lax.full_like(x, np.inf)), None),
    "IsNan": (lambda x: lax.ne(x, x), None),
    "Log": (lax.log, None),
    "Log1p": (lax.log1p, None),
    "LogicalNot": (lax.bitwise_not, np.logical_not),
    "Neg": (lax.neg, np.negative),
    "OnesLike": (lambda x: lax.full_like(x, 1), np.ones_like),
    "PopulationCount": (lambda x: lax.population_count(x).astype(np.uint8), None),
    "Real": (lax.real, None),
    "Reciprocal": (_reciprocal, None),
    "Relu": (jax.nn.relu, None),
    "Rint": (_round_even, np.rint),
    "Round": (_round_even, np.round),
    "Rsqrt": (lax.rsqrt, None),
    "Sigmoid": (lax.logistic, None),
    "Sign": (lax.sign, lambda x: np.where(x == 0, x, np.sign(x))),  # as `lax`: -0.0 stays
    "Sin": (lax.sin, None),
    "Sinh": (lax.sinh, None),
    "Sqrt": (lax.sqrt, np.sqrt),
    "Square": (lax.square, np.square),
    "Tan": (lax.tan, None),
    "Tanh": (lax.tanh, None),
    "ToBool": (lambda x: lax.ne(x, lax.full_like(x, 0)) if x.ndim == 0 else x.size > 0, None),
    "ZerosLike": (lambda x: lax.full_like(x, 0), np.zeros_like),
}

# Functions that broadcast sizes of one themselves, and accept scalars with arrays.
_BROADCASTING = (
    lax.add, lax.atan2, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.div, lax.ge, lax.gt,
    lax.le, lax.lt, lax.mul, lax.rem, lax.sub,
    _squared_difference,
)  # fmt: skip

BINARY: dict[str, tuple[Binary, Binary | None]] = {
    "Add": (lax.add, operator.add),
    "AddV2": (lax.add, operator.add),
    "Atan2": (lax.atan2, None),
    "BitwiseAnd": (lax.bitwise_and, None),
    "BitwiseOr": (lax.bitwise_or, None),
    "BitwiseXor": (lax.bitwise_xor, None),
    "Complex": (lax.complex, None),
    "Div": (lax.div, _trunc_div),
    "FloorDiv": (
        lambda x, y: lax.floor(lax.div(x, y)) if is_inexact(x) else jnp.floor_divide(x, y),
        operator.floordiv,
    ),
    "FloorMod": (jnp.mod, operator.mod),
    "Greater": (lax.gt, operator.gt),
    "GreaterEqual": (lax.ge, operator.ge),
    "LeftShift": (lax.shift_left, None),
    "Less": (lax.lt, operator.lt),
    "LessEqual": (lax.le, operator.le),
    "LogicalAnd": (lax.bitwise_and, np.logical_and),
    "LogicalOr": (lax.bitwise_or, np.logical_or),
    "Maximum": (_maximum, max_size),
    "Minimum": (_minimum, min_size),
    "Mod": (lax.rem, None),
    "Mul": (lax.mul, operator.mul),
    "MulNoNan": (_mul_no_nan, None),
    "NextAfter": (_next_after, None),
    "RealDiv": (lax.div, operator.truediv),
    "RightShift": (_right_shift, None),
    "SquaredDifference": (_squared_difference, None),
    "Sub": (lax.sub, operator.sub),
    "TruncateDiv": (_truncate_div, None),
    "TruncateMod": (lax.rem, None),
    "Xdivy": (_unless_zero(lax.div), None),
    "Xlog1py": (_unless_zero(lambda x, y: lax.mul(x, lax.log1p(y))), None),
    "Xlogy": (_unless_zero(lambda x, y: lax.mul(x, lax.log(y))), None),
    # Gradients, by the result y of the function and the cotangent dy.
    "InvGrad": (_grad(lambda y, dy: lax.mul(lax.neg(dy), lax.square(y))), None),
    "ReciprocalGrad": (_grad(lambda y, dy: lax.mul(lax.neg(dy), lax.square(y))), None),
    "RsqrtGrad": (_grad(lambda y, dy: lax.mul(_scaled(dy, -0.5), lax.integer_pow(y, 3))), None),
    "SigmoidGrad": (lambda y, dy: lax.mul(lax.mul(dy, y), lax.sub(lax.full_like(y, 1), y)), None),
    "SqrtGrad": (
        _grad(
            lambda y, dy: lax.div(_scaled(dy, 0.5), y),
            singular=lambda y: lax.bitwise_or(_is_zero(y), lax.ne(y, y)),
        ),
        None,
    ),
    "TanhGrad": (lambda y, dy: lax.mul(dy, lax.sub(lax.full_like(y, 1), lax.square(y))), None),
}

# Arithmetic of sizes, which is folded.
_SIZES = frozenset("Add AddV2 FloorDiv FloorMod Maximum Minimum Mul Neg Square Sub".split())

for _op, (_fn, _fold) in UNARY.items():
    _rows = None if _op == "ToBool" else rows.elementwise
    rule(_op, rows=_rows, folds_sizes=_op in _SIZES)(_unary(_fn, _fold))
for _op, (_fn, _fold) in BINARY.items():
    rule(_op, rows=rows.elementwise, folds_sizes=_op in _SIZES)(_binary(_fn, _fold))


@rule("Pow", rows=rows.elementwise, folds_sizes=True)
def _power(x: Value, y: Value, *, T: np.dtype) -> Value:
    if T.kind in "iu" and is_static(x) and is_static(y) and _are_powers(y):
        folded = fold_binary(_integer_power, x, y, T)
        if folded is not None:
            return folded
    if isinstance(y, np.ndarray) and y.size == 1 and T.kind == "f":
        # As TensorFlow's own graph optimizer does (`ConvertPowStage`).
        n = float(y.reshape(()))
        if n in (2.0, 3.0) and np.ndim(x) >= y.ndim:
            return lax.integer_pow(array(x), int(n))
    if T.kind == "f" and not (isinstance(y, np.ndarray) or _is_positive(x)):
        x, y = broadcast([x, y])
        # TensorFlow takes 0 for the derivative in the exponent where the base is negative.
        flat = lax.bitwise_and(lax.lt(x, lax.full_like(x, 0)), lax.eq(y, lax.floor(y)))
        return lax.pow(x, lax.select(flat, lax.stop_gradient(y), y))
    x, y = broadcast([x, y])
    return lax.pow(x, y) if is_inexact(x) else jnp.power(x, y)


def _are_powers(y: np.ndarray) -> bool:
    """Return whether all are exponents that a size may have: small, not negative."""
    return all(isinstance(n, int | np.integer) and 0 <= n <= 8 for n in y.ravel().tolist())


def _integer_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype != object:
        return np.power(x, y)
    product = np.frompyfunc(lambda size, n: functools.reduce(operator.mul, [size] * n, 1), 2, 1)
    return np.asarray(product(x, y))


def _is_positive(x: Array) -> bool:
    """Return whether all numbers are known to be above zero."""
    return isinstance(x, np.ndarray) and bool((x > 0).all())


@rule("Equal", "NotEqual", rows=rows.elementwise)
def _equal(x: Value, y: Value, *, T: np.dtype, incompatible_shape_error: bool, op: str) -> Value:
    if not incompatible_shape_error and not _compatible(np.shape(x), np.shape(y)):
        return np.asarray(op == "NotEqual")
    if is_static(x) and is_static(y):
        numbers = functools.partial(computed_now, lambda x, y: lax.eq(*promote([x, y], T)))
        folded = fold_binary(numbers if T.kind == "f" else same_size, x, y, np.dtype(bool))
        if folded is not None:
            # NumPy turns a 0-d array into a scalar, which is not a static value.
            return folded if op == "Equal" else np.asarray(np.logical_not(folded))
    return (lax.eq if op == "Equal" else lax.ne)(*promote([x, y], T))


def _compatible(x: Ints, y: Ints) -> bool:
    pairs = zip(reversed(x), reversed(y), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@rule("ApproximateEqual")
def _approximate_equal(x: Array, y: Array, *, tolerance: float) -> Array:
    distance = lax.abs(lax.sub(x, y))
    return lax.lt(distance, lax.full_like(x, tolerance, distance.dtype))


@rule("DivNoNan", rows=rows.elementwise)
def _div_no_nan(x: Array, y: Array) -> Array:
    # As `_zero_where`, but the divisor is compared before it is broadcast.
    zero = _is_zero(y)
    divisor = lax.select(zero, lax.full_like(y, 1), y)
    x, divisor, zero = broadcast([x, divisor, zero])
    return lax.select(zero, lax.full_like(x, 0), lax.div(x, divisor))


@rule("Cast", rows=rows.elementwise, folds_sizes=True)
def _cast(x: Value, *, SrcT: np.dtype, DstT: np.dtype, Truncate: bool) -> Value:
    if is_static(x) and DstT.kind in "iufb":
        if x.dtype != object:
            return converted_now(x, DstT)
        if DstT.kind in "iu":
            return x
    if not Truncate and (narrow := _narrowed(x, DstT)) is not None:
        return narrow
    x = array(x, SrcT)
    if Truncate and SrcT.kind == "f":
        x = _truncate_mantissa(x, DstT)
    if jnp.iscomplexobj(x) and not jnp.issubdtype(DstT, jnp.complexfloating):
        # TensorFlow keeps the real part, as tensorflow/core/kernels/cast_op.h does.
        x = lax.real(x)
    return converted(x, jax.dtypes.canonicalize_dtype(DstT))


def _narrowed(x: Value, dtype: np.dtype) -> np.ndarray | None:
    """Double precision constants in single precision, so that the program needs no doubles."""
    if not isinstance(x, np.ndarray) or (x.dtype, dtype) != (np.float64, np.float32):
        return None
    with np.errstate(all="ignore"):
        narrow = x.astype(dtype)
    # TensorFlow flushes subnormal numbers to zero, NumPy does not.
    normal = (narrow == 0) | ~(np.abs(narrow) < np.finfo(dtype).tiny)
    return narrow if normal.all() else None


def _truncate_mantissa(x: Array, dtype: np.dtype) -> Array:
    """`x` without the bits that `dtype` cannot hold, so that conversion truncates."""
    surplus = jnp.finfo(x.dtype).nmant - (
        jnp.finfo(dtype).nmant if jnp.issubdtype(dtype, jnp.floating) else 0
    )
    if surplus <= 0 or not jnp.issubdtype(dtype, jnp.floating):
        return x
    bits = lax.bitcast_convert_type(x, np.dtype(f"uint{x.dtype.itemsize * 8}"))
    kept = lax.bitwise_and(
        bits, lax.full_like(bits, ~((1 << surplus) - 1) & np.iinfo(bits.dtype).max)
    )
    return lax.bitcast_convert_type(kept, x.dtype)


@rule("Bitcast")
def _bitcast(x: Array, *, type: np.dtype) -> Array:
    dtype = jax.dtypes.canonicalize_dtype(type)
    if not (jnp.iscomplexobj(x) or jnp.issubdtype(dtype, jnp.complexfloating)):
        return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)
    # `lax` cannot bitcast complex numbers: through the bytes of their parts.
    old, new = x.dtype.itemsize, dtype.itemsize
    shape = (*x.shape, old // new) if old > new else x.shape[: x.ndim - (old < new)]
    if jnp.iscomplexobj(x):
        x = jnp.stack([lax.real(x), lax.imag(x)], -1)
    data = lax.bitcast_convert_type(x, np.uint8)
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        data = lax.reshape(data, (*shape, new) if new > 1 else shape)
        return lax.bitcast_convert_type(data, dtype)
    parts = lax.bitcast_convert_type(
        lax.reshape(data, (*shape, 2, new // 2)), np.dtype(f"float{new * 4}")
    )
    return lax.complex(parts[..., 0], parts[..., 1])


@rule("Select")
@rule("SelectV2", rows=rows.elementwise)
def _select(condition: Value, x: Value, y: Value, *, T: np.dtype, op: str) -> Value:
    known = all(is_static(v) for v in (condition, x, y)) and condition.dtype != object
    if known and (op == "SelectV2" or condition.shape == x.shape):
        return np.asarray(np.where(condition, x, y))
    condition, x, y = array(condition), array(x, T), array(y, T)
    if op == "Select" and 0 < condition.ndim < x.ndim:
        # The first version of the op picks whole rows.
        ones = (1,) * (x.ndim - condition.ndim)
        condition = lax.reshape(condition, (*condition.shape, *ones))
    return lax.select(*broadcast([condition, x, y]))


@rule("AccumulateNV2", ignores=("shape",))
@rule("AddN", rows=rows.elementwise)
def _add_n(*inputs: Array) -> Array:
    return functools.reduce(lax.add, inputs)


@rule("ClipByValue", rows=rows.elementwise)
def _clip_by_value(x: Array, low: Array, high: Array) -> Array:
    low, high = broadcast_to(low, x.shape), broadcast_to(high, x.shape)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return lax.max(lax.min(x, high), low)
    # Unlike for `lax.clamp`, TensorFlow's gradient is nonzero at the bounds themselves.
    return lax.select(lax.lt(x, low), low, lax.select(lax.gt(x, high), high, x))


@rule("Cross")
def _cross(a: Array, b: Array) -> Array:
    return jnp.cross(a, b)


@rule("XlaReducePrecision", rows=rows.elementwise)
def _reduce_precision(x: Array, *, exponent_bits: int, mantissa_bits: int) -> Array:
    return lax.reduce_precision(x, exponent_bits, mantissa_bits)
