"""Functions that compute what one primitive does, faster on some platforms.

Optimized programs call them, and emission copies them into files that call them, so they use
nothing else of this package. Batch sizes may be open.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def depthwise_conv(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int, int], ...],
    dilation: tuple[int, ...],
) -> jax.Array:
    """Convolve each channel separately: a sum of shifted products, at least in float32.

    `x` is (batch, *sizes, channels), `kernel` is (*window, 1, channels * multiplier), `padding` is
    (before, after, between) for each size. The derivative by `kernel` goes row by row, since
    shifted copies of the whole of `x` would all be in memory at once.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    *window, _, count = kernel.shape
    reach = [(n - 1) * step for n, step in zip(window, dilation, strict=True)]

    def padded(x: jax.Array) -> jax.Array:
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
        if (multiplier := count // x.shape[-1]) > 1:
            x = lax.broadcast_in_dim(x, (*x.shape, multiplier), range(x.ndim))
            x = x.reshape(*x.shape[:-2], count)
        return x

    def weighted(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        products = []
        for place, weight in zip(np.ndindex(*window), weights, strict=True):
            first = [i * step for i, step in zip(place, dilation, strict=True)]
            end = [i + n - r for i, n, r in zip(first, x.shape[1:-1], reach, strict=True)]
            part = lax.slice(x, (0, *first, 0), (x.shape[0], *end, count), (1, *strides, 1))
            products.append(part.astype(wide) * weight)
        return functools.reduce(jnp.add, products).astype(x.dtype)

    def at_once(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return weighted(padded(x), list(kernel.reshape(-1, count).astype(wide)))

    def by_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x = padded(x)
        last = [n - r - 1 for n, r in zip(x.shape[1:-1], reach, strict=True)]
        rows, *sizes = [n // s + 1 for n, s in zip(last, strides, strict=True)]
        shape = (x.shape[0], 1, *sizes, count)
        weights = [jnp.broadcast_to(w, shape) for w in kernel.reshape(-1, count).astype(wide)]

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def row(_: None, start: jax.Array) -> tuple[None, jax.Array]:
            return None, weighted(lax.dynamic_slice_in_dim(x, start, reach[0] + 1, 1), weights)

        _, y = lax.scan(row, None, jnp.arange(rows, dtype=np.int32) * strides[0])
        return jnp.moveaxis(jnp.squeeze(y, 2), 0, 1)

    convolved = jax.custom_jvp(at_once)

    @convolved.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        (x, kernel), (dx, dk) = primals, tangents
        return convolved(x, kernel), at_once(dx, kernel) + by_rows(x, dk)

    return convolved(x, kernel)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def shifted_conv(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int, int], ...],
    dilation: tuple[int, ...],
) -> jax.Array:
    """Convolve each channel separately: a sum of shifted products, at least in float32.

    `x` is (batch, *sizes, channels), `kernel` is (*window, 1, channels), `padding` is
    (before, after, between) for each size. The derivatives are those of the convolution.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    *window, _, count = kernel.shape
    letters = "DHW"[3 - len(window) :]

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, strides, [p[:2] for p in padding], [p[2] + 1 for p in padding], dilation,
            (f"N{letters}C", f"{letters}IO", f"N{letters}C"), count,
        )  # fmt: skip

    @jax.custom_jvp
    def shifted(x: jax.Array, kernel: jax.Array) -> jax.Array:
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
        products = []
        for place, weight in zip(np.ndindex(*window), kernel.reshape(-1, count), strict=True):
            first = [i * step for i, step in zip(place, dilation, strict=True)]
            reach = [(n - 1) * step for n, step in zip(window, dilation, strict=True)]
            end = [i + n - r for i, n, r in zip(first, x.shape[1:-1], reach, strict=True)]
            part = lax.slice(x, (0, *first, 0), (x.shape[0], *end, count), (1, *strides, 1))
            products.append(part.astype(wide) * weight.astype(wide))
        return functools.reduce(jnp.add, products).astype(x.dtype)

    @shifted.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return shifted(*primals), jax.jvp(conv, primals, tangents)[1]

    return shifted(x, kernel)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def grouped_conv(
    x: jax.Array,
    kernel: jax.Array,
    groups: int,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> jax.Array:
    """Convolve each group of channels separately.

    `x` is (batch, *sizes, channels), `kernel` is (*window, channels / groups, results).
    """
    sizes = "DHW"[3 - len(strides) :]
    numbers = (f"N{sizes}C", f"{sizes}IO", f"N{sizes}C")
    results = []
    for part, weights in zip(jnp.split(x, groups, -1), jnp.split(kernel, groups, -1), strict=True):
        conv = functools.partial(lax.conv_general_dilated, part, weights, strides, padding)
        results.append(conv(rhs_dilation=dilation, dimension_numbers=numbers))
    return jnp.concatenate(results, axis=-1)


@functools.partial(jax.jit, static_argnums=2)
def strided_conv(x: jax.Array, kernel: jax.Array, strides: tuple[int, ...]) -> jax.Array:
    """Convolve with a window of one and strides; the derivative by `kernel` is a matrix product.

    `x` is (batch, *sizes, channels), `kernel` is (*ones, channels, results). For the kernel's
    gradient, XLA would transpose all of `x`, even the elements between the strides.
    """
    letters = "DHW"[3 - len(strides) :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=strides, padding="VALID", dimension_numbers=numbers
    )
    strided = jax.custom_jvp(conv)

    @strided.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        (x, kernel), (dx, dk) = primals, tangents
        y = strided(x, kernel)
        rows = lax.slice(x, [0] * x.ndim, x.shape, (1, *strides, 1)).reshape(-1, x.shape[-1])
        return y, conv(dx, kernel) + (rows @ dk.reshape(dk.shape[-2:])).reshape(y.shape)

    return strided(x, kernel)


@functools.partial(jax.jit, static_argnums=(2, 3))
def narrow_conv(
    x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> jax.Array:
    """Convolve to few results: products with the whole window, then sums of shifted slices.

    `x` is (batch, *sizes, channels), `kernel` is (*window, channels, results). With more than nine
    places in the window only the derivatives are computed so. At the edges, NaN and infinity reach
    the derivatives by all places of the kernel, times zero.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    *window, channels, results = kernel.shape
    letters = "DHW"[3 - len(window) :]

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, (1,) * len(window), padding, None, dilation,
            (f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        )  # fmt: skip

    def shifted(x: jax.Array, kernel: jax.Array) -> jax.Array:
        rows = x.reshape(math.prod(x.shape[:-1]), channels)
        columns = jnp.moveaxis(kernel, -2, 0).reshape(channels, math.prod(window) * results)
        y = lax.dot(rows, columns, preferred_element_type=wide)
        y = y.reshape(*x.shape[:-1], *window, results)
        ends = [(0, 0), *padding, *[(0, 0)] * (len(window) + 1)]
        y = lax.pad(y, jnp.zeros((), wide), [(a, b, 0) for a, b in ends])
        for axis in reversed(range(1, len(window) + 1)):
            parts, place, step = [], y.ndim - 2, dilation[axis - 1]
            for i in range(window[axis - 1]):
                start, end = [0] * y.ndim, list(y.shape)
                start[place], end[place] = i, i + 1
                start[axis], end[axis] = i * step, y.shape[axis] - (window[axis - 1] - 1 - i) * step
                parts.append(lax.squeeze(lax.slice(y, start, end), [place]))
            y = functools.reduce(jnp.add, parts)
        return y.astype(x.dtype)

    convolved = jax.custom_jvp(shifted if math.prod(window) <= 9 else conv)

    @convolved.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return convolved(*primals), jax.jvp(shifted, primals, tangents)[1]

    return convolved(x, kernel)


@functools.partial(jax.jit, static_argnums=(2, 3))
def paired_conv(
    x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> jax.Array:
    """Convolve to few results: two of them, next to each other in the last axis, at once.

    `x` is (batch, *sizes, channels), `kernel` is (*window, channels, results); the last size is
    even in `x` and in the result, and not dilated. XLA's products are as fast with twice the
    columns. With more than 16 channels only the derivative by `kernel` is computed so. A result
    also meets the column of `x` next to its window, times zero: NaN and infinity reach it.
    """
    rank, channels = x.ndim - 2, x.shape[-1]
    letters = "DHW"[3 - rank :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    conv = functools.partial(
        lax.conv_general_dilated, rhs_dilation=dilation, dimension_numbers=numbers
    )

    def pairs(x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...]) -> jax.Array:
        ends = [((0, 0),) * (rank - 1) + (end, (0, 0), (0, 0)) for end in ((0, 1), (1, 0))]
        both = jnp.concatenate([jnp.pad(kernel, end) for end in ends], -1)
        y = conv(x, both, (1,) * (rank - 1) + (2,), padding)
        return y.reshape(*y.shape[:-2], 2 * y.shape[-2], kernel.shape[-1])

    def transposed(y: jax.Array, kernel: jax.Array) -> jax.Array:
        """The gradient by the input, which is a convolution, too."""
        kernel = jnp.swapaxes(lax.rev(kernel, range(rank)), -1, -2)
        reach = [(n - 1) * d for n, d in zip(kernel.shape[:rank], dilation, strict=True)]
        ends = tuple((r - a, r - b) for r, (a, b) in zip(reach, padding, strict=True))
        return pairs(y, kernel, ends)

    @jax.custom_jvp
    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        if channels <= 16:
            return pairs(x, kernel, padding)
        return conv(x, kernel, (1,) * rank, padding)

    @convolved.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        (x, kernel), (dx, dk) = primals, tangents
        y = convolved(x, kernel)
        if channels <= 16:
            (dy,) = jax.linear_transpose(lambda y: transposed(y, kernel), y)(dx)
        else:
            dy = convolved(dx, kernel)
        return y, dy + pairs(x, dk, padding)

    return convolved(x, kernel)


@functools.partial(jax.jit, static_argnums=2)
def winograd_conv(
    x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...]
) -> jax.Array:
    """Convolve with three places along each axis by Winograd's F(2, 3).

    `x` is (batch, *sizes, channels), `kernel` is (3, ..., 3, channels, results). Along each axis,
    tiles of two results take four products of matrices instead of six. Where a convolution gives
    infinity, the result may be NaN. The tiles of two axes take four times the memory of `x`, so
    large images are computed one by one. With few channels the derivative by `kernel` is that of
    the convolution.
    """
    axes = range(1, kernel.ndim - 1)
    letters = "DHW"[3 - len(axes) :]
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(1,) * len(axes), padding=padding,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
    )  # fmt: skip

    def products(x: jax.Array, kernel: jax.Array, swapped: bool) -> list[jax.Array]:
        tiles, weights = [x], [kernel]
        for axis in axes:
            end, parts = x.shape[axis] - 3, []
            for t in tiles:
                a, b, c, d = (lax.slice_in_dim(t, i, i + end, 2, axis) for i in range(4))
                parts += [a - c, b + c, c - b, b - d]
            tiles, parts = parts, []
            for a, b, c in weights:
                if swapped:
                    a, c = c, a
                even, odd = (a + c) * 0.5, b * 0.5
                parts += [a, even + odd, even - odd, c]
            weights = parts
        numbers = (((1,), (1 if swapped else 0,)), ((), ()))
        shape, parts = tiles[0].shape[:-1], []
        for t, w in zip(tiles, weights, strict=True):
            y = lax.dot_general(t.reshape(math.prod(shape), t.shape[-1]), w, numbers)
            parts.append(y.reshape(*shape, y.shape[-1]))
        return parts

    def summed(parts: list[jax.Array]) -> list[jax.Array]:
        """The results at the places of a tile, the last axis first."""
        if len(parts) == 1:
            return parts
        a, b, c, d = (summed(parts[i::4]) for i in range(4))
        first = [p + q + r for p, q, r in zip(a, b, c, strict=True)]
        return first + [q - r - s for q, r, s in zip(b, c, d, strict=True)]

    def tiled(
        x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...], swapped: bool
    ) -> jax.Array:
        sizes = [n + a + b - 2 for n, (a, b) in zip(x.shape[1:-1], padding, strict=True)]
        ends = [(a, b + n % 2) for n, (a, b) in zip(sizes, padding, strict=True)]
        parts = summed(products(jnp.pad(x, [(0, 0), *ends, (0, 0)]), kernel, swapped))
        *shape, results = parts[0].shape
        for axis in reversed(axes):
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [jnp.stack(pair, axis + 1) for pair in pairs]
        y = parts[0].reshape(shape[0], *(2 * n for n in shape[1:]), results)
        return lax.slice(y, [0] * y.ndim, (shape[0], *sizes, results))

    def convolved(
        x: jax.Array, kernel: jax.Array, padding: tuple[tuple[int, int], ...], swapped: bool
    ) -> jax.Array:
        """The convolution, also with both ends of the kernel and its last two axes swapped."""
        if math.prod(x.shape[1:-1]) < 1024:
            return tiled(x, kernel, padding, swapped)
        return lax.map(lambda image: tiled(image[None], kernel, padding, swapped)[0], x)

    def transposed(y: jax.Array, kernel: jax.Array) -> jax.Array:
        """The gradient by the input, which is a convolution, too."""
        return convolved(y, kernel, tuple((2 - a, 2 - b) for a, b in padding), True)

    @jax.custom_jvp
    def run(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return convolved(x, kernel, padding, False)

    @run.defjvp
    def derivative(
        primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        (x, kernel), (dx, dk) = primals, tangents
        y = run(x, kernel)
        (dy,) = jax.linear_transpose(lambda y: transposed(y, kernel), y)(dx)
        if math.prod(kernel.shape[-2:]) < 1 << 14:
            return y, dy + conv(x, dk)
        # The tiles are recomputed, so that the forward pass need not keep them.
        return y, dy + jax.checkpoint(lambda x, dk: convolved(x, dk, padding, False))(x, dk)

    return run(x, kernel)


@functools.partial(jax.jit, static_argnums=(2, 3))
def transposed_conv(
    x: jax.Array,
    kernel: jax.Array,
    steps: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> jax.Array:
    """Convolve `x` dilated by `steps`, without writing the zeros.

    Results `steps` apart use the same part of the kernel: each part is a separate convolution,
    and the results are interleaved. `x` is (batch, *sizes, channels),
    `kernel` is (*window, channels, results).
    """
    rank = len(steps)
    letters = "DHW"[3 - rank :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    window, sizes = kernel.shape[:rank], x.shape[1:-1]
    out = [
        (n - 1) * s + 1 + low + high - k + 1
        for n, s, k, (low, high) in zip(sizes, steps, window, padding, strict=True)
    ]
    rows = [-(-n // s) for n, s in zip(out, steps, strict=True)]
    if window == steps and all(p == (s - 1, s - 1) for p, s in zip(padding, steps, strict=True)):
        # Each result comes from one position of x.
        y = jnp.tensordot(x, lax.rev(kernel, range(rank)), (rank + 1, rank))
    else:
        parts = []
        for place in np.ndindex(*steps):
            # Every `step`-th element of the window from `first`; it starts at `start` in x.
            first = [(p[0] - r) % s for p, r, s in zip(padding, place, steps, strict=True)]
            start = [
                (r + f - p[0]) // s for p, r, f, s in zip(padding, place, first, steps, strict=True)
            ]
            part = kernel[tuple(slice(f, None, s) for f, s in zip(first, steps, strict=True))]
            if 0 in part.shape:
                parts.append(jnp.zeros((x.shape[0], *rows, kernel.shape[-1]), x.dtype))
                continue
            ends = [
                (-b, q - 1 + b + k - n, 0)
                for b, q, k, n in zip(start, rows, part.shape, sizes, strict=False)
            ]
            # Padded separately: XLA's CPU convolution reads beyond x if padding is negative.
            whole = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
            conv = functools.partial(lax.conv_general_dilated, whole, part, (1,) * rank, "VALID")
            parts.append(conv(dimension_numbers=numbers))
        y = jnp.stack(parts, -2).reshape(x.shape[0], *rows, *steps, kernel.shape[-1])
    pairs = [i for d in range(1, rank + 1) for i in (d, d + rank)]
    y = lax.transpose(y, (0, *pairs, 2 * rank + 1))
    y = y.reshape(x.shape[0], *(q * s for q, s in zip(rows, steps, strict=True)), -1)
    return y[(slice(None), *(slice(n) for n in out))]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def max_pool(
    x: jax.Array,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> jax.Array:
    """Maximum of each window, one axis at a time.

    NaN counts as the largest; among equal elements the first gets the derivative.
    """
    x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), [(a, b, 0) for a, b in padding])
    for axis in reversed(range(x.ndim)):
        size, stride, n = window[axis], strides[axis], x.shape[axis]
        if size * stride != 1:
            ends = range(n - size + 1, n + 1)
            parts = [lax.slice_in_dim(x, i, end, stride, axis) for i, end in enumerate(ends)]
            x = functools.reduce(lambda a, b: jnp.where((a >= b) | jnp.isnan(a), a, b), parts)
    return x


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def sum_pool(
    x: jax.Array,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> jax.Array:
    """Sum of each window, one axis at a time, at least in float32."""
    dtype = x.dtype
    x = lax.pad(x, jnp.zeros((), dtype), [(a, b, 0) for a, b in padding])
    x = x.astype(jnp.promote_types(dtype, jnp.float32))
    for axis in reversed(range(x.ndim)):
        size, stride, n = window[axis], strides[axis], x.shape[axis]
        if size * stride != 1:
            ends = range(n - size + 1, n + 1)
            parts = [lax.slice_in_dim(x, i, end, stride, axis) for i, end in enumerate(ends)]
            x = functools.reduce(jnp.add, parts)
    return x.astype(dtype)


@functools.partial(jax.jit, static_argnums=2)
def flat_product(x: jax.Array, y: jax.Array, axes: int) -> jax.Array:
    """The product over the last `axes` of `x` and the first of `y`, as one of two matrices.

    XLA computes its gradients without transposing `x` or the cotangent.
    """
    rows, terms, columns = x.shape[:-axes], math.prod(y.shape[:axes]), y.shape[axes:]
    product = x.reshape(math.prod(rows), terms) @ y.reshape(terms, math.prod(columns))
    return product.reshape(*rows, *columns)


@functools.partial(jax.jit, static_argnums=(1, 2))
def two_pass_argmax(x: jax.Array, axis: int, dtype: np.dtype) -> jax.Array:
    """The position of the first largest number along an axis; NaN counts as the largest.

    Two passes, for the number and then for its place, are both vectorized.
    """
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    largest = (x == jnp.max(x, axis, keepdims=True)) | jnp.isnan(x)
    return jnp.min(jnp.where(largest, places, x.shape[axis] - 1), axis).astype(dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def two_pass_argmin(x: jax.Array, axis: int, dtype: np.dtype) -> jax.Array:
    """As `two_pass_argmax` for the smallest number, which NaN counts as."""
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    smallest = (x == jnp.min(x, axis, keepdims=True)) | jnp.isnan(x)
    return jnp.min(jnp.where(smallest, places, x.shape[axis] - 1), axis).astype(dtype)


# By their names in a program. `kinds.computes` has the primitives that they stand for.
FUNCTIONS: Mapping[str, Callable[..., jax.Array]] = MappingProxyType(
    {
        "depthwise_conv": depthwise_conv,
        "shifted_conv": shifted_conv,
        "grouped_conv": grouped_conv,
        "strided_conv": strided_conv,
        "narrow_conv": narrow_conv,
        "paired_conv": paired_conv,
        "winograd_conv": winograd_conv,
        "transposed_conv": transposed_conv,
        "max_pool": max_pool,
        "sum_pool": sum_pool,
        "flat_product": flat_product,
        "two_pass_argmax": two_pass_argmax,
        "two_pass_argmin": two_pass_argmin,
    }
)
