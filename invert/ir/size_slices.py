"""Slices of arrays with open sizes, which JAX traces to a `gather` at known indices.

JAX writes `x[: n // 2]` so where it cannot know that the slice is inside of the array. Where it is,
as the sizes say, the equation is a `slice`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from invert._private.jax import open_jaxpr, trace_closed
from invert.ir.sizes import DimSize, decided, is_open
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Value, Var


def with_slices(jaxpr: Jaxpr) -> Jaxpr:
    """The equations of a jaxpr with such slices; inner jaxprs stay as they are."""
    if not any(_may_be(e) for e in jaxpr.eqns):
        return jaxpr
    makers: dict[Var, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        made = _sliced(eqn, makers) if _may_be(eqn) else None
        eqns += [eqn] if made is None else made
    return jaxpr.replace(eqns=eqns)


def _may_be(eqn: Eqn) -> bool:
    """Whether an equation takes a part of an array with open sizes at one place."""
    if eqn.primitive.name != "gather" or len(eqn.invars[1].aval.shape) != 1:
        return False
    sizes = (*eqn.invars[0].aval.shape, *eqn.params["slice_sizes"])
    numbers = eqn.params["dimension_numbers"]
    return any(map(is_open, sizes)) and not numbers.operand_batching_dims


def _sliced(eqn: Eqn, makers: dict[Var, Eqn]) -> list[Eqn] | None:
    """The equations of a slice that is the same; `None` where the array may be shorter."""
    x, index = eqn.invars
    starts = _sizes(index, makers)
    numbers, lengths = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if starts is None or any(not is_open(n) and n != 1 for n in _at(lengths, numbers)):
        return None
    places: list[DimSize] = [0] * len(lengths)
    for axis, start in zip(numbers.start_index_map, starts, strict=True):
        places[axis] = start
    limits = [a + n for a, n in zip(places, lengths, strict=True)]
    for start, limit, size in zip(places, limits, x.aval.shape, strict=True):
        if not (decided("ge", start, 0) and decided("le", limit, size)):
            return None

    def cut(x: Value) -> Value:
        part = lax.slice(x, places, limits)
        dropped = numbers.collapsed_slice_dims
        return lax.squeeze(part, dropped) if dropped else part

    program = open_jaxpr(trace_closed(cut, x.aval))
    names: dict[Atom, Atom] = {program.invars[0]: x, program.outvars[0]: eqn.outvars[0]}
    return [
        e.replace(
            invars=[names.get(a, a) if not isinstance(a, Literal) else a for a in e.invars],
            outvars=[names.get(v, v) for v in e.outvars],
            source_info=eqn.source_info,
        )
        for e in program.eqns
    ]


def _at(lengths: Sequence[DimSize], numbers: lax.GatherDimensionNumbers) -> list[DimSize]:
    return [lengths[i] for i in numbers.collapsed_slice_dims]


def _sizes(atom: Atom, makers: dict[Var, Eqn]) -> list[DimSize] | None:
    """The sizes that a vector or number holds; `None` where it is data."""
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
            return _sizes(eqn.invars[0], makers) if atom.aval.dtype.kind in "iu" else None
        case "broadcast_in_dim":
            found = _sizes(eqn.invars[0], makers)
            (*_, size) = (1, *atom.aval.shape)
            return None if found is None or is_open(size) else found * (size // max(len(found), 1))
        case "concatenate":
            parts = [_sizes(a, makers) for a in eqn.invars]
            return None if None in parts else [n for p in parts for n in p or ()]
        case "slice":
            found = _sizes(eqn.invars[0], makers)
            (start,), (limit,) = eqn.params["start_indices"], eqn.params["limit_indices"]
            return None if found is None or eqn.params["strides"] else found[start:limit]
    return None
