"""Normal form for comparison: calls inlined, common subexpressions merged."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from invert._opaque import custom_call_p
from invert._private.jax import (
    by_jaxpr,
    close_like,
    consts_of,
    holds_jaxprs,
    is_jaxpr,
    open_jaxpr,
    random_unwrap_p,
    random_wrap_p,
    rename,
    rename_operands,
    renamed,
)
from invert.ir import jaxprs
from invert.ir.loops import WhileParts
from invert.ir.types import AnyJaxpr, Atom, Eqn, J, Jaxpr, Literal, Value, Var

_T = TypeVar("_T")


def normal_form(closed: J) -> J:
    """Inline calls, merge equal equations and counters, and order the carries of loops.

    A TensorFlow graph does not determine which equations form a function. A `scan` reads an
    array once where the graph may read it twice per step, has a counter even if its body counts
    too, and carries its states before the arrays that it fills. Loops and branches take a value
    once where the calls around them took it as two arguments. Custom calls stay unchanged.
    """
    closed = jaxprs.map_jaxprs(closed, _opened)
    closed = close_like(closed, _with_each_operand_once(open_jaxpr(closed)))
    merged = jaxprs.map_jaxprs(closed, lambda jaxpr: merge_equations(jaxpr, _Simplest()))
    return jaxprs.canonicalize(merged)


# The calls that are inlined, and the parameter with what each calls. The last two stand for the
# body of a `scan` in the loop that JAX traces for it, in jax 0.10 and 0.12.
_CALLED = {"jit": "jaxpr", "closed_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr"}


def _opened(jaxpr: Jaxpr) -> Jaxpr:
    if jaxpr.constvars:
        return jaxpr
    return jaxprs.with_inlined(jaxpr, lambda e: e.params.get(_CALLED.get(e.primitive.name, "")))


# Parameters of a `jit` that have an entry for each operand.
_OF_OPERANDS = ("donated_invars", "in_shardings", "in_layouts")


def _with_each_operand_once(jaxpr: Jaxpr) -> Jaxpr:
    """Merge equal constants of loops and equal operands of branches and calls, outer ones first."""
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "while":
            loop = WhileParts.of(eqn)
            cond, cond_consts = _given_once(loop.cond, loop.cond_consts)
            body, body_consts = _given_once(loop.body, loop.body_consts)
            if cond is not loop.cond or body is not loop.body:
                parts = WhileParts(
                    cond,
                    body,
                    [loop.cond_consts[i] for i in cond_consts],
                    [loop.body_consts[i] for i in body_consts],
                    loop.init,
                )
                eqn = parts.put_into(eqn)
        elif eqn.primitive.name == "cond":
            index, *operands = eqn.invars
            given = [_given_once(branch, operands) for branch in eqn.params["branches"]]
            branches = tuple(branch for branch, _ in given)
            if branches != eqn.params["branches"]:
                params = {**eqn.params, "branches": branches}
                eqn = eqn.replace(
                    invars=[index, *(operands[i] for i in given[0][1])], params=params
                )
        elif eqn.primitive.name == "jit":  # one that `_opened` left
            called, kept = _given_once(eqn.params["jaxpr"], eqn.invars)
            if called is not eqn.params["jaxpr"]:
                params = {n: tuple(eqn.params[n][i] for i in kept) for n in _OF_OPERANDS}
                params = {**eqn.params, **params, "jaxpr": called}
                eqn = eqn.replace(invars=[eqn.invars[i] for i in kept], params=params)
        eqns.append(eqn)
    return jaxprs.with_equations(jaxpr, eqns)


def _given_once(program: J, operands: Sequence[Atom]) -> tuple[J, list[int]]:
    """Drop arguments whose operand an earlier one has; return the positions of the others too.

    `operands` are those of the leading arguments.
    """
    jaxpr = once = open_jaxpr(program)
    first: dict[Hashable, Var] = {}
    names: dict[Var, Atom] = {}
    for variable, operand in zip(jaxpr.invars, operands, strict=False):
        same = first.setdefault(atom_key(operand), variable)
        if same is not variable:
            names[variable] = same
    if names:
        invars = [v for v in jaxpr.invars if v not in names]
        once = rename(jaxpr, names).replace(invars=invars)
    once = _with_each_operand_once(once)
    kept = [i for i, v in enumerate(jaxpr.invars[: len(operands)]) if v not in names]
    return program if once is jaxpr else close_like(program, once), kept


class _Simplest:
    """Equations of one jaxpr in their simplest form."""

    def __init__(self) -> None:
        self._of_keys: dict[Atom, Eqn] = {}

    def __call__(self, eqn: Eqn, names: dict[Var, Atom]) -> Eqn | None:
        """An equation; `None` if its result is an operand, which is then in `names`."""
        if eqn.primitive.name == "while":
            return _in_one_order(_with_one_counter(eqn, names))
        if eqn.primitive in _INVERSES:
            self._of_keys[eqn.outvars[0]] = eqn
        if (whole := _whole(eqn) or _undone(eqn, self._of_keys)) is None:
            return eqn
        names[eqn.outvars[0]] = whole
        return None


def merge_equations(
    jaxpr: Jaxpr,
    simple: Callable[[Eqn, dict[Var, Atom]], Eqn | None] = lambda eqn, names: eqn,
    within: Callable[[Eqn], Hashable] = lambda eqn: (),
    *,
    with_jaxprs: bool = False,
) -> Jaxpr:
    """Merge equal equations of one jaxpr into the first of them.

    **Arguments:**

    - `simple`: simplifies an equation on renamed operands, or replaces its results in the given
        names.
    - `within`: equations with different values of it are not merged.
    - `with_jaxprs`: whether equations that hold jaxprs are merged, too.
    """
    known: dict[Hashable, Eqn] = {}
    names: dict[Var, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if (eqn := simple(rename_operands(eqn, names), names)) is None:
            continue
        first = known.setdefault((equal_key(eqn, with_jaxprs=with_jaxprs), within(eqn)), eqn)
        if first is eqn:
            eqns.append(eqn)
        else:
            names.update(zip(eqn.outvars, first.outvars, strict=True))
    return jaxpr.replace(eqns=eqns, outvars=renamed(jaxpr.outvars, names))


def _whole(eqn: Eqn) -> Atom | None:
    """The array that a slice of a whole array or its update equals; starts are clamped to 0."""
    match eqn.primitive.name:
        case "dynamic_slice":
            result = eqn.invars[0]
        case "dynamic_update_slice":
            result = eqn.invars[1]
        case _:
            return None
    return result if result.aval.shape == eqn.outvars[0].aval.shape else None


# Keys from their words, and words from keys.
_INVERSES = {random_wrap_p: random_unwrap_p, random_unwrap_p: random_wrap_p}


def _undone(eqn: Eqn, of_keys: Mapping[Atom, Eqn]) -> Atom | None:
    """The value that a pair of inverse equations returns."""
    first = of_keys.get(eqn.invars[0]) if eqn.primitive in _INVERSES else None
    if first is None or first.primitive is not _INVERSES[eqn.primitive]:
        return None
    (x,) = first.invars
    return x if x.aval.dtype == eqn.outvars[0].aval.dtype else None


def equal_key(eqn: Eqn, *, with_jaxprs: bool = False) -> Hashable:
    """A key shared by equal equations; unique for an equation that may not be merged."""
    operation = operation_key(eqn, with_jaxprs=with_jaxprs)
    return id(eqn) if operation is None else (operation, tuple(map(atom_key, eqn.invars)))


def operation_key(eqn: Eqn, *, with_jaxprs: bool = False) -> Hashable | None:
    """A key of the operation alone; `None` if equal keys would not prove equal operations.

    **Arguments:**

    - `with_jaxprs`: whether an equation that holds jaxprs has a key, too.
    """
    if eqn.effects or eqn.primitive is custom_call_p:
        return None
    given = eqn.params
    if holds_jaxprs(eqn):
        given = {name: _param_key(value) for name, value in given.items()}
        if not with_jaxprs or any(value is _NO_KEY for value in given.values()):
            return None
    params = tuple(sorted(given.items(), key=lambda item: item[0]))
    try:
        hash(params)
    except TypeError:
        return None
    # Equal parameters may differ in type, as 1 and True do.
    return eqn.primitive, params, tuple(type(value) for _, value in params)


_NO_KEY = object()


class _Key:
    """Stands for equal programs, so that keys of their callers stay small."""


_KEYS: weakref.WeakValueDictionary[Hashable, _Key] = weakref.WeakValueDictionary()


def _param_key(value: Value) -> Value:
    """A parameter with a key in place of each jaxpr; `_NO_KEY` where one has none."""
    if is_jaxpr(value):
        key = _program_key(value)
        return _NO_KEY if key is None else key
    if isinstance(value, tuple) and any(map(is_jaxpr, value)):
        keys = tuple(map(_param_key, value))
        return _NO_KEY if any(key is _NO_KEY for key in keys) else keys
    return value


@by_jaxpr
def _program_key(program: AnyJaxpr) -> Hashable | None:
    """A key equal for programs that differ in the names of variables alone.

    `None` if equal keys would not prove that, or if it would hold arrays.
    """
    jaxpr, constants = open_jaxpr(program), consts_of(program)
    if jaxpr.effects or any(np.ndim(c) for c in constants):
        return None
    fresh = itertools.count()
    numbers = dict(zip((*jaxpr.constvars, *jaxpr.invars), fresh, strict=False))

    def key(atom: Atom) -> Hashable:
        return (atom.aval, atom_key(atom)) if isinstance(atom, Literal) else numbers[atom]

    steps: list[Hashable] = []
    for eqn in jaxpr.eqns:
        if (operation := operation_key(eqn, with_jaxprs=True)) is None:
            return None
        operands = tuple(map(key, eqn.invars))
        numbers.update(zip(eqn.outvars, fresh, strict=False))
        steps.append((operation, operands, tuple(v.aval for v in eqn.outvars)))
    held = tuple((np.asarray(c).dtype, np.asarray(c).tobytes()) for c in constants)
    types = tuple(v.aval for v in jaxpr.invars)
    whole = held, types, tuple(steps), tuple(map(key, jaxpr.outvars))
    try:
        return _KEYS.setdefault(whole, _Key())
    except TypeError:  # a parameter that has no hash
        return None


def atom_key(atom: Atom) -> Hashable:
    """A key of a variable, or of the value and type of a literal."""
    if not isinstance(atom, Literal):
        return atom
    value = np.asarray(atom.val)
    return value.dtype, value.shape, value.tobytes()


def _with_one_counter(eqn: Eqn, names: dict[Var, Atom]) -> Eqn:
    """Merge the induction variables of a `while` that have the same start and step.

    The merged ones are then carried but unused, so `canonicalize` removes them. Their results
    are renamed in `names`.
    """
    parts = WhileParts.of(eqn)
    body = open_jaxpr(parts.body)
    producers: dict[Atom, Eqn] = {v: e for e in body.eqns for v in e.outvars}
    firsts: dict[Hashable, int] = {}
    others: dict[int, int] = {}
    for i, (variable, out) in enumerate(zip(parts.carried, body.outvars, strict=True)):
        step = None if isinstance(out, Literal) else producers.get(out)
        if step is not None and step.primitive.name == "add" and step.invars[0] is variable:
            by = step.invars[1]
            first = firsts.setdefault((atom_key(parts.init[i]), atom_key(by)), i)
            if first != i and isinstance(by, Literal):
                others[i] = first
    if not others:
        return eqn
    names.update((eqn.outvars[i], eqn.outvars[k]) for i, k in others.items())

    def merged(program: AnyJaxpr, variables: Sequence[Var]) -> AnyJaxpr:
        same = {variables[i]: variables[k] for i, k in others.items()}
        return close_like(program, rename(open_jaxpr(program), same))

    cond, body = merged(parts.cond, parts.tested), merged(parts.body, parts.carried)
    # Equations of equal counters are equal.
    body = close_like(body, merge_equations(open_jaxpr(body), _Simplest()))
    return dataclasses.replace(parts, cond=cond, body=body).put_into(eqn)


def type_key(atom: Atom) -> Hashable:
    """A key of a type, without properties that lowering drops, such as a weak type."""
    return atom.aval.shape, atom.aval.dtype


def _in_one_order(eqn: Eqn) -> Eqn:
    """Sort the carries of a `while` by content instead of position.

    Sort keys are the type, a literal initial value, and what the body computes; carries with equal
    keys keep their order.
    """
    parts = WhileParts.of(eqn)
    body = open_jaxpr(parts.body)
    kinds = [
        hash((type_key(v), atom_key(start) if isinstance(start, Literal) else None))
        for v, start in zip(parts.carried, parts.init, strict=True)
    ]
    operations = [hash(operation_key(e) or e.primitive.name) for e in body.eqns]
    for _ in range(2):  # the second round also uses the keys of the carries that the body reads
        codes: dict[Atom, int] = {v: hash(type_key(v)) for v in body.invars}
        codes |= zip(parts.carried, kinds, strict=True)

        def code(atom: Atom, codes: dict[Atom, int] = codes) -> int:
            return hash(atom_key(atom)) if isinstance(atom, Literal) else codes.get(atom, 0)

        for step, operation in zip(body.eqns, operations, strict=True):
            key = operation, *map(code, step.invars)
            codes |= {v: hash((*key, i, type_key(v))) for i, v in enumerate(step.outvars)}
        kinds = [hash((k, code(out))) for k, out in zip(kinds, body.outvars, strict=True)]
    order = sorted(range(len(kinds)), key=lambda i: (str(type_key(parts.carried[i])), kinds[i]))

    def ordered(values: Sequence[_T]) -> list[_T]:
        return [values[i] for i in order]

    def rearranged(program: AnyJaxpr, variables: Sequence[Var], *, carries: bool) -> AnyJaxpr:
        jaxpr = open_jaxpr(program)
        first = len(jaxpr.invars) - len(variables)
        invars = [*jaxpr.invars[:first], *ordered(variables)]
        outvars = ordered(jaxpr.outvars) if carries else jaxpr.outvars
        return close_like(program, jaxpr.replace(invars=invars, outvars=outvars))

    ordered_parts = dataclasses.replace(
        parts,
        cond=rearranged(parts.cond, parts.tested, carries=False),
        body=rearranged(parts.body, parts.carried, carries=True),
        init=ordered(parts.init),
    )
    return ordered_parts.put_into(eqn).replace(outvars=ordered(eqn.outvars))
