"""Recurrent cells that TensorFlow has as single ops, and the ops of their gradients.

Kernels: tensorflow/core/kernels/rnn/gru_ops.h and lstm_ops.h, TensorFlow 2.21.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays

# -- GRU


@raises_tf("GRUBlockCell")
def _gru(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, h, w_gates, w_candidate, b_gates, b_candidate = arrays(values)
    gates = lax.logistic(jnp.concatenate([x, h], axis=1) @ w_gates + b_gates)
    reset, update = jnp.split(gates, 2, axis=1)
    candidate = jnp.tanh(jnp.concatenate([x, h * reset], axis=1) @ w_candidate + b_candidate)
    return [reset, update, candidate, update * h + (1 - update) * candidate]


@raises_tf("GRUBlockCellGrad")
def _gru_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, h, w_gates, w_candidate, _, _, reset, update, candidate, g = arrays(values)
    inputs = x.shape[1]
    d_candidate = g * (1 - update) * (1 - lax.square(candidate))
    d_joined = d_candidate @ w_candidate.T
    d_reset_h = d_joined[:, inputs:]
    d_reset = d_reset_h * h * reset * (1 - reset)
    d_update = g * (h - candidate) * update * (1 - update)
    d_gates = jnp.concatenate([d_reset, d_update], axis=1)
    d_inputs = d_gates @ w_gates.T
    d_x = d_joined[:, :inputs] + d_inputs[:, :inputs]
    d_h = d_reset_h * reset + g * update + d_inputs[:, inputs:]
    return [d_x, d_h, d_candidate, d_gates]


# -- LSTM


@dataclasses.dataclass(frozen=True)
class Lstm:
    """Attributes of an LSTM op.

    **Arguments:**

    - `order`: where the input, candidate, forget and output gates are among the columns.
    - `forget_bias`, `clip`: added to the forget gate; limit of the cell, none where not positive.
    - `peephole`: whether the gates see the cell.
    """

    order: str
    forget_bias: float
    clip: float
    peephole: bool

    def cell(self, gates: Any, cs_prev: Any, wci: Any, wcf: Any, wco: Any) -> list[Any]:
        """The results `i, cs, f, o, ci, co, h` of one step, from the sums of the gates."""
        parts = dict(zip(self.order, jnp.split(gates, 4, axis=-1), strict=True))
        look = cs_prev if self.peephole else None
        i = lax.logistic(parts["i"] if look is None else parts["i"] + look * wci)
        f = parts["f"] + self.forget_bias if self.forget_bias else parts["f"]
        f = lax.logistic(f if look is None else f + look * wcf)
        ci = jnp.tanh(parts["c"])
        cs = ci * i + cs_prev * f
        cs = _clip(cs, self.clip) if self.clip > 0 else cs
        o = lax.logistic(parts["o"] + cs * wco if self.peephole else parts["o"])
        co = jnp.tanh(cs)
        return [i, cs, f, o, ci, co, o * co]

    def steps(self, length: Any, x: Any, start: list[Any], weights: list[Any]) -> list[Any]:
        """The results of all steps along the first axis of `x`; zeros from `length` on."""
        w, *peepholes, b = weights

        def step(carry: tuple[Any, Any], item: tuple[Any, Any]) -> tuple[Any, Any]:
            (cs, h), (at, x_t) = carry, item
            results = self.cell(jnp.concatenate([x_t, h], axis=1) @ w + b, cs, *peepholes)
            inside = at < length
            shown = [jnp.where(inside, r, 0) for r in results]
            return (jnp.where(inside, results[1], cs), jnp.where(inside, results[6], h)), shown

        places = jnp.arange(x.shape[0], dtype=length.dtype)
        return list(lax.scan(step, tuple(start), (places, x))[1])


@jax.custom_jvp
def _clip(x: Any, limit: float) -> Any:
    """The cell kept within limits, which TensorFlow's gradient does not see."""
    return jnp.clip(x, -limit, limit)


@_clip.defjvp
def _clip_jvp(primals: tuple[Any, float], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _clip(*primals), tangents[0]


def _lstm_of(node: Node) -> Lstm:
    second = node.op in ("BlockLSTMV2", "BlockLSTMGradV2")
    grad = "Grad" in node.op  # has neither bias nor limit: it does not repeat the forward pass
    return Lstm(
        order="ifco" if second else "icfo",
        forget_bias=0.0 if second or grad else node.attr("forget_bias", 1.0),
        clip=0.0 if grad else node.attr("cell_clip", 0.0 if second else 3.0),
        peephole=bool(node.attr("use_peephole", False)),
    )


@raises_tf("LSTMBlockCell")
def _lstm_cell(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, cs, h, w, wci, wcf, wco, b = arrays(values)
    gates = jnp.concatenate([x, h], axis=1) @ w + b
    return _lstm_of(node).cell(gates, cs, wci, wcf, wco)


@raises_tf("BlockLSTM", "BlockLSTMV2")
def _block_lstm(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    length, x, cs, h, *weights = (array(v) for v in values)
    return _lstm_of(node).steps(length, x, [cs, h], weights)


@raises_tf("LSTMBlockCellGrad")
def _lstm_cell_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    cs_prev, wci, wcf, wco = (array(values[i]) for i in (1, 4, 5, 6))
    results, (cs_grad, h_grad) = arrays(values[8:14]), arrays(values[14:])
    order = _lstm_of(node).order
    return _step_gradient(order, results, cs_prev, [wci, wcf, wco], cs_grad, h_grad, node)


def _step_gradient(
    order: str,
    results: list[Any],
    cs_prev: Any,
    peepholes: list[Any],
    cs_grad: Any,
    h_grad: Any,
    node: Node,
) -> list[Any]:
    """The gradients of the previous cell, of the sums of the gates and of the peepholes."""
    i, cs, f, o, ci, co = results
    wci, wcf, wco = peepholes
    d = {"o": h_grad * co * o * (1 - o)}
    d_cs = cs_grad + h_grad * o * (1 - lax.square(co))
    peephole = node.attr("use_peephole", False)
    d_cs = d_cs + d["o"] * wco if peephole else d_cs
    d["c"] = d_cs * i * (1 - lax.square(ci))
    d["f"] = d_cs * cs_prev * f * (1 - f)
    d["i"] = d_cs * ci * i * (1 - i)
    d_prev = d_cs * f
    d_peepholes = [jnp.zeros_like(w) for w in peepholes]
    if peephole:
        d_prev = d_prev + d["i"] * wci + d["f"] * wcf
        pairs = ((d["i"], cs_prev), (d["f"], cs_prev), (d["o"], cs))
        d_peepholes = [jnp.sum(g * cell, axis=0) for g, cell in pairs]
    return [d_prev, jnp.concatenate([d[k] for k in order], axis=1), *d_peepholes]


@raises_tf("BlockLSTMGrad", "BlockLSTMGradV2")
def _block_lstm_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    length = array(values[0])
    x, cs_first, h_first, w, wci, wcf, wco, _ = arrays(values[1:9])
    i, cs, f, o, ci, co, h = arrays(values[9:16])
    cs_grad, h_grad = arrays(values[16:])
    order, inputs = _lstm_of(node).order, x.shape[2]

    def step(carry: tuple[Any, ...], item: Any) -> tuple[Any, Any]:
        d_cs, d_h, d_w, d_b, *d_peepholes = carry
        at, x_t, results, cs_prev, h_prev, cs_g, h_g = item
        d_prev, d_gates, *more = _step_gradient(
            order, results, cs_prev, [wci, wcf, wco], cs_g + d_cs, h_g + d_h, node
        )
        inside = at < length
        d_gates = jnp.where(inside, d_gates, 0)
        d_joined = d_gates @ w.T
        joined = jnp.concatenate([x_t, h_prev], axis=1)
        sums = [d_w + joined.T @ d_gates, d_b + jnp.sum(d_gates, axis=0)]
        sums += [
            old + jnp.where(inside, new, 0) for old, new in zip(d_peepholes, more, strict=True)
        ]
        carried = jnp.where(inside, d_prev, d_cs), jnp.where(inside, d_joined[:, inputs:], d_h)
        return (*carried, *sums), d_joined[:, :inputs]

    before = [jnp.concatenate([a[None], b[:-1]]) for a, b in ((cs_first, cs), (h_first, h))]
    places = jnp.arange(x.shape[0], dtype=length.dtype)
    items = (places, x, [i, cs, f, o, ci, co], *before, cs_grad, h_grad)
    zeros = [jnp.zeros_like(a) for a in (cs_first, h_first, w, w[0], wci, wcf, wco)]
    (d_cs, d_h, d_w, d_b, *d_peepholes), d_x = lax.scan(step, tuple(zeros), items, reverse=True)
    return [d_x, d_cs, d_h, d_w, *d_peepholes, d_b]
