"""Convolutions and products of quantized tensors with a bias, a summand, Relu and a new range.

The name of an op says which of them it has. As oneDNN, which runs them in TensorFlow: sums of whole
numbers are brought to single precision, and rounded at the end. Scales as in
tensorflow/core/kernels/mkl/mkl_conv_ops.cc and mkl_qmatmul_op.cc (TensorFlow 2.21, oneDNN 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from invert.primitives.tf.matmul import product
from invert.primitives.tf.quantized import convolution, convolution_of_levels, levels
from invert.tf.interpreter.context import Context
from invert.tf.interpreter.registry import raises_tf
from invert.tf.ops.node import Node
from invert.tf.values.constants import array

_INT32, _F32, _F64 = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float64)


@dataclasses.dataclass(frozen=True)
class _Operands:
    """The inputs of an op, by what its name says it has.

    **Arguments:**

    - `x`, `kernel`, `bias`, `summand`: the tensors; `None` where there is none.
    - `of_x`, `of_kernel`, `of_result`, `of_summand`: the bounds of their ranges.
    """

    x: Any
    kernel: Any
    bias: Any
    of_x: Sequence[Any]
    of_kernel: Sequence[Any]
    of_result: Sequence[Any]
    summand: Any
    of_summand: Sequence[Any]

    @classmethod
    def of(cls, node: Node, values: list[Any]) -> _Operands:
        rest = [array(v) for v in values]

        def take(count: int) -> list[Any]:
            taken, rest[:] = rest[:count], rest[count:]
            return taken

        x, kernel = take(2)
        bias = take(1)[0] if "WithBias" in node.op else None
        of_x, of_kernel = take(2), take(2)
        of_result = take(2) if node.op.endswith(("Requantize", "Dequantize")) else []
        summand = take(1)[0] if "Sum" in node.op else None
        return cls(x, kernel, bias, of_x, of_kernel, of_result, summand, take(2))


def _largest(bounds: Sequence[Any]) -> Any:
    return jnp.maximum(jnp.abs(bounds[0]), jnp.abs(bounds[1]))


def _divided(x: Any, by: float) -> Any:
    """A quotient that is rounded once: XLA divides by a constant by way of its inverse."""
    return (x.astype(_F64) / by).astype(_F32)


def _scale(bounds: Sequence[Any], dtype: np.dtype) -> Any:
    """What a level is worth, where zero is a level."""
    return _divided(_largest(bounds), levels(dtype)[1])


def _step(bounds: Sequence[Any], dtype: np.dtype) -> Any:
    first, last = levels(dtype)
    return _divided(bounds[1] - bounds[0], last - max(first, -last))


def _range(node: Node, given: _Operands) -> list[Any]:
    """The bounds that the result states."""
    if given.of_result:
        return list(given.of_result)
    step = _step(given.of_x, given.x.dtype) * _step(given.of_kernel, given.kernel.dtype)
    first, last = levels(_INT32)
    return [step * np.float32(first), step * np.float32(last)]


def _sums(node: Node, given: _Operands) -> Any:
    x, kernel = given.x.astype(_INT32), given.kernel.astype(_INT32)
    if "MatMul" in node.op:
        return product(node, x, kernel)
    groups = 1
    if "Depthwise" in node.op:
        groups = kernel.shape[2]
        kernel = jnp.reshape(kernel, (*kernel.shape[:2], 1, groups * kernel.shape[3]))
    return convolution(node, x, kernel, groups)


def _fused(node: Node, values: list[Any]) -> list[Any]:
    given = _Operands.of(node, values)
    of_x = _scale(given.of_x, given.x.dtype)
    first_level = "MatMul" in node.op and node.attr("input_quant_mode", "MIN_FIRST") != "SCALED"
    if first_level:
        of_x = _step(given.of_x, given.x.dtype)
    of_kernel = _scale(given.of_kernel, given.kernel.dtype)
    reals = _sums(node, given).astype(_F32) * (of_x * of_kernel)
    if given.bias is not None:
        reals = reals + _bias(given, of_x * of_kernel, first_level)
    if given.summand is not None:
        reals = reals + _summand(given)
    if "Relu" in node.op:
        reals = jnp.maximum(reals, 0)
    if node.op.endswith("Dequantize"):
        return [reals]
    dtype = node.attr("Toutput" if "MatMul" in node.op else "out_type", np.dtype(np.uint8))
    if dtype == _INT32:
        # Where there is a range for each feature, the largest counts.
        least, most = jnp.min(given.of_kernel[0]), jnp.max(given.of_kernel[1])
        worth = of_x * _scale((least, most), given.kernel.dtype)
    else:
        worth = _scale(given.of_result, dtype)
    first, last = levels(dtype)
    found = jnp.round(reals / worth)
    found = jnp.clip(found, np.float32(first), min(np.float32(last), np.float32(2147483520)))
    return [found.astype(dtype), *_range(node, given)]


def _bias(given: _Operands, worth: Any, first_level: bool) -> Any:
    if given.bias.dtype == _INT32:
        return given.bias.astype(_F32) * worth
    if not first_level:
        return given.bias
    # For the first level, which is not zero: as often as levels of the kernel add up to.
    low, high = given.of_x
    offset = np.float32(255) * low / (high - low)
    return given.bias + jnp.sum(given.kernel.astype(_INT32), 0).astype(_F32) * offset


def _summand(given: _Operands) -> Any:
    if not given.of_summand:
        return given.summand
    return given.summand.astype(_F32) * _scale(given.of_summand, given.summand.dtype)


_WITH_BIAS = ("WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
_AFTER_CONV = (
    "AndRelu", "AndReluAndRequantize", "AndRequantize", "PerChannel", *_WITH_BIAS,
    "WithBiasAndRequantize", "WithBiasSignedSumAndReluAndRequantize", "WithBiasSumAndRelu",
    "WithBiasSumAndReluAndRequantize",
)  # fmt: skip


@raises_tf(
    *(f"QuantizedConv2D{rest}" for rest in ("", *_AFTER_CONV)),
    *(f"QuantizedDepthwiseConv2D{rest}" for rest in ("", *_WITH_BIAS)),
    *(
        f"QuantizedMatMul{rest}"
        for rest in (*_WITH_BIAS, "WithBiasAndDequantize", "WithBiasAndRequantize")
    ),
)
def _rule(ctx: Context, node: Node, values: list[Any]) -> list[Any]:
    if node.op == "QuantizedConv2D" and node.attr("Tfilter") == np.uint8:
        return convolution_of_levels(node, values)
    return _fused(node, values)
