"""`lax.associative_scan`, which JAX unrolls into slices, is written as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert


def _gated(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def _scaled(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0][..., None] + right[1]


def _emitted(function: Callable[..., Any], *specs: jax.ShapeDtypeStruct) -> invert.Emission:
    return invert.from_exported(jax.export.export(jax.jit(function))(*specs)).emit(loader=False)


def _agree(emission: invert.Emission, function: Callable[..., Any], *args: Any) -> None:
    """Results and derivatives are equal, bit for bit."""
    model: Any = emission.model

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        def total(*args: Any) -> Any:
            return sum(jnp.sum(jnp.sin(jnp.abs(y))) for y in jax.tree.leaves(f(*args)))

        return jax.jit(jax.value_and_grad(total, tuple(range(len(args)))))

    pairs = (model(*args), jax.jit(function)(*args)), (loss(model)(*args), loss(function)(*args))
    for one, other in pairs:
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one), jax.tree.leaves(other))


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch", [2, "b"])
def test_a_linear_recurrence(count: int, reverse: bool, batch: int | str) -> None:
    """As in the layers of an S5, an LRU or a Mamba, which read the second result only."""

    def function(a: Any, b: Any) -> Any:
        return lax.associative_scan(_gated, (a, b), axis=1, reverse=reverse)[1]

    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"{batch}, {count}, 3"), jnp.float32)
    emission = _emitted(function, spec, spec)
    options = "reverse=True, axis=1" if reverse else "axis=1"
    assert f"_, scanned = lax.associative_scan(combine, (a, b), {options})" in emission.source
    assert "lax.pad" not in emission.source
    rng = np.random.default_rng(count)
    _agree(emission, function, *(jnp.float32(rng.normal(size=(2, count, 3))) for _ in range(2)))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a: lax.associative_scan(jnp.maximum, a), [(9, 2)]),
        (lambda a: lax.associative_scan(jnp.add, a, axis=1), [(2, 8)]),
        (lambda a, b: lax.associative_scan(_gated, (a, b)), [(8, 2), (8, 2)]),
        (lambda a, b: lax.associative_scan(_scaled, (a, b))[1], [(8, 2), (8, 2, 3)]),
        # One after the other, as layers are, and a parameter that the function closes over.
        (
            lambda a, b: lax.associative_scan(
                _gated, (a, lax.associative_scan(_gated, (a, b), axis=0)[1]), axis=0
            )[1],
            [(11, 2), (11, 2)],
        ),
        (
            lambda a, w: lax.associative_scan(lambda x, y: x + w[0, 0] * (y * x), a),
            [(8, 2), (1, 1)],
        ),
    ],
)
def test_functions_that_combine(function: Callable[..., Any], args: Any) -> None:
    emission = _emitted(function, *(jax.ShapeDtypeStruct(n, jnp.float32) for n in args))
    assert "lax.associative_scan(combine" in emission.source
    assert "lax.pad" not in emission.source
    rng = np.random.default_rng(0)
    _agree(emission, function, *(jnp.float32(rng.normal(size=n)) for n in args))


def _changed(a: Any, b: Any) -> Any:
    """As a scan, but for one number deep inside."""
    pairs = _gated((a[:-1:2], b[:-1:2]), (a[1::2], b[1::2]))
    odd = lax.associative_scan(_gated, (pairs[0], pairs[1] + 0.5))
    even = _gated((odd[0][:-1], odd[1][:-1]), (a[2::2], b[2::2]))[1]
    even = jnp.concatenate([b[:1], even])
    return lax.pad(even, 0.0, ((0, 1, 1), (0, 0, 0))) + lax.pad(odd[1], 0.0, ((1, 0, 1), (0, 0, 0)))


def test_what_only_looks_like_a_scan() -> None:
    spec = jax.ShapeDtypeStruct((16, 2), jnp.float32)
    emission = _emitted(_changed, spec, spec)
    # The inner scan is one; what interleaves it is not.
    assert "lax.associative_scan(combine" in emission.source
    assert "lax.pad" in emission.source
    rng = np.random.default_rng(0)
    _agree(emission, _changed, *(jnp.float32(rng.normal(size=(16, 2))) for _ in range(2)))


def test_a_value_inside_a_scan_that_is_used() -> None:
    def function(a: Any) -> Any:
        pairs = a[:-1:2] + a[1::2]
        return lax.associative_scan(jnp.add, a), pairs

    emission = _emitted(function, jax.ShapeDtypeStruct((8, 2), jnp.float32))
    assert "lax.associative_scan(" in emission.source
    _agree(emission, function, jnp.float32(np.random.default_rng(0).normal(size=(8, 2))))


def test_a_call_of_that_name() -> None:
    """A function of the program that does more is a function of the text."""

    def associative_scan(a: Any) -> Any:
        return 2.0 * lax.associative_scan(jnp.add, a) + 1.0

    emission = _emitted(jax.jit(associative_scan), jax.ShapeDtypeStruct((8, 2), jnp.float32))
    assert "lax.associative_scan(combine" in emission.source
    assert "2.0 * " in emission.source
    _agree(emission, associative_scan, jnp.float32(np.arange(16).reshape(8, 2)))
