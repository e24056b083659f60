"""Whether TensorFlow may load a SavedModel: what its loader runs must not do any harm.

`tf.saved_model.load` runs functions that the model holds: those that make and fill its tables
(tensorflow/python/saved_model/load.py), or the init op of version 1
(tensorflow/python/saved_model/load_v1_in_v2.py, TensorFlow 2.21). A table may be filled from a file
of the model itself. Everything else with an effect, and all that reads files or runs Python, is
refused before TensorFlow sees the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..._errors import Problem
from ._eager import op_def
from ._host_ops import REFUSED

# Attributes of restored objects that the loader calls.
_CALLED = frozenset(("_create_resource", "_initialize", "_destroy_resource"))
# Collections and the signature of version 1 that name what runs after loading.
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_TABLE_FILES = frozenset(("InitializeTableFromTextFile", "InitializeTableFromTextFileV2"))
# Ops with an effect, which is on tables and variables only.
_HARMLESS = frozenset(
    """
    AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable
    AnonymousMutableHashTableOfTensors Assert Assign AssignVariableOp DestroyResourceOp HashTable
    HashTableV2 InitializeTable InitializeTableV2 LookupTableExportV2 LookupTableFind
    LookupTableFindV2 LookupTableImport LookupTableImportV2 LookupTableInsert LookupTableInsertV2
    LookupTableSize LookupTableSizeV2 MutableDenseHashTable MutableDenseHashTableV2
    MutableHashTable MutableHashTableOfTensors MutableHashTableOfTensorsV2 MutableHashTableV2
    PartitionedCall ReadVariableOp StatefulPartitionedCall VarHandleOp VarIsInitializedOp Variable
    VariableV2 _Arg _Retval
    """.split()
)


def load_problems(meta: Any) -> list[Problem]:
    """What the loader would run of a `MetaGraphDef` and must not."""
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    found: list[Problem] = []
    # A model with objects runs their functions, one of version 1 its init op.
    has_objects = meta.HasField("object_graph_def")
    pending = _called(meta) if has_objects else []
    nodes = {n.name: n for n in meta.graph_def.node}
    assets = {a.tensor_info.name.partition(":")[0] for a in meta.asset_file_def}
    for node in _ancestors(nodes, [] if has_objects else _init_nodes(meta)):
        found += _problems(node, nodes, assets, "the init op")
        pending += _calls(node, nodes, assets)
    seen: set[tuple[str, frozenset[int]]] = set()
    while pending:
        name, given_args = call = pending.pop()
        if call in seen or name not in functions:
            continue
        seen.add(call)
        function = functions[name]
        inner = {n.name: n for n in function.node_def}
        given = {a.name for i, a in enumerate(function.signature.input_arg) if i in given_args}
        for node in function.node_def:
            found += _problems(node, inner, given, f"function {name!r}")
            pending += _calls(node, inner, given)
    return list(dict.fromkeys(found))


# A function, and which of its arguments are files of the model.
_Call = tuple[str, frozenset[int]]


def _called(meta: Any) -> list[_Call]:
    """The functions that the loader calls."""
    graph = meta.object_graph_def
    calls: list[_Call] = []
    for node in graph.nodes:
        for child in node.children:
            if child.local_name not in _CALLED or child.node_id >= len(graph.nodes):
                continue
            restored = graph.nodes[child.node_id]
            names = [
                *restored.function.concrete_functions,
                restored.bare_concrete_function.concrete_function_name,
            ]
            calls += [(name, _asset_arguments(meta, name)) for name in names if name]
    return calls


def _asset_arguments(meta: Any, name: str) -> frozenset[int]:
    """The arguments of a function that are bound to assets; bound ones come last."""
    graph = meta.object_graph_def
    bound = (
        list(graph.concrete_functions[name].bound_inputs)
        if name in graph.concrete_functions
        else []
    )
    total = next(
        (len(f.signature.input_arg) for f in meta.graph_def.library.function
         if f.signature.name == name), 0
    )  # fmt: skip
    first = total - len(bound)
    return frozenset(
        first + i
        for i, node in enumerate(bound)
        if node < len(graph.nodes) and graph.nodes[node].WhichOneof("kind") == "asset"
    )


def _init_nodes(meta: Any) -> list[str]:
    names = []
    for key in _INIT_COLLECTIONS:
        if key in meta.collection_def:
            names += meta.collection_def[key].node_list.value
    if _INIT_SIGNATURE in meta.signature_def:
        names += [t.name for t in meta.signature_def[_INIT_SIGNATURE].outputs.values()]
    return [name.partition(":")[0] for name in names]


def _ancestors(nodes: dict[str, Any], roots: list[str]) -> Iterator[Any]:
    """The nodes that `roots` wait for, over data and control, and themselves."""
    pending, seen = list(roots), set(roots)
    while pending:
        name = pending.pop()
        if name not in nodes:
            continue
        yield nodes[name]
        for text in nodes[name].input:
            source = text.removeprefix("^").partition(":")[0]
            if source not in seen:
                seen.add(source)
                pending.append(source)


def _functions_of(node: Any) -> list[str]:
    names = []
    for value in node.attr.values():
        names += [value.func.name, *(f.name for f in value.list.func)]
    return [name for name in names if name]


def _calls(node: Any, nodes: dict[str, Any], given: set[str]) -> list[_Call]:
    """The functions that a node refers to, with what a plain call hands on to them."""
    files: frozenset[int] = frozenset()
    if node.op in ("PartitionedCall", "StatefulPartitionedCall"):
        data = [text for text in node.input if not text.startswith("^")]
        files = frozenset(i for i, text in enumerate(data) if _is_given(text, nodes, given))
    # A node may have a function for its op.
    return [(name, files) for name in (*_functions_of(node), node.op)]


def _problems(node: Any, nodes: dict[str, Any], given: set[str], where: str) -> Iterator[Problem]:
    reason = ""
    if node.op in _TABLE_FILES:
        if not _is_given(node.input[1], nodes, given):
            reason = "reads a file that is not one of the model"
    elif node.op in REFUSED:
        reason = REFUSED[node.op].partition(",")[0]
    elif node.op not in _HARMLESS:
        definition = op_def(node.op)
        if definition is not None and definition.is_stateful and not _functions_of(node):
            reason = "has an effect"
    if reason:
        yield Problem(
            f"tf.{node.op}",
            f"would run while TensorFlow loads the model, and {reason}",
            f"node {node.name!r} of {where}",
            "Export the model without it.",
        )


def _is_given(text: str, nodes: dict[str, Any], given: set[str]) -> bool:
    """Whether a value is an argument or an asset, passed on by identities only."""
    while True:
        name = text.partition(":")[0]
        if name in given:
            return True
        if name not in nodes or nodes[name].op != "Identity":
            return False
        text = nodes[name].input[0]
