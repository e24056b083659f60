"""Equal equations of a jaxpr, merged; keys of equations, programs and atoms."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable

import numpy as np

from invert._opaque import custom_call_p
from invert._private.jax import (
    by_jaxpr,
    consts_of,
    holds_jaxprs,
    is_jaxpr,
    jvp_rule_of,
    open_jaxpr,
)
from invert.ir.jaxprs import drawn_under, map_equations
from invert.ir.passes import Made, rewritten
from invert.ir.types import AnyJaxpr, Atom, Aval, Eqn, J, Jaxpr, Literal, Value


def merge_equations(
    jaxpr: Jaxpr,
    simple: Callable[[Eqn], Made | None] = lambda eqn: None,
    within: Callable[[Eqn], Hashable] = lambda eqn: (),
    *,
    with_jaxprs: bool = False,
    commuting: bool = False,
) -> Jaxpr:
    """Merge equal equations of one jaxpr; the jaxpr itself if none changes.

    **Arguments:**

    - `simple`: simplifies an equation, as a step of `rewritten`.
    - `within`: equations with different values of it are not merged.
    - `with_jaxprs`: whether equations that hold jaxprs are merged, too.
    - `commuting`: whether `x * y` and `y * x` are merged, and sums likewise.
    """
    # Keys of operations are costly, so they are made only where operands agree.
    alone: dict[Hashable, Eqn | None] = {}
    known: dict[Hashable, Eqn] = {}

    def first_equal(eqn: Eqn) -> Eqn:
        operands: Hashable = tuple(map(atom_key, eqn.invars))
        if commuting and eqn.primitive.name in COMMUTING:
            operands = frozenset(operands)
        rough = eqn.primitive, operands, within(eqn)
        if rough not in alone:
            alone[rough] = eqn
            return eqn
        if (other := alone[rough]) is not None:
            alone[rough] = None
            known[operation_key(other, with_jaxprs=with_jaxprs), rough] = other
        operation = operation_key(eqn, with_jaxprs=with_jaxprs)
        return eqn if operation is None else known.setdefault((operation, rough), eqn)

    def step(eqn: Eqn) -> Made:
        made, results = simple(eqn) or ([eqn], eqn.outvars)
        kept: list[Eqn] = []
        names: dict[Atom, Atom] = {}
        for new in made:
            if names:
                operands = [a if isinstance(a, Literal) else names.get(a, a) for a in new.invars]
                new = new.replace(invars=operands)
            if (first := first_equal(new)) is new:
                kept.append(new)
            else:
                names |= zip(new.outvars, first.outvars, strict=True)
        return kept, [a if isinstance(a, Literal) else names.get(a, a) for a in results]

    return rewritten(jaxpr, step)


# Those with the same bits in either order.
COMMUTING = frozenset(("add", "add_any", "mul"))


def operation_key(eqn: Eqn, *, with_jaxprs: bool = False) -> Hashable | None:
    """A key that proves operations equal, if there is one; operands do not count.

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
    types = tuple(type(value) for _, value in params)
    return eqn.primitive, drawn_under(eqn), params, types


_NO_KEY = object()


class _Key:
    """Stands for equal programs, so that keys of their callers stay small."""


_KEYS: weakref.WeakValueDictionary[Hashable, _Key] = weakref.WeakValueDictionary()


def _param_key(value: Value) -> Value:
    """A parameter with keys for jaxprs; `_NO_KEY` where one has none."""
    if is_jaxpr(value):
        key = program_key(value)
        return _NO_KEY if key is None else key
    if isinstance(value, tuple) and any(map(is_jaxpr, value)):
        keys = tuple(map(_param_key, value))
        return _NO_KEY if any(key is _NO_KEY for key in keys) else keys
    return value


@by_jaxpr
def program_key(program: AnyJaxpr) -> Hashable | None:
    """A key, the same for programs that differ only in names of variables.

    `None` if equal keys would not prove that, or if it would hold arrays.
    """

    def operation(eqn: Eqn) -> Hashable | None:
        return operation_key(eqn, with_jaxprs=True)

    whole = structure_key(program, operation, lambda aval: aval)
    if whole is None:
        return None
    try:
        return _KEYS.setdefault(whole, _Key())
    except TypeError:  # a parameter that has no hash
        return None


def structure_key(
    program: AnyJaxpr,
    operation: Callable[[Eqn], Hashable | None],
    type_of: Callable[[Aval], Hashable],
) -> Hashable | None:
    """A program up to names of variables; `None` if an equation has no key, or if it holds arrays.

    **Arguments:**

    - `operation`: the key of an equation, without its operands and types.
    - `type_of`: that of a type.
    """
    jaxpr, constants = open_jaxpr(program), consts_of(program)
    if jaxpr.effects or any(np.ndim(c) for c in constants):
        return None
    fresh = itertools.count()
    numbers = dict(zip((*jaxpr.constvars, *jaxpr.invars), fresh, strict=False))

    def key(atom: Atom) -> Hashable:
        if isinstance(atom, Literal):
            return type_of(atom.aval), atom_key(atom)
        return numbers.get(atom, atom)  # itself, if the program closes over it

    steps: list[Hashable] = []
    for eqn in jaxpr.eqns:
        if (own := operation(eqn)) is None:
            return None
        operands = tuple(map(key, eqn.invars))
        numbers.update(zip(eqn.outvars, fresh, strict=False))
        steps.append((own, operands, tuple([type_of(v.aval) for v in eqn.outvars])))
    held = tuple((np.asarray(c).dtype, np.asarray(c).tobytes()) for c in constants)
    types = tuple([type_of(v.aval) for v in jaxpr.invars])
    return held, types, tuple(steps), tuple(map(key, jaxpr.outvars))


def with_shared_functions(closed: J) -> J:
    """Let calls of equal functions with one author's derivative hold the same objects.

    JAX traces such a function anew for each call; what is computed of one is then computed once.
    """
    known: dict[Hashable, Eqn] = {}

    def shared(eqn: Eqn) -> Eqn:
        if eqn.primitive.name != "custom_jvp_call":
            return eqn
        params = eqn.params
        rule, program = jvp_rule_of(params), program_key(params["call_jaxpr"])
        if rule is None or program is None:
            return eqn
        try:
            params = known.setdefault((rule, program), eqn).params
        except TypeError:  # a rule that has no hash
            return eqn
        return eqn if params is eqn.params else eqn.replace(params=params)

    return map_equations(closed, shared)


def atom_key(atom: Atom) -> Hashable:
    """A key of a variable, or of the value and type of a literal."""
    if not isinstance(atom, Literal):
        return atom
    value = np.asarray(atom.val)
    return value.dtype, value.shape, value.tobytes()


def type_key(atom: Atom) -> Hashable:
    """A key of a type, without what lowering drops, such as weakness."""
    return atom.aval.shape, atom.aval.dtype
