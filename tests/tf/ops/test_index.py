"""Slices, gathers, scatters and segments against TensorFlow."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import PLAIN
from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import (
    COMPLEX,
    INTS,
    MOVED,
    REAL,
    SIGNED,
    UNSIGNED,
    coarse,
    dtype_of,
    dtypes,
    i32,
    sample,
    special,
)


def strided(begin, end, strides=None, **masks):
    strides = [1] * len(begin) if strides is None else strides
    return {"begin": i32(*begin), "end": i32(*end), "strides": i32(*strides), **masks}


SLICES = [
    strided([1, 0, 1], [2, 3, 4]),
    strided([-1, 3, 0], [-3, 0, 4], [-1, -2, 3]),
    strided([0, 0], [1, 2], [1, 1], shrink_axis_mask=1),
    strided([0, -1], [0, 0], ellipsis_mask=1, shrink_axis_mask=2),
    strided([0, 0, 0], [0, 0, 2], new_axis_mask=1, ellipsis_mask=2),
    strided([0, 1, 0, 0], [0, 2, 0, 9], new_axis_mask=5, begin_mask=8),
    strided([2, 1], [0, 2], [-1, 1], end_mask=1),
    strided([5, -9], [9, 2]),
    strided([0, 3], [2, 1]),
    strided([-5], [9], [2]),
    strided([], []),
    strided([0, 3], [2, 0], [1, -1], begin_mask=2, end_mask=2),
]


def slice_cases():
    x = sample((2, 3, 4), "float32")
    for attrs in SLICES:
        yield raw("StridedSlice", {"input": x}, attrs)
        picked = np.asarray(tf.raw_ops.StridedSlice(input=x, **attrs))
        yield raw("StridedSliceGrad", {"dy": picked}, {"shape": i32(2, 3, 4), **attrs})
        value = sample(picked.shape, "float32", 5)
        yield raw("TensorStridedSliceUpdate", {"input": x, "value": value}, attrs)
        yield raw(
            "TensorStridedSliceUpdate",
            {"input": x, "value": value[..., :1] if value.ndim else value},
            attrs,
            label="broadcast",
        )
    for dtype in MOVED:
        y = sample((2, 3, 4), dtype)
        yield raw("StridedSlice", {"input": y}, SLICES[1])
        yield raw(
            "StridedSliceGrad",
            {"dy": sample((1, 3, 3), dtype)},
            {"shape": i32(2, 3, 4), **SLICES[0]},
        )
        yield raw("Slice", {"input": y}, {"begin": i32(0, 1, 2), "size": i32(-1, 2, 1)})
        yield raw(
            "Slice",
            {"input": y, "begin": i32(0, 1, 2)},
            {"size": i32(2, 2, 1)},
            label="traced begin",
        )
    for place in (i32(1, 0), i32(-1, 0)):
        attrs = {
            "end": i32(0, 0),
            "strides": i32(1, 1),
            "begin_mask": 2,
            "end_mask": 2,
            "shrink_axis_mask": 1,
        }
        yield raw("StridedSlice", {"input": x, "begin": place}, attrs, label="traced begin")
        yield raw(
            "StridedSliceGrad",
            {"dy": x[0], "begin": place},
            {"shape": i32(2, 3, 4), **attrs},
            label="traced begin",
        )
        yield raw(
            "TensorStridedSliceUpdate",
            {"input": x, "begin": place, "value": x[0] * 2},
            attrs,
            label="traced begin",
        )


def gather_cases():
    for dtype in MOVED:
        x = sample((3, 4, 5), dtype)
        which = i32(2, 0, 1, 1)
        for axis in (0, 1, -1):
            yield raw(
                "GatherV2", {"params": x, "indices": which}, {"axis": np.int32(axis)}, grad_rtol=64
            )
            yield raw(
                "GatherV2",
                {"params": x, "indices": which.reshape(2, 2)},
                {"axis": np.int32(axis)},
                grad_rtol=64,
            )
            yield raw("GatherV2", {"params": x, "indices": np.int64(1)}, {"axis": np.int32(axis)})
            yield raw(
                "GatherV2",
                {"params": x},
                {"indices": which, "axis": np.int32(axis)},
                label="constant",
                grad_rtol=64,
            )
        yield raw("Gather", {"params": x, "indices": which[:2]}, {"validate_indices": False})
        rows = np.array([[0, 3], [2, 2], [1, 0]], np.int64)
        yield raw(
            "GatherV2",
            {"params": x, "indices": rows},
            {"axis": np.int32(1), "batch_dims": 1},
            grad_rtol=64,
        )
        yield raw(
            "GatherV2",
            {"params": x, "indices": rows},
            {"axis": np.int32(2), "batch_dims": 1},
            grad_rtol=64,
        )
        yield raw(
            "GatherV2",
            {"params": x, "indices": rows},
            {"axis": np.int32(2), "batch_dims": -1},
            grad_rtol=64,
        )
        yield raw(
            "GatherV2",
            {"params": x[:, :2], "indices": rows % 2},
            {"axis": np.int32(2), "batch_dims": 2},
            grad_rtol=64,
        )
        yield raw(
            "GatherV2", {"params": x, "indices": which[:0]}, {"axis": np.int32(1)}, grad=False
        )
        yield raw("GatherNd", {"params": x, "indices": i32(2, 1)}, grad_rtol=64)
        yield raw(
            "GatherNd", {"params": x, "indices": np.array([[[2, 1, 4]], [[0, 0, 0]]], np.int32)}
        )
        yield raw(
            "GatherNd", {"params": x, "indices": np.array([[2], [2], [0]], np.int64)}, grad_rtol=64
        )
        yield raw("GatherNd", {"params": x, "indices": np.zeros((2, 0), np.int32)}, grad_rtol=64)
        parts = {"data": x[0]}
        yield raw("DynamicPartition", parts, {"partitions": i32(1, 0, 1, 1), "num_partitions": 3})
        yield raw(
            "DynamicStitch",
            {"data": [x[0], x[1, :2]]},
            {"indices": [i32(0, 5, 2, 1), i32(3, 2)]},
            grad=False,
            label="twice",
        )
        yield raw(
            "ParallelDynamicStitch",
            {"data": [x[0], x[1, :2]]},
            {"indices": [i32(0, 5, 2, 1), i32(3, 4)]},
        )
    outside = {"params": sample((3, 4), "float32"), "indices": i32(0, 3, -1)}

    def nearest(params, indices, **attrs):
        return [params[np.clip(indices, 0, 2)]]

    yield raw("GatherV2", outside, {"axis": np.int32(0)}, reference=nearest, label="out of range")
    yield raw(
        "GatherNd",
        {**outside, "indices": i32(0, 3, -1)[:, None]},
        reference=lambda params, indices: nearest(params, indices[:, 0]),
        label="out of range",
    )
    for op in ("LowerBound", "UpperBound"):
        for dtype in ("int32", "float32", "int64", "float64"):
            rows = np.sort(coarse((2, 6), dtype), -1)
            yield raw(
                op,
                {"sorted_inputs": rows, "values": coarse((2, 4), dtype, 1)},
                {"out_type": tf.int64},
            )
    for dtype in dtypes("Bucketize"):
        x = special(dtype) if dtype in REAL else coarse((6,), dtype)
        yield raw("Bucketize", {"input": x}, {"boundaries": [-1.5, 0.0, 0.5, 3.0]}, grad=False)


def scatter_cases():
    for dtype in MOVED:
        which = np.array([[0, 1], [2, 0], [0, 1]], np.int32)
        unique = np.array([[0, 1], [2, 0], [1, 1]], np.int64)
        x, updates = sample((3, 4, 2), dtype), sample((3, 2), dtype, 1)
        add = dtype != "bool"
        yield raw(
            "ScatterNd",
            {"indices": which if add else unique, "updates": updates},
            {"shape": np.array([3, 4, 2], which.dtype if add else np.int64)},
            rtol=2,
            atol=8,
        )
        for op in ("Update", "Add", "Sub", "Max", "Min"):
            if dtype in dtypes(f"TensorScatter{op}") and (add or op == "Update"):
                inputs = {"tensor": x, "indices": unique, "updates": updates}
                yield raw(f"TensorScatter{op}", inputs, rtol=2, atol=8)
                if op in ("Add", "Sub"):
                    yield raw(f"TensorScatter{op}", {**inputs, "indices": which}, rtol=2, atol=8)
                if op in ("Max", "Min") and dtype in REAL:
                    inputs = {
                        "tensor": coarse((9,), dtype),
                        "indices": unique[:, :1],
                        "updates": coarse((3,), dtype, 1),
                    }
                    yield raw(f"TensorScatter{op}", inputs, label="ties")
        if add:
            yield raw(
                "ScatterNdNonAliasingAdd",
                {"input": x, "indices": which, "updates": updates},
                rtol=2,
                atol=8,
            )
    for dtype in ("float32", "int32", "float64", "int8"):
        values = sample((3,), dtype)
        yield raw(
            "SparseToDense",
            {"sparse_indices": i32(0, 2, 5), "sparse_values": values, "default_value": values[0]},
            {"output_shape": i32(7)},
            grad=False,
        )
        yield raw(
            "SparseToDense",
            {
                "sparse_indices": np.array([[0, 2], [1, 0], [1, 1]]),
                "sparse_values": values[0],
                "default_value": values[1],
            },
            {"output_shape": np.array([2, 3])},
            grad=False,
        )
    for dtype in ("int32", "int64", "float32", "float64"):
        arr, weights = i32(1, 1, 0, 3, 9), sample((5,), dtype)
        yield raw("Bincount", {"arr": arr, "weights": weights}, {"size": np.int32(4)}, grad=False)
        yield raw(
            "Bincount", {"arr": arr, "weights": weights[:0]}, {"size": np.int32(12)}, grad=False
        )
        for index in (np.int32, np.int64):
            for binary in (False, True):
                attrs = {"size": index(4), "binary_output": binary}
                a = arr.astype(index)
                yield raw("DenseBincount", {"input": a, "weights": weights[:0]}, attrs, grad=False)
                rows = np.stack([a[:4], a[1:]])
                yield raw(
                    "DenseBincount", {"input": rows, "weights": weights[:0]}, attrs, grad=False
                )
                if not binary:
                    yield raw("DenseBincount", {"input": a, "weights": weights}, attrs, grad=False)
                    yield raw(
                        "DenseBincount",
                        {"input": rows, "weights": sample((2, 4), dtype)},
                        attrs,
                        grad=False,
                    )
    for dtype in dtypes("HistogramFixedWidth"):
        values = special(dtype, finite=True)
        if dtype in INTS:
            values = coarse((20,), dtype)
        span = np.array([0 if dtype in UNSIGNED else -2, 5]).astype(dtype_of(dtype))
        yield raw(
            "HistogramFixedWidth",
            {"values": values, "value_range": span},
            {"nbins": np.int32(5)},
            grad=False,
        )


INDEX = Suite([*slice_cases(), *gather_cases(), *scatter_cases()])


def segment_cases():
    for kind in ("Sum", "Prod", "Max", "Min"):
        for dtype in [d for d in dtypes(f"UnsortedSegment{kind}") if d != "bool"]:
            exact = dtype in INTS or kind in ("Max", "Min")
            attrs = {"num_segments": np.int32(5)}
            how = {
                "rtol": None if exact else 16,
                "atol": 0 if exact else 16,
                "grad_rtol": 64,
                "grad": dtype not in COMPLEX or kind == "Sum",
            }
            for label, x in (
                ("", sample((4, 3), dtype)),
                ("ties and zeros", coarse((4, 3), dtype)),
            ):
                yield raw(
                    f"UnsortedSegment{kind}",
                    {"data": x, "segment_ids": i32(3, 0, -1, 3)},
                    attrs,
                    label=label,
                    **how,
                )
            ids = np.array([[0, 2, 2], [4, 0, -1]], np.int64)
            yield raw(
                f"UnsortedSegment{kind}",
                {"data": sample((2, 3, 2), dtype), "segment_ids": ids},
                attrs,
                **how,
            )
            yield raw(
                f"UnsortedSegment{kind}",
                {"data": sample((0, 3), dtype), "segment_ids": i32()},
                attrs,
                grad=False,
            )
            x = coarse((5, 3), dtype)
            yield raw(f"Segment{kind}", {"data": x}, {"segment_ids": i32(0, 0, 2, 2, 3)}, **how)

            def unsorted(data, segment_ids, num_segments, op=f"UnsortedSegment{kind}"):
                return [
                    getattr(tf.raw_ops, op)(
                        data=data, segment_ids=segment_ids, num_segments=num_segments
                    ).numpy()
                ]

            yield raw(
                f"Segment{kind}V2",
                {"data": x, "segment_ids": i32(0, 0, 2, 2, 3)},
                attrs,
                reference=unsorted,
                rtol=how["rtol"],
                atol=how["atol"],
            )
    for dtype in dtypes("SegmentMean"):
        x = sample((5, 3), dtype)
        rtol = None if dtype in INTS else 8
        yield raw(
            "SegmentMean",
            {"data": x},
            {"segment_ids": i32(0, 0, 2, 2, 3)},
            rtol=rtol,
            atol=8,
            grad=dtype not in COMPLEX,
        )
    for kind in ("Sum", "Mean", "SqrtN"):
        for dtype in dtypes(f"SparseSegment{kind}"):
            inputs = {"data": sample((6, 3), dtype), "indices": i32(4, 0, 0, 5)}
            yield raw(
                f"SparseSegment{kind}",
                inputs,
                {"segment_ids": i32(0, 0, 2, 2)},
                rtol=8,
                atol=8,
                grad_rtol=64,
            )
            inputs = {**inputs, "segment_ids": i32(0, 0, 2, 2)}
            yield raw(
                f"SparseSegment{kind}WithNumSegments",
                inputs,
                {"num_segments": np.int32(4)},
                rtol=8,
                atol=8,
                grad_rtol=64,
            )
            if dtype in dtypes(f"SparseSegment{kind}Grad"):
                inputs = {
                    "grad": sample((3, 3), dtype),
                    "indices": i32(4, 0, 0, 5),
                    "segment_ids": i32(0, 0, 2, 2),
                }
                yield raw(
                    f"SparseSegment{kind}Grad",
                    inputs,
                    {"output_dim0": np.int32(6)},
                    rtol=8,
                    atol=8,
                    grad=False,
                )


def sort_cases():
    for dtype in dtypes("TopKV2"):
        x = coarse((3, 7), dtype)
        y = rng_rows(dtype)
        yield raw("TopKV2", {"input": x}, {"k": np.int32(4)}, grad=False, label="ties")
        yield raw("TopKV2", {"input": y}, {"k": np.int32(3), "index_type": tf.int64})
        yield raw("TopKV2", {"input": y[0]}, {"k": np.int32(0)}, grad=False)
    for dtype in dtypes("NthElement"):
        yield raw("NthElement", {"input": coarse((3, 7), dtype), "n": np.int32(2)}, grad=False)
        yield raw("NthElement", {"input": rng_rows(dtype), "n": np.int32(2)}, {"reverse": True})
        for n, reverse in itertools.product((0, 1, 5, 6), (False, True)):
            attrs = {"n": np.int32(n), "reverse": reverse}
            yield raw("NthElement", {"input": rng_rows(dtype)}, attrs)
    scores = np.array(
        [[1, 2, 2, 0], [np.inf, 1, 0, 2], [0, 0, 0, 0], [3, 1, 2, np.nan], [4, 3, 2, 1]], np.float32
    )
    for targets in (i32(1, 1, 2, 0, 9), np.array([2, 0, 3, 2, -1])):
        for k in (1, 2, 3):
            yield raw("InTopK", {"predictions": scores, "targets": targets}, {"k": k}, grad=False)
            yield raw(
                "InTopKV2",
                {"predictions": scores, "targets": targets, "k": targets.dtype.type(k)},
                grad=False,
            )


def rng_rows(dtype):
    """Rows without ties."""
    base = np.array([[3, 1, 0, 6, 5, 2, 4], [0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]])
    return (base - (3 if dtype in [*SIGNED, *REAL] else 0)).astype(dtype_of(dtype))


SEGMENT = Suite([*segment_cases(), *sort_cases()])


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_slices_of_several_axes_of_an_open_batch(kind):
    def fn(x, i):
        return x[:, i : i + 2, i : i + 1]

    spec = tf.TensorSpec([None, 3, 4], tf.float32), tf.TensorSpec([], kind)
    module = invert.convert(tf.function(fn, autograph=False), *spec, config=PLAIN)
    x, i = sample((2, 3, 4), "float32"), kind(1)
    np.testing.assert_array_equal(module(x, i), fn(x, i))


def test_lookups_by_wide_indices_differentiate_in_a_session_of_32_bits():
    table = tf.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))
    ids = np.array([[1, 3], [0, 1]])

    def fn(x, ids):
        rows = tf.gather(table, ids), tf.gather(x, ids), tf.gather(x[:2], ids, axis=1, batch_dims=1)
        return sum(tf.reduce_sum(r**2) for r in rows) + tf.reduce_sum(tf.gather_nd(x, ids))

    x = np.ones((4, 4), np.float32)
    module = invert.convert(tf.function(fn, autograph=False), x, ids, config=PLAIN)
    found = jax.grad(lambda x: module(x, ids))(x)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = fn(given, tf.constant(ids))
    np.testing.assert_allclose(
        found, tf.convert_to_tensor(tape.gradient(y, given)), rtol=1e-6, atol=1e-6
    )


def test_indices_out_of_range_give_zeros_where_the_op_ignores_them():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    @tf.function(autograph=False)
    def lookup(x, indices):
        return tf.raw_ops.GatherNd(params=x, indices=indices, bad_indices_policy="IGNORE")

    for indices in (i32(1, 2, 2, 0, -1, 0).reshape(3, 2), i32(1, 2, -1).reshape(3, 1)):
        module = invert.convert(lookup, x, indices, config=PLAIN)
        np.testing.assert_array_equal(module(x, indices), lookup(x, indices))


test_index = INDEX.test()
test_segment_and_sort = SEGMENT.test()


@pytest.mark.parametrize(
    "options", [{"recall_target": 0.5}, {"reduction_input_size_override": 9999}]
)
def test_an_approximate_top_k_has_as_many_candidates_as_xla(options) -> None:
    # TensorFlow's kernel for the CPU gives k of them, though the op declares more.
    @tf.function(autograph=False, jit_compile=True)
    def candidates(x):
        return tf.raw_ops.ApproxTopK(input=x, k=3, aggregate_to_topk=False, **options)

    x = np.random.default_rng(0).integers(-9, 9, (4, 512)).astype(np.float32)
    module = invert.convert(candidates, tf.TensorSpec(x.shape), config=PLAIN)
    for found, wanted in zip(module(x), candidates(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", [None, 6])
def test_searches_among_nan(length, side):
    """They end where TensorFlow's kernel ends, also in arrays that are not sorted."""
    rows = np.float32([[1, 2, np.nan, 3, np.nan, np.nan], [3, 1, 2, 0, 5, -1]])
    values = np.float32([[np.nan, 0, 2, np.inf]] * 2)

    def search(x, v):
        return tf.searchsorted(x, v, side=side)

    spec = tf.TensorSpec([2, length])
    module = invert.convert(tf.function(search), spec, tf.TensorSpec([2, 4]))
    np.testing.assert_array_equal(module(rows, values), search(rows, values))
    np.testing.assert_array_equal(module.model(rows, values), search(rows, values))


def test_searches_in_rows_of_another_number():
    def search(x, v):
        return tf.searchsorted(x, v)

    specs = tf.TensorSpec([None]), tf.TensorSpec([None, 3])
    module = invert.convert(tf.function(search), *specs)
    x, v = np.float32([1, 2]), np.float32([[0, 1, 2]])
    np.testing.assert_array_equal(module(x, v), search(x, v))
    with pytest.raises(invert.UnsupportedOpError, match="has 1 rows of sorted numbers and 2 rows"):
        module(x, np.repeat(v, 2, 0))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches(side):
    """Among them one for NaN; all are written, though a function of jax 0.12 equals only itself."""

    def search(x):
        edges = tf.constant([-1.0, 0.0, 0.0, 2.0])
        found = tf.searchsorted(edges, x, side=side)
        return found, tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 2.0])

    x = np.array([-np.inf, -1, -0.0, 0, 1, 2, np.inf, np.nan], np.float32)
    module = invert.convert(tf.function(search), x)
    for got, want in zip(module(x), search(x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert "def searchsorted(" in module.source
