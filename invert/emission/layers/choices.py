"""The fields by which layers of a class choose its steps, and their text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from invert.emission.layers import optional_arguments, values
from invert.emission.layers.shared import (
    ACTIVATION,
    CAUSAL,
    IDENTITY,
    INNER_ACTIVATION,
    LEFT_OUT,
    LOCAL,
    MASKED,
    RESIDUAL,
    RETURN_SEQUENCES,
    Class,
    Code,
    Draft,
    taken,
)
from invert.emission.layers.values import HOLE
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.syntax import field_of, is_named

# What is added to a function of the same value.
_SHORTCUT = "shortcut"


def prepare(cls: Class, function: Callable[[ast.Call], str]) -> None:
    """Note fields that are `None` in some nodes; make other choices static fields.

    A step that all nodes have, or none, is not a choice.

    **Arguments:**

    - `function`: the name of a function of the file for an activation with options.
    """
    drafts, first = cls.drafts, cls.drafts[0]
    own = first.node.fields
    cls.optional = tuple(n for n in own if any(n not in d.node.fields for d in drafts))
    for draft in drafts:
        _settle_arrays(cls, draft)
    methods = [d.methods[0] for d in drafts if len(d.methods) == 1]
    if len(methods) < len(drafts) or values.result(methods[0]) is None:
        return
    optional = optional_arguments.of(methods[0])
    done: list[ast.Call] = []
    while (column := _next(methods, done)) is not None:
        done += column[:1]
        has = [values.has(step) for step in column]
        if len(set(has)) == 1 and not (has[0] and values.is_activation(column[0].args[0])):
            for method, step in zip(methods, column, strict=True):
                syntax.replace(method, step, _taken(step) if has[0] else step.args[1])
            for draft in drafts if values.returns_steps(column[0]) else ():
                _settle_result(draft, has=has[0])
        elif names := [n for n in values.fields(column[0]) if n in cls.optional]:
            _decide(column, syntax.field(syntax.name("self"), names[-1]))
        elif given := values.argument(column[0], optional):
            _decide(column, ast.Name(given, ast.Load()))
        elif values.is_addition(column[0].args[0]) or values.returns_steps(column[0]):
            ends = values.returns_steps(column[0])
            name = Names(own).new(RETURN_SEQUENCES if ends else RESIDUAL)
            _choose(cls, name, column)
        elif values.is_mask(column[0].args[0]):
            looks_back = re.search(r"\bjnp\.tril?\(", ast.unparse(column[0]))
            name = Names(own).new(CAUSAL if looks_back else MASKED)
            _choose(cls, name, column)
        elif values.is_limit(column[0].args[0]):
            _choose(cls, Names(own).new(LOCAL), column)
    _choose_activations(cls, methods, function)
    optional_arguments.settle(drafts)
    cls.marked = bool(values.steps(methods[0]))


def _choose(cls: Class, name: str, column: Sequence[ast.Call]) -> None:
    """Make a static field of a choice."""
    cls.statics[name] = tuple(map(values.has, column))
    _decide(column, syntax.field(syntax.name("self"), name))


def _decide(column: Sequence[ast.Call], test: ast.expr) -> None:
    """Let a field or an argument decide about a step."""
    if not values.has(column[0]):
        setattr(test, LEFT_OUT, True)
    column[0].args[2] = test


def _next(methods: Sequence[ast.FunctionDef], done: Sequence[ast.Call]) -> list[ast.Call] | None:
    """The first step that is not done, in all methods."""
    columns = zip(*map(values.steps, methods), strict=True)
    return next((list(c) for c in columns if not any(c[0] is d for d in done)), None)


def _settle_arrays(cls: Class, draft: Draft) -> None:
    """Note the shapes of arrays a node lacks; the first node lacks none."""
    names = [None if s is None else field_of(s) for s in draft.sources]
    for i, name in reversed(list(enumerate(names))):
        if not name or name in draft.node.fields:
            continue
        if name in cls.optional:
            cls.shapes[draft.node, name] = draft.arrays[i][1]
        else:
            del draft.arrays[i], draft.axes[i], draft.sources[i]


def _settle_result(draft: Draft, *, has: bool) -> None:
    """Drop the type of the result that no node returns."""
    at = -1 if has else -2
    for items in (draft.arrays, draft.axes, draft.annotations, draft.sources):
        del items[at]
    draft.methods[0].returns = draft.annotations[-1]


def _choose_activations(
    cls: Class, methods: Sequence[ast.FunctionDef], function: Callable[[ast.Call], str]
) -> None:
    """Make static fields of activations that differ, or that some nodes lack."""
    result = values.result(methods[0])
    end = None if result is None else values.end(methods[0], result)
    columns = list(zip(*map(values.activations, methods), strict=True))
    rows = [
        tuple(_code(call, function) if present else IDENTITY for call, present in c)
        for c in columns
    ]
    optional = {id(s.args[0]) for s in values.steps(methods[0])}
    last = None if end is None else rows[end]
    marked = end is not None and id(columns[end][0][0]) in optional
    for i, (column, row) in enumerate(zip(columns, rows, strict=True)):
        chosen = len(set(row)) > 1 or (i == end and marked)
        if not chosen:
            continue
        ends = last is not None and (len(set(last)) > 1 or marked)
        name = ACTIVATION if not ends or row == last else INNER_ACTIVATION
        cls.statics[name] = row
        call = column[0][0]
        call.func, call.keywords = syntax.field(syntax.name("self"), name), []
    for step in values.steps(methods[0]):
        call = step.args[0]
        if isinstance(call, ast.Call) and field_of(call.func) in cls.statics:
            syntax.replace(methods[0], step, _taken(step))


def _code(call: ast.Call, function: Callable[[ast.Call], str]) -> Code:
    return Code(function(call) if call.keywords else ast.unparse(call.func))


def _taken(step: ast.Call) -> ast.expr:
    """The value of a step where it is present."""
    taken_, operand, _ = step.args
    hole = next((n for n in syntax.walk(taken_) if is_named(n, HOLE)), None)
    if hole is not None:
        syntax.replace(taken_, hole, operand)
    return operand if hole is taken_ else taken_


def write(cls: Class) -> None:
    """Make the method of the first layer leave out the steps that are missing."""
    draft = cls.drafts[0]
    for statement in draft.fields:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) in cls.optional:
            statement.annotation = ast.BinOp(statement.annotation, ast.BitOr(), ast.Constant(None))
    for method in draft.methods:
        for argument in method.args.args[len(method.args.args) - len(method.args.defaults) :]:
            assert argument.annotation is not None
            argument.annotation = ast.BinOp(argument.annotation, ast.BitOr(), ast.Constant(None))
        _rename(cls, method)
        while (found := _innermost(method)) is not None:
            _Writing(cls, method, *found).run()


def _rename(cls: Class, method: ast.FunctionDef) -> None:
    """Rename variables named after an activation or layer that some nodes lack."""
    codes = {v.text for column in cls.statics.values() for v in column if isinstance(v, Code)}
    functions = {text.rpartition(".")[2] for text in codes}
    arguments = syntax.argument_names(method)
    for statement in method.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or not isinstance(statement, ast.Assign):
            continue
        layer = values.is_step(statement.value) and target.id in cls.optional
        if target.id not in arguments and (layer or target.id in functions):
            name = Names(taken(method) - {target.id}).new(_SHORTCUT if layer else "y")
            syntax.rename(method, {target.id: name})


def _innermost(method: ast.FunctionDef) -> tuple[ast.stmt, ast.Call] | None:
    """The first statement with a marked step, and an innermost such step."""
    for statement in method.body:
        if found := [n for n in syntax.in_order(statement) if values.is_step(n)]:
            return statement, found[-1]
    return None


def _unless(statement: ast.stmt) -> ast.stmt:
    """`if self.strides != (1, 1): x = pool(x)`, for a choice that may keep `x`."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name) as target],
            value=ast.IfExp(
                test=ast.Compare(left, [ast.Eq()], [right]), body=ast.Name(id=kept), orelse=value
            ),
        ) if kept == name:
            test = ast.Compare(left, [ast.NotEq()], [right])
            return ast.If(test, [syntax.assign(target, value)], [])
    return statement


def _is_none(value: ast.expr, *, negated: bool) -> ast.Compare:
    return ast.Compare(value, [ast.IsNot() if negated else ast.Is()], [ast.Constant(None)])


class _Writing:
    """Writes one step so that layers without it skip it."""

    def __init__(self, cls: Class, method: ast.FunctionDef, statement: ast.stmt, step: ast.Call):
        self.cls, self.method, self.statement, self.step = cls, method, statement, step

    def run(self) -> None:
        statement, step, body = self.statement, self.step, self.method.body
        if isinstance(step.args[2], ast.Name) and not isinstance(step.args[1], ast.Name):
            self._split()
        operand = step.args[1] = self._settled(step.args[1])
        target = statement.targets[0] if isinstance(statement, ast.Assign) else operand
        whole = isinstance(statement, ast.Assign | ast.Return) and statement.value is step
        if whole and not (isinstance(statement, ast.Assign) and is_named(target, operand.id)):
            syntax.replace(statement, step, self._choice())
            return
        at = body.index(statement)
        if whole:
            del body[at]
            local = operand.id
        else:
            sums = (n for n in syntax.walk(statement) if isinstance(n, ast.BinOp))
            added = any(step is n.left or step is n.right for n in sums)
            local = self._target(operand, step)
            given = isinstance(step.args[2], ast.Name)  # an argument adds to the value itself
            if added and local != _SHORTCUT and not given:
                local = Names(taken(self.method)).new(_SHORTCUT)
            syntax.replace(statement, step, ast.Name(local, ast.Load()))
        if local == operand.id and not any(is_named(n, HOLE) for n in syntax.walk(step.args[0])):
            # What takes the place of a value is another one.
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            again = target.id if isinstance(target, ast.Name) else ""
            local = again or Names(taken(self.method)).new(_SHORTCUT)
            syntax.rename(statement, {operand.id: local})
            body[body.index(statement)] = _unless(statement)
        chosen = syntax.assign(syntax.name(local), self._choice())
        if local == operand.id:
            chosen = ast.If(self._test(there=True), [syntax.assign(operand, _taken(step))], [])
        body.insert(at, chosen)

    def _split(self) -> None:
        """Assign the operand of a step to the variable of its result before."""
        match self.statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is self.step:
                operand, self.step.args[1] = self.step.args[1], ast.Name(name, ast.Load())
                before = syntax.assign(ast.Name(name, ast.Store()), operand)
                self.method.body.insert(self.method.body.index(self.statement), before)

    def _choice(self) -> ast.expr:
        """`x if self.pad_width is None else jnp.pad(x, self.pad_width)`."""
        step, there = self.step, self._test(there=True)
        if isinstance(there, ast.Compare):
            return ast.IfExp(self._test(there=False), step.args[1], _taken(step))
        return ast.IfExp(there, _taken(step), step.args[1])

    def _test(self, *, there: bool) -> ast.expr:
        """A test of whether the step is present, or missing."""
        statics, step = self.cls.statics, self.step
        if isinstance(step.args[2], ast.Name):  # an argument
            return _is_none(step.args[2], negated=there)
        own = (n for n in syntax.walk(step.args[0]) if field_of(n) in statics)
        field = step.args[2] if field_of(step.args[2]) else next(own)
        assert isinstance(field, ast.expr)
        column = statics.get(field_of(field), (None,))
        if all(isinstance(v, bool) for v in column):
            return field if there else ast.UnaryOp(ast.Not(), field)
        if None in column:
            return _is_none(field, negated=there)
        ones = syntax.tuple_of([syntax.number(1)] * len(column[0]))
        return ast.Compare(field, [ast.NotEq() if there else ast.Eq()], [ones])

    def _settled(self, operand: ast.expr) -> ast.Name:
        """The operand of a step as a local variable."""
        if isinstance(operand, ast.Name):
            return operand
        method = self.method
        own = {a.arg for a in method.args.args[1:]}
        own |= {name for statement in method.body for name in syntax.stored(statement)}
        names = (n for n in syntax.walk(operand) if isinstance(n, ast.Name) and n.id in own)
        local = self._target(next(names, None), operand)
        at = method.body.index(self.statement)
        method.body.insert(at, syntax.assign(ast.Name(local, ast.Store()), operand))
        return ast.Name(local, ast.Load())

    def _target(self, operand: ast.expr | None, last: ast.expr) -> str:
        """A name for a new value: an operand's, if only `last` reads it later."""
        inside = {id(n) for n in syntax.walk(last)}
        method = self.method
        arguments = syntax.argument_names(method)
        for name in ([operand.id] if isinstance(operand, ast.Name) else []) + ["y"]:
            if name == "y" and name in arguments:
                continue
            for statement in method.body[method.body.index(self.statement) :]:
                own = [
                    n for n in syntax.walk(statement) if isinstance(n, ast.Name) and n.id == name
                ]
                if any(isinstance(n.ctx, ast.Load) and id(n) not in inside for n in own):
                    break
                if any(isinstance(n.ctx, ast.Store) for n in own):
                    return name
            else:
                return name
        return Names(taken(method)).new("y")
