"""Merges chains of broadcasts, reshapes and squeezes that only add, repeat or remove axes."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax

from invert._private.jax import rename_operands
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.jaxprs import (
    broadcast_in_place_of,
    broadcasts,
    composed_dimensions,
    variables_read,
)
from invert.ir.types import Atom, Eqn, Jaxpr, Var
from invert.ir.unit_axes import only_unit_axes


def composed(jaxpr: Jaxpr) -> Jaxpr:
    """Merge chains that broadcast numbers, or add, remove or broadcast axes of size one."""
    if all(e.primitive.name not in kinds.LAYOUT for e in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    made: dict[Atom, Eqn] = {}
    names: dict[Var, Atom] = {}
    passed: set[int] = set()
    for eqn in jaxpr.eqns:
        eqn = rename_operands(eqn, names)
        if eqn.primitive.name not in kinds.LAYOUT:
            eqns.append(eqn)
            continue
        eqn = with_axes_as_such(eqn)
        before = made.get(eqn.invars[0]) if eqn.invars and is_var(eqn.invars[0]) else None
        if before is not None and eqn.primitive in (lax.broadcast_in_dim_p, lax.squeeze_p):
            x = before.invars[0]
            if eqn.primitive is lax.squeeze_p and x.aval.shape == eqn.outvars[0].aval.shape:
                names[eqn.outvars[0]] = x
                passed.add(id(before))
                continue
            if (shorter := _squeezed(eqn, before)) is not None:
                eqn = shorter
                passed.add(id(before))
            elif (dims := _dimensions(eqn, before)) is not None:
                eqn = eqn.replace(invars=[x], params={**eqn.params, "broadcast_dimensions": dims})
                eqn = with_axes_as_such(eqn)
                passed.add(id(before))
                if x.aval.shape == eqn.outvars[0].aval.shape:
                    names[eqn.outvars[0]] = x
                    continue
        number = eqn.primitive is lax.broadcast_in_dim_p and not eqn.invars[0].aval.shape
        if number or (eqn.primitive is not lax.reshape_p and only_unit_axes(eqn)):
            made[eqn.outvars[0]] = eqn
        eqns.append(eqn)
    jaxpr = jaxpr.replace(
        eqns=eqns, outvars=[names.get(v, v) if is_var(v) else v for v in jaxpr.outvars]
    )
    read = variables_read(jaxpr)
    return jaxpr.replace(eqns=[e for e in eqns if id(e) not in passed or e.outvars[0] in read])


def _squeezed(eqn: Eqn, before: Eqn) -> Eqn | None:
    """A squeeze of a broadcast as one equation; it removes all that was added, or nothing else."""
    if eqn.primitive is not lax.squeeze_p or not broadcasts(before):
        return None
    (x,), (out,) = before.invars, eqn.outvars
    kept, gone = before.params["broadcast_dimensions"], eqn.params["dimensions"]
    added = {*range(len(before.params["shape"]))} - {*kept}
    if added.issubset(gone):
        axes = tuple(i for i, axis in enumerate(kept) if axis in gone)
        return eqn.replace(invars=[x], params={**eqn.params, "dimensions": axes})
    if not added.issuperset(gone):
        return None
    places = (axis - sum(i < axis for i in gone) for axis in kept)
    return broadcast_in_place_of(before, x, out, places)


def _dimensions(eqn: Eqn, before: Eqn) -> tuple[int, ...] | None:
    """The broadcast dimensions relative to the operand of the previous equation, if defined."""
    if eqn.primitive is not lax.broadcast_in_dim_p or len(eqn.invars) > 1:
        return None
    dims = eqn.params["broadcast_dimensions"]
    if before.primitive is lax.broadcast_in_dim_p:
        return composed_dimensions(before, eqn)
    gone = before.params["dimensions"]
    result: list[int] = []
    kept = list(dims)
    above = len(eqn.params["shape"])
    # From the right, as NumPy broadcasts.
    for i in reversed(range(len(before.invars[0].aval.shape))):
        axis = above - 1 if i in gone else kept.pop()
        if axis < 0 or (i in gone and kept and axis <= kept[-1]):
            return None
        result.append(axis)
        above = axis
    return tuple(reversed(result))


def with_axes_as_such(eqn: Eqn) -> Eqn:
    """Write a reshape that only adds or removes unit axes as broadcast or squeeze."""
    adds = eqn.primitive is lax.broadcast_in_dim_p
    if not (adds or eqn.primitive is lax.reshape_p) or len(eqn.invars) > 1:
        return eqn
    old = tuple(eqn.invars[0].aval.shape)
    new = tuple(eqn.params["shape" if adds else "new_sizes"])
    if eqn.params.get("dimensions") is not None or eqn.params["sharding"] is not None:
        return eqn
    if len(new) > len(old) and (kept := _remaining_axes(new, old)) is not None:
        if adds and sorted(eqn.params["broadcast_dimensions"]) != list(
            eqn.params["broadcast_dimensions"]
        ):
            return eqn
        return broadcast_in_place_of(eqn, eqn.invars[0], eqn.outvars[0], kept)
    if not adds and len(old) > len(new) and (kept := _remaining_axes(old, new)) is not None:
        gone = tuple(i for i in range(len(old)) if i not in kept)
        return eqn.replace(primitive=lax.squeeze_p, params={"dimensions": gone})
    return eqn


def _remaining_axes(more: Sequence[int], less: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of `more` left after removing unit axes to get `less`."""
    kept: list[int] = []
    rest = list(less)
    for i in reversed(range(len(more))):
        if rest and more[i] == rest[-1]:
            kept.append(i)
            rest.pop()
        elif more[i] != 1:
            return None
    return None if rest else tuple(reversed(kept))
