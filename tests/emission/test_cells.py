"""Recurrent cells, in loops and unrolled."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.emission.test_blocks import _arrays, _emitted


def _class(source: str, name: str) -> str:
    (text,) = re.findall(rf"^class {name}\(.*?(?=^class |^def |\Z)", source, re.DOTALL | re.M)
    return text


def _steps(x: Any) -> Any:
    return jnp.swapaxes(x, 0, 1)


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
    assert re.search(r"def __call__\(\s*self, c: .*, h: .*, x: ", cell)
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
    for name in ("update", "x_reset", "h_candidate"):
        assert name in cell
    assert "return jnp.where(mask, self.cell(h, x), h), None" in source


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


def test_parameters_that_others_use_are_no_part_of_a_cell() -> None:
    w, u, x = _arrays((4, 4), (4, 4), (2, 5, 4))

    def run(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return jnp.tanh(x @ w + h @ u), None

        return lax.scan(step, jnp.zeros((x.shape[0], 4)), _steps(x))[0] @ u

    _emitted(run, [w, u], x)


def test_the_calls_of_an_unrolled_cell_begin_with_its_state() -> None:
    w, u, b, out, x = _arrays((4, 6), (6, 6), (6,), (6, 3), (2, 4, 4))

    def run(w: Any, u: Any, b: Any, out: Any, x: Any) -> Any:
        h = jnp.zeros((x.shape[0], 6))
        for i in range(4):
            h = jnp.tanh(x[:, i] @ w + h @ u + b)
        return h @ out

    source = _emitted(run, [w, u, b, out], x).source
    assert "def __call__(self, h: " in _class(source, "Cell").replace("\n        ", "")
    assert "h = self.cell(h, " in source
