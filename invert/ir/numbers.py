"""Random values, differences of results, and the device for comparing programs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from invert._private.jax import key_impl
from invert.ir.types import Aval, Value


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run programs on the CPU for numerical comparison, whatever the default device is.

    A GPU or TPU multiplies float32 with fewer bits by default. That error is larger than the
    differences of interest, and compilation takes longer.
    """
    try:
        (device, *_) = jax.local_devices(backend="cpu")
    except RuntimeError:  # excluded by JAX_PLATFORMS
        yield
    else:
        with jax.default_device(device):
            yield


def random_value(
    rng: np.random.Generator,
    aval: Aval,
    draw: Callable[[Sequence[int]], np.ndarray] | None = None,
) -> Value:
    """Random values that most programs accept: small integers, numbers around zero.

    `draw` overrides how floating-point and complex arrays of a shape are drawn.
    """
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        seeds = rng.integers(0, 2**31, aval.shape).astype(np.uint32)
        impl = key_impl(aval.dtype)
        flat = [jax.random.key(s, impl=impl) for s in seeds.reshape(-1)]
        return jnp.stack(flat).reshape(aval.shape)
    dtype = np.dtype(aval.dtype)
    if dtype == np.bool_:
        return rng.random(aval.shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, 4, aval.shape).astype(dtype)
    values = _tiled(draw or rng.standard_normal, aval.shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * _tiled(rng.standard_normal, aval.shape)
    return np.asarray(values).astype(dtype, copy=False)


# A prime, so that the rows of large arrays differ.
_POOL = (1 << 16) + 1


def _tiled(draw: Callable[[Sequence[int]], np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Random numbers of a shape; large arrays repeat a pool, to save time."""
    return draw(shape) if math.prod(shape) <= _POOL else np.resize(draw((_POOL,)), shape)


def largest_gap(x: Value, y: Value) -> float:
    """Largest absolute difference; infinite if shapes, NaNs or infinities differ."""
    a, b = np.asarray(x), np.asarray(y)
    if a.shape != b.shape:
        return float("inf")
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    if not a.size:
        return 0.0
    both = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        gap = np.where(both, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(gap), np.inf, gap).max())
