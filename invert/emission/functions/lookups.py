"""Calls embeddings where their tables are read: `self.wte(ids)` for `self.wte.weight[ids]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from invert.emission.layers.shared import replace
from invert.emission.python import syntax
from invert.emission.python.syntax import field_of


def rewrite(definitions: Sequence[ast.stmt]) -> bool:
    """Call the layers whose tables other methods read; tell whether there are any.

    Such a layer then takes indices of any shape.
    """
    classes = {d.name: d for d in definitions if isinstance(d, ast.ClassDef)}
    tables = {name: (m, field) for name, d in classes.items() for m, field in _lookups(d)}
    changed = False
    for definition in classes.values():
        fields = {
            ast.unparse(s.target): name
            for s in definition.body
            if isinstance(s, ast.AnnAssign) and (name := ast.unparse(s.annotation)) in tables
        }
        for read in [n for n in ast.walk(definition) if isinstance(n, ast.Subscript)]:
            if (name := _layer_of(read, fields, tables)) is not None:
                layer = read.value.value if isinstance(read.value, ast.Attribute) else read.value
                replace(definition, read, syntax.call(layer, read.slice))
                _take_any_shape(tables[name][0])
                changed = True
    return changed


def _lookups(definition: ast.ClassDef) -> Iterator[tuple[ast.FunctionDef, str]]:
    """The method of an embedding, which only returns rows of a field, and the field."""
    methods = [s for s in definition.body if isinstance(s, ast.FunctionDef)]
    calls = [m for m in methods if m.name != "__init__"]
    match calls:
        case [ast.FunctionDef(name="__call__", body=[ast.Return(value=ast.Subscript() as read)])]:
            arguments = [a.arg for a in calls[0].args.args[1:]]
            if (field := field_of(read.value)) and [ast.unparse(read.slice)] == arguments:
                yield calls[0], field


def _layer_of(
    read: ast.Subscript,
    fields: Mapping[str, str],
    tables: Mapping[str, tuple[ast.FunctionDef, str]],
) -> str | None:
    """The class of the embedding whose rows are read by an array of indices."""
    if not isinstance(read.value, ast.Attribute) or not isinstance(read.ctx, ast.Load):
        return None
    name = fields.get(field_of(read.value.value), "")
    whole = not isinstance(read.slice, ast.Slice | ast.Tuple | ast.Constant)
    return name if name and whole and tables[name][1] == read.value.attr else None


def _take_any_shape(method: ast.FunctionDef) -> None:
    """Annotate the indices as `*batch`, and the rows accordingly."""
    (argument,) = method.args.args[1:]
    for annotation, kept in ((argument.annotation, 0), (method.returns, 1)):
        sizes = annotation.slice if isinstance(annotation, ast.Subscript) else None
        if isinstance(sizes, ast.Tuple) and isinstance(sizes.elts[1], ast.Constant):
            words = str(sizes.elts[1].value).split()
            sizes.elts[1] = ast.Constant(" ".join(["*batch", *words[len(words) - kept :]]))
