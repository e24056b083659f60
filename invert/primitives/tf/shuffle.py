"""Permutations of indices that need no table.

A block cipher on whole numbers of an even number of bits, which is applied until the result is in
range (Black and Rogaway, Ciphers with Arbitrary Finite Domains). The cipher is Simon (Beaulieu et
al. 2013) with the choices of tensorflow/core/kernels/random_index_shuffle.cc, TensorFlow 2.21.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array

_LEAST_BITS = 16
# The constant sequence of Simon for keys of three words, least significant bit first.
_SEQUENCE = 0x7369F885192C0EF5
_U64 = np.dtype(np.uint64)


def _shuffled(index: Any, seed: Any, most: Any, rounds: int) -> Any:
    """Where `index` goes in a permutation of the numbers up to `most`."""
    one = jnp.asarray(1, _U64)
    bits = jnp.asarray(64, _U64) - lax.clz(jnp.maximum(most, one) - one)
    half = jnp.maximum((bits + one) // 2, jnp.asarray(_LEAST_BITS // 2, _U64))
    mask = (one << half) - one

    def left(x: Any, n: int) -> Any:
        return ((x << jnp.asarray(n, _U64)) | (x >> (half - n))) & mask

    def right(x: Any, n: int) -> Any:
        return ((x >> jnp.asarray(n, _U64)) | (x << (half - n))) & mask

    def mix(x: Any) -> Any:
        return (left(x, 1) & left(x, 8)) ^ left(x, 2)

    keys = [seed[i] & mask for i in range(3)]
    for i in range(3, rounds):
        bit = jnp.asarray(0xFFFFFFFC ^ ((_SEQUENCE >> (i - 3)) & 1), _U64)
        # The sequence is as long as a word is.
        known = jnp.where(half > i - 3, bit, jnp.asarray(0xFFFFFFFC, _U64)) & mask
        keys.append(known ^ keys[i - 3] ^ right(keys[i - 1], 3) ^ right(keys[i - 1], 4))

    def encrypt(value: Any) -> Any:
        high, low = (value >> half) & mask, value & mask
        for i in range(0, rounds, 2):
            high = high ^ mix(low) ^ keys[i]
            low = low ^ mix(high) ^ keys[i + 1]
        return (high << half) | low

    return lax.while_loop(lambda v: v > most, encrypt, encrypt(index))


@raises_tf("RandomIndexShuffle")
def _random_index_shuffle(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    index, seed, most = (array(v) for v in values)
    rounds = node.attr("rounds", 4)
    # The words of a seed are its lowest 32 bits.
    words = (seed.astype(_U64) & np.uint64(0xFFFFFFFF)).astype(_U64)
    shuffle = lambda i, s, m: _shuffled(i, s, m, rounds)  # noqa: E731
    axes = (index.ndim or None, seed.ndim - 1 or None, most.ndim or None)
    args = index.astype(_U64), words, most.astype(_U64)
    if any(axes):
        found = jax.vmap(shuffle, tuple(None if a is None else 0 for a in axes))(*args)
    else:
        found = shuffle(*args)
    found = jnp.where(args[2] == 0, jnp.zeros((), _U64), found)
    return [found.astype(index.dtype)]
