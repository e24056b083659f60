"""Patterns, calls and sites: the vocabulary of pattern authors.

A *preimage* pattern proposes a JAX call. The call is lowered at the site's own types, raised, and
brought to the form of the program. It must then be the same subgraph, equation by equation, with no
interior value used outside. The proposal is a guess; the match is the proof.

An *equation* pattern (loops, calls) inspects one equation and returns its replacement.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import jax

from invert._cache import Cache
from invert._private.jax import Primitive
from invert.ir import jaxprs
from invert.ir.avals import type_of
from invert.ir.graph import Graph
from invert.ir.hints import hint_of
from invert.ir.match import Miss
from invert.ir.stored import Entry
from invert.ir.types import Atom, ClosedJaxpr, Eqn, JaxFunction


@dataclasses.dataclass(frozen=True)
class Call:
    """A proposed JAX call.

    **Arguments:**

    - `key`: hashable; equal keys mean the same function.
    - `function`: takes arrays of the types `avals` and returns an array or a sequence of arrays.
    - `avals`: types of its arguments.
    - `x64`: whether it is traced with 64-bit types enabled although no argument has one: positions
        and counters inside then have 64 bits.
    - `is_call`: whether it stands for a call equation. Otherwise a template that consists of one
        call is inlined, since JAX outlines some primitives into functions.
    - `before`: the program to look for, if it is not what `function` lowers to. The author
        guarantees that the two are equal, and documents where they are not.
    - `of_site`: whether it holds a part of the program, so that it must not be cached beyond it.
    - `commuted`: positions of equations whose two operands are swapped in the program to look for,
        compared with what `before` lowers to.
    - `stored`: whether the key and the code of this package say all that the call does, so that
        later processes may use its template.
    """

    key: Hashable
    function: JaxFunction = dataclasses.field(compare=False)
    avals: tuple[jax.ShapeDtypeStruct, ...]
    x64: bool = False
    is_call: bool = False
    before: JaxFunction | None = dataclasses.field(default=None, compare=False)
    commuted: frozenset[int] = frozenset()
    of_site: bool = False
    stored: bool = dataclasses.field(default=False, compare=False)

    def entry(self, kind: str, *parts: Hashable, platform: str = "cpu") -> Entry | None:
        """The cache entry for a program made of this call, if it may be stored."""
        if not self.stored or self.of_site:
            return None
        named = (self.key, self.avals, self.x64, self.is_call, self.commuted)
        sizes = [n for aval in self.avals for n in aval.shape]
        return Entry(kind, *named, *parts, platform=platform, sizes=sizes)

    @property
    def needs_x64(self) -> bool:
        """True if the call must be traced with 64-bit types enabled."""
        return self.x64 or any(jaxprs.is_wide_dtype(a.dtype) for a in self.avals)


_T = TypeVar("_T")
_P = ParamSpec("_P")


class kept_by_call(Generic[_P, _T]):
    """Memoize a function of calls, except those holding part of a program."""

    def __init__(self, function: Callable[Concatenate[Call, _P], _T]):
        functools.update_wrapper(self, function)
        self._function = function
        self._kept: Cache[Hashable, _T] = Cache(4096)

    def __call__(self, call: Call, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if call.of_site:
            return self._function(call, *args, **kwargs)
        key = self._key(call, *args, **kwargs)
        if key not in self._kept:
            self.keep(self._function(call, *args, **kwargs), call, *args, **kwargs)
        return self._kept[key]

    def known(self, call: Call, *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """The result of an earlier call, if it was kept."""
        return self._kept.get(self._key(call, *args, **kwargs))

    def keep(self, result: _T, call: Call, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Keep the result of a call."""
        self._kept[self._key(call, *args, **kwargs)] = result

    @staticmethod
    def _key(*args: Hashable, **kwargs: Hashable) -> Hashable:
        return args, tuple(kwargs.items())


def bind(primitive: Primitive, *avals: jax.ShapeDtypeStruct, **params: object) -> Call:
    """The call of a primitive with these parameters."""
    key = (primitive, tuple(sorted(params.items(), key=lambda item: item[0])))
    return Call(key, functools.partial(primitive.bind, **params), tuple(avals), stored=True)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A preimage pattern: equations that equal the lowering of a JAX call become that call.

    `invert.pattern` makes one of two functions.

    **Arguments:**

    - `name`: its name in the report and in `Config(disabled_patterns=...)`.
    - `roots`: names of the primitives of equations at which it is tried.
    - `propose`: `propose(site)` yields the calls to try, the likeliest first.
    - `literal`: a number that every match contains, or several (one for each dtype), one of which
        every match contains. Nothing is proposed for a program without a literal close to it.
    - `holds`: a primitive that every match contains. Nothing is proposed for a program without it.
    """

    name: str
    roots: tuple[str, ...]
    propose: Callable[[Site], Iterable[Call]]
    literal: float | tuple[float, ...] | None = None
    holds: str | None = None


@dataclasses.dataclass(frozen=True)
class EquationPattern:
    """A pattern that rewrites a single equation. Nothing checks that the result is equal.

    **Arguments:**

    - `name`: its name in the report and in `Config(disabled_patterns=...)`.
    - `roots`: names of the primitives where it may apply.
    - `rewrite`: `rewrite(site)` returns the replacement, a function of the equation's operands that
        is traced, or `None` if it does not apply. It is applied to its own results too; if these
        match again without end, that is a `PatternError`.

    ??? example

        ```python
        import jax
        import jax.numpy as jnp

        import invert

        plain = invert.EquationPattern("plain", ("exp2",), lambda site: lambda x: 2.0**x)
        print(jax.make_jaxpr(invert.rewrite(jnp.exp2, [plain]))(1.0))
        ```
    """

    name: str
    roots: tuple[str, ...]
    rewrite: Callable[[Site], JaxFunction | None]


@dataclasses.dataclass(frozen=True)
class ProgramPattern:
    """A pattern that rewrites whole programs, after the others of its stage.

    `rewrite(closed)` returns the new closed jaxpr over the same arguments, or `None` if it does not
    apply.
    """

    name: str
    rewrite: Callable[[ClosedJaxpr], ClosedJaxpr | None]
    roots: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Stage:
    """Patterns that run together, to a fixpoint.

    **Arguments:**

    - `patterns`: tried in this order.
    - `outermost_first`: makes one pass from the outermost jaxpr inwards, for patterns that match
        the bodies of calls before these are rewritten.
    - `inside_rules`: whether it rewrites functions that have derivative rules.
    - `stored`: whether its patterns are those of this package, so that later processes may use its
        templates.
    """

    patterns: tuple[Pattern | EquationPattern | ProgramPattern, ...]
    outermost_first: bool = False
    inside_rules: bool = True
    stored: bool = False


@dataclasses.dataclass(frozen=True)
class Site:
    """An equation where a pattern is tried, with the graph around it.

    **Attributes:**

    - `graph`: the program around the equation.
    - `eqn`: the equation, a `jax.extend.core.JaxprEqn`.
    - `platform`: the platform of the program.
    - `named`: whether any location of the program names a primitive.
    - `template`: `template(call)` is the program to look for; `None` if JAX refuses the call.
    - `misses`: receives the reasons why nothing is proposed; `None` if nobody asks for them.
    """

    graph: Graph
    eqn: Eqn
    platform: str
    named: bool = True
    template: Callable[[Call], Graph | None] = lambda call: None
    misses: list[Miss] | None = None

    def aval(self, atom: Atom) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an operand."""
        return type_of(atom)

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """Type of the first result."""
        return self.aval(self.eqn.outvars[0])

    @property
    def hint(self) -> str:
        """The primitive that the equation's location names; `""` without one."""
        return hint_of(self.eqn).primitive

    @property
    def broadcasts(self) -> set[int]:
        """Positions of the operands that the author broadcast explicitly, where known."""
        return {position for position, _ in hint_of(self.eqn).operands}

    def producer(self, atom: Atom, *names: str) -> Eqn | None:
        """The equation that defines `atom`, if any; `names` are the primitives it may have."""
        return self.graph.producer(atom, *names)
