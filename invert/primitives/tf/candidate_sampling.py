"""Samplers of candidate classes, and what a sampled softmax needs besides.

Kernels: tensorflow/core/kernels/range_sampler.cc and candidate_sampler_ops.cc, TensorFlow 2.21. The
numbers come from the key of the call; expected counts are those of the classes that were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem
from invert.primitives.tf.dynamic_size import padded
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array

_INT64 = np.dtype(np.int64)


def _log_uniform(node: Node) -> np.ndarray:
    k = np.arange(node.attr("range_max"), dtype=np.float64)
    return np.log1p(1 / (k + 1)) / np.log1p(node.attr("range_max"))


def _uniform(node: Node) -> np.ndarray:
    return np.full(node.attr("range_max"), 1 / node.attr("range_max"))


def _fixed_unigram(node: Node) -> np.ndarray:
    shards, shard = node.attr("num_shards", 1), node.attr("shard", 0)
    reserved = node.attr("num_reserved_ids", 0)
    known = [0.0] * len([i for i in range(reserved) if i % shards == shard])
    # The number of the first class that is not reserved is the number of those reserved here.
    weights = [
        float(np.float32(w) ** np.float32(node.attr("distortion", 1.0)))
        for i, w in enumerate(node.attr("unigrams", []), len(known))
        if i % shards == shard
    ]
    total = np.asarray(known + weights)
    return total / total.sum()


# How likely each class is to be drawn.
PROBABILITIES: dict[str, Callable[[Node], np.ndarray]] = {
    "FixedUnigramCandidateSampler": _fixed_unigram,
    "LogUniformCandidateSampler": _log_uniform,
    "UniformCandidateSampler": _uniform,
}


def _check(ctx: Context, node: Node) -> Iterator[Problem]:
    if node.attr("vocab_file"):
        yield Problem(
            f"tf.{node.op}",
            "reads its weights from a file, which a conversion never does",
            node.location,
            "Give the weights as `unigrams`.",
        )


@raises_tf(*PROBABILITIES, check=_check)
def _sample(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    true, count = array(values[0]), node.attr("num_sampled")
    p = jnp.asarray(PROBABILITIES[node.op](node), np.float32)
    key, tries_key = jax.random.split(ctx.key())
    if not node.attr("unique"):
        drawn = jax.random.choice(key, p.size, (count,), p=p)
        expected = p * count
    else:
        # The classes with the largest sums of log probability and Gumbel noise are those that
        # drawing until there are enough different ones gives, in that order.
        _, drawn = lax.top_k(jnp.log(p) + jax.random.gumbel(key, p.shape, p.dtype), count)
        # Each took as many tries as it takes to draw none of those before it.
        missed = jnp.cumsum(p[drawn]) - p[drawn]
        tries = jnp.sum(jax.random.geometric(tries_key, jnp.clip(1 - missed, 1e-7, 1)))
        several = -jnp.expm1(tries * jnp.log1p(-p))
        expected = jnp.where(tries == count, p * count, several)
    return [drawn.astype(_INT64), expected[true], expected[drawn]]


@raises_tf("AllCandidateSampler")
def _all(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    count = node.attr("num_sampled")
    ones = jnp.ones(np.shape(values[0]), np.float32), jnp.ones((count,), np.float32)
    return [np.arange(count, dtype=np.int64), *ones]


_LEARNS = "learns its distribution from the classes of the calls before, which no model holds"


def _check_learned(ctx: Context, node: Node) -> Iterator[Problem]:
    remedy = "Use another sampler, such as tf.random.log_uniform_candidate_sampler."
    yield Problem(f"tf.{node.op}", _LEARNS, node.location, remedy)


@raises_tf(
    "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", check=_check_learned
)
def _learned(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    raise AssertionError("its check reports it before")


@raises_tf("ComputeAccidentalHits")
def _hits(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    true, sampled = array(values[0]), array(values[1])
    count = true.shape[0] * true.shape[1]
    padded(ctx, node, count, "hits")
    same = lax.reshape(true, (count, 1)) == sampled
    # Of candidates that were drawn twice the last counts.
    last = sampled.shape[0] - 1 - lax.argmax(lax.rev(same, (1,)), 1, np.int64)
    hit = jnp.any(same, 1)
    rows = lax.broadcasted_iota(np.int32, true.shape, 0).reshape(-1)
    weight = np.finfo(np.float32).min
    return [
        jnp.where(hit, rows, -1),
        jnp.where(hit, last, -1),
        jnp.where(hit, weight, 0).astype(np.float32),
    ]
