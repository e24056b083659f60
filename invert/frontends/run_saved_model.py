"""Runs the functions of a SavedModel in TensorFlow, as saved.

TensorFlow's loader runs parts of a model, so it is used only if all of these are known to be
harmless.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from invert._errors import MalformedModelError, SignatureError, UnsupportedOpError
from invert._private.tensorflow import TfObject, tf_concrete_functions, tf_load_errors
from invert.frontends.folder import files_of, stand_in
from invert.frontends.load_check import checkpoint_problems, load_problems, sever
from invert.frontends.saved_model import asset_names, choose_tags, read_proto
from invert.frontends.signature import distinct, trace_names
from invert.protos.types import SavedObjectGraph
from invert.tf.ops.node import import_tensorflow


class Loaded(NamedTuple):
    """A function run by TensorFlow, and the object that holds its variables."""

    function: TfObject
    owner: TfObject


class _Object(NamedTuple):
    """A restored object: its attribute path and its place in the object graph."""

    path: str
    value: TfObject
    node: int


def load_function(path: str | os.PathLike[str], name: str) -> Loaded:
    """A function of a SavedModel by the name that `saved_model.entry_points` gives it.

    **Raises:** `MalformedModelError`; `SignatureError` if no function has that name;
    `UnsupportedOpError` if loading the model could do harm; `MissingDependencyError`.
    """
    import_tensorflow()  # raises if there is no such function
    directory = Path(path)
    proto = read_proto(directory)
    tags = choose_tags(proto, directory, None)
    files = files_of(directory, asset_names(proto))
    if problems := [*load_problems(proto), *files.problems]:
        raise UnsupportedOpError(problems)
    changed = sever(proto)
    place = stand_in(files, proto.SerializeToString() if changed else None)
    try:
        root = _loaded(Path(place.name), tags, directory)
    except BaseException:
        place.cleanup()
        raise
    # A call may read the assets of the model.
    weakref.finalize(root, place.cleanup)
    chosen = next(
        m for m in proto.meta_graphs if tags is None or sorted(m.meta_info_def.tags) == tags
    )
    named: dict[str, TfObject] = dict(getattr(root, "signatures", {}))
    named |= _functions(_objects(root, chosen.object_graph_def))
    if name not in named:
        raise SignatureError(
            f"TensorFlow finds no function {name!r} in {directory}",
            remedy=f"Choose one of {sorted(named)}.",
        )
    return Loaded(named[name], root)


def _loaded(place: Path, tags: list[str] | None, directory: Path) -> TfObject:
    """The model of `directory`, loaded by TensorFlow from `place`."""
    tf = import_tensorflow()
    if problems := checkpoint_problems(os.fspath(place / "variables" / "variables")):
        raise UnsupportedOpError(problems)
    try:
        return tf.saved_model.load(os.fspath(place), tags=tags)
    # TensorFlow's exceptions for an inconsistent object graph or a damaged checkpoint.
    except (
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
        OSError, RuntimeError, TypeError, ValueError, tf.errors.OpError, *tf_load_errors(),
    ) as e:  # fmt: skip
        reason = f"{type(e).__name__}: {e}".replace(os.fspath(place), os.fspath(directory))
        raise MalformedModelError(
            f"{directory}: TensorFlow cannot load the SavedModel: {reason}"
        ) from e


def _objects(root: TfObject, graph: SavedObjectGraph) -> list[_Object]:
    """Functions and variables, breadth first; an object may have many paths."""
    objects: list[_Object] = []
    level: list[tuple[tuple[str, ...], int, TfObject]] = [((), 0, root)] if graph.nodes else []
    expanded: set[int] = set()
    while level:
        following: list[tuple[tuple[str, ...], int, TfObject]] = []
        for path, index, obj in level:
            kind = graph.nodes[index].WhichOneof("kind")
            if kind in ("function", "variable"):
                objects.append(_Object(".".join(path), obj, index))
            if index in expanded:
                continue
            expanded.add(index)
            for child in graph.nodes[index].children:
                if path or child.local_name != "signatures":
                    value = _child(obj, child.local_name)
                    if value is not None:
                        following.append(((*path, child.local_name), child.node_id, value))
        level = following
    return objects


def _child(obj: object, name: str) -> TfObject:
    """The child of a restored object that the object graph calls `name`."""
    if isinstance(obj, list | tuple):
        # A namedtuple lists its items by number as well as by field.
        if name.isdigit() and int(name) < len(obj):
            return obj[int(name)]
    elif isinstance(obj, Mapping) and name in obj:
        return obj[name]
    return getattr(obj, name, None)


def _functions(objects: list[_Object]) -> dict[str, TfObject]:
    """Functions by the names of their concrete functions."""
    functions: dict[str, TfObject] = {}
    seen: set[int] = set()
    for path, obj, _ in objects:
        if id(obj) in seen or not hasattr(obj, "get_concrete_function"):
            continue
        seen.add(id(obj))
        concretes = distinct(tf_concrete_functions(obj))
        functions |= dict.fromkeys(trace_names(path, concretes), obj)
    return functions
