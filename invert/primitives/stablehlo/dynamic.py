"""Custom calls by which JAX writes ops of open sizes: sizes are operands, and known when raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from invert._errors import InvertError, MalformedModelError, SignatureError
from invert.ir.size_algebra import Sizes, constraint_of
from invert.ir.sizes import DimSize, constrain
from invert.primitives.stablehlo import chlo, random, reduction
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Context, Op, Value, data, is_constant


def are_known(value: Value) -> bool:
    """Whether a value holds sizes: numbers, or expressions of open ones."""
    return is_constant(value) or (isinstance(value, Sizes) and value.sizes() is not None)


def sizes(value: Value, op: Op) -> tuple[DimSize, ...]:
    """The sizes in an array.

    **Raises:** `InvertError` where they are computed from data.
    """
    if isinstance(value, Sizes):
        if (found := value.sizes()) is None:
            raise InvertError(f"{op.name}: a size has no expression of the open dimensions")
        return found
    if not is_constant(value):
        raise InvertError(
            f"{op.name}: a size is computed from data; only sizes that follow from the shapes of "
            "the arguments can be compiled"
        )
    return tuple(int(v) for v in np.asarray(value).reshape(-1))


def shape_places(op: Op) -> tuple[int, ...]:
    """Which operands of a custom call hold the shapes of its results."""
    indices = op.get("indices_of_shape_operands")
    return () if indices is None else attributes.dense_ints(indices)


def result_avals(
    op: Op, operands: Sequence[Value]
) -> tuple[list[Value], list[jax.ShapeDtypeStruct | None]]:
    """The operands that hold data, and shapes and dtypes of the results; `None` for a token.

    `indices_of_shape_operands` names operands that hold the shapes of the results instead.
    """
    types = op.result_types()
    if len(types) == 1 and attributes.is_tuple(types[0]):  # several results in older TPU modules
        types = list(attributes.tuple_types(types[0]))
    places = shape_places(op)
    if places and len(places) != len(types):
        raise InvertError(f"{op.name}: {len(places)} operands hold shapes of {len(types)} results")
    if wrong := [i for i in places if not 0 <= i < len(operands)]:
        raise MalformedModelError(f"{op.name}: there is no operand {wrong[0]} that holds a shape")
    shapes: list[Any] = [sizes(operands[i], op) for i in places] or [None] * len(types)
    avals = [
        None
        if attributes.is_token(t)
        else attributes.aval(t)
        if shape is None
        else jax.ShapeDtypeStruct(shape, attributes.element_dtype(t))
        for t, shape in zip(types, shapes, strict=True)
    ]
    return [x for i, x in enumerate(operands) if i not in places], avals


def _shape_assertion(ctx: Context, op: Op, ok: Value, *values: Value) -> Any:
    """A constraint on sizes, with the message of the exporter."""
    message = attributes.string(op.op.attributes["error_message"])
    for i, value in enumerate(values):
        shown = str(sizes(value, op)[0]) if are_known(value) else "?"
        message = message.replace(f"{{{i}}}", shown)
    if isinstance(ok, Sizes):
        if (constraint := constraint_of(ok.numbers.item(), message)) is None:
            raise InvertError("shape_assertion: a condition on sizes that is not a comparison")
        constrain(constraint)
        return []
    if not is_constant(ok):
        raise InvertError("shape_assertion: a condition on sizes is computed from data")
    if not bool(ok):
        raise SignatureError(message)
    return []


def _rng_bit_generator(ctx: Context, op: Op, state: Value, shape: Value) -> Sequence[Value]:
    dtype = attributes.element_dtype(op.result_types()[1])
    return random.bits(op.op.attributes["rng_algorithm"], state, sizes(shape, op), dtype)


def _top_k(ctx: Context, op: Op, x: Value, k: Value) -> Any:
    return chlo.top_k(data(x), sizes(k, op)[0])


def _reduce_window(ctx: Context, op: Op, *operands: Value) -> Any:
    """Arrays and initial values; then window, strides, dilations and padding."""
    *arrays, dimensions, strides, base, window, padding = operands
    edges = sizes(padding, op)
    called: Any = op.op.attributes["called_computations"]
    (reducer,) = called
    region = ctx.functions[attributes.symbol_name(reducer)].regions[0]
    return reduction.reduce_window(
        ctx,
        region,
        list(map(data, arrays)),
        {
            "window_dimensions": sizes(dimensions, op),
            "window_strides": sizes(strides, op),
            "padding": tuple(zip(edges[::2], edges[1::2], strict=True)),
            "base_dilation": sizes(base, op),
            "window_dilation": sizes(window, op),
        },
    )


RULES: Mapping[str, Callable[..., Any]] = {
    "shape_assertion": _shape_assertion,
    "stablehlo.dynamic_rng_bit_generator": _rng_bit_generator,
    "stablehlo.dynamic_top_k": _top_k,
    "stablehlo.dynamic_reduce_window": _reduce_window,
}
