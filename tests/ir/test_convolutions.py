"""Folding paddings and layouts into convolutions preserves results bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from invert.ir.convolutions import with_arguments

_NUMBERS = ("NHWC", "HWIO", "NHWC")


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


def _same(old: Any, new: Any, *args: Any) -> None:
    """Compare functions and derivatives, compiled and not, also at infinities and NaN."""
    odd = [np.array(a) for a in args]
    for a, number in zip(odd, (np.inf, np.nan), strict=False):
        a.flat[1] = number
    for given in (args, odd):
        for run in (lambda f: f, jax.jit):
            np.testing.assert_array_equal(run(old)(*given), run(new)(*given))
        (cotangent,) = _arrays(jax.eval_shape(old, *given).shape)

        def gradients(f: Any, given: Any = given, cotangent: Any = cotangent) -> Any:
            return jax.jit(lambda *a: jax.vjp(f, *a)[1](cotangent))(*given)

        jax.tree.map(np.testing.assert_array_equal, gradients(old), gradients(new))


def _primitives(jaxpr: Any) -> list[str]:
    return [e.primitive.name for e in jaxpr.eqns]


def _rewritten(run: Any, *args: Any) -> tuple[list[str], Any]:
    closed = jax.make_jaxpr(run)(*args)
    jaxpr = with_arguments(closed.jaxpr)
    return _primitives(jaxpr), lambda *a: jax.core.eval_jaxpr(jaxpr, closed.consts, *a)[0]


@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [
        (3, (2, 2), ((0, 1), (0, 1))),
        (7, (2, 2), ((3, 3), (3, 3))),
        (5, (3, 2), ((1, 2), (4, 0))),
        (1, (2, 4), ((1, 0), (0, 1))),
    ],
)
def test_paddings_before_convolutions_with_strides(
    kernel: int, strides: tuple[int, int], pads: Any, groups: int
) -> None:
    def run(x: Any, w: Any) -> Any:
        x = lax.pad(x, 0.0, ((0, 0, 0), *((a, b, 0) for a, b in pads), (0, 0, 0)))
        return lax.conv_general_dilated(
            x, w, strides, "VALID", dimension_numbers=_NUMBERS, feature_group_count=groups
        )

    args = _arrays((2, 11, 14, 6), (kernel, kernel, 6 // groups, 12))
    names, new = _rewritten(run, *args)
    assert names == ["conv_general_dilated"]
    _same(run, new, *args)


@pytest.mark.parametrize(
    ("strides", "groups", "number", "low"),
    [((1, 1), 1, 0.0, 1), ((2, 2), 2, 0.0, 1), ((2, 2), 1, 1.0, 1), ((2, 2), 1, 0.0, -1)],
)
def test_paddings_that_stay(strides: tuple[int, int], groups: int, number: float, low: int) -> None:
    """Sums would round differently, or the padding is not one that a convolution adds."""

    def run(x: Any, w: Any) -> Any:
        x = lax.pad(x, number, ((0, 0, 0), (low, 1, 0), (low, 1, 0), (0, 0, 0)))
        return lax.conv_general_dilated(
            x, w, strides, "VALID", dimension_numbers=_NUMBERS, feature_group_count=groups
        )

    names, _ = _rewritten(run, *_arrays((2, 9, 9, 4), (3, 3, 4 // groups, 6)))
    assert names == ["pad", "conv_general_dilated"]


def test_one_padding_that_stays_keeps_the_others() -> None:
    def run(x: Any, w: Any) -> Any:
        for stride in (2, 1):
            x = lax.pad(x, 0.0, ((0, 0, 0), (1, 1, 0), (1, 1, 0), (0, 0, 0)))
            x = lax.conv_general_dilated(
                x, w, (stride, stride), "VALID", dimension_numbers=_NUMBERS
            )
        return x

    names, _ = _rewritten(run, *_arrays((2, 9, 9, 4), (3, 3, 4, 4)))
    assert names.count("pad") == 2


@pytest.mark.parametrize("channels", [1, 6])
def test_the_layout_of_a_kernel(channels: int) -> None:
    def run(x: Any, w: Any) -> Any:
        w = jnp.swapaxes(w, 2, 3)
        return lax.conv_general_dilated(
            x, w, (1, 2), "SAME", dimension_numbers=_NUMBERS, feature_group_count=channels
        )

    args = _arrays((2, 8, 9, channels), (3, 3, channels, 1))
    names, new = _rewritten(run, *args)
    assert names == ["conv_general_dilated"]
    _same(run, new, *args)


@pytest.mark.parametrize("strides", [(2, 2), (3, 1)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_transposed_convolutions(strides: tuple[int, int], padding: str) -> None:
    def run(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWOI", "NHWC")
        return lax.conv_transpose(
            x, lax.rev(w, (0, 1)), strides, padding, dimension_numbers=numbers
        )

    def plain(x: Any, w: Any) -> Any:
        return lax.conv_transpose(x, w, strides, padding, transpose_kernel=True)

    args = _arrays((2, 5, 6, 4), (3, 2, 8, 4))
    names, new = _rewritten(run, *args)
    assert names == _primitives(jax.make_jaxpr(plain)(*args).jaxpr)
    _same(run, new, *args)
    _same(run, plain, *args)


def test_a_kernel_that_is_used_twice_stays() -> None:
    def run(x: Any, w: Any) -> Any:
        w = jnp.swapaxes(w, 2, 3)
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=_NUMBERS)
        return y, w

    closed = jax.make_jaxpr(run)(*_arrays((2, 8, 9, 4), (3, 3, 6, 4)))
    assert _primitives(with_arguments(closed.jaxpr)) == _primitives(closed.jaxpr)
