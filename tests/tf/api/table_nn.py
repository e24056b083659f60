"""Calls of `tf.nn`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.tf.api.calls import (
    DISTINCT,
    PROBS,
    B,
    F,
    I,
    Table,
    U,
    V,
    call,
    each,
    left_out,
    of,
)  # fmt: skip

N = tf.nn
IMG = F(B, 5, 6, 2)
SEQ = F(B, 7, 2)
VOL = F(B, 3, 4, 5, 2)
SINGLE = "float32"
_KEY = "drawn with the key of the call"
_CLASSES = V([[1], [3], [5]], "int64")


def _sampled(x: Any = None) -> Any:
    return (
        tf.constant([2, 0, 5, 7], tf.int64),
        tf.constant([[0.3], [0.2], [0.1]]),
        tf.constant([0.2, 0.3, 0.1, 0.05]),
    )


def _sparse(values: Any = None) -> Any:
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], tf.constant([1, 3, 0, 2, 2], tf.int64), [3, 2]
    )
    return ids if values is None else (ids, tf.SparseTensor(ids.indices, values, ids.dense_shape))


_LENGTHS = (V([3, 2], "int32"), V([6, 5], "int32"))
_CONV2D = (
    (1, "SAME", {}), (2, "VALID", {}), ([1, 2, 1, 1], "SAME", {}), (1, "SAME", {"dilations": 2}),
    (1, [[0, 0], [1, 0], [2, 1], [0, 0]], {}), (1, "VALID", {"dilations": [1, 1, 2, 1]}),
)  # fmt: skip

CONVOLUTIONS: Table = {
    "conv1d": (call(SEQ, F(3, 2, 4), 1, "SAME"), call(SEQ, F(3, 2, 4), 2, "VALID"), call(SEQ, F(3, 2, 4), 1, "SAME", dilations=2).of(SINGLE)),
    "conv2d": (*[call(IMG, F(3, 2, 2, 4), s, p, **k).of(SINGLE) for s, p, k in _CONV2D], call(IMG, F(1, 1, 2, 3), 1, "SAME")),
    "conv3d": (call(VOL, F(2, 2, 2, 2, 3), [1, 1, 1, 1, 1], "SAME"), call(VOL, F(2, 2, 2, 2, 3), [1, 1, 2, 1, 1], "VALID").of(SINGLE)),
    "conv1d_transpose": (call(F(B, 4, 2), F(3, 3, 2), [3, 8, 3], 2).of(SINGLE).closed(), of(lambda x, w: N.conv1d_transpose(x, w, [tf.shape(x)[0], 6, 3], 1, "VALID"), F(B, 4, 2), F(3, 3, 2)).of(SINGLE)),
    "conv2d_transpose": (of(lambda x, w: N.conv2d_transpose(x, w, [tf.shape(x)[0], 8, 6, 3], [2, 1]), F(B, 4, 6, 2), F(3, 2, 3, 2)).of(SINGLE), of(lambda x, w: N.conv2d_transpose(x, w, [tf.shape(x)[0], 9, 7, 3], 2, "VALID"), F(B, 4, 3, 2), F(3, 2, 3, 2)).of(SINGLE)),
    "conv3d_transpose": (of(lambda x, w: N.conv3d_transpose(x, w, [tf.shape(x)[0], 4, 6, 4, 3], 2), F(B, 2, 3, 2, 2), F(2, 3, 2, 3, 2)).of(SINGLE),),
    "conv_transpose": (of(lambda x, w: N.conv_transpose(x, w, [tf.shape(x)[0], 8, 6, 3], [2, 1]), F(B, 4, 6, 2), F(3, 2, 3, 2)).of(SINGLE),),
    "convolution": (
        call(IMG, F(3, 2, 2, 4)).of(SINGLE), call(SEQ, F(3, 2, 4), padding="SAME", dilations=[2]).of(SINGLE), call(VOL, F(2, 2, 2, 2, 3), strides=[1, 2, 1]).of(SINGLE),
        call(IMG, F(3, 2, 2, 4), padding="SAME", dilations=[2, 1]).of(SINGLE),
    ),
    "atrous_conv2d": (call(IMG, F(2, 2, 2, 3), 2, "SAME").of(SINGLE), call(IMG, F(2, 2, 2, 3), 2, "VALID").of(SINGLE)),
    "atrous_conv2d_transpose": (call(F(2, 4, 6, 2), F(2, 2, 3, 2), [2, 4, 6, 3], 2, "SAME").of(SINGLE),),
    "depthwise_conv2d": (
        call(IMG, F(3, 2, 2, 2), [1, 1, 1, 1], "SAME"), call(IMG, F(3, 3, 2, 1), [1, 2, 2, 1], "VALID").of(SINGLE), call(IMG, F(2, 2, 2, 2), [1, 1, 1, 1], "SAME", dilations=[2, 2]).of(SINGLE),
        call(IMG, F(3, 2, 2, 2), [1, 1, 1, 1], [[0, 0], [1, 2], [0, 1], [0, 0]]).of(SINGLE),
    ),
    "depthwise_conv2d_backprop_filter": (call(F(2, 5, 6, 2), [3, 2, 2, 2], F(2, 5, 6, 4), [1, 1, 1, 1], "SAME").of(SINGLE),),
    "depthwise_conv2d_backprop_input": (call([2, 5, 6, 2], F(3, 2, 2, 2), F(2, 5, 6, 4), [1, 1, 1, 1], "SAME").of(SINGLE),),
    "separable_conv2d": (call(IMG, F(3, 2, 2, 2), F(1, 1, 4, 3), [1, 1, 1, 1], "SAME").of(SINGLE), call(IMG, F(3, 2, 2, 2), F(1, 1, 4, 3), [1, 2, 2, 1], "VALID").of(SINGLE)),
    "dilation2d": (call(IMG, F(3, 2, 2), [1, 1, 2, 1], "SAME", "NHWC", [1, 1, 1, 1]), call(IMG, F(2, 2, 2), [1, 1, 1, 1], "VALID", "NHWC", [1, 2, 2, 1])),
    "erosion2d": (call(IMG, F(3, 2, 2), [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),),
    "with_space_to_batch": (of(lambda x: N.with_space_to_batch(x, [2, 1], "VALID", lambda y, _rate, _padding: y * 2.0, filter_shape=[1, 1]), F(B, 4, 6, 2)).of(SINGLE),),
    "space_to_batch": (call(F(B, 4, 6, 2), [2, 3], [[0, 0], [0, 0]]), call(F(2, 5, 3), [2], [[1, 2]])),
    "space_to_depth": (call(F(B, 4, 6, 2), 2),),
    "depth_to_space": (call(F(B, 2, 3, 8), 2),),
}  # fmt: skip

POOLS: Table = {
    **each("avg_pool1d max_pool1d", call(SEQ, 3, 2, "SAME"), call(SEQ, 2, 1, "VALID")),
    **each("avg_pool2d max_pool2d", call(IMG, 3, 2, "SAME"), call(IMG, [2, 3], 1, "VALID").of(SINGLE)),
    **each("avg_pool3d max_pool3d", call(VOL, 2, 2, "SAME").of(SINGLE), call(VOL, [1, 2, 3], 1, "VALID").of(SINGLE)),
    **each("avg_pool max_pool", call(IMG, 2, 2, "SAME").of(SINGLE), call(SEQ, 2, 2, "VALID").of(SINGLE), call(VOL, 2, 1, "VALID").of(SINGLE)),
    "pool": (call(IMG, [2, 3], "MAX", [2, 1], "SAME"), call(IMG, [2, 2], "AVG", dilations=[2, 2]).of(SINGLE), call(SEQ, [3], "AVG", padding="SAME")),
    "max_pool_with_argmax": (call(DISTINCT(B, 4, 6, 2), 2, 2, "SAME").of(SINGLE), call(DISTINCT(B, 5, 6, 2), [2, 3], 1, "VALID", include_batch_in_index=True).of(SINGLE)),
    **left_out("without a rule", "fractional_avg_pool fractional_max_pool"),
}  # fmt: skip

LOSSES: Table = {
    "sigmoid_cross_entropy_with_logits": (call(U(0, 1, B, 3), F(B, 3)), call(V([0.0, 1.0, 1.0]), V([0.0, 0.0, 99.0]))),
    "weighted_cross_entropy_with_logits": (call(U(0, 1, B, 3), F(B, 3), 1.7), call(U(0, 1, B, 3), F(B, 3), F(3))),
    "softmax_cross_entropy_with_logits": (call(PROBS(B, 4), F(B, 4)), call(PROBS(B, 4, 2), F(B, 4, 2), axis=1)),
    "sparse_softmax_cross_entropy_with_logits": (call(I(0, 4, B), F(B, 4)), call(I(0, 4, B, 2, dtype="int64"), F(B, 2, 4))),
    "log_poisson_loss": (call(U(0, 4, B, 3), F(B, 3)), call(U(0, 4, B, 3), F(B, 3), compute_full_loss=True)),
    "l2_loss": (call(F(B, 3)),),
    "compute_average_loss": (call(F(B)), call(F(B), U(0, 1, B), global_batch_size=8)),
    "scale_regularization_loss": (call(F(3)),),
    "nce_loss": (of(lambda w, b, x: N.nce_loss(w, b, tf.constant([[1], [3], [5]], tf.int64), x, 4, 8, sampled_values=_sampled(), remove_accidental_hits=True), F(8, 2), F(8), F(3, 2)).of(SINGLE),),
    "sampled_softmax_loss": (
        of(lambda w, b, x: N.sampled_softmax_loss(w, b, tf.constant([[1], [3], [5]], tf.int64), x, 4, 8, sampled_values=_sampled()), F(8, 2), F(8), F(3, 2)).of(SINGLE),
        of(lambda w, b, x: N.sampled_softmax_loss(w, b, tf.constant([[1], [3], [5]], tf.int64), x, 4, 8, seed=3), F(8, 2), F(8), F(3, 2)).of(SINGLE).but(value=_KEY, gradient=_KEY, vmap=_KEY),
    ),
    "ctc_loss": (
        call(I(1, 4, 2, 3), F(6, 2, 5), *_LENGTHS, blank_index=0).of(SINGLE).near(5),
        call(I(0, 3, 2, 3), F(2, 6, 5), *_LENGTHS, logits_time_major=False, blank_index=-1).of(SINGLE).near(5),
        of(lambda x, n: N.ctc_loss(tf.SparseTensor([[0, 0], [0, 1], [1, 0]], tf.constant([1, 2, 2]), [2, 2]), x, None, n, blank_index=-1), F(6, 2, 4), V([6, 5], "int32")).of(SINGLE).near(5).but(vmap="takes a sparse tensor"),
    ),
    **left_out("sizes depend on data", "ctc_unique_labels collapse_repeated"),
    "ctc_greedy_decoder": "sizes depend on data; compared with the ops of that kind",
    "ctc_beam_search_decoder": "sizes depend on data; compared with the ops of that kind",
}  # fmt: skip

ACTIVATIONS: Table = {
    **each("elu selu gelu relu relu6 leaky_relu silu swish crelu", call(F(B, 3)), call(V([0.0, -0.0, 6.0, -1.0, 1.0, 9.0])), call(F(3)).specials()),
    "gelu": (call(F(B, 3)), call(F(B, 3), approximate=True), call(F(3)).specials()),
    "leaky_relu": (call(F(B, 3), 0.3), call(V([0.0, -0.0]))),
    "silu": (call(F(B, 3)), call(F(B, 3), 1.5), call(V([0.0, -30.0, 90.0]))),
    "isotonic_regression": "without a rule",
}  # fmt: skip

OTHER: Table = {
    **left_out("wraps a cell of Keras", "RNNCellDeviceWrapper RNNCellDropoutWrapper RNNCellResidualWrapper"),
    "batch_normalization": (call(F(B, 3), F(3), U(0.1, 2, 3), F(3), F(3), 1e-3), call(F(B, 3), F(3), U(0.1, 2, 3), None, None, 0.1)),
    "batch_norm_with_global_normalization": (call(F(B, 3), F(3), U(0.1, 2, 3), F(3), F(3), 1e-3, True),),
    "bias_add": (call(F(B, 4, 3), F(3)), call(F(B, 3, 4), F(3), "NC..").of("float32 int32")),
    "moments": (call(F(B, 4), [0]), call(F(B, 4, 2), [1, 2], keepdims=True)),
    "weighted_moments": (call(F(B, 4), [0], U(0.1, 1, B, 4)), call(F(B, 4), [1], U(0.1, 1, B, 1), keepdims=True)),
    "sufficient_statistics": (call(F(B, 4), [0]), call(F(B, 4), [1], shift=F(B, 1), keepdims=True)),
    "normalize_moments": (call(V(5.0), F(3), U(9, 12, 3), None), call(V(5.0), F(3), U(9, 12, 3), F(3))),
    **each("local_response_normalization lrn", call(IMG).of(SINGLE), call(F(B, 3, 3, 5), 2, 1.5, 0.4, 0.7).of(SINGLE)),
    "dropout": (call(F(B, 40), 0.3).but(value=_KEY, gradient=_KEY, vmap=_KEY), call(F(B, 3), 0.0)),
    "embedding_lookup": (call(F(5, 2), I(0, 5, B, 3)), call(F(5, 2), I(0, 5, B), max_norm=0.7)),
    "embedding_lookup_sparse": (
        *[of(lambda p, c=c: N.embedding_lookup_sparse(p, _sparse(), None, combiner=c), F(5, 2)).of(SINGLE) for c in ("sum", "mean", "sqrtn")],
        *[of(lambda p, w, c=c: N.embedding_lookup_sparse(p, *_sparse(w), combiner=c), F(5, 2), U(0.2, 1, 5)).of(SINGLE) for c in ("sum", "mean", "sqrtn")],
        of(lambda p, w: N.embedding_lookup_sparse(p, *_sparse(w), combiner="mean", allow_fast_lookup=True, max_norm=0.7), F(5, 2), U(0.2, 1, 5)).of(SINGLE),
    ),
    "safe_embedding_lookup_sparse": (
        of(lambda p: N.safe_embedding_lookup_sparse(p, tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 3, 2], tf.int64), [4, 2])), F(5, 2)).of(SINGLE),
        of(lambda p: N.safe_embedding_lookup_sparse(p, tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, -1, 2], tf.int64), [4, 2]), combiner="sum", default_id=2), F(5, 2)).of(SINGLE),
    ),
    "all_candidate_sampler": (of(lambda c: N.all_candidate_sampler(c, 1, 8, True), _CLASSES).of(SINGLE).but(value=_KEY, vmap=_KEY),),
    "learned_unigram_candidate_sampler": "learns from the calls before, which no model holds",
    "fixed_unigram_candidate_sampler": (of(lambda c: N.fixed_unigram_candidate_sampler(c, 1, 4, True, 8, unigrams=[1.0, 2, 3, 4, 5, 6, 7, 8], seed=3), _CLASSES).of(SINGLE).but(value=_KEY, vmap=_KEY),),
    "compute_accidental_hits": "sizes depend on data; compared with the ops of that kind",
}  # fmt: skip

NN: Table = {**ACTIVATIONS, **CONVOLUTIONS, **POOLS, **LOSSES, **OTHER}

EXPERIMENTAL: Table = {
    "general_dropout": (call(F(B, 8), 0.4, lambda shape, dtype: tf.random.stateless_uniform(shape, [1, 2], dtype=dtype)),),
    "stateless_dropout": (call(F(B, 8), 0.4, [1, 2]), call(F(B, 8), 0.4, [1, 2], rng_alg="philox", noise_shape=[1, 8])),
}  # fmt: skip
