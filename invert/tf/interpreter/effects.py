"""The side effects that a node's op implies."""

from __future__ import annotations

from collections.abc import Callable

from invert.protos.ops import Definition
from invert.tf.interpreter.registry import REGISTRY
from invert.tf.ops.node import Node

# Assertions, which the configuration keeps or drops.
CHECKS = frozenset(("Assert", "CheckNumerics", "CheckNumericsV2"))
# Nodes that stand for arguments.
ARGUMENTS = frozenset(("_Arg", "Placeholder"))
# Dropped, with a note in the report, if their results are unused; they have no rule.
REPORTS = frozenset(
    "Print PrintV2 HistogramSummary ScalarSummary TensorSummary TensorSummaryV2 MergeSummary "
    "ImageSummary AudioSummary AudioSummaryV2 WriteSummary WriteScalarSummary WriteImageSummary "
    "WriteHistogramSummary".split()
)


def is_draw(definition: Definition) -> bool:
    """Return whether an op, given by its definition, draws from a generator without a handle."""
    if not definition.is_stateful:
        return False
    return {"seed", "seed2"} <= {a.name for a in definition.attr}


def draws(node: Node, op_def: Callable[[str], Definition | None]) -> bool:
    """Return whether `node` draws with the key of the call."""
    entry = REGISTRY.get(node.op)
    if entry is not None and entry.draws:
        return entry.draws(node) if callable(entry.draws) else True
    definition = op_def(node.op)
    return definition is not None and is_draw(definition)
