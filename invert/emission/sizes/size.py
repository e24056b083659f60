"""Sizes of open dimensions: one program for all of them, found by comparing a few.

A program is recovered at fixed sizes. The same program at other sizes differs in numbers only;
each such number is a polynomial, linear in every open size, through the sizes that were tried.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from invert.emission.python import syntax

# A product of open sizes, as their names: () is the constant term.
Term = tuple[str, ...]


class Size(int):
    """A size that depends on open dimensions.

    It is the size of one of the programs, so whatever reads a shape reads it; the terms say what
    it is in the others.
    """

    terms: Mapping[Term, int]

    def __new__(cls, value: int, terms: Mapping[Term, int]) -> Size:
        self = super().__new__(cls, value)
        self.terms = dict(terms)
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    @property
    def dimension(self) -> str | None:
        """The name of the open dimension that this size is; `None` where it is more than one."""
        if len(self.terms) == 1:
            ((term, factor),) = self.terms.items()
            if len(term) == 1 and factor == 1:
                return term[0]
        return None

    @property
    def dimensions(self) -> frozenset[str]:
        return frozenset(d for term in self.terms for d in term)

    def expression(self) -> ast.expr:
        """`2 * batch + 1`, with the token of each dimension."""
        total: ast.expr | None = None
        for term, factor in sorted(self.terms.items(), key=lambda t: -len(t[0])):
            part: ast.expr | None = None
            for dimension in term:
                this = ast.Name(dimension_token(dimension), ast.Load())
                part = this if part is None else syntax.infix(part, "*", this)
            if part is None:
                part = syntax.number(abs(factor))
            elif abs(factor) != 1:
                part = syntax.infix(part, "*", syntax.number(abs(factor)))
            if total is None:
                total = part if factor > 0 else syntax.prefix("-", part)
            else:
                total = syntax.infix(total, "+" if factor > 0 else "-", part)
        return total if total is not None else syntax.number(0)

    def text(self) -> str:
        """As a jaxtyping dimension: `2*batch+1`."""
        node = self.expression()
        for found in syntax.names_in(node):
            found.id = found.id.removeprefix(_DIMENSION)
        return syntax.text_of(node).replace(" ", "")


_DIMENSION = "$dim:"


def dimension_token(dimension: str) -> str:
    """What stands for the size of an open dimension until it has a name."""
    return _DIMENSION + dimension


def dimension_of(token: str) -> str | None:
    """The dimension that a token stands for."""
    return token.removeprefix(_DIMENSION) if token.startswith(_DIMENSION) else None


# A size is a product of no more than this many open ones. Each more of them doubles the number of
# programs that are recovered, until there are as many open dimensions.
_DEGREE = 3


class Points:
    """The sizes at which a program is looked at: corners of a box.

    **Arguments:**

    - `dimensions`: names of the open dimensions.
    - `low`, `high`: two sizes for each of them.
    """

    def __init__(self, dimensions: Sequence[str], low: Sequence[int], high: Sequence[int]):
        self.dimensions = tuple(dimensions)
        self.low, self.high = tuple(low), tuple(high)
        self.corners = [
            corner
            for count in range(min(len(self.dimensions), _DEGREE) + 1)
            for corner in itertools.combinations(range(len(self.dimensions)), count)
        ]

    def sizes(self, corner: Sequence[int]) -> dict[str, int]:
        """The size of each dimension at a corner, given by the dimensions that are high."""
        return {
            name: self.high[i] if i in corner else self.low[i]
            for i, name in enumerate(self.dimensions)
        }

    def terms(self, values: Sequence[int]) -> dict[Term, int] | None:
        """The polynomial through the values at the corners; `None` where a factor is a fraction."""
        table = dict(zip(self.corners, map(Fraction, values), strict=True))
        found = self._through(table, len(self.dimensions))
        kept = {term: factor for term, factor in found.items() if factor}
        if any(factor.denominator != 1 for factor in kept.values()):
            return None
        return {term: int(factor) for term, factor in kept.items()}

    def _through(
        self, table: Mapping[tuple[int, ...], Fraction], count: int
    ) -> dict[Term, Fraction]:
        """The polynomial in the first `count` dimensions: by the last of them, a polynomial at 0
        and a slope, both in the others."""
        if not table:
            return {}
        if not count:
            return {(): table[()]}
        last = count - 1
        base = {corner: value for corner, value in table.items() if last not in corner}
        step = self.high[last] - self.low[last]
        ends = {corner[:-1]: value for corner, value in table.items() if last in corner}
        slope = self._through({c: (v - base[c]) / step for c, v in ends.items()}, last)
        level = {c: v - self._at(slope, c) * self.low[last] for c, v in base.items()}
        found = self._through(level, last)
        for term, factor in slope.items():
            found[(*term, self.dimensions[last])] = factor
        return found

    def _at(self, terms: Mapping[Term, Fraction], corner: Sequence[int]) -> Fraction:
        """The value of a polynomial at a corner."""
        sizes = self.sizes(corner)
        return sum((f * math.prod(sizes[d] for d in t) for t, f in terms.items()), Fraction(0))
