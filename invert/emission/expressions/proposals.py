"""Proposals of idioms: expressions over operands named by position."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.nouns import PLAIN
from invert.emission.python.syntax import number
from invert.ir.graph import Graph
from invert.ir.types import Atom, Eqn


@dataclasses.dataclass(frozen=True)
class Proposal:
    """An expression over operands named by position.

    **Arguments:**

    - `operands`: atoms of the body.
    - `eqns`: the equations that it replaces, for those with derivative rules of their own; found
        by matching otherwise.
    """

    expression: ast.expr
    operands: Sequence[Atom]
    hint: str = PLAIN
    flows: bool | str = False
    eqns: Sequence[Eqn] = ()


Row: TypeAlias = Callable[[Eqn, Graph, Writer], Iterator[Proposal]]


# The names of operands by position.
LETTERS = "abcdef"


def placeholder(i: int = 0) -> ast.expr:
    """The operand at a position."""
    return ast.Name(f"${LETTERS[i]}", ast.Load())


def axes_index(dims: Sequence[int], rank: int) -> ast.expr | None:
    """The index that moves axes to `dims`: `[..., None]` or `[:, None]`.

    Axes in front need none, as functions on several arrays add these.
    """
    new = [i not in dims for i in range(dims[0], rank)]
    if list(dims) != sorted(dims) or not any(new):
        return None
    if not any(new[: len(dims)]):
        return syntax.tuple_of([ast.Constant(...), *map(number, [None] * sum(new))])
    while not new[-1]:
        new.pop()
    return syntax.tuple_of([number(None) if added else ast.Slice() for added in new])
