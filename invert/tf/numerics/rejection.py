"""Distributions that TensorFlow samples by rejection, from the same words in the same order.

The CPU kernels (TensorFlow 2.21, tensorflow/core/kernels) give each number, or group of numbers, a
part of the stream, of fixed length. They retry within it until a candidate is accepted. Here all
numbers try at once, in a loop that ends when the last one is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from invert.ir.sizes import DimSize, Shape
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.numerics.philox import Stream, normals, unit

_U64 = np.dtype(np.uint64)
_F64 = np.dtype(np.float64)
# Number of words reserved for each number (kReservedSamplesPerOutput).
_RESERVED = 256

State = tuple[Array, ...]


def _retry(step: Callable[[Array, State], tuple[Array, State]], done: Array, state: State) -> State:
    """Run steps, counted as `uint64`, until all elements are done; finished ones stay unchanged."""

    def body(carry: tuple[Array, Array, State]) -> tuple[Array, Array, State]:
        count, done, state = carry
        now, new = step(count, state)
        kept = jax.tree_util.tree_map(lambda n, o: _where(done, o, n), new, state)
        return count + np.uint64(1), done | now, kept

    start = (jnp.zeros((), _U64), done, state)
    return lax.while_loop(lambda carry: ~jnp.all(carry[1]), body, start)[2]


def _where(which: Array, x: Array, y: Array) -> Array:
    return lax.select(lax.broadcast_in_dim(which, x.shape, range(which.ndim)), x, y)


def truncated_normal(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal numbers within two standard deviations.

    Each group is filled with the candidates that pass, in the order they are drawn
    (TruncatedNormalDistribution of tensorflow/core/lib/random/random_distributions.h).
    """
    compute = _F64 if np.dtype(dtype) == _F64 else np.dtype(np.float32)
    each = 2 if compute == _F64 else 4
    size = math.prod(shape)
    groups = (size + each - 1) // each
    starts = lax.iota(_U64, groups) * np.uint64(each * _RESERVED // 4)
    lanes = lax.broadcasted_iota(np.dtype(np.int32), (groups, each), 1)

    def step(count: Array, state: State) -> tuple[Array, State]:
        filled, values = state
        drawn = normals(stream.words(starts + count), compute)
        for i in range(each):
            candidate = drawn[:, i : i + 1]
            passes = (lax.abs(candidate) < 2) & (lanes == filled[:, None])
            values = lax.select(passes, jnp.broadcast_to(candidate, values.shape), values)
            filled = filled + jnp.any(passes, axis=1).astype(filled.dtype)
        return filled == each, (filled, values)

    start = jnp.zeros((groups,), np.int32), jnp.zeros((groups, each), compute)
    values = _retry(step, jnp.zeros((groups,), bool), start)[1]
    return values.reshape(-1)[:size].reshape(shape).astype(dtype)


def _indices(shape: Shape, batch: Shape) -> tuple[Array, tuple[DimSize, DimSize]]:
    """The index of each sample, counting along the samples of one parameter first.

    **Returns:** `uint64[samples, parameters]`, and this shape.
    """
    parameters = math.prod(batch)
    samples = math.prod(shape[: len(shape) - len(batch)])
    flat = samples, parameters
    sample, parameter = (lax.broadcasted_iota(_U64, flat, i) for i in (0, 1))
    return parameter * jnp.asarray(samples, _U64) + sample, flat


def gamma(stream: Stream, shape: Shape, alpha: Array) -> Array:
    """Gamma numbers by the method of Marsaglia and Tsang (stateless_random_gamma_op.cc).

    The derivative by `alpha` is the implicit one, as TensorFlow's.
    """
    return _gamma(shape, stream.key, stream.low, stream.high, alpha)


def _gamma(shape: Shape, key: Array, low: Array, high: Array, alpha: Array) -> Array:
    def tangent(samples: Array, primals: Array, tangents: Array) -> Array:
        return gamma_slope(primals[3], samples) * jnp.broadcast_to(tangents[3], shape)

    @with_tangent(tangent)
    def random_gamma(key: Array, low: Array, high: Array, alpha: Array) -> Array:
        return _gamma_samples(Stream(key, low, high), shape, alpha)

    return random_gamma(key, low, high, alpha)


def gamma_slope(alpha: Array, samples: Array) -> Array:
    """The derivative of gamma numbers by their parameter."""
    wide = jnp.promote_types(samples.dtype, np.float32)
    alpha = jnp.broadcast_to(alpha, samples.shape).astype(wide)
    # The decorator gives `dtype`.
    slope = lax.random_gamma_grad(alpha, samples.astype(wide))  # pyright: ignore[reportCallIssue]
    return slope.astype(samples.dtype)


def _gamma_samples(stream: Stream, shape: Shape, alpha: Array) -> Array:
    index, flat = _indices(shape, alpha.shape)
    starts = index * np.uint64(_RESERVED)
    wide = jnp.broadcast_to(alpha.astype(_F64).reshape(-1), flat)
    small = wide < 1
    d = wide + _where(small, jnp.full(flat, 2.0 / 3), jnp.full(flat, -1.0 / 3))
    c = 1.0 / 3 / lax.sqrt(d)

    def take(
        buffer: Array, left: Array, block: Array, make: Callable[[Array], Array]
    ) -> tuple[Array, Array, Array, Array]:
        """The next number of a pair, last first; then a new pair."""
        empty = left == 0
        buffer = _where(empty, make(stream.words(starts + block)), buffer)
        block = block + empty.astype(_U64)
        left = _where(empty, jnp.full_like(left, 1), left - 1)
        value = _where(left == 1, buffer[..., 1], buffer[..., 0])
        return value, buffer, left, block

    def uniforms(words: Array) -> Array:
        return unit(words, _F64)

    def step(count: Array, state: State) -> tuple[Array, State]:
        block, pair, pair_left, ones, ones_left, _ = state
        x, pair, pair_left, block = take(pair, pair_left, block, lambda words: normals(words, _F64))
        v = 1 + c * x
        positive = v > 0
        u, drawn, left, after = take(ones, ones_left, block, uniforms)
        ones, ones_left = _where(positive, drawn, ones), _where(positive, left, ones_left)
        block = _where(positive, after, block)
        v = v * v * v
        square = x * x
        accept = (u < 1 - 0.0331 * square * square) | (
            lax.log(u) < 0.5 * square + d * (1 - v + lax.log(v))
        )
        return positive & accept, (block, pair, pair_left, ones, ones_left, d * v)

    empty, none = jnp.zeros((*flat, 2), _F64), jnp.zeros(flat, np.int32)
    start = jnp.zeros(flat, _U64), empty, none, empty, none, jnp.zeros(flat, _F64)
    exponential = wide == 1
    block, _, _, ones, left, result = _retry(step, exponential, start)
    b = take(ones, left, block, uniforms)[0]
    result = _where(small, result * lax.pow(b, 1 / wide), result)
    first = uniforms(stream.words(starts))[..., 1]
    result = _where(exponential, -lax.log(1 - first), result)
    return _narrowed(result.reshape(shape), alpha.dtype)


def _narrowed(x: Array, dtype: DTypeLike) -> Array:
    """Round doubles to a narrower type; to half precision via single, like TensorFlow.

    Processors with half-precision arithmetic would round only once.
    """
    return x.astype(np.float32).astype(dtype) if np.dtype(dtype).itemsize < 4 else x.astype(dtype)


def poisson(stream: Stream, shape: Shape, rate: Array, dtype: np.dtype) -> Array:
    """Poisson numbers: Knuth's method below a rate of ten, Hörmann's otherwise
    (random_poisson_op.cc)."""
    index, flat = _indices(shape, rate.shape)
    starts = index * np.uint64(_RESERVED)
    rates = jnp.broadcast_to(rate.astype(_F64).reshape(-1), flat)
    low = rates < 10

    limit = lax.exp(-rates)

    def knuth(count: Array, state: State) -> tuple[Array, State]:
        number, product = state
        words = unit(stream.words(starts + count), _F64)
        done = jnp.zeros(flat, bool)
        for u in (words[..., 1], words[..., 0]):
            product = product * u
            done = done | (product <= limit)
            number = number + (~done).astype(_F64)
        return done, (number, product)

    few = _retry(knuth, ~low, (jnp.zeros(flat, _F64), jnp.ones(flat, _F64)))[0]

    # The constants are those of Hörmann, "The transformed rejection method for generating Poisson
    # random variables", 1993.
    b = 0.931 + 2.53 * lax.sqrt(rates)
    a = -0.059 + 0.02483 * b

    def hormann(count: Array, state: State) -> tuple[Array, State]:
        words = unit(stream.words(starts + count), _F64)
        u, v = words[..., 1] - 0.5, words[..., 0]
        us = 0.5 - lax.abs(u)
        k = lax.floor((2 * a / us + b) * u + rates + 0.43)
        inside = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        outside = (k < 0) | ((us < 0.013) & (v > us))
        s = lax.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
        t = -rates + k * lax.log(rates) - lax.lgamma(k + 1)
        return inside | (~outside & (s <= t)), (k,)

    many = _retry(hormann, low, (jnp.zeros(flat, _F64),))[0]
    return _where(low, few, many).reshape(shape).astype(dtype)


# Stirling's remainder of log(k!) for small k, and its series from there on.
_TAILS = np.array(
    (
        *(0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509),
        *(0.0166446911898211, 0.0138761288230707, 0.0118967099458917, 0.0104112652619720),
        *(0.00925546218271273, 0.00833056343336287),
    )
)


def _tail(k: Array) -> Array:
    near = jnp.asarray(_TAILS)[lax.clamp(0.0, k, 9.0).astype(np.int32)]
    square = (k + 1) * (k + 1)
    far = (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / (k + 1)
    return _where(k <= 9, near, far)


def binomial(stream: Stream, shape: Shape, counts: Array, probs: Array, dtype: np.dtype) -> Array:
    """Binomial samples: geometric sums below a mean of ten, otherwise Hörmann's method
    (random_binomial_op.cc)."""
    batch = lax.broadcast_shapes(counts.shape, probs.shape)
    index, flat = _indices(shape, batch)
    short_count, short_prob = (
        jnp.broadcast_to(jnp.broadcast_to(x, batch).reshape(-1), flat) for x in (counts, probs)
    )
    flipped = short_prob > 0.5
    short_prob = _where(flipped, 1 - short_prob, short_prob)
    count, prob = short_count.astype(_F64), short_prob.astype(_F64)
    trivial = ~((count > 0) & (prob > 0))
    large = short_count * short_prob >= 10

    def uniforms(starts: Array) -> tuple[Array, Array]:
        words = unit(stream.words(starts), _F64)
        return words[..., 1], words[..., 0]

    def inversion(turn: Array, state: State) -> tuple[Array, State]:
        total, number = state
        done = jnp.zeros(flat, bool)
        for u in uniforms(index * np.uint64(42) + turn):
            total = total + lax.ceil(lax.log(u) / lax.log1p(-prob))
            done = done | (total > count)
            number = number + (~done).astype(_F64)
        return done, (total, number)

    zero = jnp.zeros(flat, _F64)
    few = _retry(inversion, trivial | large, (zero, zero))[1]

    # The constants are those of Hörmann, "The generation of binomial random variates", 1993.
    deviation = lax.sqrt(count * prob * (1 - prob))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * prob
    ratio = prob / (1 - prob)
    mode = lax.floor((count + 1) * prob)

    def btrs(turn: Array, state: State) -> tuple[Array, State]:
        u, v = uniforms(index * np.uint64(_RESERVED) + turn)
        u = u - 0.5
        us = 0.5 - lax.abs(u)
        k = lax.floor((2 * a / us + b) * u + count * prob + 0.5)
        bound = (
            (mode + 0.5) * lax.log((mode + 1) / (ratio * (count - mode + 1)))
            + (count + 1) * lax.log((count - mode + 1) / (count - k + 1))
            + (k + 0.5) * lax.log(ratio * (count - k + 1) / (k + 1))
            + (_tail(mode) + _tail(count - mode) - _tail(k) - _tail(count - k))
        )
        above = lax.log(v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)) <= bound
        inside = (us >= 0.07) & (v <= 0.92 - 4.2 / b)
        return inside | ((k >= 0) & (k <= count) & above), (k,)

    many = _retry(btrs, trivial | ~large, (zero,))[0]
    number = _where(trivial, zero, _where(large, many, few))
    number = _where(flipped & (count > 0), count - number, number)
    number = _where(jnp.isnan(short_prob), jnp.full(flat, np.nan), number)
    return number.reshape(shape).astype(dtype)
