"""One jaxpr for programs that were recovered at several sizes of their open dimensions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from invert._errors import EmissionError
from invert._private.jax import Literal, close_like, is_jaxpr, open_jaxpr
from invert.emission.sizes.size import Points, Size
from invert.ir.jaxprs import tuple_like
from invert.ir.traced_form import rule_of, strong


@dataclasses.dataclass
class Program:
    """A jaxpr whose numbers know how they depend on open sizes.

    **Arguments:**

    - `jaxpr`: the program at the lowest sizes; numbers in its parameters may be `Size`.
    - `shapes`: shapes of the variables that depend on open sizes.
    - `literals`: what stands in the place of a literal that depends on them, by `id`.
    - `dimensions`: names of the open dimensions, and the sizes of `jaxpr`.
    - `rules`: for functions with a derivative of their own, by `id` of their jaxpr: that jaxpr, and
        what merges the derivatives at all sizes.
    """

    jaxpr: Any
    shapes: dict[Any, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    literals: dict[int, Size] = dataclasses.field(default_factory=dict)
    dimensions: dict[str, int] = dataclasses.field(default_factory=dict)
    rules: dict[int, tuple[Any, Callable[[], tuple[Any, _Merge]]]] = dataclasses.field(
        default_factory=dict
    )

    def rule(self, eqn: Any) -> Any:
        """The derivative of a function with one of its own, as `rule_of` gives it."""
        known = self.rules.get(id(open_jaxpr(eqn.params["call_jaxpr"])))
        if known is None:
            return _rule_of(eqn)
        rule, merging = known[1]()
        self._add(merging)
        return rule

    def _add(self, merging: _Merge | Program) -> None:
        self.shapes |= merging.shapes
        self.literals |= merging.literals
        self.rules |= merging.rules

    def shape(self, v: Any) -> tuple[int, ...]:
        """The shape of a variable; a result of the program may be a literal."""
        aval: Any = v.aval
        known = None if isinstance(v, Literal) else self.shapes.get(v)
        return known or tuple(aval.shape)


def merge(jaxprs: Sequence[Any], points: Points) -> Program:
    """One program for the jaxprs at the corners of `points`.

    **Raises:** `EmissionError` where they differ in more than numbers.
    """
    merging = _Merge(points)
    jaxpr = merging.jaxpr([open_jaxpr(j) for j in jaxprs])
    sizes = points.sizes(())
    return Program(jaxpr, merging.shapes, merging.literals, sizes, merging.rules)


def together(programs: Sequence[Program]) -> Program:
    """What is known of the variables of some programs; its jaxpr is the first one."""
    found = Program(programs[0].jaxpr)
    for program in programs:
        found._add(program)
        found.dimensions |= program.dimensions
    return found


# Rules of derivatives: functions, which come out of tracing again at each size.
_RULES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"})


def _rule_of(eqn: Any) -> Any:
    rule = rule_of(eqn)
    return rule if isinstance(rule, str) else strong(rule)


class _Merge:
    def __init__(self, points: Points):
        self.points = points
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self.literals: dict[int, Size] = {}
        self.rules: dict[int, tuple[Any, Callable[[], tuple[Any, _Merge]]]] = {}
        self._done: dict[tuple[int, ...], Any] = {}

    def jaxpr(self, jaxprs: Sequence[Any]) -> Any:
        key = tuple(map(id, jaxprs))
        if key in self._done:
            return self._done[key][0]
        first = jaxprs[0]
        for what in ("constvars", "invars", "eqns", "outvars"):
            self._same_length([getattr(j, what) for j in jaxprs], what)
        for variables in zip(*([*j.constvars, *j.invars] for j in jaxprs), strict=True):
            self._variable(variables)
        eqns = [self._eqn(eqns) for eqns in zip(*(j.eqns for j in jaxprs), strict=True)]
        outvars = [self._atom(atoms) for atoms in zip(*(j.outvars for j in jaxprs), strict=True)]
        # The jaxprs are kept, so that no other takes one of their ids.
        self._done[key] = first.replace(eqns=eqns, outvars=outvars), jaxprs
        return self._done[key][0]

    def _same_length(self, lists: Sequence[Sequence[Any]], what: str) -> None:
        if len({len(x) for x in lists}) != 1:
            raise EmissionError(
                f"the program at other sizes has {len(lists[-1])} {what} where it has "
                f"{len(lists[0])} at the first"
            )

    def _eqn(self, eqns: Sequence[Any]) -> Any:
        first = eqns[0]
        if any(e.primitive is not first.primitive for e in eqns):
            names = sorted({e.primitive.name for e in eqns})
            raise EmissionError(f"the program is another one at other sizes: {' and '.join(names)}")
        for variables in zip(*(e.outvars for e in eqns), strict=True):
            self._variable(variables)
        self._same_length([e.invars for e in eqns], "operands")
        invars = [self._atom(atoms) for atoms in zip(*(e.invars for e in eqns), strict=True)]
        params = {
            name: value
            if name in _RULES
            else self._value([e.params[name] for e in eqns], f"{first.primitive.name}[{name}]")
            for name, value in first.params.items()
        }
        if first.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            function = open_jaxpr(params["call_jaxpr"])
            self.rules[id(function)] = function, functools.partial(self._rule, eqns)
        return first.replace(invars=invars, params=params)

    def _rule(self, eqns: Sequence[Any]) -> tuple[Any, _Merge]:
        rules = list(map(_rule_of, eqns))
        if any(isinstance(r, str) for r in rules):
            return rules[0], self  # it forbids the derivative, with the same words at every size
        merged = self.jaxpr([open_jaxpr(r) for r in rules])
        return close_like(rules[0], merged), self

    def _variable(self, variables: Sequence[Any]) -> None:
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in variables]
        self._same_length(shapes, "dimensions")
        merged = tuple(self._number(sizes, "a shape") for sizes in zip(*shapes, strict=True))
        if any(isinstance(n, Size) for n in merged):
            self.shapes[variables[0]] = merged

    def _atom(self, atoms: Sequence[Any]) -> Any:
        first = atoms[0]
        if not isinstance(first, Literal):
            return first
        values = [np.asarray(a.val) for a in atoms]
        if all(v.tobytes() == values[0].tobytes() for v in values):
            return first
        if any(v != np.round(v) for v in values):
            raise EmissionError(f"the number {values[0]} depends on an open size")
        # Literals may be shared between equations, which need not depend on the size alike.
        own = Literal(first.val, first.aval)
        self.literals[id(own)] = self._size([int(v) for v in values], "a number")
        return own

    def _number(self, values: Sequence[int], what: str) -> int:
        return values[0] if len(set(values)) == 1 else self._size(values, what)

    def _size(self, values: Sequence[int], what: str) -> Size:
        terms = self.points.terms(values)
        if terms is None:
            raise EmissionError(f"{what} depends on an open size, and not linearly: {values}")
        return Size(values[0], terms)

    def _value(self, values: Sequence[Any], what: str) -> Any:
        first = values[0]
        if all(v is first for v in values):
            return first
        if is_jaxpr(first):
            merged = self.jaxpr([open_jaxpr(v) for v in values])
            return close_like(first, merged)
        if isinstance(first, (bool, str, bytes)) or first is None:
            pass
        elif isinstance(first, int):
            return self._number(values, what)
        elif isinstance(first, (tuple, list)):
            self._same_length(values, what)
            merged = [self._value(v, what) for v in zip(*values, strict=True)]
            return merged if isinstance(first, list) else tuple_like(first, merged)
        elif isinstance(first, np.ndarray) and all(np.array_equal(first, v) for v in values):
            return first
        if any(v != first for v in values):
            raise EmissionError(f"{what} depends on an open size: {first} and {values[-1]}")
        return first
