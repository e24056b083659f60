"""Open dimensions whose size may be 0 in a text, although JAX assumes sizes of at least one."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from invert._entry import EntryPoint, traced
from invert._errors import DefectError, InvertError, only_refusals
from invert._private.jax import REFUSALS
from invert.ir.sizes import DimSize, Shape, dimension, evaluate, linear, listening, variables
from invert.ir.types import Aval, Jaxpr

# TensorFlow ops that decide no shape: they read, call and pass on.
_WITHOUT_SHAPES = frozenset(
    f"tf.{name}"
    for name in (
        "Identity IdentityN NoOp PartitionedCall PreventGradient ReadVariableOp "
        "StatefulPartitionedCall XlaCallModule".split()
    )
)


def with_empty_results(entry: EntryPoint, program: Jaxpr, held_count: int) -> frozenset[str]:
    """The open dimensions at whose size 0 all results are empty, so that no number is wrong.

    Rules for TensorFlow ops may have decided shapes by sizes of at least one. They raise the entry
    point again at 0, and its results must be empty there too. An export of JAX states its shapes
    for all sizes.

    **Arguments:**

    - `held_count`: how many of the program's first arguments are constants and parameters.
    """
    results = [tuple(v.aval.shape) for v in program.outvars]
    empty = [
        {parts[0] for n in shape if (parts := linear(n)) is not None and not parts[2]}
        for shape in results
    ]
    found = frozenset(set.intersection(*empty) if empty else ())
    if {use.op for use in entry.ops() if use.op.startswith("tf.")} <= _WITHOUT_SHAPES:
        return found
    arguments = [v.aval for v in program.invars[held_count:]]
    return frozenset(name for name in found if _may_be_zero(entry, arguments, name, results))


def _may_be_zero(
    entry: EntryPoint, arguments: Sequence[Aval], name: str, results: Sequence[Shape]
) -> bool:
    sizes = variables(n for a in arguments for n in a.shape)
    values: dict[str, DimSize] = {str(n): n for n in sizes if dimension(n) != name}
    values[name] = 0

    def at_zero(shape: Shape) -> Shape:
        return tuple(evaluate(n, values) for n in shape)

    avals = [jax.ShapeDtypeStruct(at_zero(a.shape), a.dtype) for a in arguments]
    try:
        with only_refusals(), jax.enable_x64(True), np.errstate(all="ignore"), listening():
            raised = traced(entry, avals)
    except (InvertError, DefectError, *REFUSALS):
        return True  # it is not taken, so that no other shape is known
    return [tuple(a.shape) for a in raised.out_avals] == list(map(at_zero, results))
