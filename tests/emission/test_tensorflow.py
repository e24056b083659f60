"""Models of Keras as source: layers by the names of scopes and variables, an open batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.emission.models import ramp


@pytest.mark.slow
def test_keras_layers(tmp_path) -> None:
    import keras

    image = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, padding="same")(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Flatten()(keras.layers.MaxPooling2D()(x))
    network = keras.Model(image, keras.layers.Dense(5, activation="softmax")(x))
    spec = tf.TensorSpec((None, 8, 8, 3), tf.float32, name="image")
    module = invert.convert(
        tf.function(lambda x: network(x, training=False), input_signature=[spec])
    )
    model: Any = module.model
    assert module._emission().messages == ()
    kernels = {name.split("_")[0] for name in ("conv2d", "batch_normalization", "dense")}
    fields = {f.split("_")[0] for f in model.__dataclass_fields__}
    assert fields == kernels
    assert "batch 8 8 c_in" in module.source
    invert.save(module, tmp_path)
    loaded = invert.load(tmp_path)
    for rows in (1, 4):
        x = ramp(rows, 8, 8, 3)
        assert np.array_equal(module(x), model(x))
        assert np.array_equal(module(x), loaded(x))
        assert np.allclose(module(x), network(jnp.asarray(x)), atol=1e-5)


def test_a_recurrent_layer_is_a_scan_for_any_batch() -> None:
    import keras

    inputs = keras.Input((5, 3))
    network = keras.Model(inputs, keras.layers.LSTM(4)(inputs))
    spec = tf.TensorSpec((None, 5, 3), tf.float32, name="x")
    module = invert.convert(tf.function(network, input_signature=[spec]))
    # The first call is a traced one: what it takes to recover the program leaves no trace in it.
    assert str(jax.make_jaxpr(module)(ramp(2, 5, 3))).count("jit[") == 0
    assert "Certificate: exact" in module.source
    assert "batch 5 n_in" in module.source and "n_in: int = 3" in module.source
    assert module.source.count("lax.scan") == 1
    for rows in (1, 3):
        x = ramp(rows, 5, 3)
        assert np.array_equal(module.model(x), module(x))
        assert np.allclose(module(x), network(x), atol=1e-6)


def test_layers_of_several_sizes_share_a_class() -> None:
    """Numbers that are sizes of some array are read from it; strides and padding are fields."""
    import keras

    image = x = keras.Input((16, 16, 8))
    for channels in (16, 24):
        x = keras.layers.GroupNormalization(2)(x)
        x = keras.layers.DepthwiseConv2D(3, padding="same")(x)
        x = keras.layers.Conv2D(channels, 1)(x)
    x = keras.layers.GroupNormalization(2)(x)
    x = keras.layers.DepthwiseConv2D(3, strides=2, padding="valid")(x)
    network = keras.Model(image, keras.layers.DepthwiseConv2D(3, strides=1)(x))
    spec = tf.TensorSpec((None, 16, 16, 8), tf.float32, name="image")
    module = invert.convert(tf.function(network, input_signature=[spec]))
    source = module.source
    assert module._emission().messages == ()
    assert source.count("class GroupNormalization") == 1
    assert source.count("class Conv") == 1
    assert source.count("class DepthwiseConv2d") == 1
    assert ", self.groups, c // self.groups)" in source
    assert re.findall(r"GroupNormalization\((\w+), groups=2\)", source) == ["c_in", "dim", "c_out"]
    assert re.search(r"feature_group_count=[a-z]", source)
    for rows in (1, 3):
        x = ramp(rows, 16, 16, 8)
        assert np.array_equal(module.model(x), module(x))


def test_a_model_is_named_after_its_class() -> None:
    import keras

    class TinyGPT(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="decoder")
            self.tok, self.pos = (keras.layers.Embedding(n, 6) for n in (11, 7))
            self.head = keras.layers.Dense(5)

        def call(self, ids: Any) -> Any:
            positions = keras.ops.arange(keras.ops.shape(ids)[1])
            return self.head(self.tok(ids) + self.pos(positions))

    network, ids = TinyGPT(), np.arange(8, dtype=np.int32).reshape(2, 4)
    network(ids)
    module = invert.convert(network, ids)
    assert type(module.model).__name__ == "TinyGPT"
    # Both tables are one class, whatever Keras knows about the positions.
    assert set(re.findall(r" = (\w+)\(\w+, dim, key=", module.source)) == {"Embedding"}
    model: Any = module.model
    assert np.array_equal(module(ids), model(ids))
    functional = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)], name="scores")
    assert type(invert.convert(functional).model).__name__ == "Scores"


def test_open_sizes_of_a_language_model() -> None:
    """A dict of inputs of one length, a layer that reads no input, a mask made of the length."""
    table = tf.Variable(ramp(40, 4), name="positions/table")
    weight = tf.Variable(ramp(4, 4), name="mix/weight")
    specs = {k: tf.TensorSpec((None, None, 4), tf.float32, name=k) for k in ("text", "other")}

    @tf.function(input_signature=[specs])
    def network(inputs):
        x = inputs["text"] + inputs["other"]
        batch, length = tf.unstack(tf.shape(x))[:2]
        with tf.name_scope("positions"):
            places = tf.broadcast_to(table[:length], [batch, length, 4])
        steps = tf.range(length)
        mask = tf.cast(steps[:, None] >= steps, tf.float32)
        with tf.name_scope("mix"):
            return tf.einsum("ij,bjd->bid", mask, x + places) @ weight

    module = invert.convert(network)
    assert module._emission().messages == ()
    source = module.source
    assert 'Float[Array, "batch length dim"]' in source
    # The text checks the length.
    assert "max_length: int = " not in source
    assert "class Positions" in source
    assert "jnp.arange(length" in source
    for rows, length in ((1, 3), (2, 6)):
        inputs = {"text": ramp(rows, length, 4), "other": ramp(rows, length, 4) * 2}
        assert np.array_equal(module.model(inputs), module(inputs))
        assert np.allclose(module(inputs), network(inputs), rtol=1e-5, atol=1e-5)


def test_exact_gelu_has_its_name() -> None:
    spec = tf.TensorSpec((None, 3), tf.float32, name="x")
    module = invert.convert(tf.function(tf.nn.gelu, input_signature=[spec]))
    assert "jax.nn.gelu(features, approximate=False)" in module.source


def beside(value: np.ndarray) -> Any:
    return lambda x: (x, tf.constant(value))


def test_constants_that_repeat_keep_their_bits() -> None:
    """Zeros have signs, NaN repeats itself, and a range may start anywhere."""
    for value in (
        np.zeros((3, 4), np.float32),
        np.full((2, 3), np.nan, np.float32),
        np.array([[0.0, -0.0], [0.0, -0.0]], np.float32),
        np.tile(np.arange(4), (3, 1)),
        np.arange(6.0).reshape(6, 1) + 2,
        np.arange(3, dtype=np.uint8) + 254,
        np.array([np.inf] * 3),
        np.array([np.nan, 1, 2]),
        np.eye(3),
        np.zeros((0, 3)),
    ):
        module = invert.convert(tf.function(beside(value)), np.float32(1))
        found = np.asarray(module(np.float32(1))[1])
        assert found.tobytes() == value.astype(found.dtype).tobytes()


def test_a_derivative_rule_of_doubles() -> None:
    ids = tf.constant([0, 0, 1, 1, 2])
    x = ramp(5).astype(np.float64) + 0.5
    module = invert.convert(tf.function(lambda x: tf.math.unsorted_segment_prod(x, ids, 3)), x)
    assert "custom_jvp" in module.source
    with jax.enable_x64(True):
        want, got = (jax.vjp(f, x)[1](np.ones(3)) for f in (module, module.model))
    np.testing.assert_array_equal(got, want)
    assert got[0].dtype == np.float64


def test_selected_boxes_and_rows_that_depend_on_data() -> None:
    corners = np.random.default_rng(0).uniform(size=(12, 2)).astype(np.float32)
    boxes, scores = np.concatenate([corners, corners + 0.3], 1), ramp(12)

    def fn(boxes: Any, scores: Any, count: Any) -> Any:
        best = tf.image.non_max_suppression(boxes, scores, 8, 0.1)
        chosen = tf.reduce_mean(tf.gather(boxes, best), 0)
        return chosen, tf.reduce_mean(tf.math.log(boxes[:count]))

    module = invert.convert(tf.function(fn), boxes, scores, np.int32(2))
    assert module._emission().messages == ()
    for count in (1, 5):
        for one, two in zip(
            *(f(boxes, scores, count) for f in (module, module.model)), strict=True
        ):
            np.testing.assert_array_equal(one, two)


def test_resizing_is_a_function_without_fields() -> None:
    """Its tables of places are constants inside of it."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 2], tf.float32)])
    def fn(x: Any) -> Any:
        x = tf.image.resize(x, (16, 16), method="bilinear")
        return tf.image.resize(x, (32, 32), method="nearest")

    module = invert.convert(fn)
    model: Any = module.model
    source = module.emit(loader=False).source
    assert "def resize_nearest(x):" in source
    assert "resize_bilinear(x, (16, 16))" in source
    assert "np.arange(" in source
    assert not jax.tree_util.tree_leaves(model)
    for batch in (1, 3):
        x = np.random.default_rng(batch).normal(size=(batch, 4, 4, 2)).astype(np.float32)
        np.testing.assert_array_equal(model(x), module(x))
        np.testing.assert_allclose(model(x), fn(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"half_pixel_centers": True}, "resize_bilinear(x, (5, 17))"),
        ({}, "resize_corners(x, (5, 17), False)"),
        ({"align_corners": True}, "resize_corners(x, (5, 17), True)"),
    ],
)
@pytest.mark.parametrize("size", [(7, 3), (1, 30)])
def test_linear_resizing_is_one_function_of_its_size(
    options: dict[str, bool], written: str, size: tuple[int, int]
) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, *size, 2], tf.float32)])
    def fn(x: Any) -> Any:
        return tf.raw_ops.ResizeBilinear(images=x, size=(5, 17), **options)

    module = invert.convert(fn)
    model: Any = module.model
    source = module.emit(loader=False).source
    assert written in source
    assert source.count("def resize_") == 1
    x = np.random.default_rng(5).normal(size=(2, *size, 2)).astype(np.float32)
    x[0, 0, 0, 0] = np.inf
    np.testing.assert_array_equal(model(x), module(x))
    np.testing.assert_allclose(model(x), fn(x).numpy(), rtol=1e-5, atol=1e-6)
    gradients = [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(x[1:]) for f in (model, module)]
    np.testing.assert_array_equal(*gradients)


def test_numbers_that_keras_did_not_count_stay() -> None:
    """Keras numbers layers through a process: `dense_7, dense_8` are the first two of a model."""
    import keras

    x = inputs = keras.Input((4,))
    for name in ("fc_9", "bn_3", "dense_7", "fc_12", "bn_5", "dense_8"):
        of = keras.layers.BatchNormalization if name.startswith("bn") else keras.layers.Dense
        x = of(name=name)(x) if of is keras.layers.BatchNormalization else of(4, name=name)(x)
    source = invert.convert(keras.Model(inputs, x)).emit(loader=False).source
    for name in ("fc_9", "fc_12", "bn_3", "bn_5", "dense_1", "dense_2"):
        assert f"self.{name} = " in source


def test_fields_are_the_attributes_of_the_original() -> None:
    """`self.query = Dense(8)` is `dense_3` to Keras; a name that somebody chose stays."""
    import keras

    layers = keras.layers

    class Gate(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.again = layers.Dense(6), layers.Dense(6, name="chosen")

        def call(self, x: Any) -> Any:
            return x * keras.ops.sigmoid(self.inner(x)) + self.again(x)

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate = layers.Dense(6), Gate()
            self.twice = self.also = layers.Dense(6)
            self.heads = [layers.Dense(2), layers.Dense(3)]

        def call(self, x: Any) -> Any:
            x = self.also(self.gate(self.first(x)))
            return [head(x) for head in self.heads]

    net: Any = Net()
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    wanted = net(x)
    module: Any = invert.convert(net, x)
    source = module.emit(loader=False).source
    for name in ("first", "gate", "inner", "chosen", "heads_0", "heads_1"):
        assert f"self.{name} = " in source, name
    assert "self.twice" not in source
    assert "self.also" not in source
    model: Any = module.model
    for one, two, three in zip(model(x), module(x), wanted, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, three, rtol=1e-5, atol=1e-6)
    # The weights keep the names that Keras has for them.
    assert set(module.named_params()) == {v.path for v in net.variables}


def test_blocks_with_the_numbers_of_keras_are_a_list() -> None:
    import keras

    class Feed(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (keras.layers.Dense(n, name=None) for n in (12, 6))
            self.norms = [keras.layers.LayerNormalization() for _ in range(2)]

        def call(self, x: Any) -> Any:
            return self.norms[1](x + self.down(keras.ops.relu(self.up(self.norms[0](x)))))

    inputs = keras.Input((None, 6))
    x = inputs
    for layer in [Feed() for _ in range(3)]:
        x = layer(x)
    network = keras.Model(inputs, x)
    module = invert.convert(network)
    source = module.emit(loader=False).source
    assert "feeds: tuple[Feed, ...]" in source
    assert "Feed_2" not in source
    assert "up: Dense\n    down: Dense" in source
    for shape in ((2, 3, 6), (1, 5, 6)):
        assert np.array_equal(module(ramp(*shape)), module.model(ramp(*shape)))


def test_a_separable_convolution_is_one_layer_and_a_softmax_a_call() -> None:
    import keras

    x = given = keras.Input((8, 8, 4))
    for filters in (6, 8):
        x = keras.layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(given, keras.layers.Softmax(name="predictions")(x))
    module = invert.convert(model)
    images = np.random.default_rng(5).normal(size=(3, 8, 8, 4)).astype(np.float32)
    np.testing.assert_allclose(module(images), model(images), rtol=1e-5, atol=1e-6)
    source = module.emit(loader=False).source
    kernels = re.findall(r"(\w+)_kernel: Float\[Array, .*\]\n", source)
    assert kernels == ["depthwise", "pointwise"]  # of the one class of both
    assert "return jax.nn.softmax(" in source and "class Predictions" not in source


def test_a_causal_mask_of_an_open_length_needs_no_doubles() -> None:
    def masked(x: Any) -> Any:
        length = tf.shape(x)[1]
        return tf.where(tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0), x, 0.0)

    spec = tf.TensorSpec((None, None), tf.float32, name="x")
    module = invert.convert(tf.function(masked, input_signature=[spec]))
    assert "jnp.tril(jnp.ones(" in module.source
    assert "enable_x64" not in module.source.partition("\ndef load(")[0]
    for rows in (1, 4):
        assert np.array_equal(module.model(ramp(rows, rows)), masked(tf.constant(ramp(rows, rows))))


def test_indices_of_a_hand_written_loop_read_as_written() -> None:
    @tf.function
    def knapsack(weights: Any, values: Any) -> Any:
        def step(i: Any, best: Any) -> Any:
            room = tf.range(9) - weights[i]
            taken = tf.gather(best, tf.maximum(room, 0)) + values[i]
            return i + 1, tf.where(room >= 0, tf.maximum(best, taken), best)

        return tf.while_loop(lambda i, _: i < 4, step, (0, tf.zeros(9)))[1]

    @tf.function
    def walk(table: Any, start: Any) -> Any:
        path = tf.TensorArray(tf.int32, 4)

        def step(i: Any, place: Any, path: Any) -> Any:
            place = table[3 - i, place]
            return i + 1, place, path.write(3 - i, place)

        return tf.while_loop(lambda i, *_: i < 4, step, (0, start, path))[2].stack()

    table = np.array([[1, 2, 0], [2, 2, 1], [0, 0, 1], [2, 1, 0]], np.int32)
    weights = np.array([2, 3, 4, 5], np.int32)
    for function, args, wanted in (
        (knapsack, (weights, ramp(4)), ("Certificate: exact", "weights, values = xs")),
        (walk, (table, np.int32(1)), ("table[3 - carry_0, start]", "reverse=True")),
    ):
        module = invert.convert(function, *args)
        source = module.emit(loader=False).source
        assert all(text in source for text in wanted), source
        assert ".bind" not in source and "jnp.full((1,)" not in source
        assert np.array_equal(module.model(*args), module(*args))
        assert np.allclose(module(*args), function(*args))


def test_layers_whose_names_begin_alike_are_one_layer() -> None:
    """Dots and underscores; an activation after the last; numbers alone count equal layers."""
    import keras

    layers = keras.layers

    def unit(x: Any, name: str, channels: int) -> Any:
        x = layers.Conv2D(channels, 3, padding="same", name=f"{name}.0")(x)
        x = layers.BatchNormalization(name=f"{name}.1")(x)
        return layers.ReLU()(layers.Conv2D(channels, 1, name=f"{name}.3")(layers.ReLU()(x)))

    image = keras.Input((8, 8, 3))
    near = unit(image, "stage1", 4)
    far = unit(layers.MaxPooling2D()(near), "stage2", 6)
    wide = layers.UpSampling2D()(far)
    x = layers.Concatenate()([wide, near])
    x = layers.Conv2D(5, 3, padding="same", dilation_rate=2, name="last_wide")(x)
    x = layers.Dense(4, name="last_mix")(x)
    x = layers.Dense(2, name="score_1")(layers.Dense(3, name="score_0")(x))
    module = invert.convert(keras.Model(image, x))
    model: Any = module.model
    fields = {"stage1", "stage2", "last", "score_0", "score_1"}
    assert set(model.__dataclass_fields__) == fields
    assert type(model.stage1) is type(model.stage2)
    assert set(model.stage1.__dataclass_fields__) == {"conv1", "norm", "conv2"}
    assert set(model.last.__dataclass_fields__) == {"wide", "mix"}
    assert type(model.last.wide) is type(model.stage1.conv1)
    assert (model.last.wide.dilation, model.stage2.conv1.dilation) == ((2, 2), (1, 1))
    for rows in (1, 3):
        x = ramp(rows, 8, 8, 3)
        assert np.array_equal(module.model(x), module(x))


def test_names_by_keras_are_not_prefixes() -> None:
    import keras

    layers = keras.layers
    network = keras.Sequential([keras.Input((9, 4)), layers.Conv1D(3, 2), layers.Conv1D(4, 2),
                                layers.Conv1DTranspose(3, 2), layers.Conv1DTranspose(5, 2),
                                layers.Dense(4)])  # fmt: skip
    assert len(invert.convert(network).model.__dataclass_fields__) == 5


def test_a_layer_that_is_used_elsewhere_keeps_its_place() -> None:
    import keras

    layers = keras.layers
    row = keras.Input((4,))
    first = layers.Dense(4, name="body_in")(row)
    second = layers.Dense(4, name="body_out")(first)
    sum_ = layers.Dense(3, name="head")(layers.Add()([first, second]))
    both = layers.Concatenate()([sum_, first])
    module = invert.convert(keras.Model(row, both))
    assert set(module.model.__dataclass_fields__) == {"body_in", "body_out", "head"}


def test_images_are_resized_to_computed_sizes_by_one_function() -> None:
    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 2))])
    def resized(x: Any) -> Any:
        size = tf.shape(x)[1:3]
        x = tf.image.resize(x, (2 * size[0], size[1] + 3))
        return tf.image.resize(x, (size[0] // 2 + 1, size[1]))

    module = invert.convert(resized)
    source = module.emit(loader=False).source
    assert source.count("def ") == 2
    assert re.search(r"\(x, \(2 \* height, width \+ 3\)\)", source)
    for height, width in ((5, 4), (8, 1)):
        x = ramp(2, height, width, 2)
        assert np.array_equal(module.model(x), module(x))
        assert np.allclose(module(x), resized(x), atol=1e-6)


def test_numbered_blocks_of_two_kinds_are_one_list() -> None:
    """Each takes the result of the one before; a shortcut and an activation belong to a block."""
    import keras

    layers = keras.layers

    def block(x: Any, name: str, channels: int, strides: int) -> Any:
        skip = x
        y = layers.Conv2D(channels, 3, strides, padding="same", name=f"{name}_a")(x)
        y = layers.BatchNormalization(name=f"{name}_a_bn")(y)
        y = layers.Conv2D(channels, 3, padding="same", name=f"{name}_b")(layers.ReLU()(y))
        if strides > 1:
            skip = layers.Conv2D(channels, 1, strides, name=f"{name}_skip")(x)
        return layers.Activation("silu")(layers.Add()([y, skip]))

    image = x = keras.Input((8, 8, 4))
    for i, (channels, strides) in enumerate([(4, 1), (6, 2), (6, 1), (8, 2), (8, 1)], 1):
        x = block(x, f"stage{i}", channels, strides)
    out = layers.Dense(2)(layers.GlobalAveragePooling2D()(x))
    module = invert.convert(keras.Model(image, out))
    model: Any = module.model
    assert set(model.__dataclass_fields__) == {"stages", "dense"}
    assert len(model.stages) == 5
    assert "for stage in self.stages:" in module.source
    assert "jax.nn.silu(" in module.source
    assert "class BatchNorm(" in module.source
    x = ramp(3, 8, 8, 4)
    assert np.array_equal(module.model(x), module(x))


def test_a_layer_named_between_two_others_is_outside_of_their_group() -> None:
    import keras

    layers = keras.layers
    row = keras.Input((4,))
    x = layers.Dense(4, name="mlp_in")(row)
    x = layers.Dense(4, name="middle")(x)
    x = layers.Dense(4, name="mlp_out")(x)
    module = invert.convert(keras.Model(row, layers.Dense(2, name="head")(x)))
    assert set(module.model.__dataclass_fields__) == {"mlp_in", "middle", "mlp_out", "head"}


def _inception(x: Any) -> Any:
    """Branches as in InceptionV3, whose layers Keras lists by their depth in the graph."""
    import keras

    def conv(x: Any, features: int, size: int | tuple[int, int]) -> Any:
        x = keras.layers.Conv2D(features, size, padding="same", use_bias=False)(x)
        return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))

    pooled = keras.layers.AveragePooling2D(3, 1, padding="same")(x)
    branches = [
        conv(x, 4, 1),
        conv(conv(x, 3, 1), 4, (1, 3)),
        conv(conv(conv(x, 2, 1), 4, 3), 4, 3),
    ]
    return keras.layers.Concatenate()([*branches, conv(pooled, 4, 1)])


@pytest.mark.parametrize("count", [3, 4])
def test_joined_branches_are_written_one_by_one(count: int) -> None:
    import keras

    given = x = keras.Input((9, 9, 5))
    for _ in range(count):
        x = _inception(x)
    model = keras.Model(given, keras.layers.GlobalAveragePooling2D()(x))
    module = invert.convert(model)
    source = module.emit(loader=False).source
    block = source.split("class Inception(")[1].split("class ")[0]
    fields = re.findall(r"^    (\w+): (?:tuple\[)?ConvBlock", block, re.M)
    assert fields == ["branch1", "branch2", "branch3", "branch_pool"]
    body = block.split("def __call__")[1].splitlines()
    assert [line.strip() for line in body if line.startswith("        ")] == [
        "branch1 = self.branch1(x)",
        "branch2 = chain(self.branch2, x)",
        "branch3 = chain(self.branch3, x)",
        "branch_pool = self.branch_pool(avg_pool_same(x, 3, 1))",
        "return jnp.concatenate([branch1, branch2, branch3, branch_pool], axis=-1)",
    ]
    assert "chain(self.blocks, " in source
    image = np.random.default_rng(1).normal(size=(2, 9, 9, 5)).astype(np.float32)
    written: Any = module.model
    assert np.array_equal(written(image), module(image))


def test_branches_keep_the_names_that_an_author_gave() -> None:
    import keras

    given = x = keras.Input((8, 8, 3))
    for i in range(3):
        near, far = (
            keras.layers.Conv2D(3, n, padding="same", name=f"{name}_{i}")(x)
            for name, n in (("near", 1), ("far", 5))
        )
        x = keras.layers.Concatenate()([far, near])
    source = invert.convert(keras.Model(given, x)).emit(loader=False).source
    assert "branch" not in source
    assert re.search(r"self\.near(_\d)?\(", source) and re.search(r"self\.far(_\d)?\(", source)


def test_stages_of_lettered_blocks_are_one_list() -> None:
    """As `block1a`, `block2a`, `block2b` of EfficientNet."""
    import keras

    given = x = keras.Input((8, 8, 4))
    for name, features in (("1a", 4), ("2a", 6), ("2b", 6), ("3a", 8), ("3b", 8)):
        y = keras.layers.Conv2D(9, 1, name=f"block{name}_expand", activation="relu")(x)
        y = keras.layers.Conv2D(features, 3, padding="same", name=f"block{name}_project")(y)
        x = keras.layers.Add()([x, y]) if x.shape[-1] == features else y
    module = invert.convert(keras.Model(given, x))
    source = module.emit(loader=False).source
    assert "blocks: tuple[Block, ...]" in source
    assert "for block in self.blocks:" in source
    image = np.random.default_rng(1).normal(size=(2, 8, 8, 4)).astype(np.float32)
    written: Any = module.model
    assert np.array_equal(written(image), module(image))


@pytest.mark.parametrize("draws", [1, 3])
def test_the_last_numbers_are_drawn_with_the_key_itself(draws: int) -> None:
    @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
    def noisy(x: Any) -> Any:
        return x + tf.add_n([tf.random.normal(tf.shape(x)) for _ in range(draws)])

    module = invert.convert(noisy, config=invert.Config(random="jax"))
    assert module.report.primitives.get("random_split", 0) == draws - 1
    x = np.zeros((20_000, 2), np.float32)
    drawn = np.asarray(module(x, key=jax.random.key(0)))
    # Independent numbers: variances add up.
    assert abs(drawn.var() / draws - 1) < 0.05 and abs(np.corrcoef(drawn.T)[0, 1]) < 0.05


def test_halves_that_are_exchanged_and_positions_of_open_length() -> None:
    def rotate(x: Any) -> Any:
        x1, x2 = tf.split(x, 2, axis=-1)
        y = tf.reshape(tf.stack([-x2, x1], axis=-2), tf.shape(x))
        positions = tf.range(tf.cast(tf.shape(x)[1], tf.float32))
        angles = positions[:, None] * 0.5
        return x * tf.cos(angles) + y * tf.sin(angles)

    spec = tf.TensorSpec([None, None, 6], tf.float32)
    function = tf.function(rotate, input_signature=[spec])
    source = invert.convert(function).emit(loader=False).source
    assert "rotated = jnp.concatenate([-x2, x1], axis=-1)" in source
    assert "jnp.arange(length, dtype=jnp.float32)" in source
    assert "stack" not in source


def test_a_text_refuses_size_zero_where_the_original_adds_a_row() -> None:
    def padded(x: Any) -> Any:
        return tf.concat([x, tf.zeros([tf.maximum(1 - tf.shape(x)[0], 0), 2])], 0)

    spec = tf.TensorSpec([None, 2], tf.float32)
    module = invert.convert(tf.function(padded, input_signature=[spec]))
    model: Any = module.model
    none = np.zeros((0, 2), np.float32)
    np.testing.assert_array_equal(module(none), np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match="this text is for batch >= 1 only"):
        model(none)
    np.testing.assert_array_equal(model(np.ones((3, 2), np.float32)), np.ones((3, 2)))


@pytest.mark.parametrize("axes", [[], [-1]])
def test_reductions_over_no_axes_keep_their_operands(axes: list[int]) -> None:
    def rows(x: Any, index: Any) -> Any:
        sums = tf.reduce_max(x * 2.0, axes, keepdims=True)
        return tf.gather(sums, index), tf.sqrt(sums)

    specs = [tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([2], tf.int32)]
    theirs = tf.function(rows, input_signature=specs)
    model: Any = invert.convert(theirs).model
    x, index = np.arange(6, dtype=np.float32).reshape(2, 3), np.int32([1, 0])
    for got, wanted in zip(model(x, index), theirs(x, index), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_empty_results_beside_open_sizes_have_a_text() -> None:
    def empty(x: Any) -> Any:
        return tf.repeat(x, 0, axis=0), tf.scan(lambda a, b: a + b, x, reverse=True)

    spec = tf.TensorSpec([None], tf.float32)
    theirs = tf.function(empty, input_signature=[spec])
    model: Any = invert.convert(theirs).model
    x = np.arange(4, dtype=np.float32)
    for got, wanted in zip(model(x), theirs(x), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_size_that_the_program_determines_holds_for_that_size_only() -> None:
    def scaled(x: Any) -> Any:
        return (x + tf.ones([4, 1])) * tf.cast(tf.shape(x)[0], tf.float32)

    spec = tf.TensorSpec([None, 3], tf.float32)
    theirs = tf.function(scaled, input_signature=[spec])
    module = invert.convert(theirs)
    model: Any = module.model
    one, four = np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)
    for x in (one, four):
        np.testing.assert_array_equal(module(x), theirs(x))
    np.testing.assert_array_equal(model(four), theirs(four))
    with pytest.raises(ValueError, match=r"x\.shape\[0\] has to be 4"):
        model(one)
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.AddV2"):
        module(np.ones((2, 3), np.float32))


def test_a_squeeze_of_an_open_axis_holds_where_it_stays() -> None:
    spec = tf.TensorSpec([None, 1, 3], tf.float32)
    theirs = tf.function(lambda x: tf.squeeze(x) * 2.0, input_signature=[spec])
    module = invert.convert(theirs)
    model: Any = module.model
    for size in (1, 2, 5):
        x = np.arange(3 * size, dtype=np.float32).reshape(size, 1, 3)
        np.testing.assert_array_equal(module(x), theirs(x))
        if size > 1:
            np.testing.assert_array_equal(model(x), theirs(x))
    with pytest.raises(ValueError, match="axis 0 is left out if its size is one"):
        model(np.ones((1, 1, 3), np.float32))


def test_the_only_argument_of_a_signature_is_checked(tmp_path: Path) -> None:
    class Counts(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="x")])
        def frequencies(self, x: Any) -> Any:
            n = tf.size(x)
            return {"y": tf.math.bincount(x, minlength=n, maxlength=n)[:2] / n}

    counts = Counts()
    tf.saved_model.save(counts, tmp_path, signatures=counts.frequencies)
    module = invert.load(tmp_path, signature="serving_default")
    module(x=np.zeros(4, np.int32))
    model: Any = module.model  # of this length, which its quotient contains
    with pytest.raises(ValueError, match=r"has the shape \(7,\), but this text is for \(4,\) only"):
        model(x=np.zeros(7, np.int32))


def test_slots_of_different_rank_have_different_classes(tmp_path: Path) -> None:
    """An optimizer keeps slots of one name for a kernel and a bias; they only look alike."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, (None, 8))
        kernel, bias = v1.get_variable("a/w", [8, 3]), v1.get_variable("a/b", [3])
        loss = tf.reduce_mean((tf.matmul(x, kernel) + bias) ** 2)
        with tf.control_dependencies([v1.train.AdamOptimizer(0.1).minimize(loss)]):
            loss = tf.identity(loss)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path), {"x": x}, {"loss": loss})
    module = invert.load(tmp_path)
    assert module._emission().messages == ()
    assert module.source.count("Adam_1: eqx.nn.StateIndex[Float[Array, ") == 2


def test_a_diagonal_of_64_bits_is_that_of_jax() -> None:
    x = np.random.default_rng(0).normal(size=(4, 4))
    function = tf.function(lambda x: tf.linalg.diag_part(x) * 2)
    emission = invert.convert(function, tf.TensorSpec((4, 4), tf.float64)).emit(loader=False)
    assert "return jnp.diagonal(x) * 2.0" in emission.source
    np.testing.assert_array_equal(np.asarray(emission.model(x)), function(x).numpy())
