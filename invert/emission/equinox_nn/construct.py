"""Writes calls of layers of `equinox.nn`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from invert.emission.expressions import literals
from invert.emission.expressions.body import Body, Placed
from invert.emission.layers.cut import LayerCall
from invert.emission.layers.native import Native
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import snake
from invert.emission.python.syntax import call, number


def native_of(node: Node) -> Native | None:
    """The layer of `equinox.nn` that replaces a node, if any."""
    return node.layers[0].native if node.layers else None


def applied(body: Body, eqn: LayerCall, field: str) -> Placed:
    """The call of a layer of `equinox.nn`, mapped over the batch."""
    native = eqn.layer.native
    assert native is not None
    value = body.operand(eqn.invars[0])
    if native.into is not None:
        value = syntax.method(value, "reshape", *map(literals.size, native.into))
    value = _moved(value, native.before)
    layer = syntax.field(ast.Name("self", ast.Load()), *field.split("."))
    for _ in range(native.maps):
        layer = call("jax.vmap", layer)
    value = _moved(call(layer, value), native.after)
    if native.out is not None:
        value = syntax.method(value, "reshape", *map(literals.size, native.out))
    hint = snake(eqn.layer.name, "y").rstrip("_0123456789") or "y"
    return Placed(value, hints=[hint], flows=False)


def _moved(value: ast.expr, order: Sequence[int]) -> ast.expr:
    """A transpose; `jnp.moveaxis` if one axis moves."""
    if not order:
        return value
    for source, target in ((-1, 1), (1, -1), (len(order) - 1, 0)):
        axes = list(range(len(order)))
        axes.insert(target % len(order), axes.pop(source))
        if axes == list(order):
            return call("jnp.moveaxis", value, number(source), number(target))
    return call("jnp.transpose", value, syntax.tuple_of(map(number, order)))
