"""Ops that look elements up by index.

TensorFlow raises on the CPU where an index is out of range, negative ones too; compiled by XLA it
takes the nearest row. So does a JAX program, unless indices may be -1 for rows that there are none
of (see `dynamic_size`): those give zeros, as TensorFlow does on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, as_sizes, axis_of, ints, is_static, static

# Indices known to be in range need no guard. Checking more of them takes longer than it saves.
_MAX_CHECKED = 1 << 16


_Mode = lax.GatherScatterMode


def _mode(indices: Any, sizes: tuple[Any, ...], else_: _Mode = _Mode.FILL_OR_DROP) -> _Mode:
    """`indices` hold one column for each of `sizes` in their last axis."""
    if (
        isinstance(indices, np.ndarray)
        and indices.size <= _MAX_CHECKED
        and all(isinstance(n, int) for n in sizes)
        and bool(np.all((indices >= 0) & (indices < np.asarray(sizes))))
    ):
        return _Mode.PROMISE_IN_BOUNDS
    return else_


def _beyond(ctx: Context) -> _Mode:
    """What indices out of range give."""
    return _Mode.FILL_OR_DROP if ctx.pads_rows else _Mode.CLIP


def take(
    x: Any, indices: Any, axis: int, batch: int = 0, beyond: _Mode = _Mode.FILL_OR_DROP
) -> Any:
    """Picks along `axis`; the first `batch` axes of both go together.

    An index out of range gives zeros, unless `beyond` says otherwise.
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


def narrow(indices: Any, sizes: Sequence[Any]) -> Any:
    """Indices of 64 bits as those of 32 where these reach, for lookups that clip.

    JAX 0.10 cannot transpose such a lookup with 64 bits in a session of 32.
    """
    small = all(isinstance(n, int) and n <= np.iinfo(np.int32).max for n in sizes)
    wide = np.dtype(indices.dtype) in (np.int64, np.uint32, np.uint64)
    if not (small and wide):
        return indices
    if isinstance(indices, np.ndarray):
        return indices.astype(np.int32)
    return lax.convert_element_type(indices, np.int32)


def _gather_mode(mode: _Mode) -> dict[str, Any]:
    return {"mode": mode, "fill_value": 0 if mode == _Mode.FILL_OR_DROP else None}


@raises_tf("Gather", "GatherV2")
def _gather(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis = ints(static(node, values, 2))[0] if node.op == "GatherV2" else 0
    axis = axis_of(axis, np.ndim(values[0]))
    batch, which = node.attr("batch_dims", 0), values[1]
    batch += np.ndim(which) if batch < 0 else 0
    known = isinstance(which, np.ndarray) and which.dtype != object
    if is_static(values[0]) and known and not batch:
        return [as_sizes(np.take(values[0], which, axis), node.attr("Tparams"))]
    x = array(values[0])
    if known and which.ndim == 0 and isinstance(x.shape[axis], int) and 0 <= which < x.shape[axis]:
        return [lax.index_in_dim(x, int(which), axis, keepdims=False)]
    indices = which if known else array(which)
    if ctx.pads_rows:
        return [take(x, indices, axis, batch)]
    indices = narrow(indices, (x.shape[axis],))
    if not batch:
        # As a range where they are one: places of a sequence, which is of another length elsewhere.
        return [jnp.take(x, array(indices), axis=axis, mode="clip")]
    if np.ndim(indices) != batch + 1:
        return [take(x, indices, axis, batch, _Mode.CLIP)]
    rows = [d for d in range(x.ndim) if d >= batch and d != axis]
    return [jnp.take_along_axis(x, jnp.expand_dims(indices, rows), axis=axis, mode="clip")]


@raises_tf("GatherNd")
def _gather_nd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, which = array(values[0]), array(values[1])
    depth, rank = which.shape[-1], which.ndim - 1
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(rank, rank + x.ndim - depth)),
        collapsed_slice_dims=tuple(range(depth)),
        start_index_map=tuple(range(depth)),
    )
    sizes = (*(1,) * depth, *x.shape[depth:])
    mode = _gather_mode(_mode(values[1], x.shape[:depth], _beyond(ctx)))
    which = which if ctx.pads_rows else narrow(which, x.shape[:depth])
    return [lax.gather(x, which, numbers, sizes, **mode)]


@raises_tf("DynamicPartition")
def _dynamic_partition(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    part = _known(node, values[1], "the sizes of its results depend on data")
    x = array(values[0])
    flat = lax.reshape(x, (part.size, *x.shape[part.ndim :]))
    where = [np.flatnonzero(np.ravel(part) == i) for i in range(node.attr("num_partitions"))]
    return [take(flat, i.astype(np.int32), 0) for i in where]


def _known(node: Node, value: Any, reason: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    remedy = "Use masks, tf.where with three arguments, or a segment op with a fixed size."
    raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, remedy)])


@raises_tf("DynamicStitch", "ParallelDynamicStitch")
def _dynamic_stitch(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    half = len(values) // 2
    reason = "the size of its result depends on data"
    places = [_known(node, v, reason) for v in values[:half]]
    parts = values[half:]
    shape = np.shape(parts[0])[places[0].ndim :]
    flat = np.concatenate([np.ravel(p) for p in places]).astype(np.int64)
    size = int(flat.max()) + 1 if flat.size else 0
    # Of those that go to one place the last stays.
    source = np.full(size, -1)
    source[flat] = np.arange(flat.size)
    if all(is_static(p) for p in parts):
        data = np.concatenate([p.reshape(-1, *shape) for p in parts])
        return [np.where(_column(source < 0, data), 0, data[source]).astype(data.dtype)]
    dtype = node.attr("T")
    pairs = zip(parts, places, strict=True)
    rows = [lax.reshape(array(part, dtype), (p.size, *shape)) for part, p in pairs]
    data = lax.concatenate(rows, 0)
    if np.array_equal(source, np.arange(flat.size)):
        return [data]
    # A place that nothing goes to holds 0: it asks for a row out of range.
    return [take(data, np.where(source < 0, flat.size, source).astype(np.int32), 0)]


def _column(mask: np.ndarray, data: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (data.ndim - 1))


@raises_tf("LowerBound", "UpperBound")
def _bound(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    side = "left" if node.op == "LowerBound" else "right"
    rows, wanted = (array(v) for v in values)
    found = jax.vmap(lambda a, v: jnp.searchsorted(a, v, side=side))(rows, wanted)
    return [lax.convert_element_type(found, node.attr("out_type", np.dtype(np.int32)))]


@raises_tf("Bucketize")
def _bucketize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    edges = np.asarray(node.attr("boundaries"), np.float32)
    wide = lax.convert_element_type(x, np.promote_types(x.dtype, np.float32))
    found = jnp.searchsorted(jnp.asarray(edges, wide.dtype), wide, side="right")
    return [lax.convert_element_type(found, np.int32)]
