"""Steps of training in text: a function of the loss, and `jax.value_and_grad`."""

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

_RNG = np.random.default_rng(17)


def _f(*shape: int) -> np.ndarray:
    return 0.5 * _RNG.standard_normal(shape).astype(np.float32)


def _text(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    types: tuple[Any, ...] = (),
    certificate: str = "",
) -> str:
    """The model's text of an exported step; values equal those of the step, jitted or not."""
    exported = jax.export.export(jax.jit(step))(*(types or args))
    module: Any = invert.from_exported(bytes(exported.serialize()))
    assert str(module.report.certificate).startswith(certificate)
    for run in (module, module.model):
        found, wanted = jax.jit(lambda *a, run=run: run(*a))(*args), jax.jit(step)(*args)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    text, _, _ = module.source.partition("\ndef load(")
    return text


def _step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    return step


def _mse(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) @ p["o"] - y) ** 2)


P = {"w": _f(3, 7), "b": _f(7), "o": _f(7, 2)}
BATCH = _f(5, 3), _f(5, 2)


def test_a_step_is_a_loss_and_an_update() -> None:
    text = _text(_step(_mse), (P, *BATCH))
    assert "def loss_fn(p):" in text
    assert "loss, grads = jax.value_and_grad(loss_fn)(p)" in text
    assert "p = jax.tree.map(lambda p, g: p - 0.1 * g, p, grads)" in text
    assert "return p, loss" in text
    assert "einsum" not in text  # which the backward pass consists of


def test_a_step_of_an_open_batch() -> None:
    sizes = {"w": "3,7", "b": "7", "o": "7,2"}, "b,3", "b,2"
    types = jax.export.symbolic_args_specs((P, *BATCH), sizes)
    assert "jax.value_and_grad(loss_fn)(p)" in _text(_step(_mse), (P, *BATCH), types)


def test_the_parameters_are_a_part_of_a_state() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(_mse)(state["params"], x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum, "count": state["count"] + 1}, loss

    state = {"params": P, "momentum": jax.tree.map(np.ones_like, P), "count": np.int32(3)}
    text = _text(step, (state, *BATCH))
    assert "def loss_fn(params):" in text
    assert 'jax.value_and_grad(loss_fn)(state["params"])' in text


def test_a_step_in_double_precision() -> None:
    with jax.enable_x64(True):
        args = jax.tree.map(lambda a: a.astype(np.float64), (P, *BATCH))
        text = _text(_step(_mse), args)
    assert "jax.value_and_grad(loss_fn)(p)" in text


def test_some_arrays_are_frozen() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        loss, (b, o) = jax.value_and_grad(lambda b, o: _mse({**p, "b": b, "o": o}, x, y), (0, 1))(
            p["b"], p["o"]
        )
        return p["b"] - 0.1 * b, p["o"] - 0.1 * o, loss

    text = _text(step, (P, *BATCH))
    assert 'jax.value_and_grad(loss_fn, argnums=(0, 1))(p["b"], p["o"])' in text


def test_a_loss_returns_more_than_its_value() -> None:
    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ p["w"] + p["b"])
        return jnp.mean((h @ p["o"] - y) ** 2), h.mean(0)

    def step(p: Any, mean: Any, x: Any, y: Any) -> Any:
        (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(p, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), 0.9 * mean + 0.1 * new, loss

    text = _text(step, (P, _f(7), *BATCH))
    assert "jax.value_and_grad(loss_fn, has_aux=True)(p)" in text


def test_the_parts_of_a_loss_are_results() -> None:
    """The program computes them once, inside of the loss."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        h = jax.nn.gelu(x @ p["w"] + p["b"])
        scores = jax.nn.log_softmax(h @ p["o"])
        one, two = -jnp.mean(scores * y), jnp.mean(jnp.sum(jax.nn.softmax(h) ** 2, axis=-1))
        return one + 0.3 * two, {"one": one, "two": two}

    def step(p: Any, x: Any, y: Any) -> Any:
        (loss, parts), grads = jax.value_and_grad(loss_fn, has_aux=True)(p, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), loss, parts

    assert "jax.value_and_grad(loss_fn, has_aux=True)(p)" in _text(step, (P, *BATCH))


@pytest.mark.parametrize("activation", [jnp.tanh, jax.nn.silu])
def test_biases_that_are_broadcast_first(activation: Callable[..., Any]) -> None:
    """Their derivative is one sum, and not one that keeps an axis."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        h = activation(x @ p["w"] + jnp.broadcast_to(p["b"], (5, 7)))
        return jnp.mean((h @ p["o"] - y) ** 2)

    assert "jax.value_and_grad(loss_fn)(p)" in _text(_step(loss_fn), (P, *BATCH))


def test_a_bias_of_one_number() -> None:
    """Libraries reshape it, and a norm of all gradients squares it like the others."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        h = jnp.tanh(x @ p["w"]) @ p["o"] + p["b"].reshape(1, 1)
        return jnp.mean((h - y[:, :1]) ** 2)

    def step(p: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(p, x, y)
        # As in optax, whose squares are those of complex numbers.
        squares = [jnp.square(g) + jnp.square(jnp.zeros_like(g)) for g in jax.tree.leaves(grads)]
        norm = jnp.sqrt(sum(jnp.sum(s) for s in squares))
        clipped = jax.tree.map(lambda g: jnp.where(norm < 0.1, g, g / norm * 0.1), grads)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, clipped), loss

    text = _text(step, ({"w": _f(3, 7), "b": _f(1), "o": _f(7, 1)}, *BATCH))
    assert "jax.value_and_grad(loss_fn)(p)" in text
    assert "sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))" in text


def test_statistics_of_many_normalizations() -> None:
    """Each layer returns two of them beside the loss, and has two parameters."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        statistics = []
        for layer in p["layers"]:
            h = x @ layer["w"]
            mean, variance = h.mean(0), jnp.square(h).mean(0)
            statistics.append((mean, variance))
            x = jnp.tanh((h - mean) * lax.rsqrt(variance + 1e-3) * layer["scale"] + layer["bias"])
        return jnp.mean((x @ p["o"] - y) ** 2), statistics

    def step(p: Any, s: Any, x: Any, y: Any) -> Any:
        (loss, new), grads = jax.value_and_grad(loss_fn, has_aux=True)(p, x, y)
        s = jax.tree.map(lambda s, n: 0.9 * s + 0.1 * n, s, new)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), s, loss

    p = {
        "layers": [{"w": _f(3, 3), "scale": _f(3), "bias": _f(3)} for _ in range(6)],
        "o": _f(3, 2),
    }
    text = _text(step, (p, [(_f(3), _f(3)) for _ in range(6)], *BATCH))
    assert "jax.value_and_grad(loss_fn, has_aux=True)(p)" in text


def test_a_token_for_each_example() -> None:
    """The derivative of a `tile` adds axes of one before it sums; that of a broadcast does not."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        rows = jnp.concatenate([jnp.tile(p["token"], (5, 1, 1)), (x @ p["w"])[:, None]], axis=1)
        return jnp.mean((jnp.tanh(rows).sum(1) @ p["o"] - y) ** 2)

    def step(p: Any, m: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        return jax.tree.map(lambda w, m: w - 0.1 * m, p, m), m, loss

    p = {"token": _f(1, 1, 7), "w": _f(3, 7), "o": _f(7, 2)}
    assert "jax.value_and_grad(loss_fn)(p)" in _text(step, (p, p, *BATCH))


def test_a_gated_cell() -> None:
    """The derivative of the loop carries its sums in the order of the names of the weights."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        def cell(h: Any, row: Any) -> tuple[Any, Any]:
            reset = jax.nn.sigmoid(row @ p["ir"] + p["br"] + h @ p["hr"])
            update = jax.nn.sigmoid(row @ p["iz"] + p["bz"] + h @ p["hz"])
            new = jnp.tanh(row @ p["in"] + reset * (h @ p["hn"] + p["bn"]))
            h = (1.0 - update) * new + update * h
            return h, h

        _, states = lax.scan(cell, jnp.zeros((5, 2)), jnp.stack([x, x + 1.0]))
        return jnp.mean((states[-1] - y) ** 2)

    p = {"ir": _f(3, 2), "iz": _f(3, 2), "in": _f(3, 2)}
    p |= {"hr": _f(2, 2), "hz": _f(2, 2), "hn": _f(2, 2), "br": _f(2), "bz": _f(2), "bn": _f(2)}
    assert "jax.value_and_grad(loss_fn)(p)" in _text(_step(loss_fn), (p, *BATCH))


def test_a_cell_that_joins_its_weights() -> None:
    """JAX joins them once, outside of the loop that it differentiates."""

    def loss_fn(p: Any, x: Any, y: Any) -> Any:
        def cell(state: Any, row: Any) -> tuple[Any, Any]:
            c, h = state
            gates = row @ jnp.concatenate([p["ii"], p["if"], p["ig"], p["io"]], axis=-1)
            gates += h @ jnp.concatenate([p["hi"], p["hf"], p["hg"], p["ho"]], axis=-1)
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), h

        zeros = jnp.zeros((5, 2))
        (_, h), _ = lax.scan(cell, (zeros, zeros), jnp.stack([x, x + 1.0]))
        return jnp.mean((h - y) ** 2)

    p = {f"i{gate}": _f(3, 2) for gate in "ifgo"} | {f"h{gate}": _f(2, 2) for gate in "ifgo"}
    assert "jax.value_and_grad(loss_fn)(p)" in _text(_step(loss_fn), (p, *BATCH))


def test_a_scale_that_follows_a_schedule() -> None:
    """One times a number of the schedule is no scaled loss whose derivative is the number."""

    def step(p: Any, count: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(_mse)(p, x, y)
        rate = 0.1 * (1.0 * (0.5 * (1.0 + jnp.cos(count / 9.0))) ** 1.5 + 0.0)
        return jax.tree.map(lambda w, g: w - rate * g, p, grads), loss, loss.mean()

    text = _text(step, (P, np.float32(3), *BATCH))
    assert text.count("value_and_grad") == 1


def test_two_losses_of_one_step() -> None:
    """As of an actor and a critic."""

    def step(p: Any, q: Any, x: Any, y: Any) -> Any:
        one, grads = jax.value_and_grad(_mse)(p, x, y)
        two, others = jax.value_and_grad(lambda q: jnp.mean(jnp.abs(x @ q - y[:, :1])))(q)
        return jax.tree.map(lambda w, g: w - 0.1 * g, (p, q), (grads, others)), one, two

    text = _text(step, (P, _f(3, 1), *BATCH))
    assert text.count("jax.value_and_grad(") == 2


def test_a_loss_closes_over_what_another_one_has_changed() -> None:
    """As of a generator, after a step of its discriminator."""

    def step(p: Any, q: Any, x: Any, y: Any) -> Any:
        def judged(q: Any, made: Any) -> Any:
            return jnp.mean(jnp.tanh(made @ q["w"]) ** 2)

        def made(p: Any) -> Any:
            return jax.nn.softplus(x @ p["w"] + p["b"]) @ p["o"]

        one, grads = jax.value_and_grad(lambda q: judged(q, y) - judged(q, made(p)))(q)
        q = jax.tree.map(lambda w, g: w - 0.1 * g, q, grads)
        two, grads = jax.value_and_grad(lambda p: judged(q, made(p)))(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), q, one, two

    text = _text(step, (P, {"w": _f(2, 4), "unused": _f(3)}, *BATCH))
    assert text.count("jax.value_and_grad(") == 2


def test_a_scaled_loss() -> None:
    """As in mixed precision."""

    def step(p: Any, scale: Any, x: Any, y: Any) -> Any:
        scaled, grads = jax.value_and_grad(lambda p: scale * _mse(p, x, y))(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g / scale, p, grads), scaled / scale

    assert "jax.value_and_grad(" in _text(step, (P, np.float32(8), *BATCH))


def test_steps_in_a_loop_over_batches() -> None:
    """The parameters are carried, each by itself."""

    def epoch(p: Any, xs: Any, ys: Any) -> Any:
        return lax.scan(lambda p, batch: _step(_mse)(p, *batch), p, (xs, ys))

    batches = np.stack([BATCH[0], BATCH[0] + 1]), np.stack([BATCH[1], BATCH[1] - 1])
    text = _text(epoch, (P, *batches))
    assert "jax.value_and_grad(loss_fn, argnums=(0, 1, 2))(" in text


def test_accumulated_gradients() -> None:
    def step(p: Any, xs: Any, ys: Any) -> Any:
        def one(total: Any, batch: Any) -> Any:
            loss, grads = jax.value_and_grad(_mse)(p, *batch)
            return jax.tree.map(jnp.add, total, grads), loss

        total, losses = lax.scan(one, jax.tree.map(jnp.zeros_like, p), (xs, ys))
        return jax.tree.map(lambda w, g: w - 0.1 * g / 2, p, total), losses.mean()

    batches = np.stack([BATCH[0], BATCH[0] + 1]), np.stack([BATCH[1], BATCH[1] - 1])
    assert "jax.value_and_grad(loss_fn)(p)" in _text(step, (P, *batches))


def test_a_compiled_step_inside_of_another_function() -> None:
    def run(p: Any, x: Any, y: Any) -> Any:
        p, _ = jax.jit(_step(_mse))(p, x, y)
        return jax.jit(_step(_mse))(p, x, y)

    assert "jax.value_and_grad(" in _text(run, (P, *BATCH))


def _unrolled(p: Any, x: Any, y: Any) -> Any:
    h = jnp.zeros((x.shape[0], 7))
    for i in range(4):
        h = jnp.tanh(x * 0.1 * i @ p["w"] + h * p["b"])
    return jnp.mean((h @ p["o"] - y) ** 2)


def _recurrent(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, v: Any) -> Any:
        h = jnp.tanh(v @ p["w"] + h * p["b"])
        return h, h

    _, hs = lax.scan(step, jnp.zeros((5, 7)), jnp.stack([x, 2 * x, x - 1]))
    return jnp.mean((hs.mean(0) @ p["o"] - y) ** 2)


def _normalized(p: Any, x: Any, y: Any) -> Any:
    h = x @ p["w"]
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    h = h * p["b"] + jax.nn.gelu(h)
    return jnp.mean(jnp.log1p((h @ p["o"] - y) ** 2)) + 1e-3 * sum(
        jnp.sum(w**2) for w in p.values()
    )


def _sorted(p: Any, x: Any, y: Any) -> Any:
    h = jnp.sort(jnp.cumsum(x @ p["w"], axis=1), axis=1) + p["b"]
    return jnp.sum(jnp.where(h > 0, h, 0.1 * h) @ p["o"] * y)


def _chosen(p: Any, x: Any, y: Any) -> Any:
    h = x @ p["w"] + p["b"]
    h = lax.cond(h[0, 0] > 0, jnp.sin, lambda h: h * jax.nn.sigmoid(h), h)
    return jnp.linalg.norm(h @ p["o"] - y)


def _positive(p: Any) -> Any:
    return p["w"].T @ p["w"] + jnp.eye(7)


def _solved(p: Any, x: Any, y: Any) -> Any:
    hidden = jnp.linalg.solve(_positive(p), p["b"]) @ jnp.linalg.inv(_positive(p))
    return jnp.mean((hidden @ p["o"]) ** 2) + jnp.mean(x) + jnp.mean(y)


def _marginal_likelihood(p: Any, x: Any, y: Any) -> Any:
    """Of a Gaussian process, whose kernel has length scales."""
    distances = jnp.sum(((x[:, None] - x) / jnp.exp(p["b"][:3])) ** 2, -1)
    factor = jnp.linalg.cholesky(jnp.exp(-0.5 * distances) + jnp.exp(p["b"][3]) * jnp.eye(5))
    solved = jax.scipy.linalg.cho_solve((factor, True), y)
    return 0.5 * jnp.sum(y * solved) + jnp.sum(jnp.log(jnp.diagonal(factor)))


def _factored_in_batches(p: Any, x: Any, y: Any) -> Any:
    """The rule of a factor takes its triangle, which is then a batch of masks."""
    scaled = jax.vmap(lambda v: jnp.linalg.cholesky(_positive(p) + jnp.mean(v**2) * jnp.eye(7)))(x)
    return jnp.mean((scaled @ p["o"]) ** 2) + jnp.mean(y)


def _determined(p: Any, x: Any, y: Any) -> Any:
    return jnp.linalg.slogdet(_positive(p))[1] + jnp.mean(x) + jnp.mean(p["o"])


def _spectral(p: Any, x: Any, y: Any) -> Any:
    """The rule of `eigh` makes its operand symmetric."""
    values, vectors = jnp.linalg.eigh(_positive(p))
    return jnp.mean(jnp.log(values)) + jnp.mean((vectors @ p["o"]) ** 2)


def _turned(p: Any, x: Any, y: Any) -> Any:
    """The rule squares a number."""
    return jnp.mean(jnp.arctan2(x @ p["w"] + p["b"], 1.5) ** 2)


@pytest.mark.parametrize("loss", [_unrolled, _recurrent, _normalized])
def test_losses_with_values_that_are_read_often(loss: Callable[..., Any]) -> None:
    """Derivatives are added up in the order in which a value was read."""
    assert "jax.value_and_grad(" in _text(_step(loss), (P, *BATCH))


@pytest.mark.parametrize("loss", [_sorted, _chosen])
def test_losses_that_sort_or_branch(loss: Callable[..., Any]) -> None:
    """The backward pass has more results of a sort, and fills what other branches save for it."""
    assert "jax.value_and_grad(" in _text(_step(loss), (P, *BATCH))


@pytest.mark.parametrize(
    "loss",
    [_solved, _marginal_likelihood, _factored_in_batches, _determined, _spectral, _turned],
)
def test_losses_whose_rules_compute_more_than_their_functions(loss: Callable[..., Any]) -> None:
    """Solves, factors and spectra; the certificate is that of the steps as they are."""
    assert "jax.value_and_grad(" in _text(_step(loss), (P, *BATCH), certificate="exact")


def test_a_loss_that_reads_a_part_of_a_derivative() -> None:
    """The critic reads states beside actions, and only the actions have derivatives."""

    def step(p: Any, critic: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            action = jnp.tanh(x @ p["w"] + p["b"]) @ p["o"]
            return -jnp.mean(jnp.tanh(jnp.concatenate([x, action], axis=-1) @ critic))

        value, grads = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value

    assert "jax.value_and_grad(loss_fn)(p)" in _text(step, (P, _f(5, 4), BATCH[0]))


def _interpolated(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.interp(x @ p["w"], jnp.array([-1.0, 0.0, 1.0]), jnp.array([0.0, 2.0, 1.0])))


def test_losses_whose_backward_pass_is_written_out() -> None:
    """Their derivatives are not recognized; the text has both passes."""
    assert "value_and_grad" not in _text(_step(_interpolated), (P, *BATCH))


def _all_recomputed(p: Any, x: Any, y: Any) -> Any:
    return jax.checkpoint(_mse)(p, x, y)


def _parts_recomputed(p: Any, x: Any, y: Any) -> Any:
    def block(p: Any, h: Any) -> Any:
        return h + jax.nn.gelu(h @ p["w"] + p["b"]) @ p["o"]

    h = jax.checkpoint(block)(p, x)
    h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True))
    return jnp.mean((jax.checkpoint(block)(p, h) - y) ** 2)


@pytest.mark.parametrize("loss", [_all_recomputed, _parts_recomputed])
def test_parts_that_the_backward_pass_computes_again(loss: Callable[..., Any]) -> None:
    p, y = {**P, "o": _f(7, 3)}, _f(5, 3)
    text = _text(_step(loss), (p, BATCH[0], y))
    assert "jax.value_and_grad(loss_fn)(p)" in text
    assert text.count("jax.checkpoint(") == (1 if loss is _all_recomputed else 2)
    assert "optimization_barrier" not in text


def test_a_step_in_mixed_precision() -> None:
    """The loss is scaled for its derivative, and returned as it was."""

    def step(p: Any, scale: Any, x: Any, y: Any) -> Any:
        def loss_fn(p: Any) -> Any:
            w, b, o = (p[k].astype(jnp.float16) for k in "wbo")
            loss = jnp.mean(((jnp.tanh(x @ w + b) @ o).astype(jnp.float32) - y) ** 2)
            return loss * scale, loss

        (_, loss), grads = jax.value_and_grad(loss_fn, has_aux=True)(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g / scale, p, grads), loss

    text = _text(step, (P, np.float32(1024), BATCH[0].astype(np.float16), BATCH[1]))
    assert "jax.value_and_grad(loss_fn, has_aux=True)(p)" in text


def test_a_loss_that_is_compared_with_a_larger_network() -> None:
    """Its backward pass takes fewer equations than the loss."""

    def step(p: Any, teacher: Any, x: Any, y: Any) -> Any:
        for w in teacher:
            y = jnp.tanh(y @ w)

        def loss_fn(p: Any) -> Any:
            h = jnp.tanh(x @ p)
            one, two = jnp.mean((h - y) ** 2), jnp.mean(h**2)
            return one + 0.1 * two, (one, two)

        (loss, parts), g = jax.value_and_grad(loss_fn, has_aux=True)(p)
        return p - 0.1 * g, loss, parts

    teacher = tuple(_f(2, 2) for _ in range(12))
    text = _text(step, (_f(3, 2), teacher, *BATCH))
    assert "jax.value_and_grad(loss_fn, has_aux=True)(p)" in text


def test_gradients_that_are_used_before_the_loss() -> None:
    def step(p: Any, xs: Any, ys: Any) -> Any:
        def one(total: Any, batch: Any) -> Any:
            loss, grads = jax.value_and_grad(_mse)(p, *batch)
            return jax.tree.map(jnp.add, total, (grads, loss)), None

        (grads, loss), _ = lax.scan(one, (jax.tree.map(jnp.zeros_like, p), 0.0), (xs, ys))
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), loss

    assert "jax.value_and_grad(" in _text(step, (P, _f(4, 5, 3), _f(4, 5, 2)))


def test_an_averaged_network_gives_the_targets() -> None:
    """Derivatives stop at the average, although the step computes it from the parameters."""

    def step(p: Any, average: Any, x: Any) -> Any:
        average = jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, average, p)
        target = lax.stop_gradient(jnp.tanh(x @ average["w"] + average["b"]) @ average["o"])
        value, grads = jax.value_and_grad(_mse)(p, x, target)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), average, value

    text = _text(step, (P, jax.tree.map(np.sin, P), BATCH[0]))
    assert "loss, grads = jax.value_and_grad(loss_fn)(p)" in text
    assert "average = jax.tree.map(" in text
    assert "einsum" not in text


def test_statistics_read_the_mean_that_a_loss_subtracts() -> None:
    """The mean has no unit axes there, while a loss alone would be recovered with them."""

    def step(p: Any, statistics: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            hidden = x @ p["w"] + p["b"]
            mean, variance = hidden.mean(0), hidden.var(0)
            hidden = (hidden - mean) * lax.rsqrt(variance + 1e-5)
            moved = 0.9 * statistics["m"] + 0.1 * mean, 0.9 * statistics["v"] + 0.1 * variance
            return jnp.mean((jnp.tanh(hidden) @ p["o"] - y) ** 2), moved

        (value, moved), grads = jax.value_and_grad(loss, has_aux=True)(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), moved, value

    text = _text(step, (P, {"m": _f(7), "v": _f(7)}, *BATCH))
    assert text.count("jax.value_and_grad(") == 1
    assert "einsum" not in text


def test_a_loss_of_the_slope_by_one_of_two_inputs() -> None:
    """As of a network that solves an equation; what the other input would get is dead code."""

    def loss_fn(p: Any, times: Any) -> Any:
        def height(time: Any, place: Any) -> Any:
            return jnp.tanh(jnp.stack([time, place]) @ p["w"]).sum()

        return jnp.mean(jax.vmap(jax.grad(height))(times, times) ** 2)

    assert "def loss_fn" in _text(
        lambda p, x: jax.value_and_grad(loss_fn)(p, x), ({"w": _f(2, 3)}, _f(5))
    )
