"""Removes methods that compute what `__call__` of their class computes, at other sizes.

A layer that is called before a loop and in its body, on a whole sequence and on one step of it, has
a method for each. If their texts are equal, one is enough.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from invert.emission.python import syntax
from invert.emission.python.syntax import field_of

_CALL = "__call__"


def rewrite(definitions: list[ast.stmt], model: str) -> bool:
    """Remove such methods, from the innermost classes outwards; tell whether there were any.

    **Arguments:**

    - `model`: the name of the outermost class, whose methods all stay.
    """
    classes = [d for d in definitions if isinstance(d, ast.ClassDef)]
    held = {d.name: _held(d) for d in classes}
    mixed = {c for fields in held.values() for own in fields.values() if len(own) > 1 for c in own}
    gone: dict[str, set[str]] = {}
    for cls in classes:
        _rewrite_calls(cls, held[cls.name], gone)
        methods = {m.name: m for m in cls.body if isinstance(m, ast.FunctionDef)}
        call = methods.get(_CALL)
        if call is None or cls.name == model or cls.name in mixed:
            continue
        equal = {n for n, m in methods.items() if n != _CALL and _is_same(call, m)}
        if equal:
            gone[cls.name] = equal
            cls.body = [s for s in cls.body if s not in [methods[n] for n in equal]]
    return bool(gone)


def _held(cls: ast.ClassDef) -> dict[str, set[str]]:
    """The names of the classes of the modules in each field of a class."""
    return {
        s.target.id: {n.id for n in syntax.names_in(s.annotation)} - {"tuple"}
        for s in cls.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }


def _rewrite_calls(
    cls: ast.ClassDef, held: Mapping[str, set[str]], gone: Mapping[str, set[str]]
) -> None:
    """Call the modules themselves where a class called a method that is gone."""
    for method in (m for m in cls.body if isinstance(m, ast.FunctionDef)):
        of = dict(_loop_variables(method, held))
        for node in syntax.walk(method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owners = _classes(node.func.value, held, of)
                if owners and all(node.func.attr in gone.get(c, ()) for c in owners):
                    node.func = node.func.value


def _loop_variables(
    method: ast.FunctionDef, held: Mapping[str, set[str]]
) -> Iterator[tuple[str, set[str]]]:
    """The variables of loops over modules, with the classes of these."""
    for node in syntax.walk(method):
        if not isinstance(node, (ast.For, ast.comprehension)):
            continue
        targets, sources = [node.target], [node.iter]
        if isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Call):
            targets, sources = node.target.elts, node.iter.args
        for target, source in zip(targets, sources, strict=False):
            owners = _classes(source, held, {})
            if isinstance(target, ast.Name) and owners:
                yield target.id, owners


def _classes(value: ast.expr, held: Mapping[str, set[str]], of: Mapping[str, set[str]]) -> set[str]:
    """The classes that a module may be of: `self.norm`, `self.blocks[0]` or a loop's variable."""
    if isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Name):
        return of.get(value.id, set())
    return held.get(field_of(value), set())


def _is_same(one: ast.FunctionDef, other: ast.FunctionDef) -> bool:
    """Return whether a method has the text of another one, whose types allow for its arrays."""
    body = [*map(ast.dump, one.body)]
    names = [a.arg for a in _arguments(one)]
    if body != [*map(ast.dump, other.body)] or names != [a.arg for a in _arguments(other)]:
        return False
    return _allows(_types(one), _types(other))


def _arguments(method: ast.FunctionDef) -> list[ast.arg]:
    return [*method.args.args, *method.args.kwonlyargs]


def _types(method: ast.FunctionDef) -> list[str]:
    """The axes of the arrays in the types of a method."""
    types = [*(a.annotation for a in _arguments(method)), method.returns]
    return [
        n.value
        for t in types
        if t is not None
        for n in syntax.walk(t)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]


def _allows(types: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether arrays of some types are of other types, whose named sizes may be any."""
    sizes: dict[str, str] = {}
    for one, other in zip(types, others, strict=True):
        axes, given = one.split(), other.split()
        if len(axes) != len(given):
            return False
        for axis, size in zip(axes, given, strict=True):
            if axis != size and (not axis.isidentifier() or sizes.setdefault(axis, size) != size):
                return False
    return True
