"""`invert.pattern`: a pattern from two functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from invert._errors import PatternError
from invert.ir.avals import type_of_value
from invert.ir.graph import Graph
from invert.ir.types import JaxFunction
from invert.patterns import STAGES
from invert.rewriting.driver import Rewriter
from invert.rewriting.outline import heads
from invert.rewriting.pattern import Pattern, Stage
from invert.rewriting.short import Short, arity_of, combinations, problems, untraced
from invert.rewriting.templates import raise_call, traced_call, written_call


def pattern(
    before: JaxFunction | None,
    after: JaxFunction,
    *,
    name: str | None = None,
    options: Mapping[str, Sequence[object]] | None = None,
    example: Sequence[object] | None = None,
) -> Pattern:
    """A pattern that replaces `before` by `after`.

    The author guarantees that the two are equal. Without `before`, the lowering of `after` is
    replaced, which needs no guarantee. That brings back a function whose derivative rule the export
    dropped.

    **Arguments:**

    - `before`: the program to look for, a function of one or more arrays; `None` for the lowering
        of `after`. Each of its positional arguments without a default is an operand, of any shape
        and dtype at which it traces. Numbers in it must occur in the program. The two operands of
        an addition, product, maximum, minimum, comparison for equality or bitwise op may be
        swapped, except in a lowering.
    - `after`: its replacement, with the same operands and result types.
    - `name`: its name in the report; the name of `after` by default.
    - `options`: values to try for keyword arguments of both functions, such as
        `{"axis": (-1, -2)}`. Values must be hashable.
    - `example`: arrays, or their types, at which `before` traces. Needed only if it traces neither
        at operands of equal types nor at small combinations of sizes and dtypes.

    **Returns:** a pattern for `invert.rewrite` and `invert.Config(extra_patterns=...)`.

    **Raises:** `PatternError` with all reasons why the two functions do not form a pattern. They
    trace at no example, their result types differ, one has effects, `before` computes nothing or
    ignores an operand, or `after` contains `before`.

    ??? example

        ```python
        import jax
        import jax.numpy as jnp

        import invert

        silu = invert.pattern(before=lambda x: x * (1 / (1 + jnp.exp(-x))), after=jax.nn.silu)
        faster = invert.rewrite(lambda x: jnp.tanh(x * (1 / (1 + jnp.exp(-x)))), [silu])
        ```
    """
    name = name or str(getattr(after, "__name__", type(after).__name__))
    choices = combinations(name, options or {})
    arity = arity_of(name, before or after)
    if example is not None and len(example) != arity:
        raise PatternError(
            f"pattern {name!r}: `before` has {arity} operands, `example` {len(example)}",
            remedy="Give one example for each operand.",
        )
    given = None if example is None else tuple(map(type_of_value, example))
    short = Short(before, after, arity, choices, given)
    _check(name, short)
    made = Pattern(name, _roots(short), short)
    _check_that_it_ends(made, short)
    return made


def _check(name: str, short: Short) -> None:
    """Refuse functions that trace at no example, or do not form a pattern."""
    if not short.examples:
        raise PatternError(
            f"pattern {name!r}: {untraced(short)}",
            remedy=(
                "Give types at which it returns arrays as `example`, and values for its keyword "
                "arguments as `options`."
            ),
        )
    if reasons := list(dict.fromkeys(problems(short))):
        raise PatternError(
            f"pattern {name!r}: " + "; ".join(reasons), remedy="Change `before` or `after`."
        )


def _check_that_it_ends(made: Pattern, short: Short) -> None:
    """Refuse a pattern that matches in the program of its own `after`."""
    for call in short.examples:
        body = traced_call(dataclasses.replace(call, before=None))
        if Rewriter((Stage((made,)),), written_call).matches(body):
            raise PatternError(
                f"pattern {made.name!r}: `after` contains `before` and would be rewritten forever",
                remedy="Wrap `after` in `jax.jit`.",
            )


def _roots(short: Short) -> tuple[str, ...]:
    """The primitives that give the results: as traced, as raised, and after `invert`'s patterns."""
    written = (written_call(call, "cpu") for call in short.examples)
    programs = [p for p in written if p is not None]
    if (raised := raise_call(short.examples[0], "cpu")) is not None:
        programs += [raised, Rewriter(STAGES, raise_call).run(raised)]
    return tuple(dict.fromkeys(e.primitive.name for p in programs for e in heads(Graph(p))))
