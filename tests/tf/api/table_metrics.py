"""Calls of stateful objects: `keras.metrics` and `tf.random.Generator`.

Each is converted once, then called several times with its state, as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.tf.api.calls import PROBS, Arg, Call, F, I, Table, U, call, each, left_out, made

K = keras.metrics


_WEIGHTS = U(0.1, 2, 3)


def _metric(make: Callable[[], Any], *args: Arg, weights: Arg = _WEIGHTS) -> tuple[Call, ...]:
    """A metric over batches, with and without sample weights."""

    def update() -> Callable[..., Any]:
        metric = make()
        # Some make their variables with the first batch.
        metric.update_state(*(tf.zeros(a.shape, a.spec("float32")[1]) for a in args))
        metric.reset_state()

        def step(*batch: Any) -> Any:
            values, weight = batch[: len(args)], batch[len(args) :]
            metric.update_state(*values, *weight)
            return metric.result()

        return step

    return made(update, *args), made(update, *args, weights)


def _of(name: str, *args: Arg, weights: Arg = _WEIGHTS, **options: Any) -> tuple[Call, ...]:
    return _metric(lambda: getattr(K, name)(**options), *args, weights=weights)


_NUMBERS = (F(3, 4), F(3, 4))
_POSITIVE = (U(0.1, 0.9, 3, 4), U(0.1, 0.9, 3, 4))
_ODDS = (I(0, 2, 3, 4, dtype="float32"), U(0.02, 0.98, 3, 4))
_ONE_HOT = (PROBS(3, 4), PROBS(3, 4))
_CLASSES = (I(0, 4, 3), PROBS(3, 4))
_IDS = (I(0, 3, 3), I(0, 3, 3))
_COUNTS = I(0, 4, 3)
# Functions: two batches.
_PAIR = call(F(3, 4), F(3, 4)).of("float32")
_FUNCTIONS = call(*_POSITIVE).of("float32")

METRICS: Table = {
    **left_out("finds or saves an object by its name", "deserialize get serialize"),
    "Metric": "a class for others to derive from",
    **{n: _of(n, F(3)) for n in ("Mean", "Sum")},
    **{n: _of(n, *_NUMBERS) for n in ("CategoricalHinge", "CosineSimilarity", "Hinge", "LogCoshError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "RootMeanSquaredError", "SquaredHinge")},
    **{n: _of(n, *_POSITIVE) for n in ("KLDivergence", "MeanSquaredLogarithmicError", "Poisson")},
    **{n: _of(n, *_ODDS) for n in ("BinaryAccuracy", "BinaryCrossentropy", "FalseNegatives", "FalsePositives", "Precision", "Recall", "TrueNegatives", "TruePositives")},
    **{n: _of(n, *_ONE_HOT) for n in ("CategoricalAccuracy", "CategoricalCrossentropy")},
    "AUC": (*_of("AUC", *_ODDS), *_of("AUC", *_ODDS, curve="PR", num_thresholds=20, summation_method="majoring"), *_of("AUC", *_ODDS, multi_label=True)[:1]),
    "Accuracy": _of("Accuracy", *_IDS),
    "BinaryIoU": _of("BinaryIoU", *_ODDS)[:1],
    **{n: _of(n, *_NUMBERS)[:1] for n in ("ConcordanceCorrelation", "PearsonCorrelation")},
    "F1Score": _of("F1Score", *_ONE_HOT) + _of("F1Score", I(0, 2, 3, 4, dtype="float32"), PROBS(3, 4), average="macro", threshold=0.3),
    "FBetaScore": _of("FBetaScore", I(0, 2, 3, 4, dtype="float32"), PROBS(3, 4), average="weighted", beta=2.0, threshold=0.3),
    "IoU": _of("IoU", *_IDS, weights=_COUNTS, num_classes=3, target_class_ids=[0, 2]),
    "MeanIoU": _of("MeanIoU", *_IDS, weights=_COUNTS, num_classes=3) + _of("MeanIoU", *_IDS, num_classes=3, ignore_class=1)[:1],
    **{n: _of(n, *_ONE_HOT, weights=_COUNTS, num_classes=4, **k) for n, k in (("OneHotIoU", {"target_class_ids": [0, 1]}), ("OneHotMeanIoU", {}))},
    "MeanMetricWrapper": _metric(lambda: K.MeanMetricWrapper(lambda y, p: abs(y - p) ** 3), *_NUMBERS),
    **{n: _of(n, *_ODDS, **{k: 0.4}) for n, k in (("PrecisionAtRecall", "recall"), ("RecallAtPrecision", "precision"), ("SensitivityAtSpecificity", "specificity"), ("SpecificityAtSensitivity", "sensitivity"))},
    "R2Score": _of("R2Score", *_NUMBERS) + _of("R2Score", *_NUMBERS, class_aggregation="variance_weighted_average")[:1],
    **{n: _of(n, *_CLASSES) for n in ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy")},
    "SparseTopKCategoricalAccuracy": _of("SparseTopKCategoricalAccuracy", *_CLASSES, k=2),
    "TopKCategoricalAccuracy": _of("TopKCategoricalAccuracy", *_ONE_HOT, k=2),
    **each("categorical_hinge hinge huber log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error squared_hinge", _PAIR),
    **each("concordance_correlation kl_divergence mean_squared_logarithmic_error pearson_correlation poisson", _FUNCTIONS),
    **each("binary_accuracy binary_crossentropy binary_focal_crossentropy", call(*_ODDS).of("float32")),
    **each("categorical_accuracy categorical_crossentropy categorical_focal_crossentropy top_k_categorical_accuracy", call(*_ONE_HOT).of("float32")),
    **each("sparse_categorical_accuracy sparse_categorical_crossentropy sparse_top_k_categorical_accuracy", call(*_CLASSES).of("float32")),
}  # fmt: skip

G = tf.random.Generator


def _drawn(method: Callable[[Any], Any], make: Callable[[], Any] = lambda: G.from_seed(7)) -> Call:
    """Operations on a generator created outside the function."""

    def start() -> Callable[[], Any]:
        generator = make()
        return lambda: method(generator)

    return made(start)


def _normal(generator: Any) -> Any:
    return generator.normal([3])


GENERATOR: Table = {
    "binomial": (_drawn(lambda g: g.binomial([3], [9.0, 3.0, 40.0], [0.3, 0.5, 0.6])),),
    "from_key_counter": (_drawn(_normal, lambda: G.from_key_counter(5, [2, 3], "philox")),),
    "from_non_deterministic_state": "starts anywhere",
    "from_seed": (_drawn(_normal), _drawn(_normal, lambda: G.from_seed(9, alg="philox"))),
    "from_state": (_drawn(_normal, lambda: G.from_state([1, 2, 3], "philox")),),
    "make_seeds": (_drawn(lambda g: g.make_seeds(2)),),
    "normal": (_drawn(lambda g: g.normal([3, 2], 1.0, 2.0)), _drawn(lambda g: g.normal([3], dtype=tf.float64))),
    "reset": (_drawn(lambda g: (g.normal([2]), g.reset([1, 2, 3]), g.normal([2]))[::2]),),
    "reset_from_key_counter": (_drawn(lambda g: (g.reset_from_key_counter(5, [2, 3]), g.normal([2]))[1]),),
    "reset_from_seed": (_drawn(lambda g: (g.reset_from_seed(5), g.normal([2]))[1]),),
    "skip": (_drawn(lambda g: (g.skip(3), g.normal([2]))[1]),),
    "split": (_drawn(lambda gs: [g.normal([2]) for g in gs], lambda: G.from_seed(7).split(2)),),
    "truncated_normal": (_drawn(lambda g: g.truncated_normal([5])),),
    "uniform": (_drawn(lambda g: (g.uniform([3]), g.uniform([4], 2, 9, tf.int32))), _drawn(lambda g: g.uniform([3], -1.0, 2.0, tf.float64))),
    "uniform_full_int": (_drawn(lambda g: (g.uniform_full_int([3]), g.uniform_full_int([2], tf.int64))),),
}  # fmt: skip
