"""A jaxpr as a graph: producers, users and scalar literals."""

from __future__ import annotations

import collections
import functools
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from invert._private.jax import by_jaxpr, open_jaxpr
from invert.ir import jaxprs
from invert.ir.order import by_number
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Literal, Value, Var

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# Exponent and leading bits of the mantissa.
Rounded: TypeAlias = tuple[int, int]


def is_var(atom: Atom | None) -> TypeIs[Var]:
    """Return whether an atom is a variable rather than a literal."""
    return type(atom) is not Literal  # which has no subclasses


def literal(atom: Atom) -> Value:
    """The value of a scalar literal; `None` for other atoms."""
    return atom.val if isinstance(atom, Literal) and np.ndim(atom.val) == 0 else None


def is_number(atom: Atom, value: complex) -> bool:
    """Return whether the atom is the scalar literal `value`."""
    number = literal(atom)
    return number is not None and bool(number == value)


def reads(eqn: Eqn, values: Container[Var]) -> bool:
    """Return whether an equation reads one of some values."""
    return any(is_var(a) and a in values for a in eqn.invars)


def read_by(eqns: Iterable[Eqn]) -> dict[Var, None]:
    """The variables that equations read, each once, in order."""
    return dict.fromkeys(a for e in eqns for a in e.invars if is_var(a))


def from_outside(eqns: Sequence[Eqn], results: Iterable[Atom] = ()) -> list[Var]:
    """The variables that equations read, or that are results, and that no equation makes."""
    made = {v for e in eqns for v in e.outvars}
    read = read_by(eqns) | dict.fromkeys(filter(is_var, results))
    return [v for v in read if v not in made]


def in_order(eqns: Sequence[Eqn], numbers: Sequence[int] | None = None) -> list[Eqn]:
    """Equations in topological order, and otherwise by their numbers, or as they are.

    Those that need each other's results are left out.
    """
    numbers = range(len(eqns)) if numbers is None else numbers
    order = by_number(numbers, [e.outvars for e in eqns], [read_by([e]) for e in eqns])
    return [eqns[k] for k in order]


def computed_from(values: Iterable[Var], eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations, of some in order, that depend on some values."""
    moved, found = {*values}, list[Eqn]()
    for eqn in eqns:
        if reads(eqn, moved):
            moved.update(eqn.outvars)
            found.append(eqn)
    return found


class Graph:
    """A jaxpr with its use-def maps."""

    def __init__(self, jaxpr: AnyJaxpr, consts: Sequence[Value] = ()):
        self.jaxpr = open_jaxpr(jaxpr)
        self.eqns = list(self.jaxpr.eqns)
        self.consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self.producers: dict[Atom, Eqn] = {v: e for e in self.eqns for v in e.outvars}
        self.index = {e: i for i, e in enumerate(self.eqns)}

    def producer(self, atom: Atom, *names: str) -> Eqn | None:
        """The equation that defines `atom`, if any; `names` are the primitives it may have."""
        eqn = self.producers.get(atom) if is_var(atom) else None
        return eqn if eqn is not None and (not names or eqn.primitive.name in names) else None

    def makers(self, atoms: Iterable[Atom]) -> Iterator[Eqn]:
        """The equations that define some atoms, in the order of these."""
        return (eqn for atom in atoms if (eqn := self.producer(atom)) is not None)

    def alone(self, atom: Atom, *names: str) -> Eqn | None:
        """As `producer`, for a value that is used once and is not a result."""
        eqn = self.producer(atom, *names)
        if eqn is None or atom in self.results or len(self.users.get(atom, ())) != 1:
            return None
        return eqn

    def filling(self, atom: Atom) -> Literal | None:
        """The number that fills `atom`, perhaps by broadcasts and reshapes, if it is constant."""
        while is_var(atom):
            if (eqn := self.producer(atom, "broadcast_in_dim", "reshape")) is None:
                return None
            atom = eqn.invars[0]
        return atom if not atom.aval.shape else None

    def needed(
        self, ends: Iterable[Atom], given: Container[Atom] = ()
    ) -> tuple[list[Eqn], list[Var]]:
        """The backward slice of `ends`: its equations in order, and its variables from outside.

        The slice stops at the variables in `given`.
        """
        eqns: set[Eqn] = set()
        outside: dict[Var, None] = {}
        pending = list(ends)
        seen: set[Var] = set()
        while pending:
            atom = pending.pop()
            if not is_var(atom) or atom in given or atom in seen:
                continue
            seen.add(atom)
            eqn = self.producers.get(atom)
            if eqn is None:
                outside[atom] = None
            elif eqn not in eqns:
                eqns.add(eqn)
                pending.extend(eqn.invars)
        return sorted(eqns, key=lambda e: self.index[e]), list(outside)

    @functools.cached_property
    def users(self) -> dict[Atom, list[Eqn]]:
        """The equations that use a variable."""
        users: dict[Atom, list[Eqn]] = collections.defaultdict(list)
        for eqn in self.eqns:
            for atom in read_by([eqn]):
                users[atom].append(eqn)
        return users

    def after(self, eqn: Eqn) -> list[Eqn]:
        """The equations that use the results of an equation; one that uses two, twice."""
        return [user for v in eqn.outvars for user in self.users.get(v, ())]

    @functools.cached_property
    def results(self) -> set[Atom]:
        return {v for v in self.jaxpr.outvars if not isinstance(v, Literal)}

    @functools.cached_property
    def by_primitive(self) -> dict[str, list[Eqn]]:
        eqns: dict[str, list[Eqn]] = collections.defaultdict(list)
        for eqn in self.eqns:
            eqns[eqn.primitive.name].append(eqn)
        return eqns

    @functools.cached_property
    def numbers(self) -> set[Rounded]:
        """Keys of the scalar float and integer literals, as `rounded` makes them."""
        atoms = (a for e in self.eqns for a in e.invars if isinstance(a, Literal))
        literals = (rounded(a.val) for a in atoms if np.ndim(a.val) == 0)
        numbers = {number for number in literals if number is not None}
        for eqn in self.eqns:
            for inner in jaxprs.sub_jaxprs(eqn):
                numbers |= _numbers_of(inner)
        return numbers


@by_jaxpr
def _numbers_of(jaxpr: Jaxpr) -> set[Rounded]:
    return Graph(jaxpr).numbers


def rounded(value: Value) -> Rounded | None:
    """A key equal for a number and its roundings to any dtype."""
    number = np.asarray(value)
    if number.dtype.kind == "c" or number.dtype == bool:
        return None
    number = float(number.astype(np.float64))
    if not np.isfinite(number) or number == 0:
        return None
    mantissa, exponent = np.frexp(abs(number))
    return (int(exponent), round(float(mantissa) * 64))  # bfloat16 keeps 8 bits
