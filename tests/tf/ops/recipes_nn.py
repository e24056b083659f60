"""Inputs of ops on images, windows and spectra, convolutions, normalization, special functions."""

# One row for each op, however long.
# ruff: noqa: E501, C408

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.ops.cases import FLOATS, Recipe, ids, r, spd, x

_UNIT = dict(low=-0.9, high=0.9)
_POSITIVE = dict(low=0.3, high=3.0)
_POOL = dict(ksize=[1, 2, 3, 1], strides=[1, 2, 1, 1], padding="SAME")
_POOL_VALID = dict(ksize=[1, 2, 2, 1], strides=[1, 1, 2, 1], padding="VALID")
_POOL3 = dict(ksize=[1, 2, 2, 2, 1], strides=[1, 1, 2, 1, 1], padding="SAME")


def _distinct(*shape: int) -> Any:
    """Values without ties, so that each maximum is unique."""
    return x(*shape, make=lambda g: g.permutation(int(np.prod(shape))).reshape(shape) / 4 - 3)


def _pool_grad(grad: tuple[int, ...], rank3: bool = False, **attrs: Any) -> Recipe:
    """Both the input and the output of the pooling, which must be consistent."""
    shape = (1, 3, 4, 3, 2) if rank3 else (1, 4, 5, 2)
    g = np.random.default_rng(5)
    image = (g.permutation(int(np.prod(shape))).reshape(shape) / 4 - 3).astype(np.float32)
    options = {k: v for k, v in attrs.items() if k in ("ksize", "strides", "padding")}
    pool = tf.raw_ops.MaxPool3D if rank3 else tf.raw_ops.MaxPool
    pooled = pool(input=image, **options).numpy()
    extra = {k: attrs[k] for k in ("ksize", "strides", "padding")}
    return r(
        orig_input=_fixed(image),
        orig_output=_fixed(pooled),
        grad=x(*(grad or pooled.shape)),
        **extra,
        _dtypes=FLOATS,
    )


def _fixed(a: np.ndarray) -> Any:
    return x(*a.shape, make=lambda _: a)


def _lrn_grad() -> Recipe:
    image = np.random.default_rng(5).normal(size=(1, 2, 3, 7)).astype(np.float32)
    output = tf.raw_ops.LRN(input=image, depth_radius=2).numpy()
    return r(input_grads=x(1, 2, 3, 7), input_image=_fixed(image), output_image=_fixed(output), depth_radius=2)  # fmt: skip


def _conv(**given: Any) -> list[Recipe]:
    base = dict(strides=[1, 1, 1, 1], padding="SAME")
    more = dict(strides=[1, 2, 2, 1], padding="VALID", dilations=[1, 1, 1, 1])
    return (
        [r(**given, **base), r(**given, **more)]
        if "out_backprop" not in given
        else [r(**given, **base)]
    )


_BN = dict(scale=x(3, low=0.5, high=1.5), offset=x(3))
_BNG = dict(y_backprop=x(2, 4, 4, 3), x=x(2, 4, 4, 3), scale=x(3, dtype="float32", low=0.5, high=1.5),
            reserve_space_1=x(3, dtype="float32"), reserve_space_2=x(3, dtype="float32", low=0.5, high=2))  # fmt: skip
_EMPTY = dict(mean=x(0), variance=x(0))
_MOMENTS = dict(mean=x(3), variance=x(3, **_POSITIVE))
_BN32 = {k: x(*v.shape, dtype="float32", low=v.low, high=v.high) for k, v in _BN.items()}
_M32 = {k: x(*v.shape, dtype="float32", low=v.low, high=v.high) for k, v in _MOMENTS.items()}
_E32 = {k: x(0, dtype="float32") for k in _EMPTY}


def _batch_norm(version: int) -> list[Recipe]:
    scale, empty, moments = (_BN, _EMPTY, _MOMENTS) if version == 1 else (_BN32, _E32, _M32)
    # What follows the first three results are caches of a device, not part of the contract.
    first = lambda *ys: list(ys[:3])  # noqa: E731
    return [
        r(x=x(2, 4, 4, 3), **scale, **empty, _post=first, _tolerance=4),
        r(x=x(2, 4, 4, 3), **scale, **moments, is_training=False, _post=first),
        r(
            x=x(2, 4, 4, 3),
            **scale,
            **moments,
            exponential_avg_factor=0.25,
            _post=first,
            _tolerance=4,
        ),
    ]


def _reconstruct(s: Any, u: Any, v: Any) -> list[Any]:
    return [s, tf.matmul(u * tf.cast(s, u.dtype)[..., None, :], v, adjoint_b=True)]


def _eigen(w: Any, v: Any) -> list[Any]:
    return [w, tf.matmul(v * w[..., None, :], v, adjoint_b=True)]


_BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]
)
_NMS = dict(boxes=x(5, 4, make=lambda g: _BOXES), scores=x(5, make=lambda g: [0.9, 0.75, 0.6, 0.95, 0.5]),
            iou_threshold=0.5, score_threshold=0.0)  # fmt: skip
_C = ("complex64", "complex128")

NN: dict[str, list[Recipe]] = {
    "AdjustContrastv2": [
        r(images=x(2, 4, 4, 3), contrast_factor=x(dtype="float32", low=0.5, high=2))
    ],
    "AdjustHue": [
        r(
            images=x(2, 2, 3, low=0, high=1),
            delta=x(dtype="float32", low=-0.3, high=0.3),
            _tolerance=10,
        )
    ],
    "AdjustSaturation": [
        r(
            images=x(2, 2, 3, low=0, high=1),
            scale=x(dtype="float32", low=0.5, high=2),
            _tolerance=10,
        )
    ],
    "HSVToRGB": [r(images=x(4, 3, low=0, high=1))],
    "RGBToHSV": [r(images=x(4, 3, low=0, high=1))],
    "Acos": [r(x=x(2, 3, **_UNIT))],
    "Asin": [r(x=x(2, 3, **_UNIT))],
    "Acosh": [r(x=x(2, 3, low=1.2, high=4))],
    "Atanh": [r(x=x(2, 3, **_UNIT))],
    "Erfinv": [r(x=x(2, 3, **_UNIT))],
    "Ndtri": [r(x=x(2, 3, low=0.1, high=0.9))],
    "Betainc": [
        r(
            a=x(2, 3, **_POSITIVE),
            b=x(2, 3, **_POSITIVE),
            x=x(2, 3, low=0.1, high=0.9),
            _tolerance=10,
        )
    ],
    "Igamma": [r(a=x(2, 3, **_POSITIVE), x=x(2, 3, **_POSITIVE), _tolerance=10)],
    "Igammac": [r(a=x(2, 3, **_POSITIVE), x=x(2, 3, **_POSITIVE), _tolerance=10)],
    "IgammaGradA": [r(a=x(2, 3, **_POSITIVE), x=x(2, 3, **_POSITIVE), _tolerance=10)],
    "RandomGammaGrad": [r(alpha=x(2, 3, **_POSITIVE), sample=x(2, 3, **_POSITIVE), _tolerance=10)],
    "Polygamma": [
        r(a=x(2, 3, make=lambda g: g.integers(1, 4, (2, 3))), x=x(2, 3, **_POSITIVE), _tolerance=10)
    ],
    "Zeta": [r(x=x(2, 3, low=1.5, high=4), q=x(2, 3, **_POSITIVE), _tolerance=10)],
    "Digamma": [r(x=x(2, 3, **_POSITIVE), _tolerance=4)],
    "Lgamma": [r(x=x(2, 3, **_POSITIVE), _tolerance=4)],
    "Log": [r(x=x(2, 3, **_POSITIVE))],
    "Log1p": [r(x=x(2, 3, low=-0.5, high=3))],
    "Rsqrt": [r(x=x(2, 3, **_POSITIVE))],
    "Sqrt": [r(x=x(2, 3, **_POSITIVE))],
    "RsqrtGrad": [r(y=x(2, 3, **_POSITIVE), dy=x(2, 3))],
    "SqrtGrad": [r(y=x(2, 3, **_POSITIVE), dy=x(2, 3))],
    "Inv": [r(x=x(2, 3, **_POSITIVE))],
    "Reciprocal": [r(x=x(2, 3, **_POSITIVE))],
    "ReciprocalGrad": [r(y=x(2, 3), dy=x(2, 3))],
    "Div": [r(x=x(2, 3), y=x(3, low=1, high=4))],
    "RealDiv": [r(x=x(2, 3), y=x(3, low=1, high=4))],
    "DivNoNan": [r(x=x(2, 3), y=x(2, 3, make=lambda g: [[0, 1, 2], [0.5, 0, -3]]))],
    "MulNoNan": [r(x=x(2, 3), y=x(2, 3, make=lambda g: [[0, 1, 2], [0.5, 0, -3]]))],
    "FloorDiv": [
        r(x=x(2, 3, low=-9, high=9), y=x(3, low=1, high=4)),
        r(
            x=x(2, 3, low=-9, high=9),
            y=x(3, low=-4, high=-1),
            _dtypes=("float32", "int32", "int64"),
        ),
    ],
    "FloorMod": [
        r(x=x(2, 3, low=-9, high=9), y=x(3, low=1, high=4)),
        r(
            x=x(2, 3, low=-9, high=9),
            y=x(3, low=-4, high=-1),
            _dtypes=("float32", "int32", "int64"),
        ),
    ],
    "Mod": [r(x=x(2, 3, low=-9, high=9), y=x(3, low=1, high=4))],
    "TruncateDiv": [r(x=x(2, 3, low=-9, high=9), y=x(3, low=1, high=4))],
    "TruncateMod": [r(x=x(2, 3, low=-9, high=9), y=x(3, low=1, high=4))],
    "Pow": [r(x=x(2, 3, **_POSITIVE), y=x(3, low=0, high=3))],
    "Xdivy": [r(x=x(2, 3), y=x(3, **_POSITIVE))],
    "Xlogy": [r(x=x(2, 3), y=x(3, **_POSITIVE))],
    "Xlog1py": [r(x=x(2, 3), y=x(3, **_POSITIVE))],
    "Complex": [r(real=x(2, 3), imag=x(3))],
    "CheckNumerics": [r(tensor=x(2, 3), message="bad")],
    "PreventGradient": [r(input=x(2, 3), _grad=False)],
    "Assert": [r(condition=[True], data=[[1]])],
    "Bucketize": [r(input=x(7), boundaries=[-1.0, 0.5, 2.0])],
    "BiasAdd": [
        r(value=x(2, 3, 4), bias=x(4)),
        r(value=x(2, 3, 4, 2), bias=x(3), data_format="NCHW"),
    ],
    "BiasAddV1": [r(value=x(2, 3, 4), bias=x(4))],
    "BiasAddGrad": [r(out_backprop=x(2, 3, 4)), r(out_backprop=x(2, 3, 4, 2), data_format="NCHW")],
    "AvgPool": [r(value=x(1, 4, 5, 2), **_POOL), r(value=x(1, 4, 5, 2), **_POOL_VALID)],
    "AvgPool3D": [r(input=x(1, 3, 4, 3, 2), **_POOL3)],
    "AvgPool3DGrad": [r(orig_input_shape=[1, 3, 4, 3, 2], grad=x(1, 3, 2, 3, 2), **_POOL3)],
    "AvgPoolGrad": [r(orig_input_shape=[1, 4, 5, 2], grad=x(1, 2, 5, 2), **_POOL)],
    "MaxPool": [
        r(input=_distinct(1, 4, 5, 2), **_POOL),
        r(input=_distinct(1, 4, 5, 2), **_POOL_VALID),
    ],
    "MaxPoolV2": [r(input=_distinct(1, 4, 5, 2), **_POOL)],
    "MaxPool3D": [r(input=_distinct(1, 3, 4, 3, 2), **_POOL3)],
    "MaxPoolGrad": [_pool_grad((), **_POOL), _pool_grad((), **_POOL_VALID)],
    "MaxPoolGradV2": [_pool_grad((), **_POOL)],
    "MaxPoolGradGrad": [_pool_grad((1, 4, 5, 2), **_POOL)],
    "MaxPoolGradGradV2": [_pool_grad((1, 4, 5, 2), **_POOL)],
    "MaxPool3DGrad": [_pool_grad((), rank3=True, **_POOL3)],
    "MaxPool3DGradGrad": [_pool_grad((1, 3, 4, 3, 2), rank3=True, **_POOL3)],
    "Conv": [
        r(input=x(1, 5, 6, 2), filter=x(3, 3, 2, 3), strides=[1, 1, 1, 1], padding="SAME"),
        r(
            input=x(1, 5, 6, 4),
            filter=x(3, 2, 2, 6),
            strides=[1, 2, 1, 1],
            padding="VALID",
            groups=2,
            _dtypes=("float32",),
        ),
    ],
    "Conv2D": [
        *_conv(input=x(1, 5, 6, 2), filter=x(3, 3, 2, 3)),
        r(
            input=x(1, 5, 6, 2),
            filter=x(3, 3, 2, 3),
            strides=[1, 1, 1, 1],
            padding="EXPLICIT",
            explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0],
        ),
        r(
            input=x(1, 7, 6, 2),
            filter=x(3, 2, 2, 3),
            strides=[1, 1, 1, 1],
            padding="SAME",
            dilations=[1, 2, 1, 1],
        ),
    ],
    "Conv2DBackpropFilter": _conv(
        input=x(1, 5, 6, 2), filter_sizes=[3, 3, 2, 3], out_backprop=x(1, 5, 6, 3)
    ),
    "Conv2DBackpropInput": [
        *_conv(input_sizes=[1, 5, 6, 2], filter=x(3, 3, 2, 3), out_backprop=x(1, 5, 6, 3)),
        r(
            input_sizes=[1, 6, 6, 2],
            filter=x(3, 3, 2, 3),
            out_backprop=x(1, 3, 3, 3),
            strides=[1, 2, 2, 1],
            padding="SAME",
        ),
    ],
    "Conv3D": [
        r(input=x(1, 4, 5, 4, 2), filter=x(2, 3, 2, 2, 3), strides=[1, 1, 2, 1, 1], padding="SAME")
    ],
    "Conv3DBackpropFilterV2": [
        r(
            input=x(1, 4, 5, 4, 2),
            filter_sizes=[2, 3, 2, 2, 3],
            out_backprop=x(1, 4, 3, 4, 3),
            strides=[1, 1, 2, 1, 1],
            padding="SAME",
        )
    ],
    "Conv3DBackpropInputV2": [
        r(
            input_sizes=[1, 4, 5, 4, 2],
            filter=x(2, 3, 2, 2, 3),
            out_backprop=x(1, 4, 3, 4, 3),
            strides=[1, 1, 2, 1, 1],
            padding="SAME",
        )
    ],
    "DepthwiseConv2dNative": _conv(input=x(1, 5, 6, 2), filter=x(3, 3, 2, 2)),
    "DepthwiseConv2dNativeBackpropFilter": _conv(
        input=x(1, 5, 6, 2), filter_sizes=[3, 3, 2, 2], out_backprop=x(1, 5, 6, 4)
    ),
    "DepthwiseConv2dNativeBackpropInput": _conv(
        input_sizes=[1, 5, 6, 2], filter=x(3, 3, 2, 2), out_backprop=x(1, 5, 6, 4)
    ),
    "FusedBatchNorm": _batch_norm(1),
    "FusedBatchNormV2": _batch_norm(2),
    "FusedBatchNormV3": _batch_norm(3),
    "FusedBatchNormGrad": [
        r(**_BNG, _post=lambda *ys: list(ys[:3]), _tolerance=10, _grad=False),
        r(**_BNG, is_training=False, _post=lambda *ys: list(ys[:3]), _tolerance=10, _grad=False),
    ],
    "FusedBatchNormGradV2": [r(**_BNG, _post=lambda *ys: list(ys[:3]), _tolerance=10, _grad=False)],
    "FusedBatchNormGradV3": [
        r(
            **_BNG,
            reserve_space_3=x(3, dtype="float32"),
            is_training=t,
            _post=lambda *ys: list(ys[:3]),
            _tolerance=10,
            _grad=False,
        )
        for t in (True, False)
    ],
    "FFT": [r(input=x(2, 6))],
    "IFFT": [r(input=x(2, 6))],
    "FFT2D": [r(input=x(4, 6))],
    "IFFT2D": [r(input=x(4, 6))],
    "FFT3D": [r(input=x(2, 4, 6))],
    "IFFT3D": [r(input=x(2, 4, 6))],
    "RFFT": [r(input=x(2, 6), fft_length=[6]), r(input=x(2, 6), fft_length=[4])],
    "RFFT2D": [r(input=x(4, 6), fft_length=[4, 6])],
    "RFFT3D": [r(input=x(2, 4, 6), fft_length=[2, 4, 6])],
    "IRFFT": [r(input=x(2, 4), fft_length=[6]), r(input=x(2, 4), fft_length=[4])],
    "IRFFT2D": [r(input=x(4, 4), fft_length=[4, 6])],
    "IRFFT3D": [r(input=x(2, 4, 4), fft_length=[2, 4, 6])],
    "FakeQuantWithMinMaxArgs": [
        r(inputs=x(2, 3, low=-8, high=8)),
        r(inputs=x(2, 3), min=-1.0, max=2.5, num_bits=4, narrow_range=True),
    ],
    "FakeQuantWithMinMaxArgsGradient": [r(gradients=x(2, 3), inputs=x(2, 3, low=-8, high=8))],
    "FakeQuantWithMinMaxVars": [
        r(inputs=x(2, 3), min=x(low=-1.5, high=-1), max=x(low=1, high=1.5))
    ],
    "FakeQuantWithMinMaxVarsGradient": [
        r(gradients=x(2, 3), inputs=x(2, 3), min=x(low=-1.5, high=-1), max=x(low=1, high=1.5))
    ],
    "FakeQuantWithMinMaxVarsPerChannel": [
        r(inputs=x(2, 3), min=x(3, low=-1.5, high=-1), max=x(3, low=1, high=1.5))
    ],
    "FakeQuantWithMinMaxVarsPerChannelGradient": [
        r(gradients=x(2, 3), inputs=x(2, 3), min=x(3, low=-1.5, high=-1), max=x(3, low=1, high=1.5))
    ],
    "QuantizeAndDequantizeV2": [
        r(input=x(2, 3), input_min=-1.5, input_max=2.0, range_given=g) for g in (True, False)
    ],
    "QuantizeAndDequantizeV3": [
        r(input=x(2, 3), input_min=-1.5, input_max=2.0, num_bits=8, range_given=g)
        for g in (True, False)
    ],
    "QuantizeAndDequantizeV4": [
        r(input=x(2, 3), input_min=-1.5, input_max=2.0, range_given=g) for g in (True, False)
    ],
    "L2Loss": [r(t=x(2, 3))],
    "LRN": [r(input=x(1, 2, 3, 7), depth_radius=2, bias=1.5, alpha=0.3, beta=0.7)],
    "LRNGrad": [_lrn_grad()],
    "NonMaxSuppressionV3": [r(**_NMS, max_output_size=4)],
    "NonMaxSuppressionV4": [r(**_NMS, max_output_size=4, pad_to_max_output_size=True)],
    "Qr": [
        r(input=x(4, 3), _post=lambda q, t: [tf.matmul(q, t), tf.abs(t)]),
        r(input=x(2, 3, 4), full_matrices=True, _post=lambda q, t: [tf.matmul(q, t)]),
    ],
    "Svd": [
        r(input=x(4, 3), _post=_reconstruct),
        r(input=x(3, 4), compute_uv=False, _post=lambda s, u, v: [s]),
    ],
    "SelfAdjointEigV2": [
        r(input=spd(3), _post=_eigen),
        r(input=spd(3), compute_v=False, _post=lambda w, v: [w]),
    ],
    "ResizeBilinear": [
        r(images=x(1, 3, 4, 2), size=[5, 7]),
        r(images=x(1, 3, 4, 2), size=[5, 7], align_corners=True),
        r(images=x(1, 3, 4, 2), size=[5, 2], half_pixel_centers=True),
    ],
    "ResizeBilinearGrad": [
        r(grads=x(1, 5, 7, 2, dtype="float32"), original_image=x(1, 3, 4, 2)),
        r(
            grads=x(1, 5, 7, 2, dtype="float32"),
            original_image=x(1, 3, 4, 2),
            half_pixel_centers=True,
        ),
    ],
    "ResizeNearestNeighbor": [
        r(images=x(1, 3, 4, 2), size=[5, 7]),
        r(images=x(1, 3, 4, 2), size=[5, 7], half_pixel_centers=True),
        r(images=x(1, 3, 4, 2), size=[2, 7], align_corners=True),
    ],
    "SoftmaxCrossEntropyWithLogits": [
        # The gradient of the second result, for second derivatives, leaves out the labels.
        r(features=x(3, 4), labels=x(3, 4, low=0, high=1), _grad=False),
        r(features=x(3, 4), labels=x(3, 4, low=0, high=1), _post=lambda loss, backprop: [loss]),
    ],
    "SparseSoftmaxCrossEntropyWithLogits": [
        r(features=x(3, 4), labels=ids(3, high=4, dtype="int64"))
    ],
    "SoftplusGrad": [r(gradients=x(2, 3), features=x(2, 3))],
    "NextAfter": [r(x1=x(2, 3), x2=x(2, 3))],
    "PopulationCount": [r(x=x(2, 3))],
    "Round": [r(x=x(2, 3, low=-4, high=4))],
    "Rint": [r(x=x(2, 3, low=-4, high=4))],
}
