"""Indices of 64 bits in 32, where these suffice: x64 makes them wider."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
from jax import lax

from invert._private.jax import dce
from invert.ir import kinds
from invert.ir.graph import is_var, reads
from invert.ir.lookups import steps_of_wrapping
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, ShapedArray, Var

_INT32 = np.dtype(np.int32)
_SHORT = frozenset(map(np.dtype, (np.int8, np.int16, np.uint8, np.uint16)))
_NUMBER = ShapedArray((), _INT32)
# Sizes up to this one are compared as 32-bit numbers.
_FEW = 2**30 - 1


def with_narrow_counters(jaxpr: Jaxpr) -> Jaxpr:
    """Compare ranges that x64 makes 64 bits wide, and their shifts by small numbers, in 32 bits."""
    wide: set[Atom] = set()
    compared: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if _counts(eqn) or _shifts(eqn, wide):
            wide.add(eqn.outvars[0])
        elif eqn.primitive.name in kinds.COMPARISONS and all(
            is_var(a) and a in wide for a in eqn.invars
        ):
            compared.append(eqn)
    if not compared:
        return jaxpr
    narrow = {v: Var(ShapedArray(v.aval.shape, _INT32)) for v in wide if is_var(v)}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn in compared:
            eqn = eqn.replace(invars=[narrow[a] if is_var(a) else a for a in eqn.invars])
        eqns.append(eqn)
        if eqn.outvars and eqn.outvars[0] in narrow:
            invars = [
                narrow[a] if is_var(a) else Literal(np.asarray(a.val, _INT32), _NUMBER)
                for a in eqn.invars
            ]
            new = eqn.replace(invars=invars, outvars=[narrow[eqn.outvars[0]]])
            dtype = {"dtype": _INT32} if _counts(eqn) else {}
            eqns.append(new.replace(params={**new.params, **dtype}))
    return dce(jaxpr.replace(eqns=eqns))


def _counts(eqn: Eqn) -> bool:
    """Return whether an equation produces 64-bit indices into a small array."""
    if eqn.primitive is not lax.iota_p or eqn.params["dtype"] != np.int64:
        return False
    shape = eqn.params["shape"]
    # An array that is n long along two axes has n * n elements, so an open n is small.
    return all(n <= _FEW if isinstance(n, int) else shape.count(n) > 1 for n in shape)


def _shifts(eqn: Eqn, wide: Set[Atom]) -> bool:
    """Return whether an equation adds a small number to such indices."""
    if eqn.primitive.name != "add" or not reads(eqn, wide):
        return False
    numbers = [a for a in eqn.invars if isinstance(a, Literal)]
    return len(numbers) == 1 and abs(int(numbers[0].val)) <= _FEW


def with_narrow_indices(jaxpr: Jaxpr) -> Jaxpr:
    """Gather, scatter and slice at indices of 32 bits that were only widened for it.

    Under x64, JAX widens all indices of an array with axes of open length.
    """
    narrow: dict[Atom, Atom] = {}
    makers: dict[Atom, Eqn] = {}
    eqns: list[Eqn] = []
    found = False
    if _PLACES.keys().isdisjoint(e.primitive.name for e in jaxpr.eqns):
        return jaxpr
    for eqn in jaxpr.eqns:
        eqns.append(eqn)
        makers |= dict.fromkeys(eqn.outvars, eqn)
        if any(v.aval.dtype == np.int64 for v in eqn.outvars):
            made, result = _narrowed_index(eqn, narrow, makers)
            eqns += made
            narrow |= {} if result is None else {eqn.outvars[0]: result}
        elif (places := _PLACES.get(eqn.primitive.name)) is not None:
            wide = eqn.invars[places]
            indices = [a for v in wide if (a := _narrow_index(v, narrow)) is not None]
            if len(indices) == len(wide) and any(a.aval.dtype == np.int64 for a in wide):
                operands = list(eqn.invars)
                operands[places] = indices
                eqns[-1], found = eqn.replace(invars=operands), True
    return dce(jaxpr.replace(eqns=eqns)) if found else jaxpr


_SCATTERS = ["scatter", *(f"scatter-{kind}" for kind in ("add", "sub", "mul", "min", "max"))]
# The operands that are indices.
_PLACES = {
    "gather": slice(1, 2),
    **dict.fromkeys(_SCATTERS, slice(1, 2)),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
}


def _narrowed_index(
    eqn: Eqn, narrow: Mapping[Atom, Atom], makers: Mapping[Atom, Eqn]
) -> tuple[list[Eqn], Atom | None]:
    """Equations that make an index of 64 bits one of 32, and that index; `None` if it has more."""
    (out, *_) = eqn.outvars
    new = Var(out.aval.update(dtype=_INT32))
    match eqn.primitive.name:
        case "convert_element_type" if eqn.invars[0].aval.dtype == _INT32:
            return [], eqn.invars[0]
        case "convert_element_type" if eqn.invars[0].aval.dtype in _SHORT:
            return [_convert(eqn, eqn.invars[0], new)], new
        case "dim_as_value":  # an axis has fewer than 2^31 elements
            return [_convert(eqn, out, new)], new
        case "broadcast_in_dim" | "concatenate":
            operands = [_narrow_index(a, narrow) for a in eqn.invars]
            if None not in operands:
                return [eqn.replace(invars=operands, outvars=[new])], new
        case "select_n" if (steps := steps_of_wrapping(eqn, makers)) is not None:
            # The sum may only overflow where it is not chosen.
            below, added = steps
            if not _is_zero(below.invars[-1], makers):
                return [], None
            index, zero, size = (
                _narrow_index(a, narrow) for a in (eqn.invars[1], below.invars[1], added.invars[1])
            )
            if index is not None and zero is not None and size is not None:
                test, total = Var(below.outvars[0].aval), Var(new.aval)
                return [
                    below.replace(invars=[index, zero], outvars=[test]),
                    added.replace(invars=[index, size], outvars=[total]),
                    eqn.replace(invars=[test, index, total], outvars=[new]),
                ], new
    return [], None


def _is_zero(atom: Atom, makers: Mapping[Atom, Eqn]) -> bool:
    """Return whether an atom is zero, or a broadcast of it."""
    while is_var(atom) and atom in makers and makers[atom].primitive.name == "broadcast_in_dim":
        atom = makers[atom].invars[0]
    return isinstance(atom, Literal) and bool(atom.val == 0)


def _convert(eqn: Eqn, x: Atom, out: Var) -> Eqn:
    """An equation that converts a value to the type of another, from the source of `eqn`."""
    params = {"new_dtype": out.aval.dtype, "weak_type": False, "sharding": None}
    return eqn.replace(
        primitive=lax.convert_element_type_p, invars=[x], outvars=[out], params=params
    )


def _narrow_index(atom: Atom, narrow: Mapping[Atom, Atom]) -> Atom | None:
    """An index as one of 32 bits, if it has no more."""
    if not isinstance(atom, Literal):
        return narrow.get(atom)
    value = np.asarray(atom.val)
    if value.dtype != np.int64 or np.any(value != value.astype(np.int32)):
        return None
    return Literal(value.astype(np.int32)[()], atom.aval.update(dtype=_INT32))
