"""Several equations as one expression: the first proposal of an idiom that is proved.

A proposed call is traced and matched with the body like the template of a pattern; no interior
value may be used elsewhere.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Set

import jax.numpy as jnp

from invert._errors import optional_step
from invert.emission.expressions.idioms import ROWS, SIZES
from invert.emission.expressions.proposals import LETTERS, Proposal, Row
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.nouns import PLAIN
from invert.ir.avals import is_weak
from invert.ir.graph import Graph, is_var
from invert.ir.match import Match
from invert.ir.order import reached
from invert.ir.types import Atom, Eqn, Var


@dataclasses.dataclass(frozen=True)
class Group:
    """Equations written as one expression.

    **Arguments:**

    - `expression`: over the tokens of `leaves`.
    - `covered`: ids of the other equations that it replaces, before the last.
    """

    expression: ast.expr
    leaves: tuple[Atom, ...]
    covered: frozenset[int]
    hint: str = PLAIN
    flows: bool | str = False


def groups_of(graph: Graph, writer: Writer) -> dict[int, Group]:
    """The groups of a body, by the id of their last equation.

    Searched backwards, so that the largest group wins.
    """
    finder = _Finder(graph, writer)
    # Plain text has one expression per equation, but sizes have no expression of their own.
    rows = SIZES if writer.plain else ROWS
    for eqn in reversed(graph.eqns):
        if id(eqn) not in finder.taken:
            finder.add(eqn, rows.get(eqn.primitive.name, ()))
    return finder.groups


def replaced(graph: Graph, groups: Mapping[int, Group]) -> set[int]:
    """The ids of the equations that groups replace, those that several of them share among them."""
    found = {i for group in groups.values() for i in group.covered}
    leaves = {a for group in groups.values() for a in group.leaves}
    inside = found | groups.keys()
    for eqn in reversed(graph.eqns):
        users = [u for v in eqn.outvars for u in graph.users.get(v, ())]
        kept = any(v in leaves or v in graph.results for v in eqn.outvars)
        if users and not kept and _may_be_twice(eqn) and inside.issuperset(map(id, users)):
            inside.add(id(eqn))
            found.add(id(eqn))
    return found


@dataclasses.dataclass
class _Finder:
    """Finds the groups of a body.

    **Attributes:**

    - `taken`: ids of the equations in groups.
    - `leaves`: the values that groups use; these may precede the operands of their equations.
    """

    graph: Graph
    writer: Writer
    groups: dict[int, Group] = dataclasses.field(default_factory=dict)
    taken: set[int] = dataclasses.field(default_factory=set)
    leaves: set[Var] = dataclasses.field(default_factory=set)

    def add(self, eqn: Eqn, rows: tuple[Row, ...]) -> None:
        """Add the group that ends with an equation, if some row proposes one."""
        step, defects = f"an idiom for {eqn.primitive.name}", self.writer.prover.defects
        for row in rows:
            group = optional_step(step, defects, self._first, row, eqn)
            if group is not None:
                self.groups[id(eqn)] = group
                self.leaves.update(filter(is_var, group.leaves))
                self.taken |= group.covered | {id(eqn)}
                return

    def _first(self, row: Row, eqn: Eqn) -> Group | None:
        for proposal in row(eqn, self.graph, self.writer):
            if (group := self._try(proposal, eqn)) is not None:
                return group
        return None

    def _try(self, proposal: Proposal, eqn: Eqn) -> Group | None:
        variables = tuple(v for v in proposal.operands if isinstance(v, Var))
        operands = {f"${c}": v for c, v in zip(LETTERS[: len(variables)], variables, strict=True)}
        prove = self._proved if proposal.eqns else self._matched
        covered = prove(proposal, operands, eqn)
        if covered is None:
            return None
        ids = frozenset(map(id, covered))
        if ids & self.taken:
            return None
        names = {t: ast.Name(self.writer.token(v), ast.Load()) for t, v in operands.items()}
        expression = syntax.substitute(proposal.expression, names)
        return Group(expression, variables, ids - {id(eqn)}, proposal.hint, proposal.flows)

    def _proved(self, proposal: Proposal, operands: Mapping[str, Var], eqn: Eqn) -> Set[Eqn] | None:
        """The equations that a proposal names, if it alone computes the same."""
        covered = set(proposal.eqns)
        if any(self._is_used_outside(e, covered, self.leaves) for e in covered - {eqn}):
            return None
        holds = self.writer.prover.holds
        return covered if holds(proposal.expression, operands, proposal.eqns, eqn.outvars) else None

    def _matched(
        self, proposal: Proposal, operands: Mapping[str, Var], eqn: Eqn
    ) -> Set[Eqn] | None:
        """The equations that a proposal traces to, in both settings of x64."""
        variables, prover = [*operands.values()], self.writer.prover
        covered: Set[Eqn] | None = None
        for template in prover.traces(
            proposal.expression, [*operands], [v.aval for v in variables]
        ):
            if template is None:
                return None
            body = prover.graph(template)
            result = body.jaxpr.outvars
            if len(result) != 1 or not is_var(result[0]) or result[0] not in body.producers:
                return None
            match = Match(body, self.graph)
            if not match.seed(body.producers[result[0]], eqn) or len(match.eqns) != len(body.eqns):
                return None
            if match.atoms.get(result[0]) is not eqn.outvars[0] or match.inputs() != variables:
                return None
            # An operand may also be what an equation of the match makes.
            inside = set(match.eqns.values())
            shared = self._shared(inside, eqn, {*self.leaves, *variables})
            if not all(map(_may_be_twice, shared)):
                return None
            covered = inside - shared
            if len(match.eqns) < 2 and eqn.primitive.name != "dim_as_value":
                return None
            if is_weak(result[0]) != is_weak(eqn.outvars[0]):
                return None
            steps = sorted(inside, key=lambda e: self.graph.index[e])
            target = self.graph.jaxpr.replace(
                constvars=[], invars=variables, outvars=eqn.outvars, eqns=steps
            )
            if not prover.derives_alike(template, target):
                return None
        return covered

    def _shared(self, inside: Set[Eqn], last: Eqn, leaves: Set[Var]) -> Set[Eqn]:
        """The equations whose interior results are used elsewhere, and those that they need."""
        ends = (e for e in inside if e is not last and self._is_used_outside(e, inside, leaves))
        return reached(ends, lambda e: inside & {*self.graph.makers(e.invars)}).keys()

    def _is_used_outside(self, eqn: Eqn, inside: Set[Eqn], leaves: Set[Var]) -> bool:
        graph = self.graph
        return any(
            v in graph.results or v in leaves or not inside >= {*graph.users.get(v, ())}
            for v in eqn.outvars
        )


# The steps that let indices count from the end, and join those of several axes.
_INDICES = frozenset(("lt", "add", "select_n", "concatenate"))


def _may_be_twice(eqn: Eqn) -> bool:
    """Return whether an equation may be written twice, as broadcasts and steps of indices."""
    if eqn.primitive.name == "broadcast_in_dim":
        return True
    whole = all(not jnp.issubdtype(a.aval.dtype, jnp.inexact) for a in (*eqn.invars, *eqn.outvars))
    return eqn.primitive.name in _INDICES and whole
