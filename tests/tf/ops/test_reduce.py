"""Reductions, cumulative ops and argmax, compared with TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import COMPLEX, INTS, REAL, coarse, dtypes, i32, sample, special


def reduction_cases():
    axes = [i32(), i32(0), i32(-1), i32(1, 2), i32(0, 1, 2), np.int32(1), np.array([0, 2])]
    for op in ("Sum", "Prod", "Max", "Min", "Mean", "EuclideanNorm", "All", "Any"):
        for dtype in ["bool"] if op in ("All", "Any") else dtypes(op):
            exact = dtype in [*INTS, "bool"] or op in ("Max", "Min")
            # Narrow types: TensorFlow rounds after every few additions, XLA once.
            rtol = None if exact else 16 if dtype in ("float16", "bfloat16") else 32
            for i, axis in enumerate(axes):
                attrs = {"axis": axis, "keep_dims": i % 2 == 0}
                x = sample((3, 4, 2), dtype)
                if op == "EuclideanNorm" and dtype in INTS:
                    x = np.abs(x)
                grad = dtype not in COMPLEX or op == "Sum"
                yield raw(op, {"input": x}, attrs, rtol=rtol, atol=64, grad=grad, grad_rtol=64)
            if not (op == "Mean" and dtype in INTS + COMPLEX):
                yield raw(op, {"input": sample((0, 3), dtype)}, {"axis": i32(0)}, grad=False)
            yield raw(
                op,
                {"input": sample((), dtype)},
                {"axis": i32()},
                rtol=rtol,
                grad=dtype not in COMPLEX,
            )
            if dtype in REAL and op not in ("EuclideanNorm",):
                x = coarse((4, 6), dtype)
                yield raw(
                    op,
                    {"input": x},
                    {"axis": i32(1)},
                    rtol=rtol,
                    grad_rtol=64,
                    label="ties and zeros",
                )
            if dtype in REAL and op != "EuclideanNorm":
                yield raw(op, {"input": special(dtype)}, {"axis": i32(0)}, grad=False)
    for dtype in ("int8", "uint8", "int32", "uint64"):
        x = np.array([[100, 100, 100], [7, 90, 120]]).astype(dtype)
        for op in ("Sum", "Prod", "Mean"):
            yield raw(op, {"input": x}, {"axis": i32(1)}, label="wraps around")
    x = np.array([[-7, 2, 2], [-1, -1, -3]], np.int32)
    yield raw("Mean", {"input": x}, {"axis": i32(1)}, label="rounds towards zero")


def cumulative_cases():
    for op in ("Cumsum", "Cumprod", "CumulativeLogsumexp"):
        for dtype in dtypes(op):
            rtol = None if dtype in INTS else 64
            for axis in (0, -1, 1):
                for exclusive in (False, True):
                    for reverse in (False, True):
                        attrs = {"axis": np.int32(axis), "exclusive": exclusive, "reverse": reverse}
                        # TensorFlow's gradient of cumprod divides by zero where x is.
                        x = sample((2, 3, 4), dtype)
                        grad = dtype not in COMPLEX and dtype not in ("float16", "bfloat16")
                        yield raw(op, {"x": x}, attrs, rtol=rtol, atol=64, grad=grad, grad_rtol=512)
            yield raw(op, {"x": sample((0, 3), dtype)}, {"axis": np.int32(0)}, grad=False)


def arg_cases():
    for op in ("ArgMax", "ArgMin"):
        for dtype in [d for d in dtypes(op) if d not in COMPLEX]:
            for axis in (0, -1):
                x = coarse((4, 5), dtype) if dtype != "bool" else sample((4, 5), dtype)
                yield raw(op, {"input": x}, {"dimension": np.int32(axis)})
            yield raw(
                op,
                {"input": coarse((4,), dtype)},
                {"dimension": np.int32(0), "output_type": tf.int32},
            )
        inf, nan = np.inf, np.nan
        rows = [
            [nan, 1, 2],
            [1, nan, 2],
            [3, nan, 2],
            [nan] * 3,
            [nan, -inf, inf],
            [-inf] * 3,
            [inf] * 3,
        ]
        x = np.array(rows, np.float32)
        yield raw(op, {"input": x}, {"dimension": np.int32(1)}, label="NaN")


REDUCE = Suite([*reduction_cases(), *cumulative_cases(), *arg_cases()])


test_reduction = REDUCE.test()
