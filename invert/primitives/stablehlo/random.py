"""Random bits. StableHLO's generators are functions of their state, as JAX's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from invert._errors import InvertError
from invert._private.jax import rng_uniform
from invert.stablehlo.ops import attributes
from invert.stablehlo.ops.interpreter import Context, Op, Value, raises

_ALGORITHM = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}


@raises("stablehlo.rng_bit_generator")
def _rng_bit_generator(ctx: Context, op: Op, state: Value) -> Sequence[Value]:
    _, out = ctx.avals(op)
    return bits(op["rng_algorithm"], state, out.shape, out.dtype)


def bits(algorithm: Any, state: Value, shape: Sequence[int], dtype: Any) -> Sequence[Value]:
    """Bits by the algorithm of a StableHLO attribute, and the next state before them."""
    kind = _ALGORITHM[attributes.enum_name(algorithm)]
    return lax.rng_bit_generator(state, tuple(shape), dtype=dtype, algorithm=kind)


@raises("stablehlo.rng")
def _rng(ctx: Context, op: Op, a: Value, b: Value, shape: Value) -> Value:
    """Stateful and of unspecified algorithm: `lax.rng_uniform`, JAX's own primitive for it."""
    if attributes.enum_name(op["rng_distribution"]) != "UNIFORM":
        raise InvertError(
            "stablehlo.rng with the normal distribution has no state that a JAX program could "
            "carry; export the program with stateless random numbers"
        )
    return rng_uniform(a, b, ctx.aval(op).shape)
