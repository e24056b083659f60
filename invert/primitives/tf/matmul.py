"""Products of matrices and of tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, arrays, broadcast_to


@raises_tf("MatMul")
def _matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [product(node, array(values[0]), array(values[1]))]


def product(node: Node, x: Any, y: Any) -> Any:
    """The matrix product with the `transpose_a` and `transpose_b` of a node."""
    contract = (0 if node.attr("transpose_a") else 1, 1 if node.attr("transpose_b") else 0)
    numbers = (((contract[0],), (contract[1],)), ((), ()))
    # The type that `x @ y` asks for.
    return lax.dot_general(x, y, numbers, preferred_element_type=x.dtype)


@raises_tf("SparseMatMul")
def _sparse_matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # Sparse is how many zeros the operands are said to have; the result is float32.
    x, y = (lax.convert_element_type(array(v), np.float32) for v in values)
    return [product(node, x, y)]


@raises_tf("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, y = (
        adjoint(array(v)) if node.attr(a) else array(v)
        for v, a in zip(values, ("adj_x", "adj_y"), strict=True)
    )
    dtype = node.attr("Tout")
    preferred = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
    return [jnp.matmul(x, y, preferred_element_type=preferred)]


def transpose(x: Any) -> Any:
    """The last two axes exchanged."""
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Any) -> Any:
    """The conjugate transpose of the last two axes."""
    swapped = transpose(x)
    return lax.conj(swapped) if jnp.issubdtype(x.dtype, jnp.complexfloating) else swapped


@raises_tf("Einsum")
def _einsum(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    operands = arrays(values)
    equation = node.attr("equation").replace(" ", "")
    inputs, _, output = equation.partition("->")
    repeated = [c for c in dict.fromkeys(output) if c != "." and output.count(c) > 1]
    if not repeated:
        return [jnp.einsum(equation, *operands)]
    # A label that occurs again in the output is a diagonal, which `jnp.einsum` does not write.
    once = "".join(dict.fromkeys(output.replace("...", "."))).replace(".", "...")
    return [_spread(jnp.einsum(f"{inputs}->{once}", *operands), once, output)]


def _spread(x: Any, labels: str, output: str) -> Any:
    """`x`, whose axes are `labels`, with the axes of `output`, in which some labels repeat."""
    ellipsis = x.ndim - len(labels.replace("...", ""))

    def axes(text: str) -> list[str]:
        before, dots, after = text.partition("...")
        return [*before, *(f"...{i}" for i in range(ellipsis if dots else 0)), *after]

    source, target = axes(labels), axes(output)
    sizes = dict(zip(source, x.shape, strict=True))
    shape = tuple(sizes[c] for c in target)
    order = [source.index(c) for c in dict.fromkeys(target)]
    x = lax.transpose(x, order)
    firsts = [target.index(c) for c in dict.fromkeys(target)]
    full = lax.broadcast_in_dim(x, shape, firsts)
    for at, label in enumerate(target):
        if target.index(label) != at:
            i, j = (lax.broadcasted_iota(np.int32, shape, d) for d in (target.index(label), at))
            full = lax.select(lax.eq(i, j), full, lax.full_like(full, 0))
    return full


@raises_tf("TridiagonalMatMul")
def _tridiagonal_matmul(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    above, main, below, x = (array(v) for v in values)
    zero = lax.full((), 0, x.dtype)
    rows = [(0, 0, 0)] * (x.ndim - 2)
    later = lax.pad(x, zero, [*rows, (-1, 1, 0), (0, 0, 0)])
    earlier = lax.pad(x, zero, [*rows, (1, -1, 0), (0, 0, 0)])
    above, main, below = (broadcast_to(transpose(v), x.shape) for v in (above, main, below))
    return [above * later + main * x + below * earlier]
