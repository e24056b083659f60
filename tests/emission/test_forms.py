"""Forms in which people write: operands that broadcast, functions of JAX by name, norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import invert
from tests.emission.models import ramp


def written(function: Callable[..., Any], *shapes: str, **options: Any) -> tuple[Any, str]:
    """The module of a function of arrays with open sizes, and its text."""
    scope = export.SymbolicScope()
    avals = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.float32)
        for shape in shapes
    ]
    module = invert.from_exported(export.export(jax.jit(function))(*avals), **options)
    return module, module.emit(loader=False).source


def same(module: Any, *args: np.ndarray) -> None:
    """The text computes the same bits, and so do its gradients."""
    assert np.array_equal(module(*args), module.model(*args), equal_nan=True)

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a)))))

    assert np.array_equal(total(module)(*args), total(module.model)(*args), equal_nan=True)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x - jnp.full(x.shape, 3.0), "x - 3.0"),
        (
            lambda x: x * jnp.broadcast_to(jnp.arange(1.0, 4.0), x.shape),
            "x * (1.0 + jnp.arange(3",
        ),
        (lambda x: x - jnp.zeros(x.shape[:1])[:, None], "return x\n"),
        (lambda x: x.T - (jnp.zeros(x.shape[0]) / np.float32(1)), "return x.T\n"),
        (lambda x: x - (jnp.zeros(x.shape[:1]) - np.float32(0))[:, None], "return x\n"),
        (
            lambda x: x - (jnp.zeros(x.shape[:1]) + jnp.zeros(x.shape[0]))[:, None],
            "return x\n",
        ),
        (lambda x: jnp.broadcast_to(x[:1], x.shape) < x, "x[:1] < x"),
        (lambda x: jnp.where(jnp.ones(x.shape, bool) & (x[:1] > 0), x, 0.0), "x[:1] > 0.0"),
        (lambda x: jnp.repeat(x, 3, axis=1), "jnp.repeat(x, 3, axis=-1)"),
        (lambda x: jnp.repeat(x, 2, axis=0), "jnp.repeat(x, 2, axis=0)"),
        (
            lambda x: jax.nn.one_hot(jnp.argmax(x, axis=-1), 5),
            "5, dtype=jnp.float32)",
        ),
        (
            lambda x: jax.nn.one_hot((x * 3).astype(int), 5, axis=1),
            "5, axis=1, dtype=jnp.float32)",
        ),
        (
            lambda x: jnp.linspace(x[:, 0], x[:, 1], 4, axis=1),
            "4, axis=1, dtype=jnp.float32)",
        ),
        (
            lambda x: jnp.linspace(x[:, 0], x[:, 1], 4, endpoint=False),
            "4, endpoint=False, dtype=jnp.float32)",
        ),
        (
            lambda x: jax.image.resize(x, (x.shape[0], 7), "nearest"),
            'jax.image.resize(x, (b, 7), "nearest")',
        ),
        (lambda x: jnp.take_along_axis(x, (x > 0).astype(int), 1), "axis=-1)"),
        (lambda x: jnp.take_along_axis(x.T, (x.T > 0).astype(int)[:1], 0), "axis=0)"),
        (lambda x: jnp.var(x, axis=-1, keepdims=True), "jnp.var(x, axis=-1, keepdims=True)"),
        (lambda x: x / jnp.std(x, axis=0), "jnp.std(x, axis=0)"),
        (lambda x: jnp.std(x, axis=-1), "jnp.std(x, axis=-1)"),
        (lambda x: jnp.var(x, axis=0, ddof=1), "jnp.var(x, axis=0, ddof=1)"),
        (lambda x: jnp.std(x, ddof=2), "jnp.std(x, ddof=2)"),
        (
            lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
            "jnp.linalg.norm(x, axis=-1, keepdims=True)",
        ),
        (lambda x: jax.nn.logsumexp(x, axis=0), "jax.nn.logsumexp(x, axis=0)"),
        (lambda x: jax.nn.logsumexp(x), "jax.nn.logsumexp(x)"),
        (
            lambda x: x - jax.nn.logsumexp(x, axis=1, keepdims=True),
            "jax.nn.logsumexp(x, axis=-1, keepdims=True)",
        ),
        (lambda x: jnp.dot(0.5, x) - jnp.cos(x), "jnp.dot(np.float32(0.5), x)"),
        (lambda x: jnp.fft.rfft(x), "jnp.fft.rfft(x)"),
        (
            lambda x: jnp.fft.irfft(jnp.fft.rfft(x, n=8), n=8),
            "jnp.fft.irfft(jnp.fft.rfft(x, n=8))",
        ),
        (lambda x: jnp.fft.ifft2(x[..., None] * x[:, None]), "jnp.fft.ifft2("),
        (
            lambda x: jnp.fft.fftn(jnp.ones((2, 3, 4, 1)) * x[0], axes=(1, 2, 3)),
            "axes=(-3, -2, -1))",
        ),
    ],
)
def test_forms(function: Callable[..., Any], text: str) -> None:
    module, source = written(function, "b, 3")
    assert text in source, source
    for rows in (1, 4):
        x = ramp(rows, 3)
        assert np.array_equal(module(x), module.model(x), equal_nan=True)


@pytest.mark.parametrize("text", ["abdc,edc->abe", "abcd,ecd->abe", "adbc,edcb->ae"])
def test_axes_are_summed_in_the_order_of_the_original(text: str) -> None:
    """The order is that of the letters, and results may round differently in another."""
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}
    x, w = (ramp(*(sizes[c] for c in side)) for side in text.partition("->")[0].split(","))
    exported = export.export(jax.jit(lambda x, w: jnp.einsum(text, x, w)))(x, w)
    module = invert.from_exported(exported)
    assert f'jnp.einsum("{text}", x, w)' in module.source
    assert np.array_equal(module.model(x, w), exported.call(x, w))


def test_a_moving_part_of_one_axis_is_a_function_of_the_axis() -> None:
    def fn(cache: Any, other: Any, new: Any, i: Any) -> Any:
        caches = [lax.dynamic_update_slice_in_dim(c, new, i, axis=1) for c in (cache, other)]
        return caches, lax.dynamic_slice_in_dim(cache, i, 2, axis=1)

    args = ramp(3, 8, 2), ramp(3, 8, 2) + 1, ramp(3, 2, 2), np.int32(-3)
    shapes = ["b, 8, 2", "b, 8, 2", "b, 2, 2", ""]
    specs = export.symbolic_args_specs(args, shapes)
    module: Any = invert.from_exported(export.export(jax.jit(fn))(*specs))
    source = module.emit(loader=False).source
    assert "constant" not in source  # such as the places of the other axes
    assert "lax.dynamic_update_slice_in_dim(cache, new, i, 1)" in source
    assert "lax.dynamic_update_slice_in_dim(other, new, i, 1)" in source
    assert "lax.dynamic_slice_in_dim(cache, i, 2, axis=1)" in source
    for i in (-9, -3, 0, 7, 100):
        got, wanted = (f(*args[:3], np.int32(i)) for f in (module.model, fn))
        jax.tree_util.tree_map(np.testing.assert_array_equal, got, wanted)


def test_the_condition_of_a_loop_is_what_the_author_compares() -> None:
    """JAX converts weakly typed conditions to bool on lowering, as `x != False`."""

    def fn(x: Any) -> Any:
        start = (0.0, x, 0)
        go_on = lambda c: (c[0] < 1.0) & ~(c[2] >= 9)  # noqa: E731
        return lax.while_loop(go_on, lambda c: (c[0] + 0.2, jnp.sin(c[1]), c[2] + 1), start)

    module, source = written(fn, "b, 3")
    assert "(state_0 < 1.0) & ~(state_2 >= 9)" in source
    assert "False" not in source
    assert str(module.report.certificate).startswith("exact")
    x = ramp(4, 3)
    for f in (module, module.model):
        jax.tree_util.tree_map(np.testing.assert_array_equal, f(x), jax.jit(fn)(x))


def test_branches_that_share_an_index_are_public_functions() -> None:
    def f(x: Any, k: Any) -> Any:
        signed = [lax.cond(x[0] > 0, g, lambda: x) for g in (lambda: x * 2, lambda: jnp.sin(x))]
        chosen = [lax.switch(k, [lambda: x, lambda: -x, g]) for g in (lambda: x + 1, lambda: x * x)]
        return signed, chosen, (x[0] > 0).astype(jnp.int32), jnp.clip(k, 0, 2)

    x = ramp(3)
    module = invert.from_exported(export.export(jax.jit(f))(x, 1))
    assert (module.source.count("lax.cond("), module.source.count("lax.switch(")) == (2, 2)
    for sign, k in ((1, -1), (-1, 1), (1, 5)):
        wanted, found = (jax.jit(g)(sign * x, np.int32(k)) for g in (f, module.model))
        assert jax.tree.all(jax.tree.map(np.array_equal, wanted, found))


def test_an_operand_stays_wide_where_no_other_is() -> None:
    # The result has a size that no operand has by itself.
    module, source = written(lambda x: jnp.zeros((2, *x.shape)) + x[None], "b, 3")
    assert "(2, b, 3)" in source
    same(module, ramp(4, 3))


def _attend(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def _scaled_otherwise(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.7, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize(
    ("attend", "call"),
    [
        (_attend(is_causal=True), "dot_product_attention(q, k, v, is_causal=True)"),
        pytest.param(_attend(), "dot_product_attention(q, k, v)", marks=pytest.mark.slow),
        (_attend(scale=0.7), "dot_product_attention(q, k, v, scale=0.7)"),
        (_scaled_otherwise, ""),
    ],
)
def test_attention_has_its_name_where_it_is_exactly_that(
    attend: Callable[..., Any], call: str
) -> None:
    module, source = written(attend, "b, t, 2, 4", "b, t, 2, 4", "b, t, 2, 4")
    assert call in source
    assert ("dot_product_attention(" in source) == bool(call)
    for b, t in ((1, 3), (2, 5)):
        same(module, *(ramp(b, t, 2, 4) * s for s in (1.0, 0.3, 0.5)))


def test_attention_takes_a_mask_a_bias_and_groups_of_heads() -> None:
    def attend(q: Any, k: Any, v: Any, bias: Any, length: Any) -> Any:
        mask = (jnp.arange(k.shape[1], dtype=jnp.float32) < length[:, None])[:, None, None]
        return jax.nn.dot_product_attention(q, k, v, bias, mask)

    heads = "b, t, 4, 2", "b, n, 2, 2", "b, n, 2, 2"
    module, source = written(attend, *heads, "1, 4, t, n", "b")
    attention = "dot_product_attention(q, k, v, bias=bias, mask=mask[:, None, None])"
    assert attention in source, source
    for b, t, n in ((1, 3, 4), (2, 5, 2)):
        arrays = [ramp(b, t, 4, 2), ramp(b, n, 2, 2) * 0.3, ramp(b, n, 2, 2), ramp(1, 4, t, n)]
        same(module, *arrays, ramp(b) + 2)


def test_attention_of_a_matrix_product_reads_as_written() -> None:
    def attend(*args: Any) -> Any:
        b, t, _ = args[0].shape
        heads = [x.reshape(b, t, 2, 3).transpose(0, 2, 1, 3) for x in args]
        scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) * 0.5
        mask = jnp.tril(jnp.ones((t, t), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        return (weights @ heads[2]).transpose(0, 2, 1, 3).reshape(b, t, 6)

    module, source = written(attend, *["b, t, 6"] * 3)
    assert "query @ jnp.swapaxes(key, 2, 3) * 0.5" in source, source
    assert "jnp.where(mask, scores, -1e9)" in source
    assert "jnp.swapaxes(weights @ value, 1, 2)" in source
    for b, t in ((1, 3), (2, 5)):
        same(module, *(ramp(b, t, 6) * s for s in (1.0, 0.3, 0.5)))


def _named(function: Callable[..., Any], params: dict[str, Any], *args: Any) -> tuple[Any, str]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    flat = {"/".join(str(getattr(k, "key", "")) for k in path): a for path, a in leaves}
    lowered = jax.jit(function).lower(params, *args)
    module = invert.from_stablehlo(lowered, params=flat, names=[*flat, "x"])
    return module, module.emit(loader=False).source


def test_a_norm_without_a_mean_is_a_layer() -> None:
    def model(p: Any, x: Any) -> Any:
        for name in ("a", "b"):
            scale = lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
            y = x * (scale * p["norm_" + name]["scale"])
            x = x + y @ p["up_" + name]["kernel"]
        return x

    params = {
        n: {k: jnp.ones(s)} for n, k, s in (("norm_a", "scale", 3), ("norm_b", "scale", 3))
    } | {n: {"kernel": jnp.asarray(ramp(3, 3))} for n in ("up_a", "up_b")}
    module, source = _named(model, params, ramp(4, 3))
    assert "self.up_a(self.norm_a(x))" in source, source
    same(module, ramp(4, 3))


def test_the_mean_after_a_convolution_belongs_to_the_norm() -> None:
    names = ("mean", "var", "scale", "bias")
    parts = {n: jnp.asarray([0.5, 0.7], jnp.float32) * i for i, n in enumerate(names, 1)}
    kernel = jnp.asarray(ramp(3, 3, 1, 2))

    def model(x: Any) -> Any:
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        scale = parts["scale"] * lax.rsqrt(parts["var"] + 1e-5)
        x = jax.nn.relu((x - parts["mean"]) * scale + parts["bias"])
        return jnp.mean(x, axis=(1, 2)) @ jnp.asarray(ramp(2, 4))

    module, source = written(model, "b, 6, 6, 1")
    assert "- self.mean) * scale + self.bias" in source, source
    same(module, ramp(2, 6, 6, 1))


def _flax_norm(p: Any, x: Any) -> Any:
    mean = jnp.mean(x, -1)
    var = jnp.maximum(0.0, jnp.mean(jnp.square(x), -1) - jnp.square(mean))
    scale = lax.rsqrt(var[..., None] + 1e-6) * p["scale"]
    return (x - mean[..., None]) * scale + p["bias"]


def _haiku_norm(p: Any, x: Any) -> Any:
    mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return p["scale"] * lax.rsqrt(var + 1e-5) * (x - mean) + p["bias"]


def _keras_norm(p: Any, x: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    var = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    scale = lax.rsqrt(var + 1e-3) * p["scale"]
    return x * scale + (-mean * scale + p["bias"])


def _batch_norm(p: Any, x: Any) -> Any:
    scale = lax.rsqrt(jnp.expand_dims(p["var"], (0, 1)) + 1e-5) * jnp.expand_dims(
        p["scale"], (0, 1)
    )
    return (x - jnp.expand_dims(p["mean"], (0, 1))) * scale + p["bias"]


_MEAN = "mean = jnp.mean(x, axis=-1, keepdims=True)"


@pytest.mark.parametrize(
    ("norm", "lines"),
    [
        (
            _flax_norm,
            (
                _MEAN,
                "mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)",
                "var = jnp.maximum(0.0, mean_square - jnp.square(mean))",
                "scale = lax.rsqrt(var + 1e-06) * self.scale",
                "return (x - mean) * scale + self.bias",
            ),
        ),
        (
            _haiku_norm,
            (
                _MEAN,
                "var = jnp.var(x, axis=-1, keepdims=True)",
                "scale = self.scale * lax.rsqrt(var + 1e-05)",
                "return scale * (x - mean) + self.bias",
            ),
        ),
        (
            _keras_norm,
            (
                _MEAN,
                "var = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)",
                "scale = lax.rsqrt(var + 0.001) * self.scale",
                "shift = self.bias - mean * scale",
                "return x * scale + shift",
            ),
        ),
        (
            _batch_norm,
            (
                "scale = lax.rsqrt(self.var + 1e-05) * self.scale",
                "return (x - self.mean) * scale + self.bias",
            ),
        ),
    ],
    ids=("flax", "haiku", "keras", "batch"),
)
def test_norms_have_one_form(norm: Callable[..., Any], lines: tuple[str, ...]) -> None:
    def model(p: Any, x: Any) -> Any:
        for name in ("a", "b"):
            with jax.named_scope("norm_" + name):
                y = norm(p["norm_" + name], x)
            x = x + y @ p["up_" + name]["kernel"]
        return x

    parts = {n: jnp.asarray([1.0, 0.5, 2.0]) for n in ("scale", "bias", "mean", "var")}
    if norm is not _batch_norm:
        parts = {n: parts[n] for n in ("scale", "bias")}
    kernel = {"kernel": jnp.asarray(ramp(3, 3))}
    params = {f"norm_{n}": parts for n in "ab"} | {f"up_{n}": kernel for n in "ab"}
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    module, source = _named(model, params, x)
    kind = "BatchNorm" if norm is _batch_norm else "LayerNorm"
    body = source[source.index(f"class {kind}(") :]
    written = [line.strip() for line in body[: body.index("\n\n\n")].splitlines()]
    at = [written.index(line) for line in lines]
    assert at == sorted(at), source
    assert np.array_equal(module(x), module.model(x))
    slopes = [
        jax.jit(jax.grad(lambda a, f=f: jnp.sum(jnp.sin(f(a)))))(x) for f in (module, module.model)
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-3, atol=1e-3)  # compiled apart


@pytest.mark.parametrize("shapes", [((), ()), ((), (2,)), ((2,), ())])
def test_products_without_an_axis_to_sum(shapes: tuple[tuple[int, ...], ...]) -> None:
    args = [np.ones(shape, np.float32) for shape in shapes]
    product = jax.jit(lambda x, y: lax.dot_general(x, y, (((), ()), ((), ()))))
    module = invert.from_stablehlo(product.lower(*args))
    assert "jnp.dot(x, y)" in module.source
    same(module, *args)
