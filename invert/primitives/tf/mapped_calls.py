"""Ops that call a function per row, repeatedly, in batches or on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from invert.tf.control.branch_types import strong
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints


def _without_effects(
    ctx: Context, node: Node, function: str
) -> Callable[[Sequence[Value]], list[Array]]:
    """The library function `function` as a function of arrays.

    **Raises:** `UnsupportedOpError` if it changes variables, or draws from the key of the call.
    """

    def call(values: Sequence[Value]) -> list[Array]:
        child = ctx.on(dict(ctx.state))
        results = child.call(function, values)
        if any(child.state.get(r) is not old for r, old in ctx.state.items()):
            raise node.error(
                f"calls the function {function!r}, which changes variables",
                "Change the variables outside of it.",
            )
        return [strong(array(v)) for v in results]

    return call


@rule("MapDefun", ignores=("output_shapes", "max_intra_op_parallelism"))
def _map_defun(
    *operands: Value, ctx: Context, node: Node, f: str, Targuments: list[np.dtype]
) -> list[Array]:
    """A function of rows of the first operands, and of the other operands as a whole."""
    count = len(Targuments)
    rows, captured = [array(v) for v in operands[:count]], operands[count:]
    call = _without_effects(ctx, node, f)
    return jax.vmap(lambda *row: call([*row, *captured]))(*rows)


@rule("For")
def _for(
    start: Value, limit: Value, delta: Value, *carry: Array, ctx: Context, node: Node, body: str
) -> list[Array]:
    """A function of a counter and of the results of the previous step."""
    call = _without_effects(ctx, node, body)
    bounds = start, limit, delta
    if all(isinstance(v, np.ndarray) for v in bounds):
        start, limit, delta = (ints(v)[0] for v in bounds)
        trip_count: Array = len(range(start, limit, delta))
    else:
        start, limit, delta = (array(v) for v in bounds)
        trip_count = lax.max(-((start - limit) // delta), np.int32(0))

    def step(i: Array, carry: Sequence[Array]) -> list[Array]:
        return call([start + i * delta, *carry])

    return lax.fori_loop(0, trip_count, step, [strong(v) for v in carry])


# How a server collects the examples of a batch.
_BATCHING = (
    "num_batch_threads", "max_batch_size", "batch_timeout_micros", "max_enqueued_batches",
    "allowed_batch_sizes", "container", "shared_name", "batching_queue",
    "low_priority_max_batch_size", "low_priority_batch_timeout_micros",
    "low_priority_allowed_batch_sizes", "low_priority_max_enqueued_batches",
    "mixed_priority_policy", "batch_padding_policy", "enable_large_batch_splitting",
)  # fmt: skip


@rule("BatchFunction", ignores=_BATCHING)
def _batch_function(*operands: Value, ctx: Context, f: str) -> list[Value]:
    return ctx.call(f, operands)


@rule("RemoteCall")
def _remote_call(target: Value, *args: Value, ctx: Context, f: str) -> list[Value]:
    return ctx.call(f, args)
