"""Inputs of ops on tensors of quantized types that XLA does not compile."""

# One row for each op, however long.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.ops.cases import Recipe, X, p, x
from tests.tf.ops.recipes_quantized import given_back, int8, int32, q, taken

R = tf.raw_ops


def _uint8(*shape: int) -> X:
    return x(*shape, low=0, high=256, dtype="uint8")


def _ends(n: int, *shape: int) -> list[X]:
    """The bounds of the ranges of some operands."""
    bounds = ((-3, -1), (1, 4))
    return [x(*shape, low=a, high=b, dtype="float32") for _ in range(n) for a, b in bounds]


def _sum(op: str, *data: X, **attrs: Any) -> Recipe:
    names = (
        "x y min_x max_x min_y max_y"
        if op != "QuantizedBiasAdd"
        else "input bias min_input max_input min_bias max_bias"
    )
    return q(op, names, *data, *_ends(2), **attrs)


def _concat(kind: Any, data: Callable[..., X]) -> Recipe:
    def program(*values: Any) -> Any:
        given = {"concat_dim": 1, "values": [tf.bitcast(v, kind) for v in values[:3]]}
        result = R.QuantizedConcat(**given, input_mins=values[3:6], input_maxes=values[6:])
        return [given_back(t) for t in result]

    ends = _ends(3)
    return p(
        program,
        data(2, 3),
        data(2, 1),
        data(2, 2),
        *ends[::2],
        *ends[1::2],
        dtypes=("float32",),
        grad=False,
        tolerance=0.0,
    )


def _pools(op: str) -> list[Recipe]:
    windows = [([1, 2, 2, 1], [1, 1, 1, 1], "VALID"), ([1, 3, 2, 1], [1, 2, 2, 1], "SAME")]
    return [
        q(op, "input min_input max_input", data, *_ends(1), ksize=k, strides=s, padding=pad)
        for k, s, pad in windows
        for data in (_uint8(2, 5, 4, 3), int8(2, 5, 4, 3))
    ]


_NORM = " ".join(f"{n} {n}_min {n}_max" for n in ("t", "m", "v", "beta", "gamma"))


def _batch_norm(after: bool) -> Recipe:
    ends = _ends(5)
    ends[4] = x(low=0, high=0.5, dtype="float32")
    data = [_uint8(2, 3, 4, 5), *(_uint8(5) for _ in range(4))]
    given = [v for i, d in enumerate(data) for v in (d, *ends[2 * i : 2 * i + 2])]
    return q(
        "QuantizedBatchNormWithGlobalNormalization",
        _NORM,
        *given,
        out_type=tf.qint32,
        variance_epsilon=0.01,
        scale_after_normalization=after,
    )


def _fused(
    op: str, kernel: tuple[int, ...], channels: bool = False, whole_bias: bool = False, **attrs: Any
) -> Recipe:
    """A oneDNN op, which needs a constant filter and a summand computed in the graph."""
    g = np.random.default_rng(len(op))
    weights = g.integers(-127, 128, kernel).astype(tf.qint8.as_numpy_dtype)
    features = kernel[-1] * (kernel[-2] if "Depthwise" in op else 1)
    out = np.uint8 if "Requantize" in op else np.int32
    matmul = "MatMul" in op
    shape = (3, kernel[0]) if matmul else (2, 5, 6, kernel[2])

    def program(data: Any, bias: Any, summand: Any) -> Any:
        ranges = [[-1.0, -0.5, -0.25, -2.0, -1.0], [1.0, 0.25, 0.5, 0.5, 0.25]]
        low, high = (tf.constant(e[:features] if channels else e[0]) for e in ranges)
        names = ("a", "b") if matmul else ("input", "filter")
        given: dict[str, Any] = {names[0]: taken(data), names[1]: tf.constant(weights, tf.qint8)}
        given |= {
            f"min_{names[0]}": -1.0 if attrs.get("input_quant_mode") == "MIN_FIRST" else 0.0,
            f"max_{names[0]}": 4.0,
            f"min_{names[1]}": low,
            f"max_{names[1]}": high,
        }
        if "WithBias" in op:
            given["bias"] = (
                tf.bitcast(tf.cast(bias * 1000, tf.int32), tf.qint32) if whole_bias else bias
            )
        if op.endswith(("Requantize", "Dequantize")):
            given |= {"min_freezed_output": -3.0, "max_freezed_output": 16.0}
        if "Sum" in op and out == np.int32:
            given["summand"] = summand * 2
        elif "Sum" in op:
            kind = tf.int8 if "Signed" in op else tf.uint8
            given |= {
                "summand": taken(tf.cast(tf.abs(summand) * 20, kind)),
                "min_summand": -1.0,
                "max_summand": 3.0,
            }
        result = getattr(R, op)(**given, **attrs)
        return [given_back(t) for t in tf.nest.flatten(result)]

    result = (2, 4, 5, features) if not matmul else (1,)
    inputs = (_uint8(*shape), x(features, low=-3, high=3), x(*result))
    return p(program, *inputs, dtypes=("float32",), grad=False, tolerance=0.1)


_CONV: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "VALID"}
_KERNEL = (2, 2, 3, 5)


def _convs(op: str, out: Any) -> list[Recipe]:
    """With one range for the filter and, unless there is a summand, one per feature."""
    found = [_fused(op, _KERNEL, out_type=out, **_CONV)]
    if "Sum" not in op and op != "QuantizedConv2DAndRequantize":
        found.append(_fused(op, _KERNEL, channels=True, out_type=out, **_CONV))
    if "Sum" not in op:
        found.append(_fused(op, _KERNEL, out_type=out, strides=[1, 2, 2, 1], padding="SAME"))
    return found


_CHANNELS = "input input_min input_max requested_output_min requested_output_max"

# XLA compiles none of these ops.
QUANTIZED_MORE: dict[str, list[Recipe]] = {
    "QuantizedAdd": [
        _sum("QuantizedAdd", *data)
        for data in (
            (_uint8(2, 9), _uint8(2, 9)),
            (_uint8(2, 9), _uint8()),
            (_uint8(9), _uint8(2, 9)),
        )
    ],
    "QuantizedMul": [
        _sum("QuantizedMul", *data)
        for data in (
            (_uint8(2, 9), _uint8(2, 9)),
            (_uint8(2, 9), _uint8()),
            (_uint8(9), _uint8(2, 9)),
        )
    ],
    "QuantizedBiasAdd": [
        _sum("QuantizedBiasAdd", data(2, 3, 5), data(5), out_type=tf.qint32)
        for data in (_uint8, int8)
    ],
    "QuantizedConcat": [_concat(tf.quint8, _uint8), _concat(tf.qint32, int32)],
    "QuantizedMaxPool": _pools("QuantizedMaxPool"),
    "QuantizedAvgPool": _pools("QuantizedAvgPool"),
    "QuantizedBatchNormWithGlobalNormalization": [_batch_norm(True), _batch_norm(False)],
    "QuantizedInstanceNorm": [
        q(
            "QuantizedInstanceNorm",
            "x x_min x_max",
            _uint8(2, 5, 4, 3),
            *_ends(1),
            tolerance=1.0,
            **attrs,
        )
        for attrs in ({}, {"output_range_given": True, "given_y_min": -2.0, "given_y_max": 3.0})
    ],
    **{
        op: _convs(op, tf.qint32)
        for op in (
            "QuantizedConv2DAndRelu",
            "QuantizedConv2DPerChannel",
            "QuantizedConv2DWithBias",
            "QuantizedConv2DWithBiasAndRelu",
            "QuantizedConv2DWithBiasSumAndRelu",
        )
    },
    **{
        f"QuantizedConv2D{op}": _convs(f"QuantizedConv2D{op}", tf.quint8)
        for op in (
            "AndReluAndRequantize",
            "WithBiasAndReluAndRequantize",
            "WithBiasSignedSumAndReluAndRequantize",
            "WithBiasSumAndReluAndRequantize",
        )
    },
    **{
        f"QuantizedConv2D{op}": _convs(f"QuantizedConv2D{op}", tf.qint8)
        for op in ("AndRequantize", "WithBiasAndRequantize")
    },
    **{
        f"QuantizedDepthwiseConv2D{op}": [
            _fused(
                f"QuantizedDepthwiseConv2D{op}",
                (2, 2, 5, 1),
                c,
                out_type=tf.quint8 if "Requantize" in op else tf.qint32,
                **_CONV,
            )
            for c in (False, True)
        ]
        for op in ("", "WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
    },
    **{
        f"QuantizedMatMulWithBias{op}": [
            _fused(
                f"QuantizedMatMulWithBias{op}",
                (40, 5),
                whole_bias=whole,
                input_quant_mode=mode,
                Toutput=out,
            )
            for mode in ("SCALED", "MIN_FIRST")
            for whole in ((False, True) if op.endswith("Requantize") else (False,))
        ]
        for op, out in (
            ("", tf.qint32),
            ("AndRelu", tf.qint32),
            ("AndReluAndRequantize", tf.quint8),
            ("AndRequantize", tf.quint8),
            ("AndDequantize", tf.float32),
        )
    },
    "RequantizationRangePerChannel": [
        q(
            "RequantizationRangePerChannel",
            "input input_min input_max",
            data,
            *_ends(1, 3),
            tolerance=0.1,
            clip_value_max=clip,
        )
        for data, clip in (
            (int32(2, 4, 5, 3, high=2**30), 9.0),
            (int32(2, 4, 5, 3, high=2**30), 0.5),
            (x(2, 4, 5, 3, low=0, high=2**30, dtype="int32"), 9.0),
        )
    ],
    "RequantizePerChannel": [
        q(
            "RequantizePerChannel",
            _CHANNELS,
            int32(2, 4, 5, 3, high=2**31 - 1),
            *_ends(1, 3),
            *_ends(1),
            out_type=kind,
        )
        for kind in (tf.qint8, tf.quint8)
    ],
}

# These run where TensorFlow uses oneDNN, which it does on most machines.
ONEDNN = frozenset(
    op
    for op in QUANTIZED_MORE
    if op.startswith(("QuantizedConv2D", "QuantizedDepthwise", "QuantizedMatMul", "Requant"))
)
