"""Evaluates a graph on JAX values, with one rule per op."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import jax
import numpy as np

from invert._config import Config
from invert._errors import (
    REPORT,
    DefectError,
    MalformedModelError,
    Problem,
    UnsupportedOpError,
    defect_of,
)
from invert._private.jax import SIZE_ERRORS, current_names, full_tracebacks, name_stack
from invert.ir.gradient_marker import mark
from invert.tf.interpreter.folding import Folding
from invert.tf.interpreter.graph import Graph
from invert.tf.interpreter.registry import REGISTRY, Entry, Value
from invert.tf.ops.definition import operand_dtype, result_problem, shape_problem, unusual
from invert.tf.ops.node import FRAMES_REMEDY, LIBRARY_ERRORS, Body, Node, named_error, note_op
from invert.tf.ops.state import KEY, Resource, State, is_reference
from invert.tf.values.bounded import (
    BoundedArray,
    refused_rows,
)
from invert.tf.values.bounds import OuterFacts, known
from invert.tf.values.constants import array, arrays
from invert.tf.values.dynamic_size import DynamicSize, holds_dynamic_size
from invert.tf.values.split_space import SplitSpace

# For each variable of a loop, a key of its first value and the form found for it.
LoopPlan: TypeAlias = Mapping[int | Resource, tuple[Hashable, Value]]


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """Facts gathered in one evaluation of a graph.

    They are not part of the graph, since threads may evaluate it concurrently and traced values
    must not outlive their trace.

    **Arguments:**

    - `active`: functions in progress, to refuse recursion.
    - `folding`: values that follow from constants.
    - `plans`: facts that loops found about their variables, reused when a body is traced again.
    - `given`: facts about the variables of the loops around the current body.
    - `pads_rows`: see `Context`.
    """

    active: set[str] = dataclasses.field(default_factory=set)
    folding: Folding = dataclasses.field(default_factory=Folding)
    plans: dict[Hashable, LoopPlan] = dataclasses.field(default_factory=dict)
    given: list[OuterFacts] = dataclasses.field(default_factory=list)
    pads_rows: bool = False


class Context:
    """A graph with a state: what a rule may use besides its operands.

    A value is a JAX value, a static `np.ndarray` (see `tf.values.constants`), a `Resource`, or a
    registered pytree such as a `TensorList`.

    **Attributes:**

    - `graph`: the graph, with constants, modules and gradient functions of its nodes.
    - `config`: options of the conversion.
    - `state`: current values of all handles. Rules use `read`, `write` and `key`; only control
        flow looks at the whole.
    - `branch`: number of the current branch of the innermost `If` or `Case`.
    - `compiled`: whether TensorFlow compiles the current function with XLA.
    - `pads_rows`: whether rows may be looked up by index -1, which selects no row.
    - `body`: the body whose nodes are run, if any.
    - `origins`: for the `id` of a reshaped value, that value and the original.
    - `split`: for the `id` of a value whose space was split, that value and how it was made.
    """

    def __init__(
        self,
        graph: Graph,
        state: State,
        *,
        branch: int = 0,
        compiled: bool = False,
        pads_rows: bool = False,
        evaluation: _Evaluation | None = None,
    ):
        self.graph = graph
        self.config: Config = graph.config
        self.state = state
        self.branch = branch
        self.body: Body | None = None
        self.origins: dict[int, tuple[Value, Value]] = {}
        self.split: dict[int, tuple[Value, SplitSpace]] = {}
        self._compiled = compiled
        self._evaluation = evaluation or _Evaluation(pads_rows=pads_rows)

    @property
    def plans(self) -> dict[Hashable, LoopPlan]:
        return self._evaluation.plans

    @property
    def given(self) -> list[OuterFacts]:
        return self._evaluation.given

    def computed(self, size: int) -> int:
        """Count the bytes of values that are computed at conversion; return those of all."""
        return self._evaluation.folding.computed(size)

    @property
    def pads_rows(self) -> bool:
        return self._evaluation.pads_rows

    @property
    def compiled(self) -> bool:
        return self._compiled or self.graph.compiled()

    def on(self, state: State, branch: int | None = None) -> Context:
        """The same evaluation on another state, in the branch of a given number."""
        return Context(
            self.graph,
            state,
            branch=self.branch if branch is None else branch,
            compiled=self._compiled,
            evaluation=self._evaluation,
        )

    def call(self, function: str, values: Sequence[Value]) -> list[Value]:
        """Evaluate the library function `function` on the same state.

        **Raises:** `MalformedModelError` if it calls itself.
        """
        active = self._evaluation.active
        if function in active:
            raise MalformedModelError(f"the function {function!r} calls itself")
        active.add(function)
        outer = self._compiled
        self._compiled = outer or self.graph.is_compiled(function)
        try:
            results = self.run(self.graph.body(function), values)
            return [self.read(r) if is_reference(r) else r for r in results]
        finally:
            self._compiled = outer
            active.remove(function)

    # -- state

    def read(self, resource: Value) -> Value:
        """The current value of a `Resource`; other values are returned unchanged.

        **Raises:** `UnsupportedOpError` if it has no value yet.
        """
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

    def write(self, resource: Resource, value: Value) -> None:
        """Set the value of a `Resource` for the rest of the execution."""
        self.state[resource] = value

    def note_split(
        self, x: Value, y: Value, step: Callable[[SplitSpace], SplitSpace | None]
    ) -> Value:
        """Record `y` as made from `x`, if the space of `x` was split."""
        if id(x) in self.split and (made := step(self.split[id(x)][1])) is not None:
            self.split[id(y)] = y, made
        return y

    def key(self) -> Value:
        """A new typed PRNG key, split off the key of the call."""
        key, drawn = jax.random.split(self.read(KEY))
        self.state[KEY] = key
        return drawn

    # -- evaluation

    def run(self, body: Body, values: Sequence[Value]) -> list[Value]:
        """Evaluate `body` on `values`, one for each argument; changes the state.

        **Raises:** `UnsupportedOpError`, `MalformedModelError`.
        """
        with full_tracebacks():  # `defect_of` reads them
            return self._run(body, values)

    def _run(self, body: Body, values: Sequence[Value]) -> list[Value]:
        outer, around = current_names(), self.body
        self.body = body
        results: dict[int, Sequence[Value]] = {
            i: (v,) for i, v in zip(body.args, values, strict=True)
        }
        for index in body.order:
            if index in results:
                continue
            node = body.nodes[index]
            operands = [_output(body, results, i, k) for i, k in node.inputs]
            path, _, _ = node.name.rpartition("/")
            results[index] = self._apply(node, operands, _scope(outer, path))
        self.body = around
        return [_output(body, results, i, k) for i, k in body.outputs]

    def _apply(self, node: Node, operands: list[Value], scope: tuple[str, ...]) -> Sequence[Value]:
        """The results of one node, checked against their declared dtypes and shapes."""
        entry = self.graph.entry(node)
        if entry is None:
            raise UnsupportedOpError([missing(self.graph, node)])
        if any(map(is_reference, operands)):
            operands = self._dereferenced(entry, node, operands)
        # The rule of IdentityN marks functions wrapped by tf.custom_gradient.
        if self.graph.gradient(node) is not None and node.op != "IdentityN":
            entry = dataclasses.replace(entry, call=functools.partial(_with_gradient, entry))
        # A node's scopes are the layers of its model, along which emitted source is divided.
        with name_stack(scope):
            try:
                results = self._results(entry, node, operands)
                self._check(node, results)
                if entry.names_attributes:
                    self._check_attributes(entry, node)
            except LIBRARY_ERRORS as error:
                if (named := named_error(node, error)) is error:
                    raise
                raise named from error
            except SIZE_ERRORS as error:
                note_op(node, error)
                raise
        return results

    def _results(self, entry: Entry, node: Node, operands: list[Value]) -> Sequence[Value]:
        try:
            try:
                return self._raised(entry, node, operands)
            except Exception as error:
                defect = defect_of(error, f"while raising tf.{node.op} at {node.location}")
                if defect is None:
                    raise
                raise defect from error
        except (DefectError, LookupError, ZeroDivisionError) as error:
            # The graph's fault only if TensorFlow refuses these sizes or axes too; otherwise it is
            # a defect.
            problem = REGISTRY.diagnose(self, node, operands)
            if problem is None:
                raise
            raise UnsupportedOpError([problem]) from error

    def _raised(self, entry: Entry, node: Node, operands: list[Value]) -> Sequence[Value]:
        folding = self._evaluation.folding
        for v in operands:
            if isinstance(v, BoundedArray) or holds_dynamic_size(v):
                return _on_rows(entry, self, node, folding.known(operands))
        if entry.chooses:  # branches that are never taken need not agree on shapes
            operands = [*folding.known(operands[:1]), *operands[1:]]
        if entry.folds_operands:
            operands = folding.known(operands)
        if node.functions or self.graph.has_state(node):
            return entry.call(self, node, operands)
        try:
            results = entry.call(self, node, operands)
        except UnsupportedOpError:
            constants = [_known(v) for v in folding.known(operands)]
            if all(map(operator.is_, constants, operands)):
                raise
            results = entry.call(self, node, constants)
        folding.note(
            node.op,
            lambda values: entry.call(self, node, values),
            operands,
            results,
            lambda i: self._operand_dtype(node, i),
        )
        return results

    def _operand_dtype(self, node: Node, i: int) -> np.dtype | None:
        definition = self.graph.op_def(node.op)
        return None if definition is None else operand_dtype(node.attrs, definition, i)

    def _check(self, node: Node, results: Sequence[Value]) -> None:
        """Refuse results whose dtypes or shapes differ from those that op and node declare."""
        definition = self.graph.op_def(node.op)
        reason = shape_problem(node, results)
        if reason is None and definition is not None and not self.config.bfloat16_constants:
            reason = result_problem(node, definition, results)
        if reason is not None:
            raise node.error(reason, REPORT)

    def _check_attributes(self, entry: Entry, node: Node) -> None:
        """Refuse attributes that the rule did not ask for, except at their defaults."""
        form, options = node.form, self.graph.options(node.op)
        if form is None or form.definition is not self.graph.op_def(node.op):
            given = unusual(node.attrs, options)
        else:
            given = form.unusual(options, node.attrs)
        for name in given:
            if name not in node.read and not entry.is_silent(name):
                reason = f"has an attribute {name!r} that its rule does not take"
                raise node.error(reason, REPORT)

    def _dereferenced(self, entry: Entry, node: Node, values: Sequence[Value]) -> list[Value]:
        """The inputs of a node; references to variables are read if it takes values.

        The identity of one shares its memory: later assignments change it in place.
        """
        if entry.effect == "passes":
            return list(values)
        definition = self.graph.op_def(node.op)
        takes = [a.is_ref for a in definition.input_arg] if definition is not None else []
        if entry.chooses:  # the operands of branches, which may assign to variables
            takes = [False, *[True] * (len(values) - 1)]
        takes += [False] * (len(values) - len(takes))
        return [
            self.read(v) if is_reference(v) and not by_reference else v
            for v, by_reference in zip(values, takes, strict=False)
        ]


def result_value(result: Value, state: State) -> Value:
    """A result of a graph; a reference to a variable is read.

    **Raises:** `UnsupportedOpError` if its size depends on data, or it is another handle.
    """
    if isinstance(result, BoundedArray):
        raise refused_rows(result.origin)
    if not isinstance(result, Resource):
        return result
    if not is_reference(result):
        op = "VarHandleOp " if result.kind == "variable" else ""
        reason = f"{op}`{result.name}` cannot be evaluated: a result of the function is its handle"
        remedy = "Return its value instead."
        raise UnsupportedOpError([Problem(f"tf {result.kind}", reason, remedy=remedy)])
    return state[result]


def missing(graph: Graph, node: Node) -> Problem:
    """The problem to report for a node without a rule."""
    if node.op == "Placeholder":
        reason = "is not an argument of the function"
        return Problem("tf.Placeholder", reason, graph.where(node), "Feed it as an argument.")
    if node.op in ("Switch", "Merge", "RefSwitch", "RefMerge"):
        reason = "belongs to a branch with effects, as gradients of conditionals in loops have"
        return Problem(f"tf.{node.op}", reason, graph.where(node), FRAMES_REMEDY)
    reason, remedy = "has no rule", "Compute it outside the function."
    if "HashTable" in node.op:
        reason = "creates a table that nothing fills when the graph is loaded"
        remedy = (
            "Load a SavedModel whose initialization fills it, as one written with "
            "`main_op=tf.compat.v1.tables_initializer()`; a frozen graph has none."
        )
    elif graph.is_effect(node):
        reason = "has an effect besides its results, and no rule"
        remedy = "Remove the side effect from the function."
    return Problem(f"tf.{node.op}", reason, graph.where(node), remedy)


def _with_gradient(entry: Entry, ctx: Context, node: Node, values: list[Value]) -> Sequence[Value]:
    """Mark the results of an op whose gradient the author replaced."""
    gradient = ctx.graph.gradient(node)
    assert gradient is not None
    more = sum(not isinstance(c, np.ndarray) for c in gradient.captures)
    own, captured = values[: len(values) - more], iter(values[len(values) - more :])
    results = arrays(list(entry.call(ctx, node, own)))
    captures = [
        array(c) if isinstance(c, np.ndarray) else array(ctx.read(next(captured)))
        for c in gradient.captures
    ]
    # A handle has no gradient, only a position.
    inputs = [np.zeros(()) if isinstance(v, Resource) else array(v) for v in own]
    captures += [results[i] for i in gradient.own]
    return mark(gradient.marked, results, inputs, captures)


def _known(value: Value) -> Value:
    """A traced array as a NumPy constant, if it is one."""
    number = known(value) if isinstance(value, np.generic | jax.Array) else None
    return value if number is None else number


def _on_rows(entry: Entry, ctx: Context, node: Node, values: list[Value]) -> Sequence[Value]:
    """Raise a node on a `BoundedArray`, or a shape with a `DynamicSize`.

    **Raises:** `UnsupportedOpError` if the op may let padding rows affect valid ones.
    """
    if node.functions and node.op != "XlaCallModule":
        return entry.call(ctx, node, values)
    rows = [v for v in values if isinstance(v, BoundedArray)]
    if rows:
        if entry.rows is None:
            raise refused_rows(rows[0].origin, node.op, node.location)
        return entry.rows(entry.call, ctx, node, values)
    if entry.rows is not None and entry.takes_sizes:
        return entry.rows(entry.call, ctx, node, values)
    if entry.folds_sizes and all(isinstance(v, np.ndarray) for v in values):
        return entry.call(ctx, node, values)
    # The numbers alone.
    try:
        plain = [array(v) if holds_dynamic_size(v) else v for v in values]
        return entry.call(ctx, node, plain)
    except UnsupportedOpError as error:
        held = [v.ravel() for v in values if holds_dynamic_size(v)]
        sizes = [d for v in held for d in v if isinstance(d, DynamicSize)]
        if not sizes:
            raise
        raise refused_rows(sizes[0].origin, node.op, node.location) from error


def _output(body: Body, results: Mapping[int, Sequence[Value]], index: int, number: int) -> Value:
    if number >= len(results[index]):
        node = body.nodes[index]
        raise MalformedModelError(f"tf.{node.op} ({node.location}) has no output {number}")
    return results[index][number]


@functools.lru_cache(maxsize=4096)
def _scope(outer: tuple[str, ...], path: str) -> tuple[str, ...]:
    """The scopes of the nodes of a path.

    Some functions name them in full, others relative to the call.
    """
    inner = tuple(path.split("/")) if path else ()
    full = not outer or inner[:1] == outer[:1]
    return inner if full and inner else (*outer, *inner)
