"""Ops whose gradient the author replaced: `tf.Graph.gradient_override_map`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._gradient import mark
from ._node import Node
from ._registry import Context, Rule
from ._state import Resource
from ._static import array, arrays

# Calls name the gradient of their function, which differentiating its body gives as well.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"))


def names_gradient(node: Node) -> bool:
    """Whether a node names a gradient function of its own."""
    return "_gradient_op_type" in node.attrs and node.op not in _CALLS


def overridden(rule: Rule) -> Rule:
    """The rule with its results marked as those of an op that has another gradient."""

    def run(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        gradient = ctx.gradient(node)
        assert gradient is not None
        more = sum(not isinstance(c, np.ndarray) for c in gradient.captures)
        own, captured = values[: len(values) - more], iter(values[len(values) - more :])
        results = arrays(list(rule(ctx, node, own)))
        captures = [
            array(c) if isinstance(c, np.ndarray) else array(ctx.read(next(captured)))
            for c in gradient.captures
        ]
        # A handle has no gradient; it only keeps its place.
        inputs = [np.zeros(()) if isinstance(v, Resource) else array(v) for v in own]
        captures += [results[i] for i in gradient.own]
        return mark(gradient, results, inputs, captures)

    return run
