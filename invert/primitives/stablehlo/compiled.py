"""Ops of programs that XLA has compiled, as they come back from HLO."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from invert.primitives.stablehlo.chlo import top_k
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.attributes import dense_ints
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises


@raises("mhlo.copy")
def _copy(ctx: Context, op: Op, x: Value) -> Value:
    op.get("cross_program_prefetch_index")  # where a device holds it
    return x


@raises("mhlo.add_dependency")
def _add_dependency(ctx: Context, op: Op, x: Value, token: Value) -> Value:
    return x


@raises("mhlo.fusion")
def _fusion(ctx: Context, op: Op, *operands: Value) -> Sequence[Value]:
    """A region that is one kernel, which says nothing about values."""
    for name in ("fusion_kind", "output_operand_aliases", "output_operand_aliasing"):
        op.get(name)
    (body,) = op.regions
    return ctx.region(body)(*operands)


@raises("mhlo.bitcast")
def _bitcast(ctx: Context, op: Op, x: Value) -> Value:
    """The same memory in another shape: elements follow each other as the layouts say."""
    out = ctx.aval(op)
    source = _major_to_minor(op, "source_layout", x.ndim)
    result = _major_to_minor(op, "result_layout", len(out.shape))
    x = lax.transpose(x, source)
    if x.dtype != out.dtype:
        x = lax.bitcast_convert_type(x, out.dtype)
    x = lax.reshape(x, [out.shape[i] for i in result])
    return lax.transpose(x, [int(i) for i in np.argsort(result)])


def _major_to_minor(op: Op, name: str, rank: int) -> tuple[int, ...]:
    layout = op.get(name)
    return tuple(range(rank)) if layout is None else dense_ints(layout)[::-1]


@raises("mhlo.topk")
def _top_k(ctx: Context, op: Op, x: Value) -> Sequence[Value]:
    largest = op.get("largest")
    return top_k(x, attributes.integer(op["k"]), largest is None or largest.value)
