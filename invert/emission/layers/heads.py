"""The number of heads or groups of a layer's features, as a static field."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

from invert.emission.layers.shared import Class
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.syntax import field_of
from invert.ir.sizes import Shape
from invert.ir.types import Atom

# The kinds of layers that split their features, by what they compute.
_HEADS = "heads"
_FIELDS = (("softmax(", _HEADS), ("dot_product_attention(", _HEADS), ("rsqrt(", "groups"))


# The heads that share keys and values.
_GROUPS = "groups"


def write(cls: Class) -> None:
    """Make the 4 in `x.reshape(batch, length, 4, dim // 4)` a field, if unique."""
    first = cls.drafts[0]
    places = list(_places(first.methods))
    text = "".join(map(ast.unparse, first.methods))
    name = next((name for sign, name in _FIELDS if sign in text), "")
    numbers = {c.value for c in places}
    if not name or len(numbers) != 1:
        return
    (number,) = numbers
    assert isinstance(number, int)
    field = Names({*first.node.fields, *cls.statics}).new(name)
    cls.statics[field] = (number,) * len(cls.drafts)
    itself = syntax.field(ast.Name("self", ast.Load()), field)
    chosen = set(map(id, places))
    _halve(first.methods, number, chosen)
    for method in first.methods:
        syntax.replace_all(method, dict.fromkeys(chosen, itself))


def annotate(cls: Class, number: int) -> None:
    """Name the axes of arguments and results that have as many elements as there are heads."""
    own = set(cls.drafts[0].node.fields)
    for node, source in zip(cls.drafts[0].annotations, cls.drafts[0].sources, strict=True):
        if source is None or field_of(source) not in own:
            assert isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)
            sizes = ast.literal_eval(node.slice.elts[1]).split()
            named = (_HEADS if size == str(number) else size for size in sizes)
            node.slice.elts[1] = ast.Constant(" ".join(named))


def with_heads(
    shape: Callable[[Atom], Shape], known: Callable[[Atom], Shape], old: int
) -> Callable[[int], Callable[[Atom], Shape]]:
    """Shapes of a twin at each number of heads, where the program has `old` of them."""

    def at(v: Atom, new: int) -> Shape:
        pairs = itertools.zip_longest(shape(v), known(v))
        return tuple(new if n == m == old else n for n, m in pairs)

    return lambda new: lambda v: at(v, new)


def write_repeats(cls: Class) -> None:
    """Write the 2 in `jnp.repeat(value, 2, axis=2)` as the heads per key."""
    first = cls.drafts[0]
    (method,) = first.methods if len(first.methods) == 1 else (None,)
    columns = zip(*(d.inner for d in cls.drafts), strict=False)
    arrays = [(c[0][0], [shape for _, shape in c]) for c in columns]
    counts = {
        source: tuple(s[1] for s in shapes)
        for source, shapes in arrays
        if all(len(s) == len(shapes[0]) == 3 for s in shapes)
    }
    own = [i for i, d in enumerate(cls.drafts) if d.twin is None]
    body = method.body if method is not None else []
    calls = (n for s in body for n in syntax.walk(s) if isinstance(n, ast.Call))
    for call in [c for c in calls if ast.unparse(c.func) == "jnp.repeat"]:
        repeats = ast.unparse(call.args[1])
        for more, fewer in itertools.permutations(counts, 2):
            ratios = {counts[more][i] / counts[fewer][i] for i in own}
            if len({*counts[more]}) == 1 or [*map(str, map(int, ratios))] != [repeats]:
                continue
            many, few = (syntax.size(s, 1) for s in (more, fewer))
            groups = syntax.assign(syntax.name(_GROUPS), syntax.infix(many, "//", few))
            if ast.unparse(body[0]) != ast.unparse(groups):
                body.insert(0, groups)
            call.args[1] = syntax.name(_GROUPS)
            break


def _places(methods: list[ast.FunctionDef]) -> Iterator[ast.Constant]:
    """The numbers of parts in shapes, and the same numbers as divisors anywhere."""
    nodes = [n for m in methods for s in m.body for n in syntax.walk(s)]
    found = {id(c): c for n in nodes if isinstance(n, ast.Call) for c in _counts(n)}
    yield from found.values()
    numbers = {c.value for c in found.values()}
    for node in nodes:
        divisor = _divisor(node)
        if divisor is not None and divisor.value in numbers:
            yield divisor


def _halve(methods: list[ast.FunctionDef], number: int, chosen: set[int]) -> None:
    """Write half of a head's features as `dim // 4 // 2`, not `dim // 8`."""
    nodes = [n for m in methods for n in syntax.walk(m) if isinstance(n, ast.BinOp)]
    wholes = {ast.unparse(n.left) for n in nodes if id(n.right) in chosen}
    for node in nodes:
        divisor = _divisor(node)
        if divisor is not None and divisor.value == 2 * number and ast.unparse(node.left) in wholes:
            count = syntax.number(number)
            node.left, node.right = syntax.infix(node.left, "//", count), syntax.number(2)
            chosen.add(id(count))


def _counts(call: ast.Call) -> Iterator[ast.Constant]:
    """The 4 in `x.reshape(..., 4, dim // 4)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "reshape":
        return
    sizes = [e for a in call.args for e in (a.elts if isinstance(a, ast.Tuple) else [a])]
    for count, part in itertools.pairwise(sizes):
        divisor = _divisor(part)
        if isinstance(count, ast.Constant) and divisor and divisor.value == count.value:
            yield count


def _divisor(node: ast.AST) -> ast.Constant | None:
    """The number by which a size is divided; `None` for other expressions."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv):
        return None
    return node.right if isinstance(node.right, ast.Constant) else None
