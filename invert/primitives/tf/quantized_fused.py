"""Convolutions and products of quantized tensors with a bias, a summand, Relu and a new range.

The name of an op says which of these it has. As in oneDNN, which runs them in TensorFlow, sums of
integers are converted to single precision and rounded at the end. Scales as in
tensorflow/core/kernels/mkl/mkl_conv_ops.cc and mkl_qmatmul_op.cc (TensorFlow 2.21, oneDNN 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from invert.primitives.tf.matmul import product
from invert.primitives.tf.quantized import (
    centred,
    clipped,
    convolution,
    levels,
    range_of_products,
    scalars,
)
from invert.tf.interpreter.registry import Array, rule
from invert.tf.ops.node import Node

_INT32, _F32, _F64 = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float64)

Bounds = Sequence[Array]


@dataclasses.dataclass(frozen=True)
class _Operands:
    """The operands of an op, selected by its name.

    **Arguments:**

    - `x`, `kernel`, `bias`, `summand`: the tensors; `None` if there is none.
    - `of_x`, `of_kernel`, `of_result`, `of_summand`: the bounds of their ranges.
    """

    x: Array
    kernel: Array
    bias: Array
    of_x: Bounds
    of_kernel: Bounds
    of_result: Bounds
    summand: Array
    of_summand: Bounds

    @classmethod
    def of(cls, op: str, x: Array, kernel: Array, values: Sequence[Array]) -> _Operands:
        rest = list(values)

        def take(count: int) -> list[Array]:
            taken, rest[:] = rest[:count], rest[count:]
            return taken

        bias = take(1)[0] if "WithBias" in op else None
        of_x, of_kernel = take(2), take(2)
        of_result = take(2) if op.endswith(("Requantize", "Dequantize")) else []
        summand = take(1)[0] if "Sum" in op else None
        return cls(x, kernel, bias, of_x, of_kernel, of_result, summand, take(2))


def _divided(x: Array, by: float) -> Array:
    """A quotient rounded once: XLA multiplies by the inverse of a constant."""
    return (x.astype(_F64) / by).astype(_F32)


def _scale(bounds: Bounds, dtype: np.dtype) -> Array:
    """The size of a step, with zero as a level."""
    return _divided(jnp.maximum(*map(jnp.abs, bounds)), levels(dtype)[1])


def _step(bounds: Bounds, dtype: np.dtype) -> Array:
    first, last = levels(dtype)
    return _divided(bounds[1] - bounds[0], last - max(first, -last))


def _range(operands: _Operands) -> list[Array]:
    """The bounds of the result."""
    if operands.of_result:
        return list(operands.of_result)
    step = _step(operands.of_x, operands.x.dtype) * _step(operands.of_kernel, operands.kernel.dtype)
    first, last = levels(_INT32)
    return [step * np.float32(first), step * np.float32(last)]


_WITH_BIAS = ("WithBias", "WithBiasAndRelu", "WithBiasAndReluAndRequantize")
_AFTER_CONV = (
    "AndRelu", "AndReluAndRequantize", "AndRequantize", "PerChannel", *_WITH_BIAS,
    "WithBiasAndRequantize", "WithBiasSignedSumAndReluAndRequantize", "WithBiasSumAndRelu",
    "WithBiasSumAndReluAndRequantize",
)  # fmt: skip


@rule(
    *(f"QuantizedConv2D{rest}" for rest in ("", *_AFTER_CONV)),
    *(f"QuantizedDepthwiseConv2D{rest}" for rest in ("", *_WITH_BIAS)),
)
def _conv(
    x: Array,
    kernel: Array,
    *rest: Array,
    node: Node,
    Tinput: np.dtype,
    Tfilter: np.dtype,
    out_type: np.dtype,
    strides: list[int],
    padding: str,
    dilations: list[int],
    padding_list: Sequence[int] = (),
) -> list[Array]:
    if node.op == "QuantizedConv2D" and Tfilter == np.uint8:
        if any(d != 1 for d in dilations):
            raise node.error(
                "has dilations, for which TensorFlow has no kernel", "Export it without dilations."
            )
        bounds = scalars(rest)
        levels_ = centred(x, Tinput, *bounds[:2]), centred(kernel, Tfilter, *bounds[2:])
        sums = convolution(*levels_, strides, padding)
        return [sums, *range_of_products(bounds, (Tinput, Tfilter))]
    operands = _Operands.of(node.op, x, kernel, rest)
    groups, weights = 1, kernel.astype(_INT32)
    if "Depthwise" in node.op:
        groups = kernel.shape[2]
        weights = jnp.reshape(weights, (*kernel.shape[:2], 1, groups * kernel.shape[3]))
    sums = convolution(x.astype(_INT32), weights, strides, padding, padding_list, dilations, groups)
    return _after_sums(node.op, operands, sums, _scale(operands.of_x, x.dtype), out_type)


@rule(
    *(
        f"QuantizedMatMul{rest}"
        for rest in (*_WITH_BIAS, "WithBiasAndDequantize", "WithBiasAndRequantize")
    )
)
def _matmul(
    x: Array, kernel: Array, *rest: Array, node: Node, Toutput: np.dtype, input_quant_mode: str
) -> list[Array]:
    operands = _Operands.of(node.op, x, kernel, rest)
    sums = product(node, x.astype(_INT32), kernel.astype(_INT32))
    if input_quant_mode == "SCALED":
        return _after_sums(node.op, operands, sums, _scale(operands.of_x, x.dtype), Toutput)
    if operands.bias.dtype != _INT32:
        # The zero level of x contributes the sums of the kernel's levels.
        low, high = operands.of_x
        offset = np.float32(255) * low / (high - low)
        bias = operands.bias + jnp.sum(kernel.astype(_INT32), 0).astype(_F32) * offset
        operands = dataclasses.replace(operands, bias=bias)
    return _after_sums(node.op, operands, sums, _step(operands.of_x, x.dtype), Toutput)


def _after_sums(
    op: str, operands: _Operands, sums: Array, of_x: Array, dtype: np.dtype
) -> list[Array]:
    """The part of an op after the sums of products; `of_x`: the step size of x."""
    of_kernel = _scale(operands.of_kernel, operands.kernel.dtype)
    reals = sums.astype(_F32) * (of_x * of_kernel)
    if operands.bias is not None:
        whole = operands.bias.dtype == _INT32
        bias = operands.bias.astype(_F32) * (of_x * of_kernel) if whole else operands.bias
        reals = reals + bias
    if operands.summand is not None:
        reals = reals + _summand(operands)
    if "Relu" in op:
        reals = jnp.maximum(reals, 0)
    if op.endswith("Dequantize"):
        return [reals]
    if dtype == _INT32:
        # If each feature has a range, the largest counts.
        bounds = jnp.min(operands.of_kernel[0]), jnp.max(operands.of_kernel[1])
        step = of_x * _scale(bounds, operands.kernel.dtype)
    else:
        step = _scale(operands.of_result, dtype)
    return [clipped(jnp.round(reals / step), dtype), *_range(operands)]


def _summand(operands: _Operands) -> Array:
    if not operands.of_summand:
        return operands.summand
    return operands.summand.astype(_F32) * _scale(operands.of_summand, operands.summand.dtype)
