"""Hostile SavedModels: nothing in them runs during loading, and no other file is read.

Each case edits the bytes of one small model. Where a case says so, TensorFlow's own loader is shown
to fall for it, so the case tests what it claims to test. None of them runs when TensorFlow is asked
for a comparison.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

import invert
from invert.frontends.run_saved_model import load_function

SECRET = b"correct horse battery staple"
STRING, INT32, INT64, FLOAT = (
    types_pb2.DT_STRING, types_pb2.DT_INT32, types_pb2.DT_INT64, types_pb2.DT_FLOAT,
)  # fmt: skip
LINES = (tf.lookup.TextFileIndex.LINE_NUMBER, tf.lookup.TextFileIndex.WHOLE_LINE)
# The key under which TensorFlow stores functions by which an object saves itself.
TENSORS = "_serialize_to_tensors"
PREFIX = "variables/variables"


class Place(NamedTuple):
    """Where models lie, which file a hostile one would write, and which it would read."""

    folder: Path
    mark: Path
    secret: Path


def _module(place: Place) -> tf.Module:
    def write() -> tf.Tensor:
        tf.io.write_file(os.fspath(place.mark), "acted")
        return tf.constant(1.0)

    def save(key: tf.Tensor) -> list[dict[str, tf.Tensor]]:
        tf.io.write_file(os.fspath(place.mark), "acted")
        value = tf.constant([1.0, 2, 3])
        return [{"name": tf.identity("V"), "slice_spec": tf.constant(""), "tensor": value}]

    def restore(value: tf.Tensor) -> tf.Tensor:
        tf.io.write_file(os.fspath(place.mark), "acted")
        return tf.identity(value)

    def pick(condition: tf.Tensor) -> tf.Tensor:
        return tf.cond(condition, write, lambda: tf.constant(0.0))

    def call(x: tf.Tensor) -> Any:
        line = tf.io.decode_raw(root.lines.lookup(tf.constant([0], tf.int64)), tf.uint8)
        return root.numbers.lookup(x), line, root.v * 2

    text = place.folder / "words.txt"
    text.write_text("first\nsecond\n")
    root = tf.Module()
    root.v = tf.Variable([1.0, 2, 3])
    root.inner = tf.Module()
    root.inner.w = tf.Variable([4.0])
    words = tf.lookup.TextFileInitializer(os.fspath(text), tf.int64, LINES[0], tf.string, LINES[1])
    root.lines = tf.lookup.StaticHashTable(words, "")
    keys = tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64)
    root.numbers = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*keys), -1)
    spec = [tf.TensorSpec([2], tf.int64)]
    root.call = tf.function(call, input_signature=spec)
    root.write = tf.function(write, input_signature=[])
    root.pick = tf.function(pick, input_signature=[tf.TensorSpec([], tf.bool)])
    root.save = tf.function(save, input_signature=[tf.TensorSpec([], tf.string)])
    root.restore = tf.function(restore, input_signature=[tf.TensorSpec([3])])
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("hostile")
    found = Place(folder, folder / "mark", folder / "secret.txt")
    found.secret.write_bytes(SECRET + b"\n")
    tf.saved_model.save(_module(found), folder / "model")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [3], "x")
        v = tf.compat.v1.get_variable("v", initializer=[1.0, 2, 3], use_resource=True)
        y = tf.identity(x + v, "y")
        session.run(tf.compat.v1.global_variables_initializer())
        signature = tf.compat.v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = tf.compat.v1.saved_model.Builder(os.fspath(folder / "model_1"))
        builder.add_meta_graph_and_variables(
            session, ["serve"], signature_def_map={"serving_default": signature}
        )
        builder.save()
    return found


class Model:
    """A copy of a model that is being edited."""

    def __init__(self, place: Place, path: Path, version: int):
        self.place, self.path = place, path
        shutil.copytree(place.folder / ("model" if version == 2 else "model_1"), path)
        self.proto = saved_model_pb2.SavedModel.FromString(self.file.read_bytes())
        self.meta = self.proto.meta_graphs[0]
        self.graph = self.meta.graph_def
        self.objects = self.meta.object_graph_def.nodes

    @property
    def file(self) -> Path:
        return self.path / "saved_model.pb"

    def write(self) -> None:
        if not self.file.is_symlink():
            self.file.write_bytes(self.proto.SerializeToString())

    def child(self, name: str, of: int = 0) -> int:
        return next(c.node_id for c in self.objects[of].children if c.local_name == name)

    def rename(self, function: str, name: str, of: int = 0) -> None:
        """Give an object one of the functions of the root under another name."""
        self.objects[of].children.add(node_id=self.child(function), local_name=name)

    def redirect(self, hook: str, function: str, table: str = "numbers") -> None:
        """Make a hook of a table call another function."""
        for child in self.objects[self.child(table)].children:
            if child.local_name == hook:
                child.node_id = self.child(function)

    def function(self, name: str) -> Any:
        """The `FunctionDef` behind a function of the root."""
        (concrete,) = self.objects[self.child(name)].function.concrete_functions
        return next(f for f in self.graph.library.function if f.signature.name == concrete)

    def hook(self, name: str, table: str = "numbers") -> Any:
        """The `FunctionDef` behind a hook of a table."""
        number = self.child(name, self.child(table))
        (concrete,) = self.objects[number].function.concrete_functions
        return next(f for f in self.graph.library.function if f.signature.name == concrete)

    def inject(self, *nodes: Any) -> None:
        """Add nodes to the initializer of a table, which waits for the last one."""
        _add(self.hook("_initialize"), nodes)

    def inject_1(self, *nodes: Any) -> str:
        self.graph.node.extend(_of_graph(n) for n in nodes)
        return nodes[-1].name

    def collect(self, key: str, name: str) -> None:
        self.meta.collection_def[key].node_list.value.append(name)


def _add(function: Any, nodes: tuple[Any, ...]) -> None:
    function.node_def.extend(nodes)
    last = nodes[-1].name
    function.control_ret[last] = last
    function.signature.control_output.append(last)
    for node in function.node_def:
        if node.op == "NoOp" or node.op.startswith("LookupTableImport"):
            node.input.append("^" + last)


def _of_graph(node: Any) -> Any:
    """A node of a function as a node of a graph."""
    copy = node_def_pb2.NodeDef.FromString(node.SerializeToString())
    for i, text in enumerate(copy.input):
        name, *port = text.split(":")
        copy.input[i] = f"{name}:{port[-1]}" if port else name
    return copy


def node(name: str, op: str, *inputs: str, **attributes: Any) -> Any:
    made = node_def_pb2.NodeDef(name=name, op=op, input=inputs)
    for key, value in attributes.items():
        attribute = made.attr[key]
        if isinstance(value, bool):
            attribute.b = value
        elif isinstance(value, str):
            attribute.s = value.encode()
        elif isinstance(value, bytes):
            attribute.func.name = value.decode()
        elif isinstance(value, list) and value and isinstance(value[0], str):
            attribute.list.s.extend(v.encode() for v in value)
        elif isinstance(value, list):
            attribute.list.type.extend(value)
        elif key in ("T", "dtype", "Tin", "Tout", "key_dtype", "value_dtype"):
            attribute.type = value
        else:
            attribute.i = value
    return made


def const(name: str, value: Any, dtype: int = STRING) -> Any:
    made = node(name, "Const", dtype=dtype)
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    return made


def writes(m: Model) -> tuple[Any, ...]:
    return (
        const("e_path", os.fspath(m.place.mark)),
        const("e_text", "acted"),
        node("e_write", "WriteFile", "e_path:output:0", "e_text:output:0"),
    )


def calls(op: str, *inputs: Any, **attributes: Any) -> Callable[[Model], None]:
    """An op in the initializer calls the function that writes."""

    def edit(m: Model) -> None:
        name = m.function("write").signature.name.encode()
        given = {k: name if v == b"write" else v for k, v in attributes.items()}
        names = [f"{i.name}:output:0" for i in inputs]
        empty: dict[str, Any] = {"Tin": node("", ""), "Tout": node("", "")}
        made = node("e_call", op, *names, **given)
        for key in empty:
            made.attr[key].list.SetInParent()
        if "Tout" not in attributes:
            made.attr["Tout"].list.type.append(FLOAT)
        m.inject(*inputs, made)

    return edit


def injects(*make: Callable[[Model], Any]) -> Callable[[Model], None]:
    return lambda m: m.inject(*(f(m) for f in make))


def mark(m: Model) -> Any:
    return const("e_path", os.fspath(m.place.mark))


def secret(m: Model) -> Any:
    return const("e_path", os.fspath(m.place.secret))


def saves(kind: str, *, tensors: bool = False) -> Callable[[Model], None]:
    def edit(m: Model) -> None:
        saver = m.objects[0].saveable_objects[TENSORS if tensors else "V"]
        saver.save_function = m.child("write" if tensors else "save")
        saver.restore_function = m.child("restore")
        if kind == "object":
            saver.save_function = saver.restore_function = m.child("inner")
            m.rename("save", "__call__", m.child("inner"))

    return edit


def named(name: str, of: str = "") -> Callable[[Model], None]:
    return lambda m: m.rename("write", name, m.child(of) if of else 0)


def dependency(m: Model) -> None:
    table = m.objects[m.child("numbers")]
    rest = [c for c in table.children if c.local_name != "_create_resource"]
    del table.children[:]
    table.children.extend(rest)
    table.dependencies.add(node_id=m.child("write"), local_name="_create_resource")


def creator_object(m: Model) -> None:
    m.rename("write", "__call__", m.child("inner"))
    m.redirect("_create_resource", "inner")


def nested(m: Model) -> None:
    """The initializer calls a function that calls one that writes, by a control edge only."""
    outer = m.graph.library.function.add()
    outer.CopyFrom(m.function("pick"))
    outer.signature.name = "outer"
    m.inject(
        const("e_true", True, types_pb2.DT_BOOL),
        node("e_call", "StatefulPartitionedCall", "e_true:output:0", f=b"outer",
             Tin=[types_pb2.DT_BOOL], Tout=[FLOAT]),
    )  # fmt: skip


def function_as_op(m: Model) -> None:
    m.inject(node("e_call", m.function("write").signature.name))


def same_interface(m: Model) -> None:
    """A harmless function is called; a function that writes files claims the same interface."""
    evil = m.function("write")
    good = m.graph.library.function.add()
    good.CopyFrom(evil)
    good.signature.name = "good"
    del good.node_def[:]
    good.node_def.append(const("one", 1.0, FLOAT))
    good.ret.clear()
    good.ret[good.signature.output_arg[0].name] = "one:output:0"
    good.control_ret.clear()
    del good.signature.control_output[:]
    for function in (evil, good):
        function.attr["api_implements"].s = b"an interface"
    m.inject(node("e_call", "StatefulPartitionedCall", f=b"good", Tout=[FLOAT]))


def calls_itself(m: Model) -> None:
    loop = m.graph.library.function.add()
    loop.signature.name = "loop"
    call = node("e", "StatefulPartitionedCall", f=b"loop")
    call.attr["Tin"].list.SetInParent()
    call.attr["Tout"].list.SetInParent()
    loop.node_def.append(call)
    top = node("e_call", "StatefulPartitionedCall", f=b"loop")
    top.attr["Tin"].list.SetInParent()
    top.attr["Tout"].list.SetInParent()
    m.inject(top)


def doubles(m: Model) -> None:
    """Forty functions, each of which calls the next one twice."""
    for level in range(40):
        f = m.graph.library.function.add()
        f.signature.name = f"f{level}"
        for i in range(2):
            call = node(f"e{i}", "StatefulPartitionedCall", f=f"f{level + 1}".encode())
            call.attr["Tin"].list.SetInParent()
            call.attr["Tout"].list.SetInParent()
            f.node_def.append(call)
    m.graph.library.function.add().signature.name = "f40"
    top = node("e_call", "StatefulPartitionedCall", f=b"f0")
    top.attr["Tin"].list.SetInParent()
    top.attr["Tout"].list.SetInParent()
    m.inject(top)


def asset(path: Callable[[Place], str]) -> Callable[[Model], None]:
    def edit(m: Model) -> None:
        m.meta.asset_file_def[0].filename = path(m.place)

    return edit


def linked(file: str, target: Callable[[Place], Path]) -> Callable[[Model], None]:
    """A file or folder of the model is a link to an unchanged copy elsewhere."""

    def edit(m: Model) -> None:
        place, elsewhere = m.path / file, target(m.place)
        if not elsewhere.exists():
            m.write()
            shutil.move(place, elsewhere)
        elif place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        place.symlink_to(elsewhere)

    return edit


def moved(m: Place) -> Path:
    return m.folder / f"moved_{len(list(m.folder.iterdir()))}"


def table_from(*path: Any) -> Callable[[Model], None]:
    """A table is filled with the lines of a file that the graph names."""

    def edit(m: Model) -> None:
        function = m.hook("_initialize", "lines")
        (fill,) = (n for n in function.node_def if n.op.startswith("InitializeTableFromText"))
        given = fill.input[1]
        for make in path:
            made = make(m, given) if make is joined else make(m)
            function.node_def.append(made)
        fill.input[1] = f"{function.node_def[-1].name}:output:0"

    return edit


def joined(m: Model, given: str) -> Any:
    function = m.hook("_initialize", "lines")
    function.node_def.append(const("e_rest", "/../../../secret.txt"))
    return node("e_join", "StringJoin", given, "e_rest:output:0", separator="", N=2)


def registered_class(m: Model) -> None:
    m.objects[m.child("inner")].registered_name = "Custom.Class"


def registered_saver(m: Model) -> None:
    prefix = os.fspath(m.path / PREFIX)
    reader = tf.train.load_checkpoint(prefix)
    names = list(reader.get_variable_to_shape_map())
    values = [tf.constant(reader.get_tensor(n)) for n in names]
    key = names.index("_CHECKPOINTABLE_OBJECT_GRAPH")
    graph = TrackableObjectGraph.FromString(values[key].numpy())
    saver = graph.nodes[0].registered_saver
    saver.name, saver.object_name = "tf.TPUEmbeddingCallback", "root"
    values[key] = tf.constant(graph.SerializeToString())
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )
    for file in (m.path / "variables").glob("*_temp*"):
        shutil.rmtree(file)


def two_graphs(m: Model) -> None:
    """With a second graph, TensorFlow treats a model of objects as one of version 1."""
    m.proto.meta_graphs.add().meta_info_def.tags.append("other")
    m.meta.ClearField("saver_def")
    m.collect("saved_model_main_op", m.inject_1(*writes(m)))


def restore_op(m: Model) -> None:
    name = m.meta.saver_def.restore_op_name
    m.inject_1(*writes(m))
    next(n for n in m.graph.node if n.name == name).input.append("^e_write")


def other_restore_op(m: Model) -> None:
    m.meta.saver_def.restore_op_name = m.inject_1(*writes(m))


def other_checkpoint(m: Model) -> None:
    m.inject_1(const("e_prefix", os.fspath(m.place.folder / "model" / PREFIX)))
    for n in m.graph.node:
        if n.op == "RestoreV2":
            n.input[0] = "e_prefix"


def init_signature(m: Model) -> None:
    m.meta.signature_def["__saved_model_init_op"].outputs["x"].name = m.inject_1(*writes(m))


def local_variable(m: Model) -> None:
    variable = VariableDef(variable_name="v:0", initializer_name=m.inject_1(*writes(m)))
    variable.snapshot_name, variable.is_resource = "v/Read/ReadVariableOp:0", True
    m.meta.collection_def["local_variables"].bytes_list.value.append(variable.SerializeToString())


def collected(key: str) -> Callable[[Model], None]:
    return lambda m: m.collect(key, m.inject_1(*writes(m)))


def asset_of_a_collection(m: Model) -> None:
    m.inject_1(const("e_asset", "words.txt"))
    file = meta_graph_pb2.AssetFileDef(filename="../../secret.txt")
    file.tensor_info.name = "e_asset:0"
    m.meta.collection_def["saved_model_assets"].any_list.value.add().Pack(file)


def other_output_of_an_asset(m: Model) -> None:
    """The asset is fed to the second output of a node; the first names the file."""
    m.inject_1(
        const("e_paths", [os.fspath(m.place.secret), "words.txt"]),
        node("e_split", "Unpack", "e_paths", num=2, T=STRING),
        node("e_table", "HashTableV2", shared_name="e", key_dtype=INT64, value_dtype=STRING),
        node("e_fill", "InitializeTableFromTextFileV2", "e_table", "e_split",
             key_index=-1, value_index=-2, vocab_size=-1, delimiter="\t"),
    )  # fmt: skip
    shutil.copytree(m.place.folder / "model" / "assets", m.path / "assets")
    m.meta.asset_file_def.add(filename="words.txt").tensor_info.name = "e_split:1"
    m.collect("saved_model_main_op", "e_fill")


def long_list(m: Model) -> None:
    inner = m.objects[m.child("inner")]
    inner.user_object.identifier = "trackable_list_wrapper"
    inner.user_object.version.producer = inner.user_object.version.min_consumer = 1
    inner.children[0].local_name = "99999999999"


def large_constant(m: Model) -> None:
    m.objects.add().constant.operation = "e_large"
    large = const("e_large", np.float32(0), FLOAT)
    large.attr["value"].tensor.tensor_shape.dim.add(size=10**13)
    m.graph.node.append(large)


class Case(NamedTuple):
    """A hostile model.

    `acts`: whether TensorFlow's own loader writes the file. `version`: of the model edited.
    """

    edit: Callable[[Model], None]
    acts: bool = False
    version: int = 2


CASES: dict[str, Case] = {
    # Hooks of objects.
    "initializer": Case(lambda m: m.redirect("_initialize", "write"), acts=True),
    "creator": Case(lambda m: m.redirect("_create_resource", "write"), acts=True),
    "creator, a dependency": Case(dependency, acts=True),
    "creator, an object": Case(creator_object),
    "destroyer": Case(lambda m: m.redirect("_destroy_resource", "write"), acts=True),
    "save function": Case(saves("legacy"), acts=True),
    "save function, an object": Case(saves("object"), acts=True),
    "save function, to tensors": Case(saves("function", tensors=True)),
    "hidden method: to tensors": Case(named("_serialize_to_tensors")),
    "hidden method: gather": Case(named("_gather_saveables_for_checkpoint", "inner"), acts=True),
    "hidden method: children": Case(named("_trackable_children")),
    "hidden method: lookup": Case(named("_lookup_dependency")),
    "hidden method: of a variable": Case(named("_restore_from_tensors", "v")),
    "hidden method: slots": Case(named("_create_or_restore_slot_variable")),
    "registered class": Case(registered_class),
    "registered saver": Case(registered_saver),
    "item of a list": Case(long_list),
    "large constant": Case(large_constant),
    # What the initializer of a table reaches.
    "WriteFile": Case(lambda m: m.inject(*writes(m)), acts=True),
    "nested calls": Case(nested, acts=True),
    "function as an op": Case(function_as_op),
    "same interface": Case(same_interface),
    "calls itself": Case(calls_itself),
    "calls that double": Case(doubles),
    "PrintV2": Case(
        injects(mark, lambda m: node(
            "e", "PrintV2", "e_path:output:0", output_stream=f"file://{m.place.mark}", end="")),
        acts=True,
    ),
    "PrintV2 with a function": Case(
        injects(mark, lambda m: node(
            "e", "PrintV2", "e_path:output:0", output_stream=f"file://{m.place.mark}", end="",
            _x=m.function("write").signature.name.encode())),
        acts=True,
    ),
    "SaveV2": Case(
        injects(mark, lambda m: const("e_n", ["a"]), lambda m: const("e_s", [""]),
                lambda m: const("e_t", 1.0, FLOAT),
                lambda m: node("e", "SaveV2", "e_path:output:0", "e_n:output:0", "e_s:output:0",
                               "e_t:output:0", dtypes=[FLOAT])),
        acts=True,
    ),
    "MergeV2Checkpoints": Case(
        injects(mark, lambda m: const("e_n", [os.fspath(m.path / PREFIX)]),
                lambda m: node("e", "MergeV2Checkpoints", "e_n:output:0", "e_path:output:0",
                               delete_old_dirs=True)),
    ),
    "summary writer": Case(
        injects(mark, lambda m: node("e_w", "SummaryWriter", shared_name="e", container=""),
                lambda m: const("e_q", 1, INT32),
                lambda m: node("e", "CreateSummaryFileWriter", "e_w:writer:0", "e_path:output:0",
                               "e_q:output:0", "e_q:output:0", "e_path:output:0")),
        acts=True,
    ),
    "text dataset": Case(
        injects(secret, lambda m: const("e_z", "", STRING), lambda m: const("e_b", 1, INT64),
                lambda m: node("e", "TextLineDataset", "e_path:output:0", "e_z:output:0",
                               "e_b:output:0")),
    ),
    "PyFunc": Case(
        injects(mark, lambda m: node("e", "PyFunc", "e_path:output:0", token="pyfunc_0",
                                     Tin=[STRING], Tout=[STRING])),
    ),
    "DebugIdentity": Case(
        injects(mark, lambda m: node("e", "DebugIdentity", "e_path:output:0", T=STRING,
                                     debug_urls=[f"file://{m.place.mark}"])),
    ),
    "While": Case(
        lambda m: m.inject(
            const("e_true", True, types_pb2.DT_BOOL),
            node("e", "While", "e_true:output:0", T=[types_pb2.DT_BOOL],
                 cond=m.function("pick").signature.name.encode(),
                 body=m.function("pick").signature.name.encode())),
    ),
    "RemoteCall": Case(
        lambda m: m.inject(
            const("e_to", "/cpu:0"),
            node("e", "RemoteCall", "e_to:output:0", f=m.function("write").signature.name.encode(),
                 Tout=[FLOAT])),
    ),
    # Files by other names than those of assets.
    "table from a constant path": Case(table_from(secret)),
    "table from a path beside an asset": Case(table_from(joined)),
    "asset with ..": Case(asset(lambda p: "../../secret.txt")),
    "absolute asset": Case(asset(lambda p: os.fspath(p.secret))),
    "asset with a scheme": Case(asset(lambda p: f"file://{p.secret}")),
    "asset without a name": Case(asset(lambda p: "")),
    "linked asset": Case(linked("assets/words.txt", lambda p: p.secret)),
    "linked assets": Case(linked("assets", moved)),
    "linked variables": Case(linked("variables", moved)),
    "linked values": Case(linked("variables/variables.data-00000-of-00001", moved)),
    "linked graph": Case(linked("saved_model.pb", moved)),
    # Version 1.
    "restore op": Case(restore_op, acts=True, version=1),
    "other restore op": Case(other_restore_op, acts=True, version=1),
    "other checkpoint": Case(other_checkpoint, version=1),
    "main op": Case(collected("saved_model_main_op"), acts=True, version=1),
    "legacy init op": Case(collected("legacy_init_op"), acts=True, version=1),
    "init signature": Case(init_signature, version=1),
    "initializers of tables": Case(collected("table_initializer"), acts=True, version=1),
    "local variable": Case(local_variable, version=1),
    "two graphs": Case(two_graphs),
    "asset of a collection": Case(asset_of_a_collection, version=1),
    "other output of an asset": Case(other_output_of_an_asset, version=1),
}  # fmt: skip


@pytest.fixture
def model(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    case = CASES[request.param]
    made = Model(place, tmp_path / "model", case.version)
    case.edit(made)
    made.write()
    _erase(place.mark)
    yield made
    _erase(place.mark)


def _erase(mark: Path) -> None:
    for found in mark.parent.glob("mark*"):
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def _written(place: Place) -> list[Path]:
    gc.collect()
    return list(place.folder.glob("mark*"))


@pytest.mark.parametrize("model", CASES, indirect=True)
@pytest.mark.drawn(8)
def test_nothing_runs(model: Model) -> None:
    before = sorted(model.place.folder.rglob("*"))
    try:
        module = invert.load(model.path, tags=["serve"])
        said = repr(module)
        if hasattr(module, "call"):
            _, line, doubled = module.call(np.array([0, 1]))
            assert bytes(line[0].tolist()) == b"first" and doubled.tolist() == [2, 4, 6]
    except invert.InvertError as error:
        said = str(error)
    assert SECRET.decode() not in said
    with pytest.raises(invert.UnsupportedOpError) as error:
        load_function(model.path, "call")
    assert _written(model.place) == []
    assert sorted(model.place.folder.rglob("*")) == before
    assert error.value.problems and all(p.location and p.remedy for p in error.value.problems)
    assert SECRET.decode() not in str(error.value)


@pytest.mark.parametrize("model", [n for n, c in CASES.items() if c.acts], indirect=True)
@pytest.mark.drawn(6)
def test_tensorflow_would_run_it(model: Model) -> None:
    """Guards the cases: fails once TensorFlow's loader no longer falls for one."""
    try:
        loaded = tf.saved_model.load(os.fspath(model.path), tags=["serve"])
    except Exception:  # what is run does not fit, but was run  # noqa: BLE001
        loaded = None
    del loaded
    assert _written(model.place)


def test_the_models_themselves_are_loaded(place: Place) -> None:
    _erase(place.mark)
    module = invert.load(place.folder / "model", signature="call")
    numbers, line, doubled = module(np.array([1, 7]))
    assert numbers.tolist() == [6, -1] and doubled.tolist() == [2, 4, 6]
    assert bytes(line[0].tolist()) == b"first"
    other = invert.load(place.folder / "model_1")
    assert np.array_equal(other(x=np.zeros(3, np.float32))["y"], [1, 2, 3])
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.WriteFile"):
        invert.load(place.folder / "model", signature="write")
    assert _written(place) == []


def test_models_of_a_cache_are_linked(place: Place, tmp_path: Path) -> None:
    """Hugging Face keeps files in `blobs` and links to them in `snapshots/<revision>`."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0f3c" / "model"
    shutil.copytree(place.folder / "model", snapshot)
    blobs.mkdir()
    for i, file in enumerate(p for p in snapshot.rglob("*") if p.is_file()):
        shutil.move(file, blobs / str(i))
        file.symlink_to(blobs / str(i))
    assert invert.load(snapshot, signature="call")(np.array([0, 1]))[0].tolist() == [5, 6]
    shutil.move(blobs, tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(invert.InvertError, match="leads outside the model"):
        invert.load(snapshot, signature="call")


FUNCTIONS: dict[str, Callable[[str, str, Any], Any]] = {
    "ReadFile": lambda mark, secret, x: tf.io.decode_raw(tf.io.read_file(secret), tf.uint8),
    "shape": lambda mark, secret, x: tf.reshape(
        x, tf.cast(tf.io.decode_raw(tf.strings.substr(tf.io.read_file(secret), 0, 1), tf.uint8) % 1
                   + 3, tf.int32)),
    "MatchingFiles": lambda mark, secret, x: x + tf.cast(
        tf.size(tf.io.matching_files(secret + "*")), tf.float32),
    "WriteFile": lambda mark, secret, x: _after(tf.io.write_file(mark, ""), x),
    "PyFunc": lambda mark, secret, x: tf.numpy_function(lambda v: v, [x], tf.float32),
    "PyFuncStateless": lambda mark, secret, x: tf.numpy_function(
        lambda: Path(mark).write_text("acted"), [], tf.int64, stateful=False),
    "TextLineDataset": lambda mark, secret, x: tf.io.decode_raw(
        tf.data.TextLineDataset(secret).reduce("", lambda a, b: a + b), tf.uint8),
    "ImmutableConst": lambda mark, secret, x: tf.raw_ops.ImmutableConst(
        dtype=tf.uint8, shape=[4], memory_region_name=secret),
    "RestoreV2": lambda mark, secret, x: tf.raw_ops.RestoreV2(
        prefix=secret, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32])[0],
    "GenerateVocabRemapping": lambda mark, secret, x: tf.raw_ops.GenerateVocabRemapping(
        new_vocab_file=secret, old_vocab_file=secret, new_vocab_offset=0, num_new_vocab=1)[0],
    "DecodeProtoV2": lambda mark, secret, x: tf.raw_ops.DecodeProtoV2(
        bytes=[""], message_type="a", field_names=[], output_types=[],
        descriptor_source=secret).sizes,
}  # fmt: skip


def _after(op: Any, x: Any) -> Any:
    with tf.control_dependencies([op]):
        return tf.identity(x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.drawn(4)
def test_no_op_of_a_function_runs(place: Place, tmp_path: Path, name: str) -> None:
    """Neither during shape inference nor during constant folding."""
    _erase(place.mark)
    root = tf.Module()
    args = os.fspath(place.mark), os.fspath(place.secret)
    spec = [tf.TensorSpec([3], tf.float32)]
    root.f = tf.function(lambda x: FUNCTIONS[name](*args, x), input_signature=spec)
    tf.saved_model.save(root, tmp_path / "model")
    _erase(place.mark)
    with pytest.raises(invert.UnsupportedOpError) as error:
        invert.load(tmp_path / "model")
    assert _written(place) == []
    assert any(p.location for p in error.value.problems)


def test_shapes_do_not_reveal_file_contents(tmp_path: Path) -> None:
    """TensorFlow evaluates constants that determine shapes while it builds a graph."""
    file = tmp_path / "file"
    file.write_bytes(b"\x01")
    root = tf.Module()
    root.f = tf.function(
        lambda x: tf.reshape(x, tf.cast(tf.io.decode_raw(
            tf.io.read_file(os.fspath(file)), tf.uint8), tf.int32)),
        input_signature=[tf.TensorSpec([1])],
    )  # fmt: skip
    tf.saved_model.save(root, tmp_path / "model")
    proto = saved_model_pb2.SavedModel.FromString((tmp_path / "model/saved_model.pb").read_bytes())
    for function in proto.meta_graphs[0].graph_def.library.function:
        for n in function.node_def:
            n.attr.pop("_output_shapes", None)
    (tmp_path / "model/saved_model.pb").write_bytes(proto.SerializeToString())
    file.write_bytes(b"\x01\x01")

    def shape(loaded: Any) -> Any:
        (concrete,) = loaded.f.concrete_functions
        return concrete.graph.outputs[0].shape

    assert shape(tf.saved_model.load(os.fspath(tmp_path / "model"))) == (1, 1)
    from invert.frontends.saved_model import entry_points

    points = entry_points(tmp_path / "model", config=invert.Config())
    assert shape(load_function(tmp_path / "model", "f").owner).rank is None
    with pytest.raises(invert.UnsupportedOpError, match=r"tf\.ReadFile"):
        points["f"]
