"""Random ops that take a seed or a generator's state: the numbers that TensorFlow draws on CPU.

Where a function is compiled by XLA, which makes other numbers of the same words, those of XLA.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.numerics import philox, rejection, xla_random
from invert.tf.numerics.philox import Stream
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static

# tensorflow/core/framework/rng_alg.h. To the CPU kernels the automatic choice is Philox; ThreeFry
# has no kernel and runs where TensorFlow compiles by XLA.
_PHILOX, _THREEFRY, _AUTO = 1, 2, 3
# How many blocks a generator moves on for each number that is drawn (SkipPhiloxRandom of
# tensorflow/core/kernels/stateful_random_ops_cpu_gpu.h).
_SKIP = 256


def _seeded(seed: Any) -> Stream:
    return Stream.from_seed(array(seed))


def _algorithm(node: Node, values: Sequence[Any], index: int) -> int:
    (algorithm,) = ints(static(node, values, index))
    if algorithm not in (_PHILOX, _THREEFRY, _AUTO):
        reason = f"asks for the random algorithm {algorithm}, which TensorFlow does not have"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    return _PHILOX if algorithm == _AUTO else algorithm


def _philox_only(node: Node, values: Sequence[Any], index: int) -> None:
    if _algorithm(node, values, index) != _PHILOX:
        reason = "asks for the random algorithm ThreeFry, for which TensorFlow has no kernel"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])


def _key_and_counter(seed: Any) -> list[Any]:
    if not isinstance(seed, np.ndarray):
        return list(_seeded(seed).key_and_counter())
    with jax.ensure_compile_time_eval():  # a constant seed gives a constant key
        return [np.asarray(x) for x in Stream.from_seed(jnp.asarray(seed)).key_and_counter()]


@raises_tf("StatelessRandomGetKeyCounter")
def _get_key_counter(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return _key_and_counter(values[0])


@raises_tf("StatelessRandomGetKeyCounterAlg")
def _get_key_counter_alg(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [*_key_and_counter(values[0]), np.asarray(_PHILOX, np.int32)]


@raises_tf("StatelessRandomGetAlg")
def _get_alg(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [np.asarray(_PHILOX, np.int32)]


# Each takes a stream, a shape, a dtype, and the inputs that come after those of the stream.
_Draw = Callable[..., Any]


_DRAWS: dict[str, _Draw] = {
    "Uniform": philox.uniform,
    "UniformInt": philox.integers_between,
    "UniformFullInt": philox.integers,
    "Normal": philox.normal,
    "TruncatedNormal": rejection.truncated_normal,
}
_XLA_DRAWS: dict[str, Callable[..., Any]] = {
    "Uniform": xla_random.uniform,
    "UniformInt": xla_random.integers_between,
    "UniformFullInt": xla_random.integers,
    "Normal": xla_random.normal,
    "TruncatedNormal": xla_random.truncated_normal,
}


def _draw(ctx: Context, op: str, algorithm: int = _PHILOX) -> _Draw:
    """How an op draws."""
    if algorithm == _PHILOX and not ctx.compiled:
        return _DRAWS[_kind(op)]
    bits = xla_random.philox_bits if algorithm == _PHILOX else xla_random.threefry_bits
    return functools.partial(_XLA_DRAWS[_kind(op)], bits)


def _kind(op: str) -> str:
    for text in ("Stateless", "Stateful", "Random", "Standard", "V2"):
        op = op.replace(text, "")
    return op


def _dtype(node: Node, rest: Sequence[Any]) -> np.dtype:
    """The type of the numbers: an attribute, or that of the bounds of `UniformInt`."""
    return rest[0].dtype if rest else node.attr("dtype", np.dtype(np.float32))


@raises_tf(
    *(f"StatelessRandom{kind}" for kind in ("Uniform", "UniformInt", "UniformFullInt", "Normal")),
    "StatelessTruncatedNormal",
)
def _stateless(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, rest = ints(static(node, values, 0)), [array(v) for v in values[2:]]
    return [_draw(ctx, node.op)(_seeded(values[1]), shape, _dtype(node, rest), *rest)]


@raises_tf(
    *(f"StatelessRandom{kind}V2" for kind in ("Uniform", "UniformInt", "UniformFullInt", "Normal")),
    "StatelessTruncatedNormalV2",
)
def _stateless_v2(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, rest = ints(static(node, values, 0)), [array(v) for v in values[4:]]
    draw = _draw(ctx, node.op, _algorithm(node, values, 3))
    stream = Stream.from_state(array(values[1]), array(values[2]))
    return [draw(stream, shape, _dtype(node, rest), *rest)]


@raises_tf("StatelessRandomGammaV2")
def _gamma_v2(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [
        rejection.gamma(_seeded(values[1]), ints(static(node, values, 0)), jnp.asarray(values[2]))
    ]


@raises_tf("StatelessRandomGammaV3")
def _gamma_v3(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 3)
    stream = Stream.from_state(array(values[1]), array(values[2]))
    return [rejection.gamma(stream, ints(static(node, values, 0)), jnp.asarray(values[4]))]


@raises_tf("StatelessRandomPoisson")
def _poisson(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, rate = ints(static(node, values, 0)), jnp.asarray(values[2])
    return [rejection.poisson(_seeded(values[1]), shape, rate, node.attr("dtype"))]


@raises_tf("StatelessRandomBinomial")
def _binomial(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    shape, counts, probs = ints(static(node, values, 0)), *(jnp.asarray(v) for v in values[2:])
    stream, dtype = _seeded(values[1]), node.attr("dtype", np.dtype(np.int64))
    return [rejection.binomial(stream, shape, counts, probs, dtype)]


@raises_tf("StatelessParameterizedTruncatedNormal")
def _parameterized_truncated_normal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # The kernel lets one stream run through all numbers of a thread, so that its numbers depend on
    # how many threads there are. These have the same distribution, by inversion.
    shape = ints(static(node, values, 0))
    mean, deviation, low, high = (jnp.asarray(v) for v in values[2:])
    bounds = (low - mean) / deviation, (high - mean) / deviation
    u = philox.uniform(_seeded(values[1]), shape, mean.dtype)
    return [mean + deviation * truncated_from_uniform(u, *bounds)]


def truncated_from_uniform(u: Any, low: Any, high: Any) -> Any:
    """Standard normal numbers between two bounds, of numbers in [0, 1).

    Computed on the side of the bound that is nearer to zero, where the distribution function is
    small, so that bounds far off keep their precision.
    """
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    below, above = (jax.scipy.stats.norm.cdf(x) for x in (low, high))
    z = jax.scipy.special.ndtri(below + u * (above - below))
    z = jnp.clip(z, low, high)
    return jnp.where(flip, -z, z)


@raises_tf("StatelessMultinomial")
def _multinomial(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # multinomial_op.cc, as it runs on one thread: rows follow each other in the stream. With more
    # threads, TensorFlow begins again nearer for each of their shares of a large batch.
    logits, (count,) = jnp.asarray(values[0]), ints(static(node, values, 1))
    rows = logits.shape[0]
    finite = jnp.isfinite(logits)
    lowest = np.asarray(jnp.finfo(logits.dtype).min, logits.dtype)
    largest = jnp.max(jnp.where(finite, logits, lowest), 1, keepdims=True).astype(np.float64)
    weights = jnp.where(finite, jnp.exp(logits.astype(np.float64) - largest), 0.0)
    totals = jnp.cumsum(weights, 1)
    u = philox.uniform(_seeded(values[2]), (rows, count), np.dtype(np.float64))
    target = u * totals[:, -1:]
    found = jnp.sum(totals[:, None, :] <= target[:, :, None], 2)
    return [found.astype(node.attr("output_dtype", np.dtype(np.int64)))]


@raises_tf("StatelessShuffle")
def _shuffle(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 3)
    stream = Stream.from_state(array(values[1]), array(values[2]))
    x = array(values[0])
    size = x.shape[0] if x.ndim else 1
    if size <= 1 or math.prod(x.shape) <= 1:
        return [x]
    words = stream.block_words((size + 2) // 4).reshape(-1)
    order = shuffled(words, jnp.arange(size, dtype=np.int32))
    return [jnp.take(x, order, axis=0)]


def shuffled(words: Any, items: Any) -> Any:
    """A vector in random order: of the places left, each swaps with one that a word picks.

    As `RandomShuffle` of random_shuffle_op.h does.
    """
    size = items.shape[0]

    def swap(i: Any, order: Any) -> Any:
        left = jnp.asarray(size, np.uint32) - i.astype(np.uint32)
        j = i + lax.rem(words[i], left).astype(i.dtype)
        return order.at[i].set(order[j]).at[j].set(order[i])

    return lax.fori_loop(0, size - 1, swap, items)


@raises_tf("StochasticCastToInt")
def _stochastic_cast(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # The kernel takes numbers for as many elements at once as the machine has lanes, so that which
    # number rounds which element depends on the machine. These round with the same probability.
    _philox_only(node, values, 3)
    x, dtype = array(values[0]), node.attr("Tout")
    stream = Stream.from_state(array(values[1]), array(values[2]))
    u = philox.uniform(stream, x.shape, x.dtype)
    rounded = jnp.where(x < 0, lax.floor(x + u), lax.floor(x + 1 - u))
    rounded = jnp.where(lax.floor(x) == x, x, rounded)
    bounds, most = np.iinfo(dtype), float(jnp.finfo(x.dtype).max)
    whole = jnp.clip(rounded, max(bounds.min, -most), min(bounds.max, most))
    whole = jnp.where(jnp.isnan(x), 0, whole)
    return [lax.convert_element_type(whole, dtype)]


# -- generators: their state is a variable of a counter of 128 bits and a key


def _read(ctx: Context, resource: Any, first: int = 0) -> tuple[Any, Stream]:
    """The state and the stream that it stands for; `first`: where its counter begins."""
    state = jnp.asarray(ctx.read(resource))
    return state, Stream.from_state(state[first + 2 : first + 3], state[first : first + 2])


def _advance(
    ctx: Context, resource: Any, state: Any, stream: Stream, count: Any, first: int = 0
) -> None:
    moved = stream.skip(jnp.asarray(count).astype(np.uint64) * np.uint64(_SKIP))
    counter = lax.bitcast_convert_type(moved.key_and_counter()[1], state.dtype)
    ctx.write(resource, lax.dynamic_update_slice(state, counter, (first,)))


@raises_tf("StatefulStandardNormal")
def _first_normal(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    # The algorithm stands in front of the rest of the state, and has been Philox alone.
    shape = ints(static(node, values, 1))
    state, stream = _read(ctx, values[0], 1)
    _advance(ctx, values[0], state, stream, math.prod(shape), 1)
    return [philox.normal(stream, shape, _dtype(node, ()))]


@raises_tf("RngReadAndSkip")
def _read_and_skip(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 1)
    state, stream = _read(ctx, values[0])
    _advance(ctx, values[0], state, stream, array(values[2]))
    return [state[:3]]


@raises_tf("RngSkip")
def _skip(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 1)
    state, stream = _read(ctx, values[0])
    _advance(ctx, values[0], state, stream, array(values[2]))
    return []


@raises_tf(
    "StatefulUniform",
    "StatefulUniformInt",
    "StatefulUniformFullInt",
    "StatefulStandardNormalV2",
    "StatefulTruncatedNormal",
)
def _stateful(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 1)
    shape, rest = ints(static(node, values, 2)), [array(v) for v in values[3:]]
    state, stream = _read(ctx, values[0])
    _advance(ctx, values[0], state, stream, math.prod(shape))
    return [_DRAWS[_kind(node.op)](stream, shape, _dtype(node, rest), *rest)]


@raises_tf("StatefulRandomBinomial")
def _stateful_binomial(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    _philox_only(node, values, 1)
    shape, counts, probs = ints(static(node, values, 2)), *(jnp.asarray(v) for v in values[3:])
    batch = math.prod(lax.broadcast_shapes(counts.shape, probs.shape))
    samples = math.prod(shape) // batch
    state, stream = _read(ctx, values[0])
    _advance(ctx, values[0], state, stream, batch * 2 * 100 * (samples + 3) // 4)
    dtype = node.attr("dtype", np.dtype(np.int64))
    return [rejection.binomial(stream, shape, counts, probs, dtype)]
