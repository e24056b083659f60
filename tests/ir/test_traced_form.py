"""Programs that trace alike have one form, and others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from invert._private.jax import eval_closed, open_jaxpr
from invert.ir.match import equivalent
from invert.ir.traced_form import difference, normal, of_either_setting

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
N = np.arange(3, dtype=np.int32)


def _same(f: Callable[..., Any], g: Callable[..., Any], *args: Any) -> bool:
    return difference(jax.make_jaxpr(f)(*args), jax.make_jaxpr(g)(*args)) is None


@pytest.mark.parametrize(
    ("f", "g", "same"),
    [
        # A reshape that adds an axis, and a broadcast of that, are one broadcast.
        (
            lambda x: lax.broadcast_in_dim(x.reshape(2, 1, 3), (2, 4, 3), (0, 1, 2)),
            lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)),
            True,
        ),
        (
            lambda x: lax.broadcast_in_dim(x.reshape(2, 1, 3), (2, 2, 3), (0, 1, 2)),
            lambda x: lax.broadcast_in_dim(x, (2, 2, 3), (1, 2)),
            False,
        ),
        # An axis that is removed and added elsewhere.
        (
            lambda x: x.reshape(2, 3, 1).squeeze(2).reshape(1, 2, 3),
            lambda x: lax.broadcast_in_dim(x, (1, 2, 3), (1, 2)),
            True,
        ),
        (lambda x: x.reshape(3, 2), lambda x: x.T, False),
        (lambda x: x[:], lambda x: x, True),
        (lambda x: x[:1], lambda x: x, False),
        (lambda x: lax.slice(x, (0, 0), (2, 3), (1, 1)), lambda x: x, True),
        (lambda x: x.astype(np.float32), lambda x: x, True),
        (lambda x: x.astype(np.float16), lambda x: x, False),
        # Sums with zero are kept: they turn -0.0 into 0.0.
        (lambda x: x + 0.0, lambda x: x, False),
        (lambda x: x + np.float32(1), lambda x: x + 1.0, True),
        (lambda x: jnp.where(x > 0, x, 0), lambda x: lax.select(x > 0, x, jnp.zeros((2, 3))), True),
        (lambda x: jnp.where(x > 0, x, 0), lambda x: jnp.where(x > 0, 0, x), False),
        (jax.nn.relu, lambda x: jnp.maximum(x, 0), False),
        (lambda x: jax.jit(jnp.sin)(x), jnp.sin, False),
    ],
)  # fmt: skip
def test_pairs(f: Callable[..., Any], g: Callable[..., Any], same: bool) -> None:
    assert _same(f, g, X) is same


def test_sums_of_indices_with_zero_are_the_indices() -> None:
    assert _same(lambda n: n + 0, lambda n: n, N)
    assert _same(lambda n: n * 1, lambda n: n, N)
    assert not _same(lambda n: n * 0, lambda n: n, N)
    # The sum has another shape than its operand.
    assert not _same(lambda n: n + np.zeros(3, np.int32), lambda n: n, N[0])


def test_functions_with_other_derivatives_differ() -> None:
    def with_rule(scale: float) -> Callable[..., Any]:
        @jax.custom_jvp
        def f(x: jax.Array) -> jax.Array:
            return jnp.sin(x)

        f.defjvp(lambda xs, ts: (jnp.sin(xs[0]), scale * ts[0]))
        return f

    assert _same(with_rule(2.0), with_rule(2.0), X)
    assert not _same(with_rule(2.0), with_rule(3.0), X)


def test_rows_of_an_input_that_a_scan_stacks_again_are_the_input() -> None:
    # `lax.scan` does not stack `row`, but it does `row + 0`, whose normal form is `row`.
    def stacked(n: Any) -> Any:
        return lax.scan(lambda c, row: (c * row, (row + 0, c, row + 0)), 1, n, reverse=True)

    def forwarded(n: Any) -> Any:
        product, before = lax.scan(lambda c, row: (c * row, c), 1, n, reverse=True)
        return product, (n, before, n)

    def other(n: Any) -> Any:
        product, before = lax.scan(lambda c, row: (c * row, c), 1, n, reverse=True)
        return product, (n[::-1], before, n)

    assert _same(stacked, forwarded, N)
    assert not _same(stacked, other, N)


def test_a_carry_that_a_scan_does_not_change_is_closed_over() -> None:
    def carried(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(c: Any, row: jax.Array) -> Any:
            h, w = c
            return (h * w + row, w), h

        return lax.scan(step, (jnp.zeros(3), w), x)[1]

    def closed(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda h, row: (h * w + row, h), jnp.zeros(3), x)[1]

    def changed(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(c: Any, row: jax.Array) -> Any:
            h, w = c
            return (h * w + row, w + 1), h

        return lax.scan(step, (jnp.zeros(3), w), x)[1]

    assert _same(carried, closed, X, X[0])
    assert not _same(changed, closed, X, X[0])


def test_strides_of_one_are_none() -> None:
    def strided(x: jax.Array, strides: tuple[int, int] | None) -> jax.Array:
        return lax.slice_p.bind(x, start_indices=(0, 0), limit_indices=(1, 3), strides=strides)

    assert _same(lambda x: strided(x, (1, 1)), lambda x: strided(x, None), X)
    assert not _same(lambda x: strided(x, (1, 2)), lambda x: strided(x, None), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.broadcast_in_dim(x.squeeze(1), (4, 2, 3), (1, 2)),
        lambda x: lax.broadcast_in_dim(x.squeeze(1), (2, 3, 4), (0, 1)),
        lambda x: lax.broadcast_in_dim(x.squeeze(1), (2, 4, 3), (0, 2)),
        lambda x: lax.broadcast_in_dim(x.squeeze(1), (2, 5, 4, 3), (0, 3)),
        lambda x: x.squeeze(1)[None] + jnp.ones((4, 2, 3)),
    ],
)
def test_the_form_computes_the_same(f: Callable[..., Any]) -> None:
    x = X.reshape(2, 1, 3)
    (result,) = eval_closed(normal(jax.make_jaxpr(f)(x)), [x])
    np.testing.assert_array_equal(result, f(x))


def test_indices_are_compared_in_32_bits_where_an_axis_is_small() -> None:
    def triangle(dtype: type, size: int, k: int = 0) -> Callable[[], jax.Array]:
        def run() -> jax.Array:
            i = lax.iota(dtype, size) + dtype(k)
            return i > lax.iota(dtype, size)

        return run

    def types(f: Callable[[], jax.Array]) -> set[str]:
        eqns = open_jaxpr(normal(jax.make_jaxpr(f)())).eqns
        return {str(v.aval.dtype) for e in eqns for v in e.outvars}

    with jax.enable_x64(True):
        assert _same(triangle(np.int64, 5, 1), triangle(np.int32, 5, 1))
        assert "int64" not in types(triangle(np.int64, 5, 1))
        # Numbers of 32 bits would overflow.
        assert "int64" in types(triangle(np.int64, 2**31, 1))
        assert "int64" in types(triangle(np.int64, 5, 2**31))


@pytest.mark.parametrize(
    ("f", "same"),
    [
        (jnp.tril, True),
        (lambda x: jnp.where(x > 0, x, 2) * 3, True),
        (lambda x: x * jnp.arange(3.0), False),
        (lambda x: jnp.argmax(x, axis=1), False),
        (lambda x: jnp.sum(x > 0), False),
    ],
)  # fmt: skip
def test_traces_under_both_settings_of_x64_have_one_form(f: Callable[..., Any], same: bool) -> None:
    traced = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            traced.append(jax.make_jaxpr(f)(X))
    assert equivalent(*map(of_either_setting, traced)) is same
    # What has one form then has one normal form, under either setting.
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert (difference(*traced) is None) is same


def test_shardings_count_where_they_constrain() -> None:
    explicit = AbstractMesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    auto = AbstractMesh((2,), ("i",), axis_types=(AxisType.Auto,))

    def placed(mesh: AbstractMesh, *spec: Any) -> Callable[..., Any]:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2), out_sharding=sharding)

    def plain(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, (4, 2, 3), (1, 2))

    with jax.sharding.use_abstract_mesh(explicit):
        assert _same(placed(explicit, "i"), placed(explicit, "i"), X)
        assert not _same(placed(explicit, "i"), placed(explicit, None, "i"), X)
        assert not _same(placed(explicit, "i"), plain, X)
    with jax.sharding.use_abstract_mesh(auto):
        constrained = NamedSharding(auto, PartitionSpec("i"))
        assert not _same(lambda x: lax.with_sharding_constraint(x, constrained), lambda x: x, X)
