"""Templates of preimage patterns: a call lowered by JAX and raised by our own rules."""

from __future__ import annotations

import jax

from invert._config import Config
from invert._private.jax import (
    from_words,
    lowered_module,
    open_jaxpr,
    trace_closed,
    words_of,
)
from invert.ir import jaxprs
from invert.ir.interpret import inline_calls
from invert.ir.types import ClosedJaxpr, Value
from invert.rewriting.pattern import Call, kept_by_call
from invert.stablehlo.program import Program


@kept_by_call
def raise_call(call: Call, platform: str) -> ClosedJaxpr | None:
    """The closed jaxpr of `call` after lowering and raising; `None` where JAX refuses the call."""
    try:
        with jax.enable_x64(call.needs_x64):
            outs = jax.tree_util.tree_leaves(jax.eval_shape(call.function, *call.avals))
            module = lowered_module(call.before or call.function, *call.avals, platform=platform)
    # At types that a call does not take: the functions of `jax.lax` and `jax.numpy` check shapes
    # and dtypes so, `mlir.lower_jaxpr_to_module` says so of a primitive without a lowering for the
    # platform, and some lowerings only assert it (`iota_2x32_shape` of no axes) or overflow
    # (`select_and_gather_add` of integers). Names and attributes that there are not are defects.
    except (
        TypeError, ValueError, RuntimeError, ArithmeticError, IndexError, AssertionError
    ):  # fmt: skip
        return None
    program = Program(module, Config())

    def run(*values: Value) -> list[Value]:
        # Keys are lowered to their words.
        results = program(*map(words_of, values))
        return [from_words(r, out.dtype) for r, out in zip(results, outs, strict=True)]

    with jax.enable_x64(True):
        closed = trace_closed(run, *call.avals)
    closed = jaxprs.canonicalize(closed)
    return closed if call.is_call else unwrap(closed)


def unwrap(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Inlines the function that JAX outlines some primitives into (`@cumsum`, `@argmax`, ...)."""
    jaxpr = open_jaxpr(closed)
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit":
        closed = inline_calls(closed)
        jaxpr = open_jaxpr(closed)
    return closed


def written_call(call: Call, platform: str) -> ClosedJaxpr | None:
    """What a call looks like in a program: as its author wrote it where that is given."""
    return raise_call(call, platform) if call.before is None else traced_call(call)


def traced_call(call: Call) -> ClosedJaxpr:
    """What a call looks like where it is traced: its `before`, or the function itself."""
    with jax.enable_x64(call.needs_x64):
        return jaxprs.canonicalize(trace_closed(call.before or call.function, *call.avals))
