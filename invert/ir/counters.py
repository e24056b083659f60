"""Drops the negative-index adjustment of rows that a counted loop reads one by one, and copies.

A loop that collects the rows that it reads, as TensorFlow's do for their gradients, collects the
array that they are from. Bounds are derived for integer scalars only, from loops with a known trip
count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
from jax import lax

from invert._private.jax import close_like, dce, open_jaxpr, rename
from invert.ir.graph import is_var
from invert.ir.kinds import LAYOUT
from invert.ir.loops import CondParts, WhileParts
from invert.ir.types import AnyJaxpr, Atom, Eqn, J, Jaxpr, Literal, Var

# The least and the largest value of a scalar.
_Bounds = tuple[int, int]


def with_counted_places(closed: J) -> J:
    """Drop the adjustment of negative places where a loop reads all rows of an array.

    What a loop collects of such rows is replaced by the array; that carry is then unused.
    """
    jaxpr = _within(open_jaxpr(closed), {}, frozenset(), 0)
    return closed if jaxpr is open_jaxpr(closed) else close_like(closed, jaxpr)


def _within(jaxpr: Jaxpr, given: Mapping[Var, _Bounds], held: Set[Var], steps: int) -> Jaxpr:
    """The program without these adjustments.

    **Arguments:**

    - `given`: bounds of its arguments.
    - `held`: arguments that are the same in all `steps` of a loop.
    """
    if not given and not any(e.primitive.name in ("while", "cond") for e in jaxpr.eqns):
        return jaxpr
    known: dict[Atom, _Bounds] = {**given}
    positive: set[Atom] = set()
    names: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    changed = False
    for eqn in jaxpr.eqns:
        new = _inside(eqn, known)
        changed = changed or new is not eqn
        eqns.append(new)
        if new.primitive.name == "while":
            names |= {v: names.get(a, a) if is_var(a) else a for v, a in _collected(new)}
        if len(eqn.outvars) != 1 or eqn.outvars[0].aval.shape != ():
            continue
        (out,) = eqn.outvars
        if eqn.primitive is lax.lt_p and _is_zero(eqn.invars[1]):
            low, _ = _bounds(eqn.invars[0], known) or (-1, 0)
            if low >= 0:
                positive.add(out)
        elif eqn.primitive is lax.select_n_p and eqn.invars[0] in positive:
            chosen = eqn.invars[1]
            if (bounds := _bounds(chosen, known)) is not None:
                known[out] = bounds
                if (
                    bounds == (0, steps - 1)
                    and is_var(chosen)
                    and _reads_rows(out, jaxpr, held, steps)
                ):
                    names[out] = names.get(chosen, chosen)
        elif (bounds := _result(eqn, known)) is not None:
            known[out] = bounds
    if not names and not changed:
        return jaxpr
    return dce(rename(jaxpr.replace(eqns=eqns), names))


def _collected(eqn: Eqn) -> Iterator[tuple[Var, Atom]]:
    """The results of a loop that collect all rows of an array in order, each with that array."""
    parts = WhileParts.of(eqn)
    body = open_jaxpr(parts.body)
    makers = {v: e for e in body.eqns for v in e.outvars}
    held = dict(zip(body.invars, parts.body_consts, strict=False))
    counters = _steps(parts)
    for v, buffer, out in zip(eqn.outvars, parts.carried, body.outvars, strict=True):
        write = makers.get(out) if is_var(out) else None
        if write is None or write.primitive is not lax.dynamic_update_slice_p:
            continue
        array, row, place, *rest = write.invars
        shape = buffer.aval.shape
        while is_var(row) and row in makers and _adds_axes(makers[row]):
            (row,) = makers[row].invars
        read = makers.get(row) if is_var(row) else None
        if read is None or read.primitive is not lax.dynamic_slice_p:
            continue
        source, start, *others = read.invars
        if (
            array is buffer
            and place is start
            and shape
            and counters.get(place) == shape[0]
            and read.params["slice_sizes"] == (1, *shape[1:]) == write.invars[1].aval.shape
            and all(map(_is_zero, (*rest, *others)))
            and source in held
            and source.aval.shape == shape
        ):
            yield v, held[source]


def _adds_axes(eqn: Eqn) -> bool:
    """Whether an equation adds or drops axes of size one alone."""
    if eqn.primitive.name not in LAYOUT - {"transpose"} or len(eqn.invars) != 1:
        return False
    one, two = ([n for n in v.aval.shape if n != 1] for v in (eqn.invars[0], eqn.outvars[0]))
    ordered = eqn.primitive is not lax.reshape_p or eqn.params["dimensions"] is None
    return is_var(eqn.invars[0]) and one == two and ordered


def _steps(parts: WhileParts) -> dict[Atom, int]:
    """The carried values that count the steps from zero, and the number of all steps.

    None if something else may end the loop.
    """
    cond = open_jaxpr(parts.cond)
    if any(e.primitive not in (lax.and_p, lax.lt_p) for e in cond.eqns):
        return {}
    ends = _limits(cond)
    if sum(e.primitive is lax.lt_p for e in cond.eqns) != len(ends) or len({*ends.values()}) != 1:
        return {}
    (count,) = {*ends.values()}
    by_one = {
        e.outvars[0]: e.invars[0]
        for e in open_jaxpr(parts.body).eqns
        if e.primitive is lax.add_p and _bounds(e.invars[1], {}) == (1, 1)
    }
    outs = open_jaxpr(parts.body).outvars
    found: dict[Atom, int] = {}
    for v, init, out in zip(parts.carried, parts.init, outs, strict=True):
        if is_var(out) and by_one.get(out) is v and _bounds(init, {}) == (0, 0):
            found[v] = count
    tested = {v for v, t in zip(parts.carried, parts.tested, strict=True) if t in ends}
    return found if tested <= found.keys() else {}


def _reads_rows(v: Var, jaxpr: Jaxpr, held: Set[Var], steps: int) -> bool:
    """Whether a place only reads rows of arrays that have one for each step."""
    users = [e for e in jaxpr.eqns if v in e.invars]
    return v not in jaxpr.outvars and all(
        e.primitive is lax.dynamic_slice_p
        and e.invars[0] in held
        and e.invars[0].aval.shape[0] == steps
        and e.invars[1] is v
        and all(map(_is_zero, e.invars[2:]))
        for e in users
    )


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.ndim(atom.val) and atom.val == 0


def _bounds(atom: Atom, known: Mapping[Atom, _Bounds]) -> _Bounds | None:
    if not isinstance(atom, Literal):
        return known.get(atom)
    if np.ndim(atom.val) or atom.aval.dtype.kind not in "iu":
        return None
    return int(atom.val), int(atom.val)


def _result(eqn: Eqn, known: Mapping[Atom, _Bounds]) -> _Bounds | None:
    """The bounds of a sum or a difference that does not wrap around."""
    if eqn.primitive not in (lax.add_p, lax.sub_p) or eqn.outvars[0].aval.dtype.kind != "i":
        return None
    x, y = (_bounds(a, known) for a in eqn.invars)
    if x is None or y is None:
        return None
    if eqn.primitive is lax.sub_p:
        y = -y[1], -y[0]
    low, high = x[0] + y[0], x[1] + y[1]
    limits = np.iinfo(eqn.outvars[0].aval.dtype)
    return (low, high) if limits.min <= low and high <= limits.max else None


def _inside(eqn: Eqn, known: Mapping[Atom, _Bounds]) -> Eqn:
    """A loop or a branch, with the bounds of what it closes over."""
    if eqn.primitive.name == "while":
        parts = WhileParts.of(eqn)
        body = open_jaxpr(parts.body)
        held = body.invars[: len(parts.body_consts)]
        counters = _counters(parts)
        steps = {high + 1 for low, high in counters.values() if low == 0}
        given = {**_given(held, parts.body_consts, known), **counters}
        new = _within(body, given, frozenset(held), steps.pop() if len(steps) == 1 else 0)
        if new is body:
            return eqn
        return dataclasses.replace(parts, body=close_like(parts.body, new)).put_into(eqn)
    if eqn.primitive.name == "cond":
        parts = CondParts.of(eqn)
        branches: list[AnyJaxpr] = []
        for branch in parts.branches:
            jaxpr = open_jaxpr(branch)
            new = _within(jaxpr, _given(jaxpr.invars, parts.operands, known), frozenset(), 0)
            branches.append(branch if new is jaxpr else close_like(branch, new))
        if all(a is b for a, b in zip(branches, parts.branches, strict=True)):
            return eqn
        return eqn.replace(params={**eqn.params, "branches": tuple(branches)})
    return eqn


def _given(
    variables: Sequence[Var], operands: Sequence[Atom], known: Mapping[Atom, _Bounds]
) -> dict[Var, _Bounds]:
    pairs = zip(variables, operands, strict=True)
    return {v: bounds for v, a in pairs if (bounds := _bounds(a, known)) is not None}


def _counters(parts: WhileParts) -> dict[Var, _Bounds]:
    """The carried values that count up to a number, in the body."""
    cond, body = open_jaxpr(parts.cond), open_jaxpr(parts.body)
    limits = _limits(cond)
    steps = {e.outvars[0]: e for e in body.eqns if e.primitive is lax.add_p}
    found: dict[Var, _Bounds] = {}
    for i, v in enumerate(parts.carried):
        limit, start = limits.get(parts.tested[i]), _bounds(parts.init[i], {})
        step = steps.get(out) if is_var(out := body.outvars[i]) else None
        if limit is None or start is None or step is None or v not in step.invars:
            continue
        counts = [int(a.val) for a in step.invars if isinstance(a, Literal)]
        if counts and 0 < counts[0] <= np.iinfo(v.aval.dtype).max - limit:
            found[v] = start[0], max(limit - 1, start[0])
    return found


def _limits(cond: Jaxpr) -> dict[Atom, int]:
    """The variables that a condition requires to be less than a number."""
    makers = {e.outvars[0]: e for e in cond.eqns}
    found: dict[Atom, int] = {}
    pending = list(cond.outvars)
    while pending:
        atom = pending.pop()
        eqn = makers.get(atom) if is_var(atom) else None
        if eqn is None:
            continue
        if eqn.primitive is lax.and_p:
            pending += eqn.invars
        elif eqn.primitive is lax.lt_p and (bounds := _bounds(eqn.invars[1], {})) is not None:
            found[eqn.invars[0]] = bounds[0]
    return found
