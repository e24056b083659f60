"""Writes the `__init__` of classes that hold layers of `equinox.nn`.

These layers are constructed from sizes and a key, and so are the classes around them. The reader of
weights then makes a model of types and fills in the arrays of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from invert.emission.expressions import literals
from invert.emission.expressions.body import Body, Placed
from invert.emission.layers.cut import LayerCall
from invert.emission.layers.native import Native
from invert.emission.layers.shared import Class
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import snake
from invert.emission.python.syntax import call, number
from invert.ir.types import Var


def native_of(node: Node) -> Native | None:
    """The layer of `equinox.nn` that replaces a node, if any."""
    return node.layers[0].native if node.layers else None


def has_native(node: Node) -> bool:
    """Whether a node is or holds a layer of `equinox.nn`."""
    pending: list[Var | Node] = [node]
    while pending:
        value = pending.pop()
        if isinstance(value, Node):
            if native_of(value) is not None:
                return True
            pending.extend(value.fields.values())
    return False


def _count(node: Node) -> int:
    """The number of stacked layers that a node stands for; 0 for a single one."""
    return node.layers[0].count if node.layers else 0


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
    """A transpose; `jnp.moveaxis` where one axis moves."""
    if not order:
        return value
    for source, target in ((-1, 1), (1, -1), (len(order) - 1, 0)):
        axes = list(range(len(order)))
        axes.insert(target % len(order), axes.pop(source))
        if axes == list(order):
            return call("jnp.moveaxis", value, number(source), number(target))
    return call("jnp.transpose", value, syntax.tuple_of(map(number, order)))


def initializer(
    node: Node, made: Mapping[Node, Class], shape: Callable[[Var], Sequence[int]]
) -> ast.FunctionDef:
    """`__init__`: the initial value of every field.

    **Arguments:**

    - `made`: the classes of the inner nodes.
    """
    fields = list(node.fields.items())
    keyed = [f for f, v in fields if isinstance(v, Node) and _takes_key(v, made)]
    body: list[ast.stmt] = []
    keys: dict[str, ast.expr] = {}
    own = syntax.name("key")
    if len(keyed) == 1:
        keys[keyed[0]] = own
    elif keyed:
        parts = call("jax.random.split", own, number(len(keyed)))
        body.append(syntax.assign(ast.Name("keys", ast.Load()), parts))
        keys = {f: syntax.item(syntax.name("keys"), number(i)) for i, f in enumerate(keyed)}
    for field, value in fields:
        target = ast.Attribute(ast.Name("self", ast.Load()), field, ast.Store())
        start = _start(value, made, shape, keys.get(field, own), ())
        body.append(ast.Assign([target], start, lineno=0))
    key = syntax.argument("key", syntax.name("PRNGKeyArray"))
    return syntax.function("__init__", [syntax.argument("self")], body, keyword_only=[key])


def _takes_key(node: Node, made: Mapping[Node, Class]) -> bool:
    if node.listed:
        return _takes_key(node.nodes[0], made)
    native = native_of(node)
    return made[node].keyed if native is None else native.keyed or bool(_count(node))


def _start(
    value: Var | Node,
    made: Mapping[Node, Class],
    shape: Callable[[Var], Sequence[int]],
    key: ast.expr,
    above: tuple[int, ...],
) -> ast.expr:
    """The initial value of a field; `above` are the sizes of the stacks around it."""
    if not isinstance(value, Node):
        sizes = literals.shape((*above, *shape(value)))
        plain = value.aval.dtype == np.float32
        return call("jnp.zeros", sizes, *([] if plain else [literals.dtype(value.aval.dtype)]))
    if value.listed:
        return _list(value, made, shape, key, above)
    count, native = _count(value), native_of(value)
    if native is None and not made[value].keyed:
        inner = (*above, count) if count else above
        parts = [_start(v, made, shape, key, inner) for v in value.fields.values()]
        return call(syntax.name(made[value].token), *parts)
    if not count:
        return _new(value, made, key)
    name = "key" if native is None or native.keyed else "_"
    function = ast.Lambda(
        ast.arguments([], [ast.arg(name)], None, [], [], None, []),
        _new(value, made, syntax.name("key")),
    )
    keys = call("jax.random.split", key, number(count))
    return call(call("eqx.filter_vmap", function), keys)


def _list(
    value: Node,
    made: Mapping[Node, Class],
    shape: Callable[[Var], Sequence[int]],
    key: ast.expr,
    above: tuple[int, ...],
) -> ast.expr:
    """A tuple of modules of one class."""
    first, name = value.nodes[0], ast.Name("k", ast.Load())
    part = _start(first, made, shape, name, above)
    count = number(len(value.nodes))
    keyed = _takes_key(first, made)
    each = call("jax.random.split", key, count) if keyed else call("range", count)
    target = ast.Name("k" if keyed else "_", ast.Store())
    return call("tuple", ast.GeneratorExp(part, [ast.comprehension(target, each, [], 0)]))


def _new(node: Node, made: Mapping[Node, Class], key: ast.expr) -> ast.expr:
    native = native_of(node)
    if native is None:
        return call(syntax.name(made[node].token), key=key)
    keywords = {name: literals.value(value) for name, value in native.keywords}
    dtype = next(v for _, v in node.leaves()).aval.dtype
    if dtype != np.float32:
        keywords["dtype"] = literals.dtype(dtype)
    if native.keyed:
        keywords["key"] = key
    return call(f"eqx.nn.{native.kind}", *map(literals.value, native.args), **keywords)
