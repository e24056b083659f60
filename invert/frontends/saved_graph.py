"""Reads SavedModels of version 1: a graph, signatures that name its tensors, and variables.

The ops that would restore a variable determine its value in the checkpoint; they are inspected, not
run. If a model has none, TensorFlow uses the names of the variables.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from invert._config import Config
from invert._entry import EntryPoint, Param
from invert._errors import MalformedModelError, Problem, UnsupportedOpError, nested_too_deep
from invert.checkpoint.bundle import Checkpoint, Slice
from invert.frontends.folder import Files, assets_of
from invert.frontends.graph_entry import check_count, function_entry
from invert.frontends.graphdef import full
from invert.frontends.saved_objects import checkpoint_of, has_type
from invert.frontends.signature import read_outputs, read_signature
from invert.frontends.structured import CompositeSpec, TensorSpec, plain_parameters, sparse_spec
from invert.frontends.tables import filled_by
from invert.ir.avals import type_text
from invert.ir.order import reached
from invert.ir.types import CallArguments, Tree
from invert.protos.messages import parse
from invert.protos.ops import op_def
from invert.protos.tensors import decode_dtype, decode_shape, decode_tensor, type_name, value_type
from invert.protos.types import MetaGraphDef, NodeDef, SignatureDef, TensorInfo, VariableDef
from invert.tf.fallback.host import StoredTable
from invert.tf.gradients.saved import SavedGradients
from invert.tf.graph.check import past_identities
from invert.tf.graph.library import Library
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph

VARIABLES = frozenset(("VarHandleOp", "Variable", "VariableV2"))
_ASSIGNS = frozenset(("Assign", "AssignVariableOp"))
# Signatures that TensorFlow itself adds, for loading and training.
_INTERNAL = "__saved_model_"
_INIT = "__saved_model_init_op"
_TABLES = frozenset(("HashTable", "HashTableV2"))


def readers(
    meta: MetaGraphDef, library: Library, files: Files, directory: Path, config: Config
) -> dict[str, Callable[[str, bool], EntryPoint]]:
    """A reader for each signature of a graph, by name.

    **Arguments:**

    - `meta`: the `MetaGraphDef`.
    """
    variables = _Variables(meta, library, files, directory)
    tables = _tables(meta, library, files)
    gradients = SavedGradients(library, meta.object_graph_def)

    @nested_too_deep("the signature")
    def read(name: str, strict: bool) -> EntryPoint:
        signature = _Signature.of(meta.signature_def[name], f"signature {name!r} of {directory}")
        filled = [t for t in tables if f"{t}:0" not in signature.inputs]
        arguments = read_signature(signature)
        check_count(name, len(signature.inputs), arguments)
        program = Graph(
            library,
            [*signature.inputs, *(f"{t}:0" for t in filled)],
            [tensor for tensor, _ in signature.outputs],
            config=config,
            op_def=op_def,
            read_gradient=gradients.read,
        )
        wanted = [n for n in Analysis(program).nodes if n.op in VARIABLES]
        return function_entry(
            program,
            arguments,
            read_outputs(signature),
            signature.outputs,
            [tables[t] for t in filled],
            [],
            name=name,
            source=f"SavedModel {directory.name}, signature {name}",
            strict=strict,
            variables=variables.params({n.name for n in wanted if not n.where}),
        )

    return {n: read for n in sorted(meta.signature_def) if not n.startswith(_INTERNAL)}


def _tables(meta: MetaGraphDef, library: Library, files: Files) -> dict[str, StoredTable]:
    """The hash tables that loading fills from constants or assets, by node."""
    nodes = {n.name: n for n in library.graph.node}
    started = [text for text in _started(meta) if text in nodes]
    run_first = reached(started, lambda name: (s for s in _sources(nodes[name]) if s in nodes))
    assets: dict[str, Path] = {}
    for asset in assets_of(meta):
        file = files.found.get(PurePosixPath("assets", asset.filename))
        if file is not None:
            assets[asset.tensor_info.name.partition(":")[0]] = file
    # Only the ops that run on loading: lookups use the same handles.
    run = [n for n in library.graph.node if n.name in run_first or n.op == "Const"]
    tables: dict[str, StoredTable] = {}
    for name, node in nodes.items():
        if node.op in _TABLES and (filled := filled_by(run, {name}, assets, library)) is not None:
            tables[name] = StoredTable(filled.content, filled.size)
    return tables


def _sources(node: NodeDef | None) -> list[str]:
    """The nodes that a node uses or waits for."""
    return [text.removeprefix("^").partition(":")[0] for text in (node.input if node else ())]


def _started(meta: MetaGraphDef) -> Iterator[str]:
    """The nodes that TensorFlow runs on loading."""
    if _INIT in meta.signature_def:
        yield from (t.name.partition(":")[0] for t in meta.signature_def[_INIT].outputs.values())
        return
    for key in ("saved_model_main_op", "legacy_init_op"):
        if key in meta.collection_def:
            for text in meta.collection_def[key].node_list.value:
                yield text.partition(":")[0]
            return


@dataclasses.dataclass(frozen=True, eq=False)
class _Signature:
    """A `SignatureDef` in the form of a concrete function.

    **Attributes:**

    - `inputs`: the tensors that are fed.
    - `outputs`: the tensors that are returned, with their `DataType`.
    """

    inputs: list[str]
    outputs: list[tuple[str, int]]
    structured_input_signature: CallArguments
    structured_outputs: dict[str, Tree]
    function_type: types.SimpleNamespace

    @classmethod
    def of(cls, proto: SignatureDef, where: str) -> _Signature:
        kwargs: dict[str, TensorSpec] = {}
        inputs: list[str] = []
        for key in sorted(proto.inputs):
            spec, tensors = _tensors(proto.inputs[key], where)
            parts = spec.parts if isinstance(spec, CompositeSpec) else {"": spec}
            for (part, inner), (tensor, _) in zip(parts.items(), tensors, strict=True):
                name = f"{key}_{part}" if part else key
                if name in kwargs:
                    raise MalformedModelError(f"{where} has two inputs {name!r}")
                kwargs[name] = inner
                inputs.append(tensor)
        # Arguments are sorted by name.
        order = sorted(range(len(inputs)), key=lambda i: list(kwargs)[i])
        outputs: list[tuple[str, int]] = []
        results: dict[str, Tree] = {}
        for key in sorted(proto.outputs):
            results[key], tensors = _tensors(proto.outputs[key], where)
            outputs += tensors
        parameters = plain_parameters((), kwargs)
        return cls(
            [inputs[i] for i in order],
            outputs,
            ((), kwargs),
            results,
            types.SimpleNamespace(parameters={p.name: p for p in parameters}),
        )


def _tensors(info: TensorInfo, where: str) -> tuple[Tree, list[tuple[str, int]]]:
    """The type of a `TensorInfo`, and its tensors with their `DataType`."""
    kind = info.WhichOneof("encoding")
    if kind == "name" and info.name:
        dtype = value_type(info.dtype)  # of a result that is a variable
        spec = TensorSpec(decode_shape(info.tensor_shape), decode_dtype(dtype), type_name(dtype))
        return spec, [(full(info.name), dtype)]
    if kind == "coo_sparse":
        sparse = info.coo_sparse
        names = (
            sparse.indices_tensor_name, sparse.values_tensor_name, sparse.dense_shape_tensor_name
        )  # fmt: skip
        shape = decode_shape(info.tensor_shape)
        spec = sparse_spec(shape, info.dtype)
        return spec, list(zip(map(full, names), (_INT64, info.dtype, _INT64), strict=True))
    raise MalformedModelError(f"{where} has a tensor without a description")


_INT64 = 9


def variables_of(
    meta: MetaGraphDef, library: Library, files: Files, place: Path
) -> dict[str, Param]:
    """The variables of a graph that the checkpoint among `files` holds, by the names in its nodes.

    **Raises:** `MalformedModelError`, `UnsupportedOpError`.
    """
    nodes = {n.name for n in library.graph.node if n.op in VARIABLES}
    return _Variables(meta, library, files, place).params(nodes)


class _Variables:
    """The variables of a graph: names, values, and whether they are trained."""

    def __init__(self, meta: MetaGraphDef, library: Library, files: Files, directory: Path):
        self._meta = meta
        self._nodes = {n.name: n for n in library.graph.node}
        self._files = files
        self._directory = directory
        self._values: dict[str, np.ndarray] = {}  # read so far, by node

    @functools.cached_property
    def _checkpoint(self) -> Checkpoint:
        return checkpoint_of(self._files, self._directory)

    def params(self, nodes: set[str]) -> dict[str, Param]:
        """The variables that nodes represent, by the names in these nodes."""
        params: dict[str, Param] = {}
        for name in sorted(nodes):
            if name not in self._sources:
                continue
            key, part = self._sources[name]
            if name not in self._values:
                self._values[name] = self._checked(name, self._checkpoint.value(key, part))
            node = self._nodes[name]
            shared = node.attr["shared_name"].s.decode("utf-8", "surrogateescape")
            params[shared or name] = Param(
                shared or name, self._values[name], self._trained.get(name, True)
            )
        return params

    def _checked(self, name: str, value: np.ndarray) -> np.ndarray:
        attrs = self._nodes[name].attr
        if not has_type(value, decode_shape(attrs["shape"].shape), attrs["dtype"].type):
            raise MalformedModelError(
                f"{self._directory}: variable {name!r} has a different type from its value, "
                f"{type_text(value.dtype, value.shape)}"
            )
        return value

    def _listed(self, key: str) -> dict[str, VariableDef]:
        """The `VariableDef` messages of a collection by node, the first of each."""
        definitions: dict[str, VariableDef] = {}
        if key in self._meta.collection_def:
            for data in self._meta.collection_def[key].bytes_list.value:
                variable = parse(VariableDef, data, f"a variable of {self._directory}")
                definitions.setdefault(variable.variable_name.partition(":")[0], variable)
        return definitions

    @functools.cached_property
    def _defined(self) -> dict[str, VariableDef]:
        definitions: dict[str, VariableDef] = {}
        for key in ("trainable_variables", "local_variables", "variables"):
            definitions |= self._listed(key)
        return definitions

    @functools.cached_property
    def _trained(self) -> dict[str, bool]:
        trained = self._listed("trainable_variables")
        return {name: name in trained or v.trainable for name, v in self._defined.items()}

    @functools.cached_property
    def _sources(self) -> dict[str, tuple[str, Slice | None]]:
        """The checkpoint key and slice of each variable node."""
        restore = self._meta.saver_def.restore_op_name.partition(":")[0]
        if restore:
            return dict(self._restored(restore))
        if PurePosixPath("variables", "variables.index") not in self._files.found:
            return {}
        sources: dict[str, tuple[str, Slice | None]] = {}
        for name, variable in self._defined.items():
            part = None
            key = name
            if variable.HasField("save_slice_info_def"):
                info = variable.save_slice_info_def
                key = info.full_name
                part = list(zip(info.var_offset, info.var_shape, strict=False))
            if key in self._checkpoint:
                sources[name] = (key, part)
        return sources

    def _restored(self, restore: str) -> Iterator[tuple[str, tuple[str, Slice | None]]]:
        """The tensors that ops before a restore op assign to variables."""
        for name in reached([restore], lambda name: _sources(self._nodes.get(name))):
            node = self._nodes.get(name)
            if node is not None and node.op in _ASSIGNS and len(node.input) >= 2:
                handle, _ = past_identities(node.input[0], self._nodes)
                source, output = past_identities(node.input[1], self._nodes)
                origin = self._nodes.get(source)
                target = self._nodes.get(handle)
                if (
                    target is not None
                    and target.op in VARIABLES
                    and origin is not None
                    and origin.op == "RestoreV2"
                ):
                    yield handle, self._entry(origin, output)

    def _entry(self, node: NodeDef, output: int) -> tuple[str, Slice | None]:
        """The key and the part of one output of `RestoreV2`."""
        prefix = self._meta.saver_def.filename_tensor_name.partition(":")[0]
        if not node.input or past_identities(node.input[0], self._nodes)[0] != prefix:
            reason = "restores variables from a file that does not belong to the model"
            place = f"node {node.name!r} of {self._directory}"
            remedy = "Export the model with the values of its variables."
            raise UnsupportedOpError([Problem("tf.RestoreV2", reason, place, remedy)])
        texts = []
        for text in list(node.input)[1:3]:
            constant = self._nodes.get(past_identities(text, self._nodes)[0])
            if constant is None or constant.op != "Const":
                raise MalformedModelError(
                    f"{self._directory}: node {node.name!r} restores values whose names are not "
                    "constants"
                )
            texts.append(decode_tensor(constant.attr["value"].tensor, f"node {constant.name!r}"))
        if len(texts) != 2 or any(t.dtype != object or output >= t.size for t in texts):
            raise MalformedModelError(f"{self._directory}: node {node.name!r} is damaged")
        key, part = (t.ravel()[output].decode("utf-8", "replace") for t in texts)
        return key, _part(part, f"{self._directory}: node {node.name!r}") if part else None


def _part(text: str, where: str) -> Slice:
    """Parse a slice: the shape of the whole, then `start,length` for each axis."""
    extents = text.rpartition(" ")[2].split(":")
    parts: list[tuple[int, int] | None] = []
    for extent in extents:
        if extent == "-":
            parts.append(None)
        elif re.fullmatch(r"\d+,\d+", extent):
            start, _, length = extent.partition(",")
            parts.append((int(start), int(length)))
        else:
            raise MalformedModelError(f"{where} restores the slice {text!r}, which is invalid")
    return parts
