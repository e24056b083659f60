"""Decides whether TensorFlow may load a SavedModel: everything its loader runs must be harmless.

`tf.saved_model.load` runs parts of a model (TensorFlow 2.21):

- tensorflow/python/saved_model/load.py calls functions that create, fill and destroy tables, and
  those by which objects save and restore themselves.
- tensorflow/python/saved_model/load_v1_in_v2.py runs the restore op and the init op of version 1,
  or, without an init op, the initializers of tables and local variables.
- Both build graphs, which infers shapes: constants that determine a shape are computed, by any op
  that is not stateful (ShapeRefiner in tensorflow/core/common_runtime).

This code may consist of the ops listed here and of those that a conversion may compute anyway.
Everything else is refused before TensorFlow sees the model. Only the assets of the model may be
read as files.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from invert._errors import Problem
from invert._private.tensorflow import tf_restored_class
from invert.frontends.folder import assets_of
from invert.ir.order import reached
from invert.protos.messages import M, message
from invert.protos.ops import op_def
from invert.protos.types import (
    FunctionDef,
    GraphDef,
    MetaGraphDef,
    NodeDef,
    SavedModel,
    SavedUserObject,
    TrackableObjectGraph,
    VariableDef,
)
from invert.tf.fallback.host_ops import ON_TEXT, PURE, REFUSED
from invert.tf.graph.check import data_inputs
from invert.tf.interpreter.registry import REGISTRY
from invert.tf.ops.node import functions_in, import_tensorflow

if TYPE_CHECKING:
    from invert.protos.containers import Messages

# Children of restored objects that the loader calls.
_CALLED = frozenset(("_create_resource", "_initialize", "_destroy_resource"))
# Children that the loader calls on optimizers only.
_OF_OPTIMIZERS = frozenset(("add_slot", "_create_or_restore_slot_variable"))
# Names under which TensorFlow registers its own saveable classes.
_REGISTERED = frozenset(("", "tf.StaticHashTable", "tf.TrackableConstant"))
_LISTS = frozenset(("trackable_list_wrapper", "trackable_tuple_wrapper"))
_CONTAINERS = _LISTS | {"trackable_dict_wrapper", "signature_map"}
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Run if a model of version 1 has no init op.
_DEFAULT_COLLECTIONS = ("table_initializer", "local_resources", "resources")

# Ops that read a file, and the index of the input that names it.
_READS = {
    "InitializeTableFromTextFile": 1,
    "InitializeTableFromTextFileV2": 1,
    "Restore": 0,
    "RestoreSlice": 0,
    "RestoreV2": 0,
}
_CALLS = frozenset(
    ("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf")
)
# Ops that only have local state or act on tables and variables.
_HARMLESS = frozenset(
    """
    AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable
    AnonymousMutableHashTableOfTensors Assert Assign AssignAddVariableOp AssignSubVariableOp
    AssignVariableOp DestroyResourceOp HashTable HashTableV2 InitializeTable InitializeTableV2
    IsVariableInitialized LookupTableExport LookupTableExportV2 LookupTableFind LookupTableFindV2
    LookupTableImport LookupTableImportV2 LookupTableInsert LookupTableInsertV2 LookupTableRemoveV2
    LookupTableSize LookupTableSizeV2 Merge MutableDenseHashTable MutableDenseHashTableV2
    MutableHashTable MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
    Placeholder PlaceholderV2 RandomStandardNormal RandomUniform RandomUniformInt ReadVariableOp
    Switch TruncatedNormal VarHandleOp VarIsInitializedOp Variable VariableV2 VariableShape _Arg
    _Retval
    """.split()
)
# Ops with a rule that write their input to a file if an attribute says so.
_DEBUGGING = frozenset(("Copy", "CopyHost", "DebugGradientIdentity", "DebugIdentity"))
# Ops that end a constant part of a graph. Iterators over datasets are stateful.
_FLOW = frozenset(
    """
    Enter Exit LoopCond Merge NextIteration Placeholder PlaceholderV2 PlaceholderWithDefault
    RefEnter RefExit RefMerge RefNextIteration RefSwitch Switch
    """.split()
)
# Filling tables never needs more; calls that double at each level would.
_MOST_NODES = 10_000_000
# Limits on what a file may declare without containing it: constant elements, digits of list
# indices.
_MOST_ELEMENTS = 1 << 28
_MOST_DIGITS = 7

_REMEDY = "Export the model without it."


def load_problems(proto: SavedModel) -> list[Problem]:
    """Problems: code that TensorFlow's loader would run, not known to be harmless."""
    problems: dict[Problem, None] = {}
    # If there are several graphs, the loader ignores their objects.
    alone = len(proto.meta_graphs) == 1
    for meta in proto.meta_graphs:
        check = _Check(meta, objects=alone and meta.HasField("object_graph_def"))
        problems.update(dict.fromkeys(check.problems()))
        problems.update(dict.fromkeys(_import_problems(meta.graph_def)))
    return list(problems)


def checkpoint_problems(prefix: str) -> list[Problem]:
    """Problems: Python code that TensorFlow would call to restore variables from `prefix`."""
    tf = import_tensorflow()
    try:
        text = tf.train.load_checkpoint(prefix).get_tensor(_OBJECT_GRAPH)
    except (LookupError, TypeError, ValueError, RuntimeError, tf.errors.OpError):
        return []  # not of version 2, or damaged, which the loader reports
    graph = _parsed(TrackableObjectGraph, text)
    return [
        Problem(
            "object",
            f"is restored by {node.registered_saver.name!r}, which is Python code",
            f"object {number} of the variables",
            _REMEDY,
        )
        for number, node in enumerate(graph.nodes)
        if node.registered_saver.name
    ]


def sever(proto: SavedModel) -> bool:
    """Keep TensorFlow from running unknown ops during shape inference.

    A placeholder with default is inserted before each such op with constant inputs. Shape inference
    does not look through it; a run passes the inputs on.

    **Returns:** whether there were any.
    """
    changed = False
    for meta in proto.meta_graphs:
        for nodes, output, _, found in _computed(meta.graph_def):
            for node in found:
                definition = op_def(node.op)
                # Nodes without inputs were refused earlier.
                if definition is None or not definition.input_arg or not node.input:
                    continue
                arg = definition.input_arg[0]
                given = node.attr[arg.type_list_attr or arg.type_attr]
                first = given.list.type[0] if given.list.type else given.type
                taken = {n.name for n in nodes}
                name = next(n for i in itertools.count() if (n := f"given_{i}") not in taken)
                placeholder = nodes.add(name=name, op="PlaceholderWithDefault")
                placeholder.input.append(node.input[0])
                placeholder.attr["dtype"].type = arg.type or first
                placeholder.attr["shape"].shape.unknown_rank = True
                node.input[0] = name + output
                changed = True
    return changed


def _import_problems(graph: GraphDef) -> Iterator[Problem]:
    """Problems: ops that importing a `GraphDef` would run and `sever` cannot prevent."""
    for _, _, where, found in _computed(graph):
        for node in found:
            if not data_inputs(node):
                yield _problem(node, where, _reason(node.op))


def _computed(graph: GraphDef) -> Iterator[tuple[Messages[NodeDef], str, str, list[NodeDef]]]:
    """The bodies of a graph, each with unknown ops that shape inference would run.

    **Returns:** the nodes, the suffix of an output after its node's name, the name of the body,
    and those ops.
    """
    functions = {f.signature.name for f in graph.library.function}
    bodies = [(graph.node, "", "the graph")]
    bodies += [
        (f.node_def, ":output:0", f"function {f.signature.name!r}") for f in graph.library.function
    ]
    for nodes, output, where in bodies:
        unknown = [n for n in nodes if not _settles(n.op) and n.op not in functions]
        if not unknown:
            continue
        inner = {n.name: n for n in nodes}
        used = {_source(text) for n in nodes for text in data_inputs(n)}
        yield (
            nodes,
            output,
            where,
            [n for n in unknown if n.name in used and _is_constant(n, inner)],
        )


class _Check:
    """The parts of a `MetaGraphDef` that loading runs.

    **Arguments:**

    - `objects`: whether the loader uses its objects, or the collections of version 1.
    """

    def __init__(self, meta: MetaGraphDef, *, objects: bool):
        self.meta = meta
        self.objects = objects
        self.functions = {f.signature.name: f for f in meta.graph_def.library.function}
        # TensorFlow may substitute another function that claims to do the same.
        self.same: dict[bytes, list[str]] = {}
        for name, function in self.functions.items():
            if key := _implements(function):
                self.same.setdefault(key, []).append(name)

    def problems(self) -> Iterator[Problem]:
        calls: list[_Call] = []
        if self.objects:
            found, calls = self._called_on_objects()
            yield from found
        else:
            nodes = {n.name: n for n in self.meta.graph_def.node}
            assets = frozenset(_tensor(a.tensor_info.name) for a in assets_of(self.meta))
            saver = self.meta.saver_def
            prefix = frozenset((_tensor(saver.filename_tensor_name),))
            for roots, files, where in (
                (self._init_nodes(), assets, "the init op"),
                ([saver.restore_op_name], prefix, "the restore op"),
            ):
                for node in _ancestors(nodes, roots, files):
                    yield from self._problems(node, nodes, files, where)
                    calls += self._calls(node, nodes, files)
        seen: set[_Call] = set()
        for name, arguments in (pending := list(calls)):
            if (name, arguments) in seen or name not in self.functions:
                continue
            seen.add((name, arguments))
            function = self.functions[name]
            inner = {n.name: n for n in function.node_def}
            inputs = function.signature.input_arg
            files = frozenset(a.name for i, a in enumerate(inputs) if i in arguments)
            for node in function.node_def:
                yield from self._problems(node, inner, files, f"function {name!r}")
                # The list grows during the loop.
                pending += self._calls(node, inner, files)
        yield from self._too_much({name for name, _ in seen})

    def _called_on_objects(self) -> tuple[list[Problem], list[_Call]]:
        """Malformed objects, and the functions that loading calls on objects."""
        graph = self.meta.object_graph_def
        nodes = {n.name: n for n in self.meta.graph_def.node}
        problems: list[Problem] = []
        calls: list[_Call] = []

        def refuse(reason: str, place: str) -> None:
            problems.append(Problem("object", reason, place, _REMEDY))

        def call(index: int, place: str) -> None:
            names = []
            if 0 <= index < len(graph.nodes):
                called = graph.nodes[index]
                names = [
                    *called.function.concrete_functions,
                    called.bare_concrete_function.concrete_function_name,
                ]
            if not any(names):
                refuse("is called while TensorFlow loads the model, but is not a function", place)
            calls.extend((name, self._asset_arguments(name)) for name in names if name)

        for number, node in enumerate(graph.nodes):
            place = f"object {number} of the SavedModel"
            if node.registered_name not in _REGISTERED:
                refuse(f"is of class {node.registered_name!r}, not of TensorFlow's own", place)
            for name, saver in sorted(node.saveable_objects.items()):
                call(saver.save_function, f"save function {name!r} of {place}")
                call(saver.restore_function, f"restore function {name!r} of {place}")
            if node.constant.operation in nodes:
                tensor = nodes[node.constant.operation].attr["value"].tensor
                if math.prod(d.size for d in tensor.tensor_shape.dim) > _MOST_ELEMENTS:
                    refuse(f"is a constant of more than {_MOST_ELEMENTS} elements", place)
            is_container = _is_container(node.user_object)
            reserved = _reserved(node.WhichOneof("kind") or "user_object")
            for child in (*node.children, *node.dependencies):
                name = child.local_name
                if is_container:
                    # A list is allocated up to the index of its last item.
                    if node.user_object.identifier in _LISTS and len(name) > _MOST_DIGITS:
                        refuse(f"is item {name} of a list", f"child of {place}")
                elif name in _CALLED:
                    call(child.node_id, f"{name!r} of {place}")
                elif name in reserved:
                    refuse(f"hides {name!r}, which TensorFlow itself calls", f"child of {place}")
        return problems, calls

    def _asset_arguments(self, name: str) -> frozenset[int]:
        """The arguments of a function bound to assets; bound arguments come last."""
        graph = self.meta.object_graph_def
        if name not in self.functions or name not in graph.concrete_functions:
            return frozenset()
        bound = graph.concrete_functions[name].bound_inputs
        first = len(self.functions[name].signature.input_arg) - len(bound)
        return frozenset(
            first + i
            for i, node in enumerate(bound)
            if 0 <= node < len(graph.nodes) and graph.nodes[node].WhichOneof("kind") == "asset"
        )

    def _init_nodes(self) -> list[str]:
        meta = self.meta
        names = []
        for key in (*_INIT_COLLECTIONS, *_DEFAULT_COLLECTIONS):
            if key in meta.collection_def:
                names += meta.collection_def[key].node_list.value
        if _INIT_SIGNATURE in meta.signature_def:
            names += [t.name for t in meta.signature_def[_INIT_SIGNATURE].outputs.values()]
        if "local_variables" in meta.collection_def:
            for data in meta.collection_def["local_variables"].bytes_list.value:
                variable = _parsed(VariableDef, data)
                names.append(variable.initializer_name)
        return names

    def _calls(
        self, node: NodeDef, nodes: Mapping[str, NodeDef], files: frozenset[str]
    ) -> list[_Call]:
        """The functions that a node refers to, with the arguments of a plain call."""
        given: frozenset[int] = frozenset()
        if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
            data = data_inputs(node)
            given = frozenset(i for i, text in enumerate(data) if _is_given(text, nodes, files))
        return [(name, given) for name in self._names(node)]

    def _names(self, node: NodeDef) -> list[str]:
        # The op of a node may be a function.
        names = [*functions_in(node.attr), node.op]
        for name in tuple(names):
            if name in self.functions:
                names += self.same.get(_implements(self.functions[name]), [])
        return names

    def _problems(
        self, node: NodeDef, nodes: Mapping[str, NodeDef], files: frozenset[str], where: str
    ) -> Iterator[Problem]:
        if node.op in _READS:
            data = data_inputs(node)
            place = _READS[node.op]
            if place >= len(data) or not _is_given(data[place], nodes, files):
                yield _problem(node, where, "reads a file that does not belong to the model")
        elif not (node.op in self.functions or node.op in _HARMLESS | _CALLS or _is_pure(node.op)):
            yield _problem(node, where, _reason(node.op))

    def _too_much(self, names: Iterable[str]) -> Iterator[Problem]:
        """Functions that are recursive or do not end."""
        costs: dict[str, int] = {}
        entered: set[str] = set()
        for root in names:
            pending = [root]
            while pending:
                name = pending[-1]
                if name in costs:
                    pending.pop()
                    continue
                inner = [
                    called
                    for node in self.functions[name].node_def
                    for called in self._names(node)
                    if called in self.functions
                ]
                waiting = [called for called in inner if called not in costs]
                if name in entered and waiting:
                    costs[name] = 0
                    reason = "calls itself while TensorFlow loads the model"
                    yield Problem("function", reason, f"function {name!r}", _REMEDY)
                elif waiting:
                    entered.add(name)
                    pending += waiting
                else:
                    cost = len(self.functions[name].node_def) + sum(costs[n] for n in inner)
                    # Reported once for all callers.
                    costs[name] = min(cost, _MOST_NODES)
                    if cost > _MOST_NODES > max([costs[n] for n in inner], default=0):
                        reason = f"would run more than {_MOST_NODES} ops while the model is loaded"
                        yield Problem("function", reason, f"function {name!r}", _REMEDY)


# A function, and the arguments that are files of the model.
_Call = tuple[str, frozenset[int]]


def _is_container(user_object: SavedUserObject) -> bool:
    """Return whether the children of an object are separate from its attributes."""
    version = user_object.version
    # For another version, TensorFlow creates a plain object.
    usual = (version.producer, version.min_consumer, *version.bad_consumers) == (1, 1)
    return usual and user_object.identifier in _CONTAINERS


def _problem(node: NodeDef, where: str, reason: str) -> Problem:
    return Problem(
        f"tf.{node.op}",
        f"would run while TensorFlow loads the model, and {reason}",
        f"node {node.name!r} of {where}",
        _REMEDY,
    )


def _reason(op: str) -> str:
    if op in REFUSED:
        return REFUSED[op].partition(",")[0]
    definition = op_def(op)
    if definition is not None and definition.is_stateful:
        return "has an effect"
    return "may have effects"


@functools.lru_cache(maxsize=4096)
def _is_pure(op: str) -> bool:
    """Return whether a conversion can compute the op without side effects."""
    if op in PURE or op in ON_TEXT:
        return True
    if op in _DEBUGGING or REGISTRY.get(op) is None:
        return False
    definition = op_def(op)
    return (
        definition is not None
        and not definition.is_stateful
        and not any(a.type in ("func", "list(func)") for a in definition.attr)
    )


@functools.lru_cache(maxsize=4096)
def _settles(op: str) -> bool:
    """Return whether shape inference may safely compute the op, or never does."""
    if op in _FLOW or op in _CALLS or _is_pure(op):
        return True
    definition = op_def(op)
    # Datasets are read by iterators, which are stateful.
    is_dataset = op.rstrip("0123456789").removesuffix("V").endswith("Dataset")
    return definition is None or definition.is_stateful or is_dataset


def _is_constant(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Return whether a node depends only on constants that TensorFlow folds."""

    def operands(name: str) -> Iterator[str]:
        return map(_source, data_inputs(nodes[name]) if name in nodes else ())

    def folds(node: NodeDef) -> bool:
        definition = op_def(node.op)
        return definition is not None and not definition.is_stateful and node.op not in _FLOW

    # Without a node it is an argument.
    return all(name in nodes and folds(nodes[name]) for name in reached([node.name], operands))


def _source(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]


def _tensor(text: str) -> str:
    """The name of a tensor, as nodes write their inputs."""
    return text.removesuffix(":0")


def _ancestors(
    nodes: Mapping[str, NodeDef], roots: Sequence[str], fed: frozenset[str]
) -> Iterator[NodeDef]:
    """`roots` and all nodes that they depend on by data or control edges."""

    def sources(texts: Iterable[str]) -> Iterator[str]:
        return (n for t in texts if _tensor(t) not in fed and (n := _source(t)) in nodes)

    return (nodes[name] for name in reached(sources(roots), lambda n: sources(nodes[n].input)))


def _implements(function: FunctionDef) -> bytes:
    return function.attr["api_implements"].s if "api_implements" in function.attr else b""


def _is_given(text: str, nodes: Mapping[str, NodeDef], files: frozenset[str]) -> bool:
    """Return whether a value is the name of an asset, passed through identities only."""
    seen: set[str] = set()
    while _tensor(text) not in files:
        name = _source(text)
        if name in seen or name not in nodes or nodes[name].op != "Identity":
            return False
        seen.add(name)
        text = nodes[name].input[0] if nodes[name].input else ""
    return True


def _parsed(kind: type[M], data: bytes) -> M:
    """Parse a message; damaged bytes result in an empty one, which TensorFlow reports."""
    from google.protobuf.message import DecodeError

    made = message(kind)()
    try:
        made.ParseFromString(data)
    except DecodeError:
        made.Clear()
    return made


@functools.cache
def _reserved(kind: str) -> frozenset[str]:
    """Attributes that TensorFlow uses to load an object, which a child would hide."""
    names = {name for base in tf_restored_class(kind).__mro__ for name in vars(base)}
    return frozenset(names - {"__call__"} | _OF_OPTIMIZERS)
