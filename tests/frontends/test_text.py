"""Models that preprocess text or serialized examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import invert
from invert import Config, InvertError, SignatureError

tf = pytest.importorskip("tensorflow")

SPLIT = Config(text="split")
TEXTS = ["a good film", "nothing bad, it is a b c d e f g", "zzz"]


def _saved(path: Path, model: Any, **kwargs: Any) -> str:
    tf.saved_model.save(model, str(path / "model"), **kwargs)
    return str(path / "model")


def _table(buckets: int = 0) -> Any:
    words = tf.lookup.KeyValueTensorInitializer(["a", "good", "film"], tf.range(3, dtype=tf.int64))
    if buckets:
        return tf.lookup.StaticVocabularyTable(words, buckets)
    return tf.lookup.StaticHashTable(words, -1)


# -- Keras


def _vectorizer(keras: Any, **kwargs: Any) -> Any:
    layer = keras.layers.TextVectorization(max_tokens=20, **kwargs)
    layer.adapt(["a good film", "a bad film", "what a film it is"])
    return layer


def _classifier(keras: Any, **kwargs: Any) -> tuple[Any, Any]:
    layers = keras.layers
    vectorizer = _vectorizer(keras, **kwargs)
    inputs = keras.Input((), dtype="string", name="text")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(vectorizer(inputs)))
    return vectorizer, keras.Model(inputs, layers.Dense(2)(hidden))


def _exported(model: Any, path: Path) -> Any:
    model.export(path / "model", verbose=False)
    return invert.load(path / "model", config=SPLIT)


def _kept(model: Any, path: Path) -> Any:
    model.save(path / "model.keras")
    return invert.load(path / "model.keras", config=SPLIT)


READ: dict[str, Callable[[Any, Path], Any]] = {
    "export": _exported,
    "saved": lambda model, path: invert.load(_saved(path, model), config=SPLIT),
    "archive": _kept,
    "live": lambda model, path: invert.convert(model, config=SPLIT),
}


@pytest.mark.parametrize("length", [6, None])
@pytest.mark.parametrize("read", READ)
def test_text_vectorization(tmp_path: Path, read: str, length: int | None) -> None:
    keras = pytest.importorskip("keras")
    vectorizer, model = _classifier(keras, output_sequence_length=length)
    module = READ[read](model, tmp_path)
    ids = np.asarray(vectorizer(tf.constant(TEXTS)))
    found = module(ids)
    found = found["output_0"] if isinstance(found, dict) else found
    np.testing.assert_allclose(found, model(tf.constant(TEXTS)), rtol=1e-5, atol=1e-6)
    (note,) = [n for n in module.report.notes if "left out" in n]
    own = "inputs" if read == "saved" else "text"
    assert note.startswith(
        f"the part that turns '{own}' into numbers is left out (tf.LookupTableFindV2, "
    )
    assert "tf.StringSplitV2" in note
    assert "the arguments 'text_vectorization" in note
    assert "text_vectorization" in module.source


def test_word_counts_are_arguments(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    vectorizer = _vectorizer(keras, output_mode="tf_idf")
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, keras.layers.Dense(2)(vectorizer(inputs)))
    module = _exported(model, tmp_path)
    counting = keras.layers.TextVectorization(
        vocabulary=vectorizer.get_vocabulary()[1:], output_mode="count"
    )
    counts = np.asarray(counting(tf.constant(TEXTS)), np.int64)
    np.testing.assert_allclose(module(counts), model(tf.constant(TEXTS)), rtol=1e-5, atol=1e-6)


def test_numbers_next_to_text_stay_arguments(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    layers = keras.layers
    colour = keras.Input((1,), dtype="string", name="colour")
    age = keras.Input((3,), name="age")
    lookup = layers.StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")
    model = keras.Model(
        {"colour": colour, "age": age},
        layers.Dense(2)(layers.Concatenate()([lookup(colour), age])),
    )
    module = _exported(model, tmp_path)
    given = {"colour": tf.constant([["blue"], ["green"]]), "age": tf.ones([2, 3])}
    ids = np.array([[2], [0]])
    np.testing.assert_allclose(
        module({"age": np.ones((2, 3), np.float32)}, ids), model(given), rtol=1e-5, atol=1e-6
    )


def test_the_error_names_the_remedy(tmp_path: Path) -> None:
    _, model = _classifier(pytest.importorskip("keras"))
    model.export(tmp_path / "model", verbose=False)
    with pytest.raises(SignatureError, match=r'argument .text. holds text.*Config\(text="split"\)'):
        invert.load(tmp_path / "model")


# -- functions


class _Lookups(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = _table(4)
        self.weights = tf.Variable(tf.random.normal([7, 5]), name="weights")

    @tf.function
    def __call__(self, words: Any, training: bool = False) -> Any:
        rows = tf.gather(self.weights, self.table.lookup(words))
        return rows * 2.0 if training else rows


def test_traces_with_text(tmp_path: Path) -> None:
    model = _Lookups()
    for training in (False, True):
        model.__call__.get_concrete_function(tf.TensorSpec([None], tf.string), training=training)
    module = invert.load(_saved(tmp_path, model), config=SPLIT)
    words = tf.constant(["good", "other"])
    lookup, hashed = model.table._table.lookup(words), tf.strings.to_hash_bucket_fast(words, 4) + 3
    for training in (False, True):
        given = np.asarray(lookup), np.asarray(hashed) - 3
        found = module(*given, training=training)
        np.testing.assert_array_equal(found, model(words, training=training))
    with pytest.raises(SignatureError, match="fit none"):
        module(*given, training=3)


def test_text_of_numbers_is_an_argument_too() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def hashed(x: Any) -> Any:
        return tf.cast(tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 9), tf.float32) * x

    with pytest.raises(InvertError, match='text="split"'):
        invert.convert(hashed)
    module = invert.convert(hashed, config=SPLIT)
    x = np.array([1.5, 2.0], np.float32)
    bucket = np.asarray(tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 9))
    np.testing.assert_array_equal(module(x, bucket), hashed(x))


def test_encoded_images_are_cut_off_as_a_whole() -> None:
    kernel = tf.Variable(tf.random.normal([3, 2]), name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def classify(images: Any) -> Any:
        decoded = tf.map_fn(
            lambda png: tf.ensure_shape(tf.io.decode_png(png, channels=3), [4, 4, 3]),
            images,
            fn_output_signature=tf.TensorSpec([4, 4, 3], tf.uint8),
        )
        return tf.reduce_mean(tf.cast(decoded, tf.float32), [1, 2]) @ kernel

    module = invert.convert(classify, config=SPLIT)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    encoded = tf.stack([tf.io.encode_png(p) for p in pixels])
    np.testing.assert_allclose(module(pixels), classify(encoded), rtol=1e-5, atol=1e-6)


def test_text_that_follows_from_weights_is_refused() -> None:
    scale = tf.Variable(2.0, name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def hashed(x: Any) -> Any:
        return tf.strings.to_hash_bucket_fast(tf.strings.as_string(x * scale), 9)

    with pytest.raises(InvertError, match=r"tf\.AsString.*depend on the arguments or variables"):
        invert.convert(hashed, config=SPLIT)


def test_text_that_is_returned_is_refused() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def lower(x: Any) -> Any:
        return tf.strings.lower(x)

    with pytest.raises(InvertError, match="text"):
        invert.convert(lower, config=SPLIT)


# -- examples


def _examples() -> Any:
    def example(x: list[float], age: list[int], more: list[float]) -> bytes:
        feature = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
            "age": tf.train.Feature(int64_list=tf.train.Int64List(value=age)),
            "more": tf.train.Feature(float_list=tf.train.FloatList(value=more)),
            "colour": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"good"])),
        }
        feature = {k: v for k, v in feature.items() if v.ByteSize() > 2}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    return tf.constant([example([1, 2, 3], [4], [5, 6]), example([7, 8, 9], [], [])])


FEATURES = {
    "x": tf.io.FixedLenFeature([3], tf.float32),
    "age": tf.io.FixedLenFeature([1], tf.int64, default_value=[7]),
    "more": tf.io.VarLenFeature(tf.float32),
    "colour": tf.io.FixedLenFeature([], tf.string),
}


class _Parsing(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = _table()
        self.kernel = tf.Variable(tf.random.normal([4, 2]), name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def dense(self, examples: Any) -> Any:
        found = tf.io.parse_example(examples, {k: FEATURES[k] for k in ("x", "age")})
        return self.score(found)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def words(self, examples: Any) -> Any:
        found = tf.io.parse_example(examples, {k: FEATURES[k] for k in ("x", "age", "colour")})
        return self.score(found) + tf.cast(self.table.lookup(found["colour"]), tf.float32)[:, None]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def sparse(self, examples: Any) -> Any:
        found = tf.io.parse_example(examples, FEATURES)
        return self.score(found) + tf.reduce_sum(found["more"].values)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def sums(self, examples: Any) -> Any:
        found = tf.io.parse_example(examples, FEATURES)
        return self.score(found) + tf.reduce_sum(
            tf.sparse.to_dense(found["more"]), 1, keepdims=True
        )

    def score(self, found: Any) -> Any:
        return tf.concat([found["x"], tf.cast(found["age"], tf.float32)], 1) @ self.kernel


def test_features_of_examples_are_arguments(tmp_path: Path) -> None:
    model = _Parsing()
    path = _saved(tmp_path, model, signatures={"serving_default": model.dense})
    x, age = np.array([[1, 2, 3], [7, 8, 9]], np.float32), np.array([[4], [7]])
    for module in (
        invert.load(path, signature="dense"),
        invert.convert(model.dense, config=SPLIT),
        invert.convert(model.dense),
    ):
        np.testing.assert_allclose(
            module(age=age, x=x), model.dense(_examples()), rtol=1e-5, atol=1e-6
        )
        assert any("tf.ParseExampleV2" in n for n in module.report.notes)
    module = invert.load(path, signature="serving_default")
    found = module(age=age, x=x)
    np.testing.assert_allclose(found["output_0"], model.dense(_examples()), rtol=1e-5, atol=1e-6)


def test_sparse_features_are_passed_as_components() -> None:
    model = _Parsing()
    dense = {"x": np.array([[1, 2, 3], [7, 8, 9]], np.float32), "age": np.array([[4], [7]])}
    module = invert.convert(model.sparse)
    found = module(**dense, more_values=np.array([5, 6], np.float32))
    np.testing.assert_allclose(found, model.sparse(_examples()), rtol=1e-5, atol=1e-6)
    # What is sparse is no array yet.
    module = invert.convert(model.sums, config=SPLIT)
    found = module(**dense, SparseToDense=np.array([[5, 6], [0, 0]], np.float32))
    np.testing.assert_allclose(found, model.sums(_examples()), rtol=1e-5, atol=1e-6)


def test_text_among_features() -> None:
    model = _Parsing()
    with pytest.raises(SignatureError, match=r"argument 'colour' holds text.*text=\"split\""):
        invert.convert(model.words)
    module = invert.convert(model.words, config=SPLIT)
    x, age = np.array([[1, 2, 3], [7, 8, 9]], np.float32), np.array([[4], [7]])
    found = module(x=x, age=age, colour=np.array([1, 1]))
    np.testing.assert_allclose(found, model.words(_examples()), rtol=1e-5, atol=1e-6)


def test_examples_of_version_1(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], name="input_example_tensor")
        found = v1.parse_example(examples, {k: FEATURES[k] for k in ("x", "colour")})
        score = found["x"] @ v1.get_variable("kernel", [3, 2])
        score += tf.cast(_table().lookup(found["colour"]), tf.float32)[:, None]
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        signature = v1.saved_model.predict_signature_def({"examples": examples}, {"y": score})
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "model"))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={"serving_default": signature},
            main_op=v1.tables_initializer(),
        )
        builder.save()
    module = invert.load(tmp_path / "model", config=SPLIT)
    want = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"](_examples())
    x = np.array([[1, 2, 3], [7, 8, 9]], np.float32)
    found = module(x=x, colour=np.array([1, 1]))["y"]
    np.testing.assert_allclose(found, want["y"], rtol=1e-5, atol=1e-6)


def test_a_graph_of_text() -> None:
    with tf.Graph().as_default() as graph:
        words = tf.compat.v1.placeholder(tf.string, [None], name="words")
        tf.identity(tf.strings.to_hash_bucket_fast(words, 7) * 2, name="y")
    proto = graph.as_graph_def(add_shapes=True)
    with pytest.raises(SignatureError, match='text="split"'):
        invert.convert_graphdef(proto, ["words"], ["y"])
    module = invert.convert_graphdef(proto, ["words"], ["y"], config=SPLIT)
    np.testing.assert_array_equal(module(np.array([3, 4])), [6, 8])


def test_an_unknown_op_behind_text() -> None:
    with tf.Graph().as_default() as graph:
        words = tf.compat.v1.placeholder(tf.string, [3], name="words")
        x = tf.strings.to_number(tf.strings.lower(tf.strings.strip(words)))
        tf.identity(x * 2.0, name="y")
    proto = graph.as_graph_def(add_shapes=True)
    for node in proto.node:
        node.op = {"StringStrip": "Unknown"}.get(node.op, node.op)
    module = invert.convert_graphdef(proto, ["words"], ["y"], config=SPLIT)
    np.testing.assert_array_equal(module(np.float32([1, 2, 3])), [2, 4, 6])


# -- Results of text


def _labelled(x: Any) -> dict[str, Any]:
    scores = tf.nn.softmax(x * [1.0, 2.0, 3.0])
    best = tf.argmax(scores, axis=-1)
    return {"scores": scores, "label": tf.gather(["cat", "dog", "eel"], best), "best": best}


def _labelled_pair(x: Any) -> tuple[Any, Any, Any]:
    found = _labelled(x)
    return found["label"], (found["label"], found["scores"]), found["best"]


X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize("function", [_labelled, _labelled_pair])
@pytest.mark.parametrize("saved", [True, False])
def test_results_of_text_are_left_out(saved: bool, function: Any, tmp_path: Path) -> None:
    module = tf.Module()
    spec = tf.TensorSpec((None, 3), tf.float32)
    module.call = tf.function(function, input_signature=[spec])
    if saved:
        path = _saved(tmp_path, module)
        found = invert.load(path, config=SPLIT)
    else:
        found = invert.convert(module.call, config=SPLIT)
    got, want = found(X), _labelled(X)
    if function is _labelled:
        assert sorted(got) == ["best", "scores"]
        scores, best = got["scores"], got["best"]
    else:
        ((scores,), best) = got
    np.testing.assert_allclose(scores, want["scores"], rtol=1e-6)
    np.testing.assert_array_equal(best, want["best"])
    assert "are left out: they are text" in str(found.report)


def test_a_signature_with_results_of_text(tmp_path: Path) -> None:
    module = tf.Module()
    call = tf.function(_labelled).get_concrete_function(tf.TensorSpec((None, 3), tf.float32))
    path = _saved(tmp_path, module, signatures={"serving_default": call})
    with pytest.raises(InvertError, match=r'Config\(text="split"\) leaves it out'):
        invert.load(path)
    got = invert.load(path, config=SPLIT)(x=X)
    assert sorted(got) == ["best", "scores"]
    np.testing.assert_allclose(got["scores"], _labelled(X)["scores"], rtol=1e-6)


def test_results_of_text_alone() -> None:
    label = tf.function(lambda x: _labelled(x)["label"])
    with pytest.raises(InvertError, match="Export a function that returns numbers"):
        invert.convert(label, X, config=SPLIT)
