"""Scans whose operands and results are in an order that depends on what they compute alone."""

from __future__ import annotations

from collections.abc import Sequence

from invert._private.jax import close_like, consts_of, open_jaxpr
from invert.ir.graph import is_var
from invert.ir.jaxprs import map_jaxprs, names_in
from invert.ir.loops import ScanParts
from invert.ir.merging import COMMUTING, atom_key, type_key
from invert.ir.types import Atom, Eqn, J, Jaxpr, Var


def with_sorted_scans(closed: J) -> J:
    """A program whose scans have equal parts in the same places; itself if none changes.

    JAX carries the sum of each derivative in the order of the loop's constants, which is another
    one if the loop was written anew. The order is one of hashes, so it is the same within a
    process; of parts with equal hashes, it is the given one.
    """
    if "scan" not in names_in(open_jaxpr(closed)):
        return closed
    inside = map_jaxprs(closed, lambda jaxpr: _sorted_in(jaxpr, {}))
    jaxpr = open_jaxpr(inside)
    # The arguments of the whole program are in a known order, those of its parts are not.
    outer = _sorted_in(jaxpr, {v: hash(i) for i, v in enumerate(jaxpr.invars)})
    return inside if outer is jaxpr else close_like(inside, outer)


def _sorted_in(jaxpr: Jaxpr, given: dict[Var, int]) -> Jaxpr:
    if all(e.primitive.name != "scan" for e in jaxpr.eqns):
        return jaxpr
    known = given
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            eqn = _sorted(eqn, known)
        eqns.append(eqn)
        _add(eqn, known)
    same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=eqns)


def _hash(atom: Atom, known: dict[Var, int]) -> int:
    if not is_var(atom):
        return hash(atom_key(atom))
    return known[atom] if atom in known else hash(type_key(atom))


def _add(eqn: Eqn, known: dict[Var, int]) -> None:
    """Add the hashes of the results of an equation."""
    operands = [_hash(a, known) for a in eqn.invars]
    if eqn.primitive.name in COMMUTING:
        operands.sort()
    for i, v in enumerate(eqn.outvars):
        # Without parameters, some of which do not count.
        known[v] = hash((eqn.primitive, type_key(v), i, *operands))


def _sorted(eqn: Eqn, outside: dict[Var, int]) -> Eqn:
    parts = ScanParts.of(eqn)
    body = open_jaxpr(parts.body)
    if consts_of(parts.body) or eqn.effects:
        return eqn
    own, operands = parts.split(body.invars), parts.split(eqn.invars)
    known: dict[Var, int] = {}
    for role, (variables, atoms) in enumerate(zip(own, operands, strict=True)):
        for v, atom in zip(variables, atoms, strict=True):
            known[v] = hash((role, type_key(v), _hash(atom, outside)))
    for inner in body.eqns:
        _add(inner, known)
    count = len(parts.init)
    made = [_hash(a, known) for a in body.outvars]
    consts, carry, rows = ([known[v] for v in variables] for variables in own)
    orders = _order(consts), _order([*zip(carry, made, strict=False)]), _order(rows)
    results = [*orders[1], *(count + i for i in _order(made[count:]))]
    if all(order == sorted(order) for order in (*orders, results)):
        return eqn
    body = body.replace(
        invars=[v[i] for v, order in zip(own, orders, strict=True) for i in order],
        outvars=[body.outvars[i] for i in results],
    )
    return eqn.replace(
        params={**eqn.params, "jaxpr": close_like(parts.body, body)},
        invars=[a[i] for a, order in zip(operands, orders, strict=True) for i in order],
        outvars=[eqn.outvars[i] for i in results],
    )


def _order(keys: Sequence[int] | Sequence[tuple[int, int]]) -> list[int]:
    return sorted(range(len(keys)), key=keys.__getitem__)
