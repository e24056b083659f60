"""Permutations of indices without a table.

A block cipher on integers of an even number of bits, applied until the result is in range (Black
and Rogaway, Ciphers with Arbitrary Finite Domains). The cipher is Simon (Beaulieu et
al. 2013) with the choices of tensorflow/core/kernels/random_index_shuffle.cc, TensorFlow 2.21.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, rule

_LEAST_BITS = 16
# The constant sequence of Simon for keys of three words, least significant bit first.
_SEQUENCE = 0x7369F885192C0EF5
_U64 = np.dtype(np.uint64)


def _shuffled(index: Array, seed: Array, most: Array, rounds: int) -> Array:
    """The image of `index` under a permutation of the numbers up to `most`."""
    one = jnp.asarray(1, _U64)
    bits = jnp.asarray(64, _U64) - lax.clz(jnp.maximum(most, one) - one)
    half = jnp.maximum((bits + one) // 2, jnp.asarray(_LEAST_BITS // 2, _U64))
    mask = (one << half) - one

    def left(x: Array, n: int) -> Array:
        return ((x << jnp.asarray(n, _U64)) | (x >> (half - n))) & mask

    def right(x: Array, n: int) -> Array:
        return ((x >> jnp.asarray(n, _U64)) | (x << (half - n))) & mask

    def mix(x: Array) -> Array:
        return (left(x, 1) & left(x, 8)) ^ left(x, 2)

    keys = [seed[i] & mask for i in range(3)]
    for i in range(3, rounds):
        bit = jnp.asarray(0xFFFFFFFC ^ ((_SEQUENCE >> (i - 3)) & 1), _U64)
        # The sequence is as long as a word.
        known = jnp.where(half > i - 3, bit, jnp.asarray(0xFFFFFFFC, _U64)) & mask
        keys.append(known ^ keys[i - 3] ^ right(keys[i - 1], 3) ^ right(keys[i - 1], 4))

    def encrypt(value: Array) -> Array:
        high, low = (value >> half) & mask, value & mask
        for i in range(0, rounds, 2):
            high = high ^ mix(low) ^ keys[i]
            low = low ^ mix(high) ^ keys[i + 1]
        return (high << half) | low

    return lax.while_loop(lambda v: v > most, encrypt, encrypt(index))


@rule("RandomIndexShuffle")
def _random_index_shuffle(index: Array, seed: Array, most: Array, *, rounds: int) -> Array:
    # The words of a seed are its lowest 32 bits.
    words = (seed.astype(_U64) & np.uint64(0xFFFFFFFF)).astype(_U64)
    operands = index.astype(_U64), words, most.astype(_U64)
    axes = tuple(0 if n else None for n in (index.ndim, seed.ndim - 1, most.ndim))
    shuffle = functools.partial(_shuffled, rounds=rounds)
    if axes != (None, None, None):
        shuffle = jax.vmap(shuffle, axes)
    shuffled = shuffle(*operands)
    return jnp.where(operands[2] == 0, jnp.zeros((), _U64), shuffled).astype(index.dtype)
