"""Writes a number and its derivatives as `jax.value_and_grad` of a function."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from invert._private.jax import open_jaxpr
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.control_flow import constants_of, packed, read_by, unpacking
from invert.emission.expressions.statements import FunctionText, Pattern
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.naming import identifier
from invert.emission.python.nouns import says
from invert.emission.python.syntax import call, number
from invert.ir.avals import is_differentiable
from invert.ir.graph import is_var
from invert.ir.types import Atom, Eqn, Var


@dataclasses.dataclass
class _Argument:
    """An argument that a loss is differentiated by: an array, or a tree of arrays.

    **Arguments:**

    - `value`: it, as an expression of the caller.
    - `token`: that of the parameter, and `hint` its preferred name.
    - `parts`: the numbers of the derivatives, with the parts of the argument as expressions of the
        caller.
    - `is_tree`: whether it is a tree.
    """

    value: ast.expr
    token: str
    hint: str
    parts: Mapping[int, ast.expr]
    is_tree: bool

    def part(self, i: int, token: str) -> ast.expr:
        """A part of the tree that has a token."""
        return _with_root(self.parts[i], self.value, ast.Name(token, ast.Load()))


def value_and_grad(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """`loss, grads = jax.value_and_grad(loss)(params)`."""
    closed, count = eqn.params["jaxpr"], eqn.params["count"]
    inner = open_jaxpr(closed)
    split = len(eqn.invars) - count
    others = len(inner.outvars) - 1
    arguments = _arguments(body, eqn.invars[:split], eqn.invars[split:])
    given = constants_of(closed)
    given |= {
        v: read_by(body, a) for v, a in zip(inner.invars[:split], eqn.invars[:split], strict=True)
    }
    names: dict[Atom, str] = {
        v: body.names[a]
        for v, a in zip(inner.invars, eqn.invars, strict=True)
        if is_var(a) and a in body.names
    }
    types = {}
    moving = inner.invars[split:]
    for argument in arguments:
        for i in argument.parts:
            if argument.is_tree:
                given[moving[i]] = argument.part(i, argument.token)
            else:
                argument.token = file.token(moving[i])
                types[argument.token] = body.type_of(moving[i])
    with file.prover.of_derivatives():
        inside = Body(file, inner, given, names)
        value, *more = inside.run()
    if others:
        value = syntax.tuple_of([value, packed(more)])
    function = FunctionText(
        syntax.new_token(),
        "loss_fn",
        [a.token for a in arguments],
        [a.hint for a in arguments],
        inside.statements,
        value,
        types=types,
    )
    keywords: dict[str, ast.expr] = {}
    if len(arguments) > 1:
        keywords["argnums"] = syntax.tuple_of(map(number, range(len(arguments))))
    if others:
        keywords["has_aux"] = number(True)
    run = call("jax.value_and_grad", ast.Name(function.token, ast.Load()), **keywords)
    results: Pattern = (0, unpacking(range(1, 1 + others))) if others else 0
    trees: list[str] = []
    patterns: list[Pattern] = []
    hints = ["loss", *(_says_or(inside, v) for v in inner.outvars[1:]), *["grad"] * count]
    more_hints: list[str] = []
    for argument in arguments:
        if argument.is_tree:
            tree = syntax.new_token()
            patterns.append(len(eqn.outvars) + len(trees))
            trees.append(tree)
            more_hints.append("grads" if len(arguments) == 1 else f"{argument.hint}_grads")
            for i in argument.parts:
                body.given[body.token(eqn.outvars[1 + others + i])] = argument.part(i, tree)
            derived = dict(zip(eqn.invars[split:], eqn.outvars[1 + others :], strict=True))
            _add_tree(body, argument.value, derived, ast.Name(tree, ast.Load()), more_hints[-1])
        else:
            (i,) = argument.parts
            patterns.append(1 + others + i)
            if says(argument.hint):
                hints[1 + others + i] = f"{argument.hint}_grad"
    pattern = (results, patterns[0] if len(patterns) == 1 else tuple(patterns))
    expression = call(run, *(a.value for a in arguments))
    return Placed(
        expression, False, [function], [*hints, *more_hints], pattern=pattern, trees=trees
    )


def _add_tree(
    body: Body, value: ast.expr, derived: Mapping[Atom, Var], tree: ast.expr, hint: str
) -> None:
    """Record the derivatives by a tree, written as `value`, as the tree `tree`."""
    text = syntax.text_of(value)
    for (structure, leaves), known in [*body.trees.values.items()]:
        if syntax.text_of(known) == text and derived.keys() >= {*leaves}:
            column = structure, tuple(derived[a] for a in leaves)
            body.trees.add(column, tree, hint)


def _says_or(body: Body, atom: Atom) -> str:
    """The name of a value of a body, if it says something."""
    name = body.names.get(atom, "") if is_var(atom) else ""
    return name if says(name) else "y"


def _arguments(body: Body, fixed: Sequence[Atom], moving: Sequence[Atom]) -> list[_Argument]:
    """The arguments that hold some arrays: the trees that hold little else, and other arrays."""
    number_of = {body.token(a): i for i, a in enumerate(moving) if is_var(a)}
    held = {body.token(a) for a in fixed if is_var(a)}
    differentiable = {body.token(v) for v in body.graph.jaxpr.invars if is_differentiable(v.aval)}
    differentiable |= number_of.keys()
    trees: dict[str, list[tuple[list[ast.expr], str]]] = {}
    for token, value in body.given.items():
        path = _path(value)
        if len(path) > 1 and isinstance(path[0], ast.Name) and syntax.is_token(path[0].id):
            trees.setdefault(path[0].id, []).append((path, token))
    found: list[_Argument] = []
    for leaves in trees.values():
        found += _subtrees(leaves, 0, number_of, held, differentiable)
    known = {i for argument in found for i in argument.parts}
    for token, i in number_of.items():
        if i not in known:
            value = body.given.get(token, ast.Name(token, ast.Load()))
            hint = body.names.get(moving[i], "x")
            found.append(_Argument(value, "", hint, {i: value}, is_tree=False))
    return sorted(found, key=lambda a: min(a.parts))


def _subtrees(
    leaves: Sequence[tuple[list[ast.expr], str]],
    depth: int,
    number_of: Mapping[str, int],
    held: set[str],
    differentiable: set[str],
) -> Iterator[_Argument]:
    """The largest trees of leaves that share a path, of which most are differentiated by."""
    own = [token for _, token in leaves if token in number_of]
    if not own:
        return
    whole = held.isdisjoint(t for _, t in leaves) and differentiable.issuperset(
        t for _, t in leaves
    )
    if whole and 2 * len(own) > len(leaves) and all(len(path) > depth + 1 for path, _ in leaves):
        value = leaves[0][0][depth]
        parts = {number_of[t]: path[-1] for path, t in leaves if t in number_of}
        is_root = isinstance(value, ast.Name)
        token = value.id if is_root else syntax.new_token()
        yield _Argument(value, token, "p" if is_root else _key(value), parts, is_tree=True)
        return
    below: dict[str, list[tuple[list[ast.expr], str]]] = {}
    for path, token in leaves:
        if len(path) > depth + 1:
            below.setdefault(syntax.text_of(path[depth + 1]), []).append((path, token))
    for group in below.values():
        yield from _subtrees(group, depth + 1, number_of, held, differentiable)


def _path(value: ast.expr) -> list[ast.expr]:
    """An expression and what it takes parts of, outermost first: `p`, `p["a"]`, `p["a"][0]`."""
    path = [value]
    while isinstance(path[-1], (ast.Subscript, ast.Attribute)):
        path.append(path[-1].value)
    return path[::-1]


def _key(value: ast.expr) -> str:
    """The last key of a path, as a name."""
    if isinstance(value, ast.Attribute):
        return identifier(value.attr)
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        key = value.slice.value
        return identifier(key) if isinstance(key, str) else "params"
    return "params"


def _with_root(value: ast.expr, old: ast.expr, new: ast.expr) -> ast.expr:
    """A path with another start."""
    if value is old or syntax.text_of(value) == syntax.text_of(old):
        return new
    if isinstance(value, ast.Subscript):
        return ast.Subscript(_with_root(value.value, old, new), value.slice, value.ctx)
    assert isinstance(value, ast.Attribute)
    return ast.Attribute(_with_root(value.value, old, new), value.attr, value.ctx)
