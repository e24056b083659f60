"""Building blocks of Python syntax trees, and tokens: references to values without a name."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

# A value has no name until its whole function is known. Until then a token represents it, which is
# not an identifier, so that the two cannot be confused.
_SIGN = "$"

_tokens = itertools.count()

_T = TypeVar("_T", bound=ast.AST)


def new_token() -> str:
    """A reference to a value that is named later."""
    return f"{_SIGN}{next(_tokens)}"


def is_token(name: str) -> bool:
    return name.startswith(_SIGN)


def name(text: str) -> ast.expr:
    """A name, or a dotted one such as `jax.nn.relu`; also a token."""
    first, *rest = text.split(".")
    node: ast.expr = ast.Name(first, ast.Load())
    for part in rest:
        node = ast.Attribute(node, part, ast.Load())
    return node


def number(value: complex | bool | str | bytes | None) -> ast.expr:
    """A literal; a negative number is a negation."""
    if isinstance(value, np.generic):  # which Python 3.13 does not compile
        value = value.item()
    if isinstance(value, (int, float)) and str(value).startswith("-"):
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


def call(function: str | ast.expr, *args: ast.expr, **keywords: ast.expr) -> ast.expr:
    """`function(*args, **keywords)`."""
    return ast.Call(
        name(function) if isinstance(function, str) else function,
        list(args),
        [ast.keyword(key, value) for key, value in keywords.items()],
    )


def method(value: ast.expr, attribute: str, *args: ast.expr, **keywords: ast.expr) -> ast.expr:
    """`value.attribute(*args, **keywords)`."""
    return call(ast.Attribute(value, attribute, ast.Load()), *args, **keywords)


def field(value: ast.expr, *path: str) -> ast.expr:
    """`value.a.b`; a number is the index of a tuple."""
    for part in path:
        if part.isdigit():
            value = ast.Subscript(value, ast.Constant(int(part)), ast.Load())
        else:
            value = ast.Attribute(value, part, ast.Load())
    return value


def tuple_of(items: Iterable[ast.expr]) -> ast.expr:
    return ast.Tuple(list(items), ast.Load())


def one_or_tuple(items: Sequence[ast.expr]) -> ast.expr:
    """The only item, or a tuple of several."""
    return items[0] if len(items) == 1 else tuple_of(items)


def list_of(items: Iterable[ast.expr]) -> ast.expr:
    return ast.List(list(items), ast.Load())


def item(value: ast.expr, index: ast.expr) -> ast.expr:
    """`value[index]`."""
    return ast.Subscript(value, index, ast.Load())


_BINARY: Mapping[str, ast.operator] = {
    "+": ast.Add(),
    "-": ast.Sub(),
    "*": ast.Mult(),
    "/": ast.Div(),
    "//": ast.FloorDiv(),
    "%": ast.Mod(),
    "@": ast.MatMult(),
    "**": ast.Pow(),
    "&": ast.BitAnd(),
    "|": ast.BitOr(),
    "^": ast.BitXor(),
    "<<": ast.LShift(),
    ">>": ast.RShift(),
}
_COMPARISONS: Mapping[str, ast.cmpop] = {
    "==": ast.Eq(),
    "!=": ast.NotEq(),
    "<": ast.Lt(),
    "<=": ast.LtE(),
    ">": ast.Gt(),
    ">=": ast.GtE(),
}
_UNARY: Mapping[str, ast.unaryop] = {"-": ast.USub(), "~": ast.Invert()}


def size(value: ast.expr, axis: int) -> ast.expr:
    """`x.shape[0]`."""
    return item(field(value, "shape"), number(axis))


def infix(left: ast.expr, operator: str, right: ast.expr) -> ast.expr:
    """`left operator right`; comparisons too."""
    if operator in _COMPARISONS:
        return ast.Compare(left, [_COMPARISONS[operator]], [right])
    return ast.BinOp(left, _BINARY[operator], right)


def prefix(operator: str, operand: ast.expr) -> ast.expr:
    return ast.UnaryOp(_UNARY[operator], operand)


def slice_of(
    start: ast.expr | None = None, stop: ast.expr | None = None, step: ast.expr | None = None
) -> ast.expr:
    return ast.Slice(start, stop, step)


def docstring(text: str) -> ast.stmt:
    return ast.Expr(ast.Constant(text))


def assign(target: ast.expr, value: ast.expr) -> ast.stmt:
    return ast.Assign([store(target)], value, lineno=0)


def declare(field: str, annotation: ast.expr) -> ast.stmt:
    """`field: annotation`."""
    return ast.AnnAssign(ast.Name(field, ast.Store()), annotation, None, 1)


def store(node: ast.expr) -> ast.expr:
    """The same expression as a target."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([store(n) for n in node.elts], ast.Store())
    if isinstance(node, ast.Starred):
        return ast.Starred(store(node.value), ast.Store())
    assert isinstance(node, ast.Name)
    return ast.Name(node.id, ast.Store())


def function(
    name: str,
    arguments: Sequence[ast.arg],
    body: Sequence[ast.stmt],
    *,
    keyword_only: Sequence[ast.arg] = (),
    positional_only: bool = False,
    decorators: Sequence[ast.expr] = (),
    returns: ast.expr | None = None,
    defaults: Mapping[str, ast.expr] | None = None,
) -> ast.FunctionDef:
    """A function definition; `defaults` are those of keyword arguments."""
    values = dict(defaults or {})
    node = ast.FunctionDef(
        name=name,
        args=ast.arguments(
            posonlyargs=list(arguments) if positional_only else [],
            args=[] if positional_only else list(arguments),
            kwonlyargs=list(keyword_only),
            kw_defaults=[values.get(a.arg) for a in keyword_only],
            defaults=[],
        ),
        body=list(body) or [ast.Pass()],
        decorator_list=list(decorators),
        returns=returns,
        type_comment=None,
    )
    node.lineno = 0
    if "type_params" in ast.FunctionDef._fields:
        setattr(node, "type_params", [])  # noqa: B010  Python 3.12 and later
    return node


def lambda_of(names: Sequence[str], body: ast.expr) -> ast.Lambda:
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    return ast.Lambda(arguments, body)


def class_of(name: str, bases: Sequence[ast.expr], body: Sequence[ast.stmt]) -> ast.ClassDef:
    """A class definition."""
    node = ast.ClassDef(
        name=name, bases=list(bases), keywords=[], body=list(body), decorator_list=[]
    )
    if "type_params" in ast.ClassDef._fields:
        setattr(node, "type_params", [])  # noqa: B010
    return node


def argument(name: str, annotation: ast.expr | None = None) -> ast.arg:
    return ast.arg(name, annotation)


def is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def field_of(node: ast.AST | None) -> str:
    """The name of a field of `self`, or `""`."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


# Fields that hold no expressions or statements, whatever node has them.
_LEAVES = frozenset(
    """ctx op ops id attr kind type_comment name asname arg module level conversion simple is_async
    rest tag lineno""".split()
)


class _Parts(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node that can hold other nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        own = (
            ()
            if kind in (ast.Constant, ast.MatchSingleton)
            else tuple(f for f in kind._fields if f not in _LEAVES)
        )
        self[kind] = own
        return own


_PARTS = _Parts()


def children(node: ast.AST) -> list[ast.AST]:
    """As `ast.iter_child_nodes`, without operators and contexts."""
    found: list[ast.AST] = []
    for field in _PARTS[type(node)]:
        value = getattr(node, field, None)
        if isinstance(value, list):
            found += [v for v in value if isinstance(v, ast.AST)]
        elif value is not None and isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """As `ast.walk`, without operators and contexts, and several times faster."""
    found = [node]
    for each in found:  # which grows
        own = each.__dict__
        for field in _PARTS[each.__class__]:
            if field not in own:
                continue
            value = own[field]
            if value.__class__ is list:
                if value:
                    found += _trees(value)
            elif value is not None:
                found += (value,)
    return found


def _trees(values: list[Any]) -> list[ast.AST]:
    """The trees in a field, which may also have gaps or names."""
    if None in values or values[0].__class__ is str:
        return [v for v in values if isinstance(v, ast.AST)]
    return values


def in_order(node: ast.AST) -> list[ast.AST]:
    """A tree in the order of its text; unlike `walk`, depth first."""
    found: list[ast.AST] = []
    pending = [node]
    while pending:
        found += ((last := pending.pop()),)
        own = last.__dict__
        for field in _PARTS[last.__class__][::-1]:
            if field not in own:
                continue
            value = own[field]
            if value.__class__ is list:
                if value:
                    pending += _trees(value)[::-1]
            elif value is not None:
                pending += (value,)
    return found


def stored(node: ast.AST) -> set[str]:
    """The variables that a tree assigns."""
    names = (n for n in walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def used(node: ast.AST) -> set[str]:
    """The names that occur in a tree."""
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def constructor_of(definition: ast.ClassDef) -> ast.FunctionDef | None:
    """The `__init__` of a class, if it has one."""
    methods = (s for s in definition.body if isinstance(s, ast.FunctionDef))
    return next((m for m in methods if m.name == "__init__"), None)


def argument_names(function: ast.FunctionDef) -> set[str]:
    return {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}


def names_in(node: ast.AST) -> list[ast.Name]:
    """All names of a tree, from left to right."""
    return [n for n in in_order(node) if type(n) is ast.Name]


def tokens_in(node: ast.AST) -> list[str]:
    """The tokens of a tree, each once, from left to right."""
    return list(dict.fromkeys(n.id for n in names_in(node) if is_token(n.id)))


def width(node: ast.AST) -> int:
    """An estimate of the length of the text, much faster than writing it."""
    total = 0
    pending: list[ast.AST] = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, ast.Name):
            total += 4 if is_token(current.id) else len(current.id)
        elif isinstance(current, ast.Attribute):
            total += 1 + len(current.attr)
        elif isinstance(current, ast.Constant):
            total += len(repr(current.value))
        elif isinstance(current, ast.keyword):
            total += 1 + len(current.arg or "")
        elif isinstance(current, (ast.expr, ast.Slice)):
            total += 3
        pending += children(current)
    return total


def rename(node: ast.AST, names: Mapping[str, str]) -> None:
    """Replace tokens by names, in place."""
    for each in names_in(node):
        each.id = names.get(each.id, each.id)


def renamed(node: ast.expr, names: Mapping[str, str]) -> ast.expr:
    """A copy of the expression with names for tokens."""
    new = copied(node)
    rename(new, names)
    return new


def substitute(node: _T, values: Mapping[str, ast.expr]) -> _T:
    """A copy of a tree with expressions for tokens."""
    return _copy(node, values)


def replace_all(tree: ast.AST, values: Mapping[int, ast.expr]) -> None:
    """Replace nodes in a tree, given by their `id`, by expressions that may contain them."""
    pending = [tree]
    for each in pending:  # which grows
        own: dict[str, Any] = each.__dict__
        for field in _PARTS[each.__class__]:
            value: Any = own.get(field)
            if value.__class__ is list:
                for i, part in enumerate(value):
                    if (new := values.get(id(part))) is not None:
                        value[i] = new
                    elif isinstance(part, ast.AST):
                        pending += (part,)
            elif isinstance(value, ast.AST):
                if (new := values.get(id(value))) is not None:
                    own[field] = new
                else:
                    pending += (value,)


def replace(tree: ast.AST, node: ast.AST, new: ast.expr) -> None:
    """Replace a node in a tree by an expression that may contain it."""
    replace_all(tree, {id(node): new})


_ORIGIN = "origin"
# Where a number comes from: the ids of equations, or those of a variable and one of its axes.
Origin: TypeAlias = Sequence[int | tuple[int, int]]


def mark(node: ast.AST, origin: Origin) -> None:
    """Note where the numbers in a tree come from, unless that is known."""
    for each in walk(node):
        if isinstance(each, ast.Constant) and not origin_of(each):
            setattr(each, _ORIGIN, tuple(origin))


def originate(node: ast.Constant, origin: Origin) -> None:
    """Change where a number comes from."""
    setattr(node, _ORIGIN, tuple(origin))


def origin_of(node: ast.Constant) -> Origin:
    """Where a number comes from; `()` if that is unknown."""
    return getattr(node, _ORIGIN, ())


def copied(node: _T) -> _T:
    """A copy of a tree; operators, which have no fields, are shared."""
    return _copied(node, {})


def _copied(node: _T, values: Mapping[str, ast.expr]) -> _T:
    kind = node.__class__
    made = kind.__new__(kind)
    new: dict[str, Any] = made.__dict__
    new.update(node.__dict__)
    for field in _PARTS[kind]:
        value: Any = new.get(field)
        if value.__class__ is list:
            new[field] = [_copy(v, values) for v in value]
        elif value is not None:
            new[field] = _copy(value, values)
    return made


def _copy(value: Any, values: Mapping[str, ast.expr]) -> Any:
    if value.__class__ is ast.Name and (found := values.get(value.id)) is not None:
        return copied(found)
    return _copied(value, values) if isinstance(value, ast.AST) else value


_Trees = TypeVar("_Trees", bound="ast.AST | list[Any] | tuple[Any, ...] | None")


def cloned(trees: _Trees) -> _Trees:
    """As `copy.deepcopy` of trees, several times faster: nodes at two places remain one node."""
    known: dict[int, ast.AST] = {}

    def clone(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(clone, value))
        if not isinstance(value, ast.AST):
            return value
        if (made := known.get(id(value))) is None:
            kind = value.__class__
            made = known[id(value)] = kind.__new__(kind)
            new = made.__dict__
            new.update(value.__dict__)
            for field in _PARTS[kind]:
                if (part := new.get(field)) is not None:
                    new[field] = clone(part)
        return made

    return clone(trees)


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def template(text: str, **values: ast.expr) -> ast.expr:
    """The expression `text`, with expressions for some of its names."""
    return substitute(_template(text), values)


def text_of(node: ast.AST) -> str:
    """The source text."""
    # Most are one word or a dotted name, which is much faster to write without a visitor.
    if isinstance(node, ast.Name | ast.Attribute) and (path := path_of(node)):
        return path
    if type(node) is ast.Constant and type(node.value) is int:
        return str(node.value)
    for each in () if isinstance(node, ast.expr) else walk(node):
        if isinstance(each, ast.stmt) and not hasattr(each, "lineno"):
            each.lineno = 0  # which statements need
    return ast.unparse(node)


def path_of(node: ast.expr) -> str:
    """`jax.nn.relu` of a dotted name, or `""`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            owner = path_of(node.value)
            return owner and f"{owner}.{node.attr}"
    return ""


def is_path(node: ast.expr, name: str, attribute: str) -> bool:
    """Return whether an expression is the attribute of a variable, such as `jnp.sqrt`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    )
