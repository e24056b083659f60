"""TensorFlow's fused recurrent cells, and the ops of their gradients.

Kernels: tensorflow/core/kernels/rnn/gru_ops.h and lstm_ops.h, TensorFlow 2.21.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from invert.tf.interpreter.registry import Array, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.ops.node import Node

# -- GRU


@rule("GRUBlockCell")
def _gru(
    x: Array, h: Array, w_gates: Array, w_candidate: Array, b_gates: Array, b_candidate: Array
) -> tuple[Array, Array, Array, Array]:
    gates = lax.logistic(jnp.concatenate([x, h], axis=1) @ w_gates + b_gates)
    reset, update = jnp.split(gates, 2, axis=1)
    candidate = jnp.tanh(jnp.concatenate([x, h * reset], axis=1) @ w_candidate + b_candidate)
    return reset, update, candidate, update * h + (1 - update) * candidate


@rule("GRUBlockCellGrad")
def _gru_grad(
    x: Array,
    h: Array,
    w_gates: Array,
    w_candidate: Array,
    b_gates: Array,
    b_candidate: Array,
    reset: Array,
    update: Array,
    candidate: Array,
    g: Array,
) -> tuple[Array, Array, Array, Array]:
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
    return d_x, d_h, d_candidate, d_gates


# -- LSTM


@dataclasses.dataclass(frozen=True)
class Lstm:
    """Attributes of an LSTM op.

    **Arguments:**

    - `order`: the order of the input, candidate, forget and output gates among the columns.
    - `forget_bias`: added to the forget gate.
    - `clip`: limit of the cell; not positive for none.
    - `peephole`: whether the gates see the cell.
    """

    order: str
    forget_bias: float
    clip: float
    peephole: bool

    def cell(self, gates: Array, cs_prev: Array, wci: Array, wcf: Array, wco: Array) -> list[Array]:
        """One step's results `i, cs, f, o, ci, co, h`, from the gates' sums."""
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

    def steps(
        self, length: Array, x: Array, start: Sequence[Array], weights: Sequence[Array]
    ) -> list[Array]:
        """Results of all steps along `x`'s first axis; zeros from `length` on."""
        w, *peepholes, b = weights

        def step(carry: tuple[Array, Array], item: tuple[Array, Array]) -> tuple[Array, Array]:
            (cs, h), (at, x_t) = carry, item
            results = self.cell(jnp.concatenate([x_t, h], axis=1) @ w + b, cs, *peepholes)
            inside = at < length
            shown = [jnp.where(inside, r, 0) for r in results]
            return (jnp.where(inside, results[1], cs), jnp.where(inside, results[6], h)), shown

        places = jnp.arange(x.shape[0], dtype=length.dtype)
        return list(lax.scan(step, tuple(start), (places, x))[1])


@with_tangent(lambda y, primals, tangents: tangents[0])
def _clip(x: Array, limit: float) -> Array:
    """The clipped cell; TensorFlow's gradient ignores the clipping."""
    return jnp.clip(x, -limit, limit)


# The order of the gates in versions 1 and 2.
_ORDERS = "icfo", "ifco"


@rule("LSTMBlockCell")
def _lstm_cell(
    x: Array,
    cs: Array,
    h: Array,
    w: Array,
    wci: Array,
    wcf: Array,
    wco: Array,
    b: Array,
    *,
    forget_bias: float,
    cell_clip: float,
    use_peephole: bool,
) -> list[Array]:
    gates = jnp.concatenate([x, h], axis=1) @ w + b
    lstm = Lstm(_ORDERS[0], forget_bias, cell_clip, use_peephole)
    return lstm.cell(gates, cs, wci, wcf, wco)


@rule("BlockLSTM", "BlockLSTMV2")
def _block_lstm(
    length: Array,
    x: Array,
    cs: Array,
    h: Array,
    *weights: Array,
    op: str,
    cell_clip: float,
    use_peephole: bool,
    forget_bias: float = 0.0,
) -> list[Array]:
    lstm = Lstm(_ORDERS[op.endswith("V2")], forget_bias, cell_clip, use_peephole)
    return lstm.steps(length, x, [cs, h], weights)


@rule("LSTMBlockCellGrad")
def _lstm_cell_grad(*operands: Array, use_peephole: bool) -> list[Array]:
    _, cs_prev, _, _, *peepholes, _ = operands[:8]
    results, (cs_grad, h_grad) = operands[8:14], operands[14:]
    return _step_gradient(_ORDERS[0], use_peephole, results, cs_prev, peepholes, cs_grad, h_grad)


def _step_gradient(
    order: str,
    peephole: bool,
    results: Sequence[Array],
    cs_prev: Array,
    peepholes: Sequence[Array],
    cs_grad: Array,
    h_grad: Array,
) -> list[Array]:
    """Gradients of the previous cell, the gates' sums, and the peepholes."""
    i, cs, f, o, ci, co = results
    wci, wcf, wco = peepholes
    d = {"o": h_grad * co * o * (1 - o)}
    d_cs = cs_grad + h_grad * o * (1 - lax.square(co))
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


@rule("BlockLSTMGrad", "BlockLSTMGradV2")
def _block_lstm_grad(*operands: Array, op: str, use_peephole: bool) -> list[Array]:
    length, x, cs_first, h_first, w, *peepholes, _ = operands[:9]
    i, cs, f, o, ci, co, h = operands[9:16]
    cs_grad, h_grad = operands[16:]
    order, inputs = _ORDERS[op.endswith("V2")], x.shape[2]

    def step(carry: tuple[Array, ...], item: Array) -> tuple[Array, Array]:
        d_cs, d_h, d_w, d_b, *d_peepholes = carry
        at, x_t, results, cs_prev, h_prev, cs_g, h_g = item
        d_prev, d_gates, *more = _step_gradient(
            order, use_peephole, results, cs_prev, peepholes, cs_g + d_cs, h_g + d_h
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
    zeros = [jnp.zeros_like(a) for a in (cs_first, h_first, w, w[0], *peepholes)]
    (d_cs, d_h, d_w, d_b, *d_peepholes), d_x = lax.scan(step, tuple(zeros), items, reverse=True)
    return [d_x, d_cs, d_h, d_w, *d_peepholes, d_b]


# -- cuDNN's recurrent networks, whose weights are one vector
#
# The order of the weights is that of `cudnnGetRNNWeightParams`: for each layer and direction the
# input matrices, then the state matrices, gate by gate. The biases follow in the same order.
# Results and lengths as in tensorflow/core/kernels/cudnn_rnn_ops.cc, TensorFlow 2.21.

State = tuple[Array, ...]
Cell = Callable[[Array, Array, State], State]


def _cudnn_lstm(inputs: Array, state: Array, carry: State) -> State:
    i, f, g, o = jnp.split(inputs + state, 4, axis=-1)
    cell = lax.logistic(f) * carry[1] + lax.logistic(i) * jnp.tanh(g)
    return lax.logistic(o) * jnp.tanh(cell), cell


def _cudnn_gru(inputs: Array, state: Array, carry: State) -> State:
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = (
        jnp.split(v, 3, axis=-1) for v in (inputs, state)
    )
    reset, update = lax.logistic(reset_x + reset_h), lax.logistic(update_x + update_h)
    return ((1 - update) * jnp.tanh(new_x + reset * new_h) + update * carry[0],)


# rnn_mode: (number of gates, the new state from the sums over input and state)
CELLS: dict[str, tuple[int, Cell]] = {
    "gru": (3, _cudnn_gru),
    "lstm": (4, _cudnn_lstm),
    "rnn_relu": (1, lambda x, h, carry: (jax.nn.relu(x + h),)),
    "rnn_tanh": (1, lambda x, h, carry: (jnp.tanh(x + h),)),
}


@dataclasses.dataclass(frozen=True)
class Weights:
    """Matrices and biases of one layer in one direction."""

    inputs: Array
    state: Array
    input_bias: Array
    state_bias: Array


def _unpack(
    params: Array, layers: int, directions: int, gates: int, units: int, size: int
) -> list[Weights]:
    """Split the vector `params` into the weights of each layer and direction."""
    taken = 0

    def take(*shape: int) -> Array:
        nonlocal taken
        piece = lax.slice(params, [taken], [taken + math.prod(shape)])
        taken += math.prod(shape)
        return lax.reshape(piece, shape)

    rows = gates * units
    sizes = [size, *[units * directions] * (layers - 1)]
    matrices = [
        (take(rows, sizes[layer]), take(rows, units))
        for layer in range(layers)
        for _ in range(directions)
    ]
    biases = [(take(rows), take(rows)) for _ in matrices]
    return [Weights(*m, *b) for m, b in zip(matrices, biases, strict=True)]


# For dropout, which is refused in training.
_IGNORED = ("seed", "seed2", "is_training")


@rule("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3", ignores=_IGNORED)
def _cudnn_rnn(
    x: Array, h: Array, c: Array, params: Array, lengths: Array = None, *, node: Node
) -> list[Array]:
    # Reserved space for cuDNN's gradient op; unused here.
    kept = [jnp.zeros((0,), x.dtype), jnp.zeros((0,), jnp.int8)]
    results = _network(node, lengths, x, h, c, params)
    return [*results, *kept[: 1 if node.op == "CudnnRNN" else 2]]


@rule("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3", ignores=_IGNORED)
def _cudnn_rnn_backprop(*operands: Array, node: Node) -> Sequence[Array]:
    lengths = operands[4] if node.op.endswith("V3") else None
    # After the lengths: the results of the network, then their cotangents.
    start = 8 if lengths is not None else 7
    _, pullback = jax.vjp(functools.partial(_network, node, lengths), *operands[:4])
    return pullback(operands[start : start + 3])


def _network(
    node: Node, lengths: Array, x: Array, h: Array, c: Array, params: Array
) -> tuple[Array, Array, Array]:
    """The outputs of the last layer, and the final states of all layers."""
    mode = node.attr("rnn_mode", "lstm")
    if node.attr("dropout", 0.0) and node.attr("is_training", True):
        raise node.error("uses dropout with cuDNN's own random numbers", "Set dropout to 0.")
    if node.attr("input_mode", "linear_input") == "skip_input" or node.attr("num_proj", 0):
        raise node.error(
            "skips the input product or projects its state",
            "Export the layer without these options.",
        )
    batch_first = not node.attr("time_major", True)
    if batch_first:
        x, h, c = (jnp.swapaxes(v, 0, 1) for v in (x, h, c))
    directions = 2 if node.attr("direction", "unidirectional") == "bidirectional" else 1
    gates, cell = CELLS[mode]
    layers = h.shape[0] // directions
    unpacked = _unpack(params, layers, directions, gates, h.shape[2], x.shape[2])
    finals: list[State] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            start = (h[at], c[at]) if mode == "lstm" else (h[at],)
            final, output = _layer(cell, unpacked[at], x, start, lengths, direction == 1)
            finals.append(final)
            outputs.append(output)
        x = jnp.concatenate(outputs, axis=-1) if directions == 2 else outputs[0]
    h = jnp.stack([f[0] for f in finals])
    c = jnp.stack([f[1] for f in finals]) if mode == "lstm" else c
    if batch_first:
        x, h, c = (jnp.swapaxes(v, 0, 1) for v in (x, h, c))
    return x, h, c


def _layer(
    cell: Cell, w: Weights, x: Array, start: State, lengths: Array, reverse: bool
) -> tuple[State, Array]:
    """Final state and outputs; past its length a sequence keeps its state, outputs zeros."""

    def step(carry: State, item: tuple[Array, Array]) -> tuple[State, Array]:
        at, inputs = item
        new = cell(inputs, carry[0] @ w.state.T + w.state_bias, carry)
        if lengths is None:
            return new, new[0]
        active = (at < lengths)[:, None]
        kept = tuple(jnp.where(active, a, b) for a, b in zip(new, carry, strict=True))
        return kept, jnp.where(active, new[0], 0)

    inputs = x @ w.inputs.T + w.input_bias
    return lax.scan(step, start, (jnp.arange(x.shape[0], dtype=jnp.int32), inputs), reverse=reverse)
