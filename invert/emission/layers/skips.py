"""Shares one class among layers of which some have a layer that the others skip.

Such as the blocks of a residual network, of which some have a convolution on the shortcut:
the layer becomes a field that may be `None`, and then its argument is passed on.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Hashable, Sequence

from invert.emission.layers.fold import field_of
from invert.emission.layers.shared import Class, Draft, blank
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.nouns import of_field

# What is added to a function of the same value.
_SHORTCUT = "shortcut"


def keys(
    drafts: Sequence[Draft],
    below: Sequence[Draft],
    key: Callable[[Draft, str | None], Hashable],
    kind: Callable[[Node], str],
) -> dict[Draft, Hashable]:
    """What the nodes of one class have in common, apart from numbers.

    **Arguments:**

    - `below`: nodes of lower levels, which are among the results only if they skip a layer.
    - `key`: the same without regard to layers that are skipped.
    - `kind`: the class of a node inside.
    """
    found: dict[Draft, Hashable] = {d: key(d, None) for d in drafts}
    wanting = [d for d in drafts if _is_composite(d)]
    if not wanting:
        return found
    whole: dict[Hashable, list[Draft]] = {}
    for draft in (*wanting, *filter(_is_composite, below)):
        whole.setdefault(key(draft, ""), []).append(draft)
    chosen: dict[Hashable, tuple[str, str]] = {}
    count = functools.cache(lambda draft: len(draft.constants()))
    for draft in wanting:
        for name, node in draft.node.fields.items():
            if not isinstance(node, Node) or node.listed or len(_calls(draft, name)) != 1:
                continue
            rest = key(draft, name)
            others = whole.get(rest, ())
            if not others or any(count(d) != count(draft) for d in others):
                continue
            if chosen.setdefault(rest, (name, kind(node))) == (name, kind(node)):
                found |= dict.fromkeys((draft, *others), ("skips", name, rest))
                break
    return found


def lend(drafts: Sequence[Draft], arrays: Callable[[Draft], Hashable]) -> None:
    """Gives layers that are only read from outside the method of others with the same arrays.

    Such as an embedding whose table is used twice, beside one that is called.

    **Arguments:**

    - `arrays`: the names, kinds and initial values of the fields.
    """
    having: dict[Hashable, Draft] = {}
    for draft in drafts:
        if len(draft.methods) == 1 and not draft.node.nodes:
            having.setdefault(arrays(draft), draft)
    for draft in drafts:
        other = None if draft.methods or draft.node.nodes else having.get(arrays(draft))
        if other is None or _rows(draft) != _rows(other)[: len(draft.arrays)]:
            continue
        rest = slice(len(draft.arrays), None)
        # Together, since annotations and sources are parts of the method.
        copies = copy.deepcopy((other.methods, other.annotations[rest], other.sources[rest]))
        draft.methods = copies[0]
        draft.annotations += copies[1]
        draft.sources += copies[2]
        draft.texts, draft.arrays = list(other.texts), draft.arrays + other.arrays[rest]
        draft.axes = draft.axes + other.axes[rest]


def _rows(draft: Draft) -> list[tuple[int, ...]]:
    return [shape[1:] for _, shape in draft.arrays]


def _is_composite(draft: Draft) -> bool:
    return len(draft.methods) == 1 and bool(draft.node.nodes)


def _calls(draft: Draft, name: str) -> list[ast.Call]:
    """The calls of a layer with a variable, if it is not used otherwise."""
    (method,) = draft.methods
    uses = [n for n in ast.walk(method) if field_of(n) == name]
    calls = [n for n in ast.walk(method) if isinstance(n, ast.Call) and field_of(n.func) == name]
    plain = [c for c in calls if len(c.args) == 1 and isinstance(c.args[0], ast.Name)]
    return plain if len(plain) == len(uses) else []


def expression(draft: Draft, without: str) -> str:
    """The only method of a layer, as one expression without numbers.

    **Arguments:**

    - `without`: a layer that passes on its argument.
    """
    (method,) = draft.methods
    values: dict[str, ast.expr] = {}
    with blank(method):
        *body, last = method.body
        for statement in body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if not isinstance(target, ast.Name) or not isinstance(statement, ast.Assign):
                return syntax.text_of(method)  # with loops: equal only as it stands
            values[target.id] = _filled(statement.value, values, without)
        if not isinstance(last, ast.Return) or last.value is None:
            return syntax.text_of(method)
        return ast.unparse(_filled(last.value, values, without))


def _filled(value: ast.expr, values: dict[str, ast.expr], without: str) -> ast.expr:
    class Filler(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return values.get(node.id, node)

        def visit_Call(self, node: ast.Call) -> ast.expr:
            if without and field_of(node.func) == without and len(node.args) == 1:
                return self.visit(node.args[0])
            self.generic_visit(node)
            return node

    return Filler().visit(copy.deepcopy(value))


def ordered(group: Sequence[Draft]) -> list[Draft]:
    """Layers with all fields first."""
    return sorted(group, key=lambda d: -len(d.node.fields))


def skipped(group: Sequence[Draft]) -> str:
    """The field of a layer that only some have, of a class."""
    first = group[0].node.fields
    missing = [n for n in first if any(n not in d.node.fields for d in group)]
    return next((n for n in missing if isinstance(first[n], Node)), "")


def write(cls: Class) -> None:
    """Makes the method of the first layer pass on the argument of a layer that is `None`."""
    name = cls.skipped
    if not name:
        return
    draft = cls.drafts[0]
    (call,) = _calls(draft, name)
    (method,) = draft.methods
    for statement in draft.fields:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            statement.annotation = ast.BinOp(statement.annotation, ast.BitOr(), ast.Constant(None))
    layer = call.func
    chosen = ast.IfExp(
        ast.Compare(layer, [ast.Is()], [ast.Constant(None)]), call.args[0],
        ast.Call(layer, list(call.args), list(call.keywords)),
    )  # fmt: skip
    at = next(i for i, s in enumerate(method.body) if call in ast.walk(s))
    statement = method.body[at]
    if isinstance(statement, ast.Assign) and statement.value is call:
        statement.value = chosen
        return
    taken = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)}
    taken |= {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}
    sums = (n for n in ast.walk(statement) if isinstance(n, ast.BinOp) and call in _operands(n))
    local = Names(taken).new(_SHORTCUT if any(sums) else of_field(name))
    _Replacer(call, ast.Name(local, ast.Load())).visit(statement)
    method.body.insert(at, syntax.assign(ast.Name(local, ast.Store()), chosen))


def _operands(node: ast.BinOp) -> tuple[ast.expr, ...]:
    return (node.left, node.right)


class _Replacer(ast.NodeTransformer):
    """Replaces one call."""

    def __init__(self, call: ast.Call, value: ast.expr):
        self._call, self._value = call, value

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if node is self._call:
            return self._value
        self.generic_visit(node)
        return node
