"""Arguments and cotangents at which two gradients are compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from invert._private.jax import consts_of, open_jaxpr
from invert.ir.graph import is_var
from invert.ir.jaxprs import equations
from invert.ir.numbers import random_value
from invert.ir.types import AnyJaxpr, Aval

_Draw = Callable[[Sequence[int]], np.ndarray]

# The most distinct numbers of a program that are sampled, and the most samples they take.
_MAX_NUMBERS = 64
_MAX_TILES = 4
# Each takes two samples, of complementary arguments.
_MAX_BITS = 3
# Larger arguments round too much for a comparison; gradients are mostly linear in cotangents.
_MAX_ARGUMENT = 1e5
_MAX_COTANGENT = 1e12


def samples(
    avals: Sequence[Aval], cotangents: int, program: AnyJaxpr | None = None
) -> Iterator[list[np.ndarray]]:
    """Values at which rules differ: ties, zeros, steps, bounds, large numbers.

    The last `cotangents` of `avals` are cotangents. With `program`, its own numbers are sampled
    too, and values between and beyond them, since a rule may clip at any number.
    """
    rng = np.random.default_rng(0)
    makers: list[_Draw] = [
        lambda shape: rng.standard_normal(shape),
        lambda shape: np.zeros(shape),
        lambda shape: np.ones(shape),
        lambda shape: rng.integers(-3, 4, shape),
        lambda shape: rng.integers(-8, 9, shape),
        lambda shape: np.full(shape, 100.0),
        lambda shape: np.full(shape, -100.0),
        lambda shape: 30.0 * rng.standard_normal(shape),
    ]
    for make in makers:
        yield _values(rng, avals, cotangents, make, _four_times(rng))
    if program is not None:
        yield from _at_numbers(rng, avals, cotangents, _numbers(program))
    # A gradient that is linear in its cotangents is zero.
    yield _values(rng, avals, cotangents, rng.standard_normal, np.zeros)
    ties = _values(
        rng, avals, cotangents, lambda shape: rng.integers(-1, 2, shape), _four_times(rng)
    )
    yield ties


def with_zeros(avals: Sequence[Aval], cotangents: int) -> Iterator[list[np.ndarray]]:
    """Random arguments, of which some are zero, for kinks at zero behind weights that are not.

    Neighbours differ in some sample, as weights and biases are neighbours.
    """
    rng = np.random.default_rng(0)
    moving = [i for i, a in enumerate(avals[:-cotangents]) if jnp.issubdtype(a.dtype, jnp.inexact)]
    bits = min((len(moving) - 1).bit_length(), _MAX_BITS)
    for bit, is_set in itertools.product(range(bits), (0, 1)):
        values = _values(rng, avals, cotangents, rng.standard_normal, _four_times(rng))
        for k, i in enumerate(moving):
            if k >> bit & 1 == is_set:
                values[i] = np.zeros_like(values[i])
        yield values


def special(avals: Sequence[Aval], cotangents: int) -> Iterator[list[np.ndarray]]:
    """NaN, infinities and zeros among ordinary numbers, in the arguments or the cotangents."""
    rng = np.random.default_rng(0)
    values = np.array([np.nan, np.inf, -np.inf, 1.5, 0.0])
    for tiles in (_Tiles(rng, values, offset) for offset in range(len(values))):
        yield _values(rng, avals, cotangents, tiles, _four_times(rng))
        yield _values(rng, avals, cotangents, rng.standard_normal, tiles)


def _four_times(rng: np.random.Generator) -> _Draw:
    return lambda shape: 4 * rng.standard_normal(shape)


@np.errstate(over="ignore")  # in narrow types
def _values(
    rng: np.random.Generator,
    avals: Sequence[Aval],
    cotangents: int,
    make: _Draw,
    make_cotangent: _Draw,
) -> list[np.ndarray]:
    values = []
    for i, aval in enumerate(avals):
        if i >= len(avals) - cotangents:
            x = random_value(rng, aval, make_cotangent)
        elif jnp.issubdtype(aval.dtype, jnp.integer):
            # Indices: mostly in bounds, but far outside where the other numbers are large.
            x = np.asarray(make(aval.shape))
            large = np.abs(x).max(initial=0) == 100
            fits = large and jnp.issubdtype(aval.dtype, jnp.signedinteger)
            x = x.astype(aval.dtype) if fits else random_value(rng, aval)
        else:
            x = random_value(rng, aval, make)
        values.append(x)
    return values


class _Tiles:
    """Draws arrays that hold all of `values` in a random order, or a part of them."""

    def __init__(self, rng: np.random.Generator, values: np.ndarray, offset: int):
        self.rng, self.values, self.offset = rng, values, offset

    def __call__(self, shape: Sequence[int]) -> np.ndarray:
        size = math.prod(shape)
        tiled = np.resize(np.roll(self.values, -self.offset * size), size)
        return self.rng.permutation(tiled).reshape(shape)


def _at_numbers(
    rng: np.random.Generator, avals: Sequence[Aval], cotangents: int, numbers: Sequence[float]
) -> Iterator[list[np.ndarray]]:
    inexact = [a for a in avals if jnp.issubdtype(a.dtype, jnp.inexact)]
    smallest = min((math.prod(a.shape) for a in inexact if math.prod(a.shape)), default=0)
    if not (numbers and smallest):
        return
    ends = np.array([0.0, *numbers])
    off = np.array([*(ends[1:] + ends[:-1]) / 2, 10 * ends[-1]])
    at = np.array([*ends[1:], *off])
    at, off = (rng.permutation([*x, *-x]) for x in (at[at <= _MAX_ARGUMENT], off))
    for offset in range(min(math.ceil(max(len(at), len(off)) / smallest), _MAX_TILES)):
        if len(at):
            yield _values(rng, avals, cotangents, _Tiles(rng, at, offset), _four_times(rng))
        # Cotangents are never at a number: those of the comparison are perturbed, and a rule that
        # jumps there would seem to be badly rounded.
        yield _values(rng, avals, cotangents, rng.standard_normal, _Tiles(rng, off, offset))


def _numbers(program: AnyJaxpr) -> list[float]:
    """The absolute values of the numbers in a program, in order."""
    jaxpr = open_jaxpr(program)
    held = [(a.aval, a.val) for e in equations(jaxpr) for a in e.invars if not is_var(a)]
    held += [(v.aval, c) for v, c in zip(jaxpr.constvars, consts_of(program), strict=False)]
    floats = (x for t, x in held if np.size(x) == 1 and jnp.issubdtype(t.dtype, jnp.floating))
    sizes = {abs(float(np.reshape(x, ()))) for x in floats}
    numbers = sorted(x for x in sizes if 0 < x <= _MAX_COTANGENT)
    return numbers[:: math.ceil(len(numbers) / _MAX_NUMBERS) or 1]
