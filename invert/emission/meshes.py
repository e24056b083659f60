"""The meshes of an emitted file: constants, which the caller may override."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import Names

_GIVEN = """
    current = jax.sharding.get_abstract_mesh()
    missing = [axis for axis in mesh.axis_names if axis not in current.axis_names]
    if not current.empty and missing:
        fitting = f"jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names})"
        raise ValueError(f"the mesh has no axis {missing[0]!r}; {fitting} makes one that fits")
"""

# A program without shards runs on one device or many.
_ON_ANY = f'''
def on_mesh(mesh: jax.sharding.AbstractMesh) -> jax.sharding.AbstractMesh:
    """The mesh that `jax.set_mesh` sets, else the one that the program was written for."""{_GIVEN}
    return mesh if current.empty else current
'''

_ON_SHARDS = f'''
def on_mesh(mesh: jax.sharding.AbstractMesh, *values: Any) -> Any:
    """The mesh that is set, else `mesh`: of the values, or of the first devices."""{_GIVEN}
    if not current.empty:
        return current
    arrays = [x for x in values if isinstance(x, jax.Array)]
    if not arrays or any(not jax.typeof(x).sharding.mesh.empty for x in arrays):
        return mesh
    if jax.device_count() < mesh.size:
        counts = f"{{mesh.size}} devices, and there are {{jax.device_count()}}"
        raise ValueError(f"the program runs on shards over {{counts}}")
    sizes, names = mesh.axis_sizes, mesh.axis_names
    first = jax.devices()[: mesh.size]
    return jax.make_mesh(sizes, names, axis_types=mesh.axis_types, devices=first)
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

    A program with one mesh runs on the mesh that its caller sets. With several, it would be
    ambiguous which one to replace.
    """
    found: dict[str, ast.expr] = {}
    names = Names()
    has_shards = False
    for definition in definitions:
        for node in syntax.walk(definition):
            has_shards |= _is_shard_map(node)
            names.taken |= {getattr(node, key, "") or "" for key in ("id", "arg", "name")}
            if isinstance(node, ast.Call) and syntax.path_of(node.func) == _MESH:
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
        tree = ast.parse(_ON_SHARDS if has_shards else _ON_ANY)
        syntax.rename(tree, {"on_mesh": helper})
        for node in tree.body:
            assert isinstance(node, ast.FunctionDef)
            node.name = helper
        made += tree.body
    made = [_Shorten(short, {}, "", False).visit(node) for node in made]
    return [*made, *(_Shorten(short, constants, helper, has_shards).visit(d) for d in definitions)]


def _is_shard_map(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and syntax.path_of(node.func) == "jax.shard_map"


def _values(node: ast.expr) -> list[ast.expr]:
    """The variables and fields that an expression uses, possibly with functions."""
    found: dict[str, ast.expr] = {}

    def visit(node: ast.AST) -> None:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            if node is root or root.id == "self":
                found.setdefault(ast.unparse(node), copy.deepcopy(node))  # type: ignore[arg-type]
            return
        called = node.func if isinstance(node, ast.Call) else None
        for child in ast.iter_child_nodes(node):
            if child is not called or not isinstance(child, (ast.Name, ast.Attribute)):
                visit(child)

    visit(node)
    return list(found.values())


class _Shorten(ast.NodeTransformer):
    """Replaces classes by short names, and meshes by constants."""

    def __init__(
        self, short: Mapping[str, str], constants: Mapping[str, str], helper: str, has_shards: bool
    ):
        self.short, self.constants, self.helper = short, constants, helper
        self.has_shards = has_shards
        # The operands of the call that is being visited.
        self.values: list[ast.expr] = []

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self.short.get(ast.unparse(node))
        return ast.Name(name, node.ctx) if name else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = self.constants.get(ast.unparse(node)) if self.constants else None
        if name is not None:
            constant = ast.Name(name, ast.Load())
            return syntax.call(self.helper, constant, *self.values) if self.helper else constant
        if not self.has_shards:
            return self.generic_visit(node)
        before = self.values
        if _is_shard_map(node.func):
            self.values = [v for a in node.args for v in _values(a)]
            node.func = self.generic_visit(node.func)  # type: ignore[assignment]
            self.values = before
            node.args = [self.visit(a) for a in node.args]
            return node
        if syntax.path_of(node.func) == "lax.with_sharding_constraint":
            self.values = _values(node.args[0])
            node.args[1] = self.visit(node.args[1])
            self.values = before
            node.args[0] = self.visit(node.args[0])
            return node
        return self.generic_visit(node)
