"""Expressions of open dimensions, which have names in the text."""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from invert._cache import Cache
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
                source = syntax.size(value, axis)
                found[name] = _solved(source, slope, offset)
    return found


def _solved(size: ast.expr, slope: int, offset: int) -> ast.expr:
    """The `n` of a size `slope * n + offset`."""
    if offset:
        size = syntax.infix(size, "-" if offset > 0 else "+", syntax.number(abs(offset)))
    return size if slope == 1 else syntax.infix(size, "//", syntax.number(slope))


def least_of(
    size: DimSize, actual: ast.expr, sources: Mapping[str, ast.expr]
) -> tuple[str, int, int] | None:
    """The dimension, its factor and the least size, if an array's size alone says what it is.

    That is `n` for a size `n + 3` of which no array has the size `n`. Dimensions are at least one.
    """
    if (parts := linear(size)) is None or not parts[2]:
        return None
    name, slope, offset = parts
    known = sources.get(name)
    if known is None or syntax.text_of(known) != syntax.text_of(_solved(actual, slope, offset)):
        return None
    return name, slope, slope + offset


def derived_sources(
    arrays: Sequence[tuple[ast.expr, Shape]],
) -> Iterator[tuple[DimSize, ast.expr, str, int]]:
    """Sizes of arrays that are not single dimensions, such as `height // 2 + 1`.

    **Returns:** for each, its expression by the shape of the array, and from
    `part_and_rest` the text of the part and the rest.
    """
    found: set[str] = set()
    for value, shape in arrays:
        for axis, size in enumerate(shape):
            if (parts := part_and_rest(size)) is not None and parts[0] not in found:
                found.add(parts[0])
                source = syntax.size(value, axis)
                yield size, source, *parts


def part_and_rest(size: DimSize) -> tuple[str, int] | None:
    """A size of one term plus a number: the term's text, and the number."""
    terms = dim_terms(size)
    rest = sum(coefficient for coefficient, factors in terms if not factors)
    match [(coefficient, factors) for coefficient, factors in terms if factors]:
        case [(1, [(str(), 1)])]:
            return None
        case [(coefficient, factors)] if coefficient > 0:
            return term_text(coefficient, factors), rest
    return None


def term_text(coefficient: int, factors: Sequence[tuple[DimFactor, int]]) -> str:
    """The text of a term of a size, over tokens."""
    return syntax.text_of(_term(coefficient, factors, _FUNCTIONS))


def in_place(node: ast.expr, parts: Mapping[str, tuple[str, int]]) -> ast.expr:
    """An expression with tokens for the sizes of arrays.

    **Arguments:**

    - `parts`: by the text of a part, the token of a size and how much larger that is.
    """

    class Replace(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            match node:
                case ast.BinOp(left, ast.Add(), ast.Constant(int(more))) if (
                    known := parts.get(syntax.text_of(left))
                ) is not None:
                    return _moved(known[0], more - known[1])
                case ast.BinOp(left, ast.Sub(), ast.Constant(int(less))) if (
                    known := parts.get(syntax.text_of(left))
                ) is not None:
                    return _moved(known[0], -less - known[1])
            return self._whole(node)

        def visit_Call(self, node: ast.Call) -> ast.expr:
            return self._whole(node)

        def _whole(self, node: ast.expr) -> ast.expr:
            if (known := parts.get(syntax.text_of(node))) is not None:
                return _moved(known[0], -known[1])
            self.generic_visit(node)
            return node

    return Replace().visit(syntax.substitute(node, {}))


def width(node: ast.expr) -> int:
    """An expression's length, with names for sizes computed from a dimension."""
    total = syntax.width(node)
    tokens = {token for token in syntax.tokens_in(node) if dimension_of(token) is not None}
    pending: list[ast.AST] = [node] if tokens else []
    while pending:
        current = pending.pop()
        match current:
            case ast.BinOp(left, ast.Add() | ast.Sub(), ast.Constant()):
                is_size = _is_quotient(left, tokens)
            case _:
                is_size = _is_quotient(current, tokens)
        if is_size:
            total -= syntax.width(current) - syntax.width(ast.Name(dimension_token("")))
        else:
            pending.extend(ast.iter_child_nodes(current))
    return total


def _is_quotient(node: ast.AST, tokens: Collection[str]) -> TypeGuard[ast.BinOp]:
    """Return whether a node is a quotient or remainder of sizes."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.FloorDiv, ast.Mod))
        and not {*syntax.tokens_in(node)}.isdisjoint(tokens)
    )


def quotients_in(
    nodes: Iterable[ast.expr], dimensions: Collection[str]
) -> list[tuple[ast.expr, int]] | None:
    """The largest quotients of dimensions, each with a number often added.

    `None` if a dimension also occurs outside of quotients.
    """
    tokens = {*map(dimension_token, dimensions)}
    found: dict[str, ast.expr] = {}
    numbers: dict[str, Counter[int]] = defaultdict(Counter)

    def collect(node: ast.AST, added: int) -> bool:
        if isinstance(node, ast.Name):
            return node.id not in tokens
        if _is_quotient(node, tokens):
            key = syntax.text_of(node)
            found.setdefault(key, node)
            numbers[key][added] += 1
            return True
        match node:
            case ast.BinOp(left, ast.Add(), ast.Constant(int(more))):
                return collect(left, more)
            case _:
                return all(collect(part, 0) for part in ast.iter_child_nodes(node))

    if not all(collect(node, 0) for node in nodes):
        return None
    return [(node, numbers[key].most_common(1)[0][0]) for key, node in found.items()]


def _moved(token: str, offset: int) -> ast.expr:
    size = ast.Name(token, ast.Load())
    if not offset:
        return size
    return syntax.infix(size, "+" if offset > 0 else "-", syntax.number(abs(offset)))


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
        part = _term(abs(coefficient), factors, functions)
        if total is None:
            total = part if coefficient >= 0 else syntax.prefix("-", part)
        else:
            total = syntax.infix(total, "+" if coefficient > 0 else "-", part)
    return total if total is not None else syntax.number(0)


def _term(
    coefficient: int,
    factors: Sequence[tuple[DimFactor, int]],
    functions: dict[str, str],
) -> ast.expr:
    part: ast.expr | None = None
    for factor, exponent in factors:
        value = _factor(factor, functions)
        for _ in range(exponent):
            part = value if part is None else syntax.infix(part, "*", value)
    if part is None:
        return syntax.number(coefficient)
    return part if coefficient == 1 else syntax.infix(syntax.number(coefficient), "*", part)


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
    if size.__class__ is int or not is_open(size):
        return str(int(size))
    match dim_terms(size):
        case [(1, [(str() as name, 1)])]:  # most are
            return name
    # Comparing sizes takes longer than all else. An entry keeps its id from being reused.
    if id(size) not in _texts:
        _texts[id(size)] = size, _text(size)
    return _texts[id(size)][1]


_texts: Cache[int, tuple[DimSize, str]] = Cache(1024)


@functools.lru_cache(maxsize=1024)
def _text(size: DimSize) -> str:
    node = _expression(size, {"max": "max", "min": "min"})
    for found in syntax.names_in(node):
        found.id = found.id.removeprefix(_DIMENSION)
    return syntax.text_of(node).replace(" ", "")
