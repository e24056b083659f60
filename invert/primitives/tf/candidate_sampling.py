"""Samplers of candidate classes, and the accidental hits of a sampled softmax.

Kernels: tensorflow/core/kernels/range_sampler.cc and candidate_sampler_ops.cc, TensorFlow 2.21.
Random numbers come from the key of the call; expected counts match the classes drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem
from invert.primitives.tf.dynamic_size import padded
from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Value, rule
from invert.tf.ops.node import Node

_INT64, _F64 = np.dtype(np.int64), np.dtype(np.float64)
# The key of the call replaces the seeds; the number of true classes is a size.
_IGNORED = ("seed", "seed2", "num_true")

# The candidates, and the expected counts of the true classes and of the candidates.
Sample = tuple[Array, Array, Array]


@rule("LogUniformCandidateSampler", "UniformCandidateSampler", ignores=_IGNORED)
def _plain(
    true: Array,
    *,
    ctx: Context,
    node: Node,
    op: str,
    num_sampled: int,
    unique: bool,
    range_max: int,
) -> Sample:
    check_bytes(node, "a table of its classes", range_max * _F64.itemsize)
    weights = np.full(range_max, 1 / range_max)
    if op == "LogUniformCandidateSampler":
        weights = np.log1p(1 / (np.arange(range_max, dtype=np.float64) + 1)) / np.log1p(range_max)
    return _sample(ctx, weights, true, num_sampled, unique)


def _check(ctx: Context, node: Node) -> Iterator[Problem]:
    if node.attr("vocab_file"):
        yield node.problem(
            "reads its weights from a file, which a conversion never does",
            "Give the weights as `unigrams`.",
        )


@rule("FixedUnigramCandidateSampler", check=_check, ignores=(*_IGNORED, "range_max"))
def _fixed_unigram(
    true: Array,
    *,
    ctx: Context,
    node: Node,
    num_sampled: int,
    unique: bool,
    distortion: float,
    num_reserved_ids: int,
    num_shards: int,
    shard: int,
    unigrams: list[float],
) -> Sample:
    if not 0 <= shard < num_shards:
        raise node.error(f"has no shard {shard} of {num_shards}", "Choose one of its shards.")
    count = len(range(shard, num_reserved_ids, num_shards))
    check_bytes(node, "a table of its classes", count * _F64.itemsize)
    reserved = [0.0] * count
    # The index of the first class that is not reserved equals the number of reserved ones.
    weights = [
        float(np.float32(w) ** np.float32(distortion))
        for i, w in enumerate(unigrams, len(reserved))
        if i % num_shards == shard
    ]
    total = np.asarray(reserved + weights)
    return _sample(ctx, total / total.sum(), true, num_sampled, unique)


def _sample(
    ctx: Context, probabilities: np.ndarray, true: Array, count: int, unique: bool
) -> Sample:
    p = jnp.asarray(probabilities, np.float32)
    key, tries_key = jax.random.split(ctx.key())
    if not unique:
        drawn = jax.random.choice(key, p.size, (count,), p=p)
        expected = p * count
    else:
        # Add Gumbel noise to the log probabilities and take the largest sums, in order. These
        # classes are distributed like draws repeated until enough of them are distinct.
        _, drawn = lax.top_k(jnp.log(p) + jax.random.gumbel(key, p.shape, p.dtype), count)
        # Each draw took as many tries as avoiding the earlier classes needs.
        missed = jnp.cumsum(p[drawn]) - p[drawn]
        tries = jnp.sum(jax.random.geometric(tries_key, jnp.clip(1 - missed, 1e-7, 1)))
        several = -jnp.expm1(tries * jnp.log1p(-p))
        expected = jnp.where(tries == count, p * count, several)
    return drawn.astype(_INT64), expected[true], expected[drawn]


@rule("AllCandidateSampler", ignores=(*_IGNORED, "unique"))
def _all(true: Value, *, node: Node, num_sampled: int) -> Sample:
    check_bytes(node, "a table of its classes", num_sampled * _INT64.itemsize)
    expected = jnp.ones(np.shape(true), np.float32), jnp.ones((num_sampled,), np.float32)
    return np.arange(num_sampled, dtype=np.int64), *expected


_LEARNS = "learns its distribution from earlier calls, whose classes a model does not store"


def _check_learned(ctx: Context, node: Node) -> Iterator[Problem]:
    remedy = "Use another sampler, such as tf.random.log_uniform_candidate_sampler."
    yield node.problem(_LEARNS, remedy)


@rule("LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", check=_check_learned)
def _learned(true: Value) -> None:
    raise AssertionError("its check has reported it")


@rule("ComputeAccidentalHits", ignores=_IGNORED)
def _hits(true: Array, sampled: Array, *, ctx: Context, node: Node) -> tuple[Array, Array, Array]:
    count = true.shape[0] * true.shape[1]
    padded(ctx, node, count, "hits")
    same = lax.reshape(true, (count, 1)) == sampled
    # The last of duplicate candidates counts.
    last = sampled.shape[0] - 1 - lax.argmax(lax.rev(same, (1,)), 1, np.int64)
    hit = jnp.any(same, 1)
    rows = lax.broadcasted_iota(np.int32, true.shape, 0).reshape(-1)
    weight = np.finfo(np.float32).min
    return (
        jnp.where(hit, rows, -1),
        jnp.where(hit, last, -1),
        jnp.where(hit, weight, 0).astype(np.float32),
    )
