"""Layers and blocks by structure, of programs in which nothing is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

import invert
from tests.emission.models import assert_computes

_WIDTH = 8


def _arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.normal(size=s) / 3).astype(np.float32) for s in shapes]


def _emitted(
    run: Callable[..., Any], arrays: Sequence[np.ndarray], x: np.ndarray
) -> invert.Emission:
    """The text of a function of a list of arrays without names, at an open batch.

    Values equal those of the function at two sizes, bit for bit, and gradients up to rounding.
    """
    (size,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    # A StableHLO module has the names of a function's parameters, but not those of `*args`.
    exported = jax.export.export(jax.jit(lambda *args: run(*args)))(*arrays, spec)
    params = {f"arg{i}": a for i, a in enumerate(arrays)}
    module = invert.from_stablehlo(exported.mlir_module_serialized, params=params)
    emission = module.emit()
    assert not emission.messages
    original = jax.tree_util.Partial(jax.jit(run), *arrays)
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), original(x))
    assert_computes(model, original, np.concatenate([x, x + 1]))
    return emission


def _classes(emission: invert.Emission) -> dict[str, list[str]]:
    """The fields of each class of a text."""
    nodes = [n for n in ast.parse(emission.source).body if isinstance(n, ast.ClassDef)]
    return {n.name: [ast.unparse(s) for s in n.body if isinstance(s, ast.AnnAssign)] for n in nodes}


def _norm(x: Any, scale: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    var = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias


def _encoder(*arrays: Any) -> Any:
    """Two blocks of attention, a layer of two products, norms after both."""
    *params, x = arrays
    rest = iter(params)

    def linear(x: Any) -> Any:
        return x @ next(rest) + next(rest)

    def heads(x: Any) -> Any:
        return x.reshape(x.shape[0], 3, 2, 4)

    for _ in range(2):
        q, k, v = heads(linear(x)), heads(linear(x)), heads(linear(x))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = _norm(x + linear(mixed), next(rest), next(rest))
        x = _norm(x + linear(jax.nn.gelu(linear(x))), next(rest), next(rest))
    return linear(x)


_BLOCK = [(8, 8), (8,)] * 4 + [(8,), (8,), (8, 16), (16,), (16, 8), (8,), (8,), (8,)]


@pytest.mark.slow
def test_blocks_of_a_transformer() -> None:
    arrays = _arrays(*_BLOCK, *_BLOCK, (8, 5), (5,))
    classes = _classes(_emitted(_encoder, arrays, _arrays((2, 3, 8))[0]))
    assert classes["Main"] == ["blocks: tuple[Block, ...]", "head: Linear"]
    fields = [
        "attention: Attention",
        "norm_1: LayerNorm",
        "up: Linear",
        "down: Linear",
        "norm_2: LayerNorm",
    ]
    assert classes["Block"] == fields
    fields = ["query: Linear", "key: Linear", "value: Linear", "out: Linear"]
    assert classes["Attention"] == [*fields, "heads: int = eqx.field(static=True)"]


def test_blocks_in_blocks() -> None:
    """Three products and one of another kind, twice."""

    def run(*arrays: Any) -> Any:
        *params, x = arrays
        for i, kernel in enumerate(params):
            x = x + jnp.tanh(x @ kernel) if i % 4 < 3 else jnp.sin(x) @ kernel
        return x

    emission = _emitted(run, _arrays(*[(_WIDTH, _WIDTH)] * 8), _arrays((3, _WIDTH))[0])
    classes = _classes(emission)
    assert classes["Main"] == ["blocks: tuple[Stack, ...]"]
    assert classes["Stack"] == ["blocks: tuple[Block, ...]", "linear: Linear"]


@pytest.mark.parametrize("other", [jnp.sin, lambda x: x * 2.0])
def test_different_blocks_do_not_form_a_list(other: Callable[[Any], Any]) -> None:
    def run(*arrays: Any) -> Any:
        *params, x = arrays
        for i in range(0, len(params), 2):
            hidden = (jnp.tanh if i else other)(x @ params[i])
            x = x + hidden @ params[i + 1]
        return x

    emission = _emitted(run, _arrays(*[(_WIDTH, _WIDTH)] * 4), _arrays((3, _WIDTH))[0])
    assert "tuple[" not in emission.source


def test_a_cell_that_each_step_calls() -> None:
    def run(kernel: Any, recurrent: Any, bias: Any, head: Any, x: Any) -> Any:
        h = jnp.zeros((x.shape[0], _WIDTH))
        for t in range(4):
            h = jnp.tanh(x[:, t] @ kernel + h @ recurrent + bias)
        return h @ head

    arrays = _arrays((3, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH,), (_WIDTH, 2))
    emission = _emitted(run, arrays, _arrays((2, 4, 3))[0])
    classes = _classes(emission)
    assert [f.partition(":")[0] for f in classes["Cell"]] == ["kernel", "recurrent_kernel", "bias"]
    assert emission.source.count("self.cell(") == 1
    assert "for i in range(4):\n" in emission.source


def test_blocks_of_a_residual_network() -> None:
    """Blocks with and without a convolution on their shortcut are one class."""

    def conv(x: Any, kernel: Any, stride: int) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dims)

    strides = (1, 2, 1)

    def run(*arrays: Any) -> Any:
        *params, x = arrays
        rest = iter(params)
        for s in strides:
            y = conv(jax.nn.relu(conv(x, next(rest), s)), next(rest), 1)
            x = jax.nn.relu((x if s == 1 else conv(x, next(rest), s)) + y)
        return x.mean((1, 2))

    shapes = [(3, 3, 4, 4), (3, 3, 4, 4), (3, 3, 4, 6), (3, 3, 6, 6), (1, 1, 4, 6)]
    arrays = _arrays(*shapes, (3, 3, 6, 6), (3, 3, 6, 6))
    emission = _emitted(run, arrays, _arrays((2, 8, 8, 4))[0])
    classes = _classes(emission)
    assert classes["Main"] == ["blocks: tuple[Block, ...]"]
    assert "shortcut: Conv | None" in classes["Block"]
    assert "shortcut = x if self.shortcut is None else self.shortcut(x)\n" in emission.source
    made = re.findall(r" Block\((.*?), key=", emission.source)
    assert made == [
        "dim, dim",
        "dim, n_out, strides=2",
        "n_out, n_out",
    ]
    # The shortcut has the strides of its block.
    assert "Conv(c_in, c_out, kernel_size=1, strides=strides, key=keys[2])" in emission.source
    space: Any = emission.namespace
    fresh = eqx.filter_eval_shape(space.Main, key=jax.random.key(0))
    shapes = [[a.shape for a in jax.tree_util.tree_leaves(m)] for m in (fresh, emission.model)]
    assert shapes[0] == shapes[1]
    assert "strides: tuple[int, int] = eqx.field(static=True)" in classes["Conv"]


def test_meaningful_names_stay() -> None:
    def run(first: Any, second: Any, x: Any) -> Any:
        return jnp.tanh(x @ first) @ second

    arrays = _arrays((4, 5), (5, 3))
    params: dict[str, Any] = dict(zip(("first", "second"), arrays, strict=True))
    lowered = jax.jit(run).lower(*arrays, np.ones((2, 4), np.float32))
    module = invert.from_stablehlo(lowered, params=params, names=["first", "second", "x"])
    assert "    first: Float" in module.source


@pytest.mark.parametrize("name", ["{array}{block}", "{array}_{block}", "{array}/{block}", "w{all}"])
def test_arrays_that_are_numbered_through_all_blocks(name: str) -> None:
    arrays = _arrays(*[(4, 4), (4,)] * 3)
    places = [{"array": "wb"[i % 2], "block": i // 2, "all": i} for i in range(6)]
    names = [name.format(**place) for place in places]

    def run(*given: Any) -> Any:
        *arrays, x = given
        for kernel, bias in zip(arrays[::2], arrays[1::2], strict=True):
            x = jnp.tanh(x @ kernel + bias)
        return x

    x = np.ones((2, 4), np.float32)
    lowered = jax.jit(run).lower(*arrays, x)
    params: dict[str, Any] = dict(zip(names, arrays, strict=True))
    module = invert.from_stablehlo(lowered, params=params, names=[*names, "x"])
    emission = module.emit()
    assert not emission.messages and "for block in self.blocks:" in emission.source
    assert _classes(emission)["Block"][0].startswith("w: ")
    model: Any = emission.model
    np.testing.assert_array_equal(model(x), module(x))
    for own, array in invert.values(model).items():
        np.testing.assert_array_equal(array, params[own])


def test_convolutions_and_normalizations_of_one_number_are_pairs_where_others_are() -> None:
    """`conv1` and `bn1` in a block whose shortcut has `skip_conv` and `skip_bn`."""
    keras.utils.clear_session()
    layers: Any = keras.layers

    def block(x: Any, features: int, name: str, *, skip: bool) -> Any:
        def pair(x: Any, conv: str, norm: str, side: int = 3) -> Any:
            made = layers.Conv2D(features, side, padding="same", name=f"{name}_{conv}")(x)
            return layers.BatchNormalization(name=f"{name}_{norm}")(made)

        y = pair(layers.ReLU()(pair(x, "conv1", "bn1")), "conv2", "bn2")
        return layers.ReLU()(y + (pair(x, "skip_conv", "skip_bn", 1) if skip else x))

    image = keras.Input((8, 8, 3), name="image")
    x = block(image, 4, "block0", skip=True)
    x = block(x, 4, "block1", skip=False)
    x = block(x, 6, "block2", skip=True)
    emission = invert.convert(keras.Model(image, x)).emit(loader=False)
    fields = {"conv1: ConvBlock", "conv2: ConvBlock", "skip: ConvBlock | None"}
    assert {*_classes(emission)["Block"]} == fields


def test_activations_have_no_part_in_the_names_of_blocks() -> None:
    keras.utils.clear_session()
    layers: Any = keras.layers
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", name="stem")(image)
    for k in range(3):
        y = layers.Activation("gelu")(
            layers.DepthwiseConv2D(3, padding="same", name=f"mixer{k}_depth")(x)
        )
        x = x + layers.BatchNormalization(name=f"mixer{k}_bn0")(y)
        y = layers.Activation("gelu")(layers.Conv2D(4, 1, name=f"mixer{k}_point")(x))
        x = layers.BatchNormalization(name=f"mixer{k}_bn1")(y)
    emission = invert.convert(keras.Model(image, x)).emit(loader=False)
    classes = _classes(emission)
    assert [f.partition(":")[0] for f in classes["Mixer"]] == ["depth", "bn0", "point", "bn1"]
    assert "mixers: tuple[Mixer, ...]" in classes["Model"]


def test_blocks_whose_weights_have_no_names() -> None:
    """A mask that a block makes, and a table that all share, do not cut the first one in two."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)

    shapes = [(12,), *[(12, 12)] * 4, (12, 20), (20,), (20, 12)]
    every = [[drawn(*shape) for shape in shapes] for _ in range(3)]
    waves, head = drawn(6, 12), drawn(12, 7)

    def block(weights: Any, x: Any) -> Any:
        scale, query, key, value, out, up, bias, down = weights
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
        scores = jnp.einsum("btd,bsd->bts", (h @ query) * waves, (h @ key) * waves)
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), scores, -1e9)
        x = x + jax.nn.softmax(scores) @ (h @ value) @ out
        return x + jax.nn.gelu(x @ up + bias) @ down

    def model(x: Any) -> Any:
        for weights in every:
            x = block(weights, x)
        return x @ head

    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 6, 12), jnp.float32)
    module = invert.from_exported(jax.export.export(jax.jit(model))(spec))
    source = module.source
    assert "for block in self.blocks:" in source and "depth: int = 3" in source
    assert {"Block", "Attention", "Linear"} < {*re.findall(r"^class (\w+)", source, re.M)}
    x = drawn(2, 6, 12)
    np.testing.assert_array_equal(module.model(x), module(x))


def _rotated(x: Any) -> Any:
    *_, length, _, width = x.shape
    angles = jnp.arange(length)[:, None] * 100 ** -(jnp.arange(0, width, 2) / width)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def test_rotated_heads_and_gates_of_blocks_without_names() -> None:
    """Fewer keys than queries, both rotated, and three products with a gate."""

    def run(*arrays: Any) -> Any:
        *params, x = arrays
        rest = iter(params)
        for _ in range(2):
            h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * next(rest)
            q, k, v = ((h @ next(rest)).reshape(x.shape[0], 3, n, 4) for n in (4, 2, 2))
            k, v = jnp.repeat(_rotated(k), 2, 2), jnp.repeat(v, 2, 2)
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", _rotated(q), k) / 2.0)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape[0], 3, 16)
            x = x + mixed @ next(rest)
            h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * next(rest)
            x = x + (jax.nn.silu(h @ next(rest)) * (h @ next(rest))) @ next(rest)
        return x @ next(rest)

    block = [(8,), (8, 16), (8, 8), (8, 8), (16, 8), (8,), (8, 20), (8, 20), (20, 8)]
    classes = _classes(_emitted(run, _arrays(*block, *block, (8, 5)), _arrays((2, 3, 8))[0]))
    fields = {name: [f.partition(":")[0] for f in own] for name, own in classes.items()}
    assert fields["Main"] == ["blocks", "head"]
    assert fields["Block"] == ["norm_1", "attention", "norm_2", "gate", "up", "down"]
    assert fields["Attention"][:4] == ["query", "key", "value", "out"]


def test_a_product_beside_the_path_of_each_block() -> None:
    """Such as the projection of a time, which all blocks read."""
    first, start, *params = _arrays((2, 5), (6, 8), *[(8, 12), (5, 12), (12, 8)] * 3)

    def model(x: Any, t: Any) -> Any:
        rest = iter(params)
        time = jnp.tanh(t @ first)
        x = x @ start
        for _ in range(3):
            hidden = jax.nn.gelu(x @ next(rest) + time @ next(rest))
            x = x + hidden @ next(rest)
        return x

    specs = [jax.ShapeDtypeStruct((3, n), jnp.float32) for n in (6, 2)]
    module = invert.from_exported(jax.export.export(jax.jit(model))(*specs))
    emission = module.emit()
    classes = _classes(emission)
    assert classes["Model"] == ["linear_1: Linear", "linear_2: Linear", "blocks: tuple[Block, ...]"]
    assert len(classes["Block"]) == 3
    args = _arrays((3, 6), (3, 2))
    written: Any = emission.model
    np.testing.assert_array_equal(written(*args), module(*args))


def test_weights_of_a_loop_without_names() -> None:
    """A program's constants are named by their use in the loop."""
    kernel, recurrent, bias = map(jnp.asarray, _arrays((3, 8), (8, 8), (8,)))

    def model(x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return jnp.tanh(x @ kernel + h @ recurrent + bias), None

        return lax.scan(step, jnp.zeros(8), x)[0]

    exported = jax.export.export(jax.jit(model))(jax.ShapeDtypeStruct((4, 3), jnp.float32))
    source = invert.from_exported(exported).source
    assert re.findall(r"^    (\w+): Float", source, re.M)[:3] == ["weight", "weight_2", "bias"]


def test_group_normalizations_without_names_are_layers() -> None:
    """Equinox broadcasts their scales and biases before it uses them."""
    keys = iter(jax.random.split(jax.random.key(0), 6))
    convs = [eqx.nn.Conv2d(8, 8, 3, padding=1, key=next(keys)) for _ in range(3)]
    norms = [eqx.nn.GroupNorm(4, 8) for _ in range(3)]

    def model(x: Any) -> Any:
        for conv, norm in zip(convs, norms, strict=True):
            x = x + conv(jax.nn.silu(norm(x)))
        return x

    shape = jax.export.symbolic_shape("b, 8, 4, 4")
    spec = jax.ShapeDtypeStruct(shape, jnp.float32)
    emission = invert.from_exported(jax.export.export(jax.jit(jax.vmap(model)))(spec)).emit()
    classes = _classes(emission)
    assert classes["Block"] == ["norm: Norm", "conv: Conv"]
    assert [f.partition(":")[0] for f in classes["Norm"]] == ["scale", "bias"]
