"""Random equations of `tf.einsum`: values, gradients and dtypes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.api.calls import PLAIN
from tests.tf.ops.driver import QUICK, TOLERANCE, pullback

_SIZES = dict(zip("abcdefg", (2, 3, 4, 2, 3, 2, 3), strict=True))
_DTYPES = ("float32", "float64", "complex64", "complex128", "int32")


def _equation(g: np.random.Generator) -> tuple[str, list[tuple[int, ...]]]:
    """An equation of one to three operands, with their shapes.

    Labels are summed, kept, shared, or repeated within an operand; an ellipsis covers axes that are
    broadcast where their size is one.
    """
    count = int(g.integers(1, 4))
    terms = ["".join(g.choice(list(_SIZES), int(g.integers(1, 4)))) for _ in range(count)]
    labels = sorted(set("".join(terms)))
    kept = [label for label in labels if g.random() < 0.5]
    output = "".join(g.permutation(kept)) if kept else ""
    shapes = [tuple(_SIZES[label] for label in term) for term in terms]
    if g.random() < 0.4:
        axes = [int(n) for n in g.integers(1, 4, int(g.integers(1, 3)))]
        stretched = [tuple(n if g.random() < 0.6 else 1 for n in axes) for _ in terms]
        shapes = [a + s for a, s in zip(stretched, shapes, strict=True)]
        terms = [f"...{term}" for term in terms]
        output = f"...{output}"
    return f"{','.join(terms)}->{output}", shapes


def _draw(g: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int32":
        return g.integers(-4, 5, shape).astype(dtype)
    x = g.normal(size=shape)
    return (x + 1j * g.normal(size=shape) if dtype.startswith("complex") else x).astype(dtype)


def _check(seed: int, dtype: str) -> None:
    g = np.random.default_rng(seed)
    equation, shapes = _equation(g)
    xs = [_draw(g, shape, dtype) for shape in shapes]

    def fn(*operands: Any) -> Any:
        return tf.einsum(equation, *operands)

    module = invert.convert(tf.function(fn, autograph=False), *xs, config=PLAIN)
    tensors = [tf.constant(x) for x in xs]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = fn(*tensors)
    weight = _draw(g, y.shape, dtype)
    slopes = []
    if dtype != "int32":
        found = tape.gradient(y, tensors, output_gradients=tf.constant(weight))
        slopes = [s.numpy() for s in found]

    def run(*operands: Any) -> Any:
        where = range(len(slopes))
        return [module(*operands), *pullback(lambda *v: [module(*v)], operands, where, [weight])]

    with jax.enable_x64(True):
        got = jax.jit(run, compiler_options=QUICK)(*xs)
    for ours, theirs in zip(got, [y.numpy(), *slopes], strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, equation
        rtol = TOLERANCE.get(dtype, 0)
        np.testing.assert_allclose(ours, theirs, rtol, 10 * rtol, err_msg=equation)


@pytest.mark.parametrize("seed", range(4))
def test_random_equations(seed: int) -> None:
    _check(seed, _DTYPES[seed])


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize("seed", range(4, 204))
def test_more_random_equations(seed: int) -> None:
    _check(seed, _DTYPES[seed % len(_DTYPES)])
