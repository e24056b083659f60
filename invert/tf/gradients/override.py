"""Functions whose gradient is another function of the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from invert.ir.gradient_marker import is_differentiable, mark
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


@dataclasses.dataclass(eq=False)
class _FunctionGradient:
    """A gradient that is a function of the arguments and of the gradients of the results."""

    location: str
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    problem: str = ""
    convention: str = "tensorflow"
    nested: bool = False

    def __call__(
        self, captures: Sequence[Any], cotangents: Sequence[Any], *, nested: bool = False
    ) -> list[Any | None]:
        return list(self.run(captures, cotangents))

    def read_nested(self) -> None:
        """There are none inside."""


def with_function_gradient(
    ctx: Context, node: Node, function: str, inputs: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """The results of a call, marked as those of a function whose gradient is `function`."""
    if any(isinstance(v, Resource) for v in (*inputs, *results)):
        return list(results)
    given, found = arrays(list(inputs)), arrays(list(results))

    def run(captures: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        new = iter(cotangents)
        dy = [next(new) if is_differentiable(r) else np.zeros(r.shape, r.dtype) for r in found]
        return arrays(ctx.on({}).call(function, [*captures, *dy]))

    return mark(_FunctionGradient(node.location, run), found, given, given)
