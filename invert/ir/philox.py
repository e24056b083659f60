"""TensorFlow's stateless random numbers in float32, bit for bit equal to its CPU kernels.

Rules for TensorFlow's ops call these functions. Emission copies them into the files that call them,
so they use nothing else of this package. They need 64-bit types. Layouts are those of
tensorflow/core/lib/random/philox_random.h and random_distributions.h (TensorFlow 2.21).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@jax.jit
def philox4x32(key: jax.Array | np.uint64, low: jax.Array, high: jax.Array) -> jax.Array:
    """Philox4x32-10 (Salmon et al., 2011): four words for each counter, whose halves are given."""

    # A loop rather than ten rounds written out: XLA fuses those once for each of the four words.
    def one_round(
        state: tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]], _: None
    ) -> tuple[tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]], None]:
        (k0, k1), (x0, x1, x2, x3) = state
        left = x0.astype(jnp.uint64) * 0xD2511F53
        right = x2.astype(jnp.uint64) * 0xCD9E8D57
        x0 = (right >> 32).astype(jnp.uint32) ^ x1 ^ k0
        x2 = (left >> 32).astype(jnp.uint32) ^ x3 ^ k1
        words = x0, right.astype(jnp.uint32), x2, left.astype(jnp.uint32)
        return ((k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)), words), None

    start = [(x.astype(jnp.uint32), (x >> 32).astype(jnp.uint32)) for x in (key, low, high)]
    state = start[0], start[1] + start[2]
    (_, words), _ = lax.scan(one_round, state, None, length=10)
    return jnp.stack(words, axis=-1)


@jax.jit
def stateless_key(seed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """TensorFlow's key and counter for a seed of two integers."""
    low, high = map(jnp.squeeze, jnp.split(seed.astype(jnp.uint64), 2))
    words = philox4x32(np.uint64(0x02461E293EC8F720), low, high).astype(jnp.uint64)
    key_low, key_high, start_low, start_high = map(jnp.squeeze, jnp.split(words, 4))
    key, start = key_low | key_high << 32, start_low | start_high << 32
    return key[None], jnp.stack([np.uint64(0), start])


@functools.partial(jax.jit, static_argnums=(2,))
def stateless_uniform(key: jax.Array, counter: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """TensorFlow's stateless uniform numbers in [0, 1)."""
    size = math.prod(shape)
    start, carried = map(jnp.squeeze, jnp.split(counter, 2))
    low = start + jnp.arange((size + 3) // 4, dtype=jnp.uint64)
    high = carried + (low < start).astype(jnp.uint64)
    bits = philox4x32(jnp.squeeze(key), low, high) & 0x7FFFFF | 0x3F800000  # in [1, 2)
    uniform = lax.bitcast_convert_type(bits, jnp.float32) - 1.0
    return uniform.reshape(-1)[:size].reshape(shape)


# The C library's functions evaluate a short polynomial in `float64` and round to `float32`, with
# errors up to 0.8 units in the last place. The same polynomials are evaluated to draw the same
# numbers: coefficients and tables as in glibc 2.28 and later, sysdeps/ieee754/flt-32/e_logf.c and
# s_sincosf.h. XLA's `float64` functions call the C library on CPU and need no such care.


@jax.jit
def logf(x: jax.Array) -> jax.Array:
    """The logarithm of positive numbers, rounded like glibc 2.28's `logf`."""
    inverses = np.array(
        [
            *(1.398907162146528, 1.3403141896637998, 1.286432210124115, 1.2367150214269895),
            *(1.1906977166711752, 1.1479821020556429, 1.1082251448272158, 1.0711297413057381),
            *(1.036437278977283, 1.0, 0.9492859795739057, 0.8951049428609004),
            *(0.8476821620351103, 0.8050314851692001, 0.7664671008843108, 0.731428603316328),
        ]
    )
    logarithms = np.array(
        [
            *(-0.33569133332882284, -0.2929040563774074, -0.2518726580937369),
            *(-0.21245868807117255, -0.17453945183745634, -0.1380057072319758),
            *(-0.10275976698545139, -0.06871392447020525, -0.0357891387398228, 0.0),
            *(0.05204517742929496, 0.11081431298787942, 0.1652495223695143),
            *(0.21687389031699977, 0.2659635028121397, 0.3127556664073557),
        ]
    )
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    offset = bits - 0x3F330000
    place = (offset >> 19 & 15).astype(jnp.int32)
    exponent = lax.bitcast_convert_type(offset, jnp.int32) >> 23
    z = lax.bitcast_convert_type(bits - (offset & 0xFF800000), jnp.float32).astype(jnp.float64)
    r = z * jnp.asarray(inverses)[place] - 1.0
    base = jnp.asarray(logarithms)[place] + exponent.astype(jnp.float64) * math.log(2)
    r2 = jnp.square(r)
    tail = -0.25089342214237154 * r2 + (0.333456765744066 * r + -0.4999997485802103)
    return (tail * r2 + (base + r)).astype(jnp.float32)


@jax.jit
def sincosf(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sine and cosine in [0, 2 pi), rounded like the C library's `sincosf`."""
    wide = x.astype(jnp.float64)
    quadrant = jnp.round(wide * (2 / math.pi))
    r = wide - quadrant * (math.pi / 2)
    r2 = jnp.square(r)
    r3, r4 = r2 * r, jnp.square(r2)
    tail = 0.008332178146138854 + r2 * -0.00019517298981385725
    sine = (r + r3 * -0.16666654943701084 + r3 * r2 * tail).astype(jnp.float32)
    tail = -0.001388676379437604 + r2 * 2.4390450703564542e-05
    cosine = 1.0 + r2 * -0.49999999725108224 + r4 * 0.041666623324344516
    cosine = (cosine + r4 * r2 * tail).astype(jnp.float32)
    turn = quadrant.astype(jnp.int32)
    odd = turn & 1 == 1
    first, second = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    first = jnp.where(turn & 2 == 2, -first, first)
    return first, jnp.where(turn + 1 & 2 == 2, -second, second)


@jax.jit
def box_muller(uniform: jax.Array) -> jax.Array:
    """Pairs of normal numbers from pairs of uniform ones."""
    radius = jnp.maximum(uniform[..., ::2], 1e-7)
    angle = (2 * math.pi * uniform[..., 1::2].astype(jnp.float64)).astype(jnp.float32)
    sine, cosine = sincosf(angle)
    length = jnp.sqrt(-2.0 * logf(radius))
    return jnp.stack([sine * length, cosine * length], axis=-1).reshape(uniform.shape)


@functools.partial(jax.jit, static_argnums=(2,))
def stateless_normal(key: jax.Array, counter: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """TensorFlow's stateless normal numbers: Philox4x32-10, then Box and Muller's method."""
    size = math.prod(shape)
    normal = box_muller(stateless_uniform(key, counter, ((size + 3) // 4, 4)))
    return normal.reshape(-1)[:size].reshape(shape)


# By their names in a program.
FUNCTIONS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "philox4x32": philox4x32,
        "stateless_key": stateless_key,
        "stateless_uniform": stateless_uniform,
        "logf": logf,
        "sincosf": sincosf,
        "box_muller": box_muller,
        "stateless_normal": stateless_normal,
    }
)
