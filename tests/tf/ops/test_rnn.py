"""Recurrent ops and the loss over unaligned labels, against TensorFlow."""

from __future__ import annotations

import importlib

import jax
import numpy as np
import pytest
import tensorflow as tf

from invert import UnsupportedOpError
from tests.tf.ops.driver import check, converted
from tests.tf.ops.samples import normal, slow_but

RAW = tf.raw_ops
BATCH, INPUTS, UNITS, STEPS = 2, 3, 4, 5


def test_gru_cell():
    weights = normal(INPUTS + UNITS, 2 * UNITS), normal(INPUTS + UNITS, UNITS)
    biases = normal(2 * UNITS), normal(UNITS)
    x, h = normal(BATCH, INPUTS), normal(BATCH, UNITS)

    def fn(x, h, w_ru, w_c, b_ru, b_c):
        args = {"x": x, "h_prev": h, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c}
        return RAW.GRUBlockCell(**args)

    check(fn, x, h, *weights, *biases, grad=False)

    def fn_grad(x, h, w_ru, w_c, b_ru, b_c):
        args = {"x": x, "h_prev": h, "w_ru": w_ru, "w_c": w_c, "b_ru": b_ru, "b_c": b_c}
        r, u, c, _ = RAW.GRUBlockCell(**args)
        return RAW.GRUBlockCellGrad(**args, r=r, u=u, c=c, d_h=normal(BATCH, UNITS, seed="g"))

    check(fn_grad, x, h, *weights, *biases, grad=False)


def lstm_args(x):
    return (
        x,
        normal(BATCH, UNITS, seed="cs") * 3,
        normal(BATCH, UNITS, seed="h"),
        normal(INPUTS + UNITS, 4 * UNITS),
        *(normal(UNITS, seed=s) for s in ("wci", "wcf", "wco")),
        normal(4 * UNITS, seed="b"),
    )


NAMES = ("x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b")


@pytest.mark.parametrize("peephole", [False, True])
def test_lstm_cell(peephole):
    def fn(*args):
        given = dict(zip(NAMES, args, strict=True))
        results = RAW.LSTMBlockCell(**given, use_peephole=peephole, forget_bias=0.7, cell_clip=1.5)
        i, cs, f, o, ci, co, _ = results
        gradient = RAW.LSTMBlockCellGrad(
            **given, i=i, cs=cs, f=f, o=o, ci=ci, co=co, use_peephole=peephole,
            cs_grad=normal(BATCH, UNITS, seed="1"), h_grad=normal(BATCH, UNITS, seed="2"),
        )  # fmt: skip
        return *results, *(gradient if peephole else gradient[:2])

    check(fn, *lstm_args(normal(BATCH, INPUTS)), grad=False)


VERSIONS = [("", False), ("", True), ("V2", False), ("V2", True)]


@pytest.mark.parametrize(("version", "peephole"), slow_but([("", True)], VERSIONS))
def test_block_lstm(version, peephole):
    length = np.int64(STEPS - 1)
    options = {"use_peephole": peephole, "cell_clip": 0.9}
    extra = {} if version else {"forget_bias": 0.7}

    def forward(given):
        block = getattr(RAW, f"BlockLSTM{version}")
        return block(seq_len_max=length, **given, **options, **extra)

    def fn(*args):
        given = dict(zip(NAMES, args, strict=True))
        results = forward(given)
        i, cs, f, o, ci, co, h = results
        shape = (STEPS, BATCH, UNITS)
        gradient = getattr(RAW, f"BlockLSTMGrad{version}")(
            seq_len_max=length, **given, i=i, cs=cs, f=f, o=o, ci=ci, co=co, h=h,
            use_peephole=peephole, cs_grad=normal(*shape, seed="1"), h_grad=normal(*shape),
        )  # fmt: skip
        # Behind the last step TensorFlow sets the cell and the output alone to zero.
        shown = [r[:length] for r in results]
        return *shown, cs, h, *gradient[:4], gradient[7], *(gradient[4:7] if peephole else ())

    args = lstm_args(normal(STEPS, BATCH, INPUTS))
    check(fn, *args, grad=False)
    # The derivative that JAX takes, too: the limit of the cell is no part of it. TensorFlow
    # registers the gradient of the first version for the second one, whose columns are in another
    # order, so that it is wrong (tensorflow/python/ops/rnn_grad.py, TensorFlow 2.21).

    def output(*args):
        return forward(dict(zip(NAMES, args, strict=True)))[6]

    def first_version(*args):
        given = dict(zip(NAMES, args, strict=True))
        for name in ("w", "b"):
            i, f, c, o = tf.split(given[name], 4, axis=-1)
            given[name] = tf.concat([i, c, f, o], axis=-1)
        return RAW.BlockLSTM(seq_len_max=length, **given, **options, forget_bias=0.0)[6]

    check(output, *args, reference=first_version if version else None, tf_grad=not version)


# -- cuDNN, which TensorFlow runs on a GPU only: compared with Keras's own layers

# The ops have seeds, for the dropout that is refused.
KEY = jax.random.key(0)


def packed(layer):
    """The weights of a Keras layer in cuDNN's form, by Keras's own conversion."""
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")

    kernel, recurrent, bias = (np.asarray(w) for w in layer.get_weights())
    gates = 4 if type(layer).__name__ == "LSTM" else 3
    order = (0, 1, 2, 3) if gates == 4 else (1, 0, 2)
    columns = [np.split(w, gates, axis=1) for w in (kernel, recurrent)]
    biases = np.split(np.concatenate([np.zeros_like(bias), bias]), 8) if gates == 4 else None
    if gates == 3:
        biases = [row for half in bias for row in np.split(half, 3)]
    return rnn._standardize_cudnn_weights(
        weights=[part[i] for part in columns for i in order],
        biases=[biases[k * gates + i] for k in (0, 1) for i in order],
        shape=tf.constant([-1]),
        transpose_weights=True,
    )


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("padded", [False, True])
def test_cudnn(kind, padded):
    keras = pytest.importorskip("keras")
    layer = getattr(keras.layers, kind)(UNITS, return_sequences=True, return_state=True)
    x = normal(BATCH, STEPS, INPUTS)
    lengths = np.array([STEPS, 3] if padded else [STEPS, STEPS], np.int32)
    mask = np.arange(STEPS) < lengths[:, None]
    layer(x)
    params = packed(layer).numpy()
    state = np.zeros((BATCH, 1, UNITS), np.float32)

    def fn(x, state, params, lengths):
        # Keras gives batch first and reverses nothing.
        return RAW.CudnnRNNV3(
            input=x, input_h=state, input_c=state, params=params, sequence_lengths=lengths,
            rnn_mode=kind.lower(), time_major=False, is_training=True,
        )  # fmt: skip

    call = converted(fn, [x, state, params, lengths])
    output, h, c, *_ = call(x, state, params, lengths, KEY)
    want, *states = layer(x, mask=tf.constant(mask) if padded else None)
    # Keras repeats the last output where the mask is off; cuDNN gives zeros there.
    np.testing.assert_allclose(output, want.numpy() * mask[..., None], rtol=1e-5, atol=1e-6)
    for got, wanted in zip((h, c), states, strict=False):
        np.testing.assert_allclose(got[:, 0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_cudnn_in_two_layers_and_directions(mode):
    """A layer reads both directions of the one below; the backward direction starts at the end."""
    gates = {"lstm": 4, "gru": 3}.get(mode, 1)
    sizes = [(gates * UNITS, n) for n in (INPUTS, UNITS, INPUTS, UNITS)]
    sizes += [(gates * UNITS, n) for n in (2 * UNITS, UNITS, 2 * UNITS, UNITS)]
    matrices = [normal(*s, seed=str(i)) * 0.5 for i, s in enumerate(sizes)]
    biases = [normal(gates * UNITS, seed=f"b{i}") for i in range(8)]
    params = np.concatenate([m.ravel() for m in (*matrices, *biases)])
    x, h, c = normal(STEPS, BATCH, INPUTS), *(normal(4, BATCH, UNITS, seed=s) for s in "hc")

    def fn(x, h, c, params):
        return RAW.CudnnRNN(
            input=x, input_h=h, input_c=c, params=params, rnn_mode=mode, direction="bidirectional"
        )

    output, h_last, c_last, _ = converted(fn, [x, h, c, params])(x, h, c, params, KEY)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    def cell(a, b, h, c):
        if mode == "lstm":
            i, f, g, o = np.split(a + b, 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(c), c
        if mode == "gru":
            (ra, za, na), (rb, zb, nb) = np.split(a, 3, -1), np.split(b, 3, -1)
            z = sigmoid(za + zb)
            return (1 - z) * np.tanh(na + sigmoid(ra + rb) * nb) + z * h, c
        return (np.tanh(a + b) if mode == "rnn_tanh" else np.maximum(a + b, 0)), c

    below = x
    for layer in range(2):
        both = []
        for d in range(2):
            k = 2 * layer + d
            state, memory, out = h[k], c[k], [None] * STEPS
            for t in range(STEPS) if d == 0 else reversed(range(STEPS)):
                a = below[t] @ matrices[2 * k].T + biases[2 * k]
                b = state @ matrices[2 * k + 1].T + biases[2 * k + 1]
                state, memory = cell(a, b, state, memory)
                out[t] = state
            both.append(np.stack(out))
            np.testing.assert_allclose(h_last[k], state, rtol=1e-4, atol=1e-5)
            if mode == "lstm":
                np.testing.assert_allclose(c_last[k], memory, rtol=1e-4, atol=1e-5)
        below = np.concatenate(both, -1)
    np.testing.assert_allclose(output, below, rtol=1e-4, atol=1e-5)


def test_gradient_op_of_cudnn():
    """The gradient op gives the derivatives of the forward op."""
    shapes = {"input": (STEPS, BATCH, INPUTS), "input_h": (1, BATCH, UNITS)}
    shapes |= {"input_c": (1, BATCH, UNITS), "params": (4 * UNITS * (INPUTS + UNITS + 2),)}
    args = [normal(*s, seed=n) for n, s in shapes.items()]
    lengths = np.array([STEPS, 3], np.int32)
    slopes = [normal(STEPS, BATCH, UNITS), *(normal(1, BATCH, UNITS, seed=s) for s in "hc")]

    def forward(*xs):
        given = dict(zip(shapes, xs, strict=True))
        return RAW.CudnnRNNV3(**given, sequence_lengths=lengths)

    def fn(*xs):
        given = dict(zip(shapes, xs, strict=True))
        y, h, c, reserve, host = forward(*xs)
        return RAW.CudnnRNNBackpropV3(
            **given, sequence_lengths=lengths, output=y, output_h=h, output_c=c,
            output_backprop=slopes[0], output_h_backprop=slopes[1], output_c_backprop=slopes[2],
            reserve_space=reserve, host_reserved=host,
        )  # fmt: skip

    got = converted(fn, args)(*args, KEY)
    call = converted(forward, args)
    _, pullback = jax.vjp(lambda *xs: tuple(call(*xs, KEY)[:3]), *args)
    for g, w in zip(got, pullback(tuple(slopes)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_dropout_of_cudnn_is_refused():
    def fn(x, h, params):
        return RAW.CudnnRNN(input=x, input_h=h, input_c=h, params=params, dropout=0.5)

    args = [normal(STEPS, BATCH, 1), normal(1, BATCH, 1), normal(16)]
    with pytest.raises(UnsupportedOpError, match="cuDNN's own"):
        converted(fn, args)(*args, KEY)


def test_dropout_of_cudnn_has_no_effect_in_inference():
    def run(**attributes):
        def fn(x, h, params):
            return RAW.CudnnRNN(input=x, input_h=h, input_c=h, params=params, **attributes)

        return converted(fn, args)(*args, KEY)

    args = [normal(STEPS, BATCH, 1), normal(1, BATCH, 1), normal(16)]
    for g, w in zip(run(dropout=0.5, seed=3, is_training=False), run(), strict=True):
        np.testing.assert_array_equal(g, w)


# -- CTC


INDICES = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1], [3, 0]], np.int64)
LABELS = np.array([2, 2, 0, 1, 3, 3, 2], np.int32)
LENGTHS = np.array([7, 4, 5, 6], np.int32)


OPTIONS = [(a, b) for a in (False, True) for b in (False, True)]


@pytest.mark.parametrize(("collapse", "merge"), slow_but([(False, True)], OPTIONS))
def test_ctc_loss(collapse, merge):
    def fn(logits):
        return RAW.CTCLoss(
            inputs=logits, labels_indices=INDICES, labels_values=LABELS, sequence_length=LENGTHS,
            preprocess_collapse_repeated=collapse, ctc_merge_repeated=merge,
        )  # fmt: skip

    # Sums over paths, in the logarithm.
    check(fn, normal(7, 4, 5), grad=False, rtol=1e-4, atol=1e-5)
    check(lambda x: fn(x)[0], normal(7, 4, 5), tf_grad=merge, rtol=1e-4, atol=1e-5)


def test_ctc_loss_of_too_many_labels():
    def fn(logits):
        return RAW.CTCLoss(
            inputs=logits, labels_indices=INDICES, labels_values=LABELS,
            sequence_length=np.array([2, 4, 5, 6], np.int32),
            ignore_longer_outputs_than_inputs=True,
        )  # fmt: skip

    check(fn, normal(7, 4, 5), grad=False, rtol=1e-4, atol=1e-5)
