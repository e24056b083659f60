"""Defaults of constructors that no call uses."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from invert.emission.python import syntax


def drop_unused_defaults(definitions: Sequence[ast.stmt]) -> None:
    """Remove defaults of constructors that no call in the file uses."""
    given: dict[str, list[set[str | None]]] = {}
    for call in (n for d in definitions for n in syntax.walk(d) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name):
            given.setdefault(call.func.id, []).append({k.arg for k in call.keywords})
    for definition in definitions:
        calls = given.get(definition.name, []) if isinstance(definition, ast.ClassDef) else []
        body = definition.body if isinstance(definition, ast.ClassDef) and calls else []
        for init in (s for s in body if isinstance(s, ast.FunctionDef) and s.name == "__init__"):
            init.args.kw_defaults = [
                None if all(a.arg in names for names in calls) else default
                for a, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
            ]
