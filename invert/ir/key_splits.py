"""Keys split in two: one to draw with, one to split again."""

from __future__ import annotations

from invert._private.jax import dce, rename
from invert.ir.graph import Graph
from invert.ir.types import Atom, Eqn, Jaxpr, Var


def with_last_key(jaxpr: Jaxpr) -> Jaxpr:
    """Draw the last numbers with the key itself instead of splitting it again.

    This draws other numbers of the same distribution; the key has no other use.
    """
    jaxpr = dce(jaxpr)
    graph = Graph(jaxpr)
    names: dict[Var, Atom] = {}
    for split in graph.by_primitive.get("random_split", ()):
        parts, (key,) = parts_of(split, graph), split.invars
        alone = len(graph.users.get(key, ())) == 1 and key not in graph.results
        if parts is None or not alone:
            continue
        rest, drawn = parts[0]
        if not graph.users.get(rest, ()) and rest not in graph.results:
            names[drawn] = names.get(key, key) if isinstance(key, Var) else key
    return dce(rename(jaxpr, names)) if names else jaxpr


def parts_of(split: Eqn, graph: Graph) -> tuple[list[Var], list[Eqn]] | None:
    """The parts of the split of one key into two, with the equations that take them."""
    (key,), (keys,) = split.invars, split.outvars
    takers = list(graph.users.get(keys, ()))
    if key.aval.shape or split.params["shape"] != (2,) or keys in graph.results:
        return None
    if [e.primitive.name for e in takers] == ["unstack"]:
        return list(takers[0].outvars), takers
    parts: dict[int, Var] = {}
    for part in list(takers):
        users = graph.users.get(part.outvars[0], ()) if part.primitive.name == "slice" else ()
        if len(users) != 1 or users[0].primitive.name != "squeeze":
            return None
        (start,), (end,) = part.params["start_indices"], part.params["limit_indices"]
        if end != start + 1 or start in parts:
            return None
        parts[start] = users[0].outvars[0]
        takers.append(users[0])
    if not parts:
        return None
    aval = next(iter(parts.values())).aval
    return [parts.get(i, Var(aval)) for i in (0, 1)], takers
