"""Functions as TensorFlow 1 wrote them: called by ops of their name, with frames inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..primitives.tf import Node
from .tf_v1 import Made


def as_graph(function: Any, offset: Callable[[Node, str], int]) -> Made:
    """The body of a `FunctionDef` as a part of a graph, which names results by number alone."""
    nodes = {}
    for proto in function.node_def:
        nodes[proto.name] = Node(proto.op, proto.name, proto.attr, function.signature.name)

    def tensor(text: str) -> str:
        name, *rest = text.split(":")
        if len(rest) < 2:
            return text
        return f"{name}:{int(rest[1]) + offset(nodes[name], rest[0])}"

    copies = []
    for proto in function.node_def:
        copy = type(proto)()
        copy.CopyFrom(proto)
        copy.input[:] = map(tensor, proto.input)
        copies.append(copy)
    return Made(
        tuple(a.name for a in function.signature.input_arg),
        tuple(copies),
        tuple(tensor(function.ret[a.name]) for a in function.signature.output_arg),
        tuple(function.control_ret.values()),
    )


def with_calls(graph_def: Any) -> Any:
    """The `GraphDef` with `PartitionedCall` in the place of ops that are library functions."""
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
        for key, name in function.ret.items():
            function.ret[key] = _renamed(name, outputs)
    return new


def _rewrite(nodes: Iterable[Any], signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrites the calls among `nodes`; returns the signatures of what they call, by node."""
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


def _renamed(name: str, outputs: Mapping[str, Any]) -> str:
    """A reference to a result of a call, as to one of `PartitionedCall`: by its number."""
    node, _, place = name.partition(":")
    if node not in outputs or not place:
        return name
    output, _, index = place.partition(":")
    names = [a.name for a in outputs[node].output_arg]
    # Results of functions are single tensors: there are no lists to count.
    return f"{node}:output:{names.index(output) + int(index or 0)}" if output in names else name
