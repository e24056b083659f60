"""Windows, indexing modes and spellings: recognized, and look-alikes left alone."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from tests.patterns.recovery import primitives, recover, same_program, same_values, struct

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
KEYS = struct(np.float32, (4, 6))
AT = np.array([1, 2, 9], np.int32)

RECOVERED = {
    **{
        f"{name}-{axis}-{reverse}": (
            lambda x, name=name, axis=axis, reverse=reverse: getattr(lax, name)(
                x, axis, reverse=reverse
            )
        )
        for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
        for axis, reverse in ((0, False), (1, True))
    },
    "argmax": lambda x: lax.argmax(x, 1, np.int32),
    "argmin": lambda x: lax.argmin(x, 0, np.int32),
    "approx_max_k": lambda x: lax.approx_max_k(x, 2),
    "approx_min_k": lambda x: lax.approx_min_k(x, 2, reduction_dimension=0),
    "split": lambda x: lax.split(x, (1, 3, 2), axis=1),
    "stack": lambda x: jnp.stack([x, x, x], axis=1),
    "tile": lambda x: lax.tile(x, (2, 3)),
    "square": lax.square,
    "integer_pow": lambda x: lax.integer_pow(x, 2),
    "reshape": lambda x: lax.reshape(x, (3, 8), (1, 0)),
    "squeeze": lambda x: lax.squeeze(x[:1], (0,)),
}


@pytest.mark.parametrize("name", RECOVERED)
def test_recovered(name: str) -> None:
    function = RECOVERED[name]
    module = recover(function, X)
    want = jax.make_jaxpr(function)(X)
    assert primitives(module) == dict(primitives(type("Original", (), {"jaxpr": want})).items())
    assert module.report.certificate.kind == "exact"
    same_values(function, module, X)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bfloat16", "complex64"])
def test_cumulative_reductions_of_other_types(dtype: str) -> None:
    x = struct(dtype)
    same_program(lambda x: lax.cumsum(x, 1), x)
    same_program(lambda x: lax.cummax(x, 0), x)


def windowed(x, width=6, padding=(5, 0), stride=1, init=0.0):
    return lax.reduce_window(x, init, lax.add, (1, width), (1, stride), ((0, 0), padding))


@pytest.mark.parametrize(
    "options",
    [
        {"width": 5, "padding": (4, 0)},  # a moving sum
        {"padding": (4, 0)},
        {"padding": (4, 1)},
        {"padding": (5, 0), "stride": 2},
        {"init": 1.0},
    ],
)
def test_windows_other_than_cumulative_sums(options: dict[str, object]) -> None:
    def function(x):
        return windowed(x, **options)

    module = recover(function, X)
    assert "cumsum" not in module.report.primitives
    same_values(function, module, X)


def test_a_window_that_is_a_cumulative_sum_and_its_switch() -> None:
    assert recover(windowed, X).report.primitives == {"cumsum": 1}
    kept = recover(windowed, X, disabled_patterns=("cumulative",))
    assert kept.report.primitives == {"reduce_window_sum": 1}
    same_values(windowed, kept, X)


# As JAX lowers `cumsum` for GPUs from jax 0.11 on.
_SCAN = """module {
  func.func public @main(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %start = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %0:2 = stablehlo.composite "chlo.scan" %x, %start ({
    ^bb0(%row: tensor<4xf32>, %carry: tensor<4xf32>):
      %sum = stablehlo.add %row, %carry : tensor<4xf32>
      stablehlo.return %sum, %sum : tensor<4xf32>, tensor<4xf32>
    }) {composite_attributes = {dimension = 1 : i64, is_associative = true, is_reverse = false,
        operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>},
        decomposition = @loop, version = 1 : i32}
      : (tensor<4x6xf32>, tensor<4xf32>) -> (tensor<4x6xf32>, tensor<4xf32>)
    return %0#0, %0#1 : tensor<4x6xf32>, tensor<4xf32>
  }
  func.func private @loop(%x: tensor<4x6xf32>, %start: tensor<4xf32>)
      -> (tensor<4x6xf32>, tensor<4xf32>) {
    return %x, %start : tensor<4x6xf32>, tensor<4xf32>
  }
}"""


@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_sums_of_gpus(reverse: bool) -> None:
    text = _SCAN.replace("is_reverse = false", f"is_reverse = {str(reverse).lower()}")
    module = invert.from_stablehlo(text, config=invert.Config(platform="cuda"))
    assert module.report.primitives["cumsum"] == 1 and "scan" not in module.report.primitives
    assert module.report.certificate.kind == "exact"
    sums, last = module(X)
    np.testing.assert_array_equal(sums, lax.cumsum(X, 1, reverse))
    np.testing.assert_allclose(last, X.sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "step"),
    [
        ("dense<0.0>", "dense<1.0>", lambda c, x: (c + x, c + x)),
        ("dense<0.0>", "dense<-0.0>", lambda c, x: (c + x, c + x)),
        ("is_associative = true", "is_associative = false", lambda c, x: (c + x, c + x)),
        ("add %row, %carry", "multiply %row, %carry", lambda c, x: (c * x, c * x)),
        ("add %row, %carry", "add %row, %row", lambda c, x: (x + x, x + x)),
        ("return %sum, %sum", "return %carry, %sum", lambda c, x: (c + x, c)),
    ],
)
def test_scans_that_are_not_cumulative_sums(old: str, new: str, step) -> None:
    assert old in _SCAN
    module = invert.from_stablehlo(_SCAN.replace(old, new))
    assert "cumsum" not in module.report.primitives
    start = np.full(4, 1.0 if new == "dense<1.0>" else 0.0, np.float32)
    want = lax.scan(step, start, X.T)
    for got, x in zip(module(X), (want[1].T, want[0]), strict=True):
        np.testing.assert_array_equal(got, x)


def test_a_cumulative_sum_exported_for_a_gpu() -> None:
    def both(x):
        running = lax.scan(lambda c, r: (c + r, c + r), jnp.zeros(6), x)[1]
        return jnp.cumsum(x, 0), running

    exported = jax.export.export(jax.jit(both), platforms=["cuda"])(X)
    module = invert.from_exported(exported)
    assert {module.report.primitives.get(n) for n in ("cumsum", "scan")} == {1}
    assert module.report.certificate.kind == "exact"
    np.testing.assert_allclose(module(X)[0], both(X)[0], rtol=1e-6, atol=1e-6)


def test_argmax_with_other_ties_is_left_alone() -> None:
    def last(x):
        def pick(a, b):
            (va, ia), (vb, ib) = a, b
            first = (va > vb) | ((va == vb) & (ia > ib))
            return jnp.where(first, va, vb), jnp.where(first, ia, ib)

        at = lax.broadcasted_iota(np.int32, x.shape, 1)
        return lax.reduce((x, at), (np.float32(-np.inf), np.int32(0)), pick, (1,))[1]

    ties = np.zeros((2, 3), np.float32)
    module = recover(last, ties)
    assert "argmax" not in module.report.primitives
    np.testing.assert_array_equal(module(ties), [2, 2])


POOL = {"window_dimensions": (1, 3), "window_strides": (1, 2), "padding": "SAME"}


def pooled(x):
    return lax.reduce_window(x, -np.inf, lax.max, **POOL)


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda x: jax.jvp(pooled, (x,), (x,))[1], "select_and_gather_add"),
        (jax.grad(lambda x: pooled(x).sum()), "select_and_scatter_add"),
    ],
    ids=["forward", "reverse"],
)
def test_derivatives_of_pooling(function, primitive: str) -> None:
    module = recover(function, X)
    assert module.report.primitives[primitive] == 1
    assert module.report.certificate.kind == "exact"
    same_values(function, module, X)
    same_values(jax.vmap(function), jax.vmap(module), np.stack([X, -X]))


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (lambda x, i: x.at[i].get(mode="fill"), "gather_fill"),
        (lambda x, i: x.at[i].get(mode="fill", fill_value=7.0), "gather_fill"),
        (lambda x, i: jnp.take(x, i, axis=1), "gather_fill"),
        (lambda x, i: jnp.take(x, i[0], axis=1), "gather_fill"),
        (lambda x, i: x[:, :1].take(i[1], axis=1), "gather_fill"),
        (lambda x, i: x.at[i].add(1.0, mode="clip"), "scatter_clip"),
        (lambda x, i: x.at[:, i].max(0.5, mode="clip"), "scatter_clip"),
    ],
)
def test_modes(function, pattern: str) -> None:
    module = recover(function, X, AT)
    assert module.report.rewrites[pattern] == 1
    assert module.report.certificate.kind == "exact"
    same_values(function, module, X, AT)

    def grad(f):
        return jax.grad(lambda x: (f(x, AT) ** 2).sum())

    assert jnp.array_equal(grad(function)(X), grad(module)(X), equal_nan=True)


def test_slices_that_do_not_tile_stay_slices() -> None:
    module = recover(lambda x: (x[:, :2], x[:, 3:]), X)
    assert "split" not in module.report.primitives
    same_values(lambda x: (x[:, :2], x[:, 3:]), module, X)


def test_mixed_types_of_a_product() -> None:
    def function(a, b):
        return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=np.float32)

    for narrow in (jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int4):
        half = jnp.asarray(X).astype(narrow)
        module = recover(function, half, X)
        assert module.report.primitives == {"dot_general": 1}, narrow
        same_values(function, module, half, X)


def test_a_product_of_operands_rounded_to_eight_bits() -> None:
    """Types without implicit promotion are no defect, and stay rounded."""

    def function(a, b):
        a, b = a.astype(jnp.float8_e5m2), b.astype(jnp.int4)
        return lax.dot_general(
            a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), (((1,), (1,)), ((), ()))
        )

    module = recover(function, X, X)
    assert module.report.primitives["convert_element_type"] == 2
    same_values(function, module, X, X)


def test_a_rounded_operand_stays_rounded() -> None:
    def function(a, b):
        numbers = (((1,), (1,)), ((), ()))
        return lax.dot_general(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), numbers)

    module = recover(function, X, X)
    (product,) = (e for e in module.jaxpr.eqns if e.primitive is lax.dot_general_p)
    assert [v.aval.dtype for v in product.invars] == [jnp.bfloat16] * 2
    same_values(function, module, X, X)
