"""Custom gradients of plain TensorFlow graphs, compared with `tf.GradientTape`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._errors import DefectError
from invert.gradients import settle

tf = pytest.importorskip("tensorflow")

PLAIN = invert.Config(verify=False)
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@tf.custom_gradient
def clip(x: Any) -> Any:
    return 2 * x, lambda dy: tf.clip_by_value(dy, -0.1, 0.1)


@tf.custom_gradient
def clip_norm(x: Any) -> Any:
    return 2 * x, lambda dy: tf.clip_by_norm(dy, 0.1)


@tf.custom_gradient
def unit(x: Any) -> Any:
    return 2 * x, lambda dy: dy / (1 + tf.abs(dy))


@tf.custom_gradient
def triple(x: Any) -> Any:
    y = tf.exp(0.1 * x)
    return y, lambda dy: 3 * dy * y


@tf.custom_gradient
def holds_two(x: Any) -> Any:
    return clip(x) * triple(x), lambda dy: 5 * dy


@tf.custom_gradient
def passes_two(x: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = clip(x) * triple(x)
    return y, lambda dy: 2 * tape.gradient(y, x, dy)


@tf.custom_gradient
def closes_over(x: Any) -> Any:
    @tf.custom_gradient
    def inner(z: Any) -> Any:
        return z * x, lambda dy: 3 * dy

    return inner(2 * x), lambda dy: 7 * dy


@tf.custom_gradient
def two_of_two(a: Any, b: Any) -> Any:
    return (a * b, a + b), lambda dy, dz: (7 * dy + dz, -dz)


@tf.function(autograph=False)
def called(x: Any) -> Any:
    return clip(x) * triple(x)


def loop(step: Callable[[Any], Any], x: Any) -> Any:
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, 0.9 * step(y)), (0, x))[1]


def overlap(x: Any) -> Any:
    a = clip(x)
    b = triple(a)
    return b * a + clip(b)


@tf.recompute_grad
def recomputed(x: Any) -> Any:
    return tf.sin(tf.tanh(x) * x)


@tf.RegisterGradient("InvertTestTenfold")
def _tenfold(op: Any, dy: Any) -> Any:
    return 10 * dy


@tf.RegisterGradient("InvertTestGuided")
def _guided(op: Any, dy: Any) -> Any:
    return tf.where(dy > 0, dy, 0) * tf.cast(op.outputs[0] > 0, dy.dtype)


@tf.RegisterGradient("InvertTestFirst")
def _first(op: Any, dy: Any) -> Any:
    return [2 * dy * op.inputs[1], None]


def overridden(x: Any) -> Any:
    names = {"Identity": "Tenfold", "Relu": "Guided", "Mul": "First"}
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({k: f"InvertTest{v}" for k, v in names.items()}):
        return tf.nn.relu(tf.identity(x)) * (x + 1)


@tf.custom_gradient
def scaled(x: Any, y: Any) -> Any:
    """A product, whose rule reads an argument."""
    return x * y, lambda dy: (3 * dy * y, None)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "several": lambda x: clip(x) + triple(x),
    "norm": lambda x: clip_norm(triple(x)),
    "quotient": lambda x: unit(x) + clip(x),
    "stacked": lambda x: clip(triple(clip(x))),
    "nested": holds_two,
    "nested_and_used": passes_two,
    "closure": lambda x: closes_over(tf.sin(x)),
    "overlapping": overlap,
    "several_results": lambda x: two_of_two(x, x + 1)[0] + two_of_two(x * 2, x)[1],
    "function": lambda x: called(x) + called(2 * x),
    "loop": lambda x: loop(clip, x),
    "loop_over_a_value_around_it": lambda x: loop(lambda y: scaled(y, x), x),
    "loop_in_a_loop": lambda x: loop(lambda y: loop(lambda z: scaled(z, x), y), x),
    "map": lambda x: tf.map_fn(clip, x),
    "branch": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: clip(x), lambda: triple(x)),
    "recompute": lambda x: recomputed(recomputed(x)),
    "override": overridden,
    "override_in_loop": lambda x: loop(overridden, x),
    "override_in_function": lambda x: tf.function(overridden, autograph=False)(x),
    "stop_gradient": lambda x: tf.stop_gradient(x) * x,
    "straight_through": lambda x: x + tf.stop_gradient(tf.round(x) - x),
    "pass_through": lambda x: tf.grad_pass_through(tf.round)(x) * x,
    "library": lambda x: tf.nn.silu(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_equals_the_tapes(name: str) -> None:
    fn = tf.function(FUNCTIONS[name], autograph=False)
    module = invert.convert(fn, X, config=PLAIN)
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        y = fn(x)
        loss = tf.reduce_sum(tf.sin(y))
    np.testing.assert_allclose(module(X), y, rtol=1e-5, atol=1e-6)
    ours = jax.grad(lambda x: jnp.sum(jnp.sin(module(x))))(X)
    np.testing.assert_allclose(ours, tape.gradient(loss, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["loop_over_a_value_around_it", "loop_in_a_loop"])
def test_a_saved_gradient_reads_values_around_it(name: str, tmp_path: Path) -> None:
    holder = tf.Module()
    holder.f = tf.function(FUNCTIONS[name], [tf.TensorSpec(X.shape)], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(holder, tmp_path, options=options)
    module: Any = invert.load(tmp_path, signature="f", config=PLAIN)
    here = invert.convert(holder.f, X, config=PLAIN)
    found, wanted = (jax.grad(lambda x, m=m: m(x).sum())(X) for m in (module, here))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert "kept as" in module.report.gradients[0]


def test_a_gradient_that_agrees_leaves_no_rule() -> None:
    module = invert.convert(tf.function(FUNCTIONS["library"]), X, config=PLAIN)
    assert "agrees with autodiff" in module.report.gradients[0]
    assert not {"custom_jvp_call", "custom_vjp_call"} & set(module.report.primitives)


def with_gradient(rule: Callable[[Any, Any], Any], fn: Callable[[Any], Any] = tf.identity) -> Any:
    return tf.custom_gradient(lambda x: (fn(x), lambda dy: rule(x, dy)))


# Gradients that equal autodiff's nearly everywhere: an argument and a cotangent where they differ.
NEARLY_EQUAL: dict[str, tuple[Any, float, float]] = {
    "large_cotangents": (with_gradient(lambda x, dy: tf.clip_by_value(dy, -1e3, 1e3)), 1.0, 1e5),
    "large_norms": (with_gradient(lambda x, dy: tf.clip_by_norm(dy, 1e3)), 1.0, 1e5),
    "small_cotangents": (
        with_gradient(lambda x, dy: tf.where(tf.abs(dy) < 1e-3, 0.0, dy)), 1.0, 1e-4
    ),
    "large_arguments": (
        with_gradient(lambda x, dy: tf.where(tf.abs(x) > 500, 0.0, dy)), 1e3, 1.0
    ),
    "narrow_arguments": (
        with_gradient(lambda x, dy: tf.where((x > 0.25) & (x < 0.2501), 0.0, dy)), 0.25005, 1.0
    ),
    "a_tie": (
        with_gradient(
            lambda x, dy: tf.where(x > 0.37, dy, 0.0), lambda x: tf.where(x >= 0.37, x, 0.37)
        ),
        0.37,
        1.0,
    ),
    "nan": (
        with_gradient(lambda x, dy: tf.where(tf.math.is_nan(dy), 0.0, dy)), 1.0, float("nan")
    ),
    "infinity": (
        with_gradient(lambda x, dy: tf.where(tf.math.is_finite(dy), dy, 0.0)), 1.0, float("inf")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEARLY_EQUAL)
@pytest.mark.parametrize("size", [1, 5])
def test_a_gradient_that_nearly_agrees_is_kept(name: str, size: int) -> None:
    fn, argument, cotangent = NEARLY_EQUAL[name]
    x, dy = (np.full(size, number, np.float32) for number in (argument, cotangent))
    fn = tf.function(fn, autograph=False)
    module = invert.convert(fn, x, config=PLAIN)
    with tf.GradientTape() as tape:
        v = tf.constant(x)
        tape.watch(v)
        y = fn(v)
    wanted = tape.gradient(y, v, tf.constant(dy))
    np.testing.assert_allclose(jax.vjp(module, x)[1](dy)[0], wanted, rtol=1e-5)
    assert "kept as" in module.report.gradients[0]


def test_second_derivative_of_a_kept_gradient() -> None:
    fn = tf.function(lambda x: tf.reduce_sum(triple(x) * x), autograph=False)
    module = invert.convert(fn, X, config=PLAIN)
    with tf.GradientTape() as outer:
        x = tf.constant(X)
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = fn(x)
        grad = inner.gradient(y, x)
        total = tf.reduce_sum(tf.sin(grad))
    ours = jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(module)(x))))(X)
    np.testing.assert_allclose(ours, outer.gradient(total, x), rtol=1e-4, atol=1e-5)


def test_variables_of_recomputed_layers() -> None:
    weights = tf.Variable(np.full((4, 4), 0.3, np.float32), name="weights")

    @tf.recompute_grad
    def layer(x: Any) -> Any:
        return tf.tanh(x @ weights)

    fn = tf.function(lambda x: tf.reduce_sum(layer(layer(x)) ** 2), autograph=False)
    module = invert.convert(fn, X, config=PLAIN)
    with tf.GradientTape() as tape:
        loss = fn(tf.constant(X))
    ours = eqx.filter_grad(lambda m: m(X))(module).params
    (ours,) = jax.tree_util.tree_leaves(ours)
    np.testing.assert_allclose(ours, tape.gradient(loss, weights), rtol=1e-5, atol=1e-6)


def test_values_that_a_function_closes_over_have_no_derivative() -> None:
    """As in TensorFlow, also where the gradient of the arguments is that of autodiff."""

    @tf.function(input_signature=[tf.TensorSpec([3, 4]), tf.TensorSpec([4, 4])], autograph=False)
    def fn(x: Any, w: Any) -> Any:
        mixed = tf.tanh(w)

        @tf.custom_gradient
        def product(x: Any) -> Any:
            return x @ mixed, lambda dy: dy @ tf.transpose(mixed)

        recomputed = tf.recompute_grad(lambda x: tf.sin(x @ w))
        return tf.reduce_sum(product(x) ** 2) + tf.reduce_sum(recomputed(x)) + tf.reduce_sum(w)

    w = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    module = invert.convert(fn)
    assert [m.split(": ")[-1] for m in module.report.gradients] == [
        "agrees with autodiff numerically, which stops at values that it closes over"
    ] * 2
    with tf.GradientTape() as tape:
        given = tf.constant(X), tf.constant(w)
        tape.watch(given)
        loss = fn(*given)
    wanted = tape.gradient(loss, given)
    for either in (module, module.model):
        found = jax.grad(lambda x, w, f=either: f(x, w), argnums=(0, 1))(X, w)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_reshapes_to_a_size_around_it() -> None:
    def fn(x: Any) -> Any:
        count = tf.shape(x)[0]

        @tf.custom_gradient
        def rows(y: Any) -> Any:
            return tf.reshape(y, [count, -1]), lambda dy: 3 * tf.reshape(dy, [count, 2, 2])

        return tf.reduce_sum(tf.sin(rows(x)))

    open_x = tf.TensorSpec([None, 2, 2])
    module = invert.convert(tf.function(fn, autograph=False, input_signature=[open_x]))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 2, 2)
    for either in (module, module.model):
        np.testing.assert_allclose(jax.grad(either)(x), 3 * np.cos(x), rtol=1e-5)


def blocks(count: int) -> Any:
    """Residual blocks, each with its own weights and a clipped gradient."""
    rng = np.random.default_rng(0)
    weights = [tf.constant(0.3 * rng.normal(size=(4, 4)), tf.float32) for _ in range(count)]

    @tf.custom_gradient
    def block(x: Any, w: Any) -> Any:
        y = tf.nn.relu(x @ w)

        def grad(dy: Any) -> Any:
            d = tf.where(y > 0, tf.clip_by_value(dy, -1.0, 1.0), 0)
            return d @ tf.transpose(w), tf.transpose(x) @ d

        return y, grad

    @tf.function(input_signature=[tf.TensorSpec([3, 4], tf.float32, "x")], autograph=False)
    def stack(x: Any) -> Any:
        for w in weights:
            x = x + block(x, w)
        return tf.reduce_sum(x**2)

    stack.get_concrete_function()
    return stack


def test_residual_blocks_at_linear_cost() -> None:
    invert.convert(blocks(2), config=PLAIN)  # what is compiled once for all
    seconds = {}
    for count in (10, 20, 40):
        fn = blocks(count)
        taken = []
        for _ in range(
            3
        ):  # the least: what else the process does, such as collecting, comes on top
            start = time.process_time()  # of this process alone
            module = invert.convert(fn, config=PLAIN)
            taken.append(time.process_time() - start)
        seconds[count] = min(taken)
        assert len(module.report.gradients) == count
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        loss = fn(x)
    np.testing.assert_allclose(jax.grad(module)(X), tape.gradient(loss, x), rtol=1e-4)
    assert seconds[40] < 3.5 * seconds[20] and seconds[20] < 3.5 * seconds[10], seconds


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The gradients that are compiled for a numerical comparison."""
    made: list[Any] = []
    compare = settle.first_difference

    def counted(region: Any, *args: Any) -> float:
        made.append(region)
        return compare(region, *args)

    monkeypatch.setattr(settle, "first_difference", counted)
    return made


def test_layers_of_one_kind_are_compared_once(comparisons: list[Any]) -> None:
    invert.convert(blocks(6), config=PLAIN)
    assert len(comparisons) == 1


def test_elementwise_gradients_are_compared_at_one_shape(comparisons: list[Any]) -> None:
    def fn(x: Any) -> Any:
        y = [tf.nn.silu(tf.reshape(x, shape)) for shape in ((12,), (2, 6), (1, 3, 4))]
        return [*y, tf.nn.silu(x[0]), *(triple(v) for v in y)]

    module = invert.convert(tf.function(fn, autograph=False), X, config=PLAIN)
    assert len(comparisons) == 2 and len(module.report.gradients) == 7
    assert sum("agrees" in m for m in module.report.gradients) == 4


def test_elementwise_gradients_at_open_sizes_are_compared_at_a_small_shape(
    comparisons: list[Any],
) -> None:
    def fn(x: Any) -> Any:
        return tf.nn.silu(tf.nn.silu(x)[:, ::2] + x[:, ::2]), tf.nn.silu(x[0])

    images = tf.TensorSpec([None, 512, 512, 8], tf.float32)
    module = invert.convert(tf.function(fn, autograph=False), images, config=PLAIN)
    assert len(comparisons) == 1 and len(module.report.gradients) == 3
    assert all("agrees" in m for m in module.report.gradients)
    assert max(np.prod(a.shape) for a in comparisons[0].avals) <= 256


def test_a_gradient_no_longer_elementwise_is_compared_again(
    comparisons: list[Any],
) -> None:
    @tf.custom_gradient
    def scaled(x: Any, factor: Any) -> Any:
        return x * factor, lambda dy: (dy * factor, tf.reduce_mean(dy * x))

    fn = tf.function(lambda x: (scaled(x, x[0, 0]), scaled(x[:1, :1], x[0, 0])), autograph=False)
    module = invert.convert(fn, X, config=PLAIN)
    # The mean of one number is its sum, so that only the second gradient is that of autodiff.
    assert len(comparisons) == 2
    assert ["kept" in m for m in module.report.gradients] == [True, False]


def nested(depth: int) -> Any:
    """Nested functions with custom gradients."""

    def make(depth: int) -> Callable[[Any], Any]:
        if depth == 0:
            return tf.sin
        inner = make(depth - 1)

        @tf.custom_gradient
        def outer(x: Any) -> Any:
            return 1.5 * inner(x), lambda dy: 0.5 * dy * x

        return outer

    return tf.function(make(depth), autograph=False)


def test_nested_gradients_at_linear_cost() -> None:
    invert.convert(nested(2), X, config=PLAIN)  # what is compiled once for all
    seconds = {}
    for depth in (5, 15):
        fn = nested(depth)
        fn.get_concrete_function(tf.TensorSpec(X.shape, tf.float32))
        start = time.process_time()  # of this process alone
        module = invert.convert(fn, X, config=PLAIN)
        seconds[depth] = time.process_time() - start
        assert len(module.report.gradients) == depth
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(module(x)))(X), 0.5 * X)
    # Work that doubles with each level would take a thousand times as long.
    assert seconds[15] < 30 * seconds[5], seconds


def test_prevent_gradient() -> None:
    fn = tf.function(lambda x: tf.raw_ops.PreventGradient(input=x * x, message="not this"))
    module = invert.convert(fn, X, config=PLAIN)
    np.testing.assert_array_equal(module(X), X * X)
    with pytest.raises(LookupError, match="not this"):
        jax.grad(lambda x: jnp.sum(module(x)))(X)
    warned = invert.convert(fn, X, config=invert.Config(prevent_gradient="warn"))
    with pytest.warns(UserWarning, match="not this"):
        grad = jax.grad(lambda x: jnp.sum(warned(x)))(X)
    np.testing.assert_allclose(grad, 2 * X)


def test_gradients_are_left_out_on_request() -> None:
    config = invert.Config(verify=False, custom_gradients="ignore")
    module = invert.convert(tf.function(clip), X, config=config)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(module(x)))(X), np.full_like(X, 2))


def test_what_is_linear() -> None:
    def shown(fn: Callable[..., Any], *types: Any) -> bool:
        from invert.ir.linearity import is_linear

        return is_linear(jax.make_jaxpr(fn)(*types), 1)

    x = np.ones((3, 3), np.float32)
    assert shown(lambda w, d: jnp.where(w > 0, (d @ w.T).sum(0) * 3, 0.0) / w, x, x)
    assert shown(lambda w, d: jnp.concatenate([d, jnp.zeros_like(d)])[1:], x, x)
    assert shown(jax.jit(lambda w, d: w * d), x, x)
    assert not shown(lambda w, d: d * d, x, x)
    assert not shown(lambda w, d: d + 1, x, x)
    assert not shown(lambda w, d: w / d, x, x)
    assert not shown(lambda w, d: jnp.clip(d, -1, 1), x, x)
    assert not shown(lambda w, d: jnp.where(d > 0, d, 0.0), x, x)
    assert not shown(lambda w, d: jnp.where(w > 0, d, 1.0), x, x)
    assert not shown(lambda w, d: d.astype(np.int32).astype(np.float32), x, x)
    assert not shown(lambda w, d: w, x, x)


def test_a_bug_while_comparing_gradients_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "first_difference", lambda: None)
    with pytest.raises(DefectError, match=r"TypeError in invert\.gradients\.settle, line"):
        invert.convert(tf.function(triple), X)


def test_a_function_with_a_rule_that_returns_a_number_it_was_given() -> None:
    @tf.custom_gradient
    def scaled(v: Any, x: Any) -> Any:
        return (tf.exp(x) * v, v), lambda dy, dv: (dv, 7 * dy * triple(x))

    def f(x: Any) -> Any:
        return scaled(tf.constant(2.0), x)

    module = invert.convert(tf.function(f), X)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        want, number = f(x)
    expected = tape.gradient(want, x)
    for model in (module, module.model):
        results = model(X)
        np.testing.assert_allclose(results[0], want, rtol=1e-6)
        np.testing.assert_array_equal(results[1], number)
        gradient = jax.grad(lambda x, model=model: jnp.sum(model(x)[0]))(X)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
