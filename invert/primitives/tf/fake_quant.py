"""Simulated quantization, with the straight-through derivatives that TensorFlow gives it.

Kernels: tensorflow/core/kernels/fake_quant_ops_functor.h and quantize_and_dequantize_op.h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, broadcast_to, ints, static

Levels = tuple[int, int]


def _levels(node: Node) -> Levels:
    return (1 if node.attr("narrow_range", False) else 0), (1 << node.attr("num_bits", 8)) - 1


def _quotient(x: Any, y: Any) -> Any:
    """`x / y`, rounded once: XLA divides by a constant by way of its inverse."""
    return lax.convert_element_type(x.astype(np.float64) / y, np.float32)


def _nudged(low: Any, high: Any, levels: Levels) -> tuple[Any, Any, Any, Any]:
    """Step, its inverse, and the bounds, moved so that zero is a level.

    The zero of a symmetric range lies halfway between two levels, so that each rounding counts.
    """
    first, last = (np.float32(level) for level in levels)
    scale, inverse = _quotient(high - low, last - first), _quotient(last - first, high - low)
    # Rounds half away from zero, and zero is positive.
    zero = jnp.floor(first - _quotient(low, scale) + np.float32(0.5))
    zero = jnp.clip(zero, first, last)
    return scale, inverse, (first - zero) * scale, (last - zero) * scale


def fake_quant(x: Any, low: Any, high: Any, levels: Levels, *, divides: bool = False) -> Any:
    """`x` at the nearest level. Inside the bounds the derivative is that of the identity.

    **Arguments:**

    - `divides`: whether levels are found by a division by the step, or by a product.
    """

    def fake_quant(x: Any, low: Any, high: Any, nudged: tuple[Any, ...]) -> Any:
        scale, inverse, first, last = nudged
        # XLA would divide by a step that it knows by way of its inverse.
        factor = lax.optimization_barrier(scale) if divides else inverse
        by = lax.div if divides else lax.mul
        most = np.float32(levels[1] - levels[0])

        def level(y: Any) -> Any:
            return by(y, broadcast_to(jnp.asarray(factor), y.shape))

        zero = jnp.floor(level(jnp.asarray(-first)) + np.float32(0.5))
        # There are no more levels; without this bound XLA would subtract before it rounds.
        place = lax.clamp(np.float32(0), level(jnp.clip(x, first, last) - first), most)
        steps = jnp.floor(place - zero + np.float32(0.5))
        return jnp.where((low == 0) & (high == 0), 0, steps * scale)

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        x, low, high, (_, _, first, last) = primals
        dx, dlow, dhigh, _ = tangents
        empty = (low == 0) & (high == 0)
        inside = empty | ((x >= first) & (x <= last))
        dy = jnp.where(inside, dx, jnp.where(x < first, dlow, jnp.where(x > last, dhigh, 0)))
        return rule(*primals), dy

    rule = jax.custom_jvp(fake_quant)
    rule.defjvp(jvp)
    return rule(x, low, high, _nudged(low, high, levels))


def _fake_quant_of(node: Node, x: Any, values: list[Any]) -> tuple[Callable[..., Any], Any, Any]:
    """The function of `x` and a range that a node computes, and its range."""
    if "Args" in node.op:
        bounds = [np.asarray(node.attr(*a), x.dtype) for a in (("min", -6.0), ("max", 6.0))]
    else:
        bounds = [array(v) for v in values]
    # The kernel for one range that is an input divides, the other two do not.
    divides = "Vars" in node.op and "PerChannel" not in node.op
    return partial(fake_quant, levels=_levels(node), divides=divides), bounds[0], bounds[1]


@raises_tf(
    "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"
)
def _fake_quant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    quantize, low, high = _fake_quant_of(node, x, values[1:])
    return [quantize(x, low, high)]


@raises_tf(
    "FakeQuantWithMinMaxArgsGradient",
    "FakeQuantWithMinMaxVarsGradient",
    "FakeQuantWithMinMaxVarsPerChannelGradient",
)
def _fake_quant_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dy, x = array(values[0]), array(values[1])
    quantize, low, high = _fake_quant_of(node, x, values[2:])
    _, pull = jax.vjp(quantize, x, low, high)
    found = pull(dy)
    return list(found[:1] if "Args" in node.op else found)


def _straight_through(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn(x, low, high)` with the derivative of the identity in x alone."""
    rule = jax.custom_jvp(fn)

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return rule(*primals), tangents[0]

    rule.defjvp(jvp)
    return rule


def _clipped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn(x, low, high)` with the derivative of the identity in x between low and high."""
    rule = jax.custom_jvp(fn)

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        x, low, high = primals
        return rule(*primals), jnp.where((x < low) | (x > high), 0, tangents[0])

    rule.defjvp(jvp)
    return rule


@raises_tf(
    "QuantizeAndDequantize",
    "QuantizeAndDequantizeV2",
    "QuantizeAndDequantizeV3",
    "QuantizeAndDequantizeV4",
)
def _quantize_and_dequantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if node.op == "QuantizeAndDequantize":
        values = [*values, *(np.float32(node.attr(f"input_{end}", 0.0)) for end in ("min", "max"))]
    x, low, high = (array(v) for v in values[:3])
    low, high = low.astype(x.dtype), high.astype(x.dtype)
    third = node.op.endswith("V3")
    bits = ints(static(node, values, 3))[0] if third else node.attr("num_bits", 8)
    signed = node.attr("signed_input", True)
    last = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    first = (-last if node.attr("narrow_range", False) else -last - 1) if signed else 0
    given, axis = node.attr("range_given", third), node.attr("axis", -1)
    half_up = node.attr("round_mode", "HALF_TO_EVEN") == "HALF_UP"

    def along(v: Any, x: Any) -> Any:
        return broadcast_to(v, x.shape) if axis == -1 else lax.broadcast_in_dim(v, x.shape, (axis,))

    def quantize_and_dequantize(x: Any, low: Any, high: Any) -> Any:
        if not given:
            axes = tuple(i for i in range(x.ndim) if axis in (-1,) or i != axis)
            low, high = jnp.min(x, axes), jnp.max(x, axes)
        # The larger step of the two sides; a side that cannot bound it is left out.
        most = jnp.finfo(x.dtype).max
        from_low = jnp.where(first * low > 0, first / low, most)
        from_high = jnp.where(last * high > 0, last / high, most)
        by_low = from_low < from_high
        scale = jnp.where(by_low, from_low, from_high)
        step = jnp.where(by_low, low / first if first else most, high / last)
        low, high = jnp.where(by_low, low, first * step), jnp.where(by_low, last * step, high)
        scaled = jnp.clip(x, along(low, x), along(high, x)) if given else x
        scaled = scaled * along(scale, x)
        level = jnp.floor(scaled + 0.5) if half_up else jnp.round(scaled)
        return level * along(step, x)

    derived = (_clipped if node.op.endswith("V4") else _straight_through)(quantize_and_dequantize)
    if node.op.endswith("V4"):
        return [derived(x, along(low, x), along(high, x)) if given else derived(x, low, high)]
    return [derived(x, low, high)]


@raises_tf("QuantizeAndDequantizeV4Grad")
def _quantize_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dy, x, low, high = (array(v) for v in values)
    axis = node.attr("axis", -1)
    lower, upper = (
        broadcast_to(v, x.shape) if axis == -1 else lax.broadcast_in_dim(v, x.shape, (axis,))
        for v in (low, high)
    )
    outside = (x < lower) | (x > upper)
    # TensorFlow gives no derivative in the bounds.
    return [
        jnp.where(outside, np.zeros((), dy.dtype), dy),
        lax.full_like(low, 0),
        lax.full_like(high, 0),
    ]
