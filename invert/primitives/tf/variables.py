"""Variables: reads, assignments, and updates of the whole variable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule, rules
from invert.tf.ops.node import Node, variable_name
from invert.tf.ops.state import Resource
from invert.tf.values.constants import array, broadcast_to


def current(ctx: Context, resource: Value) -> Array:
    """The value of a variable as a JAX operand."""
    return array(ctx.read(resource))


def assign(ctx: Context, node: Node, resource: Value, value: Value) -> None:
    """Write `value` to a variable.

    **Raises:** `UnsupportedOpError` if the handle is not a variable, or the shape would change.
    """
    if not isinstance(resource, Resource):
        raise node.error("assigns to a value that is not a variable", REPORT)
    value = array(value)
    old = ctx.state.get(resource)
    if old is not None and np.shape(old) != np.shape(value):
        reason = (
            f"changes the shape of the variable {resource.name!r} from {np.shape(old)} to "
            f"{np.shape(value)}"
        )
        raise node.error(reason, "Arrays of a JAX program have one shape.")
    ctx.write(resource, value)


Shape = tuple[int | None, ...] | None

# Sharing of a variable between sessions, and its allowed devices.
_PLACEMENT = ("container", "debug_name", "allowed_devices")


@rule("VarHandleOp", "VariableV2", "Variable", effect="none", ignores=_PLACEMENT)
def _var_handle(*, node: Node, dtype: np.dtype, shape: Shape) -> Resource:
    kind = "variable" if node.op == "VarHandleOp" else "reference"
    return Resource(kind, variable_name(node), dtype, shape)


@rule("TemporaryVariable", effect="none")
def _temporary(*, node: Node, dtype: np.dtype, shape: Shape, var_name: str) -> Resource:
    return Resource("reference", f"{node.where}/{var_name or node.name}", dtype, shape)


@rule("DestroyTemporaryVariable", ignores=("var_name",))
def _destroy_temporary(ref: Value, *, ctx: Context) -> Value:
    value = ctx.read(ref)
    ctx.state.pop(ref, None)
    return value


@rule("ReadVariableOp", effect="reads")
def _read(resource: Value, *, ctx: Context) -> Value:
    return ctx.read(resource)


@rule("VarIsInitializedOp", "IsVariableInitialized", effect="reads")
def _is_initialized(resource: Value, *, ctx: Context) -> np.ndarray:
    return np.asarray(not isinstance(resource, Resource) or resource in ctx.state)


@rule("VariableShape", effect="reads")
def _variable_shape(resource: Value, *, ctx: Context, out_type: np.dtype) -> np.ndarray:
    return np.asarray(np.shape(ctx.read(resource)), out_type)


@rule("DestroyResourceOp", effect="none", ignores=("ignore_lookup_error",))
def _destroy(resource: Value, *, ctx: Context) -> None:
    ctx.state.pop(resource, None)


@rule("AssignVariableOp", ignores=("validate_shape",))  # changes of shape are refused
def _assign(resource: Value, value: Value, *, ctx: Context, node: Node) -> None:
    assign(ctx, node, resource, value)


def _update(fn: Callable[[Array, Array], Array]) -> Callable[..., None]:
    def rule(resource: Value, value: Array, *, ctx: Context, node: Node) -> None:
        old = current(ctx, resource)
        assign(ctx, node, resource, fn(old, broadcast_to(value, np.shape(old))))

    return rule


rules({"AssignAddVariableOp": _update(lax.add), "AssignSubVariableOp": _update(lax.sub)})
