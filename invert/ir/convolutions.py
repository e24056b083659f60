"""Convolutions as an author would write them: paddings and layouts as arguments."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._private.jax import dce
from invert.ir.graph import Graph, is_var
from invert.ir.passes import in_place_of
from invert.ir.types import Atom, Eqn, Jaxpr, Literal, Value, Var
from invert.ir.wrappers import unwrapped


def with_arguments(jaxpr: Jaxpr) -> Jaxpr:
    """Fold `pad` and `transpose` into the arguments of the convolutions that follow.

    Results stay the same bit for bit, and so do the derivatives of convolutions with strides.
    Without strides, derivatives may round differently: if a program pads such a convolution, all
    its paddings stay. Transposed convolutions take their kernel as `transpose_kernel` expects it.
    """
    if not any(e.primitive is lax.conv_general_dilated_p for e in jaxpr.eqns):
        return jaxpr
    plain = unwrapped(jaxpr)  # `jnp.pad` is a call
    graph = Graph(plain)
    convolutions = graph.by_primitive["conv_general_dilated"]
    instead = {eqn: _with_plain_kernel(eqn, graph) for eqn in convolutions}
    padded = [(eqn, pad) for eqn in convolutions if (pad := _padding(eqn, graph)) is not None]
    if all(_is_exact(eqn) for eqn, _ in padded):
        for eqn, pad in padded:
            *others, last = instead[eqn]
            instead[eqn] = [*others, _with_padding(last, pad)]
    if all(new == [old] for old, new in instead.items()):
        return jaxpr
    return dce(plain.replace(eqns=[e for old in plain.eqns for e in instead.get(old, [old])]))


def _padding(eqn: Eqn, graph: Graph) -> Eqn | None:
    """The equation that pads the images of a convolution with zeros."""
    pad = graph.alone(eqn.invars[0], "pad")
    if pad is None or not isinstance(pad.invars[1], Literal) or np.any(pad.invars[1].val != 0):
        return None
    dimensions, config = eqn.params["dimension_numbers"], pad.params["padding_config"]
    outer = [config[i] for i in dimensions.lhs_spec[:2]]
    whole = all(low >= 0 and high >= 0 and not inside for low, high, inside in config)
    plain = {*eqn.params["lhs_dilation"]} == {1}
    return pad if plain and whole and outer == [(0, 0, 0)] * 2 else None


def _is_exact(eqn: Eqn) -> bool:
    """Return whether XLA rounds the derivatives alike for both forms of padding."""
    params = eqn.params
    kernel = eqn.invars[1].aval.shape
    single = (
        params["feature_group_count"] == 1 or kernel[params["dimension_numbers"].rhs_spec[1]] == 1
    )
    return single and params["batch_group_count"] == 1 and min(params["window_strides"]) > 1


def _with_padding(eqn: Eqn, pad: Eqn) -> Eqn:
    config = pad.params["padding_config"]
    added = [config[i][:2] for i in eqn.params["dimension_numbers"].lhs_spec[2:]]
    sums = zip(eqn.params["padding"], added, strict=True)
    padding = tuple((low + more, high + most) for (low, high), (more, most) in sums)
    params = {**eqn.params, "padding": padding}
    return eqn.replace(invars=[pad.invars[0], *eqn.invars[1:]], params=params)


def _with_plain_kernel(eqn: Eqn, graph: Graph) -> list[Eqn]:
    """The convolution with its kernel as stored, after the equations of that kernel."""
    numbers = eqn.params["dimension_numbers"]
    swap = graph.alone(eqn.invars[1], "transpose")
    spec, kernel = numbers.rhs_spec, eqn.invars[1]
    if swap is not None:
        kernel = swap.invars[0]
        spec = tuple(swap.params["permutation"][i] for i in spec)
    flip = graph.alone(kernel, "rev")
    flipped = flip is not None and sorted(flip.params["dimensions"]) == sorted(spec[2:])
    dilated = {*eqn.params["lhs_dilation"]} != {1} == {*eqn.params["window_strides"]}
    ungrouped = eqn.params["feature_group_count"] == eqn.params["batch_group_count"] == 1
    if flip is not None and flipped and dilated and ungrouped and is_var(flip.invars[0]):
        return _transposed(eqn, flip.invars[0], spec)
    if swap is None:
        return [eqn]
    return [_by(eqn, kernel, spec)]


def _by(eqn: Eqn, kernel: Atom, spec: Sequence[int]) -> Eqn:
    numbers = eqn.params["dimension_numbers"]._replace(rhs_spec=tuple(spec))
    return eqn.replace(
        invars=[eqn.invars[0], kernel], params={**eqn.params, "dimension_numbers": numbers}
    )


def _transposed(eqn: Eqn, kernel: Var, spec: Sequence[int]) -> list[Eqn]:
    """The equations of `lax.conv_transpose(..., transpose_kernel=True)`."""
    outputs, inputs, *spatial = spec
    numbers = eqn.params["dimension_numbers"]._replace(rhs_spec=(inputs, outputs, *spatial))

    def convolved(x: Value, kernel: Value) -> Value:
        for axis in spatial:
            kernel = lax.rev(kernel, (axis,))
        swapped = jnp.swapaxes(kernel, outputs, inputs)
        return eqn.primitive.bind(x, swapped, **{**eqn.params, "dimension_numbers": numbers})

    return in_place_of(eqn, [eqn.invars[0], kernel], convolved)
