"""The equation of derivatives that a program computes, as `jax.value_and_grad` or `jax.vjp` does.

A program that trains holds what it differentiates, and the backward pass as further equations. For
its text, both become one equation that holds the first alone: the loss, or where the program does
not compute one, what its cotangents are for, and how they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir

from invert._private.jax import Primitive, context_of, eval_closed, open_jaxpr
from invert.ir.interpret import bind, interpret
from invert.ir.types import ClosedJaxpr, Eqn, JaxFunction, Value

# Parameters: `jaxpr` is what is differentiated by its last `count` arguments. `ends` of its results
# have cotangents, which are the first results of `cotangents`; for a loss, both are none. This
# program takes all results of `jaxpr`, and other values.
# Operands: the other values, what `jaxpr` closes over, and what it is differentiated by.
# Results: those of `jaxpr`, more results of `cotangents`, and the derivatives.
value_and_grad_p = Primitive("value_and_grad")
value_and_grad_p.multiple_results = True


def value_and_grad(closed: ClosedJaxpr, count: int) -> JaxFunction:
    """The function of a program that returns a number, and perhaps others.

    It also returns the derivatives of the number by the last `count` arguments.
    """

    def run(*values: Value) -> list[Value]:
        fixed, moving = values[: len(values) - count], values[len(values) - count :]

        def loss(*moving: Value) -> tuple[Value, Sequence[Value]]:
            value, *others = interpret(closed, [*fixed, *moving], _bind)
            return value, others

        places = tuple(range(count))
        (value, others), found = jax.value_and_grad(loss, places, has_aux=True)(*moving)
        return [value, *others, *found]

    return run


def pulled_back(
    closed: ClosedJaxpr, count: int, ends: int, cotangents: Callable[..., Sequence[Value]]
) -> JaxFunction:
    """The function of a program that also returns derivatives by its last `count` arguments.

    **Arguments:**

    - `cotangents`: computes those of the first `ends` results from all of them. Other values that
      it returns are returned before the derivatives.
    """

    def run(*values: Value) -> list[Value]:
        fixed, moving = values[: len(values) - count], values[len(values) - count :]

        def forward(*moving: Value) -> tuple[Sequence[Value], Sequence[Value]]:
            results = interpret(closed, [*fixed, *moving], _bind)
            return results[:ends], results[ends:]

        results, pullback, others = jax.vjp(forward, *moving, has_aux=True)
        given = cotangents(*results, *others)
        return [*results, *others, *given[ends:], *pullback(list(given[:ends]))]

    return run


def _bind(eqn: Eqn, operands: Sequence[Value]) -> list[Value]:
    """Bind an equation, but write `x * x` as text does.

    JAX adds up the derivatives by both operands of `jnp.multiply` in another order.
    """
    if eqn.primitive is not lax.mul_p or eqn.invars[0] is not eqn.invars[1]:
        return bind(eqn, operands)
    with context_of(eqn):
        return [jnp.multiply(*operands)]


def reads(jaxpr: ClosedJaxpr, cotangents: ClosedJaxpr | None) -> int:
    """How many operands of an equation only its cotangents read."""
    if cotangents is None:
        return 0
    return len(open_jaxpr(cotangents).invars) - len(open_jaxpr(jaxpr).outvars)


def differentiated(
    jaxpr: ClosedJaxpr, count: int, cotangents: ClosedJaxpr | None, ends: int
) -> JaxFunction:
    """The function of an equation, by its parameters."""
    if cotangents is None:
        return value_and_grad(jaxpr, count)
    split = reads(jaxpr, cotangents)

    def run(*values: Value) -> list[Value]:
        def given(*results: Value) -> list[Value]:
            return eval_closed(cotangents, [*results, *values[:split]])

        return pulled_back(jaxpr, count, ends, given)(*values[split:])

    return run


def _run(*values: Value, **params: Value) -> list[Value]:
    return differentiated(**params)(*values)


def _types(
    *avals: Value, jaxpr: ClosedJaxpr, count: int, cotangents: ClosedJaxpr | None, ends: int
) -> list[Value]:
    results = list(open_jaxpr(jaxpr).outvars)
    if cotangents is not None:
        results += open_jaxpr(cotangents).outvars[ends:]
    return [*(v.aval for v in results), *avals[len(avals) - count :]]


value_and_grad_p.def_impl(_run)
value_and_grad_p.def_abstract_eval(_types)
mlir.register_lowering(value_and_grad_p, mlir.lower_fun(_run, multiple_results=True))
