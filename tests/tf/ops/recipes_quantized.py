"""Inputs of ops on tensors of quantized types, which are compared as integers, bit for bit."""

# One row for each op, however long.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.util.quantization import uniform_quant_ops_attr_pb2 as attr_pb2

from tests.tf.ops.cases import Recipe, X, p, x

R = tf.raw_ops

_WHOLE = {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint32: tf.int32}
_QUANTIZED = {whole: kind for kind, whole in _WHOLE.items()}


def taken(value: Any) -> Any:
    """Integers as a tensor of a quantized type; other tensors unchanged."""
    kind = _QUANTIZED.get(value.dtype)
    return value if kind is None else tf.bitcast(value, kind)


def given_back(value: Any) -> Any:
    return tf.bitcast(value, _WHOLE[value.dtype]) if value.dtype in _WHOLE else value


def quantized(
    op: str, *names: str, plain: tuple[str, ...] = (), **attrs: Any
) -> Callable[..., Any]:
    """A program that calls `op` on inputs of the given names.

    **Arguments:**

    - `plain`: the inputs that stay whole numbers.
    """

    def program(*values: Any) -> Any:
        given = {n: v if n in plain else taken(v) for n, v in zip(names, values, strict=True)}
        results = getattr(R, op)(**given, **attrs)
        return [given_back(t) for t in tf.nest.flatten(results)]

    return program


def q(op: str, names: str, *inputs: X, tolerance: float = 0.0, **attrs: Any) -> Recipe:
    words = names.split()
    plain = tuple(n for n in words if "zero_points" in n)
    program = quantized(op, *words, plain=plain, **attrs)
    return p(program, *inputs, dtypes=("float32",), grad=False, tolerance=tolerance)


def int8(*shape: int) -> X:
    return x(*shape, low=-128, high=128, dtype="int8")


def int32(*shape: int, high: int = 2**20) -> X:
    return x(*shape, low=-high, high=high, dtype="int32")


def _scale(*shape: int) -> X:
    return x(*shape, low=0.05, high=2, dtype="float32")


def _zero(*shape: int) -> X:
    return x(*shape, low=-9, high=9, dtype="int32")


def _bounds(prefix: str, axis: int = -1, bits: int = 8) -> dict[str, int]:
    """The attributes of one operand."""
    most = 2 ** (bits - 1)
    values = {"axis": axis, "min_val": -most, "max_val": most - 1}
    return {f"{prefix}quantization_{k}": v for k, v in values.items()}


_ONE = "input scales zero_points"
_TWO = (
    "lhs rhs lhs_scales lhs_zero_points rhs_scales rhs_zero_points output_scales output_zero_points"
)
_HYBRID = "lhs rhs rhs_scales rhs_zero_points"
_REQUANTIZE = "input input_scales input_zero_points output_scales output_zero_points"


def _quantize(kind: Any, low: int, high: int, axis: int, *shape: int) -> Recipe:
    bounds = {"quantization_axis": axis, "quantization_min_val": low, "quantization_max_val": high}
    return q(
        "UniformQuantize",
        _ONE,
        x(2, 3, 4, low=-60, high=60),
        _scale(*shape),
        _zero(*shape),
        Tout=kind,
        **bounds,
    )


def _requantize(old: int, new: int, data: X) -> Recipe:
    olds, news = ((3,) if axis == 1 else () for axis in (old, new))
    return q(
        "UniformRequantize",
        _REQUANTIZE,
        data,
        _scale(*olds),
        _zero(*olds),
        _scale(*news),
        _zero(*news),
        Tout=tf.qint8,
        **_bounds("input_", old),
        **_bounds("output_", new),
    )


def _add(left: tuple[int, ...], right: tuple[int, ...], axes: tuple[int, int, int]) -> Recipe:
    scales = [
        s for axis in axes for s in ((_scale(), _zero()) if axis == -1 else (_scale(3), _zero(3)))
    ]
    names = ("lhs_", "rhs_", "output_")
    bounds = [_bounds(n, a, 20) for n, a in zip(names, axes, strict=True)]
    return q(
        "UniformQuantizedAdd",
        _TWO,
        int32(*left),
        int32(*right),
        *scales,
        **bounds[0],
        **bounds[1],
        **bounds[2],
    )


def _clip(axis: int, *shape: int) -> Recipe:
    ends = [x(*shape, low=a, high=b, dtype="int32") for a, b in ((-20, 0), (0, 20))]
    return q(
        "UniformQuantizedClipByValue",
        "operand min max scales zero_points",
        int32(2, 3, high=40),
        *ends,
        _scale(*shape),
        _zero(*shape),
        **_bounds("", axis),
    )


def _product(
    op: str, left: X, right: X, features: int, axis: int, out: int, **attrs: Any
) -> list[Recipe]:
    """With one range for the second operand, one per feature, and a range for the result."""
    found = []
    for right_axis, out_axis in ((-1, -1), (axis, -1), (axis, out)):
        many = [() if a == -1 else (features,) for a in (right_axis, out_axis)]
        bounds = {
            **_bounds("lhs_"),
            **_bounds("rhs_", right_axis),
            **_bounds("output_", out_axis, 32),
        }
        found.append(
            q(
                op,
                _TWO,
                left,
                right,
                _scale(),
                _zero(),
                _scale(*many[0]),
                _zero(*many[0]),
                _scale(*many[1]),
                _zero(*many[1]),
                Tout=tf.qint32,
                **bounds,
                **attrs,
            )
        )
    return found


def _hybrid(op: str, left: X, right: X, features: int, axis: int, **attrs: Any) -> list[Recipe]:
    found = []
    for right_axis in (-1, axis):
        many = () if right_axis == -1 else (features,)
        found.append(
            q(
                op,
                _HYBRID,
                left,
                right,
                _scale(*many),
                _zero(*many),
                Tout=tf.float32,
                **_bounds("rhs_", right_axis),
                **attrs,
            )
        )
    return found


# Features last, and filters as TensorFlow has them.
_LAST = attr_pb2.UniformQuantizedConvolutionDimensionNumbersAttr(
    input_batch_dimension=0, input_feature_dimension=3, input_spatial_dimensions=[1, 2],
    kernel_output_feature_dimension=3, kernel_input_feature_dimension=2, kernel_spatial_dimensions=[0, 1],
    output_batch_dimension=0, output_feature_dimension=3, output_spatial_dimensions=[1, 2],
).SerializeToString()  # fmt: skip
_STRIDED: dict[str, Any] = {
    "padding": "SAME",
    "window_strides": [2, 1],
    "rhs_dilation": [1, 2],
    "dimension_numbers": _LAST,
}
_GROUPED: dict[str, Any] = {
    "padding": "EXPLICIT",
    "explicit_padding": [1, 0, 2, 1],
    "lhs_dilation": [2, 1],
}

_RANGE = "input min_range max_range"


def _dequantize(data: X, mode: str, *shape: int, **attrs: Any) -> Recipe:
    ends = [x(*shape, low=a, high=b, dtype="float32") for a, b in ((-3, -1), (1, 4))]
    return q("Dequantize", _RANGE, data, *ends, tolerance=1.0, mode=mode, **attrs)


QUANTIZED: dict[str, list[Recipe]] = {
    "Dequantize": [
        *(
            _dequantize(data, mode)
            for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED")
            for data in (int8(2, 3), x(2, 3, low=0, high=256, dtype="uint8"))
        ),
        _dequantize(int8(2, 3), "SCALED", 3, axis=1),
    ],
    "UniformQuantize": [
        _quantize(tf.qint8, -128, 127, -1),
        _quantize(tf.quint8, 0, 255, 1, 3),
        _quantize(tf.qint32, -500, 500, 2, 4),
        _quantize(tf.qint8, -127, 127, 0, 2),
    ],
    "UniformDequantize": [
        *(
            q(
                "UniformDequantize",
                _ONE,
                x(2, 3, low=-128, high=128, dtype=t),
                _scale(),
                _zero(),
                Tout=tf.float32,
                **_bounds(""),
            )
            for t in ("int8", "int32")
        ),
        q(
            "UniformDequantize",
            _ONE,
            x(2, 3, low=0, high=256, dtype="uint8"),
            _scale(3),
            _zero(3),
            Tout=tf.float32,
            **_bounds("", 1),
        ),
    ],
    "UniformRequantize": [
        *(_requantize(*axes, int8(2, 3)) for axes in ((-1, -1), (1, -1), (-1, 1), (1, 1))),
        _requantize(1, 1, int32(2, 3, high=2**31 - 1)),
    ],
    "UniformQuantizedAdd": [
        _add((2, 3), (2, 3), (-1, -1, -1)),
        _add((2, 3), (2, 1), (-1, -1, -1)),
        _add((2, 3), (3,), (1, 0, 1)),
        _add((2, 3), (2, 3), (1, -1, -1)),
    ],
    "UniformQuantizedClipByValue": [_clip(-1), _clip(1, 3), _clip(0, 2)],
    "UniformQuantizedDot": _product("UniformQuantizedDot", int8(3, 40), int8(40, 5), 5, 1, 1),
    "UniformQuantizedConvolution": [
        *_product(
            "UniformQuantizedConvolution",
            int8(2, 3, 5, 6),
            int8(4, 3, 2, 3),
            4,
            0,
            1,
            padding="VALID",
        ),
        *_product(
            "UniformQuantizedConvolution", int8(2, 5, 6, 3), int8(2, 3, 3, 4), 4, 3, 3, **_STRIDED
        ),
        *_product(
            "UniformQuantizedConvolution",
            int8(2, 4, 5, 6),
            int8(4, 2, 2, 3),
            4,
            0,
            1,
            feature_group_count=2,
            **_GROUPED,
        ),
        *_product(
            "UniformQuantizedConvolution",
            int8(4, 3, 5, 6),
            int8(4, 3, 2, 3),
            4,
            0,
            1,
            batch_group_count=2,
            padding="VALID",
        ),
    ],
    "UniformQuantizedDotHybrid": _hybrid("UniformQuantizedDotHybrid", x(3, 40), int8(40, 5), 5, 1),
    "UniformQuantizedConvolutionHybrid": [
        *_hybrid(
            "UniformQuantizedConvolutionHybrid", x(2, 5, 6, 3), int8(2, 3, 3, 4), 4, 3, **_STRIDED
        ),
        *_hybrid(
            "UniformQuantizedConvolutionHybrid",
            x(4, 3, 5, 6),
            int8(4, 3, 2, 3),
            4,
            0,
            batch_group_count=2,
            padding="VALID",
        ),
    ],
}
