"""Reads SavedModel directories."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from invert._config import Config
from invert._entry import EntryPoint
from invert._errors import MalformedModelError, SignatureError, UnsupportedOpError
from invert._private.tensorflow import tf_concrete_functions, tf_load_errors, tf_proto
from invert.frontends.detached_modules import Modules, take_modules
from invert.frontends.folder import files_of, stand_in
from invert.frontends.load_check import asset_names, checkpoint_problems, load_problems, sever
from invert.frontends.signature import describe, distinct
from invert.frontends.tf_function import Variables, entry_point
from invert.tf.ops.node import import_tensorflow

# The name TensorFlow gives a variable that was not given one.
_GENERIC = re.compile(r"Variable(_\d+)?")


class _Object(NamedTuple):
    """A restored object: its attribute path and its place in the object graph."""

    path: str
    value: Any
    node: int


class EntryPoints(Mapping[str, EntryPoint]):
    """The functions of a SavedModel by name; each is read when it is first asked for.

    So a model of which one function can be converted and another cannot is still of use.

    **Attributes:**

    - `functions`: names of the functions attached to the object.
    - `signatures`: names of the signatures that are no such function.
    """

    def __init__(
        self,
        functions: Mapping[str, tuple[Any, Any]],
        signatures: Mapping[str, tuple[Any, Any]],
        *,
        path: Path,
        variables: Variables,
        config: Config,
        owner: Any,
        strict: bool,
        modules: Modules,
    ):
        self.functions = tuple(functions)
        self.signatures = tuple(name for name in signatures if name not in functions)
        self._concrete = {**{n: signatures[n] for n in self.signatures}, **functions}
        self._path = path
        self._variables = variables
        self._config = config
        self._strict = strict
        self._modules = modules
        self._owner = owner  # variables live as long as the object that was loaded
        self._read: dict[str, EntryPoint] = {}

    def __getitem__(self, name: str) -> EntryPoint:
        if name not in self._read:
            kind = "signature" if name in self.signatures else "function"
            concrete, function = self._concrete[name]
            self._read[name] = entry_point(
                concrete,
                config=self._config,
                owner=function,
                name=name,
                source=f"SavedModel {self._path.name}, {kind} {name}",
                variables=self._variables,
                strict=self._strict,
                modules=self._modules,
            )
        return self._read[name]

    def function(self, name: str) -> Any:
        """TensorFlow's own function of a name, to be called as it was saved, where it `runs`."""
        concrete, owner = self._concrete[name]
        return concrete if owner is None else owner

    def __iter__(self) -> Iterator[str]:
        return iter((*self.functions, *self.signatures))

    def __len__(self) -> int:
        return len(self._concrete)


def entry_points(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    config: Config,
    strict: bool = True,
    runs: bool = False,
) -> EntryPoints:
    """Reads the functions of a SavedModel.

    **Arguments:**

    - `path`: the directory that holds `saved_model.pb`.
    - `signature`: name of the one function or signature wanted; `None` for all.
    - `tags`: tags of the graph to read, where there are several.
    - `config`: options.
    - `strict`: whether a function with ops that cannot be raised is an error when it is read.
        Otherwise they are the `problems` of its entry point.
    - `runs`: whether TensorFlow's own functions can be called, which then hold all weights.

    **Returns:**

    A mapping from names to entry points: the functions attached to the saved object, by their
    attribute path (`"encoder.__call__"`), then its signatures. A function with several concrete
    functions appears once for each, its arguments appended to the name.

    **Raises:**

    - `MalformedModelError`: the directory holds no SavedModel that can be read.
    - `SignatureError`: there is no function of the name wanted.
    - `MissingDependencyError`: TensorFlow is not installed.
    """
    import_tensorflow()  # says where there is none
    directory = Path(path)
    proto = _read_proto(directory)
    tags = _tags(proto, directory, tags)
    try:
        files = files_of(directory, asset_names(proto))
    except OSError as e:
        raise MalformedModelError(f"{directory} cannot be read: {e}") from e
    if problems := [*load_problems(proto), *files.problems]:
        raise UnsupportedOpError(problems)
    changed = sever(proto)
    modules: Modules = {}
    if not runs:
        proto, modules = take_modules(proto)
    with contextlib.ExitStack() as stack:
        place = stand_in(files, proto.SerializeToString() if changed or modules else None)
        stack.enter_context(place)
        root = _loaded(Path(place.name), tags, directory)
        if runs:
            # What is called may look for the assets of the model.
            stack.pop_all()
            weakref.finalize(root, place.cleanup)
    meta = next(
        m for m in proto.meta_graphs if tags is None or set(m.meta_info_def.tags) == set(tags)
    )
    objects = _objects(root, meta.object_graph_def)
    functions = _functions(objects)
    signatures = dict(getattr(root, "signatures", {}))
    points = EntryPoints(
        functions,
        {name: (signatures[name], None) for name in sorted(signatures)},
        path=directory,
        variables=Variables(_variable_names(objects), _trained(objects, meta.object_graph_def)),
        config=config,
        owner=root,
        strict=strict,
        modules=modules,
    )
    if signature is None:
        return points
    if signature not in points:
        raise SignatureError(
            f"{directory} has no function {signature!r}. It has:\n{_listing(points)}"
        )
    wanted = points._concrete[signature]
    is_function = signature in points.functions
    return EntryPoints(
        {signature: wanted} if is_function else {},
        {} if is_function else {signature: wanted},
        path=directory,
        variables=points._variables,
        config=config,
        owner=root,
        strict=strict,
        modules=modules,
    )


def _loaded(place: Path, tags: list[str] | None, directory: Path) -> Any:
    """What TensorFlow's loader makes of the model of `directory`, which it finds at `place`."""
    tf = import_tensorflow()
    if problems := checkpoint_problems(os.fspath(place / "variables" / "variables")):
        raise UnsupportedOpError(problems)
    try:
        return tf.saved_model.load(os.fspath(place), tags=tags)
    # What TensorFlow raises on an inconsistent object graph or a damaged checkpoint.
    except (
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError,
        OSError, RuntimeError, TypeError, ValueError, tf.errors.OpError, *tf_load_errors(),
    ) as e:  # fmt: skip
        reason = f"{type(e).__name__}: {e}".replace(os.fspath(place), os.fspath(directory))
        raise MalformedModelError(
            f"{directory}: TensorFlow cannot load the SavedModel: {reason}"
        ) from e


def default_name(points: Mapping[str, EntryPoint]) -> str:
    """The entry point that is meant when none is named.

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
        raise SignatureError("the SavedModel has neither functions nor signatures")
    raise SignatureError(f"say which function is meant, one of:\n{_listing(points)}")


def chosen_names(points: EntryPoints) -> list[str]:
    """The entry points that are meant when none is named.

    The functions attached to the root object itself; where there are none, the signatures, and
    where these are none either, what `default_name` says. Names that begin with an underscore are
    meant only if there is nothing else.

    **Raises:** `SignatureError` where there is nothing.
    """
    own = [n for n in points.functions if "." not in n.partition("(")[0]]
    public = [n for n in own if not n.startswith("_") or n.partition("(")[0] == "__call__"]
    # Layers of Keras 2 save their losses beside `__call__`, which nobody calls.
    public = [n for n in public if not n.startswith("call_and_return_")]
    return public or list(points.signatures) or [default_name(points)]


def _listing(points: Mapping[str, EntryPoint]) -> str:
    return "\n".join(f"  - {name}" for name in points)


def _read_proto(directory: Path) -> Any:
    """The `SavedModel` proto, checked before TensorFlow touches the directory."""
    from google.protobuf.message import DecodeError

    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise MalformedModelError(f"{directory} {what}; expected a SavedModel directory")
    file = directory / "saved_model.pb"
    if not file.is_file():
        raise MalformedModelError(f"{file} does not exist, so {directory} is not a SavedModel")
    proto = tf_proto("core.protobuf.saved_model_pb2", "SavedModel")
    try:
        size = file.stat().st_size
        proto.ParseFromString(file.read_bytes())
    except (DecodeError, OSError) as e:
        raise MalformedModelError(f"{file} cannot be read as a SavedModel: {e}") from e
    if not proto.meta_graphs:
        reason = "is empty" if not size else "holds no graph"
        raise MalformedModelError(f"{file} {reason}; it is truncated or not a SavedModel")
    return proto


def _tags(proto: Any, directory: Path, wanted: Sequence[str] | None) -> list[str] | None:
    """Tags of the graph to load; `None` where there is only one."""
    choices = [sorted(m.meta_info_def.tags) for m in proto.meta_graphs]
    if wanted is not None:
        if sorted(wanted) not in choices:
            raise SignatureError(f"{directory} holds graphs tagged {choices}, not {sorted(wanted)}")
        return sorted(wanted)
    if len(choices) == 1:
        return None
    # Modules of TensorFlow Hub tag the graph for inference with nothing.
    for usual in (["serve"], []):
        if usual in choices:
            return usual
    raise SignatureError(
        f"{directory} holds graphs tagged {choices}, none of them ['serve']; choose one with `tags`"
    )


def _objects(root: Any, graph: Any) -> list[_Object]:
    """Functions and variables, breadth first; an object may have many paths."""
    found: list[_Object] = []
    level: list[tuple[tuple[str, ...], int, Any]] = [((), 0, root)] if graph.nodes else []
    expanded: set[int] = set()
    while level:
        following: list[tuple[tuple[str, ...], int, Any]] = []
        for path, index, obj in level:
            kind = graph.nodes[index].WhichOneof("kind")
            if kind in ("function", "variable"):
                found.append(_Object(".".join(path), obj, index))
            if index in expanded:
                continue
            expanded.add(index)
            for child in graph.nodes[index].children:
                if path or child.local_name != "signatures":
                    value = _child(obj, child.local_name)
                    if value is not None:
                        following.append(((*path, child.local_name), child.node_id, value))
        level = following
    return found


def _child(obj: Any, name: str) -> Any:
    """The child of a restored object that the object graph calls `name`."""
    if isinstance(obj, list | tuple):
        # A namedtuple lists its items by number as well as by field.
        if name.isdigit() and int(name) < len(obj):
            return obj[int(name)]
    elif isinstance(obj, Mapping) and name in obj:
        return obj[name]
    return getattr(obj, name, None)


def _functions(objects: list[_Object]) -> dict[str, tuple[Any, Any]]:
    """Concrete functions by name, with the function they belong to.

    Copies of one signature, which saving makes, count once.
    """
    found: dict[str, tuple[Any, Any]] = {}
    seen: set[int] = set()
    for path, obj, _ in objects:
        if id(obj) in seen or not hasattr(obj, "get_concrete_function"):
            continue
        seen.add(id(obj))
        concretes = distinct(tf_concrete_functions(obj))
        for concrete in concretes:
            name = path if len(concretes) == 1 else f"{path}{describe(concrete)}"
            found[name] = (concrete, obj)
    return found


def _variable_names(objects: list[_Object]) -> dict[int, str]:
    """Attribute paths of the variables that were not given a name."""
    best: dict[int, tuple[tuple[int, int, str], str]] = {}
    for path, obj, _ in objects:
        name = getattr(obj, "name", None)
        if not hasattr(obj, "handle") or not isinstance(name, str):
            continue
        if _GENERIC.fullmatch(name.partition(":")[0]) is None:
            continue
        parts = path.split(".")
        rank = (sum(p.isdigit() or p.startswith("_") for p in parts), len(parts), path)
        if id(obj) not in best or rank < best[id(obj)][0]:
            best[id(obj)] = (rank, path)
    return {key: path for key, (_, path) in best.items()}


# What layers of Keras 3 have as children, whatever their class, where TensorFlow saves them.
_KERAS_LAYER = {"_inbound_nodes", "_outbound_nodes", "_losses_override"}


def _trained(objects: list[_Object], graph: Any) -> dict[int, bool | None]:
    """What the file says of variables that are trained, beyond how they were made.

    Keras writes lists of a model's variables and of those that are trained. Of its layers as
    TensorFlow alone saves them, nothing tells which were frozen.
    """
    children = [{c.local_name: c.node_id for c in node.children} for node in graph.nodes]
    said: dict[int, bool] = {}
    # Breadth first: what a model says comes before what its layers say.
    for names in children:
        if names.keys() >= {"variables", "trainable_variables"}:
            listed, trained = (
                children[names[n]].values() for n in ("variables", "trainable_variables")
            )
            for index in listed:
                said.setdefault(index, index in trained)
    silent = any(names.keys() >= _KERAS_LAYER for names in children)
    found: dict[int, bool | None] = {}
    for _, value, index in objects:
        if graph.nodes[index].WhichOneof("kind") == "variable":
            if index in said:
                found[id(value)] = said[index]
            elif silent and graph.nodes[index].variable.trainable:
                found[id(value)] = None
    return found
