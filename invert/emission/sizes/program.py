"""The program of a text, with its open dimensions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jax import lax

from invert._private.jax import open_jaxpr
from invert.ir.jaxprs import equations
from invert.ir.sizes import DimSize, Shape, variables
from invert.ir.traced_form import rule_of, strong
from invert.ir.types import AnyJaxpr, Atom, ClosedJaxpr, Eqn, Jaxpr


@dataclasses.dataclass
class Program:
    """The program of a text.

    **Arguments:**

    - `jaxpr`: over constants, parameters and arguments.
    - `dimensions`: the open dimensions by name.
    """

    jaxpr: Jaxpr
    dimensions: dict[str, DimSize] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, program: AnyJaxpr) -> Program:
        """A program with the open dimensions of its arguments."""
        sizes = variables(n for v in open_jaxpr(program).invars for n in shape_of(v))
        return cls(open_jaxpr(program), {str(n): n for n in sizes})

    @functools.cached_property
    def pads(self) -> bool:
        """Return whether a convolution pads its images."""
        convolutions = (
            e for e in equations(self.jaxpr) if e.primitive is lax.conv_general_dilated_p
        )
        return any(side for e in convolutions for pair in e.params["padding"] for side in pair)

    @functools.cached_property
    def halves(self) -> bool:
        """Return whether a strided convolution pads by half its kernel, not as `"SAME"`."""
        every = equations(self.jaxpr)
        return any(
            is_half(e) and max(e.params["window_strides"]) > 1 and not _is_same(e)
            for e in every
            if e.primitive is lax.conv_general_dilated_p
        )

    def shape(self, v: Atom) -> Shape:
        """The shape of a variable; a result of the program may be a literal."""
        return shape_of(v)

    def rule(self, eqn: Eqn) -> ClosedJaxpr | str:
        """The derivative rule of a function, as from `rule_of`."""
        rule = rule_of(eqn)
        return rule if isinstance(rule, str) else strong(rule)


def is_half(eqn: Eqn) -> bool:
    """Return whether a convolution pads by half of its kernel, other than a single pixel."""
    kernel = eqn.invars[1].aval.shape
    sides = [kernel[i] for i in eqn.params["dimension_numbers"].rhs_spec[2:]]
    halves = [(k // 2, k // 2) for k in sides]
    return max(sides) > 1 and [tuple(p) for p in eqn.params["padding"]] == halves


def _is_same(eqn: Eqn) -> bool:
    """Return whether the padding of a convolution is `"SAME"`."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    images, kernel = (v.aval.shape for v in eqn.invars)
    sizes = [images[i] for i in numbers.lhs_spec[2:]]
    sides = [kernel[i] for i in numbers.rhs_spec[2:]]
    if not all(isinstance(n, int) for n in sizes):
        return False
    wanted = lax.padtype_to_pads(sizes, sides, params["window_strides"], "SAME")
    return [*map(tuple, wanted)] == [*map(tuple, params["padding"])]


def together(programs: Sequence[Program]) -> Program:
    """The dimensions of some programs; its jaxpr is that of the first."""
    return Program(programs[0].jaxpr, {n: d for p in programs for n, d in p.dimensions.items()})


def shape_of(v: Atom) -> Shape:
    """The shape of a value; empty if it is not an array."""
    return tuple(getattr(v.aval, "shape", ()))
