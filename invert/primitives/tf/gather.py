"""Ops that look elements up by index.

On the CPU, TensorFlow raises if an index is negative or too large; compiled by XLA, it takes the
nearest row. These rules do the same, unless indices may be -1 for padding rows (see
`dynamic_size`): those give zeros, as in TensorFlow on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.sizes import as_value, decided, is_open, suggest_equal
from invert.ir.types import Params
from invert.primitives.tf.dynamic_size import places_of
from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray, Partition
from invert.tf.values.constants import array, as_sizes, axis_of, is_static

# Indices known to be in range need no guard. Checking more than this takes longer than it saves.
_MAX_CHECKED = 1 << 16


_Mode = lax.GatherScatterMode


def _mode(indices: Array, sizes: Ints, else_: _Mode) -> _Mode:
    """`indices` hold one column for each of `sizes` in their last axis."""
    if (
        isinstance(indices, np.ndarray)
        and indices.size <= _MAX_CHECKED
        and all(isinstance(n, int) for n in sizes)
        and bool(np.all((indices >= 0) & (indices < np.asarray(sizes))))
    ):
        return _Mode.PROMISE_IN_BOUNDS
    return else_


def take(
    x: Array, indices: Array, axis: int, batch: int = 0, beyond: _Mode = _Mode.FILL_OR_DROP
) -> Array:
    """Take elements along `axis`; the first `batch` axes of both are paired.

    An index out of range gives zeros, unless `beyond` is given.
    """
    which, rank = array(indices), np.ndim(indices)
    kept = [d for d in range(x.ndim) if d != axis and d >= batch]
    # Result: x[:axis] · indices[batch:] · x[axis + 1:].
    offsets = [d if d < axis else d - 1 + rank - batch for d in kept]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(offsets),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=tuple(range(batch)),
        start_indices_batching_dims=tuple(range(batch)),
    )
    sizes = [1 if d == axis or d < batch else n for d, n in enumerate(x.shape)]
    column = np.expand_dims(indices, -1) if isinstance(indices, np.ndarray) else None
    return lax.gather(
        x,
        lax.expand_dims(which, (rank,)),
        numbers,
        sizes,
        **_gather_mode(_mode(column, (x.shape[axis],), beyond)),
    )


def narrow(indices: Array, sizes: Sequence[Int]) -> Array:
    """Narrow indices of 64 bits to 32 where these suffice, for lookups that clip.

    JAX 0.10 cannot transpose such a lookup with 64 bits in a session of 32. An axis of open length
    is taken to have fewer than 2^31 elements.
    """
    small = all(is_open(n) or n <= np.iinfo(np.int32).max for n in sizes)
    wide = np.dtype(indices.dtype) in (np.int64, np.uint32, np.uint64)
    if not (small and wide):
        return indices
    if isinstance(indices, np.ndarray):
        return indices.astype(np.int32)
    return lax.convert_element_type(indices, np.int32)


def _gather_mode(mode: _Mode) -> Params:
    return {"mode": mode, "fill_value": 0 if mode == _Mode.FILL_OR_DROP else None}


# Checking indices does not change results for those in range.
@rule("Gather", "GatherV2", ignores=("validate_indices",))
def _gather(
    params: Value,
    indices: Value,
    axis: Int = 0,
    *,
    batch_dims: int = 0,
    Tparams: np.dtype,
    ctx: Context,
) -> Value:
    axis = axis_of(axis, np.ndim(params))
    batch = batch_dims + (np.ndim(indices) if batch_dims < 0 else 0)
    known = isinstance(indices, np.ndarray) and indices.dtype != object
    if is_static(params) and known and not batch:
        return as_sizes(np.take(params, indices, axis), Tparams)
    x = array(params)
    size = x.shape[axis]
    if known and indices.ndim == 0 and isinstance(size, int) and 0 <= indices < size:
        return lax.index_in_dim(x, int(indices), axis, keepdims=False)
    indices = indices if known else array(indices)
    if ctx.pads_rows:
        return take(x, indices, axis, batch)
    indices = narrow(indices, (size,))
    if not batch:
        # A range of positions in a sequence, whose length may be symbolic, stays a range.
        return jnp.take(x, array(indices), axis=axis, mode="clip")
    if np.ndim(indices) != batch + 1:
        return take(x, indices, axis, batch, _Mode.CLIP)
    rows = [d for d in range(x.ndim) if d >= batch and d != axis]
    return jnp.take_along_axis(x, jnp.expand_dims(indices, rows), axis=axis, mode="clip")


@rule("GatherNd")
def _gather_nd(x: Array, indices: Value, *, bad_indices_policy: str = "", ctx: Context) -> Array:
    which = array(indices)
    depth, rank = which.shape[-1], which.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(rank, rank + x.ndim - depth)),
        collapsed_slice_dims=tuple(range(depth)),
        start_index_map=tuple(range(depth)),
    )
    sizes = (*(1,) * depth, *x.shape[depth:])
    fills = ctx.pads_rows or bad_indices_policy == "IGNORE"
    mode = _mode(indices, x.shape[:depth], _Mode.FILL_OR_DROP if fills else _Mode.CLIP)
    which = which if fills else narrow(which, x.shape[:depth])
    return lax.gather(x, which, numbers, sizes, **_gather_mode(mode))


_SIZES = "the sizes of its results depend on data"
_REMEDY = "Use masks, tf.where with three arguments, or a segment op with a fixed size."


@rule("DynamicPartition")
def _dynamic_partition(
    data: Value, partitions: Value, *, num_partitions: int, node: Node
) -> list[Value]:
    """The rows of each partition, in order; TensorFlow refuses numbers out of range."""
    flat = lax.reshape(array(data), (np.size(partitions), *np.shape(data)[np.ndim(partitions) :]))
    if isinstance(partitions, np.ndarray):
        where = [np.flatnonzero(np.ravel(partitions) == i) for i in range(num_partitions)]
        return [take(flat, i.astype(np.int32), 0) for i in where]
    part = lax.reshape(array(partitions), (np.size(partitions),))
    known = None
    if isinstance(data, np.ndarray) and data.ndim == np.ndim(partitions):
        known = Partition(np.ravel(data), num_partitions)
    origin = node.problem(_SIZES, _REMEDY)
    found: list[Value] = []
    for i in range(num_partitions):
        mask = lax.eq(part, lax.full_like(part, i))
        places = lax.max(places_of(mask)[:, 0], np.int32(0))
        rows = take(flat, places, 0, beyond=_Mode.CLIP)
        length = jnp.sum(mask, dtype=np.int32)
        found.append(BoundedArray(rows, length, origin, part=None if known is None else (known, i)))
    return found


def _known(node: Node, value: Value, reason: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    raise node.error(reason, _REMEDY)


@rule("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(*values: Value, T: np.dtype, node: Node) -> Value:
    half = len(values) // 2
    reason = "the size of its result depends on data"
    places = [_known(node, v, reason) for v in values[:half]]
    parts = values[half:]
    shape = np.shape(parts[0])[places[0].ndim :]
    check_bytes(node, "indices", sum(p.nbytes for p in places))
    flat = np.concatenate([np.ravel(p) for p in places]).astype(np.int64)
    if (flat < 0).any():
        raise node.error(f"has the index {flat.min()}", "Pass indices from 0 on.")
    size = int(flat.max()) + 1 if flat.size else 0
    check_bytes(node, "a table of its rows", size * flat.itemsize)
    # The last of several rows with the same index is kept.
    source = np.full(size, -1)
    source[flat] = np.arange(flat.size)
    if all(is_static(p) for p in parts):
        data = np.concatenate([p.reshape(-1, *shape) for p in parts])
        missing = (source < 0).reshape(-1, *(1,) * len(shape))
        return np.where(missing, 0, data[source]).astype(data.dtype)
    pairs = zip(parts, places, strict=True)
    rows = [lax.reshape(array(part, T), (p.size, *shape)) for part, p in pairs]
    data = lax.concatenate(rows, 0)
    if np.array_equal(source, np.arange(flat.size)):
        return data
    # A position without a row is 0: its index is out of range.
    return take(data, np.where(source < 0, flat.size, source).astype(np.int32), 0)


@rule("LowerBound", "UpperBound")
def _bound(
    sorted_inputs: Array, values: Array, *, op: str, out_type: np.dtype, node: Node
) -> Array:
    side = "left" if op == "LowerBound" else "right"
    sizes = sorted_inputs.shape[0], values.shape[0]
    suggest_equal(*sizes)
    if decided("ne", *sizes):
        reason = "has {} rows of sorted numbers and {} rows of values".format(*sizes)
        raise node.error(reason, "Repeat the sorted rows; TensorFlow refuses these inputs too.")
    places = jax.vmap(functools.partial(_halving, side=side))(sorted_inputs, values)
    return lax.convert_element_type(places, out_type)


def searchsorted(a: Array, v: Array, side: str = "left") -> Array:
    """`jnp.searchsorted`, in arrays of open length as well."""
    return (_halving if is_open(a.shape[0]) else jnp.searchsorted)(a, v, side=side)


def _halving(a: Array, v: Array, side: str) -> Array:
    """`jnp.searchsorted` as TensorFlow's CPU kernels compute it, also for NaN.

    They call `std::lower_bound` and `std::upper_bound`, which halve the part that is searched.
    """
    count = a.shape[0]
    if not is_open(count) and not count:
        return jnp.zeros(v.shape, np.int32)
    length = as_value(count, np.dtype(np.int32))

    def halved(_: Value, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + ((high - low) >> 1)
        number = take(a, middle, 0, beyond=_Mode.CLIP)
        beyond = (number < v if side == "left" else ~(v < number)) & (low < high)
        return jnp.where(beyond, middle + 1, low), jnp.where(beyond, high, middle)

    ends = jnp.zeros(v.shape, np.int32), jnp.broadcast_to(length, v.shape)
    steps = 32 - lax.clz(length) if is_open(count) else count.bit_length()
    return lax.fori_loop(0, steps, halved, ends)[0]


@rule("Bucketize")
def _bucketize(x: Array, *, boundaries: list[float]) -> Array:
    edges = np.asarray(boundaries, np.float32)
    wide = lax.convert_element_type(x, np.promote_types(x.dtype, np.float32))
    buckets = jnp.searchsorted(jnp.asarray(edges, wide.dtype), wide, side="right")
    return lax.convert_element_type(buckets, np.int32)
