"""Axes of size one around reductions and convolutions."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert._private.jax import open_jaxpr, trace_closed
from invert.ir import traced_form
from invert.ir.interpret import evaluate
from invert.ir.types import Jaxpr
from invert.ir.unit_axes import with_flat_convolutions, with_kept_axes, with_late_axes

_X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


def _interactions(x: jax.Array) -> jax.Array:
    both = jnp.square(jnp.sum(x, 1)) - jnp.sum(jnp.square(x), 1)
    return jnp.sum(both, -1, keepdims=True)


def _twice(x: jax.Array) -> jax.Array:
    return x - jnp.max(jnp.exp(jnp.sum(x, 2)) + 1, 1)[:, None, None]


@pytest.mark.parametrize("function", [_interactions, _twice])
def test_a_reduction_of_what_reductions_made_keeps_its_operand(
    function: Callable[[jax.Array], jax.Array],
) -> None:
    """The operand is not among the values that keep the axes."""
    program = open_jaxpr(traced_form.strong(trace_closed(function, _X)))
    result = evaluate(program.eqns, {program.invars[0]: _X})(program.outvars[0])
    np.testing.assert_allclose(result, function(_X), rtol=1e-6)


def _rank(program: Jaxpr, name: str) -> int:
    """The rank of the result of the only such equation."""
    (eqn,) = (e for e in program.eqns if e.primitive.name == name)
    return len(eqn.outvars[0].aval.shape)


def _normalized(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.sum(jnp.square(x), -1) + 1)[..., None]


def _normalized_along_two(x: jax.Array) -> jax.Array:
    total = jnp.sum(jnp.square(x), (0, 2))
    return x * lax.rsqrt(total + 1)[None, :, None]


def _with_its_norm(x: jax.Array) -> jax.Array:
    scale = lax.rsqrt(jnp.sum(jnp.square(x), -1) + 1)
    return x * scale[..., None] + jnp.tile(scale[0], 5).reshape(4, 5)


@pytest.mark.parametrize(
    ("function", "rank", "kept"),
    [(_normalized, 2, 3), (_normalized_along_two, 1, 3), (_with_its_norm, 2, 2)],
)
def test_reductions_keep_axes_that_all_uses_add(
    function: Callable[[jax.Array], jax.Array], rank: int, kept: int
) -> None:
    program = open_jaxpr(trace_closed(function, _X))
    again = with_kept_axes(program)
    assert _rank(program, "rsqrt") == rank and _rank(again, "rsqrt") == kept
    results = [evaluate(p.eqns, {p.invars[0]: _X})(p.outvars[0]) for p in (program, again)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("place", "rank"), [((None, None, ...), 1), ((..., None, None), 3)])
def test_leading_axes_are_added_late(place: tuple[object, ...], rank: int) -> None:
    """Those behind others are not what broadcasting adds."""
    program = open_jaxpr(trace_closed(lambda v: lax.rsqrt(v[place] + 1), _X[0, 0]))
    again = with_late_axes(program)
    assert _rank(program, "rsqrt") == 3 and _rank(again, "rsqrt") == rank
    results = [evaluate(p.eqns, {p.invars[0]: _X[0, 0]})(p.outvars[0]) for p in (program, again)]
    np.testing.assert_array_equal(*results)


_IMAGES = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize(
    ("axis", "options", "flat"),
    [
        (1, {"padding": [(0, 0), (2, 0)], "rhs_dilation": (1, 2)}, True),
        (2, {"padding": [(1, 1), (0, 0)], "window_strides": (2, 1)}, True),
        (1, {"padding": "VALID", "feature_group_count": 5}, True),
        # A padding makes rows of zeros.
        (1, {"padding": [(1, 1), (0, 0)]}, False),
    ],
)
def test_sequences_are_convolved_as_sequences(axis: int, options: dict, flat: bool) -> None:
    kernel = np.random.default_rng(1).normal(size=(2, 5, 5)).astype(np.float32)
    kernel = kernel[:, :1] if "feature_group_count" in options else kernel
    kernel = np.expand_dims(kernel, axis - 1)
    options = {"window_strides": (1, 1), **options}

    def convolved(x: jax.Array) -> jax.Array:
        images = jnp.expand_dims(x, axis)
        y = lax.conv_general_dilated(images, kernel, dimension_numbers=_IMAGES, **options)
        return y + jnp.arange(5)  # a range has no operand

    program = open_jaxpr(trace_closed(convolved, _X))
    again = with_flat_convolutions(program)
    ranks = [len(e.invars[0].aval.shape) for e in again.eqns if "conv_general" in e.primitive.name]
    assert ranks == [3 if flat else 4]
    values = zip(
        (*again.constvars, *again.invars), (kernel, _X)[-1 - len(again.constvars) :], strict=True
    )
    read = evaluate(again.eqns, dict(values))
    np.testing.assert_allclose(read(again.outvars[0]), convolved(_X), rtol=1e-5, atol=1e-6)
