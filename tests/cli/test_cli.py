"""The command line: what it prints, what it writes, how it ends."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert.cli import main
from invert.cli.options import config_of
from tests.emission.models import ramp

ROOT = Path(__file__).parents[2]
W, X = ramp(3, 4), ramp(2, 3)


def forward(w, x):
    return jnp.cumsum(jax.nn.relu(x @ w), axis=1)


class Several(tf.Module):
    """Functions that convert, functions with state and random draws, and functions that cannot be
    converted.
    """

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3, 3]), name="dense/kernel")
        self.mean = tf.Variable(tf.zeros([3]), name="mean", trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="x")])
    def predict(self, x):
        return {"y": tf.nn.relu((x - self.mean) @ self.w)}

    @tf.function(input_signature=[tf.TensorSpec([2, 3], name="x")])
    def train(self, x):
        self.mean.assign(self.mean * 0.9 + tf.reduce_mean(x, 0))
        return tf.nn.dropout(x @ self.w, 0.5)

    @tf.function(input_signature=[tf.TensorSpec([2], name="x")])
    def spell(self, x):
        text = tf.strings.as_string(x)
        parsed = tf.strings.to_number(tf.strings.substr(text, 0, 3))
        return parsed + tf.cast(tf.raw_ops.ReaderNumRecordsProducedV2(
            reader_handle=tf.raw_ops.IdentityReaderV2()), tf.float32)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of each kind."""
    where = tmp_path_factory.mktemp("models")
    tf.saved_model.save(Several(), str(where / "several"))
    module = tf.Module()
    module.w = tf.Variable(W, name="w")
    converted = jax2tf.convert(forward)
    module.f = tf.function(
        lambda x: converted(module.w, x), autograph=False, input_signature=[tf.TensorSpec([2, 3])]
    )
    tf.saved_model.save(module, str(where / "saved_model"))
    exported = jax.export.export(jax.jit(lambda x: forward(W, x)))(X)
    (where / "export.bin").write_bytes(exported.serialize())
    (where / "export.mlir").write_text(exported.mlir_module())
    (where / "export.mlirbc").write_bytes(exported.mlir_module_serialized)
    other = jax.export.export(jax.jit(lambda x: jnp.cumsum(jnp.tanh(x @ W) * 2, axis=1)))(X)
    (where / "other.bin").write_bytes(other.serialize())
    layers = [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.BatchNormalization()]
    keras.Sequential(layers).save(where / "model.keras")
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        tf.nn.relu(x @ tf.constant(W), name="y")
    (where / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    return where


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_inspect_lists_the_contents(models: Path, capsys) -> None:
    assert main(["inspect", str(models / "several")]) == 4
    out, err = lines(capsys)
    assert "SavedModel" in out
    assert "    x: float32[?, 3]" in out
    assert "mean: float32[3] (not trained, assigned)" in out
    assert re.search(r"random ops:\n    tf\.RandomUniform at node '.*RandomUniform'", out)
    assert "`out, state = module(x, state, key=key)`" in out
    assert re.search(r"host ops:\n    tf\.AsString at node", out)
    problems = re.findall(
        r"cannot be converted: tf\.(\w+): .*\n    location: .+\n    remedy: ", out
    )
    assert {"AsString", "ReaderNumRecordsProducedV2"} <= set(problems)
    assert err == ""


def test_inspect_shows_open_sizes(tmp_path: Path, capsys) -> None:
    module = tf.Module()
    module.layer = keras.layers.Dense(2)
    module.layer.build((None, 3))
    module.layer.trainable = False
    module.f = tf.function(module.layer, input_signature=[tf.TensorSpec([1, 3])])
    module.own = tf.Variable(1.0, trainable=False)
    tf.saved_model.save(module, str(tmp_path))
    assert main(["inspect", str(tmp_path)]) == 0
    out, _ = lines(capsys)
    assert "kernel: float32[3, 2] (trained or not: not stated)" in out
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    (function,) = json.loads(lines(capsys)[0])["functions"]
    assert [v["stated"] for v in function["variables"]] == [False, False]


def test_inspect_has_the_same_content_as_json(models: Path, capsys) -> None:
    assert main(["inspect", str(models / "several"), "--json"]) == 4
    found = json.loads(lines(capsys)[0])
    by_name = {f["name"]: f for f in found["functions"]}
    assert set(by_name) == {"predict", "train", "spell"}
    assert [f for f, v in by_name.items() if v["converts"]] == ["predict", "train"]
    assert by_name["predict"]["arguments"] == [{"name": "x", "type": "float32[?, 3]"}]
    assert by_name["predict"]["ops"]["rule"]["tf.MatMul"] == 1
    assert by_name["spell"]["ops"]["none"]["tf.ReaderNumRecordsProducedV2"] == 1
    assert len(by_name["train"]["random"]) == 1
    assert all(p["remedy"] for p in by_name["spell"]["problems"])
    assert main(["inspect", str(models / "several"), "--signature", "predict"]) == 0


@pytest.mark.parametrize(
    ("name", "kind", "op"),
    [
        ("export.bin", "jax.export artifact", "stablehlo.dot_general"),
        ("export.mlir", "StableHLO module", "stablehlo.reduce_window"),
        ("export.mlirbc", "StableHLO module", "stablehlo.dot_general"),
        ("saved_model", "SavedModel", "stablehlo.dot_general"),
        ("saved_model/saved_model.pb", "SavedModel", "tf.XlaCallModule"),
        ("model.keras", "Keras model", "tf.MatMul"),
        ("graph.pb", "GraphDef", "tf.Relu"),
    ],
)
def test_inspect_knows_every_container(models: Path, name: str, kind: str, op: str, capsys) -> None:
    assert main(["inspect", str(models / name)]) == 0
    out, _ = lines(capsys)
    assert kind in out.splitlines()[0]
    assert f"1 x {op}" in out
    assert "converts; it is called as" in out


@pytest.mark.parametrize("name", ["saved_model", "model.keras", "export.bin", "graph.pb"])
def test_convert_writes_equivalent_code(models: Path, name: str, tmp_path: Path, capsys) -> None:
    ends = ["--inputs", "x", "--outputs", "y"] if name == "graph.pb" else []
    target = tmp_path / "out"
    arguments = ["convert", str(models / name), "-o", str(target), "--verify", *ends]
    assert main(arguments) == 0
    out, err = lines(capsys)
    assert "certificate: exact" in out
    assert "saved and loaded again: equal, bit for bit" in out
    assert "compared with the original: largest relative difference" in out
    assert f"wrote {target / 'model.py'}" in out
    assert err == ""  # stderr is no terminal here
    assert main(["inspect", str(target)]) == 0
    assert "def" not in lines(capsys)[0]
    if name != "graph.pb":
        # The same program: read back from the directory, and traced.
        assert main(["diff", str(models / name), str(target), "--weights"]) == 0
        assert lines(capsys) == ("", "")


def test_several_functions(tmp_path: Path, capsys) -> None:
    module = tf.Module()
    module.w = tf.Variable(W, name="w")
    spec = [tf.TensorSpec([2, 3], name="x")]
    module.one = tf.function(lambda x: x @ module.w, input_signature=spec)
    module.two = tf.function(lambda x: tf.tanh(x @ module.w), input_signature=spec)
    tf.saved_model.save(module, str(tmp_path / "model"))
    out = tmp_path / "out"
    assert main(["convert", str(tmp_path / "model"), "-o", str(out), "--layers", "scan"]) == 0
    text = lines(capsys)[0]
    assert "function one" in text
    assert "function two" in text
    model = invert.load(out)
    assert np.allclose(model.two(X), np.tanh(X @ W), rtol=1e-6, atol=1e-6)
    assert main(["diff", str(tmp_path / "model"), str(tmp_path / "model")]) == 0
    assert main(["diff", str(tmp_path / "model"), str(out)]) == 2
    assert "has several functions" in lines(capsys)[1]


def test_convert_reports_its_steps(models: Path, tmp_path: Path, capsys) -> None:
    arguments = ["convert", str(models / "export.bin"), "-o", str(tmp_path), "--progress"]
    assert main([*arguments, "--max-shard-size", "40B"]) == 0
    stages = [line.partition("] ")[2] for line in lines(capsys)[1].splitlines()]
    assert [s.partition(": ")[2] for s in stages if ": " in s][:2] == [
        "raising",
        "recognizing patterns, 0 %",
    ]
    assert "writing the source" in stages
    assert stages[-1].endswith("comparing the source")
    assert (tmp_path / "weights.safetensors").exists()  # one array needs one file


def test_verify_finds_another_original(
    models: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from invert.cli import check

    def other(model, name):
        return lambda args, kwargs: [forward(W + 1, *args)]

    monkeypatch.setattr(check, "_original", other)
    arguments = ["convert", str(models / "export.bin"), "-o", str(tmp_path), "--verify"]
    assert main(arguments) == 6
    assert "result 0 differs from the original's" in lines(capsys)[1]


def test_verify_finds_sizes_that_meet_the_conditions(tmp_path: Path, capsys) -> None:
    shape = jax.export.symbolic_shape("n, 2", constraints=["n >= 8", "mod(n, 4) == 0"])
    exported = jax.export.export(jax.jit(lambda x: x.reshape(4, x.shape[0] // 4, 2).sum(1)))
    blob = exported(jax.ShapeDtypeStruct(shape, np.float32)).serialize()
    (tmp_path / "export.bin").write_bytes(blob)
    assert main(["convert", str(tmp_path / "export.bin"), "-o", str(tmp_path), "--verify"]) == 0
    assert "compared with the original: largest relative difference 0" in lines(capsys)[0]


def test_verify_runs_the_trace_that_was_converted(tmp_path: Path, capsys) -> None:
    root = tf.Module()
    root.f = tf.function(lambda x, training=False: x * 2 if training else x + 1)
    root.f.get_concrete_function(tf.TensorSpec([None, 2]), training=True)
    root.f.get_concrete_function(tf.TensorSpec([None, 2]))
    root.nothing = tf.function(lambda x: None, input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(root, tmp_path / "model")
    for name in ("f(training=True)", "f(training=False)", "nothing"):
        model, out = str(tmp_path / "model"), str(tmp_path / "out")
        assert main(["convert", model, "-o", out, "--verify", "--signature", name]) == 0
        assert "largest relative difference 0" in capsys.readouterr().out


def _named(x, *, jnp, key):
    return x + 2 * jnp - key


def _half(x):
    kernel = np.random.default_rng(0).standard_normal((512, 4))
    return tf.cast(tf.cast(x, tf.bfloat16) @ tf.constant(kernel, tf.bfloat16), tf.float32)


def _ragged(r):
    return r.with_flat_values(r.flat_values + 1).row_lengths(), r.flat_values * 2


@pytest.mark.parametrize(
    ("function", "specs", "named"),
    [
        # The text imports a module `jnp`, so its argument has another name.
        (_named, [tf.TensorSpec([3])], {"jnp": tf.TensorSpec([3]), "key": tf.TensorSpec([3])}),
        # Both sum in bfloat16, in another order.
        (_half, [tf.TensorSpec([None, 512])], {}),
        (_ragged, [tf.RaggedTensorSpec([3, None], tf.float32, 1)], {}),
        (_ragged, [tf.RaggedTensorSpec([2, None, None, 2], tf.float32, 2, tf.int32)], {}),
        (
            lambda x, minus, y: x - y if minus else x,
            [tf.TensorSpec([3]), True, tf.TensorSpec([3])],
            {},
        ),
    ],
    ids=["names", "bfloat16", "ragged", "ragged rows of rows", "a static argument"],
)
def test_verify_gives_both_the_same_arguments(
    tmp_path: Path, capsys, function, specs, named
) -> None:
    model = tf.Module()
    model.f = tf.function(function)
    model.f.get_concrete_function(*specs, **named)
    tf.saved_model.save(model, str(tmp_path / "model"))
    out = str(tmp_path / "out")
    assert main(["convert", str(tmp_path / "model"), "-o", out, "--verify"]) == 0
    output = capsys.readouterr().out
    assert "compared with the original: largest relative difference" in output
    assert "not compared" not in output


def test_verify_says_that_the_original_does_not_run(tmp_path: Path, capsys) -> None:
    model = tf.Module()
    other = jax2tf.convert(lambda x: jnp.sin(x), native_serialization_platforms=["tpu"])
    model.f = tf.function(other, autograph=False, input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(model, str(tmp_path / "model"))
    out = str(tmp_path / "out")
    assert main(["convert", str(tmp_path / "model"), "-o", out, "--verify"]) == 0
    assert "not compared with the original, which does not run" in lines(capsys)[0]


def test_diff_of_the_same_program(models: Path, capsys) -> None:
    for name in ("export.mlir", "export.mlirbc", "saved_model"):
        assert main(["diff", str(models / "export.bin"), str(models / name)]) == 0
        assert lines(capsys)[0] == ""


def test_diff_of_other_programs(models: Path, capsys) -> None:
    pair = [str(models / name) for name in ("export.bin", "other.bin")]
    assert main(["diff", "--width", "130", *pair]) == 1
    out = lines(capsys)[0]
    assert re.search(r"^ *c: float32\[2,4\] = dot_general.* {4,}c: float32", out, re.MULTILINE)
    assert re.search(r"\| d: float32\[2,4\] = tanh c$", out, re.MULTILINE)
    assert re.search(r"relu.* <$", out, re.MULTILINE)
    assert "the programs differ" in out.splitlines()[-1]
    assert max(map(len, out.splitlines())) <= 130


def test_diff_reports_changed_operands_and_weights(tmp_path: Path, capsys) -> None:
    def write(name, f):
        (tmp_path / name).write_bytes(jax.export.export(jax.jit(f))(X, X + 1).serialize())
        return str(tmp_path / name)

    one = write("one", lambda x, y: jnp.tanh(x @ W) - jnp.sin(y @ W))
    two = write("two", lambda x, y: jnp.tanh(x @ W) - jnp.sin(x @ W))
    moved = write("moved", lambda x, y: jnp.tanh(x @ (W + 1)) - jnp.sin(y @ (W + 1)))
    assert main(["diff", one, two]) == 1
    marked = re.findall(r"^.*(dot_general).* \| .*dot_general", lines(capsys)[0], re.MULTILINE)
    assert len(marked) == 1  # the product of y, not that of x
    assert main(["diff", one, moved]) == 0
    assert main(["diff", one, moved, "--weights"]) == 1
    assert "differ, by 1 at most" in lines(capsys)[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages whose arguments are of several kinds."""
    where = tmp_path_factory.mktemp("saved")

    def save(name, f, *args):
        invert.save(invert.from_exported(jax.export.export(jax.jit(f))(*args)), where / name)

    def batch(condition):
        sizes = jax.export.symbolic_shape("b, 3", constraints=[condition])
        return jax.ShapeDtypeStruct(sizes, np.float32)

    save("tree", lambda x, y: x["a"] + jnp.where(y[0], x["b"], y[1]), {"a": X, "b": X}, (True, 2.0))
    save("even", jnp.tanh, batch("mod(b, 2) == 0"))
    save("few", jnp.tanh, batch("b <= 4"))
    save("any", jnp.tanh, batch("b >= 1"))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    invert.save(invert.convert(model), where / "dense")
    original = tf.Module()
    original.f = tf.function(lambda x: x + tf.random.normal([2]), [tf.TensorSpec([2])])
    tf.saved_model.save(original, str(where / "original"))
    invert.save(invert.load(where / "original"), where / "draw")
    count = tf.Variable(0.0)
    add = tf.function(lambda x: count.assign_add(x) * 2.0)
    invert.save(invert.convert(add, tf.TensorSpec([])), where / "state")
    return where


@pytest.mark.parametrize("name", ["tree", "even", "few", "any", "dense", "draw"])
def test_diff_of_saved_packages(saved: Path, name: str, capsys) -> None:
    other = "any" if name == "tree" else "tree"
    assert main(["diff", str(saved / name), str(saved / name), "--weights"]) == 0
    assert main(["diff", str(saved / name), str(saved / other)]) == 1
    assert "the programs differ" in lines(capsys)[0]


def test_diff_with_what_a_text_leaves_out(saved: Path) -> None:
    assert main(["diff", str(saved / "original"), str(saved / "draw")]) == 0  # no `* 1.0 + 0.0`


def test_errors_of_diff_of_saved_packages(saved: Path, tmp_path: Path, capsys) -> None:
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), np.float32)
    (tmp_path / "any").write_bytes(jax.export.export(jax.jit(jnp.tanh))(spec).serialize())
    assert main(["diff", str(saved / "few"), str(tmp_path / "any")]) == 2
    assert "only some of the sizes that the other takes" in lines(capsys)[1]
    assert main(["diff", str(saved / "state"), str(saved / "state")]) == 2
    assert "Compare the containers" in lines(capsys)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "nowhere"], 3, "does not exist"),
        (["convert", "several", "-o", "o", "--signature", "spell"], 4, "ReaderNumRecords"),
        (["convert", "several", "-o", "o", "--signature", "nope"], 5, "has no function 'nope'"),
        (["convert", "graph.pb", "-o", "o"], 5, "--inputs x:0 --outputs y:0"),
        (["convert", "export.bin", "-o", "saved_model"], 2, "holds a SavedModel"),
        (["convert", "export.bin", "-o", "o", "--max-shard-size", "big"], 2, "is not a size"),
        (["convert", "export.bin", "-o", "o", "--layers", "none"], 2, "is not one of: "),
        (["diff", "export.bin", "nowhere"], 2, "does not exist"),
    ],
)
def test_errors_are_one_message(
    models: Path, arguments: list[str], code: int, message: str, capsys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(models)
    assert main(arguments) == code
    out, err = lines(capsys)
    assert out == ""
    assert err.startswith("invert: ")
    assert message in err
    assert "Traceback" not in err
    assert main([*arguments, "--debug"]) == code
    assert "Traceback" in lines(capsys)[1]


def test_names_of_tensors_are_for_graphs_of_any_suffix(models: Path, tmp_path, capsys) -> None:
    names = ["--inputs", "x:0", "--outputs", "y:0"]
    graph, artifact = tmp_path / "frozen", models / "export.bin"
    graph.write_bytes((models / "graph.pb").read_bytes())
    assert main(["inspect", str(graph), *names]) == 0
    assert "graph (GraphDef)" in lines(capsys)[0]
    for path in (artifact, models / "export.mlir"):
        assert main(["inspect", str(path), *names]) == 2
        assert "are for bare graphs, and" in lines(capsys)[1]
    # Of two models, they name the tensors of those that are graphs.
    assert main(["diff", str(artifact), str(graph), *names]) == 1
    assert lines(capsys)[0].startswith(f"--- {artifact}")
    assert main(["diff", str(graph), str(models / "graph.pb"), *names]) == 0
    assert main(["diff", str(artifact), str(artifact), *names]) == 2
    assert "neither model is one" in lines(capsys)[1]


def test_a_saved_module_is_not_compared_with_itself(models: Path, tmp_path: Path, capsys) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert main(["convert", str(models / "export.bin"), "-o", one]) == 0
    assert main(["convert", one, "-o", two, "--verify"]) == 0
    assert "verify the model that it was converted from" in lines(capsys)[0]
    assert main(["inspect", one, "--signature", "f"]) == 2
    assert "which is taken as a whole" in lines(capsys)[1]


def test_usage(capsys) -> None:
    for arguments in (
        [],
        ["convert", "x"],
        ["nothing"],
        ["diff", "a", "b", "--width", "3"],
        ["diff", "a", "b", "--width", "no"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert lines(capsys)[0] == f"invert {invert.__version__}\n"


@pytest.mark.parametrize("name", ["export.bin", "export.mlirbc", "model.keras", "graph.pb"])
def test_damaged_files_are_refused_with_a_message(
    models: Path, name: str, tmp_path: Path, capsys
) -> None:
    rng = random.Random(name)
    data = (models / name).read_bytes()
    for i in range(12):
        damaged = bytearray(data)
        if i % 2:
            del damaged[rng.randrange(len(data)) :]
        else:
            for _ in range(4):
                damaged[rng.randrange(len(data))] = rng.randrange(256)
        path = tmp_path / f"{i}{Path(name).suffix}"
        path.write_bytes(bytes(damaged))
        # Damage to a constant or to a comment leaves a model that can be read.
        assert main(["inspect", str(path)]) in (0, 3, 4, 5), lines(capsys)[1]


def test_a_keras_archive_runs_nothing(models: Path, tmp_path: Path, capsys) -> None:
    with zipfile.ZipFile(models / "model.keras") as archive:
        files = {n: archive.read(n) for n in archive.namelist()}
    config = json.loads(files["config.json"])
    layers = config["config"]["layers"]
    layers.append({"module": "os", "class_name": "system", "config": {"name": "touch"}})
    lambda_ = {"class_name": "__lambda__", "config": {"value": "x"}}
    layers.append({"module": "keras.layers", "class_name": "Lambda",
                   "config": {"name": "hidden", "function": lambda_}})  # fmt: skip
    files["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "bad.keras", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert main(["inspect", str(tmp_path / "bad.keras")]) == 4
    out = lines(capsys)[0]
    assert "os.system: is not a class of Keras itself" in out
    assert "keras.Lambda: contains or names Python code\n    location: hidden" in out


def test_names_in_a_file_cannot_move_the_cursor(tmp_path: Path, capsys) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [2], name="x"), name="y")
    proto = graph.as_graph_def()
    proto.node[1].op = "Evil\x1b[2J"
    (tmp_path / "a.pb").write_bytes(proto.SerializeToString())
    assert main(["inspect", str(tmp_path / "a.pb")]) == 4
    out, err = lines(capsys)
    assert "Evil" in out
    assert "\x1b" not in out + err


def test_as_a_process(models: Path, tmp_path: Path) -> None:
    """TensorFlow is imported only where it is needed; a closed pipe is not an error."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    code = (
        "import sys; sys.modules['tensorflow'] = None; from invert.cli import main; "
        f"sys.exit(main(['convert', {str(models / 'export.bin')!r}, '-o', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    command = f"{sys.executable} -m invert inspect {models / 'export.bin'} | true"
    command += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr


def test_the_api_opens_the_same_files(models: Path) -> None:
    want = forward(W, X)
    for name in ("export.bin", "export.mlir", "export.mlirbc", "saved_model"):
        assert np.allclose(invert.load(models / name)(X), want, rtol=1e-6)  # compiled apart
    module = invert.load(models / "model.keras")
    model = keras.saving.load_model(models / "model.keras")
    assert np.allclose(module(X), model(X), rtol=1e-6, atol=1e-6)
    with pytest.raises(invert.SignatureError, match=r"Use invert\.convert_graphdef"):
        invert.load(models / "graph.pb")
    with pytest.raises(invert.SignatureError, match="has one function"):
        invert.load(models / "export.bin", signature="other")


def test_open_sizes_may_be_given_as_examples() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    module = invert.convert(model, tf.TensorSpec([None, 3]))
    assert np.allclose(module(X), model(X), rtol=1e-6, atol=1e-6)
    assert "batch n_in" in module.source


def test_progress_of_a_conversion() -> None:
    said: list[str] = []
    config = dataclasses.replace(invert.Config(), progress=said.append)
    invert.from_exported(jax.export.export(jax.jit(jnp.sin))(X), config=config)
    stages = [s.partition(": ")[2] for s in said]
    assert list(dict.fromkeys(s.partition(",")[0] for s in stages)) == [
        "raising", "recognizing patterns", "comparing gradients", "verifying"
    ]  # fmt: skip
    shares = [int(s.split()[-2]) for s in stages if "patterns" in s]
    assert shares == sorted(set(shares)) and shares[0] == 0 and 80 <= shares[-1] < 100


def test_progress_of_a_text() -> None:
    said: list[str] = []
    model = keras.Sequential(
        [keras.Input((3,)), *(keras.layers.Dense(3, "tanh", name=f"layer{i}x") for i in range(4))]
    )
    invert.convert(model, config=invert.Config(progress=said.append)).emit()
    shares = [int(s.split()[-2]) for s in said if "writing the source" in s]
    assert shares == [25, 50, 75, 100]
    assert said[-1].endswith("comparing the source")


def test_source_is_printed(models: Path, capsys) -> None:
    assert main(["source", str(models / "export.bin"), "--typecheck"]) == 0
    out, _ = lines(capsys)
    assert "(eqx.Module):" in out
    assert "@jaxtyped(typechecker=beartype)" in out
    assert "def load(" in out
    assert main(["source", str(models / "export.bin"), "--no-loader"]) == 0
    out, _ = lines(capsys)
    assert "(eqx.Module):" in out
    assert "def load(" not in out and "safetensors" not in out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("nothing=1", "is not one of: "),
        ("max_scan", "give a value"),
        ("prevent_gradient=never", "expected 'error' or 'warn'"),
        ("progress=print", "is not one of: "),
    ],
)
def test_options_of_the_configuration_are_checked(
    models: Path, option: str, message: str, capsys
) -> None:
    assert main(["source", str(models / "export.bin"), "--config", option]) == 2
    assert message in lines(capsys)[1]


def test_options_of_the_configuration_are_values() -> None:
    options = argparse.Namespace(
        host_ops=None,
        sizes=[],
        platform="cpu",
        config=[
            *("max_scan=7", "verify=false"),
            *("disabled-patterns=unrolled_scan", "prevent_gradient=warn"),
        ],
    )
    config = config_of(options, print)
    assert (config.max_scan, config.verify, config.platform) == (7, False, "cpu")
    assert (config.disabled_patterns, config.prevent_gradient) == (("unrolled_scan",), "warn")


def test_a_picture_is_drawn(models: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "model.svg"
    assert main(["inspect", str(models / "export.bin"), "--graph", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    assert path.read_text().startswith("<svg") and "relu · cumsum" in path.read_text()
    assert main(["inspect", str(models / "several"), "--graph", str(path)]) == 2
    assert "--signature: predict, train" in capsys.readouterr().err
    for wrong, said in (("model.png", "does not end in .svg"), ("no/model.svg", "folder")):
        with pytest.raises(SystemExit):
            main(["inspect", str(models / "export.bin"), "--graph", wrong])
        assert said in capsys.readouterr().err


def test_sizes_of_arguments(models: Path, tmp_path: Path, capsys) -> None:
    shape = jax.export.symbolic_shape("b, 3")
    spec = jax.ShapeDtypeStruct(shape, jnp.float32)
    one, two = tmp_path / "one.bin", tmp_path / "two.bin"
    one.write_bytes(jax.export.export(jax.jit(lambda x: x @ W))(spec).serialize())
    two.write_bytes(jax.export.export(jax.jit(lambda x, y: x + y))(spec, spec).serialize())
    for text in ("rows 3", "x: rows 3"):
        assert main(["source", str(one), "--sizes", text]) == 0
        assert '"rows n_in"' in lines(capsys)[0]
    assert main(["source", str(two), "--sizes", "rows 3"]) == 2
    assert "name the argument, as in 'x: rows 3'; there are x, y" in lines(capsys)[1]
    assert main(["source", str(one), "--sizes", "x: a 3", "--sizes", "x: b 3"]) == 2
    assert "is given twice" in lines(capsys)[1]
    assert main(["source", str(one), "--sizes", "z: a 3"]) == 5
    assert "no argument is named 'z'" in lines(capsys)[1]


def test_options_for_other_models_are_refused(models: Path, tmp_path: Path, capsys) -> None:
    graph = ["--inputs", "x:0", "--outputs", "y:0"]
    assert main(["inspect", str(models / "several"), *graph]) == 2
    assert "are for bare graphs" in lines(capsys)[1]
    assert main(["source", str(models / "graph.pb"), *graph, "--signature", "f"]) == 2
    assert "which has one function" in lines(capsys)[1]
    assert main(["convert", str(models / "export.bin"), "-o", str(tmp_path / "out")]) == 0
    assert main(["inspect", str(tmp_path / "out"), "--signature", "f"]) == 2


def test_json_of_convert_and_diff(models: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = ["convert", str(models / "export.bin"), "-o", str(out), "--verify", "--json"]
    assert main(arguments) == 0
    found = json.loads(lines(capsys)[0])
    (report,) = found["functions"].values()
    assert report["certificate"]["kind"] == "exact"
    assert report["equations"] == sum(report["primitives"].values()) > 0
    assert found["verified"]["failures"] == [] and found["verified"]["lines"]
    sizes = {Path(w["path"]).name: w["bytes"] for w in found["wrote"]}
    assert sizes["model.py"] == (out / "model.py").stat().st_size
    pair = [str(models / "export.bin"), str(models / "other.bin")]
    assert main(["diff", "--json", *pair]) == 1
    found = json.loads(lines(capsys)[0])
    assert not found["same"] and any("tanh" in line for line in found["programs"][0]["lines"])
    assert main(["diff", "--json", pair[0], pair[0]]) == 0
    assert json.loads(lines(capsys)[0])["same"]
    assert main(["inspect", str(models / "export.mlir"), "--json"]) == 0
    assert json.loads(lines(capsys)[0])["functions"][0]["results"] == ["float32[2, 4]"]


def test_colours_can_be_turned_off(models: Path, capsys, monkeypatch) -> None:
    pair = [str(models / "export.bin"), str(models / "other.bin")]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["inspect", pair[0]]) == 0
    assert "\x1b[1m" in lines(capsys)[0]
    assert main(["diff", "--width", "130", *pair]) == 1
    assert re.search(r"\x1b\[33m.*\| d: float32\[2,4\] = tanh c\x1b\[0m$", lines(capsys)[0], re.M)
    assert main(["inspect", "nowhere"]) == 3
    assert lines(capsys)[1].startswith("\x1b[31;1minvert:\x1b[0m ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["inspect", pair[0]]) == 0
    assert main(["diff", *pair]) == 1
    assert "\x1b" not in "".join(lines(capsys))


def test_library_logs_are_silenced() -> None:
    logs = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795409857.224635   26872 cudart_stub.cc:31] Could not find cuda drivers",
        "W1123 04:00:00.123456 12 cpu.cc:5] slow",
        "2026-11-23 04:00:00.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations",
    ]
    kept = ["UserWarning: I0000 is fine", "E0000 00:00:1.2   26872 file.cc:31] an error", "no end"]
    code = (
        "import os, sys\n"
        "from invert.cli.terminal import without_logs\n"
        "with without_logs():\n"
        f"    os.write(2, {chr(10).join([*logs, *kept]).encode()!r})\n"
        "    print('of Python', file=sys.stderr)\n"
        "print('after', file=sys.stderr); os.write(2, b'I0000 00:00:1.2 1 f.cc:1] after\\n')\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(line in done.stderr for line in (*kept, "of Python", "after\nI0000"))
    assert not any(line in done.stderr for line in logs)


def test_completion_of_a_shell(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--print-completion", "bash"])
    out, err = lines(capsys)
    if stopped.value.code:
        assert "needs the package shtab" in err
        return
    assert "--max-shard-size" in out and "_shtab_invert" in out


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=["output", "errors", "all"])
def test_streams_may_be_closed(models: Path, tmp_path: Path, closed: tuple[int, ...]) -> None:
    """A file that took the number of a closed stream would hold what libraries print."""
    run = ["-m", "invert", "convert", str(models / "export.bin"), "-o", str(tmp_path)]
    code = (
        f"import os, sys; [os.close(n) for n in {closed}]; "
        f"os.execv(sys.executable, [sys.executable, *{run}])"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
    assert np.allclose(invert.load(tmp_path)(X), forward(W, X))


def test_output_that_its_encoding_lacks(models: Path, tmp_path: Path) -> None:
    shutil.copy(models / "export.bin", tmp_path / "é.bin")
    command = [sys.executable, "-m", "invert", "inspect", "é.bin"]
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("invert: the output has the character '\\xe9'")


def test_ctrl_c_while_an_extension_is_imported(models: Path, capsys, monkeypatch) -> None:
    def importing(options: argparse.Namespace) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("Encountered an error while initializing the extension.") from None
        return 0

    monkeypatch.setattr("invert.cli._run", importing)
    # A shell makes processes in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["inspect", str(models / "export.bin")]) == 130
        assert capsys.readouterr().err == ""
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("paths", [("", "out"), ("model", "")])
def test_an_empty_path_is_refused(paths: tuple[str, str], capsys) -> None:
    with pytest.raises(SystemExit):
        main(["convert", paths[0], "-o", paths[1]])
    assert "the path is empty" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read all files")
def test_a_model_that_may_not_be_read(models: Path, tmp_path: Path, capsys) -> None:
    directory = tmp_path / "model"
    directory.mkdir(mode=0)
    assert main(["inspect", str(directory)]) == 3
    assert f"{directory} cannot be read: Permission denied" in capsys.readouterr().err
