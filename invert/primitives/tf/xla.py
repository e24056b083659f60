"""Ops that represent one XLA op, which jax2tf emitted before StableHLO.

Each corresponds to the `jax.lax` primitive of its name. Dimension numbers are messages in an
attribute.
"""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.primitives.sorting import sorted_by, total_order_key
from invert.primitives.stablehlo.indexing import gather
from invert.primitives.stablehlo.linear import conv_numbers
from invert.primitives.tf.matmul import adjoint
from invert.protos.messages import M, parse
from invert.protos.types import (
    ConvolutionDimensionNumbers,
    DotDimensionNumbers,
    GatherDimensionNumbers,
    PrecisionConfig,
)
from invert.tf.interpreter.registry import Array, Int, Ints, rule
from invert.tf.ops.node import Node


def message_of(node: Node, attribute: str, kind: type[M]) -> M:
    """The message in an attribute, which the binder passes as text."""
    data = node.attr(attribute).encode("utf-8", "surrogateescape")
    return parse(kind, data, f"the attribute {attribute!r} of tf.{node.op} ({node.location})")


_PRECISIONS = (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)


def _precision(node: Node) -> lax.PrecisionLike:
    """The `precision` argument of `lax`; `None` for the default."""
    config = message_of(node, "precision_config", PrecisionConfig)
    precisions = list(config.operand_precision)
    if config.algorithm or any(not 0 <= p < len(_PRECISIONS) for p in precisions):
        raise node.error("uses a precision that JAX lacks", "Export it without a precision.")
    if not any(precisions):
        return None
    return cast(lax.PrecisionLike, tuple(_PRECISIONS[p] for p in precisions))


def _preferred(dtype: np.dtype | None) -> np.dtype | None:
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


@rule("XlaDot", "XlaDotV2", ignores=("dimension_numbers", "precision_config"))
def _dot(
    lhs: Array, rhs: Array, *, node: Node, preferred_element_type: np.dtype | None = None
) -> Array:
    d = message_of(node, "dimension_numbers", DotDimensionNumbers)
    contracting = (tuple(d.lhs_contracting_dimensions), tuple(d.rhs_contracting_dimensions))
    batch = (tuple(d.lhs_batch_dimensions), tuple(d.rhs_batch_dimensions))
    preferred = _preferred(preferred_element_type)
    return lax.dot_general(
        lhs,
        rhs,
        (contracting, batch),
        precision=_precision(node),
        preferred_element_type=preferred,
    )


@rule("XlaConv", "XlaConvV2", ignores=("dimension_numbers", "precision_config"))
def _conv(
    lhs: Array,
    rhs: Array,
    window_strides: Ints,
    padding: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    feature_group_count: Int,
    *,
    node: Node,
    preferred_element_type: np.dtype | None = None,
    batch_group_count: int = 1,
) -> Array:
    return lax.conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        list(zip(padding[::2], padding[1::2], strict=True)),
        lhs_dilation,
        rhs_dilation,
        conv_numbers(message_of(node, "dimension_numbers", ConvolutionDimensionNumbers)),
        feature_group_count,
        batch_group_count,
        _precision(node),
        _preferred(preferred_element_type),
    )


@rule("XlaGather", ignores=("dimension_numbers",))
def _gather(
    operand: Array,
    start_indices: Array,
    slice_sizes: Ints,
    *,
    node: Node,
    indices_are_sorted: bool,
) -> Array:
    numbers = message_of(node, "dimension_numbers", GatherDimensionNumbers)
    return gather(operand, start_indices, slice_sizes, numbers, indices_are_sorted)


@rule("XlaPad")
def _pad(x: Array, value: Array, low: Ints, high: Ints, interior: Ints) -> Array:
    return lax.pad(x, value, list(zip(low, high, interior, strict=True)))


@rule("XlaEinsum")
def _einsum(a: Array, b: Array, *, equation: str) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=a.dtype)


@rule("XlaOptimizationBarrier")
def _barrier(*values: Array) -> list[Array]:
    return list(lax.optimization_barrier(list(values)))


@rule("XlaBroadcastHelper")
def _broadcast_helper(
    lhs: Array, rhs: Array, broadcast_dims: Ints, *, node: Node
) -> tuple[Array, Array]:
    """Broadcast the array of lower rank to the other along given axes."""
    if not broadcast_dims or lhs.ndim == rhs.ndim:
        return lhs, rhs
    small, rank = (lhs, rhs.ndim) if lhs.ndim < rhs.ndim else (rhs, lhs.ndim)
    if len(broadcast_dims) != small.ndim or not all(0 <= d < rank for d in broadcast_dims):
        raise node.error(f"cannot place {small.ndim} axes at {list(broadcast_dims)}", REPORT)
    others = [i for i in range(rank) if i not in broadcast_dims]
    order = np.argsort(np.argsort([*broadcast_dims])).tolist()
    placed = lax.expand_dims(lax.transpose(small, np.argsort(order).tolist()), others)
    return (placed, rhs) if lhs.ndim < rhs.ndim else (lhs, placed)


# Sorts in IEEE's total order, where -0 precedes 0; `lax.sort` treats them as equal.
@rule("XlaSort")
def _sort(x: Array) -> Array:
    return _key_value_sort(x)[0]


@rule("XlaKeyValueSort")
def _key_value_sort(*operands: Array) -> list[Array]:
    keys = operands[0]
    last = keys.ndim - 1
    if jnp.issubdtype(keys.dtype, jnp.floating):
        return sorted_by(total_order_key(keys), operands, last)
    return list(lax.sort(operands, dimension=last, num_keys=1))


# The algorithm is left to the compiler, and affects the last digits.
@rule("XlaSelfAdjointEig", ignores=("max_iter", "epsilon"))
def _self_adjoint_eig(a: Array, *, lower: bool) -> tuple[Array, Array]:
    vectors, values = lax.linalg.eigh(a, lower=lower, symmetrize_input=False)
    return values, vectors


@rule("XlaSvd", ignores=("max_iter", "epsilon", "precision_config"))
def _svd(a: Array) -> tuple[Array, Array, Array]:
    u, s, vh = lax.linalg.svd(a, full_matrices=True)
    return s, u, adjoint(vh)


# tensorflow/core/framework/rng_alg.h, TensorFlow 2.21.
_ALGORITHMS = {
    1: lax.RandomAlgorithm.RNG_PHILOX,
    2: lax.RandomAlgorithm.RNG_THREE_FRY,
    3: lax.RandomAlgorithm.RNG_DEFAULT,
}


@rule("XlaRngBitGenerator")
def _rng_bit_generator(
    algorithm: Int, state: Array, shape: Ints, *, node: Node, dtype: np.dtype
) -> list[Array]:
    if algorithm not in _ALGORITHMS:
        raise node.error(f"uses an unknown algorithm, {algorithm}", "Export it with another one.")
    kind = _ALGORITHMS[algorithm]
    return list(lax.rng_bit_generator(state, shape, dtype=dtype.type, algorithm=kind))


@rule("XlaDequantize")
def _dequantize(
    x: Array, *, node: Node, min_range: float, max_range: float, mode: str, transpose_output: bool
) -> Array:
    """8-bit numbers, four per word, the first in the highest byte."""
    if mode != "MIN_COMBINED":
        raise node.error(f"has the mode {mode!r}, which XLA does not have", REPORT)
    bf16 = np.dtype(jnp.bfloat16)
    shifts = np.arange(24, -1, -8, dtype=np.uint32).reshape(4, *(1,) * x.ndim)
    levels = lax.convert_element_type((x[None] >> shifts) & np.uint32(255), bf16)
    scale, least = np.asarray((max_range - min_range) / 255, bf16), np.asarray(min_range, bf16)
    values = jnp.moveaxis(levels * scale + least, 0, -1)
    values = lax.reshape(values, (*x.shape[:-1], 4 * x.shape[-1]))
    return lax.transpose(values, tuple(reversed(range(x.ndim)))) if transpose_output else values
