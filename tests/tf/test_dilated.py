"""Dilated convolutions, which TensorFlow writes as convolutions between space and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import invert

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(3)
KERNEL = RNG.normal(size=(3, 3, 4, 2)).astype(np.float32)


def primitives(fn: Any, spec: Any, *sizes: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """The parameters of the primitives of a converted function, after comparing it at `sizes`."""
    fn = tf.function(fn)
    module = invert.convert(fn, spec)
    assert str(module.report.certificate).startswith("exact")
    for size in sizes:
        x = RNG.normal(size=size).astype(np.float32)
        np.testing.assert_allclose(module(x), fn(x).numpy(), rtol=1e-5, atol=1e-5)
    return {eqn.primitive.name: eqn.params for eqn in module.jaxpr.eqns}


def split(x: Any, pads: Any, crops: Any, padding: str = "VALID", block: Any = (2, 3)) -> Any:
    y = tf.nn.conv2d(tf.space_to_batch(x, [2, 3], pads), KERNEL, 1, padding)
    return tf.batch_to_space(y, block, crops)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_at_open_sizes(padding):
    names = primitives(
        lambda x: tf.nn.atrous_conv2d(x, KERNEL, 2, padding),
        tf.TensorSpec([None, None, None, 4]),
        (2, 7, 9, 4),
        (1, 12, 6, 4),
    )
    assert names["conv_general_dilated"]["rhs_dilation"] == (2, 2)
    assert not {"transpose", "slice", "pad"} & names.keys()


def test_depthwise_along_one_axis_added_to_its_input():
    kernel = KERNEL[:1, :, :, :1]

    def fn(x: Any) -> Any:
        y = tf.space_to_batch(x, [4], [[4, 4 + (-tf.shape(x)[1]) % 4]])
        y = tf.nn.depthwise_conv2d(tf.expand_dims(y, 1), kernel, [1, 1, 1, 1], "VALID")
        y = tf.batch_to_space(tf.squeeze(y, 1), [4], [[0, (-tf.shape(x)[1]) % 4]])
        return x + y

    names = primitives(fn, tf.TensorSpec([None, None, 4]), (2, 9, 4), (3, 1, 4), (1, 16, 4))
    # A convolution along one axis needs no image.
    assert names["conv_general_dilated"]["rhs_dilation"] == (4,)


def test_crops_that_differ_from_the_padding():
    names = primitives(
        lambda x: split(x, [[2, 2], [3, 3]], [[1, 0], [2, 1]]),
        tf.TensorSpec([None, 8, 9, 4]),
        (2, 8, 9, 4),
    )
    assert names["conv_general_dilated"]["padding"] == ((1, 2), (1, 2))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: split(x, [[2, 2], [3, 3]], [[1, 0], [2, 1]], padding="SAME"),
        lambda x: split(x, [[2, 2], [3, 3]], [[1, 0], [2, 1]], block=[3, 2]),
        lambda x: tf.batch_to_space(
            tf.nn.relu(tf.space_to_batch(x, [2, 3], [[2, 2], [3, 3]])), [2, 3], [[1, 0], [2, 1]]
        ),
    ],
    ids=["padded blocks", "other blocks", "no convolution"],
)
def test_programs_that_are_not_one_convolution(fn):
    names = primitives(fn, tf.TensorSpec([6, 8, 9, 4]), (6, 8, 9, 4))
    assert names.get("conv_general_dilated", {"rhs_dilation": (1, 1)})["rhs_dilation"] == (1, 1)
