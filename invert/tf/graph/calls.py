"""TensorFlow 1 functions: called by ops of their name, with frames inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from invert.protos.types import FunctionDef, GraphDef, NodeDef, OpDef
from invert.tf.graph.check import parse_tensor
from invert.tf.graph.functionalize import MadeFunction
from invert.tf.ops.node import Node


def as_graph(
    function: FunctionDef, protos: Sequence[NodeDef], offset: Callable[[Node, str], int]
) -> MadeFunction:
    """Nodes as a `FunctionDef`, with outputs by number instead of by name, as in a graph."""
    nodes = {}
    for proto in protos:
        nodes[proto.name] = Node(proto.op, proto.name, proto.attr, function.signature.name)

    def tensor(text: str) -> str:
        if text.startswith("^"):
            return text
        name, output, number = parse_tensor(text)
        return f"{name}:{number + offset(nodes[name], output)}" if output else text

    copies = []
    for proto in protos:
        copy = type(proto)()
        copy.CopyFrom(proto)
        copy.input[:] = map(tensor, proto.input)
        copies.append(copy)
    return MadeFunction(
        tuple(a.name for a in function.signature.input_arg),
        tuple(copies),
        tuple(tensor(function.ret[a.name]) for a in function.signature.output_arg),
        tuple(function.control_ret.values()),
    )


def with_calls(graph_def: GraphDef) -> GraphDef:
    """The `GraphDef` with library functions called as ops replaced by `PartitionedCall`."""
    signatures = {f.signature.name: f.signature for f in graph_def.library.function}
    bodies = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    if not any(node.op in signatures for nodes in bodies for node in nodes):
        return graph_def
    new = type(graph_def)()
    new.CopyFrom(graph_def)
    _rewrite(new.node, signatures)
    for function in new.library.function:
        outputs = _rewrite(function.node_def, signatures)
        for node in function.node_def:
            for i, name in enumerate(node.input):
                node.input[i] = _renamed(name, outputs)
        for key, name in [*function.ret.items()]:  # a map that changes is not iterated
            function.ret[key] = _renamed(name, outputs)
    return new


def _rewrite(nodes: Iterable[NodeDef], signatures: Mapping[str, OpDef]) -> dict[str, OpDef]:
    """Rewrite the calls among `nodes`; return the signatures of their callees, by node."""
    found = {}
    for node in nodes:
        signature = signatures.get(node.op)
        if signature is None:
            continue
        found[node.name] = signature
        node.attr["f"].func.name = node.op
        node.op = "PartitionedCall"
        types = {"Tin": signature.input_arg, "Tout": signature.output_arg}
        for key, args in types.items():
            node.attr[key].list.type.extend(a.type or node.attr[a.type_attr].type for a in args)
    return found


def _renamed(name: str, outputs: Mapping[str, OpDef]) -> str:
    """A reference to a result of a call by number, as for `PartitionedCall`."""
    if name.startswith("^"):
        return name
    node, output, index = parse_tensor(name)
    if node not in outputs:
        return name
    names = [a.name for a in outputs[node].output_arg]
    # Results of functions are single tensors: there are no lists to count.
    return f"{node}:output:{names.index(output) + index}" if output in names else name
