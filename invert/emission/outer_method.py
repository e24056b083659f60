"""The method around a compiled one: switches settings of JAX and raises assertions."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence

from invert.emission.python import syntax
from invert.emission.python.naming import Names

# Longer messages are written as a sum of short strings.
_WIDTH = 70


def around(
    inner: ast.FunctionDef,
    name: str,
    doc: str,
    *,
    settings: Mapping[str, bool],
    checks: Sequence[str],
    checkify: bool,
) -> ast.FunctionDef:
    """The method `name` that calls `inner`.

    **Arguments:**

    - `settings`: values of settings of JAX for the call, by the names of their contexts.
    - `checks`: messages of assertions; the last results of `inner` say which of them failed.
    - `checkify`: whether assertions are `checkify.check` rather than `eqx.error_if`.
    """
    outer = syntax.function(
        name,
        list(inner.args.posonlyargs or inner.args.args),
        [],
        keyword_only=inner.args.kwonlyargs,
        positional_only=bool(inner.args.posonlyargs),
        returns=inner.returns,
    )
    arguments = [a.arg for a in (*outer.args.posonlyargs, *outer.args.args)][1:]
    keywords = {a.arg: ast.Name(a.arg, ast.Load()) for a in outer.args.kwonlyargs}
    call = syntax.call(f"self.{inner.name}", *map(syntax.name, arguments), **keywords)
    enabled = [
        ast.withitem(syntax.call(f"jax.{name}", syntax.number(value)))
        for name, value in settings.items()
    ]
    stated = [syntax.docstring(doc)] if doc else []
    if not checks:
        outer.body = [*stated, ast.With(enabled, [ast.Return(call)], lineno=0)]
        return outer
    names = Names({*arguments, *keywords, "self"})
    out = names.new("out")
    flags = [names.new("failed" if len(checks) == 1 else f"failed_{i}") for i in range(len(checks))]
    taken = syntax.assign(syntax.store(syntax.tuple_of(map(syntax.name, (out, *flags)))), call)
    body: list[ast.stmt] = [ast.With(enabled, [taken], lineno=0) if enabled else taken]
    for message, flag in zip(checks, flags, strict=True):
        failed = syntax.name(flag)
        if checkify:
            # The message of a check is a format string.
            text = _text(message.replace("{", "{{").replace("}", "}}"))
            passed = syntax.call("jnp.logical_not", failed)
            body.append(ast.Expr(syntax.call("checkify.check", passed, text)))
        else:
            checked = syntax.call("eqx.error_if", syntax.name(out), failed, _text(message))
            body.append(syntax.assign(syntax.store(syntax.name(out)), checked))
    outer.body = [*stated, *body, ast.Return(syntax.name(out))]
    # The inner method returns the flags as well.
    assert inner.returns is not None
    flag_type = syntax.item(
        syntax.name("Bool"), syntax.tuple_of([syntax.name("Array"), ast.Constant("")])
    )
    inner.returns = syntax.item(
        syntax.name("tuple"), syntax.tuple_of([inner.returns, *[flag_type] * len(checks)])
    )
    return outer


def _text(message: str) -> ast.expr:
    parts = textwrap.wrap(
        message, _WIDTH, drop_whitespace=False, replace_whitespace=False, expand_tabs=False
    )
    text: ast.expr = ast.Constant(parts[0])
    for part in parts[1:]:
        text = syntax.infix(text, "+", ast.Constant(part))
    return text
