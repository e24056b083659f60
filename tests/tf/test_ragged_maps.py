"""Functions mapped over the rows of a ragged tensor, which TensorFlow passes as variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import invert

tf = pytest.importorskip("tensorflow")

PLAIN = invert.Config(patterns=False, verify=False)
LENGTHS = [3, 0, 2, 1]
VALUES = np.float32([1.5, -2, 3, 4, 0.5, 6])
SPLITS = np.int64([0, 3, 3, 5, 6])


def known(v: Any) -> Any:
    return tf.RaggedTensor.from_row_lengths(v, LENGTHS)


def given(v: Any, splits: Any) -> Any:
    return tf.RaggedTensor.from_row_splits(v, splits, validate=False)


def nested(v: Any) -> Any:
    return tf.RaggedTensor.from_nested_row_lengths(v, [[2, 0, 2], LENGTHS])


def _summed(r: Any) -> Any:
    return tf.reduce_sum(tf.square(r))


def _mapped(r: Any) -> Any:
    return tf.map_fn(_summed, r, fn_output_signature=tf.float32)


def _doubled(v: Any) -> Any:
    spec = tf.RaggedTensorSpec([None], tf.float32)
    r = tf.map_fn(lambda row: row * 2, known(v), fn_output_signature=spec)
    return r.flat_values, r.row_splits


def _inner(v: Any) -> Any:
    spec = tf.RaggedTensorSpec([None], tf.float32)
    r = tf.map_fn(lambda rows: tf.reduce_sum(rows, 1), nested(v), fn_output_signature=spec)
    return r.flat_values, r.row_splits


def _slope(v: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = _mapped(known(v)) * [1.0, 2, 3, 4]
    return tape.gradient(y, v)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "known rows": (lambda v: _mapped(known(v)), (VALUES,)),
    "rows of vectors": (lambda v: _mapped(known(v)), (np.stack([VALUES, -VALUES, 0 * VALUES], 1),)),
    "given rows": (lambda v, s: _mapped(given(v, s)), (VALUES, SPLITS)),
    "ragged results": (_doubled, (VALUES,)),
    "rows of rows": (_inner, (VALUES,)),
    "gradient": (_slope, (VALUES,)),
}


@pytest.mark.parametrize("name", CASES)
def test_map_over_rows(name: str) -> None:
    fn, args = CASES[name]
    function = tf.function(fn, autograph=False)
    module = invert.convert(function, *args, config=PLAIN)
    ours = jax.tree_util.tree_leaves(module(*args))
    want = tf.nest.flatten(function(*map(tf.constant, args)))
    for x, y in zip(ours, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def test_other_rows_of_the_same_program_and_its_gradient() -> None:
    def fn(v: Any, splits: Any) -> Any:
        return _mapped(given(v, splits)) * [1.0, 2, 3, 4]

    config = invert.Config(verify=False)  # the patterns make a scan of the loop
    module = invert.convert(tf.function(fn, autograph=False), VALUES, SPLITS, config=config)
    for splits in (SPLITS, np.int64([0, 0, 5, 6, 6]), np.int64([0, 6, 6, 6, 6])):
        with tf.GradientTape() as tape:
            v = tf.constant(VALUES)
            tape.watch(v)
            want = fn(v, tf.constant(splits))
        np.testing.assert_allclose(module(VALUES, splits), want, rtol=1e-6, atol=1e-6)
        slope = jax.grad(lambda v, s=splits: module(v, s).sum())(VALUES)
        np.testing.assert_allclose(slope, tape.gradient(want, v), rtol=1e-6, atol=1e-6)


def test_rows_of_unknown_length_are_not_joined() -> None:
    def fn(v: Any, splits: Any) -> Any:
        spec = tf.RaggedTensorSpec([None], tf.float32)
        return tf.map_fn(lambda row: row * 2, given(v, splits), fn_output_signature=spec).values

    with pytest.raises(invert.UnsupportedOpError, match="length depends on data"):
        invert.convert(tf.function(fn, autograph=False), VALUES, SPLITS, config=PLAIN)
