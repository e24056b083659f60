"""A function graph and the functions it calls, as bodies to evaluate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
from jax.sharding import AbstractMesh

from invert._config import Config
from invert._errors import MalformedModelError
from invert.ir.arrays import KnownBytes
from invert.ir.types import Value
from invert.protos.ops import Definition
from invert.protos.types import AttrValue, FunctionDef, NodeDef
from invert.tf.graph.body import function_body, make_body, ordered, output_offset
from invert.tf.graph.check import checked
from invert.tf.graph.feeds import with_feeds
from invert.tf.graph.functionalize import MadeFunction, as_graph, functionalize, holds_frames
from invert.tf.graph.library import Library
from invert.tf.graph.seeds import by_key, without_idle
from invert.tf.interpreter import effects
from invert.tf.interpreter.registry import REGISTRY, Entry
from invert.tf.ops.definition import options
from invert.tf.ops.form import Form
from invert.tf.ops.node import Body, Node

if TYPE_CHECKING:
    from invert.stablehlo.program import Program

_VARIANT = 21  # DT_VARIANT of tensorflow/core/framework/types.proto

# Reads the gradient function of a node in the graph or in a library function, given its name.
ReadGradient = Callable[["Graph", str, Node], Value]


class Graph:
    """A function graph and the functions it calls.

    **Arguments:**

    - `graph`: the `GraphDef` proto, or a `Library` of it.
    - `inputs`: names of the tensors that are fed, such as `"x:0"`.
    - `outputs`: names of the tensors that are returned.
    - `function`: name of the library function to evaluate, instead of inputs and outputs.
    - `control_outputs`: names of further nodes that have to run.
    - `op_def`: returns the definition of an op type, or `None` if it is unknown.
    - `source_line`: returns the source line that created a node; empty if unknown.
    - `read_gradient`: reads the gradient functions that nodes name; `None` to ignore them.
    - `compiled`: whether TensorFlow compiles the graph with XLA.
    """

    def __init__(
        self,
        graph: object,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        *,
        function: str = "",
        config: Config,
        op_def: Callable[[str], Definition | None],
        control_outputs: Sequence[str] = (),
        source_line: Callable[[str], str] = lambda name: "",
        read_gradient: ReadGradient | None = None,
        compiled: Callable[[], bool] = lambda: False,
    ):
        self.shared = Library.of(graph)
        self.config = config
        self.compiled = functools.cache(compiled)
        self._read_gradient = read_gradient if config.custom_gradients != "ignore" else None
        self._gradients: dict[Node, Value] = {}
        self.op_def = op_def
        self._source_line = source_line
        self.library = self.shared.proto
        self._functions = self.shared.functions
        self._signatures = self.shared.signatures
        self._selected = self.shared.selected
        self._bodies: dict[str, Body] = {}
        self._constants: dict[Node, np.ndarray] = {}
        self._entries: dict[Node, Entry | None] = {}
        self._programs: dict[Node, Program] = {}
        self._known_bytes: KnownBytes = self.shared.known_bytes
        self.mesh: AbstractMesh | None = None
        self._effects: dict[str, bool] = {}
        self._options: dict[str, Mapping[str, AttrValue | None]] = {}
        self.notes: dict[str, None] = {}  # lines for the report
        self._made: dict[str, MadeFunction] = {}
        if function:
            self.main = self.body(function)
            for node in self.main.nodes:  # locations in it omit its name
                node.where = ""
        else:
            self.main = self._graph_body(inputs, outputs, control_outputs)

    def _graph_body(
        self, inputs: Sequence[str], outputs: Sequence[str], control_outputs: Sequence[str]
    ) -> Body:
        """The body of the graph itself between some tensors."""
        protos, fed, outputs = with_feeds(self.shared.graph.node, inputs, outputs)
        roots = [*outputs, *control_outputs]
        given = {n.name: n.attr["dtype"].type for n in protos if "dtype" in n.attr}
        checked_nodes, forms = checked(
            protos,
            {name: given.get(name, 0) for name in fed},
            [(name, 0) for name in outputs],
            op_def=self.op_def,
            signatures=self._signatures,
        )
        nodes, self._made = functionalize(checked_nodes, "", roots, fed)
        body = make_body(
            "",
            nodes,
            fed,
            outputs,
            control_outputs,
            self._output_offset,
            self.is_effect,
            # Control flow of TensorFlow 1 makes other nodes of the same names.
            {} if holds_frames(checked_nodes) else forms,
        )
        return self._with_gradients(self._drawing(body))

    def derived(
        self,
        graph: object,
        read_gradient: ReadGradient | None,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        function: str = "",
    ) -> Graph:
        """Another graph, such as that of a gradient, under the same configuration."""
        other = Graph(
            graph,
            inputs,
            outputs,
            function=function,
            config=self.config,
            op_def=self.op_def,
            read_gradient=read_gradient,
        )
        other._known_bytes = self._known_bytes
        # The modules of both share one mesh; each may name only some of its axes.
        tiles = [p.devices.tiles for p in self._programs.values()]
        other.mesh = next(filter(None, tiles), self.mesh)
        return other

    # -- nodes

    def constant(self, node: Node) -> np.ndarray:
        """The decoded `value` attribute of `node`; decoded once."""
        if node not in self._constants:
            self._constants[node] = self.shared.constant(node.attr("value"), node.location)
        return self._constants[node]

    def options(self, op: str) -> Mapping[str, AttrValue | None]:
        """The attributes that affect what an op computes, with their defaults as protos."""
        if op not in self._options:
            definition = self.op_def(op)
            self._options[op] = {} if definition is None else options(definition)
        return self._options[op]

    def program(self, node: Node) -> Program:
        """The parsed module of an `XlaCallModule`; parsed once."""
        if node not in self._programs:
            from invert.stablehlo.program import Program

            # Not `node.attr`: it decodes strings as text, and these are bytes.
            parsed = self.shared.parts.read(
                node.attrs["module"].s,
                lambda part: Program.from_bytes(part, config=self.config, known=self._known_bytes),
            )
            platforms = tuple(p.lower() for p in node.attr("platforms", []))
            self._programs[node] = dataclasses.replace(
                parsed, config=self.config, platforms=platforms, mesh=self.mesh
            )
        return self._programs[node]

    def copied(self, node: Node) -> Node:
        """A node of the same op under the same name, without inputs."""
        copy = Node(node.op, node.name, node.attrs, node.where, node.form)
        copy.message = node.message
        if node in self._gradients:
            self._gradients[copy] = self._gradients[node]
        return copy

    def gradient(self, node: Node) -> Value:
        """The gradient function that `node` names, if it should be read."""
        return self._gradients.get(node)

    def note(self, text: str) -> None:
        """Add a line to the report, once."""
        self.notes.setdefault(text)

    def entry(self, node: Node) -> Entry | None:
        """How to raise `node`; `None` if it cannot be raised."""
        if node not in self._entries:
            of_lists = "T" in node.attrs and node.attrs["T"].type == _VARIANT
            own = REGISTRY.get(f"{node.op}:variant") if of_lists else None
            self._entries[node] = own or REGISTRY.entry(node)
        return self._entries[node]

    def where(self, node: Node) -> str:
        """The location of a node, with the user's source line if known."""
        line = "" if node.where else self._source_line(node.name)
        return f"{node.location}, {line}" if line else node.location

    def is_effect(self, node: Node) -> bool:
        """Return whether `node` runs even if its results are unused."""
        if node.op in effects.CHECKS and self.config.assertions != "drop":
            return True
        if node.op in effects.CHECKS or node.op in effects.REPORTS:
            self.note(f"tf.{node.op} ({node.location}) is left out")
            return False
        entry = REGISTRY.get(node.op)
        effect = entry.effect if entry is not None else "any"
        if effect in ("none", "reads") or node.op in effects.ARGUMENTS:
            return False
        if functions := node.functions:
            return any(self._has_effects(f) for f in functions)
        definition = self.op_def(node.op)
        if definition is None:
            return True  # unknown ops may do anything
        by_reference = any(a.is_ref for a in definition.input_arg) and effect != "passes"
        return by_reference or (definition.is_stateful and not effects.is_draw(definition))

    def has_state(self, node: Node) -> bool:
        """Return whether the results of `node` depend on more than its inputs."""
        definition = self.op_def(node.op)
        return definition is None or definition.is_stateful

    def _has_effects(self, function: str) -> bool:
        if function not in self._effects:
            self._effects[function] = False  # for functions that call themselves
            body = self.body(function)
            self._effects[function] = any(self.is_effect(body.nodes[i]) for i in body.order)
        return self._effects[function]

    # -- functions

    def body(self, function: str) -> Body:
        """The body of a library function; built once."""
        if function not in self._bodies:
            if function in self._made:
                self._bodies[function] = self._made_body(function)
                return self._bodies[function]
            if function not in self._functions:
                raise MalformedModelError(f"the graph calls {function!r}, which its library lacks")
            proto = self._functions[self._selected.get(function, function)]
            nodes, forms = self._checked(proto)
            body = self._with_control_flow(proto, nodes)
            if body is None:
                body = function_body(proto, nodes, self._output_offset, self.is_effect, forms)
            self._bodies[function] = self._with_gradients(self._drawing(body))
        return self._bodies[function]

    def _drawing(self, body: Body) -> Body:
        """The body, with draws by key if the configuration asks for them."""
        if self.config.random != "jax":
            return body
        body, drawn = by_key(body, self.body)
        if drawn:
            self.note("random numbers come from jax.random, with the key of the call")
        return ordered(body, self.is_effect)

    def leave_out_idle(self, places: Sequence[int]) -> list[int]:
        """Leave out updates of generator states, given as inputs, from which nothing is drawn.

        Returns the inputs that are then unused.
        """
        if not places:
            return []
        main = self.main = ordered(without_idle(self.main, places, self.body), self.is_effect)
        used = {i for k in main.order for i, _ in main.nodes[k].inputs}
        return [place for place in places if main.args[place] not in used]

    def leave_out_results(self, places: Set[int]) -> None:
        """Leave out some results, and what only they need."""
        outputs = [x for i, x in enumerate(self.main.outputs) if i not in places]
        self.main = ordered(dataclasses.replace(self.main, outputs=outputs), self.is_effect)

    def is_compiled(self, function: str) -> bool:
        """Return whether TensorFlow compiles a library function and its callees with XLA."""
        proto = self._functions.get(function)
        return (
            proto is not None
            and "_XlaMustCompile" in proto.attr
            and proto.attr["_XlaMustCompile"].b
        )

    def _checked(self, proto: FunctionDef) -> tuple[list[NodeDef], Mapping[str, Form]]:
        """The nodes of a library function, and their forms."""
        signature = proto.signature
        return checked(
            proto.node_def,
            {a.name: a.type for a in signature.input_arg},
            [(proto.ret[a.name], a.type) for a in signature.output_arg],
            op_def=self.op_def,
            signatures=self._signatures,
            function=signature.name,
        )

    def _with_control_flow(self, proto: FunctionDef, nodes: Sequence[NodeDef]) -> Body | None:
        """The body of a library function with TensorFlow 1 control flow; otherwise `None`."""
        if not holds_frames(nodes):
            return None
        function = proto.signature.name
        # In its own scope, since its results are named after it.
        self._made[function] = as_graph(proto, nodes, self._output_offset)
        return self._made_body(function)

    def _made_body(self, function: str) -> Body:
        """The body of a function made from TensorFlow 1 control flow, which may nest."""
        made = self._made[function]
        roots = [*made.outputs, *made.controls]
        nodes, more = functionalize(made.nodes, f"{function}/", roots, made.args)
        self._made.update(more)
        offset = self._output_offset
        return make_body(
            function, nodes, made.args, made.outputs, made.controls, offset, self.is_effect
        )

    def _with_gradients(self, body: Body) -> Body:
        """Read the gradient functions of a body. Their captures become further inputs."""
        if self._read_gradient is None:
            return body
        order = body.order
        pending = [body.nodes[i] for i in order]
        index = {node.name: i for i, node in enumerate(body.nodes)}
        while pending := [n for n in pending if names_gradient(n) and n not in self._gradients]:
            for node in pending:
                gradient = self._read_gradient(self, body.name, node)
                self._gradients[node] = gradient
                captures = [c for c in gradient.captures if not isinstance(c, np.ndarray)]
                node.inputs += tuple(
                    (body.args[c], 0) if isinstance(c, int) else (index[c[0]], c[1])
                    for c in captures
                )
            body = ordered(body, self.is_effect)
            pending = [body.nodes[i] for i in order]
        return body

    def _output_offset(self, node: Node, output: str) -> int:
        return output_offset(node, output, self.op_def(node.op), self._functions)


# Calls name their function's gradient, which equals differentiating the body.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"))


def names_gradient(node: Node) -> bool:
    """Return whether a node names a custom gradient function."""
    return "_gradient_op_type" in node.attrs and node.op not in _CALLS
