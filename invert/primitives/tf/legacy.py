"""Ops of earlier releases that graphs still hold, in terms of newer ones; and small ones."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array, ints, is_static, static


@raises_tf("GuaranteeConst", "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "Copy",
           "CopyHost", "DebugGradientIdentity", "CheckPinned", "DeepCopy")  # fmt: skip
def _same(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [values[0]]


@raises_tf("TopK")
def _top_k(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    found, where = lax.top_k(array(values[0]), node.attr("k"))
    return [found, where]


@raises_tf("ParallelConcat")
def _parallel_concat(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [lax.concatenate([array(v) for v in values], 0)]


@raises_tf("TileGrad")
def _tile_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, multiples = array(values[0]), ints(static(node, values, 1))
    shape = [d for n, m in zip(x.shape, multiples, strict=True) for d in (m, n // m)]
    return [jnp.sum(lax.reshape(x, shape), axis=tuple(range(0, 2 * x.ndim, 2)), dtype=x.dtype)]


@raises_tf("InplaceAdd", "InplaceSub", "InplaceUpdate")
def _inplace(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, i, v = (array(a) for a in values)
    at = jnp.asarray(x).at[i % x.shape[0]]
    return [getattr(at, {"InplaceAdd": "add", "InplaceSub": "subtract"}.get(node.op, "set"))(v)]


@raises_tf("UnravelIndex")
def _unravel_index(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    sizes = ints(static(node, values, 1))
    if is_static(values[0]):
        return [np.stack(np.unravel_index(values[0], sizes)).astype(values[0].dtype)]
    return [jnp.stack(jnp.unravel_index(array(values[0]), sizes))]


@raises_tf("AdjustContrast")
def _adjust_contrast(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, factor, low, high = (array(v).astype(np.float32) for v in values)
    mean = jnp.mean(x, axis=(-3, -2), keepdims=True)
    return [jnp.clip((x - mean) * factor + mean, low, high)]


def _normalized(node: Node, x: Any, mean: Any, variance: Any, beta: Any, gamma: Any) -> Any:
    scale = lax.rsqrt(variance + np.asarray(node.attr("variance_epsilon"), x.dtype))
    if node.attr("scale_after_normalization"):
        scale = scale * gamma
    return (x - mean) * scale + beta


@raises_tf("BatchNormWithGlobalNormalization")
def _batch_norm(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    return [_normalized(node, *(array(v) for v in values))]


@raises_tf("BatchNormWithGlobalNormalizationGrad")
def _batch_norm_grad(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x, mean, variance, gamma, dy = (array(v) for v in values)
    beta = lax.full_like(gamma, 0)
    _, pull = jax.vjp(functools.partial(_normalized, node), x, mean, variance, beta, gamma)
    return list(pull(dy))


@raises_tf("RandomCrop")
def _random_crop(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    x = array(values[0])
    height, width = ints(static(node, values, 1))
    most = np.array([x.shape[0] - height, x.shape[1] - width])
    y, z = jax.random.randint(ctx.key(), (2,), 0, most + 1)
    return [lax.dynamic_slice(x, (y, z, np.zeros((), y.dtype)), (height, width, x.shape[2]))]
