"""The evaluator of jaxprs; the caller decides what an equation means.

To bind equations unchanged, use JAX's own evaluator (`eval_closed`), which frees values early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from invert._private.jax import (
    bind_equation,
    close_like,
    consts_of,
    context_of,
    eval_closed,
    open_jaxpr,
    trace_closed,
)
from invert.ir.jaxprs import canonicalize, with_inlined
from invert.ir.types import AnyJaxpr, Atom, Aval, ClosedJaxpr, Eqn, J, Literal, Value

# The results of an equation, given the values of its operands.
OnEqn: TypeAlias = Callable[[Eqn, list[Value]], Sequence[Value]]


def bind(eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
    """Bind an equation on other operands, in its own name scopes and settings."""
    with context_of(eqn):
        return bind_equation(eqn, operands)


def replacing(programs: Mapping[Eqn, AnyJaxpr], otherwise: OnEqn = bind) -> OnEqn:
    """Bind equations, except that those in `programs` are evaluated as the program given there."""

    def on_eqn(eqn: Eqn, operands: list[Value]) -> Sequence[Value]:
        program = programs.get(eqn)
        if program is None:
            return otherwise(eqn, operands)
        return eval_closed(program, operands)

    return on_eqn


def value_of(literal: Literal) -> Value:
    """The value of a literal."""
    return literal.val


def evaluate(
    eqns: Iterable[Eqn],
    env: dict[Atom, Value],
    on_eqn: OnEqn = bind,
    on_literal: Callable[[Literal], Value] = value_of,
) -> Callable[[Atom], Value]:
    """Evaluate equations over the values in `env`; return the function that reads an atom."""

    def read(atom: Atom) -> Value:
        return on_literal(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in eqns:
        results = on_eqn(eqn, [read(a) for a in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return read


def interpret(
    program: AnyJaxpr,
    args: Sequence[Value],
    on_eqn: OnEqn = bind,
    on_literal: Callable[[Literal], Value] = value_of,
) -> list[Value]:
    """Evaluate a program on `args`, with `on_eqn` giving the results of each equation."""
    jaxpr = open_jaxpr(program)
    names: list[Atom] = [*jaxpr.constvars, *jaxpr.invars]
    env = dict(zip(names, [*consts_of(program), *args], strict=True))
    return list(map(evaluate(jaxpr.eqns, env, on_eqn, on_literal), jaxpr.outvars))


def retrace(
    program: AnyJaxpr, on_eqn: OnEqn = bind, types: Iterable[Aval] | None = None
) -> ClosedJaxpr:
    """Trace `interpret` of a program, at the types of its arguments or at `types`.

    It keeps the name of the function that it was traced from.
    """

    def run(*values: Value) -> list[Value]:
        return interpret(program, values, on_eqn)

    run.__name__ = open_jaxpr(program).debug_info.func_name
    return trace_closed(run, *(types or (v.aval for v in open_jaxpr(program).invars)))


def inline_calls(program: AnyJaxpr) -> ClosedJaxpr:
    """Inline the `jit` equations of the outermost level, one level deep."""
    eqns = open_jaxpr(program).eqns
    return retrace(
        program, replacing({e: e.params["jaxpr"] for e in eqns if e.primitive.name == "jit"})
    )


def inlined(closed: J) -> J | ClosedJaxpr:
    """Inline all calls, since JAX splits them when it differentiates."""
    program: J | ClosedJaxpr = closed
    while any(e.primitive.name == "jit" for e in open_jaxpr(program).eqns):
        program = inline_calls(program)
    return canonicalize(program)


def without_outer_call(closed: AnyJaxpr) -> AnyJaxpr:
    """The program inside the single call that `eqx.filter_jit` makes."""
    jaxpr = open_jaxpr(closed)
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name != "jit":
        return closed
    (call,) = jaxpr.eqns
    if consts_of(call.params["jaxpr"]):
        return inline_calls(closed)
    return close_like(closed, with_inlined(jaxpr, lambda eqn: eqn.params["jaxpr"]))
