"""Gradients in `jax.export` artifacts, and the bounds of gathers that they reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert.gradients import bounds, settle

X = jnp.arange(5.0) + 1
OUT_OF_BOUNDS = jnp.array([0, 7, -9])


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x * 2


clipped.defvjp(lambda x: (clipped(x), None), lambda _, dy: (jnp.clip(dy, -0.1, 0.1),))


@jax.custom_jvp
def seven(x: Any) -> Any:
    return x * 2


seven.defjvp(lambda x, t: (seven(*x), t[0] * 7.0))


@jax.custom_vjp
def length(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x**2))


# As in the documentation of JAX: the rule reads the result, whose derivative is the rule again.
length.defvjp(
    lambda x: (length(x), (x, length(x))),
    lambda kept, dy: (dy * kept[0] / jnp.maximum(kept[1], 1e-3),),
)


def stored(f: Callable[..., Any], *args: Any, order: int = 1) -> bytes:
    return bytes(jax.export.export(jax.jit(f))(*args).serialize(vjp_order=order))


def slope(f: Callable[..., Any], *args: Any) -> Any:
    def loss(x: Any) -> Any:
        results = jax.tree.leaves(f(x, *args[1:]))
        return sum(jnp.sin(r).sum() for r in results if jnp.issubdtype(r.dtype, jnp.floating))

    return jax.grad(loss)(args[0])


def cancelling(x: Any) -> Any:
    """Two terms that cancel without the stops; stopping one value alone leaves no gradient."""
    gain = lax.stop_gradient(jnp.cumsum(x))
    ratio = jnp.exp(x - lax.stop_gradient(x))
    return (ratio * gain).mean() + ((x - (gain + lax.stop_gradient(x))) ** 2).mean()


def policy_and_value(w: Any, x: Any, reward: Any) -> Any:
    """The loss of an actor and a critic, which share a layer."""
    h = jnp.tanh(x @ w)
    scores, value = h[:, :3], h[:, 3]
    after = jnp.concatenate([value[1:], jnp.zeros(1)])
    _, gain = lax.scan(
        lambda a, d: (d + 0.9 * a, d + 0.9 * a), 0.0, reward + after - value, reverse=True
    )
    gain = lax.stop_gradient(gain)
    goal = gain + lax.stop_gradient(value)
    gain = (gain - gain.mean()) / (gain.std() + 1e-3)
    chosen = jax.nn.log_softmax(scores).max(axis=-1)
    ratio = jnp.exp(chosen - 0.9 * lax.stop_gradient(chosen))
    gained = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain)
    return 0.5 * jnp.mean((value - goal) ** 2) - gained.mean()


def stacked(**options: Any) -> Callable[..., Any]:
    """Layers in a loop that recomputes each, whose weights are the first arguments of a layer."""

    def layer(w: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ w)

    recomputed = jax.checkpoint(layer, **options)
    return lambda w, x: lax.scan(lambda x, w: (recomputed(w, x), None), x, w)[0]


def blocks(stop: Callable[[Any], Any] = lambda x: x, **options: Any) -> Callable[..., Any]:
    """Blocks that are computed again, whose values are far from each other after roundings."""

    def block(x: Any, w: Any) -> Any:
        return x + jnp.tanh(jnp.sin(x @ w) @ stop(w))

    recomputed = jax.checkpoint(block, **options)

    def run(x: Any, w: Any) -> Any:
        for k in w:
            x = recomputed(x, k)
        return x

    return run


def flagged(x: Any, y: Any) -> Any:
    """Products with goals that a flag stops, or not; both are in the program."""

    def goal(x: Any, stops: bool) -> Any:
        return lax.select(stops, lax.stop_gradient(x), x)

    return jnp.fmin(x * goal(y, True), jnp.tanh(x) * goal(y, True)) + jnp.sin(goal(x, False)) * y


WEIGHTS, ROWS = (np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32) for n in (4, 5))
LAYERS = np.random.default_rng(1).normal(size=(3, 4, 4)).astype(np.float32)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "custom_vjp": (lambda x: clipped(x) + jnp.sin(x), (X,), "kept as custom_vjp"),
    "custom_jvp": (seven, (X,), "kept as custom_jvp"),
    "stop_gradient": (lambda x: x * lax.stop_gradient(jnp.sin(x)), (X,), "put back"),
    "stops together": (cancelling, (X,), "put back"),
    "stops by a flag": (flagged, (X, X[::-1]), "put back"),
    "stops where": (
        lambda x, y: (
            jnp.where(y > 2, x, lax.stop_gradient(x)) * jnp.sin(x)
            + jnp.where(y > 4, x, lax.stop_gradient(x)) * jax.nn.softmax(x)
        ),
        (X, X[::-1]),
        "put back",
    ),
    "stops of a scan": (policy_and_value, (WEIGHTS, ROWS, ROWS[:, 0]), "put back"),
    # Of `nextafter`, which has none in some versions of JAX, in an inner function.
    "recomputed": (stacked(), (LAYERS, ROWS), "with checkpoints put back"),
    "products kept": (
        stacked(policy=jax.checkpoint_policies.dots_saveable, prevent_cse=False),
        (LAYERS, ROWS),
        "with checkpoints put back",
    ),
    "blocks recomputed": (blocks(), (ROWS, LAYERS), "autodiff, which computes nothing again"),
    "products of blocks kept": (
        blocks(policy=jax.checkpoint_policies.dots_saveable),
        (ROWS, LAYERS),
        "autodiff, which computes nothing again",
    ),
    "stops in blocks recomputed": (blocks(lax.stop_gradient), (ROWS, LAYERS), "put back"),
    "recomputed after a lookup": (
        lambda x, i, w: stacked(prevent_cse=False)(w, x[i]),
        (ROWS, OUT_OF_BOUNDS, LAYERS),
        "with checkpoints put back, where gathers promise bounds",
    ),
    "nothing recomputed": (
        stacked(policy=jax.checkpoint_policies.everything_saveable, prevent_cse=False),
        (LAYERS, ROWS),
        "agrees with autodiff",
    ),
    "no derivative": (
        lambda x: jax.random.truncated_normal(jax.random.key(0), -x, 2.0),
        (X,),
        "agrees with autodiff",
    ),
    "integer_result": (lambda x, i: (seven(x), i + 1), (X, OUT_OF_BOUNDS), "kept as"),
    "key": (lambda x, k: seven(x) * jax.random.uniform(k, (5,)), (X, jax.random.key(0)), "kept as"),
    "promises": (lambda x, i: x[i], (X, OUT_OF_BOUNDS), "where gathers promise bounds"),
    "clips": (lambda x, i: x.at[i].get(mode="clip"), (X, OUT_OF_BOUNDS), "agrees with autodiff"),
    "both": (
        lambda x, i: x.at[i].get(mode="clip") * x[i],
        (X, OUT_OF_BOUNDS),
        "where some gathers promise bounds",
    ),
    "in_a_loop": (
        lambda x, i: lax.map(
            lambda k: x[jnp.stack([k, 2 * k])] * x.at[k[None]].get(mode="clip"), i
        ),
        (X, OUT_OF_BOUNDS),
        "where some gathers promise bounds",
    ),
    "beside slices": (
        lambda x, i: x[i] * jax.vmap(lambda k: lax.dynamic_index_in_dim(x, k, keepdims=False))(i),
        (X, OUT_OF_BOUNDS),
        "autodiff, where gathers promise bounds",
    ),
    "stopped": (
        lambda x, i: x[i] * lax.stop_gradient(jnp.sin(x[i])),
        (X, OUT_OF_BOUNDS),
        "put back",
    ),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_vjp_of_an_artifact(name: str, order: int) -> None:
    f, args, message = PROGRAMS[name]
    module = invert.from_exported(stored(f, *args, order=order))
    (told,) = [m for m in module.report.gradients if not m.startswith("second derivative")]
    assert message in told
    np.testing.assert_allclose(slope(module, *args), slope(f, *args), rtol=1e-5, atol=1e-6)


def looping(layers: Any) -> Callable[..., Any]:
    """Layers in a loop over constant arrays."""
    return lambda x: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0]


def filtered(a: Any, b: Any) -> Any:
    """The results of a scan whose steps invert matrices, at times none."""

    def joined(one: Any, two: Any) -> Any:
        inverse = jnp.linalg.inv(jnp.eye(4) + one[1] @ two[1].T)
        return two[0] @ inverse @ one[0], one[1] + two[1]

    return lax.associative_scan(jax.vmap(joined), (a, b))


# Programs whose derivatives are autodiff of the program as JAX lowers it.
PLAIN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a scan of inverses": (filtered, (LAYERS, LAYERS)),
    "an index of each row": (
        jax.vmap(lambda x, i: x[i] * x[i - 1]),
        (ROWS, np.array([0, -1, 2, 9, 1], np.int32)),
    ),
    "an index of each row of a matrix": (
        jax.vmap(jax.vmap(lambda x, i: jnp.sin(x)[i])),
        (LAYERS, np.arange(12, dtype=np.int32).reshape(3, 4) % 5),
    ),
    "weights of one": (lambda x: jnp.mean(-x * jnp.cos(x) * jnp.ones_like(x)), (X,)),
    "one index of all rows": (lambda x, i: x[:, i], (ROWS, np.int32(2))),
    # The derivative reads arrays of JAX again and stores rows of NumPy's.
    "a loop over arrays": (looping(jnp.asarray(LAYERS)), (ROWS,)),
    "a loop over arrays of NumPy": (looping(LAYERS), (ROWS,)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_autodiff_of_an_artifact_is_proved(name: str) -> None:
    f, args = PLAIN[name]
    module = invert.from_exported(stored(f, *args))
    (told,) = module.report.gradients
    assert told.endswith(": agrees with autodiff")
    np.testing.assert_allclose(slope(module, *args), slope(f, *args), rtol=1e-5, atol=1e-6)


RuleOfTwo = Callable[[Any, Any, Any], Any]


def with_rule(rule: RuleOfTwo) -> Callable[[Any, Any], Any]:
    """The identity of `x` with a gradient by `rule(x, n, dy)`, for a number `n`."""

    @jax.custom_vjp
    def itself(x: Any, n: Any) -> Any:
        return x

    def back(kept: Any, dy: Any) -> Any:
        x, n = kept
        return rule(x, n, dy), np.zeros(n.shape, jax.dtypes.float0)

    itself.defvjp(lambda x, n: (x, (x, n)), back)
    return itself


def pulled(f: Callable[[Any, Any], Any], x: Any, n: Any, dy: Any) -> Any:
    return jax.vjp(lambda x: f(x, n), x)[1](dy)[0]


TABLE = jnp.where(jnp.arange(150) < 110, 1.0, 0.5)
DECAY = np.array([1, 2, 3, 0, 1], np.float32) * 1e-6
BOUNDS = np.array([50, 60, 70, 80, 90], np.float32)
# Each with numbers and cotangents where it is not the identity. Random numbers do not find them.
FAR_RULES: dict[str, tuple[RuleOfTwo, Any, int, Any]] = {
    "steps": (lambda x, n, dy: dy * jnp.where(n > 1000, 0.1, 1.0), X, 2000, X),
    "number": (lambda x, n, dy: jnp.where(n == 777, 0.0, dy), X, 777, X),
    "bounds": (lambda x, n, dy: jnp.clip(dy, -BOUNDS, BOUNDS), X, 0, 1e3 * X),
    "bounds of a call": (
        lambda x, n, dy: jax.jit(lambda dy: jnp.clip(dy, -BOUNDS, BOUNDS))(dy),
        X,
        0,
        1e3 * X,
    ),
    "large": (lambda x, n, dy: jnp.where(jnp.abs(x) > 1e6, 0.0, dy), 1e7 * X, 0, X),
    "product": (lambda x, n, dy: jnp.where(1e-4 * x > 3, 0.0, dy), 1e6 * X, 0, X),
    "norm": (lambda x, n, dy: jnp.where((dy * dy).sum() > 1e6, 0 * dy, dy), X, 0, 1e4 * X),
    "sign": (lambda x, n, dy: dy * (1.5 + 0.5 * jnp.sign(n - 1000)), X, 2000, X),
    "quotient": (lambda x, n, dy: dy * 0.5 ** (jnp.abs(n) // 1000), X, 2500, X),
    "bits": (lambda x, n, dy: dy * (1 + (jnp.abs(n) >> 10)), X, 2000, X),
    "cast": (lambda x, n, dy: dy / (1 + (1e-6 * jnp.abs(x).sum()).astype(int)), 1e7 * X, 0, X),
    "floor": (lambda x, n, dy: dy / (1 + jnp.floor(1e-6 * jnp.abs(x).sum())), 1e7 * X, 0, X),
    "table": (lambda x, n, dy: dy * TABLE.at[n].get(mode="promise_in_bounds"), X, 120, X),
    "factor": (lambda x, n, dy: 0.9999 * dy, X, 0, X),
    "class": (lambda x, n, dy: dy * (1 - jax.nn.one_hot(n, 9)[7]), X, 7, X),
    "decay": (lambda x, n, dy: dy + DECAY * x, X, 0, 0 * X),
    "infinite": (lambda x, n, dy: jnp.where(jnp.isinf(dy), 0.0, dy), X, 0, X.at[1].set(jnp.inf)),
    "zero": (lambda x, n, dy: jnp.where(dy == 0, 1e-3, dy), X, 0, X.at[1].set(0)),
    "rounding": (lambda x, n, dy: jnp.round(4096 * dy) / 4096, X, 0, 1.1e-3 * X),
    "in a loop": (
        lambda x, n, dy: lax.fori_loop(
            0, 3, lambda _, c: jnp.where((c * c).sum() > 1e6, 0 * c, c), dy
        ),
        X,
        0,
        1e4 * X,
    ),
    "bounds of each step": (
        lambda x, n, dy: lax.scan(
            lambda c, b: (jnp.where(jnp.abs(c) > b.sum(), 0, c), None), dy, BOUNDS[:, None]
        )[0],
        X,
        0,
        1e3 * X,
    ),
    "number in a loop": (
        lambda x, n, dy: lax.fori_loop(0, 3, lambda _, c: jnp.where(n > 1000, 0.9 * c, c), dy),
        X,
        2000,
        X,
    ),
    "number carried by a loop": (
        lambda x, n, dy: lax.fori_loop(
            0, 3, lambda _, c: (jnp.where(c[1] > 1000, 0.9 * c[0], c[0]), c[1] + 1), (dy, n)
        )[0],
        X,
        2000,
        X,
    ),
    "bound carried by a loop": (
        lambda x, n, dy: lax.fori_loop(
            0, 2, lambda _, c: (jnp.where((c[0] ** 2).sum() > c[1], 0, c[0]), c[1]), (dy, 1e8)
        )[0],
        X,
        0,
        1e5 * X,
    ),
    "number of steps": (
        lambda x, n, dy: lax.fori_loop(0, n // 1000, lambda _, c: 0.5 * c, dy),
        X,
        2500,
        X,
    ),
    "zero in a loop": (
        lambda x, n, dy: lax.fori_loop(0, 2, lambda _, c: jnp.where(c == 0, 1e-3, c), dy),
        X,
        0,
        X.at[1].set(0),
    ),
    "rounding in a loop": (
        lambda x, n, dy: lax.fori_loop(0, 2, lambda _, c: jnp.round(4096 * c) / 4096, dy),
        X,
        0,
        1.1e-3 * X,
    ),
    "branch of a loop": (
        lambda x, n, dy: lax.fori_loop(
            0, 2, lambda _, c: lax.cond(n > 1000, lambda c: 0.5 * c, lambda c: c, c), dy
        ),
        X,
        2000,
        X,
    ),
}


@pytest.mark.parametrize("name", FAR_RULES)
def test_a_rule_that_differs_where_no_random_number_goes(name: str) -> None:
    rule, x, n, dy = FAR_RULES[name]
    f, number = with_rule(rule), jnp.int32(n)
    module = invert.from_exported(stored(f, X, number))
    assert "kept as" in module.report.gradients[0]
    found, wanted = (pulled(g, x, number, dy) for g in (module, f))
    assert not np.array_equal(wanted, dy)
    np.testing.assert_array_equal(found, wanted)


def test_a_rule_that_differs_at_zeros_behind_weights() -> None:
    """Where all arguments are zero, the weights stop the gradient that tells them apart."""

    @jax.custom_jvp
    def rectified(x: Any) -> Any:
        return jnp.maximum(x, 0)

    slopes = jnp.array([0.0, 0.25, 1.0])
    rectified.defjvp(lambda x, t: (rectified(*x), slopes[1 + jnp.sign(x[0]).astype(int)] * t[0]))

    def network(x: Any, w: Any, b: Any, v: Any) -> Any:
        return rectified(x @ w + b) @ v

    draw = np.random.default_rng(0).standard_normal
    x, w, b, v = (draw(s).astype(np.float32) for s in ((2, 5), (5, 6), (6,), (6, 3)))
    module = invert.from_exported(stored(network, x, w, b, v))
    assert "they differ" in module.report.gradients[0]
    x[0], b[:] = 0, 0
    for i in range(4):
        found, wanted = (
            jax.grad(lambda *args, f=f: f(*args).sum(), i)(x, w, b, v) for f in (module, network)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


LARGE_SIZES: dict[str, tuple[RuleOfTwo, int]] = {
    "quotient": (lambda x, n, dy: dy / jnp.maximum(1, x.shape[0] // 64), 200),
    "threshold": (lambda x, n, dy: dy * jnp.where(jnp.asarray(x.shape[0]) > 100, 0.5, 1), 200),
    "large quotient": (lambda x, n, dy: dy / jnp.maximum(1, x.shape[0] // 2000), 4500),
    "quotient beyond all samples": (
        lambda x, n, dy: dy / jnp.maximum(1, x.shape[0] // 100_000),
        250_000,
    ),
    "slice": (lambda x, n, dy: dy.at[: x.shape[0] // 3000].set(0), 6001),
}


@pytest.mark.parametrize("name", LARGE_SIZES)
def test_a_rule_that_differs_at_large_open_sizes(name: str) -> None:
    rule, size = LARGE_SIZES[name]
    f, number, x = with_rule(rule), jnp.int32(0), jnp.linspace(-1, 1, size, dtype=jnp.float32)
    open_x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.float32)
    module = invert.from_exported(stored(f, open_x, number))
    assert "kept as" in module.report.gradients[0]
    found, wanted = (pulled(g, x, number, x) for g in (module, f))
    assert not np.array_equal(wanted, x)
    np.testing.assert_array_equal(found, wanted)


def test_conditions_in_common_need_not_be_met() -> None:
    """The step at 1000 is in the function, so that autodiff has it, too."""

    @jax.custom_vjp
    def scaled(x: Any, n: Any) -> Any:
        return jnp.sin(x) * jnp.where(n > 1000, 0.1, 1.0)

    def back(kept: Any, dy: Any) -> Any:
        x, n = kept
        slope = jnp.sin(x + np.pi / 2) * dy * jnp.where(n > 1000, 0.1, 1.0)
        return slope, np.zeros(n.shape, jax.dtypes.float0)

    scaled.defvjp(lambda x, n: (scaled(x, n), (x, n)), back)
    module = invert.from_exported(stored(scaled, X, jnp.int32(0)))
    assert "agrees with autodiff numerically" in module.report.gradients[0]


def test_conditions_of_different_arguments_are_not_in_common() -> None:
    @jax.custom_vjp
    def scaled(x: Any, n: Any, m: Any) -> Any:
        return x * jnp.where(n > 1000, 0.1, 1.0)

    def back(kept: Any, dy: Any) -> Any:
        n, m = kept
        none = np.zeros(n.shape, jax.dtypes.float0)
        factor = jnp.where(n > 1000, 0.1, 1.0) * jnp.where(m > 1000, 0.5, 1.0)
        return factor * dy, none, none

    scaled.defvjp(lambda x, n, m: (scaled(x, n, m), (n, m)), back)
    few, many = jnp.int32(0), jnp.int32(2000)
    module = invert.from_exported(stored(scaled, X, few, few))
    for n, m in ((few, few), (few, many), (many, few), (many, many)):
        np.testing.assert_array_equal(slope(module, X, n, m), slope(scaled, X, n, m))


@pytest.mark.parametrize(("dtype", "factor"), [(jnp.bfloat16, 0.9), (jnp.float16, 0.99)])
def test_a_factor_near_one_in_16_bits(dtype: Any, factor: float) -> None:
    x = jnp.linspace(-2, 2, 64).astype(dtype)
    f = with_rule(lambda x, n, dy: dy * jnp.asarray(factor, dtype))
    module = invert.from_exported(stored(f, x, jnp.int32(0)))
    assert "kept as custom_jvp" in module.report.gradients[0]
    found, wanted = (pulled(g, x, jnp.int32(0), x) for g in (module, f))
    np.testing.assert_array_equal(found, wanted)


def test_the_text_of_a_dead_call_in_a_rule() -> None:
    """`i % 5` is a call, of which the rule needs no result."""

    @jax.custom_jvp
    def product(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    @product.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return product(x, y), 2 * jnp.cos(x) * y * dx + 3 * jnp.sin(x) * dy

    def f(x: Any) -> Any:
        return jax.vmap(lambda a: lax.fori_loop(0, 3, lambda i, c: product(c, a) + x[i % 5], a))(x)

    module = invert.from_exported(stored(f, X))
    np.testing.assert_array_equal(slope(module.model, X), slope(module, X))
    np.testing.assert_allclose(slope(module, X), slope(f, X), rtol=1e-5)


def test_the_text_of_a_rule_around_a_loop() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, row: (seven(c @ w + row), c), x[0], x)[1]

    x, w = jnp.ones((4, 3)), jnp.arange(9.0).reshape(3, 3) / 9
    module = invert.from_exported(stored(f, x, w))
    assert "kept as custom_jvp" in module.report.gradients[0]
    np.testing.assert_array_equal(slope(module.model, x, w), slope(module, x, w))
    np.testing.assert_allclose(slope(module, x, w), slope(f, x, w), rtol=1e-5)


@pytest.mark.parametrize("name", ["recomputed", "products kept", "nothing recomputed"])
def test_the_text_recomputes_what_the_original_does(name: str) -> None:
    f, args, _ = PROGRAMS[name]
    model = invert.from_exported(stored(f, *args)).model

    def products(of: Callable[..., Any]) -> int:
        """Those of the forward and the backward pass."""
        return str(jax.make_jaxpr(lambda *xs: jax.vjp(of, *xs)[1](xs[1]))(*args)).count("dot_gen")

    assert products(model) == products(f)
    np.testing.assert_allclose(slope(model, *args), slope(f, *args), rtol=1e-5, atol=1e-6)


def test_arguments_without_a_gradient_in_a_large_program() -> None:
    def f(params: Any, x: Any) -> Any:
        for i, w in enumerate(params):
            x = jnp.tanh(x * (w if i % 8 else lax.stop_gradient(w)) - jnp.sin(x))
        return x

    params = list(np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32))
    module = invert.from_exported(stored(f, params, X))
    (told,) = module.report.gradients
    assert "agrees with autodiff, with stop_gradient put back" in told

    def slopes(f: Callable[..., Any]) -> Any:
        return jax.grad(lambda params: jnp.sin(f(params, X)).sum())(params)

    np.testing.assert_allclose(slopes(module), slopes(f), rtol=1e-4, atol=1e-6)

    def half(ws: Any, x: Any) -> Any:
        """A stop inside of the program, which only one argument reaches."""
        return f([*ws[:9], 0.5 * (ws[9] + lax.stop_gradient(ws[9])), *ws[10:]], x)

    module = invert.from_exported(stored(half, params, X))
    assert "agrees with autodiff, with stop_gradient put back" in str(module.report)
    np.testing.assert_allclose(slopes(module), slopes(half), rtol=1e-4, atol=1e-6)


def test_a_deserialized_artifact_holds_its_vjp() -> None:
    module = invert.from_exported(jax.export.deserialize(bytearray(stored(seven, X))))
    np.testing.assert_array_equal(jax.jvp(module, (X,), (X,))[1], 7 * X)


def test_open_sizes() -> None:
    (b,) = jax.export.symbolic_shape("b")
    types = jax.ShapeDtypeStruct((b,), np.float32), jax.ShapeDtypeStruct((b,), np.int32)

    def f(x: Any, i: Any) -> Any:
        return seven(x) + x[i][:1], i

    module = invert.from_exported(stored(f, *types))
    for n in (1, 4):
        args = jnp.arange(1.0, n + 1), jnp.arange(n) + 1
        np.testing.assert_array_equal(slope(module, *args), slope(f, *args))


def test_second_derivative() -> None:
    module = invert.from_exported(stored(lambda x: jnp.sin(seven(x)), X, order=2))
    found = jax.grad(lambda x: slope(module, x).sum())(X)
    wanted = jax.grad(lambda x: slope(lambda x: jnp.sin(seven(x)), x).sum())(X)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@jax.custom_jvp
def cosine(x: Any) -> Any:
    return jnp.cos(x)


@jax.custom_jvp
def sine(x: Any) -> Any:
    return jnp.sin(x)


cosine.defjvp(lambda x, t: (cosine(*x), -2 * sine(*x) * t[0]))
sine.defjvp(lambda x, t: (sine(*x), cosine(*x) * t[0]))


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_rule_in_a_gradient_that_is_that_of_autodiff(is_stored: bool) -> None:
    exported = jax.export.export(jax.jit(sine))(X)
    module = invert.from_exported(bytes(exported.serialize(vjp_order=2)) if is_stored else exported)
    assert "its own derivative differs from autodiff" in str(module.report.gradients)
    for either in (module, module.model):
        np.testing.assert_allclose(slope(either, X), slope(sine, X), rtol=1e-5)
        twice = [jax.grad(lambda x, f=f: slope(f, x).sum())(X) for f in (either, sine)]
        np.testing.assert_allclose(*twice, rtol=1e-4, atol=1e-5)


STOPPED: dict[str, Callable[..., Any]] = {
    "slope": lambda x, y: (y * lax.stop_gradient(jnp.cos(x)),),
    "cotangent": lambda x, y: (lax.stop_gradient(y) * jnp.cos(x),),
    "all": lambda x, y: (lax.stop_gradient(y * jnp.cos(x)),),
}


@pytest.mark.parametrize("what", STOPPED)
def test_a_stop_in_a_gradient_that_is_that_of_autodiff(what: str) -> None:
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), STOPPED[what])
    module = invert.from_exported(stored(f, X, order=2))
    assert "its own derivative differs from autodiff" in str(module.report.gradients)
    np.testing.assert_allclose(slope(module, X), slope(f, X), rtol=1e-5)

    def twice(f: Any) -> Any:
        return jax.grad(lambda x: jnp.sin(jax.grad(lambda x: jnp.sin(f(x)).sum())(x)).sum())(X)

    np.testing.assert_allclose(twice(module), twice(f), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["stop_gradient", "promises", "nothing recomputed"])
def test_changes_that_suffice_for_second_derivatives(name: str) -> None:
    f, args, message = PROGRAMS[name]
    (told,) = invert.from_exported(stored(f, *args, order=2)).report.gradients
    assert message in told


@pytest.mark.parametrize("count", [30, 300])
def test_second_derivatives_of_a_solve(count: int) -> None:
    """The rule solves again for the cotangents. Without its rule there, it must have converged."""

    def steps(matvec: Callable[[Any], Any], b: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, x: x + 0.1 * (b - matvec(x)), jnp.zeros_like(b))

    def solve(a: Any, b: Any) -> Any:
        return lax.custom_linear_solve(lambda x: a @ x + x, b, steps, symmetric=True)

    a, b = jnp.array([[2.0, 0.5], [0.5, 1.0]]), jnp.array([1.0, -2.0])
    exported = jax.export.deserialize(bytearray(stored(solve, a, b, order=2)))
    module = invert.from_exported(exported)
    assert "second derivatives leave out the rules of what" in module.report.gradients[0]
    ones = jnp.ones_like(a), jnp.ones_like(b)
    for got, wanted in zip(*(jax.jvp(f, (a, b), ones) for f in (module, solve)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)

    def curvature(f: Callable[..., Any]) -> Any:
        return jax.grad(lambda a, b: jnp.sum(slope(f, a, b) ** 2), (0, 1))(a, b)

    tolerance = 1e-5 if count == 300 else 0.1
    for wanted, got in zip(curvature(exported.call), curvature(module), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_rules_that_change_large_cotangents_alone() -> None:
    @jax.custom_vjp
    def limited(x: Any) -> Any:
        return jnp.sin(x)

    bound = 1e7
    limited.defvjp(
        lambda x: (limited(x), x), lambda x, dy: (bound * jnp.tanh(dy * jnp.cos(x) / bound),)
    )
    (told,) = invert.from_exported(stored(limited, X)).report.gradients
    assert "kept as custom_vjp: they differ" in told


@pytest.mark.parametrize("order", [1, 2])
def test_the_report_says_that_rules_of_higher_derivatives_were_not_stored(order: int) -> None:
    told = invert.from_exported(stored(seven, X, order=order)).report.gradients
    missing = "higher derivatives are autodiff of the gradient, whose own rules were not stored"
    assert any(missing in line for line in told) == (order == 1)
    stored_too = "second derivatives are those of the container"
    assert any(stored_too in line for line in told) == (order == 2)


def test_ignored() -> None:
    config = invert.Config(custom_gradients="ignore")
    module = invert.from_exported(stored(seven, X), config=config)
    assert not module.report.gradients
    np.testing.assert_array_equal(jax.jvp(module, (X,), (X,))[1], 2 * X)


def test_the_vjp_of_another_function() -> None:
    one = stored(lambda x: jnp.sin(x), X)
    two = stored(lambda x: jnp.sin(x), jnp.ones(6))
    exported, other = (jax.export.deserialize(bytearray(b)) for b in (one, two))
    object.__setattr__(exported, "_get_vjp", other._get_vjp)
    with pytest.raises(invert.MalformedModelError, match="types of its function"):
        invert.from_exported(exported)


def test_artifacts_of_this_process() -> None:
    """An artifact that was not serialized has its gradient too, if its function has one."""
    module = invert.from_exported(jax.export.export(jax.jit(seven))(X))
    assert "kept as custom_jvp" in module.report.gradients[0]
    np.testing.assert_allclose(slope(module, X), slope(seven, X), rtol=1e-6)
    size = jax.export.symbolic_shape("b")
    module = invert.from_exported(
        jax.export.export(jax.jit(clipped))(jax.ShapeDtypeStruct(size, X.dtype))
    )
    np.testing.assert_allclose(slope(module, X), slope(clipped, X), rtol=1e-6)


@pytest.mark.parametrize("method", ["cg", "bicgstab"])
def test_iterative_solves_of_this_process(method: str) -> None:
    solver = getattr(jax.scipy.sparse.linalg, method)

    def f(b: Any) -> Any:
        scale = jnp.arange(1.0, 6.0)
        return solver(lambda v: scale * v + 0.1 * jnp.roll(v, 1) + 0.1 * jnp.roll(v, -1), b)[0]

    module = invert.from_exported(jax.export.export(jax.jit(f))(X))
    np.testing.assert_allclose(module(X), f(X), rtol=1e-4)
    np.testing.assert_allclose(slope(module, X), slope(f, X), rtol=1e-3, atol=1e-5)


def test_artifacts_of_this_process_without_derivative() -> None:
    def after(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.sum(y) < 100, lambda y: 2 * y + 1, seven(x))

    module = invert.from_exported(jax.export.export(jax.jit(after))(X))
    assert "the rule of seven: kept as custom_jvp" in module.report.gradients[0]
    assert np.array_equal(module(X), after(X))
    for either in (module, module.model):
        np.testing.assert_allclose(jax.jvp(either, (X,), (X,))[1], jax.jvp(after, (X,), (X,))[1])


def halved(x: Any) -> Any:
    """A convolution whose transpose JAX cannot trace at an open length."""
    kernel = jnp.sin(jnp.arange(12.0)).reshape(3, 2, 2)
    return lax.conv_general_dilated(
        x, kernel, (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
    )


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return jnp.arange(1.0, 3.0) * x


scaled.defvjp(lambda x: (jnp.arange(1.0, 3.0) * x, None), lambda _, dy: (jnp.clip(dy, -0.1, 0.1),))


def looped(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return clipped(jnp.sin(carry + row)), seven(carry)

    rows = halved(x)
    return lax.scan(step, jnp.zeros_like(rows[0]), rows)[1]


# Functions of open sizes whose derivative JAX cannot export.
NOT_EXPORTED = {
    "reverse": lambda x: clipped(halved(x)),
    "both modes": lambda x: seven(halved(x)),
    "its own result": lambda x: length(halved(x)) * x,
    "stopped": lambda x: halved(x) * lax.stop_gradient(jnp.tanh(halved(x))),
    "passed straight through": lambda x: x + 0 * halved(x).sum()
    + lax.stop_gradient(jnp.round(x) - x),
    "own forward pass": lambda x: scaled(halved(x)),
    "in a loop": looped,
    "in a branch": lambda x: lax.cond(
        x.sum() > 0, lambda y: clipped(y) * 3, lambda y: seven(y), halved(x)
    ),
    "of each row": lambda x: jax.vmap(lambda y: clipped(seven(y)))(halved(x)),
}  # fmt: skip
ROWS = jnp.sin(jnp.arange(20.0)).reshape(2, 5, 2)


def of_open_sizes(f: Callable[..., Any]) -> jax.export.Exported:
    b, t = jax.export.symbolic_shape("b, t")
    return jax.export.export(jax.jit(f))(jax.ShapeDtypeStruct((b, t, 2), jnp.float32))


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_rules_of_a_program_whose_derivative_cannot_be_exported(name: str) -> None:
    f = NOT_EXPORTED[name]
    exported = of_open_sizes(f)
    with pytest.raises(ValueError, match="padding"):
        exported.vjp()
    module = invert.from_exported(exported)
    assert module.report.certificate.kind == "exact"
    for either in (module, module.model):
        for x in (ROWS, -2 * ROWS[:1, :4]):
            np.testing.assert_allclose(slope(either, x), slope(f, x), rtol=1e-5, atol=1e-5)
        if name in ("both modes", "stopped", "passed straight through"):
            wanted = jax.jvp(f, (ROWS,), (jnp.cos(ROWS),))[1]
            found = jax.jvp(either, (ROWS,), (jnp.cos(ROWS),))[1]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_report_says_that_the_forward_pass_of_a_rule_is_not_kept() -> None:
    missing = "without the forward pass of its author"
    (told,) = invert.from_exported(of_open_sizes(NOT_EXPORTED["reverse"])).report.gradients
    assert missing not in told  # it calls the function
    told = invert.from_exported(of_open_sizes(NOT_EXPORTED["own forward pass"])).report.gradients
    assert any(missing in line for line in told)


def test_a_rule_that_cannot_be_exported_is_refused() -> None:
    @jax.custom_vjp
    def tenfold(x: Any) -> Any:
        return halved(x)

    tenfold.defvjp(lambda x: (halved(x), x), lambda x, dy: (jax.vjp(halved, x)[1](10 * dy)[0],))
    exported = of_open_sizes(tenfold)
    module = invert.from_exported(exported)
    assert "without a derivative: JAX cannot export it" in module.report.gradients[0]
    for either in (module, module.model):
        np.testing.assert_allclose(either(ROWS), tenfold(ROWS), rtol=1e-6)
        with pytest.raises(LookupError, match="the rule of tenfold has no derivative here"):
            slope(either, ROWS)
    ignored = invert.from_exported(exported, config=invert.Config(custom_gradients="ignore"))
    np.testing.assert_allclose(slope(ignored, ROWS), slope(halved, ROWS), rtol=1e-5, atol=1e-6)


def test_a_refused_derivative_is_not_zero_where_that_of_the_program_is() -> None:
    """A solve whose steps have no derivative, without the rule that JAX needs to transpose it."""

    def f(a: Any, b: Any, c: Any) -> Any:
        def solve(matvec: Any, b: Any) -> Any:
            return lax.stop_gradient(jnp.linalg.solve(jax.jacobian(matvec)(b), b))

        return lax.custom_linear_solve(lambda x: a @ x, b, solve) * c

    a, b = jnp.eye(3) * 2 + 0.1, jnp.arange(3.0)
    module = invert.from_exported(jax.export.export(jax.jit(f))(a, b, b))
    for either in (module, module.model):
        np.testing.assert_allclose(either(a, b, b), f(a, b, b), rtol=1e-6)
        for differentiate in (jax.jacrev, jax.jacfwd):
            for i in (0, 1):
                with pytest.raises(LookupError, match="the rule of custom_linear_solve"):
                    differentiate(either, i)(a, b, b)
            by_c = differentiate(lambda *args: f(*args), 2)(a, b, b)
            np.testing.assert_allclose(differentiate(either, 2)(a, b, b), by_c, rtol=1e-6)


@pytest.mark.parametrize("moves", [True, False])
def test_a_rule_that_reads_a_value_around_it_is_refused(moves: bool) -> None:
    """JAX traces it, but cannot differentiate the trace."""

    def f(x: Any) -> Any:
        w = jnp.sin(x) if moves else jnp.arange(1.0, 6.0)

        @jax.custom_vjp
        def around(y: Any) -> Any:
            return w * y

        around.defvjp(lambda y: (w * y, w), lambda w, dy: (jnp.clip(w * dy, -0.1, 0.1),))
        return around(x)

    exported = jax.export.export(jax.jit(f))(X)
    with pytest.raises(Exception, match="closed-over" if moves else "out of range"):
        exported.vjp()
    module = invert.from_exported(exported)
    np.testing.assert_array_equal(module(X), f(X))
    with pytest.raises(LookupError, match="the rule of around"):
        slope(module, X)


def bisected(f: Callable[[Any], Any], start: Any) -> Any:
    def step(bounds: Any, _: Any) -> Any:
        middle = (bounds[0] + bounds[1]) / 2
        low = f(middle) <= 0
        return (jnp.where(low, middle, bounds[0]), jnp.where(low, bounds[1], middle)), None

    (low, high), _ = lax.scan(step, (start - 10, start + 10), None, length=40)
    return (low + high) / 2


def root(x: Any) -> Any:
    """The root of y^3 + y = x, by steps that have no derivative."""
    return lax.custom_root(
        lambda y: y**3 + y - x, jnp.zeros_like(x), bisected, lambda g, y: y / g(jnp.ones_like(y))
    )


def solution(x: Any) -> Any:
    """The solution of a linear system, by steps that have no derivative."""
    scale = 1 + x[0] ** 2

    def solve(_: Any, b: Any) -> Any:
        return lax.stop_gradient(b / scale)

    return lax.custom_linear_solve(lambda v: scale * v, jnp.sin(x), solve, solve)


@pytest.mark.parametrize("f", [root, solution])
@pytest.mark.parametrize("is_stored", [True, False])
def test_implicit_derivatives(f: Callable[[Any], Any], is_stored: bool) -> None:
    source = stored(f, X) if is_stored else jax.export.export(jax.jit(f))(X)
    module = invert.from_exported(source)
    for either in (module, module.model):
        np.testing.assert_allclose(slope(either, X), slope(f, X), rtol=1e-4, atol=1e-5)


def test_artifacts_of_this_process_without_rules() -> None:
    """The derivative is exported only if the program contains custom rules."""

    def network(x: Any) -> Any:
        return jax.nn.softmax(jax.nn.relu(x)) + jax.scipy.special.logsumexp(x)

    def stopped(x: Any) -> Any:
        return x * jax.tree.map(lax.stop_gradient, {"x": network(x)})["x"]

    module = invert.from_exported(jax.export.export(jax.jit(network))(X))
    assert not module.report.gradients
    np.testing.assert_allclose(slope(module, X), slope(network, X), rtol=1e-5, atol=1e-6)
    # JAX's own functions call the author's.
    for f in (
        stopped,
        lambda x: lax.map(seven, x),
        lambda x: lax.fori_loop(0, 3, lambda _, y: seven(y), x),
    ):
        module = invert.from_exported(jax.export.export(jax.jit(f))(X))
        assert module.report.gradients
        np.testing.assert_allclose(slope(module, X), slope(f, X), rtol=1e-5, atol=1e-6)


def test_the_report_names_the_way_to_forward_mode() -> None:
    exported = stored(clipped, X)
    assert 'custom_gradients="ignore"' in invert.from_exported(exported).report.gradients[0]
    config = invert.Config(custom_gradients="ignore")
    assert jax.jvp(invert.from_exported(exported, config=config), (X,), (X,))[1].shape == X.shape


def test_the_error_of_forward_mode_names_the_gradient() -> None:
    module = invert.from_exported(stored(clipped, X))
    with pytest.raises(TypeError, match="forward-mode") as raised:
        jax.jvp(module, (X,), (X,))
    assert any("the VJP of clipped: kept as custom_vjp" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("order", [1, 2])
def test_a_rule_that_reads_its_result_has_both_modes(order: int) -> None:
    module = invert.from_exported(stored(length, X, order=order))
    assert "kept as custom_jvp" in module.report.gradients[-1]
    direction = jnp.sin(X)
    pushed = jax.jvp(module, (X,), (direction,))[1]
    np.testing.assert_allclose(pushed, jax.grad(length)(X) @ direction, rtol=1e-5)
    for x in (X, 1e-5 * X):  # where the rule differs from autodiff, and where not
        wanted = jax.jacrev(jax.grad(length))(x)
        size = float(jnp.abs(wanted).max())
        if order == 2:
            both = (jax.jacrev(jax.grad(module))(x), jax.hessian(module)(x))
            for found in both:
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * size)
    np.testing.assert_array_equal(jax.grad(module.model)(X), jax.grad(module)(X))


@pytest.mark.parametrize(
    "name", ["promises", "clips", "both", "in_a_loop", "beside slices", "stopped"]
)
def test_bounds_of_an_artifact_of_this_process(name: str) -> None:
    f, args, _ = PROGRAMS[name]
    module = invert.from_exported(jax.export.export(jax.jit(f))(*args))
    for either in (module, module.model):
        np.testing.assert_allclose(slope(either, *args), slope(f, *args), rtol=1e-5, atol=1e-6)


def test_a_promise_needs_no_gradient_of_the_artifact() -> None:
    f, args, _ = PROGRAMS["promises"]
    module = invert.from_exported(jax.export.export(jax.jit(f))(*args))
    assert module.report.gradients == ()
    assert module.report.certificate.kind == "exact"


def test_batched_slices_inside_of_library_functions_promise_nothing() -> None:
    def f(x: Any, y: Any) -> Any:
        return x[jnp.searchsorted(x, y)] * y

    exported = jax.export.export(jax.jit(f))(jnp.sort(X), X[:3])
    for artifact in (exported, exported.serialize(vjp_order=1)):
        assert "x[jnp.searchsorted(x, y)] * y" in invert.from_exported(artifact).source


@jax.custom_vjp
def _tamed(x: Any) -> Any:
    return jnp.sqrt(x)


_tamed.defvjp(lambda x: (jnp.sqrt(x), x), lambda x, g: (jnp.where(x > 0, g / (2 + x), 0.0),))


def test_a_gradient_of_32_bits_is_lowered_at_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[bool] = []
    again = settle.raised_again

    def counted(*args: Any, x64: bool, **kwargs: Any) -> Any:
        widths.append(x64)
        return again(*args, x64=x64, **kwargs)

    monkeypatch.setattr(settle, "raised_again", counted)
    module = invert.from_exported(stored(_tamed, jnp.ones(3)))
    assert "kept" in module.report.gradients[0] and set(widths) == {False}


def test_bounds_are_not_compared_further_where_derivatives_are_infinite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points: list[list[float]] = []
    compare = bounds.differences

    def counted(*args: Any) -> Iterator[float]:
        points.append([])
        for gap in compare(*args):
            points[-1].append(gap)
            yield gap

    monkeypatch.setattr(bounds, "differences", counted)

    def fn(table: Any, i: Any) -> Any:
        return _tamed(table[i])

    module = invert.from_exported(stored(fn, jnp.ones(5), jnp.array([0, 3, 9])))
    assert "kept" in module.report.gradients[0]
    assert points and all(np.isinf(p[-1]) and np.isfinite(p[:-1]).all() for p in points)
    table, i = jnp.array([0.0, 1.0, 4.0, 9.0, 0.0]), jnp.array([0, 3, 9])
    want = jax.grad(lambda t: fn(t, i).sum())(table)
    np.testing.assert_array_equal(jax.grad(lambda t: module(t, i).sum())(table), want)


def _settled(x: Any, w: Any) -> Any:
    def going_on(state: tuple[Any, Any]) -> Any:
        return jnp.max(jnp.abs(state[0] - state[1])) > 1e-5

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        return state[1], jnp.tanh(state[1] @ w + x)

    return lax.while_loop(going_on, step, (x + 1, x))[1]


@jax.custom_vjp
def settled(x: Any, w: Any) -> Any:
    """A fixed point, whose derivative is that of one step."""
    return _settled(x, w)


def _settled_backward(kept: tuple[Any, ...], dy: Any) -> tuple[Any, Any]:
    x, w, y = kept
    pulled = jax.vjp(lambda x, w: jnp.tanh(y @ w + x), x, w)[1](dy)
    return pulled[0], pulled[1]


settled.defvjp(lambda x, w: ((y := _settled(x, w)), (x, w, y)), _settled_backward)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("f", "told"),
    [
        (lambda x, w: jnp.tanh(clipped(x * w[0]) @ w).sum(), "kept as custom_"),
        (lambda x, w: jnp.sin(seven(x) @ w).sum(), "kept as custom_"),
        (lambda x, w: settled(x, w).sum(), "kept as custom_"),
        (lambda x, w: jnp.cos(lax.stop_gradient(x) @ w).sum(), "stop_gradient: it is zero"),
    ],
    ids=["clipped", "seven", "fixed point", "stopped"],
)
def test_there_is_no_silent_zero_by_weights_that_a_function_closed_over(
    f: Callable[..., Any], told: str, live: bool
) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((2, 4)).astype(np.float32)
    w = 0.1 * draw.standard_normal((4, 4)).astype(np.float32)
    exported = jax.export.export(jax.jit(lambda x: f(x, w)))(x)
    artifact = exported if live else bytes(exported.serialize(vjp_order=1))
    module = invert.from_exported(artifact)
    gradient = module.report.gradients[-1]
    assert told in gradient and "none by arrays that the function closed over" in gradient

    by_x = jax.jit(jax.grad(lambda x: f(x, w)))(x)
    for net in (module, module.model):
        np.testing.assert_allclose(jax.jit(jax.grad(net))(x), by_x, rtol=1e-5, atol=1e-6)
        with pytest.raises(LookupError, match="arrays that the function closed over"):
            eqx.filter_grad(lambda net: net(x))(net)

    # With the weights as arguments, their gradient is the author's. Fixed points for random
    # weights, at which gradients are compared, may never be reached, so they are not run.
    both = jax.export.export(jax.jit(f))(x, w)
    whole = invert.from_exported(both if live else bytes(both.serialize(vjp_order=1)))
    assert not any("closed over" in g for g in whole.report.gradients)
    wanted = jax.jit(jax.grad(f, argnums=1))(x, w)
    found = jax.jit(jax.grad(whole, argnums=1))(x, w)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_one_function_forbids_derivatives_by_arrays_of_all_shapes() -> None:
    w, b = np.eye(3, dtype=np.float32) + 1, np.arange(3, dtype=np.float32)
    data = stored(lambda x: jnp.tanh(clipped(x) @ w + b).sum(), jnp.ones((2, 3)))
    source = invert.from_exported(data).source
    assert source.count("raise LookupError") == 1


@pytest.mark.parametrize("order", [0, 1])
def test_the_report_says_that_no_gradient_is_held(order: int) -> None:
    """A `stop_gradient` leaves a trace in a stored gradient only."""

    def loss(p: Any, x: Any) -> Any:
        return jnp.sum((2 * x @ p - jax.lax.stop_gradient(x @ p)) ** 2)

    p, x = np.ones(3, np.float32), np.ones((4, 3), np.float32)
    module = invert.from_exported(jax.export.export(jax.jit(loss))(p, x).serialize(order))
    assert module.report.holds_gradient == bool(order)
    assert ("the container holds none" in str(module.report)) != bool(order)
    assert np.array_equal(jax.grad(module)(p, x), jax.grad(loss)(p, x)) == bool(order)
