"""Ragged tensors: values one after another, and where the rows of them begin and end.

(tensorflow/core/kernels/ragged_tensor_to_tensor_op.cc, ragged_gather_op.cc and
ragged_tensor_to_sparse_kernel.cc, TensorFlow 2.21.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.primitives.tf.gather import take
from invert.primitives.tf.scatter import scatter_nd
from invert.primitives.tf.tensor_lists import Batch
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, broadcast_to, ints, static
from invert.tf.values.ragged import Apart, Composite, Encoded

_INT64 = np.dtype(np.int64)


def _splits(node: Node, parts: Sequence[Any], kinds: Sequence[str]) -> list[Any]:
    """Partitions of rows, from the outermost on, all as the places where rows begin and end."""
    if kinds[0] == "FIRST_DIM_SIZE":
        (rows,) = ints(static(node, parts, 0))
        parts, kinds = parts[1:], kinds[1:]
    else:
        rows = parts[0].shape[0] - 1
    splits = []
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "VALUE_ROWIDS":
            values = part.shape[0]
            lib: Any = np if isinstance(part, np.ndarray) else jnp
            part, rows = lib.searchsorted(part, lib.arange(rows + 1)), values
        splits.append(part)
    return splits


def _places(splits: Sequence[Any], count: int) -> Any:
    """Where each of `count` values is: its row of the outermost partition and its columns."""
    known = all(isinstance(s, np.ndarray) for s in splits)
    lib: Any = np if known else jnp
    at, columns = lib.arange(count), []
    for split in reversed(splits):
        row = lib.searchsorted(split, at, side="right") - 1
        columns.append(at - split[row])
        at = row
    return lib.stack([at, *reversed(columns)], -1)


def _widths(node: Node, splits: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """Sizes of the axes that `splits` make: those wanted, else the longest row."""
    sizes = []
    for split, size in zip(splits, wanted, strict=True):
        if not isinstance(size, int) or size >= 0:
            sizes.append(size)
        elif isinstance(split, np.ndarray):
            sizes.append(int(np.max(np.diff(split), initial=0)))
        else:
            reason = "the length of its longest row depends on data"
            remedy = "Give the size, as in `ragged.to_tensor(shape=[None, 8])`."
            raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, remedy)])
    return sizes


@raises_tf("RaggedTensorToTensor")
def _to_tensor(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, default = array(values[1]), array(values[2])
    splits = _splits(node, values[3:], node.attr("row_partition_types"))
    inner = tuple(x.shape[1:])
    wanted = list(ints(static(node, values, 0)))
    if np.ndim(values[0]) == 0:  # of unknown rank
        wanted = [-1] * (1 + len(splits) + len(inner))
    rows = splits[0].shape[0] - 1 if wanted[0] == -1 else wanted[0]
    shape = (rows, *_widths(node, splits, wanted[1 : 1 + len(splits)]), *inner)
    # What lies outside of the shape is left out.
    places = array(_places(splits, x.shape[0]))
    return [scatter_nd(lax.scatter, broadcast_to(default, shape), places, x)]


@raises_tf("RaggedTensorToSparse")
def _to_sparse(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    *splits, x = values
    places = _places(splits, np.shape(x)[0])
    longest = [_longest(split) for split in splits]
    sizes = [splits[0].shape[0] - 1, *longest, *np.shape(x)[1:]]
    if np.ndim(x) > 1:
        reason = "its values have axes of their own"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    if all(isinstance(n, int) for n in sizes):
        return [places.astype(_INT64), x, np.asarray(sizes, _INT64)]
    return [places.astype(_INT64), x, jnp.stack([jnp.asarray(n, _INT64) for n in sizes])]


def _longest(split: Any) -> Any:
    if isinstance(split, np.ndarray):
        return int(np.max(np.diff(split), initial=0))
    return jnp.max(jnp.diff(split), initial=0)


@raises_tf("RaggedGather")
def _gather(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    rank = node.attr("PARAMS_RAGGED_RANK")
    splits = [static(node, values, i) for i in range(rank)]
    x, indices = array(values[rank]), static(node, values, rank + 1)
    rows, found = indices.ravel(), []
    for axis in range(1, indices.ndim):
        count, width = int(np.prod(indices.shape[:axis])), indices.shape[axis]
        found.append(np.arange(count + 1) * width)
    for split in splits:
        lengths = split[rows + 1] - split[rows]
        found.append(np.concatenate([[0], np.cumsum(lengths)]))
        pieces = [np.arange(*ints(split[r : r + 2])) for r in rows]
        rows = np.concatenate(pieces) if pieces else rows[:0]
    return [*(s.astype(splits[0].dtype) for s in found), take(x, array(rows), 0)]


# -- ragged tensors as single values, which loops take apart and put together


def _refused(node: Node, reason: str) -> UnsupportedOpError:
    return UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])


@raises_tf("CompositeTensorVariantFromComponents")
def _composite(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [Composite(values)]


@raises_tf("CompositeTensorVariantToComponents")
def _components(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if not isinstance(values[0], Composite):
        raise _refused(node, "takes what is not made of several tensors")
    return list(values[0].components)


@raises_tf("RaggedTensorToVariant")
def _to_variant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    *splits, x = values
    if not node.attr("batched_input"):
        return [Encoded(splits, x)]
    if all(isinstance(s, np.ndarray) for s in splits):
        whole = Encoded(splits, x)
        return [Batch(tuple(whole.row(i) for i in range(whole.rows)), (whole.rows,))]
    if len(splits) > 1:
        raise _refused(node, "takes several partitions apart that depend on data")
    return [Apart([array(s) for s in splits], x)]


@raises_tf("RaggedTensorFromVariant")
def _from_variant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (encoded,) = values
    dtype = node.attr("Tsplits", _INT64)
    if isinstance(encoded, Encoded):
        return [*encoded.splits, encoded.values]
    if not isinstance(encoded, Batch) or len(encoded.shape) != 1:
        raise _refused(node, "takes what is no vector of ragged tensors")
    return _joined(node, encoded.items, dtype)


def _joined(node: Node, items: Sequence[Encoded], dtype: np.dtype) -> list[Any]:
    """The ragged tensor that has ragged tensors for rows."""
    depth = node.attr("output_ragged_rank") - 1
    if any(isinstance(e.values, BoundedArray) or len(e.splits) != depth for e in items):
        raise _refused(node, "puts rows together whose lengths depend on data")
    splits = [np.cumsum([0, *(e.rows for e in items)]).astype(dtype)]
    for level in range(depth):
        ends = np.cumsum([0, *(e.splits[level][-1] for e in items)])
        parts = [e.splits[level][1:] + end for e, end in zip(items, ends, strict=False)]
        splits.append(np.concatenate([[0], *parts]).astype(dtype))
    parts = [array(e.values) for e in items]
    if not parts:
        return [*splits, np.zeros(0, node.attr("Tvalues"))]
    return [*splits, lax.concatenate(parts, 0)]


@raises_tf("RaggedTensorToVariantGradient")
def _variant_gradient(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """The values that are in the rows, one after another."""
    encoded, shape = values[0], ints(static(node, values, 2))
    if not isinstance(encoded, Batch):
        raise _refused(node, "takes what is no vector of ragged tensors")
    parts = [array(e.values) for e in encoded.items]
    dtype = jax.dtypes.canonicalize_dtype(node.attr("Tvalues"))
    if not parts:
        return [lax.full(shape, 0, dtype)]
    return [lax.reshape(lax.concatenate(parts, 0), shape)]
