"""Fingerprints of library functions: the primitives they consist of, known without lowering.

In a module without names, a call may be any function of JAX. Its fingerprint, a digest of the
primitives in its body, selects the candidates; each is then lowered and compared as a whole.
`fingerprints.json` holds those of the JAX releases that `benchmarks/fingerprints.py` was run with.
For another release they are computed for functions that end in the same primitive, and stored in
the user's cache directory.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import NamedTuple

import jax
import numpy as np

from invert import _user_cache
from invert._private.jax import open_jaxpr
from invert.ir import jaxprs
from invert.ir.graph import Graph
from invert.ir.types import AnyJaxpr, JaxFunction, Literal
from invert.rewriting.pattern import Call

FILE = "fingerprints.json"
# The shapes at which functions are lowered; determinants of small matrices are written out.
_SHAPES = ((2,), (2, 2), (4, 4))


class Fingerprint(NamedTuple):
    """The primitive of a body's first result, and a digest of all."""

    root: str
    digest: str


def fingerprint(closed: AnyJaxpr) -> Fingerprint:
    jaxpr = open_jaxpr(closed)
    names = " ".join(sorted(e.primitive.name for e in jaxprs.equations(jaxpr)))
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    first = next((v for v in jaxpr.outvars if not isinstance(v, Literal)), None)
    roots = [e.primitive.name for e in jaxpr.eqns if first in e.outvars]
    return Fingerprint(roots[0] if roots else "", digest)


def worked_out(
    function: JaxFunction, template: Callable[[Call], Graph | None]
) -> list[Fingerprint]:
    """The fingerprints of a function of one array, from its templates."""
    fingerprints: dict[Fingerprint, None] = {}
    for shape in _SHAPES:
        x = jax.ShapeDtypeStruct(shape, np.float32)
        graph = template(Call(("library", function), function, (x,)))
        if graph is not None:
            fingerprints[fingerprint(graph.jaxpr)] = None
    return list(fingerprints)


@functools.cache
def shipped() -> Mapping[str, Mapping[str, list[list[str]]]]:
    """Fingerprints by JAX release and function name."""
    return json.loads(resources.files("invert.patterns").joinpath(FILE).read_text())


def may_be(
    functions: Iterable[JaxFunction],
    wanted: Fingerprint,
    template: Callable[[Call], Graph | None],
    version: str = jax.__version__,
) -> list[JaxFunction]:
    """The functions with this fingerprint."""
    known = shipped().get(version)
    if known is not None:
        return [f for f in functions if list(wanted) in known.get(name_of(f), [])]
    # Another release seldom ends a function in another primitive.
    alike = [f for f in functions if wanted.root in _roots(name_of(f), wanted.root)]
    if not alike:
        return []
    kept = _user_cache.read("fingerprints")
    found = {}
    for f in alike:
        if (name := f"{version} {name_of(f)}") not in kept:
            prints = [" ".join(p) for p in worked_out(f, template)]
            kept[name] = found[name] = prints
    if found:
        _user_cache.add("fingerprints", found)
    return [f for f in alike if " ".join(wanted) in kept[f"{version} {name_of(f)}"]]


def _roots(name: str, default: str) -> set[str]:
    """The primitives that a function ends with, in the known releases."""
    roots = {root for release in shipped().values() for root, _ in release.get(name, [])}
    return roots or {default}


def name_of(function: JaxFunction) -> str:
    return str(getattr(function, "__name__", function))
