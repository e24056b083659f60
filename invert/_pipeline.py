"""The pipeline: raise, canonicalize, apply patterns, settle gradients, verify."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence

import jax.export
import numpy as np

from invert import patterns
from invert._certificate import Certificate
from invert._config import Config
from invert._entry import EntryPoint, traced
from invert._errors import nested_too_deep, optional_step
from invert._opaque import platform_of
from invert._private.collection import collected_rarely
from invert._private.jax import close_like, eval_jaxpr, open_jaxpr, trace_closed
from invert._report import Report
from invert._verify import after_change, certify
from invert.gradients.backward_passes import has_no_derivative, with_own_derivatives
from invert.gradients.cache import without_rules
from invert.gradients.loops import note_on_loops
from invert.gradients.settle import GradientResolver, plain
from invert.ir import hints, jaxprs, meshes
from invert.ir.avals import is_differentiable
from invert.ir.composite import renewed
from invert.ir.key_splits import with_last_key
from invert.ir.lookups import clipping, with_promised_bounds
from invert.ir.merging import with_shared_functions
from invert.ir.simplify import simplify
from invert.ir.sizes import DimSize, evaluate, listening, renaming
from invert.ir.substitution import substitute
from invert.ir.types import AnyJaxpr, Aval, ClosedJaxpr, J, Jaxpr, Value
from invert.modules.optimize import faster
from invert.modules.specializations import Specialization
from invert.patterns.library import as_call, without_call
from invert.rewriting.driver import Rewriter
from invert.rewriting.pattern import Stage
from invert.rewriting.templates import raise_call

_STRICT_ORDER = "the comparators of its sorts are strict weak orders"


class _Stages:
    """Times the stages of an entry point, and reports each as it begins."""

    def __init__(self, entry: str, config: Config) -> None:
        self.seconds: dict[str, float] = {}
        self._entry, self._config = entry, config

    @contextlib.contextmanager
    def __call__(self, name: str, told: str = "") -> Iterator[None]:
        if told:
            self._config.begin(f"{self._entry}: {told}")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


@collected_rarely()
def recover(entry: EntryPoint, avals: Sequence[Aval], config: Config) -> Specialization:
    """Raise and rewrite an entry point for argument types, possibly with open sizes."""
    stage = _Stages(entry.name, config)
    defects: list[str] = []
    # Modules hold 64-bit values regardless of the setting of the process.
    with nested_too_deep(entry.name), jax.enable_x64(True):
        with stage("raise", "raising"):
            closed, avals, names = _raised(entry, avals, config)
        with stage("canonicalize"):
            closed = simplify(closed) if entry.outside else jaxprs.canonicalize(closed)
            if entry.draws:
                closed = close_like(closed, with_last_key(open_jaxpr(closed)))
            raised = closed
            raw, known = jaxprs.split_constants(plain(raised))
            x64 = jaxprs.has_wide_types(raw)
            platform = entry.platform or platform_of(jaxprs.opaque_targets(raw)) or "cpu"
        with stage("patterns"):
            called = as_call(closed, entry.lowered or entry.name)
            found, rewrites = _recognize(called, platform, config, defects, entry.name)
            closed = found if called is closed else without_call(found)
            closed = hints.merge_broadcasts(closed)
        again = functools.partial(_again, platform=platform, config=config, defects=defects)
        with stage("gradients", "comparing gradients"):
            found = closed
            # TensorFlow's gradients are other programs than JAX's.
            if not entry.outside or (
                config.prevent_gradient == "error" and has_no_derivative(open_jaxpr(closed))
            ):
                step = "the search for backward passes"
                closed = optional_step(step, defects, with_own_derivatives, closed, again) or closed
            has_losses = closed is not found
            settle = GradientResolver(
                lambda gradient: _recognize(gradient, platform, config, defects)[0],
                config,
                platform,
                x64=x64,
                knows_updates=has_losses,
            )
            closed = renewed(meshes.checked(settle(closed)))
            if entry.promises_bounds:
                closed = with_promised_bounds(closed, frozenset(clipping(closed)))
        with stage("verify", "verifying"):
            # The comparison uses the constants of the raw program; arrays are restored after it.
            recovered = raw if closed is raised else jaxprs.over_constants(closed, known)
            certificate = _certify(raw, recovered, known, platform, x64, config)
            params = [p.value for p in entry.params]
            jaxpr, constants, certificate = _finished(closed, certificate, params, config)
        if jaxprs.wide_types(raw) <= {np.dtype(np.uint64)}:
            # Counters of random bits, which JAX makes in every session, may be gone.
            x64 = jaxprs.has_wide_types(jaxpr)
    given = entry.outside or settle.outcomes or not entry.reverse_loops
    smooth = any(is_differentiable(v.aval) for v in raw.invars)
    report = Report(
        entry=entry.name,
        source=entry.source,
        primitives=jaxprs.primitive_counts(jaxpr),
        opaque=jaxprs.opaque_targets(jaxpr),
        rewrites=rewrites,
        seconds=stage.seconds,
        certificate=certificate,
        gradients=tuple(map(str, settle.outcomes)),
        notes=(*entry.notes(), *defects, *_on_loops(jaxpr, entry)),
        sizes=_sizes(entry, avals),
        outside=entry.outside,
        holds_gradient=bool(given) or not smooth,
    )
    shapes = tuple(tuple(a.shape) for a in avals[: len(avals) - int(entry.draws)])
    settled = functools.partial(_settled, platform=platform, config=config)
    program = Specialization(
        jaxpr,
        constants,
        report,
        x64,
        shapes,
        names,
        reverse_only=tuple(str(o) for o in settle.outcomes if o.kind == "custom_vjp"),
        settled=settled,
        recognized=again if entry.outside or has_losses else None,
    )
    if config.optimize == "none":
        return program
    config.begin(f"{entry.name}: optimizing for the {config.optimize}")
    return faster(program, params, config)


def _raised(
    entry: EntryPoint, avals: Sequence[Aval], config: Config
) -> tuple[ClosedJaxpr, Sequence[Aval], Mapping[str, DimSize]]:
    """Trace an entry point; return program, types, and new names of open sizes."""
    with listening() as said:
        closed = traced(entry, avals)
    # The container may name open dimensions; names given by the caller take precedence.
    chosen = {word for text in (config.sizes or {}).values() for word in text.split()}
    stated = {key: name for key, name in said.names.items() if key not in chosen}
    if names := renaming((n for a in avals for n in a.shape), stated):
        closed, avals = substitute(closed, names), [_renamed(a, names) for a in avals]
    return closed, avals, names


def _finished(
    closed: ClosedJaxpr, certificate: Certificate, params: Sequence[Value], config: Config
) -> tuple[Jaxpr, tuple[np.ndarray, ...], Certificate]:
    """The program without hints, its constants, rounded on request, and the certificate."""
    closed = with_shared_functions(hints.without_hints(hints.restore_arrays(closed)))
    closed = jaxprs.with_unique_marked(closed)
    jaxpr, constants = jaxprs.split_constants(closed)
    narrow, kept = jaxprs.narrow_constants(jaxpr, constants, config.bfloat16_constants)
    if narrow is jaxpr:
        return jaxpr, kept, certificate
    rounded = [i for i, (a, b) in enumerate(zip(constants, kept, strict=True)) if a is not b]

    def run(*values: Value) -> list[Value]:
        given = list(values)
        for i in rounded:
            given[i] = values[i].astype(kept[i].dtype)
        return eval_jaxpr(narrow, given)

    certificate = after_change(
        certificate,
        f"{len(rounded)} arrays of the program are rounded to bfloat16",
        jaxpr,
        trace_closed(run, *(v.aval for v in jaxpr.invars)),
        [*constants, *params],
        verify=config.verify,
    )
    return narrow, kept, certificate


def _renamed(aval: Aval, names: Mapping[str, DimSize]) -> jax.ShapeDtypeStruct:
    shape = tuple(evaluate(n, names) for n in aval.shape)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _on_loops(jaxpr: Jaxpr, entry: EntryPoint) -> Sequence[str]:
    remedy = entry.reverse_loops
    return note_on_loops(jaxpr, entry.name, remedy) if remedy else ()


def _sizes(entry: EntryPoint, avals: Sequence[Aval]) -> tuple[str, ...]:
    """The types of the arguments that have open sizes."""
    return tuple(
        f"{spec.name}: {aval.dtype}[{','.join(map(str, aval.shape))}]"
        for spec, aval in zip(entry.specs, avals, strict=False)
        if any(not isinstance(n, int) for n in spec.shape)
    )


def _certify(
    raw: Jaxpr,
    jaxpr: AnyJaxpr,
    constants: Sequence[Value],
    platform: str,
    x64: bool,
    config: Config,
) -> Certificate:
    assumes = _STRICT_ORDER if hints.assumes_order(raw) else ""
    if not config.verify:
        reason = "switched off by Config(verify=False)"
        return Certificate("unverified", reason, assumes=assumes)
    by_signature = any(jaxprs.is_wide(v) for v in (*raw.invars, *raw.outvars))
    x64 = x64 and by_signature
    # Derivative rules and `stop_gradient` leave no trace.
    one = without_rules(raw)
    two = one if jaxpr is raw else without_rules(plain(jaxpr))
    certificate = certify(one, two, constants, platform=platform, x64=x64)
    return dataclasses.replace(certificate, assumes=assumes or certificate.assumes)


def _settled(jaxpr: Jaxpr, platform: str, config: Config) -> Jaxpr:
    """Rewrite a program at concrete sizes, which may fix trip counts of loops."""
    wanted = config.patterns is True or (config.patterns and "scan" in config.patterns)
    if not wanted or "while" not in jaxprs.names_in(jaxpr):
        return jaxpr
    loops = dataclasses.replace(config, patterns=("scan",), extra_patterns=())
    with jax.enable_x64(True):
        return open_jaxpr(_recognize(jaxpr, platform, loops, [])[0])


def _again(jaxpr: Jaxpr, platform: str, config: Config, defects: list[str]) -> Jaxpr:
    """Recover the library functions of a part of a recovered program."""
    return _recognize(jaxprs.as_lowered(jaxpr), platform, config, defects, named=True)[0]


def _recognize(
    closed: J,
    platform: str,
    config: Config,
    defects: list[str],
    name: str = "",
    *,
    named: bool = False,
) -> tuple[J, Mapping[str, int]]:
    """Apply the enabled patterns; with a name, report progress.

    `named` says that primitives are known to be those of the author, without hints that name them.
    """
    stages = patterns.selected(config.patterns, config.disabled_patterns)
    if config.extra_patterns:
        stages = (*stages, Stage(tuple(config.extra_patterns)))
    if not stages:
        return closed, {}
    wide = jaxprs.wide_types(open_jaxpr(closed))
    rewriter = Rewriter(
        stages,
        raise_call,
        platform,
        x64=bool(wide),
        # Counters of random bits have 64 bits in every session.
        x64_first=bool(wide - {np.dtype(np.uint64)}),
        named=named or hints.names_primitives(closed),
        defects=defects,
    )
    for number in range(len(stages)):
        if name:
            config.begin(f"{name}: recognizing patterns, {100 * number // len(stages)} %")
        closed = rewriter.run_stage(closed, number)
    return closed, dict(sorted(rewriter.counts.items()))
