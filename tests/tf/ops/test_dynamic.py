"""Ops with results of data-dependent size, candidate samplers, and CTC decoders."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert import Config, UnsupportedOpError

R = tf.raw_ops
PLAIN = Config(patterns=False, verify=False)
PADDED = Config(patterns=False, verify=False, dynamic_sizes="pad")
BOXES = np.array([[0, 0, 1, 1], [0, 0, 0.9, 1], [2, 2, 3, 3]], np.float32)


def converted(fn, *args, config=PLAIN):
    return invert.convert(tf.function(fn, autograph=False), *args, config=config)


def results(fn, *args, config=PLAIN):
    """TensorFlow's results and the conversion's."""
    want = [t.numpy() for t in tf.nest.flatten(fn(*map(tf.constant, args)))]
    with jax.enable_x64(True):
        got = jax.jit(lambda *xs: converted(fn, *args, config=config)(*xs))(*args)
    return want, [np.asarray(y) for y in jax.tree_util.tree_leaves(got)]


def assert_padded(want, got, behind):
    for w, g in zip(want, got, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g[: len(w)], w)
        np.testing.assert_array_equal(g[len(w) :], np.full_like(g[len(w) :], behind))


def test_unique_numbers_elements_by_first_occurrence():
    x = np.array([5, 3, 5, 1, 3, 9, -2], np.int64)
    want, got = results(lambda x: tf.unique_with_counts(x), x, config=PADDED)
    assert_padded(want[:1], got[:1], -1)
    np.testing.assert_array_equal(got[1], want[1])
    assert_padded(want[2:], got[2:], 0)
    floats = np.array([0.5, np.nan, 0.5, np.nan, -0.0, 0.0], np.float32)
    want, got = results(lambda x: tf.unique(x), floats, config=PADDED)
    np.testing.assert_array_equal(got[1], want[1])


def test_places_and_differences_are_padded_on_request():
    x = np.array([[1, 0, 7], [0, 0, 2]], np.int32)
    want, got = results(lambda x: tf.where(x), x, config=PADDED)
    assert_padded(want, got, -1)
    y = np.array([7, 0, 3], np.int32)
    want, got = results(lambda x, y: R.ListDiff(x=x, y=y), x.ravel(), y, config=PADDED)
    assert_padded(want[:1], got[:1], 0)
    assert_padded(want[1:], got[1:], -1)


def test_rows_at_padded_indices_are_zeros():
    x = np.array([[1.0, 2], [3, -4], [5, 6]], np.float32)
    want, got = results(lambda x: tf.boolean_mask(x, x[:, 1] > 0), x, config=PADDED)
    assert_padded(want, got, 0)


@pytest.mark.parametrize(
    ("fn", "sizes"),
    [
        (fn, sizes)
        for sizes in ("ids", "error")
        for fn in (
            tf.where,
            tf.unique,
            tf.unique_with_counts,
            lambda x: tf.unique(tf.cast(x, tf.float32))[0],
            lambda x: tf.sort(tf.unique(x)[0]),
            lambda x: tf.boolean_mask(x, x > 1),
            lambda x: tf.map_fn(lambda y: y + 1, tf.unique(x)[0]),
            lambda x: R.ListDiff(x=x, y=x[:2]),
            lambda x: tf.image.non_max_suppression(BOXES, tf.cast(x, tf.float32), 2),
        )
    ],
)
def test_sizes_without_padding_are_an_error(fn, sizes):
    x = np.arange(3, dtype=np.int32)
    with pytest.raises(UnsupportedOpError, match="size depends on data") as caught:
        converted(fn, x, config=Config(dynamic_sizes=sizes))(x)
    assert 'Config(dynamic_sizes="pad")' in caught.value.problems[0].remedy
    converted(fn, x, config=PADDED)(x)


def test_an_update_of_rows_that_occur_twice_trains_as_in_tensorflow():
    def step(table, ids):
        with tf.GradientTape() as tape:
            tape.watch(table)
            loss = tf.reduce_sum(tf.gather(table, ids) ** 3)
        slices = tape.gradient(loss, table)
        rows, which = tf.unique(slices.indices)
        summed = tf.math.unsorted_segment_sum(slices.values, which, tf.shape(rows)[0])
        return tf.tensor_scatter_nd_sub(table, rows[:, None], 0.1 * summed**2)

    table = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    want, got = results(step, table, np.array([1, 4, 1, 0, 1]))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("merge", [False, True])
def test_best_path(merge):
    x = np.random.default_rng(1).normal(size=(7, 3, 4)).astype(np.float32)
    n = np.array([7, 4, 0], np.int32)
    want, got = results(
        lambda x, n: R.CTCGreedyDecoder(
            inputs=x, sequence_length=n, merge_repeated=merge, blank_index=2
        ),
        x, n,
    )  # fmt: skip
    assert_padded(want[:1], got[:1], -1)
    assert_padded(want[1:2], got[1:2], 0)
    np.testing.assert_array_equal(got[2], want[2])
    np.testing.assert_allclose(got[3], want[3], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("width", "paths", "merge"), [(5, 2, False), (20, 3, True)])
def test_beam_search(width, paths, merge):
    x = np.random.default_rng(2).normal(size=(6, 3, 4)).astype(np.float32) * 2
    n = np.array([6, 3, 2], np.int32)
    want, got = results(
        lambda x, n: tf.nest.flatten(
            R.CTCBeamSearchDecoder(
                inputs=x, sequence_length=n, beam_width=width, top_paths=paths,
                merge_repeated=merge,
            )
        ),
        x, n,
    )  # fmt: skip
    assert_padded(want[:paths], got[:paths], -1)
    assert_padded(want[paths : 2 * paths], got[paths : 2 * paths], 0)
    for w, g in zip(want[2 * paths : 3 * paths], got[2 * paths : 3 * paths], strict=True):
        np.testing.assert_array_equal(g, w)
    np.testing.assert_allclose(got[-1], want[-1], rtol=1e-5, atol=1e-6)


SAMPLERS = {
    "fixed_unigram": {"unigrams": [1.0, 2, 3, 4, 5, 6, 7, 8], "distortion": 0.7},
    "log_uniform": {},
    "uniform": {},
}


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.drawn(3)
def test_candidates_have_the_expected_counts(name, unique):
    classes = np.array([[0, 1], [5, 7]])
    sampler = getattr(tf.random, f"{name}_candidate_sampler")

    def fn(classes):
        return sampler(classes, 2, 3, unique, 8, **SAMPLERS[name])

    with jax.enable_x64(True):
        module = converted(fn, classes)
        keys = jax.random.split(jax.random.key(0), 4000)
        drawn, of_true, of_drawn = jax.jit(jax.vmap(lambda k: module(classes, key=k)))(keys)
        of_true = np.asarray(of_true, np.float64)
    want = [[t.numpy() for t in fn(tf.constant(classes))] for _ in range(400)]
    theirs, of_theirs = (np.stack([w[i] for w in want]).astype(np.float64) for i in range(2))
    counts, their_counts = (
        np.stack([(np.asarray(d) == i).sum(1) for i in range(8)], 1) for d in (drawn, theirs)
    )
    assert counts.max() == 1 or not unique
    for mine, other in ((counts, their_counts), (of_true, of_theirs)):
        spread = np.sqrt(mine.var(0) / mine.shape[0] + other.var(0) / other.shape[0])
        assert (np.abs(mine.mean(0) - other.mean(0)) <= 4.5 * spread + 1e-6).all()
    assert np.asarray(of_drawn).shape == (4000, 3)


def test_sampling_all_classes_draws_each_once():
    classes = np.array([[0, 1]])
    with jax.enable_x64(True):
        module = converted(lambda c: tf.random.all_candidate_sampler(c, 2, 4, True), classes)
        drawn, of_true, of_drawn = module(classes, key=jax.random.key(0))
    np.testing.assert_array_equal(drawn, range(4))
    np.testing.assert_array_equal(of_true, [[1, 1]])
    np.testing.assert_array_equal(of_drawn, np.ones(4))


def test_learning_samplers_are_refused():
    def fn(classes):
        return tf.random.learned_unigram_candidate_sampler(classes, 1, 2, True, 9)

    with pytest.raises(UnsupportedOpError, match="learns its distribution"):
        converted(fn, np.array([[1]]))


def test_accidental_hits_are_taken_out_of_a_sampled_softmax():
    g = np.random.default_rng(4)
    sampled = np.array([1, 5, 1, 8])

    def fn(w, x, labels):
        values = (tf.constant(sampled), tf.fill([3, 2], 0.3), tf.fill([4], 0.2))
        bias = tf.zeros([10])
        return tf.nn.sampled_softmax_loss(
            w, bias, labels, x, 4, 10, num_true=2, sampled_values=values
        )

    w, x = (g.normal(size=(n, 4)).astype(np.float32) for n in (10, 3))
    want, got = results(fn, w, x, np.array([[0, 1], [5, 7], [9, 9]]))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "rounds"), [("int32", 4), ("uint64", 24)])
def test_shuffled_indices_equal_tensorflows(dtype, rounds):
    most = np.array([0, 1, 1000, 65536, 10**6, 2**31 - 1]).astype(dtype)
    index = most // np.array(2, dtype)
    seed = np.array([7, 2**31 - 3, 12345678]).astype(dtype)

    def fn(index, seed, most):
        return R.RandomIndexShuffle(index=index, seed=seed, max_index=most, rounds=rounds)

    want, got = results(fn, index, seed, most)
    assert got[0].dtype == want[0].dtype
    np.testing.assert_array_equal(got[0], want[0])
    want, got = results(fn, index[2], seed, most[2])
    assert got[0].shape == ()
    np.testing.assert_array_equal(got[0], want[0])


def _partitioned_lookup(ids, tables, stitch):
    count = len(tables)
    assignments, inside = tf.cast(ids % count, tf.int32), ids // count
    chosen = tf.dynamic_partition(inside, assignments, count)
    places = tf.dynamic_partition(tf.range(tf.size(ids)), assignments, count)
    return stitch(places, [tf.gather(t, i) for t, i in zip(tables, chosen, strict=True)])


@pytest.mark.parametrize(
    "ids", [[0, 5, 3, 4, 5, 1, 2], [0, 3, 6], [4]], ids=["all", "one part", "one row"]
)
@pytest.mark.parametrize("stitch", [tf.dynamic_stitch, tf.raw_ops.ParallelDynamicStitch])
@pytest.mark.drawn(3)
def test_parts_that_are_joined_again(ids, stitch):
    """As in `embedding_lookup` of partitioned variables."""
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((3, 2)).astype(np.float32) for _ in range(3)]
    join = stitch if stitch is tf.dynamic_stitch else lambda i, d: stitch(indices=i, data=d)
    ids = np.array(ids, np.int64)
    want, got = results(lambda *a: _partitioned_lookup(a[0], a[1:], join), ids, *tables)
    np.testing.assert_array_equal(got[0], want[0])

    with tf.GradientTape() as tape:
        held = [tf.constant(t) for t in tables]
        tape.watch(held)
        loss = tf.reduce_sum(_partitioned_lookup(tf.constant(ids), held, join) ** 2)
    grads = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, held)]
    with jax.enable_x64(True):
        module = converted(lambda *a: _partitioned_lookup(a[0], a[1:], join), ids, *tables)
        found = jax.grad(lambda ts: (module(ids, *ts) ** 2).sum())(tables)
    for grad, other in zip(grads, found, strict=True):
        np.testing.assert_allclose(other, grad, rtol=1e-6, atol=1e-6)


def test_parts_whose_sizes_would_be_seen_are_refused():
    x, parts = np.arange(4, dtype=np.float32), np.array([0, 1, 0, 1], np.int32)
    with pytest.raises(UnsupportedOpError, match=r"DynamicPartition.*is a result"):
        converted(lambda x, p: tf.dynamic_partition(x, p, 2), x, parts)
    places = np.array([3, 1, 1, 0], np.int32)
    for other in (lambda p: places, lambda p: tf.reverse(tf.range(4), [0]) + p):
        with pytest.raises(UnsupportedOpError, match="DynamicStitch"):
            converted(
                lambda x, p, other=other: tf.dynamic_stitch(
                    tf.dynamic_partition(other(p), p, 2), tf.dynamic_partition(x, p, 2)
                ),
                x,
                parts,
            )
