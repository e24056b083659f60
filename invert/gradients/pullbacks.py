"""Where backward passes begin that differentiate no number of the program.

A step of training that does not return its loss does not compute it either: of the loss, only the
derivative by the result of the model is left, its cotangent. The backward pass multiplies it with
what the last products read, which tells both.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence

from invert.ir import kinds
from invert.ir.graph import Graph, computed_from, is_var
from invert.ir.jaxprs import names_in, sub_jaxprs
from invert.ir.types import Atom, Eqn, Var

# A value, and its cotangent.
Start = tuple[Var, Var]

# At most this many values have cotangents.
_MOST_ENDS = 8
# At most this many equations are between the last product and the result of a model.
_MOST_AFTER = 6


def starts(graph: Graph) -> Iterator[Sequence[Start]]:
    """Values that backward passes may begin with, and their cotangents, likeliest first.

    Those of one backward pass are together.
    """
    found = dict(_of_products(graph))
    before = {v: {*graph.needed([v])[0]} for v in found}
    after = {v: {*computed_from([c], graph.eqns)} for v, c in found.items()}
    made = {v: graph.producers[v] for v in found}

    tried, ending = set[frozenset[Start]](), True
    while found:

        def is_last(v: Var, found: Sequence[Var] = (*found,)) -> bool:
            """Return whether the same forward pass has no later value with a cotangent."""
            return not any(
                made[u] is not made[v] and made[v] in before[u] and made[u] not in after[v]
                for u in found
            )

        last = {v: c for v, c in found.items() if is_last(v)}
        # Those that no derivative changes are of one pass.
        together = [(v, c) for v, c in last.items() if not any(made[v] in after[u] for u in last)]
        deepest = sorted(last.items(), key=lambda start: -len(before[start[0]]))
        for group in filter(None, (together, *([start] for start in deepest))):
            results = [_result(graph, *start) for start in group]
            inner = [_result(graph, v, c) for v, c in found.items() if v not in last]
            for each in ([*results, *_between(graph, results, inner)], results, group):
                fits = len(each) <= _MOST_ENDS and frozenset(each) not in tried
                tried.add(frozenset(each))
                if fits and not (ending and _has_begun(graph, each)):
                    yield each
        # Where the last products have no derivative, that of the products before is tried.
        found = {v: c for v, c in found.items() if v not in last}
        ending = False


def _has_begun(graph: Graph, ends: Sequence[Start]) -> bool:
    """Return whether products of the same backward pass compute these cotangents."""
    results, cotangents = zip(*ends, strict=True)
    needed, _ = graph.needed(cotangents, given=results)
    return any(map(is_product, computed_from(results, needed)))


def _of_products(graph: Graph) -> Iterator[Start]:
    """Results of products that a later product differentiates: it reads an operand and `c`.

    Loops with products are differentiated by loops, which also read what the first ones save.
    """
    for eqn in filter(is_product, graph.eqns):
        shared = [*filter(is_var, eqn.invars), *(eqn.outvars if sub_jaxprs(eqn) else ())]
        readers = [
            user
            for a in shared
            for user in graph.users[a]
            if user.primitive is eqn.primitive
            and is_product(user)
            and graph.index[user] > graph.index[eqn]
        ]
        # Most models have no backward pass, and the walks below take long.
        others = {a for e in readers for a in e.invars if is_var(a) and a not in eqn.invars}
        if not any(_alike(c, v) for c in others for v in eqn.outvars):
            continue
        before, _ = graph.needed(eqn.outvars)
        needed = {a for e in before for a in (*e.invars, *e.outvars) if is_var(a)}
        taken = set[Var]()
        for v in eqn.outvars:
            users = graph.users[v]
            if sub_jaxprs(eqn) and users and all(user in readers for user in users):
                continue  # a loop saves it for the derivative
            # One that is read with both operands comes first: layers may share one of them.
            later = collections.Counter(
                c
                for user in readers
                for c in filter(is_var, user.invars)
                if _alike(c, v) and c not in needed and c not in taken
            )
            if not later:
                continue
            own = {a for e in computed_from([v], graph.eqns) for a in e.outvars}
            moved = own
            if len(eqn.outvars) > 1:
                moved = {a for e in computed_from(eqn.outvars, graph.eqns) for a in e.outvars}
            for c in sorted(later, key=lambda c: (-later[c], c not in own)):
                if c in moved or not any(map(is_product, graph.needed([c])[0])):
                    taken.add(c)
                    yield v, c
                    break


def _result(graph: Graph, v: Var, c: Var) -> Start:
    """The result of a model, for that of its last product: with a bias, or of another shape.

    Both change a cotangent by its shape only.
    """
    for _ in range(_MOST_AFTER):
        users = [e for e in graph.users[v] if len(e.outvars) == 1]
        adding = [e for e in users if e.primitive.name == "add" and _alike(e.outvars[0], v)]
        moving = [e for e in users if e.primitive.name in kinds.LAYOUT and len(e.invars) == 1]
        if len(users) > 1:
            return v, c
        if adding and c not in adding[0].outvars:
            (v,) = adding[0].outvars
        elif moving and (made := graph.producer(c, *kinds.LAYOUT)) and is_var(made.invars[0]):
            (end,), start = moving[0].outvars, made.invars[0]
            if not _alike(end, start):
                return v, c
            v, c = end, start
        else:
            return v, c
    return v, c


def _between(graph: Graph, ends: Sequence[Start], inner: Sequence[Start]) -> Iterator[Start]:
    """Values that a loss reads besides the last results, such as those of an encoder.

    Their cotangents are sums of one that is computed for the loss, and of one from `ends`.
    """
    moved = {v for e in computed_from([c for _, c in ends], graph.eqns) for v in e.outvars}
    for v, c in inner:
        while (made := graph.producer(c, "add", "add_any")) is not None:
            own = [a for a in made.invars if is_var(a) and a not in moved]
            if len(own) == 1:
                yield v, own[0]
            c = made.invars[0]  # the sum of those before
            if own or not is_var(c):
                break


def is_product(eqn: Eqn) -> bool:
    """Return whether an equation is a contraction, or a loop that has some."""
    inside = itertools.chain.from_iterable(map(names_in, sub_jaxprs(eqn)) if is_scan(eqn) else ())
    return not kinds.CONTRACTIONS.isdisjoint((eqn.primitive.name, *inside))


def is_scan(eqn: Eqn) -> bool:
    return eqn.primitive.name == "scan"


def _alike(one: Atom, other: Atom) -> bool:
    return one.aval.shape == other.aval.shape and one.aval.dtype == other.aval.dtype
