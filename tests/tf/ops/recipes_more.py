"""Inputs of ops that have rules although XLA does not compile them."""

# One row for each op, however long.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import composite_tensor_ops

from tests.tf.ops.cases import FLOATS, Recipe, ids, p, r, x
from tests.tf.ops.recipes_quantized_more import QUANTIZED_MORE

R = tf.raw_ops


def _isotonic(dtype: str, *kinds: str) -> Recipe:
    def program(t: Any) -> Any:
        return R.IsotonicRegression(input=t, output_dtype=t.dtype if dtype == "own" else dtype)

    return p(program, x(6, 9), dtypes=kinds)


def _function(fn: Callable[..., Any], *specs: Any) -> Any:
    return tf.function(fn, autograph=False).get_concrete_function(*specs)


def _map_defun(a: Any, b: Any, c: Any) -> Any:
    row, whole = tf.TensorSpec(a.shape[1:], a.dtype), tf.TensorSpec(c.shape, c.dtype)
    f = _function(lambda a, b, c: (a * c, tf.reduce_sum(b)), row, row, whole)
    return R.MapDefun(
        arguments=[a, b],
        captured_inputs=[c],
        output_types=[a.dtype] * 2,
        output_shapes=[a.shape[1:], []],
        f=f,
    )


def _for(limit: Any, a: Any, b: Any) -> Any:
    specs = [tf.TensorSpec([], tf.int32), *(tf.TensorSpec(v.shape, v.dtype) for v in (a, b))]
    body = _function(lambda i, a, b: (a + b * tf.cast(i, a.dtype), a), *specs)
    loops = [R.For(start=1, limit=7, delta=2, input=[a, b], body=body)]
    loops += [
        R.For(start=limit, limit=n, delta=d, input=[a, b], body=body) for n, d in ((9, 3), (-4, -2))
    ]
    return loops


def _batch_function(a: Any, b: Any) -> Any:
    f = _function(
        lambda a, b: (a * b, a + 1), *(tf.TensorSpec([None, *v.shape[1:]], v.dtype) for v in (a, b))
    )
    return R.BatchFunction(
        in_tensors=[a],
        captured_tensors=[b],
        f=f,
        num_batch_threads=1,
        max_batch_size=8,
        batch_timeout_micros=1,
        Tout=[a.dtype] * 2,
    )


def _remote_call(a: Any) -> Any:
    f = _function(lambda a: a * 2, tf.TensorSpec(a.shape, a.dtype))
    return R.RemoteCall(
        target="/job:localhost/replica:0/task:0/device:CPU:0", args=[a], Tout=[a.dtype], f=f
    )


def _temporary(a: Any) -> Any:
    def program(a: Any) -> Any:
        ref = R.TemporaryVariable(shape=a.shape, dtype=a.dtype, var_name="scratch")
        ref = tf.compat.v1.assign(ref, a)
        ref = tf.compat.v1.assign_add(R.RefIdentity(input=ref), a)
        return R.DestroyTemporaryVariable(ref=ref, var_name="scratch")

    return program(a)


_WHERE = {2: [[0, 1], [0, 3], [2, 0], [3, 3]], 3: [[0, 0, 1], [0, 2, 3], [1, 1, 0], [1, 3, 2]]}


def _csr(v: Any, rank: int = 2) -> Any:
    shape = tf.constant([2, 4, 4][-rank:], tf.int64)
    return R.SparseTensorToCSRSparseMatrix(indices=_WHERE[rank], values=v, dense_shape=shape)


def _csr_programs(use: Callable[..., Any]) -> Callable[..., Any]:
    """A program on a sparse matrix and on a batch of two."""
    return lambda v, *rest: [use(_csr(v, rank), v.dtype, rank, *rest) for rank in (2, 3)]


def _csr_matmul(a: Any, dtype: Any, rank: int, b: Any) -> Any:
    b = b if rank == 2 else tf.stack([b, b * 2])
    flags = (
        {},
        {"transpose_a": True},
        {"adjoint_a": True, "transpose_b": True},
        {"adjoint_b": True},
        {"transpose_output": True},
    )
    return [R.SparseMatrixMatMul(a=a, b=b, **f) for f in flags]


def _csr_transposed(a: Any, dtype: Any, rank: int) -> Any:
    turned = R.SparseMatrixTranspose(input=a, conjugate=True, type=dtype)
    return R.CSRSparseMatrixToSparseTensor(sparse_matrix=turned, type=dtype)


def _csr_of_dense(t: Any) -> Any:
    a = R.DenseToCSRSparseMatrix(dense_input=t, indices=tf.constant(_WHERE[2], tf.int64))
    return [
        R.CSRSparseMatrixToDense(sparse_input=a, type=t.dtype),
        R.SparseMatrixNNZ(sparse_matrix=a),
    ]


def _composite(t: Any) -> Any:
    pair = tf.RaggedTensor.from_row_lengths(t, [2, 0, 1])
    variant = composite_tensor_ops.composite_tensor_to_variants(pair)
    back = composite_tensor_ops.composite_tensor_from_variant(variant, pair._type_spec)
    return [back.values * 2, back.row_splits]


_FEW: dict[str, Any] = {"dtypes": ("float32", "float64", "complex64")}

MORE: dict[str, list[Recipe]] = {
    **QUANTIZED_MORE,
    "SparseTensorToCSRSparseMatrix": [
        p(
            _csr_programs(
                lambda a, dtype, rank: R.CSRSparseMatrixToSparseTensor(sparse_matrix=a, type=dtype)
            ),
            x(4),
            **_FEW,
        )
    ],
    "SetSize": [
        r(
            set_indices=[[0, 0, 1], [0, 2, 0], [0, 2, 3], [1, 0, 0], [1, 0, 2], [1, 0, 3]],
            set_values=x(6, low=0, high=3),
            set_shape=[2, 3, 4],
        ),
        r(set_indices=[[0], [1], [3]], set_values=x(3, low=0, high=2), set_shape=[4]),
    ],
    "CSRSparseMatrixToDense": [
        p(
            _csr_programs(
                lambda a, dtype, rank: R.CSRSparseMatrixToDense(sparse_input=a, type=dtype)
            ),
            x(4),
            **_FEW,
        )
    ],
    "DenseToCSRSparseMatrix": [p(_csr_of_dense, x(4, 4), **_FEW)],
    "SparseMatrixNNZ": [
        p(_csr_programs(lambda a, dtype, rank: R.SparseMatrixNNZ(sparse_matrix=a)), x(4), **_FEW)
    ],
    "SparseMatrixTranspose": [p(_csr_programs(_csr_transposed), x(4), grad=False, **_FEW)],
    "SparseMatrixMatMul": [p(_csr_programs(_csr_matmul), x(4), x(4, 4), **_FEW)],
    "CSRSparseMatrixComponents": [
        p(
            lambda v: R.CSRSparseMatrixComponents(csr_sparse_matrix=_csr(v), index=0, type=v.dtype),
            x(4),
            grad=False,
            **_FEW,
        )
    ],
    **{
        f"CompositeTensorVariant{end}Components": [p(_composite, x(3, 2))] for end in ("From", "To")
    },
    "IsotonicRegression": [
        _isotonic("own", *FLOATS),
        _isotonic("float32", "int8", "int16"),
        _isotonic("float64", "int32", "int64"),
        p(lambda t: R.IsotonicRegression(input=t), x(2, 3, 4), dtypes=("float32",), grad=False),
    ],
    "DebugNanCount": [
        p(lambda a: R.DebugNanCount(input=tf.sqrt(a), tensor_name="a:0"), x(3, 5), grad=False)
    ],
    "NearestNeighbors": [
        p(
            lambda a, b: [
                y
                for k in (0, 1, 3, 9)
                for y in R.NearestNeighbors(points=a, centers=b, k=tf.constant(k, tf.int64))
            ],
            x(7, 4),
            x(5, 4),
            dtypes=("float32",),
            grad=False,
        )
    ],
    "MapDefun": [p(_map_defun, x(4, 3), x(4, 3), x(3), grad=False)],
    "For": [p(_for, ids(high=3), x(2, 3), x(2, 3), grad=False)],
    "BatchFunction": [p(_batch_function, x(2, 3), x(2, 3), grad=False)],
    "RemoteCall": [p(_remote_call, x(2, 3), grad=False)],
    "TemporaryVariable": [p(_temporary, x(2, 3), grad=False)],
}
