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
from invert.ir.stored import called
from invert.ir.types import Value

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)


def halves(x: Array) -> tuple[Array, Array]:
    """The low and the high word of 64 bits."""
    return x.astype(_U32), lax.shift_right_logical(x, jnp.full_like(x, 32)).astype(_U32)


def join(low: Array, high: Array) -> Array:
    high = high.astype(_U64)
    return low.astype(_U64) | lax.shift_left(high, jnp.full_like(high, 32))


_WORD = 0xFFFFFFFF


def known_key(seed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `stateless_key`, for a seed that is known, without compiling a program for it."""
    words = [int(x) >> shift & _WORD for x in seed for shift in (0, 32)]
    keys = 0x02461E293EC8F720 & _WORD, 0x02461E293EC8F720 >> 32
    for _ in range(10):
        left, right = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            right >> 32 ^ words[1] ^ keys[0], right & _WORD,
            left >> 32 ^ words[3] ^ keys[1], left & _WORD,
        ]  # fmt: skip
        keys = keys[0] + 0x9E3779B9 & _WORD, keys[1] + 0xBB67AE85 & _WORD
    key, start = words[0] | words[1] << 32, words[2] | words[3] << 32
    return np.array([key], np.uint64), np.array([0, start], np.uint64)


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
        """From vectors of one and two `uint64`, or of other 64-bit integers."""
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
    """Words as numbers in [0, 1): low bits are mantissas in [1, 2).

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
    """Apply `make` to the blocks that `shape` needs, the last perhaps in part."""
    size, each = math.prod(shape), _per_block(dtype)
    flat = make(stream.block_words((size + each - 1) // each)).reshape(-1)
    return flat[:size].reshape(shape)


def uniform(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Floats in [0, 1)."""
    if dtype == np.float32:
        return called(stateless_uniform, *stream.key_and_counter(), shape=tuple(shape))
    return _fill(stream, shape, dtype, lambda words: unit(words, dtype))


def integers(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Integers over the whole range of their type."""

    def make(words: Array) -> Array:
        return (wide_words(words) if _per_block(dtype) == 2 else words).astype(dtype)

    return _fill(stream, shape, dtype, make)


def integers_between(
    bits: Callable[[Stream, Shape, np.dtype], Array],
    stream: Stream,
    shape: Shape,
    dtype: np.dtype,
    low: Array,
    high: Array,
) -> Array:
    """Integers in [low, high): the remainder of the unsigned words that `bits` draws."""
    unsigned = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    first, last = (lax.bitcast_convert_type(jnp.asarray(x), unsigned) for x in (low, high))
    offset = lax.rem(bits(stream, shape, unsigned), jnp.broadcast_to(last - first, shape))
    return lax.bitcast_convert_type(first + offset, dtype)


def normal(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal numbers."""
    if dtype == np.float32:
        return called(stateless_normal, *stream.key_and_counter(), shape=tuple(shape))
    return _fill(stream, shape, dtype, lambda words: normals(words, dtype))


def normals(words: Array, dtype: np.dtype) -> Array:
    """Two normal numbers from each two uniform ones, by the Box-Muller method.

    **Arguments:**

    - `words`: `uint32[..., 4]`.

    **Returns:** `dtype[..., 4]`, `[..., 2]` for 64 bits; shorter floats are rounded `float32`.
    """
    if np.dtype(dtype) != np.float64:
        return box_muller(unit(words, np.dtype(np.float32))).astype(dtype)
    radius, angle = (unit(words, np.dtype(dtype))[..., i::2] for i in (0, 1))
    angle = 2 * math.pi * angle
    length = lax.sqrt(-2.0 * lax.log(lax.max(radius, jnp.full_like(radius, 1e-7))))
    pairs = jnp.stack([lax.sin(angle) * length, lax.cos(angle) * length], -1)
    return pairs.reshape(*words.shape[:-1], 2)
