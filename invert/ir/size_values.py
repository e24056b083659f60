"""Sizes as values of a program, `dim_as_value`, in one form.

JAX gives them 64 bits or 32, by its setting when they are traced, with weak types, and converts
them on use. Here each use has an equation of its own, of 64 bits, and one conversion to the type
that is used, which holds under either setting. No loop
carries a size that its steps do not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

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
from invert.ir.loops import WhileParts
from invert.ir.types import Atom, Eqn, J, Jaxpr, Literal, Var

_WIDE = np.dtype(np.int64)


def with_size_values(jaxpr: Jaxpr) -> Jaxpr:
    """The equations of a jaxpr with its sizes in that form; inner jaxprs stay as they are."""
    if not any(e.primitive is dim_as_value_p for e in jaxpr.eqns):
        return jaxpr
    makers: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []

    def used(atom: Atom) -> Atom:
        if isinstance(atom, Literal) or atom not in makers:
            return atom
        made = list(_value(makers[atom], atom))
        eqns.extend(made)
        return made[-1].outvars[0]

    for eqn in jaxpr.eqns:
        if eqn.primitive is dim_as_value_p:
            makers[eqn.outvars[0]] = eqn
        elif _converts(eqn) and (maker := makers.get(eqn.invars[0])) is not None:  # pyright: ignore
            (out,) = eqn.outvars
            if out.aval.dtype.kind == "i":
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


def _without_sizes(eqn: Eqn, makers: dict[Var, Eqn]) -> Eqn:
    """A loop that reads no size that it carries and no step changes, as `lax.fori_loop` its limit.

    Its condition and its steps have equations for them; so have the results, in `makers`. What is
    carried for nothing is dead code.
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
        # The carry itself stays as it is.
        eqns = [*made, *rename(jaxpr, names).eqns]
        return close_like(program, jaxpr.replace(eqns=eqns))

    cond, body = inside(parts.cond, parts.tested), inside(parts.body, parts.carried)
    return dataclasses.replace(parts, cond=cond, body=body).put_into(eqn)


def _converts(eqn: Eqn) -> bool:
    return eqn.primitive.name in ("convert_element_type", "copy") and not isinstance(
        eqn.invars[0], Literal
    )


def _value(maker: Eqn, v: Var) -> Iterator[Eqn]:
    """Equations that make the size of `maker` as a value of the type of `v`."""
    size = Var(ShapedArray((), _WIDE))
    yield maker.replace(outvars=[size])
    dtype = np.dtype(v.aval.dtype)
    if dtype != _WIDE:
        params = {"new_dtype": dtype, "weak_type": False, "sharding": None}
        convert: Primitive = lax.convert_element_type_p
        out = Var(ShapedArray((), dtype))
        yield maker.replace(invars=[size], outvars=[out], primitive=convert, params=params)
