"""Gather, scatter and dynamic slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import trace_closed
from invert._private.mlir import ir
from invert.ir.jaxprs import split_constants
from invert.ir.lookups import has_single_index
from invert.ir.sizes import DimSize
from invert.ir.types import JaxFunction, Jaxpr
from invert.primitives.stablehlo.reduction import complex_extremum, scalar_computation, single_op
from invert.protos.types import GatherDimensionNumbers, ScatterDimensionNumbers
from invert.stablehlo.ops.attributes import GatherDims, ScatterDims
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import Array, Ints, Op, Shape, Value, rule


def index_vectors_last(indices: Value, dimension: int) -> Value:
    """`lax` has index vectors in the last dimension; StableHLO in any, or none."""
    if dimension == indices.ndim:
        return lax.expand_dims(indices, (dimension,))
    if dimension != indices.ndim - 1:
        order = [i for i in range(indices.ndim) if i != dimension]
        return lax.transpose(indices, (*order, dimension))
    return indices


def gather(
    x: Value,
    indices: Value,
    sizes: tuple[DimSize, ...],
    dims: GatherDims | GatherDimensionNumbers,
    is_sorted: bool,
) -> Value:
    """Slices of an array, as XLA cuts them out."""
    indices = index_vectors_last(indices, dims.index_vector_dim)
    # A single index is sorted and unique, but JAX lowers only the first of these flags.
    is_single = has_single_index(indices.shape, dims.start_indices_batching_dims)
    return lax.gather(
        x,
        indices,
        lax.GatherDimensionNumbers(
            offset_dims=tuple(dims.offset_dims),
            collapsed_slice_dims=tuple(dims.collapsed_slice_dims),
            start_index_map=tuple(dims.start_index_map),
            operand_batching_dims=tuple(dims.operand_batching_dims),
            start_indices_batching_dims=tuple(dims.start_indices_batching_dims),
        ),
        sizes,
        indices_are_sorted=is_sorted,
        unique_indices=is_sorted and is_single,
        # Out-of-bounds starts are clamped, by the specification. The mode that promises bounds
        # lowers to the same op; a serialized gradient shows the difference
        # (`invert.gradients.settle`).
        mode=lax.GatherScatterMode.CLIP,
    )


@rule("stablehlo.gather")
def _gather_rule(
    x: Array,
    indices: Array,
    *,
    dimension_numbers: GatherDims,
    slice_sizes: Ints,
    indices_are_sorted: bool = False,
) -> Value:
    return gather(x, indices, slice_sizes, dimension_numbers, indices_are_sorted)


@rule("stablehlo.dynamic_gather")
def _dynamic_gather(
    x: Array,
    indices: Array,
    sizes: Shape,
    *,
    dimension_numbers: GatherDims,
    indices_are_sorted: bool = False,
) -> Value:
    return gather(x, indices, sizes, dimension_numbers, indices_are_sorted)


_SCATTERS: dict[str, Callable] = {
    "stablehlo.add": lax.scatter_add,
    "stablehlo.subtract": lax.scatter_sub,
    "stablehlo.multiply": lax.scatter_mul,
    "stablehlo.minimum": lax.scatter_min,
    "stablehlo.maximum": lax.scatter_max,
}


def _scatter_kind(region: ir.Region, dtype: np.dtype) -> Callable | None:
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


@rule("stablehlo.scatter")
def _scatter(
    *operands: Array,
    ctx: Context,
    op: Op,
    scatter_dimension_numbers: ScatterDims,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Value:
    n = (len(operands) - 1) // 2
    arrays, indices, updates = operands[:n], operands[n], operands[n + 1 :]
    dims = scatter_dimension_numbers
    region = op.regions[0]
    if n != 1:
        raise InvertError("stablehlo.scatter with several operands has no lax counterpart")
    kind = _scatter_kind(region, np.dtype(arrays[0].dtype))
    is_bool = arrays[0].dtype == np.bool_
    update = None if is_bool and kind is not lax.scatter else kind
    if update is None:
        aval = jax.ShapeDtypeStruct((), arrays[0].dtype)
        update = split_constants(trace_closed(scalar_computation(ctx, region), aval, aval))
    return scatter(
        (arrays[0], indices, updates[0]),
        dims,
        dims.scattered_dims_to_operand_dims,
        update,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )


def scatter(
    operands: tuple[Value, Value, Value],
    dims: ScatterDims | ScatterDimensionNumbers,
    places: Sequence[int],
    update: JaxFunction | tuple[Jaxpr, Sequence[Value]],
    **flags: bool,
) -> Value:
    """An array with updates at some indices.

    **Arguments:**

    - `operands`: the array, the indices and the updates.
    - `places`: the axes of the array to which the elements of an index belong.
    - `update`: a function of `lax`, or the program of an update and its constants.
    """
    x, indices, updates = operands
    operands = x, index_vectors_last(indices, dims.index_vector_dim), updates
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(dims.update_window_dims),
        inserted_window_dims=tuple(dims.inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(places),
        operand_batching_dims=tuple(dims.input_batching_dims),
        scatter_indices_batching_dims=tuple(dims.scatter_indices_batching_dims),
    )
    mode = lax.GatherScatterMode.FILL_OR_DROP  # out-of-bounds updates are dropped
    if not isinstance(update, tuple):
        return update(*operands, numbers, mode=mode, **flags)
    # As `jnp.ndarray.at[...].apply` binds it; JAX reports that it has no derivative.
    program, consts = update
    params = {"update_jaxpr": program, "update_consts": tuple(consts)}
    return lax.scatter_p.bind(*operands, dimension_numbers=numbers, mode=mode, **params, **flags)


@rule("stablehlo.dynamic_slice")
def _dynamic_slice(x: Array, *starts: Array, slice_sizes: Ints) -> Value:
    return bind_dynamic_slice(x, starts, slice_sizes)


def bind_dynamic_slice(x: Value, starts: tuple[Value, ...], sizes: tuple[DimSize, ...]) -> Value:
    # Bound directly: `lax.dynamic_slice` normalizes negative starts first, which adds equations.
    return lax.dynamic_slice_p.bind(x, *starts, slice_sizes=sizes)


@rule("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(x: Array, update: Array, *starts: Array) -> Value:
    return lax.dynamic_update_slice_p.bind(x, update, *starts)


@rule("stablehlo.torch_index_select")
def _torch_index_select(x: Array, indices: Array, *, dim: int, batch_dims: int) -> Value:
    def take(x: Value, i: Value) -> Value:
        return jnp.take(x, i, axis=dim - batch_dims, mode="clip")

    for _ in range(batch_dims):
        take = jax.vmap(take)
    return take(x, indices)
