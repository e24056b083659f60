"""Ops that draw regions and crops: TensorFlow's if seeded, otherwise by key."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import PLAIN, check, flat_function
from tests.tf.ops.samples import normal

R = tf.raw_ops
POOLS = {"FractionalMaxPool": R.FractionalMaxPool, "FractionalAvgPool": R.FractionalAvgPool}
RATIOS = [[1, 1.44, 1.73, 1], [1, 2.0, 1.0, 1], [1, 2.6, 3.2, 1]]
SEEDED = {"deterministic": True, "seed": 7, "seed2": -3}


EVERY = list(itertools.product(RATIOS, (True, False), (True, False)))


def _pooled(op, settings):
    def fn(x):
        return [
            y
            for ratio, pseudo, overlapping in settings
            for y in POOLS[op](
                value=x,
                pooling_ratio=ratio,
                pseudo_random=pseudo,
                overlapping=overlapping,
                **SEEDED,
            )
        ]

    return fn


@pytest.mark.parametrize("op", POOLS)
def test_fractional_pools(op):
    """Regions, values and gradients are equal, for the pooling and its gradient op."""
    check(_pooled(op, EVERY[1::6]), normal(2, 11, 17, 3))


@pytest.mark.parametrize("op", POOLS)
def test_fractional_pools_of_a_constant(op):
    x = normal(1, 11, 17, 2)
    check(lambda factor: [y * factor for y in _pooled(op, EVERY[:1])(x)[:1]], np.float32(2))


@pytest.mark.slow
@pytest.mark.parametrize("op", POOLS)
def test_fractional_pools_of_other_types(op):
    check(_pooled(op, EVERY), normal(2, 11, 17, 3))
    for dtype in (np.float64, np.int32, np.int64):
        check(_pooled(op, EVERY[::3]), normal(2, 11, 17, 3, dtype=dtype), grad=False)


def test_gradients_of_maxima_go_to_the_first():
    def fn(x):
        return R.FractionalMaxPool(value=x, pooling_ratio=RATIOS[0], overlapping=True, **SEEDED)[0]

    check(fn, np.round(normal(2, 11, 17, 3)))


@pytest.mark.parametrize("pseudo", [True, False])
def test_fractional_pools_without_a_seed(pseudo):
    def fn(x):
        return tf.nn.fractional_max_pool(x, 1.44, pseudo_random=pseudo)

    x = normal(1, 11, 17, 2)
    module = invert.convert(flat_function(fn), x, config=PLAIN)
    drawn = [module(x, key=jax.random.key(i))[1:] for i in range(8)]
    found = [[np.asarray(y) for y in ys] for ys in drawn]
    for rows, columns in found:
        for starts, length, count in ((rows, 11, 7), (columns, 17, 11)):
            sizes = np.diff(starts)
            assert starts[0] == 0 and starts[-1] == length and len(sizes) == count
            assert set(sizes) <= {1, 2}
    assert len({tuple(rows) for rows, _ in found}) > 2
    with pytest.raises(invert.SignatureError, match="key"):
        module(x)


BOXES = np.random.default_rng(0).uniform(size=(2, 1, 3, 2)).astype(np.float32)
BOXES = np.concatenate([BOXES[0] * 0.6, BOXES[0] * 0.6 + 0.1 + BOXES[1] * 0.3], -1)
# Areas, aspect ratios, how much has to be seen, how often to try.
CROPS = [
    ([0.05, 1.0], [0.75, 1.33], 0.1, 100),
    ([0.5, 0.9], [0.3, 3.0], 0.7, 20),
    ([0.9, 1.0], [0.5, 0.51], 0.9, 5),
]


def crops(op, size, boxes, **inputs):
    return [
        y
        for (areas, ratios, share, tries), some in zip(
            CROPS, (boxes, tf.zeros([0, 0, 4]), boxes), strict=True
        )
        for y in op(
            image_size=size,
            bounding_boxes=some,
            min_object_covered=share,
            area_range=areas,
            aspect_ratio_range=ratios,
            max_attempts=tries,
            use_image_if_no_bounding_boxes=True,
            **inputs,
        )
    ]


def test_crops_of_a_seed():
    def fn(size, boxes, seed):
        return crops(R.StatelessSampleDistortedBoundingBox, size, boxes, seed=seed)

    args = np.zeros(3, np.int64), BOXES, np.zeros(2, np.int32)
    module = invert.convert(flat_function(fn), *args, config=PLAIN)
    compiled = jax.jit(lambda *a: module(*a))
    seeds = np.random.default_rng(1).integers(-(2**31), 2**31 - 1, (20, 2)).astype(np.int32)
    with jax.enable_x64(True):
        for seed, sides in itertools.product(seeds, [(100, 80), (7, 9), (640, 480)]):
            size = np.array([*sides, 3], np.int64)
            for g, w in zip(compiled(size, BOXES, seed), fn(size, BOXES, seed), strict=True):
                assert g.dtype == w.dtype
                np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize(
    "op",
    [
        R.SampleDistortedBoundingBoxV2,
        pytest.param(R.SampleDistortedBoundingBox, marks=pytest.mark.slow),
    ],
)
def test_crops_of_a_key(op):
    """They stay within their bounds, and differ between keys."""

    def fn(size, boxes):
        return crops(op, size, boxes, seed=1, seed2=2)

    args = np.array([100, 80, 3], np.int32), BOXES
    module = invert.convert(flat_function(fn), *args, config=PLAIN)
    found = [[np.asarray(x) for x in module(*args, key=jax.random.key(i))] for i in range(12)]
    for results in found:
        for i, (areas, ratios, _, _) in enumerate(CROPS[:2]):
            begin, size, box = results[3 * i : 3 * i + 3]
            assert begin[2] == 0 and size[2] == -1
            height, width = size[:2]
            whole = (height, width) == (100, 80)
            assert whole or areas[0] - 0.02 <= height * width / 8000 <= areas[1] + 0.02
            assert whole or ratios[0] - 0.1 <= width / height <= ratios[1] + 0.1
            ends = np.concatenate([begin[:2], begin[:2] + size[:2]]) / [100, 80, 100, 80]
            np.testing.assert_allclose(box[0, 0], ends, rtol=1e-6, atol=1e-6)
    assert len({tuple(results[0]) for results in found}) > 6


def test_crop_of_an_image():
    """As in ImageNet pipelines."""

    def fn(image, boxes, seed):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image), boxes, seed, min_object_covered=0.1
        )
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        box = tf.cast([[y / 100, x / 80, (y + height) / 100, (x + width) / 80]], tf.float32)
        return tf.image.crop_and_resize(image[None], box, [0], [16, 16])

    seed = np.array([3, 4], np.int32)
    check(fn, normal(100, 80, 3), BOXES, seed, grad=False)
