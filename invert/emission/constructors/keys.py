"""Splits the key of a constructor, and enables 64-bit types where it needs them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence

from invert.emission.constructors.repeats import KEY, NEXT_KEY
from invert.emission.python import syntax
from invert.emission.python.syntax import call, number

# The number of keys that are taken by their places.
_MOST_KEYS = 4
_KEYS = "keys"


def slot(i: int) -> ast.expr:
    """A placeholder for one key."""
    return ast.Name(f"$key{i}", ast.Load())


def with_keys(body: Sequence[ast.stmt], count: int) -> list[ast.stmt]:
    """Split the key into `count`; many are taken in turn by `next(keys)`."""
    if count < 2:
        own = ast.Name(KEY, ast.Load())
        return [_Keys(lambda _: own).visit(s) for s in body]
    keys = ast.Name(_KEYS, ast.Load())
    parts = call("jax.random.split", syntax.name(KEY), number(count))
    names = {n.id for s in body for n in syntax.names_in(s)}
    if count > _MOST_KEYS or NEXT_KEY in names:
        following = call("next", keys)
        body = [_Keys(lambda _: following).visit(s) for s in body]
        return [syntax.assign(keys, call("iter", parts)), *body]
    body = [_Keys(lambda i: syntax.item(keys, number(i))).visit(s) for s in body]
    return [syntax.assign(keys, parts), *body]


_WIDE = frozenset(("int64", "uint64", "float64", "complex128"))


def in_64_bits(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Make arrays of 64-bit types where these are enabled."""
    result: list[ast.stmt] = []
    for wide, group in itertools.groupby(body, _is_wide):
        if wide:
            enabled = ast.withitem(call("jax.enable_x64", number(True)))
            result.append(ast.With([enabled], list(group), lineno=0))
        else:
            result += group
    return result


def _is_wide(statement: ast.stmt) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in _WIDE for n in syntax.walk(statement))


class _Keys(ast.NodeTransformer):
    """Substitutes the keys."""

    def __init__(self, key: Callable[[int], ast.expr]):
        self._key = key

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = re.fullmatch(r"\$key(\d+)|" + re.escape(NEXT_KEY), node.id)
        return node if found is None else self._key(int(found[1] or 0))
