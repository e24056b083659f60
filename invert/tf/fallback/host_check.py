"""Finds, before anything is traced, the host ops whose inputs depend on data.

An op that only a host can run is evaluated at conversion where its inputs are known. Whether they
are follows from the graph alone: they are unless an argument, a variable or an op with state leads
to them. Calls are followed with what is known of their arguments, so that text made in one function
and used in another counts as known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from invert._errors import Problem
from invert.tf.fallback.host import runs_on_host, unknown_problem
from invert.tf.ops.node import Body, Node, attr_functions

_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
# Their results follow from types. They are known where the sizes of the input are, and a trace
# has fixed sizes; of text, sizes may depend on what the text is.
_OF_SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))


def host_problems(
    main: Body,
    known: Sequence[bool],
    body_of: Callable[[str], Body],
    op_def: Callable[[str], Any],
    where: Callable[[Node], str],
) -> list[Problem]:
    """One problem for each host op with an input that is not known at conversion.

    **Arguments:**

    - `main`: the outermost graph; `known`: which of its arguments are constants.
    - `body_of`: gives the body of a library function.
    - `op_def`: gives the `OpDef` proto of an op type, or `None`.
    - `where`: gives the node name and source line of a node.
    """
    search = _Search(body_of, op_def)
    search.visit(main, known)
    return [unknown_problem(node, where(node)) for node in search.found]


class _Search:
    def __init__(self, body_of: Callable[[str], Body], op_def: Callable[[str], Any]):
        self.body_of = body_of
        self.op_def = op_def
        self.found: dict[Node, None] = {}
        self._done: dict[tuple[str, tuple[bool, ...]], tuple[bool, ...]] = {}

    def visit(self, body: Body, known_args: Sequence[bool]) -> tuple[bool, ...]:
        """Which results of `body` are known, where these of its arguments are."""
        key = (body.name, tuple(known_args))
        if key in self._done:
            return self._done[key]
        self._done[key] = (False,) * len(body.outputs)  # for functions that call themselves
        known: dict[int, tuple[bool, ...] | bool] = dict(zip(body.args, known_args, strict=True))

        def of(source: tuple[int, int]) -> bool:
            entry = known.get(source[0], False)
            return entry[source[1]] if isinstance(entry, tuple) else entry

        for index in body.order:
            if index not in known:
                node = body.nodes[index]
                known[index] = self._results(node, [of(i) for i in node.inputs])
        results = tuple(of(source) for source in body.outputs)
        self._done[key] = results
        return results

    def _results(self, node: Node, inputs: Sequence[bool]) -> tuple[bool, ...] | bool:
        if node.op in _CALLS:
            (function,) = attr_functions(node)
            return self.visit(self.body_of(function), inputs)
        # Branches and loops: what they take is traced.
        for function in attr_functions(node) if node.op != "XlaCallModule" else ():
            body = self.body_of(function)
            self.visit(body, (False,) * len(body.args))
        # The handle of a table is known, whatever it holds.
        operands = inputs[1:] if node.op.startswith("LookupTable") else inputs
        if runs_on_host(node):
            if not all(operands):
                self.found.setdefault(node)
            return all(operands)
        if node.op in _OF_SHAPES:
            return True
        definition = self.op_def(node.op)
        stateful = definition is None or definition.is_stateful
        return all(operands) and not stateful and not attr_functions(node)
