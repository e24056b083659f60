"""TensorFlow's Philox generator, bit for bit equal to its CPU kernels.

Philox4x32-10 (Salmon et al., SC 2011) turns a 128-bit counter and a 64-bit key into four words.
The layout of counter and key, and how words become numbers, are those of
tensorflow/core/lib/random/philox_random.h and random_distributions.h (TensorFlow 2.21). Everything
is `lax` arithmetic on words, so that it runs on every platform and under every
transformation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from invert.ir.philox import (
    box_muller,
    philox4x32,
    stateless_key,
    stateless_normal,
    stateless_uniform,
)
from invert.ir.sizes import DimSize, Shape
from invert.ir.types import Value

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)


def halves(x: Array) -> tuple[Array, Array]:
    """The low and the high word of 64 bits."""
    return x.astype(_U32), lax.shift_right_logical(x, jnp.full_like(x, 32)).astype(_U32)


def join(low: Array, high: Array) -> Array:
    high = high.astype(_U64)
    return low.astype(_U64) | lax.shift_left(high, jnp.full_like(high, 32))


@dataclasses.dataclass(frozen=True)
class Stream:
    """A key and the current counter, as `uint64` scalars.

    **Arguments:**

    - `start`: the vectors of the key and the counter, where they are at hand.
    """

    key: Array
    low: Value
    high: Value
    start: tuple[Array, Array] | None = None

    @classmethod
    def from_state(cls, key: Array, counter: Array) -> Stream:
        """From a vector of one `uint64` and one of two, or of 64-bit integers of any kind."""
        key, counter = (
            x if x.dtype == _U64 else lax.bitcast_convert_type(x, _U64) for x in (key, counter)
        )
        return cls(key[0], counter[0], counter[1], (key, counter))

    @classmethod
    def from_seed(cls, seed: Array) -> Stream:
        """From the two integers of a stateless op."""
        return cls.from_state(*stateless_key(jnp.asarray(seed)))

    def key_and_counter(self) -> tuple[Array, Array]:
        if self.start is not None:
            return self.start
        return jnp.stack([self.key]), jnp.stack([self.low, self.high])

    def skip(self, blocks: Array | DimSize) -> Stream:
        """The stream advanced by `blocks` blocks of four words."""
        low = self.low + jnp.asarray(blocks, _U64)
        return Stream(self.key, low, self.high + (low < self.low).astype(_U64))

    def words(self, index: Array) -> Array:
        """The blocks at the positions `index`, an array of `uint64`: four words for each."""
        low = self.low + index
        return philox4x32(self.key, low, self.high + (low < self.low).astype(_U64))

    def block_words(self, count: DimSize) -> Array:
        """The next `count` blocks: `uint32[count, 4]`."""
        return self.words(lax.iota(_U64, count))


def wide_words(words: Array, *, high_first: bool = False) -> Array:
    """Pairs of words along the last axis as `uint64`."""
    first, second = words[..., 0::2], words[..., 1::2]
    return join(second, first) if high_first else join(first, second)


# For each float type, the integer type of its bits and the number of bits drawn.
_LAYOUT = {
    np.dtype(jnp.float16): (np.dtype(np.uint16), 10),
    np.dtype(jnp.bfloat16): (np.dtype(np.uint16), 7),
    np.dtype(np.float32): (_U32, 23),
    np.dtype(np.float64): (_U64, 52),
}


def unit(words: Array, dtype: np.dtype) -> Array:
    """Words as numbers in [0, 1): the low bits are the mantissa of a number in [1, 2).

    Numbers of 64 bits take two words each, along the last axis.
    """
    bits_dtype, mantissa = _LAYOUT[np.dtype(dtype)]
    bits = wide_words(words, high_first=True) if bits_dtype == _U64 else words
    one = np.ones((), dtype).view(bits_dtype)
    mask = np.asarray((1 << mantissa) - 1, bits_dtype)
    return lax.bitcast_convert_type((bits.astype(bits_dtype) & mask) | one, dtype) - np.ones(
        (), dtype
    )


def _per_block(dtype: DTypeLike) -> int:
    """How many numbers of a type one block of four words yields."""
    return 2 if np.dtype(dtype).itemsize == 8 else 4


def _fill(stream: Stream, shape: Shape, dtype: DTypeLike, make: Callable[[Array], Array]) -> Array:
    """`make` applied to as many blocks as `shape` needs; the last may be used in part."""
    size, each = math.prod(shape), _per_block(dtype)
    flat = make(stream.block_words((size + each - 1) // each)).reshape(-1)
    return flat[:size].reshape(shape)


def uniform(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Floats in [0, 1)."""
    if dtype == np.float32:
        return stateless_uniform(*stream.key_and_counter(), tuple(shape))
    return _fill(stream, shape, dtype, lambda words: unit(words, dtype))


def integers(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Integers over the whole range of their type."""

    def make(words: Array) -> Array:
        return (wide_words(words) if _per_block(dtype) == 2 else words).astype(dtype)

    return _fill(stream, shape, dtype, make)


def integers_between(
    stream: Stream, shape: Shape, dtype: np.dtype, low: Array, high: Array
) -> Array:
    """Integers in [low, high): the remainder of an unsigned word."""
    unsigned = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    first, last = (lax.bitcast_convert_type(jnp.asarray(x), unsigned) for x in (low, high))
    offset = lax.rem(integers(stream, shape, unsigned), jnp.broadcast_to(last - first, shape))
    return lax.bitcast_convert_type(first + offset, dtype)


def normal(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal numbers."""
    if dtype == np.float32:
        return stateless_normal(*stream.key_and_counter(), tuple(shape))
    return _fill(stream, shape, dtype, lambda words: normals(words, dtype))


def normals(words: Array, dtype: np.dtype) -> Array:
    """Two normal numbers from each two uniform ones, by the Box-Muller method.

    **Arguments:**

    - `words`: `uint32[..., 4]`.

    **Returns:** `dtype[..., 4]`, `[..., 2]` for 64 bits; shorter floats are rounded `float32`.
    """
<<<<<<< HEAD
    if np.dtype(dtype) != np.float64:
        return box_muller(unit(words, np.dtype(np.float32))).astype(dtype)
    radius, angle = (unit(words, np.dtype(dtype))[..., i::2] for i in (0, 1))
    angle = 2 * math.pi * angle
    length = lax.sqrt(-2.0 * lax.log(lax.max(radius, jnp.full_like(radius, 1e-7))))
    pairs = jnp.stack([lax.sin(angle) * length, lax.cos(angle) * length], -1)
    return pairs.reshape(*words.shape[:-1], 2)
=======
    wide = np.dtype(dtype) == np.float64
    compute = np.dtype(np.float64 if wide else np.float32)
    radius, angle = (unit(words, compute)[..., i::2] for i in (0, 1))
    radius = lax.max(radius, jnp.full_like(radius, 1e-7))
    angle = (2 * math.pi * angle.astype(np.float64)).astype(compute)
    if wide:
        logarithm, sine, cosine = lax.log(radius), lax.sin(angle), lax.cos(angle)
    else:
        logarithm, (sine, cosine) = log_float(radius), sincos_float(angle)
    length = lax.sqrt(np.asarray(-2, compute) * logarithm)
    pairs = jnp.stack([sine * length, cosine * length], -1)
    return pairs.reshape(*words.shape[:-1], 2 if wide else 4).astype(dtype)


# The C library's functions evaluate a short polynomial in `float64` and round to `float32`, with
# errors up to 0.8 units in the last place. The same polynomials are evaluated to draw the same
# numbers: coefficients and tables as in glibc 2.28 and later, sysdeps/ieee754/flt-32/e_logf.c and
# s_sincosf.h. XLA's `float64` functions call the C library on CPU and need no such care.
_LOG_INVERSES = (
    "0x1.661ec79f8f3bep+0 0x1.571ed4aaf883dp+0 0x1.49539f0f010bp+0 0x1.3c995b0b80385p+0 "
    "0x1.30d190c8864a5p+0 0x1.25e227b0b8eap+0 0x1.1bb4a4a1a343fp+0 0x1.12358f08ae5bap+0 "
    "0x1.0953f419900a7p+0 0x1p+0 0x1.e608cfd9a47acp-1 0x1.ca4b31f026aap-1 "
    "0x1.b2036576afce6p-1 0x1.9c2d163a1aa2dp-1 0x1.886e6037841edp-1 0x1.767dcf5534862p-1"
)
_LOG_VALUES = (
    "-0x1.57bf7808caadep-2 -0x1.2bef0a7c06ddbp-2 -0x1.01eae7f513a67p-2 -0x1.b31d8a68224e9p-3 "
    "-0x1.6574f0ac07758p-3 -0x1.1aa2bc79c81p-3 -0x1.a4e76ce8c0e5ep-4 -0x1.1973c5a611cccp-4 "
    "-0x1.252f438e10c1ep-5 0x0p+0 0x1.aa5aa5df25984p-5 0x1.c5e53aa362eb4p-4 "
    "0x1.526e57720db08p-3 0x1.bc2860d22477p-3 0x1.1058bc8a07ee1p-2 0x1.4043057b6ee09p-2"
)
_LOG_COEFFICIENTS = "-0x1.00ea348b88334p-2 0x1.5575b0be00b6ap-2 -0x1.ffffef20a4123p-2"
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_SIN_COEFFICIENTS = "-0x1.555545995a603p-3 0x1.1107605230bc4p-7 -0x1.994eb3774cf24p-13"
_COS_COEFFICIENTS = (
    "-0x1.ffffffd0c621cp-2 0x1.55553e1068f19p-5 -0x1.6c087e89a359dp-10 0x1.99343027bf8c3p-16"
)
# Start of the octave that the table divides into sixteen intervals.
_LOG_START = np.uint32(0x3F330000)


def _numbers(text: str) -> np.ndarray:
    return np.array([float.fromhex(t) for t in text.split()])


def log_float(x: Array) -> Array:
    """`logf` of the C library, for normal positive `float32`."""
    bits = lax.bitcast_convert_type(x, _U32)
    offset = bits - _LOG_START
    place = lax.shift_right_logical(offset, jnp.full_like(offset, 19)) & np.uint32(15)
    exponent = lax.bitcast_convert_type(offset, np.dtype(np.int32))
    exponent = lax.shift_right_arithmetic(exponent, jnp.full_like(exponent, 23))
    reduced = bits - (offset & np.uint32(0xFF800000))
    z = lax.bitcast_convert_type(reduced, np.dtype(np.float32)).astype(np.float64)
    inverse, value = (jnp.asarray(_numbers(t))[place] for t in (_LOG_INVERSES, _LOG_VALUES))
    r = z * inverse - 1.0
    base = value + exponent.astype(np.float64) * _LN2
    a0, a1, a2 = _numbers(_LOG_COEFFICIENTS)
    r2 = r * r
    return ((a0 * r2 + (a1 * r + a2)) * r2 + (base + r)).astype(np.float32)


def sincos_float(x: Array) -> tuple[Array, Array]:
    """`sincosf` of the C library, for `float32` in [0, 2 pi)."""
    wide = x.astype(np.float64)
    quadrant = lax.round(wide * (2 / math.pi))
    r = wide - quadrant * (math.pi / 2)
    r2 = r * r
    s1, s2, s3 = _numbers(_SIN_COEFFICIENTS)
    c1, c2, c3, c4 = _numbers(_COS_COEFFICIENTS)
    r3, r4 = r2 * r, r2 * r2
    sine = ((r + r3 * s1) + (r3 * r2) * (s2 + r2 * s3)).astype(np.float32)
    cosine = ((1.0 + r2 * c1 + r4 * c2) + (r4 * r2) * (c3 + r2 * c4)).astype(np.float32)
    turn = quadrant.astype(np.int32)
    odd = (turn & 1) == 1
    first, second = lax.select(odd, cosine, sine), lax.select(odd, sine, cosine)
    negative_sine = (turn & 2) == 2
    negative_cosine = ((turn + 1) & 2) == 2
    return (
        lax.select(negative_sine, -first, first),
        lax.select(negative_cosine, -second, second),
    )
>>>>>>> main
