"""The meshes of an emitted file: constants, in the place of which the caller sets another."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import Names

_ON_MESH = '''
def on_mesh(mesh: jax.sharding.AbstractMesh) -> jax.sharding.AbstractMesh:
    """The mesh that `jax.set_mesh` sets, else the one that the program was written for."""
    current = jax.sharding.get_abstract_mesh()
    missing = [axis for axis in mesh.axis_names if axis not in current.axis_names]
    if not current.empty and missing:
        fitting = f"jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names})"
        raise ValueError(f"the mesh has no axis {missing[0]!r}; {fitting} makes one that fits")
    return mesh if current.empty else current
'''

_MESH = "jax.sharding.AbstractMesh"

# What the file imports from `jax.sharding`, under its name in the file.
_SHORT = {
    "AbstractMesh": "AbstractMesh",
    "AxisType": "AxisType",
    "NamedSharding": "NamedSharding",
    "PartitionSpec": "P",
}


def import_line(roots: set[str]) -> str:
    """The import of the classes that a file uses by their short names."""
    used = [n if n == s else f"{n} as {s}" for n, s in _SHORT.items() if s in roots]
    return f"from jax.sharding import {', '.join(used)}" if used else ""


def with_constants(definitions: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The definitions with each mesh as a constant, and classes under their short names.

    A program of one mesh runs on the one that its caller sets. Where there are several, nobody
    could say which one is meant.
    """
    found: dict[str, ast.expr] = {}
    names = Names()
    for definition in definitions:
        for node in ast.walk(definition):
            names.taken |= {getattr(node, key, "") or "" for key in ("id", "arg", "name")}
            if isinstance(node, ast.Call) and ast.unparse(node.func) == _MESH:
                found.setdefault(ast.unparse(node), node)
    if not found:
        return list(definitions)
    short = {f"jax.sharding.{n}": s for n, s in _SHORT.items() if s not in names.taken}
    names.taken |= set(short.values())
    constants = {text: names.new("MESH") for text in found}
    helper = names.new("on_mesh") if len(found) == 1 else ""
    made: list[ast.stmt] = [
        ast.Assign([ast.Name(constants[text], ast.Store())], copy.deepcopy(node), lineno=0)
        for text, node in found.items()
    ]
    if helper:
        tree = ast.parse(_ON_MESH)
        syntax.rename(tree, {"on_mesh": helper})
        for node in tree.body:
            assert isinstance(node, ast.FunctionDef)
            node.name = helper
        made += tree.body
    made = [_Shorten(short, {}, "").visit(node) for node in made]
    return [*made, *(_Shorten(short, constants, helper).visit(d) for d in definitions)]


class _Shorten(ast.NodeTransformer):
    """Puts short names in the place of classes, and constants in the place of meshes."""

    def __init__(self, short: Mapping[str, str], constants: Mapping[str, str], helper: str):
        self.short, self.constants, self.helper = short, constants, helper

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self.short.get(ast.unparse(node))
        return ast.Name(name, node.ctx) if name else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = self.constants.get(ast.unparse(node)) if self.constants else None
        if name is None:
            return self.generic_visit(node)
        constant = ast.Name(name, ast.Load())
        return syntax.call(self.helper, constant) if self.helper else constant
