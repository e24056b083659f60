"""Calls of `tf.math`, `tf.bitwise` and `tf.quantization`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.api.calls import (
    BOOL,
    DISTINCT,
    B,
    F,
    I,
    Table,
    U,
    V,
    Z,
    call,
    each,
    of,
)  # fmt: skip

M = tf.math
ALL = "float32 float64 int32 int64 complex64 complex128"
REAL = "float32 float64 int32 int64 uint8"
WHOLE = "int32 int64 int8 uint8 int16 uint32"

_NAN, _INF = float("nan"), float("inf")
_SPECIAL = [_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 40.0, 1e30]


def _grid(*values: list[float]) -> list[Any]:
    """All pairs of special values."""
    return [V(v) for v in np.meshgrid(*values)]


# Where a is not positive or infinite, TensorFlow's kernel and what it compiles by XLA differ. At
# a = x = 1e30 the sum of its kernel ends after some thousand terms that are equal, so that igamma
# and igammac do not add up to 1.
_GAMMA = (_grid([1.0, 0.5, 3.0, 40.0], _SPECIAL), [V([1e30, 1e30]), V([1e29, 1e31])])
# For infinite a and b TensorFlow's kernel has no number; here it is the limit.
_BETA = _grid(*[[v for v in _SPECIAL if abs(v) < 1e30 or v != v]] * 2, _SPECIAL)

MATH: Table = {
    **each("negative square sign", call(F(B, 4)).of(ALL), call(F(B, 4)).specials()),
    "abs": (call(F(B, 4)).of(f"{REAL[:-6]} complex64 complex128"), call(F(B, 4)).specials()),
    **each(
        "asinh atan atanh cos cosh erfc exp expm1 log_sigmoid sigmoid sin sinh softplus "
        "softsign tan tanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e",
        call(U(-0.9, 0.9, B, 4)),
        call(U(-8, 8, B, 4)),
        call(F(B, 4)).specials(),
    ),
    # TensorFlow gives NaN for infinities of double precision.
    "erf": (call(U(-8, 8, B, 4)), call(F(B, 4)).of("float32").specials()),
    **each("asin acos erfinv", call(U(-0.9, 0.9, B, 4)).specials()),
    **each("digamma lgamma", call(U(0.1, 9, B, 4)), call(F(B, 4)).specials()),
    **each("log rsqrt sqrt reciprocal", call(U(0.1, 9, B, 4)).specials(), call(Z(B, 4)).of("complex64 complex128")),
    "log1p": (call(U(-0.9, 9, B, 4)).specials(),),
    "reciprocal_no_nan": (call(F(B, 4)).specials(), call(V([0.0, 2.0, -3.0]))),
    "acosh": (call(U(1.1, 9, B, 4)).specials(),),
    **each("erfcinv", call(U(0.1, 1.9, B, 4)).specials()),
    "ndtri": (call(U(0.1, 0.9, B, 4)).specials(),),
    **each("ceil floor rint round", call(F(B, 4)), call(V([0.5, 1.5, -0.5, 2.5, 7.0])), call(F(B, 4)).specials()),
    **each("sin cos tan sinh cosh tanh exp asinh atanh", call(F(B, 4)).of("complex64 complex128"), call(F(B, 4)).specials()),
    **each("is_finite is_inf is_nan", call(F(B, 4)).specials()),
    **each("real imag conj angle", call(Z(B, 3)).of("complex64"), call(F(B, 3), ).of("float32 float64 complex128")),
    **each(
        "add subtract multiply",
        call(F(B, 4), F(B, 4)).of(f"{ALL} int8 uint8"),
        call(F(B, 1), F(4)),
        call(F(4), F(4)).specials(),
    ),
    **each(
        "maximum minimum squared_difference",
        call(F(B, 4), F(B, 4)).of("float32 float64 int32 int64"),
        call(F(B, 1), F(4)),
        call(V([1.0, 2.0, 0.0]), V([1.0, 2.0, 0.0])),
        call(F(4), F(4)).specials(),
    ),
    **each(
        "divide truediv",
        call(F(B, 4), U(0.5, 2, B, 4)).of("float32 float64 complex64"),
        call(I(-9, 9, B, 4), I(1, 4, B, 4)).of("int32"),
        call(F(4), F(4)).specials(),
    ),
    **each("divide_no_nan multiply_no_nan xdivy", call(F(B, 4), F(B, 4)), call(F(3), V([0.0, 2.0, 0.0])),
           call(V([0.0, 2.0, 0.0]), F(3)), call(F(4), F(4)).specials()),
    **each("xlogy xlog1py", call(F(B, 4), U(0.1, 4, B, 4)), call(V([0.0, 2.0, 0.0]), U(0.1, 3, 3)), call(F(4), F(4)).specials()),
    **each("floordiv floormod mod", call(F(B, 4), U(0.5, 2, B, 4)), call(I(-9, 9, B, 4), I(1, 4, B, 4)).of("int32"),
           call(I(-9, 9, B, 4, dtype="int64"), V([-3, 2, -1, 4], "int64")).of("int64"),
           call(F(4), F(4)).specials()),
    "pow": (
        call(U(0.1, 3, B, 4), F(B, 4)), call(F(B, 4), 3), call(F(B, 4), 2.0),
        call(I(-3, 4, B, 4), I(0, 4, B, 4)).of("int32"), call(Z(B, 3), Z(B, 3)).of("complex64"),
        call(V([0.0, 0.0, 2.0, 1.0]), V([0.0, 2.0, 2.0, 0.0])), call(F(4), F(4)).specials(),
        call(V([-2.0, -1.5, -3.0, 0.0, 0.0]), V([2.0, 3.0, -2.0, 0.5, -1.0])),
    ),
    "atan2": (call(F(B, 4), F(B, 4)).specials(),),
    "nextafter": (call(F(B, 4), F(B, 4)),),
    **each(
        "equal not_equal", call(I(0, 3, B, 4), I(0, 3, 4)).of("int32"), call(F(4), F(4)).specials(),
        call(Z(B, 3), Z(B, 3)).of("complex64"), call(BOOL(B, 3), BOOL(B, 3)).of("bool"),
    ),
    **each("greater greater_equal less less_equal", call(I(0, 3, B, 4), I(0, 3, 4)).of("int32"), call(F(4), F(4)).specials()),
    **each("logical_and logical_or logical_xor", call(BOOL(B, 4), BOOL(4)).of("bool")),
    "logical_not": (call(BOOL(B, 4)).of("bool"),),
    "polygamma": (call(V([1.0, 2.0, 3.0, 0.0]), U(0.5, 5, B, 4)), call(F(4), F(4)),
                  # At orders beyond 1e9 TensorFlow's kernels differ from what it compiles by XLA.
                  of(lambda x: [M.polygamma(tf.constant(n, x.dtype), x) for n in (0.0, 1.0, 2.0, 3.0)], F(4)).specials()),
    "zeta": (call(U(1.5, 5, B, 4), U(0.5, 5, B, 4)), call(F(4), F(4)).specials()),
    **each("igamma igammac", call(U(0.5, 5, B, 4), U(0.5, 5, B, 4)).near(3), *[call(*args).but(gradient="at poles and for infinite numbers") for args in _GAMMA]),
    "betainc": (call(U(0.5, 5, B, 4), U(0.5, 5, B, 4), U(0.1, 0.9, B, 4)).near(3), call(*_BETA).but(gradient="at poles")),
    "lbeta": (call(U(0.5, 5, B, 4)), call(U(0.5, 5, B, 2, 3))),
    "polyval": (call([F(B, 3), F(B, 3), F(3)], F(B, 3)), call([], F(B, 3))),
    "accumulate_n": (call([F(B, 3), F(B, 3), F(B, 3)]),),
    "add_n": (call([F(B, 3), F(B, 3), F(B, 3)]).of(ALL),),
    "scalar_mul": (call(2.5, F(B, 3)), call(F(), F(B, 3))),
    **each("argmax argmin", call(F(B, 4), axis=1), call(F(B, 4), axis=0, output_type=tf.int32).of(REAL), call(V([[1.0, 3.0, 3.0, 0.0]]), axis=-1),
           call(V([1.0, float("nan"), 3.0]))),
    "bincount": (
        call(I(0, 5, 7), minlength=5, maxlength=5),
        call(I(0, 5, 7), weights=F(7), minlength=6, maxlength=6),
        call(I(0, 5, B, 7), minlength=5, maxlength=5, axis=-1),
        call(I(0, 5, B, 7), weights=F(B, 7), minlength=5, maxlength=5, axis=-1),
        call(I(0, 8, 7), minlength=4, maxlength=4, dtype=tf.float32),
        call(I(0, 5, B, 7), minlength=5, maxlength=5, axis=-1, binary_output=True),
    ),
    "confusion_matrix": (call(I(0, 4, B), I(0, 4, B), num_classes=4), call(I(0, 4, 6), I(0, 4, 6), num_classes=4, weights=F(6), dtype=tf.float32)),
    "count_nonzero": (call(I(0, 2, B, 4), axis=1).of("int32"), call(F(B, 4), keepdims=True, dtype=tf.int32), call(BOOL(B, 3), axis=0).of("bool")),
    **each(
        "cumsum cumprod",
        call(F(B, 4), axis=1).of(ALL), call(F(B, 4), axis=0, exclusive=True),
        call(F(B, 4), axis=1, reverse=True), call(F(B, 4), axis=-1, exclusive=True, reverse=True),
        call(V([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 2.0, 1.0]]), axis=1).but(gradient="TensorFlow's of cumprod divides by the numbers, and takes 0 after a 0"),
    ),
    "cumulative_logsumexp": (call(F(B, 4), axis=1), call(F(B, 4), axis=0, exclusive=True), call(F(B, 4), axis=1, exclusive=True, reverse=True)),
    "in_top_k": (call(I(0, 4, B), F(B, 4), 2).of("float32"), call(V([0, 1, 2], "int32"), V([[1.0, 1, 0], [2.0, float("nan"), 1], [0, 5, 5]]), 1).of("float32")),
    "invert_permutation": (call(V([3, 0, 2, 1], "int32")), call(V([3, 0, 2, 1], "int64"))),
    **each("is_non_decreasing is_strictly_increasing", call(F(B)).of("float32 int32"), call(V([1.0, 1.0, 2.0])), call(V([1.0, 1.5, 2.0]))),
    "l2_normalize": (call(F(B, 4), axis=1), call(F(B, 4)), call(V([[0.0, 0.0], [3.0, 4.0]]), axis=-1, epsilon=1e-3)),
    **each("softmax log_softmax", call(F(B, 4)), call(F(B, 4, 2), axis=1), call(F(B, 4), axis=0)),
    **each(
        "reduce_max reduce_min reduce_mean reduce_prod reduce_sum",
        call(F(B, 4, 2), axis=1).of("float32 float64 int32 int64"), call(F(B, 4), axis=[0, 1]), call(F(B, 4)),
        call(F(B, 4), axis=0, keepdims=True), call(V([[1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]), axis=1),
        call(F(2, 0), axis=1), call(F(B, 4), axis=[]),
    ),
    **each("reduce_all reduce_any", call(BOOL(B, 4), axis=1).of("bool"), call(BOOL(B, 4), keepdims=True).of("bool"), call(BOOL(2, 0), axis=1).of("bool")),
    **each("reduce_euclidean_norm reduce_logsumexp reduce_std reduce_variance", call(F(B, 4), axis=1), call(F(B, 4), axis=0, keepdims=True), call(F(B, 4))),
    "sobol_sample": (call(3, 5), call(2, 7, skip=4, dtype=tf.float64)),
    "top_k": (call(DISTINCT(B, 5), k=2), call(I(0, 3, B, 5), k=3).of("int32"), call(F(B, 5), k=5, sorted=True), call(V([float("nan"), 1.0, 1.0, 0.0]), k=3)),
    "approx_max_k": (call(DISTINCT(B, 8), 3).of("float32"),),
    # TensorFlow has no kernel for it, and compiles it by XLA.
    "approx_min_k": (of(lambda x: tf.function(M.approx_min_k, jit_compile=True)(x, 3), DISTINCT(B, 8)).of("float32"),),
    "zero_fraction": (call(I(0, 2, B, 4)).of("float32 int32"),),
}  # fmt: skip

BITWISE: Table = {
    **each("bitwise_and bitwise_or bitwise_xor", call(I(0, 99, B, 4), I(0, 99, 4)).of("int32"), call(F(B, 4), F(B, 4)).of(WHOLE)),
    "invert": (call(F(B, 4)).of(WHOLE),),
    **each("left_shift right_shift", call(F(B, 4), U(0, 5, B, 4)).of(WHOLE)),
}  # fmt: skip

Q = tf.quantization
_RANGE = {"min": -2.0, "max": 3.0}
QUANTIZATION: Table = {
    "fake_quant_with_min_max_args": (call(U(-4, 4, B, 4), **_RANGE).of("float32"), call(U(-4, 4, B, 4), min=0.0, max=5.0, num_bits=4, narrow_range=True).of("float32")),
    "fake_quant_with_min_max_args_gradient": (call(F(B, 4), U(-4, 4, B, 4), **_RANGE).of("float32"),),
    "fake_quant_with_min_max_vars": (call(U(-4, 4, B, 4), V(-2.0), V(3.0)).of("float32"), call(U(-4, 4, B, 4), V(-2.0), V(3.0), num_bits=3, narrow_range=True).of("float32")),
    "fake_quant_with_min_max_vars_gradient": (call(F(B, 4), U(-4, 4, B, 4), V(-2.0), V(3.0)).of("float32"),),
    "fake_quant_with_min_max_vars_per_channel": (call(U(-4, 4, B, 3), V([-2.0, -1, -3]), V([3.0, 2, 1])).of("float32"),),
    "fake_quant_with_min_max_vars_per_channel_gradient": (call(F(B, 3), U(-4, 4, B, 3), V([-2.0, -1, -3]), V([3.0, 2, 1])).of("float32"),),
    "quantize_and_dequantize": (call(U(-4, 4, B, 4), V(-2.0), V(3.0), range_given=True).of("float32"),),
    "quantize_and_dequantize_v2": (
        call(U(-4, 4, B, 4), V(-2.0), V(3.0), range_given=True).of("float32"),
        call(U(-4, 4, B, 4), V(-2.0), V(3.0), range_given=True, signed_input=False, round_mode="HALF_UP", narrow_range=False).of("float32"),
        # With a range for each channel, TensorFlow's kernel refuses every shape of the range.
        call(U(-4, 4, B, 3), V([-2.0, -1, -3]), V([3.0, 2, 1]), range_given=False, axis=1).of("float32"),
    ),
    "quantize": (of(lambda x: tf.cast(Q.quantize(x, -2.0, 3.0, tf.quint8)[0], tf.int32), U(-3, 4, B, 4)).of("float32"),),
    "dequantize": (of(lambda x: Q.dequantize(Q.quantize(x, -2.0, 3.0, tf.quint8)[0], -2.0, 3.0), U(-3, 4, B, 4)).of("float32"),),
    "quantized_concat": "its tensors are of quantized types, which JAX does not have",
}  # fmt: skip
