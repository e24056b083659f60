"""Drops functions that nothing calls, such as activations written at their calls."""

from __future__ import annotations

import ast

from invert.emission.python import syntax
from invert.emission.python.naming import RESERVED


def remove(definitions: list[ast.stmt]) -> bool:
    """Remove functions that nothing calls, except those for the user; tell whether any were."""
    changed = False
    while True:
        read = {
            n.id
            for d in definitions
            for n in syntax.walk(d)
            if isinstance(n, ast.Name) and n.id != getattr(d, "name", "")
        }
        unused = [
            d
            for d in definitions
            if isinstance(d, ast.FunctionDef)
            and not d.decorator_list
            and d.name not in read | RESERVED
        ]
        if not unused:
            return changed
        definitions[:] = [d for d in definitions if d not in unused]
        changed = True
