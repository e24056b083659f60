"""Runs a TensorFlow function graph on JAX values, one rule for each op.

The graph comes as a `GraphDef`, whose library holds the functions it calls. Each becomes a `Body`
once. A `Run` evaluates bodies on the current values of variables and other state.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from invert._config import Config
from invert._entry import OpUse
from invert._errors import MalformedModelError, Problem, UnsupportedOpError
from invert._private.jax import current_names, name_stack
from invert.primitives.tf import REGISTRY
from invert.primitives.tf.bounded import apply_to_rows
from invert.primitives.tf.control_flow import CHOICES
from invert.primitives.tf.dynamic_size import DATA_SIZED, leaves_rows_out
from invert.protos.tensors import decode_tensor
from invert.tf.deferred import Deferred
from invert.tf.effects import NO_EFFECT, PASS_ON, REPORTS, Writes, draws, is_draw
from invert.tf.fallback.eager import refused_inputs
from invert.tf.fallback.host_check import host_problems
from invert.tf.gradients.override import names_gradient, overridden
from invert.tf.gradients.read import TfGradient, gradient_sources, read_gradient
from invert.tf.gradients.saved import SavedGradients
from invert.tf.graph.body import function_body, make_body, ordered, output_offset
from invert.tf.graph.calls import as_graph
from invert.tf.graph.check import checked
from invert.tf.graph.functionalize import Made, functionalize, holds_frames
from invert.tf.graph.library import Library
from invert.tf.lookup import entry_of, route_of, runs_in_tensorflow
from invert.tf.ops.definition import result_problem
from invert.tf.ops.node import (
    FRAMES_REMEDY,
    Body,
    Node,
    attr_functions,
    has_tensorflow,
    naming,
)
from invert.tf.ops.registry import Rule
from invert.tf.ops.state import KEY, Resource, State
from invert.tf.values.bounded import BoundedArray, holds_dynamic_size, refused_rows
from invert.tf.values.intervals import bounded

_VARIANT = 21  # DT_VARIANT of tensorflow/core/framework/types.proto
# A call puts the nodes of the function in its place. So many take minutes.
_MOST_NODES = 1_000_000
_CHECKS = frozenset(("Assert", "CheckNumerics", "CheckNumericsV2"))


class Graph:
    """A function graph with the functions it calls.

    **Arguments:**

    - `graph`: the `GraphDef` proto, or a `Library` of it.
    - `inputs`: names of the tensors that are fed, such as `"x:0"`.
    - `outputs`: names of the tensors that are returned.
    - `function`: the function of the library that is meant, in the place of inputs and outputs.
    - `control_outputs`: names of the nodes that have to run besides.
    - `op_def`: gives the `OpDef` proto of an op type, or `None` where it is unknown.
    - `source_line`: gives where the user's program made a node; empty if not known.
    - `tf_graph`: what leads to the gradient functions: the graph of TensorFlow that the proto was
        made of, or a `SavedGradients`; `None`: they are not read.
    - `compiled`: gives whether TensorFlow compiles the graph by XLA.
    """

    def __init__(
        self,
        graph: Any,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        *,
        function: str = "",
        config: Config,
        op_def: Callable[[str], Any],
        control_outputs: Sequence[str] = (),
        source_line: Callable[[str], str] = lambda name: "",
        tf_graph: Any = None,
        compiled: Callable[[], bool] = lambda: False,
    ):
        self.shared = Library.of(graph)
        self.config = config
        self.compiled = functools.cache(compiled)
        self._tf_graph = tf_graph if config.custom_gradients != "ignore" else None
        self._gradients: dict[Node, TfGradient] = {}
        self._op_def = op_def
        self._source_line = source_line
        self.library = self.shared.proto
        self._functions = self.shared.functions
        self._signatures = self.shared.signatures
        self._selected = self.shared.selected
        self._bodies: dict[str, Body] = {}
        self._constants: dict[Node, np.ndarray] = {}
        self._programs: dict[Node, Any] = {}
        self._effects: dict[str, bool] = {}
        self.notes: dict[str, None] = {}  # lines for the report
        self._made: dict[str, Made] = {}
        if function:
            self.main = self.body(function)
            for node in self.main.nodes:  # places in it are told without its name
                node.where = ""
        else:
            self.main = self._graph_body(inputs, outputs, control_outputs)

    def _graph_body(
        self, inputs: Sequence[str], outputs: Sequence[str], control_outputs: Sequence[str]
    ) -> Body:
        """The body of the graph itself between some tensors."""
        graph_def = self.shared.graph
        fed = [name.rpartition(":")[0] or name for name in inputs]
        roots = [*outputs, *control_outputs]
        given = {n.name: n.attr["dtype"].type for n in graph_def.node if "dtype" in n.attr}
        checked_nodes = checked(
            graph_def.node,
            {name: given.get(name, 0) for name in fed},
            [(name, 0) for name in outputs],
            op_def=self._op_def,
            signatures=self._signatures,
        )
        nodes, self._made = functionalize(checked_nodes, "", roots, fed)
        return self._with_gradients(
            make_body("", nodes, fed, outputs, control_outputs, self._output_offset, self.is_effect)
        )

    # -- what rules use

    def constant(self, node: Node) -> np.ndarray:
        if node not in self._constants:
            self._constants[node] = decode_tensor(node.attr("value"), node.location)
        return self._constants[node]

    def program(self, node: Node) -> Any:
        if node not in self._programs:
            from invert.stablehlo.program import Program

            # Not `node.attr`: it decodes strings as text, and these are bytes.
            self._programs[node] = Program.from_bytes(
                node.attrs["module"].s,
                config=self.config,
                platforms=tuple(p.lower() for p in node.attr("platforms", [])),
                location=node.location,
            )
        return self._programs[node]

    def gradient(self, node: Node) -> TfGradient | None:
        return self._gradients.get(node)

    def op_def(self, op: str) -> Any | None:
        return self._op_def(op)

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def rule(self, node: Node) -> Rule | None:
        """What raises `node`; `None` where nothing does."""
        of_lists = "T" in node.attrs and node.attrs["T"].type == _VARIANT
        entry = (REGISTRY.get(f"{node.op}:variant") if of_lists else None) or entry_of(node)
        if entry is None:
            return None
        # The rule of IdentityN marks what tf.custom_gradient wraps.
        own = node in self._gradients and node.op != "IdentityN"
        return overridden(entry.rule) if own else entry.rule

    # -- evaluation

    def _with_gradients(self, body: Body) -> Body:
        """Reads the gradient functions of a body. What they use become further inputs."""
        order = body.order if self._tf_graph is not None else ()
        pending = [body.nodes[i] for i in order]
        index = {node.name: i for i, node in enumerate(body.nodes)}
        while pending := [n for n in pending if names_gradient(n) and n not in self._gradients]:
            for node in pending:
                source, make = self._tf_graph, self._gradient_graph
                if isinstance(source, SavedGradients):
                    gradient = source.read(body.name, node, make)
                else:
                    gradient = read_gradient(source, body.name, node, make)
                self._gradients[node] = gradient
                node.inputs += gradient_sources(gradient, body, index)
            body = ordered(body, self.is_effect)
            pending = [body.nodes[i] for i in order]
        return body

    def _gradient_graph(
        self, tf_graph: Any, inputs: list[str], outputs: list[str], nested: bool, function: str = ""
    ) -> Graph:
        """The graph of a gradient: of TensorFlow, or a function of the same library."""
        return Graph(
            self.shared if function else tf_graph.as_graph_def(),
            inputs,
            outputs,
            function=function,
            config=self.config,
            op_def=self._op_def,
            tf_graph=tf_graph if nested else None,
        )

    def body(self, function: str) -> Body:
        """The body of a library function; built once."""
        if function not in self._bodies:
            if function in self._made:
                self._bodies[function] = self._made_body(function)
                return self._bodies[function]
            if function not in self._functions:
                raise MalformedModelError(f"the graph calls {function!r}, which its library lacks")
            proto = self._functions[self._selected.get(function, function)]
            nodes = self._checked(proto)
            body = self._with_control_flow(proto, nodes)
            if body is None:
                body = function_body(proto, nodes, self._output_offset, self.is_effect)
            self._bodies[function] = self._with_gradients(body)
        return self._bodies[function]

    def is_compiled(self, function: str) -> bool:
        """Whether TensorFlow compiles a library function by XLA, and all that it calls."""
        proto = self._functions.get(function)
        return (
            proto is not None
            and "_XlaMustCompile" in proto.attr
            and proto.attr["_XlaMustCompile"].b
        )

    def _checked(self, proto: Any) -> list[Any]:
        """The nodes of a library function."""
        signature = proto.signature
        return checked(
            proto.node_def,
            {a.name: a.type for a in signature.input_arg},
            [(proto.ret[a.name], a.type) for a in signature.output_arg],
            op_def=self._op_def,
            signatures=self._signatures,
            function=signature.name,
        )

    def _with_control_flow(self, proto: Any, nodes: Sequence[Any]) -> Body | None:
        """The body of a library function that holds version 1 control flow, if it does."""
        if not holds_frames(nodes):
            return None
        function = proto.signature.name
        # A place of its own, since what it makes is named after it.
        self._made[function] = as_graph(proto, nodes, self._output_offset)
        return self._made_body(function)

    def _made_body(self, function: str) -> Body:
        """The body of a function made of version 1 control flow, which may hold more of it."""
        made = self._made[function]
        roots = [*made.outputs, *made.controls]
        nodes, more = functionalize(made.nodes, f"{function}/", roots, made.args)
        self._made.update(more)
        offset = self._output_offset
        return make_body(
            function, nodes, made.args, made.outputs, made.controls, offset, self.is_effect
        )

    def is_effect(self, node: Node) -> bool:
        """Whether `node` runs even where its results are not used."""
        if node.op in _CHECKS and self.config.assertions != "drop":
            return True
        if node.op in _CHECKS or node.op in REPORTS:
            self.note(f"tf.{node.op} ({node.location}) is left out")
            return False
        if node.op in NO_EFFECT:
            return False
        if functions := attr_functions(node):
            return any(self._has_effects(f) for f in functions)
        definition = self._op_def(node.op)
        if definition is None:
            return True  # unknown: it may do anything
        by_reference = any(a.is_ref for a in definition.input_arg) and node.op not in PASS_ON
        return by_reference or (definition.is_stateful and not is_draw(definition))

    def has_state(self, node: Node) -> bool:
        """Whether the results of `node` depend on more than its inputs."""
        definition = self._op_def(node.op)
        return definition is None or definition.is_stateful

    def _has_effects(self, function: str) -> bool:
        if function not in self._effects:
            self._effects[function] = False  # for functions that call themselves
            body = self.body(function)
            self._effects[function] = any(self.is_effect(body.nodes[i]) for i in body.order)
        return self._effects[function]

    def run(self, body: Body, values: Sequence[Any], state: State | None = None) -> list[Any]:
        """Evaluates `body` on `values`, one for each argument; changes `state`."""
        return Run(self, {} if state is None else state).run(body, values)

    def value(self, result: Any, state: State) -> Any:
        """A result of `run`, read where it is a reference to a variable.

        **Raises:** `UnsupportedOpError` where its size depends on data.
        """
        if isinstance(result, BoundedArray):
            raise refused_rows(result.origin)
        is_reference = isinstance(result, Resource) and result.kind == "reference"
        return state[result] if is_reference else result

    # -- what cannot be raised

    def problems(self, known: Sequence[bool] = ()) -> list[Problem]:
        """Everything in the graph and in the functions it calls that has no rule.

        **Arguments:**

        - `known`: for each input whether it is a constant; none is where it is left out.
        """
        found: list[Problem] = []
        for node in self.reachable():
            found += self._node_problems(node)
        if self.config.host_ops == "error":
            known = known or (False,) * len(self.main.args)
            found += host_problems(self.main, known, self.body, self._op_def, self._where)
        if (count := self._written_out()) > _MOST_NODES:
            reason = f"calls its functions so often that {count} nodes would be written out"
            remedy = f"At most {_MOST_NODES} are; let functions call each other less often."
            found.append(Problem("the graph", reason, remedy=remedy))
        return list(dict.fromkeys(found))

    def _written_out(self) -> int:
        """How many nodes there are with those of a function for each of its calls."""
        known: dict[str, int] = {}

        def of_function(name: str) -> int:
            if name not in known:
                known[name] = 0  # for functions that call themselves
                known[name] = of_body(self.body(name))
            return known[name]

        def of_body(body: Body) -> int:
            calls = [
                name
                for i in body.order
                if body.nodes[i].op != "XlaCallModule"
                for name in attr_functions(body.nodes[i])
            ]
            return len(body.order) + sum(map(of_function, calls))

        return of_body(self.main)

    def reachable(self) -> Iterator[Node]:
        """The nodes that run, those of called functions once."""
        seen: set[str] = set()
        pending = [self.main]
        while pending:
            body = pending.pop()
            for index in body.order:
                node = body.nodes[index]
                yield node
                # XlaCallModule reports its functions itself; the rest are calls and control flow.
                for name in attr_functions(node) if node.op != "XlaCallModule" else ():
                    if name not in seen:
                        seen.add(name)
                        pending.append(self.body(name))

    @functools.cached_property
    def pads_rows(self) -> bool:
        """Whether the graph looks rows up by indices of which some may stand for none."""
        return any(leaves_rows_out(self.config, node) for node in self.reachable())

    def writes(self) -> frozenset[int | str]:
        """Which handles are written to: numbers of inputs, names of variables made inside."""
        return Writes(self.body, self._op_def).of_body(self.main)

    def draws(self) -> bool:
        """Whether the graph draws random numbers with the key of the call."""
        return any(draws(node, self._op_def) for node in self.reachable())

    def checks(self) -> list[Node]:
        """The assertions that are kept."""
        if self.config.assertions == "drop":
            return []
        return [node for node in self.reachable() if node.op in _CHECKS]

    def ops(self) -> Iterator[OpUse]:
        """The ops that run, those of modules that `XlaCallModule` wraps among them."""
        for node in self.reachable():
            if node.op in ("_Arg", "Placeholder"):
                continue
            route = route_of(node) if self.rule(node) is not None else "none"
            yield OpUse(f"tf.{node.op}", route, node.location, draws(node, self._op_def))
            if node.op == "XlaCallModule" and not self._node_problems(node):
                yield from self.program(node).ops()

    def _node_problems(self, node: Node) -> list[Problem]:
        if node.op == "_Arg":
            return []
        if self.rule(node) is None:
            return [self.missing(node)]
        if runs_in_tensorflow(node) and not has_tensorflow():
            reason = "has no rule, and TensorFlow, which would compute it, is not installed"
            remedy = "Install it with `pip install 'invert[tensorflow]'`."
            return [Problem(f"tf.{node.op}", reason, self._where(node), remedy)]
        entry = entry_of(node)
        if entry is None or entry.check is None:
            return []
        return list(entry.check(Run(self, {}), node))

    def missing(self, node: Node) -> Problem:
        if node.op == "Placeholder":
            reason = "is not an argument of the function"
            return Problem("tf.Placeholder", reason, self._where(node), "Feed it as an argument.")
        if node.op in ("Switch", "Merge", "RefSwitch", "RefMerge"):
            reason = "belongs to a branch with effects, as gradients of conditionals in loops have"
            return Problem(f"tf.{node.op}", reason, self._where(node), FRAMES_REMEDY)
        reason, remedy = "has no rule", "Compute it outside the function."
        if self.is_effect(node):
            reason = "has an effect besides its results, and no rule"
            remedy = "Remove the side effect from the function."
        return Problem(f"tf.{node.op}", reason, self._where(node), remedy)

    def _where(self, node: Node) -> str:
        line = "" if node.where else self._source_line(node.name)
        return f"{node.location}, {line}" if line else node.location

    def _output_offset(self, node: Node, output: str) -> int:
        return output_offset(node, output, self._op_def(node.op), self._functions)


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """What is found out while a graph is evaluated once. Threads may evaluate a graph together, and
    traced values must not outlive their trace: so it is not a part of the graph.

    **Arguments:**

    - `active`: functions under way, to refuse a recursive library.
    - `plans`: what loops found out about their variables.
    """

    active: set[str] = dataclasses.field(default_factory=set)
    deferred: Deferred = dataclasses.field(default_factory=Deferred)
    plans: dict[Any, Any] = dataclasses.field(default_factory=dict)


class Run:
    """A graph on one state: the context that rules receive."""

    def __init__(
        self, graph: Graph, state: State, branch: int = 0, evaluation: _Evaluation | None = None
    ):
        self.graph = graph
        self.evaluation = evaluation or _Evaluation()
        self.state = state
        self.branch = branch
        self.within: Body | None = None
        self.inside_compiled = False
        self.config = graph.config
        self.body = graph.body
        self.constant = graph.constant
        self.gradient = graph.gradient
        self.program = graph.program
        self.op_def = graph.op_def
        self.library = graph.library
        self.parse = _parse
        self.graph_of = graph._gradient_graph
        self.reads_gradients = graph._tf_graph is not None
        self.note = graph.note
        self.plans = self.evaluation.plans
        self.origins: dict[int, tuple[Any, Any]] = {}

    @property
    def pads_rows(self) -> bool:
        return self.graph.pads_rows

    @property
    def compiled(self) -> bool:
        return self.inside_compiled or self.graph.compiled()

    def on(self, state: State, branch: int | None = None) -> Run:
        branch = self.branch if branch is None else branch
        run = Run(self.graph, state, branch, self.evaluation)
        run.inside_compiled = self.inside_compiled
        return run

    def call(self, function: str, values: Sequence[Any]) -> list[Any]:
        active = self.evaluation.active
        if function in active:
            raise MalformedModelError(f"the function {function!r} calls itself without end")
        active.add(function)
        outer = self.inside_compiled
        self.inside_compiled = outer or self.graph.is_compiled(function)
        try:
            return self.run(self.graph.body(function), values)
        finally:
            self.inside_compiled = outer
            active.remove(function)

    def read(self, resource: Any) -> Any:
        if not isinstance(resource, Resource):
            return resource
        if resource not in self.state:
            problem = Problem(
                f"tf {resource.kind}",
                f"{resource.name!r} is read before it has a value",
                remedy="Initialize it before it is exported.",
            )
            raise UnsupportedOpError([problem])
        return self.state[resource]

    def write(self, resource: Resource, value: Any) -> None:
        self.state[resource] = value

    def key(self) -> Any:
        key, drawn = jax.random.split(self.read(KEY))
        self.state[KEY] = key
        return drawn

    def run(self, body: Body, values: Sequence[Any]) -> list[Any]:
        """Evaluates `body` on `values`, one for each argument."""
        outer, around = current_names(), self.within
        self.within = body
        results: dict[int, Sequence[Any]] = {
            i: (v,) for i, v in zip(body.args, values, strict=True)
        }
        for index in body.order:
            if index in results:
                continue
            node = body.nodes[index]
            rule = self.graph.rule(node)
            if rule is None:
                raise UnsupportedOpError([self.graph.missing(node)])
            operands = [_output(body, results, i, k) for i, k in node.inputs]
            if any(isinstance(v, Resource) and v.kind == "reference" for v in operands):
                operands = self._dereferenced(node, operands)
            # The scopes of a node are the layers of its model; what is emitted is cut along them.
            with name_stack(_scope(outer, node.name)), naming(node):
                try:
                    results[index] = self._apply(rule, node, operands)
                except (LookupError, ZeroDivisionError) as error:
                    # Of sizes or axes that do not fit, if TensorFlow says so too; else a defect.
                    problem = refused_inputs(self, node, operands)
                    if problem is None:
                        raise
                    raise UnsupportedOpError([problem]) from error
                self._check_types(node, results[index])
        self.within = around
        return [_output(body, results, i, k) for i, k in body.outputs]

    def _apply(self, rule: Rule, node: Node, operands: list[Any]) -> Sequence[Any]:
        if any(isinstance(v, BoundedArray) or holds_dynamic_size(v) for v in operands):
            known = self.evaluation.deferred.known(operands)
            return apply_to_rows(rule, self, node, known)
        deferred = self.evaluation.deferred
        if node.op in CHOICES:  # branches that are never taken need not agree on shapes
            operands = [*deferred.known(operands[:1]), *operands[1:]]
        if attr_functions(node) or self.graph.has_state(node):
            return rule(self, node, operands)
        if node.op in DATA_SIZED:
            operands = deferred.known(operands)
        try:
            results = rule(self, node, operands)
        except UnsupportedOpError:
            known = bounded(self, node, deferred.known(operands))
            if all(map(operator.is_, known, operands)):
                raise
            results = rule(self, node, known)
        deferred.note(node.op, lambda values: rule(self, node, values), operands, results)
        return results

    def _check_types(self, node: Node, results: Sequence[Any]) -> None:
        """Refuses results of other types than the definition of the op says."""
        definition = self.op_def(node.op)
        if definition is None or self.config.bfloat16_constants:
            return
        if (reason := result_problem(node.attrs, definition, results)) is not None:
            raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])

    def _dereferenced(self, node: Node, values: Sequence[Any]) -> list[Any]:
        """The inputs of a node, read where it takes a value and gets a reference to a variable."""
        definition = self.op_def(node.op)
        takes = [a.is_ref for a in definition.input_arg] if definition is not None else []
        takes += [False] * (len(values) - len(takes))
        return [
            v
            if by_reference or not (isinstance(v, Resource) and v.kind == "reference")
            else self.read(v)
            for v, by_reference in zip(values, takes, strict=False)
        ]


def _parse(module: bytes, config: Config) -> Any:
    """A StableHLO module that this process made, as a program."""
    from invert.stablehlo.program import Program

    return Program.from_bytes(module, config=config, trusted=True)


def _output(body: Body, results: Mapping[int, Sequence[Any]], index: int, number: int) -> Any:
    if number >= len(results[index]):
        node = body.nodes[index]
        raise MalformedModelError(f"tf.{node.op} ({node.location}) has no output {number}")
    return results[index][number]


def _scope(outer: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The scopes of a node, which the nodes of some functions say in full, and others from the
    call of the function on."""
    inner = tuple(name.split("/")[:-1])
    full = not outer or inner[:1] == outer[:1]
    return inner if full and inner else (*outer, *inner)
