"""Graphs in files, and the checkpoints beside those of TensorFlow 1."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from google.protobuf import text_format

import invert
from invert.cli import main

tf = pytest.importorskip("tensorflow")
saved_model_pb2 = pytest.importorskip("tensorflow.core.protobuf.saved_model_pb2")
v1 = tf.compat.v1

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
OUT = {"out": "net/out:0"}


@pytest.fixture(scope="module", params=["reference", "resource", "parts"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of a training program, after a step, and what its network gives for `X`."""
    folder = tmp_path_factory.mktemp(request.param)
    parts = v1.fixed_size_partitioner(2) if request.param == "parts" else None
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        labels = v1.placeholder(tf.float32, (None, 3), name="labels")
        is_resource = request.param != "reference"
        with v1.variable_scope("net", use_resource=is_resource, partitioner=parts):
            kernel = v1.get_variable("kernel", (4, 3))
        with v1.variable_scope("net", use_resource=is_resource):
            shift = v1.get_variable("shift", (3,), trainable=False)
        out = tf.nn.softmax(x @ tf.convert_to_tensor(kernel) + shift, name="net/out")
        loss = tf.reduce_sum((out - labels) ** 2)
        step = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(shift.assign([1.0, 2.0, 3.0]))
        session.run(step, {x: X, labels: X[:, :3]})
        v1.train.Saver().save(session, str(folder / "model.ckpt-7"))
        graph = session.graph.as_graph_def()
        frozen = v1.graph_util.convert_variables_to_constants(session, graph, ["net/out"])
        (folder / "frozen.pb").write_bytes(frozen.SerializeToString())
        return folder / "model.ckpt-7.meta", session.run(out, {x: X})


def test_a_checkpoint_of_tensorflow_1(trained: Any) -> None:
    meta, want = trained
    module = invert.convert_graphdef(meta, ["x:0"], OUT)
    np.testing.assert_allclose(module(X)["out"], want, rtol=1e-6)
    # Neither slots of the optimizer nor what only the training step uses.
    shapes = sorted(p.shape for p in jax.tree.leaves(module.params))
    assert shapes in ([(3,), (4, 3)], [(2, 3), (2, 3), (3,)])
    assert sum(jax.tree.leaves(invert.trainable(module).params)) == len(shapes) - 1
    zero = np.zeros_like(want[0])
    given = {"net/shift": zero}
    other = invert.convert_graphdef(str(meta), {"x": "x"}, ["net/out"], variables=given)
    assert jnp.abs(other(X) - want).max() > 0.01


def test_its_error_names_inputs(trained: Any) -> None:
    with pytest.raises(invert.SignatureError, match=r"placeholders are 'x:0', 'labels:0'"):
        invert.load(trained[0])


def test_its_source_from_the_command_line(trained: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["source", str(trained[0]), "--inputs", "x:0", "--outputs", "net/out:0"]) == 0
    assert "jax.nn.softmax" in capsys.readouterr().out


def test_it_is_compared_with_tensorflow(trained: Any, tmp_path: Path) -> None:
    ends = ["--inputs", "x:0", "--outputs", "net/out:0"]
    assert main(["convert", str(trained[0]), "-o", str(tmp_path / "out"), "--verify", *ends]) == 0


def test_a_graph_without_its_checkpoint(trained: Any, tmp_path: Path) -> None:
    shutil.copy(trained[0], tmp_path)
    with pytest.raises(invert.MalformedModelError, match=r"\.index does not exist.*\.data files"):
        invert.convert_graphdef(tmp_path / trained[0].name, ["x:0"], OUT)
    (tmp_path / trained[0].name).write_bytes(trained[0].read_bytes()[:-9])
    with pytest.raises(invert.MalformedModelError, match=r"model\.ckpt-7\.meta"):
        invert.convert_graphdef(tmp_path / trained[0].name, ["x:0"], OUT)


def test_the_path_of_a_graph(trained: Any, tmp_path: Path) -> None:
    module = invert.convert_graphdef(trained[0].with_name("frozen.pb"), ["x:0"], ["net/out:0"])
    np.testing.assert_allclose(module(X), trained[1], rtol=1e-6)
    with pytest.raises(invert.MalformedModelError, match="does not exist"):
        invert.convert_graphdef(tmp_path / "none.pb", ["x:0"], OUT)


def test_json_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(invert.MalformedModelError, match="holds no weights"):
        invert.load(tmp_path / "model.json")


def test_a_graph_as_text(trained: Any, tmp_path: Path) -> None:
    graph = v1.GraphDef.FromString(trained[0].with_name("frozen.pb").read_bytes())
    place = tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt", as_text=True)
    module = invert.convert_graphdef(place, ["x:0"], ["net/out:0"])
    np.testing.assert_allclose(module(X), trained[1], rtol=1e-6)
    assert main(["inspect", place]) == 0
    with pytest.raises(invert.SignatureError, match="does not name its inputs"):
        invert.load(place)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node { name: 'x'", 'Expected "}"'),
        ("node { attr { key: 'T' value { type: DT_NONE } } }", "no value named DT_NONE"),
        ("\xff", "not UTF-8"),
        ("node { name: 'x' }\n\xff", "not UTF-8"),
        ("node { attr { key: 'T' value { type: 99999999999 } } }", "out of range"),
        ("node { name: 'x'" + " " * (2 << 20) + "}", "spaces in a row"),
        ("node { name: 'x' " + "]" * 9999, "]]] ... "),
        ("meta_info_def {}", "no field of a GraphDef"),
        ("node { " * 9999, "nested too deeply"),
        (" ", "is empty"),
    ],
)
def test_text_that_is_not_a_graph(text: str, reason: str, tmp_path: Path) -> None:
    place = tmp_path / "graph.pbtxt"
    place.write_bytes(text.encode("latin-1"))
    with pytest.raises(invert.MalformedModelError) as error:
        invert.load(place)
    assert reason in str(error.value)
    assert len(str(error.value)) < 600


def test_a_saved_model_as_text(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 4), name="x")
        scale = v1.get_variable("scale", (4,), use_resource=False)
        y = x * scale + 1.0
        session.run(scale.initializer)
        builder = v1.saved_model.Builder(str(tmp_path / "model"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        file = builder.save(as_text=True).decode()
        want = session.run(y, {x: X})
    assert file.endswith("pbtxt")
    np.testing.assert_array_equal(invert.load(file)(X)["y"], want)
    assert main(["convert", "--verify", str(tmp_path / "model"), "-o", str(tmp_path / "out")]) == 0


def test_an_object_graph_as_text(tmp_path: Path) -> None:
    module: Any = tf.Module()
    spec = tf.TensorSpec((None, 4), tf.float64)
    module.f = tf.function(lambda x: {"y": -x}, [spec])
    tf.saved_model.save(module, str(tmp_path))
    file = tmp_path / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    file.with_suffix(".pbtxt").write_text(text_format.MessageToString(proto))
    file.unlink()
    np.testing.assert_array_equal(invert.load(tmp_path)(X.astype("d"))["y"], -X)
