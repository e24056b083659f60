"""`key, subkey = jax.random.split(key)`: a split into two named keys."""

from __future__ import annotations

import dataclasses

from jax.extend.core import Primitive

from invert.ir.graph import Graph
from invert.ir.types import Atom, Eqn, Jaxpr, Params, Var

_UNPACKED = Primitive("unpacked")
_UNPACKED.multiple_results = True


@dataclasses.dataclass(eq=False)
class Unpacked(Eqn):
    """A split of a key, with the equations that take its two parts; replaces an equation."""

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
        parts = _parts(eqn, graph)
        if parts is None:
            continue
        results, takers = parts
        instead[eqn] = Unpacked(eqn, list(eqn.invars), results)
        gone.update(takers)
    eqns = [instead.get(e, e) for e in jaxpr.eqns if e not in gone]
    return jaxpr.replace(eqns=eqns)


def _parts(split: Eqn, graph: Graph) -> tuple[list[Var], list[Eqn]] | None:
    """The parts of a split into two, and the equations that take them; `None` for other uses."""
    (keys,) = split.outvars
    takers = list(graph.users.get(keys, ()))
    if split.params["shape"] != (2,) or keys in graph.results:
        return None
    if [e.primitive.name for e in takers] == ["unstack"]:
        return list(takers[0].outvars), takers
    found: dict[int, Var] = {}
    for part in list(takers):
        users = graph.users.get(part.outvars[0], ()) if part.primitive.name == "slice" else ()
        if len(users) != 1 or users[0].primitive.name != "squeeze":
            return None
        (start,), (end,) = part.params["start_indices"], part.params["limit_indices"]
        if end != start + 1 or start in found:
            return None
        found[start] = users[0].outvars[0]
        takers.append(users[0])
    if not found:
        return None
    aval = next(iter(found.values())).aval
    return [found.get(i, Var(aval)) for i in (0, 1)], takers
