"""Ops of programs compiled by XLA and converted back from HLO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import ShapeDtypeStruct as Aval
from jax import lax

from invert.stablehlo.ops.interpreter import Context
from invert.stablehlo.ops.registry import Array, Ints, Op, Value, rule


@rule("mhlo.copy", ignores=("cross_program_prefetch_index",))  # placement on the device
def _copy(x: Array) -> Value:
    return x


@rule("mhlo.add_dependency")
def _add_dependency(x: Array, token: Value) -> Value:
    return x


@rule("mhlo.fusion", ignores=("fusion_kind", "output_operand_aliases", "output_operand_aliasing"))
def _fusion(*operands: Array, ctx: Context, op: Op) -> Sequence[Value]:
    """A region that forms one kernel, which does not affect values."""
    (body,) = op.regions
    return ctx.region(body)(*operands)


@rule("mhlo.bitcast")
def _bitcast(
    x: Array, *, out: Aval, source_layout: Ints | None = None, result_layout: Ints | None = None
) -> Value:
    """Reinterpret the same memory in another shape, following the layouts."""
    source = _major_to_minor(source_layout, x.ndim)
    result = _major_to_minor(result_layout, len(out.shape))
    x = lax.transpose(x, source)
    if x.dtype != out.dtype:
        x = lax.bitcast_convert_type(x, out.dtype)
    x = lax.reshape(x, [out.shape[i] for i in result])
    return lax.transpose(x, [int(i) for i in np.argsort(result)])


def _major_to_minor(layout: Ints | None, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if layout is None else layout[::-1]
