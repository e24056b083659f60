"""Blocks and arguments of Keras models of several fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import invert
from tests.emission.models import assert_computes
from tests.emission.test_blocks import _classes

keras = pytest.importorskip("keras")

L = keras.layers


def _emitted(model: Any) -> Any:
    """The text of a model, with values and gradients compared with the module's."""
    keras.utils.set_random_seed(0)
    module = invert.convert(model)
    emission = module.emit(loader=False)
    assert not emission.messages
    random = np.random.default_rng(0)
    shapes = ((batch, *model.input_shape[1:]) for batch in (1, 3))
    batches = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    # Normalizations of a few numbers amplify the rounding of sums in another order.
    assert_computes(emission.model, module, *batches, rtol=1e-4, atol=1e-5)
    return emission


def _fires() -> Any:
    def fire(x: Any, squeezed: int, expanded: int, name: str) -> Any:
        x = L.Conv2D(squeezed, 1, activation="relu", name=f"{name}_squeeze")(x)
        sides = (1, "expand1x1"), (3, "expand3x3")
        return L.Concatenate()(
            [
                L.Conv2D(expanded, k, padding="same", activation="relu", name=f"{name}_{n}")(x)
                for k, n in sides
            ]
        )

    given = keras.Input((32, 32, 3))
    x = L.Conv2D(16, 3, strides=2, activation="relu", name="conv1")(given)
    for i, (squeezed, expanded) in enumerate([(8, 16), (8, 16), (12, 32)]):
        x = fire(x, squeezed, expanded, f"fire{i + 2}")
    x = fire(L.MaxPooling2D(3, 2)(x), 12, 48, "fire5")
    return keras.Model(given, L.GlobalAveragePooling2D()(L.Conv2D(5, 1, name="conv6")(x)))


def test_layers_that_a_concatenation_joins_are_a_block() -> None:
    emission = _emitted(_fires())
    assert list(_classes(emission)) == ["Conv", "Fire", "Model"]
    assert "fire5_squeeze" not in emission.source


def test_an_activation_of_all_layers_is_in_their_method() -> None:
    given = x = keras.Input((8, 8, 3))
    for c in (4, 6, 8, 10):
        x = L.Conv2D(c, 3, activation="relu")(x) if c < 10 else L.Conv2D(c, 1, activation="relu")(x)
    source = _emitted(keras.Model(given, L.Flatten()(x))).source
    assert "return jax.nn.relu(y + self.bias)" in source
    assert "activation" not in source


def _wavenet() -> Any:
    given = keras.Input((24, 1))
    x, skips = L.Conv1D(8, 1)(given), []
    for k, dilation in enumerate((1, 2, 4)):

        def conv(c: int, size: int, role: str, k: int = k, step: int = dilation, **kw: Any) -> Any:
            step = step if size > 1 else 1
            name = f"{role}_{k}"
            return L.Conv1D(c, size, dilation_rate=step, padding="causal", name=name, **kw)

        gate = conv(8, 2, "gate", activation="sigmoid")(x)
        z = L.Multiply()([conv(8, 2, "filter", activation="tanh")(x), gate])
        skips.append(conv(12, 1, "skip")(z))
        x = L.Add()([x, conv(8, 1, "residual")(z)])
    y = L.Concatenate()([L.Add()(skips), x])
    return keras.Model(given, L.Conv1D(4, 1, name="out")(L.ReLU()(y)), name="wave")


def test_layers_with_one_number_are_a_block_of_two_results() -> None:
    source = _emitted(_wavenet()).source
    assert source.count("skip: Conv") == 1
    assert source.count("self.skip(") == 1
    assert "skip_1: " not in source
    # The padding follows from the kernel and its dilation, which is a number.
    assert "(((kernel_size - 1) * dilation, 0),)" in source
    assert "self.dilation = (dilation,)" in source
    assert 'dimension_numbers=("NWC", "WIO", "NWC")' in source
    assert "dilation=2**i" in source
    assert "for i, k in enumerate(jax.random.split(" in source


def test_layers_with_one_number_that_compute_nothing_together_are_no_block() -> None:
    given = keras.Input((6,))
    scale = L.Dense(6, name="scale_1")(L.Dense(5, name="scale_0")(given))
    shift = L.Dense(6, name="shift_1")(L.Dense(5, name="shift_0")(given))
    x = L.Multiply()([scale, shift])
    source = _emitted(keras.Model(given, L.Dense(3, name="out")(x))).source
    assert "block_0" not in source


def _denoiser() -> Any:
    """Residual blocks with group normalizations; 16 is both a width and a number of channels."""
    given = keras.Input((16, 16, 3))

    def block(x: Any, c: int, name: str) -> Any:
        y = L.GroupNormalization(4, name=f"{name}_norm1")(x)
        y = L.Conv2D(c, 3, padding="same", name=f"{name}_conv1")(keras.ops.silu(y))
        y = L.GroupNormalization(4, name=f"{name}_norm2")(y)
        y = L.Conv2D(c, 3, padding="same", name=f"{name}_conv2")(keras.ops.silu(y))
        return y + (x if x.shape[-1] == c else L.Conv2D(c, 1, name=f"{name}_skip")(x))

    x = L.Conv2D(16, 3, padding="same", name="stem")(given)
    x = block(x, 16, "down0")
    x = block(L.AveragePooling2D(2)(x), 32, "down1")
    x = block(L.AveragePooling2D(2)(x), 32, "middle")
    return keras.Model(given, L.Conv2D(3, 1, name="out")(x))


def test_group_normalizations_at_several_sizes_of_images_are_one_class() -> None:
    source = _emitted(_denoiser()).source
    assert source.count("lax.rsqrt(") == 1
    assert "self.groups, c // self.groups" in source
    assert "skip: Conv | None" in source


def test_epsilons_are_an_option() -> None:
    given = x = keras.Input((6,))
    for epsilon in (1e-3, 1e-6, 1e-3):
        x = L.LayerNormalization(epsilon=epsilon)(L.Dense(6)(x))
    source = _emitted(keras.Model(given, x)).source
    assert source.count("class LayerNorm") == 1
    assert "lax.rsqrt(var + self.eps)" in source
    assert "eps=1e-06" in source


@pytest.mark.parametrize("size", [4, 16])
def test_scores_are_scaled_by_the_root_of_the_head_size(size: int) -> None:
    given = x = keras.Input((5, 12))
    for _ in range(2):
        x = L.Add()([x, L.MultiHeadAttention(3, size)(x, x)])
    source = _emitted(keras.Model(given, x)).source
    assert "(1 / head_dim**0.5)" in source
    assert f"head_dim: int = {size}" in source


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_kernel_of_equal_sides_has_one_size(rank: int) -> None:
    given = x = keras.Input((*(8,) * rank, 2))
    layer = getattr(L, f"Conv{rank}D")
    for size in (3, 1, 2):
        x = layer(4, size, activation="relu")(x)
    source = _emitted(keras.Model(given, L.Flatten()(x))).source
    assert "kernel_size: int" in source
    assert "kernel_size=2" in source


class _Turned(L.Layer):
    def call(self, x: Any) -> Any:
        y = keras.ops.cos(x) * keras.ops.exp(-x * x) + keras.ops.sin(x)
        return keras.ops.tanh(y * y) - y


class _Attending(L.Layer):
    def __init__(self, turned: str, **options: Any):
        super().__init__(**options)
        self.attention, self.turned = L.Dense(8), _Turned(name=turned)
        self.attention_norm, self.out = L.LayerNormalization(), L.Dense(8)

    def call(self, x: Any) -> Any:
        y = self.attention(self.attention_norm(x))
        return x + self.out(self.turned(y) * self.turned(y + x))


def test_layers_without_parameters_have_one_name_in_all_blocks() -> None:
    given = keras.Input((6, 8))
    x = given
    for i, turned in enumerate(["rotary_layer", "turned_1"]):
        x = _Attending(turned, name=f"block_{i}")(x)
    source = _emitted(keras.Model(given, x, name="marked")).source
    assert "blocks: tuple[Block, ...]" in source
    # `attention` and its norm are not parts of a layer of that name.
    assert "attention: Dense" in source
    assert "attention_norm: LayerNormalization" in source


def test_the_root_of_a_head_size_is_that_of_no_length() -> None:
    given = keras.Input((8, 32))
    x = L.MultiHeadAttention(4, 8, name="first")(given, given)
    x = L.MultiHeadAttention(4, 8, name="second")(x, x, use_causal_mask=True)
    source = _emitted(keras.Model(given, x, name="heads")).source
    assert source.count("(1 / head_dim**0.5)") == 1 and "causal=True" in source
    assert "length**0.5" not in source


def test_a_gelu_by_tanh_is_an_activation() -> None:
    """TensorFlow multiplies in another order than `jax.nn.gelu`."""
    layers = keras.layers
    inputs = keras.Input((5, 6))
    x = layers.Dense(7, activation=lambda x: keras.ops.gelu(x, approximate=True))(inputs)
    model = keras.Model(inputs, layers.Dense(6)(x))
    text = invert.convert(model).emit(loader=False)
    assert text.source.count("class Dense") == 1
    assert "(gelu(self.dense" in text.source
    written: Any = text.model
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    assert np.array_equal(written(x), invert.convert(model)(x))


def test_gates_of_a_convolutional_lstm_have_names() -> None:
    layer = keras.layers.ConvLSTM2D(4, 3, padding="same")
    source = invert.convert(keras.Sequential([keras.Input((3, 5, 5, 2)), layer])).source
    assert "kernel_i, kernel_f, kernel_g, kernel_o = jnp.split(self.kernel, 4" in source
    assert "x_f = conv(x, kernel_f)" in source
    assert "h_o = conv(h, recurrent_kernel_o)" in source
    assert "def conv(x: Array, kernel: Array)" in source


def test_a_second_length_is_that_of_its_argument() -> None:
    inputs = keras.Input((None, 6)), keras.Input((None, 6))
    x = keras.layers.MultiHeadAttention(2, 3)(inputs[0], inputs[0])
    x = keras.layers.MultiHeadAttention(2, 3)(x, inputs[1])
    source = invert.convert(keras.Model(inputs, x)).source
    assert 'memory: Float[Array, "batch memory_length dim"]' in source


def _pairs(x: Any, widths: tuple[int, ...]) -> Any:
    kept = []
    for width in widths:
        x = L.Conv2D(width, 3, padding="same", activation="elu")(x)
        x = L.Conv2D(width, 3, padding="same", activation="elu")(x)
        kept.append(x)
        x = L.AveragePooling2D(2)(x)
    x = L.Conv2D(widths[-1], 3, padding="same", activation="elu")(x)
    x = L.Conv2D(widths[-1], 3, padding="same", activation="elu")(x)
    for width, skip in zip(widths[::-1], kept[::-1], strict=True):
        x = L.Concatenate()([L.UpSampling2D()(x), skip])
        x = L.Conv2D(width, 3, padding="same", activation="elu")(x)
        x = L.Conv2D(width, 3, padding="same", activation="elu")(x)
    return x


def test_pairs_of_convolutions_that_repeat_are_a_layer() -> None:
    given = keras.Input((16, 16, 3))
    emission = _emitted(keras.Model(given, L.Conv2D(2, 1)(_pairs(given, (4, 6, 10)))))
    assert [*_classes(emission)].count("DoubleConv") == 1
    assert emission.source.count(": DoubleConv") == 7
    assert "jax.nn.elu(self.conv2(jax.nn.elu(self.conv1(x))))" in emission.source


def test_few_pairs_are_no_layer() -> None:
    given = keras.Input((16, 16, 3))
    assert "DoubleConv" not in _emitted(keras.Model(given, _pairs(given, (4, 6)))).source


def test_sequences_of_layers_and_other_steps_are_a_layer() -> None:
    def features(x: Any, width: int, size: int) -> Any:
        x = L.Conv1D(width, 3, padding="same", activation="tanh")(x)
        x = L.Dense(2 * width, activation="tanh")(L.GlobalMaxPooling1D()(x))
        return L.Dense(size)(x)

    given = keras.Input((12, 5))
    x = given * L.Reshape((1, 5))(features(given, 3, 5))
    x = L.Conv1D(7, 1)(x)
    x = x + L.Reshape((1, 7))(features(x, 4, 7))
    source = _emitted(keras.Model(given, features(L.Multiply()([x, x]), 6, 2))).source
    assert source.count(": Block") == 3
    assert source.count("jnp.max(") == 1


def _causal(length: int, width: int) -> Any:
    x = given = keras.Input((length, width))
    for dilation in (1, 3, 9):
        y = L.Conv1D(8, 2, padding="causal", dilation_rate=dilation, activation="relu")(x)
        y = L.Conv1D(8, 2, padding="causal", dilation_rate=dilation, activation="relu")(y)
        x = L.Add()([x if x.shape[-1] == 8 else L.Conv1D(8, 1)(x), y])
    return keras.Model(given, L.Dense(3)(x))


def test_causal_convolutions_compute_their_padding() -> None:
    source = _emitted(_causal(20, 5)).source
    assert "((kernel_size - 1) * dilation, 0)" in source
    assert "pad_width=" not in source
    assert "kernel_size=dilation" not in source  # which are both 1 in the only shortcut
    assert source.count("Block(") == 1 + 3 and "shortcut: Conv | None" in source


def test_two_lstms_of_convolutions_have_hidden_sizes() -> None:
    given = keras.Input((4, 8, 8, 2))
    x = L.ConvLSTM2D(5, 3, padding="same", return_sequences=True)(given)
    x = L.ConvLSTM2D(5, 3, padding="same", return_sequences=True)(x)
    source = _emitted(keras.Model(given, x)).source
    assert "def __init__(self, c_in: int, hidden: int, *, kernel_size: int" in source
    assert '"kh kw hidden gates"' in source
    assert "ConvLSTM2D(n_in, hidden, key=keys[0])" in source


def test_a_row_of_layers_of_one_kind_is_not_cut_into_sequences() -> None:
    x = given = keras.Input((5,))
    for i in range(16):
        x = keras.ops.sin(L.Dense(5 + i % 3, activation="tanh")(x)) * 2.0
    assert "Block" not in _emitted(keras.Model(given, x)).source


class _Masked(L.Layer):
    """An attention whose mask each layer computes from the same padding."""

    def build(self, x_shape: Any, padding_shape: Any) -> None:
        self.attention = L.MultiHeadAttention(2, 3)
        self.attention.build(x_shape, x_shape)
        self.norm = L.LayerNormalization()
        self.norm.build(x_shape)

    def call(self, x: Any, padding: Any) -> Any:
        steps = keras.ops.arange(keras.ops.shape(x)[1])
        past = keras.ops.cast(steps[:, None] >= steps, "int32")
        mask = keras.ops.minimum(padding[:, None], past[None])
        return x + self.attention(self.norm(x), x, attention_mask=mask)


def test_a_mask_that_all_layers_compute_is_computed_once() -> None:
    x, padding = keras.Input((None, 6), name="x"), keras.Input((None,), dtype="int32", name="pad")
    y = x
    for i in range(3):
        y = _Masked(name=f"layer_{i}")(y, padding)
    keras_model = keras.Model([x, padding], y)
    emission = invert.convert(keras_model).emit(loader=False)
    source = emission.source
    assert source.count("jnp.minimum(") == 1
    assert "for layer in self.layers:\n            x = layer(x, " in source
    arrays = [np.ones((2, 5, 6), np.float32), np.ones((2, 5), np.int32)]
    assert np.array_equal(emission.model(arrays), invert.convert(keras_model)(arrays))


def test_blocks_begin_with_their_attention() -> None:
    x = given = keras.Input((5, 6))
    x = x + L.Dense(6)(L.Dense(9, activation="relu")(L.LayerNormalization()(x)))
    for _ in range(2):
        y = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(2, 3)(y, y)
        x = x + L.Dense(6)(L.Dense(9, activation="relu")(L.LayerNormalization()(x)))
    source = _emitted(keras.Model(given, x)).source
    text = source[source.index("class Block(") : source.index("class Model(")]
    assert text.index("multi_head_attention(") < text.index("jax.nn.relu(")


def test_layers_before_and_after_others_are_no_groups() -> None:
    x = given = keras.Input((5, 6))
    for i in range(2):
        y = L.MultiHeadAttention(2, 3, name=f"att{i}")(x, x)
        x = L.LayerNormalization(name=f"n1_{i}")(x + y)
        y = L.Dense(6, name=f"ff2_{i}")(L.Dense(9, activation="relu", name=f"ff1_{i}")(x))
        x = L.LayerNormalization(name=f"n2_{i}")(x + y)
    source = _emitted(keras.Model(given, x)).source
    assert "self.n_2(x + self.ff_2(jax.nn.relu(self.ff_1(x))))" in source
    assert "ResidualBlock" not in source


def test_a_layer_called_as_a_class_of_jax() -> None:
    class P(L.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=shape[1:], name="embedding")

        def call(self, x: Any) -> Any:
            return x + self.w

    given = keras.Input((5, 6))
    source = _emitted(keras.Model(given, L.Dense(3)(P()(given)))).source
    assert "class P(eqx.Module)" in source and "PartitionSpec" not in source
    assert 'embedding: Float[Array, "length dim"]' in source


def test_functions_with_numbers_of_python_need_no_64_bits() -> None:
    given = keras.Input((4,))
    source = _emitted(keras.Model(given, L.Dense(3, activation="elu")(given))).source
    assert "jax.nn.elu(" in source and "x64" not in source


def test_a_layer_that_keeps_its_state_has_a_text() -> None:
    given = keras.Input(batch_shape=(2, 4, 3))
    module = invert.convert(keras.Model(given, L.LSTM(3, stateful=True)(given)))
    assert "LSTM" in module.source


def _called(model: Any, *inputs: Any) -> tuple[str, Any]:
    """The text of a called model, whose values equal the module's bit for bit."""
    module = invert.convert(model, *inputs)
    emission = module.emit(loader=False)
    assert not emission.messages
    assert np.array_equal(emission.model(*inputs), module(*inputs))  # type: ignore[reportCallIssue]
    return emission.source, emission.model


def test_an_activation_in_an_attribute_is_the_same_in_all_blocks() -> None:
    """Keras numbers activations over the whole model, and their scopes once more."""

    class Mixing(keras.layers.Layer):
        def __init__(self, width: int, **options: Any):
            super().__init__(**options)
            self.up = keras.layers.Dense(3 * width)
            self.act = keras.layers.Activation("gelu")
            self.down = keras.layers.Dense(width)
            self.scale = self.add_weight(shape=(width,), name="scale")

        def call(self, x: Any) -> Any:
            return x + self.scale * self.down(self.act(self.up(x)))

    class Net(keras.Model):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.first, self.rest = Mixing(6), [Mixing(6) for _ in range(11)]

        def call(self, x: Any) -> Any:
            x = self.first(x)
            for block in self.rest:
                x = block(x)
            return x

    keras.utils.clear_session()
    net, x = Net(), np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    net(x)
    source, _ = _called(net, x)
    assert len(re.findall(r"^class .*eqx.Module", source, re.M)) == 3  # Dense, Mixing, Net


def test_a_product_of_two_inputs_is_no_dense_layer() -> None:
    class GraphConv(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 5), name="kernel")

        def call(self, x: Any, adjacency: Any) -> Any:
            return keras.ops.matmul(adjacency, keras.ops.matmul(x, self.kernel))

    class Graph(keras.Model):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.conv, self.out = GraphConv(name="conv"), keras.layers.Dense(2)

        def call(self, x: Any, adjacency: Any) -> Any:
            return self.out(self.conv(x, adjacency))

    keras.utils.clear_session()
    random = np.random.default_rng(0)
    x, adjacency = (random.normal(size=s).astype(np.float32) for s in ((2, 4, 3), (2, 4, 4)))
    graph = Graph()
    graph(x, adjacency)
    source, _ = _called(graph, x, adjacency)
    assert {"Dense", "Graph"} < {*re.findall(r"^class (\w+)", source, re.M)}
    assert "Dense_2" not in source


def test_rows_of_positions_are_written_where_they_are_added() -> None:
    class Pair(keras.Model):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.words = keras.layers.Embedding(20, 6, name="words")
            self.places = keras.layers.Embedding(12, 6, name="places")

        def call(self, one: Any, other: Any) -> Any:
            made = [self.words(x) + self.places(keras.ops.arange(x.shape[1])) for x in (one, other)]
            return keras.ops.sum(made[0], 1) * keras.ops.sum(made[1], 1)

    keras.utils.clear_session()
    pair, random = Pair(), np.random.default_rng(0)
    one, other = (random.integers(0, 20, (2, n)).astype(np.int32) for n in (5, 7))
    pair(one, other)
    source, _ = _called(pair, one, other)
    assert "+ self.places(jnp.arange(5, dtype=jnp.int32))" in source
    assert "+ self.places(jnp.arange(7, dtype=jnp.int32))" in source


def test_channels_and_hidden_sizes_are_two_tuples() -> None:
    keras.utils.clear_session()
    layers: Any = keras.layers
    image = keras.Input((16, 16, 3), name="image")
    x = layers.Conv2D(10, 3, padding="same", use_bias=False, name="stem")(image)
    for i, (hidden, c) in enumerate(((30, 11), (27, 13), (41, 17), (22, 19))):
        y = layers.Conv2D(hidden, 1, use_bias=False, name=f"block{i}_expand")(x)
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name=f"block{i}_depth")(
            layers.ReLU()(y)
        )
        x = layers.Conv2D(c, 1, use_bias=False, name=f"block{i}_project")(layers.ReLU()(y))
    x = layers.GlobalAveragePooling2D()(x)
    module = invert.convert(keras.Model(image, layers.Dense(4, name="out")(x)))
    emission = module.emit(loader=False)
    assert not emission.messages
    tuples = re.findall(r"(widths|hidden_sizes): tuple\[int, \.\.\.\] = \((.*)\)", emission.source)
    assert dict(tuples).keys() == {"widths", "hidden_sizes"}
    pixels = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype(np.float32)
    assert np.array_equal(emission.model(pixels), module(pixels))  # type: ignore[reportCallIssue]


def test_blocks_of_an_encoder_and_a_decoder_are_named_once_after_these() -> None:
    """A block that attends to a memory is a `DecoderBlock` by itself, and the decoder holds it."""

    class Block(keras.layers.Layer):
        def __init__(self, *, cross: bool, **options: Any):
            super().__init__(**options)
            self.own = L.MultiHeadAttention(2, 3, name="own")
            self.other = L.MultiHeadAttention(2, 3, name="other") if cross else None
            self.ff = L.Dense(6, name="ff")

        def call(self, x: Any, memory: Any = None) -> Any:
            x = x + self.own(x, x)
            if self.other is not None:
                x = x + self.other(x, memory)
            return x + keras.ops.tanh(self.ff(x))

    class Stack(keras.layers.Layer):
        def __init__(self, *, cross: bool, **options: Any):
            super().__init__(**options)
            self.blocks = [Block(cross=cross, name=f"block_{i}") for i in range(2)]

        def call(self, x: Any, memory: Any = None) -> Any:
            for block in self.blocks:
                x = block(x, memory)
            return x

    class Net(keras.Model):
        def __init__(self, **options: Any):
            super().__init__(**options)
            self.encoder = Stack(cross=False, name="encoder")
            self.decoder = Stack(cross=True, name="decoder")

        def call(self, source: Any, target: Any) -> Any:
            return self.decoder(target, self.encoder(source))

    keras.utils.clear_session()
    random, net = np.random.default_rng(0), Net()
    source, target = (random.normal(size=(2, n, 6)).astype(np.float32) for n in (5, 4))
    net(source, target)
    text, _ = _called(net, source, target)
    assert {"EncoderBlock", "DecoderBlock"} < {*re.findall(r"^class (\w+)", text, re.M)}


def _cells(count: int, *, branches: tuple[str, ...] = ("left", "right")) -> Any:
    """Cells of branches, whose layers end with the names of these and the number of the cell."""

    def branch(x: Any, end: str) -> Any:
        for i in (1, 2):
            x = L.Conv2D(4, 3, padding="same", name=f"conv{i}_{end}")(L.ReLU()(x))
            x = L.BatchNormalization(name=f"norm{i}_{end}")(x)
        return x

    given = keras.Input((8, 8, 4))
    before, x = given, L.Conv2D(4, 1, name="first")(given)
    for k in range(1, count + 1):
        h = L.Conv2D(4, 1, name=f"adjust_{k}")(before)
        sides = [branch(h if i else x, f"{b}_{k}") for i, b in enumerate(branches)]
        joined = [L.Add()(sides), L.AveragePooling2D(3, 1, "same")(h), h]
        before, x = x, L.Conv2D(4, 1, name=f"project_{k}")(L.Concatenate()(joined))
    return keras.Model(given, L.Dense(3, name="head")(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("count", [3, 5])
def test_layers_whose_names_end_with_those_of_branches_and_cells_are_nested(count: int) -> None:
    emission = _emitted(_cells(count))
    classes = _classes(emission)
    assert [f for f in classes["Model"] if f.endswith("Block")] == [
        f"block_{k}: Block" for k in range(1, count + 1)
    ]
    own = "left: ConvBlock", "adjust: Conv", "right: ConvBlock", "project: Conv"
    assert classes["Block"] == [*own]
    body = emission.source[emission.source.rindex("def __call__") :]
    assert body.count("self.") == count + 2  # the first layer, the cells and the last one


def test_branches_that_end_with_a_word_only_once_are_no_groups() -> None:
    source = _emitted(_cells(2, branches=("left",))).source
    assert "left_1" not in source


class Filtering(L.Layer):
    def __init__(self, **options: Any):
        super().__init__(**options)
        self.conv = L.Conv2D(4, 3, padding="same")

    def build(self, shape: Any) -> None:
        self.conv.build(shape)

    def call(self, x: Any) -> Any:
        kernel = self.conv.kernel * np.tril(np.ones((3, 3), np.float32))[..., None, None]
        return keras.ops.conv(x, kernel, padding="same") + self.conv.bias


class Residual(L.Layer):
    def __init__(self, **options: Any):
        super().__init__(**options)
        self.narrow, self.masked, self.wide = L.Conv2D(4, 1), Filtering(), L.Conv2D(8, 1)

    def build(self, shape: Any) -> None:
        self.narrow.build(shape)
        for layer in (self.masked, self.wide):
            layer.build((*shape[:-1], 4))

    def call(self, x: Any) -> Any:
        return x + self.wide(keras.ops.relu(self.masked(keras.ops.relu(self.narrow(x)))))


def test_a_saved_model_has_names_and_initial_values_of_keras(tmp_path: Path) -> None:
    """No array has a name that Keras alone uses, and numbers count inner layers too."""
    L.Conv2D(2, 1)(np.zeros((1, 4, 4, 2), np.float32))  # the counts do not begin here
    given = x = keras.Input((4, 4, 8))
    for i in range(3):
        x = Residual(name=f"residual_{i}")(x)
    keras.Model(given, x, name="filtered").export(tmp_path / "saved", verbose=False)
    emission = invert.load(tmp_path / "saved").emit(loader=False)
    assert not emission.messages
    source = emission.source
    assert "residuals: tuple[Residual, ...]" in source
    assert "glorot_uniform" in source
    assert "lecun" not in source
    fields = re.findall(r"^    (\w+): Conv", source, re.MULTILINE)
    assert fields == ["conv2d", "conv2d_1", "conv2d_2"]


class _Branch(L.Layer):
    def __init__(self, shared: Any, **options: Any):
        super().__init__(**options)
        self.shared, self.own = shared, L.Dense(8, use_bias=False, name="own")

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(self.own(keras.ops.tanh(self.shared(x))))


class Sharing(keras.Model):
    def __init__(self):
        super().__init__(name="sharing")
        self.shared = L.Dense(8, use_bias=False, name="shared")
        self.branches = [_Branch(self.shared, name=f"branch_{i}") for i in range(2)]
        self.head = L.Dense(2, name="head")

    def call(self, x: Any) -> Any:
        first, second = self.branches
        return self.head(second(keras.ops.cos(first(x))))


def test_variables_named_after_their_model_alone_belong_to_their_layers(tmp_path: Path) -> None:
    """All but one are kernels."""
    model = Sharing()
    model(np.ones((3, 8), np.float32))
    model.export(tmp_path / "saved", verbose=False)
    module = invert.load(tmp_path / "saved")
    names = {re.sub(r"_\d+$", "", name) for name in module.named_params()}
    assert names == {"sharing/kernel", "sharing/bias"}
    emission = module.emit(loader=False)
    written: Any = emission.model
    assert written.shared.kernel.shape == (8, 8)
    assert written.head.bias.shape == (2,)
    assert "self.head(" in emission.source
    assert "self.bias" not in emission.source.rpartition("class ")[2]
