"""Hoists values that the first of several blocks computes for all of them.

In a T5, the first block looks up the bias that all blocks add to their scores. Hoisted, the bias is
a layer before the blocks, and every block takes it as an argument.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence, Set

from invert._private.jax import names_of, with_names
from invert.emission.layers.cut import Path, common_prefix
from invert.emission.layers.library_names import row_of
from invert.emission.layers.links import users_of
from invert.emission.python.naming import telling
from invert.ir.graph import computed_from, is_var
from invert.ir.types import Atom, Eqn, Jaxpr, Var

# The name of what is only added to the scores of attentions.
_BIAS = "attention_bias"


def hoisted(jaxpr: Jaxpr, parameters: Mapping[Var, Path]) -> tuple[Jaxpr, Mapping[Var, Path]]:
    """The program and parameter names, with such values in their own scopes.

    **Arguments:**

    - `parameters`: the variables of parameters with their names.
    """
    return _Hoisting(jaxpr, parameters).run()


class _Hoisting:
    def __init__(self, jaxpr: Jaxpr, parameters: Mapping[Var, Path]):
        self.jaxpr, self.parameters = jaxpr, parameters
        self.eqns: Sequence[Eqn] = jaxpr.eqns
        self.scopes: list[Path] = [tuple(names_of(e)) for e in self.eqns]
        self.users = users_of(self.eqns)
        self.makers = {v: i for i, e in enumerate(self.eqns) for v in e.outvars}
        # The values that depend on a parameter.
        later = computed_from(parameters, self.eqns)
        self.dependent: set[Atom] = {*parameters, *(v for e in later for v in e.outvars)}

    def run(self) -> tuple[Jaxpr, Mapping[Var, Path]]:
        names = dict(self.parameters)
        moved: dict[int, Path] = {}
        for i in range(len(self.eqns)):
            block = self._block(i)
            cone = self._cone(i, block) if block and i not in moved else set[int]()
            own = {a for k in cone for a in self.eqns[k].invars if is_var(a) and a in names}
            if not own or not all(cone.issuperset(self.users[v]) for v in own):
                continue
            name = self._name(i, block, {names[v] for v in own})
            moved |= dict.fromkeys(cone, (*block[:-1], name))
            for v in own:
                above = [n for n in names[v] if row_of(n) == row_of(block[-1])]
                place = names[v].index(above[0]) if above else 0
                names[v] = (*names[v][:place], name, names[v][-1])
        if not moved:
            return self.jaxpr, self.parameters
        eqns = [with_names(e, moved.get(i, self.scopes[i])) for i, e in enumerate(self.eqns)]
        return self.jaxpr.replace(eqns=eqns), names

    def _block(self, i: int) -> Path:
        """The layer of a row that computes a value for itself and another.

        It is `()` if there is none.
        """
        users = [self.scopes[k] for v in self.eqns[i].outvars for k in self.users[v]]
        for scope in users:
            common = len(common_prefix((self.scopes[i], scope)))
            mine, theirs = self.scopes[i][common:], scope[common:]
            if mine and theirs and row_of(mine[0]) == row_of(theirs[0]) != mine[0]:
                block = self.scopes[i][: common + 1]
                return block if any(s[: len(block)] == block for s in users) else ()
        return ()

    def _cone(self, last: int, block: Path) -> set[int]:
        """The equations of a block that compute a value.

        There are none if the value depends on parameters outside the block. It may depend on
        arguments of the program, such as a mask.
        """
        found: set[int] = set()
        pending = [last]
        while pending:
            i = pending.pop()
            if i in found:
                continue
            found.add(i)
            for a in filter(is_var, self.eqns[i].invars):
                maker = self.makers.get(a)
                if maker is not None and self.scopes[maker][: len(block)] == block:
                    pending.append(maker)
                elif a not in self.parameters and a in self.dependent:
                    return set()
        return found

    def _name(self, i: int, block: Path, own: Set[Path]) -> str:
        """The name of a layer for the value of an equation.

        It is the name of the layer that owns exactly its parameters, after the word that
        distinguishes this row of layers.
        """
        above = common_prefix([p[:-1] for p in own])
        every = {p for p in self.parameters.values() if {*above[-2:]} <= {*p[:-1]}}
        added = {self.eqns[k].primitive.name for v in self.eqns[i].outvars for k in self.users[v]}
        name = next(iter(own))[-1]
        if above and every == own and row_of(above[-1]) != row_of(block[-1]):
            name = above[-1]
        elif added == {"add"}:
            name = _BIAS
        names = {s[len(block) - 1] for s in self.scopes if len(s) >= len(block)}
        rows = collections.Counter(map(row_of, names))
        said = telling(row_of(block[-1]), sorted(row for row, n in rows.items() if n > 1))
        return f"{said}_{name}" if said else name
