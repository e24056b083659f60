"""Ops that communicate with other devices, and sharding ops for XLA.

Converted functions run on one device: a collective over a group of one is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding

from invert._errors import UnsupportedOpError
from invert.primitives.tf.variables import assign, current
from invert.protos.messages import message
from invert.protos.types import OpSharding
from invert.stablehlo.ops import shardings
from invert.tf.interpreter import rows
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Static, Value, rule
from invert.tf.ops.node import Node

_REMEDY = "Convert the function that runs on one device."


def _several(node: Node) -> UnsupportedOpError:
    return node.error("communicates with other devices", _REMEDY)


# Attributes about how devices find each other and combine their values.
_COMBINES = (
    "merge_op", "final_op", "reduce_op", "mode", "group_key", "instance_key", "shape",
    "subdiv_offsets", "wait_for", "communication_hint", "timeout_seconds", "is_stateless",
    "max_subdivs_per_device",
)  # fmt: skip


@rule(
    "XlaAllReduce",
    "XlaReduceScatter",
    *(f"Collective{kind}V2" for kind in
      ("Reduce", "Gather", "ReduceScatter", "AllToAll", "BcastSend")),
    ignores=_COMBINES,
)  # fmt: skip
def _collective(x: Value, groups: Static, *others: Value, node: Node) -> Value:
    """A collective; one operand is the group size, or a table of groups."""
    if (groups.shape[1] if groups.ndim else int(groups)) != 1:
        raise _several(node)
    return x


@rule("CollectiveReduce", "CollectiveGather", "CollectiveBcastSend", ignores=_COMBINES)
def _collective_v1(x: Value, *, node: Node, group_size: int) -> Value:
    if group_size != 1:
        raise _several(node)
    return x


@rule("CollectiveAssignGroupV2")
def _assign_group(
    groups: Static, device: Static, base: Static, *, ctx: Context, node: Node
) -> tuple[np.ndarray, np.ndarray]:
    (rows,) = np.nonzero((groups == device).any(1))
    if len(rows) != 1:
        raise _several(node)
    # Numbered as in collective_ops.cc; XLA ignores the number of a group.
    key = 0 if ctx.compiled else int(base) + int(rows[0])
    return np.asarray(groups.shape[1], np.int32), np.asarray(key, np.int32)


@rule("XlaReplicaId")
def _replica(*, ctx: Context, node: Node) -> np.ndarray:
    ctx.graph.note(f"tf.{node.op} ({node.location}) is zero, since the program runs on one device")
    return np.zeros((), np.int32)


@rule("ControlTrigger")
def _trigger() -> None:
    return None


@rule("XlaSetBound", "XlaRemoveDynamicDimensionSize")
def _unchanged(x: Value, bound: Value) -> Value:
    return x


@rule("XlaSharding", ignores=("sharding", "unspecified_dims"), rows=rows.unchanged)
def _sharding(x: Array, *, ctx: Context, node: Node) -> Array:
    # Not `node.attr`: it decodes strings as text, and these are bytes.
    held = node.attrs.get("_XlaShardingV2", node.attrs.get("_XlaSharding"))
    data = node.attrs["sharding"].s or (held.s if held is not None else b"")
    layout = shardings.tiling(shardings.text_of(data))
    if layout is None or layout.manual is None:
        return x
    for mesh in _meshes(ctx, layout):
        unspecified = node.attr("unspecified_dims", ())
        if (spec := shardings.tiled_spec(mesh, layout, unspecified)) is not None:
            whole = shardings.of_rank(spec, x.ndim)
            return lax.with_sharding_constraint(x, NamedSharding(mesh, whole))
    return x


def _meshes(ctx: Context, layout: shardings.Tiling) -> Iterator[AbstractMesh]:
    """Meshes for a sharding: those of the other modules, otherwise its own."""
    for other in ctx.graph.main.nodes:
        if other.op == "XlaCallModule":
            devices = ctx.graph.program(other).devices
            yield from (*devices.named.values(), *filter(None, [devices.tiles]))
    strides = [s for dim in layout.dims or () for s in dim]
    if strides:
        made = shardings.Layout(layout.size)
        made.add(tuple(strides))
        if (mesh := made.mesh()) is not None:
            yield mesh


@rule(
    "XlaSpmdFullToShardShape",
    "XlaSpmdShardToFullShape",
    ignores=("manual_sharding", "full_shape", "dim", "unspecified_dims"),
)
def _shard(x: Array, *, node: Node) -> Array:
    sharding = message(OpSharding)()
    # Not `node.attr`: it decodes strings as text, and these are bytes.
    sharding.MergeFromString(node.attrs["manual_sharding"].s)
    if math.prod(sharding.tile_assignment_dimensions[: x.ndim]) != 1:
        raise node.error("divides an array among several devices", _REMEDY)
    return x


@rule("XlaSplitND")
def _split(x: Array, *, num_splits: list[int], paddings: list[int]) -> list[Array]:
    """Equal blocks of an array padded with zeros, in row-major order."""
    pads = paddings or (0,) * x.ndim
    blocks = [lax.pad(x, np.zeros((), x.dtype), [(0, pad, 0) for pad in pads])]
    for axis, count in enumerate(num_splits):
        blocks = [part for block in blocks for part in jnp.split(block, count, axis)]
    return blocks


@rule("ReadVariableXlaSplitND")
def _read_split(
    resource: Value, *, ctx: Context, num_splits: list[int], paddings: list[int]
) -> list[Array]:
    return _split(current(ctx, resource), num_splits=num_splits, paddings=paddings)


@rule("XlaConcatND")
def _concat(*blocks: Array, num_concats: list[int], paddings: list[int]) -> Array:
    """The inverse of `_split`: joins `blocks` into an array."""
    parts: Sequence[Array] = blocks
    for axis in reversed(range(len(num_concats))):
        step = num_concats[axis]
        parts = [lax.concatenate(parts[i : i + step], axis) for i in range(0, len(parts), step)]
    (x,) = parts
    pads = paddings or (0,) * x.ndim
    return lax.slice(x, (0,) * x.ndim, [n - p for n, p in zip(x.shape, pads, strict=True)])


@rule("AssignVariableXlaConcatND")
def _assign_concat(
    resource: Value,
    *blocks: Array,
    ctx: Context,
    node: Node,
    num_concats: list[int],
    paddings: list[int],
) -> None:
    assign(ctx, node, resource, _concat(*blocks, num_concats=num_concats, paddings=paddings))
