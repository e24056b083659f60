"""The names of the values of a function.

A name is reused if its value is not used later, as in `x = x + 1`, which is known only once the
whole function is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from invert.emission.expressions.statements import (
    FunctionText,
    Parameter,
    Pattern,
    Repeat,
    Statement,
    ValueType,
    read,
)
from invert.emission.expressions.streams import Streams
from invert.emission.python import syntax
from invert.emission.python.naming import Names
from invert.emission.python.nouns import PLAIN, STREAM, is_blank, of_field, says


def render(
    function: FunctionText, name: str, outer: Mapping[str, str], taken: set[str]
) -> ast.FunctionDef:
    """The definition, with names.

    **Arguments:**

    - `outer`: names of the tokens that it closes over.
    - `taken`: names of the file, unavailable to values.
    """
    return _Renderer(function, outer, taken).definition(name)


class _Renderer:
    """Names the tokens of one function."""

    def __init__(self, function: FunctionText, outer: Mapping[str, str], taken: set[str]):
        self.function, self.outer, self.taken = function, outer, taken
        self.captured = {t: outer[t] for t in function.free() if t in outer}
        taken = taken | set(self.captured.values()) | set(function.first)
        self.names = Names(taken, function.layers)
        self.given = dict(self.captured)
        self.types = dict(function.types)
        self.last = _last_uses(function)
        # The layers called in the statement that makes each token, as variables.
        self.called: dict[str, set[str]] = {}
        self.streams = Streams(function, self.last)
        self.body: list[ast.stmt] = [syntax.docstring(function.doc)] if function.doc else []

    def definition(self, name: str) -> ast.FunctionDef:
        function = self.function
        pairs = zip(function.parameters, _parameter_hints(function), strict=True)
        arguments = [self._argument(parameter, hint) for parameter, hint in pairs]
        for i, statement in enumerate(function.body):
            self._statement(i, statement)
        self._return(syntax.renamed(function.result, self.given))
        split = len(arguments) - function.keyword_only
        return syntax.function(
            name,
            [syntax.argument(n) for n in function.first] + arguments[:split],
            self.body,
            keyword_only=arguments[split:],
            positional_only=function.positional_only,
            decorators=[syntax.renamed(d, self.given) for d in function.decorators],
            returns=function.returns,
        )

    def _return(self, result: ast.expr) -> None:
        """Return a value, at once if the last line only gives it a name."""
        match self.body[-1:], result:
            case [ast.Assign([ast.Name(name)], value)], ast.Name(returned) if name == returned:
                self.body[-1] = ast.Return(value)
            case _:
                self.body.append(ast.Return(result))

    def _argument(self, parameter: Parameter, hint: str) -> ast.arg:
        """One parameter; the first line of the body unpacks a tuple."""
        function, names = self.function, self.names
        if isinstance(parameter, str):
            unused = parameter not in self.last and not function.annotations
            # A function of a part of what is around it calls this part the same.
            hint = self.outer.get(parameter, hint)
            name = self.given[parameter] = names.new(f"_{hint}" if unused else hint)
            return syntax.argument(name, function.annotations.get(parameter))
        if not parameter:
            return syntax.argument(names.new(f"_{hint}"))
        whole = names.new(hint)
        targets = []
        for i, token in enumerate(parameter):
            if token in self.last:
                self.given[token] = names.new(function.parts.get(token) or f"{hint}_{i}")
            targets.append(ast.Name(self.given.get(token, "_"), ast.Load()))
        self.body.append(syntax.assign(syntax.tuple_of(targets), ast.Name(whole, ast.Load())))
        names.free(whole)
        return syntax.argument(whole)

    def _statement(self, i: int, statement: Statement) -> None:
        names, given = self.names, self.given
        lambdas: dict[str, ast.expr] = {}
        for inner in statement.functions:
            if inner.may_be_lambda:
                node = render(inner, inner.hint, given, self.taken)
                if (function := _lambda(node)) is not None:
                    lambdas[inner.token] = function
                    continue
            given[inner.token] = names.new(inner.hint)
            self.body.append(render(inner, given[inner.token], given, self.taken))
        known = [t for t in dict.fromkeys(read(statement)) if t in given]
        # Function names are not reused, since type checkers would report a second declaration.
        kept = {*self.captured, *(f.token for f in statement.functions)}
        if statement.repeat is not None:  # it is read after the target is assigned
            kept.update(syntax.tokens_in(statement.repeat.iterable))
            kept.update(*map(syntax.tokens_in, statement.repeat.values()))
        dying = [t for t in known if self.last.get(t) == i and t not in kept]
        value = syntax.renamed(statement.value, given)
        if lambdas:
            value = _for_each(syntax.substitute(value, lambdas))
        for token in dying:
            names.free(given[token])
        targets = []
        made_by = _called(statement.value)
        self.called.update((t, made_by) for t in statement.targets if t is not None)
        for k, token in enumerate(statement.targets):
            # What a loop passes on has a name, whether or not it is used afterwards.
            passed = statement.repeat is not None and len(statement.targets) > 1
            if token is None or (token not in self.last and not passed):
                targets.append(ast.Name("_", ast.Load()))
                continue
            own = statement.types[k] if k < len(statement.types) else None
            self.types[token] = own
            wanted = self._reused(statement, k, own, dying)
            if statement.heir in dying and given[statement.heir] not in names.taken:
                wanted = given[statement.heir]
            if wanted is None and self.streams.holds(i):
                wanted = next((n for n in (STREAM, PLAIN) if n not in names.taken), None)
            if wanted is None:
                wanted = self._hint(statement, k, own, known)
                if wanted == PLAIN or wanted in names.taken:
                    wanted = self._later(i, token) or wanted
            given[token] = names.new(wanted)
            targets.append(ast.Name(given[token], ast.Load()))
        if statement.pattern is not None:
            target = _nested(statement.pattern, targets)
        else:
            target = syntax.one_or_tuple(targets)
        if statement.repeat is None or syntax.text_of(target) != syntax.text_of(value):
            self.body.append(syntax.assign(target, value))
        if statement.repeat is not None:
            self._repeat(statement.repeat, target)
            for token in statement.targets:
                if token is not None and token not in self.last:
                    names.free(given[token])

    def _hint(
        self, statement: Statement, k: int, own: ValueType | None, read: Sequence[str]
    ) -> str:
        """The preferred name of a target, unless something else has that name.

        The name of a layer is reserved for its result and its forms, that of a parameter for
        values of its type.
        """
        hint = statement.hints[k]
        if hint in self.function.layers and hint not in _called(statement.value):
            known = any(self.given[t] == hint or hint in self.called.get(t, ()) for t in read)
            hint = hint if known else PLAIN
        parameters = (t for t in self.function.types if self.given.get(t) == hint)
        if is_blank(hint) and any(self.function.types[t] != own for t in parameters):
            hint = PLAIN
        if hint in self.names.taken and hint in (STREAM, PLAIN):
            return next((n for n in (STREAM, PLAIN) if n not in self.names.taken), hint)
        return hint

    def _later(self, i: int, token: str) -> str:
        """The name that a value gets in another form: `query = rope(query)`.

        It is free until then, and only the statement that makes the other form reads the value.
        """
        j = self.last[token]
        following = self.function.body[i + 1 : j + 1]
        if j >= len(self.function.body) or any(token in read(s) for s in following[:-1]):
            return ""
        *between, user = following
        (name, *others) = user.hints or [PLAIN]
        if others or user.functions or user.repeat is not None or not says(name):
            return ""
        if len(user.types) != 1 or user.types[0] != self.types[token]:
            return ""
        value = user.value
        leads = isinstance(value, ast.Call) and value.args and syntax.is_named(value.args[0], token)
        if not leads and user.heirs[:1] != [token]:
            return ""
        used = name in self.names.taken or name in self.function.layers
        return "" if used or any(name in s.hints for s in between) else name

    def _repeat(self, repeat: Repeat, target: ast.expr) -> None:
        elements = [(repeat.element, repeat.hint), *repeat.beside]
        names = {token: self.names.new(hint) if hint else "_" for token, hint in elements}
        given = {**self.given, **names}
        own = [t for t in repeat.outs if t is not None and t not in given]
        given |= {t: self.names.new(PLAIN) for t in own}
        if repeat.outs:
            results = (ast.Name("_" if t is None else given[t], ast.Load()) for t in repeat.outs)
            target = syntax.tuple_of(results)
        steps = [syntax.assign(target, syntax.renamed(repeat.value, given))]
        for token, value in repeat.totals:
            total = ast.Name(given[token], ast.Load())
            steps.append(syntax.assign(total, syntax.renamed(value, given)))
        element = syntax.one_or_tuple([ast.Name(n, ast.Store()) for n in names.values()])
        iterable = syntax.renamed(repeat.iterable, self.given)
        self.body.append(ast.For(element, iterable, steps, [], lineno=0))
        for used in (*names.values(), *(given[t] for t in own)):
            self.names.free(used)

    def _reused(
        self, statement: Statement, k: int, own: ValueType | None, dying: Sequence[str]
    ) -> str | None:
        """The name of an operand that a target reuses, if any."""
        heirs = statement.heirs
        if statement.repeat is not None and isinstance(statement.value, ast.Tuple):
            start = statement.value.elts[k]
            heirs = [start.id] if isinstance(start, ast.Name) else []
        elif not statement.flows or len(statement.targets) != 1:
            return None
        for token in heirs:
            if token not in dying or self.given[token] in self.names.taken:
                continue
            counts = statement.repeat is not None and k >= len(statement.targets) - len(
                statement.repeat.totals
            )
            if statement.flows == "blank" and not (counts or is_blank(self.given[token])):
                continue
            if token in self.types and (statement.flows == "any" or self.types[token] == own):
                return self.given[token]
        return None


# The widest function that is written as a lambda.
_LAMBDA = 80


def _lambda(node: ast.FunctionDef) -> ast.expr | None:
    """A function as a lambda, if it is one short expression."""
    match node.body:
        case [ast.Return(ast.expr() as value)]:
            function = syntax.lambda_of([a.arg for a in node.args.args], value)
            return function if syntax.width(function) <= _LAMBDA else None
    return None


def _for_each(value: ast.expr) -> ast.expr:
    """`sum(f(x) for x in jax.tree.leaves(tree))` for a sum over `jax.tree.map(f, tree)`."""
    match value:
        case ast.Call(
            ast.Name("sum"),
            [
                ast.Call(
                    leaves,
                    [ast.Call(args=[ast.Lambda(ast.arguments(args=names), element), *trees])],
                )
            ],
        ):
            each = [ast.Call(leaves, [tree], []) for tree in trees]
            iterable = each[0] if len(each) == 1 else syntax.call("zip", *each)
            targets = [ast.Name(a.arg, ast.Store()) for a in names]
            target = targets[0] if len(targets) == 1 else ast.Tuple([*targets], ast.Store())
            loop = ast.comprehension(target, iterable, [], 0)
            return syntax.call("sum", ast.GeneratorExp(element, [loop]))
    return value


def _parameter_hints(function: FunctionText) -> list[str]:
    """The preferred names of the parameters: `x` for the first one without a meaning."""
    hints = list(function.hints)
    blank = [i for i, hint in enumerate(hints) if is_blank(hint)]
    if blank and STREAM not in hints and STREAM not in function.first:
        hints[blank[0]] = STREAM
    return hints


def _called(value: ast.expr) -> set[str]:
    """The layers of `self` that an expression names, as variables."""
    return {of_field(n.attr) for n in syntax.walk(value) if isinstance(n, ast.Attribute)}


def _nested(pattern: Pattern, targets: Sequence[ast.Name]) -> ast.expr:
    """Targets in nested tuples; `_` for an unused tuple."""
    if pattern is None:
        return ast.Name("_", ast.Load())
    if isinstance(pattern, int):
        return targets[pattern]
    items = [_nested(p, targets) for p in pattern]
    if all(isinstance(i, ast.Name) and i.id == "_" for i in items):
        return ast.Name("_", ast.Load())
    return syntax.tuple_of(items)


def _last_uses(function: FunctionText) -> dict[str, int]:
    """The last statement that reads each token; the result counts as one more."""
    uses: dict[str, int] = {}
    for i, statement in enumerate(function.body):
        for token in read(statement):
            uses[token] = i
    for token in syntax.tokens_in(function.result):
        uses[token] = len(function.body)
    return uses
