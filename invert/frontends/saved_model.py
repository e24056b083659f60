"""Reads SavedModel directories without TensorFlow, and without running any of the model."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import jax

from invert._config import Config
from invert._entry import EntryPoint, Param, Trace, unique
from invert._errors import (
    UNREADABLE,
    InvertError,
    MalformedModelError,
    Problem,
    SignatureError,
    UnsupportedOpError,
    nested_too_deep,
    unreadable,
)
from invert.frontends import saved_graph
from invert.frontends.folder import GRAPHS, Files, assets_of, files_of
from invert.frontends.graph_entry import function_entry
from invert.frontends.saved_objects import Concrete, SavedFunction, SavedObjects, captured
from invert.frontends.signature import (
    Signature,
    default_trace,
    distinct,
    picked,
    picked_split,
    read_outputs,
    read_signature,
    trace_names,
)
from invert.ir.types import Value
from invert.protos import file_parts
from invert.protos.ops import op_def
from invert.protos.tensors import decode_dtype, is_type, type_name
from invert.protos.types import MetaGraphDef, SavedModel
from invert.tf.gradients.saved import SavedGradients
from invert.tf.graph.library import Library
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.state import Resource

# The name TensorFlow gives to unnamed variables.
_GENERIC = re.compile(r"Variable(_\d+)?")

T = TypeVar("T")
Read = Callable[[str, bool], EntryPoint]


class EntryPoints(Mapping[str, EntryPoint]):
    """The functions of a SavedModel by name, read on first access.

    So a model is usable even if one of its functions cannot be converted.

    **Attributes:**

    - `functions`: names of the functions attached to the object.
    - `signatures`: names of the other signatures.
    """

    def __init__(
        self, functions: Mapping[str, Read], signatures: Mapping[str, Read], *, strict: bool
    ):
        self.functions = tuple(functions)
        self.signatures = tuple(name for name in signatures if name not in functions)
        self._readers = {**{n: signatures[n] for n in self.signatures}, **functions}
        self._strict = strict
        self._read: dict[str, EntryPoint] = {}

    def __getitem__(self, name: str) -> EntryPoint:
        if name not in self._read:
            self._read[name] = self._readers[name](name, self._strict)
        return self._read[name]

    def only(self, name: str) -> EntryPoints:
        """The function with this name, with all its traces."""
        names = [name] if name in self._readers else self.traces(name)
        some = {n: self._readers[n] for n in names}
        is_function = names[0] in self.functions
        return EntryPoints(
            some if is_function else {}, {} if is_function else some, strict=self._strict
        )

    def traces(self, name: str) -> list[str]:
        """The names of the traces of a function that has several."""
        return [n for n in self.functions if n.startswith(f"{name}(")]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.functions, *self.signatures))

    def __len__(self) -> int:
        return len(self._readers)


def entry_points(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    config: Config,
    strict: bool = True,
) -> EntryPoints:
    """Read the functions of a SavedModel.

    **Arguments:**

    - `path`: the directory that holds `saved_model.pb` or `saved_model.pbtxt`.
    - `signature`: name of the function or signature to read; `None` for all.
    - `tags`: tags of the graph to read, if there are several.
    - `config`: options.
    - `strict`: whether a function with ops that cannot be raised is an error when it is read.
        Otherwise they are the `problems` of its entry point.

    **Returns:**

    A mapping from names to entry points: the functions attached to the saved object, by their
    attribute path (`"encoder.__call__"`), then its signatures. A function with several concrete
    functions appears once for each, its arguments appended to the name.

    **Raises:**

    - `MalformedModelError`: the directory holds no SavedModel that can be read.
    - `SignatureError`: no function has that name.
    - `UnsupportedOpError`: the model refers to files outside its folder.
    """
    directory = Path(path)
    proto, parts = _read(directory, file_parts.read_message)
    meta, with_objects, files = _choose_graph(proto, directory, tags)
    library = Library.of(meta.graph_def, parts)
    if with_objects:
        objects = SavedObjects(meta, library, files, directory)
        points = _Model(objects, config, directory).entry_points(strict)
    else:
        readers = saved_graph.readers(meta, library, files, directory, config)
        points = EntryPoints({}, readers, strict=strict)
    if signature is None:
        return points
    if signature not in points and not points.traces(signature):
        raise SignatureError(
            f"{directory} has no function {signature!r}, but these:\n{_listing(points)}",
            remedy="Choose one of them with `signature`.",
        )
    return points.only(signature)


def _choose_graph(
    proto: SavedModel, directory: Path, tags: Sequence[str] | None
) -> tuple[MetaGraphDef, bool, Files]:
    """Choose the `MetaGraphDef` of these tags; also whether to use its objects, and files.

    **Raises:** as `entry_points`.
    """
    chosen = choose_tags(proto, directory, tags)
    try:
        files = files_of(directory, asset_names(proto))
    except OSError as e:
        raise unreadable(directory, e) from e
    if files.problems:
        raise UnsupportedOpError(files.problems)
    # If there are several graphs, each is read as version 1.
    if chosen is None:
        meta = proto.meta_graphs[0]
        return meta, meta.HasField("object_graph_def"), files
    meta = next(m for m in proto.meta_graphs if sorted(m.meta_info_def.tags) == chosen)
    return meta, len(proto.meta_graphs) == 1 and meta.HasField("object_graph_def"), files


def default_name(points: Mapping[str, EntryPoint]) -> str:
    """The default entry point.

    The only function; otherwise `__call__`, otherwise `serving_default`.

    **Raises:**

    - `SignatureError`: none of these exists; lists the names.
    """
    functions = points.functions if isinstance(points, EntryPoints) else tuple(points)
    if len(functions) == 1:
        return functions[0]
    for name in ("__call__", "serving_default"):
        if name in points:
            return name
    if len(points) == 1:
        return next(iter(points))
    if not points:
        raise SignatureError(
            "the SavedModel has neither functions nor signatures",
            remedy="Save it with a method decorated with tf.function, or with signatures.",
        )
    raise SignatureError(
        f"the SavedModel has several functions:\n{_listing(points)}",
        remedy="Choose one of them with `signature`.",
    )


def chosen_names(points: EntryPoints) -> list[str]:
    """The default entry points.

    The functions attached to the root object itself; if there are none, the signatures; otherwise
    `default_name`. Names with a leading underscore are used only if there is nothing else.

    **Raises:** `SignatureError` if there is nothing.
    """
    own = [n for n in points.functions if "." not in n.partition("(")[0]]
    public = [n for n in own if not n.startswith("_") or n.partition("(")[0] == "__call__"]
    # Layers of Keras 2 save their losses next to `__call__`; these are not entry points.
    public = [n for n in public if not n.startswith("call_and_return_")]
    return public or list(points.signatures) or [default_name(points)]


def _listing(points: Mapping[str, EntryPoint]) -> str:
    return "\n".join(f"  - {name}" for name in points)


# -- the files


def read_proto(directory: Path) -> SavedModel:
    """The `SavedModel` message of a directory, whole."""
    return _read(directory, lambda kind, file: (file_parts.read_whole(kind, file), None))[0]


# Files of a checkpoint of orbax.
_ORBAX = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt")


def _read(
    directory: Path, read: Callable[[type[SavedModel], Path], tuple[SavedModel, T]]
) -> tuple[SavedModel, T]:
    """The result of `read` for the `SavedModel` file, which must hold a graph."""
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise MalformedModelError(f"{directory} {what}", remedy="Pass a SavedModel directory.")
    places = [directory / name for name in GRAPHS]
    file = next(filter(Path.is_file, places), places[0])
    is_model = file.is_file()
    # A model may be exported into the folder of its checkpoint.
    if not is_model and _is_of_orbax(directory):
        raise MalformedModelError(
            f"{directory} is a checkpoint of orbax, which holds arrays and no program",
            remedy=(
                "Restore it with orbax.checkpoint, and pass the arrays to "
                "invert.from_exported(exported, params=...) with the exported function."
            ),
        )
    if not is_model:
        raise MalformedModelError(
            f"{file} does not exist, so {directory} is not a SavedModel", remedy=_other(directory)
        )
    try:
        if problems := files_of(directory, []).problems:
            raise UnsupportedOpError(problems)
        proto, parts = read(SavedModel, file)
        empty = file.stat().st_size == 0
    except OSError as e:
        raise MalformedModelError(
            f"{file} cannot be read as a SavedModel: {e}", remedy=UNREADABLE
        ) from e
    if not proto.meta_graphs:
        reason = "is empty" if empty else "holds no graph"
        raise MalformedModelError(f"{file} {reason}")
    return proto, parts


def _is_of_orbax(directory: Path) -> bool:
    """Return whether a folder is an orbax checkpoint, or holds one for each step."""
    return any(
        next(directory.glob(place + name), None) for name in _ORBAX for place in ("", "*/", "*/*/")
    )


def _other(directory: Path) -> str:
    """The remedy for a folder without a graph of its own."""
    if (directory / "saved_model.cpb").exists():
        return (
            "Its saved_model.cpb holds the graph in several files, which are not read: load it "
            "with TensorFlow, and save it again with the default options."
        )
    # TensorFlow Serving and Kaggle keep one folder per version.
    inner = [str(f.parent) for f in directory.glob("*/saved_model.pb") if f.is_file()]
    if inner:
        inner.sort(key=lambda name: (len(name), name))
        return f"Pass the directory of one of its models, such as {inner[-1]}."
    return "Pass the directory that holds saved_model.pb."


def choose_tags(
    proto: SavedModel, directory: Path, wanted: Sequence[str] | None
) -> list[str] | None:
    """Tag of the graph to load; `None` if there is only one."""
    choices = [sorted(m.meta_info_def.tags) for m in proto.meta_graphs]
    if wanted is not None:
        if sorted(wanted) not in choices:
            raise SignatureError(
                f"{directory} holds graphs tagged {choices}, not {sorted(wanted)}",
                remedy="Choose one of them with `tags`.",
            )
        return sorted(wanted)
    if len(choices) == 1:
        return None
    # In TensorFlow Hub modules the graph for inference has no tags.
    for usual in (["serve"], []):
        if usual in choices:
            return usual
    raise SignatureError(
        f"{directory} holds graphs tagged {choices}, none of them ['serve']",
        remedy="Choose one with `tags`.",
    )


def asset_names(proto: SavedModel) -> list[str]:
    """The files in a model's folder `assets`, by the model's paths."""
    return [a.filename for meta in proto.meta_graphs for a in assets_of(meta)]


# -- the functions of an object graph


class _Model:
    """Reads the functions of a model, sharing what they have in common.

    **Arguments:**

    - `objects`: its objects.
    """

    def __init__(self, objects: SavedObjects, config: Config, directory: Path):
        self._objects = objects
        self._config = config
        self._directory = directory
        reachable = _reachable(objects)
        self._found = reachable
        if any(objects.kind(index) == "variable" for _, index in reachable):
            objects.checkpoint  # noqa: B018  a model without its variables is not read at all
        self._names = _variable_names(objects, reachable)
        self._trained = _trained(objects, reachable)
        self._keras = _is_keras(objects)
        self._gradients = SavedGradients(objects.library, objects.graph)

    def entry_points(self, strict: bool) -> EntryPoints:
        """The entry points of all functions and signatures."""
        return EntryPoints(self._functions(), self._signatures(), strict=strict)

    def _functions(self) -> dict[str, Read]:
        """A reader for each concrete function, by name.

        Copies of one signature, which saving creates, count once. A function whose description
        cannot be read is an error only on access.
        """
        named: dict[str, Read] = {}
        seen: set[int] = set()
        for path, index in self._found:
            if index in seen or self._objects.kind(index) != "function":
                continue
            seen.add(index)
            try:
                function = self._objects.function(index)
                concretes = distinct(function.concretes)
                default = default_trace(concretes, function)
                concretes.sort(key=lambda c: c is not default)
                for concrete, name in zip(concretes, trace_names(path, concretes), strict=True):
                    of = (path, concrete is default) if len(concretes) > 1 else None
                    named[name] = self._reader(concrete, function, "function", of)
            except InvertError as error:
                named[path] = _failing(error)
        return named

    def _signatures(self) -> dict[str, Read]:
        children = self._objects.children
        root = children[0].get("signatures") if children else None
        if root is None:
            return {}
        named: dict[str, Read] = {}
        for name, index in sorted(children[root].items()):
            try:
                if self._objects.kind(index) == "bare_concrete_function":
                    concrete = self._objects.bare(index)
                elif self._objects.kind(index) == "function":
                    concrete = next(iter(self._objects.function(index).concretes), None)
                else:
                    continue
                if concrete is not None:
                    named[name] = self._reader(concrete, None, "signature")
            except InvertError as error:
                named[name] = _failing(error)
        return named

    def _reader(
        self,
        concrete: Concrete,
        owner: SavedFunction | None,
        kind: str,
        of: tuple[str, bool] | None = None,
    ) -> Read:
        """The reader of a function; `of`: the function traced, and whether by default."""

        def read(name: str, strict: bool) -> EntryPoint:
            source = f"SavedModel {self._directory.name}, {kind} {name}"
            entry = self._entry(concrete, owner, name, source, strict)
            if of is None:
                return entry
            own = read_signature(concrete, owner=owner)
            pick = functools.partial(picked, concrete, owner)
            if (own.args, own.kwargs) != (entry.args, entry.kwargs):
                left = Signature(entry.args, entry.kwargs, entry.arg_names, ())
                pick = functools.partial(picked_split, concrete, owner, left)
            return dataclasses.replace(entry, trace=Trace(*of, pick))

        return read

    @nested_too_deep("the function")
    def _entry(
        self, concrete: Concrete, owner: SavedFunction | None, name: str, source: str, strict: bool
    ) -> EntryPoint:
        objects, config = self._objects, self._config
        signature = read_signature(concrete, owner=owner)
        proto = objects.library.functions[concrete.name]
        args = proto.signature.input_arg
        count = len(args) - len(concrete.captures)
        if count != len(signature.order):
            raise MalformedModelError(
                f"{self._directory}: function {name} takes {count} tensors besides its captures, "
                f"but its signature has {len(signature.order)}"
            )
        leaves = jax.tree_util.tree_leaves((signature.args, signature.kwargs))
        wrong = ""
        for i, spec in zip(signature.order, leaves, strict=True):
            kind = args[i].type
            if not is_type(kind) or decode_dtype(kind) != spec.dtype:
                named = "text or a handle" if spec.dtype == object else spec.dtype.name
                wrong += f"\n  - {spec.name!r} is {type_name(kind)}, but {named} in its signature"
        if wrong:
            raise MalformedModelError(
                f"{self._directory}: arguments of function {name} have other types:{wrong}"
            )
        program = Graph(
            objects.library,
            function=concrete.name,
            config=config,
            op_def=op_def,
            read_gradient=self._gradients.read,
            compiled=lambda: "_XlaMustCompile" in proto.attr and proto.attr["_XlaMustCompile"].b,
        )
        needed = set(program.main.order)
        params: dict[int, Param] = {}
        values: dict[int, Value] = {}
        problems: list[Problem] = []
        captures = [i if n in needed else None for n, i in enumerate(concrete.captures, count)]
        for i, index in enumerate(captures, count):
            if index is None or index in values:
                continue
            found = captured(objects, index, f"input {args[i].name!r}")
            if isinstance(found, Problem):
                problems.append(found)
                found = None
            elif found is None:
                p = params[index] = self._param(index)
                found = Resource("variable", p.name, p.value.dtype, p.value.shape)
            values[index] = found
        feeds = [None if index is None else values[index] for index in captures]
        entry = function_entry(
            program,
            signature,
            read_outputs(concrete),
            [(a.name, a.type) for a in proto.signature.output_arg],
            feeds,
            # The objects of a file are numbered in the order in which the original holds them.
            [params[index] for index in sorted(params)],
            problems,
            name=name,
            source=source,
            strict=strict,
            variables={},
        )
        return dataclasses.replace(entry, keras=self._keras)

    def _param(self, index: int) -> Param:
        proto = self._objects.graph.nodes[index].variable
        flag = self._trained.get(index, proto.trainable)
        return Param(
            self._names[index],
            self._objects.variable(index),
            proto.trainable if flag is None else flag,
            stated=flag is not None,
        )


def _failing(error: InvertError) -> Read:
    def read(name: str, strict: bool) -> EntryPoint:
        raise error

    return read


# The path of the parent and a name; `None` for the root.
_Path: TypeAlias = "tuple[_Path, str] | None"


def _reachable(objects: SavedObjects) -> list[tuple[str, int]]:
    """Functions and variables by their paths, breadth first; an object may have many paths."""
    paths: list[tuple[str, int]] = []
    level: list[tuple[_Path, int]] = [(None, 0)] if objects.children else []
    expanded: set[int] = set()
    while level:
        following: list[tuple[_Path, int]] = []
        for path, index in level:
            if objects.kind(index) in ("function", "variable"):
                paths.append((_joined(path), index))
            if index in expanded:
                continue
            expanded.add(index)
            for name, child in objects.children[index].items():
                if path is not None or name != "signatures":
                    following.append(((path, name), child))
        level = following
    return paths


def _joined(path: _Path) -> str:
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(name)
    return ".".join(reversed(names))


def _variable_names(objects: SavedObjects, found: list[tuple[str, int]]) -> dict[int, str]:
    """A name for each variable, unique among all functions; for unnamed ones the attribute path."""
    names = {
        index: node.variable.name.partition(":")[0] or "Variable"
        for index, node in enumerate(objects.graph.nodes)
        if objects.kind(index) == "variable"
    }
    best: dict[int, tuple[tuple[bool, int, int, str], str]] = {}
    for path, index in found:
        if index not in names or _GENERIC.fullmatch(names[index]) is None:
            continue
        parts = path.split(".")
        # `params.layers.0.w` says more than `variables.0`.
        plain = [p.isdigit() or p.startswith("_") for p in parts]
        rank = (plain[-1], sum(plain), len(parts), path)
        if index not in best or rank < best[index][0]:
            best[index] = (rank, path)
    # Keys of dictionaries may be paths themselves, such as Haiku's `block/linear`.
    nested = any("/" in path for _, path in best.values())
    for index, (_, path) in best.items():
        names[index] = path.replace(".", "/") if nested else path
    taken: set[str] = set()
    return {index: unique(name, taken) for index, name in names.items()}


# Children of any Keras 3 layer saved by TensorFlow, and of what `model.export` writes.
_KERAS_LAYER = {"_inbound_nodes", "_outbound_nodes", "_losses_override"}
_KERAS_EXPORT = {"variables", "trainable_variables", "non_trainable_variables", "_all_variables"}


def _is_keras(objects: SavedObjects) -> bool:
    """Return whether objects of Keras, of any version, are among those of a file."""
    kinds = (node.user_object.identifier for node in objects.graph.nodes)
    return any(kind.startswith("_tf_keras_") for kind in kinds) or any(
        names.keys() >= _KERAS_LAYER or names.keys() >= _KERAS_EXPORT for names in objects.children
    )


def _trained(objects: SavedObjects, found: list[tuple[str, int]]) -> dict[int, bool | None]:
    """Read which variables the file declares as trained, beyond their own flag.

    Keras writes lists of a model's variables and of the trained ones. For Keras layers saved by
    plain TensorFlow, nothing says which were frozen.
    """
    children = objects.children
    stated: dict[int, bool] = {}
    # Breadth first: a model's lists take precedence over those of its layers.
    for names in children:
        if names.keys() >= {"variables", "trainable_variables"}:
            listed, trained = (
                children[names[n]].values() for n in ("variables", "trainable_variables")
            )
            for index in listed:
                stated.setdefault(index, index in trained)
    silent = any(names.keys() >= _KERAS_LAYER for names in children)
    flags: dict[int, bool | None] = {}
    for _, index in found:
        if objects.kind(index) == "variable":
            if index in stated:
                flags[index] = stated[index]
            elif silent and objects.graph.nodes[index].variable.trainable:
                flags[index] = None
    return flags
