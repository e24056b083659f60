"""Functions whose gradient is another function of the library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from invert.ir.avals import is_differentiable
from invert.ir.gradient_marker import Gradient, mark
from invert.ir.types import Value
from invert.tf.interpreter.context import Context
from invert.tf.ops.node import Node
from invert.tf.ops.state import Resource
from invert.tf.values.constants import arrays


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
