"""Calls of Keras: losses, activations, initializers and the like; calls of `tf.strings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.tf.api.calls import PROBS, B, Call, F, I, Table, U, V, call, each, left_out, of

ONE = "float32"
_BOOKS = "finds or saves an object by its name"
_BASE = "a class for others to derive from"

_PAIR = call(F(B, 4), F(B, 4)).of(ONE)
_ODDS = (PROBS(B, 4), PROBS(B, 4))
_BITS = (I(0, 2, B, 4, dtype="float32"), U(0.05, 0.95, B, 4))

LOSSES: Table = {
    **left_out(_BOOKS, "deserialize get serialize"),
    "Loss": _BASE,
    **each("hinge squared_hinge categorical_hinge huber log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error cosine_similarity", _PAIR),
    **each("mean_squared_logarithmic_error poisson kl_divergence dice tversky", call(U(0.1, 0.9, B, 4), U(0.1, 0.9, B, 4)).of(ONE)),
    **each("dice tversky", call(U(0.1, 0.9, 3, 4), U(0.1, 0.9, 3, 4)).of(ONE)),
    **each("binary_crossentropy binary_focal_crossentropy", call(*_BITS).of(ONE), call(I(0, 2, B, 4, dtype="float32"), F(B, 4), from_logits=True, label_smoothing=0.1).of(ONE)),
    **each("categorical_crossentropy categorical_focal_crossentropy", call(*_ODDS).of(ONE), call(PROBS(B, 4), F(B, 4), from_logits=True, label_smoothing=0.1).of(ONE)),
    "categorical_generalized_cross_entropy": (call(I(0, 4, B), PROBS(B, 4), q=0.5).of(ONE),),
    "sparse_categorical_crossentropy": (call(I(0, 4, B), PROBS(B, 4)).of(ONE), call(I(0, 4, B), F(B, 4), from_logits=True).of(ONE), call(V([0, 2, 1], "int32"), F(3, 4), from_logits=True, ignore_class=2).of(ONE)),
    "circle": (of(lambda y, e: keras.losses.circle(y, keras.ops.normalize(e)), V([0, 1, 0, 1], "int32"), F(4, 3)).of(ONE),),
    "ctc": (call(I(1, 4, 2, 3), F(2, 6, 5)).of(ONE).near(5),),
    **{
        name: (of(lambda *xs, name=name, k=k: getattr(keras.losses, name)(**k)(*xs), *args).of(ONE), of(lambda *xs, name=name, k=k: getattr(keras.losses, name)(reduction="sum", **k)(*xs[:-1], sample_weight=xs[-1]), *args, U(0.1, 1, args[0].shape[0])).of(ONE))
        for name, args, k in (
            *((n, (F(B, 4), F(B, 4)), {}) for n in ("Hinge", "SquaredHinge", "CategoricalHinge", "Huber", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "CosineSimilarity")),
            *((n, (U(0.1, 0.9, B, 4), U(0.1, 0.9, B, 4)), {}) for n in ("MeanSquaredLogarithmicError", "Poisson", "KLDivergence")),
            *((n, _BITS, {}) for n in ("BinaryCrossentropy", "BinaryFocalCrossentropy")),
            *((n, _ODDS, {}) for n in ("CategoricalCrossentropy", "CategoricalFocalCrossentropy")),
            ("CategoricalGeneralizedCrossEntropy", (I(0, 4, B), PROBS(B, 4)), {}),
            ("SparseCategoricalCrossentropy", (I(0, 4, B), F(B, 4)), {"from_logits": True}),
        )
    },
    "CTC": (of(lambda y, x: keras.losses.CTC()(y, x), I(1, 4, 2, 3), F(2, 6, 5)).of(ONE).near(5),),
    "Circle": (of(lambda y, e: keras.losses.Circle()(y, keras.ops.normalize(e)), V([0, 1, 0, 1], "int32"), F(4, 3)).of(ONE),),
    **{n: (of(lambda y, x, n=n: getattr(keras.losses, n)()(y, x), U(0.1, 0.9, 3, 4), U(0.1, 0.9, 3, 4)).of(ONE),) for n in ("Dice", "Tversky")},
}  # fmt: skip

ACTIVATIONS: Table = {
    **left_out(_BOOKS, "deserialize get serialize"),
    **each(
        "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid silu soft_shrink "
        "softplus softsign sparse_plus sparse_sigmoid squareplus swish tanh tanh_shrink",
        call(F(B, 4)).of(ONE), call(V([0.0, -0.0, 1.0, -1.0, 6.0, -9.0])).of(ONE),
    ),
    **each("softmax log_softmax sparsemax glu", call(F(B, 4)).of(ONE)),
    "relu": (call(F(B, 4)).of(ONE), call(F(B, 4), negative_slope=0.1, max_value=0.5, threshold=0.2).of(ONE)),
    "threshold": (call(F(B, 4), 0.2, -1.0).of(ONE),),
}  # fmt: skip

_SEEDED = "GlorotNormal GlorotUniform HeNormal HeUniform LecunNormal LecunUniform Orthogonal RandomNormal RandomUniform TruncatedNormal VarianceScaling"


def _initialized(name: str, shape: tuple[int, ...] = (3, 4), **options: object) -> tuple[Call, ...]:
    return (
        of(lambda x: x + getattr(keras.initializers, name)(**options)(shape, "float32"), F()).of(
            ONE
        ),
    )


INITIALIZERS: Table = {
    **left_out(_BOOKS, "deserialize get serialize"), "Initializer": _BASE,
    **{n: tuple(c.near(10) for c in _initialized(n, seed=7)) for n in _SEEDED.split()},
    "Constant": _initialized("Constant", value=2.5), "Ones": _initialized("Ones"), "Zeros": _initialized("Zeros"), "Identity": _initialized("Identity", (3, 3)),
    "STFT": _initialized("STFT", (8, 1, 5), side="real"),
}  # fmt: skip

REGULARIZERS: Table = {
    **left_out(_BOOKS, "deserialize get serialize"), "Regularizer": _BASE,
    **{n: (of(lambda x, n=n, k=k: getattr(keras.regularizers, n)(**k)(x), F(B, 3)).of(ONE),) for n, k in (("L1", {"l1": 0.1}), ("L2", {"l2": 0.1}), ("L1L2", {"l1": 0.1, "l2": 0.2}))},
    **{n: (of(lambda x, m=m: keras.regularizers.OrthogonalRegularizer(0.1, m)(x), F(3, 4)).of(ONE),) for n, m in (("OrthogonalRegularizer", "rows"),)},
}  # fmt: skip

CONSTRAINTS: Table = {
    **left_out(_BOOKS, "deserialize get serialize"), "Constraint": _BASE,
    **{n: (of(lambda x, n=n: getattr(keras.constraints, n)()(x), F(B, 3)).of(ONE),) for n in ("MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm")},
}  # fmt: skip

R = keras.random
RANDOM: Table = {
    "SeedGenerator": "holds state; tested with the layers",
    "normal": (call((3, 4), 1.0, 2.0, seed=3).of(ONE),), "uniform": (call((3, 4), -1.0, 2.0, seed=3).of(ONE),), "truncated_normal": (call((3, 4), seed=3).of(ONE),),
    "randint": (call((3, 4), 2, 9, seed=3).of(ONE),), "categorical": (call(F(B, 4), 5, seed=3).of(ONE),), "shuffle": (call(F(4, 3), seed=3).of(ONE),),
    "gamma": (call((3, 4), 2.5, seed=3).of(ONE).near(3),), "beta": (call((3, 4), 2.5, 1.5, seed=3).of(ONE).near(3),), "binomial": (call((3, 4), 5.0, 0.3, seed=3).of(ONE),),
    "dropout": (call(F(B, 8), 0.4, seed=3).of(ONE), of(lambda x: R.dropout(x, 0.4, noise_shape=(1, 8), seed=3), F(3, 8)).of(ONE)),
}  # fmt: skip


def _folded(make: Callable[[], Any]) -> tuple[Call, ...]:
    """Known text, as numbers next to an argument."""
    return (of(lambda x: (x, make()), F()).of(ONE),)


S = tf.strings
_WORDS = ["ab c", "", "Äö", "12"]
STRINGS: Table = {
    **{
        name: _folded(lambda make=make: S.length(make()))
        for name, make in {
            "as_string": lambda: S.as_string([1.5, 2.0], precision=2), "bytes_split": lambda: S.bytes_split(_WORDS).flat_values, "format": lambda: S.format("{} x", tf.constant(1)),
            "join": lambda: S.join([_WORDS, _WORDS], "-"), "lower": lambda: S.lower(_WORDS), "upper": lambda: S.upper(_WORDS), "strip": lambda: S.strip(_WORDS),
            "ngrams": lambda: S.ngrams(_WORDS, 2), "reduce_join": lambda: S.reduce_join(_WORDS), "regex_replace": lambda: S.regex_replace(_WORDS, "[a-z]", "xx"),
            "split": lambda: S.split(_WORDS).flat_values, "substr": lambda: S.substr(["abcd", "efgh"], 1, 2), "unicode_encode": lambda: S.unicode_encode([[97, 228]], "UTF-8"),
            "unicode_split": lambda: S.unicode_split(_WORDS, "UTF-8").flat_values, "unicode_split_with_offsets": lambda: S.unicode_split_with_offsets(_WORDS, "UTF-8")[0].flat_values,
            "unicode_transcode": lambda: S.unicode_transcode(_WORDS, "UTF-8", "UTF-16-BE"), "unsorted_segment_join": lambda: S.unsorted_segment_join(_WORDS, [0, 1, 0, 1], 2),
        }.items()
    },
    "length": _folded(lambda: S.length(_WORDS, "UTF8_CHAR")), "regex_full_match": _folded(lambda: S.regex_full_match(_WORDS, "[a-z ]+")),
    "to_hash_bucket": _folded(lambda: S.to_hash_bucket(_WORDS, 9)), "to_hash_bucket_fast": _folded(lambda: S.to_hash_bucket_fast(_WORDS, 9)), "to_hash_bucket_strong": _folded(lambda: S.to_hash_bucket_strong(_WORDS, 9, [1, 2])),
    "to_number": _folded(lambda: S.to_number(["1.5", "2"])), "unicode_decode": _folded(lambda: S.unicode_decode(_WORDS, "UTF-8")), "unicode_decode_with_offsets": _folded(lambda: S.unicode_decode_with_offsets(_WORDS, "UTF-8")),
    "unicode_script": _folded(lambda: S.unicode_script([97, 228, 1488])),
}  # fmt: skip
