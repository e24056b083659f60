"""Shares one class among layers of which some lack a step of the others.

In a network, some blocks have a layer on their shortcut, some have no shortcut at all, and some pad
the input of a convolution. The field of a missing layer is `None`. Static fields hold the padding,
which may be `None` too, and say whether the input is added to the result.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from invert.emission.layers.fold import ACTIVATION, core, field_of, is_activation
from invert.emission.layers.shared import RESIDUAL, Class, Code, Draft, blank, sites, text_of
from invert.emission.layers.tree import Node
from invert.emission.python import syntax
from invert.emission.python.naming import Names

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_N = TypeVar("_N", bound=ast.AST)
# What is added to a function of the same value.
_SHORTCUT = "shortcut"
# The activation inside a layer, where that of its result is another field.
_INNER = "inner_activation"
# Placeholders for sums that are optional: of a step and an argument, or in reverse order.
_SUM, _REVERSED = "$sum", "$reversed_sum"
_PAD = "jnp.pad"
_NUMBERED = re.compile(r"_\d+$")
# The number of options of a class, of steps of a comparison, and of values within each other.
_MOST_OPTIONS, _MOST_STEPS, _DEEPEST = 4, 20_000, 150


@dataclasses.dataclass(eq=False)
class _Value:
    """A value that a method computes: an expression, with its parts in place of local variables.

    **Arguments:**

    - `head`: what it is, without its parts and without numbers.
    - `uses`: how often the method reads it.
    """

    head: Hashable
    parts: list[_Value]
    node: ast.AST
    depth: int
    uses: int = 0


def _result(method: ast.FunctionDef) -> _Value | None:
    """What a method returns; `None` if it has statements other than assignments."""
    if any(isinstance(n, ast.Lambda | ast.comprehension) for n in ast.walk(method)):
        return None  # with local variables of its own
    arguments = [a.arg for a in (*method.args.args, *method.args.kwonlyargs)]
    places = {name: i for i, name in enumerate(arguments)}
    known: dict[str, _Value] = {}

    def value(node: ast.AST) -> _Value:
        if isinstance(node, ast.Name) and node.id in known:
            known[node.id].uses += 1
            return known[node.id]
        if isinstance(node, ast.Name) and node.id in places:
            return _Value(("argument", places[node.id]), [], node, 1, 1)
        if _is_function(node):
            inside = value(node.args[0])
            return _Value((ACTIVATION,), [inside], node, 1 + inside.depth, 1)
        head: list[Hashable] = [type(node).__name__]
        parts: list[_Value] = []
        for name, field in ast.iter_fields(node):
            items = field if isinstance(field, list) else [field]
            inner = [i for i in items if isinstance(i, ast.AST)]
            parts += [value(i) for i in inner if not isinstance(i, ast.expr_context)]
            head += [name, len(items), *(repr(i) for i in items if not isinstance(i, ast.AST))]
        return _Value(tuple(head), parts, node, 1 + max((p.depth for p in parts), default=0), 1)

    *body, last = method.body
    with blank(method):
        for statement in body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if not isinstance(target, ast.Name) or not isinstance(statement, ast.Assign):
                return None
            known[target.id] = value(statement.value)
            known[target.id].uses = 0
        if not isinstance(last, ast.Return) or last.value is None:
            return None
        found = value(last.value)
    return found if found.depth <= _DEEPEST else None


@dataclasses.dataclass
class _Match:
    """How the values of one method correspond to those of another, which may lack steps.

    **Arguments:**

    - `pairs`: the value of the other method for each.
    - `missing`: steps that only the first one has, with the operands that stand for them.
    - `extra`: values of the first one that the other one pads before it uses them.
    """

    pairs: dict[_Value, _Value] = dataclasses.field(default_factory=dict)
    missing: dict[_Value, _Value] = dataclasses.field(default_factory=dict)
    extra: dict[_Value, _Value] = dataclasses.field(default_factory=dict)
    steps: int = 0

    def run(self, a: _Value, b: _Value) -> bool:
        """Compares two values."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return False
        if a in self.missing:
            return self.run(self.missing[a], b)
        if a in self.pairs:
            return self.pairs[a] is b
        before = dict(self.pairs), dict(self.missing), dict(self.extra)
        for parts, others in _comparable(a, b):
            self.pairs[a] = b
            if all(self.run(p, q) for p, q in zip(parts, others, strict=True)):
                return True
            self.pairs, self.missing, self.extra = map(dict, before)
        if len(self.missing) + len(self.extra) >= _MOST_OPTIONS:
            return False
        for operand in _operands(a):
            self.missing[a] = operand
            if self.run(operand, b):
                return True
            self.pairs, self.missing, self.extra = map(dict, before)
        if _is_pad(b.node) and a.uses == 1:
            self.extra[a] = b
            if self.run(a, b.parts[1]):
                return True
            self.pairs, self.missing, self.extra = map(dict, before)
        return False


def _comparable(a: _Value, b: _Value) -> Iterator[tuple[list[_Value], list[_Value]]]:
    """The parts in which two values have to agree, if they are of one kind."""
    if a.head == b.head and len(a.parts) == len(b.parts):
        yield a.parts, b.parts
    elif _is_pseudo_sum(a.node):
        for operand, other in _sums(b):
            yield a.parts[1:3], [operand, other]


def _sums(value: _Value) -> Iterator[tuple[_Value, _Value]]:
    """A value and an argument that is added to it."""
    if _is_pseudo_sum(value.node):
        yield value.parts[1], value.parts[2]
    elif isinstance(value.node, ast.BinOp) and isinstance(value.node.op, ast.Add):
        left, _, right = value.parts
        for operand, other in ((left, right), (right, left)):
            if _is_argument(other) and not _is_argument(operand):
                yield operand, other


def _operands(value: _Value) -> Iterator[_Value]:
    """What is left of a step that a method may lack."""
    node = value.node
    if (isinstance(node, ast.Call) and _layer_of(node)) or _is_pad(node):
        yield value.parts[1]
    else:
        yield from (operand for operand, _ in _sums(value))


def _is_argument(value: _Value) -> bool:
    return isinstance(value.head, tuple) and value.head[0] == "argument"


def _layer_of(call: ast.Call) -> str:
    """The field of a layer that is called with one value, or `""`."""
    return field_of(call.func) if len(call.args) == 1 and not call.keywords else ""


def _is_pad(node: ast.AST) -> bool:
    plain = isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords
    return isinstance(node, ast.Call) and plain and ast.unparse(node.func) == _PAD


def _is_function(node: ast.AST) -> TypeIs[ast.Call]:
    """Whether it is an activation without options, of which layers may have another one."""
    plain = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    return isinstance(node, ast.Call) and plain and is_activation(node)


def _is_sum(value: _Value) -> bool:
    return isinstance(value.node, ast.BinOp)


def _core(value: _Value) -> _Value:
    """A result without its activation."""
    node = value.node
    plain = isinstance(node, ast.Call) and len(node.args) == 1 and is_activation(node)
    return value.parts[-1] if plain else value


def keys(
    drafts: Sequence[Draft],
    below: Sequence[Draft],
    key: Callable[[Draft], Hashable],
    fields: Callable[[Draft], tuple[Mapping[str, Hashable], Hashable]],
) -> dict[Draft, Hashable]:
    """What the nodes of one class have in common, apart from numbers.

    Layers that lack a step of others get the method of these.

    **Arguments:**

    - `below`: nodes of lower levels, which are among the results only if they lack a layer.
    - `key`: the same without regard to steps that are missing.
    - `fields`: the kinds of the fields by name, and of the arrays.
    """
    found: dict[Draft, Hashable] = {d: key(d) for d in drafts}
    alike: dict[Hashable, list[Draft]] = {}
    for draft in (*drafts, *below):
        if len(draft.methods) == 1 and draft.node.nodes:
            (method,) = draft.methods
            method.body = [_unshared(s) for s in method.body]
            alike.setdefault(found.get(draft) or key(draft), []).append(draft)
    results = {group[0]: _result(group[0].methods[0]) for group in alike.values()}
    groups = [(group, r) for group in alike.values() if (r := results[group[0]]) is not None]
    groups.sort(key=lambda g: _completeness(g[0][0], g[1]), reverse=True)
    done: set[int] = set()
    for i, (group, result) in enumerate(groups):
        if i in done or group[0] not in found:
            continue
        family = _Family(group[0], result)
        others = [
            j
            for j, (other, value) in enumerate(groups)
            if j > i and j not in done and family.takes(other[0], value, fields)
        ]
        whole = [d for j in (i, *others) for d in groups[j][0]]
        if others and family.adopt(whole):
            done |= {i, *others}
            found |= dict.fromkeys(whole, ("options", found[group[0]]))
    return found


def _unshared(node: _N) -> _N:
    """A copy in which no node occurs twice, so that each is known by its `id`."""
    new = copy.copy(node)
    for name, field in ast.iter_fields(node):
        if isinstance(field, list):
            setattr(new, name, [_unshared(i) if isinstance(i, ast.AST) else i for i in field])
        elif isinstance(field, ast.AST):
            setattr(new, name, _unshared(field))
    return new


def _completeness(draft: Draft, result: _Value) -> tuple[int, int]:
    """The numbers of layers and of sums that others may lack."""
    seen: set[_Value] = set()
    pending = [result]
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            pending += value.parts
    return len(draft.node.fields), sum(_is_sum(v) and any(_operands(v)) for v in seen)


class _Family:
    """Layers with the steps of the first one, or some of them."""

    def __init__(self, first: Draft, result: _Value):
        self.first, self.result = first, result
        self.padded: dict[_Value, _Value] = {}
        self.sums: set[_Value] = set()

    def takes(
        self,
        draft: Draft,
        result: _Value,
        fields: Callable[[Draft], tuple[Mapping[str, Hashable], Hashable]],
    ) -> bool:
        """Whether a layer is one of them."""
        (own, arrays), (others, other_arrays) = fields(self.first), fields(draft)
        missing = own.keys() - others.keys()
        if arrays != other_arrays or any(own.get(n) != k for n, k in others.items()):
            return False
        match = _Match()
        if len(own) == len(missing) or not match.run(_core(self.result), _core(result)):
            return False
        lacking = {_layer_of(v.node) for v in match.missing if isinstance(v.node, ast.Call)}
        sums = self.sums | {v for v in match.missing if _is_sum(v)}
        # Layers that are only numbered correspond by chance.
        if not missing <= lacking or len(sums) > 1 or any(_NUMBERED.search(n) for n in missing):
            return False
        self.sums = sums
        self.padded |= match.extra
        return True

    def adopt(self, drafts: Sequence[Draft]) -> bool:
        """Gives all of them the method that has every step."""
        base = dataclasses.replace(self.first, methods=[self._method()])
        result = _result(base.methods[0])
        if result is None:
            return False  # the options make it too deep
        methods: list[tuple[ast.FunctionDef, bool | None]] = []
        for draft in drafts:
            own, match = _result(draft.methods[0]), _Match()
            if own is None or not match.run(_core(result), _core(own)):
                return False
            method = _filled(base, draft, match, (result, own))
            if method is None:
                return False
            lacking = any(_is_pseudo_sum(v.node) for v in match.missing)
            methods.append((method, not lacking if self.sums else None))
        written = [method for method, _ in methods]
        if len({len(_functions(m)) for m in written}) > 1 or len(_differing(written)) > 1:
            return False
        for draft, (method, adds) in zip(drafts, methods, strict=True):
            names = [[a.arg for a in m.args.args] for m in (draft.methods[0], method)]
            new = dict(zip(*names, strict=True))
            draft.sources = [
                ast.Name(new[s.id], ast.Load()) if isinstance(s, ast.Name) and s.id in new else s
                for s in draft.sources
            ]
            draft.methods, draft.adds = [method], adds
            draft.whole = frozenset(self.first.node.fields)
            draft.texts = [f"{method.name}: {text_of(method)}"]
        return True

    def _method(self) -> ast.FunctionDef:
        """The method of the first one, with the paddings and sums that others have or lack."""
        new: dict[int, Callable[[ast.expr], ast.expr]] = {}
        for value in self.padded:
            new[id(value.node)] = lambda node: syntax.call(_PAD, node, ast.Constant(None))
        field = syntax.field(_self(), Names(self.first.node.fields).new(RESIDUAL))
        for value in self.sums:
            reverse = _is_argument(value.parts[0])

            def added(node: ast.expr, reverse: bool = reverse) -> ast.expr:
                assert isinstance(node, ast.BinOp)
                pair = (node.right, node.left) if reverse else (node.left, node.right)
                return syntax.call(_REVERSED if reverse else _SUM, *pair, field)

            new[id(value.node)] = added
        (method,) = self.first.methods
        marks = {i: n for i, n in enumerate(ast.walk(method)) if id(n) in new}
        again = copy.deepcopy(method)
        replaced = {id(n): new[id(marks[i])] for i, n in enumerate(ast.walk(again)) if i in marks}
        _Replacer(replaced).visit(again)
        return again


def _is_pseudo_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (_SUM, _REVERSED)


def _filled(
    base: Draft, draft: Draft, match: _Match, results: tuple[_Value, _Value]
) -> ast.FunctionDef | None:
    """The method of the first layer with the numbers, types and activation of another one."""
    (method,), (old,) = base.methods, draft.methods
    pairs = {id(a.node): b.node for a, b in match.pairs.items()}
    missing = {id(v.node) for v in match.missing}
    given = {(id(s.call), s.key): s.value for s in sites(old)}
    places = {id(n): i for i, n in enumerate(ast.walk(method))}
    numbers: dict[int, ast.Constant] = {}
    for constant in base.constants():
        other = pairs.get(id(constant))
        if not isinstance(other, ast.Constant):
            return None
        numbers[places[id(constant)]] = other
    chosen: list[ast.expr] = []
    for site in sites(method):
        value = given.get((id(pairs.get(id(site.call))), site.key))
        if value is None and id(site.call) not in missing:
            return None
        chosen.append(ast.Constant(None) if value is None else value)
    again = copy.deepcopy(method)
    nodes = list(ast.walk(again))
    for i, other in numbers.items():
        setattr(nodes[i], "value", other.value)  # noqa: B010
    for site, value in zip(sites(again), chosen, strict=True):
        site.value = copy.deepcopy(value)
    for value, other in match.pairs.items():
        if value.head == (ACTIVATION,) and isinstance(other.node, ast.Call):
            setattr(nodes[places[id(value.node)]], "func", copy.deepcopy(other.node.func))  # noqa: B010
    (result, own), kept = results, [a.arg for a in again.args.kwonlyargs]
    if kept != [a.arg for a in old.args.kwonlyargs] or len(again.args.args) != len(old.args.args):
        return None
    end, last = _core(result), nodes[places[id(result.node)]]
    changed = last.args[0] if end is not result and isinstance(last, ast.Call) else last
    assert isinstance(changed, ast.expr)
    activation = own.node if own is not _core(own) else None
    if isinstance(activation, ast.Call):
        changed = ast.Call(activation.func, [changed], activation.keywords)
    if end is not result or isinstance(activation, ast.Call):
        _Replacer({id(last): lambda _: changed}).visit(again)
    for new, argument in zip(again.args.args, old.args.args, strict=True):
        new.annotation = argument.annotation
    again.returns = old.returns
    return again


def _differing(methods: Sequence[ast.FunctionDef]) -> dict[tuple[str, ...], list[ast.Call]]:
    """The activations inside some methods that are not the same, with the calls in the first."""
    rows = list(map(_functions, methods))
    found: dict[tuple[str, ...], list[ast.Call]] = {}
    for column in zip(*rows, strict=True):
        texts = tuple(ast.unparse(c.func) for c in column)
        if len(set(texts)) > 1:
            found.setdefault(texts, []).append(column[0])
    return found


def _functions(method: ast.FunctionDef) -> list[ast.Call]:
    """The activations in a method, except that of its result."""
    last = method.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    end = value.args[0] if value is not None and _is_function(value) else last
    parts = (*method.body[:-1], end)
    return [n for part in parts for n in syntax.in_order(part) if _is_function(n)]


def ordered(group: Sequence[Draft]) -> list[Draft]:
    """Layers with all steps first."""
    return sorted(group, key=lambda d: (-len(d.node.fields), d.adds is False))


def prepare(cls: Class) -> None:
    """Notes which layers are `None` in some nodes, and which nodes add their input.

    Steps that all nodes lack, or no node, are not options.
    """
    drafts, first = cls.drafts, cls.drafts[0]
    inside = first.node.fields.items()
    cls.skipped = tuple(
        name
        for name, value in inside
        if isinstance(value, Node) and any(name not in d.node.fields for d in drafts)
    )
    if not all(d.whole for d in drafts):
        return
    calls = [list(_steps(d.methods[0])) for d in drafts]
    for column in zip(*calls, strict=True):
        call, added = column[0], _is_pseudo_sum(column[0])
        lost = _layer_of(call) in first.whole - first.node.fields.keys()
        lost = lost or (_is_pad(call) and all(_is_none(c.args[1]) for c in column))
        if added and len({d.adds for d in drafts}) > 1:
            cls.statics[field_of(call.args[2])] = tuple(d.adds is True for d in drafts)
        elif added or lost:
            for draft, own in zip(drafts, column, strict=True):
                new = _sum(own) if added and first.adds else own.args[0]
                _replace(draft.methods[0], own, new)
    for texts, calls_ in _differing([d.methods[0] for d in drafts]).items():
        values = tuple(map(Code, texts))
        ends = [
            None if c is None or c.activation is None else c.activation for c in map(core, drafts)
        ]
        last = tuple(None if e is None else Code(ast.unparse(e.func)) for e in ends)
        name = ACTIVATION if len(set(last)) == 1 or last == values else _INNER
        cls.statics[name] = values
        for call in calls_:
            call.func = syntax.field(_self(), name)


def _steps(method: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls in a method that nodes may lack."""
    for node in syntax.in_order(method):
        if isinstance(node, ast.Call) and (
            _layer_of(node) or _is_pad(node) or _is_pseudo_sum(node)
        ):
            yield node


def write(cls: Class) -> None:
    """Makes the method of the first layer leave out the steps that are missing."""
    draft = cls.drafts[0]
    for statement in draft.fields:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) in cls.skipped:
            statement.annotation = ast.BinOp(statement.annotation, ast.BitOr(), ast.Constant(None))
    for method in draft.methods:
        while (place := _option(method, cls)) is not None:
            _write_option(method, *place)


def _option(method: ast.FunctionDef, cls: Class) -> tuple[int, ast.Call] | None:
    """The first innermost step of a method that some nodes lack, with its statement."""
    for at, statement in enumerate(method.body):
        if isinstance(statement, ast.If):
            continue
        written = {id(n.orelse) for n in ast.walk(statement) if isinstance(n, ast.IfExp)}
        found = [
            n
            for n in ast.walk(statement)
            if isinstance(n, ast.Call) and id(n) not in written and _is_option(n, cls)
        ]
        if found:
            return at, found[-1]
    return None


def _is_option(call: ast.Call, cls: Class) -> bool:
    if _is_pad(call):
        return None in cls.statics.get(field_of(call.args[1]), ())
    return _is_pseudo_sum(call) or _layer_of(call) in cls.skipped


def _write_option(method: ast.FunctionDef, at: int, call: ast.Call) -> None:
    """Writes one step so that it is left out where it is missing."""
    statement = method.body[at]
    if _is_pseudo_sum(call):
        operand = call.args[0] = _settled(method, at, call)
        _replace(statement, call, ast.IfExp(call.args[2], _sum(call), operand))
        return
    field = call.args[1] if _is_pad(call) else call.func
    operand = call.args[0] = _settled(method, at, call)
    none = ast.Compare(field, [ast.Is()], [ast.Constant(None)])
    chosen = ast.IfExp(none, operand, call)
    at = method.body.index(statement)
    if isinstance(statement, ast.Assign) and statement.value is call:
        statement.value = chosen
        return
    sums = (n for n in ast.walk(statement) if isinstance(n, ast.BinOp) and _adds(n, call))
    if any(sums):
        local = Names(_taken(method)).new(_SHORTCUT)
    else:
        local = _target(method, at, call, operand)
    _replace(statement, call, ast.Name(local, ast.Load()))
    target = ast.Name(local, ast.Store())
    if isinstance(operand, ast.Name) and operand.id == local:
        there = ast.Compare(field, [ast.IsNot()], [ast.Constant(None)])
        method.body.insert(at, ast.If(there, [syntax.assign(target, call)], []))
    else:
        method.body.insert(at, syntax.assign(target, chosen))


def _sum(call: ast.Call) -> ast.expr:
    """The sum that a call stands for."""
    operand, other = call.args[:2]
    reverse = ast.unparse(call.func) == _REVERSED
    return syntax.infix(other, "+", operand) if reverse else syntax.infix(operand, "+", other)


def _adds(node: ast.BinOp, call: ast.Call) -> bool:
    return call in (node.left, node.right)


def _settled(method: ast.FunctionDef, at: int, call: ast.Call) -> ast.Name:
    """The operand of a step as a local variable."""
    operand = call.args[0]
    if isinstance(operand, ast.Name):
        return operand
    own = {a.arg for a in method.args.args[1:]}
    own |= {
        n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    first = next((n for n in ast.walk(operand) if isinstance(n, ast.Name) and n.id in own), None)
    local = _target(method, at, call, first)
    method.body.insert(at, syntax.assign(ast.Name(local, ast.Store()), operand))
    return ast.Name(local, ast.Load())


def _target(method: ast.FunctionDef, at: int, call: ast.Call, operand: ast.expr | None) -> str:
    """A name for a value that takes the place of a call: that of its operand, if it may."""
    inside = {id(n) for n in ast.walk(call.args[0])} | {id(n) for n in ast.walk(call.func)}
    arguments = {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}
    for name in ([operand.id] if isinstance(operand, ast.Name) else []) + ["y"]:
        if name == "y" and name in arguments:
            continue
        for statement in method.body[at:]:
            own = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
            if any(isinstance(n.ctx, ast.Load) and id(n) not in inside for n in own):
                break
            if any(isinstance(n.ctx, ast.Store) for n in own):
                return name
        else:
            return name
    return Names(_taken(method)).new("y")


def _taken(method: ast.FunctionDef) -> set[str]:
    taken = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)}
    return taken | {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _replace(statement: ast.stmt, call: ast.Call, value: ast.expr) -> None:
    _Replacer({id(call): lambda _: value}).visit(statement)


def _self() -> ast.expr:
    return ast.Name("self", ast.Load())


class _Replacer(ast.NodeTransformer):
    """Replaces nodes, given by their `id`, after what they contain."""

    def __init__(self, new: Mapping[int, Callable[[ast.expr], ast.expr]]):
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        make = self._new.get(id(node))
        self.generic_visit(node)
        return make(node) if make is not None and isinstance(node, ast.expr) else node
