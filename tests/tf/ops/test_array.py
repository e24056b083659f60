"""Ops that move elements, blocks and diagonals, compared with TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.tf.ops.raw import Suite, raw
from tests.tf.ops.samples import COMPLEX, MOVED, REAL, dtype_of, dtypes, i32, sample


def shape_cases():
    for dtype in MOVED:
        x = sample((2, 3, 4), dtype)
        y = sample((2, 5, 4), dtype, 1)
        yield raw("Reshape", {"tensor": x}, {"shape": i32(4, -1)})
        yield raw("ExpandDims", {"input": x}, {"axis": np.int32(-2)})
        yield raw("Squeeze", {"input": x[:, :1, :, None]})
        yield raw("Squeeze", {"input": x[:, :1, :, None]}, {"axis": [1]})
        yield raw("Transpose", {"x": x}, {"perm": i32(2, 0, 1)})
        yield raw("ConjugateTranspose", {"x": x}, {"perm": i32(2, 0, 1)})
        yield raw("Pack", {"values": [x, x + x if dtype != "bool" else ~x]}, {"axis": -2})
        yield raw("Unpack", {"value": x}, {"num": 3, "axis": 1})
        yield raw("ConcatV2", {"values": [x, y]}, {"axis": np.int32(-2)})
        yield raw("Concat", {"values": [x, y]}, {"concat_dim": np.int32(1)})
        yield raw("Split", {"value": x}, {"axis": np.int32(-1), "num_split": 2})
        yield raw(
            "SplitV",
            {"value": y},
            {"size_splits": i32(1, -1, 2), "axis": np.int32(1), "num_split": 3},
        )
        yield raw("Fill", {"value": x[0, 0, 0]}, {"dims": i32(2, 3)})
        yield raw("BroadcastTo", {"input": x[:, :1]}, {"shape": i32(5, 2, 3, 4)}, grad_rtol=64)
        yield raw("Tile", {"input": x}, {"multiples": i32(1, 2, 3)}, grad_rtol=64)
        yield raw("Tile", {"input": x}, {"multiples": i32(1, 0, 3)}, grad=False)
        if dtype in dtypes("Pad"):
            paddings = np.array([[0, 1], [2, 0], [1, 1]], np.int32)
            yield raw("PadV2", {"input": x, "constant_values": x[0, 0, 0]}, {"paddings": paddings})
            if dtype != "bool":
                yield raw("Pad", {"input": x}, {"paddings": paddings})
            for mode in ("REFLECT", "SYMMETRIC"):
                some = np.array([[0, 1], [2, 1], [1, 3]], np.int32)
                yield raw("MirrorPad", {"input": x}, {"paddings": some, "mode": mode}, grad_rtol=64)
                if dtype in REAL + COMPLEX:
                    big = sample((3, 6, 8), dtype)
                    yield raw(
                        "MirrorPadGrad",
                        {"input": big},
                        {"paddings": some, "mode": mode},
                        rtol=4,
                        atol=8,
                        grad_rtol=64,
                    )
        yield raw("ReverseV2", {"tensor": x}, {"axis": i32(0, -1)})
        yield raw("ReverseV2", {"tensor": x}, {"axis": i32()})
        yield raw("Reverse", {"tensor": x}, {"dims": np.array([False, True, True])})
        yield raw(
            "ReverseSequence",
            {"input": x, "seq_lengths": np.array([2, 0], np.int64)},
            {"seq_dim": 1},
        )
        yield raw(
            "ReverseSequence",
            {"input": x, "seq_lengths": i32(1, 2, 0)},
            {"seq_dim": 2, "batch_dim": 1},
        )
        yield raw("Roll", {"input": x}, {"shift": i32(1, -2, 5), "axis": i32(0, 2, 2)})
        yield raw(
            "Roll", {"input": x, "shift": i32(1, -2)}, {"axis": i32(0, -1)}, label="traced shift"
        )
        yield raw(
            "Roll", {"input": x, "shift": np.int32(-4)}, {"axis": np.int32(1)}, label="traced shift"
        )
        if dtype in dtypes("Diag"):
            yield raw("Diag", {"diagonal": x[0]}, grad_rtol=64)
            yield raw("DiagPart", {"input": sample((2, 3, 2, 3), dtype)})
        yield raw("Empty", {}, {"shape": i32(0, 3), "dtype": dtype})
        yield raw("EnsureShape", {"input": x}, {"shape": [None, 3, 4]})
        yield raw("Snapshot", {"input": x})
        yield raw("ShapeN", {"input": [x, y]}, {"out_type": tf.int64})
        yield raw("Size", {"input": x})
        yield raw("Rank", {"input": x})
    for dtype in dtypes("LinSpace"):
        a, b = np.asarray(-1.5).astype(dtype_of(dtype)), np.asarray(7).astype(dtype_of(dtype))
        for n in (1, 2, 6):
            yield raw("LinSpace", {"start": a, "stop": b}, {"num": np.int32(n)}, rtol=4, atol=8)
    for dtype in ("int32", "int64", "float32", "float64"):
        for start, limit, delta in ((0, 5, 1), (3, -4, -2), (2, 2, 1), (1, 200, 3), (-5, 300, 2)):
            bounds = {
                k: np.asarray(v).astype(dtype)
                for k, v in zip(("start", "limit", "delta"), (start, limit, delta), strict=True)
            }
            yield raw("Range", {}, bounds, label="constant")
    yield raw(
        "Range",
        {},
        {"start": np.float32(0.5), "limit": np.float32(2), "delta": np.float32(0.3)},
        rtol=2,
    )
    for indices in ("uint8", "int32", "int64"):
        which = np.array([[0, 2], [5, 1]]).astype(indices)
        if indices != "uint8":
            which[0, 0] = -1
        for dtype in ("float32", "bool", "int8", "complex64"):
            on, off = (np.asarray(v).astype(dtype) for v in (1, 0))
            for axis in (-1, 0, 1, 2):
                yield raw(
                    "OneHot",
                    {"indices": which, "on_value": on, "off_value": off},
                    {"depth": np.int32(4), "axis": axis},
                )
        yield raw(
            "OneHot",
            {"indices": which, "on_value": np.float32(np.inf), "off_value": np.float32(-np.inf)},
            {"depth": np.int32(4)},
            grad=False,
        )
        yield raw(
            "OneHot",
            {"indices": which, "on_value": np.float32(1), "off_value": np.float32(0)},
            {"depth": np.int32(300), "axis": 0},
            label="deep",
        )
    for perm in (i32(2, 0, 1, 3), np.array([1, 0])):
        yield raw("InvertPermutation", {"x": perm})
        yield raw("InvertPermutation", {}, {"x": perm})
    shapes = [
        ([2, 3, 1], [3, 4]),
        ([2, 3], [2, 3]),
        ([1, 1], [1, 5]),
        ([], [2, 1]),
        ([1, 1], [2, 1]),
        ([1], [1]),
    ]
    for a, b in shapes:
        for dtype in (np.int32, np.int64):
            s = {"s0": np.array(a, dtype), "s1": np.array(b, dtype)}
            yield raw("BroadcastArgs", {}, s)
            yield raw("BroadcastGradientArgs", {}, s)
    yield raw(
        "ConcatOffset",
        {},
        {"concat_dim": np.int32(1), "shape": [i32(2, 3, 4), i32(2, 5, 4), i32(2, 1, 4)]},
    )


SHAPE = Suite(shape_cases())


def block_cases():
    for dtype in MOVED:
        x = sample((2, 4, 6, 3), dtype)
        paddings = np.array([[0, 2], [1, 2]], np.int32)
        yield raw("SpaceToBatch", {"input": x}, {"paddings": paddings * 0, "block_size": 2})
        yield raw("SpaceToBatchND", {"input": x}, {"block_shape": i32(2, 3), "paddings": paddings})
        yield raw(
            "SpaceToBatchND",
            {"input": x[..., 0]},
            {"block_shape": i32(2), "paddings": paddings[:1]},
        )
        y = sample((12, 2, 3, 2), dtype)
        yield raw(
            "BatchToSpace",
            {"input": y},
            {"crops": np.array([[0, 1], [1, 0]], np.int32), "block_size": 2},
        )
        yield raw(
            "BatchToSpaceND",
            {"input": y},
            {"block_shape": i32(2, 3), "crops": np.array([[0, 1], [2, 1]], np.int32)},
        )
        yield raw("SpaceToDepth", {"input": x}, {"block_size": 2})
        yield raw("DepthToSpace", {"input": sample((2, 3, 2, 8), dtype)}, {"block_size": 2})
        for rates, padding in (
            ([1, 1], "SAME"),
            ([1, 1], "VALID"),
            ([2, 1], "SAME"),
            ([2, 1], "VALID"),
        ):
            if dtype not in dtypes("ExtractImagePatches") or dtype == "bool":
                continue
            attrs = {
                "ksizes": [1, 3, 2, 1],
                "strides": [1, 1, 2, 1],
                "rates": [1, *rates, 1],
                "padding": padding,
            }
            yield raw(
                "ExtractImagePatches", {"images": sample((2, 6, 7, 3), dtype)}, attrs, grad_rtol=64
            )
    for padding in ("SAME", "VALID"):
        attrs = {"ksizes": [1, 2, 3, 2, 1], "strides": [1, 1, 2, 2, 1], "padding": padding}
        yield raw(
            "ExtractVolumePatches",
            {"input": sample((2, 4, 5, 6, 2), "float32")},
            attrs,
            grad_rtol=64,
        )


def diagonal_cases():
    aligns = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")
    for dtype in MOVED:
        x = sample((2, 4, 5), dtype)
        pad = sample((), dtype, 3)
        for lower, upper in ((-1, 0), (1, 2), (0, -1), (4, 1)):
            band = {"num_lower": np.int64(lower), "num_upper": np.int64(upper)}
            yield raw("MatrixBandPart", {"input": x}, band)
        yield raw(
            "MatrixBandPart",
            {"input": x, "num_lower": np.int64(1), "num_upper": np.int64(-1)},
            label="traced",
        )
        yield raw("MatrixDiag", {"diagonal": x[..., 0]})
        yield raw("MatrixDiagPart", {"input": x})
        yield raw("MatrixSetDiag", {"input": x, "diagonal": sample((2, 4), dtype)})
        yield raw(
            "MatrixSetDiag", {"input": x.swapaxes(1, 2).copy(), "diagonal": sample((2, 4), dtype)}
        )
        some = aligns if dtype == "float32" else aligns[:1]
        for align in some:
            for k in (
                i32(0),
                i32(2),
                i32(-1),
                i32(-2, 1),
                i32(0, 1),
                i32(-3, -1),
                i32(1, 3),
                np.int32(1),
            ):
                attrs = {"k": k, "align": align}
                yield raw("MatrixDiagPartV3", {"input": x, "padding_value": pad}, attrs)
                low, high = np.ravel(k)[0], np.ravel(k)[-1]
                longest = min(4 + min(high, 0), 5 - max(low, 0))
                bands = () if low == high else (high - low + 1,)
                d = sample((2, *bands, longest), dtype, 7)
                yield raw("MatrixSetDiagV3", {"input": x, "diagonal": d}, attrs)
                sizes = {"num_rows": np.int32(4), "num_cols": np.int32(5)}
                yield raw("MatrixDiagV3", {"diagonal": d, "padding_value": pad}, {**attrs, **sizes})
                open_sizes = {"num_rows": np.int32(-1), "num_cols": np.int32(-1)}
                yield raw(
                    "MatrixDiagV3", {"diagonal": d, "padding_value": pad}, {**attrs, **open_sizes}
                )
                if align == aligns[0] and dtype in ("float32", "int32"):
                    # TensorFlow's gradients of these take the alignment of the third version.
                    attrs, grad = {"k": k}, high <= 0 or low == high
                    yield raw(
                        "MatrixDiagPartV2", {"input": x, "padding_value": pad}, attrs, grad=grad
                    )
                    yield raw("MatrixSetDiagV2", {"input": x, "diagonal": d}, attrs, grad=grad)
                    yield raw(
                        "MatrixDiagV2",
                        {"diagonal": d, "padding_value": pad},
                        {**attrs, **sizes},
                        grad=grad,
                    )


BLOCK = Suite([*block_cases(), *diagonal_cases()])


test_shape = SHAPE.test()
test_blocks_and_diagonals = BLOCK.test()
