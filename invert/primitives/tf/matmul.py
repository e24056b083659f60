"""Products of matrices and of tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.recorded import Recorded
from invert.tf.interpreter.registry import Array, rule
from invert.tf.ops.node import Node
from invert.tf.values.constants import broadcast_to


# Whether an operand is a gradient is a hint for kernels.
@rule("MatMul", ignores=("grad_a", "grad_b"))
def _matmul(a: Array, b: Array, *, node: Node) -> Array:
    return product(node, a, b)


def product(node: Node, x: Array, y: Array) -> Array:
    """The matrix product with the `transpose_a` and `transpose_b` of a node."""
    return _product(x, y, bool(node.attr("transpose_a")), bool(node.attr("transpose_b")))


@Recorded
def _product(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array:
    contract = (0 if transpose_x else 1, 1 if transpose_y else 0)
    numbers = (((contract[0],), (contract[1],)), ((), ()))
    # The type that `x @ y` requests.
    return lax.dot_general(x, y, numbers, preferred_element_type=x.dtype)


# Sparse operands are dense arrays with many zeros; the result is float32.
@rule("SparseMatMul", ignores=("a_is_sparse", "b_is_sparse"))
def _sparse_matmul(a: Array, b: Array, *, node: Node) -> Array:
    x, y = (lax.convert_element_type(v, np.float32) for v in (a, b))
    return product(node, x, y)


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", ignores=("grad_x", "grad_y"))
def _batch_matmul(
    x: Array, y: Array, *, adj_x: bool, adj_y: bool, Tout: np.dtype | None = None
) -> Array:
    x, y = adjoint(x) if adj_x else x, adjoint(y) if adj_y else y
    preferred = None if Tout is None else jax.dtypes.canonicalize_dtype(Tout)
    return jnp.matmul(x, y, preferred_element_type=preferred)


def transpose(x: Array) -> Array:
    """Swap the last two axes."""
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(x: Array) -> Array:
    """The conjugate transpose of the last two axes."""
    swapped = transpose(x)
    return lax.conj(swapped) if jnp.iscomplexobj(x) else swapped


@rule("Einsum")
def _einsum(*operands: Array, equation: str) -> Array:
    equation = equation.replace(" ", "")
    inputs, _, output = equation.partition("->")
    repeated = [c for c in dict.fromkeys(output) if c != "." and output.count(c) > 1]
    if not repeated:
        return jnp.einsum(equation, *operands)
    # A repeated label in the output is a diagonal, which `jnp.einsum` does not support.
    once = "".join(dict.fromkeys(output.replace("...", "."))).replace(".", "...")
    return _spread(jnp.einsum(f"{inputs}->{once}", *operands), once, output)


def _spread(x: Array, labels: str, output: str) -> Array:
    """`x` with axes `labels` expanded to axes `output`, in which some labels repeat."""
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
    for axis, label in enumerate(target):
        if target.index(label) != axis:
            i, j = (lax.broadcasted_iota(np.int32, shape, d) for d in (target.index(label), axis))
            full = lax.select(lax.eq(i, j), full, lax.full_like(full, 0))
    return full


@rule("TridiagonalMatMul")
def _tridiagonal_matmul(above: Array, main: Array, below: Array, x: Array) -> Array:
    zero = lax.full((), 0, x.dtype)
    rows = [(0, 0, 0)] * (x.ndim - 2)
    later = lax.pad(x, zero, [*rows, (-1, 1, 0), (0, 0, 0)])
    earlier = lax.pad(x, zero, [*rows, (1, -1, 0), (0, 0, 0)])
    above, main, below = (broadcast_to(transpose(v), x.shape) for v in (above, main, below))
    return above * later + main * x + below * earlier
