"""Ops that move blocks of space between axes, and patches."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from invert._errors import Problem, UnsupportedOpError
from invert.primitives.tf.gather import take
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, static


def _pairs(flat: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@raises_tf("SpaceToBatch", "SpaceToBatchND")
def _space_to_batch(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    blocks, padding = _blocks(node, values)
    n = len(blocks)
    x = jnp.pad(x, [(0, 0), *padding, *[(0, 0)] * (x.ndim - n - 1)])
    batch, space, rest = x.shape[0], x.shape[1 : n + 1], x.shape[n + 1 :]
    split = [(size // b, b) for size, b in zip(space, blocks, strict=True)]
    x = lax.reshape(x, (batch, *(d for pair in split for d in pair), *rest))
    order = (*range(2, 2 * n + 1, 2), 0, *range(1, 2 * n, 2), *range(2 * n + 1, x.ndim))
    x = lax.transpose(x, order)
    return [lax.reshape(x, (batch * int(np.prod(blocks)), *(q for q, _ in split), *rest))]


@raises_tf("BatchToSpace", "BatchToSpaceND")
def _batch_to_space(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    blocks, crops = _blocks(node, values)
    n = len(blocks)
    batch, space, rest = x.shape[0] // int(np.prod(blocks)), x.shape[1 : n + 1], x.shape[n + 1 :]
    x = lax.reshape(x, (*blocks, batch, *space, *rest))
    order = [n]
    for i in range(n):
        order += [n + 1 + i, i]
    x = lax.transpose(x, (*order, *range(2 * n + 1, x.ndim)))
    x = lax.reshape(x, (batch, *(s * b for s, b in zip(space, blocks, strict=True)), *rest))
    starts = [0, *(low for low, _ in crops), *[0] * len(rest)]
    ends = [0, *(high for _, high in crops), *[0] * len(rest)]
    return [lax.slice(x, starts, [d - e for d, e in zip(x.shape, ends, strict=True)])]


def _blocks(node: Node, values: list[Any]) -> tuple[tuple[int, ...], list[tuple[Any, Any]]]:
    if node.op.endswith("ND"):
        return ints(static(node, values, 1)), _pairs(ints(static(node, values, 2)))
    size = node.attr("block_size")
    return (size, size), _pairs(ints(static(node, values, 1)))


@raises_tf("SpaceToDepth", "DepthToSpace")
def _depth(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, b = array(values[0]), node.attr("block_size")
    layout = node.attr("data_format", "NHWC")
    if layout not in ("NHWC", "NCHW"):
        reason = f"has the data format {layout}, which exists for packed integers on GPUs only"
        raise UnsupportedOpError([Problem(f"tf.{node.op}", reason, node.location)])
    if layout == "NCHW":
        x = lax.transpose(x, (0, 2, 3, 1))
    n, h, w, c = x.shape
    if node.op == "SpaceToDepth":
        x = lax.reshape(x, (n, h // b, b, w // b, b, c))
        x = lax.reshape(lax.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h // b, w // b, b * b * c))
    else:
        x = lax.reshape(x, (n, h, w, b, b, c // (b * b)))
        x = lax.reshape(lax.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h * b, w * b, c // (b * b)))
    return [lax.transpose(x, (0, 3, 1, 2)) if layout == "NCHW" else x]


@raises_tf("ExtractImagePatches", "ExtractVolumePatches")
def _patches(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    n = x.ndim - 2
    sizes, strides = (node.attr(k)[1:-1] for k in ("ksizes", "strides"))
    rates = (node.attr("rates") or [1] * x.ndim)[1:-1]
    padding = [(0, 0)] * x.ndim
    counts = []
    for axis, (k, s, r) in enumerate(zip(sizes, strides, rates, strict=True), 1):
        span, size = (k - 1) * r + 1, x.shape[axis]
        count = (size - span + s) // s
        if node.attr("padding") == "SAME":
            count = (size + s - 1) // s
            extra = max((count - 1) * s + span - size, 0)
            padding[axis] = (extra // 2, extra - extra // 2)
        counts.append(max(count, 0))
    x = jnp.pad(x, padding)
    for i, (k, s, r, count) in enumerate(zip(sizes, strides, rates, counts, strict=True)):
        # Each axis becomes two: which patch, and where in it.
        place = np.arange(count)[:, None] * s + np.arange(k) * r
        x = take(x, place.astype(np.int32), 1 + 2 * i)
    x = lax.transpose(x, (0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1))
    depth = int(np.prod(sizes)) * x.shape[-1]
    return [lax.reshape(x, (x.shape[0], *counts, depth))]
