"""Several sizes of one kind as one argument: widths of layers, rows of tables."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from invert.emission.constructors.sizes import (
    CHANNELS,
    DIM,
    HIDDEN,
    HIDDEN_SIZES,
    ROWS,
    VOCABULARIES,
    VOCABULARY,
    WIDTHS,
)
from invert.emission.python import syntax
from invert.emission.python.naming import Names, stem

# The least number of sizes that are one tuple, besides `dim`.
_MANY = 3
# The names of one size of a tuple.
_ONE = {WIDTHS: "width", HIDDEN_SIZES: "hidden_size", VOCABULARIES: VOCABULARY}


def rows(names: Iterable[str]) -> Sequence[str]:
    """The numbers of rows that only a number tells apart, as those of the columns of one array."""
    own = [n for n in names if stem(n) == ROWS or stem(n).endswith(VOCABULARY)]
    return own if len(own) > 1 and len({*map(stem, own)}) == 1 else []


def as_tuple(
    body: Sequence[ast.stmt], arguments: dict[str, tuple[Any, ...]], names: Names, known: Set[str]
) -> list[ast.stmt]:
    """Make one argument of many channels or hidden sizes, in the order of the layers.

    So are the rows of several tables.

    **Arguments:**

    - `arguments`: the arguments of the constructor, with their values; the new one replaces them.
    - `known`: the names of sizes that say more, such as that of the width of all layers.
    """
    inside = [n for s in body for n in syntax.in_order(s) if isinstance(n, ast.Name)]
    used = list(dict.fromkeys(n.id for n in inside if n.id in arguments))
    groups = [*_widths(used, arguments, known), (VOCABULARIES, rows(used))]
    for wanted, own in (group for group in groups if group[1]):
        name = names.new(wanted)
        arguments[name] = tuple(zip(*(arguments.pop(n) for n in own), strict=True))
        items = {n: syntax.item(syntax.name(name), syntax.number(i)) for i, n in enumerate(own)}
        loops = _Whole(own, name, names.new(_ONE[wanted]))
        body = [syntax.substitute(loops.visit(s), items) for s in body]
    return [*body]


def _widths(
    used: Sequence[str], arguments: Mapping[str, tuple[Any, ...]], known: Set[str]
) -> Iterator[tuple[str, Sequence[str]]]:
    """The names of tuples of widths, with those of the sizes that they take."""
    left = list(used)
    for kind in (CHANNELS, HIDDEN):
        # The first size without a name of its own is called `dim`.
        kinds = {kind} if DIM in known else {kind, DIM}
        own = [n for n in left if stem(n) in kinds]
        # Hidden sizes that are multiples of others are not chosen by themselves.
        pairs = itertools.pairwise(arguments[n][0] for n in own)
        if len({*own} - {DIM}) < _MANY or any(b % a == 0 and b > a for a, b in pairs):
            continue
        yield WIDTHS if len(left) == len(used) else HIDDEN_SIZES, own
        left = [n for n in left if n not in own]


class _Whole(ast.NodeTransformer):
    """Writes `sizes` for a tuple of all its sizes, and a loop for calls with each of them.

    **Arguments:**

    - `sizes`: the names of the sizes; `name` is that of their tuple, `one` that of each in a loop.
    """

    def __init__(self, sizes: Sequence[str], name: str, one: str):
        self._sizes, self._name, self._one = sizes, name, one

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        self.generic_visit(node)
        if len(node.elts) != len(self._sizes):
            return node
        one = syntax.name(self._one)
        pairs = zip(node.elts, self._sizes, strict=True)
        calls = [syntax.substitute(e, {size: one}) for e, size in pairs]
        if len({*map(syntax.text_of, calls)}) > 1 or self._one not in syntax.text_of(calls[0]):
            return node
        if isinstance(calls[0], ast.Name):
            return syntax.name(self._name)
        loop = ast.comprehension(one, syntax.name(self._name), [], is_async=0)
        return syntax.call("tuple", ast.GeneratorExp(calls[0], [loop]))
