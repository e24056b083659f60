"""Ops on sparse tensors, which come as indices, values and a shape.

The shape has to be static. An index out of range, such as the -1 of padding rows, has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.matmul import adjoint
from invert.primitives.tf.reduction import limits
from invert.primitives.tf.scatter import scatter_nd
from invert.tf.interpreter.registry import Array, Ints, rule, rules
from invert.tf.values.constants import broadcast_to


def dense(indices: Array, values: Array, shape: Ints) -> Array:
    """The dense array; values at the same index are summed."""
    if not shape:
        return jnp.sum(values, dtype=values.dtype)
    return scatter_nd(lax.scatter_add, lax.full(shape, 0, values.dtype), indices, values)


def _rows(x: Array, indices: Array) -> Array:
    """The elements of x that rows of `indices` select, zeros where out of range."""
    at = jnp.asarray(x).at[tuple(indices[:, i] for i in range(indices.shape[1]))]
    return at.get(mode="fill", fill_value=0, wrap_negative_indices=False)


@rule("SparseTensorDenseMatMul")
def _matmul(
    indices: Array, values: Array, shape: Ints, b: Array, *, adjoint_a: bool, adjoint_b: bool
) -> Array:
    rows, columns = shape
    row, column = indices[:, 0], indices[:, 1]
    if adjoint_a:
        row, column, rows = column, row, columns
        values = jnp.conj(values) if jnp.iscomplexobj(values) else values
    if adjoint_b:
        b = adjoint(b)
    products = values[:, None] * _rows(b, column[:, None])
    return dense(row[:, None], products, (rows, b.shape[1]))


def _cwise(fn: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def rule(indices: Array, values: Array, shape: Ints, y: Array) -> Array:
        return fn(values, _rows(broadcast_to(y, shape), indices))

    return rule


for _name, _fn in (("Add", lax.add), ("Div", lax.div), ("Mul", lax.mul)):
    rules({f"SparseDenseCwise{_name}": _cwise(_fn)})


@rule("SparseTensorDenseAdd")
def _add(indices: Array, values: Array, shape: Ints, y: Array) -> Array:
    return scatter_nd(lax.scatter_add, y, indices, values)


@rule("SparseReduceSum", "SparseReduceMax")
def _reduce(
    indices: Array, values: Array, shape: Ints, axes: Ints, *, op: str, keep_dims: bool
) -> Array:
    reduced = {a % len(shape) for a in axes}
    kept = [i for i in range(len(shape)) if i not in reduced]
    sizes = tuple(shape[i] for i in kept)
    places = indices[:, kept]
    if op == "SparseReduceSum":
        out = dense(places, values, sizes)
    else:
        low = lax.full(sizes, limits(values.dtype).min, values.dtype)
        if sizes:
            out = scatter_nd(lax.scatter_max, low, places, values)
        else:
            out = jnp.max(values, initial=low)
        # The maximum of no values is 0.
        count = dense(places, jnp.ones(values.shape, jnp.int32), sizes)
        out = jnp.where(count > 0, out, np.zeros((), values.dtype))
    if keep_dims:
        out = lax.reshape(out, tuple(1 if i in reduced else n for i, n in enumerate(shape)))
    return out


@rule("SparseSoftmax")
def _softmax(indices: Array, values: Array, shape: Ints) -> Array:
    *sizes, _ = shape
    places = indices[:, :-1]
    low = lax.full(sizes, -np.inf, values.dtype)
    largest = lax.stop_gradient(scatter_nd(lax.scatter_max, low, places, values))
    powers = lax.exp(values - _rows(largest, places)) if math.prod(sizes) else values
    return powers / _rows(dense(places, powers, tuple(sizes)), places)
