"""Ops whose gradient the author replaced: `tf.Graph.gradient_override_map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from invert.ir.avals import is_differentiable
from invert.ir.gradient_marker import Gradient, mark
from invert.tf.ops.node import Node
from invert.tf.ops.registry import Context, Rule
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, arrays

# Calls name the gradient of their function, which differentiating its body gives as well.
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient"))


def names_gradient(node: Node) -> bool:
    """Whether a node names a gradient function of its own."""
    return "_gradient_op_type" in node.attrs and node.op not in _CALLS


def gradient_function(ctx: Context, function: str) -> str | None:
    """The library function that is the gradient of another, as `Defun(grad_func=...)` names it."""
    if ctx.config.custom_gradients == "ignore":
        return None
    found = (g for g in ctx.library.gradient if g.function_name == function)
    return next((g.gradient_func for g in found), None)


def with_function_gradient(
    ctx: Context, node: Node, function: str, inputs: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """The results of a call, marked as those of a function whose gradient is `function`."""
    if any(isinstance(v, Resource) for v in (*inputs, *results)):
        return list(results)
    given, found = arrays(list(inputs)), arrays(list(results))

    def run(captures: Sequence[Any], cotangents: Sequence[Any], nested: bool) -> list[Any]:
        new = iter(cotangents)
        dy = [next(new) if is_differentiable(r) else np.zeros(r.shape, r.dtype) for r in found]
        return arrays(ctx.on({}).call(function, [*captures, *dy]))

    return mark(Gradient(node.location, run), found, given, given)


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
        return mark(gradient.marked, results, inputs, captures)

    return run
