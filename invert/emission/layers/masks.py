"""Shares values that equal layers compute from arguments of the model, such as masks.

Keras computes the mask of an attention in each layer. Here the model computes it once, and the
layers take it as an argument.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence, Set

from invert._private.jax import names_of, with_names
from invert.emission.layers.cut import Path, common_prefix
from invert.emission.layers.library_names import row_of
from invert.ir import kinds
from invert.ir.graph import Graph, computed_from
from invert.ir.types import Eqn, Jaxpr, Var


def shared_values(graph: Graph, parameters: Set[Var]) -> set[Var]:
    """The values that layers of a row compute from arguments of the program alone.

    Constants such as positions, and reshaped arguments, count if only such values use them. Values
    of layers inside the layers of a row do not.
    """
    dependent = set(computed_from(parameters, graph.eqns))
    given: set[Var] = set(graph.jaxpr.invars) - parameters
    found: set[Var] = set()
    others: list[Eqn] = []
    in_rows = _in_rows([tuple(names_of(e)) for e in graph.eqns])
    for eqn in graph.eqns:
        operands = {a for a in eqn.invars if isinstance(a, Var)}
        inside = tuple(names_of(eqn)) in in_rows
        if eqn in dependent:
            continue
        computes = not given.isdisjoint(operands)
        given.update(eqn.outvars if computes else ())
        if inside and computes and eqn.primitive.name not in kinds.LAYOUT:
            found.update(eqn.outvars)
        elif inside:
            others.append(eqn)
    for eqn in reversed(others):
        users = graph.after(eqn)
        if users and all(not found.isdisjoint(u.outvars) for u in users):
            found.update(eqn.outvars)
    return found


def _in_rows(paths: Sequence[Path]) -> set[Path]:
    """The scopes of the layers of outermost rows."""
    every = {path[:n] for path in paths for n in range(1, len(path) + 1)}
    rows = collections.Counter((*path[:-1], row_of(path[-1])) for path in every)
    found: set[Path] = set()
    for path in sorted(every, key=len):
        around = (path[:n] in found for n in range(1, len(path)))
        if rows[*path[:-1], row_of(path[-1])] > 1 and not any(around):
            found.add(path)
    return found


def rows_of(eqn: Eqn) -> Path:
    """The scopes of an equation without numbers, the same for all layers of a row."""
    return tuple(map(row_of, names_of(eqn)))


def with_common_scopes(jaxpr: Jaxpr, values: Set[Var]) -> Jaxpr:
    """The program with values that several layers of a row use moved to the layer around them."""
    graph = Graph(jaxpr)
    scopes: dict[Eqn, Path] = {}
    moved: set[Eqn] = set()
    for eqn in reversed(graph.eqns):
        scopes[eqn] = tuple(names_of(eqn))
        users = graph.after(eqn)
        paths = [scopes[u] for u in users]
        if values.isdisjoint(eqn.outvars):
            continue
        if _are_in_a_row(paths) or not moved.isdisjoint(users):
            scopes[eqn] = common_prefix([scopes[eqn], *paths])
            moved.add(eqn)
    if not moved:
        return jaxpr
    return jaxpr.replace(eqns=[with_names(e, scopes[e]) if e in moved else e for e in graph.eqns])


def _are_in_a_row(paths: Sequence[Path]) -> bool:
    """Return whether some scopes are in several layers of a row."""
    place = len(common_prefix(paths))
    names = {path[place] for path in paths if len(path) > place}
    return len(names) > 1 and len(set(map(row_of, names))) == 1
