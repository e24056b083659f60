"""Functions with derivatives of their own."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array

# The tangent of a result, from the result, the operands and their tangents.
Tangent = Callable[..., Array]


def with_tangent(tangent: Tangent) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Give a function of one result a forward derivative of its own.

    **Arguments:**

    - `tangent`: `tangent(y, primals, tangents)`, where `y` is the result at `primals`.
    """

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        rule = jax.custom_jvp(function)

        def jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
            y = rule(*primals)
            return y, tangent(y, primals, tangents)

        rule.defjvp(jvp)
        return rule

    return decorate
