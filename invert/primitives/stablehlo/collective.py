"""Collectives of a program for one device. Groups of one leave values as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises


def _alone(op: Op, name: str = "replica_groups") -> None:
    """Reads the groups; several devices in one have no counterpart outside of `shard_map`."""
    groups = attributes.dense_int_rows(op[name])
    for other in list(op.unread):
        op.get(other)
    if any(len(g) > 1 for g in groups):
        raise UnsupportedOpError(
            [
                Problem(
                    op.name,
                    f"it communicates among {max(map(len, groups))} devices, which a program "
                    "without a device mesh cannot",
                    op.location,
                    "Export the program for one device, or before partitioning.",
                )
            ]
        )


def _identity(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    _alone(op)
    return list(operands)


raises(
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
    "stablehlo.cross-replica-sum",
    "stablehlo.reduce_scatter",
)(_identity)


@raises("stablehlo.collective_permute")
def _collective_permute(ctx: Context, op: Op, *operands: Value) -> Any:
    pairs = attributes.dense_int_rows(op["source_target_pairs"])
    for other in list(op.unread):
        op.get(other)
    if (0, 0) in pairs:
        return list(operands)
    if not pairs:  # nobody sends to this device: zeros, by the specification
        return [jnp.zeros_like(x) for x in operands]
    _alone(op, "source_target_pairs")
    return list(operands)


@raises("stablehlo.partition_id", "stablehlo.replica_id")
def _identifier(ctx: Context, op: Op) -> Value:
    return lax.full((), np.uint32(0))


@raises("sdy.all_gather", "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all")
def _resharding(ctx: Context, op: Op, x: Value) -> Value:
    """They change where values are, not the values, seen from outside of the mesh."""
    for other in list(op.unread):
        op.get(other)
    return x


@raises("sdy.manual_computation")
def _manual_computation(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    axes = str(op["manual_axes"])
    for other in list(op.unread):
        op.get(other)
    body = op.regions[0]
    local = [a.type for a in body.blocks[0].arguments]
    if any(attributes.aval(t).shape != x.shape for t, x in zip(local, operands, strict=True)):
        raise UnsupportedOpError(
            [
                Problem(
                    op.name,
                    f"its body runs on shards over the mesh axes {axes}",
                    op.location,
                    "Export the program for one device.",
                )
            ]
        )
    return ctx.region(body)(*operands)


@raises("sdy.named_computation")
def _named_computation(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    for other in list(op.unread):
        op.get(other)
    return ctx.region(op.regions[0])(*operands)
