"""Turns scans over reversed arrays into reverse scans."""

from __future__ import annotations

from jax import lax

from invert._private.jax import dce, rename, renamed
from invert.ir.graph import Graph
from invert.ir.loops import ScanParts
from invert.ir.passes import replaced
from invert.ir.traced_form import unwrapped
from invert.ir.types import Atom, Eqn, Jaxpr, Var


def unreversed(jaxpr: Jaxpr) -> Jaxpr:
    """Replace each `scan` whose inputs are all reversed by a `scan` in the other direction.

    Each step computes the same from the same rows. Stacked results come out reversed; a reversal
    after the loop cancels.
    """
    if not any(e.primitive.name == "scan" for e in jaxpr.eqns):
        return jaxpr
    plain = unwrapped(jaxpr)  # `jnp.flip` is a call
    graph = Graph(plain)
    loops = [e for e in graph.by_primitive.get("scan", ()) if _over_reversed(e, graph)]
    if not loops:
        return jaxpr
    changed = replaced(plain, lambda eqn: _from_the_end(eqn, graph) if eqn in loops else None)
    return dce(_without_pairs(changed))


def _over_reversed(eqn: Eqn, graph: Graph) -> bool:
    xs = ScanParts.of(eqn).xs
    return bool(xs) and all(_reversed(graph.producer(a), (0,)) for a in xs)


def _reversed(eqn: Eqn | None, dimensions: tuple[int, ...]) -> bool:
    """Whether an equation reverses these dimensions."""
    return eqn is not None and eqn.primitive is lax.rev_p and _dimensions(eqn) == dimensions


def _dimensions(eqn: Eqn) -> tuple[int, ...]:
    return tuple(sorted(eqn.params["dimensions"]))


def _from_the_end(eqn: Eqn, graph: Graph) -> list[Eqn]:
    """The loop in the other direction, and its results in the original order."""
    parts = ScanParts.of(eqn)
    xs = [made.invars[0] for a in parts.xs if (made := graph.producer(a)) is not None]
    count = len(parts.init)
    rows = [Var(v.aval) for v in eqn.outvars[count:]]
    loop = eqn.replace(
        invars=[*parts.consts, *parts.init, *xs],
        outvars=[*eqn.outvars[:count], *rows],
        params={**eqn.params, "reverse": not eqn.params["reverse"]},
    )
    params = {"dimensions": (0,)}
    return [
        loop,
        *(
            eqn.replace(
                primitive=lax.rev_p, invars=[new], outvars=[old], params=params, effects=set()
            )
            for new, old in zip(rows, eqn.outvars[count:], strict=True)
        ),
    ]


def _without_pairs(jaxpr: Jaxpr) -> Jaxpr:
    """Cancel pairs of reversals, also with a transpose in between."""
    graph = Graph(jaxpr)
    names: dict[Var, Atom] = {}
    instead: dict[Eqn, Eqn] = {}
    for eqn in graph.by_primitive.get("rev", ()):
        moved = graph.producer(eqn.invars[0])
        if moved is None:
            continue
        if _reversed(moved, _dimensions(eqn)):
            (names[eqn.outvars[0]],) = renamed(moved.invars, names)
        elif moved.primitive is lax.transpose_p:
            order = moved.params["permutation"]
            first = graph.producer(moved.invars[0])
            before = tuple(sorted(order[d] for d in _dimensions(eqn)))
            alone = graph.users[moved.outvars[0]] == [eqn] and moved.outvars[0] not in graph.results
            if alone and first is not None and _reversed(first, before):
                instead[moved] = moved.replace(invars=[first.invars[0]])
                names[eqn.outvars[0]] = moved.outvars[0]
    eqns = [instead.get(e, e) for e in jaxpr.eqns if not names.keys() & set(e.outvars)]
    return rename(jaxpr.replace(eqns=eqns), names)
