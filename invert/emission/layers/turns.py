"""Finds layers that are called several times: in a row, or in turns with others: `a, b, a, b`.

All calls of a layer run under its name scope. Between two of them its value leaves the scope, or
leaves and enters that of a layer inside it. What each call computes is one copy of the layer. A
value that does not depend on the earlier calls, such as the keys of a memory that all of them
attend to, is computed once in the program; each copy gets its own equations for it, as where the
layer is written as one function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from invert._private.jax import rename_operands
from invert.emission.layers.cut import Path, common_prefix, scope_of
from invert.emission.layers.links import ordered, users_of
from invert.ir.graph import is_var
from invert.ir.order import postorder
from invert.ir.types import Atom, Eqn, Jaxpr, Var


@dataclasses.dataclass(frozen=True)
class Turns:
    """The calls of a layer.

    **Arguments:**

    - `scope`: its name scopes.
    - `owned`: the parameters that only it uses.
    - `calls`: for each, its equations; those at the same place correspond.
    """

    scope: Path
    owned: Collection[Var]
    calls: Sequence[Sequence[Eqn]]


def find(
    jaxpr: Jaxpr,
    parameters: Collection[Var],
    scopes: Iterable[Path],
    refused: Collection[Path] = (),
) -> tuple[Jaxpr, list[Turns]]:
    """The program with equations of their own for all calls of layers in turns, and these layers.

    Whether the calls compute the same is not examined, apart from their primitives.

    **Arguments:**

    - `scopes`: those in which parameters are used several times.
    - `refused`: those of which the calls differ.
    """
    found: list[Turns] = []
    base = common_prefix(s for s in map(scope_of, jaxpr.eqns) if s)
    paths = {s[:n] for s in scopes for n in range(len(base) + 1, len(s) + 1)}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        if path in refused or any(path[: len(t.scope)] == t.scope for t in found):
            continue
        visits = _Visits(jaxpr, path, parameters)
        eqns, calls = visits.calls()
        if calls:
            jaxpr = jaxpr.replace(eqns=eqns)
            found.append(Turns(path, visits.owned, calls))
    return jaxpr, found


class _Visits:
    """The equations of a scope, by how often values left and entered it before."""

    def __init__(self, jaxpr: Jaxpr, path: Path, parameters: Collection[Var]):
        self.eqns: list[Eqn] = list(jaxpr.eqns)
        self.results = {v for v in jaxpr.outvars if is_var(v)}
        self.makers: dict[Atom, int] = {v: i for i, e in enumerate(self.eqns) for v in e.outvars}
        self.users = users_of(self.eqns)
        within = [scope_of(eqn)[: len(path)] == path for eqn in self.eqns]
        self.owned = {
            v
            for v in parameters
            if v not in self.results and all(within[i] for i in self.users.get(v, ()))
        }
        # Others are arguments, such as the latents that the first call gets.
        # What leaves the scope is the result of a call: of the one with a first state of zeros.
        fixed: dict[Atom, bool] = dict.fromkeys(self.owned, True)
        scope = {i: 0 for i, is_within in enumerate(within) if is_within}
        self.constant: list[bool] = []
        for i, eqn in enumerate(self.eqns):
            constant = not eqn.effects and all(a in fixed for a in _read(eqn))
            own = constant and any(fixed[a] for a in _read(eqn))
            self.constant.append(constant and not (own and self._leaves(i, scope)))
            if self.constant[-1]:
                fixed |= dict.fromkeys(eqn.outvars, own)
        self.path, self.inside = path, self._under(path)

    def _under(self, path: Path) -> set[int]:
        """The equations in a scope that depend on more than its parameters."""
        scopes = enumerate(map(scope_of, self.eqns))
        return {i for i, s in scopes if not self.constant[i] and s[: len(path)] == path}

    def calls(self) -> tuple[list[Eqn], list[list[Eqn]]]:
        """The equations of the program, and those of each call, the first call first."""
        visits = self._visits(self.inside)
        if max(visits.values(), default=0):
            return self._parted(dict.fromkeys(self.inside, 0), visits)
        inner = (scope_of(self.eqns[i])[: len(self.path) + 1] for i in sorted(self.inside))
        for path in dict.fromkeys(inner):
            visits = self._visits(self._under(path)) if path != self.path else {}
            parts = {i: visits.get(i, 0) for i in self.inside}
            if max(parts.values()) and (found := self._parted(parts, parts))[1]:
                return found
        return self.eqns, []

    def _parted(
        self, parts: Mapping[int, int], visits: Mapping[int, int]
    ) -> tuple[list[Eqn], list[list[Eqn]]]:
        """The calls, if they compute the same.

        **Arguments:**

        - `parts`: for each equation of the scope, the part of it that a call does not leave.
        - `visits`: for those whose values leave a part, the number of their call.
        """
        leaving: dict[int, list[int]] = {}
        for i in sorted(self.inside):
            if self._leaves(i, parts):
                leaving.setdefault(visits[i], []).append(i)
        calls = [
            postorder(
                leaving[n], lambda i: [j for j in self._before(i) if parts.get(j) == parts[i]]
            )
            for n in sorted(leaving)
        ]
        kinds = {tuple(self.eqns[i].primitive.name for i in call) for call in calls}
        if len(calls) < 2 or len(kinds) > 1 or any(self.eqns[i].effects for i in self.inside):
            return self.eqns, []
        nodes = list(enumerate(self.eqns))
        made: list[list[Eqn]] = []
        taken: set[int] = set()
        for call in calls:
            again: dict[Var, Atom] = {}
            first = min((i for i in call if i not in taken), default=call[0])
            own: list[Eqn] = []
            for i in call:
                eqn = rename_operands(self.eqns[i], again)
                if i in taken:
                    new = [Var(v.aval) for v in eqn.outvars]
                    again |= zip(eqn.outvars, new, strict=True)
                    eqn = eqn.replace(outvars=new)
                    nodes.append((first, eqn))
                else:
                    nodes[i] = (i, eqn)
                own.append(eqn)
            made.append(own)
            taken.update(call)
        return ordered(sorted(nodes, key=lambda node: node[0])), made

    def _visits(self, inside: Collection[int]) -> dict[int, int]:
        """For each equation that depends on some, how often values entered these before."""
        visits: dict[int, int] = {}
        for i in range(len(self.eqns)):
            if self.constant[i]:
                continue
            own = i in inside
            before = [(j, visits[j]) for j in self._before(i) if j in visits]
            if own or before:
                entered = (n + (own and j not in inside) for j, n in before)
                visits[i] = max(entered, default=0)
        return visits

    def _before(self, i: int) -> Iterator[int]:
        return (self.makers[a] for a in _read(self.eqns[i]) if a in self.makers)

    def _leaves(self, i: int, parts: Mapping[int, int]) -> bool:
        """Return whether something outside of its part uses a result of an equation."""
        users = (j for v in self.eqns[i].outvars for j in self.users.get(v, ()))
        return any(parts.get(j) != parts[i] for j in users) or any(
            v in self.results for v in self.eqns[i].outvars
        )


def _read(eqn: Eqn) -> Iterator[Atom]:
    return (a for a in eqn.invars if is_var(a))
