"""Ops of StableHLO on sizes that are open: their results are sizes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from invert.ir.size_algebra import Sizes, apply, lifted
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints

# The primitives that the ops are, number by number.
_ELEMENTWISE = {
    "stablehlo.abs": "abs",
    "stablehlo.add": "add",
    "stablehlo.and": "and",
    "stablehlo.clamp": "clamp",
    "stablehlo.convert": "convert_element_type",
    "stablehlo.divide": "div",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "mul",
    "stablehlo.negate": "neg",
    "stablehlo.not": "not",
    "stablehlo.or": "or",
    "stablehlo.remainder": "rem",
    "stablehlo.select": "select",
    "stablehlo.sign": "sign",
    "stablehlo.subtract": "sub",
}

# The operands that hold shapes, and not data.
SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "stablehlo.dynamic_broadcast_in_dim": (1,),
    "stablehlo.dynamic_conv": (2,),
    "stablehlo.dynamic_gather": (2,),
    "stablehlo.dynamic_iota": (0,),
    "stablehlo.dynamic_pad": (2, 3, 4),
    "stablehlo.dynamic_reshape": (1,),
    "stablehlo.real_dynamic_slice": (1, 2, 3),
    "stablehlo.set_dimension_size": (1,),
}


def result_of(op: Any, operands: Sequence[Any]) -> Sizes | None:
    """The result of an op on sizes; `None` where it is not one, or an operand is data.

    **Arguments:**

    - `op`: the MLIR operation.
    """
    arrays = [lifted(x) for x in operands]
    if len(op.results) != 1 or any(a is None for a in arrays):
        return None
    sizes = [a for a in arrays if a is not None]
    if (move := _MOVES.get(op.name)) is not None:
        return Sizes(move(op, [s.numbers for s in sizes]), sizes[0].dtype)
    dtype = attributes.element_dtype(op.results[0].type)
    if op.name == "stablehlo.compare":
        direction = attributes.enum_name(op.attributes["comparison_direction"]).lower()
        return apply(direction, sizes, dtype)
    if (primitive := _ELEMENTWISE.get(op.name)) is None:
        return None
    return apply(primitive, sizes, dtype)


def _reshape(op: Any, operands: Sequence[np.ndarray]) -> np.ndarray:
    return operands[0].reshape(op.results[0].type.shape)


def _concatenate(op: Any, operands: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(operands, attributes.integer(op.attributes["dimension"]))


def _broadcast_in_dim(op: Any, operands: Sequence[np.ndarray]) -> np.ndarray:
    shape = op.results[0].type.shape
    place = dense_ints(op.attributes["broadcast_dimensions"])
    aligned = [1] * len(shape)
    for axis, size in zip(place, operands[0].shape, strict=True):
        aligned[axis] = size
    return np.broadcast_to(operands[0].reshape(aligned), shape)


def _slice(op: Any, operands: Sequence[np.ndarray]) -> np.ndarray:
    parts = zip(
        *(dense_ints(op.attributes[n]) for n in ("start_indices", "limit_indices", "strides")),
        strict=True,
    )
    return operands[0][tuple(slice(*part) for part in parts)]


_MOVES: Mapping[str, Callable[[Any, Sequence[np.ndarray]], np.ndarray]] = {
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _slice,
}
