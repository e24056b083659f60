"""Operands that `jax.numpy` broadcasts implicitly: scalars, and arrays with axes of size one.

Indices that it widens are among them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np
from jax import lax

from invert._private.jax import dce, rename
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.jaxprs import broadcast_in_place_of, broadcasts
from invert.ir.lookups import steps_of_wrapping
from invert.ir.passes import replaced
from invert.ir.sizes import DimSize
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, ShapedArray, Var

# Operations on two arrays that broadcast scalars and axes of size one themselves.
BROADCASTING = kinds.COMPARISONS | frozenset("add and div max min mul or pow rem sub xor".split())
_Shape: TypeAlias = tuple[DimSize, ...]

# Products that take whole arrays.
_MATRIX_PRODUCTS = kinds.PRODUCTS - {"mul"}
# The identity element of each operation, as its second operand.
_NEUTRAL = {"and": True, "or": False}


def narrowable(shape: _Shape, wide: Sequence[_Shape], narrow: Sequence[_Shape]) -> list[bool]:
    """Which operands can have their shapes before a broadcast, so that a result has `shape`.

    The first ones stay broadcast where not all of them can.

    **Arguments:**

    - `wide`, `narrow`: the shapes of the operands after and before.
    """
    shapes = list(narrow)
    for i, before in enumerate(narrow):
        sizes = [s for s in shapes if s] or [()]
        # The size other than one, if any: open sizes cannot be compared with it.
        if tuple(max(axis, key=lambda n: n != 1) for axis in zip(*sizes, strict=True)) == shape:
            break
        if before != wide[i]:
            shapes[i] = wide[i]
    return [before == now for before, now in zip(narrow, shapes, strict=True)]


def is_implied(broadcast: Eqn) -> bool:
    """Return whether operations on two arrays broadcast so: scalars, and axes of size one."""
    shape, dimensions = (broadcast.params[k] for k in ("shape", "broadcast_dimensions"))
    return not broadcast.invars[0].aval.shape or (
        tuple(dimensions) == tuple(range(len(shape))) and 0 not in shape
    )


def with_narrow_operands(jaxpr: Jaxpr, *, arrays: bool = True) -> Jaxpr:
    """Remove the broadcasts of operands that the operation itself performs.

    `x + broadcast(b)` is `x + b[None]`, `x - zeros` is `x - 0.0`, and `ones & mask` is the mask.
    Zeros that also enter a matrix product, such as the initial state of a recurrent layer, stay one
    array.

    **Arguments:**

    - `arrays`: whether this holds for arrays, and not only for numbers.
    """
    jaxpr, kept = _with_states(_with_narrow_indices(jaxpr))
    makers: dict[Atom, Eqn] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in kinds.LAYOUT and len(eqn.invars) == 1:
            before = makers.get(eqn.invars[0]) if is_var(eqn.invars[0]) else None
            if before is not None and isinstance(before.invars[0], Literal):
                (out,) = eqn.outvars
                makers[out] = broadcast_in_place_of(eqn, before.invars[0], out, ())
            elif (
                broadcasts(eqn)
                and eqn.outvars[0] not in kept
                and (arrays or not eqn.invars[0].aval.shape)
            ):
                makers[eqn.outvars[0]] = eqn
    if not makers:
        return jaxpr

    def narrower(eqn: Eqn) -> Sequence[Eqn] | None:
        before = [makers.get(a) if is_var(a) else None for a in eqn.invars]
        applies = eqn.primitive.name in BROADCASTING and any(before)
        return _narrowed(eqn, before) if applies else None

    return dce(replaced(jaxpr, narrower))


# Their functions in `jax.numpy` broadcast operands, too.
_IMPLICIT = BROADCASTING | {"select_n", "clamp"}


def with_shared_broadcasts(jaxpr: Jaxpr) -> Jaxpr:
    """Let operations take a broadcast that the program has anyway, as a person names it once.

    An example are the latents of a Perceiver, of which each sample gets its own: `x` and not the
    parameter, in `x + attention(norm(x))`.
    """
    users: dict[Atom, list[Eqn]] = {}
    for eqn in jaxpr.eqns:
        for atom in filter(is_var, eqn.invars):
            users.setdefault(atom, []).append(eqn)
    wide: dict[tuple[Atom, Hashable], Eqn] = {}
    narrow: dict[Atom, tuple[Atom, tuple[int, ...]]] = {}
    for eqn in jaxpr.eqns:
        if not broadcasts(eqn) or not is_var(x := eqn.invars[0]) or not x.aval.shape:
            continue
        dims = tuple(eqn.params["broadcast_dimensions"])
        following = {user.primitive.name for user in users.get(eqn.outvars[0], ())}
        if not _widens(eqn):
            narrow[eqn.outvars[0]] = x, dims
        elif following - _IMPLICIT:
            wide.setdefault((x, (dims, eqn.outvars[0].aval.shape)), eqn)
    if not wide:
        return jaxpr
    placed: set[Var] = set()
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in BROADCASTING:
            shape = eqn.outvars[0].aval.shape
            operands = list(eqn.invars)
            for i, atom in ((i, a) for i, a in enumerate(operands) if is_var(a)):
                x, dims = narrow.get(atom, (atom, tuple(range(len(shape)))))
                maker = wide.get((x, (dims, shape)))
                if maker is not None and maker.outvars[0] not in placed:
                    placed.update(maker.outvars)
                    eqns.append(maker)
                operands[i] = atom if maker is None else maker.outvars[0]
            eqn = eqn.replace(invars=operands)
        if placed.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            placed.update(eqn.outvars)
    return dce(jaxpr.replace(eqns=eqns))


def _with_narrow_indices(jaxpr: Jaxpr) -> Jaxpr:
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
_INT32 = np.dtype(np.int32)
_SHORT = frozenset(map(np.dtype, (np.int8, np.int16, np.uint8, np.uint16)))


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
    return Literal(value.astype(np.int32)[()], atom.aval.update(dtype=np.dtype(np.int32)))


def _with_states(jaxpr: Jaxpr) -> tuple[Jaxpr, Set[Var]]:
    """Merge equal arrays of one number that enter matrix products; also return those kept."""
    fills: dict[Hashable, list[Var]] = {}
    for eqn in jaxpr.eqns:
        if broadcasts(eqn) and isinstance(x := eqn.invars[0], Literal):
            (out,) = eqn.outvars
            value = np.asarray(x.val).tobytes()
            fills.setdefault((out.aval.shape, out.aval.dtype, value), []).append(out)
    if not fills:
        return jaxpr, set()
    factors = {
        a for e in jaxpr.eqns if e.primitive.name in _MATRIX_PRODUCTS for a in e.invars if is_var(a)
    }
    merged = [same for same in fills.values() if not factors.isdisjoint(same)]
    names: dict[Var, Atom] = {v: same[0] for same in merged for v in same[1:]}
    eqns = [e for e in jaxpr.eqns if names.keys().isdisjoint(e.outvars)]
    kept = {same[0] for same in merged}
    return (rename(jaxpr.replace(eqns=eqns), names) if names else jaxpr), kept


def _narrowed(eqn: Eqn, makers: Sequence[Eqn | None]) -> list[Eqn]:
    """The equations that replace one whose operands `makers` broadcast."""
    shape = eqn.outvars[0].aval.shape
    for choice in ((0, 1), (0,), (1,)):
        chosen = [m for i, m in enumerate(makers) if i in choice]
        if any(m is None or not _widens(m) for m in chosen):
            continue
        before: list[Eqn] = []
        operands = [
            _narrow(maker, before) if i in choice and maker is not None else atom
            for i, (atom, maker) in enumerate(zip(eqn.invars, makers, strict=True))
        ]
        if _result(operands) == shape:
            return [*before, eqn.replace(invars=operands)]
    neutral = _NEUTRAL.get(eqn.primitive.name)
    for maker, other in zip(makers, eqn.invars[::-1], strict=True):
        number = maker.invars[0] if maker is not None else None
        alike = other.aval.dtype == np.bool_ and len(other.aval.shape) == len(shape)
        if neutral is not None and alike and isinstance(number, Literal) and number.val == neutral:
            return [broadcast_in_place_of(eqn, other, eqn.outvars[0], range(len(shape)))]
    return [eqn]


def _widens(eqn: Eqn) -> bool:
    """Return whether a broadcast repeats values, or is of a literal."""
    x = eqn.invars[0]
    if isinstance(x, Literal):
        return True
    dims = eqn.params["broadcast_dimensions"]
    return any(
        n != 1 and (i not in dims or x.aval.shape[dims.index(i)] == 1)
        for i, n in enumerate(eqn.params["shape"])
    )


def _narrow(maker: Eqn, before: list[Eqn]) -> Atom:
    """A broadcast's operand with unit axes; appends its equation to `before`."""
    (x,) = maker.invars
    if isinstance(x, Literal):
        return x
    dims, wide = maker.params["broadcast_dimensions"], maker.params["shape"]
    shape = tuple(x.aval.shape[dims.index(i)] if i in dims else 1 for i in range(len(wide)))
    if shape == x.aval.shape and tuple(dims) == tuple(range(len(wide))):
        return x
    out = Var(ShapedArray(shape, x.aval.dtype))
    before.append(maker.replace(outvars=[out], params={**maker.params, "shape": shape}))
    return out


def _result(operands: Sequence[Atom]) -> tuple[object, ...] | None:
    """The shape of an operation's result; `None` if its operands do not broadcast."""
    shapes = [tuple(a.aval.shape) for a in operands if is_var(a)]
    if not shapes or len({len(s) for s in shapes}) > 1:
        return None
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes, strict=True))
