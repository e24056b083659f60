"""Patterns, calls and sites: what a pattern is written with.

A *preimage* pattern proposes a JAX call. The call is lowered at the site's own types, raised and
brought to the same form as the program, and must then be the same subgraph, equation by equation,
with no interior value used outside. The proposal is a guess; the match is the proof.

A *structural* pattern (loops, calls) inspects one equation and returns its replacement.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from invert._private.jax import by_jaxpr, core, names_of, open_jaxpr
from invert.ir import jaxprs
from invert.ir.jaxprs import HINT


@dataclasses.dataclass(frozen=True)
class Call:
    """A proposed JAX call.

    **Arguments:**

    - `key`: hashable; equal keys mean the same function.
    - `function`: takes arrays of the types `avals` and returns an array or a sequence of arrays.
    - `avals`: types of its arguments.
    - `x64`: whether 64-bit types are enabled where it is traced, though no argument has one:
        positions and counters inside are then of 64 bits.
    - `is_call`: whether it stands for a call equation. Otherwise a call that is all of the template
        is opened, as JAX outlines some primitives into functions.
    - `before`: the program to look for, where it is not what `function` lowers to. Whoever writes
        it answers for the two being equal, and states in the docstring where they are not.
    """

    key: Hashable
    function: Callable[..., Any] = dataclasses.field(compare=False)
    avals: tuple[jax.ShapeDtypeStruct, ...]
    x64: bool = False
    is_call: bool = False
    before: Callable[..., Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def wide(self) -> bool:
        """Whether the call has to be traced with 64-bit types enabled."""
        return self.x64 or any(jaxprs.is_wide_dtype(a.dtype) for a in self.avals)


def bind(primitive: Any, *avals: Any, **params: Any) -> Call:
    """The call of a primitive with these parameters."""
    key = (primitive, tuple(sorted(params.items(), key=lambda item: item[0])))
    return Call(key, functools.partial(primitive.bind, **params), tuple(avals))


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A preimage pattern.

    **Arguments:**

    - `name`: how the report and `Config(disabled_patterns=...)` call it.
    - `roots`: names of the primitives at which it may apply.
    - `propose`: `propose(site)` yields the calls to try, the likeliest first.
    - `marker`: a number that occurs in every program the pattern stands for, or several of which
        one does (by dtype); where the program holds no literal near it, nothing is proposed.
    """

    name: str
    roots: tuple[str, ...]
    propose: Callable[[Site], Iterable[Call]]
    marker: float | tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Structural:
    """A pattern that rewrites one equation by itself.

    `rewrite(site)` returns the replacement as a function of the equation's operands, to be traced,
    or `None` where it does not apply.
    """

    name: str
    roots: tuple[str, ...]
    rewrite: Callable[[Site], Callable[..., Any] | None]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A pattern that rewrites a program as a whole, after the others of its stage.

    `rewrite(closed)` returns the new closed jaxpr over the same arguments, or `None` where it does
    not apply.
    """

    name: str
    rewrite: Callable[[Any], Any | None]
    roots: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Stage:
    """Patterns that run together, to a fixpoint.

    **Arguments:**

    - `patterns`: tried in this order.
    - `outermost_first`: one pass from the outermost body inwards, for patterns that look into the
        bodies of calls as the program has them.
    - `inside_rules`: whether it looks into functions that have derivative rules of their own.
    """

    patterns: tuple[Pattern | Structural | Whole, ...]
    outermost_first: bool = False
    inside_rules: bool = True


@dataclasses.dataclass(frozen=True)
class Site:
    """An equation at which a pattern is tried, in its body.

    `named` says whether locations of the program name primitives at all.
    """

    graph: Graph
    eqn: Any
    platform: str
    named: bool = True

    def aval(self, atom: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """Type of the first result."""
        return self.aval(self.eqn.outvars[0])

    @property
    def hint(self) -> str:
        """What the location of the equation calls the primitive; `""` where it says nothing."""
        return hint_of(self.eqn).split(";")[0]

    def producer(self, atom: Any) -> Any | None:
        """The equation that defines `atom`, if any."""
        return None if isinstance(atom, core.Literal) else self.graph.producers.get(atom)


def is_var(atom: Any) -> bool:
    """Whether an atom is a variable rather than a literal."""
    return not isinstance(atom, core.Literal)


def hint_of(eqn: Any) -> str:
    """The hint that raising left in the name scopes of an equation."""
    names = names_of(eqn)
    return names[-1][1:] if names and names[-1].startswith(HINT) else ""


def written_broadcasts(eqn: Any) -> set[int]:
    """Places of the operands that the author broadcast by hand, as far as locations tell."""
    return {int(part.split("#")[0]) for part in hint_of(eqn).split(";")[1:]}


class Graph:
    """A body with its use-def maps."""

    def __init__(self, jaxpr: Any, consts: Sequence[Any] = ()):
        self.jaxpr = open_jaxpr(jaxpr)
        self.eqns = list(self.jaxpr.eqns)
        self.consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self.producers: dict[Any, Any] = {v: e for e in self.eqns for v in e.outvars}
        self.index = {id(e): i for i, e in enumerate(self.eqns)}

    @functools.cached_property
    def users(self) -> dict[Any, list[Any]]:
        """The equations that use a variable."""
        found: dict[Any, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            for atom in dict.fromkeys(a for a in eqn.invars if not isinstance(a, core.Literal)):
                found[atom].append(eqn)
        return found

    @functools.cached_property
    def results(self) -> set[Any]:
        return {v for v in self.jaxpr.outvars if not isinstance(v, core.Literal)}

    @functools.cached_property
    def by_primitive(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            found[eqn.primitive.name].append(eqn)
        return found

    @functools.cached_property
    def numbers(self) -> set[int]:
        """The scalar float and integer literals, rounded as `_rounded` does."""
        atoms = (a for e in self.eqns for a in e.invars if isinstance(a, core.Literal))
        found = {rounded(a.val) for a in atoms if np.ndim(a.val) == 0}
        for eqn in self.eqns:
            for inner in jaxprs.sub_jaxprs(eqn):
                found |= _numbers_of(inner)
        return found - {None}


@by_jaxpr
def _numbers_of(jaxpr: Any) -> set[int]:
    return Graph(jaxpr).numbers


def rounded(value: Any) -> Any:
    """Key under which a literal and the number it was written as meet, whatever the dtype."""
    number = np.asarray(value)
    if number.dtype.kind == "c" or number.dtype == bool:
        return None
    number = float(number.astype(np.float64))
    if not np.isfinite(number) or number == 0:
        return None
    mantissa, exponent = np.frexp(abs(number))
    return (int(exponent), round(float(mantissa) * 64))  # bfloat16 keeps 8 bits
