"""Names for new functions of a text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import Names


def known_names(definitions: Sequence[ast.stmt]) -> Names:
    """Names that a new function of a file must not have, locals included."""
    found = Names()
    nodes = [n for d in definitions for n in syntax.walk(d)]
    fields = {id(n.target) for n in nodes if isinstance(n, ast.AnnAssign)}
    for node in nodes:
        if isinstance(node, ast.arg):
            found.taken.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.taken.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.taken |= set() if id(node) in fields else {node.id}
    return found
