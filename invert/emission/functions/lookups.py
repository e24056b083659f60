"""Calls embeddings where their tables are read: `self.wte(ids)` for `self.wte.weight[ids]`."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from invert.emission.python import syntax
from invert.emission.python.syntax import field_of


@dataclasses.dataclass(frozen=True)
class _Lookup:
    """The method of an embedding: it only returns rows of its table.

    **Arguments:**

    - `field`, `argument`: the names of the table and of the indices.
    - `value`: what it returns.
    """

    method: ast.FunctionDef
    field: str
    argument: str
    value: ast.expr

    @classmethod
    def of(cls, definition: ast.ClassDef) -> _Lookup | None:
        """The only method of a class, if it is one."""
        methods = [s for s in definition.body if isinstance(s, ast.FunctionDef)]
        match [m for m in methods if m.name != "__init__"]:
            case [
                ast.FunctionDef(
                    name="__call__",
                    args=ast.arguments(args=[_, argument], kwonlyargs=[]),
                    body=[ast.Return(value=ast.expr() as value)],
                ) as method
            ]:
                reads = [n for n in syntax.walk(value) if isinstance(n, ast.Subscript)]
                indices = [ast.unparse(n.slice) for n in reads]
                fields = {field for n in syntax.walk(value) if (field := field_of(n))}
                if indices == [argument.arg] and len(fields) == 1:
                    return cls(method, fields.pop(), argument.arg, value)
        return None

    def found(self, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
        """The layer and indices, where a node looks up rows of its table."""
        parts: dict[str, ast.expr] = {}

        def same(pattern: object, other: object) -> bool:
            if isinstance(pattern, ast.Name) and pattern.id == self.argument:
                return isinstance(other, ast.expr) and parts.setdefault("indices", other) is other
            if field_of(pattern if isinstance(pattern, ast.AST) else None):
                if not isinstance(other, ast.Attribute) or other.attr != self.field:
                    return False
                parts["layer"] = other.value
                return bool(field_of(other.value))
            if isinstance(pattern, ast.AST) and type(pattern) is type(other):
                names = pattern._fields
                return all(same(getattr(pattern, n, None), getattr(other, n, None)) for n in names)
            if isinstance(pattern, list) and isinstance(other, list):
                return len(pattern) == len(other) and all(map(same, pattern, other))
            return pattern == other

        if not same(self.value, node) or len(parts) < 2:
            return None
        parted = isinstance(parts["indices"], ast.Slice | ast.Tuple | ast.Constant)
        return None if parted else (parts["layer"], parts["indices"])

    def take_any_shape(self) -> None:
        """Annotate the indices as `*batch`, and the rows accordingly."""
        (argument,) = self.method.args.args[1:]
        for annotation, kept in ((argument.annotation, 0), (self.method.returns, 1)):
            sizes = annotation.slice if isinstance(annotation, ast.Subscript) else None
            if isinstance(sizes, ast.Tuple) and isinstance(sizes.elts[1], ast.Constant):
                words = str(sizes.elts[1].value).split()
                sizes.elts[1] = ast.Constant(" ".join(["*batch", *words[len(words) - kept :]]))


def rewrite(definitions: Sequence[ast.stmt]) -> bool:
    """Call layers instead of looking up their tables' rows; tell whether any were.

    A layer called so takes indices of any shape.
    """
    classes = {d.name: d for d in definitions if isinstance(d, ast.ClassDef)}
    for name, definition in classes.items():
        if (method := _method_of(name, definition, classes.values())) is not None:
            definition.body.append(method)
    known = {name: x for name, d in classes.items() if (x := _Lookup.of(d)) is not None}
    changed = False
    for definition in classes.values():
        own = False
        fields = dict(_fields(definition, known))
        for node in [n for n in syntax.walk(definition) if isinstance(n, ast.Subscript | ast.Call)]:
            for lookup in dict.fromkeys(fields.values()):
                found = lookup.found(node)
                if found is not None and fields.get(field_of(found[0])) is lookup:
                    syntax.replace(definition, node, syntax.call(*found))
                    lookup.take_any_shape()
                    own = changed = True
        if own:
            for method in (s for s in definition.body if isinstance(s, ast.FunctionDef)):
                _inline(method, {*fields})
    return changed


# The longest expression that is written where it is used, and the longest line with it.
_LONGEST, _LINE = 45, 92


def _inline(method: ast.FunctionDef, fields: Collection[str]) -> None:
    """Write the rows of tables, and the ranges they are looked up by, in the lines that use them.

    The lines were broken for `self.table.weight.at[ids].get(mode="clip")`, which is longer.
    """
    body = method.body
    for i in reversed(range(len(body) - 1)):
        match body[i]:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func) as value):
                looked_up = field_of(func) in fields or ast.unparse(func) == "jnp.arange"
            case _:
                continue
        following = body[i + 1]
        own = [n for n in syntax.walk(following) if _is_read(n, name)]
        if not looked_up or not isinstance(following, ast.Assign | ast.Return) or len(own) != 1:
            continue
        # The next statement may give the variable another value, as a later one may.
        rest = [following, *body[i + 2 :]]
        end = next((k for k, s in enumerate(rest) if name in syntax.stored(s)), len(rest))
        later = rest[1 : end + 1] if end else []
        more = len(ast.unparse(value)) - len(name)
        fits = more < _LONGEST and len(syntax.text_of(following)) + more <= _LINE
        if fits and not any(_is_read(n, name) for s in later for n in syntax.walk(s)):
            syntax.replace(following, own[0], value)
            del body[i]


def _is_read(node: ast.AST, name: str) -> bool:
    """Return whether a node reads a variable."""
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)


def _method_of(
    name: str, definition: ast.ClassDef, classes: Iterable[ast.ClassDef]
) -> ast.FunctionDef | None:
    """A method for a class with a table whose rows others only look up."""
    arrays = [s for s in definition.body if isinstance(s, ast.AnnAssign)]
    methods = [s.name for s in definition.body if isinstance(s, ast.FunctionDef)]
    kind = arrays[0].annotation if len(arrays) == 1 else None
    if methods != ["__init__"] or not isinstance(kind, ast.Subscript):
        return None
    sizes = kind.slice.elts[1] if isinstance(kind.slice, ast.Tuple) else None
    axes = str(sizes.value).split() if isinstance(sizes, ast.Constant) else []
    table = ast.unparse(arrays[0].target)
    found: dict[str, ast.expr] = {}
    reads = lookups = 0
    for other in classes:
        own = {ast.unparse(s.target) for s in other.body if isinstance(s, ast.AnnAssign)
               and ast.unparse(s.annotation) == name}  # fmt: skip
        for node in syntax.walk(other):
            if isinstance(node, ast.Attribute) and node.attr == table:
                reads += field_of(node.value) in own
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Subscript(
                            value=ast.Attribute(value=ast.Attribute(attr=attr) as read, attr="at")
                        ) as rows,
                        attr="get",
                    )
                ) if attr == table and field_of(read.value) in own:
                    lookups += 1
                    argument = rows.slice
                    new = {id(argument): syntax.name("x"), id(read.value): syntax.name("self")}
                    value = _with(node, new)
                    found[ast.unparse(value)] = value
    if len(axes) != 2 or not lookups or lookups != reads or len(found) != 1:
        return None
    (value,) = found.values()
    indices = ast.parse('Int[Array, "*batch"]', mode="eval").body
    returns = ast.parse(f'Float[Array, "*batch {axes[1]}"]', mode="eval").body
    arguments = [syntax.argument("self"), syntax.argument("x", indices)]
    return syntax.function("__call__", arguments, [ast.Return(value)], returns=returns)


def _with(node: ast.expr, new: Mapping[int, ast.expr]) -> ast.expr:
    """A copy of an expression in which some parts are others."""
    if id(node) in new:
        return new[id(node)]
    made = copy.copy(node)
    for field in node._fields:
        if isinstance(value := getattr(node, field, None), ast.expr):
            setattr(made, field, _with(value, new))
    return made


def _fields(
    definition: ast.ClassDef, known: Mapping[str, _Lookup]
) -> Iterator[tuple[str, _Lookup]]:
    """The fields that are embeddings."""
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            lookup = known.get(ast.unparse(statement.annotation))
            if lookup is not None:
                yield ast.unparse(statement.target), lookup
