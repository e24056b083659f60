"""Exports with symbolic sizes equal the original at sizes that occur nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import invert
from invert.ir.jaxprs import equations


def _spd(x: Any) -> Any:
    return jnp.einsum("bij,bkj->bik", x, x) + 4 * jnp.eye(x.shape[-1])


def _numbers(x: Any) -> Any:
    b = x.shape[0]
    return x[: (b + 1) // 2] * b + x.sum() / b - (b % 3)


def _scan(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        c = jnp.tanh(c * 0.5 + row)
        return c, c

    return lax.scan(step, jnp.zeros(x.shape[1:]), x)


def _loop(x: Any) -> Any:
    return lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i] * i, jnp.zeros(x.shape[1:]))


@jax.jit
def _inner(x: Any, n: int = 2) -> Any:
    return jax.nn.relu(x).reshape(-1) * n


def _causal(x: Any) -> Any:
    t = x.shape[0]
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), x @ x.T, -jnp.inf)
    return jax.nn.softmax(scores) @ x


def _conv(x: Any) -> Any:
    kernel = jnp.arange(18.0).reshape(3, 2, 3) / 10
    dims = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, kernel, (2,), "SAME", dimension_numbers=dims)


def _split(x: Any) -> Any:
    a, b, c = jnp.split(x, 3, axis=-1)
    return a * b + c


F32 = np.float32
# Each program with the sizes of its argument.
CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "relu": (jax.nn.relu, "b, 3"),
    "split": (_split, "b, 6"),
    "calls in calls": (lambda x: _inner(x) + _inner(x, 3), "b, 3"),
    "numbers": (_numbers, "b, 3"),
    "floordiv, mod": (lambda x: jnp.pad(x, ((0, (-x.shape[0]) % 4), (0, 0)))[::2], "b, 3"),
    "products": (lambda x: x.reshape(-1, 4).T, "b, t, 4"),
    "arange": (lambda x: x + jnp.arange(x.shape[0], dtype=F32)[:, None], "b, 3"),
    "position table": (
        lambda x: x + jnp.sin(jnp.arange(200.0)).reshape(50, 4)[jnp.arange(x.shape[0])],
        "b, 4",
    ),
    "causal attention": (_causal, "t, 4"),
    "scan": (_scan, "t, 3"),
    "fori_loop": (_loop, "t, 3"),
    "while": (lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, x), "b, 3"),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda v: v * v.shape[0], x), "b, 3"),
    "cumsum": (lambda x: jnp.cumsum(x, 0), "b, 3"),
    "cummax": (lambda x: lax.cummax(x, 0, reverse=True), "b, 3"),
    "sort": (lambda x: jnp.sort(x, 0), "b, 3"),
    "argsort": (lambda x: jnp.argsort(x, 0), "b, 3"),
    "argmax": (lambda x: jnp.argmax(x, 0), "b, 3"),
    "top_k": (lambda x: lax.top_k(x, 2), "b, 3"),
    "top_k of a size": (lambda x: lax.top_k(x, x.shape[1] // 2), "2, b"),
    "approx_top_k of a size": (lambda x: lax.approx_max_k(x, x.shape[1]), "2, b"),
    "var": (lambda x: jnp.var(x, 0), "b, 3"),
    "logsumexp": (jax.nn.logsumexp, "b, 3"),
    "one_hot": (lambda x: jax.nn.one_hot(jnp.argmax(x, 1), x.shape[0]), "b, 3"),
    "gather": (lambda x: x[jnp.array([0, 0])], "b, 3"),
    "take": (lambda x: jnp.take(x, jnp.argmax(x, 0), axis=0), "b, 3"),
    "scatter": (lambda x: x.at[0].add(1.0).at[:, 1].set(2.0), "b, 3"),
    "dynamic_slice": (lambda x: lax.dynamic_slice_in_dim(x, 1, 1), "b, 3"),
    "dynamic_slice of a size": (
        lambda x: lax.dynamic_slice_in_dim(x, jnp.argmax(x[:, 0]), x.shape[0] // 2 + 1),
        "b, 3",
    ),
    "dynamic_update_slice": (
        lambda x: lax.dynamic_update_slice(x, jnp.ones((1, 2)), (jnp.argmax(x[:, 0]), 1)),
        "b, 3",
    ),
    "flip and roll": (lambda x: jnp.roll(x[::-1], 1, axis=0), "b, 3"),
    "concatenate": (lambda x: jnp.concatenate([x, x[:1], jnp.zeros_like(x)]), "b, 3"),
    "reduce_window": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME"),
        "b, 3",
    ),
    "reduce_window of a size": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (x.shape[0], 1), (1, 1), "VALID"),
        "b, 3",
    ),
    "conv over an open length": (_conv, "2, t, 2"),
    "fft": (lambda x: jnp.fft.fft(x, axis=-1), "b, 4"),
    "einsum": (lambda x: jnp.einsum("bi,ci->bc", x, x), "b, 3"),
    "cholesky": (lambda x: jnp.linalg.cholesky(_spd(x)), "b, 3, 3"),
    "qr": (lambda x: jnp.linalg.qr(x), "b, 3, 3"),
    "eigh": (lambda x: jnp.linalg.eigvalsh(_spd(x)), "b, 3, 3"),
    "svd": (lambda x: jnp.linalg.svd(x, compute_uv=False), "b, 3, 3"),
    "lu": (lambda x: jnp.linalg.det(x), "b, 3, 3"),
    "solve": (lambda x: jnp.linalg.solve(_spd(x), x), "b, 3, 3"),
    "random": (
        lambda x: x + jax.random.normal(jax.random.key(3), x.shape),
        "b, 3",
    ),
    "rng_bit_generator": (
        lambda x: (
            x + lax.rng_bit_generator(jnp.zeros(4, np.uint32), (x.shape[0], 3))[1].astype(F32)
        ),
        "b, 3",
    ),
    "resize": (lambda x: jax.image.resize(x, (x.shape[0], 4), "linear"), "b, 8"),
}


def _sizes(shape: str, numbers: dict[str, int]) -> tuple[int, ...]:
    parts = [p.strip() for p in shape.split(",")]
    return tuple(numbers[p] if p in numbers else int(p) for p in parts)


def _inputs(shape: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    sizes = ({"b": 1, "t": 2}, {"b": 6, "t": 5}, {"b": 19, "t": 9})
    return [rng.normal(size=_sizes(shape, n)).astype(F32) for n in sizes]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.drawn(8)
def test_symbolic_export_equals_the_original(name: str) -> None:
    fn, shape = CASES[name]
    exported = jax.export.export(jax.jit(fn))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), F32)
    )
    module = invert.from_exported(exported)
    for x in _inputs(shape):
        if name in ("top_k", "top_k of a size", "approx_top_k of a size") and min(x.shape) < 2:
            continue
        got, want = jax.tree.leaves(module(x)), jax.tree.leaves(exported.call(x))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    assert module.report.certificate.kind == "exact"
    assert "custom_call" not in {e.primitive.name for e in module.jaxpr.eqns}


def test_inner_functions_keep_their_names_and_derivatives() -> None:
    exported = jax.export.export(jax.jit(lambda x: jax.nn.relu(x) + jax.nn.silu(x)))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), F32)
    )
    module: Any = invert.from_exported(exported)
    x = jnp.zeros((5, 3))
    assert "name=relu" in str(jax.make_jaxpr(module)(x))
    slope = jax.grad(lambda x: module(x).sum())(x)
    np.testing.assert_array_equal(slope, np.full((5, 3), 0.5, F32))  # of silu; relu has none at 0


def test_a_forbidden_size_raises_with_the_message_of_the_export() -> None:
    fn = jax.jit(lambda x, y: x + y)
    args = jax.export.symbolic_args_specs((jnp.ones((2, 3)),) * 2, ["b, 3", "b, 3"])
    module: Any = invert.from_exported(jax.export.export(fn)(*args))
    with pytest.raises(invert.SignatureError, match="'b'"):
        module(np.ones((4, 3), F32), np.ones((5, 3), F32))
    constrained = jax.export.symbolic_shape("b, 3", constraints=["b >= 4"])
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(constrained, F32))
    with pytest.raises(invert.SignatureError, match="b >= 4"):
        invert.from_exported(exported)(np.ones((3, 3), F32))


# JAX itself writes another program where a size is symbolic: a gather for a slice, an array of
# sizes for one number.
WRITTEN_OTHERWISE = {
    "gather",
    *("numbers", "floordiv, mod", "arange", "position table", "fori_loop", "take", "lu", "solve"),
    *("dynamic_slice of a size", "dynamic_update_slice", "flip and roll", "concatenate"),
}
QUICK = {"split", "relu", "calls in calls"}
ALIKE = [
    pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow])
    for n in CASES
    if n not in WRITTEN_OTHERWISE
]


@pytest.mark.parametrize("name", ALIKE)
def test_an_open_size_gives_the_program_of_that_size(name: str) -> None:
    """The primitives are the same too, and so are patterns and derivatives."""
    fn, shape = CASES[name]
    x = _inputs(shape)[1]  # over an axis of one, a window is a cumulative sum
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), F32)
    opened: Any = invert.from_exported(jax.export.export(jax.jit(fn))(symbolic))
    fixed: Any = invert.from_exported(jax.export.export(jax.jit(fn))(x))
    opened(x), fixed(x)
    assert _primitives(opened.jaxpr) == _primitives(fixed.jaxpr)


def _primitives(jaxpr: Any) -> list[str]:
    """The names of the primitives, except those that turn a size into a number."""
    found = [*equations(jaxpr)]
    sizes = {v for e in found if e.primitive.name == "dim_as_value" for v in e.outvars}
    return [
        e.primitive.name
        for e in found
        if not sizes & {*e.outvars, *(v for v in e.invars if not hasattr(v, "val"))}
    ]


BOUNDED = "tensor<?xf32, #stablehlo.bounds<4>>"


@pytest.mark.parametrize("argument", [BOUNDED, "tensor<?xf32>"])
def test_bounds_of_a_type_are_conditions(argument: str) -> None:
    recovered = invert.from_stablehlo(
        f"func.func public @main(%a: {argument}) -> {BOUNDED} {{\n"
        f"%0 = stablehlo.sine %a : ({argument}) -> {BOUNDED}\nreturn %0 : {BOUNDED} }}"
    )
    assert "<= 4" in str(recovered.report.certificate)
    for run, error in ((recovered, invert.SignatureError), (recovered.model, ValueError)):
        assert run(np.zeros(4, np.float32)).shape == (4,)
        with pytest.raises(error, match="more than 4"):
            run(np.zeros(5, np.float32))


def test_types_of_another_encoding_are_refused() -> None:
    kind = 'tensor<4xf32, "x">'
    with pytest.raises(invert.UnsupportedOpError, match="encoding"):
        invert.from_stablehlo(f"func.func @main(%a: {kind}) -> {kind} {{ return %a : {kind} }}")


@pytest.mark.parametrize("size", [-1, 5])
def test_a_dimension_is_set_to_a_part_of_its_size(size: int) -> None:
    with pytest.raises(invert.UnsupportedOpError, match=f"cannot have size {size}"):
        invert.from_stablehlo(f"""
        func.func @main(%a: tensor<4xf32>) -> {BOUNDED} {{
          %n = stablehlo.constant dense<{size}> : tensor<i32>
          %0 = stablehlo.set_dimension_size %a, %n, dim = 0 :
            (tensor<4xf32>, tensor<i32>) -> {BOUNDED}
          return %0 : {BOUNDED} }}""")
