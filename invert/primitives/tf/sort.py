"""Sorting and what is the largest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, raises_tf
from invert.tf.values.constants import array, axis_of, broadcast_to, ints, static


@raises_tf("TopKV2")
def _top_k(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (k,) = ints(static(node, values, 1))
    found, where = lax.top_k(array(values[0]), k)
    return [found, lax.convert_element_type(where, node.attr("index_type", np.dtype(np.int32)))]


@raises_tf("ApproxTopK")
def _approx_top_k(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """The exact answer, as TensorFlow gives everywhere but on a TPU. Of equal numbers it takes the
    first; `lax.approx_max_k` leaves that open, and on the CPU takes any in half precision."""
    x = array(values[0])
    axis = axis_of(node.attr("reduction_dimension", -1), x.ndim)
    options = {
        "recall_target": node.attr("recall_target", 0.95),
        "reduction_input_size_override": node.attr("reduction_input_size_override", -1),
        "aggregate_to_topk": node.attr("aggregate_to_topk", True),
    }
    k, largest = node.attr("k"), node.attr("is_max_k", True)
    if not options["aggregate_to_topk"]:  # as many candidates as the algorithm would keep
        k = jax.eval_shape(lambda x: lax.approx_max_k(x, k, axis, **options), x)[0].shape[axis]
    rows = jnp.moveaxis(x, axis, -1)
    found, where = lax.top_k(rows if largest else -rows, k)
    return [jnp.moveaxis(v, -1, axis) for v in (found if largest else -found, where)]


@raises_tf("NthElement")
def _nth_element(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, n = array(values[0]), values[1]
    reverse = node.attr("reverse", False)
    if not isinstance(n, np.ndarray):
        n = x.shape[-1] - 1 - n if reverse else n
        return [lax.dynamic_index_in_dim(jnp.sort(x, -1), n, x.ndim - 1, keepdims=False)]
    # Where it is known, the elements up to it are enough, from the end that is nearer. The least of
    # them: where XLA sees that one alone is read, it sorts everything.
    from_top = int(n) if reverse else x.shape[-1] - 1 - int(n)
    if 2 * from_top < x.shape[-1]:
        return [jnp.min(lax.top_k(x, from_top + 1)[0], -1)]
    flip = lax.neg if jnp.issubdtype(x.dtype, jnp.floating) else lax.bitwise_not
    return [flip(jnp.min(lax.top_k(flip(x), x.shape[-1] - from_top)[0], -1))]


@raises_tf("InTopK", "InTopKV2")
def _in_top_k(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    scores, targets = array(values[0]), array(values[1])
    k = node.attr("k") if node.op == "InTopK" else array(values[2])
    classes = scores.shape[-1]
    known = (targets >= 0) & (targets < classes) & jnp.all(jnp.isfinite(scores), -1)
    own = jnp.take_along_axis(scores, jnp.clip(targets, 0, classes - 1)[:, None], 1)
    ahead = jnp.sum(scores > broadcast_to(own, scores.shape), -1)
    return [known & (ahead < k)]


@raises_tf("ArgMax", "ArgMin")
def _arg(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    axis = axis_of(ints(static(node, values, 1))[0], x.ndim)
    best, worst = (lax.argmax, -np.inf) if node.op == "ArgMax" else (lax.argmin, np.inf)
    if jnp.issubdtype(x.dtype, jnp.floating):
        # NaN is never larger nor smaller in TensorFlow.
        x = lax.select(lax.ne(x, x), lax.full_like(x, worst), x)
    dtype = node.attr("output_type", np.dtype(np.int64))
    if jnp.issubdtype(x.dtype, jnp.bool_):
        x = lax.convert_element_type(x, np.int32)
    return [lax.convert_element_type(best(x, axis, np.int32), dtype)]
