"""Writes activations at the calls of a layer, `jax.nn.softmax(self.dense(x))`, or in its method."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from invert.emission.layers.cut import Layer
from invert.emission.layers.shared import ACTIVATION, IDENTITY, Class, Code
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.syntax import field_of

# With more activated calls than this, the activation stays in the layer.
_MOST = 3


def lift(
    cls: Class,
    sites: Mapping[tuple[Class, str, int], Sequence[Node]],
    names: Mapping[Layer, str],
) -> None:
    """Apply a layer's activation at its calls, if few of them have one.

    An activation that all calls have is written in the method of the layer.

    **Arguments:**

    - `sites`: the layers by the class, the field, and the place in a list that hold them.
    - `names`: the fields by which layers are called.
    """
    column = cls.statics.get(ACTIVATION, ())
    applied = _calls(cls.definition).get(ACTIVATION, ())
    last = [m.body[-1] for m in cls.drafts[0].methods]
    returned = len(last) == 1 and isinstance(last[0], ast.Return) and last[0].value
    if len(applied) != 1 or returned is not applied[0]:
        return
    found = _activated(dict(zip((d.node for d in cls.drafts), column, strict=True)), sites, names)
    if 0 < len(found) <= _MOST:
        for code, definition, calls in found:
            for call in calls:
                syntax.replace(definition, call, ast.Call(_function(code), [call], []))
        syntax.replace(cls.definition, applied[0], applied[0].args[0])
    elif len(set(column)) == 1:
        applied[0].func = _function(column[0])
    else:
        return
    del cls.statics[ACTIVATION]


def _activated(
    codes: Mapping[Node, Code],
    sites: Mapping[tuple[Class, str, int], Sequence[Node]],
    names: Mapping[Layer, str],
) -> list[tuple[Code, ast.ClassDef, Sequence[ast.Call]]]:
    """Fields whose layers have an activation, with their calls, if clear."""
    found: list[tuple[Code, ast.ClassDef, Sequence[ast.Call]]] = []
    known: dict[Class, Mapping[str, list[ast.Call]]] = {}
    for (outer, field, i), nodes in sites.items():
        own = [n for n in nodes if n in codes]
        given = {codes[n] for n in own} - {IDENTITY}
        if not given:
            continue
        every = [x for n in own for x in n.layers]
        place = f"{field}.{i}" if any(x.indexed for x in every) else field
        if outer not in known:
            known[outer] = _calls(outer.definition)
        calls = known[outer].get(place, ())
        alone = all(names[x] == place and not x.count for x in every)
        if len(given) > 1 or IDENTITY in map(codes.get, own) or not calls or not alone:
            return []
        found.append((given.pop(), outer.definition, calls))
    return found


def _function(code: Code) -> ast.expr:
    return ast.parse(code.text, mode="eval").body


def _calls(tree: ast.AST) -> Mapping[str, list[ast.Call]]:
    """The calls of `self.field` by `field`, and those of `self.field[0]` by `field.0`."""
    found: dict[str, list[ast.Call]] = {}
    for node in syntax.walk(tree):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Attribute() as value, slice=index)) if (
                field := field_of(value)
            ):
                found.setdefault(f"{field}.{ast.unparse(index)}", []).append(node)
            case ast.Call(func=ast.Attribute() as value) if field := field_of(value):
                found.setdefault(field, []).append(node)
    return found
