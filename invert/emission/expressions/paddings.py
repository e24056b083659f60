"""Idioms of `jnp.pad` that fill the border with elements of the array: `mode="reflect"`."""

from __future__ import annotations

from collections.abc import Iterator

from invert.emission.expressions import literals
from invert.emission.expressions.proposals import Proposal, placeholder
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.syntax import call, number
from invert.ir.graph import Graph, is_var
from invert.ir.sizes import is_open
from invert.ir.types import Atom, Eqn, Var

_MODES = ("reflect", "symmetric", "wrap", "edge")
# What makes the border from the array.
_STEPS = ("slice", "rev", "broadcast_in_dim", "reshape", "squeeze")


def padded(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.pad(x, ((0, 0), (2, 2)), mode="reflect")`: an array joined with parts of itself.

    Each axis is padded by one or two joins, so the innermost array is tried first.
    """
    found: list[tuple[Var, list[tuple[int, int]]]] = []
    widths = [(0, 0)] * len(eqn.outvars[0].aval.shape)
    join: Eqn | None = eqn
    while join is not None and (place := _padded_operand(join, graph)) is not None:
        axis = join.params["dimension"]
        sizes = [a.aval.shape[axis] for a in join.invars]
        border = *sizes[:place], *sizes[place + 1 :]
        x = join.invars[place]
        if any(map(is_open, border)) or not is_var(x):
            break
        low, high = widths[axis]
        widths[axis] = low + sum(sizes[:place]), high + sum(sizes[place + 1 :])
        found.append((x, [*widths]))
        join = graph.producer(x, "concatenate")
    for x, own in reversed(found):
        pairs = syntax.tuple_of(literals.shape(pair) for pair in own)
        for mode in _MODES:
            yield Proposal(call("jnp.pad", placeholder(), pairs, mode=number(mode)), (x,), "padded")


def _padded_operand(join: Eqn, graph: Graph) -> int | None:
    """The place of the operand of which all others are parts."""
    for place, x in enumerate(join.invars):
        others = join.invars[:place] + join.invars[place + 1 :]
        if others and all(_is_part(graph, a, x) for a in others):
            return place
    return None


def _is_part(graph: Graph, atom: Atom, x: Atom) -> bool:
    while (made := graph.producer(atom, *_STEPS)) is not None:
        atom = made.invars[0]
        if atom is x:
            return True
    return False
