"""Caches comparisons and rewrites of gradients, so that equal gradients share them.

Layers of a model share gradients, often at different shapes. Comparing a gradient with automatic
differentiation means compiling both, which dominates the cost; so results are cached by program, up
to isomorphism.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import jax
import numpy as np

from invert._private.jax import close_like, consts_of, open_jaxpr
from invert.gradients.region import MarkedRegion
from invert.ir import kinds
from invert.ir.graph import Graph
from invert.ir.interpret import inlined, retrace
from invert.ir.jaxprs import map_equations, map_jaxprs, names_in, split_constants, with_inlined
from invert.ir.match import equivalent
from invert.ir.types import AnyJaxpr, Aval, ClosedJaxpr, Eqn, J, Jaxpr
from invert.rewriting.driver import Replacement, replace

# The most entries kept for isomorphic programs that differ in their constants.
_MAX_ALIKE = 8


def without_rules(closed: J) -> J:
    """Replace functions with derivative rules by their bodies: rules cannot be compared."""
    if not _has_rules(closed):
        return closed

    def visit(jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = with_inlined(jaxpr, lambda e: kinds.called(e, kinds.WITH_RULES))
        if kinds.WITH_RULES.isdisjoint(names_in(jaxpr)):
            return jaxpr
        # What is left holds arrays.
        graph = Graph(jaxpr)
        replacements = [
            Replacement(program, eqn.invars, eqn.outvars, frozenset({eqn}), eqn)
            for eqn in graph.eqns
            if (program := kinds.called(eqn, kinds.WITH_RULES)) is not None
        ]
        return replace(graph, replacements) if replacements else jaxpr

    return map_jaxprs(closed, visit)


def without_rules_in_loops(closed: J) -> J:
    """Replace functions with derivative rules by their bodies, in the bodies of scans."""

    def expand(eqn: Eqn) -> Eqn:
        if eqn.primitive.name != "scan":
            return eqn
        body = eqn.params["jaxpr"]
        plain = without_rules(body)
        return eqn if plain is body else eqn.replace(params={**eqn.params, "jaxpr": plain})

    return map_equations(closed, expand)


def _has_rules(closed: AnyJaxpr) -> bool:
    return not kinds.WITH_RULES.isdisjoint(names_in(open_jaxpr(closed)))


_T = TypeVar("_T")
# A function of a region and the raw gradient that its container has for it.
_Judge: TypeAlias = Callable[[MarkedRegion, ClosedJaxpr], _T]


@dataclasses.dataclass
class _Entry(Generic[_T]):
    """Programs with their constants as leading arguments, and the value cached for them."""

    programs: tuple[AnyJaxpr, ...]
    constants: Sequence[np.ndarray]
    found: _T


class _Table(Generic[_T]):
    """Cached values, keyed by programs up to isomorphism."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[_Entry[_T]]] = {}

    def find(
        self,
        programs: Sequence[AnyJaxpr],
        make: Callable[[], _T],
        holds_for_all: Callable[[_T], bool] = lambda found: False,
        under: Hashable = None,
    ) -> _T:
        """The value for these programs, computed by `make` if it is not cached.

        `holds_for_all(value)` tells whether a value is right for any constants. Entries with
        different `under` are separate.
        """
        split = [split_constants(p) for p in programs]
        constants = [c for _, held in split for c in held]
        jaxprs = tuple(jaxpr for jaxpr, _ in split)
        key = under, tuple(e.primitive.name for jaxpr in jaxprs for e in jaxpr.eqns)
        alike = self._known.setdefault(key, [])
        for known in alike:
            if (holds_for_all(known.found) or _same(known.constants, constants)) and all(
                map(equivalent, known.programs, jaxprs)
            ):
                return known.found
        found = make()
        if len(alike) < _MAX_ALIKE:
            alike.append(_Entry(jaxprs, constants, found))
        return found


def _same(one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> bool:
    return len(one) == len(two) and all(
        a is b or np.array_equal(a, b) for a, b in zip(one, two, strict=True)
    )


class GradientCache:
    """Cached results of comparing gradients and of rewriting those that are kept."""

    def __init__(self) -> None:
        self._proved = _Table[bool]()
        self._differences = _Table[str]()
        self._linear = _Table[bool]()
        self._rewritten = _Table[ClosedJaxpr]()

    def is_proved(
        self,
        region: MarkedRegion,
        raw: ClosedJaxpr,
        prove: _Judge[bool],
    ) -> bool:
        """The result of `prove` for a region and its raw gradient."""
        if _has_rules(region.forward):
            return prove(region, raw)
        return self._proved.find((region.forward, raw), lambda: prove(region, raw))

    def difference(
        self,
        region: MarkedRegion,
        raw: ClosedJaxpr,
        compare: _Judge[str],
    ) -> str:
        """The cached result of `compare` for a region; `""` if its gradient equals autodiff.

        A gradient that differs is kept, which is right for any constants. One that agrees may
        differ for other constants or other rules of library functions.
        """
        # A container's gradient does not depend on derivative rules; autodiff does.
        raw = without_rules(raw)
        if not _has_rules(region.forward):
            region, raw = at_one_shape(region, raw) or (region, raw)
            return self._differences.find((region.forward, raw), lambda: compare(region, raw), bool)
        fresh: list[str] = []

        def make() -> str:
            fresh.append(compare(region, raw))
            return fresh[0]

        result = self._differences.find((without_rules(region.forward), raw), make, bool)
        # A gradient that agrees under the rules of another program may differ under these.
        return result or (fresh[0] if fresh else compare(region, raw))

    def is_linear(self, region: MarkedRegion, raw: ClosedJaxpr, find: Callable[[], bool]) -> bool:
        """The result of `find`: whether a raw gradient is linear in the cotangents."""
        return self._linear.find((without_rules(raw),), find, under=len(region.numbers))

    def rewritten(self, raw: ClosedJaxpr, make: Callable[[], ClosedJaxpr]) -> ClosedJaxpr:
        """The result of `make`, shared by isomorphic raw gradients."""
        return make() if _has_rules(raw) else self._rewritten.find((raw,), make)


# Each element of the results depends on the elements at its position alone.
_ELEMENTWISE = kinds.ELEMENTWISE | {"copy", "stop_gradient"}
_SIZE = 256


def at_one_shape(region: MarkedRegion, raw: ClosedJaxpr) -> tuple[MarkedRegion, ClosedJaxpr] | None:
    """An elementwise region of arrays of one shape, traced at a representative shape.

    Whether its gradient agrees with autodiff does not depend on the shape. `None` if the programs
    are not elementwise, or hold constant arrays.
    """
    if region.constants:
        return None
    forward, backward = inlined(region.forward), inlined(raw)
    programs = (forward, backward)
    if any(np.ndim(c) for p in programs for c in consts_of(p)):
        return None
    jaxprs = [open_jaxpr(p) for p in programs]
    shapes = {s for j in jaxprs for s in _shapes(j)} - {()}
    if len(shapes) != 1 or not all(_is_elementwise(e) for j in jaxprs for e in j.eqns):
        return None
    other = copy.copy(region)
    other.forward, raw = (_at_size(p) for p in programs)
    other.avals = [_at(a) for a in region.avals]
    return other, raw


def _shapes(jaxpr: Jaxpr) -> Iterator[tuple[int, ...]]:
    for v in (*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)):
        yield v.aval.shape


def _is_elementwise(eqn: Eqn) -> bool:
    if eqn.primitive.name == "broadcast_in_dim":
        return len(eqn.invars) == 1 and eqn.invars[0].aval.shape == ()
    return eqn.primitive.name in _ELEMENTWISE


def _at(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((_SIZE,) if aval.shape else (), aval.dtype)


def _at_size(closed: AnyJaxpr) -> ClosedJaxpr:
    jaxpr: Jaxpr = open_jaxpr(closed)
    eqns = [
        eqn.replace(params={**eqn.params, "shape": (_SIZE,), "broadcast_dimensions": ()})
        if eqn.primitive.name == "broadcast_in_dim" and eqn.outvars[0].aval.shape
        else eqn
        for eqn in jaxpr.eqns
    ]
    program = close_like(closed, jaxpr.replace(eqns=eqns))
    return retrace(program, types=[_at(v.aval) for v in jaxpr.invars])
