"""Scans as the loops that JAX lowers them to, without lowering them."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence

import jax
from jax import lax

from invert._cache import Cache
from invert._private.jax import (
    close_like,
    is_jaxpr,
    open_jaxpr,
    renamed,
    sub_jaxprs,
    trace_closed,
    traced_to_lower,
)
from invert._private.meshes import on_whole_values
from invert._private.staging import tracing_settings
from invert.ir import jaxprs
from invert.ir.avals import type_of
from invert.ir.merging import operation_key
from invert.ir.types import AnyJaxpr, Atom, Aval, Eqn, J, JaxFunction, Jaxpr, Value, Var


def with_traced_scans(program: J, *, platform: str, x64: bool) -> J:
    """Replace each `scan` by the equations that JAX traces to lower it.

    Lowering may replace these in turn. A `scan` over keys, which lowering replaces by words, stays,
    as does a `scan` on several devices.
    """
    function, names = traced_to_lower(lax.scan_p, platform), jaxprs.names_in(open_jaxpr(program))
    if function is None or "scan" not in names or "shard_map" in names:
        return program
    traced: dict[Hashable, AnyJaxpr] = {}

    def loop(eqn: Eqn) -> AnyJaxpr | None:
        if eqn.primitive is not lax.scan_p or any(map(_is_key, (*eqn.invars, *eqn.outvars))):
            return None
        avals = [type_of(a) for a in eqn.invars]
        operation = operation_key(eqn, with_jaxprs=True)
        key = operation and (operation, tuple((a.shape, a.dtype) for a in avals))
        if key not in traced:
            wide = x64 or any(map(jaxprs.is_wide, eqn.invars))
            with on_whole_values(), jax.enable_x64(wide):
                loop = _traced(function, eqn, avals)
            loop = jaxprs.with_typed_literals(jaxprs.without_empty(loop))
            if key is None:
                return loop
            traced[key] = loop
        return traced[key]

    return jaxprs.map_jaxprs(program, lambda jaxpr: jaxprs.with_inlined(jaxpr, loop))


# Loops around the calls of a body, by everything that they depend on, each with that body.
_LOOPS: Cache[Hashable, tuple[AnyJaxpr, AnyJaxpr]] = Cache(128)


def _traced(function: JaxFunction, eqn: Eqn, avals: Sequence[Aval]) -> AnyJaxpr:
    """The loop that JAX traces for a scan.

    JAX's loop calls the body, so the loops of scans of equal types differ only in what they call.
    """
    body = eqn.params["jaxpr"]
    key = _key(function, eqn, avals)
    if key in _LOOPS:
        return _calling(*_LOOPS[key], body)
    loop = trace_closed(functools.partial(function, **eqn.params), *avals)
    if key is not None and set(_called(loop)) == {open_jaxpr(body)}:
        _LOOPS[key] = loop, body
    return loop


def _key(function: JaxFunction, eqn: Eqn, avals: Sequence[Aval]) -> Hashable | None:
    """Everything that the loop around a body depends on, except the body."""
    inner = open_jaxpr(eqn.params["jaxpr"])
    if inner.effects or inner.constvars:
        return None
    params = {name: value for name, value in eqn.params.items() if name != "jaxpr"}
    types = tuple((a.shape, a.dtype) for a in avals)
    inside = tuple(v.aval for v in (*inner.invars, *inner.outvars))
    key = function, tuple(params.items()), types, inside, tracing_settings()
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _called(program: AnyJaxpr) -> Iterator[Jaxpr]:
    """The programs that a loop, or JAX's functions in it, call."""
    for eqn in open_jaxpr(program).eqns:
        for inner in sub_jaxprs(eqn):
            if eqn.primitive is lax.while_p or eqn.primitive.name == "jit":
                yield from _called(inner)
            else:
                yield inner


def _calling(program: J, old: AnyJaxpr, new: AnyJaxpr) -> J:
    """Copy a program with fresh variables, calling `new` in place of `old`."""
    jaxpr = open_jaxpr(program)
    env: dict[Var, Atom] = {v: Var(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)}

    def called(value: Value) -> Value:
        if value is old:
            return new
        return _calling(value, old, new) if is_jaxpr(value) else value

    eqns = [
        e.replace(params={name: called(value) for name, value in e.params.items()})
        for e in jaxprs.copied(jaxpr.eqns, env)
    ]
    copy = jaxpr.replace(
        constvars=renamed(jaxpr.constvars, env),
        invars=renamed(jaxpr.invars, env),
        outvars=renamed(jaxpr.outvars, env),
        eqns=eqns,
    )
    return close_like(program, copy)


def _is_key(atom: Atom) -> bool:
    return jax.dtypes.issubdtype(atom.aval.dtype, jax.dtypes.extended)
