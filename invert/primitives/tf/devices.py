"""Ops that speak with other devices, where there is one alone, and that tell XLA how arrays lie.

Converted functions run on one device: a group of one has nothing to add up or to gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.primitives.tf.variables import assign, current
from invert.protos.messages import message
from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, Rule, add_table, raises_tf
from invert.tf.values.constants import array, static

_REMEDY = "Convert the function that runs on one device."


def _several(node: Node) -> UnsupportedOpError:
    reason = "communicates with other devices"
    return UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, _REMEDY)])


def _alone(size: int | str) -> Rule:
    """An op on a group of devices.

    **Arguments:**

    - `size`: the input or the attribute that says how large the group is. An input may be a table
        with a row for each group.
    """

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        if isinstance(size, str):
            count = node.attr(size)
        else:
            groups = static(node, values, size)
            count = groups.shape[1] if groups.ndim else int(groups)
        if count != 1:
            raise _several(node)
        return [values[0]]

    return rule


add_table(
    {
        **dict.fromkeys(("XlaAllReduce", "XlaReduceScatter"), _alone(1)),
        **dict.fromkeys(
            ("CollectiveReduceV2", "CollectiveGatherV2", "CollectiveReduceScatterV2",
             "CollectiveAllToAllV2", "CollectiveBcastSendV2"),
            _alone(1),
        ),
        **dict.fromkeys(
            ("CollectiveReduce", "CollectiveGather", "CollectiveBcastSend"), _alone("group_size")
        ),
    }
)  # fmt: skip


@raises_tf("CollectiveAssignGroupV2")
def _assign_group(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    groups, device, base = (static(node, values, i) for i in range(3))
    (where,) = np.nonzero((groups == device).any(1))
    if len(where) != 1:
        raise _several(node)
    # As collective_ops.cc numbers them; XLA has no use for the number of a group.
    key = 0 if ctx.compiled else int(base) + int(where[0])
    return [np.asarray(groups.shape[1], np.int32), np.asarray(key, np.int32)]


@raises_tf("XlaReplicaId")
def _replica(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    ctx.note(f"tf.{node.op} ({node.location}) is zero: the program runs on one device")
    return [np.zeros((), np.int32)]


@raises_tf("ControlTrigger")
def _trigger(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return []


@raises_tf("XlaSetBound")
def _bound(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0]]


@raises_tf("XlaSpmdFullToShardShape", "XlaSpmdShardToFullShape")
def _shard(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, sharding = array(values[0]), message("OpSharding")()
    # Not `node.attr`: it decodes strings as text, and these are bytes.
    sharding.MergeFromString(node.attrs["manual_sharding"].s)
    if math.prod(sharding.tile_assignment_dimensions[: x.ndim]) != 1:
        reason = "divides an array among several devices"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, _REMEDY)])
    return [x]


def _pads(node: Node, rank: int) -> list[int]:
    return list(node.attr("paddings") or (0,) * rank)


def _split(node: Node, x: Any) -> list[Any]:
    """Equal blocks of an array that is padded with zeros behind, in the order of rows."""
    counts = node.attr("num_splits")
    padded = lax.pad(x, np.zeros((), x.dtype), [(0, pad, 0) for pad in _pads(node, x.ndim)])
    blocks = [padded]
    for axis, count in enumerate(counts):
        blocks = [part for block in blocks for part in jnp.split(block, count, axis)]
    return blocks


def _concatenated(node: Node, blocks: Sequence[Any]) -> Any:
    """The array of which `_split` makes blocks."""
    counts, parts = node.attr("num_concats"), [array(b) for b in blocks]
    for axis in reversed(range(len(counts))):
        step = counts[axis]
        parts = [lax.concatenate(parts[i : i + step], axis) for i in range(0, len(parts), step)]
    (whole,) = parts
    pads = _pads(node, whole.ndim)
    return lax.slice(
        whole, (0,) * whole.ndim, [n - p for n, p in zip(whole.shape, pads, strict=True)]
    )


@raises_tf("XlaSplitND")
def _split_nd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return _split(node, array(values[0]))


@raises_tf("ReadVariableXlaSplitND")
def _read_split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return _split(node, current(ctx, values[0]))


@raises_tf("XlaConcatND")
def _concat_nd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_concatenated(node, values)]


@raises_tf("AssignVariableXlaConcatND")
def _assign_concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    assign(ctx, node, values[0], _concatenated(node, values[1:]))
    return []


@raises_tf("XlaRemoveDynamicDimensionSize")
def _fixed_size(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0]]
