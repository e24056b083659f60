"""Ops on sparse tensors, which come as indices, values and a shape.

The shape has to be known. An index out of range, such as the -1 of padded ones, counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import adjoint
from invert.primitives.tf.scatter import scatter_nd
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, static


def dense(indices: Any, values: Any, shape: tuple[Any, ...]) -> Any:
    """The dense array; what is there twice is added up."""
    if not shape:
        return jnp.sum(values, dtype=values.dtype)
    return scatter_nd(lax.scatter_add, lax.full(shape, 0, values.dtype), indices, values)


def _rows(x: Any, indices: Any) -> Any:
    """The elements of x that rows of `indices` point at, zeros where out of range."""
    at = jnp.asarray(x).at[tuple(indices[:, i] for i in range(indices.shape[1]))]
    return at.get(mode="fill", fill_value=0, wrap_negative_indices=False)


@raises_tf("SparseTensorDenseMatMul")
def _matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, weights, b = array(values[0]), array(values[1]), array(values[3])
    rows, columns = ints(static(node, values, 2))
    row, column = indices[:, 0], indices[:, 1]
    if node.attr("adjoint_a", False):
        row, column, rows = column, row, columns
        weights = jnp.conj(weights) if jnp.iscomplexobj(weights) else weights
    if node.attr("adjoint_b", False):
        b = adjoint(b)
    picked = weights[:, None] * _rows(b, column[:, None])
    return [dense(row[:, None], picked, (rows, b.shape[1]))]


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lax.add,
    "Div": lax.div,
    "Mul": lax.mul,
}


@raises_tf(*(f"SparseDenseCwise{kind}" for kind in _COMBINE))
def _cwise(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x, y = array(values[0]), array(values[1]), array(values[3])
    shape = ints(static(node, values, 2))
    other = _rows(broadcast_to(y, shape), indices)
    return [_COMBINE[node.op.removeprefix("SparseDenseCwise")](x, other)]


@raises_tf("SparseTensorDenseAdd")
def _add(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x, y = array(values[0]), array(values[1]), array(values[3])
    return [scatter_nd(lax.scatter_add, y, indices, x)]


@raises_tf("SparseReduceSum", "SparseReduceMax")
def _reduce(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x = array(values[0]), array(values[1])
    shape = ints(static(node, values, 2))
    axes = {a % len(shape) for a in ints(static(node, values, 3))}
    kept = [i for i in range(len(shape)) if i not in axes]
    sizes = tuple(shape[i] for i in kept)
    places = indices[:, kept]
    if node.op == "SparseReduceSum":
        out = dense(places, x, sizes)
    else:
        kind = jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo
        low = lax.full(sizes, kind(x.dtype).min, x.dtype)
        out = scatter_nd(lax.scatter_max, low, places, x) if sizes else jnp.max(x, initial=low)
        # Nothing is 0.
        count = dense(places, jnp.ones(x.shape, jnp.int32), sizes)
        out = jnp.where(count > 0, out, np.zeros((), x.dtype))
    if node.attr("keep_dims", False):
        out = lax.reshape(out, tuple(1 if i in axes else n for i, n in enumerate(shape)))
    return [out]


@raises_tf("SparseSoftmax")
def _softmax(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    indices, x = array(values[0]), array(values[1])
    shape = ints(static(node, values, 2))[:-1]
    places, count = indices[:, :-1], math.prod(shape)
    low = lax.full(shape, -np.inf, x.dtype)
    largest = lax.stop_gradient(scatter_nd(lax.scatter_max, low, places, x))
    grown = lax.exp(x - _rows(largest, places)) if count else x
    return [grown / _rows(dense(places, grown, shape), places)]
