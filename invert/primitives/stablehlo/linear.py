"""Products, convolutions, transforms and the solvers StableHLO has ops for."""

from __future__ import annotations

import functools
import itertools
import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import open_jaxpr, trace_closed
from invert.ir.interpret import bind
from invert.ir.sizes import DimSize, is_open
from invert.primitives.stablehlo.dynamic import sizes
from invert.primitives.stablehlo.precision import precision_config
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises

_TYPE_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}


def _algorithm(op: Op) -> lax.DotAlgorithm | lax.DotAlgorithmPreset | None:
    """The preset where one has these fields (the only way to name TF32), else the fields."""
    attribute = op.get("algorithm")
    if attribute is None:
        return None
    fields = attributes.dot_algorithm(attribute)
    names = [_TYPE_NAMES.get(str(t), str(t).upper()) for t in fields[:3]]
    count = fields.num_primitive_operations
    name = "_".join(names) + (f"_X{count}" if count > 1 else "")
    single = fields.lhs_component_count == fields.rhs_component_count == 1
    precise = single and not fields.allow_imprecise_accumulation
    if precise and name in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[name]
    return lax.DotAlgorithm(*fields)


def _dot(x: Value, y: Value, numbers: Any, op: Op, dtype: np.dtype) -> Value:
    precision = _algorithm(op) or precision_config(op)
    return lax.dot_general(x, y, numbers, precision=precision, preferred_element_type=dtype)


@raises("stablehlo.dot_general")
def _dot_general(ctx: Context, op: Op, x: Value, y: Value) -> Value:
    dims = attributes.dot_dims(op["dot_dimension_numbers"])
    numbers = (
        (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions),
        (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions),
    )
    return _dot(x, y, numbers, op, ctx.dtype(op))


@raises("stablehlo.dot")
def _dot_rule(ctx: Context, op: Op, x: Value, y: Value) -> Value:
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return _dot(x, y, numbers, op, ctx.dtype(op))


def _einsum(ctx: Context, op: Op, *operands: Value) -> Value:
    config = attributes.string(op["einsum_config"])
    if len(operands) == 1 and "->" not in config:
        raise InvertError(f"{op.name}: malformed equation {config!r}")
    # Names may be any character in the file; only letters reach jnp.
    if not set(config) <= set(string.ascii_letters + ",->."):
        raise InvertError(f"{op.name}: malformed equation {config!r}")
    return jnp.einsum(config, *operands, preferred_element_type=ctx.dtype(op))


raises("stablehlo.einsum", "stablehlo.unary_einsum")(_einsum)


def _convolution(
    ctx: Context, op: Op, x: Value, kernel: Value, padding: Sequence[tuple[DimSize, DimSize]]
) -> Value:
    d = attributes.conv_dims(op["dimension_numbers"])
    n = len(d.input_spatial_dimensions)

    def ints(name: str) -> tuple[int, ...]:
        attribute = op.get(name)
        return (1,) * n if attribute is None else dense_ints(attribute)

    reversal = op.get("window_reversal")
    if reversal is not None and any(flags := attributes.dense_bools(reversal)):
        axes = [a for a, f in zip(d.kernel_spatial_dimensions, flags, strict=True) if f]
        kernel = lax.rev(kernel, axes)
    convolve = functools.partial(
        lax.conv_general_dilated,
        window_strides=ints("window_strides"),
        lhs_dilation=ints("lhs_dilation"),
        rhs_dilation=ints("rhs_dilation"),
        dimension_numbers=lax.ConvDimensionNumbers(
            (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
            (
                d.kernel_output_feature_dimension,
                d.kernel_input_feature_dimension,
                *d.kernel_spatial_dimensions,
            ),
            (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
        ),
        feature_group_count=attributes.integer(op["feature_group_count"]),
        batch_group_count=attributes.integer(op["batch_group_count"]),
        precision=precision_config(op),
        preferred_element_type=ctx.dtype(op),
    )
    if not any(map(is_open, itertools.chain(*padding))):
        return convolve(x, kernel, padding=padding)
    # The function takes padding that depends on sizes only by a name, `"SAME"`.
    traced = open_jaxpr(trace_closed(functools.partial(convolve, padding="VALID"), x, kernel))
    eqn = traced.eqns[-1]
    return bind(eqn.replace(params={**eqn.params, "padding": tuple(padding)}), [x, kernel])[0]


@raises("stablehlo.convolution")
def _convolution_rule(ctx: Context, op: Op, x: Value, kernel: Value) -> Value:
    attribute = op.get("padding")
    padding = (
        [(0, 0)] * (x.ndim - 2)
        if attribute is None
        else [(low, high) for low, high in attributes.dense_int_rows(attribute)]
    )
    return _convolution(ctx, op, x, kernel, padding)


@raises("stablehlo.dynamic_conv")
def _dynamic_conv(ctx: Context, op: Op, x: Value, kernel: Value, padding: Value) -> Value:
    edges = sizes(padding, op)
    return _convolution(ctx, op, x, kernel, list(zip(edges[::2], edges[1::2], strict=True)))


@raises("stablehlo.fft")
def _fft(ctx: Context, op: Op, x: Value) -> Value:
    kind = lax.FftType[attributes.enum_name(op["fft_type"])]
    # Bound directly: `lax.fft` wraps the primitive in a jit of its own.
    return lax.fft_p.bind(x, fft_type=kind, fft_lengths=dense_ints(op["fft_length"]))


@raises("stablehlo.cholesky")
def _cholesky(ctx: Context, op: Op, x: Value) -> Value:
    """The other triangle of the result is implementation-defined; it is zero here."""
    attribute = op.get("lower")
    if attribute is not None and attributes.boolean(attribute):
        return jnp.tril(jax.lax.linalg.cholesky_p.bind(x))
    axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    lower = jax.lax.linalg.cholesky_p.bind(jnp.conj(lax.transpose(x, axes)))
    return jnp.conj(lax.transpose(jnp.tril(lower), axes))


@raises("stablehlo.triangular_solve")
def _triangular_solve(ctx: Context, op: Op, a: Value, b: Value) -> Value:
    transpose = attributes.enum_name(op["transpose_a"])
    return jax.lax.linalg.triangular_solve_p.bind(
        a,
        b,
        left_side=attributes.boolean(op["left_side"]),
        lower=attributes.boolean(op["lower"]),
        transpose_a=transpose in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=transpose == "ADJOINT",
        unit_diagonal=attributes.boolean(op["unit_diagonal"]),
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


def _norm_attributes(op: Op) -> tuple[float, int]:
    return attributes.real(op["epsilon"]), attributes.integer(op["feature_index"])


@raises("stablehlo.batch_norm_inference")
def _batch_norm_inference(
    ctx: Context, op: Op, x: Value, scale: Value, offset: Value, mean: Value, variance: Value
) -> Value:
    epsilon, axis = _norm_attributes(op)
    normal = _normalize(x, mean, variance, epsilon, axis)
    return normal * _channels(x, scale, axis) + _channels(x, offset, axis)


@raises("stablehlo.batch_norm_training")
def _batch_norm_training(
    ctx: Context, op: Op, x: Value, scale: Value, offset: Value
) -> Sequence[Value]:
    epsilon, axis = _norm_attributes(op)
    mean, variance = _moments(x, axis)
    normal = _normalize(x, mean, variance, epsilon, axis)
    return normal * _channels(x, scale, axis) + _channels(x, offset, axis), mean, variance


@raises("stablehlo.batch_norm_grad")
def _batch_norm_grad(
    ctx: Context, op: Op, x: Value, scale: Value, mean: Value, variance: Value, ct: Value
) -> Sequence[Value]:
    """Gradients of the training form; the formula is the one of the StableHLO specification."""
    epsilon, axis = _norm_attributes(op)
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
