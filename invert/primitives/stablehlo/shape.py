"""Ops that move values about: constants, shapes, slices, pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from invert._errors import InvertError
from invert.ir.size_algebra import Sizes
from invert.ir.sizes import DimSize, is_open
from invert.primitives.stablehlo.dynamic import are_known, sizes
from invert.primitives.stablehlo.indexing import bind_dynamic_slice
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints
from invert.stablehlo.ops.interpreter import Context, Known, Op, Value, data, is_constant, raises

# Constants up to this size may be shapes, which other rules have to know: they stay arrays.
_SMALL = 8


def _may_be_shape(value: np.ndarray) -> bool:
    return value.ndim <= 2 and value.size <= _SMALL and value.dtype.kind == "i"


@raises("stablehlo.constant")
def _constant(ctx: Context, op: Op) -> Value:
    op.unread.discard("value")
    value = attributes.constant(op.op)
    # One number, repeated, has no strides: it is broadcast where it is used.
    return np.array(value) if _may_be_shape(value) else value


@raises("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(ctx: Context, op: Op, x: Value) -> Value:
    return _broadcast_to(ctx, op, x, ctx.aval(op).shape)


def _broadcast_to(ctx: Context, op: Op, x: Value, shape: tuple[DimSize, ...]) -> Value:
    dimensions = dense_ints(op["broadcast_dimensions"])
    if x.shape == shape and dimensions == tuple(range(len(shape))):
        return x
    result = lax.broadcast_in_dim(x, shape, dimensions)
    same_rank = dimensions == tuple(range(len(shape))) and 0 not in shape
    if x.shape == () or same_rank:
        (ctx.stretched if x.shape else ctx.scalars)[id(result)] = (result, x)
        if attributes.location_name(op.op.location).endswith("/broadcast_in_dim"):
            ctx.explicit[id(result)] = len(ctx.explicit)
    return result


@raises("stablehlo.broadcast")
def _broadcast(ctx: Context, op: Op, x: Value) -> Value:
    return lax.broadcast(x, dense_ints(op["broadcast_sizes"]))


@raises("stablehlo.reshape")
def _reshape(ctx: Context, op: Op, x: Value) -> Value:
    return _reshape_to(x, ctx.aval(op).shape)


def _reshape_to(x: Value, shape: tuple[DimSize, ...]) -> Value:
    return x if x.shape == shape else lax.reshape(x, shape)


@raises("stablehlo.transpose")
def _transpose(ctx: Context, op: Op, x: Value) -> Value:
    return lax.transpose(x, dense_ints(op["permutation"]))


@raises("stablehlo.reverse")
def _reverse(ctx: Context, op: Op, x: Value) -> Value:
    return lax.rev(x, dense_ints(op["dimensions"]))


@raises("stablehlo.concatenate")
def _concatenate(ctx: Context, op: Op, *operands: Value) -> Value:
    dimension = attributes.integer(op["dimension"])
    return operands[0] if len(operands) == 1 else lax.concatenate(operands, dimension)


@raises("stablehlo.slice")
def _slice(ctx: Context, op: Op, x: Value) -> Value:
    starts, limits, strides = (
        dense_ints(op[n]) for n in ("start_indices", "limit_indices", "strides")
    )
    return _sliced(x, starts, limits, strides)


def _sliced(
    x: Value, starts: Sequence[DimSize], limits: Sequence[DimSize], strides: Sequence[DimSize]
) -> Value:
    # JAX's own functions leave unit strides out, and so do the patterns.
    return lax.slice(x, starts, limits, None if all(s == 1 for s in strides) else strides)


@raises("stablehlo.pad")
def _pad(ctx: Context, op: Op, x: Value, value: Value) -> Value:
    config = zip(
        *(dense_ints(op[n]) for n in ("edge_padding_low", "edge_padding_high", "interior_padding")),
        strict=True,
    )
    return lax.pad(x, value, list(config))


@raises("stablehlo.iota")
def _iota(ctx: Context, op: Op) -> Value:
    aval = ctx.aval(op)
    dimension = attributes.integer(op["iota_dimension"])
    return lax.broadcasted_iota(aval.dtype, aval.shape, dimension)


@raises("stablehlo.optimization_barrier")
def _optimization_barrier(ctx: Context, op: Op, *operands: Value) -> Value:
    return lax.optimization_barrier(tuple(operands))


# Tokens order effects. No op that is raised has one, so a token carries no value.


@raises("stablehlo.create_token")
def _create_token(ctx: Context, op: Op) -> Value:
    return lax.create_token()


@raises("stablehlo.after_all")
def _after_all(ctx: Context, op: Op, *tokens: Value) -> Value:
    return lax.after_all(*tokens)


# Tuples are Python tuples while raising; no JAX value is one.


@raises("stablehlo.tuple")
def _tuple(ctx: Context, op: Op, *operands: Value) -> Value:
    return [tuple(operands)]


@raises("stablehlo.get_tuple_element")
def _get_tuple_element(ctx: Context, op: Op, operand: Value) -> Value:
    return [operand[attributes.integer(op["index"])]]


# Dynamic shapes. The arguments have sizes when a module is raised, numbers or expressions, and what
# is computed from these alone is known (`Known`, `Sizes`), so that the ops become those of static
# shapes.


@raises("stablehlo.get_dimension_size")
def _get_dimension_size(ctx: Context, op: Op, x: Value) -> Value:
    size = x.shape[attributes.integer(op["dimension"])]
    return Sizes.of(size, np.dtype(np.int32)) if is_open(size) else Known.of(size)


@raises("stablehlo.set_dimension_size")
def _set_dimension_size(ctx: Context, op: Op, x: Value, size: Value) -> Value:
    dimension = attributes.integer(op["dimension"])
    (n,) = sizes(size, op)
    return lax.slice_in_dim(x, 0, n, axis=dimension)


@raises("stablehlo.dynamic_reshape")
def _dynamic_reshape(ctx: Context, op: Op, x: Value, shape: Value) -> Value:
    return _reshape_to(x, sizes(shape, op))


@raises("stablehlo.dynamic_iota")
def _dynamic_iota(ctx: Context, op: Op, shape: Value) -> Value:
    dimension = attributes.integer(op["iota_dimension"])
    return lax.broadcasted_iota(ctx.dtype(op), sizes(shape, op), dimension)


@raises("stablehlo.dynamic_broadcast_in_dim")
def _dynamic_broadcast_in_dim(ctx: Context, op: Op, x: Value, shape: Value) -> Value:
    op.get("known_expanding_dimensions")
    op.get("known_nonexpanding_dimensions")
    return _broadcast_to(ctx, op, x, sizes(shape, op))


@raises("stablehlo.dynamic_pad")
def _dynamic_pad(
    ctx: Context, op: Op, x: Value, value: Value, low: Value, high: Value, interior: Value
) -> Value:
    config = zip(*(sizes(v, op) for v in (low, high, interior)), strict=True)
    return lax.pad(x, value, list(config))


@raises("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(
    ctx: Context, op: Op, x: Value, start: Value, limit: Value, stride: Value
) -> Value:
    strides = sizes(stride, op)
    if are_known(start) and are_known(limit):
        return _sliced(x, sizes(start, op), sizes(limit, op), strides)
    if any(s != 1 for s in strides):
        raise InvertError("stablehlo.real_dynamic_slice: strided slice with a start from data")
    # JAX adds the sizes of a `dynamic_slice` to starts that it has clamped itself.
    shape = _other(op.op.operands[2], op.op.operands[1], ctx)
    if shape is None:
        raise InvertError("stablehlo.real_dynamic_slice: its size is computed from data")
    extent = sizes(shape, op)
    last = [n - m for n, m in zip(x.shape, extent, strict=True)]
    starts = _parts(_unclamped(op, op.op.operands[1], last, ctx), ctx)
    return bind_dynamic_slice(x, starts, extent)


def _op_of(value: Any, name: str) -> Any:
    """The op of that name which has made a value, else `None`."""
    owner = getattr(value.owner, "operation", value.owner)
    return owner if getattr(owner, "name", None) == name else None


def _other(sum_: Any, term: Any, ctx: Context) -> Value | None:
    """What is added to `term`, where it is known."""
    if (add := _op_of(sum_, "stablehlo.add")) is not None:
        for a, b in (add.operands, reversed(list(add.operands))):
            if a == term and are_known(ctx.env[b]):
                return ctx.env[b]
    return None


def _unclamped(op: Op, start: Any, last: list[DimSize], ctx: Context) -> Any:
    """The name of starts without a clamp to the range that `dynamic_slice` clamps to itself."""
    if (clamp := _op_of(start, "stablehlo.clamp")) is not None:
        low, _, high = (ctx.env[v] for v in clamp.operands)
        known = are_known(low) and are_known(high)
        if known and not any(sizes(low, op)) and list(sizes(high, op)) == last:
            return clamp.operands[1]
    return start


def _parts(vector: Any, ctx: Context) -> tuple[Value, ...]:
    """The numbers of a vector: those that it was put together from, where it was."""
    if (whole := _op_of(vector, "stablehlo.concatenate")) is not None:
        return tuple(part for v in whole.operands for part in _parts(v, ctx))
    value = data(ctx.env[vector])
    if is_constant(value):
        return tuple(np.asarray(value).reshape(-1))
    if (number := _op_of(vector, "stablehlo.reshape")) is not None and value.shape == (1,):
        return (_reshape_to(data(ctx.env[number.operands[0]]), ()),)
    return tuple(lax.squeeze(lax.slice(value, (i,), (i + 1,)), (0,)) for i in range(value.size))
