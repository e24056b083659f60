"""The equation of a number and its gradients, as `jax.value_and_grad` makes them.

A program that trains holds the loss, and the backward pass of its derivative as further equations.
For its text, both become one equation that holds the loss alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.interpreters import mlir

from invert._private.jax import Primitive, eval_closed, open_jaxpr
from invert.ir.types import ClosedJaxpr, JaxFunction, Value

# Operands: what the loss closes over, then what it is differentiated by.
# Results: the loss, what it returns beside it, and the derivatives.
value_and_grad_p = Primitive("value_and_grad")
value_and_grad_p.multiple_results = True


def value_and_grad(closed: ClosedJaxpr, count: int) -> JaxFunction:
    """The function of a program that returns a number, and perhaps others.

    It also returns the derivatives of the number by the last `count` arguments.
    """

    def run(*values: Value) -> list[Value]:
        fixed, moving = values[: len(values) - count], values[len(values) - count :]

        def loss(*moving: Value) -> tuple[Value, Sequence[Value]]:
            value, *others = eval_closed(closed, [*fixed, *moving])
            return value, others

        places = tuple(range(count))
        (value, others), found = jax.value_and_grad(loss, places, has_aux=True)(*moving)
        return [value, *others, *found]

    return run


def _run(*values: Value, jaxpr: ClosedJaxpr, count: int) -> list[Value]:
    return value_and_grad(jaxpr, count)(*values)


def _types(*avals: Value, jaxpr: ClosedJaxpr, count: int) -> list[Value]:
    return [*(v.aval for v in open_jaxpr(jaxpr).outvars), *avals[len(avals) - count :]]


value_and_grad_p.def_impl(_run)
value_and_grad_p.def_abstract_eval(_types)
mlir.register_lowering(value_and_grad_p, mlir.lower_fun(_run, multiple_results=True))
