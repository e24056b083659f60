"""Static analysis of a graph: problems, effects, host ops, ops by route.

Which variables a function assigns and whether it draws random numbers must be known before the
shapes, since both are part of its signature. An op that only the host can run is evaluated at
conversion if its inputs are known. This follows from the graph alone: inputs are known unless they
depend on an argument, a variable or a stateful op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from invert._entry import OpUse
from invert._errors import Problem
from invert.tf.interpreter import effects
from invert.tf.interpreter.context import Context, missing
from invert.tf.interpreter.graph import Graph
from invert.tf.interpreter.registry import REGISTRY, Value
from invert.tf.ops.node import (
    CALLS,
    PASSED,
    Body,
    Node,
    has_tensorflow,
    variable_name,
)
from invert.tf.ops.state import State

# Counts a function's nodes once per call, and a node's results. More than this takes minutes.
_MOST_RESULTS = 1_000_000
# Each further result of one node is about as much work as this many nodes, and no file has a byte
# for it.
_PER_FURTHER_RESULT = 8
# Ops that pass a handle through.
_PASSES_HANDLES = frozenset(
    "Identity IdentityN Enter RefEnter Switch RefSwitch Merge RefMerge RefIdentity".split()
)
_MAKES_VARIABLES = frozenset(("VarHandleOp", "VariableV2", "Variable"))
_RESOURCE = 20  # DT_RESOURCE of tensorflow/core/framework/types.proto

# The number of an argument, or the shared name of a variable that the graph creates.
Origin = int | str


@dataclasses.dataclass(frozen=True)
class _Facts:
    """Facts about a function.

    **Arguments:**

    - `size`: number of nodes, counting a called function's nodes once per call, and those that
        split a tensor once per result.
    - `writes`: the handles that it writes to.
    - `known`: for each result, whether it is known at conversion.
    """

    size: int = 0
    writes: frozenset[Origin] = frozenset()
    known: tuple[bool, ...] = ()


class Analysis:
    """One walk over the nodes of a graph and of the functions it calls.

    **Arguments:**

    - `known`: for each input of the graph, whether it is a constant; by default none is.

    **Attributes:**

    - `nodes`: the nodes that run, those of called functions once.
    - `unknown`: host-only ops with an input that is not known at conversion.
    - `writes`: handles that are written to: numbers of inputs, names of variables created inside.
    - `draws`: whether random numbers are drawn with the key of the call.
    - `checks`: the assertions that are kept.
    - `pads_rows`: whether rows are looked up by indices that may be -1, for a missing row.
    """

    def __init__(self, graph: Graph, known: Sequence[bool] = ()):
        self.graph = graph
        self.nodes: list[Node] = []
        self._visited: set[str] = set()
        self._facts: dict[tuple[str, tuple[bool, ...]], _Facts] = {}
        self.unknown: dict[Node, None] = {}
        facts = self._visit(graph.main, tuple(known) or (False,) * len(graph.main.args))
        self.size, self.writes = facts.size, facts.writes
        self.draws = any(effects.draws(node, graph.op_def) for node in self.nodes)
        self.pads_rows = any(_pads_rows(graph, node) for node in self.nodes)
        kept = graph.config.assertions != "drop"
        self.checks = [n for n in self.nodes if kept and n.op in effects.CHECKS]

    def run(self, values: Sequence[Value], state: State | None = None) -> list[Value]:
        """Evaluate the graph on `values`, one for each input; changes `state`."""
        state = {} if state is None else state
        return Context(self.graph, state, pads_rows=self.pads_rows).run(self.graph.main, values)

    def problems(self) -> list[Problem]:
        """Everything without a rule in the graph and in the functions it calls."""
        problems = [p for node in self.nodes for p in self._node_problems(node)]
        if self.graph.config.host_ops == "error":
            problems += [host_problem(node, self.graph.where(node)) for node in self.unknown]
        if self.size > _MOST_RESULTS:
            reason = (
                "calls its functions so often, or splits tensors into so many, that it expands to "
                f"{self.size} nodes"
            )
            remedy = f"The limit is {_MOST_RESULTS}; call and split less often."
            problems.append(Problem("the graph", reason, remedy=remedy))
        return list(dict.fromkeys(problems))

    def ops(self) -> Iterator[OpUse]:
        """The ops that run, including those of modules in `XlaCallModule`."""
        for node in self.nodes:
            if node.op in effects.ARGUMENTS:
                continue
            entry = self.graph.entry(node)
            route = "none" if entry is None else entry.route
            drawn = effects.draws(node, self.graph.op_def)
            yield OpUse(f"tf.{node.op}", route, node.location, drawn)
            if node.op == "XlaCallModule" and not self._node_problems(node):
                yield from self.graph.program(node).ops()

    def _node_problems(self, node: Node) -> list[Problem]:
        if node.op == "_Arg":
            return []
        entry = self.graph.entry(node)
        if entry is None:
            return [missing(self.graph, node)]
        if entry.needs_tensorflow and not has_tensorflow():
            reason = "has no rule, and TensorFlow, which could compute it, is not installed"
            remedy = "Install it with `pip install 'invert[tensorflow]'`."
            return [Problem(f"tf.{node.op}", reason, self.graph.where(node), remedy)]
        return list(entry.check(Context(self.graph, {}), node)) if entry.check else []

    def _visit(self, body: Body, known_args: tuple[bool, ...]) -> _Facts:
        """The facts of a body, given which of its arguments are known at conversion."""
        key = (body.name, known_args)
        if key in self._facts:
            return self._facts[key]
        # For recursive functions.
        self._facts[key] = _Facts(known=(False,) * len(body.outputs))
        fresh = body.name not in self._visited
        self._visited.add(body.name)
        known: dict[int, tuple[bool, ...] | bool] = dict(zip(body.args, known_args, strict=True))
        origins: dict[int, frozenset[Origin]] = {i: frozenset([k]) for k, i in enumerate(body.args)}
        size, writes = len(body.order), set[Origin]()

        def is_known(source: tuple[int, int]) -> bool:
            entry = known.get(source[0], False)
            return entry[source[1]] if isinstance(entry, tuple) else entry

        for index in body.order:
            node = body.nodes[index]
            if fresh:
                self.nodes.append(node)
            if index in origins:
                continue
            inputs = tuple(is_known(source) for source in node.inputs)
            sources = [origins[i] for i, _ in node.inputs]
            called = self._facts_of_callees(node, inputs)
            size += sum(facts.size for facts in called) + self._further_results(node)
            writes |= self._handles_written(node, sources, called)
            known[index] = self._results(node, inputs, called)
            if node.op in _MAKES_VARIABLES:
                origins[index] = frozenset([variable_name(node)])
            elif node.op in _PASSES_HANDLES or node.op in PASSED:
                origins[index] = frozenset[Origin]().union(*sources)
            else:
                origins[index] = frozenset()
        results = tuple(is_known(source) for source in body.outputs)
        self._facts[key] = _Facts(size, frozenset(writes), results)
        return self._facts[key]

    def _further_results(self, node: Node) -> int:
        """The results beyond the first that an attribute asks for, as a number of nodes."""
        definition = self.graph.op_def(node.op)
        if definition is None:
            return 0
        names = {a.number_attr for a in definition.output_arg} - {""}
        return _PER_FURTHER_RESULT * sum(max(node.attrs[name].i - 1, 0) for name in names)

    def _facts_of_callees(self, node: Node, inputs: tuple[bool, ...]) -> list[_Facts]:
        """The facts of the functions that a node calls."""
        # XlaCallModule reports its functions itself; the rest are calls and control flow.
        functions = node.functions if node.op != "XlaCallModule" else ()
        bodies = [self.graph.body(name) for name in functions]
        if node.op in CALLS:
            return [self._visit(body, inputs) for body in bodies]
        # The operands of branches and loops are traced.
        return [self._visit(body, (False,) * len(body.args)) for body in bodies]

    def _handles_written(
        self, node: Node, sources: Sequence[frozenset[Origin]], called: Sequence[_Facts]
    ) -> set[Origin]:
        if node.op in PASSED:
            passed = sources[PASSED[node.op] :]
            origins: set[Origin] = set()
            for what in (w for facts in called for w in facts.writes):
                origins |= {what} if isinstance(what, str) else passed[what]
            return origins
        definition = self.graph.op_def(node.op)
        entry = REGISTRY.get(node.op)
        if definition is None or (entry is not None and entry.effect == "reads"):
            return set()
        return {
            what
            for arg, source in zip(definition.input_arg, sources, strict=False)
            if arg.is_ref or arg.type == _RESOURCE
            for what in source
        }

    def _results(
        self, node: Node, inputs: Sequence[bool], called: Sequence[_Facts]
    ) -> tuple[bool, ...] | bool:
        """Find the results of a node that are known at conversion."""
        if node.op in CALLS:
            return called[0].known
        # The handle of a table is known, even if its contents are not.
        operands = inputs[1:] if node.op.startswith("LookupTable") else inputs
        entry = self.graph.entry(node)
        if entry is not None and entry.on_host is not None and entry.on_host(node):
            if not all(operands):
                self.unknown.setdefault(node)
            return all(operands)
        # Results that follow from types are known if the input's sizes are, and a trace has fixed
        # sizes. Results of strings may depend on the contents.
        if entry is not None and entry.reads_shape:
            return True
        return all(operands) and not self.graph.has_state(node) and not node.functions


def _pads_rows(graph: Graph, node: Node) -> bool:
    entry = REGISTRY.get(node.op)
    return entry is not None and entry.pads_rows is not None and entry.pads_rows(graph.config, node)


def host_problem(node: Node, location: str) -> Problem:
    """The error for a host op whose inputs depend on data."""
    return Problem(
        f"tf.{node.op}",
        "runs on the host only, and its inputs depend on the arguments or variables",
        location,
        HOST_REMEDY,
    )


HOST_REMEDY = (
    "Compute it outside the function and pass numbers; if it precedes all numeric ops, "
    'Config(text="split") cuts it off; where it has to run on the host, set '
    'Config(host_ops="callback").'
)
