"""JAX programs with open sizes: shapes in expressions, loops, masks, windows, random numbers.

`PROGRAMS` maps a name to the function and the symbolic shapes of its arguments. A shape that begins
with `i:` is one of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = {}


def program(*shapes: str, constraints: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, shapes, constraints
        return function

    return register


def _weights(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / 2, jnp.float32)


W, V, K = _weights(6, 4), _weights(4, 4, seed=1), _weights(3, 3, 3, 5, seed=2)
TABLE = _weights(64, 8, seed=3)
EMBEDDING = _weights(40, 8, seed=4)
maximum, minimum = jax.core.max_dim, jax.core.min_dim
NHWC = ("NHWC", "HWIO", "NHWC")


# Layers.


@program("b, 6")
def dense_relu(x):
    return jax.nn.relu(x @ W) @ V


@program("b, 6")
def softmax_net(x):
    return jax.nn.softmax(jax.nn.relu(x @ W) @ V)


@program("b, 6")
def activations(x):
    kinds = (jax.nn.relu6, jax.nn.gelu, jax.nn.silu, jax.nn.elu, jax.nn.softplus, jax.nn.celu)
    return [f(x) for f in kinds], jax.nn.leaky_relu(x), jax.nn.log_softmax(x), jax.nn.logsumexp(x)


@program("b, t, 8")
def layer_norm(x):
    mean, var = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-6)


@program("b, t, 8")
def batch_norm(x):
    mean, var = jnp.mean(x, (0, 1)), jnp.var(x, (0, 1))
    return (x - mean) / jnp.sqrt(var + 1e-3)


@program("b, c, 4, 4")
def group_norm(x):
    return x - jnp.mean(x, axis=(1, 2, 3), keepdims=True)


@program("i:b, t")
def embedding(ids):
    return EMBEDDING[ids]


@program("i:b, t")
def embedding_clip(ids):
    return EMBEDDING.at[ids].get(mode="clip") * 2.0


@program("i:b, t")
def positions_taken(ids):
    return EMBEDDING[ids] + jnp.take(TABLE, jnp.arange(ids.shape[1]), axis=0, mode="clip")


@program("b, t, 8", constraints=("t <= 64",))
def positions_sliced(x):
    return x + TABLE[: x.shape[1]]


@program("b, t, 8")
def attention(x):
    scores = jnp.einsum("btd,bsd->bts", x, x) / np.sqrt(8.0)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), x)


@program("b, t, 8")
def causal_attention(x):
    t = x.shape[1]
    scores = jnp.einsum("btd,bsd->bts", x, x)
    mask = jnp.tril(jnp.ones((t, t), bool))
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), x)


@program("b, t, 8")
def windowed_attention(x):
    t = x.shape[1]
    i, j = jnp.arange(t)[:, None], jnp.arange(t)[None]
    scores = jnp.where(abs(i - j) <= 3, jnp.einsum("btd,bsd->bts", x, x), -1e9)
    return jax.nn.softmax(scores) @ x


@program("b, t, 8", "b, s, 8")
def cross_attention(x, y):
    return jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, y)) @ y


@program("b, t, 8")
def heads(x):
    b, t, _ = x.shape
    y = x.reshape(b, t, 2, 4).transpose(0, 2, 1, 3)
    return (y @ y.swapaxes(2, 3)).reshape(b, 2, t * t)


@program("b, t, 8")
def rotary(x):
    angles = jnp.arange(x.shape[1])[:, None] * jnp.exp(-jnp.arange(4.0))
    a, b = x[..., :4], x[..., 4:]
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b], -1)


# Recurrence.


@program("b, t, 6")
def rnn(x):
    def step(h, v):
        h = jnp.tanh(v @ W + h)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[0], 4)), x.swapaxes(0, 1))


@program("b, t, 6")
def rnn_reversed(x):
    def step(h, v):
        return jnp.tanh(v @ W + h @ V), None

    return lax.scan(step, jnp.ones((x.shape[0], 4)), x.swapaxes(0, 1), reverse=True)[0]


@program("b, t, 6")
def rnn_both(x):
    def step(h, v):
        h = jnp.tanh(v @ W + h)
        return h, h

    first = jnp.zeros((x.shape[0], 4))
    xs = x.swapaxes(0, 1)
    a, b = lax.scan(step, first, xs)[1], lax.scan(step, first, xs, reverse=True)[1]
    return jnp.concatenate([a, b], -1)


@program("b, 6")
def fori(x):
    return lax.fori_loop(0, x.shape[0], lambda i, c: c + x[i] * i, jnp.zeros(6))


@program("t, 6")
def mapped(x):
    return lax.map(lambda v: jnp.sin(v) @ W, x)


@program("b, 6")
def while_to_size(x):
    return lax.while_loop(
        lambda c: c[0] < x.shape[0], lambda c: (c[0] + 2, c[1] * 0.5), (0, x.sum())
    )


@program("b, t")
def associative(x):
    return jnp.cumsum(x, 1), lax.cummax(x, 0), jnp.cumprod(x, 1, dtype=jnp.float32)


# Windows and images.


@program("b, 16, 16, 3")
def convolution(x):
    return lax.conv_general_dilated(x, K, (2, 2), "SAME", dimension_numbers=NHWC)


@program("b, h, w, 3")
def convolution_open(x):
    return lax.conv_general_dilated(x, K, (2, 2), "SAME", dimension_numbers=NHWC)


@program("b, h, w, 3", constraints=("h >= 3", "w >= 3"))
def convolution_valid(x):
    return lax.conv_general_dilated(x, K, (1, 1), "VALID", dimension_numbers=NHWC)


@program("b, t, 3", constraints=("t >= 3",))
def convolution_1d(x):
    return lax.conv_general_dilated(x, K[0], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))


@program("b, h, h, 3", constraints=("h >= 4",))
def pooling(x):
    y = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME") / 4


@program("b, h, w, 3")
def global_pool(x):
    return x.mean((1, 2)), x.max((1, 2))


@program("b, h, w, 3")
def upsampling(x):
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


@program("b, h, w, 3")
def flipped(x):
    return x[:, ::-1], jnp.flip(x, 2), jnp.rot90(x, axes=(1, 2))


# Sizes in expressions.


@program("b, t")
def at_most(x):
    return x[: minimum(x.shape[0], 16)] * 2.0


@program("b, t")
def at_least(x):
    return jnp.pad(x, ((0, maximum(x.shape[0], 5) - x.shape[0]), (0, 0)))


@program("b, t")
def halves(x):
    n = x.shape[0] // 2
    return x[:n], x[n:]


@program("b, t")
def thirds(x):
    n = x.shape[1] // 3
    return x[:, n : 2 * n].sum(0), x[:, -1]


@program("b, t")
def padded_to_eight(x):
    return jnp.pad(x, ((0, (-x.shape[0]) % 8), (0, 0)))


@program("b, t")
def blocks(x):
    n = (-x.shape[1]) % 4
    rows = (x.shape[1] + n) // 4
    return jnp.pad(x, ((0, 0), (0, n))).reshape(x.shape[0], rows, 4).sum(2)


@program("b, t")
def remainder_of_size(x):
    return x * (x.shape[0] % 3) + x.shape[1] // 2


@program("b, t")
def negative_sizes(x):
    return x.sum() + (x.shape[0] - 5) // 2 + (x.shape[1] - 7) % 4


@program("b, t")
def every_second(x):
    return x[::2], x[1::3], x[:, ::-2]


@program("b, t")
def ends(x):
    return x[0], x[-1], x[1:], x[:-1], x[:, :1]


@program("b, t")
def flat(x):
    return x.reshape(-1), x.reshape(x.shape[0], 1, -1), x.ravel().sum()


@program("b, t")
def flat_product(x):
    return jnp.arange(x.shape[0] * x.shape[1]).reshape(x.shape) * x


@program("2*b, 3")
def pairs(x):
    return x.reshape(-1, 2, 3).sum(1)


@program("3*b + 1, 2")
def three_and_one(x):
    return x[1:].reshape(-1, 3, 2).max(1) + x[0]


@program("b, 4*t")
def quarters(x):
    return [p * i for i, p in enumerate(jnp.split(x, 4, axis=1))]


@program("b, t", "t, k")
def product(x, y):
    return x @ y


@program("b, t", "b, t + 1")
def shifted(x, y):
    return x + y[:, 1:] - y[:, :-1]


@program("b, t", "b, 2")
def joined(x, y):
    return jnp.concatenate([x, y, x], axis=1)


@program("b", "t")
def outer(x, y):
    return x[:, None] * y, jnp.outer(y, x), jnp.meshgrid(x, y)


@program("b, t, k")
def three_symbols(x):
    b, t, k = x.shape
    return x.transpose(2, 0, 1).reshape(k * b, t), x.sum() / (b * t * k)


@program("b, t")
def averages(x):
    return x.sum() / x.shape[0], x.sum(1) / (x.shape[1] + 1), x.mean(), x.std(0)


@program("b, t")
def grid(x):
    b, t = x.shape
    return x + jnp.arange(b)[:, None] * jnp.linspace(0.0, 1.0, 3).sum() + jnp.arange(t) % 3


@program("b, t")
def identity_matrix(x):
    return jnp.eye(x.shape[1]) + x.T @ x, jnp.tri(x.shape[0]), jnp.triu(x.T @ x, 1)


@program("b, t")
def repeated(x):
    return jnp.tile(x, (2, 3)), jnp.repeat(x, 3, axis=0), jnp.stack([x, x]), jnp.roll(x, 1, 1)


@program("b, t")
def broadcasts(x):
    return jnp.broadcast_to(x[:, None], (x.shape[0], 3, x.shape[1])), jnp.full(x.shape, 2.0)


@program("b, t")
def masks(x):
    return jnp.where(jnp.arange(x.shape[1]) < x.shape[1] // 2, x, 0.0)


@program("b, t", "i:b")
def masked_lengths(x, lengths):
    mask = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return jnp.where(mask, x, 0.0).sum(1) / jnp.maximum(lengths, 1)


# Sorting, selecting, scattering.


@program("b, t")
def sorts(x):
    return jnp.sort(x, 1), jnp.argsort(x, 0), jnp.argmax(x, 1), jnp.argmin(x), jnp.max(x, 0)


@program("b, t")
def top(x):
    return lax.top_k(x, 1)


@program("b, t", constraints=("t >= 3",))
def top_three(x):
    return lax.top_k(x, 3)


@program("b, t")
def updated(x):
    return x.at[0].set(1.0), x.at[:, 0].add(2.0), x.at[jnp.arange(x.shape[0]), 0].mul(3.0)


@program("b, t", "i:b")
def gathered(x, ids):
    return jnp.take_along_axis(x, jnp.minimum(ids, x.shape[1] - 1)[:, None], 1)


@program("b, t", "i:")
def dynamic_row(x, i):
    return lax.dynamic_index_in_dim(x, i, 0, keepdims=False)


@program("b, t", "i:b")
def segments(x, ids):
    return jax.ops.segment_sum(x, ids, 5)


@program("b, 5")
def one_hot(x):
    return jax.nn.one_hot(x.argmax(1), 5), jnp.searchsorted(jnp.arange(4.0), x[:, 0])


# Control, random numbers, linear algebra, derivatives.


@program("b, 6")
def branches(x):
    return lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - x.shape[0], x)


@program("b, 6")
def number_and_size_in_a_branch(x):
    def double(x):  # one constant, `[1]`, is both in the shape of the indices and a summand
        i = jnp.arange(x.shape[0])[:, None]
        return x.at[i, i % 6].multiply(2) + jnp.array([1])

    return lax.cond(x.sum() > 0, lambda x: lax.cond(x[0, 0] > 0, double, jnp.sin, x), double, x)


@program("b, t", "i:")
def switched(x, i):
    return lax.switch(i, [lambda x: x, lambda x: x[::-1], lambda x: x * x.shape[1]], x)


@program("b, t")
def random_normal(x):
    return x + jax.random.normal(jax.random.key(0), x.shape)


@program("b, t")
def random_uniform(x):
    key = jax.random.key(7)
    return x * jax.random.uniform(key, (x.shape[0], 1)), jax.random.bernoulli(key, 0.3, x.shape)


@program("b, t")
def dropout(x):
    keep = jax.random.bernoulli(jax.random.key(3), 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0.0)


@program("b, 4, 4")
def decompositions(x):
    spd = x @ x.swapaxes(1, 2) + 4 * jnp.eye(4)
    return jnp.linalg.cholesky(spd), jnp.linalg.solve(spd, x), jnp.linalg.det(spd)


@program("b, 6")
def hessian_trace(x):
    return jax.grad(lambda x: jnp.sum(jnp.tanh(x @ W) ** 2))(x)


@program("b, 6")
def checkpointed(x):
    return jax.checkpoint(lambda x: jnp.sin(x @ W))(x).sum()


@program("b, 6")
def vmapped(x):
    return jax.vmap(lambda r: jnp.convolve(r, jnp.ones(3), mode="same"))(x)


@program("b, 6")
def tree(x):
    return {"a": x, "b": [x.sum(0), (x * 2,)]}


@jax.custom_jvp
def _clipped(x):
    return jnp.clip(x, -1.0, 1.0)


_clipped.defjvp(lambda p, t: (_clipped(p[0]), t[0]))


@program("b, 6")
def straight_through(x):
    return _clipped(x) * 2.0


@program("b, t")
def integers(x):
    n = (x * 10).astype(jnp.int32)
    return n // 3, n % 7, n << 1, jnp.bitwise_xor(n, x.shape[0])


@program("b, t")
def complexes(x):
    return jnp.abs(jnp.fft.fft(x.astype(jnp.complex64)[:, :1])), lax.complex(x, x).imag


# Programs that came later than the mechanism.


@program("b, t")
def triangles(x):
    return jnp.tril(x), jnp.triu(x, 1), jnp.tril(x, -1)


@program("b, t")
def rolls(x):
    return jnp.roll(x, 1, 0), jnp.roll(x, -2, axis=1), jnp.roll(x, x.shape[1] // 2, axis=1)


@program("b, t")
def quantiles(x):
    return jnp.median(x, axis=1), jnp.quantile(x, 0.3, axis=0)


@program("b, 2*t")
def gated(x):
    a, c = jnp.split(x, 2, axis=1)
    return a * jax.nn.sigmoid(c)


@program("b, 2*t")
def interleaved(x):
    return x.reshape(x.shape[0], -1, 2)[:, :, ::-1].reshape(x.shape)


@program("b, t, 3")
def dilated(x):
    kernel = _weights(3, 3, 4)
    dims = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        x, kernel, (1,), "SAME", rhs_dilation=(2,), dimension_numbers=dims
    )


@program("b, h, w, 2")
def transposed_convolution(x):
    return lax.conv_transpose(x, _weights(3, 3, 2, 4), (2, 2), "SAME", dimension_numbers=NHWC)


@program("b, t, 4")
def causal_convolution(x):
    padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    dims = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        padded, _weights(4, 1, 4), (1,), "VALID", dimension_numbers=dims, feature_group_count=4
    )


@program("b, t, 8")
def biased_attention(x):
    t = x.shape[1]
    bias = -jnp.abs(jnp.arange(t)[:, None] - jnp.arange(t)[None]).astype(x.dtype)
    scores = jnp.einsum("bqd,bkd->bqk", x, x @ _weights(8, 8)) / 8**0.5
    return jax.nn.softmax(scores + bias) @ x


@program("b, t, 8")
def relative_positions(x):
    t = x.shape[1]
    distance = jnp.clip(jnp.arange(t)[:, None] - jnp.arange(t)[None], -16, 16) + 16
    scores = jnp.einsum("bqd,bkd->bqk", x, x) + _weights(33)[distance]
    return jax.nn.softmax(scores) @ x


@program("b, t, 8")
def sinusoids(x):
    t, d = x.shape[1:]
    frequencies = jnp.exp(-jnp.arange(0, d, 2) * (np.log(1e4) / d))
    angles = jnp.arange(t)[:, None] * frequencies
    return x + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


@program("b, 4*t, 8")
def chunks(x):
    rows = x.reshape(x.shape[0], -1, 4, 8)

    def step(h, v):
        h = jnp.tanh(h + v.mean(1) @ _weights(8, 8))
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[0], 8)), rows.swapaxes(0, 1))


@program("b, t, 6")
def masked_lstm(x):
    lengths = jnp.sum(x[:, :, 0] > 0, axis=1)

    def step(carry, item):
        i, v = item
        h, c = carry
        a, f, o, u = jnp.split(jnp.concatenate([v, h], -1) @ _weights(10, 16), 4, -1)
        new_c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(a) * jnp.tanh(u)
        new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
        keep = (i < lengths)[:, None]
        return (jnp.where(keep, new_h, h), jnp.where(keep, new_c, c)), None

    zero = jnp.zeros((x.shape[0], 4))
    return lax.scan(step, (zero, zero), (jnp.arange(x.shape[1]), x.swapaxes(0, 1)))[0]


@program("b, h, w, 3")
def resized(x):
    b, h, w, c = x.shape
    return jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest"), jax.image.resize(
        x, (b, 7, 7, c), "bilinear"
    )


@program("b, h, w, 3")
def pooled_and_back(x):
    window = (1, 2, 2, 1)
    small = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "SAME")
    large = jnp.repeat(jnp.repeat(small, 2, 1), 2, 2)
    return jnp.concatenate([x, large[:, : x.shape[1], : x.shape[2]]], -1)


@program("b, 4*h, 4*w, 3")
def patches(x):
    b, h, w, c = x.shape
    cut = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
    return cut.reshape(b, (h // 4) * (w // 4), 48) @ _weights(48, 5)


@program("b, h, w, 3", constraints=("mod(h, 4) == 0", "mod(w, 4) == 0"))
def patches_of_multiples(x):
    b, h, w, c = x.shape
    cut = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
    return cut.reshape(b, (h // 4) * (w // 4), 48) @ _weights(48, 5)


@program("b, t", "i:b")
def cross_entropy(x, labels):
    places = jnp.clip(labels, 0, x.shape[1] - 1)[:, None]
    return -jnp.take_along_axis(jax.nn.log_softmax(x), places, 1).mean()


@program("b, t", "u, t")
def distances(x, y):
    return jnp.sqrt(jnp.sum((x[:, None] - y[None]) ** 2, -1) + 1e-6)


@program("b, t", "t, u", "u, b")
def chain(x, y, z):
    return jnp.trace(x @ y @ z), jnp.einsum("ij,jk,ki->i", x, y, z)


@program("t, t")
def square(x):
    a = x @ x.T + jnp.eye(x.shape[0]) * x.shape[0]
    return jnp.diag(x), jnp.diag(x[0]), jnp.linalg.cholesky(a), jnp.linalg.solve(a, x)


@program("b, 8")
def spectrum(x):
    return jnp.abs(jnp.fft.rfft(x)), jnp.fft.fft(x).real


@program("b, t")
def histogram(x):
    return jnp.histogram(x, bins=4, range=(-2, 2))[0], jnp.count_nonzero(x > 0)


@program("b, t")
def sized(x):
    rounded = jnp.unique(jnp.round(x[0]), size=4, fill_value=0)
    return rounded, jnp.nonzero(x[0] > 0, size=5, fill_value=-1)[0]


@program("b, t")
def written_rows(x):
    return x.at[0].set(1.0), x.at[:, -1].add(2.0), x.at[jnp.arange(x.shape[0]), 0].mul(3.0)


@program("b, t", constraints=("b >= 2",))
def differences(x):
    return jnp.diff(x, axis=0), (x[1:] + x[:-1]) / 2


@program("b, t, 4", "u, 4")
def prefix(x, rows):
    shared = jnp.broadcast_to(rows[None], (x.shape[0], *rows.shape))
    return jnp.concatenate([shared, x], 1)


@program("b, t, 6")
def library_attention(x):
    q = x.reshape(*x.shape[:2], 2, 3)
    return jax.nn.dot_product_attention(q, q, q, is_causal=True)


@program("i:b, t")
def bag_of_words(ids):
    mask = (ids != 0)[..., None]
    return (EMBEDDING[ids] * mask).sum(1) / jnp.maximum(mask.sum(1), 1)


@program("b, t")
def until_small(x):
    return lax.while_loop(lambda c: jnp.max(c) > 1.0, lambda c: c * 0.5, x)


@program("b, t")
def columns_in_turn(x):
    def step(i, total):
        return total + lax.dynamic_index_in_dim(x, i, 1, keepdims=False)

    return lax.fori_loop(0, x.shape[1], step, jnp.zeros(x.shape[0]))


@program("b, t")
def windows_of_three(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"), lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3), (1, 2), ((0, 0), (1, 1))
    )


@program("b, t", "b, t + 2")
def shorter_by_two(x, y):
    return y[:, 1:-1] + x, y[:, :-2] * x


@program("2*b, t")
def rows_in_pairs(x):
    return x[::2] + x[1::2], x.reshape(-1, 2, x.shape[1]).sum(1)


@program("b, t, u")
def turned(x):
    return x.transpose(2, 0, 1).reshape(x.shape[2], -1), jnp.moveaxis(x, 0, -1)


@program("b, t")
def bits_of_sizes(x):
    n, m = (jnp.asarray(n, jnp.int32) for n in x.shape)
    return x * (n & 6), x * (n | m), x * (~n), jnp.where((n > 3) ^ (m > 3), x, -x)


@program("b, t")
def sizes_that_wrap_around(x):
    n = jnp.asarray(x.shape[0], jnp.int32)
    narrow = (60 * n).astype(jnp.int8).astype(jnp.float32), (3000 * n).astype(jnp.int16)
    return x * narrow[0], x * narrow[1], x * ((60 * n).astype(jnp.uint8)), n * 60000 * 60000


@program("b, t")
def branches_of_one_size(x):
    n, m = (jnp.asarray(n, jnp.int32) for n in x.shape)
    y = lax.cond(n == 24, lambda: x + 1, lambda: 2 * x)
    y = lax.cond((n == m) | (m % 7 == 3), lambda: jnp.sin(y), lambda: y)
    return lax.switch(n % 3, [lambda: y, lambda: -y, lambda: y * y]), (n - 7) // -3
