"""Variables: reads, assignments, and updates of the whole variable."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import REPORT
from invert.ir.types import Params
from invert.primitives.tf.gather import narrow
from invert.primitives.tf.slicing import index_of, put
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
        raise node.error(reason, "An array of a JAX program has one shape: keep it.")
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


# -- parts of variables: gathers, scatters and strided assignments
#
# The ops on TensorFlow 1 references have the same rules, and also return the reference.

# TensorFlow fails on an index out of range on CPUs and drops it on GPUs.
_DROP: Params = {"mode": "drop", "wrap_negative_indices": False}
_CLIP: Params = {"mode": "clip", "wrap_negative_indices": False}
_IGNORED = ("use_locking", "bad_indices_policy")


def _divided(at: Value, value: Array) -> Array:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return at.divide(value, **_DROP)
    # Integers truncate: dividing by several divisors in turn equals dividing by their product.
    return lax.div(at.array, jnp.ones_like(at.array).at[at.index].multiply(value, **_DROP))


# Updates of rows, by the name of the op after "ResourceScatter" or "Scatter".
_UPDATES: dict[str, Callable[[Value, Array], Array]] = {
    "Update": lambda at, value: at.set(value, **_DROP),
    "Add": lambda at, value: at.add(value, **_DROP),
    "Sub": lambda at, value: at.add(-value, **_DROP),
    "Mul": lambda at, value: at.multiply(value, **_DROP),
    "Div": _divided,
    "Min": lambda at, value: at.min(value, **_DROP),
    "Max": lambda at, value: at.max(value, **_DROP),
}


def _result(node: Node, ref: Value) -> Value:
    return None if node.op.startswith("Resource") else ref


def _columns(indices: Array) -> tuple[Array, ...]:
    """Vectors of indices as one array of indices for each axis."""
    return tuple(indices[..., i] for i in range(np.shape(indices)[-1]))


def _scatter(kind: str, by_vectors: bool) -> Callable[..., Value]:
    """Update of rows, `ref[indices, ...] = updates`, or of parts whose indices are vectors."""

    def rule(ref: Value, indices: Array, updates: Array, *, ctx: Context, node: Node) -> Value:
        old = jnp.asarray(current(ctx, ref))
        if not by_vectors:
            updates = broadcast_to(updates, (*np.shape(indices), *old.shape[1:]))
        part = old.at[_columns(indices) if by_vectors else indices]
        assign(ctx, node, ref, _UPDATES[kind](part, updates))
        return _result(node, ref)

    return rule


for _prefix in ("ResourceScatter", "Scatter"):
    rules({f"{_prefix}{k}": _scatter(k, False) for k in _UPDATES}, ignores=_IGNORED)
    _kinds = _UPDATES.keys() - {"Mul", "Div"}
    rules({f"{_prefix}Nd{k}": _scatter(k, True) for k in _kinds}, ignores=_IGNORED)


@rule("ResourceGather", effect="reads", ignores=("validate_indices",))
def _gather(resource: Value, indices: Array, *, ctx: Context, batch_dims: int) -> Array:
    x = jnp.asarray(current(ctx, resource))
    indices = narrow(indices, x.shape)
    if not batch_dims:
        return jnp.take(x, indices, axis=0, mode="clip")
    rank = np.ndim(indices)
    batch = [
        np.arange(x.shape[i]).reshape([-1 if i == j else 1 for j in range(rank)])
        for i in range(batch_dims)
    ]
    return x.at[(*batch, indices)].get(**_CLIP)


@rule("ResourceGatherNd", effect="reads")
def _gather_nd(resource: Value, indices: Array, *, ctx: Context) -> Array:
    x = jnp.asarray(current(ctx, resource))
    return x.at[_columns(narrow(indices, x.shape))].get(**_CLIP)


@rule("ResourceStridedSliceAssign", "StridedSliceAssign")
def _strided_slice_assign(
    ref: Value, begin: Value, end: Value, strides: Value, value: Value, *, ctx: Context, node: Node
) -> Value:
    old = jnp.asarray(current(ctx, ref))
    index = index_of(ctx, node, [begin, end, strides], old.ndim)
    assign(ctx, node, ref, put(ctx, node, old, index, value))
    return _result(node, ref)


@rule("ResourceCountUpTo", "CountUpTo", ignores=("limit",))  # TensorFlow fails here
def _count_up_to(ref: Value, *, ctx: Context, node: Node) -> Array:
    old = jnp.asarray(current(ctx, ref))
    assign(ctx, node, ref, old + np.asarray(1, old.dtype))
    return old


@rule("Assign", "AssignAdd", "AssignSub", ignores=("validate_shape", "use_locking"))
def _assign_reference(ref: Value, value: Array, *, ctx: Context, node: Node) -> Value:
    if node.op != "Assign":
        old = current(ctx, ref)
        value = old + value if node.op == "AssignAdd" else old - value
    if isinstance(ref, Resource) and ref not in ctx.state:
        ctx.write(ref, value)
    else:
        assign(ctx, node, ref, value)
    return ref
