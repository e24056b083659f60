"""Stages of blocks: `stage(64, 256, depth=3, strides=2, key=key)`, for lists made by one rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from invert.emission.constructors.repeats import KEY, NEXT_KEY, Item
from invert.emission.python import syntax
from invert.emission.python.syntax import call, number

# A function takes more lines than fewer or shorter lists.
_LEAST_STAGES, _LEAST_BLOCKS = 3, 8
_DEPTH, _KEYS = "depth", "keys"
_FACTORS = range(2, 9)

# The values of an argument in all stages, with `None` for stages without the block.
_Column = Sequence[ast.expr | None]


def rules(lists: Mapping[str, Sequence[Item]]) -> Iterator[tuple[Sequence[str], Stages]]:
    """Yield the fields of lists that one function can make, and that function.

    The first block of a stage differs from the others, and the last one may.

    **Arguments:**

    - `lists`: the constructors' calls, by the fields that hold them.
    """
    by_class: dict[str, dict[str, Sequence[Item]]] = {}
    for field, items in lists.items():
        kinds = {syntax.text_of(i.call.func) for i in items}
        if len(kinds) == 1 and all(k.arg == KEY for i in items for k in i.call.keywords[-1:]):
            by_class.setdefault(kinds.pop(), {})[field] = items
    for own in by_class.values():
        every = [i for items in own.values() for i in items]
        repeated = all(i.text == items[0].text for items in own.values() for i in items)
        if len(own) < _LEAST_STAGES or len(every) < _LEAST_BLOCKS or repeated:
            continue
        tried = (Stages(list(own.values()), last=last) for last in (False, True))
        if (found := next((stages for stages in tried if stages.fits), None)) is not None:
            yield list(own), found


class Stages:
    """A function that makes several lists.

    **Arguments:**

    - `last`: whether the last blocks differ.

    **Attributes:**

    - `fits`: whether there is a rule for all of them.
    """

    def __init__(self, lists: Sequence[Sequence[Item]], *, last: bool):
        self._parameters: dict[str, Sequence[ast.expr]] = {}
        self._count, self._start = len(lists), lists[0][0]
        end = -1 if last else None
        rests = [items[1:end] for items in lists]
        self.fits = any(rests) and all(
            len(items) > last and len({i.text for i in rest}) < 2
            for items, rest in zip(lists, rests, strict=True)
        )
        if not self.fits:
            return
        depths = [number(len(items)) for items in lists]
        keys = ast.Name(_KEYS, ast.Load())
        self._depth = _column(self._parameters, _DEPTH, depths)
        self._first = self._block([items[0] for items in lists], syntax.item(keys, number(0)))
        k = ast.Name("k", ast.Load())
        self._rest = self._block([rest[0] if rest else None for rest in rests], k)
        at = syntax.item(keys, number(-1))
        self._last = self._block([items[-1] for items in lists], at) if last else None
        self.fits = bool(self._first and self._rest and (self._last or not last))

    def function(self, name: str) -> ast.FunctionDef:
        """Build the function."""
        assert self._depth and self._first and self._rest  # since the lists fit
        keys, last = ast.Name(_KEYS, ast.Load()), self._last
        others = syntax.item(keys, syntax.slice_of(number(1), number(-1) if last else None))
        loop = ast.comprehension(ast.Name("k", ast.Store()), others, [], 0)
        starred = ast.Starred(ast.GeneratorExp(self._rest, [loop]), ast.Load())
        ends = {"first": self._first, **({"last": last} if last else {})}
        first, *after = (ast.Name(n, ast.Load()) for n in ends)
        body = [
            syntax.docstring(self._words()),
            syntax.assign(keys, call("jax.random.split", syntax.name(KEY), self._depth)),
            *(syntax.assign(syntax.name(n), made) for n, made in ends.items()),
            ast.Return(syntax.tuple_of([first, starred, *after])),
        ]
        unnamed, named = self._order()
        key = syntax.argument(KEY, syntax.name("PRNGKeyArray"))
        kinds = syntax.tuple_of([self._start.call.func, ast.Constant(...)])
        integer = syntax.name("int")
        return syntax.function(
            name,
            [syntax.argument(n, integer) for n in unnamed],
            body,
            keyword_only=[*(syntax.argument(n, integer) for n in named), key],
            returns=syntax.item(syntax.name("tuple"), kinds),
        )

    def _words(self) -> str:
        """The docstring: what the first and the last block change."""
        ends = {"first": self._first, **({"last": self._last} if self._last else {})}
        found = {end: self._changes(made) for end, made in ends.items() if made is not None}
        if not all(found.values()):
            return f"Equal blocks and a {' and a '.join(ends)} one."
        first, *others = (
            f"the {end} may change {' and '.join(what)}" for end, what in found.items()
        )
        clauses = [first, *(clause.replace(" may change", "") for clause in others)]
        return f"Blocks of which {', '.join(clauses)}."

    def _changes(self, made: ast.expr) -> list[str]:
        """The sizes that a block changes and the repeated ones keep."""
        rest = self._rest
        assert isinstance(made, ast.Call) and isinstance(rest, ast.Call)  # as any block
        pairs = zip(made.args, rest.args, strict=False)
        sizes = any(syntax.text_of(one) != syntax.text_of(other) for one, other in pairs)
        one, other = ({k.arg for k in c.keywords} for c in (made, rest))
        found = ["the number of features"] if sizes else []
        return found + (["the size of images"] if "strides" in one ^ other else [])

    def calls(self, name: str) -> list[ast.expr]:
        """Build the calls, one for each list."""
        unnamed, named = self._order()
        columns = self._parameters
        return [
            call(
                name,
                *(columns[n][i] for n in unnamed),
                **{n: columns[n][i] for n in named},
                **{KEY: ast.Name(NEXT_KEY, ast.Load())},
            )
            for i in range(self._count)
        ]

    def _order(self) -> tuple[list[str], list[str]]:
        """The positional parameters, and those given by name."""
        count = len(self._start.call.args)
        unnamed = [n for n in list(self._start.arguments)[:count] if n in self._parameters]
        return unnamed, [n for n in self._parameters if n not in unnamed]

    def _block(self, items: Sequence[Item | None], key: ast.expr) -> ast.expr | None:
        """A call that makes this block in every stage; `None` if there is none."""
        there = [i for i in items if i is not None]
        if len({tuple(i.arguments) for i in there}) > 1:
            return None
        first = there[0]
        count = len(first.call.args)
        args: list[ast.expr] = []
        keywords: dict[str, ast.expr] = {}
        for place, name in enumerate(first.arguments):
            values = [None if i is None else i.arguments[name] for i in items]
            value = _column(self._parameters, name, values)
            if value is None:
                return None
            if place < count:
                args.append(value)
            elif syntax.text_of(value) != syntax.text_of(first.defaults.get(name, ast.Pass())):
                keywords[name] = value
        return call(first.call.func, *args, **keywords, **{KEY: key})


def _column(
    parameters: dict[str, Sequence[ast.expr]], name: str, column: _Column
) -> ast.expr | None:
    """An argument in all stages: a literal, a parameter or its multiple, or new."""
    given = [v for v in column if v is not None]
    if len({syntax.text_of(v) for v in given}) == 1 and isinstance(given[0], ast.Constant):
        return given[0]
    if None in map(_multiple, given):
        return None
    for other in sorted(parameters, key=lambda n: n != name):
        pairs = [(v, w) for v, w in zip(column, parameters[other], strict=True) if v is not None]
        own = ast.Name(other, ast.Load())
        if all(syntax.text_of(v) == syntax.text_of(w) for v, w in pairs):
            return own
        multiples = [(n, m) for v, w in pairs if (n := _multiple(v)) and (m := _multiple(w))]
        same = len(multiples) == len(pairs) and all(n[1] == m[1] for n, m in multiples)
        for k in _FACTORS if same else ():
            if all(n == k * m for (n, _), (m, _) in multiples):
                return syntax.infix(number(k), "*", own)
            if all(n * k == m for (n, _), (m, _) in multiples):
                return syntax.infix(own, "//", number(k))
    if name in parameters or len(given) < len(column):
        return None
    parameters[name] = given
    return ast.Name(name, ast.Load())


def _multiple(node: ast.expr) -> tuple[int, str] | None:
    """`4, "dim"` for `4 * dim`; a literal integer is a multiple of `""`."""
    match node:
        case ast.Constant(value=int(value)) if type(value) is int:
            return value, ""
        case ast.Name(id=name):
            return 1, name
        case ast.BinOp(left=ast.Constant(value=int(value)), op=ast.Mult(), right=ast.Name(id=name)):
            return value, name
    return None
