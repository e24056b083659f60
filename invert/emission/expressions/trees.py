"""Writes operations on all arrays of a tree as `jax.tree.map`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
from jax.tree_util import KeyEntry, PyTreeDef

from invert._private.jax import rename
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.control_flow import read_by
from invert.emission.expressions.render import render
from invert.emission.expressions.statements import FunctionText
from invert.emission.expressions.writer import Writer
from invert.emission.layers.mapped_trees import TreeMap
from invert.emission.python import pytrees, syntax
from invert.emission.python.nouns import PLAIN
from invert.ir.merging import program_key
from invert.ir.types import Atom, Jaxpr, Var

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_one(file: Writer, eqn: TreeMap) -> bool:
    """Return whether the function has the same text for all leaves."""
    texts: set[str] = set()
    known: set[object] = set()
    for jaxpr in eqn.functions:
        key = program_key(jaxpr)
        if key is not None and key in known:
            continue
        known.add(key)
        function = _function(file, jaxpr, ["x"] * len(eqn.trees), {})
        texts.add(syntax.text_of(render(function, "function", {}, set())))
    return len(texts) == 1


def tree_map(file: Writer, body: Body, eqn: TreeMap) -> Placed:
    """`params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)`."""
    given = [_expression(body, eqn.structure, row) for row in eqn.trees]
    hints = [body.trees.hints.get((eqn.structure, row), "arrays") for row in eqn.trees]
    shared = {v: read_by(body, v) for v in eqn.shared}
    if eqn.is_sum:
        function = _function(file, eqn.functions[0], _letters(hints), shared)
        leaves = syntax.call("jax.tree.leaves", _map(function, given))
        return Placed(syntax.call("sum", leaves), False, [function], ["total"])
    token = syntax.new_token()
    tree = ast.Name(token, ast.Load())
    hint = _hint(eqn.path, hints[0])
    body.trees.add(eqn.column, tree, hint)
    for v, part in zip(eqn.outvars, _parts(eqn, tree), strict=True):
        body.given[body.token(v)] = part
    named = [*([PLAIN] * len(eqn.outvars)), hint]
    if not eqn.functions:
        return Placed(given[0], False, hints=named, trees=[token])
    function = _function(file, eqn.functions[0], _letters(hints), shared)
    names = (e.id for e, h in zip(given, hints, strict=True) if h == hint and _is_name(e))
    heir = next(names, "")
    return Placed(_map(function, given), False, [function], named, trees=[token], heir=heir)


def _map(function: FunctionText, trees: Sequence[ast.expr]) -> ast.expr:
    return syntax.call("jax.tree.map", ast.Name(function.token, ast.Load()), *trees)


def _is_name(node: ast.expr) -> TypeIs[ast.Name]:
    return isinstance(node, ast.Name)


def _function(
    file: Writer,
    jaxpr: Jaxpr,
    hints: Sequence[str],
    shared: Mapping[Var, ast.expr],
) -> FunctionText:
    """The function of one leaf."""
    # Variables of their own, so that they are not called as those around the function.
    own = [Var(v.aval) for v in jaxpr.invars[: len(hints)]]
    jaxpr = rename(jaxpr, dict(zip(jaxpr.invars, own, strict=False)))
    jaxpr = jaxpr.replace(invars=[*own, *jaxpr.invars[len(own) :]])
    inside = Body(file, jaxpr, shared, dict(zip(own, hints, strict=True)))
    (value,) = inside.run()
    tokens = [*map(file.token, own)]
    types = {token: inside.type_of(v) for token, v in zip(tokens, own, strict=True)}
    return FunctionText(
        syntax.new_token(), "update", tokens, hints, inside.statements, value, types=types,
        may_be_lambda=True,
    )  # fmt: skip


def _letters(hints: Sequence[str]) -> list[str]:
    """Short names for the leaves of trees, which differ."""
    names: list[str] = []
    for hint in hints:
        names.append(next((n for n in (hint[0], hint) if n not in names), hint))
    return names


def _hint(path: Sequence[KeyEntry], other: str) -> str:
    """The name of a tree, after its last key among the results."""
    return next((name for key in reversed(path) if (name := pytrees.name_of(key))), other)


def _expression(body: Body, structure: PyTreeDef, leaves: Sequence[Atom]) -> ast.expr:
    """A tree of values, as the text has it or from its parts."""
    parts = [read_by(body, a) for a in leaves]
    values = {id(e): a for e, a in zip(parts, leaves, strict=True)}
    return pytrees.nested(body.trees.written(structure.unflatten(parts), values))


def _parts(eqn: TreeMap, tree: ast.expr) -> list[ast.expr]:
    """The leaves of a tree."""
    numbers = eqn.structure.unflatten(range(len(eqn.outvars)))
    paths, _ = jax.tree_util.tree_flatten_with_path(numbers)
    return [pytrees.access(tree, path) for path, _ in paths]
