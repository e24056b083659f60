"""Names for new functions of a text."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import Names


def known_names(definitions: Sequence[ast.stmt]) -> Names:
    """The names of a file that a new function must not have, local ones included."""
    found = Names()
    for node in (n for d in definitions for n in ast.walk(d)):
        if isinstance(node, ast.arg):
            found.taken.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.taken.add(node.name)
        elif isinstance(node, ast.Assign):
            found.taken |= {n.id for t in node.targets for n in syntax.names_in(t)}
    return found
