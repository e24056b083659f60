"""Texts of programs with open sizes: right at every size that they do not refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._private.jax import max_dim, min_dim
from tests.emission.models import recovered, with_params

F32 = np.float32
SIZES = (1, 2, 6, 15, 31, 130)


def _module(fn: Callable[..., Any], shape: str = "b, 3") -> Any:
    sizes = jax.export.symbolic_shape(shape)
    return jax.export.export(jax.jit(fn))(jax.ShapeDtypeStruct(sizes, F32))


def _blocks(x: Any) -> Any:
    pad = (-x.shape[0]) % 8
    rows = x.shape[0] + pad
    return jnp.pad(x, ((0, pad), (0, 0))).reshape(rows // 8, 8, 3).sum(1)


def _at_least(x: Any) -> Any:
    return jnp.pad(x, ((0, max_dim(x.shape[0], 5) - x.shape[0]), (0, 0)))


CASES: dict[str, Callable[..., Any]] = {
    "max": _at_least,
    "blocks": _blocks,
    "half": lambda x: x[: (x.shape[0] + 1) // 2],
    "stride": lambda x: x[::2],
    "remainder": lambda x: x * (x.shape[0] % 4),
    "remainder of the negative": lambda x: x + (-x.shape[0]) % 8,
    "a large block": lambda x: jnp.pad(x, ((0, (-x.shape[0]) % 128), (0, 0))).sum(0),
    "below zero, unsigned": lambda x: jnp.asarray(x.shape[0] - 5).astype(jnp.uint32) // 3,
    "relu": jax.nn.relu,
    "mean": lambda x: x.mean(0),
    "square": lambda x: (x @ x.T).reshape(-1) * x.shape[0],
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "from the end": lambda x: jax.lax.cummax(x[::-1], 0, reverse=True)[-1],
    "random": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "take": lambda x: x[jnp.array([0, -1])],
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.drawn(6)
def test_text_is_right_at_every_size(name: str) -> None:
    exported = _module(CASES[name])
    module: Any = invert.from_exported(exported)
    model = module.model
    for size in SIZES:
        x = np.random.default_rng(size).normal(size=(size, 3)).astype(F32)
        np.testing.assert_array_equal(model(x), exported.call(x))
    assert "exact for every b >= 1." in module.source.split('"""')[1]


def test_a_kernel_of_open_size_is_not_that_of_a_layer() -> None:
    def matrix(x: Any, y: Any) -> Any:
        return jax.scipy.linalg.toeplitz(x, y)  # gathers its rows by a convolution

    scope = jax.export.SymbolicScope(["n >= 2", "m >= 2"])
    sizes = [jax.export.symbolic_shape(s, scope=scope) for s in ("n", "m")]
    exported = jax.export.export(jax.jit(matrix))(*(jax.ShapeDtypeStruct(s, F32) for s in sizes))
    model: Any = invert.from_exported(exported).model
    x, y = np.arange(5, dtype=F32), np.arange(3, dtype=F32) - 9
    np.testing.assert_array_equal(model(x, y), matrix(x, y))


class _Scores(nn.Module):
    @nn.compact
    def __call__(self, x: Any, table: Any) -> Any:
        return nn.Dense(8)(nn.LayerNorm()(x)) @ table.T


class _Words(nn.Module):
    @nn.compact
    def __call__(self, i: Any) -> Any:
        table = nn.Embed(30, 8)
        return _Scores()(nn.Dense(8)(table(i)), table.embedding)


def test_rows_of_a_table_are_no_batch() -> None:
    words, i = _Words(), jnp.ones((2, 5), jnp.int32)
    entry = with_params(words.apply, words.init(jax.random.key(0), i), i, batch="b")
    source = recovered(entry).source
    assert 'embedding: Float[Array, "n n_in"]\n' in source
    assert 'Float[Array, "batch' not in source


def test_the_readme_lists_the_sizes(tmp_path: Any) -> None:
    module = invert.from_exported(_module(jax.nn.relu))
    invert.save(module, tmp_path / "relu")
    page = " ".join((tmp_path / "relu" / "README.md").read_text().split())
    assert "exact for every b >= 1" in page


def test_forbidden_derivatives_have_a_text() -> None:
    tf = pytest.importorskip("tensorflow")
    from jax.experimental import jax2tf

    w = jnp.ones((3, 2))
    converted = jax2tf.convert(
        lambda x: jnp.tanh(x @ w), with_gradient=False, polymorphic_shapes=["b, 3"]
    )
    spec = [tf.TensorSpec([None, 3], tf.float32)]
    module: Any = invert.roundtrip(tf.function(converted, autograph=False, input_signature=spec))
    model = module.model
    x = jnp.ones((5, 3))
    np.testing.assert_array_equal(model(x), module(x))
    for run in (module, model):
        with pytest.raises(LookupError, match="PreventGradient"):
            jax.grad(lambda x, run=run: run(x).sum())(x)


@pytest.mark.slow
def test_kept_rules_have_a_text_at_open_sizes() -> None:
    tf = pytest.importorskip("tensorflow")
    from jax.experimental import jax2tf

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * jnp.arange(x.shape[0], dtype=F32)[:, None]

    clipped.defvjp(
        lambda x: (clipped(x), x.shape[0]),
        lambda n, ct: (jnp.clip(ct * n, -1.5, 1.5),),
    )
    converted = jax2tf.convert(clipped, polymorphic_shapes=["b, 3"])
    spec = [tf.TensorSpec([None, 3], tf.float32)]
    module: Any = invert.roundtrip(tf.function(converted, autograph=False, input_signature=spec))
    model = module.model
    for size in (1, 4, 19):
        x = np.random.default_rng(size).normal(size=(size, 3)).astype(F32)
        for run in (module, model):
            np.testing.assert_array_equal(run(x), clipped(x))
            got = jax.grad(lambda x, run=run: (run(x) ** 2).sum())(x)
            want = jax.grad(lambda x: (clipped(x) ** 2).sum())(x)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_rounding_is_not_a_difference_of_gradients() -> None:
    # The gradient of a saturated softmax is what is left of terms that cancel.
    tf = pytest.importorskip("tensorflow")
    from jax.experimental import jax2tf

    w = jax.random.normal(jax.random.key(0), (6, 4))
    spec = [tf.TensorSpec([3, 6], tf.float32)]
    for last in (jax.nn.log_softmax, jax.nn.softmax):
        converted = jax2tf.convert(lambda x, last=last: last(jnp.maximum(x @ w, 0.0) @ w.T))
        function = tf.function(converted, autograph=False, input_signature=spec)
        assert "agrees with autodiff" in invert.roundtrip(function).report.gradients[0]


def test_a_table_limits_the_length_of_a_text() -> None:
    tf = pytest.importorskip("tensorflow")
    table = tf.constant(np.random.default_rng(0).normal(size=(24, 2)), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 2), tf.float32, name="x")])
    def network(x: Any) -> Any:
        places = tf.range(tf.shape(x)[1])
        return x + tf.gather(table, tf.where(places < 24, places, 0))

    module: Any = invert.convert(network)
    model = module.model
    for length in (1, 2, 5, 19, 24):
        x = np.ones((3, length, 2), np.float32)
        np.testing.assert_array_equal(model(x), module(x))
    x = np.ones((3, 25, 2), np.float32)
    try:
        got = model(x)
    except ValueError as error:
        assert "up to 24" in str(error)
    else:
        np.testing.assert_array_equal(got, module(x))


@pytest.mark.parametrize("most", [16, 600])
def test_a_minimum_holds_on_both_sides(most: int) -> None:
    exported = _module(lambda x: x[: min_dim(x.shape[0], most)] * 2.0)
    module: Any = invert.from_exported(exported)
    for size in (1, 3, 15, 16, most + 1):
        x = np.ones((size, 3), F32)
        np.testing.assert_array_equal(module.model(x), exported.call(x))


def _convolutions(names: Callable[[int], str], *, upsample: bool) -> Any:
    import keras
    import tensorflow as tf

    class Like(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            x, other = inputs
            return tf.image.resize(x, tf.shape(other)[1:3])

    inputs = keras.Input((None, None, 3), name="image")
    x, skips = inputs, []
    for i in range(3):
        x = keras.layers.Conv2D(4 + 2 * i, 3, padding="same", name=names(i))(x)
        skips.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for skip in reversed(skips) if upsample else ():
        x = Like()([x, skip])
    return keras.Model(inputs, keras.layers.Conv2D(2, 1, name=names(3))(x))


@pytest.mark.parametrize("upsample", [True, False])
def test_layers_at_computed_sizes_take_their_own_input_only(upsample: bool) -> None:
    """Convolutions at `height // 2` are the layer of those at `height`."""
    keras_model = _convolutions("conv.{}".format, upsample=upsample)
    module: Any = invert.convert(keras_model)
    source = module.emit(loader=False).source
    classes = re.findall(r"^class (\w+)", source, re.M)
    assert len(classes) == 2, classes
    assert "def __call__(self, x: Float[Array, " in source
    assert "conv_0: Conv" in source  # a dot in the name of a Keras layer does not nest
    assert source.count("def resize_bilinear") == upsample
    for height, width in ((8, 8), (17, 30)):
        x = np.random.default_rng(height).normal(size=(2, height, width, 3)).astype(F32)
        np.testing.assert_array_equal(module(x), module.model(x))
        np.testing.assert_allclose(module(x), keras_model(x), rtol=1e-4, atol=1e-5)
    if upsample:
        assert "height >= 8, width >= 8" in source
        with pytest.raises(ValueError, match="height >= 8"):
            module.model(np.zeros((1, 3, 9, 3), F32))


def test_a_layer_that_needs_an_open_size_is_given_an_array_of_it() -> None:
    """The number of positions is in no input of the layer, but in the text of it."""
    import keras
    import tensorflow as tf

    class Positions(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(4,), name="scale")

        def call(self, inputs: Any) -> Any:
            x, image = inputs
            length = tf.cast(tf.range(tf.shape(image)[1]), tf.float32)
            return tf.reduce_sum(x) * length[:, None] * self.scale

    image = keras.Input((None, 4))
    y = keras.layers.Dense(4)(image)
    half = keras.layers.MaxPooling1D()(y)
    model = keras.Model(image, Positions()([half, image]))
    module: Any = invert.convert(model)
    for length in (2, 9):
        x = np.random.default_rng(length).normal(size=(3, length, 4)).astype(F32)
        np.testing.assert_array_equal(module(x), module.model(x))
        np.testing.assert_allclose(module(x), model(x), rtol=1e-4, atol=1e-4)
    assert "class Positions(" in module.source


def test_layers_of_a_new_model_have_their_own_biases() -> None:
    """Biases of zeros and scales of ones are a single constant of the export for each size."""
    linen: Any = pytest.importorskip("flax.linen")

    class Block(linen.Module):
        features: int
        stride: int

        @linen.compact
        def __call__(self, x: Any) -> Any:
            y = linen.Conv(self.features, (3, 3), strides=self.stride)(x)
            y = linen.relu(linen.GroupNorm(4)(y))
            y = linen.GroupNorm(4)(linen.Conv(self.features, (3, 3))(y))
            if self.stride > 1:
                x = linen.Conv(self.features, (1, 1), strides=self.stride, name="shortcut")(x)
            return linen.relu(x + y)

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Conv(8, (3, 3))(x)
            for features, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2)):
                x = Block(features, stride)(x)
            return linen.Dense(4)(x.mean((1, 2)))

    net = Net()
    params = net.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    exported = _module(lambda x: net.apply(params, x), "b, 4*h, 4*w, 3")
    module: Any = invert.from_exported(exported)
    emission = module.emit(loader=False)
    model = module.model
    assert emission.messages == ()
    # Convolution, normalization, block, dense layer, and the whole.
    assert 5 <= emission.source.count("\nclass ") <= 6, emission.source
    assert len(jax.tree.leaves(model)) == len(jax.tree.leaves(params))
    for size in (4, 8):
        x = np.random.default_rng(size).normal(size=(2, size, 2 * size, 3)).astype(F32)
        np.testing.assert_array_equal(module(x), model(x))
        np.testing.assert_allclose(model(x), exported.call(x), rtol=1e-5, atol=1e-5)
    again = emission.with_values({**module.named_params(), **module._named_constants()})
    np.testing.assert_array_equal(again(x), model(x))


def test_steps_that_share_a_kernel_share_their_bias_too() -> None:
    """What is computed twice with one kernel is one layer, with one bias."""
    kernel = np.random.default_rng(0).normal(size=(3, 3)).astype(F32)
    other = np.random.default_rng(1).normal(size=(3, 3)).astype(F32)
    bias = np.zeros(3, F32)

    def fn(x: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ kernel + bias)
        return jnp.tanh(x @ other + bias)

    module: Any = invert.from_exported(_module(fn))
    model = module.model
    biases = [leaf for leaf in jax.tree.leaves(model) if leaf.ndim == 1]
    assert len(biases) == 2, module.source
    x = np.ones((4, 3), F32)
    np.testing.assert_array_equal(module(x), model(x))


@pytest.mark.parametrize(("shape", "least"), [("n + 3, 3", 4), ("2*n + 1, 3", 3)])
def test_sizes_below_those_of_an_export_are_refused(shape: str, least: int) -> None:
    """The smallest size of which `n` is at least one; the original refuses smaller ones too."""
    exported = _module(lambda x: x[1:] - x[:-1], shape)
    model: Any = invert.from_exported(exported).model
    x = np.arange(3.0 * least, dtype=F32).reshape(least, 3)
    np.testing.assert_array_equal(model(x), exported.call(x))
    for size in range(max(least - 2, 0), least):
        for call in (exported.call, model):
            with pytest.raises(ValueError, match=r"shapes|has to be"):
                call(x[:size])


@pytest.mark.parametrize(("shape", "test"), [("n + 1, 3", "if x.shape[0] < 2:"), ("n - 1, 3", "")])
def test_a_check_that_always_holds_is_not_written(shape: str, test: str) -> None:
    module = invert.from_exported(_module(lambda x: x * 2, shape))
    source = module.emit(loader=False).source
    assert test in source
    assert source.count("raise ValueError") == bool(test)


def _mean_of_rows(x: Any) -> Any:
    return x.sum(0) / max_dim(x.shape[0], 1)


@pytest.mark.parametrize(
    ("fn", "shape", "test"),
    [
        (_mean_of_rows, "b, 3", "if x.shape[0] == 0:"),
        (lambda x: x.sum(), "b, t", "if 0 in x.shape:"),
        (lambda x: x.sum(1), "b, t", "if x.shape[1] == 0:"),
        (lambda x: x.reshape(-1, 2).sum(), "2*b", "if x.shape[0] // 2 == 0:"),
        (lambda x: (jnp.tanh(x), x.sum(0)), "b, 3", "if x.shape[0] == 0:"),
        (lambda x: jnp.tanh(x), "b, t", ""),
        (lambda x: jnp.repeat(x, 2, axis=0), "b, 3", ""),
    ],
)
def test_a_text_refuses_size_zero_where_a_result_would_have_numbers(
    fn: Callable[..., Any], shape: str, test: str
) -> None:
    module = invert.from_exported(_module(fn, shape))
    tests = re.findall(r"if (?:.* == 0|0 in .*):", module.source.partition("def load(")[0])
    assert tests == [test] * bool(test)
    sizes = (0 if part.strip() in ("b", "t", "2*b") else int(part) for part in shape.split(","))
    x = np.zeros(tuple(sizes), np.float32)
    model: Any = module.model
    if test:
        with pytest.raises(ValueError, match=r">= 1 only"):
            model(x)
    else:
        np.testing.assert_array_equal(model(x), fn(x))
    one = np.ones([n or 2 for n in x.shape], np.float32)
    for got, wanted in zip(jax.tree.leaves(model(one)), jax.tree.leaves(fn(one)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_layers_count_negative_indices_from_the_end_of_their_own_input() -> None:
    """The number of nodes of a graph is read where it is used; no layer takes it as an argument."""

    class Graph(nn.Module):
        @nn.compact
        def __call__(self, x: Any, senders: Any, receivers: Any) -> Any:
            for i in range(2):
                ends = jnp.concatenate([x[senders], x[receivers]], axis=-1)
                sent = nn.relu(nn.Dense(4, name=f"sent_{i}")(ends))
                x = nn.Dense(4, name=f"own_{i}")(x)
                x = x + jax.ops.segment_sum(sent, receivers, x.shape[0])
            return x

    net, random = Graph(), np.random.default_rng(0)

    def arguments(nodes: int, edges: int) -> tuple[np.ndarray, ...]:
        ends = random.integers(-nodes, nodes, size=(2, edges)).astype(np.int32)
        return random.normal(size=(nodes, 3)).astype(F32), *ends

    params = net.init(jax.random.key(0), *arguments(2, 3))
    n, e = jax.export.symbolic_shape("n, e")
    ends = jax.ShapeDtypeStruct((e,), np.int32)
    exported = jax.export.export(jax.jit(lambda params, *args: net.apply(params, *args)))(
        params, jax.ShapeDtypeStruct((n, 3), F32), ends, ends
    )
    module: Any = invert.from_exported(exported.serialize(), params={"params": params})
    assert 'Array, ""]' not in module.source
    for nodes, edges in ((1, 1), (5, 9)):
        args = arguments(nodes, edges)
        np.testing.assert_array_equal(module.model(*args), jax.jit(net.apply)(params, *args))
