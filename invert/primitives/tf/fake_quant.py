"""Simulated quantization, with TensorFlow's straight-through derivatives.

Kernels: tensorflow/core/kernels/fake_quant_ops_functor.h and quantize_and_dequantize_op.h.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.registry import Array, Int, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.values.constants import broadcast_to

Levels = tuple[int, int]


def _quotient(x: Array, y: Array) -> Array:
    """`x / y`, rounded once: XLA multiplies by the inverse of a constant."""
    return lax.convert_element_type(x.astype(np.float64) / y, np.float32)


def _nudged(low: Array, high: Array, levels: Levels) -> tuple[Array, Array, Array, Array]:
    """The step, its inverse, and the bounds, moved so that zero is a level.

    The zero of a symmetric range is halfway between two levels, so every rounding matters.
    """
    first, last = (np.float32(level) for level in levels)
    scale, inverse = _quotient(high - low, last - first), _quotient(last - first, high - low)
    # Rounds half away from zero, and zero is positive.
    zero = jnp.floor(first - _quotient(low, scale) + np.float32(0.5))
    zero = jnp.clip(zero, first, last)
    return scale, inverse, (first - zero) * scale, (last - zero) * scale


def fake_quant(
    x: Array, low: Array, high: Array, levels: Levels, *, divides: bool = False
) -> Array:
    """`x` at the nearest level, with the identity's derivative inside the bounds.

    **Arguments:**

    - `divides`: whether to divide by the step instead of multiplying by its inverse.
    """

    def fake_quant(x: Array, low: Array, high: Array, nudged: tuple[Array, ...]) -> Array:
        scale, inverse, first, last = nudged
        # XLA would multiply by the inverse of a constant step.
        factor = lax.optimization_barrier(scale) if divides else inverse
        by = lax.div if divides else lax.mul
        most = np.float32(levels[1] - levels[0])

        def level(y: Array) -> Array:
            return by(y, broadcast_to(jnp.asarray(factor), y.shape))

        zero = jnp.floor(level(jnp.asarray(-first)) + np.float32(0.5))
        # The number of levels; without this bound XLA would subtract before rounding.
        place = lax.clamp(np.float32(0), level(jnp.clip(x, first, last) - first), most)
        steps = jnp.floor(place - zero + np.float32(0.5))
        return jnp.where((low == 0) & (high == 0), 0, steps * scale)

    def tangent(y: Array, primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Array:
        x, low, high, (_, _, first, last) = primals
        dx, dlow, dhigh, _ = tangents
        empty = (low == 0) & (high == 0)
        inside = empty | ((x >= first) & (x <= last))
        return jnp.where(inside, dx, jnp.where(x < first, dlow, jnp.where(x > last, dhigh, 0)))

    return with_tangent(tangent)(fake_quant)(x, low, high, _nudged(low, high, levels))


# The kernel for a single range given as operand divides, the other two do not.
_DIVIDING = ("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsGradient")


@rule("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxArgsGradient")
def _fake_quant_args(
    *operands: Array, op: str, num_bits: int, narrow_range: bool, min: float, max: float
) -> Array:
    bounds = (np.asarray(v, operands[-1].dtype) for v in (min, max))
    results = _fake_quant(*operands, *bounds, op=op, num_bits=num_bits, narrow_range=narrow_range)
    return results[0] if op.endswith("Gradient") else results


@rule(
    "FakeQuantWithMinMaxVars",
    "FakeQuantWithMinMaxVarsGradient",
    "FakeQuantWithMinMaxVarsPerChannel",
    "FakeQuantWithMinMaxVarsPerChannelGradient",
)
def _fake_quant(*operands: Array, op: str, num_bits: int, narrow_range: bool) -> Array:
    """Take the array and its bounds; a gradient op takes the cotangent before them."""
    levels = int(narrow_range), (1 << num_bits) - 1
    quantize = partial(fake_quant, levels=levels, divides=op in _DIVIDING)
    if not op.endswith("Gradient"):
        return quantize(*operands)
    dy, *primals = operands
    return jax.vjp(quantize, *primals)[1](dy)


# The derivative of the identity in x alone.
_straight_through = with_tangent(lambda y, primals, tangents: tangents[0])


def _clipped_tangent(y: Array, primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Array:
    """The derivative of the identity in x between the bounds."""
    x, low, high = primals
    return jnp.where((x < low) | (x > high), 0, tangents[0])


def _along(v: Array, x: Array, axis: int) -> Array:
    """A bound per slice along `axis`, or for all, in x's shape."""
    return broadcast_to(v, x.shape) if axis == -1 else lax.broadcast_in_dim(v, x.shape, (axis,))


@rule(
    "QuantizeAndDequantize",
    "QuantizeAndDequantizeV2",
    "QuantizeAndDequantizeV3",
    "QuantizeAndDequantizeV4",
)
def _quantize_and_dequantize(
    x: Array,
    low: Array = None,
    high: Array = None,
    bits: Int = None,
    *,
    op: str,
    signed_input: bool,
    range_given: bool,
    num_bits: Int = None,  # V3 takes it as an operand
    narrow_range: bool = False,
    axis: int = -1,
    round_mode: str = "HALF_TO_EVEN",
    input_min: float = 0.0,
    input_max: float = 0.0,
) -> Array:
    if 0 in x.shape:
        return x
    if low is None:
        low, high = np.float32(input_min), np.float32(input_max)
    num_bits = bits if num_bits is None else num_bits
    low, high = low.astype(x.dtype), high.astype(x.dtype)
    last = (1 << (num_bits - 1)) - 1 if signed_input else (1 << num_bits) - 1
    first = (-last if narrow_range else -last - 1) if signed_input else 0

    def quantize_and_dequantize(x: Array, low: Array, high: Array) -> Array:
        if not range_given:
            axes = tuple(i for i in range(x.ndim) if axis == -1 or i != axis)
            low, high = jnp.min(x, axes), jnp.max(x, axes)
        # The larger step of the two sides, ignoring a side that imposes no bound.
        most = jnp.finfo(x.dtype).max
        from_low = jnp.where(first * low > 0, first / low, most)
        from_high = jnp.where(last * high > 0, last / high, most)
        by_low = from_low < from_high
        scale = jnp.where(by_low, from_low, from_high)
        step = jnp.where(by_low, low / first if first else most, high / last)
        low, high = jnp.where(by_low, low, first * step), jnp.where(by_low, last * step, high)
        scaled = jnp.clip(x, _along(low, x, axis), _along(high, x, axis)) if range_given else x
        scaled = scaled * _along(scale, x, axis)
        level = jnp.floor(scaled + 0.5) if round_mode == "HALF_UP" else jnp.round(scaled)
        return level * _along(step, x, axis)

    if not op.endswith("V4"):
        return _straight_through(quantize_and_dequantize)(x, low, high)
    if range_given:
        low, high = _along(low, x, axis), _along(high, x, axis)
    return with_tangent(_clipped_tangent)(quantize_and_dequantize)(x, low, high)


@rule("QuantizeAndDequantizeV4Grad")
def _quantize_grad(
    dy: Array, x: Array, low: Array, high: Array, *, axis: int
) -> tuple[Array, Array, Array]:
    outside = (x < _along(low, x, axis)) | (x > _along(high, x, axis))
    # TensorFlow has no derivative in the bounds.
    dx = jnp.where(outside, np.zeros((), dy.dtype), dy)
    return dx, lax.full_like(low, 0), lax.full_like(high, 0)
