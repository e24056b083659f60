"""Pytrees of the signature: access to their leaves, construction, annotations."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import keyword
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.tree_util import KeyEntry, PyTreeDef

from invert._errors import EmissionError
from invert.emission.python import syntax
from invert.emission.python.naming import RESERVED, snake
from invert.emission.python.nouns import PLAIN

# The structure of a tree, and its leaves.
Column: TypeAlias = tuple[PyTreeDef, tuple[Any, ...]]


@dataclasses.dataclass
class Trees:
    """Trees of values that a text has as one expression each, with their names."""

    values: dict[Column, ast.expr] = dataclasses.field(default_factory=dict)
    hints: dict[Column, str] = dataclasses.field(default_factory=dict)

    def add(self, column: Column, value: ast.expr, hint: str) -> None:
        """Add a tree; the first expression of equal ones counts."""
        self.values.setdefault(column, value)
        self.hints.setdefault(column, hint)

    def add_parts(self, tree: Any, value: ast.expr, hint: str) -> None:
        """Add a tree and its parts, however deep.

        **Raises:** `EmissionError` if a part cannot be accessed in text.
        """
        if (column := column_of(tree)) is not None:
            self.add(column, value, hint)
        for key, part in parts_of(tree):
            if jax.tree_util.tree_leaves(part):
                self.add_parts(part, access(value, [key]), name_of(key) or hint)

    def written(self, tree: Any, values: Mapping[int, Hashable]) -> Any:
        """A tree of expressions, in which known trees are one expression each.

        **Arguments:**

        - `values`: the values of the expressions, by their ids.
        """
        column = column_of(tree)
        if column is not None:
            structure, leaves = column
            known = self.values.get((structure, tuple(values.get(id(e)) for e in leaves)))
            if known is not None:
                return known
        if type(tree) is dict:
            return {k: self.written(v, values) for k, v in tree.items()}
        if type(tree) in (list, tuple):
            return type(tree)(self.written(v, values) for v in tree)
        return tree


def column_of(tree: Any) -> Column | None:
    """A tree of dictionaries, lists and tuples that has several leaves; `None` for another."""
    if not _is_plain(tree):
        return None
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return (structure, tuple(leaves)) if len(leaves) > 1 else None


def parts_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    """The children of a node, with their keys."""
    if not _is_leaf(tree):
        parts, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
        yield from ((path[0], part) for path, part in parts)


def name_of(key: object) -> str:
    """The name in a key; `""` if it has none."""
    name = getattr(key, "key", getattr(key, "name", None))
    return snake(name, PLAIN) if isinstance(name, str) else ""


def _is_plain(tree: Any) -> bool:
    if type(tree) is dict:
        return all(map(_is_plain, tree.values()))
    return all(map(_is_plain, tree)) if type(tree) in (list, tuple) else _is_leaf(tree)


def _is_leaf(tree: Any) -> bool:
    return jax.tree_util.all_leaves([tree])


def access(value: ast.expr, path: Sequence[KeyEntry]) -> ast.expr:
    """`inputs["a"][0]` for a path into a pytree.

    **Raises:** `EmissionError` if the path goes through a class without such access.
    """
    for key in path:
        if isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, (str, int)):
            value = syntax.item(value, ast.Constant(key.key))
        elif isinstance(key, jax.tree_util.SequenceKey):
            value = syntax.item(value, ast.Constant(key.idx))
        elif isinstance(key, jax.tree_util.GetAttrKey) and key.name.isidentifier():
            value = ast.Attribute(value, key.name, ast.Load())
        else:
            raise EmissionError(
                f"an argument is a pytree whose part {key} cannot be accessed in text"
            )
    return value


def filled(numbers: Any, leaves: Sequence[object]) -> Any:
    """A pytree with leaves for their numbers, dictionaries in the same order."""
    if type(numbers) is dict:
        return {k: filled(v, leaves) for k, v in numbers.items()}
    if type(numbers) in (list, tuple):
        return type(numbers)(filled(v, leaves) for v in numbers)
    return jax.tree_util.tree_map(leaves.__getitem__, numbers)


def known(tree: Any) -> Any:
    """A pytree with tuples for its nodes of classes that a text does not know.

    A class that only boxes an array, as Flax's variables do, becomes that array.
    """
    if tree is None or isinstance(tree, ast.expr):
        return tree
    if type(tree) is dict and all(isinstance(k, (str, int)) for k in tree):
        return {k: known(v) for k, v in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(known(v) for v in tree)
    parts = jax.tree_util.tree_leaves(tree, is_leaf=lambda x: x is not tree)
    boxed = len(parts) == 1 and isinstance(parts[0], ast.expr) and not isinstance(tree, tuple)
    return parts[0] if boxed else tuple(map(known, parts))


def nested(tree: Any) -> ast.expr:
    """A pytree of expressions, all of whose classes are known, as one expression."""
    if tree is None:
        return ast.Constant(None)
    if isinstance(tree, ast.expr):
        return tree
    if isinstance(tree, dict):
        return ast.Dict([ast.Constant(k) for k in tree], [nested(v) for v in tree.values()])
    parts = [nested(t) for t in tree]
    return syntax.tuple_of(parts) if isinstance(tree, tuple) else syntax.list_of(parts)


def typed(tree: object, define: Callable[[dict[str, ast.expr]], ast.expr]) -> ast.expr:
    """The annotation of a pytree of annotations.

    Tuples, lists and dictionaries whose keys are identifiers are typed by their parts. A custom
    class is a `PyTree`.

    **Arguments:**

    - `define`: adds a `TypedDict` with these fields to the file and returns its name.
    """
    if tree is None:
        return ast.Constant(None)
    if isinstance(tree, ast.expr):
        return tree
    if type(tree) is tuple:
        parts = syntax.tuple_of([typed(t, define) for t in tree])
        return syntax.item(syntax.name("tuple"), parts)
    if type(tree) is list:
        return syntax.item(syntax.name("list"), _any_of([typed(t, define) for t in tree]))
    if type(tree) is dict and tree and all(isinstance(k, str) for k in tree):
        types = {k: typed(t, define) for k, t in tree.items()}
        if all(map(_is_field, types)):
            return define(types)
        parts = syntax.tuple_of([syntax.name("str"), _any_of(list(types.values()))])
        return syntax.item(syntax.name("dict"), parts)
    return syntax.name("PyTree")


def _is_field(key: str) -> bool:
    """Return whether a key may be a field of a `TypedDict`, shadowing no type."""
    ordinary = key.isascii() and key.isidentifier() and not keyword.iskeyword(key)
    return ordinary and (key not in RESERVED or key in dir(builtins)) and not key.startswith("__")


def _any_of(types: Sequence[ast.expr]) -> ast.expr:
    """`A | B | A`: sizes may tell equal ones apart later, see `shorthand`.

    It is as flat as can be, since a list may have more elements than Python has levels of calls.
    """
    if len(types) < 2:
        return types[0] if types else syntax.name("Any")
    half = (len(types) + 1) // 2
    return syntax.infix(_any_of(types[:half]), "|", _any_of(types[half:]))
