"""Adds equations of known types to a trace, without binding primitives.

Binding a primitive checks and derives types, which takes several times as long as recording an
equation. Works with jax 0.10.2 to 0.12.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
from jax._src import config, core, dtypes, source_info_util, util
from jax._src.interpreters import partial_eval
from jax._src.mesh import empty_abstract_mesh, get_abstract_mesh

if TYPE_CHECKING:
    from invert._private.jax import Aval, Eqn, Jaxpr, Value

Trace: TypeAlias = partial_eval.DynamicJaxprTrace
# Primitive, parameters, context, operands, types of results and name scopes of an equation.
_Row: TypeAlias = tuple["Value", ...]


def inlined(jaxpr: Jaxpr, consts: Sequence[Value], values: Sequence[Value]) -> list[Value] | None:
    """Inline a jaxpr into the current trace, as JAX inlines a `jit`.

    `None` where binding does more than recording: under other traces, such as those of derivatives,
    for values of other types, for effects, and where the caller adds metadata to each equation.
    """
    trace = _recording_trace()
    if trace is None or jaxpr.effects or has_high(jaxpr):
        return None
    source = source_info_util.current()
    given = [
        trace.to_jaxpr_tracer(dtypes.canonicalize_value(x), source) for x in (*consts, *values)
    ]
    variables = (*jaxpr.constvars, *jaxpr.invars)
    if any(t.aval != v.aval for t, v in zip(given, variables, strict=True)):
        return None
    return list(partial_eval.inline_jaxpr_into_trace(trace, source, jaxpr, (), *given))


@util.weakref_lru_cache
def has_high(jaxpr: Jaxpr) -> bool:
    """Return whether binding an equation would mark the trace as one to be lowered first.

    A rewritten jaxpr does not record this.
    """
    return jaxpr.is_high or any(map(_is_high, jaxpr.eqns))


def _is_high(eqn: Eqn) -> bool:
    return eqn.primitive.is_high(*(v.aval for v in eqn.invars), **eqn.params)


def _recording_trace() -> Trace | None:
    """The current trace, if it only records equations."""
    trace = core.trace_ctx.trace
    plain = isinstance(trace, Trace) and not trace.requires_low
    return trace if plain and config.xla_metadata_context_manager.value is None else None


class Recording:
    """The equations that a function put into a trace, for replay in other traces.

    It holds no values of the trace. Atoms are numbers: of the operands first, then of the results
    of the equations; or literals, or constants.
    """

    __slots__ = ("_constants", "_eqns", "_results", "_structure")

    def __init__(
        self,
        eqns: Sequence[_Row],
        constants: Sequence[tuple[Value, Aval]],
        results: Sequence[Value],
        structure: jax.tree_util.PyTreeDef,
    ):
        self._eqns, self._constants, self._results = eqns, constants, results
        self._structure = structure

    def replay(self, trace: Trace, operands: Sequence[Value]) -> Value:
        """Put the equations into a trace, on other operands of the same types."""
        source = source_info_util.current()
        env = list(operands)
        env += [trace.new_const(c, source, aval) for c, aval in self._constants]

        def tracer(atom: Value) -> Value:
            if type(atom) is int:
                return env[atom]
            return partial_eval.DynamicJaxprTracer(trace, atom.aval, atom, source)

        for primitive, params, context, invars, avals, names in self._eqns:
            info = source.replace(name_stack=source.name_stack + names) if names else source
            operands = [tracer(a) for a in invars]
            env += trace.emit_eqn(
                operands, avals, primitive, params, core.no_effects, info, context
            )
        return self._structure.unflatten(tracer(a) for a in self._results)


# Larger constants are not kept.
_MOST_BYTES = 1024
# Whether the function that is recorded asked how its operands were made.
_asked: contextvars.ContextVar[list[None] | None] = contextvars.ContextVar("asked", default=None)


def tell_origin() -> None:
    """Say that the current function asks for the equation that defines a value."""
    if (asked := _asked.get()) is not None:
        asked.append(None)


def staged(values: Sequence[Value], *, open_sizes: bool = False) -> tuple[Trace, Hashable] | None:
    """The current trace and the settings that its equations depend on.

    `None` if equations cannot be recorded there, or if a value is not an array of that trace, is a
    literal, or has an open size, unless `open_sizes`.
    """
    trace = _recording_trace()
    if trace is None or get_abstract_mesh() is not empty_abstract_mesh:
        return None
    for value in values:
        if not isinstance(value, partial_eval.DynamicJaxprTracer) or value._trace is not trace:
            return None
        aval: Aval = value.aval
        if isinstance(value.val, core.Literal) or not isinstance(aval, core.ShapedArray):
            return None
        if not open_sizes and not all(type(n) is int for n in aval.shape):
            return None
    return trace, config.trace_context()


def tracing_settings() -> Hashable:
    """The settings that a trace depends on."""
    return config.trace_context()


def recorded(
    function: Callable[[], Value], trace: Trace, operands: Sequence[Value]
) -> tuple[Value, Recording | None]:
    """The results of a function and its recording; `None` if that may vary.

    **Arguments:**

    - `operands`: the traced values that it uses, each once.
    """
    names = source_info_util.current_name_stack()
    first, outer = len(trace.frame.tracing_eqns), _asked.get()
    token = _asked.set([])
    try:
        results = function()
    finally:
        asked = _asked.get()
        _asked.reset(token)
        if asked and outer is not None:
            outer.extend(asked)
    made = None if asked else _recording(trace, first, names, operands, results)
    return results, made


def _recording(
    trace: Trace,
    first: int,
    names: source_info_util.NameStack,
    operands: Sequence[Value],
    results: Value,
) -> Recording | None:
    places: dict[object, int] = {t.val: i for i, t in enumerate(operands)}
    if len(places) < len(operands):
        return None  # one variable under two tracers
    known = trace.frame.constvar_to_val
    eqns: list[_Row] = []
    constants: list[tuple[Value, Aval]] = []
    made = [e for e in trace.frame.tracing_eqns[first:] if isinstance(e, partial_eval.TracingEqn)]
    if len(made) < len(trace.frame.tracing_eqns) - first:
        return None
    for atom in [t.val for eqn in made for t in eqn.in_tracers]:
        if not isinstance(atom, core.Literal) and atom not in places and atom in known:
            value = known[atom]
            aval: Aval = atom.aval
            large = aval.size * aval.dtype.itemsize > _MOST_BYTES
            if large or isinstance(value, core.Tracer):
                return None
            places[atom] = len(operands) + len(constants)
            constants.append((value, aval))

    def place(atom: Value) -> Value:
        return atom if isinstance(atom, core.Literal) else places.get(atom)

    for eqn in made:
        invars = [place(t.val) for t in eqn.in_tracers]
        scopes = eqn.source_info.name_stack.stack
        high = eqn.primitive.is_high(*(t.aval for t in eqn.in_tracers), **eqn.params)
        if high or eqn.effects or None in invars or scopes[: len(names)] != names.stack:
            return None
        for v in eqn.outvars:
            places[v] = len(places)
        inner = source_info_util.NameStack(scopes[len(names) :])
        avals = [v.aval for v in eqn.outvars]
        eqns.append((eqn.primitive, eqn.params, eqn.ctx, invars, avals, inner))
    listed, structure = jax.tree_util.tree_flatten(results)
    if not all(isinstance(r, partial_eval.DynamicJaxprTracer) for r in listed):
        return None
    atoms = [place(r.val) if r._trace is trace else None for r in listed]
    return None if None in atoms else Recording(eqns, constants, atoms, structure)
