"""Ragged tensors: concatenated values and row partitions.

(tensorflow/core/kernels/ragged_tensor_to_tensor_op.cc, ragged_gather_op.cc and
ragged_tensor_to_sparse_kernel.cc, TensorFlow 2.21.)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.primitives.tf.gather import searchsorted, take
from invert.primitives.tf.scatter import scatter_nd
from invert.primitives.tf.tensor_lists import Batch
from invert.tf.interpreter.registry import Array, Ints, Static, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, broadcast_to, ints, static
from invert.tf.values.ragged import CompositeVariant, DynamicRagged, RaggedVariant

_INT64 = np.dtype(np.int64)


def _splits(node: Node, parts: Sequence[Value], kinds: Sequence[str]) -> list[Array]:
    """Row partitions, outermost first, all as row offsets."""
    if kinds[0] == "FIRST_DIM_SIZE":
        (rows,) = ints(static(node, parts, 0))
        parts, kinds = parts[1:], kinds[1:]
    else:
        rows = parts[0].shape[0] - 1
    splits = []
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "VALUE_ROWIDS":
            values = part.shape[0]
            known = isinstance(part, np.ndarray)
            lib: ModuleType = np if known else jnp
            search = np.searchsorted if known else searchsorted
            part, rows = search(part, lib.arange(rows + 1)), values
        splits.append(part)
    return splits


def _places(splits: Sequence[Array], count: int) -> Array:
    """The indices of `count` values: the row of the outermost partition, then the columns."""
    known = all(isinstance(s, np.ndarray) for s in splits)
    lib: ModuleType = np if known else jnp
    search = np.searchsorted if known else searchsorted
    at, columns = lib.arange(count), []
    for split in reversed(splits):
        row = search(split, at, side="right") - 1
        columns.append(at - split[row])
        at = row
    return lib.stack([at, *reversed(columns)], -1)


def _longest(split: Array) -> Array:
    if isinstance(split, np.ndarray):
        return int(np.max(np.diff(split), initial=0))
    return jnp.max(jnp.diff(split), initial=0)


def _width(node: Node, split: Array, size: Value) -> Value:
    """A partition's axis size: from the shape, else of the longest row."""
    if not isinstance(size, int) or size >= 0:
        return size
    if isinstance(split, np.ndarray):
        return _longest(split)
    remedy = "Give the size, as in `ragged.to_tensor(shape=[None, 8])`."
    raise node.error("the length of its longest row depends on data", remedy)


@rule("RaggedTensorToTensor")
def _to_tensor(
    shape: Static,
    values: Array,
    default: Array,
    *partitions: Value,
    node: Node,
    row_partition_types: list[str],
) -> Array:
    splits = _splits(node, partitions, row_partition_types)
    inner = tuple(values.shape[1:])
    # A scalar means an unknown rank.
    sizes = ints(shape) if shape.ndim else [-1] * (1 + len(splits) + len(inner))
    rows = splits[0].shape[0] - 1 if sizes[0] == -1 else sizes[0]
    widths = [_width(node, *pair) for pair in zip(splits, sizes[1 : 1 + len(splits)], strict=True)]
    # Values outside the shape are dropped.
    places = array(_places(splits, values.shape[0]))
    return scatter_nd(lax.scatter, broadcast_to(default, (rows, *widths, *inner)), places, values)


@rule("RaggedTensorToSparse")
def _to_sparse(*operands: Value, node: Node) -> list[Array]:
    *splits, x = operands
    if np.ndim(x) > 1:
        raise node.error("its values have more than one axis", "Flatten them, or pad the rows.")
    places = _places(splits, np.shape(x)[0])
    sizes = [splits[0].shape[0] - 1, *(_longest(split) for split in splits)]
    if all(isinstance(n, int) for n in sizes):
        return [places.astype(_INT64), x, np.asarray(sizes, _INT64)]
    return [places.astype(_INT64), x, jnp.stack([jnp.asarray(n, _INT64) for n in sizes])]


@rule("RaggedGather")
def _gather(*operands: Value, node: Node, PARAMS_RAGGED_RANK: int) -> list[Array]:
    rank = PARAMS_RAGGED_RANK
    splits = [static(node, operands, i) for i in range(rank)]
    x, indices = array(operands[rank]), static(node, operands, rank + 1)
    results = []
    for axis in range(1, indices.ndim):
        count, width = int(np.prod(indices.shape[:axis])), indices.shape[axis]
        results.append(np.arange(count + 1) * width)
    rows = indices.ravel()
    for split in splits:
        lengths = split[rows + 1] - split[rows]
        results.append(np.concatenate([[0], np.cumsum(lengths)]))
        pieces = [np.arange(*ints(split[r : r + 2])) for r in rows]
        rows = np.concatenate(pieces) if pieces else rows[:0]
    return [*(s.astype(splits[0].dtype) for s in results), take(x, array(rows), 0)]


# -- ragged tensors as single values, which loops split and join


@rule("CompositeTensorVariantFromComponents", ignores=("metadata",))
def _composite(*components: Value) -> CompositeVariant:
    return CompositeVariant(components)


@rule("CompositeTensorVariantToComponents", ignores=("metadata",))
def _components(encoded: Value, *, node: Node) -> Sequence[Value]:
    if not isinstance(encoded, CompositeVariant):
        raise node.error("takes a value that is not a composite tensor", REPORT)
    return encoded.components


@rule("RaggedTensorToVariant")
def _to_variant(*operands: Value, node: Node, batched_input: bool) -> Value:
    splits, x = operands[:-1], operands[-1]
    if not batched_input:
        return RaggedVariant(splits, x)
    if all(isinstance(s, np.ndarray) for s in splits):
        whole = RaggedVariant(splits, x)
        return Batch(tuple(whole.row(i) for i in range(whole.rows)), (whole.rows,))
    if len(splits) > 1:
        raise node.error("splits several partitions that depend on data", "Pad the rows.")
    return DynamicRagged(tuple(map(array, splits)), x)


@rule("RaggedTensorFromVariant", ignores=("input_ragged_rank",))
def _from_variant(
    encoded: Value, *, node: Node, output_ragged_rank: int, Tvalues: np.dtype, Tsplits: np.dtype
) -> list[Value]:
    """The ragged tensor of a variant, or of a vector of row variants."""
    if isinstance(encoded, RaggedVariant):
        return [*encoded.splits, encoded.values]
    items = _vector(node, encoded)
    depth = output_ragged_rank - 1
    if any(isinstance(e.values, BoundedArray) or len(e.splits) != depth for e in items):
        raise node.error("joins rows whose lengths depend on data", "Pad the rows.")
    splits = [np.cumsum([0, *(e.rows for e in items)]).astype(Tsplits)]
    for level in range(depth):
        ends = np.cumsum([0, *(e.splits[level][-1] for e in items)])
        parts = [e.splits[level][1:] + end for e, end in zip(items, ends, strict=False)]
        splits.append(np.concatenate([[0], *parts]).astype(Tsplits))
    if not items:
        return [*splits, np.zeros(0, Tvalues)]
    return [*splits, lax.concatenate([array(e.values) for e in items], 0)]


def _vector(node: Node, encoded: Value) -> Sequence[RaggedVariant]:
    if not isinstance(encoded, Batch) or len(encoded.shape) != 1:
        raise node.error("takes a value that is not a vector of ragged tensors", REPORT)
    return encoded.items


@rule("RaggedTensorToVariantGradient")
def _variant_gradient(
    encoded: Value, row_splits: Value, shape: Ints, *, node: Node, Tvalues: np.dtype
) -> Array:
    """The concatenated values of the rows."""
    parts = [array(e.values) for e in _vector(node, encoded)]
    if not parts:
        return lax.full(shape, 0, jax.dtypes.canonicalize_dtype(Tvalues))
    return lax.reshape(lax.concatenate(parts, 0), shape)
