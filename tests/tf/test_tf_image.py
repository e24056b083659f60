"""The functions of `tf.image` on a batch or one image, compared with TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tf.ops.driver import check
from tests.tf.ops.test_image import boxes_and_scores, colours

pytestmark = pytest.mark.slow
I = tf.image  # noqa: E741
BOXES = np.array([[[0.1, 0.2, 0.8, 0.9], [0.0, 0.1, 0.5, 0.7]]] * 2, np.float32)

# Functions of a batch of images with values from zero to one.
FUNCTIONS = {
    "adjust_brightness": lambda x: I.adjust_brightness(x, 0.2),
    "adjust_contrast": lambda x: I.adjust_contrast(x, 0.4),
    "adjust_gamma": lambda x: I.adjust_gamma(x, 1.5, 0.8),
    "adjust_hue": lambda x: I.adjust_hue(x, 0.3),
    "adjust_saturation": lambda x: I.adjust_saturation(x, 1.8),
    "central_crop": lambda x: I.central_crop(x, 0.5),
    "convert_image_dtype": lambda x: (
        I.convert_image_dtype(x, tf.uint8), I.convert_image_dtype(x, tf.int16),
        I.convert_image_dtype(I.convert_image_dtype(x, tf.uint8), tf.float32),
    ),
    "crop_and_resize": lambda x: I.crop_and_resize(x, BOXES[0], [0, 1], [3, 4]),
    "crop_to_bounding_box": lambda x: I.crop_to_bounding_box(x, 1, 2, 2, 3),
    "draw_bounding_boxes": lambda x: I.draw_bounding_boxes(x, BOXES, [[1.0, 0.0, 0.5]]),
    "extract_glimpse": lambda x: I.extract_glimpse(
        x, [2, 3], tf.constant([[0.1, 0.2], [-0.3, 0.0]]), noise="zero"
    ),
    "extract_patches": lambda x: I.extract_patches(
        x, [1, 2, 3, 1], [1, 1, 2, 1], [1, 1, 1, 1], "SAME"
    ),
    "flip_left_right": I.flip_left_right,
    "flip_up_down": I.flip_up_down,
    "grayscale_to_rgb": lambda x: I.grayscale_to_rgb(x[..., :1]),
    "hsv_to_rgb": I.hsv_to_rgb,
    "image_gradients": I.image_gradients,
    "pad_to_bounding_box": lambda x: I.pad_to_bounding_box(x, 1, 2, 8, 9),
    "per_image_standardization": I.per_image_standardization,
    "psnr": lambda x: I.psnr(x, x * 0.9, 1.0),
    "resize": lambda x: I.resize(x, [7, 3]),
    "resize, aspect kept": lambda x: I.resize(x, [7, 9], preserve_aspect_ratio=True),
    "resize_with_crop_or_pad": lambda x: I.resize_with_crop_or_pad(x, 3, 8),
    "resize_with_pad": lambda x: I.resize_with_pad(x, 7, 8),
    "rgb_to_grayscale": I.rgb_to_grayscale,
    "rgb_to_hsv": I.rgb_to_hsv,
    "rgb_to_yiq": I.rgb_to_yiq,
    "rgb_to_yuv": I.rgb_to_yuv,
    "rot90": lambda x: I.rot90(x, 3),
    "sobel_edges": I.sobel_edges,
    "ssim": lambda x: I.ssim(x, x * 0.9, 1.0, filter_size=3),
    "ssim_multiscale": lambda x: I.ssim_multiscale(
        tf.tile(x, [1, 6, 6, 1]), tf.tile(x, [1, 6, 6, 1]) * 0.9, 1.0, [0.5, 0.5], filter_size=3
    ),
    "stateless_random_brightness": lambda x: I.stateless_random_brightness(x, 0.3, [1, 2]),
    "stateless_random_contrast": lambda x: I.stateless_random_contrast(x, 0.3, 0.8, [1, 2]),
    "stateless_random_crop": lambda x: I.stateless_random_crop(x, [2, 2, 3, 3], [1, 2]),
    "stateless_random_flip_left_right": lambda x: I.stateless_random_flip_left_right(x, [1, 2]),
    "stateless_random_flip_up_down": lambda x: I.stateless_random_flip_up_down(x, [1, 2]),
    "stateless_random_hue": lambda x: I.stateless_random_hue(x, 0.2, [1, 2]),
    "stateless_random_saturation": lambda x: I.stateless_random_saturation(x, 0.3, 0.8, [1, 2]),
    "total_variation": I.total_variation,
    "transpose": I.transpose,
    "yiq_to_rgb": I.yiq_to_rgb,
    "yuv_to_rgb": I.yuv_to_rgb,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_images(name):
    # Quotients of differences of channels.
    check(FUNCTIONS[name], colours(), grad=False, rtol=1e-4, atol=1e-4)


def test_suppression():
    def fn(boxes, scores):
        return (
            I.non_max_suppression_padded(boxes, scores, 10, 0.4, 0.1, pad_to_max_output_size=True),
            I.combined_non_max_suppression(
                boxes[None, :, None], scores[None, :, None], 5, 8, 0.4, 0.1
            ),
        )

    check(fn, *boxes_and_scores(), grad=False)


def test_suppression_on_batches():
    def fn(boxes, scores):
        return I.non_max_suppression_padded(
            boxes, scores, 10, 0.4, 0.1, pad_to_max_output_size=True, sorted_input=False,
            canonicalized_coordinates=True, tile_size=16,
        )  # fmt: skip

    boxes, scores = boxes_and_scores()
    keep = [i for i in range(len(boxes)) if i not in (3, 4, 7)]
    check(fn, np.stack([boxes[keep]] * 2), np.stack([scores[keep]] * 2), grad=False)
