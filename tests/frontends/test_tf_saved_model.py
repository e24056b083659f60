"""SavedModel directories: their contents, and damaged ones."""

from __future__ import annotations

import inspect
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert._entry import ArgSpec
from invert.frontends.saved_model import default_name, entry_points
from invert.frontends.tf_function import entry_point
from tests.frontends.entries import Pair, call

CONFIG = invert.Config()
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def forward(params, x):
    return jnp.tanh(x["image"] @ params["dense"]["kernel"]) + params["dense"]["bias"]


class Model(tf.Module):
    """Parameters in nested dictionaries, and one function with pytrees in and out."""

    def __init__(self):
        super().__init__()
        self.params = {
            "dense": {
                "kernel": tf.Variable(np.arange(9, dtype=np.float32).reshape(3, 3) / 9),
                "bias": tf.Variable(np.ones(3, np.float32), name="my/bias", trainable=False),
            }
        }
        self.scales = [tf.Variable(2.0), tf.Variable(3.0)]
        self.forward = jax2tf.convert(forward)

    @tf.function(autograph=False)
    def __call__(self, x, flag=True):
        y = self.forward(self.params, x) * self.scales[0] + self.scales[1]
        return {"pair": Pair(y, None), "list": [x["unused"], (x["image"],)]}


SPEC = {"image": tf.TensorSpec([2, 3]), "unused": tf.TensorSpec([], tf.int32, name="mine")}
ARG = {"image": X, "unused": np.int32(7)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    model = Model()
    model.__call__.get_concrete_function(SPEC)

    @tf.function(autograph=False, input_signature=[SPEC["image"], tf.TensorSpec([], tf.int32)])
    def serve(picture, number):
        return {"y": model({"image": picture, "unused": number})["pair"].a}

    tf.saved_model.save(model, path, signatures={"serving_default": serve})
    return path


def test_trees_names_and_parameters(saved):
    points = entry_points(saved, config=CONFIG)
    assert default_name(points) == "__call__"
    entry = points["__call__"]
    assert entry.arg_names == ("x",)
    assert entry.args[0] == {
        "image": ArgSpec("x.image", (2, 3), np.dtype(np.float32)),
        "unused": ArgSpec("mine", (), np.dtype(np.int32)),
    }
    assert sorted((p.name, p.trainable) for p in entry.params) == [
        ("my/bias", False),
        ("params.dense.kernel", True),
        ("scales.0", True),
        ("scales.1", True),
    ]
    out = call(entry, ARG)
    assert type(out["list"]) is list and type(out["list"][1]) is tuple
    assert out["pair"]._fields == ("a", "b") and out["pair"].b is None
    params = {"dense": {"kernel": np.arange(9).reshape(3, 3) / 9, "bias": np.ones(3)}}
    want = forward(jax.tree_util.tree_map(np.float32, params), ARG) * 2 + 3
    np.testing.assert_allclose(out["pair"].a, want, rtol=1e-6, atol=1e-6)
    assert out["list"][0] == 7
    assert "__call__" in entry.source and str(saved.name) in entry.source


def test_functions_of_a_loaded_object(saved):
    loaded = tf.saved_model.load(saved)
    entry = entry_point(loaded.__call__, (ARG,), config=CONFIG)
    assert entry.arg_names == ("x",) and entry.args[0]["unused"].name == "mine"
    with pytest.raises(invert.SignatureError, match=r"fit none of these signatures(.|\n)*image"):
        entry_point(loaded.__call__, (X,), config=CONFIG)
    entry_point(loaded.__call__, (ARG, True), config=CONFIG)
    assert entry_point(loaded, (ARG,), config=CONFIG).args == entry.args
    with pytest.raises(invert.SignatureError, match="fit none"):
        entry_point(loaded.__call__, (ARG, False), config=CONFIG)


def test_signature_only(saved):
    """A concrete function of a signature takes keywords and returns a dictionary."""
    loaded = tf.saved_model.load(saved)
    concrete = loaded.signatures["serving_default"]
    for entry in (
        entry_point(concrete, config=CONFIG),
        entry_points(saved, config=CONFIG)["serving_default"],
    ):
        assert entry.args == () and entry.arg_names == ()
        assert entry.kwargs == {
            "picture": ArgSpec("picture", (2, 3), np.dtype(np.float32)),
            "number": ArgSpec("number", (), np.dtype(np.int32)),
        }
        out = call(entry, number=np.int32(7), picture=X)
        want = concrete(picture=tf.constant(X), number=tf.constant(7))
        assert set(out) == {"y"}
        np.testing.assert_allclose(out["y"], want["y"].numpy(), rtol=1e-6, atol=1e-6)


def test_nested_functions_and_signatures(tmp_path):
    root = tf.Module()
    root.inner = tf.Module()
    spec = [tf.TensorSpec([None, 3]), tf.TensorSpec([])]
    root.inner.scale = tf.function(lambda x, by: {"y": x * by}, input_signature=spec)
    root.inner.shift = tf.function(lambda x, by: x + by, input_signature=spec)
    root.table = {"f": tf.function(lambda x: (x, [x]), input_signature=spec[:1])}
    tf.saved_model.save(root, tmp_path, signatures={"named": root.inner.scale})
    points = entry_points(tmp_path, config=CONFIG)
    assert set(points.functions) == {"inner.scale", "inner.shift", "table.f"}
    assert points.signatures == ("named",)
    assert len(points) == 4 and list(points)[-1] == "named"
    with pytest.raises(invert.SignatureError, match=r"functions:\n(.|\n)*inner\.shift"):
        default_name(points)
    np.testing.assert_array_equal(call(points["inner.shift"], X, np.float32(1)), X + 1)
    np.testing.assert_array_equal(call(points["named"], x=X, by=np.float32(3))["y"], 3 * X)
    assert points["inner.scale"].args[0] == ArgSpec("x", (None, 3), np.dtype(np.float32))
    assert call(points["table.f"], X)[1][0].shape == (2, 3)


def _writes_a_file(x):
    tf.io.write_file("/nowhere/at/all", "content")
    return x


def test_one_signature_is_read(tmp_path):
    root = tf.Module()
    spec = [tf.TensorSpec([2])]
    root.good = tf.function(lambda x: x + 1.0, input_signature=spec)
    root.bad = tf.function(_writes_a_file, input_signature=spec)
    tf.saved_model.save(root, tmp_path, signatures={"serving_default": root.good})
    points = entry_points(tmp_path, signature="good", config=CONFIG)
    assert list(points) == ["good"] and default_name(points) == "good"
    assert call(points["good"], np.ones(2, np.float32)).shape == (2,)
    every = entry_points(tmp_path, config=CONFIG)
    assert default_name(every) == "serving_default"
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.WriteFile"):
        every["bad"]
    with pytest.raises(invert.SignatureError, match=r"no function 'other'(.|\n)*good"):
        entry_points(tmp_path, signature="other", config=CONFIG)


def test_several_concrete_functions(tmp_path):
    root = tf.Module()
    root.f = tf.function(lambda x, training=False: x * 2 if training else x)
    root.f.get_concrete_function(tf.TensorSpec([2]), training=True)
    root.f.get_concrete_function(tf.TensorSpec([2]), training=False)
    tf.saved_model.save(root, tmp_path)
    points = entry_points(tmp_path, config=CONFIG)
    by_flag = {"True" in name: points[name] for name in points.functions}
    x = np.ones(2, np.float32)
    assert call(by_flag[True], x)[0] == 2 and call(by_flag[False], x)[0] == 1


class Traced(tf.Module):
    """A function with several traces, as Keras 2 layers save theirs."""

    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(2.0)

    @tf.function
    def __call__(self, x, training=False, mask=None):
        y = x * self.scale if training else x + self.scale
        return y if mask is None else y * mask


def test_a_call_runs_the_matching_trace(tmp_path):
    root = Traced()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    calls = [((x,), {}), ((x, True), {}), ((x[0],), {"training": True}), ((x,), {"mask": x})]
    for args, kwargs in calls:
        root(*args, **kwargs)
    tf.saved_model.save(root, tmp_path / "model")
    module = invert.load(tmp_path / "model")
    for args, kwargs in calls:
        np.testing.assert_array_equal(module(*args, **kwargs), root(*args, **kwargs))
    np.testing.assert_array_equal(jax.jit(lambda v: module(v, training=True))(x), x * 2)
    np.testing.assert_array_equal(jax.grad(lambda v: module(v, True).sum())(x), np.full((2, 3), 2))
    with pytest.raises(invert.SignatureError, match="fit none of the traces of __call__"):
        module(x, training=True, mask=x)
    with pytest.raises(invert.SignatureError, match="fit none of the traces of __call__"):
        module(x, train=True)
    one = invert.load(tmp_path / "model", signature="__call__")
    np.testing.assert_array_equal(one(x, True), x * 2)
    trained = invert.load(
        tmp_path / "model", signature="__call__(x=float32(3,), training=True, mask=None)"
    )
    np.testing.assert_array_equal(trained(x[0]), x[0] * 2)


def test_traces_are_named_by_their_differences(tmp_path):
    root = Traced()
    root.layer = tf.function(lambda x, mode="sum", flags=(1, 2): x + sum(flags))
    x = np.arange(3, dtype=np.float32)
    for args in ((x, True), (x,), (x, False, x)):
        root(*args)
    for args in ((x, "mean"), (x, "mean", (3, 4)), (np.ones((2, 3), np.float32), "mean")):
        root.layer(*args)
    tf.saved_model.save(root, tmp_path / "model")
    module = invert.load(tmp_path / "model")
    assert {*module.reports} == {
        "__call__(training=True, mask=None)",
        "__call__(training=False, mask=None)",
        "__call__(training=False, mask=float32(3,))",
        "layer(x=float32(3,), flags=(1, 2))",
        "layer(x=float32(3,), flags=(3, 4))",
        "layer(x=float32(2, 3), flags=(1, 2))",
    }
    invert.save(module, tmp_path / "saved")
    for model in (module, module.model, invert.load(tmp_path / "saved")):
        np.testing.assert_array_equal(model(x), x + 2)
        np.testing.assert_array_equal(model.call_training_mask_None(x), x * 2)
        np.testing.assert_array_equal(model.layer_x_float32_3_flags_3_4(x), x + 7)
    # No call of `layer` without its mode fits a trace, so no trace has its name in the text.
    assert not hasattr(module.model, "layer")


def test_the_only_argument_of_a_signature_may_be_positional(tmp_path):
    root = tf.Module()
    root.double = tf.function(lambda x: x * 2, input_signature=[tf.TensorSpec([3], name="x")])
    signatures = {"serving_default": root.double}
    del root.double
    tf.saved_model.save(root, tmp_path / "model", signatures=signatures)
    module = invert.load(tmp_path / "model")
    x = np.ones(3, np.float32)
    invert.save(module, tmp_path / "saved")
    for model in (module, module.model, invert.load(tmp_path / "saved")):
        for result in (model(x), model(x=x)):
            np.testing.assert_array_equal(jax.tree.leaves(result)[0], 2 * x)


class Twins(tf.Module):
    """Functions on different variables of one name."""

    def __init__(self):
        super().__init__()
        self.encoder = [tf.Variable([1.0, 2.0], name="kernel"), tf.Variable([3.0], name="kernel")]
        self.decoder = tf.Variable([4.0, 5.0], name="kernel")

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def encode(self, x):
        return x * self.encoder[0] + self.encoder[1]

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def decode(self, x):
        return x * self.decoder

    @tf.function(input_signature=[tf.TensorSpec([1])])
    def shift(self, x):
        return x * self.encoder[1]

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def adapt(self, x):
        self.decoder.assign_add(x)
        return self.decoder * 2.0


def test_functions_on_different_variables_of_one_name(tmp_path):
    tf.saved_model.save(Twins(), tmp_path / "model")
    module = invert.load(tmp_path / "model")
    assert not module.failed
    names = {"kernel": (2,), "kernel_1": (2,), "kernel_2": (1,)}
    values = invert.values(module, equinox.nn.State(module))
    assert {name: value.shape for name, value in values.items()} == names
    invert.save(module, tmp_path / "saved")
    x = np.array([2.0, 7.0], np.float32)
    for model in (module, module.model, invert.load(tmp_path / "saved")):
        root = tf.saved_model.load(tmp_path / "model")
        state = equinox.nn.State(model)
        y, state = model.adapt(x, state)
        np.testing.assert_array_equal(y, root.adapt(x))
        np.testing.assert_array_equal(model.encode(x), root.encode(x))
        np.testing.assert_array_equal(model.shift(x[:1]), root.shift(x[:1]))
        np.testing.assert_array_equal(model.decode(x, state), root.decode(x))
    # A variable has the same name whichever function is read.
    alone = invert.load(tmp_path / "model", signature="shift")
    assert list(alone.params) == ["kernel_2"]
    np.testing.assert_array_equal(alone(x[:1]), [6])


def test_a_state_may_be_passed_by_name_to_any_trace(tmp_path):
    root = Twins()

    @tf.function
    def step(x, training=False):
        if training:
            root.decoder.assign_add(x)
        return x + root.decoder

    for training in (False, True):
        step.get_concrete_function(tf.TensorSpec([2]), training)
    root.step = step
    tf.saved_model.save(root, tmp_path)
    module = invert.load(tmp_path)
    state = equinox.nn.State(module)
    x = np.ones(2, np.float32)
    y, state = module.step(x, training=True, state=state)
    np.testing.assert_array_equal(y, [6, 7])
    np.testing.assert_array_equal(module.step(x, state=state), [6, 7])


def test_optional_arguments_need_not_be_given(tmp_path):
    root = tf.Module()
    root.f = tf.function(lambda x, mask=None: x if mask is None else x * mask)
    root.f.get_concrete_function(tf.TensorSpec([2]))
    tf.saved_model.save(root, tmp_path)
    assert entry_points(tmp_path, config=CONFIG)["f"].arg_names == ("x",)


def test_defaults_of_tensors_need_not_be_given(tmp_path):
    spec, shift = tf.TensorSpec, tf.constant([1.0, 2.0])

    def shifted(x, scale=2.0, shift=shift, *, pair=(1, 3.0)):
        return x * scale + shift + pair[0] * pair[1]

    root = tf.Module()
    root.f = tf.function(lambda x, scale=2.0, shift=shift: shifted(x, scale, shift, pair=(1., 3.)),
                         input_signature=[spec([None, 2]), spec([]), spec([2])])  # fmt: skip
    root.g = tf.function(shifted)
    root.g.get_concrete_function(spec([2]), spec([]), spec([2]), pair=(1, spec([])))
    tf.saved_model.save(root, tmp_path)
    x = np.ones((3, 2), np.float32)
    for module in (invert.load(tmp_path, signature="f"), invert.convert(root.f),
                   invert.convert(root.f, spec([3, 2]))):  # fmt: skip
        assert [p.default is p.empty for p in inspect.signature(module).parameters.values()] == [
            True, False, False,
        ]  # fmt: skip
        np.testing.assert_array_equal(module(x), root.f(x))
        np.testing.assert_array_equal(module(x, shift=x[0]), root.f(x, shift=x[0]))
        np.testing.assert_array_equal(module.model(x, np.float32(1), x[0]), root.f(x, 1.0, x[0]))
        assert any("no defaults" in line for line in module.emit().messages)
    with pytest.raises(invert.SignatureError, match="keeps no state"):
        module(x, equinox.nn.State(module))
    module = invert.load(tmp_path, signature="g")
    default = inspect.signature(module).parameters["shift"].default
    np.testing.assert_array_equal(default, shift)
    # A default of another type than this trace has is not one of the trace.
    assert inspect.signature(module).parameters["pair"].default is inspect.Parameter.empty
    with pytest.raises(invert.SignatureError, match="pair"):
        module(x[0])


def test_open_batch_through_a_directory(tmp_path):
    def f(x):
        return x.reshape((-1,)) * 2

    root = tf.Module()
    root.f = tf.function(
        jax2tf.convert(f, polymorphic_shapes=["b, 3"]),
        autograph=False,
        input_signature=[tf.TensorSpec([None, 3], name="x")],
    )
    tf.saved_model.save(root, tmp_path)
    entry = entry_points(tmp_path, config=CONFIG)["f"]
    assert entry.args[0].shape == (None, 3)
    for size in (1, 4):
        x = np.resize(X, (size, 3))
        np.testing.assert_array_equal(call(entry, x), f(x))


def test_variables_are_read_once(saved):
    points = entry_points(saved, config=CONFIG)
    name = points.signatures[0]
    one = {p.name: p.value for p in points["__call__"].params}
    other = {p.name: p.value for p in points[name].params}
    assert one and set(one) == set(other)
    assert all(one[k] is other[k] for k in one)


def test_missing_files(tmp_path):
    with pytest.raises(invert.MalformedModelError, match="nowhere does not exist"):
        entry_points(tmp_path / "nowhere", config=CONFIG)
    with pytest.raises(invert.MalformedModelError, match=r"saved_model\.pb does not exist"):
        entry_points(tmp_path, config=CONFIG)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(invert.MalformedModelError, match="is not a directory"):
        entry_points(file, config=CONFIG)


def damaged(saved, tmp_path, data: bytes) -> Path:
    path = tmp_path / "damaged"
    shutil.copytree(saved, path)
    (path / "saved_model.pb").write_bytes(data)
    return path


def test_empty_file(saved, tmp_path):
    with pytest.raises(invert.MalformedModelError, match=r"saved_model\.pb is empty"):
        entry_points(damaged(saved, tmp_path, b""), config=CONFIG)


@pytest.mark.parametrize("fraction", [0.001, 0.3, 0.5, 0.9, 0.999])
def test_truncated_file(saved, tmp_path, fraction):
    data = (saved / "saved_model.pb").read_bytes()
    with pytest.raises(invert.MalformedModelError, match=r"saved_model\.pb"):
        path = damaged(saved, tmp_path, data[: int(len(data) * fraction)])
        entry_points(path, config=CONFIG)


@pytest.mark.parametrize("seed", range(5))
def test_random_file(saved, tmp_path, seed):
    data = random.Random(seed).randbytes(2000)
    with pytest.raises(invert.MalformedModelError, match=r"saved_model\.pb"):
        entry_points(damaged(saved, tmp_path, data), config=CONFIG)


def test_missing_variables(saved, tmp_path):
    path = tmp_path / "damaged"
    shutil.copytree(saved, path)
    shutil.rmtree(path / "variables")
    with pytest.raises(invert.MalformedModelError, match=r"variables\.index is missing"):
        entry_points(path, config=CONFIG)


def test_truncated_variables(saved, tmp_path):
    path = tmp_path / "damaged"
    shutil.copytree(saved, path)
    (data,) = (path / "variables").glob("*.data*")
    data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(invert.MalformedModelError, match="of a shard of 10 bytes"):
        entry_points(path, config=CONFIG)["__call__"]


def test_fresh_process_without_tensorflow(saved):
    code = f"""
        import sys
        import numpy as np
        from invert._config import Config
        sys.modules["tensorflow"] = None
        from invert.frontends.saved_model import default_name, entry_points
        points = entry_points({str(saved)!r}, config=Config())
        entry = points[default_name(points)]
        x = np.ones((2, 3), np.float32)
        out = entry.fn([p.value for p in entry.params], x, np.int32(1))
        assert "jax.experimental.jax2tf" not in sys.modules
        print(len(out), float(out[2].sum()))
    """
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split()[0] == "3"


def test_arguments_of_a_saved_jax_function_are_named_as_there(tmp_path):
    """TensorFlow calls them `args_tf_0` and so on."""

    module = tf.Module()
    module.named = tf.function(
        jax2tf.convert(lambda x, nodes: x["a"] @ nodes + x["b"]), autograph=False
    )
    module.counted = tf.function(jax2tf.convert(lambda *xs: xs[0] - xs[1]), autograph=False)
    kept = tf.TensorSpec([3, 3], tf.float32)
    module.named.get_concrete_function({"b": kept, "a": kept}, kept)
    module.counted.get_concrete_function(kept, kept)
    tf.saved_model.save(module, str(tmp_path))
    loaded = invert.load(tmp_path)
    assert list(inspect.signature(loaded.named).parameters) == ["x", "nodes"]
    y = np.arange(9, dtype=np.float32).reshape(3, 3)
    got = loaded.named({"a": y, "b": y + 1}, nodes=y.T)
    np.testing.assert_allclose(got, y @ y.T + y + 1)
    assert list(inspect.signature(loaded.counted).parameters) == ["args_tf_0", "args_tf_1"]
    np.testing.assert_array_equal(loaded.counted(y, y.T), y - y.T)
