"""Random ops with a seed or generator state: TensorFlow's numbers on CPU.

In a function compiled with XLA they are XLA's numbers, which it derives differently from the same
words. With `Config(random="jax")` they come from `jax.random`, with the seed as key.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf import random_by_key
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.numerics import philox, rejection, xla_random
from invert.tf.numerics.philox import Stream
from invert.tf.ops.node import Node
from invert.tf.values.constants import array

# tensorflow/core/framework/rng_alg.h. For CPU kernels the automatic choice is Philox; ThreeFry has
# no kernel and runs only if TensorFlow compiles with XLA.
_PHILOX, _THREEFRY, _AUTO = 1, 2, 3
# Number of blocks a generator advances for each number drawn (SkipPhiloxRandom of
# tensorflow/core/kernels/stateful_random_ops_cpu_gpu.h).
_SKIP = 256
_NO_COUNTER = np.zeros(2, np.uint64)


def _algorithm(node: Node, alg: int) -> int:
    if alg not in (_PHILOX, _THREEFRY, _AUTO):
        raise node.error(
            f"uses an unknown random algorithm, number {alg}",
            "Use Philox.",
        )
    return _PHILOX if alg == _AUTO else alg


def _require_philox(node: Node, alg: int) -> None:
    if _algorithm(node, alg) != _PHILOX:
        raise node.error(
            "uses the random algorithm ThreeFry, for which TensorFlow has no kernel",
            "Use Philox.",
        )


def _by_key(ctx: Context) -> bool:
    return ctx.config.random == "jax"


def _of_seed(ctx: Context, seed: Value) -> Value:
    """The stream of a seed, or the seed as a key."""
    return random_by_key.key_of(seed) if _by_key(ctx) else Stream.from_seed(seed)


def _of_state(ctx: Context, key: Value, counter: Value) -> Value:
    """The stream of a key and a counter, or just the key."""
    if _by_key(ctx):
        return random_by_key.key_of(key)
    return Stream.from_state(array(key), array(counter))


@rule("StatelessRandomGetKeyCounter")
def _key_and_counter(seed: Value, *, ctx: Context) -> list[Array]:
    if _by_key(ctx):
        if isinstance(seed, np.ndarray):
            return [seed.astype(np.uint32).view(np.uint64), _NO_COUNTER]
        words = lax.convert_element_type(seed, np.uint32)
        return [lax.reshape(lax.bitcast_convert_type(words, np.uint64), (1,)), _NO_COUNTER]
    if not isinstance(seed, np.ndarray):
        return list(Stream.from_seed(array(seed)).key_and_counter())
    return list(philox.known_key(seed))  # a constant seed gives a constant key


@rule("StatelessRandomGetKeyCounterAlg")
def _get_key_counter_alg(seed: Value, *, ctx: Context) -> list[Array]:
    return [*_key_and_counter(seed, ctx=ctx), np.asarray(_PHILOX, np.int32)]


@rule("StatelessRandomGetAlg")
def _get_alg() -> np.ndarray:
    return np.asarray(_PHILOX, np.int32)


# Each takes a stream, a shape, a dtype, and the remaining operands.
_Draw = Callable[..., Array]

_DRAWS: dict[str, _Draw] = {
    "Uniform": philox.uniform,
    "UniformInt": functools.partial(philox.integers_between, philox.integers),
    "UniformFullInt": philox.integers,
    "Normal": philox.normal,
    "TruncatedNormal": rejection.truncated_normal,
}
_XLA_DRAWS: dict[str, _Draw] = {
    "Uniform": xla_random.uniform,
    "UniformInt": philox.integers_between,
    "UniformFullInt": xla_random.integers,
    "Normal": xla_random.normal,
    "TruncatedNormal": xla_random.truncated_normal,
}
_STATELESS = [
    *(f"StatelessRandom{kind}" for kind in ("Uniform", "UniformInt", "UniformFullInt", "Normal")),
    "StatelessTruncatedNormal",
]


def _draw(ctx: Context, op: str, algorithm: int = _PHILOX) -> _Draw:
    """The function that draws the numbers of an op."""
    if _by_key(ctx):
        return random_by_key.DRAWS[_kind(op)]
    if algorithm == _PHILOX and not ctx.compiled:
        return _DRAWS[_kind(op)]
    bits = philox.integers if algorithm == _PHILOX else xla_random.threefry_bits
    return functools.partial(_XLA_DRAWS[_kind(op)], bits)


def _kind(op: str) -> str:
    for text in ("Stateless", "Stateful", "Random", "Standard", "V2"):
        op = op.replace(text, "")
    return op


@rule(*_STATELESS)
def _stateless(
    shape: Ints, seed: Array, *bounds: Array, ctx: Context, op: str, dtype: np.dtype
) -> Array:
    dtype = bounds[0].dtype if bounds else dtype
    return _draw(ctx, op)(_of_seed(ctx, seed), shape, dtype, *bounds)


@rule(*(f"{op}V2" for op in _STATELESS))
def _stateless_v2(
    shape: Ints,
    key: Value,
    counter: Value,
    alg: Int,
    *bounds: Array,
    ctx: Context,
    node: Node,
    dtype: np.dtype,
) -> Array:
    dtype = bounds[0].dtype if bounds else dtype
    draw = _draw(ctx, node.op, _algorithm(node, alg))
    return draw(_of_state(ctx, key, counter), shape, dtype, *bounds)


@rule("StatelessRandomGammaV2")
def _gamma_v2(shape: Ints, seed: Array, alpha: Array, *, ctx: Context) -> Array:
    draw = random_by_key.gamma if _by_key(ctx) else rejection.gamma
    return draw(_of_seed(ctx, seed), shape, jnp.asarray(alpha))


@rule("StatelessRandomGammaV3")
def _gamma_v3(
    shape: Ints, key: Value, counter: Value, alg: Int, alpha: Array, *, ctx: Context, node: Node
) -> Array:
    _require_philox(node, alg)
    draw = random_by_key.gamma if _by_key(ctx) else rejection.gamma
    return draw(_of_state(ctx, key, counter), shape, jnp.asarray(alpha))


@rule("StatelessRandomPoisson", "StatelessRandomBinomial")
def _counts(
    shape: Ints, seed: Array, *parameters: Array, ctx: Context, op: str, dtype: np.dtype
) -> Array:
    draws = random_by_key if _by_key(ctx) else rejection
    draw: _Draw = draws.poisson if op == "StatelessRandomPoisson" else draws.binomial
    return draw(_of_seed(ctx, seed), shape, *map(jnp.asarray, parameters), dtype)


@rule("StatelessParameterizedTruncatedNormal")
def _parameterized_truncated_normal(
    shape: Ints,
    seed: Array,
    mean: Array,
    deviation: Array,
    low: Array,
    high: Array,
    *,
    ctx: Context,
) -> Array:
    # The kernel uses one stream for all numbers of a thread, so its numbers depend on the number of
    # threads. These numbers have the same distribution, by inversion.
    mean, deviation, low, high = map(jnp.asarray, (mean, deviation, low, high))
    u = _draw(ctx, "Uniform")(_of_seed(ctx, seed), shape, mean.dtype)
    z = truncated_from_uniform(u, (low - mean) / deviation, (high - mean) / deviation)
    return mean + deviation * z


def truncated_from_uniform(u: Array, low: Array, high: Array) -> Array:
    """Standard normal numbers between two bounds, from numbers in [0, 1).

    Computed on the side of the bound nearer to zero, where the distribution function is small,
    so that distant bounds keep their precision.
    """
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    below, above = (jax.scipy.stats.norm.cdf(x) for x in (low, high))
    z = jax.scipy.special.ndtri(below + u * (above - below))
    z = jnp.clip(z, low, high)
    return jnp.where(flip, -z, z)


@rule("StatelessMultinomial")
def _multinomial(
    logits: Array, count: Int, seed: Array, *, ctx: Context, output_dtype: np.dtype
) -> Array:
    # multinomial_op.cc on one thread: rows follow each other in the stream. With more threads,
    # TensorFlow starts each part of a large batch at an earlier block.
    finite = jnp.isfinite(logits)
    lowest = np.asarray(jnp.finfo(logits.dtype).min, logits.dtype)
    largest = jnp.max(jnp.where(finite, logits, lowest), 1, keepdims=True).astype(np.float64)
    weights = jnp.where(finite, jnp.exp(logits.astype(np.float64) - largest), 0.0)
    totals = jnp.cumsum(weights, 1)
    draw = _draw(ctx, "Uniform")
    u = draw(_of_seed(ctx, seed), (logits.shape[0], count), np.dtype(np.float64))
    target = u * totals[:, -1:]
    drawn = jnp.sum(totals[:, None, :] <= target[:, :, None], 2)
    return drawn.astype(output_dtype)


@rule("StatelessShuffle")
def _shuffle(x: Array, key: Value, counter: Value, alg: Int, *, ctx: Context, node: Node) -> Array:
    _require_philox(node, alg)
    if _by_key(ctx):
        return jax.random.permutation(random_by_key.key_of(key), jnp.asarray(x))
    size = x.shape[0] if x.ndim else 1
    if size <= 1 or math.prod(x.shape) <= 1:
        return x
    words = Stream.from_state(key, counter).block_words((size + 2) // 4).reshape(-1)
    order = shuffled(words, jnp.arange(size, dtype=np.int32))
    return jnp.take(x, order, axis=0)


def shuffled(words: Array, items: Array) -> Array:
    """A shuffled vector: each element swaps with a random remaining one.

    As `RandomShuffle` in random_shuffle_op.h.
    """
    size = items.shape[0]

    def swap(i: Array, order: Array) -> Array:
        left = jnp.asarray(size, np.uint32) - i.astype(np.uint32)
        j = i + lax.rem(words[i], left).astype(i.dtype)
        return order.at[i].set(order[j]).at[j].set(order[i])

    return lax.fori_loop(0, size - 1, swap, items)


@rule("StochasticCastToInt")
def _stochastic_cast(
    x: Array,
    key: Value,
    counter: Value,
    alg: Int,
    *,
    ctx: Context,
    node: Node,
    Tout: np.dtype,
) -> Array:
    # The kernel draws numbers for as many elements at once as the machine has lanes, so the
    # assignment depends on the machine. Rounding here has the same probabilities.
    _require_philox(node, alg)
    u = _draw(ctx, "Uniform")(_of_state(ctx, key, counter), x.shape, x.dtype)
    rounded = jnp.where(x < 0, lax.floor(x + u), lax.floor(x + 1 - u))
    rounded = jnp.where(lax.floor(x) == x, x, rounded)
    bounds, most = np.iinfo(Tout), float(jnp.finfo(x.dtype).max)
    clipped = jnp.clip(rounded, max(bounds.min, -most), min(bounds.max, most))
    clipped = jnp.where(jnp.isnan(x), 0, clipped)
    return lax.convert_element_type(clipped, Tout)


# -- generators: their state is a variable with a 128-bit counter and a key


def _read(ctx: Context, resource: Value, first: int = 0) -> tuple[Array, Stream]:
    """The state and its stream; `first`: offset of the counter."""
    state = jnp.asarray(ctx.read(resource))
    return state, Stream.from_state(state[first + 2 : first + 3], state[first : first + 2])


def _advance(
    ctx: Context, resource: Value, state: Array, stream: Stream, count: Array, first: int = 0
) -> None:
    moved = stream.skip(jnp.asarray(count).astype(np.uint64) * np.uint64(_SKIP))
    counter = lax.bitcast_convert_type(moved.key_and_counter()[1], state.dtype)
    ctx.write(resource, lax.dynamic_update_slice(state, counter, (first,)))


@rule("StatefulStandardNormal")
def _first_normal(resource: Value, shape: Ints, *, ctx: Context, dtype: np.dtype) -> Array:
    # The algorithm, which precedes the rest of the state, has always been Philox.
    state, stream = _read(ctx, resource, 1)
    _advance(ctx, resource, state, stream, math.prod(shape), 1)
    return philox.normal(stream, shape, dtype)


@rule("RngReadAndSkip")
def _read_and_skip(resource: Value, alg: Int, delta: Array, *, ctx: Context, node: Node) -> Array:
    _require_philox(node, alg)
    state, stream = _read(ctx, resource)
    _advance(ctx, resource, state, stream, delta)
    return state[:3]


@rule("RngSkip")
def _skip(resource: Value, alg: Int, delta: Array, *, ctx: Context, node: Node) -> None:
    _read_and_skip(resource, alg, delta, ctx=ctx, node=node)


@rule(
    "StatefulUniform",
    "StatefulUniformInt",
    "StatefulUniformFullInt",
    "StatefulStandardNormalV2",
    "StatefulTruncatedNormal",
)
def _stateful(
    resource: Value,
    alg: Int,
    shape: Ints,
    *bounds: Array,
    ctx: Context,
    node: Node,
    dtype: np.dtype,
) -> Array:
    _require_philox(node, alg)
    state, stream = _read(ctx, resource)
    _advance(ctx, resource, state, stream, math.prod(shape))
    dtype = bounds[0].dtype if bounds else dtype
    return _DRAWS[_kind(node.op)](stream, shape, dtype, *bounds)


@rule("StatefulRandomBinomial")
def _stateful_binomial(
    resource: Value,
    alg: Int,
    shape: Ints,
    counts: Array,
    probs: Array,
    *,
    ctx: Context,
    node: Node,
    dtype: np.dtype,
) -> Array:
    _require_philox(node, alg)
    counts, probs = jnp.asarray(counts), jnp.asarray(probs)
    batch = math.prod(lax.broadcast_shapes(counts.shape, probs.shape))
    samples = math.prod(shape) // batch
    state, stream = _read(ctx, resource)
    _advance(ctx, resource, state, stream, batch * 2 * 100 * (samples + 3) // 4)
    return rejection.binomial(stream, shape, counts, probs, dtype)
