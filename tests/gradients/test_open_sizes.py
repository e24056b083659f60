"""Gradients in containers of programs with an open batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert

tf = pytest.importorskip("tensorflow")

from jax.experimental import jax2tf  # noqa: E402  which imports TensorFlow

W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
AGREES = "agrees with autodiff"


def _converted(fn: Callable[[Any], Any]) -> Any:
    converted = jax2tf.convert(fn, polymorphic_shapes=["b, 6, 4"])
    spec = tf.TensorSpec((None, 6, 4), tf.float32)
    return invert.convert(tf.function(converted, autograph=False, input_signature=[spec]))


def _judgement(module: Any) -> str:
    (line,) = (x for x in str(module.report).splitlines() if "gradient of" in x)
    return line.rpartition(": ")[2]


def _same_derivatives(module: Any, fn: Callable[[Any], Any]) -> None:
    def total(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jnp.sum(jnp.sin(jax.tree_util.tree_leaves(f(x))[0]))

    for batch in (1, 3):
        x = np.random.default_rng(batch).normal(size=(batch, 6, 4)).astype(np.float32)
        x = jnp.asarray(x)
        np.testing.assert_allclose(
            jax.grad(total(module))(x), jax.grad(total(fn))(x), rtol=1e-5, atol=1e-6
        )
        moved = [jax.jvp(total(f), (x,), (x + 1,))[1] for f in (module, fn)]
        np.testing.assert_allclose(*moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.tanh(x[:, 0] @ W),
        lambda x: jnp.tanh(x[:, -1] @ W),
        lambda x: x[:, 1:3] @ W,
        lambda x: jnp.sin(x[:, 2, 1]),
        lambda x: (x @ W)[..., 3] * x[:, :, 0],
        lambda x: x[:, 0] * x[:, 5],
        lambda x: jnp.sin(x[..., ::2]) * x[..., 1::2],
        lambda x: jnp.sin(x[:, ::-1] @ W),
        lambda x: jnp.tanh(x[:, ::-2] @ W) - x[:, 1:4:2].sum(1, keepdims=True) @ W,
    ],
    ids=["first", "last", "some", "one", "features", "two", "strided", "reversed", "backwards"],
)
def test_the_gradient_of_a_slice_at_a_number_is_proved(fn: Callable[[Any], Any]) -> None:
    module = _converted(fn)
    assert _judgement(module) == AGREES
    _same_derivatives(module, fn)


def test_a_sum_at_a_data_dependent_place_is_not_a_padding() -> None:
    def fn(x: Any) -> Any:
        return x.at[:, jnp.argmax(x[0, :, 0])].add(x[:, 0])

    module = _converted(fn)
    assert _judgement(module) == AGREES
    _same_derivatives(module, fn)


def _straight_through(x: Any) -> Any:
    return jnp.tanh(x + lax.stop_gradient(jnp.round(x) - x)) @ W


def test_stop_gradient_is_put_back() -> None:
    module = _converted(_straight_through)
    assert _judgement(module) == f"{AGREES}, with stop_gradient put back"
    _same_derivatives(module, _straight_through)
    assert "lax.stop_gradient(" in module.emit(loader=False).source


@jax.custom_jvp
def _passed(x: Any) -> Any:
    return jnp.round(x)


_passed.defjvp(lambda x, dx: (_passed(*x), *dx))


def _quantized(x: Any) -> Any:
    """With a scale for each row, which is not differentiated, and one that is a number."""
    scale = lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127)
    return _passed(jnp.tanh(_passed(x / scale) * scale @ W) * 7) / 7


@pytest.mark.parametrize(
    ("fn", "more"),
    [
        (_quantized, ", with stop_gradient put back"),
        (lambda x: _passed(jnp.clip(x @ W, -1, 1) * 7), ""),
        # A rounding of another kind keeps its own derivative.
        (lambda x: _passed(x @ W) * jnp.floor(x), ""),
    ],
    ids=["scale", "clip", "another"],
)
def test_roundings_whose_derivative_passes(fn: Callable[[Any], Any], more: str) -> None:
    module = _converted(fn)
    assert _judgement(module) == f"{AGREES}, passed straight through roundings{more}"
    _same_derivatives(module, fn)
    source = module.emit(loader=False).source
    assert "def straight_through_round(x):\n    return jnp.round(x)\n" in source
    assert "recovered(" not in source
    _same_derivatives(module.model, fn)


def test_a_rounding_with_another_derivative_keeps_its_rule() -> None:
    @jax.custom_jvp
    def steep(x: Any) -> Any:
        return jnp.round(x)

    steep.defjvp(lambda x, dx: (steep(*x), 2 * dx[0]))
    module = _converted(steep)
    assert "kept as custom_jvp: they differ" in str(module.report)
    _same_derivatives(module, steep)


def test_a_rule_with_integer_results() -> None:
    @jax.custom_jvp
    def rounded(x: Any) -> tuple[Any, Any]:
        return jnp.round(x), jnp.argmax(x, 1)

    @rounded.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        result = rounded(x)
        zero = lax.broadcast(np.zeros((), jax.dtypes.float0), result[1].shape)
        return result, (2 * t, zero)

    def fn(x: Any) -> tuple[Any, Any]:
        return rounded(x @ W)

    module = _converted(fn)
    assert "kept as custom_jvp" in str(module.report)
    _same_derivatives(module, fn)
    x = jnp.ones((2, 6, 4))
    model: Any = module.emit(loader=False).model
    for got, wanted in zip(model(x), fn(x), strict=True):
        np.testing.assert_array_equal(got, wanted)
    _same_derivatives(model, fn)


@jax.custom_jvp
def seven(x: Any) -> Any:
    return 2 * x


seven.defjvp(lambda x, t: (seven(*x), 7 * t[0]))


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda x: x[::2] * 2, AGREES),
        (lambda x: x[::-2] * x.sum(), AGREES),
        (lambda x: jnp.sin(x[::2, 1:, ::3]).sum(0), AGREES),
        (lambda x: seven(x[::2]), "kept as custom_jvp"),
        (lambda x: seven(x)[::2], "kept as custom_jvp"),
    ],
    ids=["plain", "reversed", "of several axes", "rule after", "rule before"],
)
def test_strides_of_an_open_size(fn: Callable[[Any], Any], told: str) -> None:
    module = _converted(fn)
    assert told in str(module.report)
    _same_derivatives(module, fn)


def test_a_gradient_that_fits_under_the_constraints_alone() -> None:
    def fn(x: Any, y: Any) -> Any:
        return jnp.concatenate([x, y]).mean(0) * x[0]

    constraints = ("b == 2 * a",)
    types = jax.export.symbolic_args_specs((jnp.ones(1), jnp.ones(1)), ["a", "b"], constraints)
    blob = jax.export.export(jax.jit(fn))(*types).serialize(vjp_order=1)
    module = invert.from_exported(blob)
    x, y = jnp.arange(3.0), jnp.arange(6.0)
    gradients = [jax.grad(f, argnums=(0, 1))(x, y) for f in (module, fn)]
    jax.tree.map(np.testing.assert_array_equal, *gradients)

    converted = jax2tf.convert(
        fn, polymorphic_shapes=["a", "b"], polymorphic_constraints=constraints
    )
    specs = [tf.TensorSpec((None,), tf.float32)] * 2
    module = invert.convert(tf.function(converted, autograph=False, input_signature=specs))
    np.testing.assert_array_equal(jax.grad(module)(x, y), gradients[1][0])


def test_a_loop_over_an_open_length_counts() -> None:
    """Its end is a size, so that it runs where the gradient of a Kalman filter is compared."""

    def fn(moves: Any, sees: Any, ys: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            mean, spread = carry
            mean, spread = moves @ mean, moves @ spread @ moves.T + 0.1 * jnp.eye(2)
            total = sees @ spread @ sees.T + jnp.eye(2)
            gain = jnp.linalg.solve(total, sees @ spread).T
            rest = y - sees @ mean
            _, log = jnp.linalg.slogdet(total)
            fit = rest @ jnp.linalg.solve(total, rest) + log
            mean, spread = mean + gain @ rest, spread - gain @ total @ gain.T
            return (mean, spread), (mean, fit)

        return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), ys)

    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, 2"), jnp.float32)
    square = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    exported = jax.export.export(jax.jit(fn))(square, square, spec)
    # No rule of an author: the `stop_gradient` is that of `jnp.linalg.solve`.
    assert invert.from_exported(exported).report.gradients == ()
    module = invert.from_exported(bytes(exported.serialize(vjp_order=1)))
    (told,) = module.report.gradients
    assert "agrees with autodiff" in told
    ys = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    args = W[:2, :2], W[2:, 2:], ys
    moved = [jax.tree.leaves(jax.jvp(f, args, args)[1]) for f in (module, fn)]
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def _custom(forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @tf.custom_gradient
    def function(x: Any) -> Any:
        return forward(x), backward

    return function


def _spread(x: Any, like: Any) -> Any:
    f = _custom(lambda x: tf.broadcast_to(2 * x, tf.shape(like)), lambda g: 7 * tf.reduce_sum(g))
    return tf.sin(f(x[0]))


def _spread_clipped(x: Any, like: Any) -> Any:
    f = _custom(
        lambda x: tf.broadcast_to(2 * x, tf.shape(like)),
        lambda g: tf.clip_by_value(7 * tf.reduce_sum(g), -0.1, 0.1),
    )
    return tf.sin(f(x[0]))


def _in_the_rule(x: Any, like: Any) -> Any:
    size = tf.cast(tf.shape(like)[0], tf.float32)
    f = _custom(lambda x: 2 * x, lambda g: 7 * g * size)
    return tf.sin(f(x[0])) + tf.cos(f(x[1]))


def _in_the_clipped_rule(x: Any, like: Any) -> Any:
    size = tf.cast(tf.shape(like)[0], tf.float32)
    f = _custom(lambda x: 2 * x, lambda g: tf.clip_by_value(7 * g, -0.1, 0.1) * size)
    return tf.sin(f(x[0])) + tf.cos(f(x[1]))


def _in_a_loop(x: Any, like: Any) -> Any:
    f = _custom(lambda x: tf.reduce_sum(tf.broadcast_to(2 * x, tf.shape(like))), lambda g: 7 * g)
    after = tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(f(y))), (0, x[0]), maximum_iterations=3
    )
    return after[1]


def _agreeing(x: Any, like: Any) -> Any:
    size = tf.cast(tf.shape(like)[0], tf.float32)
    return tf.sin(_custom(lambda x: 2 * size * x, lambda g: g * 2 * size)(x[0]))


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (_spread, "kept as custom_jvp"),
        (_spread_clipped, "kept as custom_vjp"),
        (_in_the_rule, "kept as custom_jvp: they differ"),
        (_in_the_clipped_rule, "kept as custom_vjp: they differ"),
        (_in_a_loop, "kept as custom_jvp"),
        (_agreeing, f"{AGREES} numerically"),
    ],
)
def test_a_rule_that_uses_a_size_none_of_its_arguments_has(fn: Any, told: str) -> None:
    specs = [tf.TensorSpec((3,), tf.float32), tf.TensorSpec((None,), tf.float32)]
    module = invert.convert(tf.function(fn, autograph=False, input_signature=specs))
    assert all(told in line for line in module.report.gradients)
    model: Any = module.emit(loader=False).model
    assert model is not None
    assert "for fixed sizes" not in module.source.lower()
    for n in (1, 4):
        x, like = (np.random.default_rng(n).normal(size=k).astype(np.float32) for k in (3, n))
        with tf.GradientTape() as tape:
            v = tf.constant(x)
            tape.watch(v)
            total = tf.reduce_sum(tf.sin(fn(v, like)))
        wanted = tape.gradient(total, v)
        for form in (module, model):

            def slope(x: Any, form: Any = form, like: Any = like) -> Any:
                return jax.grad(lambda x: jnp.sin(form(x, like)).sum())(x)

            np.testing.assert_allclose(slope(x), wanted, rtol=1e-4, atol=1e-5)
            both = jax.jit(jax.vmap(slope))(np.stack([x, x]))
            np.testing.assert_allclose(both[1], wanted, rtol=1e-4, atol=1e-5)
