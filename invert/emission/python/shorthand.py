"""Shorter statements with the same meaning, for definitions that are otherwise finished."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

from invert.emission.python import comprehensions, syntax
from invert.emission.python.naming import RESERVED, plural
from invert.emission.python.nouns import of_field

# The least number of values for which an operation is written once.
_FEW = 3
# An activation's result is no longer that of the normalization.
_NORMALIZED = re.compile(r"(?<=[a-z])_(bn|norm)$")
# The types whose items are of several types.
_SEQUENCES = frozenset(("list", "dict"))
# Names of values that say nothing.
_NUMBERED = re.compile(r"[xy]_\d+")
_ELEMENTS = ("y", "z", "a", "element")


def shortened(definitions: Iterable[ast.stmt]) -> None:
    """Shorten the bodies of all functions, and the types of sequences, in place."""
    for definition in definitions:
        for node in syntax.walk(definition):
            if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in _SEQUENCES:
                node.slice = _each_once(node.slice)
            if isinstance(node, ast.FunctionDef):
                node.body = _alike_at_once(_repeated_once(_sizes_at_once(node)))
                node.body = _widened_once(node.body)
                node.body = _loops_at_once(node)
                node.body = comprehensions.body_of(node)
                _name_after_layers(node)


def _each_once(types: ast.expr) -> ast.expr:
    """`A | B` for `A | B | A`."""
    if isinstance(types, ast.Tuple):  # of the keys and the values of a dictionary
        return ast.Tuple([_each_once(t) for t in types.elts], ast.Load())
    each: dict[str, ast.expr] = {}
    pending = [types]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            pending += [node.right, node.left]
        else:
            each.setdefault(syntax.text_of(node), node)
    return functools.reduce(lambda a, b: syntax.infix(a, "|", b), each.values())


def _name_after_layers(function: ast.FunctionDef) -> None:
    """Name values after their layers that would be called `x_2` or `y_2`."""
    nodes = [n for n in syntax.walk(function) if isinstance(n, ast.Name)]
    taken = {n.id for n in nodes} | {a.arg for a in syntax.walk(function) if isinstance(a, ast.arg)}
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _NUMBERED.fullmatch(name):
                called = (n for n in syntax.walk(value) if isinstance(n, ast.Call))
                fields = [f for n in called if (f := syntax.field_of(n.func))]
                made = sum(n.id == name and isinstance(n.ctx, ast.Store) for n in nodes)
                own = of_field(fields[0]) if fields else name
                own = _NORMALIZED.sub("", own) or own
                if made == 1 and own not in taken | RESERVED:
                    taken.add(own)
                    for node in nodes:
                        node.id = own if node.id == name else node.id


def _sizes_at_once(function: ast.FunctionDef) -> list[ast.stmt]:
    """`batch, length, dim = x.shape`, if at least half the sizes are read."""
    ranks = {a.arg: rank for a in function.args.args if (rank := _rank(a.annotation)) is not None}
    body = function.body
    first = int(ast.get_docstring(function, clean=False) is not None)
    count = first
    reads: dict[str, dict[int, str]] = {}
    while count < len(body) and (read := _read_size(body[count], ranks)) is not None:
        array, axis, name = read
        if axis in reads.get(array, ()):
            break
        reads.setdefault(array, {})[axis] = name
        count += 1
    sizes: list[ast.stmt] = []
    for array, names in reads.items():
        shape = syntax.field(syntax.name(array), "shape")
        rank = ranks[array]
        if len(names) > 1 and 2 * len(names) >= rank:
            targets = [syntax.name(names.get(axis, "_")) for axis in range(rank)]
            sizes.append(syntax.assign(syntax.store(syntax.tuple_of(targets)), shape))
            continue
        # As before, except that the last axis may be counted from the end.
        sizes += [s for s in body[first:count] if (r := _read_size(s, ranks)) and r[0] == array]
    return [*body[:first], *sizes, *body[count:]]


def _rank(annotation: ast.expr | None) -> int | None:
    """The number of axes in `Float[Array, "batch dim"]`, if fixed."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return None
    match annotation.slice.elts:
        case [_, ast.Constant(value=str() as sizes)] if "*" not in sizes and "..." not in sizes:
            return len(sizes.split())
    return None


def _read_size(statement: ast.stmt, ranks: dict[str, int]) -> tuple[str, int, str] | None:
    """The array, the axis and the name in `batch = x.shape[0]`."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=array), attr="shape"), slice=axis
            ),
        ) if array in ranks:
            try:
                number = ast.literal_eval(axis)
            except ValueError:
                return None
            return (array, number % ranks[array], name) if isinstance(number, int) else None
    return None


def _repeated_once(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """`q, k, v = (f(y) for y in jnp.split(...))` for one step on several values."""
    result: list[ast.stmt] = []
    i = 0
    while i < len(body):
        names, end = [], i
        forms = set[str]()
        while end < len(body) and (step := _changes(body[end])) is not None:
            name, form = step
            if name in names or (forms and form not in forms):
                break
            forms.add(form)
            names.append(name)
            end += 1
        if len(names) < _FEW:
            result.append(body[i])
            i += 1
            continue
        result.append(_for_each(names, body[i], result))
        i = end
    return result


def _widened_once(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """`mask = mask[..., None]` for a value used only with more axes."""
    result = list(body)
    indices = (n for s in body for n in syntax.walk(s) if isinstance(n, ast.Subscript))
    widened = {n.value.id for n in indices if isinstance(n.value, ast.Name) and _is_widened(n)}
    for i, statement in reversed([*enumerate(body)] if widened else []):
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        for own in (n.id for t in targets for n in syntax.walk(t) if isinstance(n, ast.Name)):
            if own not in widened:
                continue
            rest = ast.Module(result[i + 1 :], [])
            uses = [n for n in syntax.walk(rest) if isinstance(n, ast.Name) and n.id == own]
            wide = [
                n
                for n in syntax.walk(rest)
                if isinstance(n, ast.Subscript) and syntax.is_named(n.value, own) and _is_widened(n)
            ]
            if len(uses) < _FEW or len(wide) < len(uses) or len({*map(syntax.text_of, wide)}) > 1:
                continue
            once = _Named(syntax.text_of(wide[0]), own)
            after = [once.visit(s) for s in result[i + 1 :]]
            result[i + 1 :] = [syntax.assign(syntax.name(own), wide[0]), *after]
    return result


def _is_widened(node: ast.Subscript) -> bool:
    """Return whether a node is `name[..., None]` or another index that only adds axes."""
    texts = [*map(ast.unparse, node.slice.elts)] if isinstance(node.slice, ast.Tuple) else []
    return "None" in texts and all(text in ("...", ":", "None") for text in texts)


class _Named(ast.NodeTransformer):
    """Replaces an index by a name."""

    def __init__(self, text: str, name: str):
        self._text, self._name = text, name

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if syntax.text_of(node) == self._text:
            return ast.Name(self._name, ast.Load())
        return self.generic_visit(node)  # pyright: ignore[reportReturnType]


def _alike_at_once(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """`h = c = jnp.zeros(...)` for consecutive names of equal arrays.

    Fields stay apart: if two were one array, it could be donated only once.
    """
    result: list[ast.stmt] = []
    for statement in body:
        before = result[-1] if result else None
        match before, statement:
            case ast.Assign(), ast.Assign(value=value) if (
                text := _filled(statement)
            ) and text == _filled(before):
                targets = [*before.targets, *statement.targets]
                result[-1] = ast.Assign(targets, value, lineno=0)
            case _:
                result.append(statement)
    return result


def _loops_at_once(function: ast.FunctionDef) -> list[ast.stmt]:
    """`for blocks in (self.blocks1, self.blocks2, self.blocks3):`, for loops that do the same."""
    used = syntax.used(function)
    result: list[ast.stmt] = []
    for form, group in itertools.groupby(function.body, _loop):
        loops = [*group]
        first = loops[0]
        if not form or len(loops) < _FEW or not isinstance(first, ast.For):
            result += loops
            continue
        elements = [syntax.text_of(n.target) for n in loops if isinstance(n, ast.For)]
        words = {re.sub(r"[_\d]+$", "", e).split("_")[-1] for e in elements}
        free = used - {*elements}
        wanted = (*(words if len(words) == 1 else ()), "layer", "element")
        element = next(n for n in wanted if n.isidentifier() and not {n, plural(n)} & free)
        lists = syntax.tuple_of(n.iter for n in loops if isinstance(n, ast.For))
        step = syntax.substitute(first, {elements[0]: syntax.name(element)})
        step.target, step.iter = syntax.store(syntax.name(element)), syntax.name(plural(element))
        outer = syntax.store(syntax.name(plural(element)))
        result.append(ast.For(outer, lists, [step], [], lineno=0))
    return result


def _loop(statement: ast.stmt) -> str:
    """The step that a loop does with a field's elements; `""` for other statements."""
    match statement:
        case ast.For(
            target=ast.Name(id=element), iter=ast.Attribute(value=ast.Name(id="self")), body=body
        ):
            inner = syntax.substitute(ast.Module(body, []), {element: syntax.name("_")})
            return syntax.text_of(inner)
    return ""


def _filled(statement: ast.stmt | None) -> str:
    """The text of an array of one number that is given names, or `""`."""
    match statement:
        case ast.Assign(targets=targets, value=ast.Call() as value) if all(
            isinstance(target, ast.Name) for target in targets
        ):
            text = syntax.text_of(value)
            return text if text.startswith(("jnp.zeros(", "jnp.ones(", "jnp.full(")) else ""
    return ""


def _changes(statement: ast.stmt) -> tuple[str, str] | None:
    """The name in `query = f(query)`, and the text of the statement without it."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
            uses = [n for n in syntax.walk(value) if isinstance(n, ast.Name) and n.id == name]
            if len(uses) == 1:
                return name, syntax.text_of(syntax.renamed(value, {name: "_"}))
    return None


def _for_each(names: Sequence[str], first: ast.stmt, before: list[ast.stmt]) -> ast.stmt:
    """One statement for all; absorbs the last of `before` if it makes the values."""
    assert isinstance(first, ast.Assign)
    targets = syntax.tuple_of([syntax.name(n) for n in names])
    values: ast.expr = targets
    match before[-1] if before else None:
        case ast.Assign(targets=[ast.Tuple() as made], value=ast.Call() as call) if syntax.text_of(
            made
        ) == syntax.text_of(targets):
            values = call
            before.pop()
    used = syntax.used(first.value)
    element = next(n for n in _ELEMENTS if n not in used)
    each = syntax.renamed(first.value, {names[0]: element})
    loop = ast.comprehension(ast.Name(element, ast.Store()), values, [], 0)
    return syntax.assign(syntax.store(targets), ast.GeneratorExp(each, [loop]))
