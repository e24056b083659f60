"""Image ops against TensorFlow: resizing, crops, colours, boxes, projections."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import check, converted, flat_function
from tests.tf.ops.samples import normal, slow_but

RAW = tf.raw_ops
ALIGNED = {
    "legacy": {},
    "corners": {"align_corners": True},
    "half pixels": {"half_pixel_centers": True},
}
# Larger, smaller, one pixel, equal.
SIZES = [(9, 13), (3, 4), (1, 1), (5, 6), (1, 12)]
IMAGE_TYPES = [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64]
IMAGE_TYPES += [np.float16, ml_dtypes.bfloat16, np.float64]
RESIZES = {
    "Bilinear": RAW.ResizeBilinear,
    "Bicubic": RAW.ResizeBicubic,
    "NearestNeighbor": RAW.ResizeNearestNeighbor,
}


EVERY = [(m, a) for m in RESIZES for a in ALIGNED]
QUICK = [("Bicubic", "half pixels"), ("Bilinear", "corners"), ("NearestNeighbor", "corners")]


@pytest.mark.parametrize(("method", "align"), slow_but(QUICK, EVERY))
def test_resize(method, align):
    def fn(x):
        return [RESIZES[method](images=x, size=s, **ALIGNED[align]) for s in SIZES]

    check(fn, normal(2, 5, 6, 3))
    check(fn, normal(0, 5, 6, 3), grad=False)


@pytest.mark.parametrize("method", RESIZES)
def test_resize_of_other_types(method):
    def fn(*images):
        return [
            RESIZES[method](images=x, size=s, half_pixel_centers=True)
            for x in images
            for s in SIZES[:2]
        ]

    # Bicubic interpolation of halves is computed in single precision by both.
    skip = [ml_dtypes.bfloat16] if method == "Bicubic" else []
    types = [t for t in IMAGE_TYPES if t not in skip]
    check(fn, *(normal(1, 5, 6, 2, dtype=d) for d in types), grad=False)


def test_resize_area():
    def fn(*images):
        return [
            RAW.ResizeArea(images=x, size=s, align_corners=align)
            for x in images
            for s in SIZES
            for align in (False, True)
        ]

    types = [np.float32, np.uint8, np.float64, np.float16]
    check(fn, *(normal(1, 5, 6, 2, dtype=d) for d in types), grad=False)


def test_gradient_ops_of_resizing():
    def fn(g):
        images = {d: tf.zeros([2, 5, 6, 3], d) for d in (tf.float32, tf.float64)}
        return [
            op(grads=g, original_image=images[dtype], **align)
            for op, dtype, align in itertools.product(
                (RAW.ResizeBilinearGrad, RAW.ResizeBicubicGrad),
                images,
                ALIGNED.values(),
            )
        ]

    # Computed in single precision by both, whatever the type of the image.
    check(fn, normal(2, 9, 4, 3), grad=False, rtol=2e-5, atol=2e-5)

    def nearest(g):
        args = {"grads": g, "size": [5, 6]}
        return [RAW.ResizeNearestNeighborGrad(**args, **a) for a in ALIGNED.values()]

    for dtype in (np.float32, np.float64):  # TensorFlow has no gradient of it
        check(nearest, normal(2, 9, 4, 3, dtype=dtype), grad=False)


def test_resize_with_open_sizes():
    """The sizes of the image are open, and those of the result follow from them."""

    def fn(x):
        size = tf.shape(x)[1:3] * 2
        return (
            tf.image.resize(x, size, "bilinear"),
            tf.image.resize(x, size, "nearest"),
            tf.image.resize(x, size, "bicubic"),
            tf.compat.v1.image.resize_bilinear(x, size, align_corners=True),
        )

    concrete = flat_function(fn).get_concrete_function(tf.TensorSpec([None, None, None, 3]))
    entry = invert.frontends.tf_function.entry_point(concrete, config=invert.Config())
    shape = jax.export.symbolic_shape("b, h, w, 3")
    exported = jax.export.export(jax.jit(lambda x: entry.fn([], x)))(
        jax.ShapeDtypeStruct(shape, jnp.float32)
    )
    for sizes in ((2, 5, 6, 3), (1, 4, 9, 3)):
        x = normal(*sizes)
        for got, want in zip(exported.call(x), fn(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


KERNELS = "box gaussian keyscubic lanczos1 lanczos3 lanczos5 mitchellcubic triangle".split()


def test_every_kernel():
    def fn(x):
        return [
            RAW.ScaleAndTranslate(
                images=x, size=[3, 9], scale=[0.7, 1.4], translation=[0.4, -1.2], kernel_type=k
            )
            for k in KERNELS
        ]

    # The kernels are the same functions in another order of operations.
    check(fn, normal(1, 5, 6, 2), rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scale_and_translate(kernel, antialias):
    def fn(x):
        args = {"images": x, "kernel_type": kernel, "antialias": antialias}
        return (
            RAW.ScaleAndTranslate(size=[7, 9], scale=[1.3, 1.7], translation=[0.4, -1.2], **args),
            RAW.ScaleAndTranslate(size=[3, 4], scale=[0.6, 0.4], translation=[0.0, 0.5], **args),
            RAW.ScaleAndTranslate(size=[8, 8], scale=[1.0, 1.0], translation=[3.0, -2.0], **args),
        )

    # The kernels are the same functions in another order of operations.
    check(fn, normal(2, 5, 6, 2), rtol=2e-4, atol=2e-5)


def test_scale_and_translate_of_data():
    def fn(x, scale, shift):
        return RAW.ScaleAndTranslate(images=x, size=[7, 9], scale=scale, translation=shift)

    args = np.array([1.3, 0.7], np.float32), np.array([0.4, -1.2], np.float32)
    for dtype in (np.uint8, np.float64):
        check(fn, normal(1, 5, 6, 2, dtype=dtype), *args, grad=False, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("antialias", [True, False])
def test_resizes_of_the_library(antialias):
    def fn(x):
        return [
            tf.image.resize(x, (7, 4), method, antialias=antialias)
            for method in tf.image.ResizeMethod.__dict__.values()
            if isinstance(method, str) and method in RESIZE_METHODS
        ]

    check(fn, normal(2, 5, 6, 3), grad=False, rtol=2e-4, atol=2e-5)


RESIZE_METHODS = "bilinear nearest bicubic area lanczos3 lanczos5 gaussian mitchellcubic".split()


# Inside, over the edge, turned around, one row, all of it.
BOXES = np.array(
    [
        [0.11, 0.22, 0.83, 0.94],
        [-0.31, 0.12, 0.53, 1.37],
        [0.91, 0.82, 0.23, 0.13],
        [0, 0, 1, 1],
    ],
    np.float32,
)
WHICH = np.array([0, 1, 1, 0], np.int32)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crop_and_resize(method):
    def fn(x, boxes):
        return [
            RAW.CropAndResize(
                image=x, boxes=boxes, box_ind=WHICH, crop_size=size, method=method,
                extrapolation_value=-2.0,
            )
            for size in ((3, 4), (1, 1))
        ]  # fmt: skip

    check(fn, normal(2, 5, 6, 3), BOXES)
    check(fn, normal(2, 5, 6, 3, dtype=np.uint8), BOXES, grad=False)
    check(fn, normal(2, 5, 6, 3, dtype=np.float64), BOXES, grad=False)


def test_crops_at_the_edge_of_an_image():
    """The kernel's rounding decides on which side of the edge a sample lies."""
    boxes = np.random.default_rng(3).integers(-2, 11, (2000, 4)).astype(np.float32) / 8

    def fn(x, boxes):
        which = np.zeros(boxes.shape[0], np.int32)
        args = {"image": x, "boxes": boxes, "box_ind": which, "extrapolation_value": -9.0}
        near = RAW.CropAndResize(crop_size=[5, 7], method="nearest", **args)
        return near, RAW.CropAndResize(crop_size=[6, 1], method="bilinear", **args)

    image = normal(1, 5, 6, 3)
    with jax.enable_x64(True):
        near, between = jax.jit(converted(fn, [image, boxes]))(image, boxes)
    want = fn(image, boxes)
    np.testing.assert_array_equal(near, want[0])
    np.testing.assert_allclose(between, want[1], rtol=1e-6, atol=1e-6)


def test_crop_and_resize_of_no_boxes():
    def fn(x, boxes, which):
        return RAW.CropAndResize(image=x, boxes=boxes, box_ind=which, crop_size=[3, 4])

    check(fn, normal(2, 5, 6, 3), BOXES[:0], WHICH[:0], grad=False)


def test_places_in_a_constant_image():
    """Constants are NumPy arrays, which do not take indices that are traced."""
    image = normal(2, 5, 6, 3)

    def fn(boxes):
        offsets, transforms = boxes[:, :2], tf.concat([boxes, boxes], 1)
        return (
            RAW.CropAndResize(image=image, boxes=boxes, box_ind=WHICH, crop_size=[3, 4]),
            RAW.ExtractGlimpse(
                input=image, size=[3, 2], offsets=offsets[:2], uniform_noise=False, noise="zero"
            ),
            RAW.ImageProjectiveTransformV2(
                images=image,
                transforms=transforms[:1],
                output_shape=[5, 6],
                interpolation="NEAREST",
            ),
        )

    check(fn, BOXES, grad=False)


def test_gradient_ops_of_crops():
    def fn(x, g, boxes):
        args = {"grads": g, "boxes": boxes, "box_ind": WHICH}
        return (
            RAW.CropAndResizeGradImage(image_size=[2, 5, 6, 3], T=tf.float32, **args),
            RAW.CropAndResizeGradImage(
                image_size=[2, 5, 6, 3], T=tf.float64, method="nearest", **args
            ),
            RAW.CropAndResizeGradBoxes(image=x, **args),
        )

    # Computed in single precision by both, whatever the type of the image.
    args = normal(2, 5, 6, 3), normal(4, 3, 4, 3), BOXES
    check(fn, *args, grad=False, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", ["ExtractGlimpse", "ExtractGlimpseV2"])
def test_glimpses(op):
    offsets = np.array([[0, 0], [0.5, -0.25], [1, 2], [-0.6, 0.7]], np.float32)

    def fn(x, offsets):
        return [
            getattr(RAW, op)(
                input=x, size=[3, 4], offsets=offsets, centered=centered, normalized=normalized,
                uniform_noise=False, noise="zero",
            )
            for centered, normalized in itertools.product((False, True), repeat=2)
        ]  # fmt: skip

    check(fn, normal(4, 6, 8, 2), offsets, grad=False)


def test_glimpses_with_noise_are_refused():
    def fn(x, offsets):
        return RAW.ExtractGlimpse(input=x, size=[3, 4], offsets=offsets)

    args = [normal(4, 6, 8, 2), np.zeros((4, 2), np.float32)]
    with pytest.raises(invert.UnsupportedOpError, match="noise"):
        converted(fn, args)(*args)


def colours(dtype=np.float32):
    x = np.abs(normal(2, 4, 5, 3)) % 1
    x[0, 0] = 0.5  # grey
    x[0, 1, :, 1:] = 0  # red, or black
    return x.astype(dtype)


def test_colours():
    def fn(x):
        return RAW.RGBToHSV(images=x), RAW.HSVToRGB(images=x)

    check(fn, colours(), grad=False)
    check(fn, colours(np.float64), grad=False)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        # The hue is a quotient of differences of rounded numbers, each with its own rounding.
        check(fn, colours(dtype), grad=False, rtol=0.05, atol=0.05)
    distinct = [[0.1, 0.5, 0.9], [0.8, 0.3, 0.6], [0.2, 0.7, 0.4]]
    equal = [[a, b, c] for a in (0, 0.5, 1) for b in (0, 0.5, 1) for c in (0, 0.5, 1)]
    pixels = np.array([*distinct, *equal], np.float32)
    check(lambda x: RAW.RGBToHSV(images=x), pixels)


def test_adjustments():
    def fn(x, factor):
        return (
            RAW.AdjustContrastv2(images=x, contrast_factor=factor),
            RAW.AdjustSaturation(images=x, scale=factor),
            RAW.AdjustHue(images=x, delta=factor - 1.0),
            RAW.AdjustHue(images=x, delta=0.3),
        )

    for factor in (0.4, 1.8):
        check(fn, colours(), np.float32(factor), grad=False, atol=1e-5)
    # Half precision exists in TensorFlow's compiler alone.
    check(fn, colours(np.float16), np.float32(0.4), grad=False, atol=4e-3, xla=True)


def boxes_and_scores():
    draw = np.random.default_rng(1)
    corners = draw.uniform(0, 0.8, (30, 2))
    boxes = np.concatenate([corners, corners + draw.uniform(0.05, 0.4, (30, 2))], 1)
    boxes[3] = boxes[3, [2, 3, 0, 1]]  # corners in the other order
    boxes[4, 2] = boxes[4, 0]  # no area
    scores = draw.uniform(0, 1, 30)
    scores[7] = scores[11]  # equal scores
    return boxes.astype(np.float32), scores.astype(np.float32)


@pytest.mark.parametrize("size", [5, 30, 0])
def test_non_max_suppression_with_padding(size):
    def fn(boxes, scores, limit):
        args = {"boxes": boxes, "scores": scores, "max_output_size": size}
        args |= {"iou_threshold": limit, "score_threshold": 0.2, "pad_to_max_output_size": True}
        return (
            *RAW.NonMaxSuppressionV4(**args),
            *RAW.NonMaxSuppressionV5(**args, soft_nms_sigma=0.0),
            *RAW.NonMaxSuppressionV5(**args, soft_nms_sigma=0.4),
        )

    check(fn, *boxes_and_scores(), np.float32(0.4), grad=False)


def test_non_max_suppression_without_padding():
    def fn(boxes, scores):
        args = {"boxes": boxes, "scores": scores, "max_output_size": 20}
        overlaps = tf.abs(boxes @ tf.transpose(boxes)) % 1
        found = (
            RAW.NonMaxSuppression(**args, iou_threshold=0.3),
            RAW.NonMaxSuppressionV2(**args, iou_threshold=0.3),
            RAW.NonMaxSuppressionV3(**args, iou_threshold=0.3, score_threshold=0.5),
            RAW.NonMaxSuppressionV4(**args, iou_threshold=0.3, score_threshold=0.5)[0],
            RAW.NonMaxSuppressionWithOverlaps(
                overlaps=overlaps, scores=scores, max_output_size=20, overlap_threshold=0.5,
                score_threshold=0.1,
            ),
        )  # fmt: skip
        return [tf.pad(x, [[0, 20 - tf.shape(x)[0]]], constant_values=-1) for x in found]

    check(fn, *boxes_and_scores(), grad=False)


def test_sizes_that_depend_on_data_are_refused():
    def fn(boxes, scores, size):
        return tf.image.non_max_suppression(boxes, scores, size)

    args = [*boxes_and_scores(), np.int32(5)]
    with pytest.raises(invert.UnsupportedOpError, match="size depends on data"):
        converted(fn, args)(*args)


SHARING = [(a, b) for a in (False, True) for b in (False, True)]


@pytest.mark.parametrize(("per_class", "shared"), slow_but([(True, False)], SHARING))
def test_combined_non_max_suppression(per_class, shared):
    draw = np.random.default_rng(2)
    boxes, _ = boxes_and_scores()
    boxes = np.stack([boxes, boxes[::-1] * 1.2])[:, :, None]
    boxes = boxes if shared else boxes + np.linspace(0, 0.2, 3)[:, None].astype(np.float32)
    scores = draw.uniform(0, 1, (2, 30, 3)).astype(np.float32)

    def fn(boxes, scores):
        return [
            out
            for per, total, clip in ((4, 10, False), (40, 50, True))
            for out in RAW.CombinedNonMaxSuppression(
                boxes=boxes, scores=scores, max_output_size_per_class=per, max_total_size=total,
                iou_threshold=0.3, score_threshold=0.4, pad_per_class=per_class, clip_boxes=clip,
            )
        ]  # fmt: skip

    check(fn, boxes, scores, grad=False)


MODES = [("CONSTANT",), ("NEAREST",), ("REFLECT",), ("WRAP",)]


@pytest.mark.parametrize("mode", slow_but([], MODES))
def test_projective_transforms(mode):
    turned = [0.8, -0.5, 1.3, 0.4, 0.9, -2.1, 0.001, -0.002]
    shifted = [1, 0, -7.3, 0, 1, 9.2, 0, 0]
    transforms = np.array([turned, shifted], np.float32)

    def fn(x, t):
        return [
            RAW.ImageProjectiveTransformV3(
                images=x, transforms=some, output_shape=[7, 8], fill_value=0.5,
                interpolation=interpolation, fill_mode=mode,
            )
            for interpolation in ("NEAREST", "BILINEAR")
            for some in (t, t[:1])
        ]  # fmt: skip

    check(fn, normal(2, 5, 6, 3), transforms, grad=False, atol=1e-4)
    for dtype in (np.uint8, np.int32, np.float64, np.float16):
        nearest = lambda x, t: fn(x, t)[:2]  # noqa: E731
        check(nearest, normal(2, 5, 6, 3, dtype=dtype), transforms, grad=False)


def test_projective_transforms_by_one_matrix():
    def fn(x, t):
        args = {"images": x, "transforms": t, "output_shape": [5, 6]}
        return (
            RAW.ImageProjectiveTransformV2(**args, interpolation="BILINEAR"),
            RAW.ImageProjectiveTransformV3(
                **args, interpolation="NEAREST", fill_mode="REFLECT", fill_value=0.0
            ),
        )

    transforms = np.array([[0.8, -0.5, 1.3, 0.4, 0.9, -2.1, 0, 0]], np.float32)
    check(fn, normal(2, 5, 6, 3), transforms, grad=False, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_bounding_boxes(depth):
    boxes = np.array([[0.1, 0.2, 0.8, 0.9], [-0.3, 0.1, 0.5, 1.4], [0.9, 0.8, 0.2, 0.1]])
    boxes = np.stack([boxes, boxes * 0.7]).astype(np.float32)

    def fn(x, b, c):
        return RAW.DrawBoundingBoxes(images=x, boxes=b), RAW.DrawBoundingBoxesV2(
            images=x, boxes=b, colors=c[:, :depth]
        )

    check(fn, normal(2, 9, 11, depth), boxes, np.abs(normal(2, 4)), grad=False)


def test_composites_of_the_library():
    def fn(x):
        return (
            tf.image.sobel_edges(x),
            tf.image.rgb_to_grayscale(x),
            tf.image.adjust_brightness(x, 0.2),
            tf.image.adjust_gamma(x, 1.5),
            tf.image.central_crop(x, 0.5),
            tf.image.flip_left_right(x),
            tf.image.rgb_to_yuv(x),
            tf.image.total_variation(x),
        )

    check(fn, colours(), grad=False)
