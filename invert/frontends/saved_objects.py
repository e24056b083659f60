"""The objects of a SavedModel: functions, variables, constants and tables, read from its files.

No part of the model is run. Values that TensorFlow's loader would compute are looked up: those of
variables in the checkpoint, those of tables in the function that fills them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from invert._errors import MalformedModelError, Problem
from invert.checkpoint.bundle import Checkpoint
from invert.frontends.folder import Files
from invert.frontends.structured import (
    Parameter,
    bound_parameters,
    decode,
    parameters_of,
    plain_parameters,
)
from invert.frontends.tables import Buckets, Filled, buckets_of, filled_by, typed
from invert.ir.avals import fits_shape
from invert.ir.types import CallArguments, Tree, Value
from invert.protos.messages import parse
from invert.protos.tensors import decode_dtype, decode_shape, type_name
from invert.protos.types import MetaGraphDef, TrackableObjectGraph
from invert.tf.fallback.host import StoredTable
from invert.tf.graph.library import Library

# The key of the object graph in a checkpoint.
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The name of a variable among the values of its object.
_VALUE = "VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True, eq=False)
class Concrete:
    """A concrete function in a file, and what its signature is read from.

    **Attributes:**

    - `name`: its name in the library.
    - `captures`: numbers of the objects bound to the last arguments.
    - `function_type`: holds the `parameters` by name.
    """

    name: str
    structured_input_signature: CallArguments
    structured_outputs: Tree
    captures: tuple[int, ...]
    function_type: types.SimpleNamespace


@dataclasses.dataclass(frozen=True, eq=False)
class SavedFunction:
    """A function with its traces, and the parameters of the Python function."""

    concretes: tuple[Concrete, ...]
    function_type: types.SimpleNamespace


class SavedObjects:
    """The objects of one graph of a SavedModel.

    **Arguments:**

    - `meta`: the `MetaGraphDef`.
    - `library`: its graph with the functions.
    - `files`: the files of the model.
    - `directory`: its path, for messages.
    """

    def __init__(self, meta: MetaGraphDef, library: Library, files: Files, directory: Path):
        self.meta = meta
        self.library = library
        self.graph = meta.object_graph_def
        self._files = files
        self._directory = directory
        self._concretes: dict[str, Concrete] = {}
        self._values: dict[int, np.ndarray] = {}
        self._tables: dict[int, StoredTable | None] = {}
        count = len(self.graph.nodes)
        for number, node in enumerate(self.graph.nodes):
            names: set[str] = set()
            for child in node.children:
                where = f"{directory}: object {number} of the SavedModel has"
                if not 0 <= child.node_id < count:
                    raise MalformedModelError(
                        f"{where} a child {child.local_name!r} that does not exist"
                    )
                if child.local_name in names:
                    raise MalformedModelError(f"{where} two children {child.local_name!r}")
                names.add(child.local_name)

    @functools.cached_property
    def children(self) -> list[dict[str, int]]:
        """The children of each object by name."""
        return [{c.local_name: c.node_id for c in node.children} for node in self.graph.nodes]

    def kind(self, index: int) -> str:
        return self.graph.nodes[index].WhichOneof("kind") or ""

    # -- functions

    def function(self, index: int) -> SavedFunction:
        """The function that an object is, with all its traces."""
        proto = self.graph.nodes[index].function
        parameters = parameters_of(proto.function_spec)
        return SavedFunction(
            tuple(self.concrete(name, parameters) for name in proto.concrete_functions),
            _type_of(parameters),
        )

    def bare(self, index: int) -> Concrete:
        """The single concrete function that an object is."""
        proto = self.graph.nodes[index].bare_concrete_function
        has_spec = proto.HasField("function_spec") and proto.function_spec.HasField("fullargspec")
        parameters = parameters_of(proto.function_spec) if has_spec else None
        return self.concrete(proto.concrete_function_name, parameters)

    def concrete(self, name: str, parameters: Sequence[Parameter] | None) -> Concrete:
        """A concrete function of the library.

        **Raises:** `MalformedModelError`.
        """
        if name in self._concretes:
            return self._concretes[name]
        if name not in self.graph.concrete_functions or name not in self.library.functions:
            raise MalformedModelError(
                f"{self._directory}: the SavedModel names a function {name!r} that it does not have"
            )
        proto = self.graph.concrete_functions[name]
        signature = decode(proto.canonicalized_input_signature)
        if not (
            isinstance(signature, tuple)
            and len(signature) == 2
            and isinstance(signature[0], tuple)
            and isinstance(signature[1], dict)
        ):
            raise MalformedModelError(
                f"{self._directory}: the arguments of function {name!r} are not described"
            )
        captures = tuple(proto.bound_inputs)
        if not all(0 <= i < len(self.graph.nodes) for i in captures):
            raise MalformedModelError(
                f"{self._directory}: function {name!r} captures an object that does not exist"
            )
        bound = (
            plain_parameters(*signature)
            if parameters is None
            else bound_parameters(parameters, *signature)
        )
        concrete = Concrete(
            name, signature, decode(proto.output_signature), captures, _type_of(bound)
        )
        self._concretes[name] = concrete
        return concrete

    # -- values

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """The values of the variables."""
        return checkpoint_of(self._files, self._directory)

    def variable(self, index: int) -> np.ndarray:
        """The value of a variable, read once.

        **Raises:** `MalformedModelError` if the checkpoint has no value of its type. The error
        lists all such variables.
        """
        if index not in self._values:
            value = self._stored(index)
            if isinstance(value, str):
                variables = (i for i in range(len(self.graph.nodes)) if self.kind(i) == "variable")
                wrong = [found for i in variables if isinstance(found := self._stored(i), str)]
                raise MalformedModelError(f"{self._directory}: {'; '.join(wrong)}")
            self._values[index] = value
        return self._values[index]

    def _stored(self, index: int) -> np.ndarray | str:
        """The value of a variable in the checkpoint; text if there is none of its type."""
        proto = self.graph.nodes[index].variable
        key = self._keys.get((index, _VALUE))
        if key is None:
            return f"the variables hold no value of object {index}, {proto.name!r}"
        value = self.checkpoint.value(key)
        shape = decode_shape(proto.shape)
        if has_type(value, shape, proto.dtype):
            return value
        name = "string" if value.dtype == object else value.dtype.name
        stated = f"{type_name(proto.dtype)}{shape}"
        return f"variable {proto.name!r} is {stated}, but its value is {name}{value.shape}"

    @functools.cached_property
    def _keys(self) -> dict[tuple[int, str], str]:
        """Where the checkpoint has each value: its key there, by object and name of the value.

        The checkpoint has an object graph of its own; objects with equal paths correspond.
        """
        if _OBJECTS not in self.checkpoint:
            raise MalformedModelError(
                f"{self._directory}: the variables do not say which objects they belong to"
            )
        text = self.checkpoint.value(_OBJECTS)
        data = text.item() if text.size == 1 and text.dtype == object else b""
        where = f"the objects in the variables of {self._directory}"
        nodes = parse(TrackableObjectGraph, data, where).nodes
        keys: dict[tuple[int, str], str] = {}
        pairs = {0: 0} if nodes and self.graph.nodes else {}
        pending = list(pairs.items())
        for own, other in pending:  # the loop extends it
            for value in nodes[other].attributes:
                keys[own, value.name] = value.checkpoint_key
            named = {c.local_name: c.node_id for c in nodes[other].children}
            slots = {
                (s.slot_name, s.original_variable_node_id): s.slot_variable_node_id
                for s in nodes[other].slot_variables
            }
            related = [(i, named[name]) for name, i in self.children[own].items() if name in named]
            for slot in self.graph.nodes[own].slot_variables:
                key = slot.slot_name, pairs.get(slot.original_variable_node_id, -1)
                if key in slots:
                    related.append((slot.slot_variable_node_id, slots[key]))
            for mine, theirs in related:
                inside = 0 <= mine < len(self.graph.nodes) and 0 <= theirs < len(nodes)
                if inside and mine not in pairs:
                    pairs[mine] = theirs
                    pending.append((mine, theirs))
        return keys

    def constant(self, index: int) -> np.ndarray:
        """The value of a constant.

        **Raises:** `MalformedModelError` if the graph does not contain it.
        """
        name = self.graph.nodes[index].constant.operation
        if name not in self._constants:
            raise MalformedModelError(
                f"{self._directory}: object {index} is the constant {name!r}, which the graph does "
                "not have"
            )
        return self.library.constant(self._constants[name].attr["value"].tensor, f"node {name!r}")

    @functools.cached_property
    def _constants(self) -> Mapping[str, Value]:
        return {n.name: n for n in self.library.graph.node if n.op == "Const"}

    # -- tables

    def table(self, index: int) -> StoredTable | None:
        """The hash table of an object, if a file fills it."""
        if index not in self._tables:
            self._tables[index] = self._read_table(index)
        return self._tables[index]

    def _read_table(self, index: int) -> StoredTable | None:
        names = self.children[index]
        if "_initialize" in names and self.kind(names["_initialize"]) == "function":
            for name in self.graph.nodes[names["_initialize"]].function.concrete_functions:
                if (found := self._filled(name, index)) is not None:
                    return StoredTable(found.content, found.size)
        stored = (
            {value: key for (i, value), key in self._keys.items() if i == index}
            if self._files.found and self._has_checkpoint
            else {}
        )
        for key in stored.values():
            if f"{key}-keys" in self.checkpoint and f"{key}-values" in self.checkpoint:
                keys = self.checkpoint.value(f"{key}-keys")
                values = self.checkpoint.value(f"{key}-values")
                if (buckets := self._buckets(index)) is not None:
                    keys, values = buckets.entries(keys, values)
                return StoredTable(
                    functools.partial(typed, keys, values), functools.partial(len, keys)
                )
        return None

    def _buckets(self, index: int) -> Buckets | None:
        """The buckets of a dense table, read from the function that makes it."""
        maker = self.children[index].get("_create_resource")
        if maker is None or self.kind(maker) != "function":
            return None
        names = self.graph.nodes[maker].function.concrete_functions
        functions = [self.library.functions[n] for n in names if n in self.library.functions]
        return next((b for f in functions if (b := buckets_of(f)) is not None), None)

    @property
    def _has_checkpoint(self) -> bool:
        return PurePosixPath("variables", "variables.index") in self._files.found

    def _filled(self, function: str, index: int) -> Filled | None:
        """Read how a function fills a table."""
        saved, proto = self.graph.concrete_functions, self.library.functions.get(function)
        if proto is None or function not in saved:
            return None
        args = proto.signature.input_arg
        bound = list(saved[function].bound_inputs)
        if (first := len(args) - len(bound)) < 0:
            raise MalformedModelError(
                f"{self._directory}: function {function!r} takes {len(args)} tensors, but captures "
                f"{len(bound)}"
            )
        given: dict[str, Value] = {}
        handles: set[str] = set()
        for arg, i in zip(args[first:], bound, strict=True):
            kind = self.kind(i) if 0 <= i < len(self.graph.nodes) else ""
            if i == index:
                handles.add(arg.name)
            elif kind == "constant":
                given[arg.name] = self.constant(i)
            elif kind == "asset":
                given[arg.name] = self.asset(i)
        return filled_by(proto.node_def, handles, given, self.library)

    def asset(self, index: int) -> Path:
        """The file of an asset.

        **Raises:** `MalformedModelError` if the model does not have it.
        """
        name = self.asset_name(index)
        file = self._files.found.get(PurePosixPath(name))
        if file is None:
            raise MalformedModelError(f"{self._directory}: the asset {name!r} is missing")
        return file

    def asset_name(self, index: int) -> str:
        """The path of an asset in the folder of the model."""
        number = self.graph.nodes[index].asset.asset_file_def_index
        if not 0 <= number < len(self.meta.asset_file_def):
            raise MalformedModelError(f"{self._directory}: there is no asset {number}")
        return f"assets/{self.meta.asset_file_def[number].filename}"


def has_type(value: np.ndarray, shape: Sequence[int | None] | None, kind: int) -> bool:
    """Return whether an array has the type of a `DataType`, and a shape where that is known."""
    fits = shape is None or fits_shape(value.shape, shape)
    return fits and value.dtype == decode_dtype(kind)


def _type_of(parameters: Sequence[Parameter]) -> types.SimpleNamespace:
    return types.SimpleNamespace(parameters={p.name: p for p in parameters})


def checkpoint_of(files: Files, directory: Path) -> Checkpoint:
    """The checkpoint of a model.

    **Raises:** `MalformedModelError` if it is missing.
    """
    index = files.found.get(PurePosixPath("variables", "variables.index"))
    if index is None:
        raise MalformedModelError(f"{directory}: variables/variables.index is missing")

    def shard(number: int, count: int) -> Path | None:
        name = f"variables.data-{number:05d}-of-{count:05d}"
        return files.found.get(PurePosixPath("variables", name))

    return Checkpoint(index, shard)


def captured(
    objects: SavedObjects, index: int, location: str
) -> np.ndarray | StoredTable | Problem | None:
    """The value that a function captures with an object; `None` for a variable."""
    kind = objects.kind(index)
    if kind == "variable":
        return None
    if kind == "constant":
        return objects.constant(index)
    if kind == "asset":
        return np.array(objects.asset_name(index).encode(), object)
    if kind == "resource" and (table := objects.table(index)) is not None:
        return table
    return Problem(
        "tf.Placeholder",
        f"captures a {kind or 'value'} that is not a variable",
        location,
        "Move it out of the function.",
    )
