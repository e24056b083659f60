"""The sizes of a model as arguments of its class: the text at other sizes is the original there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import invert

L: Any = keras.layers


def _at_other_sizes(
    build: Callable[..., Any], sizes: dict[str, int], others: dict[str, int], *inputs: Any
) -> str:
    """The source of a model, whose class is compared with the model of other sizes.

    **Arguments:**

    - `build`: makes the Keras model of some sizes, by their names in the text.
    - `sizes`, `others`: those of the model that is converted, and of another one.
    - `inputs`: what both take.
    """
    keras.utils.clear_session()
    module = invert.convert(build(**sizes))
    emission = module.emit(loader=False)
    model: Any = emission.model
    assert np.array_equal(model(*inputs), module(*inputs))
    cls = type(model)
    defaults = {
        n: p.default
        for n, p in inspect.signature(cls).parameters.items()
        if p.default is not p.empty
    }
    assert defaults.items() >= sizes.items()
    keras.utils.clear_session()
    original = build(**others)
    for w in original.weights:
        values = np.random.default_rng(len(w.path)).normal(size=w.shape, scale=0.3)
        w.assign(np.abs(values) if "variance" in w.path else values)
    other: Any = invert.convert(original).emit(loader=False).model
    fresh = eqx.filter_eval_shape(cls, **others, key=jax.random.key(0))
    arrays, structure = jax.tree_util.tree_flatten(fresh)
    values = jax.tree_util.tree_leaves(other)
    assert [a.shape for a in arrays] == [v.shape for v in values]
    again = jax.tree_util.tree_unflatten(structure, values)
    # Sums over channels, which may cancel, are computed in another order than TensorFlow's.
    expected = np.asarray(original(*inputs))
    largest = max(1.0, float(np.abs(expected).max()))
    assert np.allclose(again(*inputs), expected, atol=1e-5 * largest)
    return emission.source


def _classifier(
    *, vocab_size: int, dim: int, depth: int, heads: int, head_dim: int, hidden: int, n_out: int
) -> Any:
    given = keras.Input((None,), dtype="int32")
    x = L.Embedding(vocab_size, dim)(given)
    for _ in range(depth):
        y = L.MultiHeadAttention(heads, head_dim)(x, x)
        x = L.LayerNormalization()(x + y)
        x = L.LayerNormalization()(x + L.Dense(dim)(L.Dense(hidden, activation="gelu")(x)))
    return keras.Model(given, L.Dense(n_out)(L.GlobalAveragePooling1D()(x)))


# Sizes that are one number by chance are arguments of their own.
@pytest.mark.parametrize("dim", [12, 20])
def test_a_classifier_of_texts(dim: int) -> None:
    names = ("vocab_size", "dim", "depth", "heads", "head_dim", "hidden", "n_out")
    sizes = dict(zip(names, (20, dim, 2, 3, 5, 17, 5), strict=True))
    others = dict(zip(names, (9, 8, 3, 2, 7, 11, 4), strict=True))
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    source = _at_other_sizes(_classifier, sizes, others, ids)
    assert "jax.random.split(keys[1], depth)" in source


def _images(*, c_in: int, dim: int, depth: int, n_out: int) -> Any:
    given = keras.Input((12, 12, c_in))
    x = L.Conv2D(dim, 3, strides=2, padding="same")(given)
    for _ in range(depth):
        x = x + L.Conv2D(dim, 1)(L.LayerNormalization()(L.DepthwiseConv2D(3, padding="same")(x)))
    return keras.Model(given, L.Dense(n_out)(L.GlobalAveragePooling2D()(x)))


def test_a_convolutional_network_of_one_width() -> None:
    names = ("c_in", "dim", "depth", "n_out")
    sizes = dict(zip(names, (3, 10, 3, 4), strict=True))
    others = dict(zip(names, (3, 7, 2, 6), strict=True))
    x = np.random.default_rng(1).normal(size=(2, 12, 12, 3)).astype(np.float32)
    assert "dim: int = 10" in _at_other_sizes(_images, sizes, others, x)


def _wide(*, c_in: int, dim: int, channels: int, channels_2: int, n_out: int) -> Any:
    given = x = keras.Input((12, 12, c_in))
    for width in (dim, channels, channels_2):
        x = L.Conv2D(width, 3, activation="relu")(x)
    return keras.Model(given, L.Dense(n_out)(L.GlobalAveragePooling2D()(x)))


def test_few_sizes_of_library_layers_are_numbered() -> None:
    names = ("c_in", "dim", "channels", "channels_2", "n_out")
    sizes, others = (dict(zip(names, n, strict=True)) for n in ((3, 6, 9, 14, 5), (3, 4, 5, 7, 2)))
    x = np.random.default_rng(0).normal(size=(2, 12, 12, 3)).astype(np.float32)
    _at_other_sizes(_wide, sizes, others, x)


def test_many_widths_are_one_tuple() -> None:
    given = x = keras.Input((12, 12, 3))
    for width in (6, 9, 14, 11, 13):
        x = L.Conv2D(width, 3, activation="relu")(x)
    model = keras.Model(given, L.Dense(5)(L.GlobalAveragePooling2D()(x)))
    source = invert.convert(model).emit(loader=False).source
    assert "widths: tuple[int, ...] = (6, 9, 14, 11, 13)" in source
    found = re.findall(r"Conv2d\((\w+\S*), widths\[(\d)\], ", source)
    assert found == [("c_in", "0"), *((f"widths[{i}]", str(i + 1)) for i in range(4))]


def _grouped(*, dim: int, heads: int, kv_heads: int, head_dim: int) -> Any:
    given = x = keras.Input((6, dim))
    for _ in range(2):
        x = x + L.GroupQueryAttention(head_dim, heads, kv_heads)(x, x)
    return keras.Model(given, x)


def test_heads_that_share_keys() -> None:
    names = ("dim", "heads", "kv_heads", "head_dim")
    sizes = dict(zip(names, (10, 6, 2, 5), strict=True))
    x = np.random.default_rng(2).normal(size=(2, 6, 10)).astype(np.float32)
    others = dict(zip(names, (10, 6, 3, 4), strict=True))
    source = _at_other_sizes(_grouped, sizes, others, x)
    assert re.search(r"jnp\.repeat\(.*, groups, axis=", source)


def _translator(*, dim: int, heads: int, head_dim: int, hidden: int) -> Any:
    texts = [keras.Input((n,), dtype="int32", name=f"{k}_ids") for k, n in (("old", 7), ("new", 5))]
    memory, x = (L.Embedding(n, dim)(t) for n, t in zip((11, 13), texts, strict=True))
    memory = L.LayerNormalization()(memory + L.MultiHeadAttention(heads, head_dim)(memory, memory))
    for _ in range(2):
        y = L.MultiHeadAttention(heads, head_dim)(x, x, use_causal_mask=True)
        x = L.LayerNormalization()(x + y)
        x = L.LayerNormalization()(x + L.MultiHeadAttention(heads, head_dim)(x, memory))
        x = x + L.Dense(dim)(L.Dense(hidden, activation="relu")(x))
    return keras.Model(texts, x)


@pytest.mark.parametrize("head_dim", [5, 6])
def test_attentions_of_all_kinds_are_one_class(head_dim: int) -> None:
    """The text that is written has the length 5: no number of it is the size of a head."""
    ids = [np.arange(2 * n, dtype=np.int32).reshape(2, n) % 11 for n in (7, 5)]
    module = invert.convert(_translator(dim=12, heads=2, head_dim=head_dim, hidden=9))
    emission = module.emit(loader=False)
    model: Any = emission.model
    assert np.array_equal(model(ids), module(ids))
    assert emission.source.count("jax.nn.softmax(") == 1
    assert "if self.causal:" in emission.source
    assert "jnp.ones((length, length), jnp.bool_)" in emission.source
    assert re.search(r"\.multi_head_attention\w*\((\w+), \1\)", emission.source)


class _Biased(L.Layer):
    """An attention that adds a bias; the first one of a row computes it."""

    def __init__(self, dim: int, heads: int, *, first: bool, **options: Any) -> None:
        super().__init__(**options)
        self.heads, self.size = heads, dim // heads
        self.parts = [L.Dense(dim, use_bias=False, name=n) for n in ("query", "key", "value")]
        self.output_projection = L.Dense(dim, use_bias=False, name="out")
        self.table = L.Embedding(9, heads, name="relative") if first else None

    def call(self, x: Any, bias: Any = None) -> Any:
        ops = keras.ops
        shape = (-1, 4, self.heads, self.size)
        query, key, value = (
            ops.transpose(ops.reshape(p(x), shape), (0, 2, 1, 3)) for p in self.parts
        )
        if self.table is not None:
            places = ops.arange(4)[:, None] - ops.arange(4)[None] + 4
            bias = ops.transpose(self.table(places), (2, 0, 1))[None]
        scores = query @ ops.transpose(key, (0, 1, 3, 2)) + bias
        mixed = ops.transpose(ops.softmax(scores) @ value, (0, 2, 1, 3))
        return x + self.output_projection(ops.reshape(mixed, (-1, 4, self.heads * self.size))), bias


def test_what_the_first_layer_computes_for_all_is_a_layer_before_them() -> None:
    given = x = keras.Input((4, 6))
    bias = None
    for i in range(3):
        layer: Any = _Biased(6, 3, first=i == 0, name=f"block_{i}")
        x, bias = layer(x, bias)
    module = invert.convert(keras.Model(given, x))
    emission = module.emit(loader=False)
    values = np.random.default_rng(5).normal(size=(2, 4, 6)).astype(np.float32)
    model: Any = emission.model
    assert np.array_equal(model(values), module(values))
    assert emission.source.count("jax.nn.softmax(") == 1
    assert "for block in self.blocks:" in emission.source
    # The table has a column for each head.
    assert "heads: int = 3" in emission.source


def test_tables_are_named_by_what_they_are_looked_up_by() -> None:
    ids = [keras.Input((), dtype="int32", name=f"{k}_id") for k in ("user", "city")]
    rows = [L.Embedding(n, 6)(i) for n, i in zip((30, 40), ids, strict=True)]
    x = L.LayerNormalization()(rows[0] + rows[1])
    x = x + L.Dense(6)(L.Dense(8, activation="relu")(x))
    source = invert.convert(keras.Model(ids, x)).emit(loader=False).source
    assert "num_users: int = 30" in source and "num_cities: int = 40" in source


def _recurrent(*, n_in: int, hidden: int, hidden_2: int, n_out: int) -> Any:
    given = keras.Input((7, n_in))
    x = L.GRU(hidden, return_sequences=True)(given)
    return keras.Model(given, L.Dense(n_out)(L.SimpleRNN(hidden_2)(x)))


def test_the_rows_of_a_bias_are_no_size_of_a_model() -> None:
    """Those of a GRU are two at any size, a number of its cell."""
    names = ("n_in", "hidden", "hidden_2", "n_out")
    sizes = dict(zip(names, (6, 16, 5, 2), strict=True))
    others = dict(zip(names, (6, 9, 11, 3), strict=True))
    x = np.random.default_rng(3).normal(size=(2, 7, 6)).astype(np.float32)
    assert "self.gru = GRU(n_in, hidden, key=" in _at_other_sizes(_recurrent, sizes, others, x)


def _pair(*, dim: int, n_out: int, source_vocab_size: int, target_vocab_size: int) -> Any:
    source = keras.Input((6,), dtype="int32", name="source")
    target = keras.Input((4,), dtype="int32", name="target")
    half = L.LSTM(dim, return_sequences=True)
    memory = L.Bidirectional(half)(L.Embedding(source_vocab_size, dim, name="old")(source))
    x = L.LSTM(2 * dim, return_sequences=True)(
        L.Embedding(target_vocab_size, dim, name="new")(target)
    )
    return keras.Model([source, target], L.Dense(n_out)(x + L.Attention()([x, memory])))


def test_a_size_that_is_a_multiple_of_another_is_no_argument() -> None:
    """The decoder is as wide as both halves of the encoder, which its attention needs."""
    keras.utils.clear_session()
    built = _pair(dim=8, n_out=7, source_vocab_size=20, target_vocab_size=23)
    emission = invert.convert(built).emit(loader=False)
    model: Any = emission.model
    cls = type(model)
    names = inspect.signature(cls).parameters
    if "hidden" in names or not any(n.endswith("dim") for n in names):
        pytest.fail(f"sizes that are not independent: {[*names]}")
    ids = [np.arange(2 * n, dtype=np.int32).reshape(2, n) for n in (6, 4)]
    at = cls(dim=5, key=jax.random.key(0))(ids)
    assert at.shape == (2, 4, 7)


def _by_ends(*, c_in: int, num_classes: int) -> Any:
    x = given = keras.Input((16, 16, c_in))
    for i, width in enumerate((6, 10, 7, 11)):
        x = L.Conv2D(width, 3, strides=2, padding="same", activation="relu", name=f"conv{i}")(x)
    x = L.Dense(9, activation="relu", name="hidden")(L.GlobalAveragePooling2D()(x))
    return keras.Model(given, L.Dense(num_classes, activation="softmax", name="probabilities")(x))


def test_a_model_of_several_widths_has_the_sizes_of_its_ends() -> None:
    keras.utils.clear_session()
    emission = invert.convert(_by_ends(c_in=3, num_classes=5)).emit(loader=False)
    cls: Any = type(emission.model)
    fresh = cls(c_in=2, widths=(3, 4, 6, 5), num_classes=4, key=jax.random.key(0))
    assert fresh(np.zeros((3, 16, 16, 2), np.float32)).shape == (3, 4)


def _two_lstms(*, n_in: int, hidden: int, n_out: int) -> Any:
    x = given = keras.Input((6, n_in))
    x = L.LSTM(hidden, return_sequences=True, name="first")(x)
    x = L.LSTM(hidden, name="second")(x)
    return keras.Model(given, L.Dense(n_out, name="head")(x))


def test_lstms_of_one_size_have_it_as_an_argument() -> None:
    sizes = {"n_in": 3, "hidden": 7, "n_out": 2}
    others = {"n_in": 3, "hidden": 10, "n_out": 4}
    x = np.random.default_rng(1).normal(size=(2, 6, 3)).astype(np.float32)
    assert ": LSTM\n" in _at_other_sizes(_two_lstms, sizes, others, x)


def test_several_tables_have_no_size_of_one() -> None:
    """`vocab_size` would be that of the first table only."""
    keras.utils.clear_session()
    users, items = (keras.Input((), dtype="int32", name=n) for n in ("a", "b"))
    rows = [L.Embedding(n, 4)(x) for n, x in ((20, users), (30, items))]
    model = keras.Model([users, items], L.Dense(1)(L.Concatenate()(rows)))
    source = invert.convert(model).emit(loader=False).source
    assert "vocab_size: int = 20" not in source or "vocab_size: int = 30" in source


def _image(size: int, channels: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, size, size, channels)).astype(np.float32)


def _segmenter(*, dim: int) -> Any:
    given = keras.Input((8, 8, 3))

    def block(x: Any, width: int, name: str) -> Any:
        x = L.Conv2D(width, 3, padding="same", activation="relu", name=f"{name}_conv1")(x)
        return L.Conv2D(width, 3, padding="same", activation="relu", name=f"{name}_conv2")(x)

    wide = block(given, dim, "down0")
    small = block(L.MaxPooling2D(2)(wide), 2 * dim, "down1")
    small = block(L.MaxPooling2D(2)(small), 4 * dim, "bottom")
    joined = L.Concatenate()([L.UpSampling2D(4)(small), wide])
    return keras.Model(given, L.Conv2D(2, 1, name="mask")(block(joined, dim, "up0")))


def _excited(*, dim: int) -> Any:
    given = x = keras.Input((8, 8, 3))
    x = L.Conv2D(dim, 3, padding="same")(x)
    for width, strides in ((dim, 1), (2 * dim, 2), (4 * dim, 2)):
        y = L.Conv2D(width, 3, strides, padding="same", use_bias=False)(x)
        y = L.ReLU()(L.BatchNormalization()(y))
        y = L.Conv2D(width, 3, padding="same", use_bias=False)(y)
        y = L.BatchNormalization()(y)
        z = L.Dense(width // 4, activation="relu")(L.GlobalAveragePooling2D()(y))
        z = L.Dense(width, activation="sigmoid")(z)
        y = L.Multiply()([y, L.Reshape((1, 1, width))(z)])
        if x.shape[-1] != width:
            x = L.Conv2D(width, 1, strides)(x)
        x = L.ReLU()(L.Add()([x, y]))
    return keras.Model(given, L.Dense(5)(L.GlobalAveragePooling2D()(x)))


def _coder(*, dim: int, code_size: int) -> Any:
    given = x = keras.Input((8, 8, 3))
    for width in (dim, 2 * dim, 4 * dim):
        x = L.Conv2D(width, 3, 2, padding="same", activation="relu")(x)
    x = L.Dense(code_size, name="code")(L.Flatten()(x))
    x = L.Reshape((1, 1, 4 * dim))(L.Dense(4 * dim, activation="relu")(x))
    for width in (2 * dim, dim):
        x = L.Conv2DTranspose(width, 3, 2, padding="same", activation="relu")(x)
    return keras.Model(given, L.Conv2DTranspose(3, 3, 2, padding="same")(x))


@pytest.mark.parametrize(
    ("build", "sizes", "others"),
    [
        (_segmenter, {"dim": 4}, {"dim": 7}),
        (_excited, {"dim": 8}, {"dim": 12}),
        (_coder, {"dim": 4, "code_size": 5}, {"dim": 6, "code_size": 8}),
    ],
)
def test_widths_that_are_multiples_of_one(
    build: Any, sizes: dict[str, int], others: dict[str, int]
) -> None:
    source = _at_other_sizes(build, sizes, others, _image(8, 3))
    assert re.search(r"\b2 \* dim\b", source)
    assert re.search(r"\b4 \* dim\b", source)


def _autoencoder(
    *, c_in: int, encoder_channels: int, hidden: int, latent_dim: int, decoder_channels: int
) -> Any:
    image, code = keras.Input((8, 8, c_in)), keras.Input((latent_dim,))
    x = L.Conv2D(encoder_channels, 3, 2, padding="same", activation="relu")(image)
    x = L.Dense(latent_dim)(L.Dense(hidden, activation="relu")(L.Flatten()(x)))
    encoder = keras.Model(image, x, name="encoder")
    y = L.Dense(4 * 4 * decoder_channels, activation="relu")(code)
    y = L.Conv2DTranspose(1, 3, 2, padding="same")(L.Reshape((4, 4, decoder_channels))(y))
    decoder = keras.Model(code, y, name="decoder")
    given = keras.Input((8, 8, c_in))
    return keras.Model(given, decoder(encoder(given)))


def test_images_that_are_flattened_keep_their_channels() -> None:
    names = ("c_in", "encoder_channels", "hidden", "latent_dim", "decoder_channels")
    sizes = dict(zip(names, (3, 6, 16, 2, 6), strict=True))
    others = dict(zip(names, (3, 5, 9, 4, 7), strict=True))
    source = _at_other_sizes(_autoencoder, sizes, others, _image(8, 3))
    assert source.count("4 * 4 * channels") == 2
    assert ".reshape(batch, 4, 4, -1)" in source


def _language_model(*, vocab_size: int, dim: int, hidden: int) -> Any:
    given = keras.Input((None,), dtype="int32")
    x = L.Embedding(vocab_size, dim)(given)
    x = x + L.Dense(dim)(L.Dense(hidden, activation="gelu")(x))
    return keras.Model(given, L.Dense(vocab_size)(L.LayerNormalization()(x)))


def test_predicted_words_are_those_of_the_table() -> None:
    sizes, others = ({"vocab_size": v, "dim": 8, "hidden": 17} for v in (20, 13))
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    source = _at_other_sizes(_language_model, sizes, others, ids)
    assert "n_out: int =" not in source.rpartition("class ")[2]


def _mixer(*, dim: int, depth: int, hidden: int, hidden_2: int) -> Any:
    given = x = keras.Input((6, dim))
    for _ in range(depth):
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        y = L.Dense(6)(L.Dense(hidden, activation="gelu")(y))
        x = L.Add()([x, L.Permute((2, 1))(y)])
        y = L.Dense(hidden_2, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dense(dim)(y)])
    return keras.Model(given, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def test_two_hidden_sizes_in_a_block() -> None:
    names = ("dim", "depth", "hidden", "hidden_2")
    sizes = dict(zip(names, (12, 2, 10, 17), strict=True))
    others = dict(zip(names, (12, 3, 7, 9), strict=True))
    x = np.random.default_rng(0).normal(size=(2, 6, 12)).astype(np.float32)
    _at_other_sizes(_mixer, sizes, others, x)


def _towers(*, query_size: int, doc_size: int, dim: int) -> Any:
    query, doc = keras.Input((query_size,), name="query"), keras.Input((doc_size,), name="doc")
    ends = [L.Dense(dim, name=f"{x.name}_tower")(x) for x in (query, doc)]
    return keras.Model([query, doc], keras.ops.sum(ends[0] * ends[1], axis=-1))


def test_sizes_of_several_inputs_are_named_after_these() -> None:
    sizes, others = ({"query_size": 5, "doc_size": 7, "dim": d} for d in (8, 3))
    inputs = [_image(5, 1)[:, :, 0, 0], _image(7, 1)[:, :, 0, 0]]
    source = _at_other_sizes(_towers, sizes, others, inputs)
    assert 'Float[Array, "batch query_size"] | Float[Array, "batch doc_size"]' in source


def test_inputs_that_are_equal_by_chance_have_types_of_their_own() -> None:
    keras.utils.clear_session()
    source = invert.convert(_towers(query_size=5, doc_size=5, dim=8)).emit(loader=False).source
    assert 'Float[Array, "batch query_size"] | Float[Array, "batch doc_size"]' in source


def _joined(*, n_in: int, dim: int) -> Any:
    numbers = keras.Input((n_in,))
    ids = [keras.Input((), dtype="int32") for _ in range(3)]
    x = L.Concatenate()([*(L.Embedding(9, dim)(i) for i in ids), numbers])
    for width in (4 * dim, 2 * dim, dim):
        x = L.Dense(width, activation="relu")(x)
    return keras.Model([*ids, numbers], L.Dense(1)(x))


def test_features_that_are_joined_are_sums() -> None:
    sizes, others = ({"n_in": 5, "dim": d} for d in (8, 6))
    ids = [np.array([i, 8 - i], np.int32) for i in range(3)]
    source = _at_other_sizes(_joined, sizes, others, [*ids, _image(5, 1)[:, :, 0, 0]])
    assert "Dense(3 * dim + n_in, 4 * dim" in source


def test_features_of_inputs_that_are_joined() -> None:
    keras.utils.clear_session()
    a, b = keras.Input((3,), name="left"), keras.Input((4,), name="right")
    model = keras.Model([a, b], L.Dense(2)(L.Dense(8)(L.Concatenate()([a, b]))))
    cls: Any = type(invert.convert(model).emit(loader=False).model)
    fresh = cls(left_size=5, right_size=6, dim=7, n_out=1, key=jax.random.key(0))
    assert fresh([np.ones((2, 5), np.float32), np.ones((2, 6), np.float32)]).shape == (2, 1)


def _both_ways(*, vocab_size: int, dim: int, hidden: int, n_out: int) -> Any:
    given = keras.Input((None,), dtype="int32")
    x = L.Embedding(vocab_size, dim)(given)
    x = L.Bidirectional(L.LSTM(hidden, return_sequences=True))(x)
    return keras.Model(given, L.Dense(n_out)(L.Bidirectional(L.LSTM(hidden))(x)))


def test_both_directions_of_a_sequence_have_one_hidden_size() -> None:
    sizes = {"vocab_size": 20, "dim": 8, "hidden": 6, "n_out": 1}
    others = {"vocab_size": 9, "dim": 5, "hidden": 7, "n_out": 3}
    ids = np.arange(8, dtype=np.int32).reshape(2, 4)
    source = _at_other_sizes(_both_ways, sizes, others, ids)
    assert "Bidirectional(2 * hidden, hidden, key=" in source


def _gated(*, dim: int, depth: int, hidden: int, length: int) -> Any:
    x = given = keras.Input((length, dim))
    for i in range(depth):
        u, v = keras.ops.split(L.Dense(hidden, name=f"up_{i}")(x), 2, axis=-1)
        v = L.Permute((2, 1))(L.Dense(length, name=f"mix_{i}")(L.Permute((2, 1))(v)))
        x = x + L.Dense(dim, name=f"down_{i}")(u * v)
    return keras.Model(given, x)


def test_halves_of_a_hidden_size_and_positions_that_are_mixed() -> None:
    sizes = {"dim": 6, "depth": 3, "hidden": 20, "length": 7}
    others = {"dim": 5, "depth": 4, "hidden": 8, "length": 3}
    keras.utils.clear_session()
    text = invert.convert(_gated(**sizes)).emit(loader=False).source
    assert "hidden // 2" in text
    for n, m in (sizes, others), (others, sizes):
        x = np.ones((2, n["length"], n["dim"]), np.float32)
        keras.utils.clear_session()
        model: Any = invert.convert(_gated(**m)).emit(loader=False).model
        again = type(model)(**n, key=jax.random.key(0))
        assert again(x).shape == x.shape


def _crossed(
    *, n_in: int, depth: int, embedding_size: int, hidden: int, hidden_2: int, num_users: int
) -> Any:
    class Cross(L.Layer):
        def build(self, shape: Any) -> None:
            self.dense = L.Dense(shape[-1])

        def call(self, first: Any, x: Any) -> Any:
            return first * self.dense(x) + x

    given, user, item = (
        keras.Input((n_in,), name="numbers"),
        keras.Input((), dtype="int32", name="user"),
        keras.Input((), dtype="int32", name="item"),
    )
    tables = [
        L.Embedding(num_users, embedding_size, name="user_embedding")(user),
        L.Embedding(11, embedding_size, name="item_embedding")(item),
    ]
    x = first = L.Concatenate()([given, *tables])
    for _ in range(depth):
        x = Cross()(first, x)
    y = L.Dense(hidden_2, activation="relu")(L.Dense(hidden, activation="relu")(first))
    return keras.Model([given, user, item], L.Dense(1)(L.Concatenate()([x, y])))


def test_a_layer_that_gets_one_value_twice_is_one_of_a_list() -> None:
    names = ("n_in", "depth", "embedding_size", "hidden", "hidden_2", "num_users")
    sizes = dict(zip(names, (6, 3, 5, 16, 13, 9), strict=True))
    others = dict(zip(names, (4, 4, 3, 7, 8, 6), strict=True))
    rng = np.random.default_rng(0)
    users, items = (np.arange(3, dtype=np.int32) for _ in range(2))
    keras.utils.clear_session()
    model: Any = invert.convert(_crossed(**sizes)).emit(loader=False)
    assert "for cross in self.crosses:\n            x = cross(x, joined)" in model.source
    assert "Dense(n_in + 2 * embedding_size + hidden_2, n_out" in model.source
    again = type(model.model)(**others, key=jax.random.key(0))
    x = rng.normal(size=(3, others["n_in"])).astype(np.float32)
    assert again([x, users, items]).shape == (3, 1)
    assert len(again.crosses) == others["depth"]


def _pooled(*, dim: int, channels: int, n_out: int) -> Any:
    given = keras.Input((8, 8, 3))
    x = L.Conv2D(dim, 3, activation="relu")(L.Conv2D(channels, 3, activation="relu")(given))
    x = L.LayerNormalization()(L.Reshape((16, dim))(x))
    for _ in range(2):
        x = x + L.MultiHeadAttention(2, 5, dropout=0.1)(L.LayerNormalization()(x), x)
    scores = keras.ops.transpose(keras.ops.softmax(L.Dense(1)(x), axis=1), (0, 2, 1))
    return keras.Model(given, L.Dense(n_out)(keras.ops.squeeze(scores @ x, 1)))


def test_channels_of_a_layer_before_the_width() -> None:
    sizes, others = ({"dim": d, "channels": c, "n_out": n} for d, c, n in ((12, 6, 4), (9, 5, 2)))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    source = _at_other_sizes(_pooled, sizes, others, x)
    assert "self.conv2d = Conv(c_in, channels, " in source or "n_in, channels" in source
    assert "scores = query @ key" in source
    assert source.count("swapaxes") == 4


def _stacks(*, n_in: int, hidden: int, n_out: int) -> Any:
    x = given = keras.Input((n_in,))
    total = 0.0
    for k in range(3):
        y = L.Dense(hidden, activation="relu", name=f"stack{k}_in")(x)
        y = L.Dense(hidden, activation="relu", name=f"stack{k}_out")(y)
        x = x - L.Dense(n_in, name=f"stack{k}_back")(y)
        total = total + L.Dense(n_out, name=f"stack{k}_fore")(y)
    return keras.Model(given, total)


def test_equal_sizes_without_names_are_one_argument() -> None:
    sizes, others = {"hidden": 7, "n_out": 3}, {"hidden": 4, "n_out": 2}
    x = np.random.default_rng(0).normal(size=(2, 9)).astype(np.float32)

    def build(**sizes: int) -> Any:
        return _stacks(n_in=9, **sizes)

    source = _at_other_sizes(build, sizes, others, x)
    assert re.findall(r"(\w+): int = ", source) == ["dim", "depth", "hidden", "n_out"]


def test_one_head_that_is_dropped_is_no_argument() -> None:
    given, memory = keras.Input((5, 6)), keras.Input((7, 6))
    x = given + L.MultiHeadAttention(1, 6, name="cross")(given, memory)
    x = x + L.MultiHeadAttention(3, 4, name="inner")(x, x)
    source = invert.convert(keras.Model([given, memory], x)).emit(loader=False).source
    assert "kv_heads" not in source and "heads: int = 3" in source


def test_attentions_of_one_head_and_of_several_are_one_class() -> None:
    given, memory = keras.Input((5, 6)), keras.Input((7, 6))
    x = given + L.MultiHeadAttention(1, 6, name="cross")(given, memory)
    x = x + L.MultiHeadAttention(3, 4, name="inner")(x, x)
    emission = invert.convert(keras.Model([given, memory], x)).emit(loader=False)
    source = emission.source
    assert "squeeze" not in source and source.count("class Attention") == 2  # with the output
    assert "cross_heads: int = 1" in source and "inner_heads: int = 3" in source
    fresh = eqx.filter_eval_shape(type(emission.model), key=jax.random.key(0))
    shapes = [[a.shape for a in jax.tree.leaves(m)] for m in (fresh, emission.model)]
    assert shapes[0] == shapes[1]


def test_channels_of_a_separable_convolution() -> None:
    x = given = keras.Input((8, 8, 4))
    for width in (6, 10):
        x = L.SeparableConv2D(width, 3, padding="same")(x)
    source = invert.convert(keras.Model(given, x)).emit(loader=False).source
    assert 'depthwise_kernel: Float[Array, "kh kw c_in 1"]' in source
    assert 'pointwise_kernel: Float[Array, "1 1 c_in c_out"]' in source


def test_tables_that_one_input_looks_up_have_one_number_of_rows() -> None:
    """The users and movies of neural collaborative filtering, each with two tables."""

    def build(dim: int, num_users: int, num_movies: int) -> Any:
        user = keras.Input((), dtype="int32", name="user")
        movie = keras.Input((), dtype="int32", name="movie")
        product = L.Embedding(num_users, dim, name="gmf_user")(user) * L.Embedding(
            num_movies, dim, name="gmf_movie"
        )(movie)
        hidden = L.Concatenate()(
            [
                L.Embedding(num_users, 2 * dim, name="mlp_user")(user),
                L.Embedding(num_movies, 2 * dim, name="mlp_movie")(movie),
            ]
        )
        for k, n in enumerate([4 * dim, 2 * dim, dim]):
            hidden = L.Dense(n, activation="relu", name=f"mlp_{k}")(hidden)
        out = L.Dense(1, name="rating")(L.Concatenate()([product, hidden]))
        return keras.Model([user, movie], out)

    sizes, others = (
        {"dim": d, "num_users": u, "num_movies": m} for d, u, m in ((8, 40, 60), (6, 41, 9))
    )
    ids = [np.array([3, 39], np.int32), np.array([0, 7], np.int32)]
    source = _at_other_sizes(build, sizes, others, ids)
    assert "self.user(user) * self.movie(movie)" in source


def test_rows_of_tables_of_columns_are_one_argument() -> None:
    keras.utils.clear_session()
    columns = keras.Input((3,), dtype="int32", name="columns")
    every = [L.Embedding(n, 4, name=f"table_{k}")(columns[:, k]) for k, n in enumerate((5, 9, 12))]
    x = L.Dense(6, activation="relu", name="mlp")(L.Concatenate()(every))
    module = invert.convert(keras.Model(columns, L.Dense(1, name="out")(x)))
    emission = module.emit(loader=False)
    assert "vocab_sizes: tuple[int, int, int] = (5, 9, 12)" in emission.source
    assert "for vocab_size in vocab_sizes" in emission.source
    ids = np.array([[0, 8, 11], [4, 3, 2]], np.int32)
    assert np.array_equal(emission.model(ids), module(ids))  # type: ignore[reportCallIssue]
    cls: Any = type(emission.model)
    other = cls(vocab_sizes=(3, 4, 6), key=jax.random.key(0))
    assert [t.embeddings.shape[0] for t in other.tables] == [3, 4, 6]


def test_a_mean_by_groups_of_joined_features() -> None:
    """Features that are joined before a normalization by groups are sums."""

    def build(dim: int, wide_size: int) -> Any:
        image = keras.Input((8, 8, 3), name="image")
        conv = {"kernel_size": 3, "padding": "same"}
        x = L.Conv2D(dim, **conv, name="stem")(image)
        y = L.Conv2D(wide_size, **conv, name="wide")(x)
        y = L.GroupNormalization(2, name="norm")(L.Concatenate()([x, y]))
        return keras.Model(image, L.Conv2D(4, **conv, name="out")(y))

    image = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    sizes, others = ({"dim": d, "wide_size": w} for d, w in ((8, 16), (6, 2)))
    source = _at_other_sizes(build, sizes, others, image)
    assert "dim + wide_size, groups=2" in source


def test_sizes_of_a_layer_of_layers() -> None:
    """A tower of two inputs: its sizes are arguments of the model, a size of one is none."""

    def build(dim: int, hidden: int, hidden_2: int) -> Any:
        tower = keras.Sequential(
            [
                keras.Input((10, 10, 1)),
                L.Conv2D(hidden, 3, activation="relu"),
                L.Conv2D(hidden_2, 3, activation="relu"),
                L.GlobalAveragePooling2D(),
                L.Dense(dim),
            ],
            name="tower",
        )
        left, right = (keras.Input((10, 10, 1), name=n) for n in ("left", "right"))
        apart = keras.ops.square(tower(left) - tower(right))
        apart = keras.ops.sqrt(keras.ops.sum(apart, -1, keepdims=True) + 1e-6)
        return keras.Model([left, right], L.Dense(1, name="same")(apart))

    sizes, others = (
        {"dim": d, "hidden": h, "hidden_2": i} for d, h, i in ((20, 16, 32), (5, 4, 6))
    )
    random = np.random.default_rng(0)
    images = [random.normal(size=(2, 10, 10, 1)).astype(np.float32) for _ in range(2)]
    source = _at_other_sizes(build, sizes, others, images)
    assert "distance = jnp.sqrt(" in source
    assert "Dense(1, " in source


class _Attend(nn.Module):
    @nn.compact
    def __call__(self, x: Any, memory: Any, bias: Any) -> Any:
        names = (("q", x), ("k", memory), ("v", memory))
        query, key, value = (
            nn.Dense(16, use_bias=False, name=n)(y).reshape(2, -1, 2, 8) for n, y in names
        )
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias, axis=-1)
        x = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        return nn.Dense(16, use_bias=False, name="o")(x)


class _Relative(nn.Module):
    """A bias for each head, by buckets of distances, as in T5."""

    both: bool

    @nn.compact
    def __call__(self, n: int) -> Any:
        table = self.param("embedding", nn.initializers.normal(1.0), (8, 2))
        y = jnp.arange(n)[None] - jnp.arange(n)[:, None]
        count = 4 if self.both else 8
        start = (y > 0).astype(jnp.int32) * 4 if self.both else 0
        y, half = (jnp.abs(y) if self.both else -jnp.minimum(y, 0)), count // 2
        log = jnp.log(jnp.maximum(y, 1) / half) / np.log(16 / half) * half
        far = jnp.minimum(half + log.astype(jnp.int32), count - 1)
        return jnp.transpose(table[start + jnp.where(y < half, y, far)], (2, 0, 1))[None]


class _T5(nn.Module):
    @nn.compact
    def __call__(self, source: Any, target: Any) -> Any:
        embed = nn.Embed(40, 16, name="shared")
        norm = lambda name, x: nn.RMSNorm(name=name)(x)  # noqa: E731
        mask = jnp.where(source > 0, 0.0, -1e9)[:, None, None]
        x, n = embed(source), target.shape[1]
        h = norm("enc_0_self_norm", x)
        bias = _Relative(True, name="encoder_relative_bias")(source.shape[1]) + mask
        memory = norm("enc_final", x + _Attend(name="enc_0_self")(h, h, bias))
        y = embed(target)
        causal = jnp.where(jnp.tril(jnp.ones((n, n), bool)), 0.0, -1e9)
        h = norm("dec_0_self_norm", y)
        bias = _Relative(False, name="decoder_relative_bias")(n) + causal[None, None]
        y = y + _Attend(name="dec_0_self")(h, h, bias)
        y = y + _Attend(name="dec_0_cross")(norm("dec_0_cross_norm", y), memory, mask)
        return embed.attend(norm("dec_final", y) * 0.25)


def test_heads_of_a_bias_beside_attentions_of_a_fixed_number() -> None:
    model = _T5()
    x, y = np.ones((2, 7), np.int32), np.ones((2, 5), np.int32)
    params = model.init(jax.random.key(0), x, y)
    exported = jax.export.export(jax.jit(model.apply))(params, x, y)
    module = invert.from_exported(exported, params={"arg0": params})
    assert "heads: int = 2" not in module.source
    assert 'arg2: Int[Array, "2 5"]' in module.source


class _Masked(nn.Module):
    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        query, key, value = (
            nn.Dense(16, name=n)(x).reshape(*x.shape[:2], 2, 8) for n in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(8)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
        x = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        return nn.Dense(16, name="out")(x)


class _Language(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(30, 16, name="embed")(tokens)
        mask = (tokens != 0)[:, None, None] * jnp.ones((1, 1, 7, 7))
        for i in range(2):
            x = x + _Masked(name=f"attention_{i}")(nn.LayerNorm(name=f"norm_{i}")(x), mask != 0)
        return nn.Dense(30, name="head")(x)


def test_a_batch_as_large_as_the_number_of_heads() -> None:
    model, x = _Language(), np.ones((2, 7), np.int32)
    params = model.init(jax.random.key(0), x)
    exported = jax.export.export(jax.jit(model.apply))(params, x)
    source = invert.from_exported(exported, params={"arg0": params}).source
    assert "heads: int = 2" in source
    assert '"heads' not in source


def _likelihood(p: Any, tokens: Any) -> Any:
    """The head shares its table with the lookup, as in GPT."""
    hidden = jnp.tanh(p["table"][tokens[:, :-1]] @ p["kernel"])
    logits = jax.nn.log_softmax(hidden @ p["table"].T)
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


def _messages(p: Any, tokens: Any) -> Any:
    nodes = p["table"][tokens[0]]
    sums = jax.ops.segment_sum(nodes[1:], jnp.arange(8) % 3, num_segments=9)
    return jnp.tanh((nodes + sums) @ p["kernel"]).sum()


@pytest.mark.parametrize("run", [_likelihood, _messages])
def test_sizes_of_what_is_picked_and_of_sums_at_places(run: Callable[..., Any]) -> None:
    """At other sizes, too, the class computes the original function."""

    def params(rows: int, width: int) -> dict[str, Any]:
        draw = np.random.default_rng(rows).standard_normal
        shapes = {"table": (rows, width), "kernel": (width, width)}
        return {n: jnp.asarray(draw(shape), jnp.float32) for n, shape in shapes.items()}

    p, tokens = params(37, 10), np.arange(18, dtype=np.int32).reshape(2, 9)
    exported = jax.export.export(jax.jit(run))(p, tokens)
    emission = invert.from_exported(exported, params={"p": p}).emit(loader=False)
    given = inspect.signature(type(emission.model)).parameters
    width = next(n for n, q in given.items() if q.default == 10)
    other: Any = type(emission.model)(**{"vocab_size": 41, width: 6}, key=jax.random.key(0))
    values = params(41, 6)
    by_shape = {v.shape: v for v in values.values()}
    other = jax.tree.map(lambda v: by_shape[v.shape], other)
    np.testing.assert_array_equal(other(tokens), jax.jit(run)(values, tokens))
