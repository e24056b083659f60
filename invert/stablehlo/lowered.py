"""Lowers functions with JAX and raises them again, for comparison with programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from invert._config import Config
from invert._private.jax import from_words, lowered_module, lowered_types, trace_closed, words_of
from invert.ir import jaxprs
from invert.ir.sizes import variables
from invert.ir.types import Aval, ClosedJaxpr, JaxFunction, Value
from invert.stablehlo.program import Program


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A function of arrays, lowered by JAX at some types and not raised yet."""

    program: Program
    avals: Sequence[Aval]
    outs: Sequence[Aval]
    carriers: Sequence[jax.ShapeDtypeStruct]

    def raised(self) -> ClosedJaxpr:
        """The program in canonical form.

        **Raises:** `InvertError`.
        """

        def run(*values: Value) -> list[Value]:
            held = [lax.full(c.shape, False) for c in self.carriers]
            # Lowering replaces keys by words.
            results = self.program(*held, *map(words_of, values))
            return [from_words(r, out.dtype) for r, out in zip(results, self.outs, strict=True)]

        with jax.enable_x64(True):
            return jaxprs.canonicalize(trace_closed(run, *self.avals))


def lower(
    function: JaxFunction,
    avals: Sequence[Aval],
    outs: Sequence[Aval] | None = None,
    *,
    platform: str,
    x64: bool,
) -> Lowered:
    """Lower a function of arrays.

    **Arguments:**

    - `avals`: the types of its arguments, possibly with open sizes.
    - `outs`: the types of its results, if they differ from the traced ones.
    - `x64`: whether it is lowered with 64-bit types enabled.

    **Raises:** JAX's exceptions for functions that it cannot lower.
    """
    with jax.enable_x64(x64):
        carriers, run = _carried(function, avals)
        types = lowered_types(run, *carriers, *avals) if outs is None else outs
        # A result may have more sizes than the arguments, such as the shape of random numbers.
        if len(variables(n for a in (*avals, *types) for n in a.shape)) > len(carriers):
            carriers, run = _carried(function, (*avals, *types))
        module = lowered_module(run, *carriers, *avals, platform=platform)
    return Lowered(Program(module, Config()), avals, types, carriers)


def _carried(
    function: JaxFunction, avals: Sequence[Aval]
) -> tuple[list[jax.ShapeDtypeStruct], JaxFunction]:
    """Types of one more leading argument for each open size, and the function that takes them.

    JAX computes open sizes from those of the arguments, so each must be the size of one.
    """
    sizes = variables(n for a in avals for n in a.shape)
    carriers = [jax.ShapeDtypeStruct((n,), np.bool_) for n in sizes]
    return carriers, (lambda *values: function(*values[len(carriers) :])) if carriers else function


def raised_again(
    function: JaxFunction,
    avals: Sequence[Aval],
    outs: Sequence[Aval] | None = None,
    *,
    platform: str,
    x64: bool,
) -> ClosedJaxpr:
    """A function of arrays, lowered and raised, in canonical form; arguments as for `lower`.

    **Raises:** JAX's exceptions for functions that it cannot lower; `InvertError`.
    """
    return lower(function, avals, outs, platform=platform, x64=x64).raised()
