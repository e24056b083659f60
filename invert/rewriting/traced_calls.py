"""Calls raised from their trace, where lowering keeps every equation of it.

Lowering a function of a few elementwise equations takes ten times as long as tracing it, and far
longer the first time in a process. `tests/rewriting/test_traced_calls.py` compares the two.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from invert._private.jax import Primitive, open_jaxpr, trace_as_lowered, trace_closed
from invert.ir import jaxprs, kinds
from invert.ir.avals import type_of
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn
from invert.rewriting.pattern import Call

# Primitives that lower to one op, which is raised to them again, by the types of their operands.
_OF_FLOATS = frozenset(
    {
        *("abs", "add", "ceil", "cos", "div", "exp", "expm1", "floor", "log", "log1p", "max"),
        *("min", "mul", "neg", "rsqrt", "sign", "sin", "sqrt", "sub", "tanh"),
        *("eq", "ge", "gt", "is_finite", "le", "lt", "ne"),
        *("reduce_max", "reduce_min", "reduce_sum", "stop_gradient"),
    }
)
_OF_BOOLEANS = frozenset({"and", "not", "or", "xor"})
_OF_BOTH = kinds.LAYOUT | {"select_n"}
# The programs of these are inlined.
_WITH_RULES = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def raised_by_trace(call: Call) -> ClosedJaxpr | None:
    """The program of `call`, lowered and raised again, if its trace shows it."""
    if isinstance(call.key, tuple) and isinstance(call.key[0], Primitive):
        return None  # a primitive is looked for because lowering expands it
    with jax.enable_x64(call.needs_x64):
        closed = trace_as_lowered(call.before or call.function, *call.avals)
        if not all(map(_is_kept, jaxprs.equations(open_jaxpr(closed)))):
            return None
        closed = jaxprs.map_jaxprs(closed, lambda jaxpr: jaxprs.with_inlined(jaxpr, _inlined))
        return jaxprs.canonicalize(jaxprs.as_lowered(jaxprs.with_typed_literals(closed)))


def _inlined(eqn: Eqn) -> AnyJaxpr | None:
    if eqn.primitive.name == "stop_gradient":
        return trace_closed(lambda x: x, type_of(eqn.invars[0]))
    return eqn.params.get(_WITH_RULES.get(eqn.primitive.name, ""))


def _is_kept(eqn: Eqn) -> bool:
    name = eqn.primitive.name
    if name == "jit" or name in _WITH_RULES:
        return True
    if eqn.effects:
        return False
    if all(map(_is_float, eqn.invars)) and name in _OF_FLOATS:
        return True
    if all(map(_is_boolean, eqn.invars)) and name in _OF_BOOLEANS:
        return True
    if name not in _OF_BOTH or not all(_is_float(a) or _is_boolean(a) for a in eqn.invars):
        return False
    match name:
        case "reshape":
            return eqn.params["dimensions"] is None
        case "select_n":
            return _is_boolean(eqn.invars[0])
        case _:
            return True


def _is_float(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, np.floating)


def _is_boolean(atom: Atom) -> bool:
    return atom.aval.dtype == np.bool_
