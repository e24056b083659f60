"""Programs that lower alike have one form."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert.ir.lowered_form import lowered_form
from invert.ir.match import difference


def test_a_broadcast_of_a_broadcast_is_one() -> None:
    def twice(x: jax.Array) -> jax.Array:
        rows = lax.broadcast_in_dim(x, (1, 2), (1,))
        return lax.broadcast_in_dim(rows, (3, 1, 2, 4), (1, 2)) + jnp.zeros(4)

    def once(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, (3, 1, 2, 4), (2,)) + jnp.zeros(4)

    def other(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(x, (3, 1, 4, 2), (3,)).swapaxes(2, 3) + jnp.zeros(4)

    forms = [lowered_form(jax.make_jaxpr(f)(np.ones(2, np.float32))) for f in (twice, once, other)]
    assert difference(forms[0], forms[1]) is None
    assert difference(forms[0], forms[2]) is not None


def _form(f: Callable[..., Any], *args: Any) -> Any:
    return lowered_form(jax.make_jaxpr(f)(*args))


def _same(f: Callable[..., Any], g: Callable[..., Any], *args: Any) -> bool:
    return difference(_form(f, *args), _form(g, *args)) is None


X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def test_calls_are_inlined_but_not_those_with_rules() -> None:
    @jax.custom_jvp
    def ruled(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    ruled.defjvp(lambda xs, ts: (jnp.sin(xs[0]), ts[0]))
    assert _same(jax.jit(lambda x: jnp.sin(x) + 1), lambda x: jnp.sin(x) + 1, X)
    assert not _same(ruled, jnp.sin, X)
    assert not _same(jax.checkpoint(jnp.sin), jnp.sin, X)


def test_operands_that_operations_broadcast_have_one_form() -> None:
    def filled(x: jax.Array, y: jax.Array) -> jax.Array:
        wide = jax.jit(lambda y: lax.broadcast_in_dim(y, x.shape, ()))(y)
        return lax.mul(wide, x) + lax.broadcast_in_dim(x[:, :1], x.shape, (0, 1))

    def plain(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.mul(y, x) + x[:, :1]

    def both(x: jax.Array, y: jax.Array) -> jax.Array:
        wide = lax.broadcast_in_dim(y, x.shape, ())
        return wide * wide + x[:, :1]

    y = np.float32(2)
    assert _same(filled, plain, X, y)
    assert _same(both, lambda x, y: lax.broadcast_in_dim(y, x.shape, ()) * y + x[:, :1], X, y)
    assert not _same(filled, lambda x, y: lax.mul(y, x) + x[:1], X, y)

    def ones(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.mul(y, lax.full_like(x, 1)) + lax.broadcast_in_dim(y, x.shape, ())

    def number(x: jax.Array, y: jax.Array) -> jax.Array:
        wide = lax.broadcast_in_dim(y, x.shape, ())
        return lax.mul(wide, np.float32(1)) + wide

    assert _same(ones, number, X, y)
    assert not _same(ones, lambda x, y: number(x, y) + 1, X, y)


def test_slices_and_updates_of_whole_arrays_are_these() -> None:
    def part(x: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_slice(x, (i, 0), (2, 3))

    def update(x: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, jnp.sin(x), (i, 0))

    def less(x: jax.Array, i: jax.Array) -> jax.Array:
        return lax.dynamic_slice(x, (i, 0), (1, 3))

    assert _same(part, lambda x, i: x, X, 1)
    assert _same(update, lambda x, i: jnp.sin(x), X, 1)
    assert [e.primitive.name for e in _form(less, X, 1).jaxpr.eqns][-1] == "dynamic_slice"


def test_words_of_keys_and_keys_of_words_cancel() -> None:
    def there_and_back(x: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.wrap_key_data(x, impl="threefry2x32"))

    def back_and_there(key: jax.Array) -> jax.Array:
        return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")

    assert not _form(there_and_back, np.zeros(2, np.uint32)).jaxpr.eqns
    assert not _form(back_and_there, jax.random.key(0)).jaxpr.eqns
    # Keys of another kind are others, although they have as many words.
    other = _form(
        lambda key: jax.random.wrap_key_data(jax.random.key_data(key), impl="rbg"),
        jax.random.key(0, impl="unsafe_rbg"),
    )
    assert len(other.jaxpr.eqns) == 2


def test_barriers_hold_values_in_order_of_use() -> None:
    def first(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y, _ = lax.optimization_barrier((x, y, x * y))
        return jnp.sin(x) + jnp.cos(y)

    def second(x: jax.Array, y: jax.Array) -> jax.Array:
        y, x = lax.optimization_barrier((y, x))
        return jnp.sin(x) + jnp.cos(y)

    def without(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sin(x) + jnp.cos(y)

    assert _same(first, second, X, X)
    assert not _same(first, without, X, X)


def _loop(order: Sequence[int], *, steps: Sequence[Any] = (1, 2.0, 3.0)) -> Callable[..., Any]:
    """A loop whose carries are in an order; the second and third are alike but for their steps."""

    def run(x: jax.Array) -> jax.Array:
        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            values = dict(zip(order, carry, strict=True))
            new = {0: values[0] + steps[0], 1: values[1] * steps[1], 2: values[2] * steps[2]}
            return tuple(new[i] for i in order)

        def goes_on(carry: tuple[Any, ...]) -> jax.Array:
            return carry[order.index(0)] < 5

        start = {0: 0, 1: x, 2: x}
        end = lax.while_loop(goes_on, body, tuple(start[i] for i in order))
        return end[order.index(1)] - end[order.index(2)]

    return run


def test_carries_are_ordered_by_what_they_compute() -> None:
    forms = [_loop(order) for order in itertools.permutations(range(3))]
    assert all(_same(forms[0], other, X) for other in forms[1:])
    assert not _same(forms[0], _loop((0, 1, 2), steps=(1, 3.0, 2.0)), X)


def test_equal_carries_are_one() -> None:
    def twice(x: jax.Array) -> jax.Array:
        a, b, _ = lax.while_loop(
            lambda c: c[2] < 5, lambda c: (c[0] * 2, c[1] * 2, c[2] + 1), (x, x, 0)
        )
        return a + b

    def once(x: jax.Array) -> jax.Array:
        a, _ = lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 2, c[1] + 1), (x, 0))
        return a + a

    assert _same(twice, once, X)


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("tests", [False, True])
def test_an_unchanged_carry_is_closed_over(kept: int, tests: bool) -> None:
    def goes_on(n: Any, y: Any) -> Any:
        return (n < 5) & (y[0, 0] > 0) if tests else n < 5

    @jax.jit
    def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) * y, (y, x)[kept]

    def carries(x: jax.Array, y: jax.Array) -> Any:
        end = lax.while_loop(
            lambda c: goes_on(c[0], c[2]), lambda c: (c[0] + 1, *step(*c[1:])), (0, x, y)
        )
        return end[1:]

    def closes_over(x: jax.Array, y: jax.Array) -> Any:
        end = lax.while_loop(
            lambda c: goes_on(c[0], y), lambda c: (c[0] + 1, step(c[1], y)[0]), (0, x)
        )
        return end[1], y

    assert _same(carries, closes_over, X, X) == (kept == 0)


@pytest.mark.parametrize(
    ("steps", "dtype", "is_exact"),
    [
        (30, np.int32, True),
        (30, np.int8, True),
        (30, np.float16, True),
        (30, np.complex64, True),
        (2**24 + 1, np.float32, False),
        (70_000, np.float16, False),
        (300, np.int8, False),
    ],
)
def test_counts_of_steps_are_numbers(steps: int, dtype: Any, is_exact: bool) -> None:
    def loop(a: Any) -> Any:
        start = a, np.int32(0)
        return lax.while_loop(lambda s: s[1] < steps, lambda s: (jnp.cos(s[0]), s[1] + 1), start)

    def counts(a: Any) -> Any:
        x, n = loop(a)
        return x, lax.convert_element_type(n, dtype)

    def knows(a: Any, count: int = steps) -> Any:
        return loop(a)[0], np.asarray(count).astype(dtype)[()]

    with np.errstate(over="ignore"):
        assert _same(counts, knows, X) == is_exact
        assert not _same(counts, functools.partial(knows, count=steps + 1), X)
