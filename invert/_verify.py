"""Certifies a recovered program: lowers and raises it again, and compares."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from invert._certificate import Certificate
from invert._errors import InvertError, only_refusals
from invert._private.jax import (
    SIZE_ERRORS,
    eval_closed,
    open_jaxpr,
    trace_closed,
)
from invert.ir import jaxprs
from invert.ir.lowered_form import has_too_many_calls, lowered_form
from invert.ir.match import difference, equivalent
from invert.ir.numbers import largest_gap, on_cpu, random_value
from invert.ir.substitution import at_samples
from invert.ir.types import AnyJaxpr, Aval, Jaxpr, Value
from invert.rewriting.expansion import lower_alike
from invert.stablehlo.lowered import raised_again

# Raised if a program does not lower or run, e.g. at open sizes or without 64-bit types.
_REFUSALS = (
    TypeError, ValueError, NotImplementedError, IndexError, InvertError, *SIZE_ERRORS,
)  # fmt: skip
_TOO_MANY_CALLS = "its functions call each other too often for it to be lowered"


def certify(
    raw: Jaxpr,
    recovered: AnyJaxpr,
    constants: Sequence[Value] = (),
    *,
    platform: str,
    x64: bool,
) -> Certificate:
    """Compare the raw jaxpr with the lowering of the recovered one.

    **Arguments:**

    - `raw`, `recovered`: jaxprs over the same arguments, without derivative rules.
    - `constants`: values of the leading arguments that are constants of the program.
    - `platform`: the platform the program was lowered for.
    - `x64`: whether the program was probably lowered with 64-bit types enabled, which changes some
        lowerings; the other setting is tried next.
    """
    if recovered is raw:  # nothing was recognized
        return Certificate("exact")
    modes = jaxprs.x64_settings(raw, x64)
    one, two = jaxprs.canonicalize(raw), jaxprs.canonicalize(recovered)
    if equivalent(one, two, constants):
        return Certificate("exact")
    if has_too_many_calls(one) or has_too_many_calls(two):
        return Certificate("unverified", _TOO_MANY_CALLS)  # JAX lowers each of them
    for mode in modes:
        with contextlib.suppress(*_REFUSALS), only_refusals():
            if lower_alike(one, two, constants, platform=platform, x64=mode):
                return Certificate("exact")
    where = ""
    raw = jaxprs.as_lowered(raw)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in raw.invars]
    for mode in modes:
        try:
            with only_refusals():
                again = _again(recovered, avals, platform, mode)
        except _REFUSALS as error:
            where = where or f"it does not lower again: {error}"
            continue
        found = difference(raw, again, constants)
        if found is None or _whole_programs_alike(raw, again, avals, constants, platform, mode):
            return Certificate("exact")
        where = where or found
    return _numerical(raw, recovered, constants, where)


def after_change(
    before: Certificate, change: str, a: Jaxpr, b: AnyJaxpr, known: Sequence[Value], *, verify: bool
) -> Certificate:
    """The certificate of a program that was changed on request, so that results differ.

    **Arguments:**

    - `before`: the certificate of the program before the change.
    - `change`: what was changed, in words.
    - `a`, `b`: the programs before and after.
    - `known`: the values of their leading arguments.
    - `verify`: whether to run both for the largest difference.
    """
    reason = f"{change}; {before.kind} before"
    if before.kind != "exact" and before.reason:
        reason += f" ({before.reason})"
    made = dataclasses.replace(
        before, kind="unverified", reason=reason, largest_error=None, before=before.before or before
    )
    if not verify or before.kind == "unverified":
        return made
    with jax.enable_x64(True):
        # Each change is correct at all sizes; this measures its rounding.
        error = compared(a, b, known, most=1)
    if isinstance(error, str):
        return dataclasses.replace(made, reason=f"{reason}; {error}")
    return dataclasses.replace(
        made, kind="numerical", largest_error=error + (before.largest_error or 0.0)
    )


def compared(a: Jaxpr, b: AnyJaxpr, known: Sequence[Value], most: int | None = None) -> float | str:
    """The largest difference of two programs on random inputs, or why none was measured.

    **Arguments:**

    - `known`: the values of their leading arguments.
    - `most`: the number of sizes at which they run, if sizes are open.
    """
    if jaxprs.opaque_targets(a):
        return "opaque custom calls cannot be run"
    if has_too_many_calls(a) or has_too_many_calls(b):
        return _TOO_MANY_CALLS
    try:
        with only_refusals(), on_cpu():
            avals = [v.aval for v in open_jaxpr(a).invars[len(known) :]]
            gaps = (largest_gap(x, y) for x, y in _runs(a, b, avals, known, most))
            return max(gaps, default=0.0)
    except (RuntimeError, *_REFUSALS) as error:
        return f"it could not be run: {error}"


def _runs(
    a: AnyJaxpr,
    b: AnyJaxpr,
    avals: Sequence[Aval],
    constants: Sequence[Value] = (),
    most: int | None = None,
) -> Iterator[tuple[Value, Value]]:
    """The results of two programs on the constants and random inputs, at sample sizes."""
    rng = np.random.default_rng(0)
    both = trace_closed(lambda *xs: [eval_closed(p, xs) for p in (a, b)], *constants, *avals)
    for program in at_samples(both)[:most]:
        types = [v.aval for v in open_jaxpr(program).invars[len(constants) :]]
        run = jax.jit(functools.partial(eval_closed, program))
        for _ in range(2):
            results = run([*constants, *(random_value(rng, t) for t in types)])
            half = len(results) // 2
            yield from zip(results[:half], results[half:], strict=True)


def _whole_programs_alike(
    raw: Jaxpr,
    again: AnyJaxpr,
    avals: Sequence[Aval],
    constants: Sequence[Value],
    platform: str,
    x64: bool,
) -> bool:
    """Return whether the raw program lowers to `again` too.

    Rules for TensorFlow ops emit functions that lowering expands. A raised module never contains
    these, so the two are compared after one lowering each, in a normal form.
    """
    try:
        with only_refusals():
            lowered = _again(raw, avals, platform, x64)
    except _REFUSALS:
        return False
    if difference(lowered, again, constants) is None:
        return True
    return difference(lowered_form(lowered), lowered_form(again), constants) is None


def _again(recovered: AnyJaxpr, avals: Sequence[Aval], platform: str, x64: bool) -> AnyJaxpr:
    """The recovered program after lowering and raising, closed over its own constants."""

    def run(*values: Value) -> list[Value]:
        return eval_closed(recovered, values)

    outs: list[Aval] = [v.aval for v in open_jaxpr(recovered).outvars]
    return jaxprs.as_lowered(raised_again(run, avals, outs, platform=platform, x64=x64))


def _numerical(
    raw: Jaxpr, recovered: AnyJaxpr, constants: Sequence[Value], reason: str
) -> Certificate:
    with jax.enable_x64(jaxprs.has_wide_types(raw)):
        error = compared(raw, recovered, constants)
    if isinstance(error, str):
        return Certificate("unverified", f"{reason}; {error}")
    return Certificate("numerical", reason, error)
