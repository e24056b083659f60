"""Ops that move values: constants, shapes, slices, pads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import ShapeDtypeStruct as Aval
from jax import lax

from invert._errors import InvertError
from invert._private.mlir import ir
from invert.ir.jaxprs import with_values
from invert.ir.size_algebra import Sizes
from invert.ir.sizes import DimSize, is_open
from invert.primitives.recorded import Recorded
from invert.primitives.stablehlo.indexing import bind_dynamic_slice
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.constants import LARGE
from invert.stablehlo.ops.interpreter import Context, is_shape
from invert.stablehlo.ops.regions import defining
from invert.stablehlo.ops.registry import Array, Ints, Op, Shape, Size, Value, moved_sizes, rule
from invert.stablehlo.ops.values import KnownSize, are_known, data, is_constant, sizes

# Constants up to this size may be shapes, whose values other rules need: they stay arrays.
_SMALL = 8


# The attribute of a complex constant cannot be read like others; see `attributes.constant`.
@rule("stablehlo.constant", ignores=("value", LARGE))
def _constant(*, op: Op, ctx: Context) -> Value:
    value = attributes.constant(op.operation, ctx.large)
    may_be_shape = value.ndim <= 2 and value.size <= _SMALL and value.dtype.kind == "i"
    # A splat has zero strides: it is broadcast at each use.
    return np.array(value) if may_be_shape else value


def _broadcast_sizes(x: Value, *, out: Aval, broadcast_dimensions: Ints) -> np.ndarray:
    aligned = with_values([1] * len(out.shape), broadcast_dimensions, x.shape)
    return np.broadcast_to(x.reshape(aligned), out.shape)


_moved_broadcast = moved_sizes(_broadcast_sizes)


def _sizes_of_broadcast(op: Op, operands: Sequence[Sizes]) -> Sizes | None:
    """The sizes in a broadcast; `None` for a size that is repeated for other data.

    It is added to indices that count from the end, for example.
    """
    (result,) = op.operation.results
    is_repeated = not operands[0].shape and result.type.rank
    return None if is_repeated and not is_shape(result) else _moved_broadcast(op, operands)


@rule("stablehlo.broadcast_in_dim", sizes=_sizes_of_broadcast)
def _broadcast_in_dim(
    x: Array, *, ctx: Context, op: Op, out: Aval, broadcast_dimensions: Ints
) -> Value:
    return _broadcast_to(ctx, op, x, out.shape, broadcast_dimensions)


_repeated = Recorded(lax.broadcast_in_dim)


def _broadcast_to(
    ctx: Context, op: Op, x: Value, shape: tuple[DimSize, ...], dimensions: Ints
) -> Value:
    if x.shape == shape and dimensions == tuple(range(len(shape))):
        return x
    result = _repeated(x, shape, dimensions)
    same_rank = dimensions == tuple(range(len(shape))) and 0 not in shape
    if x.shape == () or same_rank:
        (ctx.stretched if x.shape else ctx.scalars)[id(result)] = (result, x)
        # Names in the functions that JAX outlines have no scope in front.
        name = attributes.location_name(op.operation.location)
        if name.rpartition("/")[2] == "broadcast_in_dim":
            ctx.explicit[id(result)] = len(ctx.explicit)
    return result


@rule("stablehlo.broadcast")
def _broadcast(x: Array, *, broadcast_sizes: Ints) -> Value:
    return lax.broadcast(x, broadcast_sizes)


def _reshape_sizes(x: Value, *, out: Aval) -> np.ndarray:
    return x.reshape(out.shape)


@rule("stablehlo.reshape", sizes=moved_sizes(_reshape_sizes), makes_shapes=True)
def _reshape(x: Array, *, out: Aval) -> Value:
    return _reshape_to(x, out.shape)


def _reshape_to(x: Value, shape: tuple[DimSize, ...]) -> Value:
    return x if x.shape == shape else lax.reshape(x, shape)


@rule("stablehlo.transpose")
def _transpose(x: Array, *, permutation: Ints) -> Value:
    return lax.transpose(x, permutation)


@rule("stablehlo.reverse")
def _reverse(x: Array, *, dimensions: Ints) -> Value:
    return lax.rev(x, dimensions)


def _concatenate_sizes(*operands: Value, dimension: int) -> np.ndarray:
    return np.concatenate(operands, dimension)


@rule("stablehlo.concatenate", sizes=moved_sizes(_concatenate_sizes), makes_shapes=True)
def _concatenate(*operands: Array, dimension: int) -> Value:
    return operands[0] if len(operands) == 1 else lax.concatenate(operands, dimension)


def _slice_sizes(
    x: Value, *, start_indices: Ints, limit_indices: Ints, strides: Ints
) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


@rule("stablehlo.slice", sizes=moved_sizes(_slice_sizes))
def _slice(x: Array, *, start_indices: Ints, limit_indices: Ints, strides: Ints) -> Value:
    return _sliced(x, start_indices, limit_indices, strides)


def _sliced(
    x: Value, starts: Sequence[DimSize], limits: Sequence[DimSize], strides: Sequence[DimSize]
) -> Value:
    # JAX's own functions omit unit strides, and so do the patterns.
    return lax.slice(x, starts, limits, None if all(s == 1 for s in strides) else strides)


@rule("stablehlo.pad")
def _pad(
    x: Array,
    value: Array,
    *,
    edge_padding_low: Ints,
    edge_padding_high: Ints,
    interior_padding: Ints,
) -> Value:
    config = zip(edge_padding_low, edge_padding_high, interior_padding, strict=True)
    return lax.pad(x, value, list(config))


@rule("stablehlo.iota")
def _iota(*, out: Aval, iota_dimension: int) -> Value:
    return lax.broadcasted_iota(out.dtype, out.shape, iota_dimension)


@rule("stablehlo.optimization_barrier")
def _optimization_barrier(*operands: Array) -> Value:
    return lax.optimization_barrier(tuple(operands))


# Tokens order effects. Raised ops have no effects, so a token carries no value.


@rule("stablehlo.create_token")
def _create_token() -> Value:
    return lax.create_token()


@rule("stablehlo.after_all")
def _after_all(*tokens: Value) -> Value:
    return lax.after_all(*tokens)


# Tuples are Python tuples during raising; no JAX value is one.


@rule("stablehlo.tuple")
def _tuple(*operands: Array) -> Value:
    return [tuple(operands)]


@rule("stablehlo.get_tuple_element")
def _get_tuple_element(operand: Value, *, index: int) -> Value:
    return [operand[index]]


# Dynamic shapes. During raising the sizes of arguments are numbers or expressions, and values
# computed from them are known (`KnownSize`, `Sizes`): the ops become static ones.


@rule("stablehlo.get_dimension_size")
def _get_dimension_size(x: Array, *, dimension: int) -> Value:
    size = x.shape[dimension]
    return Sizes.of(size, np.dtype(np.int32)) if is_open(size) else KnownSize.of(size)


@rule("stablehlo.set_dimension_size")
def _set_dimension_size(x: Array, size: Size, *, dimension: int) -> Value:
    if not is_open(size) and not 0 <= size <= x.shape[dimension]:
        raise InvertError(
            f"stablehlo.set_dimension_size: axis {dimension} of {x.shape} cannot have size {size}"
        )
    return lax.slice_in_dim(x, 0, size, axis=dimension)


@rule("stablehlo.dynamic_reshape")
def _dynamic_reshape(x: Array, shape: Shape) -> Value:
    return _reshape_to(x, shape)


@rule("stablehlo.dynamic_iota")
def _dynamic_iota(shape: Shape, *, dtype: np.dtype, iota_dimension: int) -> Value:
    return lax.broadcasted_iota(dtype, shape, iota_dimension)


@rule(
    "stablehlo.dynamic_broadcast_in_dim",
    ignores=("known_expanding_dimensions", "known_nonexpanding_dimensions"),
)
def _dynamic_broadcast_in_dim(
    x: Array, shape: Shape, *, ctx: Context, op: Op, broadcast_dimensions: Ints
) -> Value:
    return _broadcast_to(ctx, op, x, shape, broadcast_dimensions)


@rule("stablehlo.dynamic_pad")
def _dynamic_pad(x: Array, value: Array, low: Shape, high: Shape, interior: Shape) -> Value:
    return lax.pad(x, value, list(zip(low, high, interior, strict=True)))


@rule("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(
    x: Array, start: Value, limit: Value, strides: Shape, *, ctx: Context, op: Op
) -> Value:
    if are_known(start) and are_known(limit):
        return _sliced(x, sizes(start, op.name), sizes(limit, op.name), strides)
    if any(s != 1 for s in strides):
        raise InvertError(
            "stablehlo.real_dynamic_slice: a strided slice whose start depends on data"
        )
    # JAX adds the sizes of a `dynamic_slice` to starts that it clamped itself.
    _, first, last, _ = op.operation.operands
    shape = _other(last, first, ctx)
    if shape is None:
        raise InvertError("stablehlo.real_dynamic_slice: its size depends on data")
    extent = sizes(shape, op.name)
    room = [n - m for n, m in zip(x.shape, extent, strict=True)]
    starts = _parts(_unclamped(op, first, room, ctx), ctx)
    return bind_dynamic_slice(x, starts, extent)


def _other(sum_: ir.Value, term: ir.Value, ctx: Context) -> Value | None:
    """The known number added to `term`, if any."""
    if (add := defining(sum_, "stablehlo.add")) is not None:
        for a, b in (add.operands, reversed(list(add.operands))):
            if a == term and are_known(ctx.env[b]):
                return ctx.env[b]
    return None


def _unclamped(op: Op, start: ir.Value, room: list[DimSize], ctx: Context) -> ir.Value:
    """The starts, without the clamp that `dynamic_slice` repeats."""
    if (clamp := defining(start, "stablehlo.clamp")) is not None:
        low, _, high = (ctx.env[v] for v in clamp.operands)
        known = are_known(low) and are_known(high)
        if known and not any(sizes(low, op.name)) and list(sizes(high, op.name)) == room:
            return clamp.operands[1]
    return start


def _parts(vector: ir.Value, ctx: Context) -> tuple[Value, ...]:
    """The elements of a concatenated vector, if it is one."""
    if (whole := defining(vector, "stablehlo.concatenate")) is not None:
        return tuple(part for v in whole.operands for part in _parts(v, ctx))
    value = data(ctx.env[vector])
    if is_constant(value):
        return tuple(np.asarray(value).reshape(-1))
    if (number := defining(vector, "stablehlo.reshape")) is not None and value.shape == (1,):
        return (_reshape_to(data(ctx.env[number.operands[0]]), ()),)
    return tuple(lax.squeeze(lax.slice(value, (i,), (i + 1,)), (0,)) for i in range(value.size))
