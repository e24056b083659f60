"""Elementwise ops: tables first."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from ._node import Node
from ._registry import Context, Rule, add_table, raises_tf
from ._static import array, broadcast, is_static


def _unary(fn: Callable[[Any], Any]) -> Rule:
    return lambda ctx, node, values: [fn(array(values[0]))]


def _binary(fn: Callable[[Any, Any], Any], fold: Callable[..., Any] | None = None) -> Rule:
    """`fold` computes with NumPy on static values; it must agree with `fn` on integers."""

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        if fold is not None and is_static(values[0]) and is_static(values[1]):
            return [np.asarray(fold(values[0], values[1]))]
        return [fn(*broadcast(values))]

    return rule


def _floor_div(x: Any, y: Any) -> Any:
    if np.issubdtype(x.dtype, np.floating):
        return lax.floor(lax.div(x, y))
    return jax.numpy.floor_divide(x, y)


def _square(x: Any) -> Any:
    return lax.square(x)


UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": lax.abs,
    "Acos": lax.acos,
    "Acosh": lax.acosh,
    "Asin": lax.asin,
    "Asinh": lax.asinh,
    "Atan": lax.atan,
    "Atanh": lax.atanh,
    "Ceil": lax.ceil,
    "ComplexAbs": lax.abs,
    "Conj": lambda x: lax.conj(x) if np.issubdtype(x.dtype, np.complexfloating) else x,
    "Cos": lax.cos,
    "Cosh": lax.cosh,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Exp": lax.exp,
    "Expm1": lax.expm1,
    "Floor": lax.floor,
    "Imag": lax.imag,
    "Inv": lambda x: lax.div(lax.full_like(x, 1), x),
    "Invert": lax.bitwise_not,
    "IsFinite": lax.is_finite,
    "Lgamma": lax.lgamma,
    "Digamma": lax.digamma,
    "Log": lax.log,
    "Log1p": lax.log1p,
    "LogicalNot": lax.bitwise_not,
    "Neg": lax.neg,
    "OnesLike": lambda x: lax.full_like(x, 1),
    "Real": lax.real,
    "Reciprocal": lambda x: lax.div(lax.full_like(x, 1), x),
    "Relu": jax.nn.relu,
    "Rint": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "Rsqrt": lax.rsqrt,
    "Sigmoid": lax.logistic,
    "Sign": lax.sign,
    "Sin": lax.sin,
    "Sinh": lax.sinh,
    "Sqrt": lax.sqrt,
    "Square": _square,
    "Tan": lax.tan,
    "Tanh": lax.tanh,
    "ZerosLike": lambda x: lax.full_like(x, 0),
}

# op: (function on arrays, the same on static shape values or None)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Any] | None]] = {
    "Add": (lax.add, operator.add),
    "AddV2": (lax.add, operator.add),
    "Atan2": (lax.atan2, None),
    "BitwiseAnd": (lax.bitwise_and, None),
    "BitwiseOr": (lax.bitwise_or, None),
    "BitwiseXor": (lax.bitwise_xor, None),
    "Div": (lax.div, None),
    "FloorDiv": (_floor_div, operator.floordiv),
    "FloorMod": (lambda x, y: jax.numpy.mod(x, y), operator.mod),
    "Greater": (lax.gt, operator.gt),
    "GreaterEqual": (lax.ge, operator.ge),
    "Less": (lax.lt, operator.lt),
    "LessEqual": (lax.le, operator.le),
    "LogicalAnd": (lax.bitwise_and, np.logical_and),
    "LogicalOr": (lax.bitwise_or, np.logical_or),
    "Maximum": (lax.max, np.maximum),
    "Minimum": (lax.min, np.minimum),
    "Mul": (lax.mul, operator.mul),
    "Pow": (lax.pow, None),
    "RealDiv": (lax.div, None),
    "SquaredDifference": (lambda x, y: _square(lax.sub(x, y)), None),
    "Sub": (lax.sub, operator.sub),
}

add_table({op: _unary(fn) for op, fn in UNARY.items()})
add_table({op: _binary(fn, fold) for op, (fn, fold) in BINARY.items()})


@raises_tf("Equal", "NotEqual")
def _equal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    fn, fold = (lax.eq, operator.eq) if node.op == "Equal" else (lax.ne, operator.ne)
    if is_static(values[0]) and is_static(values[1]):
        return [np.asarray(fold(values[0], values[1]))]
    return [fn(*broadcast(values))]


@raises_tf("Cast")
def _cast(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("DstT")
    if is_static(values[0]) and dtype.kind in "iu":
        return [values[0] if values[0].dtype == object else values[0].astype(dtype)]
    x = array(values[0])
    if np.issubdtype(x.dtype, np.complexfloating) and not np.issubdtype(dtype, np.complexfloating):
        x = lax.real(
            x
        )  # TensorFlow keeps the real part, as tensorflow/core/kernels/cast_op.h does.
    return [lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(dtype))]


@raises_tf("Select", "SelectV2")
def _select(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    which, x, y = (array(v) for v in values)
    if node.op == "Select" and 0 < which.ndim < x.ndim:
        # The first version of the op picks whole rows.
        which = lax.reshape(which, (*which.shape, *(1,) * (x.ndim - which.ndim)))
    which, x, y = broadcast([which, x, y])
    return [lax.select(which, x, y)]


@raises_tf("AddN")
def _add_n(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    total = array(values[0])
    for value in values[1:]:
        total = lax.add(total, array(value))
    return [total]
