"""Reads the gradient functions that TensorFlow keeps for `tf.custom_gradient`.

The registry holds a Python function for each. It is called once, on placeholders in a fresh graph,
where it leaves the ops of the gradient. A function of `jax2tf.convert` leaves the serialized
vector-Jacobian product, a second `XlaCallModule`. The user's graph is not changed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from jax.export import Exported

from invert._errors import InvertError, UnsupportedOpError, in_short, only_refusals
from invert._private.artifacts import exported_of_gradient, exported_program
from invert._private.tensorflow import (
    TfObject,
    tf_function_graph,
    tf_gradient_function,
    tf_graph_bytes,
    tf_scratch_graph,
    tf_values,
)
from invert.ir.arrays import copied
from invert.ir.avals import is_differentiable
from invert.ir.gradient_marker import Gradient, mark
from invert.ir.types import Value
from invert.protos.types import NodeDef
from invert.stablehlo.author_rules import differs_from_autodiff, marked_function
from invert.tf.graph.library import Library
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.graph import Graph, ReadGradient
from invert.tf.ops.node import Node, import_tensorflow
from invert.tf.ops.state import Resource
from invert.tf.values.constants import arrays

# Source of a captured value: argument number, (node name, output number), or a constant.
Capture = int | tuple[str, int] | np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class TfGradient:
    """A gradient function, as a graph.

    **Arguments:**

    - `location`: the node it belongs to.
    - `results`: number of the node's outputs that are results; the others are its arguments.
    - `captures`: the values of the surrounding graph that it uses.
    - `make`: builds the graph, from its cotangents and captures to the cotangents of the
        arguments; `make(True)` reads the gradient functions inside it as well.
    - `outputs`: for each argument, whether it has a gradient.
    - `own`: outputs of the node itself that it uses, after the other captures. Only an op under
        `gradient_override_map` has such captures; its arguments are its inputs.
    - `problem`: the reason if it cannot be read.
    - `convention`: see `invert.ir.gradient_marker.Gradient`.
    - `nested`: whether it may contain gradient functions.
    - `feeds`: for each input of the graph, the cotangent or capture it receives, or a constant; by
        default all of them in order.
    - `instead`: the results as a function of the arguments, in which the rules of a function of
        JAX are marked one by one; it replaces results and gradient.
    - `has_rule`: see `invert.ir.gradient_marker.Gradient`.
    """

    location: str
    results: int = 0
    captures: tuple[Capture, ...] = ()
    make: Callable[[bool], Analysis] | None = None
    outputs: tuple[bool, ...] = ()
    own: tuple[int, ...] = ()
    problem: str = ""
    convention: Literal["jax", "tensorflow"] = "jax"
    nested: bool = False
    feeds: tuple[int | np.ndarray, ...] | None = None
    instead: Callable[[Sequence[Value]], list[Value]] | None = None
    has_rule: bool = False

    @functools.cached_property
    def marked(self) -> Gradient:
        """The gradient in the form that a marker holds."""
        inside = functools.partial(self.make, True) if self.make and self.nested else None
        return Gradient(
            self.location,
            self._run,
            self.problem,
            self.convention,
            inside,
            has_rule=self.has_rule,
        )

    def _run(
        self, captures: Sequence[Value], cotangents: Sequence[Value], nested: bool
    ) -> list[Value | None]:
        assert self.make is not None, self.problem
        analysis = self.make(nested)
        if problems := analysis.problems():
            raise UnsupportedOpError(problems)
        values = [*cotangents, *captures]
        if self.feeds is not None:
            values = [values[f] if isinstance(f, int) else f for f in self.feeds]
        results = iter(analysis.run(values))
        return [next(results) if has else None for has in self.outputs]


def read_gradient(tf_graph: TfObject, around: Graph, function: str, node: Node) -> TfGradient:
    """The gradient function of a node with the attribute `_gradient_op_type`.

    **Arguments:**

    - `tf_graph`: the graph that was traced or restored.
    - `around`: the same graph, in the form that is evaluated.
    - `function`: name of the node's library function; empty for the graph itself.
    - `node`: the node.

    **Returns:** a `TfGradient`, with a `problem` if it cannot be read.
    """
    graph = tf_function_graph(tf_graph, function) if function else tf_graph
    unknown = len(node.attr("T")) if node.op == "IdentityN" else 0
    failed = functools.partial(TfGradient, node.location, unknown)
    if graph is None:
        return failed(problem="its function has no graph")
    try:
        op = graph.get_operation_by_name(node.name)
    except KeyError:
        return failed(problem="its function has a different graph")
    overridden = node.op != "IdentityN"
    failed = functools.partial(TfGradient, node.location, len(op.outputs))
    # The name is local to a process. If the gradients were not saved, it may happen to name
    # another function, which does not fit this graph.
    gradient = tf_gradient_function(op)
    if gradient is None:
        return failed(problem="no gradient function was saved with the model")
    called = _call_for_results(gradient, op, overridden)
    if isinstance(called, str):
        exported = None if overridden else exported_of_gradient(gradient)
        if exported is None or exported_program(exported) is None:
            return failed(problem=called)
        return _rules_of(exported, op, around) or failed(
            problem=called, has_rule=differs_from_autodiff(exported)
        )
    results, scratch, cotangents, grads = called
    if not _fit(grads, op.inputs if overridden else op.outputs):
        return failed(problem="the gradient function belongs to another op")
    captured = [(o, i) for o, i in scratch.captures if not _is_output(o, op)]
    own = [(o, i) for o, i in scratch.captures if _is_output(o, op)]
    if own and not overridden:
        return failed(problem="the gradient function uses a result of its own op")
    captures = [c for outer, _ in captured if (c := _capture(outer, graph)) is not None]
    if len(captures) < len(captured):
        return failed(problem="the gradient function uses a value of another graph")
    used = [t.name for t in cotangents[:results] if t is not None]
    inputs = [*used, *(inner.name for _, inner in (*captured, *own))]
    outputs = [g.name for g in grads if g is not None]
    library = Library.of(tf_graph_bytes(scratch))
    nodes = list(_nodes(library))
    nested = holds_gradients(nodes)
    # The constants of the graph are in the library; TensorFlow may free its own.
    reads = functools.partial(read_gradient, scratch) if nested else None
    made = functools.partial(gradient_graph, library, around, inputs, outputs, reads)
    return TfGradient(
        node.location,
        results,
        tuple(captures),
        functools.lru_cache(made),
        tuple(g is not None for g in (grads if overridden else grads[results:])),
        tuple(outer.value_index for outer, _ in own),
        convention="jax" if holds_module(nodes) else "tensorflow",
        nested=nested,
    )


def _rules_of(exported: Exported, op: TfObject, around: Graph) -> TfGradient | None:
    """The rules of a function of JAX in this process, if it has any."""
    types = [t.dtype.as_numpy_dtype for t in op.outputs]
    if types != [a.dtype for a in (*exported.out_avals, *exported.in_avals)]:
        return None
    instead = marked_function(exported, around.config) if differs_from_autodiff(exported) else None
    if instead is None:
        return None
    return TfGradient(op.name, len(exported.out_avals), instead=instead)


def _fit(grads: Sequence[TfObject], passed: Sequence[TfObject]) -> bool:
    """Return whether number and shapes fit gradients of the arguments."""
    resource = import_tensorflow().resource
    return len(grads) == len(passed) and all(
        g is None or g.shape.is_compatible_with(t.shape)
        for g, t in zip(grads, passed, strict=True)
        if t.dtype != resource
    )


def gradient_graph(
    library: Library,
    around: Graph,
    inputs: list[str],
    outputs: list[str],
    reads: ReadGradient | None,
    nested: bool,
) -> Analysis:
    """A TensorFlow graph in the form that is evaluated; `nested`: read the gradients inside."""
    return Analysis(around.derived(library, reads if nested else None, inputs, outputs))


def _call_for_results(
    gradient: Callable[..., object], op: TfObject, overridden: bool
) -> str | tuple[int, TfObject, list[TfObject], list[TfObject]]:
    """The number of results, with `_call`'s answer for them, or the problem."""
    tf = import_tensorflow()
    try:
        with only_refusals():
            scratch, cotangents, grads = _call(gradient, op, len(op.outputs))
            results = len(op.outputs) if overridden else _count_results(grads)
            # A restored function takes cotangents of the arguments too, which TensorFlow ignores.
            if any(t is not None and t.consumers() for t in cotangents[results:]):
                scratch, cotangents, grads = _call(gradient, op, results)
    # What JAX and TensorFlow raise if the function has no reverse derivative, or does not fit.
    except (
        ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
        ValueError, InvertError, tf.errors.OpError,
    ) as error:  # fmt: skip
        return f"the gradient function fails: {in_short(error)}"
    return results, scratch, cotangents, grads


def _call(
    gradient: Callable[..., object], op: TfObject, count: int
) -> tuple[TfObject, list[TfObject], list[TfObject]]:
    """Trace a gradient function in its own graph, on cotangents of the first outputs.

    **Returns:** the graph, the cotangents and the gradients; `None` for those that do not exist.
    """
    tf = import_tensorflow()
    graph = tf_scratch_graph("gradient")
    with graph.as_default():
        cotangents = [
            tf.compat.v1.placeholder(t.dtype, t.shape)
            if i < count and (t.dtype.is_floating or t.dtype.is_complex)
            else None
            for i, t in enumerate(op.outputs)
        ]
        gradients = gradient(op, *cotangents)
        grads = [
            None if g is None else tf.identity(tf.convert_to_tensor(g))
            for g in (gradients if isinstance(gradients, (list, tuple)) else (gradients,))
        ]
    return graph, cotangents, grads


def _count_results(grads: Sequence[object]) -> int:
    """The number of results. TensorFlow pads the gradients of the arguments with `None`."""
    return next((i for i, g in enumerate(grads) if g is not None), len(grads))


def _capture(outer: TfObject, graph: TfObject) -> Capture | None:
    """The source of a captured tensor; `None` if it is not in `graph`."""
    if hasattr(outer, "numpy"):
        if outer.dtype != import_tensorflow().resource:
            # It may share memory with an array of the caller.
            return copied(tf_values(outer))
        outer = _placeholder(outer, graph)
    elif outer.graph is not graph:  # a branch or body takes the values around it as arguments
        outer = _placeholder(outer, graph)
    if outer is None:
        return None
    for i, argument in enumerate(graph.inputs):
        if argument is outer:
            return i
    return outer.op.name, outer.value_index


def _is_output(outer: TfObject, op: TfObject) -> bool:
    return any(outer is t for t in op.outputs)


def _placeholder(value: TfObject, graph: TfObject) -> TfObject | None:
    """The placeholder in `graph` for a value of a graph around it, or the handle of a variable."""
    around = getattr(graph, "outer_graph", None)
    outer = _placeholder(value, around) if hasattr(around, "captures") else None
    for captured, inner in graph.captures:
        if captured is value or captured is outer:
            return inner
    return None


def holds_module(nodes: Sequence[NodeDef]) -> bool:
    """Return whether the gradient is that of a JAX function."""
    return any(node.op == "XlaCallModule" for node in nodes)


def holds_gradients(nodes: Sequence[NodeDef]) -> bool:
    """Return whether ops of the gradient have custom gradients in turn."""
    return any("_gradient_op_type" in node.attr for node in nodes)


def _nodes(library: Library) -> Iterator[NodeDef]:
    yield from library.graph.node
    for function in library.functions.values():
        yield from function.node_def


# -- functions whose gradient is another function of the library


def gradient_function(ctx: Context, function: str) -> str | None:
    """The library function that is the gradient of another, as `Defun(grad_func=...)` names it."""
    if ctx.config.custom_gradients == "ignore":
        return None
    found = (g for g in ctx.graph.library.gradient if g.function_name == function)
    return next((g.gradient_func for g in found), None)


def with_function_gradient(
    ctx: Context, node: Node, function: str, inputs: Sequence[Value], results: Sequence[Value]
) -> list[Value]:
    """The results of a call, marked with the gradient function `function`."""
    if any(isinstance(v, Resource) for v in (*inputs, *results)):
        return list(results)
    given, found = arrays(list(inputs)), arrays(list(results))

    def run(captures: Sequence[Value], cotangents: Sequence[Value], nested: bool) -> list[Value]:
        new = iter(cotangents)
        dy = [next(new) if is_differentiable(r) else np.zeros(r.shape, r.dtype) for r in found]
        return arrays(ctx.on({}).call(function, [*captures, *dy]))

    return mark(Gradient(node.location, run), found, given, given)
