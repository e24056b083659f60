"""Gradient functions of a SavedModel, by the names of their ops.

TensorFlow traces the Python function of `tf.custom_gradient` when it saves a model. The traced
function takes the gradients of all outputs of the op, then its captures. It returns the gradients
of the inputs (tensorflow/python/saved_model/save.py, TensorFlow 2.21).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from invert._errors import MalformedModelError
from invert.ir.order import reached
from invert.ir.types import Value
from invert.protos.ops import op_def
from invert.protos.tensors import decode_dtype, decode_shape, no_array
from invert.protos.types import NodeDef, SavedObjectGraph, StructuredValue
from invert.tf.gradients.read import Capture, TfGradient, holds_gradients, holds_module
from invert.tf.graph.check import data_inputs, parse_tensor, past_identities
from invert.tf.graph.library import Library
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.definition import types_of
from invert.tf.ops.node import PASSED, Node, functions_in


class SavedGradients:
    """The gradient functions of a model.

    **Arguments:**

    - `library`: the graph with its functions.
    - `objects`: the `SavedObjectGraph`, which lists the captures of functions.
    """

    def __init__(self, library: Library, objects: SavedObjectGraph):
        self._library = library
        self._objects = objects
        self._by_op = {
            g.registered_op_type: g.gradient_func for g in library.proto.registered_gradients
        }
        self._constants = {n.name: n for n in library.graph.node if n.op == "Const"}

    def read(self, around: Graph, function: str, node: Node) -> TfGradient:
        """The gradient of a node, with a `problem` if it cannot be read."""
        count = self._outputs_of(node)
        failed = functools.partial(TfGradient, node.location, count)
        gradient = self._by_op.get(node.attr("_gradient_op_type"), "")
        saved = self._objects.concrete_functions
        if gradient not in self._library.functions or gradient not in saved:
            return failed(problem="no gradient function was saved with the model")
        args = self._library.signatures[gradient].input_arg
        bound = list(saved[gradient].bound_inputs)
        shapes = list(_specs(saved[gradient].canonicalized_input_signature))
        returned = list(_leaves(saved[gradient].output_signature))
        overridden = node.op != "IdentityN"
        passed = len(node.inputs) if overridden else count
        if len(args) - len(bound) != count or len(returned) != passed:
            return failed(problem="the gradient function belongs to another op")
        has = [leaf.WhichOneof("kind") != "none_value" for leaf in returned]
        # TensorFlow pads the gradients of the arguments with `None` for those of the results.
        results = count if overridden else next((i for i, h in enumerate(has) if h), len(has))
        feeds: list[int | np.ndarray] = []
        given = 0
        for i, arg in enumerate(args[:count]):
            dtype = decode_dtype(arg.type)
            if i < results and jax.dtypes.issubdtype(dtype, np.inexact):
                feeds.append(given)
                given += 1
            else:  # TensorFlow passes zeros too
                shape = shapes[i] if i < len(shapes) else ()
                sizes = [1 if n is None else n for n in shape or ()]
                if (reason := no_array(sizes, dtype)) is not None:
                    raise MalformedModelError(f"argument {i} of function {gradient!r} {reason}")
                feeds.append(np.broadcast_to(np.zeros((), dtype), sizes))
        captures: list[Capture] = []
        own: list[int] = []
        places: list[tuple[bool, int]] = []
        for index in bound:
            capture = self._capture(index, function)
            if capture is None:
                return failed(problem="the gradient function uses a value of another graph")
            of_node = isinstance(capture, tuple) and capture[0] == node.name
            if of_node and not overridden:
                return failed(problem="the gradient function uses a result of its own op")
            if of_node and isinstance(capture, tuple):
                places.append((True, len(own)))
                own.append(capture[1])
            else:
                places.append((False, len(captures)))
                captures.append(capture)
        feeds += [given + (len(captures) if is_own else 0) + k for is_own, k in places]
        nodes = list(self._nodes(gradient))
        return TfGradient(
            node.location,
            results,
            tuple(captures),
            functools.lru_cache(functools.partial(self._made, around, gradient)),
            tuple(has if overridden else has[results:]),
            tuple(own),
            convention="jax" if holds_module(nodes) else "tensorflow",
            nested=holds_gradients(nodes),
            feeds=tuple(feeds),
        )

    def _made(self, around: Graph, function: str, nested: bool) -> Analysis:
        """A gradient function in evaluated form; `nested`: read the gradients inside."""
        reads = self.read if nested else None
        return Analysis(around.derived(around.shared, reads, function=function))

    def _outputs_of(self, node: Node) -> int:
        if node.op == "IdentityN":
            return len(node.attr("T"))
        definition = op_def(node.op)
        return sum(n for n, _ in types_of(definition.output_arg, node.attrs)) if definition else 0

    def _capture(self, index: int, function: str) -> Capture | None:
        """The source of a captured value, seen from a function, if any."""
        nodes, saved = self._objects.nodes, self._objects.concrete_functions
        if not 0 <= index < len(nodes):
            raise MalformedModelError(f"a function captures object {index}, which does not exist")
        kind = nodes[index].WhichOneof("kind")
        if kind == "constant":
            node = self._constants.get(nodes[index].constant.operation)
            if node is None:
                return None
            return self._library.constant(node.attr["value"].tensor, f"node {node.name!r}")
        signature = self._library.signatures.get(function)
        if signature is None:
            return None
        if kind == "captured_tensor":
            tensor = nodes[index].captured_tensor
            name, _, number = parse_tensor(tensor.name)
            if tensor.concrete_function != function:
                return self._argument(tensor.concrete_function, (name, number), function, set())
            for i, arg in enumerate(signature.input_arg):
                if arg.name == name:
                    return i
            held = any(n.name == name for n in self._library.functions[function].node_def)
            return (name, number) if held else None
        # A variable or a table: the argument that passes it.
        bound = list(saved[function].bound_inputs) if function in saved else []
        if index not in bound:
            return None
        return len(signature.input_arg) - len(bound) + bound.index(index)

    def _argument(
        self, around: str, value: tuple[str, int], function: str, seen: set[str]
    ) -> int | None:
        """The argument of a function that always is a value of a function around it, if any.

        Branches and loops take the values around them as arguments.
        """
        if around in seen or around not in self._library.functions:
            return None
        seen.add(around)
        definition = self._library.functions[around]
        nodes = {node.name: node for node in definition.node_def}
        if value[0] in nodes:
            start, value = value, past_identities(f"{value[0]}:{value[1]}", nodes)
            # Several results of an op are numbered by name in a function.
            if any(len(self._results_of(nodes[n])) > 1 for n, _ in (start, value) if n in nodes):
                return None
        for node in definition.node_def:
            passed = data_inputs(node)[PASSED.get(node.op, 0) :]
            for called in functions_in(node.attr, hints=False) if node.op in PASSED else ():
                for i, given in enumerate(passed):
                    if past_identities(given, nodes) != value or not self._stays(node, called, i):
                        continue
                    if called == function:
                        return i
                    name = self._library.signatures[called].input_arg[i].name
                    found = self._argument(called, (name, 0), function, seen)
                    if found is not None:
                        return found
        return None

    def _stays(self, node: NodeDef, function: str, argument: int) -> bool:
        """Return whether an argument is the same in every run of a function by a node."""
        definition = self._library.functions.get(function)
        if definition is None:
            return False
        arguments, results = definition.signature.input_arg, definition.signature.output_arg
        if argument >= len(arguments):
            return False
        if node.op not in ("While", "StatelessWhile"):
            return True
        if argument >= len(results):  # of the condition
            return False
        nodes = {node.name: node for node in definition.node_def}
        returned = definition.ret.get(results[argument].name, "")
        return past_identities(returned, nodes) == (arguments[argument].name, 0)

    def _results_of(self, node: NodeDef) -> Sequence[object]:
        definition = op_def(node.op)
        return definition.output_arg if definition is not None else ()

    def _nodes(self, function: str) -> Iterator[NodeDef]:
        """The nodes of a function and of those it calls."""

        def nodes(name: str) -> Iterable[NodeDef]:
            proto = self._library.functions.get(name)
            return proto.node_def if proto is not None else ()

        called = reached(
            [function], lambda name: (f for n in nodes(name) for f in functions_in(n.attr))
        )
        return itertools.chain.from_iterable(map(nodes, called))


def _leaves(value: Value) -> Iterator[Value]:
    """The leaves of a `StructuredValue`, in TensorFlow's order."""
    kind = value.WhichOneof("kind")
    if kind in ("list_value", "tuple_value"):
        for item in getattr(value, kind).values:
            yield from _leaves(item)
    elif kind == "dict_value":
        for key in sorted(value.dict_value.fields):
            yield from _leaves(value.dict_value.fields[key])
    elif kind == "named_tuple_value":
        for pair in value.named_tuple_value.values:
            yield from _leaves(pair.value)
    else:
        yield value


def _specs(signature: StructuredValue) -> Iterator[Sequence[int | None] | None]:
    """The shapes of the tensors among the arguments of a function."""
    for leaf in _leaves(signature):
        if leaf.WhichOneof("kind") == "tensor_spec_value":
            yield decode_shape(leaf.tensor_spec_value.shape)
