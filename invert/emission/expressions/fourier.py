"""Fourier transforms as functions of `jnp.fft`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from jax import lax

from invert._private.jax import open_jaxpr
from invert.emission.expressions.proposals import Proposal, placeholder
from invert.emission.expressions.writer import Writer
from invert.emission.python.syntax import call, number, tuple_of
from invert.ir.graph import Graph, is_var
from invert.ir.types import Eqn

_PREFIXES: Mapping[lax.FftType, str] = {
    lax.FftType.FFT: "",
    lax.FftType.IFFT: "i",
    lax.FftType.RFFT: "r",
    lax.FftType.IRFFT: "ir",
}
# Of one axis, of two, of more.
_SUFFIXES = ("fft", "fft2", "fftn")
_NOUN = "spectrum"


def calls(eqn: Eqn, x: ast.expr, *, sized: bool = False) -> Iterator[ast.expr]:
    """Functions of the last axes of `x` that may trace to a call of `lax.fft`.

    **Arguments:**

    - `sized`: whether the length is given, to which they pad or cut `x`.
    """
    body = [e for e in open_jaxpr(eqn.params["jaxpr"]).eqns if e.primitive is lax.fft_p]
    if len(body) != 1:
        return
    lengths, kind = body[0].params["fft_lengths"], body[0].params["fft_type"]
    count = len(lengths)
    function = f"jnp.fft.{_PREFIXES[kind]}{_SUFFIXES[min(count, 3) - 1]}"
    if sized:
        if count == 1 and isinstance(lengths[0], int):
            yield call(function, x, n=number(lengths[0]))
        return
    yield call(function, x)
    if count > 2:
        axes = tuple_of(number(i) for i in range(-count, 0))
        yield call(function, x, axes=axes)


def to_length(eqn: Eqn, graph: Graph, writer: Writer) -> Iterator[Proposal]:
    """`jnp.fft.rfft(x, n=32)`, which pads or cuts `x` to the length first."""
    if eqn.params["name"] != "fft":
        return
    made = graph.producer(eqn.invars[0], "jit", "pad", "slice")
    if made is None or not is_var(x := made.invars[0]):
        return
    for expression in calls(eqn, placeholder(), sized=True):
        yield Proposal(expression, (x,), _NOUN)
