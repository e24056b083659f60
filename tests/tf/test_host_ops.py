"""Text, tables, files and Python code in TensorFlow graphs."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.frontends.run_saved_model import load_function
from invert.tf.fallback.host_ops import ON_TEXT, PURE, REFUSED

X = np.array([1.5, -2.0, 3.0], np.float32)
F32 = tf.TensorSpec([3], tf.float32)
PLAIN = invert.Config(verify=False, patterns=False)
CALLBACK = invert.Config(verify=False, patterns=False, host_ops="callback")


def converted(fn, *specs, config=PLAIN):
    return invert.convert(tf.function(fn, autograph=False), *(specs or (F32,)), config=config)


def plus(x, n):
    return x + tf.cast(n, tf.float32)


S = tf.strings
KNOWN = {
    "length": lambda x: plus(x, S.length("abc")),
    "numbers": lambda x: x + S.to_number(S.join(["1", tf.constant("2")])),
    "split": lambda x: x + S.to_number(S.split(["1 2 3"]).values),
    "bytes": lambda x: x + tf.io.decode_raw(np.arange(3, dtype=np.float32).tobytes(), tf.float32),
    "text of a size": lambda x: plus(x, S.length(S.as_string(tf.shape(x)[0] * 1000))),
    "comparison": lambda x: plus(x, tf.equal(tf.constant(["a", "b", "a"]), "a")),
    "substring": lambda x: plus(x, S.length(S.substr(S.upper("hello"), 1, 3))),
    "pattern": lambda x: x + S.to_number(S.regex_replace("1x", "x", "5")),
    "choice of text": lambda x: plus(x, S.length(tf.gather(["a", "bcd"], [0, 1, 1]))),
    "stacked text": lambda x: plus(x, S.length(tf.stack([tf.constant("ab"), "c", ""]))),
    "hash": lambda x: plus(x, S.to_hash_bucket_fast(tf.reshape(["u", "v", "w"], [3]), 100)),
    "format": lambda x: plus(x, S.length(S.format("{} and {}", [tf.constant(1), tf.constant(2)]))),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_text_is_evaluated_at_conversion(case):
    fn = KNOWN[case]
    module = converted(fn)
    np.testing.assert_array_equal(module(X), fn(tf.constant(X)).numpy())
    assert "pure_callback" not in str(module.jaxpr)


def test_text_of_another_function_and_captured_text():
    words = tf.constant(["u", "vw"])

    @tf.function(autograph=False)
    def inner(s, x):
        return S.length(s), x * 2.0

    def fn(x):
        n, y = inner("hey", x)
        return plus(y, n) + tf.cast(tf.reduce_sum(S.length(words)), tf.float32)

    np.testing.assert_array_equal(converted(fn)(X), X * 2 + 6)


def test_all_ops_that_depend_on_data_are_listed():
    @tf.function(autograph=False)
    def inner(x):
        return S.as_string(x, name="print_it")

    def fn(x):
        text = inner(x)
        known = S.length("abc")
        first = S.to_hash_bucket_fast(S.regex_replace(text, "1", "2"), 10, name="bucket")
        image = tf.image.decode_png(S.join([text[0], "abc"]), name="picture")
        return first, plus(x, known), tf.reduce_sum(image)

    with pytest.raises(invert.UnsupportedOpError) as e:
        converted(fn)
    found = {p.op: p for p in e.value.problems}
    assert {"tf.AsString", "tf.StaticRegexReplace", "tf.StringToHashBucketFast", "tf.StringJoin",
            "tf.DecodePng"} <= set(found)  # fmt: skip
    assert "tf.StringLength" not in found  # its input is known
    assert "print_it" in found["tf.AsString"].location
    assert "inner" in found["tf.AsString"].location
    assert "bucket" in found["tf.StringToHashBucketFast"].location
    assert "test_host_ops.py:" in found["tf.StringToHashBucketFast"].location
    assert all('host_ops="callback"' in p.remedy for p in e.value.problems)


def test_text_in_the_signature_is_refused():
    spec = tf.TensorSpec([], tf.string)
    with pytest.raises(invert.SignatureError, match="argument 's' holds text"):
        converted(lambda s: S.length(s), spec)
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.string: is a result of text"):
        converted(lambda x: (x, tf.constant("abc")))


def test_callbacks_on_request():
    def fn(x):
        text = S.join([S.as_string(x, precision=2), "0"])
        return S.to_number(text) * x, S.to_hash_bucket_fast(text, 1000)

    module = converted(fn, config=CALLBACK)
    want = [t.numpy() for t in fn(tf.constant(X))]
    # Also where 64-bit types are off: what is 64 bits wide passes as words.
    for run in (module, jax.jit(module)):
        for g, w in zip(run(X), want, strict=True):
            np.testing.assert_array_equal(g, w)
    batched = jax.vmap(module)(np.stack([X, X]))
    np.testing.assert_array_equal(batched[1], np.stack([want[1]] * 2))
    # Text has no derivative.
    grad = jax.grad(lambda x: module(x)[0].sum())(X)
    np.testing.assert_array_equal(grad, S.to_number(S.as_string(X)).numpy())


def test_callback_with_text_of_unknown_size_is_refused():
    fn = lambda x: S.to_number(S.split(S.join(tf.unstack(S.as_string(x)), " ")))  # noqa: E731
    with pytest.raises(invert.UnsupportedOpError, match="size depends on data"):
        converted(fn, config=CALLBACK)


def table(keys, values, default):
    initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
    return tf.lookup.StaticHashTable(initializer, default)


def test_tables():
    names = table(["a", "b"], [10.0, 20.0], -1.0)
    codes = table(tf.constant([7, 3, 11], tf.int64), [10.0, 20.0, 30.0], -1.0)

    def fn(i):
        return names.lookup(tf.constant(["a", "q", "b"])), codes.lookup(i), codes.size()

    spec = tf.TensorSpec([2, 2], tf.int64)
    module = converted(fn, spec)
    i = np.array([[3, 4], [11, 7]])
    known, found, size = map(np.asarray, module(i))
    np.testing.assert_array_equal(known, [10, -1, 20])
    np.testing.assert_array_equal(found, [[20, -1], [30, 10]])
    assert int(size) == 3
    back = table(tf.constant([1, 2], tf.int64), ["one", "two"], "?")
    fn = lambda i: S.length(back.lookup(i))  # noqa: E731
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.LookupTableFindV2: runs on the host"):
        converted(fn, spec)
    np.testing.assert_array_equal(
        converted(fn, spec, config=CALLBACK)(i), fn(tf.constant(i)).numpy()
    )


def test_lookups_by_wide_keys_compile_in_a_session_of_32_bits():
    codes = table(tf.constant([7, 3, 11], tf.int64), [10.0, 20.0, 30.0], -1.0)
    module = converted(codes.lookup, tf.TensorSpec([3], tf.int64))
    found = jax.jit(lambda i: module(i))(np.array([3, 4, 11]))
    np.testing.assert_array_equal(found, [20, -1, 30])


def test_lookups_of_one_key():
    """Its result is a scalar."""
    names = table(["a", "b"], [10.0, 20.0], -1.0)
    codes = table(tf.constant([7, 3], tf.int64), [10.0, 20.0], -1.0)
    many = table(tf.range(100, dtype=tf.int64), tf.range(100.0), -1.0)

    def fn(i):
        return names.lookup(tf.constant("b")), codes.lookup(i), many.lookup(i)

    results = converted(fn, tf.TensorSpec([], tf.int64))(np.int64(3))
    np.testing.assert_array_equal(results, [20, 20, 3])


def test_tables_of_a_saved_model(tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("alpha\nbeta\n")

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.StaticVocabularyTable(
                tf.lookup.TextFileInitializer(
                    str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ), 1,
            )  # fmt: skip

        @tf.function(input_signature=[F32])
        def __call__(self, x):
            return plus(x, self.table.lookup(tf.constant(["beta", "alpha", "gamma"])))

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    vocabulary.unlink()  # the model holds a copy of its own
    np.testing.assert_array_equal(invert.load(tmp_path / "model")(X), X + np.array([1, 0, 2]))


def test_files_are_not_touched_and_python_is_not_run(tmp_path):
    secret, target = tmp_path / "secret.txt", tmp_path / "written.txt"
    secret.write_text("12")
    ran = []

    def note(v):
        ran.append(v)
        return v

    class Model(tf.Module):
        @tf.function(input_signature=[F32])
        def __call__(self, x):
            tf.io.write_file(str(target), "gone")
            number = S.to_number(tf.io.read_file(str(secret)))
            matching = tf.size(tf.io.matching_files(str(tmp_path / "*")))
            x = tf.numpy_function(note, [x], tf.float32)
            return tf.py_function(note, [x], tf.float32) + number + tf.cast(matching, tf.float32)

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"))
    for convert in (
        lambda: invert.load(tmp_path / "model"),
        lambda: invert.convert(model.__call__, F32),
        lambda: invert.convert(model.__call__, F32, config=CALLBACK),
    ):
        with pytest.raises(invert.UnsupportedOpError) as e:
            convert()
        ops = {p.op for p in e.value.problems}
        assert {"tf.WriteFile", "tf.ReadFile", "tf.MatchingFiles", "tf.PyFunc",
                "tf.EagerPyFunc"} <= ops  # fmt: skip
    assert not target.exists() and ran == []


@pytest.mark.parametrize("what", ["write", "read", "python", "unpacked file"])
def test_initializers_of_tables_are_not_run(tmp_path, what):
    """They may contain anything. TensorFlow's loader, which would run them, gets no such model."""
    target, ran = tmp_path / "written.txt", []
    (tmp_path / "other.txt").write_text("alpha\n")

    class Initializer(tf.lookup.KeyValueTensorInitializer):
        def initialize(self, table):
            if what == "write":
                tf.io.write_file(str(target), "gone")
            elif what == "read":
                with tf.control_dependencies([tf.io.read_file(str(tmp_path / "other.txt"))]):
                    return super().initialize(table)
            elif what == "python":
                tf.numpy_function(lambda: ran.append(1) or np.float32(1), [], tf.float32)
            else:
                tf.raw_ops.InitializeTableFromTextFileV2(
                    table_handle=table.resource_handle, filename=str(tmp_path / "other.txt"),
                    key_index=-2, value_index=-1,
                )  # fmt: skip
            return super().initialize(table)

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            made = Initializer(tf.constant(["a"]), tf.constant([1], tf.int64))
            self.table = tf.lookup.StaticHashTable(made, -1)

        @tf.function(input_signature=[F32])
        def __call__(self, x):
            return plus(x, self.table.lookup(tf.constant("a")))

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    target.unlink(missing_ok=True)
    ran.clear()
    if what == "unpacked file":
        with pytest.raises(invert.UnsupportedOpError, match="captures a resource"):
            invert.load(tmp_path / "model")
    else:
        np.testing.assert_array_equal(invert.load(tmp_path / "model")(X), X + 1)
    with pytest.raises(
        invert.UnsupportedOpError, match="would run while TensorFlow loads the model"
    ):
        load_function(tmp_path / "model", "__call__")
    assert not target.exists() and ran == []


def test_the_lists_of_ops_hold_known_ops():
    graph = tf.Graph()
    for op in (*PURE, *ON_TEXT, *REFUSED):
        assert graph.op_def_for_type(op).name == op
    for op in PURE:
        assert not graph.op_def_for_type(op).is_stateful, op
    assert not PURE & set(REFUSED)


def test_quasi_random_numbers_are_constants():
    def fn(x):
        return x + tf.math.sobol_sample(3, 20, 5)

    x = np.zeros((20, 3), np.float32)
    module = invert.convert(tf.function(fn, autograph=False), x, config=invert.Config(verify=False))
    np.testing.assert_array_equal(module(x), fn(x))


def test_a_text_holds_no_callback():
    module = invert.convert(
        tf.function(lambda x: tf.strings.length(tf.strings.as_string(x)), autograph=False),
        tf.TensorSpec([3]),
        config=CALLBACK,
    )
    np.testing.assert_array_equal(module(np.float32([1, 10, 100])), [8, 9, 10])
    with pytest.raises(invert.EmissionError, match="calls back into a function of this process"):
        _ = module.source


def test_callbacks_at_open_sizes():
    def fn(x):
        return S.to_number(S.as_string(x, precision=2)) * 2.0 + x

    spec = tf.TensorSpec([None], tf.float32)
    # With both options, only text among the arguments is cut off.
    for config in (CALLBACK, invert.Config(host_ops="callback", text="split")):
        module = converted(fn, spec, config=config)
        for size in (3, 1, 0):
            np.testing.assert_array_equal(module(X[:size]), fn(tf.constant(X[:size])).numpy())
        assert len(jax.tree.leaves(module(X))) == 1
    split = converted(fn, spec, config=invert.Config(text="split"))
    np.testing.assert_array_equal(split(X, X), 3 * X)
