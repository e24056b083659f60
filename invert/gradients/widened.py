"""Programs computed in 64 bits, where real differences are far larger than those by rounding."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from invert._errors import InvertError
from invert._private.jax import (
    bind_equation,
    eval_closed,
    open_jaxpr,
    params_of_jaxprs,
    trace_closed,
)
from invert.ir import kinds
from invert.ir.interpret import interpret
from invert.ir.jaxprs import keeps_precision, map_param
from invert.ir.types import AnyJaxpr, ClosedJaxpr, Eqn, Literal, Params, ShapedArray, Value


class OneWidthError(InvertError):
    """An equation takes arrays of one width only, as a custom call or one that reads bits does."""


def wide(x: Value) -> Value:
    """Convert a floating-point or complex array to 64 bits in each part."""
    dtype = _wide_dtype(jnp.result_type(x))
    return x if dtype == jnp.result_type(x) else jnp.asarray(x).astype(dtype)


def widened(program: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
    """Run a program on arrays in 64 bits, under `jax.enable_x64`.

    Raises `OneWidthError` where an equation takes floating-point arrays of one width only.
    """
    results = interpret(program, list(map(wide, values)), _widened_equation, _widened_literal)
    return list(map(wide, results))


def _wide_dtype(dtype: DTypeLike) -> DTypeLike:
    """The type of 64 bits in each part for floating-point and complex types."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _widened_literal(literal: Literal) -> Value:
    return wide(np.asarray(literal.val, literal.aval.dtype))


def _widened_equation(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
    operands = list(map(wide, operands))
    if (called := kinds.called(eqn)) is not None:
        return widened(called, operands)
    if eqn.primitive.name == "reduce_precision" and keeps_precision(eqn):
        return operands
    if (program := _in_64_bits(eqn, operands)) is not None:
        return eval_closed(program, operands)
    if any(jnp.issubdtype(a.aval.dtype, jnp.inexact) for a in eqn.invars):
        # Its roundings would show in the results.
        raise OneWidthError(f"{eqn.primitive} has no form in 64 bits")
    return list(map(wide, bind_equation(eqn, operands)))


def _in_64_bits(eqn: Eqn, operands: Sequence[Value]) -> ClosedJaxpr | None:
    """The equation in 64 bits as a program; `None` if it is for arrays of its own width only."""
    try:
        wide_eqn = eqn.replace(params=_widened_params(eqn))
        program = trace_closed(
            lambda *xs: bind_equation(wide_eqn, xs), *(jax.typeof(x) for x in operands)
        )
    except (TypeError, ValueError, NotImplementedError):
        return None
    pairs = zip(program.out_avals, (v.aval for v in eqn.outvars), strict=True)
    fits = all((y.shape, y.dtype) == (own.shape, _wide_dtype(own.dtype)) for y, own in pairs)
    return program if fits else None


def _widened_params(eqn: Eqn) -> Params:
    """The parameters of an equation, with its types and programs in 64 bits."""
    types = {n: _wide_dtype(v) for n, v in eqn.params.items() if isinstance(v, np.dtype)}
    programs = {n: map_param(v, _widened_program) for n, v in params_of_jaxprs(eqn).items()}
    return {**eqn.params, **types, **programs}


def _widened_program(program: AnyJaxpr) -> AnyJaxpr:
    types = [
        ShapedArray(v.aval.shape, _wide_dtype(v.aval.dtype)) for v in open_jaxpr(program).invars
    ]
    new = trace_closed(lambda *values: widened(program, values), *types)
    return open_jaxpr(new) if program is open_jaxpr(program) else new
