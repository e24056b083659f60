"""Normalizes sizes that occur as values of a program (`dim_as_value`).

JAX traces them with 32 or 64 bits, depending on its x64 setting, and weak types, and converts them
on use. Here each use has its own 64-bit equation and one conversion to the type needed, which is
correct under either setting. Loops do not carry sizes that their steps leave unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import (
    Primitive,
    ShapedArray,
    close_like,
    dim_as_value_p,
    open_jaxpr,
    rename,
)
from invert.ir import kinds
from invert.ir.loops import WhileParts
from invert.ir.sizes import DimSize, is_open
from invert.ir.types import Atom, Eqn, J, Jaxpr, Literal, Var

_WIDE = np.dtype(np.int64)


def with_size_values(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr's equations with sizes in that form; inner jaxprs stay."""
    if not any(e.primitive is dim_as_value_p for e in jaxpr.eqns):
        return jaxpr
    makers: dict[Atom, Eqn] = {}
    eqns: list[Eqn] = []

    def used(atom: Atom) -> Atom:
        if isinstance(atom, Literal) or atom not in makers:
            return atom
        made = list(_value(makers[atom], atom))
        eqns.extend(made)
        return made[-1].outvars[0]

    producers: dict[Atom, Eqn] = {}
    for eqn in jaxpr.eqns:
        producers.update((v, eqn) for v in eqn.outvars)
        if eqn.primitive is dim_as_value_p:
            makers[eqn.outvars[0]] = eqn
        elif (size := _taken(eqn, producers)) is not None:
            maker = next(iter(makers.values()))
            makers[eqn.outvars[0]] = maker.replace(params={**maker.params, "dim": size})
        elif _converts(eqn) and (maker := makers.get(eqn.invars[0])) is not None:
            (out,) = eqn.outvars
            if _holds_sizes(out.aval.dtype):
                makers[out] = maker
            else:
                *before, last = _value(maker, out)
                eqns += [*before, last.replace(outvars=[out])]
        else:
            if eqn.primitive.name == "while":
                eqn = _without_sizes(eqn, makers)
            eqns.append(eqn.replace(invars=[used(a) for a in eqn.invars]))
    outvars = [used(a) for a in jaxpr.outvars]
    return jaxpr.replace(eqns=eqns, outvars=outvars)


def _taken(eqn: Eqn, producers: Mapping[Atom, Eqn]) -> DimSize | None:
    """The open size that an equation extracts from an array of sizes or adds up, if any."""
    if eqn.primitive.name not in kinds.DROPS and eqn.primitive.name != "add":
        return None
    (out,) = eqn.outvars
    sizes = sizes_in(out, producers) if not out.aval.shape else None
    return sizes[0] if sizes is not None and len(sizes) == 1 and is_open(sizes[0]) else None


def sizes_in(atom: Atom, makers: Mapping[Atom, Eqn]) -> list[DimSize] | None:
    """The sizes in a vector or scalar; `None` if it depends on data."""
    if isinstance(atom, Literal):
        value = np.asarray(atom.val)
        return [int(n) for n in value.reshape(-1)] if value.dtype.kind in "iu" else None
    eqn = makers.get(atom)
    if eqn is None:
        return None
    match eqn.primitive.name:
        case "dim_as_value":
            return [eqn.params["dim"]]
        case "convert_element_type" | "reshape" | "squeeze" | "copy":
            holds = _holds_sizes(atom.aval.dtype)
            return sizes_in(eqn.invars[0], makers) if holds else None
        case "broadcast_in_dim":
            found = sizes_in(eqn.invars[0], makers)
            (*_, size) = (1, *atom.aval.shape)
            return None if found is None or is_open(size) else found * (size // max(len(found), 1))
        case "concatenate" | "stack":
            parts = [sizes_in(a, makers) for a in eqn.invars]
            return None if None in parts else [n for p in parts for n in p or ()]
        case "add" if not atom.aval.shape and _holds_sizes(atom.aval.dtype):
            terms = [sizes_in(a, makers) for a in eqn.invars]
            return None if None in terms else [sum(n for t in terms for n in t or ())]
        case "slice":
            found = sizes_in(eqn.invars[0], makers)
            (start,), (limit,) = eqn.params["start_indices"], eqn.params["limit_indices"]
            return None if found is None or eqn.params["strides"] else found[start:limit]
    return None


def _holds_sizes(dtype: np.dtype) -> bool:
    """Return whether a dtype holds sizes without wrapping around, unlike int8 and key types."""
    return jnp.issubdtype(dtype, jnp.signedinteger) and dtype.itemsize >= 4


def _without_sizes(eqn: Eqn, makers: dict[Atom, Eqn]) -> Eqn:
    """Stop carrying sizes that no step changes, such as the limit of `lax.fori_loop`.

    Condition, body and results get equations for them instead (those of results in `makers`). The
    unused carries are removed as dead code.
    """
    parts = WhileParts.of(eqn)
    ends = open_jaxpr(parts.body).outvars
    sizes = {
        i: makers[a]
        for i, a in enumerate(parts.init)
        if not isinstance(a, Literal) and a in makers and ends[i] is parts.carried[i]
    }
    if not sizes:
        return eqn
    makers.update((eqn.outvars[i], maker) for i, maker in sizes.items())

    def inside(program: J, carried: Sequence[Var]) -> J:
        jaxpr = open_jaxpr(program)
        made: list[Eqn] = []
        names: dict[Var, Atom] = {}
        for i, maker in sizes.items():
            made += _value(maker, carried[i])
            names[carried[i]] = made[-1].outvars[0]
        # The carry itself is unchanged.
        eqns = [*made, *rename(jaxpr, names).eqns]
        return close_like(program, jaxpr.replace(eqns=eqns))

    cond, body = inside(parts.cond, parts.tested), inside(parts.body, parts.carried)
    return dataclasses.replace(parts, cond=cond, body=body).put_into(eqn)


def _converts(eqn: Eqn) -> bool:
    return eqn.primitive.name in ("convert_element_type", "copy") and not isinstance(
        eqn.invars[0], Literal
    )


def _value(maker: Eqn, v: Var) -> Iterator[Eqn]:
    """Equations that compute the size of `maker` in the type of `v`."""
    size = Var(ShapedArray((), _WIDE))
    yield maker.replace(outvars=[size])
    dtype = np.dtype(v.aval.dtype)
    if dtype != _WIDE:
        params = {"new_dtype": dtype, "weak_type": False, "sharding": None}
        convert: Primitive = lax.convert_element_type_p
        out = Var(ShapedArray((), dtype))
        yield maker.replace(invars=[size], outvars=[out], primitive=convert, params=params)
