"""Loop carries that are equal in every step, or the same in all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from itertools import compress
from typing import TypeVar

from invert._private.jax import close_like, open_jaxpr, rename
from invert.ir.closed_over import with_closed_over
from invert.ir.loops import WhileParts
from invert.ir.merging import atom_key, merge_equations, type_key
from invert.ir.types import AnyJaxpr, Atom, Eqn, Jaxpr, Var

_A = TypeVar("_A", bound=Atom)


def equal_carries(parts: WhileParts, starts: Sequence[Hashable]) -> tuple[dict[int, int], Jaxpr]:
    """Map carries to equal later ones; also return the body that assumes this.

    Carries of one type and start are assumed equal. If the body then gives them different values,
    fewer are assumed equal.

    **Arguments:**

    - `starts`: a key of each initial value, the same only for equal values.
    """
    kinds: list[Hashable] = list(zip(map(type_key, parts.carried), starts, strict=True))
    while True:
        # TensorFlow puts its own counters before those of the author.
        last = {kind: i for i, kind in enumerate(kinds)}
        leaders = [last[kind] for kind in kinds]
        same = {i: k for i, k in enumerate(leaders) if i != k}
        body = open_jaxpr(sharing(parts, same).body)
        if not same:
            return same, body
        body = merge_equations(body, with_jaxprs=True)
        kinds = list(zip(leaders, map(atom_key, body.outvars), strict=True))
        if len(set(kinds)) == len(last):
            return same, body


def sharing(parts: WhileParts, same: Mapping[int, int]) -> WhileParts:
    """Make a loop read one carry in place of its equals, which become dead."""

    def renamed(program: AnyJaxpr, variables: Sequence[Var]) -> AnyJaxpr:
        names = {variables[i]: variables[k] for i, k in same.items()}
        return close_like(program, rename(open_jaxpr(program), names))

    if not same:
        return parts
    return dataclasses.replace(
        parts, cond=renamed(parts.cond, parts.tested), body=renamed(parts.body, parts.carried)
    )


def with_unchanged_closed_over(eqn: Eqn) -> tuple[Eqn, Mapping[Atom, Atom]]:
    """A `while` that closes over the carries that its body returns unchanged.

    **Returns:** the loop, and the initial value for each result that equals it.
    """
    parts = WhileParts.of(eqn)
    outs = open_jaxpr(parts.body).outvars
    unchanged = [v is out for v, out in zip(parts.carried, outs, strict=True)]
    if not any(unchanged):
        return eqn, {}
    changed = [not u for u in unchanged]

    def moved(values: Sequence[_A], constants: int) -> list[_A]:
        carry = values[constants:]
        held, others = compress(carry, unchanged), compress(carry, changed)
        return [*values[:constants], *held, *others]

    test, body = open_jaxpr(parts.cond), open_jaxpr(parts.body)
    test = test.replace(invars=moved(test.invars, len(parts.cond_consts)))
    body = body.replace(
        invars=moved(body.invars, len(parts.body_consts)), outvars=[*compress(outs, changed)]
    )
    held = [*compress(parts.init, unchanged)]
    loop = WhileParts(
        close_like(parts.cond, test),
        close_like(parts.body, body),
        [*parts.cond_consts, *held],
        [*parts.body_consts, *held],
        [*compress(parts.init, changed)],
    ).put_into(eqn)
    starts = zip(compress(eqn.outvars, unchanged), held, strict=True)
    return with_closed_over(loop.replace(outvars=[*compress(eqn.outvars, changed)])), dict(starts)
