"""Gather, scatter and dynamic slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import trace_open
from invert.ir.sizes import DimSize
from invert.primitives.stablehlo import dynamic
from invert.primitives.stablehlo.reduction import complex_extremum, scalar_computation, single_op
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises


def index_vectors_last(indices: Value, dimension: int) -> Value:
    """`lax` keeps the index vectors in the last dimension; StableHLO anywhere, or nowhere."""
    if dimension == indices.ndim:
        return lax.expand_dims(indices, (dimension,))
    if dimension != indices.ndim - 1:
        order = [i for i in range(indices.ndim) if i != dimension]
        return lax.transpose(indices, (*order, dimension))
    return indices


def _gather(op: Op, x: Value, indices: Value, slice_sizes: tuple[DimSize, ...]) -> Value:
    dims = attributes.gather_dims(op["dimension_numbers"])
    is_sorted = op.get("indices_are_sorted")
    return lax.gather(
        x,
        index_vectors_last(indices, dims.index_vector_dim),
        lax.GatherDimensionNumbers(
            offset_dims=dims.offset_dims,
            collapsed_slice_dims=dims.collapsed_slice_dims,
            start_index_map=dims.start_index_map,
            operand_batching_dims=dims.operand_batching_dims,
            start_indices_batching_dims=dims.start_indices_batching_dims,
        ),
        slice_sizes,
        indices_are_sorted=is_sorted is not None and attributes.boolean(is_sorted),
        # Out-of-bounds starts are clamped, by the specification. The mode that promises there are
        # none lowers to the same op; a serialized gradient can tell (`invert.gradients.settle`).
        mode=lax.GatherScatterMode.CLIP,
    )


@raises("stablehlo.gather")
def _gather_rule(ctx: Context, op: Op, x: Value, indices: Value) -> Value:
    return _gather(op, x, indices, dense_ints(op["slice_sizes"]))


@raises("stablehlo.dynamic_gather")
def _dynamic_gather(ctx: Context, op: Op, x: Value, indices: Value, sizes: Value) -> Value:
    return _gather(op, x, indices, dynamic.sizes(sizes, op))


_SCATTERS: dict[str, Callable] = {
    "stablehlo.add": lax.scatter_add,
    "stablehlo.subtract": lax.scatter_sub,
    "stablehlo.multiply": lax.scatter_mul,
    "stablehlo.minimum": lax.scatter_min,
    "stablehlo.maximum": lax.scatter_max,
}


def _scatter_kind(region: Any, dtype: np.dtype) -> Callable | None:
    """The scatter primitive of an update region: `return y` sets, one op combines."""
    block = region.blocks[0]
    ops = list(block.operations)
    if len(ops) == 1 and list(ops[0].operation.operands) == [block.arguments[1]]:
        return lax.scatter
    name = single_op(region)
    if name == "stablehlo.subtract" and list(ops[0].operation.operands) != list(block.arguments):
        return None
    if name is None:
        extremum = complex_extremum(region, dtype)
        if extremum is None:
            return None
        return lax.scatter_max if extremum is lax.max else lax.scatter_min
    return _SCATTERS.get(name)


@raises("stablehlo.scatter")
def _scatter(ctx: Context, op: Op, *operands: Value) -> Value:
    n = (len(operands) - 1) // 2
    arrays, indices, updates = operands[:n], operands[n], operands[n + 1 :]
    dims = attributes.scatter_dims(op["scatter_dimension_numbers"])
    flags = {
        name: attribute is not None and attributes.boolean(attribute)
        for name in ("indices_are_sorted", "unique_indices")
        for attribute in (op.get(name),)
    }
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=dims.update_window_dims,
        inserted_window_dims=dims.inserted_window_dims,
        scatter_dims_to_operand_dims=dims.scattered_dims_to_operand_dims,
        operand_batching_dims=dims.input_batching_dims,
        scatter_indices_batching_dims=dims.scatter_indices_batching_dims,
    )
    indices = index_vectors_last(indices, dims.index_vector_dim)
    mode = lax.GatherScatterMode.FILL_OR_DROP  # out-of-bounds updates are dropped
    region = op.regions[0]
    if n != 1:
        raise InvertError("stablehlo.scatter with several operands has no lax counterpart")
    kind = _scatter_kind(region, np.dtype(arrays[0].dtype))
    is_bool = arrays[0].dtype == np.bool_
    if kind is not None and not (is_bool and kind is not lax.scatter):
        return kind(arrays[0], indices, updates[0], numbers, mode=mode, **flags)
    # As `jnp.ndarray.at[...].apply` binds it; JAX has no derivative for it and says so.
    aval = jax.ShapeDtypeStruct((), arrays[0].dtype)
    jaxpr, consts = trace_open(scalar_computation(ctx, region, 1), aval, aval)
    return lax.scatter_p.bind(
        arrays[0],
        indices,
        updates[0],
        update_jaxpr=jaxpr,
        update_consts=tuple(consts),
        dimension_numbers=numbers,
        mode=mode,
        **flags,
    )


@raises("stablehlo.dynamic_slice")
def _dynamic_slice(ctx: Context, op: Op, x: Value, *starts: Value) -> Value:
    return bind_dynamic_slice(x, starts, dense_ints(op["slice_sizes"]))


def bind_dynamic_slice(x: Value, starts: tuple[Value, ...], sizes: tuple[DimSize, ...]) -> Value:
    # Bound directly: `lax.dynamic_slice` normalizes negative starts first, which adds equations.
    return lax.dynamic_slice_p.bind(x, *starts, slice_sizes=sizes)


@raises("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(ctx: Context, op: Op, x: Value, update: Value, *starts: Value) -> Value:
    return lax.dynamic_update_slice_p.bind(x, update, *starts)


@raises("stablehlo.torch_index_select")
def _torch_index_select(ctx: Context, op: Op, x: Value, indices: Value) -> Value:
    dim = attributes.integer(op["dim"])
    batch = attributes.integer(op["batch_dims"])

    def take(x: Value, i: Value) -> Value:
        return jnp.take(x, i, axis=dim - batch, mode="clip")

    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, indices)
