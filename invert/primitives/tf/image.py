"""Colours, crops, boxes and projections of images.

Kernels: tensorflow/core/kernels/image/, TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from invert.primitives.tf.window import is_half
from invert.tf.interpreter.registry import Array, Int, Ints, rule
from invert.tf.numerics.derivatives import with_tangent
from invert.tf.ops.node import Node

# -- colours


@rule("RGBToHSV")
def rgb_to_hsv(rgb: Array) -> Array:
    red, green, blue = (rgb[..., i] for i in range(3))
    # Among equal colours one has the derivative: the first maximum, the last minimum.
    value = jnp.where((red >= green) & (red >= blue), red, jnp.where(green >= blue, green, blue))
    least = jnp.where((blue <= red) & (blue <= green), blue, jnp.where(green <= red, green, red))
    spread = value - least
    # TensorFlow takes 0 for the derivative of the saturation in a colour that is 0.
    kept = value - jnp.where(least > 0, least, lax.stop_gradient(least))
    saturation = jnp.where(value > 0, kept / jnp.where(value > 0, value, 1), 0)
    sixth = 1 / (6 * jnp.where(spread > 0, spread, 1))
    hue = jnp.where(
        red == value,
        sixth * (green - blue),
        jnp.where(green == value, sixth * (blue - red) + 2 / 6, sixth * (red - green) + 4 / 6),
    )
    hue = jnp.where(spread > 0, hue, 0)
    hue = jnp.where(hue < 0, hue + 1, hue)
    return jnp.stack([hue, saturation, value], axis=-1)


@rule("HSVToRGB")
def hsv_to_rgb(hsv: Array) -> Array:
    hue, saturation, value = (hsv[..., i : i + 1] for i in range(3))
    sixths = hue * 6
    red = jnp.clip(lax.abs(sixths - 3) - 1, 0, 1)
    green = jnp.clip(2 - lax.abs(sixths - 2), 0, 1)
    blue = jnp.clip(2 - lax.abs(sixths - 4), 0, 1)
    return (1 - saturation + saturation * jnp.concatenate([red, green, blue], axis=-1)) * value


@rule("AdjustContrastv2")
def _adjust_contrast(x: Array, factor: Array) -> Array:
    wide = x.astype(jnp.float32) if is_half(x.dtype) else x
    mean = jnp.mean(wide, axis=(-3, -2), keepdims=True)
    return ((wide - mean) * factor + mean).astype(x.dtype)


@rule("AdjustSaturation", "AdjustHue")
def _adjust(x: Array, change: Array, *, op: str) -> Array:
    hue, saturation, value = jnp.moveaxis(rgb_to_hsv(x.astype(jnp.float32)), -1, 0)
    if op == "AdjustHue":
        turned = hue + change
        hue = turned - lax.floor(turned)
    else:
        saturation = jnp.clip(saturation * change, 0, 1)
    return hsv_to_rgb(jnp.stack([hue, saturation, value], axis=-1)).astype(x.dtype)


# -- crops


@rule("CropAndResize")
def _crop_and_resize(
    image: Array,
    boxes: Array,
    box_ind: Array,
    crop_size: Ints,
    *,
    method: str,
    extrapolation_value: float,
) -> Array:
    places = _crop_places(boxes, image.shape, crop_size)
    crop = _nearest_crop if method == "nearest" else _crop
    return crop(image.astype(jnp.float32), places, box_ind, extrapolation_value)


@rule("CropAndResizeGradImage")
def _crop_grad_image(
    g: Array, boxes: Array, box_ind: Array, image_size: Ints, *, T: np.dtype, method: str
) -> Array:
    image = jax.ShapeDtypeStruct(image_size, g.dtype)
    places = _crop_places(boxes, image.shape, g.shape[1:3])
    nearest = method == "nearest"
    spread = jax.linear_transpose(lambda x: _crop(x, places, box_ind, nearest=nearest), image)
    return spread(g)[0].astype(jax.dtypes.canonicalize_dtype(T))


# The derivative in the boxes is that of the bilinear method, the only one of the op.
@rule("CropAndResizeGradBoxes", ignores=("method",))
def _crop_grad_boxes(g: Array, image: Array, boxes: Array, box_ind: Array) -> list[Array]:
    image = image.astype(jnp.float32)

    def crop(boxes: Array) -> Array:
        return _crop(image, _crop_places(boxes, image.shape, g.shape[1:3]), box_ind)

    return list(jax.vjp(crop, boxes)[1](g))


def _at(image: Array, index: tuple[Array, ...]) -> Array:
    """The nearest elements of an image, which may be a NumPy array, as constants are."""
    return jnp.asarray(image).at[index].get(mode="clip", wrap_negative_indices=False)


Places = tuple[Array, Array]


def _nearest_crop(image: Array, places: Places, which: Array, fill: float) -> Array:
    """`_crop` at the nearest pixels, with the bilinear derivative in positions."""

    def tangent(y: Array, primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Array:
        image, places, which = primals
        along_image = _crop(tangents[0], places, which, nearest=True)
        _, along_places = jax.jvp(lambda p: _crop(image, p, which), (places,), (tangents[1],))
        return along_image + along_places

    @with_tangent(tangent)
    def crop_nearest(image: Array, places: Places, which: Array) -> Array:
        return _crop(image, places, which, fill, nearest=True)

    return crop_nearest(image, places, which)


def _crop(
    image: Array, places: Places, which: Array, fill: float = 0.0, *, nearest: bool = False
) -> Array:
    """The images `which` at rows and columns, one of each for each crop."""
    y, x = places[0][:, :, None], places[1][:, None, :]

    def pixels(row: Array, column: Array) -> Array:
        index = which[:, None, None], row.astype(jnp.int32), column.astype(jnp.int32)
        return _at(image, index)

    if nearest:
        away = lax.RoundingMethod.AWAY_FROM_ZERO
        crop = pixels(lax.round(y, away), lax.round(x, away))
    else:
        top, left = lax.floor(y), lax.floor(x)
        bottom, right = lax.ceil(y), lax.ceil(x)
        along_x, along_y = (x - left)[..., None], (y - top)[..., None]
        upper, lower = (
            low + (pixels(row, right) - low) * along_x
            for row in (top, bottom)
            for low in (pixels(row, left),)
        )
        crop = upper + (lower - upper) * along_y
    inside = (y >= 0) & (y <= image.shape[1] - 1) & (x >= 0) & (x <= image.shape[2] - 1)
    return jnp.where(inside[..., None], crop, jnp.asarray(fill, crop.dtype))


def _crop_places(boxes: Array, shape: Sequence[Int], size: Sequence[Int]) -> Places:
    """The rows and columns where each crop samples the image."""
    return (
        _sampled(boxes[:, 0], boxes[:, 2], shape[1], size[0]),
        _sampled(boxes[:, 1], boxes[:, 3], shape[2], size[1]),
    )


def _sampled(start: Array, end: Array, size: Int, out: Int) -> Array:
    """Sample positions between two ends, in units of the length of the image.

    In double precision, with each step rounded to single as in the kernel. XLA would fuse product
    and sum without rounding, which moves samples at the edge of an image outside of it.
    """
    last = jnp.asarray(size - 1, np.float64)
    if isinstance(out, int) and out == 1:
        places = 0.5 * (start + end)[:, None] * last
    else:
        step = _single(_single((end - start) * last) / jnp.asarray(out - 1, np.float64))
        steps = jnp.arange(out, dtype=np.float64)
        places = _single(start * last)[:, None] + _single(steps * step[:, None])
    return places.astype(start.dtype)


def _single(x: Array) -> Array:
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)


@rule("ExtractGlimpse", "ExtractGlimpseV2")
def _extract_glimpse(
    x: Array,
    size: Ints,
    offsets: Array,
    *,
    centered: bool,
    normalized: bool,
    uniform_noise: bool,
    noise: str,
    node: Node,
) -> Array:
    if uniform_noise or noise != "zero":
        reason = "fills positions outside the image with noise"
        raise node.error(reason, 'Use noise="zero" and uniform_noise=False.')
    first = node.op == "ExtractGlimpse"
    rows, columns = (
        _glimpse_places(offsets[:, i], x.shape[1 + i], size[i], centered, normalized, first)
        for i in range(2)
    )
    rows, columns = rows[:, :, None], columns[:, None, :]
    batch = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None, None]
    inside = (rows >= 0) & (rows < x.shape[1]) & (columns >= 0) & (columns < x.shape[2])
    glimpse = _at(x, (batch, rows, columns))
    return jnp.where(inside[..., None], glimpse, 0)


def _glimpse_places(
    offset: Array, size: Int, out: Int, centered: bool, normalized: bool, first: bool
) -> Array:
    """Rows or columns of a glimpse; `first`: follow version 1 of the op."""
    start = offset * size if normalized else offset
    if centered:
        # Version 2 halves offsets and centres the window in fewer cases.
        start = (start / 2 if first or normalized else start) + size / 2
    if first or (centered and normalized):
        start = start - out / 2
    start = start.astype(jnp.int32)
    return start[:, None] + jnp.arange(out, dtype=jnp.int32)


# -- projections


@rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _projective_transform(
    image: Array,
    transforms: Array,
    output_shape: Ints,
    fill_value: Array | None = None,
    *,
    interpolation: str,
    fill_mode: str,
) -> Array:
    height, width = output_shape
    fill = np.float32(0) if fill_value is None else fill_value
    t = transforms[:, :, None, None]
    y = jnp.arange(height, dtype=jnp.float32)[:, None]
    x = jnp.arange(width, dtype=jnp.float32)[None, :]
    scale = t[:, 6] * x + t[:, 7] * y + 1
    places = [
        _mapped(fill_mode, (t[:, i] * x + t[:, i + 1] * y + t[:, i + 2]) / scale, size)
        for i, size in ((3, image.shape[1]), (0, image.shape[2]))
    ]
    result = _read(image, places, fill, interpolation)
    result = jnp.where((scale == 0)[..., None], fill, result)
    return result.astype(image.dtype)


def _mapped(mode: str, place: Array, size: Int) -> Array:
    """The position that fills one outside the image."""
    if mode == "CONSTANT":
        return place
    if mode == "REFLECT":
        period = 2 * size
        before = place + jnp.where(place < period, period * jnp.trunc(-place / period), 0)
        before = jnp.where(before < -size, before + period, -before - 1)
        behind = place - period * jnp.trunc(place / period)
        behind = jnp.where(behind >= size, period - behind - 1, behind)
    elif mode == "WRAP":
        before = place + size * (jnp.trunc(-place / max(size - 1, 1)) + 1)
        behind = place - size * jnp.trunc(place / max(size - 1, 1))
    else:
        before = behind = place
    moved = jnp.where(place < 0, before, jnp.where(place > size - 1, behind, place))
    return jnp.clip(moved, 0, size - 1)


def _read(image: Array, places: Sequence[Array], fill: Array, interpolation: str) -> Array:
    y, x = places
    shape = (image.shape[0], *y.shape[1:])
    y, x = jnp.broadcast_to(y, shape), jnp.broadcast_to(x, shape)
    batch = jnp.arange(image.shape[0], dtype=jnp.int32)[:, None, None]

    def pixels(row: Array, column: Array) -> Array:
        inside = (row >= 0) & (row < image.shape[1]) & (column >= 0) & (column < image.shape[2])
        index = batch, row.astype(jnp.int32), column.astype(jnp.int32)
        values = _at(image, index)
        wide = values.astype(jnp.promote_types(jnp.float32, image.dtype))
        return jnp.where(inside[..., None], wide, fill)

    if interpolation == "NEAREST":
        away = lax.RoundingMethod.AWAY_FROM_ZERO
        return pixels(lax.round(y, away), lax.round(x, away))
    top, left = lax.floor(y), lax.floor(x)
    along_x, along_y = (x - left)[..., None], (y - top)[..., None]
    upper = pixels(top, left) * (1 - along_x) + pixels(top, left + 1) * along_x
    lower = pixels(top + 1, left) * (1 - along_x) + pixels(top + 1, left + 1) * along_x
    return upper * (1 - along_y) + lower * along_y


# -- boxes

# tensorflow/core/kernels/image/draw_bounding_box_op.cc
_COLOURS = np.asarray(
    [
        [1, 1, 0, 1],
        [0, 0, 1, 1],
        [1, 0, 0, 1],
        [0, 1, 0, 1],
        [0.5, 0, 0.5, 1],
        [0.5, 0.5, 0, 1],
        [0.5, 0, 0, 1],
        [0, 0, 0.5, 1],
        [0, 1, 1, 1],
        [1, 0, 1, 1],
    ],
    np.float32,
)


@rule("DrawBoundingBoxes", "DrawBoundingBoxesV2")
def _draw_bounding_boxes(image: Array, boxes: Array, colours: Array = ()) -> Array:
    height, width, depth = image.shape[1:]
    if len(colours) == 0:
        colours = np.ones_like(_COLOURS) if depth == 1 else _COLOURS
    scale = np.asarray([height - 1, width - 1] * 2, np.float32)
    edges = (boxes.astype(jnp.float32) * scale).astype(jnp.int32)
    rows = jnp.arange(height, dtype=jnp.int32)[:, None]
    columns = jnp.arange(width, dtype=jnp.int32)[None, :]
    for i in range(boxes.shape[1]):
        top, left, bottom, right = (edges[:, i, k, None, None] for k in range(4))
        inside = (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
        border = (rows == top) | (rows == bottom) | (columns == left) | (columns == right)
        colour = jnp.asarray(colours[i % len(colours)][:depth], image.dtype)
        image = jnp.where((inside & border)[..., None], colour, image)
    return image
