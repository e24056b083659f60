"""Ops on sparse tensors whose results have other indices than their inputs."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import PLAIN, flat_function

R = tf.raw_ops
G = np.random.default_rng(0)
SHAPE = [4, 5]


def sparse(*shape, dtype=np.float32, dense=0.5):
    """Indices and values of a random sparse tensor, in order."""
    x = (G.normal(size=shape) * 3 + 5) * (G.random(shape) < dense)
    x = np.round(x).astype(dtype)
    places = np.argwhere(x != 0)
    return places, x[tuple(places.T)]


def without_padding(group):
    """The group `(indices, values, ...)` without entries of index -1."""
    indices, *rest = group
    kept = (indices.reshape(len(indices), -1) >= 0).all(-1)
    assert all((r[: len(kept)][~kept] == 0).all() for r in rest[:1])
    return [indices[kept], *(r[kept] for r in rest)]


def check(fn, *args, groups=()):
    """Compare results; `groups` are slices of them that belong to one tensor."""
    want = [t.numpy() for t in flat_function(fn)(*map(tf.constant, args))]
    module = invert.convert(flat_function(fn), *args, config=PLAIN)
    with jax.enable_x64(True):
        got = [np.asarray(x) for x in jax.tree_util.tree_leaves(jax.jit(module)(*args))]
    for group in groups:
        got[group] = without_padding(got[group])
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), i
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6, err_msg=str(i))
    return module


A, B = sparse(*SHAPE), sparse(*SHAPE)


def _sum(least):
    def fn(ai, av, bi, bv):
        a = {"a_indices": ai, "a_values": av, "a_shape": SHAPE}
        found = R.SparseAdd(**a, b_indices=bi, b_values=bv, b_shape=SHAPE, thresh=least)
        grads = R.SparseAddGrad(
            backprop_val_grad=found[1] * 2, a_indices=ai, b_indices=bi, sum_indices=found[0]
        )
        return [*found, *grads]

    return fn


@pytest.mark.parametrize("least", [0.0, 8.0])
def test_sums(least):
    module = check(_sum(least), *A, *B, groups=[slice(0, 2)])
    assert "places" in str(module.report)


def test_sums_leave_nan_out():
    # TensorFlow compares a sum with the least size that is kept, which no NaN is.
    b = B[1].copy()
    b[:3] = np.nan
    check(_sum(0.0), *A, B[0], b, groups=[slice(0, 2)])


def test_sums_at_known_places_have_their_number_of_places():
    def fn(av, bv):
        found = _sum(0.0)(tf.constant(A[0]), av, tf.constant(B[0]), bv)
        return tf.math.reduce_mean(found[1]), found[0]

    check(fn, A[1], B[1])


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64])
def test_sums_of_other_types(dtype):
    least = 0.0 if dtype == np.complex64 else dtype(0)
    args = A[0], A[1].astype(dtype), B[0], B[1].astype(dtype)
    check(lambda *a: _sum(least)(*a)[:3], *args, groups=[slice(0, 2)])


@pytest.mark.parametrize("op", [R.SparseSparseMaximum, R.SparseSparseMinimum])
def test_extrema(op):
    def fn(ai, av, bi, bv):
        args = {"a_indices": ai, "a_values": av, "a_shape": SHAPE}
        return op(**args, b_indices=bi, b_values=bv, b_shape=SHAPE)

    check(fn, *A, B[0], -B[1], groups=[slice(0, 2)])


def test_order_and_shape():
    def fn(indices, values):
        return (
            *R.SparseReorder(input_indices=indices, input_values=values, input_shape=SHAPE),
            *R.SparseReshape(input_indices=indices, input_shape=SHAPE, new_shape=[2, -1, 2]),
        )

    mixed = G.permutation(len(A[1]))
    check(fn, A[0][mixed], A[1][mixed])


@pytest.mark.parametrize("axis", [0, -1])
def test_concatenation(axis):
    def fn(ai, av, bi, bv):
        shapes = [tf.constant(SHAPE, tf.int64)] * 2
        return R.SparseConcat(indices=[ai, bi], values=[av, bv], shapes=shapes, concat_dim=axis)

    check(fn, *A, *B)


@pytest.mark.parametrize(("start", "size"), [([1, 1], [2, 9]), ([0, 4], [4, 1]), ([3, 0], [1, 5])])
def test_slices(start, size):
    def fn(indices, values):
        found = R.SparseSlice(indices=indices, values=values, shape=SHAPE, start=start, size=size)
        grad = R.SparseSliceGrad(
            backprop_val_grad=found[1] * 3,
            input_indices=indices,
            input_start=start,
            output_indices=found[0],
        )
        return [*found, grad]

    check(fn, *A, groups=[slice(0, 2)])


def test_parts():
    def fn(indices, values):
        parts = R.SparseSplit(split_dim=1, indices=indices, values=values, shape=SHAPE, num_split=3)
        return [x for part in zip(*parts, strict=True) for x in part]

    for part in range(3):  # each has places of its own
        check(lambda i, v, n=part: fn(i, v)[3 * n : 3 * n + 3], *A, groups=[slice(0, 2)])


REDUCED = list(itertools.product(([0], [1, -1], [], [0, 1, 2]), (False, True)))


@pytest.mark.parametrize(("axes", "keep"), REDUCED)
def test_reductions(axes, keep):
    def fn(indices, values):
        args = {"input_indices": indices, "input_values": values, "input_shape": [3, 4, 2]}
        args |= {"reduction_axes": tf.constant(axes, tf.int32), "keep_dims": keep}
        found = [*R.SparseReduceSumSparse(**args), *R.SparseReduceMaxSparse(**args)]
        return [*found, R.SparseReduceSum(**args), R.SparseReduceMax(**args)]

    groups = [slice(0, 2), slice(3, 5)] if keep or len(axes) < 3 else []
    if not groups:  # one place without an index, so padding cannot be told from it

        def one(indices, values):
            found = fn(indices, values)
            return [tf.reduce_sum(found[1]), tf.reduce_max(found[4]), *found[6:]]

        check(one, *sparse(3, 4, 2))
    else:
        check(fn, *sparse(3, 4, 2), groups=groups)


def test_rows_without_elements():
    def fn(indices, values, default):
        found = R.SparseFillEmptyRows(
            indices=indices, values=values, dense_shape=[7, 5], default_value=default
        )
        grads = R.SparseFillEmptyRowsGrad(reverse_index_map=found[3], grad_values=found[1] * 2)
        return [*found, *grads]

    indices, values = sparse(6, 5, dense=0.3)
    kept = indices[:, 0] != 2
    mixed = G.permutation(int(kept.sum()))
    args = indices[kept][mixed], values[kept][mixed]
    check(fn, *args, np.float32(7), groups=[slice(0, 2)])
    check(lambda *a: fn(*a)[:4], args[0], args[1].astype(np.int32), np.int32(7),
          groups=[slice(0, 2)])  # fmt: skip


def test_ragged_rows_without_elements():
    def fn(rows, values, default):
        return R.RaggedFillEmptyRows(
            value_rowids=rows, values=values, nrows=6, default_value=default
        )

    rows, values = np.array([0, 0, 3, 4, 4]), np.arange(1, 6, dtype=np.float32)
    check(fn, rows, values, np.float32(9), groups=[slice(0, 2)])


_OF_KNOWN_PLACES = {
    "SparseReorder": lambda i, v: R.SparseReorder(
        input_indices=i, input_values=v, input_shape=[7, 5]
    ),
    "SparseSlice": lambda i, v: R.SparseSlice(
        indices=i, values=v, shape=[7, 5], start=[1, 1], size=[5, 3]
    ),
    "SparseSplit": lambda i, v: R.SparseSplit(
        split_dim=1, indices=i, values=v, shape=[7, 5], num_split=2
    ),
    "SparseConcat": lambda i, v: R.SparseConcat(
        indices=[i, i], values=[v, v * 2], shapes=[[7, 5], [7, 5]], concat_dim=1
    ),
    "SparseFillEmptyRows": lambda i, v: R.SparseFillEmptyRows(
        indices=i, values=v, dense_shape=[7, 5], default_value=v[0]
    ),
    "RaggedFillEmptyRows": lambda i, v: R.RaggedFillEmptyRows(
        value_rowids=i[:, 0], values=v, nrows=7, default_value=v[0]
    ),
}


@pytest.mark.parametrize("op", _OF_KNOWN_PLACES)
def test_known_places_are_not_padded(op):
    places = np.array([[0, 3], [0, 1], [3, 2], [5, 4], [5, 0]])
    if op in ("SparseSplit", "SparseConcat", "RaggedFillEmptyRows"):  # in order
        places = places[np.lexsort(places.T[::-1])]
    check(
        lambda v: tf.nest.flatten(_OF_KNOWN_PLACES[op](places, v)),
        np.arange(1, 6, dtype=np.float32),
    )


def test_lookup_of_known_ids_with_weights():
    def fn(table, weights):
        ids = tf.SparseTensor([[0, 0], [0, 2], [2, 1]], tf.constant([1, -1, 0], tf.int64), [4, 3])
        weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        return [tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner="sum")]

    check(fn, *(G.normal(size=s).astype(np.float32) for s in ((5, 3), (3,))))


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("known", [False, True])
def test_gradients_of_rows(kind, known):
    which, ids = np.array([4, 1, 4, 7, 1], np.int32), np.array([0, 0, 1, 2, 2], np.int32)

    def fn(grad, which, ids):
        op = getattr(R, f"SparseSegment{kind}GradV2")
        rows, where = op(grad=grad, indices=which, segment_ids=ids, dense_output_dim0=9)
        return where, rows

    grad = G.normal(size=(3, 2)).astype(np.float32)
    if known:
        check(lambda grad: fn(grad, tf.constant(which), tf.constant(ids)), grad)
    else:
        check(fn, grad, which, ids, groups=[slice(0, 2)])


def test_library():
    """`tf.sparse` functions built from these ops, with TensorFlow's gradients."""

    def fn(av, bv):
        a, b = (tf.SparseTensor(i, v, SHAPE) for i, v in ((A[0], av), (B[0], bv)))
        total = tf.sparse.concat(1, [tf.sparse.add(a, b), tf.sparse.reorder(a)])
        part = tf.sparse.slice(total, [1, 1], [3, 7])
        flat = tf.sparse.reshape(part, [-1])
        return tf.sparse.to_dense(flat, validate_indices=False)

    check(fn, A[1], B[1])

    def slope(av, bv):
        with tf.GradientTape() as tape:
            tape.watch([av, bv])
            y = tf.reduce_sum(fn(av, bv) ** 2)
        return tape.gradient(y, [av, bv])

    check(slope, A[1], B[1])


def test_known_operands_are_folded_with_the_attributes_of_the_op():
    def fn(x):
        joined = R.SparseConcat(
            indices=[A[0], B[0]],
            values=[A[1], B[1]],
            shapes=[np.array(SHAPE), np.array(SHAPE)],
            concat_dim=1,
        )
        return x * joined[1], joined[0], joined[2]

    check(fn, np.float32(2))
