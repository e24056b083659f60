"""Runs a TensorFlow function graph on JAX values, one rule for each op.

The graph comes as a `GraphDef`, whose library holds the functions it calls. Both are turned into a
`Body`: nodes in an order in which every node follows its inputs, found without recursion, so that
graphs of 10^5 nodes work and cost grows linearly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .._config import Config
from .._errors import MalformedModelError, Problem, UnsupportedOpError
from ..primitives.tf import REGISTRY, Node
from ..primitives.tf._node import attr_functions, decode_tensor
from .tf_gradient import TfGradient, read_gradient

# Stateful ops, by their OpDef, that may be left out where only control dependencies lead to them:
# they change nothing that outlives the call.
_NO_EFFECT = frozenset(
    ("NoOp", "ReadVariableOp", "XlaCallModule", "VarHandleOp", "VarIsInitializedOp", "Placeholder")
)
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))


@dataclasses.dataclass(frozen=True)
class Body:
    """One graph or function.

    **Arguments:**

    - `nodes`: all nodes; those that stand for arguments have the op `_Arg`.
    - `args`: indices of the arguments.
    - `outputs`: results as `(node index, output index)`.
    - `order`: indices of the nodes that the outputs need, each after its inputs.
    - `effects`: indices of the nodes that only control dependencies lead to.
    """

    name: str
    nodes: tuple[Node, ...]
    args: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    effects: tuple[int, ...]


class Graph:
    """A function graph with the functions it calls. It is the context that rules receive.

    **Arguments:**

    - `graph_def`: the `GraphDef` proto.
    - `inputs`: names of the tensors that are fed, such as `"x:0"`.
    - `outputs`: names of the tensors that are returned.
    - `control_outputs`: names of the nodes that have to run besides.
    - `op_def`: gives the `OpDef` proto of an op type, or `None` where it is unknown.
    - `source_line`: gives where the user's program made a node; empty if not known.
    - `tf_graph`: the graph that `graph_def` was made of, which leads to the gradient functions;
        `None`: they are not read.
    """

    def __init__(
        self,
        graph_def: Any,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        config: Config,
        op_def: Callable[[str], Any],
        control_outputs: Sequence[str] = (),
        source_line: Callable[[str], str] = lambda name: "",
        tf_graph: Any = None,
    ):
        self.config = config
        self._tf_graph = tf_graph if config.custom_gradients != "ignore" else None
        self._gradients: dict[Node, TfGradient] = {}
        self._op_def = op_def
        self._source_line = source_line
        self._functions = {f.signature.name: f for f in graph_def.library.function}
        self._bodies: dict[str, Body] = {}
        self._constants: dict[Node, np.ndarray] = {}
        self._programs: dict[Node, Any] = {}
        self._active: set[str] = set()  # functions under way, to refuse a recursive library
        fed = [name.rpartition(":")[0] or name for name in inputs]
        self.main = self._with_gradients(
            _make_body("", graph_def.node, fed, outputs, control_outputs, self._output_offset)
        )

    # -- what rules use

    def call(self, function: str, values: Sequence[Any]) -> list[Any]:
        if function in self._active:
            raise MalformedModelError(f"the function {function!r} calls itself without end")
        self._active.add(function)
        try:
            return self.run(self.body(function), values)
        finally:
            self._active.remove(function)

    def constant(self, node: Node) -> np.ndarray:
        if node not in self._constants:
            self._constants[node] = decode_tensor(node.attr("value"))
        return self._constants[node]

    def program(self, node: Node) -> Any:
        if node not in self._programs:
            from .stablehlo import Program

            self._programs[node] = Program.from_bytes(
                # Not `node.attr`: it decodes strings as text, and these are bytes.
                node.attrs["module"].s,
                config=self.config,
                platforms=tuple(p.lower() for p in node.attr("platforms", [])),
                location=node.location,
            )
        return self._programs[node]

    def gradient(self, node: Node) -> TfGradient | None:
        return self._gradients.get(node)

    # -- evaluation

    def _with_gradients(self, body: Body) -> Body:
        """Reads the gradient functions of a body. What they use become further inputs."""
        order = body.order if self._tf_graph is not None else ()
        pending = [body.nodes[i] for i in order]
        while pending := [n for n in pending if _names_gradient(n) and n not in self._gradients]:
            for node in pending:
                gradient = read_gradient(self._tf_graph, body.name, node, self._gradient_graph)
                self._gradients[node] = gradient
                node.inputs += _sources(gradient, body)
            order = _order(body.nodes, [i for i, _ in body.outputs], body.name)
            body = dataclasses.replace(body, order=order)
            pending = [body.nodes[i] for i in order]
        return body

    def _gradient_graph(
        self, tf_graph: Any, inputs: list[str], outputs: list[str], nested: bool
    ) -> Graph:
        return Graph(
            tf_graph.as_graph_def(),
            inputs,
            outputs,
            config=self.config,
            op_def=self._op_def,
            tf_graph=tf_graph if nested else None,
        )

    def body(self, function: str) -> Body:
        """The body of a library function; built once."""
        if function not in self._bodies:
            if function not in self._functions:
                raise MalformedModelError(f"the graph calls {function!r}, which its library lacks")
            body = _function_body(self._functions[function], self._output_offset)
            self._bodies[function] = self._with_gradients(body)
        return self._bodies[function]

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        """Evaluates `body` on `values`, one for each argument."""
        results: dict[int, Sequence[Any]] = {
            i: (v,) for i, v in zip(body.args, values, strict=True)
        }
        for index in body.order:
            if index in results:
                continue
            node = body.nodes[index]
            entry = REGISTRY.get(node.op)
            if entry is None:
                raise UnsupportedOpError([self._missing(node)])
            operands = [results[i][k] for i, k in node.inputs]
            results[index] = entry.rule(self, node, operands)
        return [results[i][k] for i, k in body.outputs]

    # -- what cannot be raised

    def problems(self) -> list[Problem]:
        """Everything in the graph and in the functions it calls that has no rule."""
        found: list[Problem] = []
        seen = {("", False)}
        pending = [(self.main, False)]
        while pending:
            body, only_effects = pending.pop()
            calls: list[tuple[str, bool]] = []
            for index in () if only_effects else body.order:
                node = body.nodes[index]
                found += self._node_problems(node)
                calls += [(name, False) for name in attr_functions(node) if _follows(node)]
            for index in (*body.order, *body.effects) if only_effects else body.effects:
                node = body.nodes[index]
                found += self._effect_problems(node)
                calls += [(name, True) for name in attr_functions(node) if _follows(node)]
            for call in calls:
                if call not in seen and (call[0], False) not in seen:
                    seen.add(call)
                    pending.append((self.body(call[0]), call[1]))
        return list(dict.fromkeys(found))

    def _node_problems(self, node: Node) -> Iterable[Problem]:
        if node.op == "_Arg":
            return ()
        entry = REGISTRY.get(node.op)
        if entry is None:
            return (self._missing(node),)
        if entry.check is None:
            return ()
        return entry.check(self, node)

    def _effect_problems(self, node: Node) -> Iterable[Problem]:
        if node.op in _NO_EFFECT or node.op in _CALLS or node.op == "_Arg":
            return ()
        definition = self._op_def(node.op)
        if definition is not None and not definition.is_stateful:
            return ()
        reason = "has an effect besides its results, and only its effect is used"
        remedy = "Remove the side effect from the function."
        return (Problem(f"tf.{node.op}", reason, self._where(node), remedy),)

    def _missing(self, node: Node) -> Problem:
        if node.op == "Placeholder":
            reason = "is not an argument of the function"
            return Problem("tf.Placeholder", reason, self._where(node), "Feed it as an argument.")
        return Problem(
            f"tf.{node.op}",
            "has no rule",
            self._where(node),
            "Compute it outside the function, or add a rule in invert/primitives/tf.",
        )

    def _where(self, node: Node) -> str:
        line = "" if node.where else self._source_line(node.name)
        return f"{node.location}, {line}" if line else node.location

    def _output_offset(self, node: Node, output: str) -> int:
        """Index of the first tensor of a named output; a `FunctionDef` names outputs by it."""
        definition = self._op_def(node.op)
        if definition is None:
            return 0  # unknown op: it is reported by `problems`, never evaluated
        offset = 0
        for arg in definition.output_arg:
            if arg.name == output:
                return offset
            if arg.number_attr:
                offset += node.attr(arg.number_attr)
            elif arg.type_list_attr:
                offset += len(node.attr(arg.type_list_attr))
            else:
                offset += 1
        raise MalformedModelError(f"tf.{node.op} ({node.location}) has no output {output!r}")


def _names_gradient(node: Node) -> bool:
    return node.op == "IdentityN" and "_gradient_op_type" in node.attrs


def _sources(gradient: TfGradient, body: Body) -> tuple[tuple[int, int], ...]:
    """The values that a gradient function uses, as inputs of its node."""
    index = {node.name: i for i, node in enumerate(body.nodes)}
    captures = [c for c in gradient.captures if not isinstance(c, np.ndarray)]
    return tuple((body.args[c], 0) if isinstance(c, int) else (index[c[0]], c[1]) for c in captures)


def _follows(node: Node) -> bool:
    # XlaCallModule reports its functions itself; the rest are bodies of calls and loops.
    return node.op != "XlaCallModule"


def _function_body(function: Any, offset: Callable[[Node, str], int]) -> Body:
    args = [a.name for a in function.signature.input_arg]
    outputs = [function.ret[a.name] for a in function.signature.output_arg]
    return _make_body(
        function.signature.name,
        function.node_def,
        args,
        outputs,
        list(function.control_ret.values()),
        offset,
    )


def _make_body(
    name: str,
    protos: Iterable[Any],
    args: Sequence[str],
    outputs: Sequence[str],
    control_outputs: Sequence[str],
    offset: Callable[[Node, str], int],
) -> Body:
    nodes = [Node("_Arg", a, {}, name) for a in args]
    index = {a: i for i, a in enumerate(args)}
    wires: list[Sequence[str]] = [()] * len(args)
    for proto in protos:
        if proto.name not in index:  # the placeholder of an argument is the argument
            index[proto.name] = len(nodes)
            nodes.append(Node(proto.op, proto.name, proto.attr, name))
            wires.append(proto.input)

    def find(key: str) -> int:
        if key not in index:
            raise MalformedModelError(f"the graph refers to a node {key!r} that it does not have")
        return index[key]

    def tensor(text: str) -> tuple[int, int]:
        key, *rest = text.split(":")
        i = find(key)
        if not rest:
            return i, 0
        return i, int(rest[-1]) + (offset(nodes[i], rest[0]) if len(rest) == 2 else 0)

    for node, texts in zip(nodes, wires, strict=True):
        node.inputs = tuple(tensor(t) for t in texts if not t.startswith("^"))
        node.control = tuple(find(t[1:]) for t in texts if t.startswith("^"))
    results = tuple(tensor(t) for t in outputs)
    order = _order(nodes, [i for i, _ in results], name)
    effects = _reach(nodes, [*order, *(find(c) for c in control_outputs)], set(order))
    return Body(name, tuple(nodes), tuple(range(len(args))), results, order, effects)


def _order(nodes: Sequence[Node], roots: Sequence[int], name: str) -> tuple[int, ...]:
    """Depth-first postorder from `roots` along data inputs, on an explicit stack."""
    order: list[int] = []
    state = bytearray(len(nodes))  # 0 new, 1 inputs under way, 2 done
    stack = list(reversed(roots))
    while stack:
        i = stack[-1]
        if state[i] == 0:
            state[i] = 1
            for j, _ in reversed(nodes[i].inputs):
                if state[j] == 1:
                    raise UnsupportedOpError([_loop(nodes[j], name)])
                if state[j] == 0:
                    stack.append(j)
            continue
        stack.pop()
        if state[i] == 1:
            state[i] = 2
            order.append(i)
    return tuple(order)


def _loop(node: Node, name: str) -> Problem:
    return Problem(
        f"tf.{node.op}",
        "is part of a loop of version 1 control flow",
        node.location,
        "Export the model with tf.compat.v1.enable_control_flow_v2().",
    )


def _reach(nodes: Sequence[Node], roots: Sequence[int], evaluated: set[int]) -> tuple[int, ...]:
    """What `roots` wait for, over data and control, besides the nodes `evaluated`."""
    found = dict.fromkeys(i for i in roots if i not in evaluated)
    stack = list(roots)
    seen = set(stack)
    while stack:
        node = nodes[stack.pop()]
        for j in (*(i for i, _ in node.inputs), *node.control):
            if j not in seen:
                seen.add(j)
                stack.append(j)
                if j not in evaluated:
                    found[j] = None
    return tuple(found)
