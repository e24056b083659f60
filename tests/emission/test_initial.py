"""Classes of emitted text make arrays to train from scratch."""

from __future__ import annotations

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import invert


def _emission(run: Any, params: dict[str, np.ndarray], x: np.ndarray) -> invert.Emission:
    lowered = jax.jit(run).lower(*params.values(), x)
    module = invert.from_stablehlo(lowered, params=params, names=[*params, "x"])
    emission = module.emit()
    assert not emission.messages
    return emission


def _new(emission: invert.Emission, seed: int = 0) -> Any:
    cls = type(emission.model)
    keyed = "key" in inspect.signature(cls).parameters
    return cls(**({"key": jax.random.key(seed)} if keyed else {}))


def _same_tree(a: Any, b: Any) -> bool:
    return jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)


def _types(tree: Any) -> list[Any]:
    return [(x.shape, x.dtype) for x in jax.tree_util.tree_leaves(tree)]


def _conv(x: Any, kernel: Any, stride: int) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=dims)


def test_layers_of_other_strides_share_a_class() -> None:
    def run(a: Any, b: Any, c: Any, x: Any) -> Any:
        return _conv(jnp.tanh(_conv(x, a, 1)), b, 2).mean((1, 2)) @ c

    random = np.random.default_rng(0)
    params = {
        "first/kernel": random.normal(size=(3, 3, 2, 4)).astype(np.float32),
        "second/kernel": random.normal(size=(1, 1, 4, 6)).astype(np.float32),
        "head/kernel": random.normal(size=(6, 3)).astype(np.float32),
    }
    x = random.normal(size=(2, 8, 8, 2)).astype(np.float32)
    emission = _emission(run, params, x)
    model: Any = emission.model
    assert type(model.first) is type(model.second)
    assert (model.first.strides, model.second.strides) == ((1, 1), (2, 2))
    assert "strides: tuple[int, int] = eqx.field(static=True)" in emission.source
    np.testing.assert_array_equal(model(x), jax.jit(run)(*params.values(), x))
    new = _new(emission)
    assert _same_tree(new, model)
    assert _types(new) == _types(model)
    bound = np.sqrt(6 / (3 * 3 * (2 + 4)))  # glorot's, which is above that of lecun
    assert 0 < float(jnp.abs(new.first.kernel).max()) < 2 * bound
    assert not np.array_equal(_new(emission, 1).head.kernel, new.head.kernel)


def test_it_trains_from_scratch() -> None:
    def run(kernel: Any, bias: Any, scale: Any, x: Any) -> Any:
        return jnp.tanh(x @ kernel + bias) * scale

    params = {
        "layer/kernel": np.eye(3, dtype=np.float32),
        "layer/bias": np.full(3, 0.5, np.float32),
        "layer/scale": np.full(3, 2.0, np.float32),
    }
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    model = _new(_emission(run, params, x))
    arrays = model if hasattr(model, "kernel") else model.layer
    np.testing.assert_array_equal(arrays.bias, np.zeros(3))
    np.testing.assert_array_equal(arrays.scale, np.ones(3))

    @eqx.filter_value_and_grad
    def loss(model: Any) -> Any:
        return jnp.mean((model(x) - np.flip(x, 1)) ** 2)

    before, slope = loss(model)
    after, _ = loss(jax.tree.map(lambda a, b: a - 0.1 * b, model, slope))
    assert after < before


def test_constants_are_themselves() -> None:
    """Tables of a program that has parameters of its own are no weights."""
    table = np.repeat(np.arange(8), 2).astype(np.int32)
    steps = np.tile(np.asarray([0.75, 0.25], np.float32), 8)

    def run(kernel: Any, x: Any) -> Any:
        return (x @ kernel)[:, jnp.asarray(table)] * jnp.asarray(steps)

    params = {"layer/kernel": np.ones((3, 8), np.float32)}
    emission = _emission(run, params, np.ones((2, 3), np.float32))
    pairs = zip(*map(jax.tree_util.tree_leaves, (_new(emission), emission.model)), strict=True)
    equal = [np.array_equal(a, b) for a, b in pairs]
    assert equal.count(False) == 1  # the kernel
    assert "jnp.arange(16, dtype=jnp.int32) // 2" in emission.source
    assert "jnp.tile(jnp.array([0.75, 0.25], jnp.float32), 8)" in emission.source


def test_large_constants_have_no_values_before_they_are_loaded() -> None:
    """A table with a short text does, whatever its size."""
    filters = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    table = np.repeat(np.arange(20), 4).astype(np.int32)

    def run(kernel: Any, x: Any) -> Any:
        return (x @ jnp.asarray(filters) @ kernel)[:, jnp.asarray(table)]

    params = {"layer/kernel": np.ones((40, 20), np.float32)}
    lowered = jax.jit(run).lower(*params.values(), np.ones((2, 8), np.float32))
    emission = invert.from_stablehlo(lowered, params=params, names=[*params, "x"]).emit()
    (message,) = emission.messages
    assert "has no values for the constant" in message
    assert "has no values until it is loaded." in emission.source
    assert "jnp.arange(80, dtype=jnp.int32) // 4" in emission.source
    new = jax.tree_util.tree_leaves(_new(emission))
    assert [bool(jnp.isnan(a).any()) for a in new].count(True) == 1


def test_wide_arrays_are_made_wide_without_x64() -> None:
    """A new model has the types of the old one, whatever `jax_enable_x64` says."""
    table = np.asarray([0.1, 2.0**60, 1 / 3])

    def run(kernel: Any, x: Any) -> Any:
        return (x @ kernel + jnp.asarray(table)).astype(jnp.float32)

    params = {"layer/kernel": np.ones((3, 3), np.float64)}
    with jax.enable_x64(True):
        emission = _emission(run, params, np.ones((2, 3), np.float64))
    with jax.enable_x64(False):
        new = _new(emission)
    assert _types(new) == _types(emission.model)
    assert any(np.array_equal(leaf, table) for leaf in jax.tree_util.tree_leaves(new))


def test_factors_of_several_axes_are_ones() -> None:
    """Those of a normalization, unlike a kernel that is masked or multiplied by hand."""

    def run(scale: Any, masked: Any, summed: Any, x: Any) -> Any:
        x = x / jnp.sqrt(jnp.mean(x**2, axis=(1, 2), keepdims=True)) * scale
        y = x @ (masked * jnp.tri(4, dtype=jnp.float32))
        return jnp.sum(jnp.tanh(y)[..., None] * summed, axis=2)

    shapes = {"norm/weight": (3, 4), "linear/weight": (4, 4), "hand/weight": (4, 2)}
    params = {
        n: np.cos(np.arange(np.prod(s), dtype=np.float32)).reshape(s) for n, s in shapes.items()
    }
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    new = _new(_emission(run, params, x))
    arrays = {jax.tree_util.keystr(p): v for p, v in jax.tree_util.tree_leaves_with_path(new)}
    ones = {v.shape: np.array_equal(v, np.ones(v.shape)) for v in arrays.values()}
    assert ones == {(3, 4): True, (4, 4): False, (4, 2): False}


def test_constants_with_a_role_begin_as_others_of_it() -> None:
    """Positions are summands of a table, and frequencies are factors."""
    random = np.random.default_rng(0)
    weight, positions, frequencies = (
        random.normal(size=s).astype(np.float32) for s in ((8, 8), (6, 8), (8,))
    )

    def waves(x: Any) -> Any:
        angles = (x @ weight + positions) * frequencies
        return jnp.sin(angles) + jnp.cos(angles)

    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch,6,8"), np.float32)
    exported = jax.export.export(jax.jit(waves))(shape)
    model: Any = invert.from_stablehlo(exported.mlir_module_serialized).model
    np.testing.assert_array_equal(model.positions, positions)
    new = type(model)(key=jax.random.key(0))
    assert np.abs(new.positions).min() > 0
    np.testing.assert_array_equal(new.frequencies, np.ones(8))
    exported = jax.export.export(jax.jit(lambda x: jnp.tanh(x + positions)))(shape)
    model = invert.from_stablehlo(exported.mlir_module_serialized).model
    np.testing.assert_array_equal(model.positions, positions)
    # What is only repeated for each sample has no positions that it is added to.
    zeros = jax.jit(lambda x: (positions + jnp.zeros((x.shape[0], 6, 8))) * x)
    model = invert.from_stablehlo(jax.export.export(zeros)(shape).mlir_module_serialized).model
    assert not hasattr(model, "positions")
    # Heads and their features are both columns of the weights.
    kernel, bias = (np.cos(np.arange(np.prod(s)).reshape(s)) for s in ((5, 6, 8), (6, 8)))
    heads = jax.jit(lambda x: jnp.tanh(jnp.tensordot(x, kernel, 1) + bias))
    exported = jax.export.export(heads)(jax.ShapeDtypeStruct((2, 4, 5), np.float32))
    model = invert.from_exported(exported).model
    assert hasattr(model, "bias") and not hasattr(model, "positions")
