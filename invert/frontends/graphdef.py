"""Reads bare graphs: `GraphDef` protos with the names of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from invert._config import Config
from invert._entry import ArgSpec, EntryPoint, Param, unique
from invert._errors import MalformedModelError, SignatureError, UnsupportedOpError, nested_too_deep
from invert.frontends.graph_entry import graph_entry, without_text
from invert.frontends.signature import Signature, numbered
from invert.frontends.weights import check_mapping
from invert.ir.types import Tree
from invert.protos.ops import op_def
from invert.protos.tensors import decode_dtype, decode_shape, is_type, value_type
from invert.protos.types import NodeDef
from invert.tf.graph.check import parse_tensor
from invert.tf.graph.library import Library
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.definition import type_at
from invert.tf.ops.form import form_of


@nested_too_deep("the graph")
def entry_point(
    graph_def: object,
    inputs: Sequence[str] | Mapping[str, str],
    outputs: Sequence[str] | Mapping[str, str],
    *,
    variables: Mapping[str, np.ndarray] | None = None,
    stored: Mapping[str, Param] | None = None,
    config: Config,
    strict: bool = True,
) -> EntryPoint:
    """The entry point of a graph; see `invert.convert_graphdef`.

    **Arguments:**

    - `stored`: the variables of a checkpoint, which count where `variables` has none.
    - `strict`: whether ops that cannot be raised are an error; otherwise they are its `problems`.

    **Raises:** `MalformedModelError`, `SignatureError`, `UnsupportedOpError`,
        `MissingDependencyError`.
    """
    library = Library.of(graph_def)
    for what, given in (("inputs", inputs), ("outputs", outputs)):
        _check_names(library, what, given)
    _check_fed(list(inputs.values() if isinstance(inputs, Mapping) else inputs))
    named = dict(inputs) if isinstance(inputs, Mapping) else {n: n for n in inputs}
    variables = {} if variables is None else variables
    check_mapping(variables, "variables")
    specs = _specs(library, named)
    graph = Graph(
        library,
        [full(t) for t in named.values()],
        [full(t) for t in (outputs.values() if isinstance(outputs, Mapping) else outputs)],
        config=config,
        op_def=op_def,
    )
    signature = without_text(
        graph, Signature(tuple(specs.values()), {}, tuple(specs), tuple(range(len(specs))))
    )
    program = Analysis(graph)
    if (problems := program.problems()) and strict:
        raise UnsupportedOpError(problems)
    keys = list(outputs) if isinstance(outputs, Mapping) else None
    order = sorted(range(len(outputs)), key=lambda i: keys[i]) if keys else range(len(outputs))
    structure: Tree = dict.fromkeys(keys, 0) if keys is not None else (0,) * len(outputs)
    if keys is None and len(outputs) == 1:
        structure = 0
    return graph_entry(
        program,
        signature,
        (
            tuple(order),
            jax.tree_util.tree_structure(structure),
            numbered(structure),
            [np.dtype(np.int32)] * len(outputs),
        ),
        [],
        [],
        name="graph",
        source="GraphDef",
        problems=problems,
        variables={
            **(stored or {}),
            **{n: Param(n, np.asarray(v)) for n, v in variables.items()},
        },
    )


def ends(graph_def: object) -> tuple[list[str], list[str]]:
    """The placeholders of a graph, and the nodes without users, presumably its outputs.

    **Raises:** `MalformedModelError` if the bytes are not a graph.
    """
    nodes = Library.of(graph_def).graph.node
    used = {i.lstrip("^").partition(":")[0] for n in nodes for i in n.input}
    inputs = [n.name for n in nodes if n.op == "Placeholder"]
    outputs = [n.name for n in nodes if n.name not in used and n.op not in ("Placeholder", "NoOp")]
    return [full(n) for n in inputs], [full(n) for n in outputs]


def full(tensor: str) -> str:
    """`x:0` for `x`."""
    return tensor if ":" in tensor else f"{tensor}:0"


def _check_names(library: Library, what: str, given: object) -> None:
    """Check names of tensors that the caller gives, before they count as parts of the graph.

    **Raises:** `SignatureError`.
    """
    is_mapping = isinstance(given, Mapping)
    if not is_mapping and (isinstance(given, str) or not isinstance(given, Sequence)):
        raise SignatureError(
            f"{what} is {given!r}",
            remedy="Give a list of names of tensors, as in `['x:0']`, or a mapping to them.",
        )
    nodes = {node.name: node for node in library.graph.node}
    remedy = "Name an output of a node, as in `x:0`; `invert inspect` lists some."
    for tensor in given.values() if is_mapping else given:
        node = nodes.get(tensor.partition(":")[0]) if isinstance(tensor, str) else None
        if node is None:
            reason = f"the graph has no node {tensor!r}, named among the {what}"
            raise SignatureError(reason, remedy=remedy)
        if not _has_output(node, tensor):
            reason = f"{tensor!r}, named among the {what}, is not an output of node {node.name!r}"
            raise SignatureError(reason, remedy=remedy)
    if is_mapping and (wrong := [name for name in given if not isinstance(name, str)]):
        raise SignatureError(f"`{what}` has keys that are not text: {wrong}", remedy="Name them.")


def _has_output(node: NodeDef, tensor: str) -> bool:
    """Return whether a name stands for an output of its node; true for unknown ops."""
    try:
        _, output, number = parse_tensor(tensor)
    except MalformedModelError:
        return False
    definition = op_def(node.op)
    if output or definition is None:
        return True
    form = form_of(node, definition)
    return bool(form.problems) or type_at(form.outputs, number) is not None


def _check_fed(tensors: Sequence[str]) -> None:
    """Check that no tensor is fed twice.

    **Raises:** `SignatureError`.
    """
    fed = [full(tensor) for tensor in tensors]
    if twice := [name for i, name in enumerate(fed) if name in fed[:i]]:
        raise SignatureError(f"{twice[0]!r} is fed twice", remedy="Name each tensor once.")


def _specs(library: Library, named: Mapping[str, str]) -> dict[str, ArgSpec]:
    """The types of the tensors that are fed, by the names of the arguments."""
    nodes = {n.name: n for n in library.graph.node}
    specs: dict[str, ArgSpec] = {}
    taken: set[str] = set()
    for name, tensor in named.items():
        node, number = nodes[tensor.partition(":")[0]], parse_tensor(tensor)[2]
        plain = unique(name.partition(":")[0].replace("/", "_"), taken)
        specs[plain] = _spec(plain, node, number)
    return specs


def _spec(name: str, node: NodeDef, number: int) -> ArgSpec:
    """The type of an output of a node, as an argument."""
    kind = _kind(node, number)
    if not is_type(kind):
        raise SignatureError(
            f"the type of input {name!r} is not known", remedy="Name a Placeholder as the input."
        )
    dtype = decode_dtype(kind)
    shapes = list(node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ())
    if "shape" in node.attr and number == 0:
        shapes = [node.attr["shape"].shape]
    shape = decode_shape(shapes[number]) if number < len(shapes) else None
    if shape is None and dtype.kind != "O":
        raise SignatureError(
            f"input {name!r} has no fixed rank", remedy="Give its Placeholder a shape."
        )
    return ArgSpec(name, shape or (), dtype)


def _kind(node: NodeDef, number: int) -> int:
    """The `DataType` of an output; that of an unknown op is the one it names; 0 if unknown."""
    definition = op_def(node.op)
    if definition is None:
        key = "dtype" if "dtype" in node.attr else "T"
        return node.attr[key].type if key in node.attr else 0
    form = form_of(node, definition)
    return 0 if form.problems else value_type(type_at(form.outputs, number) or 0)
