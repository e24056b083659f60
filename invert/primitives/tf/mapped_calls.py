"""Ops that call a function in other ways than once: on every row, a number of times, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.control.branch_types import strong
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import add_table, raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints


def _without_effects(ctx: Context, node: Node, function: str) -> Callable[..., list[Any]]:
    """The library function `function` of arrays.

    **Raises:** `UnsupportedOpError` where it changes variables, or draws from the key of the call.
    """

    def call(values: Sequence[Any]) -> list[Any]:
        child = ctx.on(dict(ctx.state))
        results = child.call(function, values)
        if any(child.state.get(r) is not old for r, old in ctx.state.items()):
            reason = f"calls the function {function!r}, which changes variables"
            raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
        return [strong(array(v)) for v in results]

    return call


@raises_tf("MapDefun")
def _map_defun(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """A function of the rows of the first inputs, and of the others as they are."""
    count = len(node.attr("Targuments"))
    rows, captured = [array(v) for v in values[:count]], values[count:]
    call = _without_effects(ctx, node, node.attr("f"))
    return jax.vmap(lambda *row: call([*row, *captured]))(*rows)


@raises_tf("For")
def _for(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    """A function of a counter and of what the step before gave."""
    call = _without_effects(ctx, node, node.attr("body"))
    carry = [strong(array(v)) for v in values[3:]]
    if all(isinstance(v, np.ndarray) for v in values[:3]):
        start, limit, delta = (ints(v)[0] for v in values[:3])
        count: Any = len(range(start, limit, delta))
    else:
        start, limit, delta = (array(v) for v in values[:3])
        count = lax.max(-((start - limit) // delta), np.int32(0))

    def step(i: Any, carry: Sequence[Any]) -> list[Any]:
        return call([start + i * delta, *carry])

    return lax.fori_loop(0, count, step, carry)


# One call serves a whole batch, of whatever examples it is made up, on whatever device.
add_table(
    {
        "BatchFunction": lambda ctx, node, values: ctx.call(node.attr("f"), values),
        "RemoteCall": lambda ctx, node, values: ctx.call(node.attr("f"), values[1:]),
    }
)
