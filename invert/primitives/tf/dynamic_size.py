"""Ops whose results have a size that depends on data.

Arrays of a JAX program have fixed sizes. Rows go on with the number that are there
(`tf.values.bounded`), and are an error where that is not enough; on request they are as long as
they can get. Places of a sparse tensor are always so, with -1 in those that TensorFlow's do not
have: updates and conversions of sparse tensors leave these out. See `Config.dynamic_sizes`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._config import Config
from invert._errors import Problem, UnsupportedOpError
from invert.tf.fallback.eager import run_eagerly
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.bounded import BoundedArray
from invert.tf.values.constants import array, ints, is_static, static

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def _problem(node: Node, ids: bool) -> Problem:
    reason = "has a result whose size depends on data"
    remedy = 'Config(dynamic_sizes="pad") makes it as long as it can get, with -1 behind.'
    if not ids:
        remedy = (
            'Config(dynamic_sizes="pad") makes it as long as it can get, with -1 or 0 behind, for '
            "what follows to leave out; or use masks, or tf.where with three arguments."
        )
    return Problem(f"tf.{node.op}", reason, node.location, remedy)


def padded(
    ctx: Context, node: Node, size: Any, what: str, behind: str = "-1", *, ids: bool = True
) -> None:
    """Says in the report that a result is padded.

    **Arguments:**

    - `size`: how long it is.
    - `what`: what it holds.
    - `behind`: what stands in the places too many.
    - `ids`: whether it holds indices or ids, with -1 behind.

    **Raises:** `UnsupportedOpError` where the configuration refuses it.
    """
    allowed = ("ids", "pad") if ids else ("pad",)
    if ctx.config.dynamic_sizes not in allowed:
        raise UnsupportedOpError([_problem(node, ids)])
    ctx.graph.note(
        f"tf.{node.op} ({node.location}) returns as many {what} as there are; here there are "
        f"always {size}, with {behind} in the places too many"
    )


def marks_rows(config: Config, node: Node) -> bool:
    """Whether -1 stands in the result of `node` for rows that are not there."""
    return config.dynamic_sizes == "pad" and not node.attr("pad_to_max_output_size")


@raises_tf("Where", folds_operands=True, pads_rows=marks_rows)
def _where(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if isinstance(values[0], np.ndarray) and values[0].dtype != object:
        return run_eagerly(ctx, node, values)
    x = array(values[0])
    holds = x != np.zeros((), x.dtype)
    found = lax.convert_element_type(places_of(holds), _INT64)
    return [counted(ctx, node, found, jnp.sum(holds, dtype=np.int32), "places", marked=True)]


def places_of(holds: Any) -> Any:
    """Where an array is true, in order, with rows of -1 behind: one row for each element.

    `jnp.nonzero` asks for int64, which there need not be.
    """
    if not holds.ndim:
        return jnp.zeros((1, 0), np.int32)
    flat = lax.reshape(holds, (holds.size,))
    number = jnp.cumsum(flat, dtype=np.int32)
    steps = lax.iota(np.int32, holds.size)
    target = jnp.where(flat, number - np.int32(1), jnp.asarray(holds.size, np.int32))
    found = []
    stride: Any = holds.size
    for n in holds.shape:
        stride = stride // max(n, 1) if isinstance(n, int) else stride // n
        place = steps
        if holds.ndim > 1:
            place = steps // jnp.asarray(stride, np.int32) % jnp.asarray(n, np.int32)
        found.append(lax.full_like(place, -1).at[target].set(place, mode="drop"))
    return jnp.stack(found, -1)


def counted(
    ctx: Context,
    node: Node,
    data: Any,
    count: Any,
    what: str,
    behind: str = "-1",
    *,
    marked: bool = False,
) -> Any:
    """A result with as many rows as there are, as the configuration wants it.

    It goes on with the number of rows that are there, which the caller cannot do without; or it is
    padded on request.

    **Arguments:**

    - `what`, `behind`: as in `padded`.
    - `marked`: whether -1 stands behind the rows that are there.

    **Raises:** `UnsupportedOpError` where the configuration refuses it.
    """
    if ctx.config.dynamic_sizes == "ids":
        return BoundedArray(data, count, _problem(node, False), marked)
    padded(ctx, node, data.shape[0], what, behind, ids=False)
    return data


@raises_tf("XlaSetDynamicDimensionSize")
def _set_size(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, (axis,), size = array(values[0]), ints(static(node, values, 1)), values[2]
    if isinstance(size, np.ndarray):
        return [lax.slice_in_dim(x, 0, *ints(size), axis=axis)]
    if axis:
        reason = "has a result whose size along another axis than the first depends on data"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location, "Use masks.")])
    return [BoundedArray(x, size, _problem(node, False))]


@raises_tf("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", folds_operands=True)
def _unique(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if all(isinstance(v, np.ndarray) and v.dtype != object for v in values):
        return run_eagerly(ctx, node, values)
    x = array(values[0])
    if x.ndim != 1:
        raise UnsupportedOpError([_problem(node, False)])
    signed = jnp.issubdtype(x.dtype, jnp.signedinteger)
    dtype = node.attr("out_idx", _INT32)
    which, first = _firstplaces_of(x)
    # Numbered in the order in which they come first.
    number = jnp.cumsum(first, dtype=dtype) - np.asarray(1, dtype)
    target = jnp.where(first, number, np.asarray(x.size, dtype))
    found = jnp.full_like(x, -1 if signed else 0).at[target].set(x, mode="drop")
    numbers = number[which]
    count = jnp.sum(first, dtype=np.int32)
    behind = "-1" if signed else "0"
    results = [counted(ctx, node, found, count, "elements", behind, marked=signed), numbers]
    if node.op.startswith("UniqueWithCounts"):
        often = jnp.zeros(x.shape, dtype).at[numbers].add(1)
        results.append(counted(ctx, node, often, count, "numbers", "0"))
    return results


def _firstplaces_of(x: Any) -> tuple[Any, Any]:
    """For each element where its equal comes first, and whether it is the first itself."""
    order = jnp.argsort(x, stable=True)
    ordered = x[order]
    new = jnp.concatenate([jnp.ones_like(order[:1], bool), ordered[1:] != ordered[:-1]])
    # The sort is stable: the first of a run comes first in x as well.
    start = lax.cummax(jnp.where(new, jnp.arange(x.size, dtype=order.dtype), 0))
    which = jnp.zeros_like(order).at[order].set(order[start], unique_indices=True)
    return which, jnp.zeros_like(new).at[order].set(new, unique_indices=True)


@raises_tf("ListDiff", folds_operands=True)
def _list_diff(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if all(is_static(v) for v in values):
        return run_eagerly(ctx, node, values)
    x, y = (array(v) for v in values)
    padded(ctx, node, x.size, "elements", "0", ids=False)
    kept = ~jnp.isin(x, y)
    places = places_of(kept)[:, 0]
    found = jnp.where(places < 0, np.zeros((), x.dtype), x[places])
    return [found, lax.convert_element_type(places, node.attr("out_idx", _INT32))]
