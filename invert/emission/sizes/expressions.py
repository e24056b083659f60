"""Expressions of open dimensions, which have names in the text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from invert._private.jax import DimFactor, dim_terms
from invert.emission.python import syntax
from invert.ir.sizes import DimSize, Shape, is_open, linear

_DIMENSION = "$dim:"


def dimension_token(dimension: str) -> str:
    """A placeholder for the size of an open dimension until it has a name."""
    return _DIMENSION + dimension


def dimension_of(token: str) -> str | None:
    """The dimension that a token represents."""
    return token.removeprefix(_DIMENSION) if token.startswith(_DIMENSION) else None


def dimension_sources(arrays: Sequence[tuple[ast.expr, Shape]]) -> dict[str, ast.expr]:
    """The expression of each dimension by the shape of an array: `x.shape[0]`.

    If no axis is just the dimension, it is computed from one that is linear in it.
    """
    found: dict[str, ast.expr] = {}
    for exact in (True, False):
        for value, shape in arrays:
            for axis, size in enumerate(shape):
                if (parts := linear(size)) is None or parts[0] in found:
                    continue
                name, slope, offset = parts
                if exact != ((slope, offset) == (1, 0)) or slope < 1:
                    continue
                source = syntax.item(syntax.field(value, "shape"), syntax.number(axis))
                if offset:
                    sign = "-" if offset > 0 else "+"
                    source = syntax.infix(source, sign, syntax.number(abs(offset)))
                if slope != 1:
                    source = syntax.infix(source, "//", syntax.number(slope))
                found[name] = source
    return found


# Functions used instead of Python's own, which would compare sizes that may be open there too.
_FUNCTIONS = {"max": "jax.core.max_dim", "min": "jax.core.min_dim"}
_OPERATORS = {"floordiv": "//", "mod": "%"}


def expression(size: DimSize) -> ast.expr:
    """`2 * batch + 1`, with the token of each dimension."""
    return _expression(size, _FUNCTIONS)


def _expression(size: DimSize, functions: dict[str, str]) -> ast.expr:
    total: ast.expr | None = None
    terms = dim_terms(size)
    # Negative terms come last: `4 - batch` rather than `-batch + 4`.
    for coefficient, factors in sorted(terms, key=lambda t: t[0] < 0):
        part: ast.expr | None = None
        for factor, exponent in factors:
            value = _factor(factor, functions)
            for _ in range(exponent):
                part = value if part is None else syntax.infix(part, "*", value)
        if part is None:
            part = syntax.number(abs(coefficient))
        elif abs(coefficient) != 1:
            part = syntax.infix(syntax.number(abs(coefficient)), "*", part)
        if total is None:
            total = part if coefficient >= 0 else syntax.prefix("-", part)
        else:
            total = syntax.infix(total, "+" if coefficient > 0 else "-", part)
    return total if total is not None else syntax.number(0)


def _factor(factor: DimFactor, functions: dict[str, str]) -> ast.expr:
    if isinstance(factor, str):
        return ast.Name(dimension_token(factor), ast.Load())
    operation, operands = factor
    left, right = (_expression(o, functions) for o in operands)
    if operation in _OPERATORS:
        return syntax.infix(left, _OPERATORS[operation], right)
    return syntax.call(functions[operation], left, right)


def text(size: DimSize) -> str:
    """As a jaxtyping dimension: `2*batch+1`."""
    if not is_open(size):
        return str(int(size))
    node = _expression(size, {"max": "max", "min": "min"})
    for found in syntax.names_in(node):
        found.id = found.id.removeprefix(_DIMENSION)
    return syntax.text_of(node).replace(" ", "")
