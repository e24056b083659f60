"""Parts of variables: gathers, scatters and strided assignments.

The ops on references of TensorFlow 1 take the same rules; they return the variable besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.gather import narrow
from invert.primitives.tf.slicing import index_of, put
from invert.primitives.tf.variables import assign, current
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, add_table, raises_tf
from invert.tf.ops.node import Node
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, broadcast_to

# TensorFlow fails on an index out of range on CPUs and drops it on GPUs.
_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


def _divided(at: Any, value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return at.divide(value, **_DROP)
    # Integers are cut towards zero, by one divisor after another as by their product.
    return lax.div(at.array, jnp.ones_like(at.array).at[at.index].multiply(value, **_DROP))


# Updates of rows, by the name of the op behind "ResourceScatter" or "Scatter".
_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "Update": lambda at, value: at.set(value, **_DROP),
    "Add": lambda at, value: at.add(value, **_DROP),
    "Sub": lambda at, value: at.add(-value, **_DROP),
    "Mul": lambda at, value: at.multiply(value, **_DROP),
    "Div": _divided,
    "Min": lambda at, value: at.min(value, **_DROP),
    "Max": lambda at, value: at.max(value, **_DROP),
}


def _result(node: Node, resource: Any) -> list[Any]:
    return [] if node.op.startswith("Resource") else [resource]


def _scatter(update: Callable[[Any, Any], Any]) -> Rule:
    """Updates of whole rows, `ref[indices, ...] = value`."""

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        old, indices = current(ctx, values[0]), array(values[1])
        shape = (*np.shape(indices), *np.shape(old)[1:])
        value = broadcast_to(array(values[2]), shape)
        assign(ctx, node, values[0], update(jnp.asarray(old).at[indices], value))
        return _result(node, values[0])

    return rule


def _scatter_nd(update: Callable[[Any, Any], Any]) -> Rule:
    """Updates of elements or blocks, whose indices are vectors."""

    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        old, indices, value = current(ctx, values[0]), array(values[1]), array(values[2])
        index = tuple(indices[..., i] for i in range(np.shape(indices)[-1]))
        assign(ctx, node, values[0], update(jnp.asarray(old).at[index], value))
        return _result(node, values[0])

    return rule


add_table(
    {
        f"{prefix}Scatter{kind}": _scatter(fn)
        for prefix in ("Resource", "")
        for kind, fn in _UPDATES.items()
    }
)
add_table(
    {
        f"{prefix}ScatterNd{kind}": _scatter_nd(_UPDATES[kind])
        for prefix in ("Resource", "")
        for kind in ("Update", "Add", "Sub", "Min", "Max")
    }
)


@raises_tf("ResourceGather", effect="reads")
def _gather(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    rows, indices = current(ctx, values[0]), array(values[1])
    indices = narrow(indices, np.shape(rows))
    batch = node.attr("batch_dims", 0)
    if not batch:
        return [jnp.take(rows, indices, axis=0, mode="clip")]
    rank = np.ndim(indices)
    places = [
        np.arange(rows.shape[i]).reshape([-1 if i == j else 1 for j in range(rank)])
        for i in range(batch)
    ]
    return [rows.at[(*places, indices)].get(mode="clip", wrap_negative_indices=False)]


@raises_tf("ResourceGatherNd", effect="reads")
def _gather_nd(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    rows, indices = jnp.asarray(current(ctx, values[0])), array(values[1])
    indices = narrow(indices, rows.shape)
    index = tuple(indices[..., i] for i in range(np.shape(indices)[-1]))
    return [rows.at[index].get(mode="clip", wrap_negative_indices=False)]


@raises_tf("ResourceStridedSliceAssign", "StridedSliceAssign")
def _strided_slice_assign(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    old = jnp.asarray(current(ctx, values[0]))
    index = index_of(ctx, node, values[1:4], old.ndim)
    assign(ctx, node, values[0], put(ctx, node, old, index, values[4]))
    return _result(node, values[0])


@raises_tf("ResourceCountUpTo", "CountUpTo")
def _count_up_to(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    old = jnp.asarray(current(ctx, values[0]))
    assign(ctx, node, values[0], old + np.asarray(1, old.dtype))
    return [old]


@raises_tf("Assign", "AssignAdd", "AssignSub")
def _assign_reference(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    value = array(values[1])
    if node.op != "Assign":
        old = current(ctx, values[0])
        value = old + value if node.op == "AssignAdd" else old - value
    if isinstance(values[0], Resource) and values[0] not in ctx.state:
        ctx.write(values[0], value)
    else:
        assign(ctx, node, values[0], value)
    return [values[0]]
