"""Calls of `keras.ops` on the TensorFlow backend: arrays, mathematics, neural networks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.tf.api.calls import (
    BOOL,
    DISTINCT,
    PROBS,
    SPD,
    TRI,
    WELL,
    B,
    F,
    I,
    Table,
    U,
    V,
    Z,
    call,
    each,
    left_out,
    of,
)  # fmt: skip

K = keras.ops
ONE = "float32"
_NAN = float("nan")
_NANS = V([[1.0, _NAN, 2.0], [4.0, 3.0, 9.0]])
_OTHER = "TensorFlow's goes to the other number where one is none"
_EAGER = "Keras runs it op by op only: it fails in a graph of TensorFlow"
IMG = F(B, 5, 6, 2)

UNARY: Table = {
    **each(
        "abs absolute arcsinh arctan cbrt ceil cos cosh deg2rad exp exp2 expm1 floor negative rad2deg round sign sin sinc sinh square tan tanh trunc fabs "
        "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid relu relu6 selu sigmoid silu softplus softsign sparse_plus sparse_sigmoid "
        "squareplus swish tanh_shrink hard_shrink soft_shrink erf erfc i0 logsumexp",
        call(F(B, 4)).of(ONE), call(V([0.0, -0.0, 1.0, -1.0, 3.0])).of(ONE),
    ),
    **each("celu elu gelu hard_sigmoid leaky_relu selu softplus", call(F(B, 4))),
    **each("abs absolute sign square negative", call(I(-4, 5, B, 3)), call(F(B, 4))),
    "gelu": (call(F(B, 4)), call(F(B, 4), approximate=False)),
    "log_softmax": (call(F(B, 4)), call(F(B, 3, 2), axis=1)),
    "softmax": (call(F(B, 4)), call(F(2, 3, 2), axis=(1, 2))),
    "sparsemax": (call(F(B, 4)),),
    "threshold": (call(F(B, 4), 0.2, -1.0),),
    "glu": (call(F(B, 4)), call(F(B, 4, 3), axis=1)),
    **each("arcsin arccos arctanh erfinv", call(U(-0.9, 0.9, B, 4)).of(ONE)),
    "arccosh": (call(U(1.1, 5, B, 4)).of(ONE),),
    **each("log log10 log1p log2 sqrt rsqrt reciprocal", call(U(0.1, 5, B, 4)).of(ONE)),
    **each("log log10 log1p log2 sqrt", call(U(0.1, 5, B, 4)).of(ONE), call(I(1, 9, B)).of(ONE)),
    **each("isfinite isinf isnan isneginf isposinf signbit", call(V([_NAN, float("inf"), -float("inf"), -0.0, 1.0])).of(ONE)),
    "isreal": (call(F(B, 2)).of(ONE), call(V([1 + 0j, 1j], "complex64")).of(ONE)),
    **each("conj conjugate real imag angle", call(Z(B, 3)).of("complex64"), call(F(B, 3)).of(ONE)),
    "logical_not": (call(BOOL(B)).of("bool"),),
    **each("bitwise_not bitwise_invert", call(I(-9, 9, B))),
    "nan_to_num": (call(V([_NAN, float("inf"), -float("inf"), 2.0])).of(ONE), call(V([_NAN, float("inf"), 1.0]), 5.0, 6.0).of(ONE)),
    **each("copy identity stop_gradient convert_to_tensor", call(F(B, 3)).of(ONE)),
    "identity": (of(lambda x: x * K.identity(3), F(3)).of(ONE),),
    "unique": (call(V([2.0, 1.0, 2.0])).of(ONE).refused("which goes into tf.TopKV2"),), "nonzero": (of(lambda x: (x, K.nonzero([1, 0, 2])), F()).of(ONE),),
}  # fmt: skip

BINARY: Table = {
    **each("add subtract multiply", call(F(B, 4), F(4)).of("float32 int32"), call(I(0, 4, B), F(B)).of(ONE), call(F(B), 2).of(ONE)),
    **each("divide true_divide divide_no_nan", call(F(B, 4), U(0.5, 2, 4)).of(ONE), call(I(-9, 9, B), I(1, 4, B)).of(ONE)),
    **each("floor_divide mod fmod", call(F(B, 4), U(0.5, 2, 4)).of(ONE), call(I(-9, 9, B), I(1, 4, B)).of(ONE)),
    **each("maximum minimum fmax fmin", call(F(B, 4), F(4)).of("float32 int32"), call(V([_NAN, 1.0, 2.0]), V([1.0, 1.0, _NAN])).of(ONE).but(gradient=_OTHER)),
    "power": (call(U(0.2, 3, B, 4), F(4)).of(ONE), call(I(0, 4, B), I(0, 3, B)).of(ONE)),
    **each("arctan2 hypot logaddexp logaddexp2 nextafter", call(F(B, 4), F(4)).of(ONE)),
    "heaviside": (call(F(B, 4), F(4)).of(ONE), call(V([0.0, 1.0]), V([0.5, 0.5])).of(ONE)),
    **each("equal not_equal greater greater_equal less less_equal", call(I(0, 3, B, 3), I(0, 3, 3)).of(ONE), call(F(B), F(B)).of(ONE)),
    **each("logical_and logical_or logical_xor", call(BOOL(B, 3), BOOL(3)).of("bool")),
    **each("bitwise_and bitwise_or bitwise_xor", call(I(0, 20, B, 3), I(0, 20, 3)).of(ONE)),
    **each("gcd lcm", call(I(0, 20, 2, 3), I(0, 20, 3)).of(ONE)),
    **each("bitwise_left_shift bitwise_right_shift left_shift right_shift", call(I(0, 20, B, 3), I(0, 4, 3)).of(ONE)),
    **each("isclose allclose", call(F(B, 3), F(B, 3)).of(ONE), call(V([1.0, 2.0]), V([1.0, 2.00001])).of(ONE)),
    **left_out(_EAGER, "isin digitize corrcoef bartlett vectorize kron unfold"),
    "ldexp": (call(F(B), I(-2, 4, B)).of(ONE),),
    "polar": (call(U(0, 2, B), F(B)).of(ONE),),
    **each("cross", call(F(B, 3), F(B, 3)).of(ONE)),
    "cdist": (call(F(4, 3), F(2, 3)).of(ONE), call(F(B, 4, 3), F(B, 2, 3)).of(ONE)),
}  # fmt: skip

REDUCTIONS: Table = {
    **each("sum prod mean max min amax amin std var", call(F(B, 4)).of(ONE), call(F(B, 4), axis=1, keepdims=True).of(ONE), call(F(B, 3, 2), axis=(0, 2)).of(ONE)),
    **each("sum prod max min", call(F(B, 4)).of("float32 int32"), call(F(B, 4), axis=1, keepdims=True).of(ONE)),
    **each("all any", call(BOOL(B, 4)).of("bool"), call(BOOL(B, 4), axis=1, keepdims=True).of("bool")),
    **each("argmax argmin", call(F(B, 4)).of(ONE), call(F(B, 4), axis=1, keepdims=True).of(ONE)),
    **each("nanargmax nanargmin nanmax nanmean nanmin nanprod nanstd nansum nanvar", call(_NANS, axis=1).of(ONE), call(F(B, 3)).of(ONE)),
    **each("nancumsum nancumprod", call(_NANS, axis=1).of(ONE)),
    **left_out(_EAGER, "nanmedian nanpercentile nanquantile"),
    "argpartition": (call(F(6), 2).of(ONE), call(DISTINCT(3, 5), 2, axis=0).of(ONE)),
    # The number of those in the range depends on data, and is the size of the second axis.
    "histogram": (call(F(7), bins=4).of(ONE).refused("which goes into tf.Reshape"),),
    "argsort": (call(F(B, 4)).of(ONE), call(F(3, 4), axis=0).of(ONE)),
    "sort": (call(F(B, 4)).of(ONE), call(F(B, 4), axis=0).of(ONE)),
    "ptp": (call(F(B, 4)).of(ONE), call(F(B, 4), axis=1).of(ONE)),
    "average": (call(F(B, 4)).of(ONE), call(F(B, 4), axis=1, weights=U(0.1, 1, 4)).of(ONE)),
    "median": (call(F(B, 5)).of(ONE), call(F(B, 4), axis=1, keepdims=True).of(ONE)),
    "quantile": (call(F(B, 5), 0.3, axis=1).of(ONE), call(F(B, 5), V([0.1, 0.9]), axis=-1, method="nearest").of(ONE), call(F(3, 5), 0.5, method="lower").of(ONE)),
    "percentile": (call(F(B, 5), 30, axis=1).of(ONE),),
    "count_nonzero": (call(I(0, 2, B, 4), axis=1).of(ONE),),
    **each("cumsum cumprod", call(F(B, 4), axis=1).of(ONE), call(F(2, 3)).of(ONE)),
    "trace": (call(F(B, 3, 3), axis1=1, axis2=2).of(ONE),),
    "logsumexp": (call(F(B, 4)).of(ONE), call(F(B, 4), axis=1, keepdims=True).of(ONE)),
    "moments": (call(F(B, 4), [0]).of(ONE), call(F(B, 4), [1], keepdims=True).of(ONE)),
    "norm": (call(F(B, 4)).of(ONE), call(F(B, 4), ord=1, axis=1).of(ONE), call(F(3, 3), ord="fro").of(ONE), call(F(B, 3, 3), ord=2, axis=(1, 2)).of(ONE).near(10), call(F(B, 3, 3), ord="nuc", axis=(1, 2)).of(ONE).near(10), call(F(B, 4), ord=3, axis=1, keepdims=True).of(ONE)),
    "trapezoid": (call(F(B, 4)).of(ONE), call(F(B, 4), V([0.0, 1.0, 3.0, 4.0])).of(ONE)),
    "correlate": (call(F(5), F(3)).of(ONE), call(F(5), F(3), mode="same").of(ONE), call(F(5), F(3), mode="full").of(ONE)),
    "bincount": (of(lambda x: K.bincount([0, 1, 1, 3], weights=x, minlength=5), F(4)).of(ONE),),
    "searchsorted": (call(V([1.0, 2.0, 2.0, 5.0]), F(B)).of(ONE), call(V([1.0, 2.0, 2.0, 5.0]), U(0, 6, B), side="right").of(ONE)),
    "top_k": (call(DISTINCT(B, 5), 2).of(ONE),),
    "in_top_k": (call(I(0, 4, B), F(B, 4), 2).of(ONE),),
    **{f"segment_{n}": (call(F(B, 2), I(0, 4, B), 5).of(ONE), of(lambda x, n=n: getattr(K, f"segment_{n}")(x, tf.constant([0, 0, 2, 2]), sorted=True), F(4, 2)).of(ONE)) for n in ("max", "min", "prod", "sum")},
    **each("diff", call(F(B, 5)).of(ONE), call(F(B, 5), 2, axis=1).of(ONE)),
}  # fmt: skip

SHAPES: Table = {
    "append": (call(F(B, 3), F(2, 3), axis=0).of(ONE), call(F(2), F(3)).of(ONE)),
    "array": (call(F(B, 3)).of(ONE),),
    "array_split": (call(F(B, 7), 3, axis=1).of(ONE),),
    "broadcast_to": (call(F(3), (2, 3)).of(ONE),),
    "cast": (call(F(B, 3), "int32").of(ONE), call(F(B, 3), "float16").of(ONE)),
    "saturate_cast": (call(U(-400, 400, B), "uint8").of(ONE),),
    "concatenate": (call([F(B, 3), F(B, 2)], axis=1).of(ONE), call([F(B), F(2)]).of(ONE)),
    "stack": (call([F(B, 3), F(B, 3)], axis=1).of(ONE),),
    **each("hstack vstack dstack", call([F(B, 3), F(B, 3)]).of(ONE)),
    "diag": (call(F(3)).of(ONE), call(F(3, 4), k=1).of(ONE)),
    "diagflat": (call(F(2, 2), 1).of(ONE),),
    "diagonal": (call(F(B, 3, 4), axis1=1, axis2=2).of(ONE), call(F(4, 4), offset=-1).of(ONE)),
    "expand_dims": (call(F(B, 3), 1).of(ONE), call(F(B, 3), (0, -1)).of(ONE)),
    "squeeze": (call(F(B, 1, 3)).of(ONE), call(F(B, 1, 3), 1).of(ONE)),
    **each("flip", call(F(B, 3)).of(ONE), call(F(B, 3), 1).of(ONE)),
    **each("fliplr flipud ravel", call(F(B, 3)).of(ONE)),
    "moveaxis": (call(F(B, 3, 4), 0, 2).of(ONE),),
    "swapaxes": (call(F(B, 3, 4), 1, 2).of(ONE),),
    "transpose": (call(F(B, 3)).of(ONE), call(F(B, 3, 2), axes=(1, 0, 2)).of(ONE)),
    "rearrange": (call(F(B, 4, 6), "b (h i) w -> b h (i w)", i=2).of(ONE),),
    "pad": (call(F(B, 3), [[0, 0], [1, 2]], "constant", constant_values=1.5).of(ONE), call(F(B, 3), [[0, 0], [1, 2]], "reflect").of(ONE), call(F(B, 3), [[0, 0], [1, 2]], "symmetric").of(ONE)),
    "repeat": (call(F(B, 3), 2, axis=1).of(ONE), call(F(2, 3), 2).of(ONE)),
    "reshape": (call(F(B, 6), (-1, 3)).of(ONE),),
    "roll": (call(F(B, 3), 1).of(ONE), call(F(B, 3), 2, axis=1).of(ONE)),
    "rot90": (call(F(B, 3)).of(ONE), call(F(B, 3, 2), 3, axes=(1, 2)).of(ONE)),
    "split": (call(F(B, 6), 3, axis=1).of(ONE), call(F(B, 6), [1, 4], axis=1).of(ONE)),
    "hsplit": (call(F(B, 6), 3).of(ONE),), "vsplit": (call(F(4, 3), 2).of(ONE),), "dsplit": (call(F(B, 2, 4), 2).of(ONE),),
    "unstack": (call(F(B, 3), axis=1).of(ONE),),
    "tile": (call(F(B, 3), 2).of(ONE), call(F(B, 3), [2, 1]).of(ONE)),
    **each("tril triu", call(F(B, 3, 4)).of(ONE), call(F(3, 3), 1).of(ONE)),
    "vander": (call(F(3)).of(ONE), call(F(3), 4, increasing=True).of(ONE)),
    "take": (call(F(B, 5), I(-5, 5, 3), axis=1).of(ONE), call(F(2, 3), I(0, 6, 4)).of(ONE)),
    "take_along_axis": (call(F(B, 5), I(-5, 5, B, 2), axis=1).of(ONE), call(F(4), I(0, 4, 3)).of(ONE)),
    "get_item": (call(F(B, 5), (slice(None), 2)).of(ONE), of(lambda x: K.get_item(x, (slice(None), slice(None, None, 2))), F(B, 5)).of(ONE)),
    "select": (call([BOOL(B), BOOL(B)], [F(B), F(B)], 2.5).of(ONE),),
    "where": (call(BOOL(B, 3), F(B, 3), F(3)).of(ONE),),
    "clip": (call(F(B, 3), -0.5, 0.5).of(ONE), call(F(B, 3), -1, 2).of("int32")),
    "eye": (of(lambda x: x * K.eye(3, 4, 1), F(4)).of(ONE),),
    "tri": (of(lambda x: x * K.tri(3, 4, 1), F(4)).of(ONE),),
    **each("ones_like zeros_like", call(F(B, 3)).of(ONE), call(F(B, 3), dtype="int32").of(ONE)),
    "full_like": (call(F(B, 3), 2.5).of(ONE),),
    "empty_like": (call(F(B, 3)).of(ONE),),
    "full": (call((2, 3), F()).of(ONE),),
    **{n: (of(lambda x, n=n: x + getattr(K, n)((2, 3)), F(3)).of(ONE),) for n in ("ones", "zeros", "empty")},
    "arange": (of(lambda x: K.arange(2, 9, 3) + K.cast(x, "int32"), F()).of(ONE), of(lambda x: K.arange(K.shape(x)[0]), F(B)).of(ONE)),
    "linspace": (call(F(), F(), 5).of(ONE), call(F(B), F(B), 4, endpoint=False).of(ONE)),
    "logspace": (call(F(), F(), 5).of(ONE),),
    "geomspace": (call(U(0.1, 1), U(2, 3), 4).of(ONE),),
    "meshgrid": (call(F(B), F(3)).of(ONE), call(F(2), F(3), indexing="ij").of(ONE)),
    **{n: (of(lambda x, n=n: x * getattr(K, n)(6), F(6)).of(ONE),) for n in ("blackman", "hamming", "hanning")},
    "kaiser": (of(lambda x: x * K.kaiser(6, 8.0), F(6)).of(ONE),),
    "multi_hot": (call(I(0, 4, B, 2), 4).of(ONE),),
    "one_hot": (call(I(-1, 4, B), 4).of(ONE), call(I(0, 4, B, 2), 4, axis=1).of(ONE)),
    "scatter": (call(V([[0], [2], [0]], "int32"), F(3, 2), (4, 2)).of(ONE),),
    "scatter_update": (call(F(4, 2), V([[0], [2]], "int32"), F(2, 2)).of(ONE), call(F(4), V([[0], [0]], "int32"), F(2), reduction="add").of(ONE), call(F(4), V([[0], [0]], "int32"), F(2), reduction="max").of(ONE), call(F(4), V([[0], [0]], "int32"), F(2), reduction="mul").of(ONE)),
    "slice": (call(F(B, 4), (0, 1), (2, 2)).of(ONE), call(F(4, 4), V([1, 2], "int32"), (2, 2)).of(ONE)),
    "slice_update": (call(F(4, 4), (1, 2), F(2, 2)).of(ONE), call(F(4, 4), V([1, 2], "int32"), F(2, 2)).of(ONE)),
    "unravel_index": (call(I(0, 12, B), (3, 4)).of(ONE),),
    "view": (call(F(B, 4), "int32").of(ONE), call(I(0, 99, 2, 4), "uint8").of(ONE)),
    "view_as_complex": (call(F(B, 2)).of(ONE),),
    "view_as_real": (call(Z(B, 3)).of("complex64"),),
    **left_out("says something of a value, and is no op", "dtype is_tensor ndim convert_to_numpy"),
    "shape": (of(lambda x: K.shape(x)[0] + 0 * K.cast(K.sum(x), "int32"), F(B, 3)).of(ONE),),
    "size": (call(F(B, 3)).of(ONE),),
}  # fmt: skip


def _layers(x: Any) -> Any:
    return K.sin(x) * K.sum(x)


CONTROL: Table = {
    "associative_scan": (of(lambda x: K.associative_scan(lambda a, b: a * b, x), F(5, 2)).of(ONE), of(lambda x: K.associative_scan(lambda a, b: a + b, x, reverse=True, axis=1), F(B, 4)).of(ONE)),
    "cond": (of(lambda x: K.cond(K.sum(x) > 0, lambda: K.sin(x), lambda: x * 3), F(B, 2)).of(ONE),),
    "custom_gradient": (of(lambda x: K.custom_gradient(lambda y: (K.sin(y), lambda *a, upstream=None: 2 * (upstream if upstream is not None else a[0])))(x), F(B, 2)).of(ONE),),
    "fori_loop": (of(lambda x: K.fori_loop(0, 3, lambda i, y: y * K.sin(y), x), F(2)).of(ONE),),
    "jvp": (of(lambda x, t: K.jvp(_layers, (x,), (t,)), F(3), F(3)).of(ONE),),
    "map": (of(lambda x: K.map(_layers, x), F(B, 2)).of(ONE),),
    "scan": (of(lambda x: K.scan(lambda c, y: (c + y, K.sin(c) * y), K.zeros([2]), x), F(4, 2)).of(ONE),),
    "switch": (of(lambda i, x: K.switch(i, [K.sin, K.cos, K.tanh], x), V(1, "int32"), F(B, 2)).of(ONE),),
    "vectorized_map": (of(lambda x: K.vectorized_map(_layers, x), F(B, 2)).of(ONE),),
    "while_loop": (of(lambda x: K.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * K.sin(y)), (0, x)), F(2)).of(ONE), of(lambda x: K.while_loop(lambda y: K.sum(y) < 9, lambda y: (y * 2,), (x,), maximum_iterations=4), U(0.1, 1, 3)).of(ONE)),
}  # fmt: skip

PRODUCTS: Table = {
    "dot": (call(F(3), F(3)).of(ONE), call(F(B, 3), F(3, 4)).of(ONE)),
    "einsum": (call("bi,ij->bj", F(B, 3), F(3, 4)).of(ONE),),
    "inner": (call(F(B, 3), F(2, 3)).of(ONE).but(vmap="Keras builds no graph for it at fixed sizes"), call(F(3, 2), F(3, 2)).of(ONE)),
    "outer": (call(F(B), F(3)).of(ONE),),
    "vdot": (call(F(3), F(3)).of(ONE),),
    "matmul": (call(F(B, 2, 3), F(3, 4)).of(ONE), call(F(3), F(B, 3, 2)).of(ONE), call(I(0, 9, 2, 3, dtype="int8"), I(0, 9, 3, 2, dtype="int8")).of(ONE)),
    "tensordot": (call(F(B, 3), F(3, 2), axes=1).of(ONE), call(F(2, 3), F(3, 2), axes=[[0, 1], [1, 0]]).of(ONE)),
    "cholesky": (call(SPD(B, 3, 3)).of(ONE).near(3),),
    "cholesky_inverse": (call(TRI(3, 3)).of(ONE).near(3),),
    "det": (call(WELL(B, 3, 3)).of(ONE).near(3),),
    "slogdet": (call(WELL(B, 3, 3)).of(ONE).near(3),), "logdet": (call(SPD(B, 3, 3)).of(ONE).near(3),),
    "eig": (of(lambda x: K.sort(K.real(K.eig(x)[0])), SPD(3, 3)).of(ONE).near(10).but(gradient="of another normalization"),),
    "eigh": (of(lambda x: K.eigh(x)[0], SPD(B, 3, 3)).of(ONE).near(10),),
    "inv": (call(WELL(B, 3, 3)).of(ONE).near(3),),
    "pinv": (call(F(B, 4, 3)).of(ONE).near(10),),
    "lstsq": (call(F(4, 3), F(4, 2)).of(ONE).near(10),),
    "lu_factor": (call(WELL(3, 3)).of(ONE),),
    "matrix_rank": (call(F(B, 3, 3)).of(ONE),),
    "qr": (of(lambda x: K.abs(K.qr(x)[1]), F(B, 4, 3)).of(ONE).near(10),),
    "solve": (call(WELL(B, 3, 3), F(B, 3, 2)).of(ONE).near(3), call(WELL(3, 3), F(3)).of(ONE).near(3)),
    "solve_triangular": (call(TRI(B, 3, 3), F(B, 3, 2), lower=True).of(ONE),),
    "svd": (call(F(B, 4, 3), compute_uv=False).of(ONE).near(10), of(lambda x: K.svd(x, full_matrices=False)[1], F(3, 3)).of(ONE).near(10)),
}  # fmt: skip

SIGNALS: Table = {
    "extract_sequences": (call(F(B, 9), 4, 2).of(ONE),),
    "fft": (call((F(B, 6), F(B, 6))).of(ONE),), "fft2": (call((F(B, 4, 6), F(B, 4, 6))).of(ONE),), "ifft2": (call((F(B, 4, 6), F(B, 4, 6))).of(ONE),),
    "rfft": (call(F(B, 6)).of(ONE), call(F(B, 6), fft_length=4).of(ONE)),
    "irfft": (call((F(B, 4), F(B, 4))).of(ONE), call((F(B, 4), F(B, 4)), fft_length=4).of(ONE)),
    "stft": (call(F(B, 24), 8, 4, 8).of(ONE).near(3), call(F(B, 24), 6, 3, 8, window="hamming", center=False).of(ONE).near(3)),
    "istft": (call((F(B, 5, 5), F(B, 5, 5)), 8, 4, 8).of(ONE).near(3),),
}  # fmt: skip

LAYERS: Table = {
    "adaptive_average_pool": (call(IMG, (2, 3)).of(ONE), call(F(B, 7, 2), 3).of(ONE)),
    "adaptive_max_pool": (call(IMG, (2, 3)).of(ONE),),
    "average_pool": (call(IMG, 2).of(ONE), call(IMG, (2, 3), 1, "same").of(ONE), call(F(B, 7, 2), 3, 2).of(ONE)),
    "max_pool": (call(IMG, 2).of(ONE), call(IMG, (2, 3), 1, "same").of(ONE), call(F(B, 3, 4, 5, 2), 2).of(ONE)),
    "batch_normalization": (call(F(B, 4, 3), F(3), U(0.1, 2, 3), -1, F(3), F(3)).of(ONE), call(F(B, 4, 3), F(4), U(0.1, 2, 4), 1).of(ONE)),
    "layer_normalization": (call(F(B, 4)).of(ONE), call(F(B, 4), F(4), F(4)).of(ONE), call(F(B, 3, 4), axis=[1, 2]).of(ONE)),
    "rms_normalization": (call(F(B, 4), F(4)).of(ONE),),
    "normalize": (call(F(B, 4)).of(ONE), call(F(B, 4), order=1, axis=0).of(ONE)),
    "binary_crossentropy": (call(U(0, 1, B, 3), U(0.1, 0.9, B, 3)).of(ONE), call(U(0, 1, B, 3), F(B, 3), from_logits=True).of(ONE)),
    "categorical_crossentropy": (call(PROBS(B, 4), PROBS(B, 4)).of(ONE), call(PROBS(B, 4), F(B, 4), from_logits=True).of(ONE)),
    "sparse_categorical_crossentropy": (call(I(0, 4, B), PROBS(B, 4)).of(ONE), call(I(0, 4, B), F(B, 4), from_logits=True).of(ONE)),
    "conv": (call(IMG, F(3, 2, 2, 4)).of(ONE), call(IMG, F(3, 2, 2, 4), 2, "same").of(ONE), call(F(B, 7, 2), F(3, 2, 4), 1, "same", dilation_rate=2).of(ONE), call(F(B, 3, 4, 5, 2), F(2, 2, 2, 2, 3)).of(ONE)),
    "conv_transpose": (call(IMG, F(3, 2, 4, 2), 2, "same").of(ONE), call(F(B, 7, 2), F(3, 4, 2), 2).of(ONE)),
    "depthwise_conv": (call(IMG, F(3, 2, 2, 2), 1, "same").of(ONE), call(F(B, 7, 2), F(3, 2, 1)).of(ONE)),
    "separable_conv": (call(IMG, F(3, 2, 2, 2), F(1, 1, 4, 3), 1, "same").of(ONE),),
    "ctc_loss": (call(I(1, 4, 2, 3), F(2, 6, 5), V([3, 2], "int32"), V([6, 5], "int32")).of(ONE).near(5),),
    "ctc_decode": "sizes depend on data; compared with the ops of that kind",
    "depth_to_space": (call(F(B, 2, 3, 8), 2).of(ONE),), "space_to_depth": (call(F(B, 4, 6, 2), 2).of(ONE),),
    "dot_product_attention": (call(F(B, 4, 2, 3), F(B, 5, 2, 3), F(B, 5, 2, 3)).of(ONE), call(F(B, 4, 2, 3), F(B, 4, 2, 3), F(B, 4, 2, 3), is_causal=True).of(ONE), call(F(B, 4, 2, 3), F(B, 5, 2, 3), F(B, 5, 2, 3), bias=F(B, 2, 4, 5), scale=0.3).of(ONE)),
    "fold": (call(F(B, 8, 6), (3, 4), (2, 2)).of(ONE),),
    "psnr": (call(U(0, 1, B, 3), U(0, 1, B, 3), 1.0).of(ONE),),
}  # fmt: skip

KERAS_OPS: Table = {
    **UNARY,
    **BINARY,
    **REDUCTIONS,
    **SHAPES,
    **CONTROL,
    **PRODUCTS,
    **SIGNALS,
    **LAYERS,
}
