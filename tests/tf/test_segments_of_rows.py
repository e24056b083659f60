"""Sparse tensors and segments at the places that a mask keeps, as in embedding columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config, UnsupportedOpError

R = tf.raw_ops
PLAIN = Config(patterns=False, verify=False)
RNG = np.random.default_rng(0)
ROWS, WIDTH, IDS = 5, 3, 10
EMPTY = np.full((ROWS, WIDTH), -1)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def draws(rows: int = ROWS) -> list[tuple[Any, Any, Any]]:
    """A table, ids of which -1 is none, and weights."""
    ids = [np.where(RNG.random((rows, WIDTH)) < 0.4, RNG.integers(IDS, size=(rows, WIDTH)), -1)
           for _ in range(4)]  # fmt: skip
    ids[1][0] = ids[2][-1] = -1
    ids += [np.full((rows, WIDTH), n) for n in (-1, 3)]
    return [(normal(IDS, 4), i, normal(rows, WIDTH) + np.float32(0.5)) for i in ids]


def assert_equal(fn: Callable[..., Any], cases: Any = None, *, slopes: bool = False) -> None:
    """Compare results and, on request, the gradients of a scalar that depends on all of them."""
    cases = draws() if cases is None else cases
    module = invert.convert(tf.function(fn, autograph=False), *cases[0], config=PLAIN)
    for args in cases:
        with jax.enable_x64(True):
            got = jax.tree_util.tree_leaves(jax.jit(module)(*args))
        for x, y in zip(got, tf.nest.flatten(fn(*map(tf.constant, args))), strict=True):
            assert x.shape == y.shape
            # Sums in another order.
            np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6)
        if slopes:
            assert_same_slopes(fn, module, args)


def assert_same_slopes(fn: Callable[..., Any], module: Any, args: Any) -> None:
    table, ids, weights = map(tf.constant, args)
    with tf.GradientTape() as tape:
        tape.watch([table, weights])
        y = tf.reduce_sum(tf.sin(fn(table, ids, weights)))
    want = tape.gradient(y, [table, weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def loss(table: Any, weights: Any) -> Any:
        return jax.numpy.sum(jax.numpy.sin(module(table, args[1], weights)))

    with jax.enable_x64(True):
        got = jax.grad(loss, (0, 1))(args[0], args[2])
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, tf.convert_to_tensor(y), rtol=2e-5, atol=2e-5)


def sparse(ids: Any, weights: Any) -> tuple[Any, Any]:
    places, shape = tf.where(ids >= 0), tf.shape(ids, out_type=tf.int64)
    known, weights = tf.gather_nd(ids, places), tf.gather_nd(weights, places)
    return tf.SparseTensor(places, known, shape), tf.SparseTensor(places, weights, shape)


def filled_up(y: Any) -> Any:
    """All segments, with ones behind the last."""
    behind = [[0, ROWS - tf.shape(y)[0]], *[[0, 0]] * (y.shape.rank - 1)]
    return tf.pad(y, behind, constant_values=1)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod"])
def test_segments(kind: str) -> None:
    op = getattr(R, f"Segment{kind}")

    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, _ = sparse(ids, weights)
        rows = tf.gather(table, found.values)
        return filled_up(op(data=rows, segment_ids=tf.cast(found.indices[:, 0], tf.int32)))

    assert_equal(fn, slopes=kind in ("Sum", "Mean"))


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_segments_of_looked_up_rows(kind: str) -> None:
    op, grad = (getattr(R, f"SparseSegment{kind}{suffix}") for suffix in ("", "Grad"))

    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, _ = sparse(ids, weights)
        where = tf.unstack(found.indices, axis=1)[0]
        y = op(data=table, indices=found.values, segment_ids=where)
        rows, which = tf.unique(found.values)
        of_unique = op(data=tf.gather(table, rows), indices=which, segment_ids=where)
        slopes = {"grad": y * 2, "indices": found.values, "segment_ids": where}
        return [filled_up(y), filled_up(of_unique), grad(**slopes, output_dim0=IDS)]

    cases = [args for args in draws() if (args[1] >= 0).any()]  # else not initialized
    assert_equal(fn, cases)
    assert_equal(lambda *args: fn(*args)[0], cases, slopes=True)


def test_rows_without_elements() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, weights = sparse(ids, weights)
        args = {"indices": found.indices, "dense_shape": [ROWS, WIDTH]}
        filled = R.SparseFillEmptyRows(**args, values=weights.values, default_value=7.0)
        grads = R.SparseFillEmptyRowsGrad(
            reverse_index_map=filled.reverse_index_map, grad_values=filled.output_values**2
        )
        rows = R.RaggedFillEmptyRows(
            value_rowids=found.indices[:, 0], values=found.values, nrows=ROWS, default_value=9
        )
        first, second = tf.unstack(filled.output_indices, axis=1)
        sums = [tf.scatter_nd(filled.output_indices, filled.output_values, [ROWS, WIDTH])]
        sums += [tf.scatter_nd(found.indices, grads.d_values, [ROWS, WIDTH])]
        sums += [tf.math.segment_max(second, first), tf.size(rows.output_values)]
        sums += [tf.math.segment_sum(rows.output_values, rows.output_value_rowids)]
        return [*sums, filled.empty_row_indicator, grads.d_default_value, rows[2]]

    assert_equal(fn)


def test_places_of_another_shape() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        cube = tf.reshape(ids, [5, 1, 3])
        x = tf.sparse.reshape(sparse(cube, tf.reshape(weights, [5, 1, 3]))[1], [-1, 5])
        sums = tf.math.segment_sum(x.values, x.indices[:, 0])
        behind: Any = [[0, 3 - tf.shape(sums)[0]]]
        return [tf.sparse.to_dense(x), tf.pad(sums, behind)]

    assert_equal(fn)


def test_rows_are_selected_by_a_vector() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        rows = tf.boolean_mask(weights, ids[:, 0] >= 0)
        chosen = tf.compat.v1.where(rows[:, 0] > 0, rows, -rows)
        return [filled_up(chosen), filled_up(tf.compat.v1.where(rows > 0, rows, rows * 2))]

    assert_equal(fn)


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("default", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_embedding_columns(combiner: str, default: int | None, weighted: bool) -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, weights = sparse(ids, weights)
        return tf.nn.safe_embedding_lookup_sparse(
            table, found, weights if weighted else None, combiner=combiner, default_id=default
        )

    assert_equal(fn, slopes=True)


def test_lookups_with_limited_norms() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, weights = sparse(ids, weights)
        rows = tf.nn.embedding_lookup_sparse(table, found, weights, combiner="sum", max_norm=1.5)
        safe = tf.nn.safe_embedding_lookup_sparse(table, found, None, max_norm=1.5)
        return filled_up(rows) + safe

    assert_equal(fn, slopes=True)


def test_gradients_of_tensorflow() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        found, _ = sparse(ids, weights)
        losses = []
        with tf.GradientTape() as tape:
            tape.watch(table)
            for combiner in ("mean", "sum", "sqrtn"):
                y = tf.nn.safe_embedding_lookup_sparse(table, found, None, combiner=combiner)
                losses.append(tf.reduce_sum(y**2 * tf.range(1.0, 5)))
            rows = tf.nn.safe_embedding_lookup_sparse(table, found, None, max_norm=1.5)
            total = tf.add_n(losses) + tf.reduce_sum(rows**3)
        return tf.convert_to_tensor(tape.gradient(total, table))

    assert_equal(fn)


def test_programs_for_every_batch() -> None:
    def fn(table: Any, ids: Any, weights: Any) -> Any:
        return tf.nn.safe_embedding_lookup_sparse(table, sparse(ids, weights)[0], None)

    sizes = [tf.TensorSpec([IDS, 4]), tf.TensorSpec([None, WIDTH], tf.int64)]
    sizes += [tf.TensorSpec([None, WIDTH])]
    module = invert.convert(tf.function(fn, input_signature=sizes), config=PLAIN)
    assert "for every" in str(module.report)
    for args in (*draws(1), *draws(7)):
        with jax.enable_x64(True):
            got = module(*args)
        np.testing.assert_allclose(got, fn(*map(tf.constant, args)), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "ids_of",
    [
        lambda x, places: places[:, 1],
        lambda x, places: places[:, ::-1][:, 0],
        lambda x, places: places[:, None, :][:, 0, 1],
        lambda x, places: places[:, 0] * 2,
        lambda x, places: tf.gather_nd(places, tf.where(places > 0)),
        lambda x, places: tf.gather_nd(x, places),
    ],
)
def test_segments_without_a_bound_are_refused(ids_of: Callable[..., Any]) -> None:
    def fn(x: Any) -> Any:
        ids = ids_of(x, tf.where(x >= 0))
        return tf.reduce_sum(tf.math.segment_sum(tf.ones_like(ids), ids))

    with pytest.raises(UnsupportedOpError, match=r"depends on data and has no known bound"):
        invert.convert(tf.function(fn, autograph=False), EMPTY, config=PLAIN)
