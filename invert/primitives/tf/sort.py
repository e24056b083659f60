"""Sorting, and the largest elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, Value, rule
from invert.tf.values.constants import array, axis_of, broadcast_to


@rule("TopKV2", ignores=("sorted",))
def _top_k(x: Array, k: Int, *, index_type: np.dtype) -> tuple[Array, Array]:
    values, indices = lax.top_k(x, k)
    return values, lax.convert_element_type(indices, index_type)


@rule("ApproxTopK")
def _approx_top_k(
    x: Array,
    *,
    k: int,
    reduction_dimension: int,
    recall_target: float,
    is_max_k: bool,
    reduction_input_size_override: int,
    aggregate_to_topk: bool,
) -> list[Array]:
    """The exact result, as in TensorFlow except on a TPU.

    Among equal numbers it takes the first; `lax.approx_max_k` does not specify this, and on the CPU
    takes any in half precision.
    """
    axis = axis_of(reduction_dimension, x.ndim)
    if not aggregate_to_topk:  # as many candidates as the approximate algorithm would keep

        def candidates(x: Array) -> Array:
            return lax.approx_max_k(
                x,
                k,
                axis,
                recall_target=recall_target,
                reduction_input_size_override=reduction_input_size_override,
                aggregate_to_topk=False,
            )[0]

        k = jax.eval_shape(candidates, x).shape[axis]
    rows = jnp.moveaxis(x, axis, -1)
    values, indices = lax.top_k(rows if is_max_k else -rows, k)
    return [jnp.moveaxis(v, -1, axis) for v in (values if is_max_k else -values, indices)]


@rule("NthElement")
def _nth_element(x: Array, n: Value, *, reverse: bool) -> Array:
    if not isinstance(n, np.ndarray):
        n = x.shape[-1] - 1 - n if reverse else n
        return lax.dynamic_index_in_dim(jnp.sort(x, -1), n, x.ndim - 1, keepdims=False)
    # If `n` is known, the elements up to it suffice, from the nearer end. Their minimum is used,
    # since XLA sorts everything if it sees that only one element is read.
    from_top = int(n) if reverse else x.shape[-1] - 1 - int(n)
    if 2 * from_top < x.shape[-1]:
        return jnp.min(lax.top_k(x, from_top + 1)[0], -1)
    flip = lax.neg if jnp.issubdtype(x.dtype, jnp.floating) else lax.bitwise_not
    return flip(jnp.min(lax.top_k(flip(x), x.shape[-1] - from_top)[0], -1))


@rule("InTopK")
def _in_top_k(predictions: Array, targets: Array, *, k: int) -> Array:
    return _in_top_k_v2(predictions, targets, array(np.asarray(k, targets.dtype)))


@rule("InTopKV2")
def _in_top_k_v2(predictions: Array, targets: Array, k: Array) -> Array:
    classes = predictions.shape[-1]
    known = (targets >= 0) & (targets < classes) & jnp.all(jnp.isfinite(predictions), -1)
    own = jnp.take_along_axis(predictions, jnp.clip(targets, 0, classes - 1)[:, None], 1)
    ahead = jnp.sum(predictions > broadcast_to(own, predictions.shape), -1)
    return known & (ahead < k)


@rule("ArgMax", "ArgMin")
def _arg(x: Array, axis: Int, *, op: str, output_type: np.dtype) -> Array:
    axis = axis_of(axis, x.ndim)
    best, worst = (lax.argmax, -np.inf) if op == "ArgMax" else (lax.argmin, np.inf)
    if jnp.issubdtype(x.dtype, jnp.floating):
        # NaN is neither larger nor smaller in TensorFlow.
        x = lax.select(lax.ne(x, x), lax.full_like(x, worst), x)
    if jnp.issubdtype(x.dtype, jnp.bool_):
        x = lax.convert_element_type(x, np.int32)
    return lax.convert_element_type(best(x, axis, np.int32), output_type)
