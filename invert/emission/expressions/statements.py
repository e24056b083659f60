"""Functions as lists of statements over tokens."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from invert.emission.python import syntax
from invert.emission.sizes.expressions import dimension_of
from invert.ir.types import Var

# A parameter of a function: a token, or a tuple of tokens that the first line unpacks.
Parameter = str | tuple[str, ...]
# How results are nested: numbers of targets in tuples, `None` for no result.
Pattern: TypeAlias = "int | tuple[Pattern, ...] | None"
# The shape and the dtype of a value.
ValueType: TypeAlias = tuple[tuple[int, ...], np.dtype]


@dataclasses.dataclass(frozen=True)
class Repeat:
    """`for element in iterable: target = value`.

    **Arguments:**

    - `element`: the token of the element, and `hint` its preferred name.
    - `value`: over the tokens of the element, of the targets and of others.
    - `outs`: the tokens of the results of the value if there are several, `None` for unused ones.
    - `totals`: the targets that are assigned after these, with their values.
    - `beside`: more elements, if those of the iterable are tuples, with their preferred names.
    """

    iterable: ast.expr
    element: str
    hint: str
    value: ast.expr
    outs: Sequence[str | None] = ()
    totals: Sequence[tuple[str, ast.expr]] = ()
    beside: Sequence[tuple[str, str]] = ()

    def values(self) -> list[ast.expr]:
        """The values that it assigns."""
        return [self.value, *(value for _, value in self.totals)]

    def changed(self, change: Callable[[ast.expr], ast.expr]) -> Repeat:
        """The loop with other expressions."""
        totals = [(token, change(value)) for token, value in self.totals]
        iterable, value = change(self.iterable), change(self.value)
        return dataclasses.replace(self, iterable=iterable, value=value, totals=totals)


@dataclasses.dataclass
class Statement:
    """`targets = value`, after the definitions of local functions that the value names.

    **Arguments:**

    - `targets`: a token for each result, `None` for one that is not used.
    - `hints`: preferred names of the targets.
    - `types`: types of the targets; one reuses the name of an operand of the same type that is not
        used later.
    - `flows`: whether it reuses such a name; `"any"` if the type does not matter, `"blank"` if
        only `x` and `y` are reused.
    - `heirs`: tokens whose names it may reuse.
    - `repeat`: a following loop on its targets.
    - `pattern`: the nesting of the results.
    - `place`: the number of the first equation in it that calls a layer, otherwise of its own or
        `reads`.
    - `calls`: whether it calls a layer.
    - `passes`: whether its value is the result of a layer and named only after it.
    - `reads`: the number of the first equation in it that reads a value which others read too.
    - `heir`: a token whose name the only target takes if it is not used later.
    - `uses`: the values that others read too, each with the numbers of the equations that read it,
        in the order of evaluation.
    """

    targets: Sequence[str | None]
    value: ast.expr
    hints: Sequence[str] = ()
    types: Sequence[ValueType | None] = ()
    flows: bool | str = False
    functions: Sequence[FunctionText] = ()
    pattern: Pattern = None
    heirs: Sequence[str] = ()
    repeat: Repeat | None = None
    place: int = 0
    calls: bool = False
    passes: bool = False
    reads: int | None = None
    uses: Sequence[tuple[Var, int]] = ()
    heir: str = ""


@dataclasses.dataclass
class FunctionText:
    """A function definition over tokens.

    **Arguments:**

    - `token`: the token of the function itself.
    - `hint`: the preferred name.
    - `hints`: preferred names of the parameters.
    - `first`: leading parameters, such as `self`.
    - `types`: types of the parameters.
    - `parts`: preferred names of the values of a tuple parameter.
    - `layers`: names of layers, which only their results may have.
    - `may_be_lambda`: whether it is written in its place, if it is one short expression.
    """

    token: str
    hint: str
    parameters: Sequence[Parameter]
    hints: Sequence[str]
    body: Sequence[Statement]
    result: ast.expr
    decorators: Sequence[ast.expr] = ()
    first: Sequence[str] = ()
    doc: str = ""
    annotations: Mapping[str, ast.expr] = dataclasses.field(default_factory=dict)
    keyword_only: int = 0
    positional_only: bool = False
    returns: ast.expr | None = None
    types: Mapping[str, ValueType | None] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    layers: Collection[str] = frozenset()
    may_be_lambda: bool = False

    def tokens(self) -> Iterator[str]:
        """Tokens it reads, own ones included."""
        for statement in self.body:
            yield from read(statement)
        yield from syntax.tokens_in(self.result)
        for decorator in self.decorators:
            yield from syntax.tokens_in(decorator)

    def own(self) -> set[str]:
        """Tokens it defines."""
        tokens = {t for p in self.parameters for t in ((p,) if isinstance(p, str) else p)}
        for statement in self.body:
            tokens.update(t for t in statement.targets if t is not None)
            tokens.update(f.token for f in statement.functions)
        return tokens

    def free(self) -> list[str]:
        """Tokens it closes over."""
        own = self.own()
        return [t for t in dict.fromkeys(self.tokens()) if t not in own]

    def rewrite(self, change: Callable[[ast.expr], ast.expr]) -> None:
        """Change each expression of the body and of local functions."""
        for statement in self.body:
            statement.value = change(statement.value)
            if statement.repeat is not None:
                statement.repeat = statement.repeat.changed(change)
            for function in statement.functions:
                function.rewrite(change)
        self.result = change(self.result)

    def free_dimensions(self) -> list[str]:
        """Open dimensions whose sizes it closes over."""
        return [d for t in self.free() if (d := dimension_of(t)) is not None]


def read(statement: Statement) -> Iterator[str]:
    """Tokens that a statement reads, besides those that only its loop assigns."""
    yield from syntax.tokens_in(statement.value)
    if statement.repeat is not None:
        yield from syntax.tokens_in(statement.repeat.iterable)
        elements = [statement.repeat.element, *(token for token, _ in statement.repeat.beside)]
        own = {*elements, *statement.targets, *statement.repeat.outs}
        for value in statement.repeat.values():
            yield from (t for t in syntax.tokens_in(value) if t not in own)
    for function in statement.functions:
        yield from function.free()
