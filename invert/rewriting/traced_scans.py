"""Scans as the loops that JAX lowers them to, without lowering them."""

from __future__ import annotations

import functools
from collections.abc import Hashable

import jax
from jax import lax

from invert._private.jax import on_whole_values, open_jaxpr, trace_closed, traced_to_lower
from invert.ir import jaxprs
from invert.ir.avals import type_of
from invert.ir.merging import operation_key
from invert.ir.types import AnyJaxpr, Atom, Eqn, J


def with_traced_scans(program: J, *, platform: str, x64: bool) -> J:
    """Replace each `scan` by the equations that JAX traces in its place when it lowers it.

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
                loop = trace_closed(functools.partial(function, **eqn.params), *avals)
            loop = jaxprs.with_typed_literals(jaxprs.without_empty(loop))
            if key is None:
                return loop
            traced[key] = loop
        return traced[key]

    return jaxprs.map_jaxprs(program, lambda jaxpr: jaxprs.with_inlined(jaxpr, loop))


def _is_key(atom: Atom) -> bool:
    return jax.dtypes.issubdtype(atom.aval.dtype, jax.dtypes.extended)
