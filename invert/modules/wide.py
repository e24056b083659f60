"""Programs of 64-bit types inside traces of a session that has only 32-bit types.

JAX differentiates, batches and lowers equations after the function that traced them has returned,
with rules that create arrays in the session's types. So such a program is one equation, whose rules
apply JAX's within `jax.enable_x64`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from invert._private.jax import Primitive, eval_closed, trace_closed
from invert._private.mlir import ir, stablehlo_dialect
from invert.ir.avals import is_differentiable
from invert.ir.jaxprs import with_values
from invert.ir.types import Aval, ClosedJaxpr, Value

_wide_call_p = Primitive("wide_call")
_wide_call_p.multiple_results = True


def wide_call(function: Callable[..., Sequence[Value]], values: Sequence[Value]) -> list[Value]:
    """The results of a function that is traced, differentiated and lowered with 64-bit types."""
    with jax.enable_x64(True):
        # A trace of 32-bit types narrows arrays of NumPy, not those of JAX.
        values = [jnp.asarray(v) if isinstance(v, np.ndarray) else v for v in values]
        program = trace_closed(function, *map(jax.typeof, values))
    if program.effects:
        return eval_closed(program, values)
    return _wide_call_p.bind(*values, program=_Program(program))


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """Hides a program from JAX, which would narrow its constants."""

    closed: ClosedJaxpr


@jax.enable_x64(True)
def _run(*values: Value, program: _Program) -> list[Value]:
    return eval_closed(program.closed, values)


def _types(*_: Aval, program: _Program) -> Sequence[Aval]:
    return program.closed.out_avals


@jax.enable_x64(True)
def _lower(ctx: Value, *values: Value, program: _Program) -> Value:
    if ctx.dim_var_values:
        # Open sizes are passed to every function, in the session's type. So no function is shared
        # between the program and the equations around it.
        wide = ir.RankedTensorType.get((), ir.IntegerType.get_signless(64))
        ctx = ctx.replace(
            dim_var_values=[stablehlo_dialect.convert(wide, v) for v in ctx.dim_var_values],
            module_context=ctx.module_context.replace(
                lowering_cache={}, cached_primitive_lowerings={}
            ),
        )
    return mlir.lower_fun(_run, multiple_results=True)(ctx, *values, program=program)


def _jvp(primals: Sequence[Value], tangents: Sequence[Value], *, program: _Program) -> Value:
    run = functools.partial(_run, program=program)
    moved = [
        i
        for i, t in enumerate(tangents)
        if type(t) is not ad.Zero and is_differentiable(primals[i])
    ]

    def pushed(*values: Value) -> list[Value]:
        fixed = values[: len(primals)]

        def along(*given: Value) -> list[Value]:
            return [r for r in run(*with_values(fixed, moved, given)) if is_differentiable(r)]

        return jax.jvp(along, tuple(fixed[i] for i in moved), values[len(primals) :])[1]

    results = _wide_call_p.bind(*primals, program=program)
    found = iter(wide_call(pushed, [*primals, *(tangents[i] for i in moved)]) if moved else ())
    return results, [
        next(found) if moved and is_differentiable(r) else ad.Zero(jax.typeof(r).to_tangent_aval())
        for r in results
    ]


def _transpose(cotangents: Sequence[Value], *values: Value, program: _Program) -> Value:
    unknown = [i for i, v in enumerate(values) if ad.is_undefined_primal(v)]
    given = [i for i, c in enumerate(cotangents) if type(c) is not ad.Zero]
    known = [v for v in values if not ad.is_undefined_primal(v)]

    def pulled(*operands: Value) -> Sequence[Value]:
        def linear(*operand: Value) -> list[Value]:
            rest, wanted = iter(operands), iter(operand)
            results = _run(
                *(next(wanted) if i in unknown else next(rest) for i in range(len(values))),
                program=program,
            )
            return [results[i] for i in given]

        zeros = [jnp.zeros(values[i].aval.shape, values[i].aval.dtype) for i in unknown]
        results, pull = jax.vjp(linear, *zeros)
        # A session of 32-bit types may have narrowed them.
        return pull(
            [c.astype(r.dtype) for c, r in zip(operands[len(known) :], results, strict=True)]
        )

    if not given:
        return [ad.Zero(v.aval) if ad.is_undefined_primal(v) else None for v in values]
    found = iter(wide_call(pulled, [*known, *(cotangents[i] for i in given)]))
    return [next(found) if i in unknown else None for i in range(len(values))]


def _batch(values: Sequence[Value], axes: Sequence[int | None], *, program: _Program) -> Value:
    mapped = jax.vmap(functools.partial(_run, program=program), in_axes=tuple(axes))
    results = wide_call(mapped, values)
    return results, [0] * len(results)


_wide_call_p.def_impl(_run)
_wide_call_p.def_abstract_eval(_types)
mlir.register_lowering(_wide_call_p, _lower)
ad.primitive_jvps[_wide_call_p] = _jvp
ad.primitive_transposes[_wide_call_p] = _transpose
batching.primitive_batchers[_wide_call_p] = _batch
