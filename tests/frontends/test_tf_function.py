"""Signatures of TensorFlow functions: names, trees, variables, and the choice of one."""

from __future__ import annotations

import builtins
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert._entry import ArgSpec
from invert.frontends.tf_function import entry_point
from tests.frontends.entries import Pair, call

CONFIG = invert.Config()


def function(**options):
    return lambda fn: tf.function(fn, autograph=False, **options)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_trees_and_names_come_back():
    @function()
    def fn(p, x, *, scale, flag=True):
        z = x[0] * scale if flag else x[0]
        return {"b": Pair(z, None), "a": [x[1], (p["w"], p["k"])], "none": None}

    tree = ({"w": X, "k": np.int32(2)}, [X + 1, X + 2])
    entry = entry_point(fn, tree, {"scale": np.float32(3)}, config=CONFIG)
    assert entry.arg_names == ("p", "x")
    assert entry.args[0]["k"] == ArgSpec("p.k", (), np.dtype(np.int32))
    assert entry.args[1][1] == ArgSpec("x.1", (2, 3), np.dtype(np.float32))
    assert entry.kwargs == {"scale": ArgSpec("scale", (), np.dtype(np.float32))}
    got = call(entry, *tree, scale=np.float32(3))
    assert isinstance(got["b"], Pair) and got["b"].b is None and got["none"] is None
    assert type(got["a"]) is list and type(got["a"][1]) is tuple
    np.testing.assert_array_equal(got["b"].a, (X + 1) * 3)
    np.testing.assert_array_equal(got["a"][0], X + 2)
    np.testing.assert_array_equal(got["a"][1][0], X)
    assert got["a"][1][1] == 2


def test_dict_order_is_by_key():
    # JAX and TensorFlow both order dictionaries by key; the insertion order must not matter.
    @function()
    def fn(x):
        return {"z": x["b"], "y": x["a"] * 10.0}

    entry = entry_point(fn, ({"b": np.float32(1), "a": np.float32(2)},), config=CONFIG)
    assert call(entry, {"a": np.float32(2), "b": np.float32(1)}) == {"y": 20.0, "z": 1.0}


def test_keyword_order():
    @function()
    def fn(*, z, a):
        return z - a

    entry = entry_point(fn, (), {"z": np.float32(5), "a": np.float32(1)}, config=CONFIG)
    assert call(entry, a=np.float32(1), z=np.float32(5)) == 4


def test_none_argument_stays():
    @function()
    def fn(x, mask):
        return x if mask is None else x * mask

    entry = entry_point(fn, (X, None), config=CONFIG)
    assert entry.args[1] is None and entry.arg_names == ("x", "mask")
    np.testing.assert_array_equal(call(entry, X, None), X)


def test_static_arguments_are_dropped():
    @function()
    def fn(x, training=False, mask=None):
        return x * (2.0 if training else 1.0)

    concrete = fn.get_concrete_function(tf.TensorSpec([2, 3]), training=True)
    entry = entry_point(concrete, config=CONFIG)
    assert entry.arg_names == ("x",) and len(entry.args) == 1
    np.testing.assert_array_equal(call(entry, X), 2 * X)


def test_unused_arguments_are_accepted():
    entry = entry_point(function()(lambda x, unused: x + 1.0), (X, {"u": X}), config=CONFIG)
    np.testing.assert_array_equal(call(entry, X, {"u": X}), X + 1)


def test_names_given_to_specs():
    fn = function(input_signature=[tf.TensorSpec([None, 3], name="image"), tf.TensorSpec([])])(
        lambda x, y: x * y
    )
    entry = entry_point(fn, config=CONFIG)
    assert entry.arg_names == ("x", "y")
    assert entry.args == (
        ArgSpec("image", (None, 3), np.dtype(np.float32)),
        ArgSpec("y", (), np.dtype(np.float32)),
    )
    np.testing.assert_array_equal(call(entry, X, np.float32(2)), 2 * X)


def test_arguments_of_every_kind():
    fn = function()(lambda x: x + 1.0)
    want = ArgSpec("x", (2, 3), np.dtype(np.float32))
    for x in (X, jax.numpy.asarray(X), tf.constant(X), jax.ShapeDtypeStruct((2, 3), "float32")):
        assert entry_point(fn, (x,), config=CONFIG).args == (want,)
    assert entry_point(fn, (tf.TensorSpec([None, 3]),), config=CONFIG).args[0].shape == (None, 3)


def test_open_shape_is_reused_and_closed_one_is_not():
    fn = function()(lambda x: x + 1.0)
    fn.get_concrete_function(tf.TensorSpec([2, 3]))
    assert entry_point(fn, (tf.TensorSpec([None, 3]),), config=CONFIG).args[0].shape == (None, 3)
    assert entry_point(fn, (np.ones((5, 3), np.float32),), config=CONFIG).args[0].shape == (None, 3)


def test_ambiguous_and_missing_signatures_list_the_choices():
    fn = function()(lambda x: x + 1)
    with pytest.raises(invert.SignatureError, match="never traced"):
        entry_point(fn, config=CONFIG)
    fn.get_concrete_function(tf.TensorSpec([2]))
    assert entry_point(fn, config=CONFIG).args[0].shape == (2,)
    fn.get_concrete_function(tf.TensorSpec([], tf.int32))
    with pytest.raises(invert.SignatureError, match=r"float32\(2,\)[^$]*int32\(\)"):
        entry_point(fn, config=CONFIG)


def test_saving_a_function_adds_no_choices(tmp_path):
    @function(input_signature=[tf.TensorSpec([3], name="x")])
    def one(x):
        return x * 2

    @function()
    def two(x):
        return x * 2

    module = tf.Module()
    module.one, module.two = one, two
    two(tf.ones(3)), two(tf.ones((2, 2)))
    tf.saved_model.save(module, str(tmp_path))
    assert entry_point(one, config=CONFIG).args == (ArgSpec("x", (3,), np.dtype(np.float32)),)
    with pytest.raises(invert.SignatureError) as caught:
        entry_point(two, config=CONFIG)
    assert str(caught.value).count("\n  - ") == 2


def test_unnamed_parameters_get_unique_names():
    x = tf.ones(3)
    names = entry_point(lambda arg_0, *arg: arg_0 + arg[0], (x, x), config=CONFIG).arg_names
    assert names == ("arg_0", "arg_0_2")


def test_wrong_arguments_of_a_concrete_function():
    concrete = function()(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([2, 3]))
    with pytest.raises(invert.SignatureError, match=r"float32\(2, 4\).*fit none"):
        entry_point(concrete, (np.ones((2, 4), np.float32),), config=CONFIG)
    entry = entry_point(concrete, config=CONFIG)
    for bad in (np.ones((3, 2), np.float32), X.astype(np.int32), X[0]):
        with pytest.raises(invert.SignatureError, match="argument 'x' must be"):
            entry.fn([], bad)
    with pytest.raises(invert.SignatureError, match="takes 1 arrays, got 2"):
        entry.fn([], X, X)


def test_string_arguments_are_refused():
    strings = function()(lambda s: tf.strings.length(s))
    with pytest.raises(invert.SignatureError, match="argument 's' holds text"):
        entry_point(strings, (tf.TensorSpec([2], tf.string),), config=CONFIG)


def test_ragged_arguments_are_passed_as_components():
    ragged = function()(lambda r: r.flat_values).get_concrete_function(
        tf.RaggedTensorSpec([None, None])
    )
    (arg,) = entry_point(ragged, config=CONFIG).args
    assert {k: (s.shape, s.dtype.name) for k, s in arg.items()} == {
        "flat_values": ((None,), "float32"),
        "row_splits_0": ((None,), "int64"),
    }


def test_variables_become_params():
    kernel = tf.Variable(np.ones((3, 2), np.float32), name="dense/kernel")
    bias = tf.Variable(np.full(2, 2, np.float32), name="bias", trainable=False)
    twin = tf.Variable(np.float32(4), name="bias")
    unread = tf.Variable(np.float32(5), name="unread")

    @function()
    def inner(x):
        return tf.matmul(x, kernel) + bias

    @function()
    def fn(x):
        unread.read_value()
        return inner(x) * twin + tf.reduce_sum(kernel)

    entry = entry_point(fn, (X,), config=CONFIG)
    assert {p.name: p.trainable for p in entry.params} == {
        "dense/kernel": True,
        "bias": False,
        "bias_1": True,
    }
    want = fn(tf.constant(X)).numpy()
    np.testing.assert_allclose(call(entry, X), want, rtol=1e-6, atol=1e-6)
    kernel.assign(kernel * 0)
    np.testing.assert_allclose(call(entry, X), want, rtol=1e-6, atol=1e-6)
    grads = jax.grad(lambda ps: entry.fn(ps, X)[0].sum())([p.value for p in entry.params])
    by_name = {p.name: g for p, g in zip(entry.params, grads, strict=True)}
    np.testing.assert_allclose(by_name["bias"], [8, 8])


def test_variable_as_argument():
    v = tf.Variable(X)
    concrete = function()(lambda v, x: v * x).get_concrete_function(v, tf.TensorSpec([]))
    entry = entry_point(concrete, config=CONFIG)
    np.testing.assert_array_equal(call(entry, X, np.float32(2)), 2 * X)


def test_captured_tensors_become_constants():
    eager = tf.constant(X) * 2.0
    entry = entry_point(function()(lambda x: x + eager), (X,), config=CONFIG)
    assert entry.params == ()
    np.testing.assert_array_equal(call(entry, X), 3 * X)


def test_captured_table_of_numbers_is_part_of_the_program():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), -1)
    entry = entry_point(function()(lambda i: table.lookup(i)), (np.int32(1),), config=CONFIG)
    assert [int(call(entry, np.int32(i))) for i in (1, 2, 5)] == [3, 4, -1]


def test_names_of_entry_points():
    @function()
    def my_model(x):
        return x

    assert entry_point(my_model, (X,), config=CONFIG).name == "my_model"
    concrete = my_model.get_concrete_function(tf.TensorSpec([2, 3]))
    assert entry_point(concrete, config=CONFIG).name == "my_model"
    assert entry_point(my_model, (X,), config=CONFIG, name="other").name == "other"


def test_no_arguments_and_constant_results():
    entry = entry_point(function()(lambda: {"c": tf.constant(X), "n": None}), config=CONFIG)
    np.testing.assert_array_equal(call(entry)["c"], X)


def test_missing_tensorflow(monkeypatch):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.partition(".")[0] == "tensorflow":
            raise ImportError("No module named 'tensorflow'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(invert.MissingDependencyError, match=r"pip install 'invert\[tensorflow\]'"):
        entry_point(lambda x: x, config=CONFIG)


def test_not_a_function():
    with pytest.raises(invert.SignatureError, match="got int"):
        entry_point(3, config=CONFIG)


class Lazy(tf.Module):
    weight = None

    @tf.function
    def __call__(self, x):
        if self.weight is None:
            self.weight = tf.Variable(tf.random.normal([3, 2]), name="weight")
        return x @ self.weight


@pytest.mark.parametrize("pass_example", [False, True])
def test_variables_made_in_the_first_call_are_parameters(pass_example):
    model = Lazy()
    want = model(X).numpy()
    entry = entry_point(model, (X,) if pass_example else (), config=CONFIG)
    assert [p.name for p in entry.params] == ["weight"]
    assert not entry.draws and not entry.assigned
    np.testing.assert_allclose(call(entry, X), want, rtol=1e-6, atol=1e-6)


def test_unnamed_variables_are_named_after_their_holders() -> None:
    params = {"dense": {"kernel": tf.Variable(np.ones((3, 2), np.float32))}}
    layers = [tf.Variable(np.ones(2, np.float32)), tf.Variable(np.ones(2, np.float32), name="own")]

    class Scale(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self._scales = {"a/b": tf.Variable(2.0)}

        @tf.function
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return x * self._scales["a/b"]

    scale = Scale()
    f = tf.function(lambda x: scale(x @ params["dense"]["kernel"] + layers[0] + layers[1]))
    hidden = tf.function(lambda x, fn=(lambda: layers[0],): x * fn[0]())

    def names(function: Any, *args: Any) -> set[str]:
        return {p.name for p in entry_point(function, args, config=invert.Config()).params}

    x = np.ones((1, 3), np.float32)
    assert names(f, x) == {"params/dense/kernel", "layers/0", "own", "scales/a/b"}
    assert names(scale.__call__, np.float32(1)) == {"scales/a/b"}
    assert names(hidden, x[0, :2]) == {"Variable"}


def test_a_keras_model_takes_any_batch_after_examples() -> None:
    import keras

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any, scale: Any = None) -> Any:
            left, right = inputs
            return self.dense(left) * scale + keras.ops.mean(right, axis=0)

    network, random = Pair(), np.random.default_rng(1)
    examples = [random.normal(size=s).astype(np.float32) for s in ((2, 4), (2, 3), (2, 1))]
    network(examples[:2], scale=examples[2])
    module = invert.convert(network, examples[:2], scale=examples[2])
    assert module.report.certificate.kind == "exact"
    assert "batch >= 1" in module.report.certificate.sizes
    for rows in (1, 2, 5):
        left, right, scale = (random.normal(size=(rows, n)).astype(np.float32) for n in (4, 3, 1))
        expected = network([left, right], scale=scale)
        assert np.allclose(module([left, right], scale=scale), expected, atol=1e-6)


def test_a_keras_model_keeps_a_batch_that_it_needs_or_that_is_stated() -> None:
    import keras

    class Fixed(keras.Model):
        def call(self, x: Any) -> Any:
            return keras.ops.reshape(x, (x.shape[0] // 2, 2 * x.shape[1]))

    x = np.ones((4, 3), np.float32)
    module = invert.convert(Fixed(), x)
    assert module.report.certificate.sizes == ""
    assert module(x).shape == (2, 6)
    dense = keras.layers.Dense(2)
    assert invert.convert(dense, tf.TensorSpec((4, 3))).report.certificate.sizes == ""
    assert invert.convert(dense, x).report.certificate.sizes == "batch >= 1"
    declared = keras.Sequential([keras.Input(batch_shape=(4, 3)), keras.layers.Dense(2)])
    assert invert.convert(declared, x).report.certificate.sizes == ""
    # Arrays of different first sizes have no common batch.
    outer = keras.layers.Dot(axes=(1, 1))
    pair = [np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)]
    assert invert.convert(outer, pair).report.certificate.sizes == "batch >= 1"

    class Lookup(keras.layers.Layer):
        def call(self, table: Any, rows: Any) -> Any:
            return keras.ops.take(table, rows, axis=0)

    table, rows = np.ones((5, 3), np.float32), np.zeros((2,), np.int32)
    assert invert.convert(Lookup(), table, rows).report.certificate.sizes == ""


def test_errors_point_to_the_users_lines() -> None:
    numbers = tf.keras.Input((3,), dtype="int64")
    model = tf.keras.Model(numbers, tf.keras.layers.Hashing(4)(numbers))
    # Keras and this package call the layer, for a line of this file.
    with pytest.raises(invert.InvertError, match=r"test_tf_function\.py:\d+") as caught:
        invert.convert(model)
    assert "frontends/tf_function.py" not in str(caught.value).replace("tests/frontends", "")
