"""Operands that `jax.numpy` broadcasts implicitly: scalars, and arrays with axes of size one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from typing import TypeAlias

import numpy as np

from invert._private.jax import dce, rename
from invert.ir import kinds
from invert.ir.graph import is_var
from invert.ir.jaxprs import broadcast_in_place_of, broadcasts
from invert.ir.narrow_indices import with_narrow_indices
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
    jaxpr, kept = _with_states(with_narrow_indices(jaxpr))
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
