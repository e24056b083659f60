"""Control flow: while, case, if. Values captured by a region become operands."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from invert._private.jax import open_jaxpr, trace_closed
from invert._private.mlir import ir
from invert.ir.jaxprs import returning, with_values
from invert.ir.size_algebra import Sizes
from invert.ir.types import ClosedJaxpr
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Context, free_values, is_shape
from invert.stablehlo.ops.regions import defining, results_of
from invert.stablehlo.ops.registry import Array, Op, Value, rule
from invert.stablehlo.ops.values import KnownSize, data, is_constant, is_splat


def _invariants(body: ir.Region) -> dict[int, ir.Value]:
    """Loop-invariant operands: position -> the body's argument.

    JAX's lowering passes closed-over values of a loop as such operands; here they are captured
    again.
    """
    pairs = zip(body.blocks[0].arguments, results_of(body), strict=True)
    return {i: argument for i, (argument, result) in enumerate(pairs) if argument == result}


@rule("stablehlo.while")
def _while(*operands: Value, ctx: Context, op: Op) -> Sequence[Value]:
    condition, body = op.regions
    fixed = _invariants(body)
    carried = [i for i in range(len(operands)) if i not in fixed]

    # A value passed on unchanged may be a size, and stays one inside.
    operands = tuple(x if i in fixed else data(x) for i, x in enumerate(operands))

    def bind(region: ir.Region, carry: Sequence[Value]) -> list[Value]:
        return ctx.region(region)(*with_values(operands, carried, carry))

    def step(carry: Sequence[Value]) -> tuple[Value, ...]:
        results = bind(body, carry)
        return tuple(results[i] for i in carried)

    init = tuple(operands[i] for i in carried)
    final = lax.while_loop(lambda carry: bind(condition, carry)[0], step, init)
    return list(map(data, with_values(operands, carried, final)))


def _hoist_constants(ctx: Context, region: ir.Region) -> list[ir.Value]:
    """Decode the array constants of a region beforehand; return the values they define.

    A branch of `cond` may not hold array constants: they are passed in.
    """
    found = []
    pending = [region]
    while pending:
        for block in pending.pop().blocks:
            for view in block.operations:
                op = view.operation
                pending.extend(op.regions)
                if op.name == "stablehlo.constant" and op.results[0].type.rank:
                    (value,) = ctx.apply(op, ())
                    if is_splat(value):
                        continue
                    ctx.env[op.results[0]] = value
                    ctx.hoisted.add(op.results[0])
                    found.append(op.results[0])
    return found


def _stays_outside(name: ir.Value, value: Value) -> bool:
    """Return whether branches may capture a value: scalars, splats and shapes."""
    if is_splat(value) or isinstance(value, (KnownSize, Sizes)):
        return True
    return is_constant(value) and (value.ndim == 0 or is_shape(name))


def _switch(ctx: Context, regions: Sequence[ir.Region], index: Value) -> Sequence[Value]:
    if is_constant(index):
        i = int(np.asarray(index))
        return ctx.region(regions[i if 0 <= i < len(regions) else -1])()
    captured: dict[ir.Value, None] = {}
    for region in regions:
        captured.update(dict.fromkeys(free_values(region)))
        captured.update(dict.fromkeys(_hoist_constants(ctx, region)))
    arrays = [v for v in captured if not _stays_outside(v, ctx.env[v])]
    values = [ctx.env[v] for v in arrays]
    avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]
    outside = ctx.numbers
    known = {v: x for v, x in zip(arrays, values, strict=True) if is_constant(x)}
    ctx.numbers = outside | known

    def branch(region: ir.Region) -> ClosedJaxpr:
        def call(*args: Value) -> list[Value]:
            ctx.env.update(zip(arrays, args, strict=True))
            return ctx.region(region)()

        return trace_closed(call, *avals)

    try:
        branches = [branch(region) for region in regions]
    finally:
        ctx.env.update(zip(arrays, values, strict=True))
        ctx.numbers = outside
    passed = _passed_on(branches)
    kept = [i for i, source in enumerate(passed) if source is None]
    results = [None if source is None else values[source] for source in passed]
    if kept:
        branches = [returning(b, kept) for b in branches]
        chosen = lax.cond_p.bind(index, *values, branches=tuple(branches))
        results = with_values(results, kept, chosen)
    return results


def _passed_on(branches: Sequence[ClosedJaxpr]) -> list[int | None]:
    """For each result, the operand returned by all branches, which `lax.cond` forwards."""
    found: list[int | None] = []
    for results in zip(*(open_jaxpr(b).outvars for b in branches), strict=True):
        places = [
            open_jaxpr(b).invars.index(v) if v in open_jaxpr(b).invars else None
            for b, v in zip(branches, results, strict=True)
        ]
        found.append(places[0] if len(set(places)) == 1 else None)
    return found


@rule("stablehlo.case")
def _case(index: Array, *, ctx: Context, op: Op) -> Sequence[Value]:
    last = len(op.regions) - 1
    if last == 0:
        return ctx.region(op.regions[0])()
    if not is_constant(index) and not _in_range(ctx, op.operation.operands[0], last):
        # Any index out of range selects the last branch, while `cond` does not specify this.
        inside = (index >= np.int32(0)) & (index <= np.int32(last))
        index = lax.select(inside, index, lax.full_like(index, last))
    return _switch(ctx, list(op.regions), index)


def _in_range(ctx: Context, index: ir.Value, last: int) -> bool:
    """Return whether the index is clamped or a boolean, as in JAX's `switch` and `cond`."""
    if (convert := defining(index, "stablehlo.convert")) is not None:
        return last == 1 and attributes.element_dtype(convert.operands[0].type) == np.bool_
    if (clamp := defining(index, "stablehlo.clamp")) is None:
        return False
    low, _, high = (ctx.env[v] for v in clamp.operands)
    return is_constant(low) and is_constant(high) and int(low) >= 0 and int(high) <= last


@rule("stablehlo.if")
def _if(pred: Array, *, ctx: Context, op: Op) -> Sequence[Value]:
    on_true, on_false = op.regions
    if is_constant(pred):
        return ctx.region(on_true if bool(pred) else on_false)()
    # `cond` orders its branches from false to true.
    index = lax.convert_element_type(pred, np.int32)
    return _switch(ctx, [on_false, on_true], index)
