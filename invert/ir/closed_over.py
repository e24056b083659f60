"""Operands that loops, branches and calls take: each once, in order of use."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence
from typing import TypeAlias, cast

import numpy as np

from invert._private.jax import ShapedArray, close_like, open_jaxpr, rename
from invert.ir import kinds
from invert.ir.avals import is_weak
from invert.ir.graph import Graph
from invert.ir.jaxprs import map_jaxprs, map_param, with_constants_once, with_equations
from invert.ir.loops import CondParts, ScanParts, WhileParts
from invert.ir.merging import atom_key, merge_equations
from invert.ir.types import AnyJaxpr, Atom, Eqn, J, Jaxpr, Literal, Var

_Ordered: TypeAlias = tuple[list[AnyJaxpr], list[int]]
# What `in_order_of_use` made of jaxprs (kept, so that no others have their numbers), by which of
# their operands are equal.
_Known: TypeAlias = dict[tuple[int, ...], tuple[Sequence[AnyJaxpr], dict[Hashable, _Ordered]]]
# A program that is called with more combinations of equal operands is no longer copied for others:
# the copies of programs that call each other may double with each call.
_MOST_COPIES = 64


def with_closed_over(eqn: Eqn, known: _Known | None = None) -> Eqn:
    """A loop or branch whose closed-over operands are distinct and in order of use.

    The result is the equation itself if they are already, or if it is neither.

    **Arguments:**

    - `known`: what was made of programs before, so that shared ones stay shared.
    """
    match eqn.primitive.name:
        case "scan":
            p = ScanParts.of(eqn)
            (body,), held = in_order_of_use([p.body], p.consts, known)
            return eqn if body is p.body else p.closing_over(eqn, body, held)
        case "while":
            p = WhileParts.of(eqn)
            (cond,), tested = in_order_of_use([p.cond], p.cond_consts, known)
            (body,), held = in_order_of_use([p.body], p.body_consts, known)
            if cond is p.cond and body is p.body:
                return eqn
            tests = [p.cond_consts[i] for i in tested]
            holds = [p.body_consts[i] for i in held]
            return WhileParts(cond, body, tests, holds, p.init).put_into(eqn)
        case "cond":
            parts = CondParts.of(eqn)
            branches, kept = in_order_of_use(parts.branches, parts.operands, known)
            if all(a is b for a, b in zip(branches, parts.branches, strict=True)):
                return eqn
            params = {**eqn.params, "branches": tuple(branches)}
            return eqn.replace(
                params=params, invars=[parts.index, *(parts.operands[i] for i in kept)]
            )
        case _:
            return eqn


_BODIES = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "jit": ("jaxpr",),
    **dict.fromkeys(kinds.WITH_RULES, ("call_jaxpr",)),
}


def with_each_operand_once(program: J) -> J:
    """Merge equal constants, and equal operands of loops, branches and calls, outermost first."""
    # Programs that are called several times, as functions that call others twice, are visited once.
    known: dict[int, tuple[AnyJaxpr, AnyJaxpr]] = {}
    copies: _Known = {}

    def changed(jaxpr: Jaxpr) -> Jaxpr:
        return with_equations(jaxpr, [visit(e) for e in jaxpr.eqns])

    def visit(eqn: Eqn) -> Eqn:
        if (names := _BODIES.get(eqn.primitive.name)) is None:
            return eqn
        once = with_arguments_once if eqn.primitive.name == "jit" else with_closed_over
        eqn = once(eqn, copies)
        params = {name: map_param(eqn.params[name], inside) for name in names}
        same = all(params[name] is eqn.params[name] for name in names)
        return eqn if same else eqn.replace(params={**eqn.params, **params})

    def inside(program: AnyJaxpr) -> AnyJaxpr:
        if id(program) not in known:
            once = with_constants_once(program)
            # The program is kept, so that no other has its number.
            known[id(program)] = program, close_like(once, changed(open_jaxpr(once)))
        return known[id(program)][1]

    return cast("J", inside(program))


# Parameters of a `jit` that have an entry for each operand.
_OF_OPERANDS = ("donated_invars", "in_shardings", "in_layouts")


def with_arguments_once(eqn: Eqn, known: _Known | None = None) -> Eqn:
    """A `jit` whose operands are distinct and in order of use."""
    (called,), kept = in_order_of_use([eqn.params["jaxpr"]], eqn.invars, known)
    if called is eqn.params["jaxpr"]:
        return eqn
    params = {n: tuple(eqn.params[n][i] for i in kept) for n in _OF_OPERANDS}
    return eqn.replace(
        invars=[eqn.invars[i] for i in kept], params={**eqn.params, **params, "jaxpr": called}
    )


def with_numbers_inside(closed: J) -> J:
    """Move the numbers that loops and branches close over into them.

    The result is `closed` itself if there are none.
    """

    def one(jaxpr: Jaxpr) -> Jaxpr:
        moved = (with_closed_over(e) if _closes_over_number(e) else e for e in jaxpr.eqns)
        return with_equations(jaxpr, [*moved])

    # Inner programs come first, so those that have got numbers now follow in the next round.
    while (new := map_jaxprs(closed, one)) is not closed:
        closed = new
    return new


def _closes_over_number(eqn: Eqn) -> bool:
    """Return whether a loop or branch takes a number for all of its steps."""
    match eqn.primitive.name:
        case "scan":
            closed_over = ScanParts.of(eqn).consts
        case "while":
            parts = WhileParts.of(eqn)
            closed_over = [*parts.cond_consts, *parts.body_consts]
        case "cond":
            closed_over = CondParts.of(eqn).operands
        case _:
            return False
    return any(isinstance(a, Literal) for a in closed_over)


def in_order_of_use(
    jaxprs: Sequence[AnyJaxpr], operands: Sequence[Atom], known: _Known | None = None
) -> _Ordered:
    """Order the arguments of some jaxprs by use; drop repeated and unused ones.

    Literals among the operands move into the jaxprs. Unchanged jaxprs stay the same objects.

    **Arguments:**

    - `operands`: those of the leading arguments, which all jaxprs share.
    - `known`: as for `with_closed_over`.

    **Returns:** the jaxprs, and the positions of the operands they still take.
    """
    if known is None:
        return _in_order_of_use(jaxprs, operands)
    first: dict[Hashable, int] = {}
    equal = tuple(
        atom_key(a) if isinstance(a, Literal) else first.setdefault(atom_key(a), i)
        for i, a in enumerate(operands)
    )
    _, copies = known.setdefault(tuple(map(id, jaxprs)), (jaxprs, {}))
    if equal not in copies:
        if len(copies) == _MOST_COPIES:
            return list(jaxprs), list(range(len(operands)))
        copies[equal] = _in_order_of_use(jaxprs, operands)
    return copies[equal]


def _in_order_of_use(jaxprs: Sequence[AnyJaxpr], operands: Sequence[Atom]) -> _Ordered:
    count = len(operands)
    opened = [open_jaxpr(j) for j in jaxprs]
    order: dict[int, None] = {}
    for jaxpr in opened:
        for i in order_of_use(jaxpr, jaxpr.invars[:count]):
            order.setdefault(i)
    first: dict[Hashable, int] = {}
    same: dict[int, int] = {}
    numbers: dict[int, Atom] = {}
    for i in order:
        atom = operands[i]
        if isinstance(atom, Literal):
            numbers[i] = typed(atom)  # emitted text writes it at each use
        else:
            same[i] = first.setdefault(atom_key(atom), i)
    kept = list(first.values())
    if kept == list(range(count)):
        return list(jaxprs), kept
    changed = []
    for closed, jaxpr in zip(jaxprs, opened, strict=True):
        names: dict[Var, Atom] = {
            jaxpr.invars[i]: jaxpr.invars[j] for i, j in same.items() if i != j
        }
        names.update((jaxpr.invars[i], number) for i, number in numbers.items())
        jaxpr = rename(jaxpr, names) if names else jaxpr
        jaxpr = jaxpr.replace(invars=[*(jaxpr.invars[i] for i in kept), *jaxpr.invars[count:]])
        # Equations that read one operand under two names have become equal.
        jaxpr = merge_equations(jaxpr) if len(first) < len(same) else jaxpr
        changed.append(close_like(closed, jaxpr))
    return changed, kept


def order_of_use(jaxpr: Jaxpr, variables: Sequence[Var], *, through: bool = False) -> list[int]:
    """Positions of `variables`, in order of use by the results and the effects.

    This does not depend on the order of equations without effects.

    **Arguments:**

    - `through`: whether what makes a variable uses others of them.
    """
    graph = Graph(jaxpr)
    wanted = {v: i for i, v in enumerate(variables)}
    order: dict[int, None] = {}
    seen: set[Atom] = set()
    effects = (a for eqn in jaxpr.eqns if eqn.effects for a in eqn.invars)
    pending = collections.deque((*jaxpr.outvars, *effects))
    while pending:
        atom = pending.popleft()
        if isinstance(atom, Literal) or atom in seen:
            continue
        seen.add(atom)
        if atom in wanted:
            order.setdefault(wanted[atom])
        if (through or atom not in wanted) and (eqn := graph.producer(atom)) is not None:
            pending.extendleft(reversed(eqn.invars))
    return list(order)


def typed(atom: Atom) -> Atom:
    """A literal as an array of its strong type; other atoms unchanged."""
    if not isinstance(atom, Literal):
        return atom
    aval = atom.aval
    # The dtype of a Python number may differ from that of its literal.
    is_array = isinstance(atom.val, (np.ndarray, np.generic)) and atom.val.dtype == aval.dtype
    if (is_array and not is_weak(atom)) or not hasattr(aval, "dtype"):
        return atom
    return Literal(np.asarray(atom.val, aval.dtype), ShapedArray((), aval.dtype))
