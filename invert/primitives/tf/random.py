"""Random ops whose numbers TensorFlow does not specify: `jax.random` with the call's key."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.random_by_key import truncated_normal, uniform
from invert.primitives.tf.stateless_random import truncated_from_uniform
from invert.tf.graph.seeds import KEY_OF_CALL
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, rule, rules
from invert.tf.numerics.rejection import gamma_slope


@rule(KEY_OF_CALL, effect="none", draws=True)
def _key_of_call(*, ctx: Context) -> Array:
    return ctx.key()


# The key of the call replaces these.
_SEEDS = ("seed", "seed2")


def _drawn(sampler: Callable[..., Array]) -> Callable[..., Array]:
    """The rule of a shaped draw; `sampler` takes a key, shape and type."""

    def rule(shape: Ints, *, ctx: Context, dtype: np.dtype) -> Array:
        return sampler(ctx.key(), shape, dtype)

    return rule


rules(
    {
        "RandomUniform": _drawn(uniform),
        "RandomStandardNormal": _drawn(jax.random.normal),
        "TruncatedNormal": _drawn(truncated_normal),
    },
    ignores=_SEEDS,
)


@rule("RandomUniformInt", ignores=_SEEDS)
def _uniform_int(shape: Ints, low: Array, high: Array, *, ctx: Context) -> Array:
    return jax.random.randint(ctx.key(), shape, low, high, low.dtype)


@rule("ParameterizedTruncatedNormal", ignores=_SEEDS)
def _parameterized_truncated_normal(shape: Ints, *parameters: Array, ctx: Context) -> Array:
    # A parameter is a scalar or has one value per element of the first axis.
    mean, deviation, low, high = (
        jnp.reshape(v, np.shape(v) + (1,) * (len(shape) - 1) * np.ndim(v)) for v in parameters
    )
    u = jax.random.uniform(ctx.key(), shape, mean.dtype)
    z = truncated_from_uniform(u, (low - mean) / deviation, (high - mean) / deviation)
    return mean + deviation * z


@rule("RandomGamma", ignores=_SEEDS)
def _gamma(shape: Ints, alpha: Array, *, ctx: Context) -> Array:
    return jax.random.gamma(ctx.key(), alpha, (*shape, *alpha.shape), alpha.dtype)


@rule("RandomGammaGrad")
def _gamma_grad(alpha: Array, sample: Array) -> Array:
    return gamma_slope(*jnp.broadcast_arrays(alpha, sample))


@rule("RandomPoisson", "RandomPoissonV2", ignores=_SEEDS)
def _poisson(shape: Ints, rate: Array, *, ctx: Context, dtype: np.dtype) -> Array:
    rate = jnp.asarray(rate).astype(jnp.promote_types(rate.dtype, np.float32))
    return jax.random.poisson(ctx.key(), rate, (*shape, *rate.shape), np.int32).astype(dtype)


@rule("Multinomial", ignores=_SEEDS)
def _multinomial(logits: Array, count: Int, *, ctx: Context, output_dtype: np.dtype) -> Array:
    # A class whose logit is not finite has no probability, as in multinomial_op.cc.
    logits = jnp.where(jnp.isfinite(logits), logits, -jnp.inf).astype(logits.dtype)
    drawn = jax.random.categorical(ctx.key(), logits, shape=(count, logits.shape[0]))
    return drawn.T.astype(output_dtype)


@rule("RandomShuffle", ignores=_SEEDS)
def _shuffle(x: Array, *, ctx: Context) -> Array:
    return jax.random.permutation(ctx.key(), jnp.asarray(x))


@rule("NonDeterministicInts", draws=True)
def _non_deterministic_ints(shape: Ints, *, ctx: Context, dtype: np.dtype) -> Array:
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    return lax.bitcast_convert_type(jax.random.bits(ctx.key(), shape, unsigned), dtype)


# -- permutations of indices without a table
#
# A block cipher on integers of an even number of bits, applied until the result is in range
# (Black and Rogaway, Ciphers with Arbitrary Finite Domains). The cipher is Simon (Beaulieu et al.
# 2013) with the choices of tensorflow/core/kernels/random_index_shuffle.cc, TensorFlow 2.21.

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
