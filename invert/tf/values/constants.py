"""Constant folding of shapes and indices with NumPy while raising.

A value in a graph is either a JAX value or a `np.ndarray`. The latter is a constant or computed
from shapes; if it contains a symbolic dimension, its dtype is `object`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from invert._private.jax import InconclusiveDimensionOperation, is_symbolic_dim
from invert.ir.sizes import DimSize, Shape, is_open, suggest_equal
from invert.ir.types import Value
from invert.tf.ops.node import Node, canonical, unrepeated
from invert.tf.values.dynamic_size import DynamicSize, NotASizeError, int_max, int_min

# Shapes are short. A larger integer constant is data, which is not folded, so that the program
# computes what the graph does.
MAX_FOLD = 1024
# Image sizes are computed in floating point; up to this many such numbers may be sizes.
_MAX_FLOATS = 16


def is_static(value: Value) -> bool:
    """Return whether `value` is an index or a shape to be folded during raising."""
    if not isinstance(value, np.ndarray) or value.size > MAX_FOLD:
        return False
    if value.dtype.kind == "f":
        return value.size <= _MAX_FLOATS
    return value.dtype == object or value.dtype.kind in "iub"


def fold_unary(fn: Callable[[Value], Value], x: np.ndarray) -> np.ndarray:
    """`fn(x)` in the dtype of x, bool included; overflow wraps around."""
    with np.errstate(all="ignore"):
        return np.asarray(fn(x), x.dtype)


def fold_binary(
    fn: Callable[[Value, Value], Value], x: np.ndarray, y: np.ndarray, dtype: np.dtype
) -> np.ndarray | None:
    """`fn(x, y)` as a number of `dtype`; `None` if it has to be traced.

    It is traced if the result is large, a table such as a mask, or not a size, or if a comparison
    depends on open sizes. A rule that asks for its value still gets it.
    """
    result = np.broadcast(x, y)
    if result.size > MAX_FOLD or (result.size > 1 and len(result.shape) > 1):
        return None
    try:
        with np.errstate(all="ignore", divide="raise"):
            out = np.asarray(fn(x, y))
    except (InconclusiveDimensionOperation, NotASizeError, ArithmeticError):
        return None
    if out.dtype == object:
        items = np.ravel(out).tolist()
        if all(isinstance(d, bool | np.bool_) for d in items):
            return out.astype(bool)
        if any(not isinstance(d, int | np.integer) for d in items):
            return out
    return out if out.dtype.kind == "b" else out.astype(dtype)


def _same(a: Value, b: Value) -> bool:
    difference = a - b
    if isinstance(difference, int | np.integer):
        return difference == 0
    if _is_positive(difference) or _is_positive(-difference):
        return False
    raise InconclusiveDimensionOperation(f"{a} == {b} depends on the sizes")


def _is_positive(size: Value) -> bool:
    try:
        return bool(size >= 1)
    except InconclusiveDimensionOperation:
        return False


def _on_sizes(
    of_numbers: Callable[[Value, Value], Value], of_sizes: Callable[[Value, Value], Value]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A function of arrays of sizes, which may be symbolic or dynamic."""

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        plain = x.dtype != object and y.dtype != object
        return np.asarray(of_numbers(x, y) if plain else np.frompyfunc(of_sizes, 2, 1)(x, y))

    return run


same_size = _on_sizes(operator.eq, _same)  # symbolic sizes only if it is decided
max_size, min_size = _on_sizes(np.maximum, int_max), _on_sizes(np.minimum, int_min)


def static(node: Node, values: Sequence[Value], index: int) -> np.ndarray:
    """Input `index` of `node`, which must be known during raising.

    **Raises:**

    - `UnsupportedOpError`: it depends on the data.
    """
    value = values[index]
    if isinstance(value, np.ndarray):
        return value
    raise node.error(
        f"input {index} must be a constant or follow from shapes, but depends on data",
        "Shapes and axes of a JAX program are fixed during tracing. Let the function "
        "close over the array from which this one is computed, such as a mask, instead of "
        "taking it as an argument.",
    )


# A constant that repeats one number takes no memory, but this many integers do.
_MOST_INTS = 1 << 20
# The largest value that a rule computes at conversion.
MOST_BYTES = 1 << 28
# Of the values that follow from constants, all together.
MOST_COMPUTED = 1 << 26


def ints(value: np.ndarray) -> tuple[Value, ...]:
    """A static vector or scalar as a tuple of ints and symbolic dimensions.

    **Raises:** `ValueError` if it is longer than any shape or list of sizes.
    """
    if value.size > _MOST_INTS:
        raise ValueError(f"{value.size} numbers are given where at most {_MOST_INTS} can be used")
    return tuple(int(d) if isinstance(d, int | np.integer) else d for d in np.ravel(value).tolist())


def axis_of(axis: int, rank: int) -> int:
    """The index of an axis, which may be given as a negative number.

    **Raises:** `ValueError` if an array of this rank does not have it.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of bounds for an array of rank {rank}")
    return axis % rank


def pack_dims(dims: Sequence[DimSize], dtype: np.dtype) -> np.ndarray:
    """Sizes as a static vector, of dtype `object` if any is symbolic."""
    if all(isinstance(d, int | np.integer) for d in dims):
        return np.asarray(dims, dtype)
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


def is_size(value: Value) -> bool:
    """Return whether `value` is the size of an axis: a number, or symbolic."""
    return isinstance(value, int) or is_symbolic_dim(value)


def as_sizes(value: Value, dtype: np.dtype) -> np.ndarray:
    """Static sizes, converted to `dtype` if none is symbolic."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    part = np.empty((), object)
    part[()] = value
    part = value if isinstance(value, np.ndarray) else part
    return pack_dims(part.ravel().tolist(), dtype).reshape(part.shape)


_INT32 = np.dtype(np.int32)


def array(value: Value, dtype: np.dtype = _INT32) -> Value:
    """`value` as a JAX operand; symbolic sizes become traced `dtype` integers."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        if not value.size:
            return np.zeros(value.shape, dtype)
        numbers = (d.value if isinstance(d, DynamicSize) else d for d in np.ravel(value))
        sizes = [jax.numpy.asarray(d, dtype) for d in numbers]
        return jax.numpy.stack(sizes).reshape(value.shape)
    value = canonical(value)
    if isinstance(value, np.ndarray) and value.ndim > 0 and value.size > 0:
        value = _compact(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "V":
        # NumPy widens bfloat16 combined with a Python number; JAX does not.
        return jax.numpy.asarray(value)
    return value


def _compact(value: np.ndarray) -> Value:
    """A constant as a literal, a broadcast or a range.

    Folding creates arrays as long as a batch or a sequence, which differ at other sizes.
    """
    once = unrepeated(value)
    content = np.ascontiguousarray(once).reshape(once.shape)
    # Bits are compared: zeros are signed, and NaN is not equal to itself.
    bits = content.view(np.uint8).reshape(*content.shape, content.dtype.itemsize)
    first = (slice(0, 1),)
    for axis, size in enumerate(content.shape):
        before = (slice(None),) * axis
        head = bits[(*before, *first)]
        second = bits[(*before, slice(1, 2))]
        if size > 1 and np.array_equal(head, second) and (bits == head).all():
            bits, content = head, content[(*before, *first)]
    kept = [axis for axis, size in enumerate(content.shape) if size == value.shape[axis] > 1]
    core = content.reshape([content.shape[axis] for axis in kept])
    compact = _counted(core) if core.ndim == 1 and core.size >= _SHORTEST_RANGE else core
    if compact is core and core.ndim > 0 and core.size == value.size:
        return value
    same = len(kept) == value.ndim
    return compact if same else lax.broadcast_in_dim(compact, value.shape, kept)


# Two consecutive numbers may just as well be a pair of indices.
_SHORTEST_RANGE = 3


def _counted(x: np.ndarray) -> Value:
    """`x` as a range if it is one; integers may have any step."""
    whole = x.dtype.kind in "iu"
    if not whole and x.dtype not in (np.float32, np.float64):
        return x
    with np.errstate(all="ignore"):
        step = x[1] - x[0] if whole else x.dtype.type(1)
        if (np.arange(x.size, dtype=x.dtype) * step + x[0]).tobytes() != x.tobytes():
            return x
    steps = lax.iota(x.dtype, x.size)
    if step != 1:
        steps = lax.mul(steps, step)
    return steps if x[0] == 0 else lax.add(steps, x[0])


def arrays(values: Sequence[Value]) -> list[Value]:
    """`array` of each, with one integer type if some are symbolic sizes."""
    dtypes = [v.dtype for v in values if not (isinstance(v, np.ndarray) and v.dtype == object)]
    return [array(v, dtypes[0] if dtypes else _INT32) for v in values]


def broadcast(values: Sequence[Value], dtype: np.dtype | None = None) -> list[Value]:
    """Operands broadcast to their common shape, as in NumPy and TensorFlow.

    Symbolic sizes become integers of `dtype`, or of the dtype of the others.
    """
    operands = arrays(values) if dtype is None else [array(v, dtype) for v in values]
    shape = _common_shape(operands)
    return [broadcast_to(x, shape) for x in operands]


def _common_shape(operands: Sequence[Value]) -> Shape:
    """The shape that operands broadcast to. Requires different open sizes to be equal."""
    shapes = [np.shape(x) for x in operands]
    for sizes in itertools.zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        larger = [n for n in sizes if is_open(n) or n != 1]
        for n in larger[1:]:
            suggest_equal(larger[0], n)
    return lax.broadcast_shapes(*shapes)


def promote(values: Sequence[Value], dtype: np.dtype | None = None) -> list[Value]:
    """Operands promoted as by `jax.numpy`: to one rank, scalars unchanged.

    For elementwise primitives, which broadcast sizes of one themselves; `broadcast` would write
    out the full size of a broadcast operand. Symbolic sizes as there.
    """
    operands = arrays(values) if dtype is None else [array(v, dtype) for v in values]
    _common_shape(operands)
    rank = max(np.ndim(x) for x in operands)
    added = [range(rank - np.ndim(x)) if np.ndim(x) else () for x in operands]
    return [
        lax.expand_dims(x, axes) if axes else x for x, axes in zip(operands, added, strict=True)
    ]


def broadcast_to(x: Value, shape: Sequence[Value]) -> Value:
    """`x` broadcast to `shape`, adding leading axes."""
    old = tuple(np.shape(x))
    if old == tuple(shape):
        return x
    offset = len(shape) - len(old)
    keep = [i for i, d in enumerate(old) if not (d == 1 and shape[i + offset] != 1)]
    squeezed = lax.reshape(x, [old[i] for i in keep]) if len(keep) < len(old) else x
    return lax.broadcast_in_dim(squeezed, shape, [i + offset for i in keep])
