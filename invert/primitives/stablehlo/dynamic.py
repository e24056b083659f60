"""Conditions on open sizes, and custom calls with shapes among their operands."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from invert._errors import InvertError, MalformedModelError, SignatureError
from invert.ir.size_algebra import Sizes, constraint_of
from invert.ir.sizes import DimSize, constrain
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.registry import CALL_ATTRIBUTES, CUSTOM_CALL, Op, Value, rule
from invert.stablehlo.ops.values import are_known, is_constant, sizes


def result_avals(
    op: Op, operands: Sequence[Value], places: Sequence[int]
) -> tuple[list[Value], list[jax.ShapeDtypeStruct | None]]:
    """The data operands, and shapes and dtypes of the results; `None` for a token.

    **Arguments:**

    - `places`: positions of the operands that hold the shapes of results, if these are open.
    """
    types = op.result_types()
    if len(types) == 1 and attributes.is_tuple(types[0]):  # several results in older TPU modules
        types = list(attributes.tuple_types(types[0]))
    if places and len(places) != len(types):
        raise InvertError(
            f"{op.name}: {len(places)} operands give the shapes of {len(types)} results"
        )
    if wrong := [i for i in places if not 0 <= i < len(operands)]:
        raise MalformedModelError(
            f"{op.name}: operand {wrong[0]}, which should hold a shape, is missing"
        )
    known = [sizes(operands[i], op.name) for i in places]
    shapes: Sequence[Sequence[DimSize] | None] = known or [None] * len(types)
    avals = [
        None
        if attributes.is_token(t)
        else attributes.aval(t)
        if shape is None
        else jax.ShapeDtypeStruct(shape, attributes.element_dtype(t))
        for t, shape in zip(types, shapes, strict=True)
    ]
    return [x for i, x in enumerate(operands) if i not in places], avals


@rule(f"{CUSTOM_CALL} @shape_assertion", ignores=CALL_ATTRIBUTES)
def _shape_assertion(ok: Value, *values: Value, op: Op, error_message: str) -> None:
    """A constraint on sizes, with the message of the exporter."""
    message = error_message
    for i, value in enumerate(values):
        shown = str(sizes(value, op.name)[0]) if are_known(value) else "?"
        message = message.replace(f"{{{i}}}", shown)
    if isinstance(ok, Sizes):
        if (constraint := constraint_of(ok.numbers.item(), message)) is None:
            raise InvertError("shape_assertion: the condition on sizes is not a comparison")
        constrain(constraint)
    elif not is_constant(ok):
        raise InvertError("shape_assertion: the condition on sizes depends on data")
    elif not bool(ok):
        raise SignatureError(message, remedy="Pass arrays whose sizes satisfy this.")
