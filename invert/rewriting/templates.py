"""Templates of preimage patterns: calls as JAX lowers them, raised again."""

from __future__ import annotations

import dataclasses
import functools

import jax

from invert._errors import only_refusals
from invert._private.jax import REFUSALS, SIZE_ERRORS, open_jaxpr, trace_closed
from invert.ir import jaxprs
from invert.ir.interpret import inline_calls
from invert.ir.types import ClosedJaxpr
from invert.rewriting.pattern import Call, kept_by_call
from invert.rewriting.traced_calls import raised_by_trace
from invert.stablehlo.lowered import lower


def raise_call(call: Call, platform: str) -> ClosedJaxpr | None:
    """The program of `call`, lowered and raised again; `None` if JAX refuses it."""
    closed = _raised(dataclasses.replace(call, is_call=False), platform)
    return closed if closed is None or call.is_call else unwrap(closed)


@kept_by_call
def _raised(call: Call, platform: str) -> ClosedJaxpr | None:
    entry = call.entry("raised", platform=platform)
    make = functools.partial(_raised_now, call, platform)
    return make() if entry is None else entry.stored(make)


def _raised_now(call: Call, platform: str) -> ClosedJaxpr | None:
    try:
        with only_refusals():
            if (closed := raised_by_trace(call, platform)) is not None:
                return closed
            outs = None
            if call.before is not None:
                with jax.enable_x64(call.needs_x64):
                    outs = jax.tree_util.tree_leaves(jax.eval_shape(call.function, *call.avals))
            function = call.before or call.function
            lowered = lower(function, call.avals, outs, platform=platform, x64=call.needs_x64)
    except REFUSALS:
        return None
    # Raising is this package's own code: its exceptions are defects, except for open sizes.
    try:
        return lowered.raised()
    except SIZE_ERRORS:
        return None


def raised_before(call: Call, platform: str) -> ClosedJaxpr | None:
    """The program raised for `call` earlier, in this process or another, if any."""
    if (known := _raised.known(call, platform)) is not None:
        return known
    entry = call.entry("raised", platform=platform)
    if entry is not None and (known := entry.read()) is not None:
        _raised.keep(known, call, platform)
    return known


def unwrap(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Inline the function into which JAX outlines a primitive (`@cumsum`, `@argmax`, ...)."""
    jaxpr = open_jaxpr(closed)
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit":
        closed = inline_calls(closed)
        jaxpr = open_jaxpr(closed)
    return closed


def written_call(call: Call, platform: str) -> ClosedJaxpr | None:
    """The program of a call to look for: its traced `before`, otherwise its lowering."""
    return raise_call(call, platform) if call.before is None else traced_call(call)


def traced_call(call: Call) -> ClosedJaxpr:
    """Trace the `before` of a call, or the function itself."""
    with jax.enable_x64(call.needs_x64):
        return jaxprs.canonicalize(trace_closed(call.before or call.function, *call.avals))
