"""What a graph changes besides its results, found without running it.

Which variables a function assigns and whether it draws random numbers has to be known before any
shapes are, since both are part of its signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from invert.primitives.tf import REGISTRY
from invert.primitives.tf.variables import variable_name
from invert.tf.ops.node import Body, Node, attr_functions

# Stateful ops, by their OpDef, that run only where their results are used: they change nothing,
# or nothing but the key of the call.
NO_EFFECT = frozenset(
    "NoOp Placeholder _Arg XlaCallModule VarHandleOp VariableV2 Variable ReadVariableOp "
    "TemporaryVariable "
    "ResourceGather ResourceGatherNd VarIsInitializedOp IsVariableInitialized VariableShape "
    "DestroyResourceOp TensorArrayV3 TensorArraySizeV3 TensorArrayReadV3 TensorArrayGatherV3 "
    "TensorArrayConcatV3 TensorArrayCloseV3 StackV2 StackCloseV2".split()
)
# Left out with a line in the report, where their results are not used.
REPORTS = frozenset(
    "Print PrintV2 HistogramSummary ScalarSummary TensorSummary TensorSummaryV2 MergeSummary "
    "ImageSummary AudioSummary AudioSummaryV2 WriteSummary WriteScalarSummary WriteImageSummary "
    "WriteHistogramSummary".split()
)
# Ops that take references to variables and change nothing.
PASS_ON = frozenset(
    "RefIdentity RefEnter RefExit RefMerge RefNextIteration RefSelect RefSwitch "
    "IsVariableInitialized".split()
)
# Stateful ops that take handles and change nothing.
_READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape "
    "IsVariableInitialized".split()
)
# Where control flow passes its inputs on to its functions: the first input that is passed.
_PASSED = {
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
    "While": 0,
    "StatelessWhile": 0,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "BatchFunction": 0,
    "RemoteCall": 1,
}


def is_draw(definition: Any) -> bool:
    """Whether an op, given by its `OpDef`, draws random numbers of a generator without a handle."""
    names = {a.name for a in definition.attr}
    return definition.is_stateful and {"seed", "seed2"} <= names


def draws(node: Node, op_def: Callable[[str], Any]) -> bool:
    """Whether `node` itself draws with the key of the call."""
    entry = REGISTRY.get(node.op)
    if entry is not None and entry.draws:
        return entry.draws(node) if callable(entry.draws) else True
    definition = op_def(node.op)
    return definition is not None and is_draw(definition)


class Writes:
    """Which handles each function writes to, each function analysed once.

    A handle is named by the argument of the function it comes in by, or by the node that makes it.

    **Arguments:**

    - `body`: gives the body of a library function.
    - `op_def`: gives the `OpDef` proto of an op type.
    """

    def __init__(self, body: Callable[[str], Body], op_def: Callable[[str], Any]):
        self._body = body
        self._op_def = op_def
        self._known: dict[str, frozenset[int | str]] = {}

    def of_function(self, function: str) -> frozenset[int | str]:
        if function not in self._known:
            self._known[function] = frozenset()  # for functions that call themselves
            self._known[function] = self.of_body(self._body(function))
        return self._known[function]

    def of_body(self, body: Body) -> frozenset[int | str]:
        """Argument numbers, and shared names of variables that the graph makes itself."""
        origins: dict[int, frozenset[int | str]] = {
            i: frozenset([k]) for k, i in enumerate(body.args)
        }
        found: set[int | str] = set()
        for index in body.order:
            if index in origins:
                continue
            node = body.nodes[index]
            sources = [origins[i] for i, _ in node.inputs]
            found |= self._written(node, sources)
            if node.op in ("VarHandleOp", "VariableV2", "Variable"):
                origins[index] = frozenset([variable_name(node)])
            elif _may_pass_handles(node):
                origins[index] = frozenset().union(*sources)
            else:
                origins[index] = frozenset()
        return frozenset(found)

    def _written(self, node: Node, sources: list[frozenset[int | str]]) -> set[int | str]:
        if node.op in _PASSED:
            passed = sources[_PASSED[node.op] :]
            found: set[int | str] = set()
            for name in attr_functions(node):
                for what in self.of_function(name):
                    found |= {what} if isinstance(what, str) else passed[what]
            return found
        definition = self._op_def(node.op)
        if definition is None or node.op in _READS:
            return set()
        return {
            what
            for arg, source in zip(definition.input_arg, sources, strict=False)
            if arg.is_ref or arg.type == _RESOURCE
            for what in source
        }


# DT_RESOURCE of tensorflow/core/framework/types.proto.
_RESOURCE = 20


def _may_pass_handles(node: Node) -> bool:
    return (
        node.op
        in (
            "Identity",
            "IdentityN",
            "Enter",
            "RefEnter",
            "Switch",
            "RefSwitch",
            "Merge",
            "RefMerge",
            "RefIdentity",
        )
        or node.op in _PASSED
    )
