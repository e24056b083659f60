"""Outlines: candidates for the operands of a template, found without regard to types.

A template has to be traced at types, which are unknown until its operands are found. So a template
at example types is matched by primitives alone. Shape and dtype changes are skipped, and literals
and parameters are not compared. Both operand orders of commutative equations are tried. The outline
gives the types to try; a match is the proof.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from invert.ir import kinds
from invert.ir.graph import Graph, is_var
from invert.ir.match import Miss, contrast, other_params, same_value
from invert.ir.types import Atom, Eqn, Literal, Value, Var

_COMMUTATIVE = kinds.COMMUTATIVE | {"eq", "ne"}
_MAX_STEPS = 4096
_MAX_DEPTH = 100


@dataclasses.dataclass
class Outline:
    """A template laid over a program.

    **Attributes:**

    - `operands`: the candidates for each argument of the template. These are the atom that is used,
        then those that it was broadcast, reshaped or converted from.
    - `eqns`: equations of the template -> equations of the program.
    - `commuted`: positions of the template's equations whose operands are swapped.
    """

    operands: dict[Atom, list[Atom]] = dataclasses.field(default_factory=dict)
    eqns: dict[Eqn, Eqn] = dataclasses.field(default_factory=dict)
    commuted: frozenset[int] = frozenset()

    def copy(self) -> Outline:
        return Outline(dict(self.operands), dict(self.eqns), self.commuted)


@functools.lru_cache(maxsize=1024)
def heads(template: Graph) -> tuple[Eqn, ...]:
    """The equations that produce the results, up to changes of shape and dtype."""
    eqns: dict[Eqn, None] = {}
    for v in template.jaxpr.outvars:
        last = _sources(template, v)[-1]
        if (eqn := template.producer(last) or template.producer(v)) is not None:
            eqns[eqn] = None
    return tuple(eqns)


def outline(template: Graph, graph: Graph, eqn: Eqn, misses: list[Miss] | None) -> Outline | None:
    """An outline of `template` with `eqn` as one of its heads."""
    for head in heads(template):
        if head.primitive is eqn.primitive and len(head.invars) == len(eqn.invars):
            search = _Search(template, graph, misses)
            if (outlined := search.run(head, eqn)) is not None:
                return outlined
    return None


def parameters_differ(template: Graph, found: Outline) -> Miss | None:
    """The first equation, in program order, whose parameters differ from the template's.

    A match would only report types of later results, which differ as a consequence.
    """
    for eqn in template.eqns:
        target = found.eqns.get(eqn)
        if target is not None and (sides := other_params(eqn, target)) is not None:
            return Miss(len(found.eqns), target, contrast(sides))
    return None


def _sources(graph: Graph, atom: Atom) -> list[Atom]:
    """An atom, then the sources of its broadcasts, reshapes and conversions."""
    atoms = [atom]
    while (eqn := graph.producer(atoms[-1], *kinds.SHAPING)) is not None:
        atoms.append(eqn.invars[0])
    return atoms


def shaped(graph: Graph, atom: Atom) -> Iterator[Atom]:
    """A variable and those derived from it by broadcasts, reshapes and conversions."""
    pending = [atom]
    while pending:
        yield (atom := pending.pop())
        for user in graph.users.get(atom, ()):
            if user.primitive.name in kinds.SHAPING:
                pending.extend(user.outvars)


def _same(a: Atom, b: Atom) -> bool:
    return a is b or (
        isinstance(a, Literal) and isinstance(b, Literal) and same_value(a.val, b.val)
    )


# An equation of the program, an atom of the template, and its counterpart in that equation.
_Pairs: TypeAlias = list[tuple[Eqn, Atom, Atom]]


class _Search:
    def __init__(self, template: Graph, graph: Graph, misses: list[Miss] | None):
        self.template, self.graph, self.misses = template, graph, misses
        self.steps = 0

    def run(self, head: Eqn, eqn: Eqn) -> Outline | None:
        """The first outline that covers every equation of the template, otherwise the largest."""
        best: Outline | None = None
        wanted = [e for e in self.template.eqns if e.primitive.name not in kinds.SHAPING]
        for outlined in self._paired(head, eqn, [], Outline()):
            # Equations that the head does not depend on: other results, from operands to users.
            for other in (*heads(self.template), *wanted):
                if other not in outlined.eqns:
                    outlined = self._extended(other, outlined)
            missing = [v for v in self.template.jaxpr.invars if v not in outlined.operands]
            if missing:
                number = self.template.jaxpr.invars.index(missing[0])
                self._miss(outlined, eqn, f"no value matches operand {number} of the pattern")
            elif best is None or len(outlined.eqns) > len(best.eqns):
                best = outlined
            if best is outlined and all(e in outlined.eqns for e in wanted):
                break
        return best

    def _extended(self, eqn: Eqn, found: Outline) -> Outline:
        for atom in eqn.invars:
            for known in self._known(atom, found):
                for value in shaped(self.graph, known):
                    for user in self.graph.users.get(value, ()):
                        same = user.primitive is eqn.primitive
                        if same and all(user is not e for e in found.eqns.values()):
                            new = next(self._paired(eqn, user, [], found.copy()), None)
                            if new is not None:
                                return new
        return found

    def _known(self, atom: Atom, found: Outline) -> Sequence[Var]:
        """The program's variables for a value of the template, where known."""
        last = _sources(self.template, atom)[-1]
        if not is_var(last):
            return ()
        if last in found.operands:
            return [a for a in found.operands[last] if is_var(a)]
        eqn = self.template.producer(last)
        target = None if eqn is None else found.eqns.get(eqn)
        return () if eqn is None or target is None else [target.outvars[eqn.outvars.index(last)]]

    def _walk(self, pairs: _Pairs, found: Outline, depth: int) -> Iterator[Outline]:
        """All outlines that extend `found` by these pairs."""
        while pairs:
            user, atom, value = pairs.pop()
            self.steps += 1
            if self.steps > _MAX_STEPS:
                return
            last, sources = _sources(self.template, atom)[-1], _sources(self.graph, value)
            if not is_var(last) and not is_var(sources[-1]):
                continue
            if is_var(last) and last in self.template.consts:
                continue
            eqn = self.template.producer(last)
            if is_var(last) and eqn is None:
                known = found.operands.get(last, sources)
                found.operands[last] = [a for a in known if any(_same(a, b) for b in sources)]
                if not found.operands[last]:
                    reason = "one operand of the pattern matches two different values"
                    return self._miss(found, user, reason)
                continue
            target = self.graph.producer(sources[-1])
            if (
                eqn is None
                or target is None
                or found.eqns.get(eqn, target) is not target
                or eqn.primitive is not target.primitive
                or len(eqn.invars) != len(target.invars)
            ):
                return self._miss(found, user, self._differ(last, sources[-1]))
            if eqn in found.eqns:
                continue
            if eqn.primitive.name in _COMMUTATIVE and depth < _MAX_DEPTH:
                yield from self._paired(eqn, target, pairs, found, depth + 1)
                return
            found.eqns[eqn] = target
            pairs += [(target, a, b) for a, b in zip(eqn.invars, target.invars, strict=True)]
        yield found

    def _paired(
        self, eqn: Eqn, target: Eqn, pairs: _Pairs, found: Outline, depth: int = 0
    ) -> Iterator[Outline]:
        """Extend `found` by a pair of equations, in both operand orders if they commute."""
        found.eqns[eqn] = target
        orders = [target.invars]
        if eqn.primitive.name in _COMMUTATIVE:
            orders.append(list(reversed(target.invars)))
        for number, operands in enumerate(orders):
            new = found.copy()
            if number:
                new.commuted |= {self.template.index[eqn]}
            laid = [(target, a, b) for a, b in zip(eqn.invars, operands, strict=True)]
            yield from self._walk([*pairs, *laid], new, depth)

    def _differ(self, atom: Atom, value: Value) -> str:
        ours, theirs = self._said(self.template, atom), self._said(self.graph, value)
        return contrast((ours, theirs))

    def _said(self, graph: Graph, atom: Atom) -> str:
        if not is_var(atom):
            return str(atom.val)
        eqn = graph.producer(atom)
        return f"an argument of type {atom.aval}" if eqn is None else eqn.primitive.name

    def _miss(self, found: Outline, eqn: Eqn, reason: str) -> None:
        if self.misses is not None:
            self.misses.append(Miss(len(found.eqns), eqn, reason))
