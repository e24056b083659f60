"""Simulated quantization, with the straight-through derivatives that TensorFlow gives it.

Kernels: tensorflow/core/kernels/fake_quant_ops_functor.h and quantize_and_dequantize_op.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._node import Node
from ._registry import Context, raises_tf
from ._static import array, broadcast_to, ints, static

Levels = tuple[int, int]


def _levels(node: Node) -> Levels:
    return (1 if node.attr("narrow_range", False) else 0), (1 << node.attr("num_bits", 8)) - 1


def _nudged(low: Any, high: Any, levels: Levels) -> tuple[Any, Any, Any]:
    """Step and bounds, moved so that zero is a level."""
    first, last = levels
    scale = (high - low) / (last - first)
    # Not by way of the step: a symmetric range has its zero halfway between two levels, and the
    # step is rounded.
    zero = first - low * (last - first) / (high - low)
    # Rounds half away from zero, and zero is positive.
    zero = jnp.clip(jnp.floor(zero + 0.5), first, last)
    return scale, (first - zero) * scale, (last - zero) * scale


def fake_quant(x: Any, low: Any, high: Any, levels: Levels) -> Any:
    """`x` at the nearest level. Inside the bounds the derivative is that of the identity."""

    def fake_quant(x: Any, low: Any, high: Any) -> Any:
        scale, first, last = _nudged(low, high, levels)
        steps = jnp.floor((jnp.clip(x, first, last) - first) * (1 / scale) + 0.5)
        y = steps * scale + first
        return jnp.where((low == 0) & (high == 0), 0, y)

    def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        x, low, high = primals
        dx, dlow, dhigh = tangents
        _, first, last = _nudged(low, high, levels)
        empty = (low == 0) & (high == 0)
        inside = empty | ((x >= first) & (x <= last))
        dy = jnp.where(inside, dx, jnp.where(x < first, dlow, jnp.where(x > last, dhigh, 0)))
        return rule(x, low, high), dy

    rule = jax.custom_jvp(fake_quant)
    rule.defjvp(jvp)
    return rule(x, low, high)


def _bounds(node: Node, values: list[Any], x: Any) -> tuple[Any, Any]:
    if "Args" in node.op:
        low, high = node.attr("min", -6.0), node.attr("max", 6.0)
        return jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    return array(values[0]), array(values[1])


@raises_tf(
    "FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"
)
def _fake_quant(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    return [fake_quant(x, *_bounds(node, values[1:], x), _levels(node))]


@raises_tf(
    "FakeQuantWithMinMaxArgsGradient",
    "FakeQuantWithMinMaxVarsGradient",
    "FakeQuantWithMinMaxVarsPerChannelGradient",
)
def _fake_quant_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    dy, x = array(values[0]), array(values[1])
    low, high = _bounds(node, values[2:], x)
    _, pull = jax.vjp(lambda x, low, high: fake_quant(x, low, high, _levels(node)), x, low, high)
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


@raises_tf("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
def _quantize_and_dequantize(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, low, high = (array(v) for v in values[:3])
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
