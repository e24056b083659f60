"""Lists of layers, written short: as repetitions, ranges and tables."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from invert.emission.constructors.sizes import FEATURES, ROWS
from invert.emission.python import syntax
from invert.emission.python.format import fitted
from invert.emission.python.naming import stem
from invert.emission.python.syntax import call, number

# Stands for the next key.
NEXT_KEY = "$next"
# The least number of lines that a repetition and a table save.
_LEAST_SAVED = 2
KEY = "key"
# The position of a layer in its list.
PLACE = "i"
# The loop variable for a number of features whose own name is taken.
_WIDTH_OF_LAYER = "width"
_WIDTH, _LONGEST_TARGET = 100, 80
_INDENT = " " * 8


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of a constructor.

    **Arguments:**

    - `names`: those given without names, then the others.
    - `defaults`: values of those that a call may lack.
    """

    names: Sequence[str] = ()
    defaults: Mapping[str, ast.expr] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Item:
    """A call of a constructor.

    **Arguments:**

    - `call`: the call itself; `arguments`: all but the key, by name.
    - `defaults`: values of those that the call may lack.
    """

    call: ast.Call
    arguments: dict[str, ast.expr]
    defaults: Mapping[str, ast.expr]
    text: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.text = _text(self.call.func) + str({n: _text(v) for n, v in self.arguments.items()})


def tuple_of(
    calls: Sequence[ast.expr],
    parameters: Sequence[Parameters],
    taken: Set[str],
) -> ast.expr:
    """The tuple of what is called; keys in comprehensions are `NEXT_KEY`.

    **Arguments:**

    - `parameters`: those of the function of each call.
    - `taken`: names that loops may not use.
    """
    plain = syntax.tuple_of(calls)
    if (items := items_of(calls, parameters)) is None:
        return plain
    best, least = plain, _lines(plain)
    for other in (_repeated(items, taken), _table(items, taken)):
        if other is not None and _lines(other) <= least - _LEAST_SAVED:
            best, least = other, _lines(other)
    return best


def by_position(
    calls: Sequence[ast.expr], parameters: Sequence[Parameters]
) -> Callable[[ast.expr], tuple[ast.expr, bool]] | None:
    """One call for all, whose arguments follow from the position `i` if they differ.

    Powers of two do, and a flag that only the first or the last layer has or lacks. The result
    makes the call for a number of layers, and says whether it mentions the position.
    """
    if len({*map(_text, calls)}) == 1:
        return lambda count: (calls[0], False)
    items = items_of(calls, parameters)
    if items is None or len({(_text(i.call.func), *i.arguments) for i in items}) > 1:
        return None
    columns = {n: [i.arguments[n] for i in items] for n in items[0].arguments}
    varying = {n: c for n, c in columns.items() if len({*map(_text, c)}) > 1}
    rules = {n: rule for n, c in varying.items() if (rule := _rule(c)) is not None}
    if len(rules) < len(varying):
        return None

    def made(count: ast.expr) -> tuple[ast.expr, bool]:
        given = {n: rule(count) for n, rule in rules.items()}
        own = {k.arg for k in items[0].call.keywords} | rules.keys()
        values = {**items[0].arguments, **given}
        plain = list(values)[: len(items[0].call.args)]
        keywords = {n: v for n, v in values.items() if n not in plain and n in own}
        keywords |= {k.arg: k.value for k in items[0].call.keywords if k.arg == KEY}
        return call(items[0].call.func, *(values[n] for n in plain), **keywords), True

    return made


def _rule(column: Sequence[ast.expr]) -> Callable[[ast.expr], ast.expr] | None:
    """How an argument of the layers of a list follows from their positions."""
    values = [n.value if isinstance(n, ast.Constant) else None for n in column]
    place, last = ast.Name(PLACE, ast.Load()), len(values) - 1
    if all(type(v) is int for v in values):
        powers = len(values) > 2 and values == [2**i for i in range(len(values))]
        power = ast.BinOp(number(2), ast.Pow(), place)
        return (lambda count: power) if powers else None
    if not all(type(v) is bool for v in values):
        return None
    for flag in (True, False):
        if values == [flag] + [not flag] * last:
            sign = ast.Eq() if flag else ast.Gt()
            return lambda count: ast.Compare(place, [sign], [number(0)])
        if values == [not flag] * last + [flag]:
            sign = ast.Eq() if flag else ast.Lt()
            return lambda count: ast.Compare(place, [sign], [_less(count)])
    return None


def _less(count: ast.expr) -> ast.expr:
    """A number minus one."""
    if isinstance(count, ast.Constant):
        return number(_int(count) - 1)
    return ast.BinOp(count, ast.Sub(), number(1))


def items_of(calls: Sequence[ast.expr], parameters: Sequence[Parameters]) -> list[Item] | None:
    """The calls with their arguments by name; `None` if one is not a call."""
    read = [_item(c, own) for c, own in zip(calls, parameters, strict=True)]
    items = [i for i in read if i is not None]
    return items if len(items) == len(read) else None


def consistent(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Write all runs of equal layers as repetitions, if some list has one.

    Otherwise two equal layers would take two lines, but three in another list only one.
    """
    starred = (n for s in body for n in syntax.walk(s) if isinstance(n, ast.Starred))
    if any(isinstance(n.value, ast.GeneratorExp) for n in starred):
        for statement in body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
                statement.value.elts = [*_folded(statement.value.elts)]
    return [*body]


def _folded(elements: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Elements of a tuple with comprehensions for equal calls."""
    for _, group in itertools.groupby(elements, _without_key):
        equal = [*group]
        first = equal[0]
        if len(equal) == 1 or not isinstance(first, ast.Call):
            yield from equal
            continue
        keywords = {k.arg: k.value for k in first.keywords if k.arg is not None}
        if KEY in keywords:
            keywords[KEY] = ast.Name(NEXT_KEY, ast.Load())
        loop = ast.comprehension(
            ast.Name("_", ast.Store()), call("range", number(len(equal))), [], 0
        )
        made = ast.GeneratorExp(call(first.func, *first.args, **keywords), [loop])
        yield ast.Starred(made, ast.Load())


def _without_key(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return _text(node)
    kept = [k for k in node.keywords if k.arg != KEY]
    return _text(ast.Call(node.func, node.args, kept))


def _item(node: ast.expr, parameters: Parameters) -> Item | None:
    if not isinstance(node, ast.Call):
        return None
    names = [*parameters.names, *map(str, range(len(parameters.names), len(node.args)))]
    given = {**parameters.defaults, **dict(zip(names, node.args, strict=False))}
    given |= {k.arg: k.value for k in node.keywords if k.arg is not None and k.arg != KEY}
    order = {n: i for i, n in enumerate(names)}
    ordered = sorted(given, key=lambda n: order.get(n, len(order)))
    return Item(node, {n: given[n] for n in ordered}, parameters.defaults)


def _repeated(items: Sequence[Item], taken: Set[str]) -> ast.expr | None:
    """Runs of equal layers, or of layers with one number that counts, as comprehensions."""
    runs = list(_runs(items, taken))
    if len(runs) == 1:
        return call("tuple", runs[0]) if isinstance(runs[0], ast.GeneratorExp) else None
    return syntax.tuple_of(
        ast.Starred(run, ast.Load()) if isinstance(run, ast.GeneratorExp) else run for run in runs
    )


def _runs(items: Sequence[Item], taken: Set[str]) -> Iterator[ast.expr]:
    start = 0
    while start < len(items):
        first = items[start]
        equal = start + 1
        while equal < len(items) and items[equal].text == first.text:
            equal += 1
        counted, counter, step = _counted(items, start, taken)
        stop = max(equal, counted)
        loop: ast.expr | None = None
        names: dict[str, str] = {}
        if counted > equal:
            begin = _int(first.arguments[counter])
            end = begin + step * (stop - start)
            bounds = [number(begin), number(end)] if begin or step != 1 else [number(end)]
            loop = call("range", *bounds, *([number(step)] if step != 1 else []))
            names = _variables([counter], taken)
        elif equal - start > 1:
            loop = call("range", number(equal - start))
        made = [items[i].call for i in range(start, stop)]
        if loop is None:
            yield from made
        else:
            target = ast.Name(next(iter(names.values()), "_"), ast.Store())
            looped = _comprehension(first, names, target, loop)
            saved = sum(map(_lines, made)) - _lines(ast.Starred(looped, ast.Load()))
            whole = start == 0 and stop == len(items)
            yield from [looped] if saved >= _LEAST_SAVED or whole else made
        start = stop


def _counted(items: Sequence[Item], start: int, taken: Set[str]) -> tuple[int, str, int]:
    """The end of a run of layers that differ by equal steps; name, step."""
    first = items[start]
    best = start, "", 0
    for name, value in first.arguments.items():
        if not _is_integer(value) or not _variables([name], taken):
            continue
        if stem(name) == ROWS:  # of tables, which count equal steps by chance
            continue
        stop, step = start + 1, 0
        while stop < len(items):
            own = items[stop].arguments.get(name)
            if not _is_integer(own) or _but(items[stop], name) != _but(first, name):
                break
            difference = _int(own) - _int(items[stop - 1].arguments[name])
            if difference == 0 or (step and difference != step):
                break
            stop, step = stop + 1, difference
        if stop - start > 2 and stop > best[0]:
            best = stop, name, step
    return best


def _is_integer(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _int(node: ast.expr | None) -> int:
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value


def _but(item: Item, name: str) -> str:
    """The text of a call without an argument."""
    kept = {n: _text(v) for n, v in item.arguments.items() if n != name}
    return _text(item.call.func) + str(sorted(kept.items()))


def _table(items: Sequence[Item], taken: Set[str]) -> ast.expr | None:
    """One call in a loop over rows of its arguments."""
    first = items[0]
    if len({(_text(i.call.func), *i.arguments) for i in items}) > 1:
        return None
    columns = {n: [i.arguments[n] for i in items] for n in first.arguments}
    varying = [n for n, column in columns.items() if len(set(map(_text, column))) > 1]
    if not (names := _variables(varying, taken)):
        return None
    rows = [syntax.tuple_of(i.arguments[n] for n in names) for i in items]
    if len(", ".join(names.values())) > _LONGEST_TARGET:
        return None
    target = syntax.store(syntax.tuple_of(map(syntax.name, names.values())))
    if len(names) == 1:
        target = ast.Name(next(iter(names.values())), ast.Store())
        rows = columns[next(iter(names))]
    return call("tuple", _comprehension(first, names, target, syntax.tuple_of(rows)))


def _variables(arguments: Sequence[str], taken: Set[str]) -> dict[str, str]:
    """The loop variable for each argument; empty if one of them has no free name."""
    found: dict[str, str] = {}
    for name in arguments:
        own = _WIDTH_OF_LAYER if name in taken and name in FEATURES else name
        if not own.isidentifier() or own in taken or own in found.values():
            return {}
        found[name] = own
    return found


def _comprehension(
    item: Item, names: Mapping[str, str], target: ast.expr, loop: ast.expr
) -> ast.GeneratorExp:
    """A call in a loop over some of its arguments; `names` has their loop variables."""
    given = {k.arg for k in item.call.keywords}
    values = {
        n: ast.Name(names[n], ast.Load()) if n in names else v for n, v in item.arguments.items()
    }
    count = len(item.call.args)
    args = list(values.values())[:count]
    keywords = {n: v for n, v in list(values.items())[count:] if n in given or n in names}
    if KEY in given:
        keywords[KEY] = ast.Name(NEXT_KEY, ast.Load())
    own = call(item.call.func, *args, **keywords)
    return ast.GeneratorExp(own, [ast.comprehension(target, loop, [], 0)])


def _lines(node: ast.expr) -> int:
    """The number of lines of an expression in the text."""
    text = _text(node).replace(NEXT_KEY, "next(keys)")
    return len(fitted(f"{_INDENT}self.blocks = {text}", _WIDTH))


def _text(node: ast.AST) -> str:
    return syntax.text_of(node)
