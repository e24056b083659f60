"""cuDNN's recurrent networks, whose weights are one vector.

The order of the weights is that of `cudnnGetRNNWeightParams`: for each layer and direction the
input matrices, then the state matrices, gate by gate. The biases follow in the same order. Results
and lengths as in tensorflow/core/kernels/cudnn_rnn_ops.cc, TensorFlow 2.21.
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
from invert.tf.ops.node import Node

State = tuple[Array, ...]
Cell = Callable[[Array, Array, State], State]


def _lstm(inputs: Array, state: Array, carry: State) -> State:
    i, f, g, o = jnp.split(inputs + state, 4, axis=-1)
    cell = lax.logistic(f) * carry[1] + lax.logistic(i) * jnp.tanh(g)
    return lax.logistic(o) * jnp.tanh(cell), cell


def _gru(inputs: Array, state: Array, carry: State) -> State:
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = (
        jnp.split(v, 3, axis=-1) for v in (inputs, state)
    )
    reset, update = lax.logistic(reset_x + reset_h), lax.logistic(update_x + update_h)
    return ((1 - update) * jnp.tanh(new_x + reset * new_h) + update * carry[0],)


# rnn_mode: (number of gates, the new state from the sums over input and state)
CELLS: dict[str, tuple[int, Cell]] = {
    "gru": (3, _gru),
    "lstm": (4, _lstm),
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
    """The final state and all outputs; past its length a sequence keeps its state, output zeros."""

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
