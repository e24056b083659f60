"""Inputs of ops that move, gather, scatter, reduce and compare elements."""

# One row for each op, however long.
# ruff: noqa: C408

from __future__ import annotations

import numpy as np

from tests.tf.ops.cases import COMPLEX, FLOATS, INTS, Recipe, ids, r, spd, x

# TensorFlow 2.21 crashes where it compiles TensorScatterSub of booleans.
_NUMBERS = (*FLOATS, *COMPLEX, *INTS)


def _dominant(g: np.random.Generator) -> np.ndarray:
    """The three diagonals of a diagonally dominant matrix."""
    return np.asarray(g.normal(size=(3, 4)) + np.array([[0], [4], [0]]))


_SEGMENTS = dict(data=x(5, 3), segment_ids=ids(5, high=4), num_segments=5)
_SORTED = np.array([0, 0, 1, 3, 3])
_INDICES = [[0], [2], [1]]
_SHIFT = dict(x=x(2, 3, low=-9, high=9), y=x(2, 3, low=0, high=6))
_TIES = x(4, 512, make=lambda g: g.integers(-3, 3, (4, 512)))

ARRAY: dict[str, list[Recipe]] = {
    "AddN": [r(inputs=[x(2, 3), x(2, 3), x(2, 3)])],
    "Add": [r(x=x(2, 3), y=x(3))],
    "AddV2": [r(x=x(2, 3), y=x(2, 1)), r(x=x(), y=x(2, 3))],
    "All": [r(input=x(2, 3, dtype="bool"), reduction_indices=[1])],
    "Any": [r(input=x(2, 3, dtype="bool"), reduction_indices=[0], keep_dims=True)],
    "ArgMax": [r(input=x(3, 4), dimension=1), r(input=x(3, 4), dimension=-2, output_type="int32")],
    "ArgMin": [r(input=x(3, 4), dimension=1), r(input=x(3, 4), dimension=0, output_type="int32")],
    "ApproxTopK": [
        r(input=x(2, 8), k=3),
        r(input=x(2, 8), k=2, is_max_k=False),
        r(input=_TIES, k=3, reduction_dimension=0),
        r(input=_TIES, k=0),
        r(input=_TIES, k=5, recall_target=0.4, reduction_input_size_override=9000),
    ],
    "BatchToSpace": [r(input=x(4, 2, 3, 1), crops=[[0, 1], [1, 0]], block_size=2)],
    "BatchToSpaceND": [
        r(input=x(6, 2, 3, 1), block_shape=[2, 3], crops=[[0, 1], [2, 0]]),
    ],
    "Bincount": [
        r(arr=ids(7, high=5), size=6, weights=x(7)),
        r(arr=ids(7, high=5), size=4, weights=[]),
    ],
    "Bitcast": [
        r(input=x(2, 3), type="float32", _dtypes=("int32", "uint32")),
        r(input=x(2, 4), type="uint8", _dtypes=("float32", "int16", "int64")),
        r(input=x(2, 3, 2), type="int32", _dtypes=("int16", "uint16")),
    ],
    "BitwiseAnd": [r(x=x(2, 3), y=x(3))],
    "BroadcastArgs": [r(s0=[2, 1, 3], s1=[4, 1])],
    "BroadcastGradientArgs": [r(s0=[2, 1, 3], s1=[4, 1])],
    "BroadcastTo": [r(input=x(3, 1), shape=[2, 3, 4])],
    "Bucketize": [r(input=x(7), boundaries=[-1.0, 0.5, 2.0])],
    "Cast": [
        r(x=x(2, 3), DstT=d) for d in ("float32", "int32", "bool", "complex64", "bfloat16", "uint8")
    ],
    "ClipByValue": [
        r(t=x(2, 3), clip_value_min=x(low=-1, high=1), clip_value_max=x(low=1, high=2)),
        r(t=x(2, 3), clip_value_min=x(2, 3, low=-1, high=1), clip_value_max=x(low=1, high=2)),
    ],
    "Concat": [r(concat_dim=1, values=[x(2, 3), x(2, 1)])],
    "ConcatOffset": [r(concat_dim=1, shape=[[2, 3], [2, 1], [2, 4]])],
    "ConcatV2": [r(values=[x(2, 3), x(2, 1), x(2, 2)], axis=-1)],
    "ConjugateTranspose": [r(x=x(2, 3, 4), perm=[2, 0, 1])],
    "Cross": [r(a=x(2, 3), b=x(2, 3))],
    "Cumprod": [
        r(x=x(3, 4), axis=1),
        r(x=x(3, 4), axis=-1, exclusive=True),
        r(x=x(3, 4), axis=0, reverse=True),
        r(x=x(3, 4), axis=1, reverse=True, exclusive=True),
    ],
    "Cumsum": [
        r(x=x(3, 4), axis=1),
        r(x=x(3, 4), axis=-1, exclusive=True),
        r(x=x(3, 4), axis=0, reverse=True),
        r(x=x(3, 4), axis=1, reverse=True, exclusive=True),
    ],
    "CumulativeLogsumexp": [
        r(x=x(3, 4), axis=1),
        r(x=x(3, 4), axis=0, reverse=True, exclusive=True),
    ],
    "DataFormatDimMap": [r(x=[0, 1, 2, -1]), r(x=x(4, low=-4, high=4))],
    "DataFormatVecPermute": [
        r(x=[1, 2, 3, 4]),
        r(x=x(4)),
        r(x=x(4, 2), src_format="NCHW", dst_format="NHWC"),
    ],
    "DenseBincount": [
        r(input=ids(7, high=5), size=6, weights=x(7)),
        r(input=ids(2, 7, high=5), size=4, weights=x(2, 7), _dtypes=("float32",)),
        r(input=ids(7, high=5), size=6, weights=x(0), binary_output=True),
    ],
    "RaggedBincount": [
        r(splits=[0, 3, 3, 7], values=ids(7, high=5), size=6, weights=x(7)),
        r(splits=[0, 3, 3, 7], values=ids(7, high=5), size=4, weights=x(0)),
        r(splits=[0, 2, 7], values=ids(7, high=5), size=6, weights=x(0), binary_output=True),
    ],
    "SparseBincount": [
        r(indices=[[0], [2], [5]], values=ids(3, high=5), dense_shape=[7], size=4, weights=x(3)),
        r(
            indices=[[0, 1], [2, 0], [2, 1]],
            values=ids(3, high=5),
            dense_shape=[4, 2],
            size=4,
            weights=x(0),
            binary_output=True,
        ),
    ],
    "DepthToSpace": [
        r(input=x(1, 2, 3, 8), block_size=2),
        r(input=x(1, 8, 2, 3), block_size=2, data_format="NCHW", _dtypes=("float32",)),
    ],
    "Diag": [r(diagonal=x(3)), r(diagonal=x(2, 3))],
    "DiagPart": [r(input=x(3, 3)), r(input=x(2, 3, 2, 3))],
    "DynamicPartition": [r(data=x(5, 2), partitions=[0, 2, 0, 1, 2], num_partitions=3)],
    "DynamicStitch": [r(indices=[[0, 3], [[2], [1]]], data=[x(2, 2), x(2, 1, 2)])],
    "ParallelDynamicStitch": [r(indices=[[0, 3], [2, 1]], data=[x(2, 2), x(2, 2)])],
    "Einsum": [
        r(inputs=[x(2, 3), x(3, 4)], equation="ij,jk->ik"),
        r(inputs=[x(3, 3)], equation="ii->i"),
        r(inputs=[x(2, 3, 4), x(2, 4, 5)], equation="...ij,...jk->...ik"),
    ],
    "Empty": [r(shape=[2, 3], dtype="float32", init=True), r(shape=[2], dtype="int32", init=True)],
    "EnsureShape": [r(input=x(2, 3), shape=[2, None])],
    "Equal": [r(x=x(2, 3, low=0, high=2), y=x(3, low=0, high=2))],
    "NotEqual": [r(x=x(2, 3, low=0, high=2), y=x(3, low=0, high=2))],
    "ExpandDims": [r(input=x(2, 3), dim=1), r(input=x(2, 3), dim=-1)],
    "ExtractImagePatches": [
        r(
            images=x(1, 5, 6, 2),
            ksizes=[1, 2, 3, 1],
            strides=[1, 2, 1, 1],
            rates=[1, 1, 2, 1],
            padding="VALID",
        ),
        r(
            images=x(1, 5, 6, 2),
            ksizes=[1, 3, 3, 1],
            strides=[1, 2, 2, 1],
            rates=[1, 1, 1, 1],
            padding="SAME",
        ),
    ],
    "Fill": [r(dims=[2, 3], value=x())],
    "Gather": [r(params=x(4, 3), indices=ids(2, 2, high=4))],
    "GatherNd": [
        r(params=x(4, 3), indices=[[0, 2], [3, 1]]),
        r(params=x(4, 3), indices=ids(2, 1, high=4)),
    ],
    "GatherV2": [
        r(params=x(4, 3), indices=ids(2, 2, high=3), axis=1),
        r(params=x(2, 4, 3), indices=ids(2, 2, high=4), axis=1, batch_dims=1),
    ],
    "InTopKV2": [r(predictions=x(3, 5), targets=ids(3, high=5), k=2)],
    "InvertPermutation": [r(x=[2, 0, 3, 1]), r(x=x(4, make=lambda g: [3, 1, 0, 2]))],
    "LeftShift": [r(**_SHIFT)],
    "RightShift": [r(**_SHIFT)],
    "LinSpace": [
        r(start=x(low=0, high=1), stop=x(low=2, high=4), num=5),
        r(start=x(), stop=x(), num=1),
    ],
    "ListDiff": [r(x=[1, 2, 3, 4, 5, 6], y=[1, 3, 5], _dtypes=("float32", "int32", "int64"))],
    "LogicalAnd": [r(x=x(2, 3, dtype="bool"), y=x(3, dtype="bool"))],
    "LogicalOr": [r(x=x(2, 3, dtype="bool"), y=x(3, dtype="bool"))],
    "LogicalNot": [r(x=x(2, 3, dtype="bool"))],
    "LowerBound": [
        r(
            sorted_inputs=x(2, 5, make=lambda g: np.sort(g.integers(0, 5, (2, 5)))),
            values=x(2, 4, low=0, high=6),
        )
    ],
    "UpperBound": [
        r(
            sorted_inputs=x(2, 5, make=lambda g: np.sort(g.integers(0, 5, (2, 5)))),
            values=x(2, 4, low=0, high=6),
        )
    ],
    "MatrixBandPart": [
        r(input=x(2, 3, 4), num_lower=1, num_upper=0),
        r(input=x(3, 3), num_lower=-1, num_upper=1),
    ],
    "MatrixDiag": [r(diagonal=x(2, 3))],
    "MatrixDiagPart": [r(input=x(2, 3, 4))],
    "MatrixDiagPartV2": [
        r(input=x(2, 3, 4), k=[-1, 1], padding_value=0.5),
        r(input=x(3, 4), k=1, padding_value=0.5),
    ],
    "MatrixDiagPartV3": [
        r(input=x(2, 3, 4), k=[-1, 1], padding_value=0.5, align=a)
        for a in ("RIGHT_LEFT", "LEFT_LEFT")
    ],
    "MatrixDiagV2": [r(diagonal=x(2, 3), k=1, num_rows=-1, num_cols=-1, padding_value=0.5)],
    "MatrixDiagV3": [
        r(diagonal=x(2, 3, 3), k=[-1, 1], num_rows=3, num_cols=3, padding_value=0.5, align=a)
        for a in ("RIGHT_LEFT", "LEFT_RIGHT")
    ],
    "MatrixSetDiag": [r(input=x(2, 3, 4), diagonal=x(2, 3))],
    "MatrixSetDiagV2": [
        r(input=x(2, 3, 4), diagonal=x(2, 3), k=1),
        r(input=x(3, 4), diagonal=x(2, 3), k=[0, 1]),
    ],
    "MatrixSetDiagV3": [
        r(input=x(2, 3, 4), diagonal=x(2, 3, 3), k=[-1, 1], align=a)
        for a in ("RIGHT_LEFT", "LEFT_LEFT")
    ],
    "Max": [r(input=x(2, 3, 4), reduction_indices=[0, 2])],
    "Min": [r(input=x(2, 3, 4), reduction_indices=[-1], keep_dims=True)],
    "Mean": [r(input=x(2, 3, 4), reduction_indices=[1])],
    "Prod": [r(input=x(2, 3, 4, low=-2, high=3), reduction_indices=[1])],
    "Sum": [
        r(input=x(2, 3, 4), reduction_indices=[0, 1]),
        r(input=x(2, 3), reduction_indices=[], keep_dims=True),
    ],
    "MirrorPad": [
        r(input=x(3, 4), paddings=[[1, 2], [0, 3]], mode="REFLECT"),
        r(input=x(3, 4), paddings=[[1, 3], [0, 2]], mode="SYMMETRIC"),
    ],
    "MirrorPadGrad": [
        r(input=x(6, 7), paddings=[[1, 2], [0, 3]], mode=m) for m in ("REFLECT", "SYMMETRIC")
    ],
    "OneHot": [
        r(indices=ids(5, high=6, low=-1), depth=4, on_value=x(), off_value=x()),
        r(indices=ids(5, high=4), depth=4, on_value=x(), off_value=x(), axis=0),
    ],
    "Pack": [r(values=[x(2, 3), x(2, 3)], axis=1), r(values=[x(), x()])],
    "Pad": [r(input=x(2, 3), paddings=[[1, 0], [2, 3]])],
    "PadV2": [r(input=x(2, 3), paddings=[[1, 0], [2, 3]], constant_values=x())],
    "PlaceholderWithDefault": [r(input=x(2, 3), shape=[2, 3])],
    "Range": [
        r(start=1, limit=9, delta=3, _dtypes=("float32", "int32", "int64", "float64", "bfloat16"))
    ],
    "Reshape": [r(tensor=x(2, 6), shape=[3, -1])],
    "Reverse": [r(tensor=x(2, 3, 4), dims=[True, False, True])],
    "ReverseSequence": [r(input=x(3, 4, 2), seq_lengths=ids(3, high=5), seq_dim=1, batch_dim=0)],
    "ReverseV2": [r(tensor=x(2, 3, 4), axis=[0, -1])],
    "Roll": [r(input=x(3, 4), shift=[1, -2], axis=[0, 1])],
    "ScatterNd": [r(indices=[[1], [3], [1]], updates=x(3, 2), shape=[4, 2])],
    "SegmentMaxV2": [r(data=x(5, 3), segment_ids=_SORTED, num_segments=4)],
    "SegmentMinV2": [r(data=x(5, 3), segment_ids=_SORTED, num_segments=4)],
    "SegmentProdV2": [r(data=x(5, 3), segment_ids=_SORTED, num_segments=4)],
    "SegmentSumV2": [r(data=x(5, 3), segment_ids=_SORTED, num_segments=4)],
    "Select": [
        r(condition=x(2, 3, dtype="bool"), t=x(2, 3), e=x(2, 3)),
        r(condition=x(2, dtype="bool"), t=x(2, 3), e=x(2, 3)),
    ],
    "SelectV2": [r(condition=x(3, dtype="bool"), t=x(2, 3), e=x(2, 1))],
    "Shape": [r(input=x(2, 3)), r(input=x(2, 3), out_type="int64")],
    "ShapeN": [r(input=[x(2, 3), x(4)])],
    "Slice": [
        r(input=x(3, 4), begin=[1, 0], size=[2, -1]),
        r(input=x(3, 4), begin=ids(2, high=2), size=[2, 3]),
    ],
    "Snapshot": [r(input=x(2, 3))],
    "SpaceToBatch": [r(input=x(1, 4, 5, 1), paddings=[[0, 0], [1, 0]], block_size=2)],
    "SpaceToBatchND": [r(input=x(1, 4, 5, 1), block_shape=[2, 3], paddings=[[0, 0], [1, 0]])],
    "SpaceToDepth": [r(input=x(1, 4, 6, 2), block_size=2)],
    "SparseToDense": [
        r(
            sparse_indices=_INDICES,
            output_shape=[4],
            sparse_values=x(3),
            default_value=x(),
            validate_indices=False,
        )
    ],
    "Split": [r(split_dim=1, value=x(2, 6), num_split=3)],
    "SplitV": [r(value=x(2, 6), size_splits=[1, -1, 2], split_dim=1, num_split=3)],
    "Squeeze": [r(input=x(1, 3, 1)), r(input=x(1, 3, 1), axis=[0])],
    "StridedSlice": [
        r(input=x(4, 5, 6), begin=[1, 4], end=[4, 0], strides=[2, -1]),
        r(
            input=x(4, 5, 6),
            begin=[0, 0, 2],
            end=[0, 0, 3],
            strides=[1, 1, 1],
            ellipsis_mask=1,
            new_axis_mask=2,
            shrink_axis_mask=4,
        ),
    ],
    "StridedSliceGrad": [r(shape=[4, 5], begin=[1, 0], end=[4, 5], strides=[2, 1], dy=x(2, 5))],
    "TensorStridedSliceUpdate": [
        r(input=x(4, 5), begin=[1, 4], end=[4, -6], strides=[1, -1], value=x(3, 5))
    ],
    "TensorScatterAdd": [
        r(tensor=x(4, 3), indices=[[1], [3], [1]], updates=x(3, 3), _dtypes=_NUMBERS)
    ],
    "TensorScatterSub": [
        r(tensor=x(4, 3), indices=[[1], [3], [1]], updates=x(3, 3), _dtypes=_NUMBERS)
    ],
    "TensorScatterMax": [r(tensor=x(4, 3), indices=_INDICES, updates=x(3, 3))],
    "TensorScatterMin": [r(tensor=x(4, 3), indices=_INDICES, updates=x(3, 3))],
    "TensorScatterUpdate": [r(tensor=x(4, 3), indices=_INDICES, updates=x(3, 3))],
    "Tile": [r(input=x(2, 3), multiples=[2, 1])],
    "TopKV2": [r(input=x(2, 6), k=3)],
    "Transpose": [r(x=x(2, 3, 4), perm=[2, 0, 1])],
    "Unique": [r(x=[3, 1, 3, 2, 1], _dtypes=("float32", "int32", "int64"))],
    "UniqueV2": [r(x=[3, 1, 3, 2, 1], axis=[0], _dtypes=("float32", "int32", "int64"))],
    "Unpack": [r(value=x(2, 3), num=3, axis=1)],
    "UnsortedSegmentMax": [r(**_SEGMENTS)],
    "UnsortedSegmentMin": [r(**_SEGMENTS)],
    "UnsortedSegmentProd": [r(**_SEGMENTS)],
    "UnsortedSegmentSum": [
        r(**_SEGMENTS),
        r(data=x(2, 3), segment_ids=ids(2, 3, high=4, low=-1), num_segments=4),
    ],
    "Where": [r(input=[True, False, True, True])],
    # linear algebra; factors that are not unique are multiplied out
    "BatchMatMul": [
        r(x=x(2, 3, 4), y=x(2, 4, 2)),
        r(x=x(2, 4, 3), y=x(2, 2, 4), adj_x=True, adj_y=True),
    ],
    "BatchMatMulV2": [
        r(x=x(2, 3, 4), y=x(4, 2)),
        r(x=x(2, 4, 3), y=x(1, 2, 4), adj_x=True, adj_y=True),
    ],
    "BatchMatMulV3": [
        r(x=x(2, 3, 4), y=x(4, 2), Tout="float32", _dtypes=("float32",)),
        r(x=x(2, 3, 4), y=x(4, 2), Tout="int32", _dtypes=("int8",)),
    ],
    "MatMul": [
        r(a=x(2, 3), b=x(3, 4)),
        r(a=x(3, 2), b=x(4, 3), transpose_a=True, transpose_b=True),
    ],
    "SparseMatMul": [
        r(a=x(2, 3), b=x(3, 4)),
        r(a=x(3, 2), b=x(3, 4), transpose_a=True, a_is_sparse=True),
    ],
    "Cholesky": [r(input=spd(3, (2,)))],
    "MatrixInverse": [r(input=spd(3, (2,))), r(input=spd(3), adjoint=True)],
    "MatrixSolve": [r(matrix=spd(3), rhs=x(3, 2)), r(matrix=spd(3), rhs=x(3, 2), adjoint=True)],
    "MatrixTriangularSolve": [
        r(matrix=spd(3), rhs=x(3, 2)),
        r(matrix=spd(3), rhs=x(3, 2), lower=False, adjoint=True),
    ],
    "TridiagonalMatMul": [
        r(superdiag=x(2, 1, 4), maindiag=x(2, 1, 4), subdiag=x(2, 1, 4), rhs=x(2, 4, 3))
    ],
    "TridiagonalSolve": [
        r(
            diagonals=x(3, 4, make=_dominant),
            rhs=x(4, 2),
            partial_pivoting=b,
        )
        for b in (True, False)
    ],
}
