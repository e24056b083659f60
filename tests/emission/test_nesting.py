"""Nested branches and loops, as functions that close over values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert


def _branches(depth: int) -> Callable[[Any], Any]:
    """Branches that all give back one value of the outermost scope, or one of their own."""

    def run(x: Any) -> Any:
        first = lax.cond(x[0] > 0, lambda v: v * 3, lambda v: v - 1, x)

        def inner(y: Any, level: int) -> Any:
            z = lax.cond(y[0] > level, lambda v: first, lambda v: v, y)
            if level == depth:
                return z
            both = lambda v: inner(v, level + 1) + jnp.sin(v * z)  # noqa: E731
            return lax.cond(z[1] > level, both, lambda _: first, z * y)

        return inner(x * 2, 1) * first

    return run


def _switch_in_while_in_cond(x: Any) -> Any:
    first = lax.cond(x[0] > 0, lambda v: v * 3, lambda v: v - 1, x)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        n, y = state
        either = lambda: lax.cond(y[0] > 2, lambda: first, lambda: y)  # noqa: E731
        z = lax.switch(n % 3, [lambda: first, lambda: y * first, either])
        other = lambda: lax.cond(z[0] > 1, lambda: y, lambda: z * 2)  # noqa: E731
        return n + 1, lax.switch(n % 2, [other, lambda: first])

    def loop() -> Any:
        return lax.while_loop(lambda s: s[0] + s[1][0] < 5, step, (0, first))[1]

    return lax.cond(first[0] < 8, loop, lambda: first)


def _scan_in_cond_in_scan(x: Any) -> Any:
    first = lax.cond(x[0] > 0, lambda v: v * 3, lambda v: v - 1, x)

    def outer(carry: Any, row: Any) -> tuple[Any, Any]:
        def inner(c: Any, v: Any) -> tuple[Any, Any]:
            added = lax.cond(v > carry[0], lambda: c + first, lambda: carry)
            return lax.cond(v > 1, lambda: added * c, lambda: first), v * c[0]

        def scanned() -> Any:
            last, rows = lax.scan(inner, carry, row)
            return last + rows

        return lax.cond(row[0] > 0, scanned, lambda: first), row * carry

    carry, rows = lax.scan(outer, x, jnp.stack([x, x + 1, x - 1, x * 2]))
    return carry + rows.sum(0)


_NESTED = {
    **{f"cond, {n} deep": _branches(n) for n in range(1, 7)},
    "switch in while in cond": _switch_in_while_in_cond,
    "scan in cond in scan": _scan_in_cond_in_scan,
}


@pytest.mark.parametrize("name", _NESTED)
def test_functions_read_the_values_around_them(name: str) -> None:
    run = jax.jit(_NESTED[name])
    module = invert.from_stablehlo(run.lower(jnp.ones(3)).as_text())
    emission = module.emit()
    assert not emission.messages
    for x in (jnp.arange(3.0), jnp.array([0.5, 1.5, 2.5]), jnp.array([-1.0, 3.0, 0.25])):
        # XLA may fuse otherwise where constants stand in another place.
        np.testing.assert_allclose(emission.model(x), run(x), rtol=1e-6, atol=1e-6)
