"""Products, convolutions, transforms and solvers."""

from __future__ import annotations

import functools
import itertools
import string
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import open_jaxpr, trace_closed
from invert.ir.interpret import bind
from invert.ir.sizes import is_open
from invert.protos.types import (
    ConvolutionDimensionNumbers,
    UniformQuantizedConvolutionDimensionNumbersAttr,
)
from invert.stablehlo.ops.attributes import Algorithm, ConvDims, DotDims
from invert.stablehlo.ops.registry import (
    Array,
    Bools,
    Enum,
    Enums,
    IntRows,
    Ints,
    Op,
    Shape,
    Value,
    rule,
)

_TYPE_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


def _algorithm(fields: Algorithm) -> lax.DotAlgorithm | lax.DotAlgorithmPreset:
    """The preset with these fields, which alone can name TF32, or the fields."""
    names = [_TYPE_NAMES.get(str(t), str(t).upper()) for t in fields[:3]]
    count = fields.num_primitive_operations
    name = "_".join(names) + (f"_X{count}" if count > 1 else "")
    single = fields.lhs_component_count == fields.rhs_component_count == 1
    precise = single and not fields.allow_imprecise_accumulation
    if precise and name in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[name]
    return lax.DotAlgorithm(*fields)


@rule("stablehlo.dot_general")
def _dot_general(
    x: Array,
    y: Array,
    *,
    dtype: np.dtype,
    dot_dimension_numbers: DotDims,
    precision_config: Enums = (),
    algorithm: Algorithm | None = None,
) -> Value:
    dims = dot_dimension_numbers
    return lax.dot_general(
        x,
        y,
        (
            (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions),
            (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions),
        ),
        precision=_algorithm(algorithm) if algorithm else precision_of(precision_config),
        preferred_element_type=dtype,
    )


@rule("stablehlo.dot")
def _dot(x: Array, y: Array, *, dtype: np.dtype, precision_config: Enums = ()) -> Value:
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    precision = precision_of(precision_config)
    return lax.dot_general(x, y, numbers, precision=precision, preferred_element_type=dtype)


@rule("stablehlo.einsum", "stablehlo.unary_einsum")
def _einsum(*operands: Array, op: Op, dtype: np.dtype, einsum_config: str) -> Value:
    if len(operands) == 1 and "->" not in einsum_config:
        raise InvertError(f"{op.name}: malformed equation {einsum_config!r}")
    # Names may be any character in the file, but jnp takes only letters.
    if not set(einsum_config) <= set(string.ascii_letters + ",->."):
        raise InvertError(f"{op.name}: malformed equation {einsum_config!r}")
    return jnp.einsum(einsum_config, *operands, preferred_element_type=dtype)


def precision_of(names: Enums) -> lax.PrecisionLike:
    """The `precision` argument of `lax`; `None` for the default."""
    if all(name == "DEFAULT" for name in names):
        return None
    return cast(lax.PrecisionLike, tuple(lax.Precision[name] for name in names))


def conv_numbers(
    d: ConvDims | ConvolutionDimensionNumbers | UniformQuantizedConvolutionDimensionNumbersAttr,
) -> lax.ConvDimensionNumbers:
    """Dimension numbers of a convolution, as `lax` takes them."""
    return lax.ConvDimensionNumbers(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (
            d.kernel_output_feature_dimension,
            d.kernel_input_feature_dimension,
            *d.kernel_spatial_dimensions,
        ),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )


@rule("stablehlo.convolution", "stablehlo.dynamic_conv")
def _convolution(
    x: Array,
    kernel: Array,
    open_padding: Shape | None = None,
    *,
    op: Op,
    dtype: np.dtype,
    dimension_numbers: ConvDims,
    feature_group_count: int,
    batch_group_count: int,
    window_strides: Ints | None = None,
    padding: IntRows | None = None,
    lhs_dilation: Ints | None = None,
    rhs_dilation: Ints | None = None,
    window_reversal: Bools = (),
    precision_config: Enums = (),
) -> Value:
    d = dimension_numbers
    ones = (1,) * len(d.input_spatial_dimensions)
    if open_padding is not None and padding is not None:
        raise op.error("it has padding both as an operand and as an attribute", "Give one of them.")
    edges: Any = [(0, 0)] * len(ones) if padding is None else padding
    if open_padding is not None:
        edges = list(zip(open_padding[::2], open_padding[1::2], strict=True))
    if any(window_reversal):
        flags = zip(d.kernel_spatial_dimensions, window_reversal, strict=True)
        kernel = lax.rev(kernel, [axis for axis, is_reversed in flags if is_reversed])
    convolve = functools.partial(
        lax.conv_general_dilated,
        window_strides=window_strides or ones,
        lhs_dilation=lhs_dilation or ones,
        rhs_dilation=rhs_dilation or ones,
        dimension_numbers=conv_numbers(d),
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=precision_of(precision_config),
        preferred_element_type=dtype,
    )
    if not any(map(is_open, itertools.chain(*edges))):
        return convolve(x, kernel, padding=edges)
    # The function takes size-dependent padding only by the name `"SAME"`.
    traced = open_jaxpr(trace_closed(functools.partial(convolve, padding="VALID"), x, kernel))
    eqn = traced.eqns[-1]
    return bind(eqn.replace(params={**eqn.params, "padding": tuple(edges)}), [x, kernel])[0]


@rule("stablehlo.fft")
def _fft(x: Array, *, fft_type: Enum, fft_length: Ints) -> Value:
    # Bound directly: `lax.fft` wraps the primitive in a jit of its own.
    return lax.fft_p.bind(x, fft_type=lax.FftType[fft_type], fft_lengths=fft_length)


@rule("stablehlo.cholesky")
def _cholesky(x: Array, *, lower: bool = False) -> Value:
    """The other triangle of the result is implementation-defined; it is zero here."""
    if lower:
        return jnp.tril(jax.lax.linalg.cholesky_p.bind(x))
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    factor = jax.lax.linalg.cholesky_p.bind(jnp.conj(lax.transpose(x, axes)))
    return jnp.conj(lax.transpose(jnp.tril(factor), axes))


@rule("stablehlo.triangular_solve")
def _triangular_solve(
    a: Array, b: Array, *, left_side: bool, lower: bool, unit_diagonal: bool, transpose_a: Enum
) -> Value:
    return jax.lax.linalg.triangular_solve_p.bind(
        a,
        b,
        left_side=left_side,
        lower=lower,
        transpose_a=transpose_a in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=transpose_a == "ADJOINT",
        unit_diagonal=unit_diagonal,
    )


def _channels(x: Value, vector: Value, axis: int) -> Value:
    return lax.broadcast_in_dim(vector, x.shape, (axis,))


def _moments(x: Value, axis: int) -> tuple[Value, Value]:
    axes = tuple(i for i in range(x.ndim) if i != axis)
    mean = jnp.mean(x, axes)
    return mean, jnp.mean(jnp.square(x - _channels(x, mean, axis)), axes)


def _normalize(x: Value, mean: Value, variance: Value, epsilon: float, axis: int) -> Value:
    deviation = jnp.sqrt(variance + np.asarray(epsilon, x.dtype))
    return (x - _channels(x, mean, axis)) / _channels(x, deviation, axis)


@rule("stablehlo.batch_norm_inference")
def _batch_norm_inference(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    feature_index: int,
) -> Value:
    axis = feature_index
    normal = _normalize(x, mean, variance, epsilon, axis)
    return normal * _channels(x, scale, axis) + _channels(x, offset, axis)


@rule("stablehlo.batch_norm_training")
def _batch_norm_training(
    x: Array, scale: Array, offset: Array, *, epsilon: float, feature_index: int
) -> Sequence[Value]:
    axis = feature_index
    mean, variance = _moments(x, axis)
    normal = _normalize(x, mean, variance, epsilon, axis)
    return normal * _channels(x, scale, axis) + _channels(x, offset, axis), mean, variance


@rule("stablehlo.batch_norm_grad")
def _batch_norm_grad(
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    ct: Array,
    *,
    epsilon: float,
    feature_index: int,
) -> Sequence[Value]:
    """Gradients of the training form, by the formula of the StableHLO specification."""
    axis = feature_index
    axes = tuple(i for i in range(x.ndim) if i != axis)
    count = np.asarray(x.size // x.shape[axis] if x.shape[axis] else 0, x.dtype)
    deviation = jnp.sqrt(variance + np.asarray(epsilon, x.dtype))
    centered = x - _channels(x, mean, axis)
    normal = centered / _channels(x, deviation, axis)
    grad_offset = jnp.sum(ct, axes)
    grad_scale = jnp.sum(ct * normal, axes)
    inner = count * ct - _channels(x, grad_offset, axis) - _channels(x, grad_scale, axis) * normal
    grad_x = _channels(x, scale / deviation / count, axis) * inner
    return grad_x, grad_scale, grad_offset
