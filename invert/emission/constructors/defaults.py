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
        if not isinstance(definition, ast.ClassDef):
            continue
        calls, init = given.get(definition.name), syntax.constructor_of(definition)
        if calls and init is not None:
            init.args.kw_defaults = [
                None if all(a.arg in names for names in calls) else default
                for a, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
            ]
