"""Conditions that only one of two programs has, and when samples have met both outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._private.jax import trace_closed
from invert.gradients.conditions import Conditions

ONE_TO_THREE = np.array([1, 2, 3], np.float32)


def same(x: Any) -> Any:
    return x


def are_met(one: Callable[..., Any], two: Callable[..., Any], samples: Sequence[Any]) -> bool:
    """Whether these samples, each alone, met the conditions that one of the programs has."""
    example = np.float32(0) if not samples else samples[0]
    conditions = Conditions()
    runs = conditions.add([trace_closed(f, example) for f in (one, two)], is_open=False)
    for sample in samples:
        for run in runs:
            _, outcomes = run([sample])
            conditions.met(outcomes)
    return conditions.are_met


def floats(*values: float) -> list[np.float32]:
    return [np.float32(v) for v in values]


def integers(*values: int) -> list[np.int32]:
    return [np.int32(v) for v in values]


@pytest.mark.parametrize(
    ("one", "samples", "met"),
    [
        (lambda x: jnp.where(x > 3, x, 0), floats(1), False),
        (lambda x: jnp.where(x > 3, x, 0), floats(1, 5), True),
        # At the number itself, a rule that clips may do either.
        (lambda x: jnp.where(x > 3, x, 0), floats(1, 3), False),
        (lambda x: jnp.minimum(x, 3), floats(3, 5), False),
        (lambda x: lax.clamp(np.float32(1), x, np.float32(3)), floats(0, 2), False),
        (lambda x: lax.clamp(np.float32(1), x, np.float32(3)), floats(0, 2, 5), True),
        (lambda x: jnp.where(x == 3, x, 0), floats(1), False),
        (lambda x: jnp.where(x == 3, x, 0), floats(1, 3), True),
        (lambda x: jnp.where(x == x, x, 0), floats(1), False),
        (lambda x: jnp.where(x == x, x, 0), floats(1, np.nan), True),
        (lambda x: jnp.where(jnp.isfinite(x), x, 0), floats(1, np.inf), True),
        (jnp.floor, floats(2), False),
        (jnp.floor, floats(2.5), True),
        (jnp.round, floats(1000.001), False),
        # Below one, the result may be zero for all.
        (jnp.floor, floats(0.5), False),
        (lambda x: x.astype(np.int32), floats(0.5), False),
        (lambda x: x.astype(np.int32), floats(1), False),
        (lambda x: x.astype(np.int32), floats(1.5), True),
        (jnp.sign, floats(0, 1), False),
        (jnp.sign, floats(-1, 1), True),
        (lambda x: lax.rem(x, np.float32(3)), floats(2), False),
        (lambda x: lax.rem(x, np.float32(3)), floats(4), True),
        (lambda n: lax.div(n, np.int32(5)), integers(3), False),
        (lambda n: lax.div(n, np.int32(5)), integers(7), True),
        (lambda n: n >> 3, integers(7), False),
        (lambda n: n >> 3, integers(8), True),
        (lambda n: n & 8, integers(7), False),
        (lambda n: n & 8, integers(7, 9), True),
        (lambda n: jnp.asarray(ONE_TO_THREE)[n], integers(0, 1), False),
        (lambda n: jnp.ones(3)[n], integers(-1, 1), True),
        (lambda n: jax.nn.one_hot(n, 3), integers(0, 1), False),
        (jax.jit(lambda x: jnp.where(x > 3, x, 0)), floats(1), False),
    ],
)
def test_both_outcomes(one: Callable[..., Any], samples: list[Any], met: bool) -> None:
    assert are_met(one, same, samples) == met
    assert are_met(same, one, samples) == met


@pytest.mark.parametrize(
    ("one", "two", "in_common"),
    [
        (lambda x: jnp.maximum(x, 3), lambda x: jnp.where(x > 3, x, 3), True),
        (lambda x: jnp.maximum(x, 3), lambda x: jnp.maximum(x, 4), False),
        (lambda x: x > ONE_TO_THREE, lambda x: x < ONE_TO_THREE, True),
        (lambda x: x > ONE_TO_THREE, lambda x: x > ONE_TO_THREE[[0, 2, 1]], False),
        (lambda x: x > np.ones(3), lambda x: x > np.ones((2, 2)), True),
        (lambda x: x == x, lambda x: x == x + 1, False),
        (lambda x: x > x + 1, lambda x: x - 1 > x, True),
        (jnp.floor, jnp.ceil, True),
    ],
)
def test_conditions_in_common_need_no_sample(one: Any, two: Any, in_common: bool) -> None:
    assert are_met(one, two, []) == in_common


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        (lambda i, x: x + i, False),
        (lambda i, x: jnp.where(i > 2, x, -x), False),
        (lambda i, x: jnp.where(x > 0, x, -x), False),
        (lambda i, x: jnp.where(x > 2, x, -x), True),
    ],
)
def test_conditions_in_loops(step: Callable[..., Any], counts: bool) -> None:
    """They are observed at each step; those of counters do not count."""
    loop = jax.jit(lambda x: lax.fori_loop(0, 4, step, x))
    assert are_met(loop, same, floats(-1, 1)) != counts
    assert are_met(loop, same, floats(-1, 1, 5))


def test_an_integer_equals_itself() -> None:
    """A float may be NaN, so that there is a second outcome to meet."""
    assert are_met(lambda n: jnp.where(n == n, n, 0), same, [np.int32(3)])


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (lambda i: jnp.where((i >= 0) & (i <= 1), i, 1), True),
        (lambda i: jnp.clip(lax.dynamic_slice(i[None], (0,), (1,)), 0, 1), True),
        (lambda i: jnp.where(i > 2, i, 1), False),
        (lambda i: jnp.where(i + 1 > 1, i, 1), False),
    ],
)
def test_the_index_of_a_branch_has_no_threshold(one: Callable[..., Any], met: bool) -> None:
    """An integer made of a comparison is 0 or 1; in a function and in a loop, too."""

    def of_comparison(x: Any) -> Any:
        return jax.jit(one)((x > 3).astype(np.int32))

    def in_loop(x: Any) -> Any:
        flags = (x > np.full(2, 3, np.float32)).astype(np.int32)
        return lax.scan(lambda c, i: (c, one(i)), 0, flags)[1]

    assert are_met(of_comparison, same, floats(1, 5)) == met
    assert are_met(in_loop, same, floats(1, 5)) == met
    assert not are_met(of_comparison, same, floats(1))
    # The argument may be any integer.
    assert not are_met(one, same, integers(0, 1))
    assert not are_met(lambda x: one(x.astype(bool).astype(np.int32)), same, floats(0, 1, 5))


def test_the_largest_size_is_not_a_threshold() -> None:
    limit = np.int32(2**31 - 1)
    assert are_met(lambda n: jnp.minimum(n, limit), same, [np.int32(3)])
    assert not are_met(lambda n: jnp.minimum(n, limit - 1), same, [np.int32(3)])
