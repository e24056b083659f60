"""Writes derivatives as `jax.value_and_grad` or `jax.vjp` of a function."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from invert._private.jax import open_jaxpr
from invert.emission.expressions.body import Body, Placed
from invert.emission.expressions.control_flow import constants_of, packed, read_by, unpacking
from invert.emission.expressions.pullbacks import Forward, PulledBack
from invert.emission.expressions.statements import FunctionText, Pattern
from invert.emission.expressions.writer import Writer
from invert.emission.python import syntax
from invert.emission.python.naming import identifier
from invert.emission.python.nouns import says
from invert.emission.python.syntax import call, number
from invert.ir.avals import is_differentiable
from invert.ir.graph import is_var
from invert.ir.types import Atom, ClosedJaxpr, Eqn, Var


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


@dataclasses.dataclass
class _Differentiated:
    """A function that is differentiated.

    **Arguments:**

    - `hints`: preferred names of its results.
    """

    function: FunctionText
    arguments: Sequence[_Argument]
    hints: Sequence[str]

    @property
    def values(self) -> list[ast.expr]:
        """The arguments, as expressions of the caller."""
        return [a.value for a in self.arguments]


def value_and_grad(file: Writer, body: Body, eqn: Eqn) -> Placed:
    """`loss, grads = jax.value_and_grad(loss)(params)`."""
    count = eqn.params["count"]
    made = _differentiated(file, body, eqn.params["jaxpr"], eqn.invars, count, "loss_fn", 1)
    results = len(eqn.outvars) - count
    keywords: dict[str, ast.expr] = {}
    if len(made.arguments) > 1:
        keywords["argnums"] = syntax.tuple_of(map(number, range(len(made.arguments))))
    if results > 1:
        keywords["has_aux"] = number(True)
    run = call("jax.value_and_grad", ast.Name(made.function.token, ast.Load()), **keywords)
    derived = _Derived.of(body, made.arguments, eqn.invars[-count:], eqn.outvars, results)
    pattern = (_nested(results, 1), _one_or_tuple(derived.patterns))
    return Placed(
        call(run, *made.values),
        False,
        [made.function],
        ["loss", *made.hints[1:], *derived.hints],
        pattern=pattern,
        trees=derived.trees,
    )


def forward(file: Writer, body: Body, eqn: Forward) -> Placed:
    """`logits, pullback = jax.vjp(model, params)`."""
    closed, count = eqn.eqn.params["jaxpr"], eqn.eqn.params["count"]
    made = _differentiated(file, body, closed, eqn.invars, count, "forward", eqn.ends)
    eqn.params["arguments"] = made.arguments
    count = len(eqn.outvars) - 1
    keywords = {"has_aux": number(True)} if count > eqn.ends else {}
    run = call("jax.vjp", ast.Name(made.function.token, ast.Load()), *made.values, **keywords)
    ends = unpacking(range(eqn.ends))
    pattern: Pattern = (ends, count)
    if count > eqn.ends:
        pattern = (ends, count, unpacking(range(eqn.ends, count)))
    hints = [*made.hints, "pullback"]
    if eqn.ends == 1:
        hints[0] = "output"
    return Placed(run, False, [made.function], hints, pattern=pattern)


def pulled_back(body: Body, eqn: PulledBack) -> Placed:
    """`grads = pullback(cotangents)[0]`."""
    pullback, *cotangents = map(body.operand, eqn.invars)
    arguments = eqn.forward.params["arguments"]
    moving = eqn.forward.invars[len(eqn.forward.invars) - len(eqn.outvars) :]
    derived = _Derived.of(body, arguments, moving, eqn.outvars, 0)
    expression: ast.expr = call(pullback, packed(cotangents))
    if len(arguments) == 1:
        expression = ast.Subscript(expression, number(0), ast.Load())
    return Placed(
        expression,
        False,
        hints=derived.hints,
        pattern=_one_or_tuple(derived.patterns),
        trees=derived.trees,
    )


def _nested(count: int, ends: int) -> Pattern:
    """The pattern of some results with cotangents, and others."""
    own = unpacking(range(ends))
    return (own, unpacking(range(ends, count))) if count > ends else own


def _one_or_tuple(patterns: Sequence[Pattern]) -> Pattern:
    return patterns[0] if len(patterns) == 1 else tuple(patterns)


def _differentiated(
    file: Writer,
    body: Body,
    closed: ClosedJaxpr,
    operands: Sequence[Atom],
    count: int,
    name: str,
    ends: int,
) -> _Differentiated:
    """A program as a local function of its last `count` operands.

    **Arguments:**

    - `name`: the preferred name.
    - `ends`: how many results are differentiated; others are returned beside them.
    """
    inner = open_jaxpr(closed)
    split = len(operands) - count
    arguments = _arguments(body, operands[:split], operands[split:])
    given = constants_of(closed)
    given |= {
        v: read_by(body, a) for v, a in zip(inner.invars[:split], operands[:split], strict=True)
    }
    names: dict[Atom, str] = {
        v: body.names[a]
        for v, a in zip(inner.invars, operands, strict=True)
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
        results = inside.run()
    value = packed(results[:ends])
    if len(results) > ends:
        value = syntax.tuple_of([value, packed(results[ends:])])
    function = FunctionText(
        syntax.new_token(),
        name,
        [a.token for a in arguments],
        [a.hint for a in arguments],
        inside.statements,
        value,
        types=types,
    )
    return _Differentiated(function, arguments, [_says_or(inside, v) for v in inner.outvars])


@dataclasses.dataclass
class _Derived:
    """The derivatives by some arguments, as targets of a statement.

    **Arguments:**

    - `hints`: preferred names of the derivatives, and then of the trees.
    """

    patterns: list[Pattern]
    hints: list[str]
    trees: list[str]

    @classmethod
    def of(
        cls,
        body: Body,
        arguments: Sequence[_Argument],
        moving: Sequence[Atom],
        results: Sequence[Var],
        first: int,
    ) -> _Derived:
        """The last of an equation's results, after the first ones."""
        hints, more_hints, trees = ["grad"] * len(moving), list[str](), list[str]()
        patterns: list[Pattern] = []
        for argument in arguments:
            if argument.is_tree:
                tree = syntax.new_token()
                patterns.append(len(results) + len(trees))
                trees.append(tree)
                more_hints.append("grads" if len(arguments) == 1 else f"{argument.hint}_grads")
                for i in argument.parts:
                    body.given[body.token(results[first + i])] = argument.part(i, tree)
                derived = dict(zip(moving, results[first:], strict=True))
                name = ast.Name(tree, ast.Load())
                _add_tree(body, argument.value, derived, name, more_hints[-1])
            else:
                (i,) = argument.parts
                patterns.append(first + i)
                if says(argument.hint):
                    hints[i] = f"{argument.hint}_grad"
        return cls(patterns, [*hints, *more_hints], trees)


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
