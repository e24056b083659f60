"""Jaxprs as data: canonical form, dead code, counts."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from invert import _compat
from invert._opaque import custom_call_p


def canonicalize(closed: Any) -> tuple[Any, tuple[np.ndarray, ...]]:
    """Removes dead equations; makes the constants leading arguments.

    **Returns:** the jaxpr, without constants of its own, and their values.
    """
    jaxpr = _compat.dce(_compat.open_jaxpr(closed))
    constants = tuple(np.asarray(c) for c in closed.consts)
    return _compat.constants_as_arguments(jaxpr), constants


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The open jaxprs among the parameters of an equation."""
    for value in eqn.params.values():
        values = value if isinstance(value, (tuple, list)) else (value,)
        for v in values:
            if _compat.is_jaxpr(v):
                yield _compat.open_jaxpr(v)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations; a jaxpr that stands in several places is visited once."""
    pending, seen = [jaxpr], set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for eqn in current.eqns:
            yield eqn
            pending.extend(sub_jaxprs(eqn))


def primitive_counts(jaxpr: Any) -> Mapping[str, int]:
    """Number of equations per primitive."""
    counts = collections.Counter(eqn.primitive.name for eqn in equations(jaxpr))
    return dict(sorted(counts.items()))


def opaque_targets(jaxpr: Any) -> Mapping[str, int]:
    """Number of opaque equations per custom-call target."""
    found = (eqn for eqn in equations(jaxpr) if eqn.primitive is custom_call_p)
    return dict(sorted(collections.Counter(eqn.params["target"] for eqn in found).items()))


def has_wide_types(jaxpr: Any) -> bool:
    """Whether a value of 64 bits (128 for complex) occurs."""

    def wide(v: Any) -> bool:
        dtype = getattr(v.aval, "dtype", None)
        return str(dtype) in ("int64", "uint64", "float64", "complex128")

    pending = [jaxpr.invars, *((*e.invars, *e.outvars) for e in equations(jaxpr))]
    return any(wide(v) for atoms in pending for v in atoms)
