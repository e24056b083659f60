"""Orders the nodes of a graph or function as a `Body`.

The order follows data and control edges, and otherwise the graph, where TensorFlow keeps nodes in
the order of their creation. It is found without recursion, so that graphs of 10^5 nodes work. A
node reached only by control edges runs if it has an effect.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence

from invert._errors import MalformedModelError, UnsupportedOpError
from invert.ir.order import postorder, topological
from invert.protos.ops import Definition
from invert.protos.types import FunctionDef, FunctionDefLibrary, NodeDef
from invert.tf.graph.check import parse_tensor
from invert.tf.ops.form import Form
from invert.tf.ops.node import CALLS, FRAMES_REMEDY, Body, Node

IsEffect = Callable[[Node], bool]
Offset = Callable[[Node, str], int]

_PREFERS = "api_preferred_device"
_NO_FORMS: Mapping[str, Form] = types.MappingProxyType({})


def function_body(
    function: FunctionDef,
    nodes: Iterable[NodeDef],
    offset: Offset,
    is_effect: IsEffect,
    forms: Mapping[str, Form],
) -> Body:
    """The body of a `FunctionDef` proto with these nodes; see `make_body`."""
    return make_body(
        function.signature.name,
        nodes,
        [a.name for a in function.signature.input_arg],
        [function.ret[a.name] for a in function.signature.output_arg],
        list(function.control_ret.values()),
        offset,
        is_effect,
        forms,
    )


def output_offset(
    node: Node, output: str, definition: Definition | None, functions: Mapping[str, FunctionDef]
) -> int:
    """The first tensor of a named output, as a `FunctionDef` numbers outputs.

    `definition`: that of its op; an unknown op is reported elsewhere, and never evaluated.
    `functions`: the library's; a function called as an op names its results itself.
    """
    if node.op in CALLS and output != "output":
        called = functions.get(node.attrs["f"].func.name)
        names = [a.name for a in called.signature.output_arg] if called is not None else []
        if output in names:
            return names.index(output)
    offset = 0
    for arg in definition.output_arg if definition is not None else ():
        if arg.name == output:
            return offset
        if arg.number_attr:
            offset += node.attr(arg.number_attr)
        elif arg.type_list_attr:
            offset += len(node.attr(arg.type_list_attr))
        else:
            offset += 1
    if definition is None:
        return 0
    raise MalformedModelError(f"tf.{node.op} ({node.location}) has no output {output!r}")


def make_body(
    name: str,
    protos: Iterable[NodeDef],
    args: Sequence[str],
    outputs: Sequence[str],
    control_outputs: Sequence[str],
    offset: Offset,
    is_effect: IsEffect,
    forms: Mapping[str, Form] = _NO_FORMS,
) -> Body:
    """The `Body` of some `NodeDef` protos.

    **Arguments:**

    - `name`: name of the function; empty for the outermost graph.
    - `args`: names of the arguments; nodes of these names are the arguments.
    - `outputs`: names of the results, as `node:0` or `node:output:0`.
    - `control_outputs`: names of further nodes that have to run.
    - `offset`: index of the first tensor of a named output.
    - `is_effect`: whether a node has side effects.
    - `forms`: the forms of nodes, by name, where known.

    **Raises:** `MalformedModelError` if a name does not exist.
    """
    nodes = [Node("_Arg", a, {}, name) for a in args]
    index = {a: i for i, a in enumerate(args)}
    wires: list[Sequence[str]] = [()] * len(args)
    for proto in protos:
        if proto.name not in index:  # the placeholder of an argument is the argument
            index[proto.name] = len(nodes)
            nodes.append(Node(proto.op, proto.name, proto.attr, name, forms.get(proto.name)))
            wires.append(proto.input)

    def find(key: str) -> int:
        if key not in index:
            raise MalformedModelError(f"the graph refers to a node {key!r} that it does not have")
        return index[key]

    def tensor(text: str) -> tuple[int, int]:
        if (plain := index.get(text)) is not None and ":" not in text:
            return plain, 0
        name, output, number = parse_tensor(text)
        i = find(name)
        return i, number + (offset(nodes[i], output) if output else 0)

    for node, texts in zip(nodes, wires, strict=True):
        node.inputs = tuple([tensor(t) for t in texts if t[:1] != "^"])
        node.control = tuple([find(t[1:]) for t in texts if t[:1] == "^"])
    for node in nodes:
        if node.op == "Assert":  # the string that it would print is not a value here
            node.message = _text([nodes[i] for i, _ in node.inputs[1:]])
            node.inputs = node.inputs[:1]
    results = tuple(tensor(t) for t in outputs)
    controls = tuple(find(c) for c in control_outputs)
    body = Body(name, tuple(nodes), tuple(range(len(args))), results, controls, ())
    return ordered(body, is_effect)


def _text(nodes: Sequence[Node]) -> str:
    """The constants among `nodes` that are strings."""
    texts = [t for n in nodes if n.op == "Const" for t in n.attrs["value"].tensor.string_val]
    return " ".join(t.decode("utf-8", "replace") for t in texts)


def ordered(body: Body, is_effect: IsEffect) -> Body:
    """The body with an order of the nodes that its results and effects need."""
    before = list(map(_before, body.nodes))
    order = _needed(body, before)
    order = _as_made(before, order, _numbers(body, before, order, is_effect))
    needed = {i for i, _ in body.outputs}
    for i in reversed(order):
        node = body.nodes[i]
        if i in needed or is_effect(node):
            needed.add(i)
            needed.update([j for j, _ in node.inputs])
    return dataclasses.replace(body, order=tuple([i for i in order if i in needed]))


def as_needed(body: Body) -> list[int]:
    """Nodes in the order in which results need them, whatever the graph's."""
    inside = set(body.order)
    return [i for i in _needed(body, list(map(_before, body.nodes))) if i in inside]


def _needed(body: Body, before: Sequence[Sequence[int]]) -> list[int]:
    def loop(i: int) -> UnsupportedOpError:
        reason = "is part of a loop of version 1 control flow"
        return body.nodes[i].error(reason, FRAMES_REMEDY)

    roots = [*(i for i, _ in body.outputs), *body.controls]
    return postorder(roots, before.__getitem__, loop)


def _before(node: Node) -> tuple[int, ...]:
    """The nodes that a node uses or waits for."""
    return (*node.control, *[k for k, _ in node.inputs])


def _as_made(
    before: Sequence[Sequence[int]], order: Sequence[int], numbers: Sequence[int]
) -> list[int]:
    """Nodes in topological order, and otherwise by their numbers."""
    if all(max((numbers[j] for j in before[i]), default=-1) < numbers[i] for i in order):
        return sorted(order, key=numbers.__getitem__)
    place = {i: k for k, i in enumerate(order)}
    earlier = [{place[j] for j in before[i]} for i in order]
    return [order[k] for k in topological([numbers[i] for i in order], earlier)]


_VARIABLES = frozenset(("TemporaryVariable", "Variable", "VariableV2"))


def _numbers(
    body: Body, before: Sequence[Sequence[int]], order: Sequence[int], is_effect: IsEffect
) -> Sequence[int]:
    """The places of nodes in the graph; nodes that wait for fewer updates of references come first.

    A reference is read where its value is used, which is before updates that nothing waits for.

    **Arguments:**

    - `order`: a topological order of the nodes.
    """
    count = len(body.nodes)
    references = {i for i in order if body.nodes[i].op in _VARIABLES}
    if not references:
        return range(count)
    waits, updates = [0] * count, set[int]()
    for i in order:
        waits[i] = max((waits[j] + (j in updates) for j in before[i]), default=0)
        if any(k in references for k, _ in body.nodes[i].inputs) and is_effect(body.nodes[i]):
            updates.add(i)
            references.add(i)
    return [(2 * waits[i] + (i in updates)) * count + i for i in range(count)]


def implementations(library: FunctionDefLibrary) -> dict[str, str]:
    """The CPU implementations of library functions that have one.

    Functions with equal `api_implements` are interchangeable; TensorFlow calls the one whose
    `api_preferred_device` matches the placement of the call
    (grappler/optimizers/implementation_selector.cc, TensorFlow 2.21). Random samplers use this, and
    draw different numbers on each kind of device.
    """

    def text(function: FunctionDef, name: str) -> bytes:
        return function.attr[name].s if name in function.attr else b""

    def types_of(function: FunctionDef) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
        # The key includes the types, since the forward and backward parts share their attributes.
        signature = function.signature
        inputs = tuple(a.type for a in signature.input_arg)
        outputs = tuple(a.type for a in signature.output_arg)
        return text(function, "api_implements"), inputs, outputs

    named = [f for f in library.function if text(f, "api_implements")]
    on_cpu = {types_of(f): f.signature.name for f in named if text(f, _PREFERS) == b"CPU"}
    others = [f for f in named if text(f, _PREFERS) != b"CPU"]
    return {f.signature.name: on_cpu[types_of(f)] for f in others if types_of(f) in on_cpu}
