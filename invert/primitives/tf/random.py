"""Random ops whose numbers TensorFlow does not specify: `jax.random` with the key of the call."""

from __future__ import annotations

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
    """The rule of an op that takes a shape; `sampler` takes a key, the shape and a type."""

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
