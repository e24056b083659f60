"""Arguments of layers that follow from others: `c_in == c_out and strides == 1`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from invert.emission.constructors.sizes import HIDDEN, KERNEL_SIZE, PAIRS
from invert.emission.expressions import literals
from invert.emission.layers.shared import Code
from invert.emission.python import syntax
from invert.emission.python.naming import stem
from invert.emission.python.syntax import number

_STRIDES = "strides"
# Marks an argument without a usual value.
_NOTHING = object()

# The values of an argument in all layers of a class.
Column = tuple[Any, ...]


def without_derived(
    body: Sequence[ast.stmt],
    arguments: Mapping[str, Column],
    followers: Mapping[str, tuple[ast.expr, Column]],
) -> tuple[list[ast.stmt], dict[str, Column]]:
    """The statements with expressions for arguments that follow from others, and their values.

    **Arguments:**

    - `followers`: sizes that are multiples of arguments.
    """
    tests = list(_tests(body, arguments, followers))
    derived: dict[str, ast.expr] = {}
    missing: dict[str, ast.expr] = {}
    values: dict[str, Column] = {}
    for name, column in arguments.items():
        if name in (_STRIDES, KERNEL_SIZE):
            continue
        if {*column} == {False, True} and type(column[0]) is bool:
            found = next((t.true(column) for t in tests if t.says(column)), None)
            if found is not None:
                derived[name] = found
        elif (centred := _centred(column, arguments)) is not None:
            derived[name], values[name] = centred
        elif (usual := _usual(column)) is not _NOTHING:
            there = tuple(v == usual for v in column)
            test = next((t for t in tests if t.says(there)), None)
            value = _value([None if v == usual else v for v in column], arguments)
            if test is not None and value is not None:
                derived[name] = ast.IfExp(test.true(there), literals.value(usual), value)
                if usual is None:
                    missing[name] = test.true(there)
    body = [_Missing(missing).visit(syntax.copied(s)) for s in body]
    body = [syntax.substitute(s, derived) for s in body]
    kernels = [n for n in arguments if stem(n) == KERNEL_SIZE]
    place = next((i for i, s in enumerate(body) if mentions(s, _HALF)), None)
    if place is not None:
        size = ast.Name(kernels[0], ast.Load())
        body.insert(place, syntax.assign(syntax.name(_HALF), syntax.infix(size, "//", number(2))))
    return body, {name: values.get(name, arguments[name]) for name in derived}


def _usual(column: Column) -> str | object | None:
    """`None`, or `"SAME"` where other layers state their paddings; `_NOTHING` for other columns."""
    if None in column:
        return None
    names = {v for v in column if isinstance(v, str)}
    stated = any(isinstance(v, tuple) for v in column)
    return names.pop() if len(names) == 1 and stated else _NOTHING


def _centred(column: Column, arguments: Mapping[str, Column]) -> tuple[ast.expr, Column] | None:
    """`((half, half), (half, half))` and the paddings, if all are that, stated or `"SAME"`."""
    kernels = next((c for n, c in arguments.items() if stem(n) == KERNEL_SIZE), ())
    strides = next((c for n, c in arguments.items() if stem(n) == _STRIDES), (1,) * len(kernels))
    stated = [v for v in column if isinstance(v, tuple)]
    if not stated or _usual(column) != "SAME" or len(kernels) != len(column):
        return None
    whole: list[Any] = []
    for value, kernel, stride in zip(column, kernels, strides, strict=True):
        named = (
            value == "SAME" and type(kernel) is int and kernel % 2 == 1 and 1 in (kernel, stride)
        )
        whole.append(((kernel // 2,) * 2,) * len(stated[0]) if named else value)
    if any(isinstance(v, str) for v in whole) or len({*whole}) < 2:
        return None
    value = _value(whole, arguments)
    return None if value is None else (value, tuple(whole))


def mentions(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement reads a name."""
    return any(n.id == name for n in syntax.names_in(statement))


class _Test:
    """A condition on the arguments of a layer: that each of some comparisons holds.

    **Arguments:**

    - `comparisons`: for each, its sides and whether they are equal, in all layers.
    - `between`: whether they are sizes alone, which may be equal by chance. Only what is there
        where they differ follows from them, beside a layer from the one size to the other.
    """

    def __init__(
        self, comparisons: Sequence[tuple[str, str, tuple[bool, ...]]], *, between: bool = False
    ):
        self._comparisons, self._between = comparisons, between
        columns = (equal for _, _, equal in comparisons)
        self._holds = tuple(map(all, zip(*columns, strict=True)))
        self._fails = tuple(map(operator.not_, self._holds))

    def says(self, column: Column) -> bool:
        """Return whether a flag is the condition or its negation, in all layers."""
        return column == self._fails or (column == self._holds and not self._between)

    def true(self, column: Column) -> ast.expr:
        """The expression for a flag."""
        sign, word = ("==", " and ") if column == self._holds else ("!=", " or ")
        text = word.join(f"{a} {sign} {b}" for a, b, _ in self._comparisons)
        return ast.parse(text, mode="eval").body


def _tests(
    body: Sequence[ast.stmt],
    arguments: Mapping[str, Column],
    followers: Mapping[str, tuple[ast.expr, Column]],
) -> Iterator[_Test]:
    """Conditions such as `c_in == c_out and strides == 1`, the most specific first."""
    known = {n: (syntax.text_of(text), values) for n, (text, values) in followers.items()}
    known |= {stem(n): (n, values) for n, values in reversed([*arguments.items()])}
    equal: list[list[tuple[str, str, tuple[bool, ...]]]] = []
    outer: list[list[tuple[str, str, tuple[bool, ...]]]] = []
    for one, other in (pair for pair in PAIRS if known.keys() >= {*pair}):
        (a, left), (b, right) = known[one], known[other]
        equal.append([(a, b, tuple(map(operator.eq, left, right)))])
        outer += [equal[-1]] if other != HIDDEN else []
    if _STRIDES in known:
        name, values = known[_STRIDES]
        ones = (1,) * len(values[0]) if isinstance(values[0], tuple) else 1
        last = name, str(ones), tuple(v == ones for v in values)
        # A layer that makes images smaller cannot pass on its input.
        equal = [*([*test, last] for test in outer), *equal, [last]]
    if KERNEL_SIZE in known:
        name, values = known[KERNEL_SIZE]
        equal.append([(name, "1", tuple(v == 1 for v in values))])
    for test in equal:
        between = len(test) == 1 and test[0][0] not in (_STRIDES, KERNEL_SIZE)
        if not between or _is_projected(body, arguments, *test[0]):
            yield _Test(test, between=between)


def _is_projected(
    body: Sequence[ast.stmt], arguments: Mapping[str, Column], one: str, other: str, equal: Column
) -> bool:
    """Return whether a layer from one size to another is there exactly where they differ."""
    flags = {n for n, column in arguments.items() if column == tuple(map(operator.not_, equal))}
    inside = (n for s in body for n in syntax.walk(s) if isinstance(n, ast.IfExp))
    layers = (n.body for n in inside if syntax.text_of(n.test) in flags)
    sizes = {n.id for side in (one, other) for n in syntax.names_in(ast.parse(side))}
    return any(sizes <= {n.id for n in syntax.names_in(layer)} for layer in layers)


def _value(column: Sequence[Any], arguments: Mapping[str, Column]) -> ast.expr | None:
    """An argument's value where it is not `None`: a literal, or kernel padding."""
    there = [v for v in column if v is not None]
    sizes = next((c for n, c in arguments.items() if stem(n) == KERNEL_SIZE), None)
    if sizes is not None and _HALF not in arguments and all(type(n) is int for n in sizes):
        steps = arguments.get(_DILATION, (1,) * len(column))
        known = zip(column, sizes, steps, strict=True)
        rows = [(literal(v), n, step) for v, n, step in known if v is not None]
        for pair, text in _PADS:
            if _DILATION in text and _DILATION not in arguments:
                continue
            if all(isinstance(v, tuple) and v == (pair(n, s),) * len(v) for v, n, s in rows):
                return syntax.tuple_of([ast.parse(text, mode="eval").body] * len(rows[0][0]))
    return expression(there[0]) if all(v == there[0] for v in there) else None


# Half the size of a kernel, and paddings of an axis that follow from a kernel and its dilation:
# on both sides, for strides, and of causal convolutions.
_HALF, _DILATION = "half", "dilation"
_PADS: tuple[tuple[Callable[[int, int], tuple[int, int]], str], ...] = (
    (lambda size, step: (size // 2, size // 2), "(half, half)"),
    (lambda size, step: (size // 2 - 1, size // 2), "(half - 1, half)"),
    (lambda size, step: ((size - 1) * step, 0), f"(({KERNEL_SIZE} - 1) * {_DILATION}, 0)"),
    (lambda size, step: (size - 1, 0), f"({KERNEL_SIZE} - 1, 0)"),
)


def expression(value: Any) -> ast.expr:
    """The text of the value of an argument."""
    return syntax.name(value.text) if isinstance(value, Code) else literals.value(value)


def literal(value: Any) -> Any:
    """The value of an argument; `None` for code that is not a literal."""
    if not isinstance(value, Code):
        return value
    try:
        return ast.literal_eval(value.text)
    except ValueError:
        return None


class _Missing(ast.NodeTransformer):
    """Writes the tests for `pad_width is None` where that follows from other arguments."""

    def __init__(self, tests: Mapping[str, ast.expr]):
        self._tests = tests

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
            ) if name in self._tests:
                return syntax.copied(self._tests[name])
        return node
