"""Composites, which compilers know by name, such as those of torch.export."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.harness_cases import assert_same, compare

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

TEXT = """module {
func.func public @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = stablehlo.composite "torch.gelu" %x {composite_attributes = {approximate = "tanh"},
    decomposition = @impl, version = 2 : i32} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %1 = stablehlo.composite "torch.gelu" %0 {composite_attributes = {approximate = "tanh"},
    decomposition = @impl, version = 2 : i32} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  return %1 : tensor<3x4xf32>
}
func.func private @impl(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = stablehlo.tanh %x : tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
}"""


def test_a_composite_is_a_function_of_its_name() -> None:
    module = invert.from_stablehlo(TEXT)
    text = module.source
    mark = '@composite("torch.gelu", version=2, attributes={"approximate": "tanh"})'
    assert text.count(f"{mark}\ndef torch_gelu(x):\n    return jnp.tanh(x)\n") == 1
    assert text.count("def composite(") == 1
    assert "return torch_gelu(torch_gelu(x))" in text


@pytest.mark.slow
def test_compilers_and_transformations_see_composites() -> None:
    def original(x):
        return [jnp.tanh(jnp.tanh(x))]

    module = invert.from_stablehlo(TEXT)
    for run in (module, module.model):
        lowered = jax.jit(run).lower(X).as_text()
        assert lowered.count('stablehlo.composite "torch.gelu"') == 2
        assert "version = 2" in lowered
        assert compare(original, lambda x, run=run: [run(x)], [X], [[X], [-X]]) == {}
    hessian = jax.hessian(lambda x: module.model(x).sum())(X)
    assert_same(hessian, jax.hessian(lambda x: original(x)[0].sum())(X))


def test_several_operands_and_results() -> None:
    def pair(x, y, *, scale, table):
        return x * scale + table, x > y

    def function(x, y):
        marked = lax.composite(pair, "author.pair", version=1)
        return marked(x, y, scale=np.float32(2), table=np.arange(4, dtype=np.int32))

    module = invert.from_exported(jax.export.export(jax.jit(function))(X, X).serialize())
    assert_same(module.model(X, -X), function(X, -X))
    run = jax.jit(lambda x, y: module.model(x, y))
    assert 'stablehlo.composite "author.pair"' in run.lower(X, X).as_text()
    tangents = jax.jvp(module.model, (X, X), (X, X))[1]
    assert_same(tangents[0], 2 * X)
    assert tangents[1].dtype == jax.dtypes.float0


def test_a_loop_in_a_composite_is_recovered_with_its_derivatives() -> None:
    def double(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, carry: carry * 2 + i, x)

    def grow(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c * 2 + 1, x)

    def original(x: jax.Array) -> jax.Array:
        y = lax.composite(double, "my.double")(x) + lax.composite(double, "my.double")(x + 1)
        return lax.composite(grow, "my.grow")(y)

    module = invert.from_stablehlo(jax.jit(original).lower(X).as_text())
    assert str(module.report.certificate) == "exact"
    text = module.source
    assert text.count("def my_double(") == text.count("def my_grow(") == 1
    assert "lax.while_loop" in text
    # No loop with a fixed number of steps is a `while`, so that it has a reverse derivative.
    assert text.count("while_loop") == 1

    doubled = jax.jit(lambda x: lax.composite(double, "my.double")(x)).lower(X).as_text()
    again = invert.from_stablehlo(doubled)
    for found in (again, again.model):
        np.testing.assert_array_equal(found(X), double(jnp.asarray(X)))
        slope = jax.grad(lambda x, found=found: jnp.sum(jnp.sin(found(x))))(X)
        want = jax.grad(lambda x: jnp.sum(jnp.sin(double(x))))(X)
        np.testing.assert_allclose(slope, want, rtol=1e-6, atol=1e-6)
        rows = np.stack([X, X + 1])
        np.testing.assert_array_equal(jax.vmap(found)(rows), jax.vmap(double)(rows))
    np.testing.assert_array_equal(module(X), module.model(X))
