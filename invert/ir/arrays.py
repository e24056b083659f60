"""Container arrays as JAX arrays, sharing memory where possible."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from invert._private.jax import is_tracer
from invert.ir.types import Value

# Alignment that XLA's CPU devices need to use memory without a copy (jaxlib 0.10.2 and 0.12).
_ALIGNMENT = 64

# Bytes of large constants by digest, held weakly.
KnownBytes = MutableMapping[bytes, np.ndarray]


def aligned(value: np.ndarray) -> np.ndarray:
    """Read-only memory that `device_array` can share: itself if aligned, otherwise a copy.

    Values of a checkpoint follow each other without gaps, so most are not aligned, and JAX would
    copy them for each device array.
    """
    narrowed = jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype
    fits = value.ctypes.data % _ALIGNMENT == 0 and value.flags.c_contiguous
    if fits or narrowed or value.flags.writeable or jax.default_backend() != "cpu":
        return value
    return copied(value)


def copied(value: np.ndarray) -> np.ndarray:
    """A read-only copy, which `device_array` can share; texts as they are."""
    if value.dtype.kind == "O":
        return value
    made = aligned_room(value.nbytes).view(value.dtype).reshape(value.shape)
    made[...] = value
    made.flags.writeable = False
    return made


def aligned_room(size: int) -> np.ndarray:
    """Uninitialized memory of `size` bytes, aligned so that `device_array` can share it."""
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]


def device_array(value: Array | np.ndarray) -> Array | np.ndarray:
    """A device array; a NumPy array where JAX would narrow its dtype.

    Read-only memory is shared where the device allows it. Other memory is copied, since its holder
    may write to it.
    """
    return device_arrays([value])[0]


def device_arrays(values: Sequence[Array | np.ndarray]) -> list[Array | np.ndarray]:
    """`device_array` of each value, faster for JAX at once than one by one."""
    arrays = list(values)
    shared: dict[int, np.ndarray] = {}
    for i, value in enumerate(values):
        if jax.dtypes.canonicalize_dtype(value.dtype) != value.dtype:
            continue
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            shared[i] = value
        else:
            arrays[i] = jnp.asarray(value)
    for i, array in jax.device_put(shared, may_alias=True).items():
        arrays[i] = array
    return arrays


def converted(x: Value, dtype: np.dtype) -> Value:
    """As `lax.convert_element_type`, computed by XLA wherever the array is.

    JAX leaves single numbers to NumPy when it traces, and from 0.12 on all arrays of NumPy.
    """
    if is_tracer(x) or x.dtype == dtype:
        return lax.convert_element_type(x, dtype)
    return _bound(x, dtype) if np.ndim(x) else converted_now(x, dtype)


def converted_now(x: Value, dtype: np.dtype) -> np.ndarray:
    """An array of NumPy, converted as by XLA even while JAX traces."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if _converts_alike(x, dtype):
            return x.astype(dtype)
    return computed_now(lambda x: _bound(x, dtype), x)


def computed_now(fn: Callable[..., Value], *values: np.ndarray) -> np.ndarray:
    """`fn(*values)` as an array of NumPy, computed by XLA even while JAX traces.

    NumPy keeps subnormal numbers, and divides, rounds and adds up in other ways.
    """
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(fn(*values))


def _converts_alike(x: np.ndarray, dtype: np.dtype) -> bool:
    """Return whether NumPy converts numbers as XLA does, which would have to compile that.

    NumPy gives other integers for NaN and for large numbers, keeps subnormal numbers, and warns.
    """
    if x.dtype.kind in "iub":
        return dtype.kind in "iub" or dtype in _FLOATS
    if x.dtype not in _FLOATS:
        return False
    size = np.abs(x.astype(np.float64))
    if dtype.kind in "iu":
        return bool(np.all((size < np.iinfo(dtype).max) & ((x >= 0) | (dtype.kind == "i"))))
    if dtype.kind != "b" and dtype not in _FLOATS:
        return False
    normal = 2 * max(float(jnp.finfo(d).tiny) for d in (x.dtype, dtype) if d in _FLOATS)
    return bool(np.all((size == 0) | (size >= normal)))


_FLOATS = frozenset(map(np.dtype, (np.float64, np.float32, np.float16, jnp.bfloat16)))


def _bound(x: Value, dtype: np.dtype) -> Value:
    x = x if isinstance(x, Array) else np.asarray(x)
    return lax.convert_element_type_p.bind(x, new_dtype=dtype, weak_type=False, sharding=None)
