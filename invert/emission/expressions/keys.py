"""`key, subkey = jax.random.split(key)`: a split into two named keys."""

from __future__ import annotations

import dataclasses

from jax.extend.core import Primitive

from invert.ir.graph import Graph
from invert.ir.key_splits import parts_of
from invert.ir.types import Atom, Eqn, Jaxpr, Params, Var

_UNPACKED = Primitive("unpacked")
_UNPACKED.multiple_results = True


@dataclasses.dataclass(eq=False)
class Unpacked(Eqn):
    """A split of a key in two, in place of the parts' equations."""

    split: Eqn
    invars: list[Atom]
    outvars: list[Var]
    primitive: Primitive = _UNPACKED
    params: Params = dataclasses.field(default_factory=dict)


def unpacked(jaxpr: Jaxpr) -> Jaxpr:
    """The body, with each such split as one equation of two results."""
    if not any(e.primitive.name == "random_split" for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)
    instead: dict[Eqn, Unpacked] = {}
    gone: set[Eqn] = set()
    for eqn in graph.by_primitive.get("random_split", ()):
        parts = parts_of(eqn, graph)
        if parts is None:
            continue
        results, takers = parts
        instead[eqn] = Unpacked(eqn, list(eqn.invars), results)
        gone.update(takers)
    eqns = [instead.get(e, e) for e in jaxpr.eqns if e not in gone]
    return jaxpr.replace(eqns=eqns)
