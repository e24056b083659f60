"""SavedModels as this package reads them, compared with TensorFlow's own loader."""

from __future__ import annotations

import collections
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert.frontends.run_saved_model import load_function
from invert.frontends.saved_model import EntryPoints, entry_points
from invert.frontends.tf_function import entry_point
from tests.damaged_files import damaged_copies
from tests.frontends.roads import differences

v1 = tf.compat.v1
CONFIG = invert.Config()
Spec = tf.TensorSpec


@jax.custom_vjp
def straight_through(x: Any) -> Any:
    return jnp.round(x)


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (2 * g,))


@tf.custom_gradient
def clipped(x: Any, scale: Any) -> Any:
    y = x * scale
    return y, lambda dy: (tf.clip_by_value(dy * y, -1.0, 1.0), None)


class Nested(tf.Module):
    """Variables, constants, custom gradients, and functions of several signatures and trees."""

    def __init__(self) -> None:
        super().__init__()
        self.v = tf.Variable([1.0, 2, 3], name="vee")
        self.deep = {"list": [tf.Variable(3, trainable=False)], "c": tf.constant([3.0, 4, 5])}

    @tf.function(input_signature=[Spec([3])])
    def __call__(self, x: Any) -> Any:
        y = clipped(x * self.v, tf.constant(2.0))
        count = tf.cast(self.deep["list"][0], tf.float32)
        return {"y": y + self.deep["c"], "z": [y * count, (tf.cumsum(x), None)]}

    @tf.function
    def several(self, x: Any, training: bool = False, *, scale: float = 2.0) -> Any:
        return x * scale if training else x + self.v

    @tf.function(input_signature=[Spec([3])])
    def assign(self, x: Any) -> Any:
        self.v.assign_add(x)
        return self.v * 2.0

    @tf.function(input_signature=[Spec([None])])
    def loop(self, x: Any) -> Any:
        total = tf.zeros([])
        for _ in tf.range(5):
            total += tf.reduce_sum(x)
        return tf.cond(total > 0.0, lambda: total * 2.0, lambda: total)


def nested(path: Path) -> None:
    model = Nested()
    model.several.get_concrete_function(Spec([3]), training=True)
    model.several.get_concrete_function(Spec([3]))
    model.several.get_concrete_function(Spec([2, 3]), scale=3.0)
    signatures = {"serving_default": model.assign, "loop": model.loop}
    tf.saved_model.save(model, path, signatures=signatures)


def of_jax(function: Callable[..., Any], shape: list[Any], **kwargs: Any) -> Any:
    def write(path: Path) -> None:
        model = tf.Module()
        converted = jax2tf.convert(function, **kwargs)
        model.f = tf.function(converted, autograph=False, input_signature=[Spec(shape)])
        tf.saved_model.save(model, path)

    return write


def jax_params(path: Path) -> None:
    weights = {"a": {"k": np.arange(6.0, dtype=np.float32).reshape(2, 3)}, "b": np.ones(3, "f")}
    model = tf.Module()
    model.p = tf.nest.map_structure(tf.Variable, weights)
    converted = jax2tf.convert(
        lambda p, x: jax.nn.softmax(x @ p["a"]["k"] + p["b"]), polymorphic_shapes=[None, "b, _"]
    )
    model.f = tf.function(
        lambda x: converted(model.p, x), autograph=False, input_signature=[Spec([None, 2])]
    )
    tf.saved_model.save(model, path)


def haiku_params(path: Path) -> None:
    """Haiku's parameters, whose keys are paths."""
    model = tf.Module()
    model.p = {"block/~/linear": {"w": tf.Variable(np.ones((2, 3), np.float32))}}
    model.p["out"] = {"b": tf.Variable(np.ones(3, np.float32))}
    converted = jax2tf.convert(lambda p, x: x @ p["block/~/linear"]["w"] + p["out"]["b"])
    model.f = tf.function(
        lambda x: converted(model.p, x), autograph=False, input_signature=[Spec([1, 2])]
    )
    tf.saved_model.save(model, path)


def tables(path: Path) -> None:
    words = path.parent / "words.txt"
    words.write_text("alpha\t3\nbeta\t4\n")
    lookup, whole = tf.lookup, tf.lookup.TextFileIndex
    model = tf.Module()
    numbers = tf.constant([1, 5], tf.int64), tf.constant([10.0, 20.0])
    model.numbers = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(*numbers), -1.0)
    model.changed = lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    model.changed.insert(tf.constant([3, 5], tf.int64), tf.constant([30, 40], tf.int64))
    columns = lookup.TextFileInitializer(os.fspath(words), tf.string, 0, tf.int64, 1)
    model.columns = lookup.StaticHashTable(columns, -1)
    lines = (whole.WHOLE_LINE, tf.int64, whole.LINE_NUMBER)
    model.lines = lookup.StaticHashTable(
        lookup.TextFileInitializer(os.fspath(words), tf.string, *lines), -1
    )

    @tf.function(input_signature=[Spec([2], tf.int64)])
    def call(x: Any) -> Any:
        known = model.columns.lookup(tf.constant(["beta", "gamma"]))
        line = model.lines.lookup(tf.constant("beta\t4"))
        return model.numbers.lookup(x), model.changed.lookup(x), known, line

    model.call = call
    tf.saved_model.save(model, path)


def with_a_computation(path: Path) -> None:
    """An op that calls a function, as exports of older versions of JAX have it."""
    from tensorflow.compiler.tf2xla.python import xla

    add = tf.function(lambda a, b: a + b).get_concrete_function(Spec([]), Spec([]))

    def sums(x: Any) -> Any:
        window = {"window_dimensions": [2], "padding": [[1, 0]]}
        return xla.reduce_window(x, tf.constant(0.0), reducer=add, **window)

    model = tf.Module()
    model.f = tf.function(sums, autograph=False, input_signature=[Spec([4])])
    tf.saved_model.save(model, path)


def composite(path: Path) -> None:
    model = tf.Module()
    spec = [tf.RaggedTensorSpec([None, None]), tf.SparseTensorSpec([3, 4]), Spec([3])]
    model.f = tf.function(
        lambda ragged, sparse, x: (tf.sparse.to_dense(sparse), x * 2, ragged), input_signature=spec
    )
    tf.saved_model.save(model, path)


def first(path: Path, *, resource: bool, parts: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        split = v1.fixed_size_partitioner(2) if parts else None
        draw = v1.random_normal_initializer(seed=1)
        kwargs = {"use_resource": resource}
        a = v1.get_variable("a", [3, 4], initializer=draw, partitioner=split, **kwargs)
        b = v1.get_variable("b", [4], initializer=draw, trainable=False, **kwargs)
        y = tf.nn.relu(x @ tf.convert_to_tensor(a) + b, name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, os.fspath(path), {"x": x}, {"y": y, "twice": 2 * y})


def sparse_first(path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        sparse = v1.sparse_placeholder(tf.float32, [2, 3], "s")
        y = tf.sparse.to_dense(sparse) * 2.0
        v1.saved_model.simple_save(session, os.fspath(path), {"s": sparse}, {"y": y})


def two_graphs(path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [3], "x")
        y = x * v1.get_variable("v", initializer=[1.0, 2, 3])
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = v1.saved_model.Builder(os.fspath(path))
        kwargs = {"signature_def_map": {"serving_default": signature}}
        builder.add_meta_graph_and_variables(session, ["serve"], **kwargs)
        builder.add_meta_graph(["train"], **kwargs)
        builder.save()


def _keras(write: Callable[[Any, str], None], package: str = "keras") -> Callable[[Path], None]:
    def written(path: Path) -> None:
        keras = pytest.importorskip(package)
        layers = keras.layers
        inputs = keras.Input((8,))
        hidden = layers.BatchNormalization()(layers.Dense(16, activation="relu")(inputs))
        model = keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.5)(hidden)))
        model.layers[1].trainable = False
        model.compile("adam", "mse")
        model.fit(np.zeros((4, 8)), np.zeros((4, 3)), verbose=0)
        write(model, os.fspath(path))

    return written


MODELS: dict[str, Callable[[Path], None]] = {
    "nested": nested,
    "jax": of_jax(lambda x: jnp.tanh(x) @ jnp.ones((3, 2)), [2, 3]),
    "jax open": of_jax(
        lambda x: jax.nn.relu(x @ jnp.ones((3, 3))), [None, 3], polymorphic_shapes=["b, 3"]
    ),
    "jax custom_vjp": of_jax(lambda x: straight_through(x * 3).sum(), [4]),
    "jax without gradient": of_jax(lambda x: x * 2, [4], with_gradient=False),
    "jax parameters": jax_params,
    "haiku parameters": haiku_params,
    "tables": tables,
    "composite": composite,
    "computation": with_a_computation,
    "version 1": lambda path: first(path, resource=True, parts=False),
    "version 1 references": lambda path: first(path, resource=False, parts=False),
    "version 1 partitioned": lambda path: first(path, resource=True, parts=True),
    "version 1 sparse": sparse_first,
    "two graphs": two_graphs,
    "keras export": _keras(lambda model, path: model.export(path, verbose=0)),
    "keras saved": _keras(lambda model, path: tf.saved_model.save(model, path)),
    "keras 2": _keras(lambda model, path: model.save(path, save_format="tf"), "tf_keras"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")

    def model(name: str) -> Path:
        path = folder / name.replace(" ", "_")
        if not path.exists():
            MODELS[name](path)
        return path

    return model


def _called(entry: Any, values: list[Any]) -> list[np.ndarray]:
    key = [jax.random.key(0)] if entry.draws else []
    values_of_params = [p.value for p in entry.params]
    found = [np.asarray(v) for v in jax.jit(entry.fn)(values_of_params, *values, *key)]
    # TensorFlow's loader makes variables in another order than the original did.
    count = len(found) - len(entry.assigned)
    before = [values_of_params[i].tobytes() for i in entry.assigned]
    return found[:count] + [
        v for _, v in sorted(zip(before, found[count:], strict=True), key=lambda x: x[0])
    ]


def _values(entry: Any) -> list[Any]:
    draw = np.random.default_rng(0)
    values = []
    for spec in jax.tree.leaves((entry.args, dict(entry.kwargs))):
        shape = [2 if n is None else n for n in spec.shape]
        normal = spec.dtype.kind == "f"
        value = draw.standard_normal(shape) if normal else draw.integers(0, 2, shape)
        values.append(value.astype(spec.dtype))
    return values


# Functions that TensorFlow's loader calls, and that Keras 2 saves for itself.
_HIDDEN = ("call_and_return", "_default_save")


def _public(points: EntryPoints) -> list[str]:
    return [n for n in points if "." not in n.partition("(")[0] and not n.startswith(_HIDDEN)]


def _described(entry: Any) -> Any:
    """The description of an entry point, without the names of its variables."""
    params = sorted((p.value.shape, p.value.dtype.name, p.value.tobytes()) for p in entry.params)
    signature = (entry.args, dict(entry.kwargs), entry.arg_names, str(entry.out_tree))
    return signature, params, entry.draws, entry.checks, [p.op for p in entry.problems]


def _composite(name: str) -> bool:
    return name in ("composite", "version 1 sparse")


# As others, in a container of another kind.
_SIMILAR = ("keras saved", "keras 2", "version 1 references", "jax without gradient")


def _quick(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in _SIMILAR else []) for n in names]


@pytest.mark.parametrize("name", _quick(MODELS))
def test_functions_equal_those_that_tensorflow_loads(
    models: Callable[[str], Path], name: str
) -> None:
    """Names, arguments, results, variables and values, function by function."""
    path = models(name)
    points = entry_points(path, config=CONFIG, strict=False)
    compared = _public(points)
    assert compared
    for function in compared:
        ours = points[function]
        theirs, _ = load_function(path, function)
        candidates = [theirs]
        if hasattr(theirs, "concrete_functions"):
            candidates = list(theirs.concrete_functions)
        owner = None if candidates == [theirs] else theirs
        read = [entry_point(c, config=CONFIG, owner=owner, strict=False) for c in candidates]
        # Two traces may take the same arguments; ours is one of them.
        wants = [e for e in read if _described(e) == _described(ours)]
        assert wants, (function, _described(ours), [_described(e) for e in read])
        if ours.problems or _composite(name):
            continue
        values = _values(ours)
        results = [_called(e, values) for e in (ours, *wants)]
        assert any(
            len(results[0]) == len(want)
            and all(np.array_equal(a, b) for a, b in zip(results[0], want, strict=True))
            for want in results[1:]
        )


@pytest.mark.parametrize("name", _quick(n for n in MODELS if not _composite(n)))
def test_a_model_computes_the_values_of_tensorflow(
    models: Callable[[str], Path], name: str
) -> None:
    """Values and gradients at random arguments, variables and their flags."""
    assert [d for d in differences(models(name)) if ": refused: " not in d] == []


@pytest.mark.parametrize("name", ["jax parameters", "keras export"])
def test_converting_compiles_nothing(
    models: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """XLA's compiler takes much memory; only gradients of the container may be compiled."""
    code = f"""
import jax, invert
events = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
invert.save(invert.load({os.fspath(models(name))!r}), {os.fspath(tmp_path / "saved")!r})
print([e for e in events if "backend_compile" in e])
jax.numpy.sin(1.0)
print(any("backend_compile" in e for e in events))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["[]", "True"], done.stderr


def test_another_thread_may_be_importing_tensorflow(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text("import time\ntime.sleep(300)\n")
    code = (
        f"import sys, threading\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import jax.numpy as jnp, invert\n"
        "threading.Thread(target=lambda: __import__('tensorflow'), daemon=True).start()\n"
        "while 'tensorflow' not in sys.modules: pass\n"
        f"module = invert.load({str(models('nested'))!r}, signature='serving_default')\n"
        "print(hasattr(sys.modules['tensorflow'], 'TypeSpec'), len(module.params))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "False 1\n", done.stderr


def test_dense_tables_are_read_without_their_unused_buckets(tmp_path: Path) -> None:
    model = tf.Module()
    table = tf.lookup.experimental.DenseHashTable
    model.one = table(tf.int64, tf.float32, -1.0, -1, -2, initial_num_buckets=8)
    model.one.insert(tf.constant([2, 5, 7], tf.int64), tf.constant([0.5, 0.25, 0.125]))
    model.one.erase(tf.constant([7], tf.int64))
    model.pairs = table(tf.int64, tf.float32, [0.0, 1.0], -1, -2)
    model.pairs.insert(tf.constant([0, 5], tf.int64), tf.constant([[1.0, 2.0], [3.0, 4.0]]))

    @tf.function(input_signature=[Spec([None], tf.int64)])
    def call(x: Any) -> Any:
        return model.one.lookup(x), model.pairs.lookup(x), model.one.size()

    model.call = call
    tf.saved_model.save(model, tmp_path / "model")
    x = np.array([5, 2, 7, 0, 9])
    found = invert.load(tmp_path / "model", config=CONFIG)(x)
    for one, other in zip(found, call(x), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(invert.UnsupportedOpError, match="all buckets of a table"):
        invert.convert(call)(x)


def test_traces_that_differ_in_keywords_are_found_in_tensorflow(tmp_path: Path) -> None:
    model = tf.Module()

    @tf.function
    def call(x: Any, scale: float = 2.0, *, mode: str = "mul", flag: bool = False) -> Any:
        return (x if flag else x + 1) * scale if mode == "mul" else x + scale

    call.get_concrete_function(Spec([3]))
    call.get_concrete_function(Spec([3]), 3.0, mode="add", flag=True)
    model.call = call
    tf.saved_model.save(model, tmp_path / "model")
    assert list(differences(tmp_path / "model")) == []


@pytest.mark.parametrize("name", ["nested", "jax custom_vjp"])
def test_gradients_equal_tensorflows(models: Callable[[str], Path], name: str) -> None:
    path = models(name)
    function = "__call__" if name == "nested" else "f"
    module = invert.load(path, signature=function)
    theirs, owner = load_function(path, function)
    assert owner is not None
    shape = {"nested": (3,), "jax custom_vjp": (4,)}[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def total(y: Any) -> Any:
        first = y["y"] if isinstance(y, dict) else y
        return (first**2).sum() if hasattr(first, "sum") else tf.reduce_sum(first**2)

    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        want = tape.gradient(total(theirs(given)), given)
    got = jax.grad(lambda v: total(module(v)))(x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert not any("no gradient function" in g for g in module.report.gradients)


def test_names_and_flags_of_variables(models: Callable[[str], Path]) -> None:
    def flags(name: str, function: str) -> dict[str, bool]:
        entry = entry_points(models(name), config=CONFIG)[function]
        return {p.name: p.trainable for p in entry.params}

    assert flags("nested", "__call__") == {"vee": True, "deep.list.0": False}
    assert flags("jax parameters", "f") == {"p.a.k": True, "p.b": True}
    assert flags("haiku parameters", "f") == {
        "p/block/~/linear/w": True, "p/out/b": True,
    }  # fmt: skip
    assert flags("version 1 references", "serving_default") == {"a": True, "b": False}
    assert flags("version 1 partitioned", "serving_default") == {
        "a/part_0": True, "a/part_1": True, "b": False,
    }  # fmt: skip
    exported = flags("keras export", "serve")
    assert sorted(exported.values()) == [False] * 4 + [True] * 4


CHILD = """
import sys
sys.modules["tensorflow"] = None
import jax, numpy as np, invert
from pathlib import Path
place, out = Path(sys.argv[1]), Path(sys.argv[2])
for name in sys.argv[3:]:
    loaded = invert.load(place / name)
    print(name, type(loaded).__name__, repr(loaded)[:20])
module = invert.load(place / "jax_parameters")
x = np.ones((2, 2), np.float32)
want = module(x)
print(module.report, module.source[:0])
jax.grad(lambda v: module(v)[0, 0])(x)
invert.save(module, out / "package")
np.testing.assert_array_equal(invert.load(out / "package")(x), want)
print("DONE")
"""


def test_nothing_needs_tensorflow(models: Callable[[str], Path], tmp_path: Path) -> None:
    names = [n for n in MODELS if n != "keras 2"]
    paths = [models(n) for n in names]
    env = os.environ | {"PYTHONPATH": str(Path(invert.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, paths[0].parent, tmp_path, *(p.name for p in paths)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DONE" in done.stdout


def test_malformed_lines_of_a_table_are_refused(
    models: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(models("tables"), tmp_path / "model")
    (tmp_path / "model/assets/words.txt").write_text("alpha\t3\nalpha\t4\n")
    with pytest.raises(invert.MalformedModelError, match="two values for the key b'alpha'"):
        invert.load(tmp_path / "model")
    (tmp_path / "model/assets/words.txt").write_text("alpha\tx\n")
    with pytest.raises(invert.MalformedModelError, match="a line is not of type int64"):
        invert.load(tmp_path / "model")


def test_no_path_leads_out_of_the_model(models: Callable[[str], Path], tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("beta\t99\n")
    for number, place in enumerate(("assets/words.txt", "variables/variables.index", "assets")):
        copy = tmp_path / f"model{number}"
        shutil.copytree(models("tables"), copy)
        moved = tmp_path / f"outside{number}"
        shutil.move(copy / place, moved)
        (copy / place).symlink_to(moved)
        with pytest.raises(invert.UnsupportedOpError, match="leads outside the model"):
            invert.load(copy)


def _outcomes(
    path: Path, work: Path, seed: int, count: int, run: Callable[[EntryPoints], Any]
) -> collections.Counter[str]:
    """How often a damaged copy of a model was read, and with the same values or others."""
    draw = random.Random(seed)
    want = run(entry_points(path, config=CONFIG))
    found: collections.Counter[str] = collections.Counter()
    for file in itertools.islice(damaged_copies(path, work, draw), count):
        in_graph = file.name == "saved_model.pb"
        try:
            got = run(entry_points(work, config=CONFIG))
        except invert.InvertError as error:
            found[type(error).__name__] += 1
        else:
            same = jax.tree.structure(got) == jax.tree.structure(want) and all(
                a.shape == b.shape and np.array_equal(a, b)
                for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
            )
            # Another graph is another program; values have checksums, and so never change.
            found["same" if same else "another graph" if in_graph else "WRONG"] += 1
    return found


def _weights_and_shapes(points: EntryPoints) -> Any:
    return [[p.value for p in points[name].params] for name in sorted(_public(points))]


@pytest.mark.parametrize("name", ["nested", "jax parameters", "version 1"])
def test_damaged_files(models: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    found = _outcomes(models(name), tmp_path / "copy", 0, 100, _weights_and_shapes)
    assert found.total() == 100 and not found["WRONG"] and found["MalformedModelError"] > 20, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nested", "jax parameters", "tables", "version 1 partitioned"])
def test_many_damaged_files(models: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    found = _outcomes(models(name), tmp_path / "copy", 1, 3000, _weights_and_shapes)
    assert found.total() == 3000 and not found["WRONG"], found


def test_tags_may_be_one_text(tmp_path: Path) -> None:
    model = tf.Module()
    model.f = tf.function(lambda x: x + 1, input_signature=[Spec([2])])
    tf.saved_model.save(model, str(tmp_path))
    assert invert.load(tmp_path, tags="serve")(np.zeros(2, np.float32)).shape == (2,)


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "manifest.ocdbt", "7/default/_METADATA"])
def test_a_checkpoint_of_orbax_is_no_model(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(invert.MalformedModelError, match="a checkpoint of orbax") as error:
        invert.load(tmp_path)
    assert "from_exported" in error.value.remedy
    # The arrays may lie beside a model.
    model = tf.Module()
    model.f = tf.function(lambda x: x + 1, input_signature=[Spec([2])])
    tf.saved_model.save(model, str(tmp_path))
    np.testing.assert_array_equal(invert.load(tmp_path)(np.zeros(2, np.float32)), [1, 1])
