"""Resizing of images and the ops of its gradients.

Kernels: tensorflow/core/kernels/image/resize_*_op.cc, scale_and_translate_op.cc and
sampling_kernels.h, TensorFlow 2.21. Positions are computed in single precision like there, so that
rounding selects the same pixels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.tf.fallback.eager import check_bytes
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import Array, Int, Ints, Value, rule
from invert.tf.ops.node import Node

_F32 = np.dtype(np.float32)


def _library(*sizes: Int) -> ModuleType:
    """NumPy if the sizes are known, so that positions are constants; otherwise `jax.numpy`."""
    return np if all(isinstance(d, int) for d in sizes) else jnp


def _float(xp: ModuleType, x: Array) -> Array:
    return xp.asarray(x, _F32)


def _places(size: Int, out: Int, align: bool, shift: float, back: float) -> Array:
    """The input position of each output pixel: `(i + shift) * scale - back`."""
    xp = _library(size, out)
    scale = _float(xp, size) / _float(xp, out)
    if align and isinstance(out, int):
        scale = _float(xp, size - 1) / _float(xp, out - 1) if out > 1 else scale
    elif align:
        inner = _float(xp, size - 1) / xp.maximum(_float(xp, out - 1), 1)
        scale = xp.where(_float(xp, out) > 1, inner, scale)
    return (xp.arange(out, dtype=_F32) + np.float32(shift)) * scale - np.float32(back)


def _take(x: Array, index: Array, axis: int) -> Array:
    return jnp.take(x, index, axis=axis, mode="clip")


def _along(weight: Array, axis: int, rank: int) -> Array:
    return weight.reshape([-1 if i == axis else 1 for i in range(rank)])


def _linear(x: Array, axis: int, out: Int, align: bool, half: bool) -> Array:
    size, xp = x.shape[axis], _library(x.shape[axis], out)
    place = _places(size, out, align, 0.5 if half else 0.0, 0.5 if half else 0.0)
    below = xp.floor(place)
    first = xp.maximum(below, 0).astype(np.int32)
    second = xp.minimum(xp.ceil(place).astype(np.int32), size - 1)
    low, high = _take(x, first, axis), _take(x, second, axis)
    return low + (high - low) * _along(place - below, axis, x.ndim)


def _nearest(x: Array, axis: int, out: Int, align: bool, half: bool) -> Array:
    size, xp = x.shape[axis], _library(x.shape[axis], out)
    place = _places(size, out, align, 0.5 if half else 0.0, 0.0)
    # Halves are rounded up: positions are positive.
    place = xp.floor(place + np.float32(0.5)) if align else xp.floor(place)
    return _take(x, xp.minimum(place.astype(np.int32), size - 1), axis)


# Resolution of TensorFlow's table of cubic weights.
_TABLE = 1024


def _cubic(x: Array, axis: int, out: Int, align: bool, half: bool) -> Array:
    size, xp = x.shape[axis], _library(x.shape[axis], out)
    place = _places(size, out, align, 0.5 if half else 0.0, 0.5 if half else 0.0)
    below = xp.floor(place)
    t = xp.round((place - below) * _TABLE) / np.float32(_TABLE)
    a = np.float32(-0.5 if half else -0.75)
    weights = [_cubic_weight(d, a) for d in (t + 1, t, 1 - t, 2 - t)]
    first = below.astype(np.int32) - 1
    indices = [xp.clip(first + i, 0, size - 1) for i in range(4)]
    if half:
        # Pixels outside the image are ignored; with aligned corners, the outermost replaces them.
        weights = [
            xp.where(i == first + k, w, np.float32(0))
            for k, (i, w) in enumerate(zip(indices, weights, strict=True))
        ]
        total = functools.reduce(xp.add, weights)
        weights = [w / total for w in weights]
    terms = [
        _take(x, i, axis) * _along(w, axis, x.ndim) for i, w in zip(indices, weights, strict=True)
    ]
    return functools.reduce(lax.add, terms)


def _cubic_weight(d: Array, a: Array) -> Array:
    """The cubic convolution kernel of Keys at distance `d`, between zero and two."""
    xp = np if isinstance(d, np.ndarray) else jnp
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return xp.where(d <= 1, near, far).astype(_F32)


def resize_bilinear(x: Array, size: Sequence[Int], *, align: bool) -> Array:
    """Resize both spatial axes of `x`, by linear interpolation."""
    return _linear(_linear(x, 2, size[1], align, False), 1, size[0], align, False)


Resize = Callable[[Array, int, Int, bool, bool], Array]

METHODS: dict[str, Resize] = {
    "Bicubic": _cubic,
    "Bilinear": _linear,
    "NearestNeighbor": _nearest,
}


_NAMES = {"Bicubic": "bicubic", "Bilinear": "bilinear", "NearestNeighbor": "nearest"}


def _resize(op: str, x: Array, size: Ints, align: bool, half: bool) -> Array:
    """Resize both spatial axes of `x`, first along the rows, as TensorFlow does."""
    kind = op.removeprefix("Resize").removesuffix("Grad")
    method = METHODS[kind]

    def resize(x: Array) -> Array:
        return method(method(x, 2, size[1], align, half), 1, size[0], align, half)

    # The program calls it by name.
    resize.__name__ = f"resize_{_NAMES[kind]}"
    return jax.jit(resize)(x)


@rule("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor")
def _resize_op(
    images: Array, size: Ints, *, align_corners: bool, half_pixel_centers: bool, node: Node
) -> Array:
    op = node.op
    if align_corners and half_pixel_centers:
        raise node.error(
            "has align_corners=True and half_pixel_centers=True, which TensorFlow does not compute",
            "Set align_corners=False, as tf.image.resize does.",
        )
    # Interpolation is computed and returned in single precision, for every image.
    x = images if op == "ResizeNearestNeighbor" else images.astype(_F32)
    return _resize(op, x, size, align_corners, half_pixel_centers)


@rule("ResizeBilinearGrad", "ResizeBicubicGrad")
def _resize_grad(
    g: Array, image: Value, *, align_corners: bool, half_pixel_centers: bool, op: str
) -> Array:
    x = jax.ShapeDtypeStruct(np.shape(image), g.dtype)
    (result,) = jax.linear_transpose(
        lambda x: _resize(op, x, g.shape[1:3], align_corners, half_pixel_centers), x
    )(g)
    return result.astype(image.dtype)


@rule("ResizeNearestNeighborGrad")
def _resize_nearest_grad(
    g: Array, size: Ints, *, align_corners: bool, half_pixel_centers: bool, node: Node
) -> Array:
    if jnp.issubdtype(g.dtype, jnp.integer):
        raise node.error(f"takes the gradient of an image of {g.dtype.name}", "Compute in float32.")
    x = jax.ShapeDtypeStruct((g.shape[0], *size, g.shape[3]), g.dtype)
    return _resize_grad(
        g, x, align_corners=align_corners, half_pixel_centers=half_pixel_centers, op=node.op
    )


@rule("ResizeArea")
def _resize_area(
    images: Array, size: Ints, *, align_corners: bool, ctx: Context, node: Node
) -> Array:
    weights = [
        _area(node, d, out, align_corners) for d, out in zip(images.shape[1:3], size, strict=True)
    ]
    return _weigh(ctx, images.astype(_F32), *weights)


def _area(node: Node, size: Int, out: Int, align: bool) -> np.ndarray:
    """The fraction of each output pixel that each input pixel covers."""
    if not (isinstance(size, int) and isinstance(out, int)):
        raise node.error("resizes an image of unknown size", "Fix the size of the image.")
    check_bytes(node, "a table of its weights", out * size * _F32.itemsize)
    scale = np.float32((size - 1) / (out - 1) if align and out > 1 else size / out)
    start = np.arange(out, dtype=_F32) * scale
    end = np.arange(1, out + 1, dtype=_F32) * scale
    weights = np.zeros((out, size), _F32)
    for i in range(out):
        for j in range(math.floor(start[i]), math.ceil(end[i])):
            covered = min(np.float32(j + 1), end[i]) - max(np.float32(j), start[i])
            weights[i, min(max(j, 0), size - 1)] += covered / scale
    return weights


def _weigh(ctx: Context, x: Array, rows: Array, columns: Array) -> Array:
    precision = ctx.config.resize_precision
    return jnp.einsum("nhwc,yh,xw->nyxc", x, rows, columns, precision=precision)


# -- scale and translate


def _lanczos(radius: float) -> tuple[float, Callable[[Array], Array]]:
    def kernel(d: Array) -> Array:
        # The limit at zero is one.
        near = d <= 1e-3
        x = np.pi * jnp.where(near, 1.0, d)
        value = radius * jnp.sin(x) * jnp.sin(x / radius) / (x * x)
        return jnp.where(d > radius, 0.0, jnp.where(near, 1.0, value))

    return radius, kernel


def _mitchell(d: Array) -> Array:
    far = (((-7 / 18) * d + 2) * d - 10 / 3) * d + 16 / 9
    near = ((7 / 6) * d - 2) * d * d + 8 / 9
    return jnp.where(d >= 2.0, 0.0, jnp.where(d >= 1.0, far, near))


# kernel type: (radius, kernel as a function of the distance)
KERNELS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "box": (0.5, lambda d: jnp.where(d < 0.5, 1.0, jnp.where(d == 0.5, 0.5, 0.0))),
    # A radius of three standard deviations.
    "gaussian": (1.5, lambda d: jnp.where(d >= 1.5, 0.0, jnp.exp(-2.0 * d * d))),
    "keyscubic": (2.0, lambda d: jnp.where(d >= 2.0, 0.0, _cubic_weight(d, np.float32(-0.5)))),
    "lanczos1": _lanczos(1.0),
    "lanczos3": _lanczos(3.0),
    "lanczos5": _lanczos(5.0),
    "mitchellcubic": (2.0, _mitchell),
    "triangle": (1.0, lambda d: jnp.maximum(1.0 - d, 0.0)),
}


@rule("ScaleAndTranslate")
def _scale_and_translate(
    images: Array,
    size: Ints,
    scale: Array,
    translation: Array,
    *,
    kernel_type: str,
    antialias: bool,
    ctx: Context,
) -> Array:
    weights = _kernel_weights(kernel_type, antialias, images.shape[1:3], size, scale, translation)
    return _weigh(ctx, images.astype(_F32), *weights)


@rule("ScaleAndTranslateGrad")
def _scale_and_translate_grad(
    g: Array,
    image: Value,
    scale: Array,
    translation: Array,
    *,
    kernel_type: str,
    antialias: bool,
    ctx: Context,
) -> Array:
    rows, columns = _kernel_weights(
        kernel_type, antialias, np.shape(image)[1:3], g.shape[1:3], scale, translation
    )
    return _weigh(ctx, g, rows.T, columns.T)


def _kernel_weights(
    kernel_type: str, antialias: bool, sizes: Ints, outs: Ints, scale: Array, translation: Array
) -> list[Array]:
    radius, kernel = KERNELS[kernel_type]
    return [
        _sample(kernel, radius, size, out, scale[i], translation[i], antialias)
        for i, (size, out) in enumerate(zip(sizes, outs, strict=True))
    ]


def _sample(
    kernel: Callable[[Array], Array],
    radius: float,
    size: Int,
    out: Int,
    scale: Array,
    translation: Array,
    antialias: bool,
) -> Array:
    """The weights of input pixels in each output pixel, which sum to one."""
    inverse = 1 / scale
    spread = jnp.maximum(inverse, 1) if antialias else jnp.ones_like(inverse)
    place = (jnp.arange(out, dtype=_F32) + 0.5) * inverse - translation * inverse
    first = lax.ceil(place - radius * spread - 0.5)
    last = lax.floor(place + radius * spread - 0.5)
    # Positions before the first pixel or after the last are ignored.
    pixel = jnp.arange(size, dtype=_F32)
    distance = lax.abs(pixel + 0.5 - place[:, None]) / spread
    used = (pixel >= first[:, None]) & (pixel <= last[:, None])
    weights = jnp.where(used, kernel(distance), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    some = lax.abs(total) >= 1000 * np.finfo(_F32).tiny
    weights = jnp.where(some, weights / jnp.where(some, total, 1), weights)
    inside = (place >= 0) & (place <= size)
    return jnp.where(inside[:, None], weights, 0).astype(_F32)
