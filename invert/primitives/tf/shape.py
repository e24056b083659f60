"""Constants, shapes, and ops that only move elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem
from invert.ir.arrays import computed_now
from invert.ir.sizes import is_open, quotient, require, suggest_equal
from invert.primitives.recorded import Recorded
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import Node
from invert.tf.values.bounds import size_of
from invert.tf.values.constants import (
    MAX_FOLD,
    array,
    arrays,
    as_sizes,
    axis_of,
    broadcast_to,
    ints,
    is_static,
    pack_dims,
    static,
)
from invert.tf.values.dynamic_size import int_max

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


@rule("Const", check=_check_const, ignores=("value",))
def _const(*, ctx: Context, node: Node) -> np.ndarray:
    return ctx.graph.constant(node)


@rule("Shape", reads_shape=True)
def _shape(x: Value, *, out_type: np.dtype) -> np.ndarray:
    return pack_dims(np.shape(x), out_type)


@rule("ShapeN", reads_shape=True)
def _shape_n(*operands: Value, out_type: np.dtype) -> list[np.ndarray]:
    return [pack_dims(np.shape(x), out_type) for x in operands]


@rule("Size", reads_shape=True)
def _size(x: Value, *, out_type: np.dtype) -> np.ndarray:
    return pack_dims([math.prod(np.shape(x))], out_type).reshape(())


@rule("Rank", reads_shape=True)
def _rank(x: Value) -> np.ndarray:
    return np.asarray(np.ndim(x), np.int32)


@rule("Reshape", folds_sizes=True, size_operands=(1,))
def _reshape(x: Value, shape: Ints, *, ctx: Context) -> Value:
    if is_static(x) and all(isinstance(d, int) for d in shape):
        return x.reshape(_divided(x.shape, shape))
    return _reshaped(ctx, array(x), lambda x: _to_shape(x, shape))


@Recorded
def _to_shape(x: Array, shape: Ints) -> Array:
    return jnp.reshape(x, _divided(x.shape, shape))


def _divided(old: Ints, new: Ints) -> Ints:
    """A shape with -1 replaced by the remaining size, open sizes included.

    Where the new shape has a zero, TensorFlow divides the product of the sizes that are not zero
    and drops the remainder; JAX and NumPy would divide by zero.
    """
    places = [i for i, n in enumerate(new) if isinstance(n, int) and n == -1]
    given = [n for i, n in enumerate(new) if i not in places]
    message = f"an array of shape {old} cannot be reshaped to {new}"
    if not places and any(map(is_open, (*old, *new))):
        require(math.prod(old), "eq", math.prod(new), message)
    if len(places) != 1 or any(map(is_open, given)):
        return new
    if 0 in given:
        require(math.prod(old), "eq", 0, message)
        rest = math.prod(n for n in old if n != 0) // math.prod(n for n in given if n != 0)
    elif any(map(is_open, old)):
        rest = quotient(math.prod(old), math.prod(given), message)
    else:
        return new
    return tuple(rest if i in places else n for i, n in enumerate(new))


def _reshaped(ctx: Context, x: Array, move: Callable[[Array], Array]) -> Array:
    """`move(x)`, a reshape of `x`.

    A value reshaped back to its original shape is replaced by the original: layers reshape biases
    this way.
    """
    _, origin = ctx.origins.get(id(x), (x, x))
    y = move(x)
    if y.shape == origin.shape:
        return origin
    ctx.origins[id(y)] = y, origin
    return y


@rule("ExpandDims", folds_sizes=True)
def _expand_dims(x: Value, axis: Int, *, ctx: Context) -> Value:
    if is_static(x):
        return np.expand_dims(x, axis)
    y = _reshaped(ctx, array(x), lambda x: lax.expand_dims(x, (axis,)))
    return ctx.note_split(x, y, lambda made: made.expanded(axis))


@rule("Squeeze", folds_sizes=True)
def _squeeze(x: Value, *, squeeze_dims: list[int], ctx: Context) -> Value:
    axes = squeeze_dims or [i for i, d in enumerate(np.shape(x)) if d == 1]
    if is_static(x):
        return np.squeeze(x, tuple(axes))
    for axis, n in enumerate(np.shape(x)):
        if is_open(n) and not squeeze_dims:
            require(n, "ge", 2, f"axis {axis} is left out if its size is one")
    y = _reshaped(ctx, array(x), lambda x: lax.squeeze(x, axes))
    return ctx.note_split(x, y, lambda made: made.squeezed(axes))


@rule("Transpose", "ConjugateTranspose")
def _transpose(x: Value, perm: Ints, *, op: str) -> Value:
    if is_static(x):
        return np.transpose(x, perm)
    x = array(x)
    if op == "ConjugateTranspose" and jnp.iscomplexobj(x):
        x = lax.conj(x)
    return lax.transpose(x, perm)


@rule("Pack", folds_sizes=True)
def _pack(*values: Value, axis: int) -> Value:
    if all(is_static(v) for v in values):
        return _stack_static(values, axis)
    operands = arrays(values)
    axis %= operands[0].ndim + 1
    return lax.concatenate([lax.expand_dims(x, (axis,)) for x in operands], axis)


def _stack_static(values: Sequence[np.ndarray], axis: int) -> np.ndarray:
    if any(v.dtype == object for v in values):
        values = [v.astype(object) for v in values]
    return np.stack(values, axis)


@rule("Unpack", folds_sizes=True)
def _unpack(x: Value, *, num: int, axis: int, T: np.dtype) -> list[Value]:
    axis = axis_of(axis, np.ndim(x))
    if is_static(x):
        return [as_sizes(np.take(x, i, axis), T) for i in range(num)]
    x = array(x)
    return [lax.squeeze(lax.slice_in_dim(x, i, i + 1, axis=axis), (axis,)) for i in range(num)]


@rule("Concat")
def _concat(axis: Int, *parts: Value) -> Value:
    if all(is_static(v) for v in parts):
        return np.concatenate(parts, axis)
    first, *others = operands = arrays(parts)
    for other in others:
        for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)):
            if i != axis % first.ndim:
                suggest_equal(a, b)
    return lax.concatenate(operands, axis % first.ndim)


@rule("ConcatV2", folds_sizes=True)
def _concat_v2(*operands: Value, node: Node) -> Value:
    (axis,) = ints(static(node, operands, len(operands) - 1))
    return _concat(axis, *operands[:-1])


@rule("ConcatOffset")
def _concat_offset(axis: Int, *shapes: Ints, shape_type: np.dtype) -> list[np.ndarray]:
    offsets, start = [], 0
    for shape in shapes:
        row: list[Int] = [0] * len(shape)
        row[axis] = start
        start = start + shape[axis]
        offsets.append(pack_dims(row, shape_type))
    return offsets


@rule("Split")
def _split(axis: Int, x: Value, *, num_split: int) -> list[Value]:
    length = np.shape(x)[axis_of(axis, np.ndim(x))]
    size = quotient(length, num_split, f"axis {axis} cannot be split into {num_split} equal parts")
    return _split_v(x, (size,) * num_split, axis)


@rule("SplitV")
def _split_v(x: Value, size_splits: Ints, axis: Int) -> list[Value]:
    axis = axis_of(axis, np.ndim(x))
    rest = np.shape(x)[axis] - sum(n for n in size_splits if not _is_rest(n))
    sizes = [rest if _is_rest(n) else n for n in size_splits]
    for n in sizes:
        require(n, "ge", 0, f"axis {axis} is split into parts, one of them with {n} elements")
    if is_static(x):
        return list(np.split(x, np.cumsum(sizes)[:-1], axis))
    return list(lax.split(array(x), sizes, axis))


def _is_rest(size: Int) -> bool:
    return isinstance(size, int) and size == -1


@rule("Fill", repeats_to=0)
def _fill(dims: Ints, value: Value) -> Value:
    fixed = all(isinstance(d, int) for d in dims)
    # Integers may be shapes and indices of other ops; floats stay a broadcast scalar.
    whole = is_static(value) and value.dtype.kind in "iubO"
    if whole and fixed and math.prod(dims) <= MAX_FOLD:
        return np.full(dims, value)
    return lax.broadcast(array(value), dims)


@rule("BroadcastTo", repeats_to=1)
def _broadcast_to(x: Value, shape: Ints) -> Value:
    fixed = all(isinstance(d, int) for d in shape)
    if is_static(x) and x.dtype == object and fixed and math.prod(shape) <= MAX_FOLD:
        return np.broadcast_to(x, shape)
    return broadcast_to(array(x), shape)


@rule("Tile", size_operands=(1,))
def _tile(x: Value, multiples: Ints) -> Value:
    fixed = all(isinstance(n, int) for n in multiples)
    if is_static(x) and fixed and x.size * math.prod(multiples) <= MAX_FOLD:
        return np.tile(x, multiples)
    if all(isinstance(n, int) and n == 1 for n in multiples):
        return x
    return jnp.tile(array(x), multiples)


def _as_static(node: Node, values: Sequence[Value], i: int) -> np.ndarray:
    """A known operand, or an open size cast to float, as in `tf.range(n, 1.0)`.

    Floating-point numbers are exact up to at least 2**24, longer than axes are.
    """
    size = None if isinstance(values[i], np.ndarray) else size_of(values[i])
    return static(node, values, i) if size is None else pack_dims([size], _INT32).reshape(())


def _is_whole(number: Value) -> bool:
    return isinstance(number, float) and number.is_integer()


# A longer range is data, and is computed at run time.
_MAX_RANGE = 64


@rule("Range", size_operands=(0, 1, 2))
def _range(start: Value, limit: Value, delta: Value, *, Tidx: np.dtype, node: Node) -> Value:
    start, limit, delta = (_as_static(node, [start, limit, delta], i) for i in range(3))
    first, last, step = (v.item() for v in (start, limit, delta))
    if any(map(is_open, (first, last))):
        first, last, step = (int(n) if _is_whole(n) else n for n in (first, last, step))
    if all(isinstance(n, int) or is_open(n) for n in (first, last, step)):
        # Rounded up, at least zero; sizes may be symbolic.
        count = int_max(-((first - last) // step), 0)
    elif any(map(is_open, (first, last, step))):
        raise node.error("has an open limit and a non-integer step", "Use tf.linspace.")
    else:
        count = _float_steps(start, limit, delta)
    whole = Tidx.kind in "iu"

    def steps() -> Array:
        steps = lax.iota(jax.dtypes.canonicalize_dtype(Tidx), count)
        if not (isinstance(step, int) and step == 1):
            steps = lax.mul(steps, lax.full_like(steps, array(delta, Tidx)))
        if not (isinstance(first, int) and first == 0):
            steps = lax.add(steps, lax.broadcast(array(start, Tidx), steps.shape))
        return steps

    symbolic = any(v.dtype == object for v in (start, limit, delta))
    if not isinstance(count, int) or count > _MAX_RANGE or symbolic:
        return steps()
    if whole:
        return np.asarray([first + i * step for i in range(count)]).astype(Tidx)
    return computed_now(steps)


def _float_steps(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> int:
    """The length of a range, rounded as in TensorFlow: 3 for `tf.range(0.0, 0.3, 0.1)`."""
    length = computed_now(lambda a, b, d: lax.ceil(lax.div(lax.sub(b, a), d)), start, limit, delta)
    if not np.isfinite(length):
        raise ZeroDivisionError("a range of no finite length")
    return max(0, int(length))


@rule("LinSpace")
def _linspace(start: Array, stop: Array, num: Int) -> Array:
    return jnp.linspace(start, stop, num, dtype=start.dtype)


@rule("EnsureShape")
def _ensure_shape(x: Value, *, shape: list[int | None] | None, node: Node) -> Value:
    actual = np.shape(x)
    if shape is not None:
        pairs = list(zip(shape, actual, strict=False))
        fits = all(w is None or not isinstance(n, int) or w == n for w, n in pairs)
        if len(shape) != len(actual) or not fits:
            raise node.error(
                f"has an operand of the wrong shape. Expected shape={shape}, got {actual}",
                "Pass an operand of this shape.",
            )
    return x
