"""Calls of functions copied into files, with arguments from the traced programs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from invert._private.jax import open_jaxpr
from invert.emission.expressions import literals
from invert.emission.python.nouns import PRODUCT
from invert.emission.python.syntax import call
from invert.ir import fast, jaxprs, kinds, philox
from invert.ir.types import Eqn, JaxFunction

# By their names in a program.
FUNCTIONS: Mapping[str, JaxFunction] = MappingProxyType({**fast.FUNCTIONS, **philox.FUNCTIONS})
# Functions whose last argument is the shape of the result.
_SHAPED = frozenset(("stateless_normal", "stateless_uniform"))
# Names for the results of functions with several.
_RESULTS = {"stateless_key": ("key", "counter"), "sincosf": ("sine", "cosine"),
            "two_pass_argmax": ("index",), "two_pass_argmin": ("index",),
            "flat_product": (PRODUCT,)}  # fmt: skip


def candidate(eqn: Eqn, args: Sequence[ast.expr]) -> ast.expr | None:
    """The call that may have traced to the equation, if any."""
    name = eqn.params["name"]
    if name in _SHAPED:
        return call(name, *args, literals.shape(eqn.outvars[0].aval.shape))
    if name in philox.FUNCTIONS:
        return call(name, *args)
    read = _READ.get(name)
    if read is None or not eqn.invars:
        return None
    eqns = list(jaxprs.equations(open_jaxpr(eqn.params["jaxpr"])))
    found = read(eqn, eqns)
    return None if found is None else call(name, *args, *map(literals.value, found))


def nouns(name: str) -> Sequence[str]:
    """Names for the results of a call."""
    return _RESULTS.get(name) or (name.rpartition("_")[2],)


def _padding(eqns: Sequence[Eqn], rank: int) -> tuple[Any, ...]:
    pads = [e.params["padding_config"] for e in eqns if e.primitive.name == "pad"]
    return tuple(map(tuple, pads[0])) if pads else ((0, 0, 0),) * rank


def _depthwise(eqn: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    rank = len(eqn.invars[0].aval.shape)
    slices = [e.params for e in eqns if e.primitive.name == "slice"]
    slices = [p for p in slices if len(p["start_indices"]) == rank]
    if not slices:
        return None
    strides = tuple((slices[0]["strides"] or (1,) * rank)[1:-1])
    return strides, _padding(eqns, rank)[1:-1], _dilation(slices, rank)


def _dilation(slices: Sequence[Mapping[str, Any]], rank: int) -> tuple[int, ...]:
    """The dilation of a window, from where its shifted slices begin."""
    starts = [[p["start_indices"][i] for p in slices] for i in range(1, rank - 1)]
    return tuple(min((n for n in found if n), default=1) for found in starts)


def _convolved(eqn: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    """The padding and the dilation of a convolution, or of the shifted slices in its place."""
    rank = len(eqn.invars[0].aval.shape)
    for one in (e.params for e in eqns if e.primitive.name == "conv_general_dilated"):
        return tuple(map(tuple, one["padding"])), tuple(one["rhs_dilation"])
    slices = [e.params for e in eqns if e.primitive.name == "slice"]
    padding = tuple((low, high) for low, high, _ in _padding(eqns, rank)[1 : rank - 1])
    return padding, _dilation(slices, rank)


def _winograd(eqn: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    """The padding. That of the tiles is larger by one behind odd sizes."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    starts = [low for low, _, _ in _padding(eqns, len(before))]
    sizes = list(zip(before, after, starts, strict=True))[1:-1]
    return (tuple((low, m - n + 2 - low) for n, m, low in sizes),)


def _grouped(_: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    convs = [e.params for e in eqns if e.primitive.name == "conv_general_dilated"]
    if not convs:
        return None
    one = convs[0]
    padding = tuple(map(tuple, one["padding"]))
    return len(convs), tuple(one["window_strides"]), padding, tuple(one["rhs_dilation"])


def _strided(_: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    convs = [e.params for e in eqns if e.primitive.name == "conv_general_dilated"]
    return (tuple(convs[0]["window_strides"]),) if convs else None


def _pool(eqn: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    rank = len(eqn.invars[0].aval.shape)
    window, strides = [1] * rank, [1] * rank
    for part in eqns:
        if part.primitive.name == "slice":
            before, after = part.invars[0].aval.shape, part.outvars[0].aval.shape
            step = part.params["strides"] or (1,) * rank
            for axis in (i for i in range(rank) if before[i] != after[i]):
                window[axis] += 1
                strides[axis] = step[axis]
    window = [n - 1 if n > 1 else 1 for n in window]
    padding = tuple((low, high) for low, high, _ in _padding(eqns, rank))
    return tuple(window), tuple(strides), padding


def _arg(_: Eqn, eqns: Sequence[Eqn]) -> tuple[Any, ...] | None:
    axes = [e.params["dimension"] for e in eqns if e.primitive.name == "iota"]
    return (axes[0], eqns[-1].outvars[0].aval.dtype) if axes else None


def _flat(eqn: Eqn, _: Sequence[Eqn]) -> tuple[Any, ...] | None:
    if kinds.computes(eqn) != "dot_general":
        return None
    return (len(kinds.product_axes(eqn)[0][0]),)


_READ: Mapping[str, Callable[[Eqn, Sequence[Eqn]], tuple[Any, ...] | None]] = {
    "depthwise_conv": _depthwise,
    "shifted_conv": _depthwise,
    "grouped_conv": _grouped,
    "strided_conv": _strided,
    "narrow_conv": _convolved,
    "paired_conv": _convolved,
    "winograd_conv": _winograd,
    "max_pool": _pool,
    "sum_pool": _pool,
    "flat_product": _flat,
    "two_pass_argmax": _arg,
    "two_pass_argmin": _arg,
}
