"""Lists of what each layer of a tuple returns: `[table(x) for table in self.tables]`.

Each layer may take one of the parts that a `jnp.split` makes.
"""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Mapping, Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import singular

# The least number of layers for which a comprehension is shorter.
_FEW = 3


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    """The body of a function in which such lists are comprehensions."""
    body = [*function.body]
    lists = [n for s in body for n in syntax.walk(s) if isinstance(n, ast.List)]
    for node in (n for n in lists if len(n.elts) >= _FEW):
        uses = collections.Counter(n.id for s in body for n in syntax.names_in(s))
        made = {
            s.targets[0].id: s
            for s in body
            if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
        }
        # Values with names that only the list reads.
        own = {n: s for n, s in made.items() if uses[n] == 2 and len(s.targets) == 1}
        values = [own[e.id].value if isinstance(e, ast.Name) and e.id in own else e
                  for e in node.elts]  # fmt: skip
        gone = {e.id for e in node.elts if isinstance(e, ast.Name) and e.id in own}
        each = _comprehension(values, body, {n: k for n, k in uses.items() if n not in gone})
        place = next(i for i, s in enumerate(body) if any(n is node for n in syntax.walk(s)))
        if each is None or not isinstance(body[place], ast.Assign | ast.Return):
            continue
        generator, split = each
        dropped = [*(own[n] for n in gone), *([split] if split is not None else [])]
        first = min((body.index(s) for s in dropped), default=place)
        # Nothing in between may change what the values are computed from.
        read = {n.id for n in syntax.names_in(generator)}
        if any(syntax.stored(s) & read for s in body[first:place] if s not in dropped):
            continue
        syntax.replace(body[place], node, generator)
        body = [s for s in body if s not in dropped]
    return body


def _comprehension(
    values: Sequence[ast.expr], body: Sequence[ast.stmt], uses: Mapping[str, int]
) -> tuple[ast.ListComp, ast.stmt | None] | None:
    """The list of some values that layers of a tuple return, and the split that it contains."""
    found = {path for v in values if (path := _one_of(v))}
    if len(found) != 1:
        return None
    (field,) = found
    layers = syntax.field(syntax.name("self"), field)
    words = uses.keys()
    wanted = (re.sub(r"_?\d+$", "", singular(field)), "layer", "element")
    element = next(w for w in wanted if w.isidentifier() and len(w) > 1 and w not in words)
    forms = [_with_element(v, layers, i, element) for i, v in enumerate(values)]
    if None in forms:
        return None
    split = next((s for s in body if _splits(s, forms, uses)), None)
    loop: ast.expr = layers
    target: ast.expr = syntax.name(element)
    texts = {syntax.text_of(f) for f in forms if f is not None}
    form = forms[0]
    assert form is not None
    if split is not None:
        assert isinstance(split, ast.Assign) and isinstance(split.targets[0], ast.Tuple)
        parts = [n.id for n in split.targets[0].elts if isinstance(n, ast.Name)]
        part = next(n for n in ("x", "y", "part") if n not in words - {*parts})
        texts = {
            syntax.text_of(syntax.renamed(f, {p: part}))
            for f, p in zip(forms, parts, strict=True)
            if f is not None
        }
        form = syntax.renamed(form, {parts[0]: part})
        loop = syntax.call("zip", layers, split.value, strict=ast.Constant(True))
        target = syntax.tuple_of([target, syntax.name(part)])
    if len(texts) != 1:
        return None
    return ast.ListComp(form, [ast.comprehension(syntax.store(target), loop, [], 0)]), split


def _one_of(value: ast.expr) -> str:
    """The field of the tuple whose layer an expression calls, or `""`."""
    indexed = [
        syntax.field_of(n.value)
        for n in syntax.walk(value)
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)
    ]
    named = [name for name in indexed if name]
    return named[0] if len(named) == 1 else ""


def _with_element(value: ast.expr, layers: ast.expr, i: int, element: str) -> ast.expr | None:
    """An expression with a variable for one item of a tuple; `None` if it is another item."""
    item = syntax.text_of(syntax.item(layers, syntax.number(i)))
    node = syntax.copied(value)
    for n in syntax.walk(node):
        if isinstance(n, ast.Subscript) and syntax.text_of(n) == item:
            syntax.replace(node, n, syntax.name(element))
            return node
    return None


def _splits(statement: ast.stmt, forms: Sequence[ast.expr | None], uses: Mapping[str, int]) -> bool:
    """Return whether a statement makes parts of which each value reads one, in order."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Call() as made):
            names = [n.id for n in parts if isinstance(n, ast.Name)]
            if syntax.path_of(made.func) != "jnp.split" or len(names) != len(forms):
                return False
            return all(uses[n] == 2 for n in names) and all(
                f is not None and n in {m.id for m in syntax.names_in(f)}
                for n, f in zip(names, forms, strict=True)
            )
    return False
