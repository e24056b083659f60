"""Calls raised from their trace, where lowering keeps every equation of it.

Lowering a function of a few equations takes ten times as long as tracing it, and far longer the
first time in a process. JAX lowers some primitives by tracing a function, which is traced here too.
`tests/rewriting/test_traced_calls.py` compares the two.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import (
    Primitive,
    open_jaxpr,
    trace_as_lowered,
    trace_closed,
    traced_to_lower,
)
from invert.ir import jaxprs, kinds
from invert.ir.avals import type_of
from invert.ir.sizes import DimSize
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, Value
from invert.rewriting.pattern import Call

# Primitives that lower to one op, which is raised to them again, by the types of their operands.
_OF_FLOATS = frozenset(
    {
        *("abs", "add", "ceil", "cos", "div", "exp", "expm1", "floor", "log", "log1p", "max"),
        *("min", "mul", "neg", "rsqrt", "sign", "sin", "sqrt", "sub", "tanh"),
        *("eq", "ge", "gt", "is_finite", "le", "lt", "ne"),
        *("reduce_max", "reduce_min", "reduce_sum", "stop_gradient"),
        *("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
    }
)
_OF_INTEGERS = frozenset({"eq", "ge", "gt", "iota", "le", "lt", "ne"})
_OF_BOOLEANS = frozenset({"and", "not", "or", "xor"})
_LAYOUT = kinds.LAYOUT | {"slice"}
# The functions that JAX traces to lower these are inlined.
_WRITTEN_OUT = frozenset({"logistic"})


def _slices(x: Value, *, sizes: Sequence[DimSize], axis: int) -> list[Value]:
    def piece(n: DimSize, end: DimSize) -> Value:
        starts, limits = [0] * x.ndim, list(x.shape)
        starts[axis], limits[axis] = end - n, end
        return lax.slice(x, starts, limits)

    return list(map(piece, sizes, itertools.accumulate(sizes)))


# Primitives that JAX lowers by tracing a function whose equations are kept.
_TRACED = frozenset(
    {lax.argmax_p, lax.argmin_p, lax.cummax_p, lax.cummin_p, lax.cumsum_p, lax.logistic_p}
)
# Functions that lower as these, whose rules emit ops themselves.
_ALIKE = {lax.split_p: _slices}


def raised_by_trace(call: Call, platform: str) -> ClosedJaxpr | None:
    """The program of `call`, lowered and raised again, if its trace shows it."""
    with jax.enable_x64(call.needs_x64):
        closed = _traced(call, platform)
        if closed is None:
            return None
        inlined = functools.partial(_inlined, platform=platform)
        closed = jaxprs.map_jaxprs(closed, lambda jaxpr: jaxprs.with_inlined(jaxpr, inlined))
        if not all(map(_is_kept, jaxprs.equations(open_jaxpr(closed)))):
            return None
        return jaxprs.canonicalize(jaxprs.as_lowered(jaxprs.with_typed_literals(closed)))


def _traced(call: Call, platform: str) -> ClosedJaxpr | None:
    """The trace of a call, for a primitive that of the function by which JAX lowers it."""
    if not isinstance(call.key, tuple) or not isinstance(call.key[0], Primitive):
        return trace_as_lowered(call.before or call.function, *call.avals)
    primitive, params = call.key
    function = _ALIKE.get(primitive)
    if function is None and primitive in _TRACED:
        function = traced_to_lower(primitive, platform)
    if function is None or call.before is not None:
        return None
    closed = trace_as_lowered(functools.partial(function, **dict(params)), *call.avals)
    # JAX refuses to lower an equation whose results have other types than the function's.
    same = _types(closed) == _types(trace_as_lowered(call.function, *call.avals))
    return closed if same else None


def _types(program: AnyJaxpr) -> list[tuple[object, ...]]:
    return [(v.aval.shape, v.aval.dtype) for v in open_jaxpr(program).outvars]


def _inlined(eqn: Eqn, platform: str) -> AnyJaxpr | None:
    name = eqn.primitive.name
    if name == "stop_gradient":
        return trace_closed(lambda x: x, type_of(eqn.invars[0]))
    if (called := kinds.called(eqn, kinds.WITH_RULES)) is not None:
        return called
    function = traced_to_lower(eqn.primitive, platform) if name in _WRITTEN_OUT else None
    if function is None:
        return None
    return trace_closed(functools.partial(function, **eqn.params), *map(type_of, eqn.invars))


def _is_kept(eqn: Eqn) -> bool:
    name = eqn.primitive.name
    if name == "jit":
        return True
    if eqn.effects:
        return False
    types = (_is_float, _OF_FLOATS), (_is_integer, _OF_INTEGERS), (_is_boolean, _OF_BOOLEANS)
    if any(name in names and all(map(is_kind, eqn.invars)) for is_kind, names in types):
        return True
    match name:
        case "reduce":  # one of a single array becomes its own primitive
            return len(eqn.outvars) > 1
        case "select_n":
            return _is_boolean(eqn.invars[0])
        case "reshape" if eqn.params["dimensions"] is not None:
            return False
        case "slice" if eqn.params["strides"] is not None and set(eqn.params["strides"]) == {1}:
            return False
        case _:
            x = eqn.invars[0] if name in _LAYOUT else None
            return x is not None and (_is_float(x) or _is_boolean(x))


def _is_float(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, np.floating)


def _is_integer(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, np.integer)


def _is_boolean(atom: Atom) -> bool:
    return atom.aval.dtype == np.bool_
