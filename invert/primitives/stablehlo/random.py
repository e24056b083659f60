"""Random bits. StableHLO's generators are functions of their state, as JAX's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import ShapeDtypeStruct as Aval
from jax import lax

from invert._errors import InvertError
from invert._private.jax import rng_uniform
from invert.ir.avals import type_text
from invert.stablehlo.ops.attributes import element_dtype
from invert.stablehlo.ops.registry import (
    CALL_ATTRIBUTES,
    CUSTOM_CALL,
    Array,
    Enum,
    Op,
    Shape,
    Value,
    rule,
)

_ALGORITHM = {
    "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
    "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
    "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}
_STATES = (((2,), "uint64"), ((4,), "uint32"))


@rule("stablehlo.rng_bit_generator")
def _rng_bit_generator(state: Array, *, op: Op, rng_algorithm: Enum) -> Sequence[Value]:
    """The next state and the bits."""
    _, out = op.avals()
    return _random_bits(state, out.shape, out.dtype, rng_algorithm)


def _random_bits(state: Value, shape: Shape, dtype: Any, algorithm: str) -> Sequence[Value]:
    if (state.shape, str(state.dtype)) not in _STATES:
        raise InvertError(
            f"rng_bit_generator: JAX takes a state of two uint64 or four uint32 numbers, not "
            f"{type_text(state.dtype, state.shape)}"
        )
    return lax.rng_bit_generator(state, shape, dtype=dtype, algorithm=_ALGORITHM[algorithm])


@rule(f"{CUSTOM_CALL} @stablehlo.dynamic_rng_bit_generator", ignores=CALL_ATTRIBUTES)
def _open_rng_bit_generator(
    state: Array, shape: Shape, *, op: Op, rng_algorithm: Enum
) -> Sequence[Value]:
    dtype: Any = element_dtype(op.result_types()[1])
    return _random_bits(state, shape, dtype, rng_algorithm)


@rule("stablehlo.rng")
def _rng(a: Array, b: Array, shape: Value, *, out: Aval, rng_distribution: Enum) -> Value:
    """Stateful and of unspecified algorithm: `lax.rng_uniform`, JAX's own primitive for it."""
    if rng_distribution != "UNIFORM":
        raise InvertError(
            "stablehlo.rng with the normal distribution has no state that a JAX program could "
            "carry; export the program with stateless random numbers"
        )
    return rng_uniform(a, b, out.shape)
