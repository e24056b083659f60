"""Finds values passed from layer to layer, which people call `x` on every line.

The result of a layer is named after the layer if it is used again later, as a skip connection is.
If only the next lines use it, that name would just repeat the layer's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set

from invert.emission.expressions.statements import FunctionText, Repeat, read
from invert.emission.python import syntax
from invert.emission.sizes.expressions import dimension_of
from invert.ir.order import reached


class Streams:
    """Finds the values of a function that may be called `x`.

    **Arguments:**

    - `last`: the last statement that reads each token; the result counts as one more.
    """

    def __init__(self, function: FunctionText, last: dict[str, int]):
        self._last = last
        self._body = function.body
        self._result = function.result
        self._read = [_values(read(s)) for s in function.body]
        self._read.append(_values(syntax.tokens_in(function.result)))
        self._makers = {t: i for i, s in enumerate(function.body) for t in s.targets if t}
        self._first: dict[str, int] = {}
        for i, tokens in enumerate(self._read):
            for token in tokens:
                self._first.setdefault(token, i)
        self._kept = _parts(function.result)

    def holds(self, i: int) -> bool:
        """Return whether only the statements right after a statement read its value."""
        statement = self._body[i]
        (token,) = statement.targets if statement.passes else (None,)
        if token is None or token in self._kept:
            return False
        users = range(i + 1, self._last[token] + 1)
        if any(token not in self._read[k] for k in users):
            return False
        following = self._body[i + 1 : users.stop]
        loops = [s.repeat for s in following if s.repeat is not None]
        if any(s.functions for s in following) or any(_reads(r, token) for r in loops):
            return False
        before = self._before(i)
        # Another value is used later, so `x` would be ambiguous.
        made = (t for t, k in self._makers.items() if k < i < self._first.get(t, 0))
        if any(t not in before for t in made):
            return False
        values = [*(s.value for s in following), self._result]
        if any(_skips(value, token) for value in values):
            return False
        return all(
            self._read[k] == {token} or _leads(value, token, self._read[k] - before - {token})
            for k, value in zip(users, values, strict=False)
        )

    def _before(self, i: int) -> set[str]:
        """The values from which a statement computes its own."""

        def before(token: str) -> Iterable[str]:
            return self._read[self._makers[token]] if token in self._makers else ()

        return set(reached(self._read[i], before))


def _values(tokens: Iterable[str]) -> set[str]:
    """The tokens that are values rather than sizes."""
    return {t for t in tokens if dimension_of(t) is None}


def _parts(value: ast.expr) -> set[str]:
    """The tokens that are parts of a tuple, a list or a dictionary."""
    inside = [n for n in syntax.walk(value) if isinstance(n, (ast.Tuple, ast.List, ast.Dict))]
    parts = [p for n in inside for p in ast.iter_child_nodes(n)]
    return {p.id for p in parts if isinstance(p, ast.Name)}


def _reads(repeat: Repeat, token: str) -> bool:
    return any(token in syntax.tokens_in(e) for e in (repeat.iterable, *repeat.values()))


def _skips(value: ast.expr, token: str) -> bool:
    """Return whether a layer takes a value beside another computed from it."""
    calls = [n for n in syntax.walk(value) if isinstance(n, ast.Call) and n.args]
    return any(
        token in syntax.tokens_in(c.args[0])
        and any(isinstance(a, ast.Name) and a.id == token for a in c.args[1:])
        for c in calls
    )


def _leads(value: ast.expr, token: str, others: Set[str]) -> bool:
    """Return whether an expression passes a value on, with others only as further arguments.

    All layers in it are called with the value.
    """
    calls = [n for n in syntax.walk(value) if isinstance(n, ast.Call)]
    layers = [c for c in calls if any(n.id == "self" for n in syntax.names_in(c.func))]
    if not layers or any(token not in syntax.tokens_in(c) for c in layers):
        return False
    first = {id(c.args[0]) for c in calls if c.args}
    further = {id(a) for c in calls for a in (*c.args[1:], *(k.value for k in c.keywords))}
    names = [n for n in syntax.walk(value) if isinstance(n, ast.Name)]
    leads = all(id(n) in first for n in names if n.id == token)
    return leads or all(id(n) in further for n in names if n.id in others)
