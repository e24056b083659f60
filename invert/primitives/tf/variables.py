"""Variables: reads, assignments, and updates of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Rule, add_table, raises_tf
from invert.tf.ops.node import Node, variable_name
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, broadcast_to


def current(ctx: Context, resource: Any) -> Any:
    """The value of a variable as a JAX operand."""
    return array(ctx.read(resource))


def assign(ctx: Context, node: Node, resource: Any, value: Any) -> None:
    """Writes `value` to a variable, in the variable's own type.

    **Raises:** `UnsupportedOpError` where the handle is none, or the shape would change.
    """
    if not isinstance(resource, Resource):
        raise UnsupportedOpError(
            [Problem(f"tf.{node.op}", "assigns what is no variable", node.location)]
        )
    value = array(value)
    old = ctx.state.get(resource)
    if old is not None and np.shape(old) != np.shape(value):
        raise UnsupportedOpError(
            [
                Problem(
                    f"tf.{node.op}",
                    f"changes the shape of the variable {resource.name!r} from {np.shape(old)} to "
                    f"{np.shape(value)}",
                    node.location,
                    "Arrays of a JAX program have one shape.",
                )
            ]
        )
    ctx.write(resource, value)


@raises_tf("VarHandleOp", "VariableV2", "Variable", effect="none")
def _var_handle(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    kind = "variable" if node.op == "VarHandleOp" else "reference"
    return [Resource(kind, variable_name(node), node.attr("dtype"), node.attr("shape"))]


@raises_tf("TemporaryVariable", effect="none")
def _temporary(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    name = f"{node.where}/{node.attr('var_name') or node.name}"
    return [Resource("reference", name, node.attr("dtype"), node.attr("shape"))]


@raises_tf("DestroyTemporaryVariable")
def _destroy_temporary(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    value = ctx.read(values[0])
    ctx.state.pop(values[0], None)
    return [value]


@raises_tf("ReadVariableOp", effect="reads")
def _read(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [ctx.read(values[0])]


@raises_tf("VarIsInitializedOp", "IsVariableInitialized", effect="reads")
def _is_initialized(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(not isinstance(values[0], Resource) or values[0] in ctx.state)]


@raises_tf("VariableShape", effect="reads")
def _variable_shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(np.shape(ctx.read(values[0])), node.attr("out_type", np.dtype(np.int32)))]


@raises_tf("DestroyResourceOp", effect="none")
def _destroy(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    ctx.state.pop(values[0], None)
    return []


@raises_tf("AssignVariableOp")
def _assign(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    assign(ctx, node, values[0], values[1])
    return []


def _update(fn: Callable[[Any, Any], Any]) -> Rule:
    def rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
        old = current(ctx, values[0])
        assign(ctx, node, values[0], fn(old, broadcast_to(array(values[1]), np.shape(old))))
        return []

    return rule


add_table({"AssignAddVariableOp": _update(lax.add), "AssignSubVariableOp": _update(lax.sub)})
