"""Scans as written by hand, without reversals, unit axes or constant arrays."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax

from invert._private.jax import close_like, dce, open_jaxpr, rename, renamed
from invert.ir.graph import Graph
from invert.ir.jaxprs import broadcast_in_place_of, broadcasts, fills
from invert.ir.loops import ScanParts
from invert.ir.passes import cleaned, replaced
from invert.ir.types import Atom, Eqn, Jaxpr, ShapedArray, Var
from invert.ir.unit_axes import added_axes
from invert.ir.wrappers import unwrapped


def unreversed(jaxpr: Jaxpr) -> Jaxpr:
    """Replace each `scan` of reversed inputs by a `scan` in the other direction.

    Each step still computes the same from the same rows. Stacked results are reversed, which
    cancels a reversal after the loop.
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
    """Return whether an equation reverses these dimensions."""
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


# -- rows without axes of size one


def with_plain_operands(jaxpr: Jaxpr) -> Jaxpr:
    """Pass arrays, such as masks, to scans without unit axes that each step removes.

    An array filled with one number that a loop closes over is a number in its body.
    """
    if not any(e.primitive.name == "scan" for e in jaxpr.eqns):
        return jaxpr
    graph = Graph(jaxpr)
    return cleaned(
        jaxpr,
        replaced(jaxpr, lambda eqn: _plain(eqn, graph) if eqn.primitive.name == "scan" else None),
    )


def _plain(scan: Eqn, graph: Graph) -> list[Eqn] | None:
    """A scan with such operands, after the equations that make them."""
    parts = ScanParts.of(scan)
    body = Graph(open_jaxpr(parts.body))
    before: list[Eqn] = []
    inside: list[Eqn] = []
    operands, arguments = list(scan.invars), list(body.jaxpr.invars)
    users: dict[Eqn, Eqn] = {}
    for i, (atom, v) in enumerate(zip(operands, arguments, strict=True)):
        made = graph.producer(atom)
        if made is None:
            continue
        if i < len(parts.consts) and fills(made):
            arguments[i] = Var(v.aval)  # unused, so dead code elimination drops it
            inside.append(made.replace(outvars=[v]))
        elif i >= len(parts.consts) + len(parts.init) and v not in body.results:
            axes = tuple(d - 1 for d in _added(made, graph))
            if not axes or not all(_does_without(u, axes) for u in body.users.get(v, ())):
                continue
            operands[i] = _without(made, graph, before)
            arguments[i] = Var(ShapedArray(operands[i].aval.shape[1:], v.aval.dtype))
            users |= {u: _narrow(u, axes, arguments[i]) for u in body.users.get(v, ())}
    if not users and not inside:
        return None
    eqns = [*inside, *(users.get(e, e) for e in body.eqns)]
    changed = body.jaxpr.replace(invars=arguments, eqns=eqns)
    params = {**scan.params, "jaxpr": close_like(parts.body, changed)}
    return [*before, scan.replace(invars=operands, params=params)]


def _added(eqn: Eqn, graph: Graph) -> tuple[int, ...]:
    """The unit axes, except the first, that an array has only for a loop."""
    if eqn.primitive is not lax.transpose_p:
        axes = added_axes(eqn)
    else:
        maker = graph.producer(eqn.invars[0])
        wide = () if maker is None else added_axes(maker)
        axes = tuple(i for i, d in enumerate(eqn.params["permutation"]) if d in wide)
    return () if 0 in axes else axes


def _does_without(user: Eqn, axes: tuple[int, ...]) -> bool:
    """Return whether an operation removes these axes of its operand, or repeats along them."""
    if user.primitive is lax.squeeze_p:
        return tuple(sorted(user.params["dimensions"])) == axes
    return broadcasts(user)


def _narrow(user: Eqn, axes: tuple[int, ...], row: Var) -> Eqn:
    """Such an operation on a row without the axes."""
    (out,) = user.outvars
    kept: Sequence[int] = range(len(out.aval.shape))
    if user.primitive is lax.broadcast_in_dim_p:
        kept = [d for i, d in enumerate(user.params["broadcast_dimensions"]) if i not in axes]
    return broadcast_in_place_of(user, row, out, kept)


def _without(eqn: Eqn, graph: Graph, before: list[Eqn]) -> Atom:
    """The array before these axes are added; appends any transpose to `before`."""
    if eqn.primitive is not lax.transpose_p:
        return eqn.invars[0]
    wide = graph.producer(eqn.invars[0])
    assert wide is not None  # it adds the axes
    (x,), places = wide.invars, wide.params["broadcast_dimensions"]
    order = tuple(places.index(d) for d in eqn.params["permutation"] if d in places)
    if order == tuple(range(len(order))):
        return x
    out = Var(ShapedArray(tuple(x.aval.shape[d] for d in order), x.aval.dtype))
    before.append(eqn.replace(invars=[x], outvars=[out], params={"permutation": order}))
    return out
