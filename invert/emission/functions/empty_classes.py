"""Writes classes without fields as functions: `attention(query, keys)`.

A layer without arrays and options, such as an attention or a normalization to unit length, needs
no object.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

from invert.emission.functions.names import known_names
from invert.emission.python import syntax
from invert.emission.python.naming import snake
from invert.emission.python.syntax import field_of


@dataclasses.dataclass
class _Uses:
    """The places in other classes that mention a class.

    **Arguments:**

    - `fields`: for each class, its fields of this class.
    - `made`: the statements that make an instance; `declared`: the declarations of the fields.
    - `calls`: the calls of the instances.
    """

    fields: list[tuple[ast.ClassDef, str]]
    made: list[ast.stmt]
    declared: list[ast.stmt]
    calls: list[ast.Call]


def rewrite(definitions: list[ast.stmt], model: str) -> bool:
    """Replace classes without fields by functions; tell whether there were any.

    **Arguments:**

    - `model`: the name of the outermost class, which stays.
    """
    changed = False
    for i, definition in enumerate(definitions):
        if not isinstance(definition, ast.ClassDef) or definition.name == model:
            continue
        method = _only_method(definition)
        uses = None if method is None else _uses(definition, definitions)
        if method is None or uses is None:
            continue
        names = known_names(definitions)
        wanted = snake(definition.name, "function")
        if wanted == "activation":  # which says nothing
            wanted = _activation(method) or wanted
        name = wanted if wanted not in names.taken else names.new(f"apply_{wanted}")
        del method.args.args[0]
        method.name = name
        definitions[i] = method
        for call in uses.calls:
            call.func = ast.Name(name, ast.Load())
        for outer, _ in uses.fields:
            _remove(outer, uses)
        changed = True
    return changed


def _activation(method: ast.FunctionDef) -> str:
    """`gelu` for a method that only applies `jax.nn.gelu`, otherwise `""`."""
    match method.body:
        case [ast.Return(value=ast.Call(func=function, args=[ast.Name()], keywords=options))]:
            module, _, name = ast.unparse(function).rpartition(".")
            plain = all(isinstance(k.value, ast.Constant) for k in options)
            return name if module == "jax.nn" and plain else ""
    return ""


def _only_method(definition: ast.ClassDef) -> ast.FunctionDef | None:
    """The method of a class that has nothing else."""
    body = [s for s in definition.body if not _is_text(s)]
    only = body[0] if len(body) == 1 else None
    if not isinstance(only, ast.FunctionDef) or only.name != "__call__":
        return None
    reads = any(n.id == "self" for s in only.body for n in syntax.names_in(s))
    return None if reads else only


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _uses(definition: ast.ClassDef, definitions: Sequence[ast.stmt]) -> _Uses | None:
    """The places that mention a class; `None` if some need it to be one."""
    uses = _Uses([], [], [], [])
    mentions = sum(
        syntax.is_named(n, definition.name)
        for d in definitions
        if d is not definition
        for n in syntax.walk(d)
    )
    for outer in (d for d in definitions if isinstance(d, ast.ClassDef) and d is not definition):
        fields = {
            s.target.id: s
            for s in outer.body
            if isinstance(s, ast.AnnAssign)
            and isinstance(s.target, ast.Name)
            and isinstance(s.annotation, ast.Name)
            and s.annotation.id == definition.name
        }
        if not fields:
            continue
        made = [s for s in _statements(outer) if _makes(s, definition.name) in fields]
        calls = [
            n for n in syntax.walk(outer) if isinstance(n, ast.Call) and field_of(n.func) in fields
        ]
        mentioned = (n for n in syntax.walk(outer) if field_of(n) in fields)
        reads = [n for n in mentioned if isinstance(getattr(n, "ctx", None), ast.Load)]
        others = [s for s in _statements(outer) if s not in made]
        if len(made) != len(fields) or len(calls) != len(reads) or not others:
            return None
        uses.fields += [(outer, name) for name in fields]
        uses.declared += fields.values()
        uses.made += made
        uses.calls += calls
    return uses if mentions == 2 * len(uses.fields) else None


def _statements(definition: ast.ClassDef) -> list[ast.stmt]:
    """The statements of a class's constructor."""
    init = syntax.constructor_of(definition)
    return [] if init is None else [s for s in init.body if not _is_text(s)]


def _makes(statement: ast.stmt, name: str) -> str:
    """The field to which a statement assigns a new instance of a class."""
    match statement:
        case ast.Assign(
            targets=[target], value=ast.Call(func=ast.Name(id=made), args=[], keywords=[])
        ) if made == name:
            return field_of(target)
    return ""


def _remove(definition: ast.ClassDef, uses: _Uses) -> None:
    """Remove the fields of a class that is a function now."""
    definition.body = [s for s in definition.body if s not in uses.declared]
    if (init := syntax.constructor_of(definition)) is not None:
        init.body = [s for s in init.body if s not in uses.made]
