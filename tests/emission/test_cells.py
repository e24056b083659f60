"""Recurrent cells, in loops and unrolled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.emission.models import flax_model, ramp, recovered, with_params
from tests.emission.test_blocks import _arrays, _emitted


def _class(source: str, name: str) -> str:
    (text,) = re.findall(rf"^class {name}\(.*?(?=^class |^def |\Z)", source, re.DOTALL | re.M)
    return text


def _steps(x: Any) -> Any:
    return jnp.swapaxes(x, 0, 1)


@pytest.mark.slow
def test_what_a_step_computes_with_parameters_is_a_cell() -> None:
    w, u, b, out, x = _arrays((4, 24), (6, 24), (24,), (6, 3), (2, 5, 4))

    def lstm(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            c, h = carry
            i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        zeros = jnp.zeros((x.shape[0], 6))
        return _steps(lax.scan(step, (zeros, zeros), _steps(x))[1]) @ out

    source = _emitted(lstm, [w, u, b, out], x).source
    cell = _class(source, "Cell")
    assert re.search(r"def __call__\(\s*self,\s*c: .*,\s*h: .*,\s*x: ", cell)
    assert "def __init__(self, n_in: int, hidden: int, *, key: PRNGKeyArray)" in cell
    assert "i, f, g, o = jnp.split(" in cell
    assert "c, h = self.cell(c, h, x)" in source


def test_a_mask_chooses_the_state_outside_of_the_cell() -> None:
    w, u, b, out, x = _arrays((4, 18), (6, 18), (2, 18), (6, 3), (2, 5, 4))

    def gru(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        def step(h: Any, xs: Any) -> Any:
            x, mask = xs
            a, c, d = jnp.split(x @ w + b[0], 3, axis=-1)
            e, f, g = jnp.split(h @ u + b[1], 3, axis=-1)
            z, r = jax.nn.sigmoid(a + e), jax.nn.sigmoid(c + f)
            new = z * h + (1 - z) * jnp.tanh(d + r * g)
            return jnp.where(mask, new, h), None

        mask = x[..., :1] > 0
        zeros = jnp.zeros((x.shape[0], 6))
        return lax.scan(step, zeros, (_steps(x), _steps(mask)))[0] @ out

    source = _emitted(gru, [w, u, b, out], x).source
    cell = _class(source, "Cell")
    assert "where" not in cell and "mask" not in cell
    for name in ("update", "x_reset", "h_candidate", " candidate = "):
        assert name in cell
    assert "return jnp.where(mask, self.cell(h, x), h), None" in source


@pytest.mark.slow
def test_a_masked_state_and_its_output_have_different_names() -> None:
    w, u, out, x = _arrays((4, 24), (6, 24), (6, 3), (2, 5, 4))

    def lstm(w: Any, u: Any, out: Any, x: Any) -> Any:
        zeros, ones = jnp.zeros((x.shape[0], 6)), jnp.ones((x.shape[0], 6))

        def step(carry: Any, xs: Any) -> Any:
            h, c = carry
            x, mask = xs
            i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
            new_c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
            y = jnp.where(mask, new_h, ones)
            return (jnp.where(mask, new_h, h), jnp.where(mask, new_c, c)), y

        steps = _steps(x), _steps(x[..., :1] > 0)
        return _steps(lax.scan(step, (zeros, zeros), steps)[1]) @ out

    source = _emitted(lstm, [w, u, out], x).source
    assert "update = jax.nn.sigmoid(i) * jnp.tanh(g)\n" in _class(source, "Cell")
    assert "h_new, c_new = self.cell(h, c, x)\n" in source
    assert "h = jnp.where(mask, h_new, h)\n" in source
    assert re.search(r"return \(h, c\), output$|output = jnp.where\(mask, h_new, ", source, re.M)


def test_values_that_leave_a_cell_and_come_back_stay_inside() -> None:
    """A choice of which the cell uses the result is a part of it."""
    w, u, x = _arrays((4, 4), (4, 4), (2, 5, 4))

    def run(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            inner = jnp.where(x > 0, jnp.tanh(h @ w), h)
            return jnp.tanh(inner @ u), inner

        h, ys = lax.scan(step, jnp.zeros((x.shape[0], 4)), _steps(x))
        return h + ys.sum(0)

    source = _emitted(run, [w, u], x).source
    assert "jnp.where" in _class(source, "Cell")
    assert "self.cell(h, x)" in source


def test_parameters_used_elsewhere_are_not_part_of_a_cell() -> None:
    w, u, x = _arrays((4, 4), (4, 4), (2, 5, 4))

    def run(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return jnp.tanh(x @ w + h @ u), None

        return lax.scan(step, jnp.zeros((x.shape[0], 4)), _steps(x))[0] @ u

    source = _emitted(run, [w, u], x).source
    assert "arg1" not in _class(source, "Cell")
    assert "self.cell(h, x, self.arg1)" in source


@pytest.mark.parametrize("split", [False, True])
def test_an_unrolled_cell_is_called_in_a_loop(split: bool) -> None:
    w, u, b, out, x = _arrays((4, 6), (6, 6), (6,), (6, 3), (2, 4, 4))

    def run(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        h = jnp.zeros((x.shape[0], 6))
        parts = jnp.split(x, 4, axis=1) if split else [x[:, i : i + 1] for i in range(4)]
        for part in parts:
            h = jnp.tanh(part.squeeze(1) @ w + h @ u + b)
        return h @ out

    source = _emitted(run, [w, u, b, out], x).source
    assert "def __call__(self, h: " in _class(source, "Cell").replace("\n        ", "")
    loops = {
        True: "for x_t in jnp.split(x, 4, axis=1):\n            h = self.cell(h, jnp.squeeze(",
        False: "for i in range(4):\n            h = self.cell(h, x[:, i])\n",
    }
    assert loops[split] in source


def test_states_used_later_do_not_form_a_loop() -> None:
    w, u, x = _arrays((4, 6), (6, 6), (2, 4, 4))

    def run(w: Any, u: Any, x: Any) -> Any:
        states = [jnp.zeros((x.shape[0], 6))]
        for i in range(4):
            states.append(jnp.tanh(x[:, i] @ w + states[-1] @ u))
        return jnp.concatenate(states, axis=1)

    assert "for i in" not in _emitted(run, [w, u], x).source


# What the steps of a cell read, in place of the rows `x[:, 0]`, `x[:, 1]`, ... in this order.
_OTHER_PARTS: dict[str, Callable[[Any], list[Any]]] = {
    "reordered": lambda x: [x[:, i] for i in (0, 2, 1, 3)],
    "from the second": lambda x: [x[:, i + 1] for i in range(4)],
    "every second": lambda x: [x[:, 2 * i] for i in range(3)],
    "of two arrays": lambda x: [*(x[:, i] for i in range(2)), *(jnp.sin(x)[:, i] for i in (2, 3))],
    "split and reordered": lambda x: [p.squeeze(1) for p in reversed(jnp.split(x, 6, axis=1))],
}


@pytest.mark.parametrize("parts", _OTHER_PARTS)
def test_other_parts_do_not_form_a_loop(parts: str) -> None:
    w, u, b, out, x = _arrays((4, 6), (6, 6), (6,), (6, 3), (2, 6, 4))

    def run(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        h = jnp.zeros((x.shape[0], 6))
        for part in _OTHER_PARTS[parts](x):
            h = jnp.tanh(part @ w + h @ u + b)
        return h @ out

    source = _emitted(run, [w, u, b, out], x).source
    assert source.count("= self.cell(") > 2
    assert not re.search(r"for (i|x_t) in", source)


def test_parts_used_elsewhere_do_not_form_a_loop() -> None:
    w, u, b, out, x = _arrays((4, 6), (6, 6), (6,), (6, 3), (2, 4, 4))

    def run(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        h, parts = jnp.zeros((x.shape[0], 6)), jnp.split(x, 4, axis=1)
        for part in parts:
            h = jnp.tanh(part.squeeze(1) @ w + h @ u + b)
        return h @ out + jnp.exp(parts[2]).squeeze(1)[:, :3]

    source = _emitted(run, [w, u, b, out], x).source
    assert source.count("= self.cell(") > 2
    assert not re.search(r"for (i|x_t) in", source)


def test_loops_over_reversed_arrays_run_from_the_end() -> None:
    """Both directions share a class, and what reverses the results is left out."""
    *arrays, x = _arrays((4, 6), (6, 6), (4, 6), (6, 6), (2, 5, 4))

    def rnn(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        _, ys = lax.scan(step, jnp.zeros((x.shape[1], 6)), x)
        return ys

    def run(w: Any, u: Any, w_2: Any, u_2: Any, x: Any) -> Any:
        back = jnp.swapaxes(rnn(w_2, u_2, jnp.flip(jnp.swapaxes(x, 0, 1), 0)), 0, 1)
        there = jnp.swapaxes(rnn(w, u, jnp.swapaxes(x, 0, 1)), 0, 1)
        return jnp.concatenate([there, jnp.flip(back, 1)], axis=-1)

    source = _emitted(run, arrays, x).source
    assert "reverse=True" in source
    assert "flip" not in source
    assert "[::-1" not in source


@pytest.mark.slow
def test_loops_over_some_reversed_arrays_stay() -> None:
    *arrays, x = _arrays((4, 6), (2, 5, 4))

    def run(w: Any, x: Any) -> Any:
        def step(h: Any, xs: Any) -> Any:
            h = jnp.tanh(xs[0] @ w + h) + jnp.sum(xs[1])
            return h, h

        rows = jnp.swapaxes(x, 0, 1)
        return lax.scan(step, jnp.zeros((x.shape[0], 6)), (rows, rows[::-1]))[1]

    source = _emitted(run, arrays, x).source
    assert "reverse=True" not in source
    assert "[::-1" in source or "flip" in source


def test_biases_after_a_residual_belong_to_their_layers() -> None:
    """`(x + y @ kernel) + bias` adds in this order, so the layer takes `x` as well."""
    shapes = [(4, 8), (8,), (8, 4), (4,)] * 3
    *arrays, x = _arrays(*shapes, (2, 4))

    def run(*values: Any) -> Any:
        *arrays, x = values
        for w, b, v, c in (arrays[:4], arrays[4:8], arrays[8:]):
            x = x + jnp.tanh(x @ w + b) @ v + c
        return x

    source = _emitted(run, arrays, x).source
    assert "blocks: tuple[Block, ...]" in source
    assert "if residual is not None:\n            x = residual + x\n        return x" in source
    assert "_bias: " not in source
    assert "self.down(jnp.tanh(self.up(x)), x)" in source


def test_initial_values_equal_keras() -> None:
    """The forget gates of an LSTM begin open."""
    w, u, b, table = _arrays((4, 24), (6, 24), (24,), (9, 4))
    ids = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    names = ("lstm/cell/kernel", "lstm/cell/recurrent_kernel", "lstm/cell/bias")
    params = dict(zip((*names, "embedding/embeddings"), (w, u, b, table), strict=True))

    def run(p: Any, ids: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            c, h = carry
            i, f, g, o = jnp.split(x @ p[names[0]] + h @ p[names[1]] + p[names[2]], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), None

        with jax.named_scope("embedding"):
            x = p["embedding/embeddings"][ids]
        with jax.named_scope("lstm"):
            zeros = jnp.zeros((ids.shape[0], 6))
            return lax.scan(step, (zeros, zeros), _steps(x))[0][1]

    model: Any = recovered(with_params(run, params, ids, name="network")).emit().model
    new = type(model)(key=jax.random.key(0))
    np.testing.assert_array_equal(new.lstm.cell.bias, np.repeat([0, 1, 0, 0], 6))
    assert 0.04 < np.abs(new.embedding.embeddings).max() <= 0.05


@pytest.mark.parametrize("steps", [3, 6])
def test_steps_unrolled_by_name_are_a_loop(steps: int) -> None:
    """The first step has zeros in the place of the state; the last one is followed by the head."""
    w, u, b, v, x = _arrays((4, 15), (5, 15), (15,), (5, 2), (2, steps, 4))
    params = {"rnn": {"w": w, "u": u, "b": b}, "readout": {"w": v}}

    def run(params: Any, x: Any) -> Any:
        p, h = params["rnn"], jnp.zeros((x.shape[0], 5))
        for t in range(steps):
            a, c, d = jnp.split(x[:, t] @ p["w"] + p["b"], 3, axis=-1)
            e, f, g = jnp.split(h @ p["u"], 3, axis=-1)
            z, r = jax.nn.sigmoid(a + e), jax.nn.sigmoid(c + f)
            h = (1 - z) * jnp.tanh(d + r * g) + z * h
        return h @ params["readout"]["w"]

    emission = recovered(with_params(run, params, x, batch="b")).emit()
    assert not emission.messages
    assert f"for i in range({steps}):\n            h = self.cell(h, x[:, i])" in emission.source
    model: Any = emission.model
    for batch in (x, np.concatenate([x, x + 1])):
        np.testing.assert_array_equal(model(batch), jax.jit(run)(params, batch))


def test_masks_have_no_axis_of_size_one_outside_of_the_step() -> None:
    w, u, x = _arrays((4, 6), (6, 6), (2, 5, 4))

    def rnn(w: Any, u: Any, x: Any) -> Any:
        zeros = jnp.zeros((x.shape[0], 6))

        def step(h: Any, xs: Any) -> Any:
            x, mask = xs
            new = jnp.tanh(x @ w + h @ u)
            wide = jnp.broadcast_to(mask, new.shape)
            return lax.select(wide, new, h), lax.select(wide, new, zeros)

        mask = (x[..., 0] > 0)[..., None]
        return _steps(lax.scan(step, zeros, (_steps(x), _steps(mask)))[1])

    source = _emitted(rnn, [w, u], x).source
    assert "h = jnp.where(mask[..., None], h_new, h)" in source
    assert "output = jnp.where(mask[..., None], h_new, 0.0)" in source
    assert "zeros" not in source.partition("def step")[2]


def _two_layers(masked: bool, other: Any) -> tuple[Any, Any, np.ndarray]:
    """A layer that returns the states of all steps, then one that returns the last."""
    w, u, v, q, x = _arrays((4, 7), (7, 7), (7, 5), (5, 5), (2, 6, 4))
    params = {"first": {"w": w, "u": u}, "second": {"w": v, "u": q}}

    def layer(p: Any, x: Any, mask: Any, function: Any) -> Any:
        zeros = jnp.zeros((x.shape[0], p["u"].shape[0]))

        def step(h: Any, xs: Any) -> Any:
            x, mask = xs
            new = function(x @ p["w"] + h @ p["u"])
            wide = jnp.broadcast_to(mask[:, None], new.shape)
            h = lax.select(wide, new, h) if masked else new
            return h, lax.select(wide, new, zeros) if masked else new

        last, rows = lax.scan(step, zeros, (_steps(x), mask.T))
        return last, _steps(rows)

    def run(params: Any, x: Any) -> Any:
        mask = x[..., 0] > 0
        with jax.named_scope("first"):
            rows = layer(params["first"], x, mask, jnp.tanh)[1]
        with jax.named_scope("second"):
            return layer(params["second"], rows, mask, other)[0]

    return run, params, x


@pytest.mark.parametrize("masked", [False, True])
def test_all_states_and_the_last_are_a_choice_of_one_class(masked: bool) -> None:
    run, params, x = _two_layers(masked, jnp.tanh)
    module = recovered(with_params(run, params, x, batch="b"))
    emission = module.emit()
    assert not emission.messages
    source = emission.source
    assert "return jnp.swapaxes(ys, 0, 1) if self.return_sequences else h\n" in source
    assert "return_sequences=True, key=keys[0])" in source
    assert source.count("lax.scan(") == 1
    checked: Any = module.emit(typecheck=True).model
    for batch in (x, np.concatenate([x, x - 1])):
        np.testing.assert_array_equal(checked(batch), jax.jit(run)(params, batch))


def test_other_steps_do_not_become_a_choice() -> None:
    run, params, x = _two_layers(True, jnp.sin)
    source = recovered(with_params(run, params, x, batch="b")).emit().source
    assert "return_sequences" not in source
    assert source.count("lax.scan(") == 2


def test_gates_are_layers_by_the_names_of_their_parameters() -> None:
    module, x = flax_model("lstm", batch="b")
    emission = module.emit()
    assert not emission.messages
    cell = _class(emission.source, "LSTMCell")
    assert "i = jax.nn.sigmoid(self.ii(x) + self.hi(h))\n" in cell
    assert "o = jax.nn.sigmoid(self.io(x) + self.ho(h))\n" in cell
    assert "c = f * c + i * g\n" in cell
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), module(x))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "SimpleRNN"])
def test_masked_layers_in_both_directions_and_one_after_them(layer: str) -> None:
    """The state and the output of the last one are two carries that are equal by induction."""
    import keras

    kind = getattr(keras.layers, layer)
    given = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 6, mask_zero=True)(given)
    x = keras.layers.Bidirectional(kind(5, return_sequences=True))(x)
    model = keras.Model(given, keras.layers.Dense(3)(kind(4)(x)))
    module = invert.convert(model)
    emission = module.emit(loader=False)
    assert not emission.messages and module.report.certificate.kind == "exact"
    written: Any = emission.model
    for shape in ((2, 7), (3, 4)):
        tokens = np.random.default_rng(shape[0]).integers(0, 11, shape).astype(np.int32)
        tokens[0, 2:] = 0
        assert np.array_equal(written(tokens), module(tokens))
        assert np.allclose(written(tokens), model(tokens), atol=1e-6)


def test_layers_of_a_step_are_cut_along_their_scopes() -> None:
    """What a layer computes after its last product is its own, although nothing else says so."""
    w, u, out, x = ramp(4, 12), ramp(6, 12), ramp(6, 3), ramp(2, 5, 4)
    params = {"cell": {"gru": {"w": w, "u": u}, "out": {"w": out}}}

    def model(params: Any, x: Any) -> Any:
        own = params["cell"]

        def step(h: Any, x: Any) -> Any:
            with jax.named_scope("cell"):
                with jax.named_scope("gru"):
                    z, new = jnp.split(x @ own["gru"]["w"] + h @ own["gru"]["u"], 2, axis=-1)
                    z = jax.nn.sigmoid(z)
                    h = (1 - z) * h + z * jnp.tanh(new)
                with jax.named_scope("out"):
                    return h, h @ own["out"]["w"]

        return lax.scan(step, jnp.zeros((x.shape[0], 6)), _steps(x))[1]

    module = recovered(with_params(model, params, x, batch="b"))
    source = module.emit().source
    assert "return (1.0 - x1) * h + x1 * jnp.tanh(x2)" in _class(source, "GRU")
    assert "h = self.gru(x, h)\n" in source
    np.testing.assert_array_equal(module.model(x), module(x))
