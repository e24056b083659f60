"""Constants, shapes and the ops that move elements without computing with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import (
    array,
    arrays,
    as_sizes,
    axis_of,
    broadcast_to,
    int_max,
    ints,
    is_static,
    pack_dims,
    static,
)

_INT32 = np.dtype(np.int32)


def _check_const(ctx: Context, node: Node) -> Iterable[Problem]:
    dtype = node.attr("dtype")
    if dtype is None or dtype.kind == "O":
        yield Problem(
            "tf.Const",
            "holds a value that is not numeric (a string, resource or variant)",
            node.location,
            "JAX arrays are numeric; compute it before the model.",
        )


@raises_tf("Const", check=_check_const)
def _const(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [ctx.graph.constant(node)]


@raises_tf("Shape")
def _shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [pack_dims(np.shape(values[0]), node.attr("out_type", np.dtype(np.int32)))]


@raises_tf("ShapeN")
def _shape_n(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("out_type", np.dtype(np.int32))
    return [pack_dims(np.shape(v), dtype) for v in values]


@raises_tf("Size")
def _size(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("out_type", np.dtype(np.int32))
    return [pack_dims([math.prod(np.shape(values[0]))], dtype).reshape(())]


@raises_tf("Rank")
def _rank(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(np.ndim(values[0]), np.int32)]


@raises_tf("Reshape", folds_sizes=True)
def _reshape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 1))
    if is_static(values[0]) and all(isinstance(d, int) for d in shape):
        return [values[0].reshape(shape)]
    return [_reshaped(ctx, array(values[0]), lambda x: jnp.reshape(x, shape))]


def _reshaped(ctx: Context, x: Any, move: Callable[[Any], Any]) -> Any:
    """`move(x)`, which is `x` in another shape.

    What comes back to the shape it had is what it was: layers write biases so.
    """
    _, origin = ctx.origins.get(id(x), (x, x))
    y = move(x)
    if y.shape == origin.shape:
        return origin
    ctx.origins[id(y)] = y, origin
    return y


@raises_tf("ExpandDims", folds_sizes=True)
def _expand_dims(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, 1))
    if is_static(values[0]):
        return [np.expand_dims(values[0], axis)]
    return [_reshaped(ctx, array(values[0]), lambda x: lax.expand_dims(x, (axis,)))]


@raises_tf("Squeeze", folds_sizes=True)
def _squeeze(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axes = node.attr("squeeze_dims") or [i for i, d in enumerate(np.shape(values[0])) if d == 1]
    if is_static(values[0]):
        return [np.squeeze(values[0], tuple(axes))]
    return [_reshaped(ctx, array(values[0]), lambda x: lax.squeeze(x, axes))]


@raises_tf("Transpose", "ConjugateTranspose")
def _transpose(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    order = ints(static(node, values, 1))
    if is_static(values[0]):
        return [np.transpose(values[0], order)]
    x = array(values[0])
    if node.op == "ConjugateTranspose" and jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = lax.conj(x)
    return [lax.transpose(x, order)]


@raises_tf("Pack", folds_sizes=True)
def _pack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis = node.attr("axis", 0)
    if all(is_static(v) for v in values):
        return [_stack_static(values, axis)]
    operands = arrays(values)
    axis %= operands[0].ndim + 1
    return [lax.concatenate([lax.expand_dims(x, (axis,)) for x in operands], axis)]


def _stack_static(values: list[Any], axis: int) -> np.ndarray:
    if any(v.dtype == object for v in values):
        values = [v.astype(object) for v in values]
    return np.stack(values, axis)


@raises_tf("Unpack", folds_sizes=True)
def _unpack(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    axis, count = axis_of(node.attr("axis", 0), np.ndim(values[0])), node.attr("num")
    if is_static(values[0]):
        return [as_sizes(np.take(values[0], i, axis), node.attr("T")) for i in range(count)]
    x = array(values[0])
    return [lax.squeeze(lax.slice_in_dim(x, i, i + 1, axis=axis), (axis,)) for i in range(count)]


@raises_tf("Concat")
@raises_tf("ConcatV2", folds_sizes=True)
def _concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    at = 0 if node.op == "Concat" else len(values) - 1
    (axis,) = ints(static(node, values, at))
    parts = values[1:] if node.op == "Concat" else values[:-1]
    if all(is_static(v) for v in parts):
        return [np.concatenate(parts, axis)]
    operands = arrays(parts)
    return [lax.concatenate(operands, axis % operands[0].ndim)]


@raises_tf("ConcatOffset")
def _concat_offset(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    (axis,) = ints(static(node, values, 0))
    shapes = [ints(static(node, values, i)) for i in range(1, len(values))]
    offsets, start = [], 0
    for shape in shapes:
        row: list[Any] = [0] * len(shape)
        row[axis] = start
        start = start + shape[axis]
        offsets.append(pack_dims(row, node.attr("shape_type", _INT32)))
    return offsets


@raises_tf("Split", "SplitV")
def _split(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    count = node.attr("num_split")
    x = values[1] if node.op == "Split" else values[0]
    (axis,) = ints(static(node, values, 0 if node.op == "Split" else 2))
    axis = axis_of(axis, np.ndim(x))
    length = np.shape(x)[axis]
    if node.op == "Split":
        sizes = [length // count] * count
    else:
        given = ints(static(node, values, 1))
        rest = length - sum(n for n in given if not _is_rest(n))
        sizes = [rest if _is_rest(n) else n for n in given]
    if is_static(x):
        return list(np.split(x, np.cumsum(sizes)[:-1], axis))
    return list(lax.split(array(x), sizes, axis))


def _is_rest(size: Any) -> bool:
    return isinstance(size, int) and size == -1


@raises_tf("Fill")
def _fill(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 0))
    fixed = all(isinstance(d, int) for d in shape)
    # Integers may be shapes and indices of other ops; numbers stay a broadcast of one.
    whole = is_static(values[1]) and values[1].dtype.kind in "iub"
    if whole and fixed and math.prod(shape) <= 1024:
        return [np.full(shape, values[1])]
    return [lax.broadcast(array(values[1]), shape)]


@raises_tf("BroadcastTo")
def _broadcast_to(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [broadcast_to(array(values[0]), ints(static(node, values, 1)))]


@raises_tf("Tile")
def _tile(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    multiples = ints(static(node, values, 1))
    if is_static(values[0]) and all(isinstance(n, int) for n in multiples):
        return [np.tile(values[0], multiples)]
    return [jnp.tile(array(values[0]), multiples)]


# A longer range is data, and is counted where it is used.
_MAX_RANGE = 64


@raises_tf("Range")
def _range(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dtype = node.attr("Tidx", _INT32)
    bounds = [static(node, values, i) for i in range(3)]
    start, limit, delta = (v.item() for v in bounds)
    if dtype.kind in "iu":
        # Rounded up, and not negative; sizes may be symbolic.
        count = int_max(-((start - limit) // delta), 0)
    else:
        count = max(0, math.ceil((limit - start) / delta))
    if (
        isinstance(count, int)
        and count <= _MAX_RANGE
        and not any(v.dtype == object for v in bounds)
    ):
        numbers = [start + i * delta for i in range(count)]
        return [np.asarray(numbers).astype(dtype)]
    steps = lax.iota(jax.dtypes.canonicalize_dtype(dtype), count)
    if not (isinstance(delta, int) and delta == 1):
        steps = lax.mul(steps, lax.full_like(steps, array(bounds[2], dtype)))
    if not (isinstance(start, int) and start == 0):
        steps = lax.add(steps, lax.broadcast(array(bounds[0], dtype), steps.shape))
    return [steps]


@raises_tf("LinSpace")
def _linspace(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    start, stop = (array(v) for v in values[:2])
    (count,) = ints(static(node, values, 2))
    return [jnp.linspace(start, stop, count, dtype=start.dtype)]


@raises_tf("EnsureShape")
def _ensure_shape(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    want, have = node.attr("shape"), np.shape(values[0])
    if want is not None and (
        len(want) != len(have)
        or any(
            w is not None and isinstance(h, int) and w != h for w, h in zip(want, have, strict=True)
        )
    ):
        problem = Problem("tf.EnsureShape", f"got shape {have}, not {want}", node.location)
        raise UnsupportedOpError([problem])
    return [values[0]]
