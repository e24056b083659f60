"""A jaxpr as a graph: who makes a value, who uses it, which values are numbers."""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from invert._private.jax import by_jaxpr, open_jaxpr
from invert.ir import jaxprs
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Literal, Value


def is_var(atom: Any) -> bool:
    """Whether an atom is a variable rather than a literal."""
    return not isinstance(atom, Literal)


class Graph:
    """A body with its use-def maps."""

    def __init__(self, jaxpr: AnyJaxpr, consts: Sequence[Value] = ()):
        self.jaxpr = open_jaxpr(jaxpr)
        self.eqns = list(self.jaxpr.eqns)
        self.consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self.producers: dict[Atom, Eqn] = {v: e for e in self.eqns for v in e.outvars}
        self.index = {e: i for i, e in enumerate(self.eqns)}

    @functools.cached_property
    def users(self) -> dict[Any, list[Any]]:
        """The equations that use a variable."""
        found: dict[Any, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            for atom in dict.fromkeys(a for a in eqn.invars if not isinstance(a, Literal)):
                found[atom].append(eqn)
        return found

    @functools.cached_property
    def results(self) -> set[Any]:
        return {v for v in self.jaxpr.outvars if not isinstance(v, Literal)}

    @functools.cached_property
    def by_primitive(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = collections.defaultdict(list)
        for eqn in self.eqns:
            found[eqn.primitive.name].append(eqn)
        return found

    @functools.cached_property
    def numbers(self) -> set[int]:
        """The scalar float and integer literals, rounded as `_rounded` does."""
        atoms = (a for e in self.eqns for a in e.invars if isinstance(a, Literal))
        found = {rounded(a.val) for a in atoms if np.ndim(a.val) == 0}
        for eqn in self.eqns:
            for inner in jaxprs.sub_jaxprs(eqn):
                found |= _numbers_of(inner)
        return found - {None}


@by_jaxpr
def _numbers_of(jaxpr: Jaxpr) -> set[int]:
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
