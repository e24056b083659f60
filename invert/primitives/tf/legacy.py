"""Ops of earlier releases, and identities."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Ints, Value, rule, rules
from invert.tf.values.constants import array, is_static

# Attributes for debuggers.
_DEBUGGING = (
    "circular_buffer_size debug_ops_spec debug_urls device_name gated_grpc io_index io_of_node "
    "is_input op_name output_slot tensor_debug_mode tensor_name tfdbg_context_id tfdbg_run_id"
).split()


@rule(
    "GuaranteeConst",
    "DebugIdentity",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "Copy",
    "CopyHost",
    "DebugGradientIdentity",
    "CheckPinned",
    "DeepCopy",
    ignores=_DEBUGGING,
)
def _identity(x: Value) -> Value:
    return x


@rule("TopK", ignores=("sorted",))
def _top_k(x: Array, *, k: int) -> tuple[Array, Array]:
    return lax.top_k(x, k)


# The operand holds the shape of the result.
@rule("ParallelConcat", ignores=("shape",))
def _parallel_concat(*parts: Array) -> Array:
    return lax.concatenate(parts, 0)


@rule("TileGrad")
def _tile_grad(g: Array, multiples: Ints) -> Array:
    shape = [d for n, m in zip(g.shape, multiples, strict=True) for d in (m, n // m)]
    return jnp.sum(lax.reshape(g, shape), axis=tuple(range(0, 2 * g.ndim, 2)), dtype=g.dtype)


def _row(x: Array, i: Array) -> Array:
    return jnp.asarray(x).at[i % x.shape[0]]


rules(
    {
        "InplaceAdd": lambda x, i, v: _row(x, i).add(v),
        "InplaceSub": lambda x, i, v: _row(x, i).subtract(v),
        "InplaceUpdate": lambda x, i, v: _row(x, i).set(v),
    }
)


@rule("UnravelIndex")
def _unravel_index(indices: Value, dims: Ints) -> Value:
    if is_static(indices):
        return np.stack(np.unravel_index(indices, dims)).astype(indices.dtype)
    return jnp.stack(jnp.unravel_index(array(indices), dims))


@rule("AdjustContrast")
def _adjust_contrast(images: Array, factor: Array, low: Array, high: Array) -> Array:
    x, factor, low, high = (v.astype(np.float32) for v in (images, factor, low, high))
    mean = jnp.mean(x, axis=(-3, -2), keepdims=True)
    return jnp.clip((x - mean) * factor + mean, low, high)


@rule("BatchNormWithGlobalNormalization")
def _batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    beta: Array,
    gamma: Array,
    *,
    variance_epsilon: float,
    scale_after_normalization: bool,
) -> Array:
    scale = lax.rsqrt(variance + np.asarray(variance_epsilon, x.dtype))
    if scale_after_normalization:
        scale = scale * gamma
    return (x - mean) * scale + beta


@rule("BatchNormWithGlobalNormalizationGrad")
def _batch_norm_grad(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array,
    dy: Array,
    *,
    variance_epsilon: float,
    scale_after_normalization: bool,
) -> list[Array]:
    normalize = functools.partial(
        _batch_norm,
        variance_epsilon=variance_epsilon,
        scale_after_normalization=scale_after_normalization,
    )
    _, pullback = jax.vjp(normalize, x, mean, variance, lax.full_like(gamma, 0), gamma)
    return list(pullback(dy))


@rule("RandomCrop", ignores=("seed", "seed2"))
def _random_crop(image: Array, size: Ints, *, ctx: Context) -> Array:
    height, width = size
    most = np.array([image.shape[0] - height, image.shape[1] - width])
    y, x = jax.random.randint(ctx.key(), (2,), 0, most + 1)
    return lax.dynamic_slice(image, (y, x, np.zeros((), y.dtype)), (height, width, image.shape[2]))
