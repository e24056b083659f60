"""Conditions that only one of two gradients has, and whether samples covered both outcomes.

Two programs that agree on samples may differ beyond a condition that no sample met, such as a norm
at which a rule clips, or a number of steps. Programs that compare with the same numbers have that
condition in common.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from invert._private.jax import consts_of, open_jaxpr, sub_jaxprs
from invert.gradients.cache import inlined
from invert.ir.graph import is_var
from invert.ir.interpret import bind, interpret
from invert.ir.order import reached
from invert.ir.types import AnyJaxpr, Atom, Eqn, Value

# What is compared, and with which numbers.
Condition: TypeAlias = tuple[str, frozenset[Hashable]]
# Whether one and the other outcome occurred.
Outcomes: TypeAlias = tuple[Value, Value]
# The results of a program, and the outcomes of its conditions by their places.
Watched: TypeAlias = tuple[list[Value], Mapping[Hashable, Outcomes]]

_ORDERS = frozenset(("lt", "le", "gt", "ge", "max", "min", "clamp"))
_EQUALITIES = frozenset(("eq", "ne"))
_ROUNDINGS = frozenset(("round", "floor", "ceil"))
# Roundings that change a value by less may not show in the results.
_VISIBLE = 1e-2
# The same numbers in another shape or type.
_SAME_NUMBERS = frozenset(("broadcast_in_dim", "reshape", "convert_element_type", "copy"))
# Larger arrays are unlikely to be bounds, and copies of them take memory.
_MAX_NUMBERS = 1 << 12
# Sizes are assumed to be smaller.
_LARGEST_SIZE = frozenset((np.iinfo(np.int32).max,))


class Conditions:
    """The conditions that only one of two programs has.

    A rounding counts as met where it changes a value visibly. Outcomes inside loops and
    branches are not observed: thresholds there count as not met.
    """

    def __init__(self) -> None:
        # By position, since the programs are added once for each choice of their open sizes.
        self._met: dict[Hashable, Outcomes] = {}

    def add(
        self, programs: Sequence[AnyJaxpr], is_open: bool
    ) -> list[Callable[[Sequence[Value]], Watched]]:
        """Add the conditions of two programs; return functions that run and watch them.

        Calls are inlined, so that each of their conditions is an equation of its own.
        Numbers that are compared with numbers count only if `is_open`, as they may be sizes.
        """
        programs = tuple(map(inlined, programs))
        conditions = [list(_conditions(p, is_open)) for p in programs]
        kinds = [{c for _, found in held for c in found} for held in conditions]
        runs = []
        for i, (program, held) in enumerate(zip(programs, conditions, strict=True)):
            own = {
                eqn: {k: (i, place, k) for k, c in enumerate(found) if c not in kinds[1 - i]}
                for place, (eqn, found) in enumerate(held)
            }
            for places in own.values():
                self._met |= {p: (False, False) for p in places.values() if p not in self._met}
            runs.append(functools.partial(_watched, program, own))
        return runs

    def met(self, outcomes: Mapping[Hashable, Outcomes]) -> None:
        """Add the outcomes of a run."""
        for place, new in outcomes.items():
            old = self._met[place]
            self._met[place] = old[0] or bool(new[0]), old[1] or bool(new[1])

    @property
    def are_met(self) -> bool:
        """Whether samples covered both outcomes of each."""
        return all(map(all, self._met.values()))


def _watched(
    program: AnyJaxpr, own: Mapping[Eqn, Mapping[int, Hashable]], values: Sequence[Value]
) -> Watched:
    outcomes: dict[Hashable, Outcomes] = {}

    def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        if places := own.get(eqn):
            for k, outcome in enumerate(_outcomes(eqn, operands)):
                if k in places:
                    outcomes[places[k]] = outcome
        return bind(eqn, operands)

    return interpret(program, values, on_eqn), outcomes


def _conditions(program: AnyJaxpr, is_open: bool) -> Iterator[tuple[Eqn, list[Condition]]]:
    """Equations that compare values; in loops and branches, only those with thresholds."""
    outer = open_jaxpr(program)
    held: dict[Atom, Hashable] = {
        v: _number(c) for v, c in zip(outer.constvars, consts_of(program), strict=True)
    }
    for jaxpr in reached([outer], lambda jaxpr: (j for e in jaxpr.eqns for j in sub_jaxprs(e))):
        numbers = dict(held) if jaxpr is outer else {}
        for eqn in jaxpr.eqns:
            given = [numbers.get(a) if is_var(a) else _number(a.val) for a in eqn.invars]
            if eqn.primitive.name in _SAME_NUMBERS and given[0] is not None:
                numbers[eqn.outvars[0]] = given[0]
            if (None in given or is_open) and not _LARGEST_SIZE & {*given}:
                found = _of(eqn, given)
                if found and (jaxpr is outer or _is_threshold(eqn, given)):
                    yield eqn, found


def _is_threshold(eqn: Eqn, given: Sequence[Hashable]) -> bool:
    """Return whether floating-point values are compared with numbers other than zero.

    Samples have both signs, and integers in loops are counters and indices.
    """
    is_float = any(jnp.issubdtype(a.aval.dtype, jnp.inexact) for a in eqn.invars)
    return is_float and not {0.0, None}.issuperset(given)


def _number(x: Value) -> Hashable:
    """A key that ignores type and shape; `None` for large arrays."""
    if np.size(x) > _MAX_NUMBERS:
        return None
    x = np.asarray(x)
    first = x.ravel()[:1]
    return first.tolist()[0] if x.size and (x == first).all() else x.tobytes()


def _of(eqn: Eqn, given: Sequence[Hashable]) -> list[Condition]:
    name = eqn.primitive.name
    if name in _ORDERS:
        return [("order", frozenset(pair)) for pair in pairwise(given)]
    if name in _EQUALITIES:
        same = "itself" if eqn.invars[0] is eqn.invars[1] else None
        return [("equality", frozenset((*given, same)))]
    if name in _ROUNDINGS:
        return [("rounding", frozenset())]
    return [("finite", frozenset())] if name == "is_finite" else []


def _outcomes(eqn: Eqn, operands: Sequence[Value]) -> Iterator[Outcomes]:
    """Both outcomes of each condition of an equation."""
    name = eqn.primitive.name
    if name in _ORDERS:
        for a, b in pairwise(operands):
            yield jnp.any(a < b), jnp.any(a > b)
    elif name in _ROUNDINGS:
        (x,) = operands
        change = jnp.abs(bind(eqn, [x])[0] - x)
        is_visible = jnp.any(change > _VISIBLE * jnp.max(jnp.abs(x), initial=0))
        yield is_visible, is_visible
    else:
        is_so = jnp.isfinite(operands[0]) if name == "is_finite" else jnp.equal(*operands)
        yield jnp.any(is_so), ~jnp.all(is_so)
