"""Shares one class among layers that lack some of each other's steps.

Some blocks of a network have a layer on their shortcut, some have no shortcut; some have a bias, an
activation or a padding that others lack. All get the method of the layer with the most fields, in
which these steps are marked (see `values`). `choices` turns the marks into fields.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from invert.emission.layers import optional_arguments, values
from invert.emission.layers.shared import (
    STEP,
    Draft,
    constants,
    sites,
    taken,
)
from invert.emission.layers.tree import Node
from invert.emission.layers.values import HOLE, Value
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.syntax import field_of
from invert.ir.order import reached
from invert.ir.types import Var

_T = TypeVar("_T")
# The kinds of a layer's fields, and for each array its field and its kind.
Fields: TypeAlias = tuple[Mapping[str, Hashable], Sequence[tuple[str, Hashable]]]
_NUMBERED = re.compile(r"_\d+$")
# The number of options of a class, of steps of a comparison, and of those that an option skips.
_MOST_OPTIONS, _MOST_STEPS, _LONGEST = 4, 20_000, 5


class Match:
    """How values of one method correspond to another's, which may lack steps.

    **Arguments:**

    - `lacking`: fields that only the first one has; `None` if its missing steps are marked.
    - `adds`: whether the second one may lack a sum with an argument.

    **Attributes:**

    - `pairs`: the value of the other method for each.
    - `missing`: steps that only the first one has, with the operands that stand for them.
    - `extra`: steps that only the other one has, by the values of the first that they take.
    - `has`: which of the marked steps the other one has.
    """

    def __init__(self, lacking: frozenset[str] | None = None, *, adds: bool = False):
        self._lacking, self._adds = lacking, adds
        self.pairs: dict[Value, Value] = {}
        self.missing: dict[Value, Value] = {}
        self.extra: dict[Value, Value] = {}
        self.has: dict[Value, bool] = {}
        self._steps = 0
        self._undo: list[Callable[[], object]] = []

    def run(self, a: Value, b: Value) -> bool:
        """Compare two values."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return False
        if a.is_argument and b.is_argument:
            return a.head == b.head
        if a in self.has:
            return self.run(a.parts[not self.has[a]], b)
        if a in self.missing:
            return self.run(self.missing[a], b)
        if a in self.pairs:
            return self.pairs[a] is b
        if a.head == (STEP,):
            taken, operand = a.parts
            yes, no = (self.has, a, True), (self.has, a, False)
            return self._tried(yes, [(taken, b)]) or self._tried(no, [(operand, b)])
        parts = _parts(a, b)
        if parts is not None and self._tried((self.pairs, a, b), parts):
            return True
        return self._lacking is not None and self._without(a, b)

    def _without(self, a: Value, b: Value) -> bool:
        """Compare two values, one of which is the other plus one step."""
        if len(self.missing) + len(self.extra) >= _MOST_OPTIONS:
            return False
        inner = values.operand(b) if _is_free(b.node) and a.uses == 1 else None
        # An operand that replaces a step is read both there and elsewhere.
        shared = any(a is operand for operand in self.missing.values())
        if inner is not None and not shared and self._tried((self.extra, a, b), [(a, inner)]):
            return True
        return any(self._tried((self.missing, a, o), [(o, b)]) for o in self._operands(a))

    def chain(self, a: Value) -> Iterator[Value]:
        """A missing step, and those before it up to their replacement."""
        value, end = a, self.missing[a]
        while value is not end:
            yield value
            before = end if any(p is end for p in value.parts) else values.operand(value)
            if before is None:
                return
            value = before

    def deciders(self) -> set[str]:
        """The fields of the missing steps."""
        added = {values.added_layer(a.node) for a, o in self.missing.items() if _adds_layer(a, o)}
        return added | {values.decider(v.node) for a in self.missing for v in self.chain(a)}

    def add(self, other: Match) -> bool:
        """Add the options of another match; return whether they are compatible."""
        common = self.extra.keys() & other.extra
        missing = {**other.missing, **self.missing}
        if (
            any(self.extra[a].head != other.extra[a].head for a in common)
            or any(values.key(missing[a]) != values.key(o) for a, o in other.missing.items())
            or sum(_is_sum(a) and not _adds_layer(a, o) for a, o in missing.items()) > 1
        ):
            return False
        self.missing, self.extra = missing, {**other.extra, **self.extra}
        return True

    def _tried(
        self, entry: tuple[dict[Value, _T], Value, _T], pairs: Sequence[tuple[Value, Value]]
    ) -> bool:
        """Compare values under a tentative entry, which is undone if they differ."""
        start, (table, a, entered) = len(self._undo), entry
        table[a] = entered
        self._undo.append(lambda: table.pop(a))
        if all(self.run(p, q) for p, q in pairs):
            return True
        while len(self._undo) > start:
            self._undo.pop()()
        return False

    def _operands(self, a: Value) -> Iterator[Value]:
        """Values that may replace a step, or steps whose layer is missing."""
        if self._lacking == frozenset() and (steps := values.Steps.of(a)) is not None:
            yield from steps.states()
        if values.added_layer(a.node) in (self._lacking or ()):
            yield a.parts[0]
        found: list[Value] = []
        value, decided = a, False
        for length in range(_LONGEST):
            operand, field = values.operand(value), values.decider(value.node)
            alone = isinstance(value.node, ast.BinOp)  # a bias or a sum is an option of its own
            if operand is None or (length and alone):
                break
            decided |= field in (self._lacking or ())
            if decided or (not length and not field and (self._adds or not _is_sum(value))):
                found.append(operand)
            if alone:
                break
            value = operand
        yield from reversed(found)  # one long chain rather than several options


def _parts(a: Value, b: Value) -> list[tuple[Value, Value]] | None:
    """The parts in which two values must agree, if of one kind."""
    if a.head != b.head or len(a.parts) != len(b.parts):
        return None
    parts = list(zip(a.parts, b.parts, strict=True))
    if a.head[0] == "function":
        # A loop may collect values that other layers do not return.
        (one,), (other,) = a.parts, b.parts
        none = isinstance(last := other.parts[-1].node, ast.Constant) and last.value is None
        if none and _parts(one, other) is not None:
            return [(one.parts[0], other.parts[0])]
    return parts


def _is_sum(value: Value) -> bool:
    """Return whether a value is a sum with an argument."""
    return values.is_addition(value.node) and values.operand(value) is not None


def _adds_layer(value: Value, operand: Value) -> bool:
    """Return whether a step adds the result of a layer to an operand, or subtracts it."""
    return bool(values.added_layer(value.node)) and operand is value.parts[0]


def _is_free(node: ast.AST) -> bool:
    """Return whether a step has no arrays of its own."""
    return values.is_activation(node) or values.is_pad(node) or values.is_subsampling(node)


def keys(
    drafts: Sequence[Draft],
    below: Sequence[Draft],
    key: Callable[[Draft], Hashable],
    fields: Callable[[Draft], Fields],
) -> dict[Draft, Hashable]:
    """Properties that nodes of one class share, apart from numbers.

    Those of one class get one method.

    **Arguments:**

    - `below`: nodes of lower levels, which are among the results only if they lack a layer.
    - `key`: what nodes without a readable method share.
    """
    fields = functools.cache(fields)  # no layer changes before it is adopted, nor is read after
    found: dict[Draft, Hashable] = {d: key(d) for d in drafts}
    alike: dict[Hashable, list[Draft]] = {}
    results = _Results()
    known: dict[Hashable, Hashable] = {}  # the keys of values, by the texts of their methods
    for draft in (*drafts, *below):
        if len(draft.methods) == 1:
            (method,) = draft.methods
            method.body = [syntax.copied(s) for s in method.body]
            results.methods[draft] = method
            text = tuple(draft.texts) if draft in found else draft
            if text not in known:
                known[text] = None
                if (value := values.result(method)) is not None:
                    results[draft], known[text] = value, values.key(value)
            if (read := known[text]) is not None:
                kinds, arrays = fields(draft)
                same = tuple(kinds.items()), tuple(arrays), read
                alike.setdefault(same, []).append(draft)
    groups = list(alike.items())
    groups.sort(key=lambda g: _completeness(g[1][0], results[g[1][0]]), reverse=True)
    done: set[Draft] = set()
    for i, (same, group) in enumerate(groups):
        first = group[0]
        if first in done or first not in found:
            continue
        family = _Family(first, results[first], fields)
        others = [
            d
            for _, other in groups[i + 1 :]
            if other[0] not in done and family.takes(other[0], results[other[0]])
            for d in other
        ]
        members = family.adopt([*group, *others], results)
        done |= {*members}
        found |= {d: ("options", same) for d in group if d in found} | dict.fromkeys(
            members, ("options", same)
        )
    return found


class _Results(dict[Draft, Value]):
    """The values of methods as they were, each read where it is asked for.

    **Attributes:**

    - `methods`: the methods, of which others of the same text can be read.
    """

    def __init__(self) -> None:
        self.methods: dict[Draft, ast.FunctionDef] = {}

    def __missing__(self, draft: Draft) -> Value:
        found = values.result(self.methods[draft])
        assert found is not None  # nothing else is asked for
        self[draft] = found
        return found


def _completeness(draft: Draft, result: Value) -> tuple[int, int, bool]:
    """How many fields and steps others may lack; whether all steps are returned."""
    every = reached([result], lambda v: v.parts)
    steps = sum(_is_sum(v) or values.is_mask(v.node) or values.is_limit(v.node) for v in every)
    return len(draft.node.fields), steps, values.Steps.of(result) is not None


class _Family:
    """Layers with the steps of the first one, or some of them."""

    def __init__(self, first: Draft, result: Value, fields: Callable[[Draft], Fields]):
        self.first, self.result, self._fields = first, result, fields
        self.match = Match()  # the steps that any of the layers has or lacks
        operand = values.operand(result)
        if operand is not None and values.is_activation(result.node) and _is_product(first.node):
            self.match.missing[result] = operand

    def takes(self, draft: Draft, result: Value) -> bool:
        """Return whether a layer is one of them."""
        (own, arrays), (others, other_arrays) = self._fields(self.first), self._fields(draft)
        lacking = frozenset(own.keys() - others.keys())
        if any(own.get(n) != k for n, k in others.items()) or len(own) == len(lacking):
            return False
        if [n for n in own if n in others] != list(others):  # a class has them in one order
            return False
        absent = optional_arguments.lacking(self.first, draft)
        places = {optional_arguments.place(self.first, n) for n in absent}
        kept = [a for i, a in enumerate(arrays) if a[0] not in lacking and i not in places]
        match = Match(lacking, adds=bool(self.first.node.nodes or absent))
        if None in places or kept != list(other_arrays) or not match.run(self.result, result):
            return False
        # Layers that are only numbered correspond by chance.
        if not lacking <= match.deciders() or any(_NUMBERED.search(n) for n in lacking):
            return False
        return self.match.add(match)

    def adopt(self, drafts: Sequence[Draft], results: Mapping[Draft, Value]) -> list[Draft]:
        """Give all of them the method that has every step; return those that fit."""
        (method,), options = self.first.methods, self.match.missing or self.match.extra
        marked = _Marking(self.first, self.match).run() if options else None
        marked = marked or method
        result = values.result(marked)
        if result is None:  # the marks make it too deep
            marked, result = method, self.result
        adopted: dict[Draft, ast.FunctionDef] = {}
        steps = values.Steps.of(self.result)
        end = values.end(marked, result)
        rows: list[list[str]] = []
        for draft in drafts:
            written: ast.FunctionDef | None = None
            if marked is method and draft.texts == self.first.texts:
                (written,) = draft.methods
            elif (match := Match()).run(result, results[draft]):
                written = _filled(marked, draft, match)
            if written is None:
                continue
            row = _functions(written)
            if row in rows:
                adopted[draft] = written
            elif len(_differing([*rows, row], end)) < 2:
                adopted[draft] = written
                rows.append(row)
        for draft in list(adopted):
            if not _complete(draft, self.first, list(adopted)):
                del adopted[draft]
        absent = {d: optional_arguments.lacking(self.first, d) for d in adopted}
        most = max(map(len, absent.values()), default=0)
        for draft, method in adopted.items():
            names = [[a.arg for a in m.args.args] for m in (draft.methods[0], method)]
            new = dict(zip(*names, strict=False))
            draft.sources = [
                ast.Name(new[s.id], ast.Load()) if isinstance(s, ast.Name) and s.id in new else s
                for s in draft.sources
            ]
            time = 0 if steps is None else steps.time
            for mark in filter(values.returns_steps, values.steps(method)):
                _add_result(draft, method, time, has=values.has(mark))
            if draft.methods == [method]:
                continue
            draft.methods = [method]
            method.args.defaults = [ast.Constant(None)] * most
            optional_arguments.complete(draft, self.first, absent[draft])
            draft.read_methods()
        return list(adopted)


def _is_product(node: Node) -> bool:
    """Return whether a module is product and bias, like library layers with an activation."""
    ranks = [len(v.aval.shape) if isinstance(v, Var) else 0 for v in node.fields.values()]
    return not node.nodes and len(ranks) < 3 and sum(rank > 1 for rank in ranks) == 1


def _functions(method: ast.FunctionDef) -> list[str]:
    """The activations in a method, `""` for one that the layer lacks."""
    found = values.activations(method)
    return [ast.unparse(_bare(call)) if present else "" for call, present in found]


def _bare(call: ast.Call) -> ast.Call:
    return ast.Call(call.func, [ast.Name(HOLE, ast.Load())], call.keywords)


def _differing(rows: Sequence[Sequence[str]], end: int | None) -> set[tuple[str, ...]]:
    """The activations that differ between layers, except that of the result."""
    columns = enumerate(zip(*rows, strict=True))
    return {c for i, c in columns if i != end and len(set(c)) > 1}


def _complete(draft: Draft, whole: Draft, drafts: Sequence[Draft]) -> bool:
    """Add the arrays a layer lacks, at the sizes they would have."""
    for name, value in whole.node.fields.items():
        if isinstance(value, Node) or name in draft.node.fields:
            continue
        having = [d for d in drafts if name in d.node.fields]
        like = _like(name, having, draft)
        if like is None:
            return False
        at, other, axis = whole.place(name), draft.place(like[0]), like[1]
        draft.arrays.insert(at, (whole.arrays[at][0], (draft.arrays[other][1][axis],)))
        draft.axes.insert(at, (draft.axes[other][axis],))
        draft.sources.insert(at, whole.sources[at])
    return True


def _add_result(draft: Draft, method: ast.FunctionDef, time: int, *, has: bool) -> None:
    """Make a method return either the values of all steps or the final state.

    **Arguments:**

    - `time`: the axis that only the former have; `has`: whether the layer returns these.
    """
    (kind, shape), axes = draft.arrays[-1], draft.axes[-1]
    at, after = len(draft.arrays) - (not has), slice(time + has, None)
    first = next(i for i, s in enumerate(draft.sources) if isinstance(s, ast.Name))
    size, axis = draft.arrays[first][1][time], draft.axes[first][time]
    draft.arrays.insert(at, (kind, (*shape[:time], *(() if has else (size,)), *shape[after])))
    draft.axes.insert(at, (*axes[:time], *(() if has else (axis,)), *axes[after]))
    at = len(draft.annotations) - (not has)
    draft.annotations.insert(at, syntax.cloned(draft.annotations[-1]))
    draft.sources.append(None)
    method.returns = ast.BinOp(draft.annotations[-2], ast.BitOr(), draft.annotations[-1])


def _like(name: str, having: Sequence[Draft], draft: Draft) -> tuple[str, int] | None:
    """A field's axis with the size of another field in all layers."""
    sizes = [_shape(d, name) for d in having]
    if not having or any(len(s) != 1 for s in sizes):
        return None
    for field in having[0].node.fields:
        shapes = [_shape(d, field) for d in having]
        for axis in reversed(range(min(map(len, (*shapes, _shape(draft, field)))))):
            if field != name and all(s[axis] == n for s, (n,) in zip(shapes, sizes, strict=True)):
                return field, axis
    return None


def _shape(draft: Draft, field: str) -> tuple[int, ...]:
    """The shape of the array in a field."""
    pairs = zip(draft.sources, draft.arrays, strict=True)
    return next((shape for s, (_, shape) in pairs if s is not None and field_of(s) == field), ())


class _Marking:
    """Marks a method's steps that others lack, and adds those it lacks."""

    def __init__(self, draft: Draft, match: Match):
        (method,), self._match = draft.methods, match
        self._method = syntax.cloned(method)
        nodes = zip(syntax.walk(method), syntax.walk(self._method), strict=True)
        self._new = {id(old): new for old, new in nodes}

    def run(self) -> ast.FunctionDef | None:
        """The new method; `None` if an operand of a missing step has no name."""
        match = self._match
        for value in sorted(match.missing | match.extra, key=lambda v: v.depth):
            node = self._expression(value)
            mark = self._left_out(value) if value in match.missing else node
            if mark is None:
                return None
            if value in match.extra:
                mark = _mark(match.extra[value], mark)
            syntax.replace(self._method, node, mark)
        return self._method

    def _left_out(self, value: Value) -> ast.expr | None:
        """A mark for a step, or a chain of steps, that layers may lack."""
        step = target = self._expression(value)
        if values.is_mask(step):
            mask = self._expression(value.parts[1])
            if mask is not step.args[0] and self._inline(value.parts[1], mask, step):
                step.args[0] = mask
        end, operand = self._match.missing[value], None
        if (steps := values.Steps.of(value)) is not None:
            state = steps.name(self._method, self._new[id(steps.scan.node)], end)
            return state and syntax.call(STEP, step, state, ast.Constant(True))
        links = [*self._match.chain(value), end]
        for link, part in itertools.pairwise(links):
            old = values.replace_operand(link, target, ast.Name(HOLE, ast.Load()), part)
            if part is end:
                operand = old
                break
            inner = self._expression(part)
            if old is not inner and not self._inline(part, inner, step):
                values.replace_operand(link, target, old, part)
                operand = self._named(end, step)
                break
            values.replace_operand(link, target, inner, part)
            target = inner
        if operand is None:
            return None
        return syntax.call(STEP, step, operand, ast.Constant(True))

    def _expression(self, value: Value) -> ast.expr:
        node = self._new[id(value.node)]
        assert isinstance(node, ast.expr)  # as any step
        return node

    def _inline(self, value: Value, node: ast.AST, step: ast.AST) -> bool:
        """Move a value that only one step reads into that step, if possible."""
        body = self._method.body
        start, end = self._at(node), self._at(step)
        made = body[start] if start >= 0 else None
        if not isinstance(made, ast.Assign) or made.value is not node or end < 0 or value.uses > 1:
            return False
        read = syntax.used(node)
        if any(read & syntax.stored(s) for s in body[start + 1 : end]):
            return False
        del body[start]
        return True

    def _named(self, value: Value, step: ast.AST) -> ast.expr | None:
        """The local variable of a value, which keeps its name up to a step."""
        body = self._method.body
        start, end = (
            (-1 if value.is_argument else self._at(self._new[id(value.node)])),
            self._at(step),
        )
        if not value.name or end < 0 or (start < 0 and not value.is_argument):
            return None
        if start >= 0 and value.name not in syntax.stored(body[start]):
            return None
        over = next((i for i in range(start + 1, end) if value.name in syntax.stored(body[i])), end)
        if over < end:
            name = Names(taken(self._method)).new("y")
            later = [*body[over + 1 :]]
            if isinstance(over_ := body[over], ast.Assign):
                later += over_.targets
            for n in (n for part in later for n in syntax.walk(part)):
                if isinstance(n, ast.Name) and n.id == value.name:
                    n.id = name
        return ast.Name(value.name, ast.Load())

    def _at(self, node: ast.AST) -> int:
        """The statement that a node is in, or -1."""
        inside = (
            i for i, s in enumerate(self._method.body) if any(n is node for n in syntax.walk(s))
        )
        return next(inside, -1)


def _mark(step: Value, operand: ast.expr) -> ast.expr:
    """A mark for a step that other layers have."""
    assert isinstance(step.node, ast.expr)
    node = syntax.copied(step.node)
    (operand_,) = filter(None, [values.operand(step)])
    values.replace_operand(step, node, ast.Name(HOLE, ast.Load()), operand_)
    return syntax.call(STEP, node, operand, ast.Constant(True))


def _filled(marked: ast.FunctionDef, draft: Draft, match: Match) -> ast.FunctionDef | None:
    """A family's method with one layer's numbers, types and activations."""
    (old,), again = draft.methods, syntax.cloned(marked)
    if [a.arg for a in again.args.kwonlyargs] != [a.arg for a in old.args.kwonlyargs]:
        return None
    pairs = {id(a.node): b.node for a, b in match.pairs.items()}
    had = {id(a.node): has for a, has in match.has.items()}
    given = {(id(s.call), s.key): s.value for s in sites(old)}
    numbers = zip(constants(marked), constants(again), strict=True)
    chosen = [(given.get((id(pairs.get(id(s.call))), s.key)), new)
              for s, new in zip(sites(marked), sites(again), strict=True)]  # fmt: skip
    for mark, new in zip(values.steps(marked), values.steps(again), strict=True):
        own = {n for n in values.fields(mark) if n not in draft.node.fields}
        flag = had.get(id(mark), bool(values.fields(mark)) and not own)
        if values.fields(mark) and flag == bool(own):
            return None  # a field that this method does not read
        new.args[2] = ast.Constant(flag)
    for constant, new in numbers:
        if isinstance(other := pairs.get(id(constant)), ast.Constant):
            new.value = other.value
            syntax.originate(new, syntax.origin_of(other))
    functions = zip(values.activations(marked), values.activations(again), strict=True)
    for (call, _), (new, _) in functions:
        if isinstance(other := pairs.get(id(call)), ast.Call):
            new.func, new.keywords = (
                syntax.copied(other.func),
                [*map(syntax.copied, other.keywords)],
            )
    for value, site in chosen:
        if value is not None:
            site.value = syntax.copied(value)
        elif site.without is not None:
            site.value = site.without
    for new, argument in zip(again.args.args, old.args.args, strict=False):
        new.annotation = argument.annotation
    again.returns = old.returns
    return again
