"""Steps of training, which hold the gradient of a loss: their own derivative is autodiff."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert._private.jax import eval_closed, trace_closed
from invert.gradients.paddings import with_padded_parts

_RNG = np.random.default_rng(3)
AGREES = "agrees with autodiff"


def _f(*shape: int) -> np.ndarray:
    return 0.5 * _RNG.standard_normal(shape).astype(np.float32)


def _i(high: int, *shape: int) -> np.ndarray:
    return _RNG.integers(0, high, shape).astype(np.int32)


def cross_entropy(scores: Any, labels: Any) -> Any:
    """As in libraries of losses: the score of each label is taken out of an axis of one."""
    of_labels = jnp.take_along_axis(scores, labels[..., None], axis=-1).take(0, axis=-1)
    return (jax.nn.logsumexp(scores, axis=-1) - of_labels).mean()


def perceptron(w: Any, x: Any, labels: Any) -> Any:
    return cross_entropy(jax.nn.gelu(x @ w["up"] + w["bias"]) @ w["down"], labels)


def one_hot(w: Any, x: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax(jax.nn.relu(x @ w["up"] + w["bias"]) @ w["down"])
    return -(scores * jax.nn.one_hot(labels, 3)).sum(-1).mean()


def own_softmax(w: Any, x: Any, labels: Any) -> Any:
    """A softmax whose maximum is differentiated, too."""
    scores = jnp.tanh(x @ w["up"]) @ w["down"]
    part = jnp.exp(scores - scores.max(-1, keepdims=True))
    return -jnp.log((part / part.sum(-1, keepdims=True))[:, 0] + 0.1).mean() + labels.mean()


def attention(w: Any, tokens: Any) -> Any:
    x = w["table"][tokens]
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    q, k, v = jnp.split(x @ w["qkv"], 3, axis=-1)
    scores = jnp.where(jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)), q @ k.mT, -1e9)
    return cross_entropy((x + jax.nn.softmax(scores) @ v) @ w["table"].T, tokens)


def messages(w: Any, x: Any, to: Any, sent: Any) -> Any:
    h = jax.ops.segment_sum(jax.nn.leaky_relu(x[sent] @ w), to, 4)
    return jax.nn.logsumexp(h / jnp.maximum(jax.ops.segment_sum(jnp.ones(9), to, 4), 1)[:, None])


def contrastive(w: Any, x: Any, labels: Any) -> Any:
    """The maximum of two arrays together is subtracted from either."""
    h = jnp.tanh(x @ w["up"])
    scores = h @ h.T
    same = labels[:, None] == labels
    parts = [jnp.where(mask, scores, -jnp.inf) for mask in (same, ~same)]
    largest = lax.stop_gradient(jnp.concatenate(parts, axis=-1).max(-1, keepdims=True))
    near, far = (jnp.exp(part - largest) for part in parts)
    total = near + far.sum(-1, keepdims=True)
    return -jnp.where(same, parts[0] - largest - jnp.log(total), 0.0).mean()


def recomputed(w: Any, x: Any, labels: Any) -> Any:
    """A loss whose layers are recomputed, outside of loops."""
    for _ in range(2):
        x = jax.checkpoint(lambda x, k: x + jnp.tanh(x @ k))(x, w["square"])
    return cross_entropy(x @ w["down"], labels)


def policy(w: Any, x: Any, action: Any, gain: Any) -> Any:
    scores = jax.nn.log_softmax(jnp.tanh(x @ w["up"]) @ w["down"])
    ratio = jnp.exp(jnp.take_along_axis(scores, action[:, None], 1)[:, 0] - 0.3)
    return -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()


def pooled(w: Any, x: Any, labels: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    h = lax.conv_general_dilated(x, w["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
    h = jax.nn.relu((h - h.mean((0, 1, 2))) * lax.rsqrt(h.var((0, 1, 2)) + 1e-5))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return cross_entropy(h.reshape(x.shape[0], -1) @ w["down"], labels)


def looped(w: Any, x: Any, labels: Any) -> Any:
    """Layers in a loop, of functions whose rules JAX may drop."""

    def layer(h: Any, k: Any) -> tuple[Any, None]:
        return jax.nn.relu(h + jax.nn.softplus(h @ k) - 0.5), None

    return cross_entropy(lax.scan(layer, x, w["stack"])[0] @ w["down"], labels)


DENSE = {"up": _f(5, 8), "bias": _f(8), "down": _f(8, 3)}
SQUARE = {"square": _f(8, 8), "down": _f(8, 3)}
FILTERS = {"kernel": _f(3, 3, 3, 4), "down": _f(36, 5)}
BATCH = DENSE, _f(4, 5), _i(3, 4)
PUT_BACK = f"{AGREES}, with stop_gradient put back"
PROMISED = f"{PUT_BACK}, where gathers promise bounds"
NUMBERS = f"{AGREES} numerically, with stop_gradient put back"
STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "cross entropy": (perceptron, BATCH, AGREES),
    "one hot": (one_hot, BATCH, AGREES),
    "own softmax": (own_softmax, BATCH, AGREES),
    "attention": (attention, ({"table": _f(11, 8), "qkv": _f(8, 24)}, _i(11, 2, 6)), AGREES),
    "messages": (messages, (_f(3, 5), _f(4, 3), _i(4, 9), _i(4, 9)), AGREES),
    "contrastive": (contrastive, BATCH, PUT_BACK),
    "policy": (policy, (DENSE, _f(4, 5), _i(3, 4), _f(4)), AGREES),
    "looped": (
        looped,
        ({"stack": _f(3, 8, 8), "down": _f(8, 3)}, _f(4, 8), _i(3, 4)),
        "",  # in jax 0.10 it is "without rules in loops"
    ),
    "pooled": (
        pooled,
        ({"kernel": _f(3, 3, 3, 4), "down": _f(36, 5)}, _f(2, 6, 6, 3), _i(5, 2)),
        "",
    ),
}


# Without the loss among the results, its derivative is not told from other equations.
WITHOUT_LOSS = {
    "cross entropy": PROMISED,
    "one hot": PUT_BACK,
    "attention": PROMISED,
    "messages": PROMISED,
    "policy": PUT_BACK,
}


def _step(loss: Callable[..., Any], *, returns_loss: bool = True) -> Callable[..., Any]:
    def step(weights: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, *batch)
        new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
        return (new, value) if returns_loss else new

    return step


def _slope(step: Callable[..., Any], weights: Any, *batch: Any) -> Any:
    """A derivative of a step that depends on all of its results."""

    def total(weights: Any) -> Any:
        found = jax.tree.leaves(step(weights, *batch))
        return sum(jnp.sum(jnp.cos(x) * (1 + jnp.arange(x.size).reshape(x.shape))) for x in found)

    return jax.jit(jax.grad(total))(weights)


def _check(module: Any, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for run in (module, module.model):
        found, wanted = jax.jit(lambda *a, run=run: run(*a))(*args), jax.jit(step)(*args)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
        # Sums of terms of size 10 in another order.
        slopes = _slope(run, *args), _slope(step, *args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), *slopes)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_live", [False, True])
def test_a_step_needs_no_rule(name: str, is_live: bool) -> None:
    loss, args, told = STEPS[name]
    step = _step(loss)
    exported = jax.export.export(jax.jit(step))(*args)
    if not is_live:
        exported = jax.export.deserialize(exported.serialize(vjp_order=1))
    module = invert.from_exported(exported)
    found = module.report.gradients
    # An artifact of this process whose rules are all JAX's own is not compared.
    assert all(m.endswith(told) for m in found) and (found or is_live)
    assert "custom_vjp" not in module.source and "custom_jvp" not in module.source
    _check(module, step, args)


@pytest.mark.parametrize("name", WITHOUT_LOSS)
def test_a_step_that_does_not_return_its_loss(name: str) -> None:
    loss, args, _ = STEPS[name]
    step = _step(loss, returns_loss=False)
    exported = jax.export.export(jax.jit(step))(*args)
    module = invert.from_exported(jax.export.deserialize(exported.serialize(vjp_order=1)))
    (told,) = module.report.gradients
    assert told.endswith(WITHOUT_LOSS[name])
    assert "value_and_grad" not in module.source
    _check(module, step, args)


@pytest.mark.parametrize("name", WITHOUT_LOSS)
def test_a_step_without_a_stored_gradient(name: str) -> None:
    """What lowering hides in its derivatives comes from the library functions of the loss."""
    loss, args, _ = STEPS[name]
    step = _step(loss)
    exported = jax.export.export(jax.jit(step))(*args)
    module = invert.from_exported(jax.export.deserialize(exported.serialize()))
    assert not module.report.gradients
    _check(module, step, args)


def test_the_gradient_of_a_table_is_written_as_an_update() -> None:
    loss, args, _ = STEPS["attention"]
    exported = jax.export.export(jax.jit(_step(loss, returns_loss=False)))(*args)
    blob = exported.serialize(vjp_order=1)
    source = invert.from_exported(jax.export.deserialize(blob)).source
    assert re.search(r'\.at\[arg1\]\.add\(\w+, mode="promise_in_bounds"\)', source)


@pytest.mark.parametrize("is_live", [False, True])
def test_rules_that_the_derivative_of_a_loop_drops(is_live: bool) -> None:
    """In jax 0.10 the next derivative at a kink is that of `maximum`, in others that of `relu`."""

    def last(x: Any) -> Any:
        return lax.scan(lambda c, _: (c + jax.nn.relu(c) * (1 + c), None), x, length=2)[0].sum()

    x = np.array([0.0, 1.0, -1.0], np.float32)
    exported = jax.export.export(jax.jit(jax.grad(last)))(x)
    if not is_live:
        exported = jax.export.deserialize(exported.serialize(vjp_order=1))
    module = invert.from_exported(exported)
    assert all(AGREES in told for told in module.report.gradients)
    wanted = jax.grad(lambda x: jax.grad(last)(x).sum())(x)
    for f in (module, module.model):
        np.testing.assert_array_equal(jax.grad(lambda x, f=f: f(x).sum())(x), wanted)


def test_a_step_on_any_batch() -> None:
    loss, (weights, tokens), _ = STEPS["attention"]
    step = _step(loss)
    types = {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}
    sizes = jax.export.symbolic_args_specs((tokens,), "b, n")
    exported = jax.export.export(jax.jit(step))(types, *sizes)
    module = invert.from_exported(jax.export.deserialize(exported.serialize(vjp_order=1)))
    assert module.report.gradients[-1].endswith(AGREES)
    assert "value_and_grad" in module.source
    _check(module, step, (weights, _i(11, 3, 4)))


def test_a_maximum_that_the_author_differentiates() -> None:
    """Stopping it would change the derivative."""

    def centred(x: Any) -> Any:
        return (x - x.max(-1, keepdims=True)) ** 2

    x = _f(4, 5)
    exported = jax.export.export(jax.jit(centred))(x).serialize(vjp_order=1)
    module = invert.from_exported(jax.export.deserialize(exported))
    assert module.report.gradients[-1].endswith(AGREES)
    for f in (module, module.model):
        np.testing.assert_array_equal(
            jax.grad(lambda x, f=f: f(x).sum())(x), jax.grad(lambda x: centred(x).sum())(x)
        )


def test_results_that_are_numbers() -> None:
    """A step that reports a constant, such as its learning rate, beside what it computes."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    def step(w: jax.Array, v: jax.Array, x: jax.Array) -> tuple[Any, ...]:
        w = w - 0.1 * jax.grad(loss)(w, x)
        change = jax.grad(lambda v: loss(v, x @ w @ w.T))(v)
        return w, v - 0.1 * change, 0.1, 3

    args = (np.eye(3, dtype=np.float32), np.ones((3, 3), np.float32), np.ones((4, 3), np.float32))
    module = invert.from_exported(jax.export.export(jax.jit(step))(*args))
    assert module.source  # a defect is an error in the tests
    for got, want in zip(module(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_array_equal(got, want)


# Their derivatives save what they convert the number to, and a condition twice; the number of an
# inner call; a polynomial; and what is part of a result and of the derivative.
CALLS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "jax.nn.leaky_relu": lambda y: jax.nn.leaky_relu(y, 0.3),
    "jax.nn.elu": lambda y: jax.nn.elu(y, 0.3),
    "jax.nn.celu": lambda y: jax.nn.celu(y, 0.3),
    "jax.nn.selu": jax.nn.selu,
    "jax.nn.gelu": lambda y: jax.nn.gelu(y, approximate=False),
    "jnp.max": lambda y: jnp.max(y, axis=-1, keepdims=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_a_loss(name: str) -> None:
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, slope = jax.value_and_grad(lambda w: jnp.mean(CALLS[name](x @ w) ** 2))(w)
        return loss, w - 0.1 * slope

    args = (np.eye(3, dtype=np.float32) - 0.5, np.ones((4, 3), np.float32))
    module = invert.from_exported(jax.export.export(jax.jit(step))(*args))
    assert f"{name}(" in module.source
    assert "jax.value_and_grad" in module.source


def test_a_stop_in_a_step_with_many_values() -> None:
    """A network with the largest of another one as target, and an optimizer with a root."""
    weights = {"up": _f(5, 8), "bias": _f(8), "down": _f(8, 3), "last": _f(3)}

    def scores(w: Any, x: Any) -> Any:
        return jax.nn.relu(x @ w["up"] + w["bias"]) @ w["down"] + w["last"]

    def loss(w: Any, slow: Any, x: Any, after: Any, chosen: Any) -> Any:
        best = jnp.argmax(scores(w, after), -1)
        target = jnp.take_along_axis(scores(slow, after), best[:, None], -1)
        own = jnp.take_along_axis(scores(w, x), chosen[:, None], -1)
        gap = jnp.abs(own - lax.stop_gradient(target))
        quadratic = jnp.minimum(gap, 1.0)
        return (0.5 * quadratic**2 + gap - quadratic).mean()

    def step(state: Any, *batch: Any) -> Any:
        w, slow, first, second, count = state
        value, slope = jax.value_and_grad(loss)(w, slow, *batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, slope)
        count = count + 1.0
        own, other = (1 - 0.9**count, 1 - 0.99**count)

        def updated(w: Any, m: Any, v: Any) -> Any:
            return w - 0.1 * (m / own) / (jnp.sqrt(v / other) + 1e-3)

        w = jax.tree.map(updated, w, first, second)
        slow = jax.tree.map(lambda s, w: 0.9 * s + 0.1 * w, slow, w)
        return (w, slow, first, second, count), value

    moments = [jax.tree.map(lambda x, n=n: n * x**2 + 0.1, weights) for n in (1, 2)]
    slow = jax.tree.map(lambda x: -x[::-1], weights)
    state = (weights, slow, *moments, np.float32(3))
    args = (state, _f(4, 5), _f(4, 5), _i(3, 4))
    module = invert.from_exported(jax.export.export(jax.jit(step))(*args))
    (told,) = module.report.gradients
    assert told.endswith(PUT_BACK)
    _check(module, step, args)


def test_parts_that_are_zero_are_compared_as_paddings() -> None:
    x = np.array([[1.0, -0.0], [np.nan, -np.inf]], np.float32)

    def made(before: float) -> list[str]:
        program = trace_closed(lambda x: [lax.concatenate([lax.full_like(x, before), x], 1)], x)
        found = with_padded_parts(program)
        wanted, result = (np.asarray(eval_closed(p, [x])[0]) for p in (program, found))
        np.testing.assert_array_equal(result.view(np.int32), wanted.view(np.int32))
        return [e.primitive.name for e in found.jaxpr.eqns]

    assert "pad" in made(0.0)
    assert "pad" not in made(-0.0)
    assert "pad" not in made(1.0)
