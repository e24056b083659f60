"""Reductions and windows with arbitrary reducers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import InvertError
from invert._private.jax import trace_closed
from invert._private.mlir import ir
from invert.ir.arrays import converted
from invert.ir.jaxprs import split_constants
from invert.ir.sizes import DimSize
from invert.ir.types import JaxFunction
from invert.stablehlo.ops import attributes, regions
from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import (
    CALL_ATTRIBUTES,
    CUSTOM_CALL,
    Array,
    Attribute,
    Ints,
    Op,
    Value,
    rule,
)
from invert.stablehlo.ops.values import is_constant, plain, sizes

_MONOIDS: dict[str, Callable] = {
    "stablehlo.add": lax.add,
    "stablehlo.multiply": lax.mul,
    "stablehlo.maximum": lax.max,
    "stablehlo.minimum": lax.min,
    "stablehlo.and": lax.bitwise_and,
    "stablehlo.or": lax.bitwise_or,
    "stablehlo.xor": lax.bitwise_xor,
}


def single_op(region: ir.Region) -> str | None:
    """The commutative op of a region `(x, y) -> op(x, y)`; otherwise `None`."""
    block = region.blocks[0]
    ops = list(block.operations)
    if len(ops) != 2 or len(block.arguments) != 2:
        return None
    op, terminator = (o.operation for o in ops)
    x, y = block.arguments
    operands = list(op.operands)
    if operands not in ([x, y], [y, x]) or list(terminator.operands) != [op.results[0]]:
        return None
    return op.name


def _monoid(region: ir.Region, operands: Sequence[Value]) -> Callable | None:
    name = single_op(region) if len(operands) == 1 else None
    if name in ("stablehlo.add", "stablehlo.multiply") and operands[0].dtype == np.bool_:
        return lax.bitwise_or if name == "stablehlo.add" else lax.bitwise_and
    if name in ("stablehlo.maximum", "stablehlo.minimum") and operands[0].dtype == np.bool_:
        return lax.bitwise_or if name == "stablehlo.maximum" else lax.bitwise_and
    if name is None and len(operands) == 1:
        return complex_extremum(region, operands[0].dtype)
    return _MONOIDS.get(name) if name else None


def complex_extremum(region: ir.Region, dtype: np.dtype) -> Callable | None:
    """`lax.max` or `lax.min` if the region is JAX's lexicographic comparison."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return None
    signature = regions.signature(region)
    for reduction, monoid in ((lax.reduce_max, lax.max), (lax.reduce_min, lax.min)):
        if signature is not None and signature == regions.reducer(reduction, dtype):
            return monoid
    return None


def scalar_computation(ctx: Context, region: ir.Region) -> JaxFunction:
    """The region as a function of scalars in the form that `lax.reduce` takes."""
    return of_sides(ctx.region(region))


def of_sides(body: JaxFunction) -> JaxFunction:
    """A function of scalars as a function of two values or tuples, which `lax.reduce` takes."""

    def call(x: Value, y: Value) -> Value:
        if isinstance(x, (list, tuple)):
            return tuple(body(*x, *y))
        return body(x, y)[0]

    return call


def in_region_types(region: ir.Region, operands: Sequence[Value]) -> list[Value]:
    """Operands in the element types of a region's arguments.

    A module may combine numbers in a wider type than theirs; `lax` may not.
    """
    types = (attributes.element_dtype(x.type) for x in region.blocks[0].arguments)
    return [x if x.dtype == t else converted(x, t) for x, t in zip(operands, types, strict=True)]


def reduced(reduce: JaxFunction, computation: JaxFunction, operands: Sequence[Value]) -> Value:
    """Reduce arrays by a `lax` function; operands are arrays, then initial values."""
    n = len(operands) // 2
    if n == 1:
        return [reduce(*operands, computation)]
    return list(reduce(tuple(operands[:n]), tuple(operands[n:]), computation))


@rule("stablehlo.reduce")
def _reduce(*operands: Array, ctx: Context, op: Op, dimensions: Ints) -> Value:
    region = op.regions[0]
    arrays = in_region_types(region, operands)
    monoid = _monoid(region, arrays[: len(arrays) // 2])
    if not dimensions and monoid is not None:
        return monoid(*arrays)
    computation = monoid or scalar_computation(ctx, region)
    return reduced(functools.partial(lax.reduce, dimensions=dimensions), computation, arrays)


@rule("stablehlo.reduce_window")
def _reduce_window(
    *operands: Array,
    ctx: Context,
    op: Op,
    window_dimensions: Ints,
    window_strides: Ints | None = None,
    base_dilations: Ints | None = None,
    window_dilations: Ints | None = None,
    padding: Ints | None = None,
) -> Value:
    ones = (1,) * operands[0].ndim
    edges = padding or (0, 0) * operands[0].ndim
    strides, base = window_strides or ones, base_dilations or ones
    window = window_dimensions, strides, edges, base, window_dilations or ones
    return _windows(ctx, op.regions[0], operands, *window)


def _windows(
    ctx: Context,
    region: ir.Region,
    operands: Sequence[Value],
    dimensions: Sequence[DimSize],
    strides: Sequence[DimSize],
    edges: Sequence[DimSize],
    base: Sequence[DimSize],
    dilation: Sequence[DimSize],
) -> Value:
    """Reduce windows of arrays by a region; operands are arrays, then initial values."""
    reduce = functools.partial(
        lax.reduce_window,
        window_dimensions=dimensions,
        window_strides=strides,
        padding=tuple(zip(edges[::2], edges[1::2], strict=True)),
        base_dilation=base,
        window_dilation=dilation,
    )
    operands = in_region_types(region, operands)
    monoid = _monoid(region, operands[: len(operands) // 2])
    return reduced(reduce, monoid or scalar_computation(ctx, region), operands)


@rule(f"{CUSTOM_CALL} @stablehlo.dynamic_reduce_window", ignores=CALL_ATTRIBUTES)
def _open_reduce_window(
    *operands: Value, ctx: Context, op: Op, called_computations: Attribute
) -> Value:
    """Arrays and initial values; then window, strides, dilations and padding."""
    dimensions, strides, base, dilation, edges = (sizes(x, op.name) for x in operands[-5:])
    (reducer,) = called_computations
    region = ctx.functions[attributes.symbol_name(reducer)].regions[0]
    arrays = list(map(plain, operands[:-5]))
    return _windows(ctx, region, arrays, dimensions, strides, edges, base, dilation)


@rule("stablehlo.select_and_scatter")
def _select_and_scatter(
    operand: Array,
    source: Array,
    init: Array,
    *,
    ctx: Context,
    op: Op,
    window_dimensions: Ints | None = None,
    window_strides: Ints | None = None,
    padding: Ints | None = None,
) -> Value:
    edges = padding or (0, 0) * operand.ndim
    ones = (1,) * operand.ndim
    select, scatter = op.regions
    return bind_select_and_scatter(
        operand,
        scalar_computation(ctx, select),
        window_dimensions or ones,
        window_strides or ones,
        tuple(zip(edges[::2], edges[1::2], strict=True)),
        source,
        init,
        scalar_computation(ctx, scatter),
        _select_direction(select) if single_op(scatter) == "stablehlo.add" else None,
    )


def _select_direction(region: ir.Region) -> str | None:
    """`GE` or `LE` if the region compares its arguments so; otherwise `None`."""
    if single_op(region) != "stablehlo.compare":
        return None
    compare = region.blocks[0].operations[0].operation
    if list(compare.operands) != list(region.blocks[0].arguments):
        return None
    return attributes.enum_name(compare.attributes["comparison_direction"])


def bind_select_and_scatter(
    operand: Value,
    select: Callable,
    window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    source: Value,
    init: Value,
    scatter: Callable,
    direction: str | None,
) -> Value:
    """The differentiable `select_and_scatter_add` if it fits; otherwise the general primitive.

    `lax.select_and_scatter_add` pads its operand so that the padding never wins, and it starts from
    zero. Hence the conditions on padding and on the initial value.
    """
    zero = is_constant(init) and bool(np.asarray(init) == 0)
    prim = {"GE": lax.ge_p, "LE": lax.le_p}.get(direction or "")
    if prim is not None and zero and all(p == (0, 0) for p in padding):
        return lax.select_and_scatter_add_p.bind(
            source,
            operand,
            select_prim=prim,
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
        )
    aval = jax.ShapeDtypeStruct((), operand.dtype)
    select_jaxpr, select_consts = split_constants(trace_closed(select, aval, aval))
    scatter_jaxpr, scatter_consts = split_constants(trace_closed(scatter, aval, aval))
    if select_consts or scatter_consts:
        raise InvertError("stablehlo.select_and_scatter: a region captures a value")
    return lax.select_and_scatter_p.bind(
        operand,
        source,
        init,
        select_jaxpr=select_jaxpr,
        select_consts=(),
        scatter_jaxpr=scatter_jaxpr,
        scatter_consts=(),
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=padding,
    )
