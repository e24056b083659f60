"""Elementwise ops: tables first.

Kernels: tensorflow/core/kernels/cwise_ops.h, gradients: tensorflow/python/ops/math_grad.py
(TensorFlow 2.21). Where JAX's derivative of the plain spelling differs from TensorFlow's at ties or
zeros, the function is spelled so that autodiff gives TensorFlow's. Differences that remain:

- `Sqrt` and `Rsqrt` at 0 and `Reciprocal` at 0: a cotangent of 0 gives 0 in TensorFlow, NaN in JAX.
- `Pow` at base 0 and exponent 0: TensorFlow has NaN for the derivative in the base, JAX 0.
- Gradients of complex `MulNoNan`, `SquaredDifference` and `Xlogy`, `Xlog1py`, `Xdivy`: TensorFlow
  leaves the conjugation out.
- Floats out of the range of an integer type, which C++ leaves undefined: TensorFlow's kernels wrap
  them, and where it compiles by XLA they are clamped, as here.
- Division of integers by zero is an error in TensorFlow; here it gives what XLA gives.
- Shifts by a negative amount or by the whole width: TensorFlow calls them undefined.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, raises_tf
from invert.tf.ops.node import Node
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

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _unary(fn: Unary, fold: Unary | None = None) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        if fold is not None and is_static(values[0]) and values[0].dtype != object:
            return [fold_unary(fold, values[0])]
        return [fn(array(values[0]))]

    return rule


def _binary(fn: Binary, fold: Binary | None = None) -> Rule:
    """`fold` computes with NumPy on static values; it must agree with `fn` on integers."""

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        if fold is not None and is_static(values[0]) and is_static(values[1]):
            folded = fold_binary(fold, values[0], values[1], node.attr("T"))
            if folded is not None:
                return [folded]
        ready = promote if fn in _STRETCHING else broadcast
        return [fn(*ready(values, node.attr("T")))]

    return rule


def _reciprocal(x: Any) -> Any:
    return lax.div(lax.full_like(x, 1), x)


def _conj(x: Any) -> Any:
    return lax.conj(x) if is_complex(x) else x


def _round_even(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if is_inexact(x) else x


def _floor_div(x: Any, y: Any) -> Any:
    return lax.floor(lax.div(x, y)) if is_inexact(x) else jnp.floor_divide(x, y)


def _trunc_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype == object or y.dtype == object:
        return x // y  # sizes have no sign
    if x.dtype.kind == "f":
        return x / y
    return np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y)


def _truncate_div(x: Any, y: Any) -> Any:
    quotient = lax.div(x, y)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return quotient
    return lax.select(
        lax.lt(quotient, lax.full_like(x, 0)), lax.ceil(quotient), lax.floor(quotient)
    )


def _abs(x: Any) -> Any:
    # The derivative at 0 is 0, that of `lax.abs` is 1.
    return lax.mul(x, lax.sign(x)) if is_inexact(x) else lax.abs(x)


def _maximum(x: Any, y: Any) -> Any:
    # At a tie TensorFlow's gradient goes to x alone, that of `lax.max` is split in halves.
    largest = lax.max(x, y)
    return lax.select(lax.ge(x, y), x, largest) if is_inexact(x) else largest


def _minimum(x: Any, y: Any) -> Any:
    least = lax.min(x, y)
    return lax.select(lax.le(x, y), x, least) if is_inexact(x) else least


def _squared_difference(x: Any, y: Any) -> Any:
    d = lax.sub(x, y)
    return lax.mul(lax.conj(d), d) if is_complex(d) else lax.square(d)


def _zero_where(zero: Any, fn: Binary, x: Any, y: Any) -> Any:
    """`fn(x, y)` and 0 where `zero`, with the derivative 0 there: `fn` sees a 1 instead."""
    y = lax.select(zero, lax.full_like(y, 1), y)
    return lax.select(zero, lax.full_like(x, 0), fn(x, y))


def _div_no_nan(x: Any, y: Any) -> Any:
    return _zero_where(_is_zero(y), lax.div, x, y)


def _mul_no_nan(x: Any, y: Any) -> Any:
    # Its derivative in y is x, also where y is 0.
    lost = lax.bitwise_and(_is_zero(y), lax.bitwise_not(jnp.isfinite(x)))
    return lax.mul(lax.select(lost, lax.full_like(x, 0), x), y)


def _unless_zero(fn: Binary) -> Binary:
    """`fn(x, y)`, and 0 where x is 0, whatever y is."""
    return lambda x, y: _zero_where(_is_zero(x), fn, x, y)


def _pow(x: Any, y: Any) -> Any:
    return lax.pow(x, y) if is_inexact(x) else jnp.power(x, y)


def _isinf(x: Any) -> Any:
    return lax.eq(lax.abs(x), lax.full_like(x, np.inf))


def _right_shift(x: Any, y: Any) -> Any:
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(x, y)


def _grad(fn: Binary, singular: Unary = lambda y: lax.bitwise_not(jnp.isfinite(y))) -> Binary:
    """A gradient by the result y of a function: 0 where the cotangent is, even if `singular`."""

    def grad(y: Any, dy: Any) -> Any:
        lost = lax.bitwise_and(_is_zero(dy), singular(y))
        return fn(_conj(lax.select(lost, lax.full_like(y, 1), y)), dy)

    return grad


@jax.custom_jvp
def _next_after(x: Any, y: Any) -> Any:
    """Steps are as flat as x is, and y only says where to."""
    return lax.nextafter(x, y)


@_next_after.defjvp
def _next_after_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _next_after(*primals), tangents[0]


@jax.custom_jvp
def _complex_acosh(x: Any) -> Any:
    return lax.acosh(x)


@_complex_acosh.defjvp
def _complex_acosh_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    # That of `lax.acosh` has the wrong sign left of the imaginary axis.
    y = _complex_acosh(*primals)
    return y, lax.div(tangents[0], lax.sinh(y))


def _acosh(x: Any) -> Any:
    return _complex_acosh(x) if is_complex(x) else lax.acosh(x)


def _is_zero(x: Any) -> Any:
    return lax.eq(x, lax.full_like(x, 0))


def _not_usable(y: Any) -> Any:
    return lax.bitwise_or(_is_zero(y), lax.ne(y, y))


def _half(x: Any, factor: float) -> Any:
    return lax.mul(x, lax.full_like(x, factor))


def _constant(x: Any, value: float) -> Any:
    return lax.full_like(x, value)


# op: (function on arrays, the same on static values or None)
UNARY: dict[str, tuple[Unary, Unary | None]] = {
    "Abs": (_abs, np.abs),
    "Acos": (lax.acos, None),
    "Acosh": (_acosh, None),
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
    "IsInf": (_isinf, None),
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
    "Sign": (lax.sign, None),
    "Sin": (lax.sin, None),
    "Sinh": (lax.sinh, None),
    "Sqrt": (lax.sqrt, np.sqrt),
    "Square": (lax.square, np.square),
    "Tan": (lax.tan, None),
    "Tanh": (lax.tanh, None),
    "ToBool": (lambda x: lax.ne(x, lax.full_like(x, 0)) if x.ndim == 0 else x.size > 0, None),
    "ZerosLike": (lambda x: lax.full_like(x, 0), np.zeros_like),
}

# What stretches sizes of one itself, and takes scalars beside arrays.
_STRETCHING = (
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
    "DivNoNan": (_div_no_nan, None),
    "FloorDiv": (_floor_div, operator.floordiv),
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
    "RsqrtGrad": (_grad(lambda y, dy: lax.mul(_half(dy, -0.5), lax.integer_pow(y, 3))), None),
    "SigmoidGrad": (lambda y, dy: lax.mul(lax.mul(dy, y), lax.sub(_constant(y, 1), y)), None),
    "SqrtGrad": (_grad(lambda y, dy: lax.div(_half(dy, 0.5), y), _not_usable), None),
    "TanhGrad": (lambda y, dy: lax.mul(dy, lax.sub(_constant(y, 1), lax.square(y))), None),
}

# Arithmetic of sizes, which stays known.
_SIZES = frozenset(("Add", "AddV2", "FloorDiv", "Mul", "Sub"))
# The larger of a size and a number is a size; see `primitives.tf.bounded`.
_OWN_ROWS = frozenset(("Maximum", "Minimum", "ToBool"))

for _op, (_fn, _fold) in UNARY.items():
    raises_tf(_op, rows=None if _op in _OWN_ROWS else rows.elementwise)(_unary(_fn, _fold))
for _op, (_fn, _fold) in BINARY.items():
    _rows = None if _op in _OWN_ROWS else rows.elementwise
    raises_tf(_op, rows=_rows, folds_sizes=_op in _SIZES)(_binary(_fn, _fold))


@raises_tf("Pow", rows=rows.elementwise)
def _power(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    y = values[1]
    if isinstance(y, np.ndarray) and y.size == 1 and node.attr("T").kind == "f":
        # What TensorFlow's own graph optimizer does to these (`ConvertPowStage`).
        n = float(y.reshape(()))
        x = array(values[0])
        if n in (2.0, 3.0) and np.ndim(x) >= y.ndim:
            return [lax.integer_pow(x, int(n))]
    if node.attr("T").kind == "f" and not (_is_number(y) or _is_positive(values[0])):
        x, y = broadcast(values)
        # TensorFlow takes 0 for the derivative in the exponent where the base is negative.
        flat = lax.bitwise_and(lax.lt(x, lax.full_like(x, 0)), lax.eq(y, lax.floor(y)))
        return [lax.pow(x, lax.select(flat, lax.stop_gradient(y), y))]
    return [_pow(*broadcast(values))]


def _is_number(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def _is_positive(x: Any) -> bool:
    """Whether all numbers are known to be above zero."""
    return isinstance(x, np.ndarray) and bool((x > 0).all())


@raises_tf("Equal", "NotEqual", rows=rows.elementwise)
def _equal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    fn, fold = (lax.eq, same_size) if node.op == "Equal" else (lax.ne, operator.ne)
    if is_static(values[0]) and is_static(values[1]):
        folded = fold_binary(same_size, values[0], values[1], np.dtype(bool))
        if folded is not None:
            # NumPy makes a scalar of an array without dimensions, which is no static value.
            return [folded if fold is same_size else np.asarray(np.logical_not(folded))]
    shapes = [np.shape(v) for v in values]
    if not node.attr("incompatible_shape_error", True) and not _compatible(*shapes):
        return [np.asarray(node.op == "NotEqual")]
    return [fn(*promote(values, node.attr("T")))]


def _compatible(x: tuple[Any, ...], y: tuple[Any, ...]) -> bool:
    pairs = zip(reversed(x), reversed(y), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


@raises_tf("ApproximateEqual")
def _approximate_equal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = (array(v) for v in values)
    tolerance = lax.full_like(x, node.attr("tolerance", 1e-5), _real_dtype(x))
    return [lax.lt(lax.abs(lax.sub(x, y)), tolerance)]


def _real_dtype(x: Any) -> Any:
    return lax.abs(jnp.zeros((), x.dtype)).dtype if is_complex(x) else x.dtype


@raises_tf("Cast", rows=rows.elementwise, folds_sizes=True)
def _cast(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    source, dtype = node.attr("SrcT"), node.attr("DstT")
    if is_static(values[0]) and dtype.kind in "iufb":
        if values[0].dtype != object:
            with np.errstate(all="ignore"):
                return [values[0].astype(dtype)]
        if dtype.kind in "iu":
            return [values[0]]
    x = array(values[0], source)
    if node.attr("Truncate", False) and source.kind == "f":
        x = _truncate_mantissa(x, dtype)
    if is_complex(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        # TensorFlow keeps the real part, as tensorflow/core/kernels/cast_op.h does.
        x = lax.real(x)
    return [lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(dtype))]


def _truncate_mantissa(x: Any, dtype: np.dtype) -> Any:
    """`x` without the bits that `dtype` has no place for, so that converting never rounds up."""
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


@raises_tf("Bitcast")
def _bitcast(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, dtype = array(values[0]), jax.dtypes.canonicalize_dtype(node.attr("type"))
    if not (is_complex(x) or jnp.issubdtype(dtype, jnp.complexfloating)):
        return [x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)]
    # `lax` knows no bits of complex numbers: through the bytes of their parts.
    old, new = x.dtype.itemsize, dtype.itemsize
    shape = (*x.shape, old // new) if old > new else x.shape[: x.ndim - (old < new)]
    if is_complex(x):
        x = jnp.stack([lax.real(x), lax.imag(x)], -1)
    data = lax.bitcast_convert_type(x, np.uint8)
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        data = lax.reshape(data, (*shape, new) if new > 1 else shape)
        return [lax.bitcast_convert_type(data, dtype)]
    parts = lax.bitcast_convert_type(
        lax.reshape(data, (*shape, 2, new // 2)), np.dtype(f"float{new * 4}")
    )
    return [lax.complex(parts[..., 0], parts[..., 1])]


@raises_tf("Select")
@raises_tf("SelectV2", rows=rows.elementwise)
def _select(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    known = all(is_static(v) for v in values) and values[0].dtype != object
    if known and (node.op == "SelectV2" or values[0].shape == values[1].shape):
        return [np.asarray(np.where(*values))]
    which, x, y = array(values[0]), *(array(v, node.attr("T")) for v in values[1:])
    if node.op == "Select" and 0 < which.ndim < x.ndim:
        # The first version of the op picks whole rows.
        which = lax.reshape(which, (*which.shape, *(1,) * (x.ndim - which.ndim)))
    which, x, y = broadcast([which, x, y])
    return [lax.select(which, x, y)]


@raises_tf("AccumulateNV2")
@raises_tf("AddN", rows=rows.elementwise)
def _add_n(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    total = array(values[0])
    for value in values[1:]:
        total = lax.add(total, array(value))
    return [total]


@raises_tf("ClipByValue", rows=rows.elementwise)
def _clip_by_value(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = (array(v) for v in values)
    low, high = broadcast_to(low, x.shape), broadcast_to(high, x.shape)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return [lax.max(lax.min(x, high), low)]
    # Unlike that of `lax.clamp`, TensorFlow's gradient passes at the bounds themselves.
    return [lax.select(lax.lt(x, low), low, lax.select(lax.gt(x, high), high, x))]


@raises_tf("Cross")
def _cross(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jnp.cross(*(array(v) for v in values))]
