"""Patterns, calls and sites: what a pattern is written with.

A *preimage* pattern proposes a JAX call. The call is lowered at the site's own types, raised and
brought to the same form as the program, and must then be the same subgraph, equation by equation,
with no interior value used outside. The proposal is a guess; the match is the proof.

A *structural* pattern (loops, calls) inspects one equation and returns its replacement.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from invert._private.jax import Primitive
from invert.ir import jaxprs
from invert.ir.avals import type_of
from invert.ir.graph import Graph
from invert.ir.hints import hint_of
from invert.ir.match import Miss
from invert.ir.types import Atom, ClosedJaxpr, Eqn, JaxFunction


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
    - `of_site`: whether it holds a part of the program that it is proposed for, so that no cache
        outlives that program for it.
    - `commuted`: places of equations of the program that `before` lowers to whose two operands
        stand in the other order in the program to look for.
    """

    key: Hashable
    function: JaxFunction = dataclasses.field(compare=False)
    avals: tuple[jax.ShapeDtypeStruct, ...]
    x64: bool = False
    is_call: bool = False
    before: JaxFunction | None = dataclasses.field(default=None, compare=False)
    commuted: frozenset[int] = frozenset()
    of_site: bool = False

    @property
    def needs_x64(self) -> bool:
        """Whether the call has to be traced with 64-bit types enabled."""
        return self.x64 or any(jaxprs.is_wide_dtype(a.dtype) for a in self.avals)


_T = TypeVar("_T")
_P = ParamSpec("_P")


def kept_by_call(
    function: Callable[Concatenate[Call, _P], _T],
) -> Callable[Concatenate[Call, _P], _T]:
    """Memoizes a function of a call, unless the call holds a part of a program."""
    kept: Any = functools.lru_cache(maxsize=4096)(function)

    @functools.wraps(function)
    def run(call: Call, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return (function if call.of_site else kept)(call, *args, **kwargs)

    return run


def bind(primitive: Primitive, *avals: jax.ShapeDtypeStruct, **params: Any) -> Call:
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
    - `literal`: a number that occurs in every program the pattern stands for, or several of which
        one does (by dtype); where the program holds no literal near it, nothing is proposed.
    """

    name: str
    roots: tuple[str, ...]
    propose: Callable[[Site], Iterable[Call]]
    literal: float | tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class EquationPattern:
    """A pattern that rewrites one equation by itself.

    `rewrite(site)` returns the replacement as a function of the equation's operands, to be traced,
    or `None` where it does not apply.
    """

    name: str
    roots: tuple[str, ...]
    rewrite: Callable[[Site], JaxFunction | None]


@dataclasses.dataclass(frozen=True)
class ProgramPattern:
    """A pattern that rewrites a program as a whole, after the others of its stage.

    `rewrite(closed)` returns the new closed jaxpr over the same arguments, or `None` where it does
    not apply.
    """

    name: str
    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr | None]
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

    patterns: tuple[Pattern | EquationPattern | ProgramPattern, ...]
    outermost_first: bool = False
    inside_rules: bool = True


@dataclasses.dataclass(frozen=True)
class Site:
    """An equation at which a pattern is tried, in its body.

    `named` says whether locations of the program name primitives at all. `template(call)` is what
    the engine would look for, `None` where JAX refuses the call. Why nothing is proposed is put
    into `misses` where that is a list.
    """

    graph: Graph
    eqn: Eqn
    platform: str
    named: bool = True
    template: Callable[[Call], Graph | None] = lambda call: None
    misses: list[Miss] | None = None

    def aval(self, atom: Atom) -> jax.ShapeDtypeStruct:
        return type_of(atom)

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """Type of the first result."""
        return self.aval(self.eqn.outvars[0])

    @property
    def hint(self) -> str:
        """What the location of the equation calls the primitive; `""` where it says nothing."""
        return hint_of(self.eqn).primitive

    @property
    def broadcasts(self) -> set[int]:
        """Positions of the operands that the author broadcast by hand, as far as known."""
        return {position for position, _ in hint_of(self.eqn).operands}

    def producer(self, atom: Atom) -> Eqn | None:
        """The equation that defines `atom`, if any."""
        return self.graph.producer(atom)
