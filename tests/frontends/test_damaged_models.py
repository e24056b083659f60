"""Randomly damaged models: an error of this package, or a module with the model's values."""

from __future__ import annotations

import collections
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2, struct_pb2

import invert
from tests.damaged_files import damaged_copies

keras = pytest.importorskip("keras")


def build(folder: Path) -> list[Path]:
    """A SavedModel with a table filled from an asset, and a `.keras` archive."""
    words = folder / "words.txt"
    words.write_text("first\nsecond\n")
    root = tf.Module()
    root.parts = {"v": tf.Variable([1.0, 2, 3]), "list": [tf.Variable(2.0)]}
    from_file = tf.lookup.TextFileInitializer(
        os.fspath(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER,
    )  # fmt: skip
    root.table = tf.lookup.StaticHashTable(from_file, -1)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def call(x: tf.Tensor) -> tf.Tensor:
        place = tf.cast(root.table.lookup(tf.constant("second")), tf.float32)
        return tf.nn.softmax(x * root.parts["v"] + root.parts["list"][0] * place)

    root.call = call
    tf.saved_model.save(root, folder / "model")
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)]
    keras.Sequential([keras.Input((4,), batch_size=2), *layers]).save(folder / "model.keras")
    return [folder / "model", folder / "model.keras"]


def outcomes(models: list[Path], work: Path, seed: int, count: int) -> collections.Counter[str]:
    """How often a damaged copy was loaded, was refused, or did anything else."""
    draw = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    copies = [work / model.name for model in models]
    damaged = [damaged_copies(*pair, draw) for pair in zip(models, copies, strict=True)]
    for i in range(count):
        copy = copies[i % len(models)]
        next(damaged[i % len(models)])
        try:
            result = compared(invert.load(copy), copy)
        except invert.InvertError as error:
            found[type(error).__name__] += 1
        except BaseException as error:  # what is looked for  # noqa: BLE001
            found[f"foreign: {type(error).__name__}: {str(error)[:300]}"] += 1
        else:
            found[result] += 1
    return found


def compared(module: invert.Module, copy: Path) -> str:
    """`"equal"`, `"WRONG"`, or `"not run"` if TensorFlow does not run the damaged model."""
    x = np.random.default_rng(0).standard_normal((2, 3 + (copy.suffix == ".keras")), np.float32)
    try:
        if copy.is_dir():
            root = tf.saved_model.load(copy)  # which holds the variables
            want = root.call(tf.constant(x))
        else:
            want = keras.saving.load_model(copy)(x)
    except Exception as error:  # noqa: BLE001  what TensorFlow cannot run says nothing
        return f"not run: {copy.suffix} {type(error).__name__}"
    wants, have = jax.tree.leaves(want), jax.tree.leaves(module(x))
    same = len(wants) == len(have) and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in zip(wants, have, strict=True)
    )
    return "equal" if same else "WRONG"


def _fewer_results(objects: Any) -> None:
    for function in objects.concrete_functions.values():
        function.output_signature.Clear()
        function.output_signature.tuple_value.SetInParent()


def _other_types(objects: Any) -> None:
    for function in objects.concrete_functions.values():
        args, kwargs = function.canonicalized_input_signature.tuple_value.values
        named = kwargs.dict_value.fields.values()
        for spec in [*args.tuple_value.values, *named]:
            spec.tensor_spec_value.dtype = tf.int32.as_datatype_enum


def _more_captures(objects: Any) -> None:
    for function in objects.concrete_functions.values():
        function.bound_inputs.append(0)


def _more_captures_of_tables(objects: Any) -> None:
    for name, function in objects.concrete_functions.items():
        if "initializer" in name or "initialize" in name:
            function.bound_inputs.append(function.bound_inputs[0])


def _twins(objects: Any) -> None:
    objects.nodes[0].children.add(local_name="call", node_id=1)


def _of_text(objects: Any) -> None:
    for node in objects.nodes:
        if node.WhichOneof("kind") == "variable":
            node.variable.dtype = tf.string.as_datatype_enum


def _spec_with(**fields: Any) -> Callable[[Any], None]:
    """Replace parts of the list of parameters that a function has."""

    def change(objects: Any) -> None:
        for node in objects.nodes:
            if node.WhichOneof("kind") == "function":
                spec = node.function.function_spec
                for pair in spec.fullargspec.named_tuple_value.values:
                    if pair.key in fields:
                        pair.value.CopyFrom(fields[pair.key])
                if "signature" in fields:
                    spec.input_signature.CopyFrom(fields["signature"])

    return change


_PARAMETERS = (
    *("args", "varargs", "varkw", "defaults", "kwonlyargs", "kwonlydefaults"), "signature",
)  # fmt: skip
_FLOAT = struct_pb2.StructuredValue(float64_value=2.0)
_FLOATS = struct_pb2.StructuredValue(
    list_value=struct_pb2.ListValue(values=[_FLOAT, struct_pb2.StructuredValue()])
)
_FLOATS.list_value.values[1].list_value.SetInParent()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *((_spec_with(**{key: _FLOAT}), "has no list of its parameters") for key in _PARAMETERS),
        *((_spec_with(**{k: _FLOATS}), "no list of its par") for k in ("args", "kwonlyargs")),
        (_fewer_results, "call has 1 results, but its signature has 0"),
        (_other_types, "function call have other types:\n  - 'x' is float32, but int32 in its"),
        (_more_captures, "function call takes 0 tensors besides its captures, but its .* has 1"),
        (_more_captures_of_tables, r"function '.*initialize.*' takes 2 tensors, but captures 3"),
        (_twins, "object 0 of the SavedModel has two children 'call'"),
        (
            _of_text,
            r"variable 'Variable' is string\(3,\), but its value is float32\(3,\); "
            r"variable 'Variable' is string\(\), but its value is float32\(\)",
        ),
    ],
)
def test_files_that_contradict_themselves(
    tmp_path: Path, change: Callable[[Any], None], reason: str
) -> None:
    model, _ = build(tmp_path)
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((model / "saved_model.pb").read_bytes())
    change(proto.meta_graphs[0].object_graph_def)
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.load(model)


@pytest.mark.parametrize(
    ("lines", "reason"), [("", "has no lines"), ("first\n\nsecond\n", "line 2 is empty")]
)
def test_tables_that_tensorflow_refuses(tmp_path: Path, lines: str, reason: str) -> None:
    model, _ = build(tmp_path)
    (model / "assets" / "words.txt").write_text(lines)
    with pytest.raises(invert.MalformedModelError, match=reason):
        invert.load(model)(np.ones((2, 3), np.float32))
    with pytest.raises(tf.errors.OpError):
        tf.saved_model.load(model)


def test_a_gradient_of_a_value_that_the_graph_lacks(tmp_path: Path) -> None:
    root = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def call(x: tf.Tensor) -> tf.Tensor:
        factor = tf.exp(x)

        @tf.custom_gradient
        def double(y: tf.Tensor) -> Any:
            return y * 2.0, lambda dy: dy * factor

        return double(x)

    root.call = call
    tf.saved_model.save(root, tmp_path)
    file = tmp_path / "saved_model.pb"
    assert file.read_bytes().count(b"\n\x05Exp:0") == 1
    file.write_bytes(file.read_bytes().replace(b"\n\x05Exp:0", b"\n\x05Ex_:0"))
    module = invert.load(tmp_path)
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(jax.grad(lambda x: module(x).sum())(x), [2, 2, 2])
    assert "uses a value of another graph" in str(module.report)


def _check(tmp_path: Path, seed: int, count: int) -> None:
    work = tmp_path / "work"
    work.mkdir()
    found = outcomes(build(tmp_path), work, seed, count)
    assert not [k for k in found if k.startswith(("foreign", "WRONG"))], found
    assert found["equal"]
    assert found.total() == count


def test_a_few(tmp_path: Path) -> None:
    _check(tmp_path, seed=0, count=16)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_many(tmp_path: Path, seed: int) -> None:
    _check(tmp_path, seed=seed, count=50)


def test_a_gradient_of_a_type_that_no_array_has(tmp_path: Path) -> None:
    root = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def call(x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def double(y: tf.Tensor) -> Any:
            return (y * 2.0, tf.range(3)), lambda dy, _: dy

        return double(x)[0]

    root.call = call
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(root, tmp_path, options=options)
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((tmp_path / "saved_model.pb").read_bytes())
    objects = proto.meta_graphs[0].object_graph_def
    for function in objects.concrete_functions.values():
        args = function.canonicalized_input_signature.tuple_value.values[0].tuple_value.values
        for arg in (a.tensor_spec_value for a in args):
            if arg.dtype == tf.int32.as_datatype_enum:
                del arg.shape.dim[:]
                for size in (0, 1 << 62, 1 << 62):
                    arg.shape.dim.add().size = size
    (tmp_path / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(invert.MalformedModelError, match="is too large for any array"):
        invert.load(tmp_path)


if __name__ == "__main__":
    place = Path(sys.argv[3])
    (place / "work").mkdir(parents=True)
    print(outcomes(build(place), place / "work", int(sys.argv[1]), int(sys.argv[2])))
