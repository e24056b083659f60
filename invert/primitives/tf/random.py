"""Random ops whose numbers TensorFlow leaves open: `jax.random` draws from the key of the call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.stateless_random import truncated_from_uniform
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.numerics.rejection import gamma_slope
from invert.tf.ops.node import Node
from invert.tf.values.constants import ints, static

_INT64 = np.dtype(np.int64)


@raises_tf("RandomUniform")
def _uniform(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.random.uniform(ctx.key(), ints(static(node, values, 0)), node.attr("dtype"))]


@raises_tf("RandomUniformInt")
def _uniform_int(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, low, high = ints(static(node, values, 0)), values[1], values[2]
    return [jax.random.randint(ctx.key(), shape, low, high, low.dtype)]


@raises_tf("RandomStandardNormal")
def _normal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.random.normal(ctx.key(), ints(static(node, values, 0)), node.attr("dtype"))]


@raises_tf("TruncatedNormal")
def _truncated_normal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, dtype = ints(static(node, values, 0)), node.attr("dtype")
    return [jax.random.truncated_normal(ctx.key(), -2.0, 2.0, shape, dtype)]


@raises_tf("ParameterizedTruncatedNormal")
def _parameterized_truncated_normal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape = ints(static(node, values, 0))
    # A parameter is a scalar or has one value for each element of the first axis.
    mean, deviation, low, high = (
        jnp.reshape(v, np.shape(v) + (1,) * (len(shape) - 1) * np.ndim(v)) for v in values[1:]
    )
    u = jax.random.uniform(ctx.key(), shape, mean.dtype)
    z = truncated_from_uniform(u, (low - mean) / deviation, (high - mean) / deviation)
    return [mean + deviation * z]


@raises_tf("RandomGamma")
def _gamma(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, alpha = ints(static(node, values, 0)), jnp.asarray(values[1])
    return [jax.random.gamma(ctx.key(), alpha, (*shape, *alpha.shape), alpha.dtype)]


@raises_tf("RandomGammaGrad")
def _gamma_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [gamma_slope(*jnp.broadcast_arrays(values[0], values[1]))]


@raises_tf("RandomPoisson")
def _poisson_v1(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_poisson(ctx, node, values, values[1].dtype)]


@raises_tf("RandomPoissonV2")
def _poisson_v2(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_poisson(ctx, node, values, node.attr("dtype", _INT64))]


def _poisson(ctx: Context, node: Node, values: list[Any], dtype: np.dtype) -> Any:
    shape, rate = ints(static(node, values, 0)), jnp.asarray(values[1])
    rate = rate.astype(jnp.promote_types(rate.dtype, np.float32))
    return jax.random.poisson(ctx.key(), rate, (*shape, *rate.shape), np.int32).astype(dtype)


@raises_tf("Multinomial")
def _multinomial(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    logits, (count,) = jnp.asarray(values[0]), ints(static(node, values, 1))
    # A class whose logit is not finite has no probability, as in multinomial_op.cc.
    logits = jnp.where(jnp.isfinite(logits), logits, -jnp.inf).astype(logits.dtype)
    drawn = jax.random.categorical(ctx.key(), logits, shape=(count, logits.shape[0]))
    return [drawn.T.astype(node.attr("output_dtype", _INT64))]


@raises_tf("RandomShuffle")
def _shuffle(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [jax.random.permutation(ctx.key(), jnp.asarray(values[0]))]


@raises_tf("NonDeterministicInts", draws=True)
def _non_deterministic_ints(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, dtype = ints(static(node, values, 0)), node.attr("dtype", _INT64)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    return [lax.bitcast_convert_type(jax.random.bits(ctx.key(), shape, unsigned), dtype)]
