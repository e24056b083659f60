"""Calls of `tf.sparse`, `tf.ragged`, `tf.RaggedTensor` and `tf.sets`.

Sparse and ragged tensors are passed and returned as their components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.tf.api.calls import B, Call, F, Table, V, call, left_out, of
from tests.tf.api.table_segment import SPARSE_SEGMENT

S = tf.sparse
ONE = "float32"
_INDICES = [[0, 1], [1, 0], [1, 2], [3, 1]]
_SHAPE = [4, 3]
_TEXT = "it makes text or hashes of it"


def _s(values: Any, indices: Any = _INDICES, shape: Any = _SHAPE) -> Any:
    return tf.SparseTensor(tf.constant(indices, tf.int64), values, tf.constant(shape, tf.int64))


def sp(function: Callable[..., Any], *more: Any) -> Call:
    """A call with a sparse tensor of four values at known indices."""
    return of(lambda v, *rest: function(_s(v), *rest), F(4), *more).but(vmap="sparse tensors")


def at(function: Callable[..., Any], *more: Any) -> Call:
    """A call with a sparse tensor of four values whose indices are arguments."""
    places = V(_INDICES, "int64")
    return of(
        lambda v, i, *rest: function(tf.SparseTensor(i, v, _SHAPE), *rest), F(4), places, *more
    ).but(vmap="sparse tensors")  # fmt: skip


SPARSE: Table = {
    "SparseTensor": (sp(lambda s: s.with_values(s.values * 2)), sp(lambda s: s * 2.0), sp(lambda s: s / 2.0)),
    "add": (sp(lambda s: S.add(s, tf.ones(_SHAPE, s.dtype))),),
    **left_out("without a rule, or for the host only", "bincount concat fill_empty_rows maximum minimum reorder slice split transpose"),
    **left_out(_TEXT, "cross cross_hashed"),
    "expand_dims": (sp(lambda s: S.expand_dims(s, 1)), at(lambda s: S.expand_dims(s, -1))),
    "eye": (of(lambda x: S.to_dense(S.eye(3, 4)) * x, F()).of(ONE),),
    "from_dense": (of(lambda x: S.to_dense(S.from_dense(x)), V([[0.0, 2.0], [3.0, 0.0]])).padded(),),
    "map_values": (sp(lambda s: S.map_values(tf.sin, s)),),
    "mask": (of(lambda v: S.mask(tf.IndexedSlices(v, tf.constant([1, 3, 5]), tf.constant([9, 2])), [3, 7]), F(3, 2)),),
    **{n: tuple(f(lambda s, n=n, k=k: getattr(S, n)(s, **k)) for f in (sp, at) for k in ({}, {"axis": 1}, {"axis": [0], "keepdims": True})) for n in ("reduce_max", "reduce_sum")},
    "reset_shape": (sp(lambda s: S.reset_shape(s, [5, 4])), sp(lambda s: S.reset_shape(s))),
    "reshape": (sp(lambda s: S.reshape(s, [2, -1])),),
    "retain": (sp(lambda s: S.retain(s, [True, False, True, True])),),
    "sampled_addmm": (call(V([[0, 1], [1, 0], [3, 2]], "int64"), F(3), V(_SHAPE, "int32"), F(4, 2), F(2, 3)).of(ONE).but(vmap="sparse tensors"),),
    **SPARSE_SEGMENT,
    "softmax": (sp(S.softmax), at(S.softmax)),
    "sparse_dense_matmul": (
        sp(S.sparse_dense_matmul, F(3, B)), at(S.sparse_dense_matmul, F(3, 2)), at(lambda s, b: S.sparse_dense_matmul(s, b, adjoint_a=True), F(4, 2)),
        at(lambda s, b: S.sparse_dense_matmul(s, b, adjoint_b=True), F(2, 3)),
    ),
    "to_dense": (sp(S.to_dense), at(S.to_dense), at(lambda s: S.to_dense(s, default_value=tf.constant(2, s.dtype)))),
    "to_indicator": (of(lambda x: (x, S.to_indicator(_s(tf.constant([1, 2, 0, 4], tf.int64)), 5)), F()),),
}  # fmt: skip
SPARSE_TENSOR: Table = {
    **left_out(
        "says what the tensor is, and is no op", "consumers eval from_value get_shape set_shape"
    ),
    "with_values": "see SparseTensor",
}

R = tf.RaggedTensor
_SPLITS = [0, 2, 2, 5]


def rg(function: Callable[[Any], Any], *shape: Any) -> Call:
    """A call with a ragged tensor of three rows of known lengths."""
    return of(
        lambda x: function(R.from_row_splits(x, tf.constant(_SPLITS, tf.int64))), F(5, *shape)
    ).but(vmap="ragged tensors")


def rs(function: Callable[[Any], Any], *shape: Any) -> Call:
    """A call with a ragged tensor of three rows whose lengths are an argument."""
    splits = V(_SPLITS, "int64")
    return of(
        lambda x, s: function(R.from_row_splits(x, s, validate=False)), F(5, *shape), splits
    ).but(vmap="ragged tensors")


def ri(function: Callable[[Any], Any], *shape: Any) -> Call:
    """A call with a ragged tensor of three rows, with the row of each value as an argument."""
    ids = V([0, 0, 2, 2, 2], "int64")
    return of(
        lambda x, i: function(R.from_value_rowids(x, i, nrows=3, validate=False)), F(5, *shape), ids
    ).but(vmap="ragged tensors")  # fmt: skip


# The starts of the rows are an argument, so the length of a row has no bound.
_ROWIDS = "tf.Range: input 1 must be a constant"
_RANGES = "tf.RaggedRange: runs on the host only"
_GATHERED = "tf.RaggedGather: input 0 must be a constant"

RAGGED: Table = {
    "boolean_mask": (rg(lambda r: tf.ragged.boolean_mask(r, tf.ragged.constant([[True, False], [], [True, True, False]]))),),
    "constant": (of(lambda x: tf.ragged.constant([[1.0, 2.0], [], [3.0]], dtype=x.dtype) * x, F()),),
    **left_out(_TEXT, "cross cross_hashed"),
    "map_flat_values": (rg(lambda r: tf.ragged.map_flat_values(tf.sin, r)), rs(lambda r: tf.ragged.map_flat_values(tf.add, r, 2.0)).of(ONE)),
    "range": (of(lambda x: tf.cast(tf.ragged.range([3, 0, 2]).flat_values, x.dtype) * x, F()), of(lambda x: tf.cast(tf.ragged.range([1, 5], [4, 6]).values, x.dtype) + x, F())),
    "row_splits_to_segment_ids": (of(lambda x: tf.cast(tf.ragged.row_splits_to_segment_ids([0, 2, 2, 5]), x.dtype) * x, F()),),
    "segment_ids_to_row_splits": (of(lambda x: tf.cast(tf.ragged.segment_ids_to_row_splits([0, 0, 2, 2, 2]), x.dtype) * x, F()),),
    "stack": (rg(lambda r: tf.ragged.stack([r, r])), rg(lambda r: tf.ragged.stack([r, r], axis=1))),
    "stack_dynamic_partitions": (of(lambda x: tf.ragged.stack_dynamic_partitions(x, [1, 0, 1, 2], 3), F(4, 2)),),
}  # fmt: skip

_FROM = {
    "from_row_splits": [0, 2, 2, 5], "from_row_lengths": [2, 0, 3], "from_row_limits": [2, 2, 5], "from_row_starts": [0, 2, 2], "from_value_rowids": [0, 0, 2, 2, 2],
}  # fmt: skip
_REDUCE = ("sum", "mean", "max", "min", "prod", "variance", "std")

RAGGED_TENSOR: Table = {
    **{
        n: (
            of(lambda x, n=n, p=p: getattr(R, n)(x, tf.constant(p, tf.int64)), F(5, 2)).but(vmap="ragged tensors"),
            of(lambda x, n=n, p=p: getattr(R, n)(x, tf.constant(p, tf.int64)).to_tensor(), F(5)),
        )
        for n, p in _FROM.items()
    },
    "from_uniform_row_length": (of(lambda x: R.from_uniform_row_length(x, 2), F(6)),),
    "from_nested_row_splits": (of(lambda x: R.from_nested_row_splits(x, [[0, 2, 3], [0, 2, 2, 5]]).to_tensor(), F(5)),),
    "from_nested_row_lengths": (of(lambda x: R.from_nested_row_lengths(x, [[2, 1], [2, 0, 3]]).to_tensor(), F(5)),),
    "from_nested_value_rowids": (of(lambda x: R.from_nested_value_rowids(x, [[0, 0, 1], [0, 0, 2, 2, 2]]).to_tensor(), F(5)),),
    "from_sparse": (of(lambda x: R.from_sparse(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], x, [3, 3])).to_tensor(), F(3)),),
    "from_tensor": (of(lambda x: R.from_tensor(x, lengths=[1, 0, 3]), F(3, 4)), of(lambda x: R.from_tensor(x), F(3, 4))),
    **left_out("says what the tensor is, and is no op", "consumers get_shape numpy to_list"),
    "bounding_shape": (rg(lambda r: r.bounding_shape()), rs(lambda r: r.bounding_shape())),
    "merge_dims": (rg(lambda r: r.merge_dims(0, 1)), of(lambda x: R.from_nested_row_splits(x, [[0, 2, 3], [0, 2, 2, 5]]).merge_dims(0, 1), F(5))),
    "nested_row_lengths": (rg(lambda r: r.nested_row_lengths()),),
    "nested_value_rowids": (rg(lambda r: r.nested_value_rowids()),),
    "nrows": (rg(lambda r: r.nrows()), rs(lambda r: r.nrows())),
    "row_lengths": (rg(lambda r: r.row_lengths()), rs(lambda r: r.row_lengths()), ri(lambda r: r.row_lengths())),
    "row_limits": (rg(lambda r: r.row_limits()), rs(lambda r: r.row_limits())),
    "row_starts": (rg(lambda r: r.row_starts()), rs(lambda r: r.row_starts())),
    "value_rowids": (rg(lambda r: r.value_rowids()), rs(lambda r: r.value_rowids()).refused(_ROWIDS), ri(lambda r: r.value_rowids())),
    "to_sparse": (rg(lambda r: r.to_sparse()), rs(lambda r: r.to_sparse())),
    "to_tensor": (rg(lambda r: r.to_tensor()), rg(lambda r: r.to_tensor(default_value=tf.constant(9, r.dtype), shape=[None, 4])), rs(lambda r: r.to_tensor(shape=[3, 4])), rg(lambda r: r.to_tensor(), 2), rs(lambda r: r.to_tensor()).refused("the length of its longest row depends on data")),
    "with_flat_values": (rg(lambda r: r.with_flat_values(r.flat_values * 2)),),
    "with_values": (rg(lambda r: r.with_values(r.values * 2)),),
    "with_row_splits_dtype": (rg(lambda r: r.with_row_splits_dtype(tf.int32)),),
}  # fmt: skip

# Functions that take ragged tensors instead of dense ones.
DISPATCHED: Table = {
    **{
        f"reduce_{n}": tuple(
            f(lambda r, n=n, a=a: getattr(tf.math, f"reduce_{n}")(r, axis=a)).refused(error)
            for f, a, error in ((rg, 1, ""), (rg, 0, ""), (rs, None, ""), (ri, 1, _ROWIDS), (rs, 1, _ROWIDS), (rs, 0, _RANGES))
        )
        for n in _REDUCE
    },
    "matmul": (rg(lambda r: tf.matmul(r, tf.ones([3, 2, 4], r.dtype)), 2),),
    "map_fn": "rows of a ragged tensor on a list are without a rule",
    "add": (rg(lambda r: r + 2.0 * r), rs(lambda r: tf.sin(r) * 2.0).of(ONE)),
    "concat": (rg(lambda r: tf.concat([r, r], axis=1)), rg(lambda r: tf.concat([r, r], axis=0)), rs(lambda r: tf.concat([r, r], axis=1)).refused(_GATHERED)),
    "gather": (rg(lambda r: tf.gather(r, [2, 0])), rs(lambda r: tf.gather(r, [2, 0])).refused(_GATHERED)),
    "slice": (rg(lambda r: r[:, :1]), rg(lambda r: r[0]), rs(lambda r: r[:, :1]).refused(_RANGES), rs(lambda r: tf.reduce_sum(r[2]))),
    "expand_dims": (rg(lambda r: tf.expand_dims(r, 1)), rs(lambda r: tf.expand_dims(r, 1))),
    "tile": (rg(lambda r: tf.tile(r, [1, 2])),),
    "reverse": (rg(lambda r: tf.reverse(r, [1])),),
    "where": (rg(lambda r: tf.where(r > 0, r, -r)), rs(lambda r: tf.where(r > 0, r, -r))),
    "softmax": (rg(lambda r: tf.nn.softmax(r)), rs(lambda r: tf.nn.softmax(r)).refused(_RANGES)),
    "embedding": (rg(lambda r: tf.nn.embedding_lookup(tf.ones([9, 2], r.dtype), tf.ragged.map_flat_values(lambda v: tf.cast(v, tf.int32) * 0, r))),),
    "one_hot": (rg(lambda r: tf.one_hot(tf.cast(r, tf.int32) * 0, 3)),),
    "size": (rg(lambda r: (tf.size(r), tf.rank(r))),),
    "squeeze": (rg(lambda r: tf.squeeze(tf.expand_dims(r, 0), 0)),),
}  # fmt: skip


def _set(name: str) -> tuple[Call, ...]:
    a, b = [[1, 2, 2], [3, 4, 5]], [[2, 6, 1], [5, 3, 9]]
    function = getattr(tf.sets, name)
    return (
        of(
            lambda x: (
                tf.sparse.to_dense(function(tf.constant(a), tf.constant(b))) * tf.cast(x, tf.int32)
            ),
            F(),
        ).of(ONE),
    )


SETS: Table = {
    **{n: _set(n) for n in ("difference", "intersection", "union")},
    "size": (
        of(lambda x: tf.sets.size(_s(tf.constant([1, 2, 3, 4]))) * tf.cast(x, tf.int32), F()).of(
            ONE
        ),
    ),
}
