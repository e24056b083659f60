"""TensorFlow programs with open sizes: `tf.function`s by name, and their shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

# A function and the types of its arguments.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tf.TensorSpec, ...]]] = {}


def program(*shapes: list[int | None], dtype: tf.DType = tf.float32) -> Callable[[Any], Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, tuple(tf.TensorSpec(s, dtype) for s in shapes)
        return function

    return register


TABLE = tf.constant(np.random.default_rng(0).normal(size=(64, 8)), tf.float32)
KERNEL = tf.constant(np.random.default_rng(1).normal(size=(3, 3, 3, 4)), tf.float32)


@program([None, 4])
def reshapes(x):
    n = tf.shape(x)[0]
    return tf.reshape(x, [-1]), tf.reshape(x, [n, 2, 2]), tf.reshape(x, [-1, 2])


@program([None, None])
def averages(x):
    return tf.reduce_sum(x) / tf.cast(tf.size(x), tf.float32), tf.reduce_mean(x, 0)


@program([None, None])
def slices(x):
    return x[::2], x[:, ::-1], x[1:], x[:-1], x[:, :1]


@program([None, None])
def cut_ends(x):
    return x[:5], x[-2:], x[:, 3:7]


@program([None, None])
def strided(x):
    return x[1::3], x[::-2], x[:, ::4]


@program([None, 4])
def halves(x):
    return x[: tf.shape(x)[0] // 2], x[tf.shape(x)[0] // 2 :]


@program([None, 3])
def extreme_sizes(x):
    """As `tf.vectorized_map` computes the number of elements it maps over."""
    of_all = [tf.reduce_max(tf.shape(x)), tf.reduce_min(tf.shape(x)), tf.reduce_sum(tf.shape(x))]
    rows = tf.reduce_max(tf.stack([tf.shape(x)[0]]))
    return tf.stack(of_all), tf.reshape(x, [rows, 3, 1])


@program([None, 3, 3], [None, 3])
def vectorized(x, y):
    pairs = x, y[: tf.shape(x)[0]]
    return tf.vectorized_map(lambda pair: tf.linalg.matvec(pair[0], pair[1]), pairs)


@program([None, 3])
def powers(x):
    n = tf.shape(x)[0]
    return tf.broadcast_to(x[:1], [tf.pow(n, 1) + tf.square(n), 3]), tf.zeros([n**2, 2]) + x[0, 0]


@program([None, 4])
def remainder(x):
    return tf.pad(x, [[0, (-tf.shape(x)[0]) % 8], [0, 0]])


@program([None, None, 8])
def blocks(x):
    """Attention in blocks of a length that is padded, and two ways to write the same sizes."""
    rows, length = tf.shape(x)[0], tf.shape(x)[1]
    padding = (4 - length % 4) % 4
    whole = length + padding
    y = tf.reshape(tf.pad(x, [[0, 0], [0, padding], [0, 0]]), [rows, whole // 4, 4, 8])
    y = tf.matmul(tf.nn.softmax(tf.matmul(y, y, transpose_b=True)), y)
    pairs = tf.reshape(y, [rows, whole // 2, 2, 8])
    pairs += tf.reshape(y, [rows, 2 * (whole // 4), 2, 8])[:, ::-1]
    return tf.reshape(pairs, [rows, whole, 8])[:, :length]


@program([None, 4])
def at_least(x):
    n = tf.shape(x)[0]
    return tf.pad(x, [[0, tf.maximum(n, 5) - n], [0, 0]])


@program([None, 4])
def at_most(x):
    return x[: tf.minimum(tf.shape(x)[0], 16)]


@program([None, 4])
def branch(x):
    return tf.cond(tf.shape(x)[0] > 4, lambda: x * 2.0, lambda: x - 1.0)


@program([None, 4])
def branch_even(x):
    return tf.cond(tf.equal(tf.shape(x)[0] % 2, 0), lambda: x + 1.0, lambda: x * 3.0)


@program([None, 4])
def loop(x):
    def step(i, s):
        return i + 1, s + x[i]

    return tf.while_loop(lambda i, s: i < tf.shape(x)[0], step, [0, tf.zeros([4])])[1]


@program([None, None, 4])
def causal(x):
    t = tf.shape(x)[1]
    scores = tf.matmul(x, x, transpose_b=True)
    mask = tf.linalg.band_part(tf.ones([t, t]), -1, 0)
    return tf.matmul(tf.nn.softmax(scores - 1e9 * (1 - mask)), x)


@program([None, None, 8])
def positions(x):
    return x + TABLE[: tf.shape(x)[1]]


@program([None, None, 8])
def positions_gathered(x):
    return x + tf.gather(TABLE, tf.minimum(tf.range(tf.shape(x)[1]), 63))


@program([None, 4], [None, 4])
def two(x, y):
    return x + y


@program([None, 4])
def tiled(x):
    n = tf.shape(x)[0]
    return tf.tile(x, [2, 1]), tf.range(n), tf.fill([n], 2.0), tf.eye(n)


@program([None, 4])
def repeated(x):
    return tf.repeat(x, 3, axis=0), tf.stack([x, x]), tf.concat([x, x[:1]], 0)


@program([None, None])
def ordered(x):
    return tf.sort(x, axis=1), tf.cumsum(x, 1), tf.math.top_k(x, 1), tf.reverse(x, [0])


@program([None, None])
def picked(x):
    n = tf.shape(x)[0]
    return tf.gather(x, tf.range(n - 1, -1, -1)), tf.transpose(x), tf.one_hot(tf.argmax(x, 1), 4)


@program([None, None, None, 3])
def convolved(x):
    return tf.nn.conv2d(x, KERNEL, 1, "SAME"), tf.nn.conv2d(x, KERNEL, 2, "SAME")


@program([None, None, None, 3])
def pooled(x):
    return tf.nn.max_pool2d(x, 2, 2, "SAME"), tf.nn.avg_pool2d(x, 3, 1, "SAME")


@program([None, None, None, 3])
def resized(x):
    return tf.image.resize(x, [8, 8], "nearest"), tf.reduce_mean(x, [1, 2])


@program([None, None, None, 3])
def doubled(x):
    n = tf.shape(x)
    return tf.image.resize(x, [n[1] * 2, n[2] * 2], "nearest")


@program([None, 6])
def normalized(x):
    mean, variance = tf.nn.moments(x, [0])
    return (x - mean) * tf.math.rsqrt(variance + 1e-3), tf.nn.l2_normalize(x, 1)


@program([None, None])
def masked(x):
    mask = tf.range(tf.shape(x)[1]) < tf.shape(x)[1] // 2
    return tf.where(mask, x, 0.0), tf.sequence_mask(tf.shape(x)[0], 40)


@program([None, 4])
def split(x):
    return tf.split(x, 2, axis=1), tf.unstack(x, axis=1)


@program([None, None, 4])
def einsum(x):
    return tf.einsum("btd,bsd->bts", x, x), tf.matmul(x, x, transpose_a=True)


@program([None, 3])
def counted(x):
    n = tf.cast(tf.shape(x)[0], tf.float32)
    return x * n, tf.sqrt(n), tf.reduce_sum(x) / (n + 1.0)


@program([None, None], dtype=tf.int32)
def looked_up(ids):
    return tf.gather(TABLE, ids % 64), tf.reduce_max(ids), tf.cast(ids, tf.float32) / 2.0


@program([None, 4])
def updated(x):
    n = tf.shape(x)[0]
    return tf.tensor_scatter_nd_update(x, [[0]], tf.ones([1, 4])), tf.zeros([n, 4]) + x[0]


@program([None, 4])
def segments(x):
    ids = tf.range(tf.shape(x)[0]) % 3
    return tf.math.unsorted_segment_sum(x, ids, 3)


@program([None, None, 2])
def recurrent(x):
    def step(h, v):
        return tf.tanh(h + v)

    return tf.scan(step, tf.transpose(x, [1, 0, 2]), tf.zeros([tf.shape(x)[0], 2]))


@program([None, None, 8])
def windows(x):
    """Windows that start at data-dependent positions."""
    n, start = tf.shape(x)[1], tf.cast(0.0 * tf.reduce_sum(x), tf.int32)
    return x + TABLE[start : start + n], x * tf.slice(TABLE, [start, 0], [n, 8])


@program([None, 8])
def rows_of_a_table(x):
    n = tf.shape(x)[0]
    return x + tf.slice(TABLE, [2, 0], [n, 8])


@program([None, 4])
def filled_up(x):
    n = tf.shape(x)[0]
    # JAX cannot export open parts joined to a fixed size where that is the result itself.
    return tf.pad(x, [[0, 40 - n], [0, 0]]), 2.0 * tf.concat([x, tf.zeros([50 - n, 4])], 0)


@program([None, 4])
def mirrored(x):
    return tf.pad(x, [[2, 1], [0, 0]], "REFLECT"), tf.pad(x, [[1, 3], [0, 0]], "SYMMETRIC")


@program([None, 3])
def in_pairs(x):
    one, two = tf.split(x, 2)
    return one * two, tf.reshape(x, [-1, 2, 3])


@program([None, 3])
def all_but_two(x):
    first, rest = tf.split(x, [2, tf.shape(x)[0] - 2])
    return tf.reduce_sum(first), rest


@program([None, 3])
def every_other(x):
    n = tf.shape(x)[0]
    up = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 2, s + x[i]), [0, tf.zeros([3])])
    down = tf.while_loop(
        lambda i, s: i >= 0, lambda i, s: (i - 2, tf.tanh(s) + x[i]), [n - 1, tf.zeros([3])]
    )
    return up, down


PLAIN = tf.constant(np.random.default_rng(2).normal(size=(2, 2, 4, 4)), tf.float32)


@program([None, None, None, 4])
def u_net(x):
    down = tf.nn.max_pool2d(x, 2, 2, "VALID")
    deep = tf.nn.max_pool2d(tf.nn.relu(down), 2, 2, "VALID")
    shape = tf.shape(deep)

    def up(y, like):
        b, h, w, _ = tf.unstack(tf.shape(y))
        y = tf.nn.conv2d_transpose(y, PLAIN, [b, 2 * h, 2 * w, 4], 2, "VALID")
        return tf.concat([y, like], -1)[..., 2:6]

    return up(up(deep, down), x) + 1.0, shape


@program([None, 3])
def grown(x):
    """A list that grows to the length of the array."""
    n = tf.shape(x)[0]
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    _, array = tf.while_loop(
        lambda i, _: i < n, lambda i, a: (i + 1, a.write(i, 2.0 * x[i])), [0, array]
    )
    return array.stack()


LSTM = tf.keras.layers.LSTM(3, return_sequences=True, return_state=True)
LSTM.build((None, None, 3))


@program([None, None, 3])
def masked_lstm(x):
    """The array of outputs is carried before the states."""
    return LSTM(x, mask=tf.reduce_any(x > 0.5, -1))


def _positive(x):
    """The positive elements of the first column, whose number depends on data."""
    return tf.boolean_mask(x[:, 0], x[:, 0] > 0)


@program([None, 4])
def counted_rows(x):
    n, m = tf.shape(_positive(x))[0], tf.shape(x)[0]
    sizes = [
        n + 2,
        n // 2 + 1,
        -(-n // 3),
        m - n,
        2 * n * m,
        tf.maximum(n, 2),
        tf.minimum(n, m - n),
    ]
    return [tf.reduce_sum(tf.fill([size, 2], 3.0)) for size in sizes]


@program([None, 4])
def products_of_negative_sizes(x):
    n = tf.shape(_positive(x))[0]
    return tf.reduce_sum(tf.range(tf.maximum((n - 3) * (n - 5), 0)))


@program([None, 4])
def picked_and_padded(x):
    y = _positive(x)
    return tf.pad(y, [[0, tf.shape(x)[0] - tf.shape(y)[0]]])


@program([None, 4])
def distinct(x):
    y, numbers = tf.unique(tf.cast(2.0 * x[:, 0], tf.int32))
    parts = tf.math.unsorted_segment_sum(x, numbers, tf.shape(y)[0] + 1)
    return tf.reduce_sum(y), tf.reduce_sum(parts**2), numbers


@program([None, 4])
def masked_parts(x):
    y = tf.boolean_mask(x, x[:, 1] > 0)
    return tf.reduce_sum(y[1:] ** 2, 0), tf.reduce_sum(y[::-2], 0), tf.reduce_max(y, 0)


@program([None, None])
def equal_sizes(x):
    """Branches taken at a single size, which few tests would reach."""
    n, m = tf.shape(x)[0], tf.shape(x)[1]
    y = tf.cond(tf.equal(n, 24), lambda: x + 1.0, lambda: 2.0 * x)
    y = tf.cond(tf.logical_or(n == m, m % 7 == 3), lambda: tf.sin(y), lambda: y)
    return tf.case([(n < 3, lambda: -y), (m > 60, lambda: y * y)], lambda: y)


@program([None, None])
def spectra(x):
    power = tf.abs(tf.signal.rfft(x))
    return power, tf.signal.dct(x), tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64)))


@program([None, None])
def angles(x):
    n = tf.shape(x)[1]
    places = tf.range(n, dtype=tf.float32)[:, None] / tf.range(1.0, 5.0)
    return tf.sin(places), tf.signal.hann_window(n), tf.linspace(0.0, tf.cast(n, tf.float32), n + 1)


@program([None, 4])
def folded(x):
    """Loops whose counters start at different numbers."""
    return tf.foldl(lambda a, b: a + b * a, x), tf.foldr(lambda a, b: tf.sin(a) - b, x)


@program([None, None, None, 3])
def crops(x):
    boxes = [[0.1, -0.1, 0.7, 0.9], [0.9, 0.0, 0.2, 1.3]]
    glimpses = tf.image.extract_glimpse(x, [2, 3], tf.zeros([tf.shape(x)[0], 2]), noise="zero")
    return tf.image.crop_and_resize(x, boxes, [0, 0], [3, 2]), glimpses


@program([None, None, None, 3])
def strided_shortcuts(x):
    # `(h - 1) // 2 + 1` of the shortcuts and of the padded window is the `-(-h // 2)` of "SAME".
    y = tf.nn.conv2d(x, KERNEL, 2, "SAME") + tf.nn.conv2d(x, KERNEL[1:2, 1:2], 2, "VALID")
    z = tf.nn.conv2d(tf.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]])[..., :3], KERNEL, 3, "VALID")
    return z + y[:, ::3, ::3]


@program([None, None, None])
def bands(x):
    """Masks of a sliding window, whose width is that of a shorter text."""
    n, columns = tf.shape(x)[1], tf.shape(x)[2]
    half = tf.minimum(n // 2, columns)
    windows = [tf.linalg.band_part(x, tf.minimum(n - 1, 3), 0), tf.linalg.band_part(x, -1, half)]
    return *windows, tf.linalg.band_part(x, tf.minimum(columns - 4, n), -1)


@program([None, None])
def diagonals(x):
    single = [tf.linalg.diag(x, k=k, padding_value=2.0) for k in (1, -2)]
    # TensorFlow's gradient fails for a single column.
    wide = tf.concat([x, x], 1)
    rows = tf.stack([wide, 2 * wide, 3 * wide], 1)
    aligned = ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT")
    return *single, *(tf.linalg.diag(rows, k=(-1, 1), align=a) for a in aligned)


@program([None, None, None])
def parts_of_diagonals(x):
    # TensorFlow has no gradient for bands of open size.
    x = tf.stop_gradient(x)
    aligned = ("LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT")
    return tuple(
        tf.linalg.diag_part(x, k=k, padding_value=7.0, align=a)
        for k in ((-1, 1), (0, 2), (-3, -1))
        for a in aligned
    )


@program([None, None, None])
def diagonal_parts(x):
    square = tf.matmul(x, x, transpose_b=True)
    return tf.linalg.diag_part(x), *(tf.linalg.diag_part(square, k=k) for k in (-1, 0, 1))


@program([None, None])
def diagonals_set(x):
    square = tf.matmul(x, x, transpose_a=True)
    return [tf.linalg.set_diag(square, x[0, abs(k) :], k=k) for k in (-2, -1, 0, 1)]


@program([None, None])
def sizes_set_by_index(x):
    """As a sampler pads its prompt to the length of its cache."""
    n, m = tf.shape(x)[0], tf.shape(x)[1]
    padding = tf.tensor_scatter_nd_update(tf.zeros([2, 2], tf.int32), [[0, 1]], [2 * m])
    swapped = tf.scatter_nd([[1], [0]], [n, m], [2])
    grown = tf.tensor_scatter_nd_add(tf.shape(x, tf.int64), [[0]], [tf.cast(m, tf.int64)])
    return tf.pad(x, padding), tf.reshape(x, swapped), tf.zeros(grown)


def _gradient(x, function):
    return tf.gradients(tf.reduce_sum(function(x) ** 2), x)


@program([None, None])
def gradient_of_map(x):
    return _gradient(x, lambda x: tf.map_fn(lambda row: tf.reduce_max(row) * tf.sin(row), x))


@program([None, None])
def gradient_of_loop(x):
    """Each step keeps its shapes, which are open, for its gradient."""
    n = tf.shape(x)[0]

    def step(i, s):
        return i + 1, tf.sin(s) + 0.1 * x[i] * x

    return _gradient(x, lambda x: tf.while_loop(lambda i, _: i < n, step, (0, x))[1])


@program([None, 3])
def joined(x):
    parts = tf.TensorArray(tf.float32, 3, infer_shape=False)
    for i in range(3):
        parts = parts.write(i, x[i:] * (i + 1.0))
    rows = tf.TensorArray(tf.float32, tf.shape(x)[0])
    _, rows = tf.while_loop(
        lambda i, _: i < tf.shape(x)[0], lambda i, r: (i + 1, r.write(i, x[i])), (0, rows)
    )
    return parts.concat(), rows.concat()


@program([None], [None, 2])
def searches(x, y):
    """Places in sorted arrays of open length."""
    x, queries = tf.sort(x), tf.reshape(y, [-1])
    found = [tf.searchsorted(x, queries, side=side) for side in ("left", "right")]
    rows = tf.sort(y, axis=0)
    return *found, tf.searchsorted(tf.transpose(rows), tf.transpose(y), out_type=tf.int64)
