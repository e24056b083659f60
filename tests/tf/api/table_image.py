"""Calls of `tf.image`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.tf.api.calls import DISTINCT, Arg, B, I, Table, U, V, call, each, left_out, of

T = tf.image
IMG = U(0, 1, B, 5, 6, 3)
ONE = U(0, 1, 5, 6, 3)
BIG = U(0, 1, B, 24, 20, 3)
BOXES = [[0.1, 0.2, 0.8, 0.9], [0.0, 0.1, 0.5, 0.7]]
# Images of doubles are computed in single precision.
_SINGLE = 1000.0
_JPEG = "it encodes and decodes JPEG, which only a host does"


def _boxes(*shape: int) -> Arg:
    def make(g: np.random.Generator, s: tuple[int, ...]) -> np.ndarray:
        low, size = g.uniform(0, 0.6, (*s[:-1], 2)), g.uniform(0.2, 0.4, (*s[:-1], 2))
        return np.concatenate([low, low + size], -1)

    return Arg((*shape, 4), None, make)


_RESIZE = tuple(
    call(U(0, 1, B, 5, 6, 2), size, method=m, antialias=a).of("float32")
    for m in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
    for size in ([7, 4], [5, 13])
    for a in (False, True)
    if not (a and m in ("nearest", "area"))
)  # fmt: skip

IMAGE: Table = {
    "ResizeMethod": "names of methods",
    "adjust_brightness": (call(IMG, 0.2), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), 0.1).of("uint8")),
    "adjust_contrast": (call(IMG, 0.4).of("float32"), call(IMG, 0.4).of("float64").near(_SINGLE), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), 1.7).of("uint8"), call(ONE, U(0.5, 1)).of("float32")),
    "adjust_gamma": (call(IMG, 1.5, 0.8).of("float32"), call(IMG, 1.5, 0.8).of("float64").near(_SINGLE), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), 0.7).of("uint8")),
    "adjust_hue": (call(IMG, 0.3).of("float32"), call(ONE, -0.2).of("float32"), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), 0.1).of("uint8")),
    "adjust_saturation": (call(IMG, 1.8).of("float32"), call(IMG, 0.4).of("float32"), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), 1.4).of("uint8")),
    **left_out(_JPEG, "adjust_jpeg_quality random_jpeg_quality stateless_random_jpeg_quality encode_jpeg encode_png"),
    **left_out("it reads encoded bytes; folded where they are known, see the host ops", "decode_and_crop_jpeg decode_bmp decode_gif decode_image decode_jpeg decode_jxl decode_png decode_webp extract_jpeg_shape is_jpeg"),
    "central_crop": (call(IMG, 0.5), call(ONE, 0.6)),
    "combined_non_max_suppression": (
        call(_boxes(2, 6, 1), U(0, 1, 2, 6, 3), 3, 5).of("float32").but(vmap="the batch is the first axis"),
        call(_boxes(2, 6, 3), U(0, 1, 2, 6, 3), 2, 4, 0.3, 0.2, pad_per_class=True, clip_boxes=False).of("float32").but(vmap=""),
    ),
    "convert_image_dtype": (
        call(IMG, tf.uint8), call(IMG, tf.int16), call(IMG, tf.float64), call(I(0, 256, B, 3, dtype="uint8"), tf.float32).of("uint8"), call(I(-128, 127, B, 3, dtype="int8"), tf.float32).of("int8"),
        call(I(0, 256, B, 3, dtype="uint8"), tf.uint16).of("uint8"), call(U(-1, 2, B, 3), tf.uint8, saturate=True), call(I(0, 60000, B, 3, dtype="uint16"), tf.uint8).of("uint16"),
    ),
    "crop_and_resize": (
        call(IMG, V(BOXES, "float32"), V([0, 1], "int32"), [3, 4]).of("float32"), call(IMG, V(BOXES, "float32"), V([1, 0], "int32"), [3, 2], method="nearest").of("float32").but(gradient="TensorFlow takes that of bilinear sampling"),
        call(IMG, V([[-0.2, 0.1, 1.3, 0.9]], "float32"), V([0], "int32"), [4, 4], extrapolation_value=2.5).of("float32"),
    ),
    "crop_to_bounding_box": (call(IMG, 1, 2, 2, 3).of("float32 uint8"), call(ONE, 0, 0, 5, 6)),
    "draw_bounding_boxes": (call(U(0, 1, 2, 7, 6, 3), V([BOXES, BOXES], "float32"), V([[1.0, 0.0, 0.5]], "float32")).of("float32").but(gradient="TensorFlow has none"),),
    "extract_glimpse": (
        call(IMG, [2, 3], V([[0.1, 0.2], [-0.3, 0.0], [0.0, 0.9]], "float32"), noise="zero").of("float32").but(open="as many offsets as images"),
        call(U(0, 1, 2, 5, 6, 1), [2, 3], V([[1.0, 2.0], [3.0, 0.0]], "float32"), normalized=False, centered=False, noise="zero").of("float32"),
    ),
    "extract_patches": (
        call(IMG, [1, 2, 3, 1], [1, 1, 2, 1], [1, 1, 1, 1], "SAME").of("float32 float64 int32"), call(IMG, [1, 2, 2, 1], [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
    ),
    **each("flip_left_right flip_up_down", call(IMG).of("float32 uint8"), call(ONE)),
    "transpose": (call(IMG), call(ONE)),
    "rot90": (call(IMG, 1), call(ONE, 2), call(IMG, 3)),
    "generate_bounding_box_proposals": "TensorFlow has no kernel for the CPU",
    "grayscale_to_rgb": (call(U(0, 1, B, 4, 5, 1)),),
    "rgb_to_grayscale": (call(IMG), call(I(0, 256, B, 4, 5, 3, dtype="uint8")).of("uint8")),
    "hsv_to_rgb": (call(IMG).but(gradient="TensorFlow has none"),),
    "rgb_to_hsv": (call(IMG), call(V([[[0.0, 0, 0], [0.5, 0.5, 0.5], [1, 1, 0], [0, 1, 1]]])).but(gradient="at equal channels"),),
    **each("rgb_to_yiq rgb_to_yuv yiq_to_rgb yuv_to_rgb", call(IMG)),
    "image_gradients": (call(IMG),),
    "sobel_edges": (call(IMG).of("float32"),),
    "non_max_suppression": (of(lambda b, s: T.non_max_suppression(b, s, 3, 1.0), _boxes(6), DISTINCT(6)).of("float32").padded(),),
    "non_max_suppression_overlaps": (of(lambda o, s: T.non_max_suppression_overlaps(o, s, 3, 1.1), U(0, 1, 6, 6), DISTINCT(6)).of("float32").padded(),),
    "non_max_suppression_padded": (
        call(_boxes(6), DISTINCT(6), 5, 0.2, 0.1, pad_to_max_output_size=True).of("float32"),
        call(_boxes(2, 6), DISTINCT(2, 6), 4, 0.2, pad_to_max_output_size=True).of("float32"),
    ),
    "non_max_suppression_with_scores": (of(lambda b, s: T.non_max_suppression_with_scores(b, s, 3, 1.0, soft_nms_sigma=0.0), _boxes(6), DISTINCT(6)).of("float32").padded(),),
    "pad_to_bounding_box": (call(IMG, 1, 2, 8, 9), call(ONE, 0, 1, 6, 7)),
    "per_image_standardization": (call(IMG), call(ONE), call(I(0, 256, B, 4, 5, 3, dtype="uint8")).of("uint8")),
    "psnr": (call(IMG, IMG, 1.0), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), I(0, 256, B, 4, 5, 3, dtype="uint8"), 255).of("uint8")),
    "ssim": (call(BIG, BIG, 1.0, filter_size=5).of("float32"), call(BIG, BIG, 2.0, filter_sigma=1.0, k1=0.02, filter_size=7, return_index_map=True).of("float32")),
    "ssim_multiscale": (of(lambda x, y: T.ssim_multiscale(x, 0.9 * x + 0.1 * y, 1.0, (0.5, 0.5), filter_size=5), U(0, 1, B, 24, 24, 1), U(0, 1, B, 24, 24, 1)).of("float32"),),
    **{
        f"{random}_{n}": tuple(
            one if random.startswith("stateless") else one.but(value="drawn with the key", gradient="drawn", vmap="drawn")
            for one in calls
        )
        for random, seed in (("random", ()), ("stateless_random", ([1, 2],)))
        for n, calls in {
            "brightness": (call(IMG, 0.3, *seed),), "contrast": (call(IMG, 0.3, 0.8, *seed).of("float32"),), "crop": (call(IMG, [2, 3, 4, 3], *seed).closed(),),
            "flip_left_right": (call(ONE, *seed), call(IMG, *seed).but(open="a number for each image", vmap="")), "flip_up_down": (call(ONE, *seed),),
            "hue": (call(IMG, 0.3, *seed).of("float32"),), "saturation": (call(IMG, 0.3, 0.8, *seed).of("float32"),),
        }.items()
    },
    "resize": (
        *_RESIZE, call(ONE, [7, 8]).of("float32 float64"), call(IMG, [7, 9], preserve_aspect_ratio=True).of("float32"), call(I(0, 256, B, 4, 5, 3, dtype="uint8"), [3, 3]).of("uint8"),
        call(I(0, 256, B, 4, 5, 3, dtype="int32"), [9, 3], "nearest").of("int32"),
    ),
    "resize_with_crop_or_pad": (call(IMG, 3, 8), call(ONE, 7, 2)),
    "resize_with_pad": (call(IMG, 7, 8).of("float32"), call(ONE, 4, 9, method="bicubic", antialias=True).of("float32")),
    **left_out("without a rule", "sample_distorted_bounding_box stateless_sample_distorted_bounding_box"),
    "total_variation": (call(IMG), call(ONE)),
}  # fmt: skip
