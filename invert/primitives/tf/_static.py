"""Values known while raising: shapes and indices, folded with NumPy instead of traced.

A value in a graph is either a JAX value or a `np.ndarray`. The latter is a constant or was
computed from shapes; with a symbolic dimension in it, its dtype is `object`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from ..._errors import Problem, UnsupportedOpError
from ._node import Node, canonical

# Shape arithmetic is short. A larger integer constant is data, and data is not folded, so that
# what runs is what the graph says.
_MAX_FOLD = 1024


def is_static(value: Any) -> bool:
    """Whether `value` is an index or a shape that may be computed while raising."""
    if not isinstance(value, np.ndarray) or value.size > _MAX_FOLD:
        return False
    return value.dtype == object or value.dtype.kind in "iub"


def static(node: Node, values: Sequence[Any], index: int) -> np.ndarray:
    """Input `index` of `node`, which must be known while raising.

    **Raises:**

    - `UnsupportedOpError`: it depends on the data.
    """
    value = values[index]
    if isinstance(value, np.ndarray):
        return value
    raise UnsupportedOpError(
        [
            Problem(
                f"tf.{node.op}",
                f"input {index} must be a constant or follow from shapes, but depends on data",
                node.location,
                "Shapes and axes of a JAX program are fixed while it is traced.",
            )
        ]
    )


def ints(value: np.ndarray) -> tuple[Any, ...]:
    """A static vector or scalar as a tuple of ints and symbolic dimensions."""
    return tuple(int(d) if isinstance(d, int | np.integer) else d for d in np.ravel(value).tolist())


def pack_dims(dims: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    """Sizes as a static vector; `object` where one of them is symbolic."""
    if all(isinstance(d, int | np.integer) for d in dims):
        return np.asarray(dims, dtype)
    out = np.empty(len(dims), object)
    out[:] = dims
    return out


_INT32 = np.dtype(np.int32)


def array(value: Any, dtype: np.dtype = _INT32) -> Any:
    """`value` as a JAX operand; static sizes that are symbolic become traced `dtype` integers."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        sizes = [jax.numpy.asarray(d, dtype) for d in np.ravel(value)]
        return jax.numpy.stack(sizes).reshape(value.shape)
    return canonical(value)


def arrays(values: Sequence[Any]) -> list[Any]:
    """`array` of each, at one integer type where some of them are symbolic sizes."""
    dtypes = [v.dtype for v in values if not (isinstance(v, np.ndarray) and v.dtype == object)]
    return [array(v, dtypes[0] if dtypes else _INT32) for v in values]


def broadcast(values: Sequence[Any]) -> list[Any]:
    """Operands at their common shape, by the rule NumPy and TensorFlow share."""
    operands = arrays(values)
    shape = lax.broadcast_shapes(*(np.shape(x) for x in operands))
    return [broadcast_to(x, shape) for x in operands]


def broadcast_to(x: Any, shape: tuple[Any, ...]) -> Any:
    """`x` at `shape`, with sizes of one stretched and leading axes added."""
    old = tuple(np.shape(x))
    if old == tuple(shape):
        return x
    offset = len(shape) - len(old)
    keep = [i for i, d in enumerate(old) if not (d == 1 and shape[i + offset] != 1)]
    squeezed = lax.reshape(x, [old[i] for i in keep]) if len(keep) < len(old) else x
    return lax.broadcast_in_dim(squeezed, shape, [i + offset for i in keep])
