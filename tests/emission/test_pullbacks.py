"""Steps of training that do not return their loss: `jax.vjp` of what the loss is computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert

_RNG = np.random.default_rng(23)


def _f(*shape: int) -> np.ndarray:
    return 0.5 * _RNG.standard_normal(shape).astype(np.float32)


P = {"w": _f(3, 7), "b": _f(7), "o": _f(7, 2), "c": _f(2)}
X, Y = _f(5, 3), np.array([0, 1, 1, 0, 1], np.int32)


def _derivative(run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A derivative of all results by the first argument and by `X`."""

    def of(p: Any, x: Any) -> Any:
        return run(p, x, *args[2:])

    ones = jax.tree.map(jnp.ones_like, args[:2])
    return jax.jit(lambda *values: jax.jvp(of, values, ones)[1])(*args[:2])


def _text(step: Callable[..., Any], args: tuple[Any, ...], types: tuple[Any, ...] = ()) -> str:
    """The model's text of an exported step; values equal those of the step, and derivatives do."""
    exported = jax.export.export(jax.jit(step))(*(types or args))
    module: Any = invert.from_exported(bytes(exported.serialize()))
    nothing = jax.tree.map(lambda a: np.full_like(a, np.nan), args[0])
    for run in (module, module.model):
        for first in (args[0], jax.tree.map(np.zeros_like, args[0]), nothing):
            values = first, *args[1:]
            found = jax.jit(lambda *a, run=run: run(*a))(*values)
            jax.tree.map(np.testing.assert_array_equal, found, jax.jit(step)(*values))
        found, wanted = _derivative(run, args), _derivative(step, args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), found, wanted)
    text, _, _ = module.source.partition("\ndef load(")
    return text


def _model(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["o"] + p["c"]


def _loss(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((_model(p, x) - jax.nn.one_hot(y, 2)) ** 2)


def _entropy(p: Any, x: Any, y: Any) -> Any:
    scores = jax.nn.log_softmax(_model(p, x))
    return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))


def _updated(p: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


@pytest.mark.parametrize("loss", [_loss, _entropy])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_step_is_a_model_and_an_update(loss: Callable[..., Any], is_open: bool) -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        return _updated(p, jax.grad(loss)(p, x, y))

    sizes = {"w": "3,7", "b": "7", "o": "7,2", "c": "2"}, "b,3", "b"
    types = jax.export.symbolic_args_specs((P, X, Y), sizes) if is_open else ()
    text = _text(step, (P, X, Y), types)
    assert "output, pullback = jax.vjp(forward, p)" in text
    assert text.count('p["w"]') == text.count("jnp.tanh(") == 1
    assert "return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads)" in text


def test_results_of_the_model_are_used_otherwise() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            hidden = jnp.tanh(x @ p["w"] + p["b"])
            logits = hidden @ p["o"] + p["c"]
            return -jnp.mean(jax.nn.log_softmax(logits)[:, 0]), (logits, hidden)

        grads, (logits, hidden) = jax.grad(loss, has_aux=True)(p)
        return _updated(p, grads), jnp.mean(logits.argmax(-1) == y), hidden

    text = _text(step, (P, X, Y))
    assert "output, pullback, tanh = jax.vjp(forward, p, has_aux=True)" in text


def test_several_results_have_cotangents() -> None:
    def loss(p: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ p["w"] + p["b"])
        value, score = hidden @ p["o"], hidden @ p["d"]
        return jnp.mean(jnp.sin(value)) + jnp.mean(jnp.exp(score)) + 0.0 * jnp.mean(y)

    def step(p: Any, x: Any, y: Any) -> Any:
        return _updated(p, jax.grad(loss)(p, x, y))

    text = _text(step, ({**P, "d": _f(7, 4)}, X, _f(5)))
    assert text.count("jax.vjp(") == 1
    assert "pullback((" in text


def test_a_loss_reads_values_inside_the_model() -> None:
    def loss(p: Any, x: Any) -> Any:
        code = x @ p["w"] + p["b"]
        return jnp.mean((jnp.tanh(code) @ p["o"] + p["c"]) ** 2) + 0.1 * jnp.mean(code**2)

    def step(p: Any, x: Any) -> Any:
        return _updated(p, jax.grad(loss)(p, x))

    text = _text(step, (P, X))
    assert text.count('p["w"]') == text.count("jax.vjp(") == 1


def test_a_cotangent_that_is_an_argument() -> None:
    def step(p: Any, x: Any, cotangent: Any) -> Any:
        output, pullback = jax.vjp(_model, p, x)
        return output, pullback(cotangent)

    text = _text(step, (P, X, _f(5, 2)))
    assert "output, pullback = jax.vjp(forward, p, x)" in text
    assert "pullback(cotangent)" in text


def test_derivatives_are_added_up_over_batches() -> None:
    def scanned(p: Any, x: Any, y: Any) -> Any:
        def one(total: Any, batch: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(_entropy)(p, *batch)), None

        return lax.scan(one, jax.tree.map(jnp.zeros_like, p), (x, y))[0]

    def unrolled(p: Any, x: Any, y: Any) -> Any:
        one, other = (jax.grad(_loss)(p, x[i], y[i]) for i in range(2))
        return jax.tree.map(jnp.add, one, other)

    batches = P, np.stack([X, 2 * X]), np.stack([Y, 1 - Y])
    assert _text(scanned, batches).count("jax.vjp(") == 1
    assert _text(unrolled, batches).count("jax.vjp(") == 2


def test_the_derivative_by_an_argument_beside_the_parameters() -> None:
    def force(p: Any, x: Any) -> Any:
        return -jax.grad(lambda x: jnp.sum(_model(p, x) ** 2))(x)

    assert "jax.vjp(forward, x)" in _text(force, (P, X))


def test_a_model_that_multiplies_with_a_matrix_and_its_transpose() -> None:
    def step(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["w"] + p["b"]) @ p["w"].T

    assert "jax.vjp(" not in _text(step, (P, X))


def _product(x: Any) -> Any:
    return x * x


@pytest.mark.parametrize("square", [lax.square, _product])
@pytest.mark.parametrize("is_returned", [True, False])
def test_a_model_whose_variance_is_of_two_means(
    square: Callable[..., Any], is_returned: bool
) -> None:
    def norm(p: Any, x: Any) -> Any:
        mean = jnp.mean(x, -1)
        var = jnp.maximum(0.0, jnp.mean(square(x), -1) - square(mean))
        centered = x - jnp.expand_dims(mean, -1)
        return centered * (lax.rsqrt(jnp.expand_dims(var, -1) + 1e-6) * p["g"]) + p["b"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((norm(p, x @ p["w"]) @ p["o"] + p["c"] - jax.nn.one_hot(y, 2)) ** 2)

    def step(p: Any, x: Any, y: Any) -> Any:
        number, grads = jax.value_and_grad(loss)(p, x, y)
        return (_updated(p, grads), number) if is_returned else _updated(p, grads)

    text = _text(step, (P | {"g": _f(7)}, X, Y))
    assert text.count("value_and_grad(" if is_returned else "jax.vjp(") == 1


def test_a_second_gradient_at_changed_parameters() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(_loss)(p, x, y)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads)))
        moved = jax.tree.map(lambda w, g: w + 0.05 * g / norm, p, grads)
        return _updated(p, jax.grad(_loss)(moved, x, y))

    text = _text(step, (P, X, Y))
    assert text.count("jax.vjp(") == 2, text
    assert "einsum" not in text


def test_the_gradient_of_a_model_that_another_one_has_trained() -> None:
    q = {"w": _f(2, 4), "o": _f(4)}

    def judged(q: Any, z: Any) -> Any:
        return jax.nn.sigmoid(jnp.tanh(z @ q["w"]) @ q["o"])

    def step(p: Any, x: Any, q: Any, real: Any) -> Any:
        of_q = jax.grad(lambda q: jnp.mean(judged(q, _model(p, x)) - judged(q, real)))
        q = _updated(q, of_q(q))
        return _updated(p, jax.grad(lambda p: -jnp.mean(judged(q, _model(p, x))))(p)), q

    text = _text(step, (P, X, q, _f(5, 2)))
    assert text.count("jax.vjp(") == 2, text
    assert "einsum" not in text


def test_a_loss_of_what_a_derivative_without_its_loss_has_changed() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        p = _updated(p, jax.grad(_loss)(p, x, y))
        loss, grads = jax.value_and_grad(_entropy)(p, x, y)
        return _updated(p, grads), loss

    text = _text(step, (P, X, Y))
    assert text.count("jax.vjp(") == text.count("jax.value_and_grad(") == 1, text


def test_the_last_product_is_in_a_loop() -> None:
    p = {"w": _f(3, 4), "u": _f(4, 4)}

    def loss(p: Any, x: Any, y: Any) -> Any:
        def cell(state: Any, row: Any) -> Any:
            state = jnp.tanh(row @ p["w"] + state @ p["u"])
            return state, state

        last, states = lax.scan(cell, jnp.zeros((2, 4)), x)
        return jnp.mean((last - y) ** 2) + 0.1 * jnp.mean(states**2)

    def step(p: Any, x: Any, y: Any) -> Any:
        return _updated(p, jax.grad(loss)(p, x, y))

    text = _text(step, (p, _f(5, 2, 3), _f(2, 4)))
    assert text.count("jax.vjp(") == text.count("lax.scan(") == 1, text


def test_a_student_learns_from_a_teacher_and_labels() -> None:
    """Both networks read the same input, so a layer of the teacher looks like one that learns."""

    def step(p: Any, x: Any, teacher: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            scores, given = _deep(p, x), _deep(teacher, x)
            distance = jax.nn.softmax(given / 2) * jax.nn.log_softmax(scores / 2)
            labels = jax.nn.one_hot(y, 2) * jax.nn.log_softmax(scores)
            return -jnp.mean(jnp.sum(distance + labels, -1))

        return _updated(p, jax.grad(loss)(p))

    text = _text(step, (DEEP, X, jax.tree.map(np.sin, DEEP), Y))
    assert text.count("jax.vjp(") == 1
    assert "einsum" not in text


DEEP = {"a": _f(3, 7), "i": _f(7), "b": _f(7, 5), "j": _f(5), "c": _f(5, 2), "k": _f(2)}


def _deep(p: Any, x: Any) -> Any:
    hidden = jnp.tanh(jax.nn.silu(x @ p["a"] + p["i"]) @ p["b"] + p["j"])
    return hidden @ p["c"] + p["k"]


def test_a_loss_multiplies_once_more() -> None:
    """The last product with a cotangent is of the loss, and the model has others besides."""

    def step(p: Any, x: Any, queue: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            found = _model(p, x)
            found = found / jnp.linalg.norm(found, axis=-1, keepdims=True)
            scores = jnp.concatenate([jnp.sum(found * y, -1, keepdims=True), found @ queue], 1)
            return -jnp.mean(jax.nn.log_softmax(scores)[:, 0])

        return _updated(p, jax.grad(loss)(p))

    text = _text(step, (P, X, _f(2, 9), _f(5, 2)))
    assert text.count("jax.vjp(") == 1
