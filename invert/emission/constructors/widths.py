"""The widths of a model's layers as one argument."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence, Set
from typing import Any

from invert.emission.constructors.sizes import CHANNELS, DIM, HIDDEN, WIDTHS
from invert.emission.python import syntax
from invert.emission.python.naming import Names, stem

# The least number of sizes that are one tuple, besides `dim`.
_MANY = 3


def as_tuple(
    body: Sequence[ast.stmt], arguments: dict[str, tuple[Any, ...]], names: Names, known: Set[str]
) -> list[ast.stmt]:
    """Make one argument of many channels or hidden sizes, in the order of the layers.

    **Arguments:**

    - `arguments`: the arguments of the constructor, with their values; the new one replaces them.
    - `known`: the names of sizes that say more, such as that of the width of all layers.
    """
    inside = [n for s in body for n in syntax.in_order(s) if isinstance(n, ast.Name)]
    used = dict.fromkeys(n.id for n in inside if n.id in arguments)
    for kind in (CHANNELS, HIDDEN):
        # The first size without a name of its own is called `dim`.
        kinds = {kind} if DIM in known else {kind, DIM}
        own = [n for n in used if stem(n) in kinds and n in arguments]
        # Hidden sizes that are multiples of others are not chosen by themselves.
        pairs = itertools.pairwise(arguments[n][0] for n in own)
        if len({*own} - {DIM}) < _MANY or any(b % a == 0 and b > a for a, b in pairs):
            continue
        name = names.new(WIDTHS)
        arguments[name] = tuple(zip(*(arguments.pop(n) for n in own), strict=True))
        items = {n: syntax.item(syntax.name(name), syntax.number(i)) for i, n in enumerate(own)}
        body = [syntax.substitute(s, items) for s in body]
    return [*body]
