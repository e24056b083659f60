"""Loops whose number of steps depends on data: what is said where they have no derivative."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import invert

X = np.array([0.5, 0.7, 0.2], np.float32)


def _steps(a: jax.Array) -> jax.Array:
    return jax.lax.while_loop(
        lambda z: jnp.max(jnp.abs(jnp.cos(a * z) - z)) > 1e-6,
        lambda z: jnp.cos(a * z),
        jnp.zeros_like(a),
    )


@jax.custom_vjp
def _fixed_point(a: jax.Array) -> jax.Array:
    return _steps(a)


def _forward(a: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    z = _fixed_point(a)
    return z, (a, z)


def _backward(kept: tuple[jax.Array, jax.Array], ct: jax.Array) -> tuple[jax.Array]:
    a, z = kept
    s = jnp.sin(a * z)
    return (-ct * z * s / (1 + a * s),)


_fixed_point.defvjp(_forward, _backward)


def _implicit(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    with jax.named_scope("equilibrium"):
        z = _fixed_point(w * x)
    return jnp.sum(z), 2 * x


def test_the_note_on_a_loop_without_a_reverse_derivative_names_place_and_remedy() -> None:
    w = jnp.float32(0.3)
    exported = export.export(jax.jit(_implicit))(w, X)
    module = invert.from_exported(exported.serialize())
    (note,) = module.report.notes
    assert "The loop in equilibrium" in note and "serialize(vjp_order=1)" in note
    assert "derivative of its steps" in note
    # What does not pass through the loop has its derivative, as does forward mode.
    assert jax.grad(lambda x: module(w, x)[1].sum())(X).tolist() == [2, 2, 2]
    got = jax.jvp(jax.jit(module), (w, X), (w, X))
    want = jax.jvp(lambda w, x: (jnp.sum(_steps(w * x)), 2 * x), (w, X), (w, X))
    assert all(map(np.array_equal, jax.tree.leaves(got), jax.tree.leaves(want)))


def test_the_note_on_a_loop_in_stablehlo_names_the_remedy() -> None:
    module = invert.from_stablehlo(jax.jit(_fixed_point).lower(X))
    (note,) = module.report.notes
    assert "The loop in main" in note and "StableHLO holds no gradients" in note


def test_a_stored_gradient_needs_no_note() -> None:
    blob = export.export(jax.jit(_fixed_point))(X).serialize(vjp_order=1)
    module = invert.from_exported(blob)
    assert not module.report.notes
    want = jax.grad(lambda x: _fixed_point(x).sum())(X)
    np.testing.assert_array_equal(jax.grad(lambda x: module(x).sum())(X), want)


def test_loops_that_no_number_reaches_are_not_named() -> None:
    def drawn(key: jax.Array, x: jax.Array) -> jax.Array:
        def again(found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            key, _ = found
            key, used = jax.random.split(key)
            return key, jax.random.normal(used)

        start = (key, jnp.float32(9))
        return x * jax.lax.while_loop(lambda found: jnp.abs(found[1]) > 1, again, start)[1]

    key = jax.random.PRNGKey(0)
    module = invert.from_exported(export.export(jax.jit(drawn))(key, X).serialize())
    assert not module.report.notes
    got = jax.grad(lambda x: module(key, x).sum())(X)
    np.testing.assert_array_equal(got, jax.grad(lambda x: drawn(key, x).sum())(X))


def test_a_loop_over_an_open_length_is_a_scan_at_fixed_sizes() -> None:
    def product(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, x.shape[0], lambda i, y: y * x[i], 1.0)

    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(product))(jax.ShapeDtypeStruct((n,), X.dtype))
    module = invert.from_exported(exported.serialize())
    assert not module.report.notes
    np.testing.assert_allclose(jax.grad(module)(X), jax.grad(product)(X), rtol=1e-6)
