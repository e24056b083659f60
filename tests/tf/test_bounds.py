"""Bounds found before a program runs hold when it runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import lax

from invert.tf.values import bounds

_INTEGERS = (-7, -2, -1, 0, 1, 2, 3, 10, 2**31 - 1, -(2**31))
_FLOATS = (-2.5, -1.0, 0.0, 0.5, 3.0, 1e30)


def _integer(draw: random.Random, made: list[Any]) -> Any:
    x, y = draw.choice(made), draw.choice(made)
    n = np.int32(draw.choice(_INTEGERS))
    rules: list[Callable[[], Any]] = [
        lambda: x + y,
        lambda: x - n,
        lambda: x * n,
        lambda: -x,
        lambda: lax.max(x, n),
        lambda: lax.min(x, y),
        lambda: lax.clamp(np.int32(-5), x, np.int32(5)),
        lambda: lax.abs(x),
        lambda: lax.sign(x),
        lambda: lax.div(lax.clamp(np.int32(-9), x, np.int32(9)), np.int32(2)),
        lambda: lax.concatenate([x[None], y[None], x[None] + 1], 0)[1:][draw.choice((0, 1))],
        lambda: lax.select(x < y, x, n),
        lambda: lax.convert_element_type(lax.convert_element_type(x, np.int8), np.int32),
        lambda: lax.convert_element_type(
            lax.ceil(lax.log(lax.convert_element_type(lax.max(x, np.int32(1)), np.float32))),
            np.int32,
        ),
        lambda: lax.convert_element_type(x > y, np.int32),
        lambda: lax.reduce_sum_p.bind(
            lax.broadcast_in_dim(lax.clamp(n, x, y), (3,), ()), axes=(0,), out_sharding=None
        ),
    ]
    return draw.choice(rules)()


def _float(draw: random.Random, made: list[Any]) -> Any:
    x, y = draw.choice(made), draw.choice(made)
    c = np.float32(draw.choice(_FLOATS))
    rules: list[Callable[[], Any]] = [
        lambda: x + c,
        lambda: x - y,
        lambda: x * c,
        lambda: lax.max(x, c),
        lambda: lax.min(x, y),
        lambda: lax.clamp(np.float32(-4), x, np.float32(4)),
        lambda: x / np.float32(3),
        lambda: lax.floor(x),
        lambda: x * lax.sign(x),
        lambda: lax.abs(x),
        lambda: lax.log(lax.abs(x)),
        lambda: lax.convert_element_type(x, np.float16).astype(np.float32),
    ]
    return draw.choice(rules)()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["integers", "floats"])
@pytest.mark.drawn(30)
def test_bounds_hold(kind: str, seed: int) -> None:
    draw = random.Random(f"{kind} {seed}")
    facts: list[bounds.Fact] = []

    def program(x: Any, y: Any) -> list[Any]:
        made = [x, y]
        for _ in range(12):
            made.append((_integer if kind == "integers" else _float)(draw, made))
        facts.extend(bounds.fact_of(v) for v in made)
        apart = [bounds.distance(x, v) for v in made] if kind == "integers" else []
        found.extend(apart)
        return made

    found: list[int | None] = []
    type_ = np.int32 if kind == "integers" else np.float32
    closed = jax.make_jaxpr(program)(type_(0), type_(0))
    numbers = _INTEGERS if kind == "integers" else (*_FLOATS, np.inf, -np.inf, np.nan)
    for x in numbers:
        for y in numbers:
            values = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, type_(x), type_(y))
            for value, fact in zip(values, facts, strict=True):
                low, high = fact.ends
                assert np.isnan(value) or low <= float(value) <= high
                number = fact.equals.number if fact.equals is not None else None
                assert number is None or number == value
            for value, d in zip(values, found, strict=False):
                # Integers wrap, and so do their differences.
                assert d is None or np.int64(value) - np.int64(x) - d in (0, 2**32, -(2**32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bounds_of_long_sums(dtype: Any) -> None:
    """They hold for any order of the terms, also one after the other."""
    facts: list[bounds.Fact] = []

    def program(x: Any) -> Any:
        total = lax.reduce_sum(lax.clamp(dtype(0.1), x, dtype(0.1)), axes=(0,))
        facts.append(bounds.fact_of(total))
        return total

    for count in (4, 1000, 1 << 18):
        jax.make_jaxpr(program)(jax.ShapeDtypeStruct((count,), dtype))
        low, high = facts[-1].ends
        assert low <= float(np.full(count, 0.1, dtype).cumsum()[-1]) <= high
        assert high < 0.1001 * count or count * float(np.finfo(dtype).eps) > 1e-3


def test_differences_do_not_depend_on_data() -> None:
    found: list[Any] = []

    def program(i: Any) -> Any:
        ends = lax.concatenate([i[None] - 1, (i + i)[None]], 0)
        found.append(bounds.distance(ends[0], ends[1] - i))
        found.append(bounds.distance(i, i * 2))
        found.append(bounds.distance(lax.abs(i), lax.abs(i) + 3))
        found.append(bounds.known(lax.min(lax.max(i, np.int32(7)), np.int32(7))))
        found.append(bounds.known(i))
        return i

    jax.make_jaxpr(program)(np.int32(0))
    assert found == [1, None, None, 7, None]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1.5, -2.0], (-2.0, 1.5)),
        ([1.5, np.nan], (-np.inf, np.inf)),
        ([np.nan], (-np.inf, np.inf)),
        ([np.inf, 0.0], (0.0, np.inf)),
        ([], (-np.inf, np.inf)),
        ([1j], (-np.inf, np.inf)),
        ([True, False], (0, 1)),
        (list(range(-5, 20)), (-5, 19)),
    ],
)
def test_bounds_of_constants(values: list[Any], ends: tuple[float, float]) -> None:
    assert bounds.fact_of(np.asarray(values)).ends == ends


def test_differences_of_open_sizes() -> None:
    found: list[Any] = []

    def program(x: Any) -> Any:
        n = jax.numpy.asarray(x.shape[0])
        found.append(bounds.distance(n - 2, n))
        found.append(bounds.distance(np.int32(0), n))
        return x

    b = jax.export.symbolic_shape("b")
    jax.make_jaxpr(program)(jax.ShapeDtypeStruct(b, np.float32))
    assert list(map(str, found)) == ["2", "b"]


@pytest.mark.parametrize(
    ("dtypes", "size"),
    [
        ([np.int32], "b"),
        ([np.int64], "b"),
        ([np.int64, np.float32], "b"),
        ([np.int16], "None"),
        ([np.int16, np.int32], "None"),
        ([np.int32, np.float16], "None"),
        ([np.int32, np.float16, np.float32], "None"),
    ],
)
def test_a_size_in_a_type_that_cannot_hold_it(dtypes: list[Any], size: str) -> None:
    """A narrow type wraps a size around or rounds it."""
    found: list[Any] = []

    def program(x: Any) -> Any:
        n = jax.numpy.asarray(x.shape[0])
        for dtype in dtypes:
            n = lax.convert_element_type(n, dtype)
        found.append(bounds.size_of(n))
        return x

    with jax.enable_x64(True):
        jax.make_jaxpr(program)(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), np.float32))
    assert list(map(str, found)) == [size]


@pytest.mark.parametrize(
    ("step", "ends"),
    [(2, (3, np.inf)), (0, (3, 3)), (-2, (-np.inf, 3))],
    ids=["up", "stays", "down"],
)
def test_bounds_of_a_counter(step: int, ends: tuple[float, float]) -> None:
    """Over all steps, those beyond the end of its loop among them."""
    assert bounds.Fact.of(bounds.line(3, step)).ends == ends


def test_what_is_given_of_a_loop() -> None:
    found: list[Any] = []

    def program(i: Any, j: Any) -> Any:
        given = bounds.OuterFacts([i, j], [bounds.Fact.between(0, 4), None])
        found.append(bounds.fact_of(i * 2 + 1, [given]).ends)
        found.append(given.asked)
        found.append(bounds.is_whole(bounds.fact_of(j + 1, [given]).ends[0], np.int32))
        found.append(given.asked)
        return i

    jax.make_jaxpr(program)(np.int32(0), np.int32(0))
    assert found == [(1, 9), False, True, True]
