"""Random numbers as XLA draws them, for functions that TensorFlow compiles with XLA.

ThreeFry has no other implementation. The words of Philox equal those of TensorFlow's own kernels,
but are converted to numbers differently. Layout of the counters and conversions to floats as in
xla/hlo/builder/lib/prng.cc and tensorflow/compiler/tf2xla/kernels/stateless_random_ops_v2.cc
(TensorFlow 2.21).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from invert._private.jax import threefry2x32_p
from invert.ir.sizes import Shape
from invert.tf.numerics.philox import Stream, halves, join

_U16, _U32, _U64 = np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)
_F32, _BF16 = np.dtype(np.float32), np.dtype(jnp.bfloat16)

# Returns unsigned integers of a shape and type over their whole range.
Bits = Callable[[Stream, Shape, np.dtype], Array]


def _blocks(stream: Stream, shape: Shape) -> tuple[Array, Array]:
    """Two words for each counter; counters enumerate `shape`."""
    counters = lax.iota(_U64, math.prod(shape)).reshape(shape) + stream.low
    low, high = halves(stream.key)
    words = (jnp.broadcast_to(k, shape) for k in (low, high))
    first, second = threefry2x32_p.bind(*words, *halves(counters))
    return first, second


def _split(shape: Shape) -> int:
    """The axis of paired words: the first of even size, else the largest."""
    even = [i for i, n in enumerate(shape) if n % 2 == 0]
    return even[0] if even else max(range(len(shape)), key=lambda i: shape[i])


def _paired(shape: Shape) -> Shape:
    """`shape` with the split axis halved, rounded up, then an axis for the pair."""
    axis = _split(shape)
    return (*shape[:axis], (shape[axis] + 1) // 2, 2, *shape[axis + 1 :])


def _unpaired(pairs: Array, shape: Shape) -> Array:
    axis = _split(shape)
    merged = pairs.reshape(*shape[:axis], 2 * pairs.shape[axis], *shape[axis + 1 :])
    return lax.slice_in_dim(merged, 0, shape[axis], axis=axis)


def threefry_bits(stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """As `philox.integers`: those of 16 bits are the low halves of words."""
    if dtype == _U64:
        return join(*_blocks(stream, shape))
    if not shape:
        return _blocks(stream, (1,))[0].reshape(()).astype(dtype)
    axis = _split(shape)
    paired = _paired(shape)
    pair = jnp.stack(_blocks(stream, (*paired[: axis + 1], *paired[axis + 2 :])), axis + 1)
    return _unpaired(pair, shape).astype(dtype)


def integers(bits: Bits, stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    unsigned = _U64 if np.dtype(dtype).itemsize == 8 else _U32
    return bits(stream, shape, unsigned).astype(dtype)


def _to_bfloat16(x: Array) -> Array:
    """The upper half of `float32`: XLA's kernels cut off rather than round."""
    kept = lax.bitcast_convert_type(x, _U32) & np.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(kept, _F32).astype(_BF16)


def uniform(bits: Bits, stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Floats in [0, 1)."""
    if dtype == _BF16:
        return _to_bfloat16(uniform(bits, stream, shape, _F32))
    if dtype == np.float16:
        mantissa = bits(stream, shape, _U16) & np.uint16(0x3FF)
        one = np.float16(1)
        return lax.bitcast_convert_type(mantissa | one.view(np.uint16), np.float16) - one
    unsigned, digits = (_U64, 52) if dtype == np.float64 else (_U32, 23)
    drawn = bits(stream, shape, unsigned)
    top = lax.shift_right_logical(drawn, jnp.full_like(drawn, 8 * unsigned.itemsize - digits))
    return top.astype(dtype) * np.asarray(2.0**-digits, dtype)


def normal(bits: Bits, stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal numbers, by the Box-Muller method."""
    if dtype == _BF16:
        return _to_bfloat16(normal(bits, stream, shape, _F32))
    if not shape:
        return normal(bits, stream, (2,), dtype)[0]
    axis = _split(shape) + 1
    drawn = uniform(bits, stream, _paired(shape), dtype)
    radius, angle = (lax.index_in_dim(drawn, i, axis, keepdims=False) for i in (0, 1))
    radius = lax.max(radius, jnp.full_like(radius, 1e-7))
    angle = angle * np.asarray(2 * math.pi, dtype)
    length = lax.sqrt(lax.log(radius) * np.asarray(-2, dtype))
    pairs = jnp.stack([lax.sin(angle) * length, lax.cos(angle) * length], axis)
    return _unpaired(pairs, shape)


def truncated_normal(bits: Bits, stream: Stream, shape: Shape, dtype: np.dtype) -> Array:
    """Standard normal numbers within two standard deviations, by inversion
    (tensorflow/compiler/tf2xla/lib/random.cc)."""
    if dtype == _BF16:
        return _to_bfloat16(truncated_normal(bits, stream, shape, _F32))
    u = uniform(bits, stream, shape, dtype) + jnp.finfo(dtype).tiny
    root = np.sqrt(np.asarray(2, dtype))
    bound = np.asarray(2, dtype)
    below, above = ((1 + lax.erf(x / root)) / 2 for x in (-bound, bound))
    eps = jnp.finfo(dtype).eps
    place = lax.clamp(eps - 1, 2 * (below + (above - below) * u) - 1, 1 - eps)
    return lax.clamp(-bound, lax.erf_inv(place) * root, bound)
