"""`jax.random` instead of TensorFlow's generators, for `Config(random="jax")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.ir.types import Value
from invert.tf.interpreter.registry import Array


def key_of(seed: Value) -> Array:
    """A typed key from a key, a seed of two words, or 64 bits."""
    if isinstance(seed, np.ndarray):
        words = seed.view(np.uint32) if seed.shape == (1,) else seed.astype(np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    if jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if seed.shape == (1,):
        words = lax.reshape(lax.bitcast_convert_type(seed, np.uint32), (2,))
    else:
        words = lax.convert_element_type(seed, np.uint32)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def uniform(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Numbers in [0, 1), without 64-bit intermediates."""
    low, high = np.zeros((), dtype), np.ones((), dtype)
    return jax.random.uniform(key, shape, dtype, low, high)


def _integers(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    bits = jax.random.bits(key, shape, np.dtype(f"uint{8 * dtype.itemsize}"))
    return lax.bitcast_convert_type(bits, dtype)


def truncated_normal(key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Normal numbers up to two standard deviations from zero."""
    return jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


DRAWS: Mapping[str, Callable[..., Array]] = {
    "Uniform": uniform,
    "UniformInt": lambda key, shape, dtype, low, high: jax.random.randint(
        key, shape, low, high, dtype
    ),
    "UniformFullInt": _integers,
    "Normal": jax.random.normal,
    "TruncatedNormal": truncated_normal,
}


def gamma(key: Array, shape: tuple[int, ...], alpha: Array) -> Array:
    """Gamma samples of a shape."""
    return jax.random.gamma(key, alpha, shape, alpha.dtype)


def poisson(key: Array, shape: tuple[int, ...], rate: Array, dtype: np.dtype) -> Array:
    """Poisson samples of a shape."""
    rate = rate.astype(jnp.promote_types(rate.dtype, np.float32))
    return jax.random.poisson(key, rate, shape, np.int32).astype(dtype)


def binomial(
    key: Array, shape: tuple[int, ...], counts: Array, probs: Array, dtype: np.dtype
) -> Array:
    """Binomial samples of a shape."""
    probs = probs.astype(jnp.promote_types(probs.dtype, np.float32))
    return jax.random.binomial(key, counts, probs, shape, probs.dtype).astype(dtype)
