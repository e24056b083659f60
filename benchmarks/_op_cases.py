"""TensorFlow programs of one op or a few, at sizes at which they take some time.

A row is a function of TensorFlow tensors, the arrays it is called with, and whether its gradient by
those of floats is measured too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow

tf: Any = tensorflow
R = tf.raw_ops
rng = np.random.default_rng(0)
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], bool]] = {}


def f(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def i(high: int, *shape: int) -> np.ndarray:
    return rng.integers(0, high, shape).astype(np.int32)


def case(name: str, function: Callable[..., Any], *args: Any, grad: bool = True) -> None:
    CASES[name] = function, args, grad


def _xla() -> Any:
    """The Python functions of the ops that jax2tf used to write; `tf.raw_ops` has none for them."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops


IMG = f(4, 32, 32, 32)


case(
    "depthwise",
    lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
    IMG,
    f(3, 3, 32, 1),
)
case(
    "depthwise_s2",
    lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"),
    IMG,
    f(3, 3, 32, 2),
)
case("conv", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMG, f(3, 3, 32, 32))
case("conv_group", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), IMG, f(3, 3, 8, 32))
case("conv_dil", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", dilations=2), IMG, f(3, 3, 32, 32))
case(
    "conv_T",
    lambda x, w: tf.nn.conv2d_transpose(x, w, [4, 64, 64, 16], 2, "SAME"),
    IMG,
    f(3, 3, 16, 32),
)
case("conv1d", lambda x, w: tf.nn.conv1d(x, w, 1, "SAME"), f(4, 256, 32), f(5, 32, 32))
case(
    "conv3d", lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), f(2, 8, 16, 16, 8), f(3, 3, 3, 8, 8)
)
case("maxpool", lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), IMG)
case("avgpool", lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), IMG)
case("maxpool_valid2", lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), IMG)
case("maxpool3d", lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), f(2, 16, 16, 16, 8))
case("lrn", lambda x: tf.nn.lrn(x), IMG)
case("resize_bilinear", lambda x: tf.image.resize(x, (48, 48)), IMG)
case("resize_nearest", lambda x: tf.image.resize(x, (64, 64), "nearest"), IMG)
case("resize_bicubic", lambda x: tf.image.resize(x, (48, 48), "bicubic"), IMG)
case("resize_area", lambda x: tf.image.resize(x, (16, 16), "area"), IMG, grad=False)
case("resize_lanczos", lambda x: tf.image.resize(x, (48, 48), "lanczos3"), IMG)
case(
    "crop_and_resize",
    lambda x, b: tf.image.crop_and_resize(x, b, [0, 1, 2, 3], (16, 16)),
    IMG,
    np.array([[0, 0, 1, 1], [0.1, 0.1, 0.7, 0.8], [0, 0.2, 0.9, 1], [0.3, 0.3, 0.5, 0.5]], "f4"),
)
case("gather", lambda x, j: tf.gather(x, j), f(4096, 64), i(4096, 2048))
case("gather_axis", lambda x, j: tf.gather(x, j, axis=1), f(64, 512, 16), i(512, 256))
case("gather_batch", lambda x, j: tf.gather(x, j, batch_dims=1), f(32, 128, 64), i(128, 32, 64))
case(
    "gather_batch_axis2",
    lambda x, j: tf.gather(x, j, batch_dims=1, axis=2),
    f(16, 32, 128),
    i(128, 16, 64),
)
case("gather_nd", lambda x, j: tf.gather_nd(x, j), f(64, 64, 32), i(64, 1024, 2))
case(
    "gather_nd_batch",
    lambda x, j: tf.gather_nd(x, j, batch_dims=1),
    f(32, 64, 32),
    i(64, 32, 48, 1),
)
case("scatter_nd", lambda j, u: tf.scatter_nd(j, u, [4096, 32]), i(4096, 2048, 1), f(2048, 32))
case(
    "tensor_scatter_update",
    lambda x, j, u: tf.tensor_scatter_nd_update(x, j, u),
    f(4096, 32),
    rng.permutation(4096)[:1024, None].astype("i4"),
    f(1024, 32),
)
case(
    "tensor_scatter_add",
    lambda x, j, u: tf.tensor_scatter_nd_add(x, j, u),
    f(4096, 32),
    i(4096, 1024, 1),
    f(1024, 32),
)
case("cumsum", lambda x: tf.cumsum(x, 1), f(256, 1024))
case("cumsum_ax0", lambda x: tf.cumsum(x, 0, exclusive=True, reverse=True), f(1024, 256))
case("cumprod", lambda x: tf.math.cumprod(x, 1), 1 + 0.01 * f(256, 256))
case("cumlogsumexp", lambda x: tf.math.cumulative_logsumexp(x, 1), f(128, 256))
S = np.sort(i(500, 4096))
case("segment_sum", lambda x: tf.math.segment_sum(x, S), f(4096, 32))
case("segment_mean", lambda x: tf.math.segment_mean(x, S), f(4096, 32))
case("segment_max", lambda x: tf.math.segment_max(x, S), f(4096, 32))
case(
    "unsorted_sum", lambda x, j: tf.math.unsorted_segment_sum(x, j, 500), f(4096, 32), i(500, 4096)
)
case(
    "unsorted_sum_large",
    lambda x, j: tf.math.unsorted_segment_sum(x, j, 100000),
    f(4096, 8),
    i(100000, 4096),
)
case(
    "unsorted_max", lambda x, j: tf.math.unsorted_segment_max(x, j, 500), f(4096, 32), i(500, 4096)
)
case(
    "unsorted_mean",
    lambda x, j: tf.math.unsorted_segment_mean(x, j, 500),
    f(4096, 32),
    i(500, 4096),
)
case("sparse_segment_sum", lambda x, j: tf.sparse.segment_sum(x, j, S), f(1000, 32), i(1000, 4096))
case("top_k", lambda x: tf.math.top_k(x, 8), f(256, 1024))
case("top_k_large", lambda x: tf.math.top_k(x, 200), f(64, 1024))
case("sort", lambda x: tf.sort(x), f(256, 512))
case("sort_desc", lambda x: tf.sort(x, direction="DESCENDING"), f(256, 512))
case("argsort", lambda x: tf.argsort(x), f(256, 512), grad=False)
case("argmax", lambda x: tf.argmax(x, 1), f(256, 1024), grad=False)
case("nth", lambda x: R.NthElement(input=x, n=5), f(256, 512))
case("in_top_k", lambda t, x: tf.math.in_top_k(t, x, 5), i(512, 256), f(256, 512), grad=False)
B = rng.uniform(0, 1, (500, 4)).astype("f4")
B[:, 2:] += B[:, :2]
case(
    "nms_padded",
    lambda b, s: tf.image.non_max_suppression_padded(b, s, 50, pad_to_max_output_size=True),
    B,
    rng.uniform(size=500).astype("f4"),
    grad=False,
)
case(
    "nms",
    lambda b, s: tf.image.non_max_suppression(b, s, 50),
    B,
    rng.uniform(size=500).astype("f4"),
    grad=False,
)
case(
    "combined_nms",
    lambda b, s: tf.image.combined_non_max_suppression(b, s, 20, 20)[:3],
    rng.uniform(0, 1, (2, 100, 1, 4)).astype("f4"),
    rng.uniform(size=(2, 100, 4)).astype("f4"),
    grad=False,
)
case("unique", lambda x: tf.unique(x)[1], i(500, 4096), grad=False)
case(
    "bincount",
    lambda x: tf.math.bincount(x, minlength=500, maxlength=500),
    i(500, 8192),
    grad=False,
)
case(
    "searchsorted",
    lambda a, b: tf.searchsorted(a, b),
    np.sort(f(64, 512), 1),
    f(64, 256),
    grad=False,
)
case(
    "bucketize",
    lambda x: R.Bucketize(input=x, boundaries=list(np.linspace(-2, 2, 50))),
    f(256, 256),
    grad=False,
)
case("histogram", lambda x: tf.histogram_fixed_width(x, [-2.0, 2.0], 100), f(10000), grad=False)
case("matrix_diag", lambda x: tf.linalg.diag(x), f(64, 128))
case("matrix_diag_k", lambda x: tf.linalg.diag(x, k=(-1, 1)), f(32, 3, 64))
case("matrix_diag_part", lambda x: tf.linalg.diag_part(x, k=(-1, 1)), f(32, 64, 64))
case("set_diag", lambda x, d: tf.linalg.set_diag(x, d), f(32, 64, 64), f(32, 64))
case("band_part", lambda x: tf.linalg.band_part(x, 2, 0), f(32, 128, 128))
case("einsum", lambda x, y: tf.einsum("bqhd,bkhd->bhqk", x, y), f(4, 64, 4, 32), f(4, 64, 4, 32))
case("einsum2", lambda x, y: tf.einsum("bhqk,bkhd->bqhd", x, y), f(4, 4, 64, 64), f(4, 64, 4, 32))
case("space_to_depth", lambda x: tf.nn.space_to_depth(x, 2), IMG)
case("depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), IMG)
case("space_to_batch", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), IMG)
case("batch_to_space", lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [1, 1]]), f(16, 32, 32, 8))
case("strided", lambda x: x[:, ::2, 1::3, :-1], IMG)
case("strided_rev", lambda x: x[:, ::-1, 10:2:-2], IMG)
case("reverse_seq", lambda x, n: tf.reverse_sequence(x, n, 1), f(32, 128, 32), i(128, 32))
case(
    "dyn_partition",
    lambda x: tf.dynamic_stitch(
        tf.dynamic_partition(tf.range(1024), np.arange(1024) % 3, 3),
        tf.dynamic_partition(x, np.arange(1024) % 3, 3),
    ),
    f(1024, 32),
)
case("roll", lambda x: tf.roll(x, [3, 5], [0, 1]), f(256, 512))
case("tile", lambda x: tf.tile(x, [4, 1, 2]), f(16, 64, 32))
case("mirror_pad", lambda x: tf.pad(x, [[0, 0], [2, 2], [3, 3], [0, 0]], "REFLECT"), IMG)
case("one_hot", lambda x: tf.one_hot(x, 500), i(500, 2048), grad=False)
case(
    "softmax_xent",
    lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
    f(512, 500),
    i(500, 512),
)
case("softmax", lambda x: tf.nn.softmax(x), f(512, 500))
case(
    "layernorm_bn",
    lambda x: R.FusedBatchNormV3(
        x=x,
        scale=np.ones(32, "f4"),
        offset=np.zeros(32, "f4"),
        mean=[],
        variance=[],
        is_training=True,
    )[0],
    IMG,
)
case("gelu", lambda x: tf.nn.gelu(x), f(512, 512))
case("erfinv", lambda x: tf.math.erfinv(tf.tanh(x)), f(256, 256))
case("lgamma", lambda x: tf.math.lgamma(tf.abs(x) + 0.1), f(256, 256))
case("digamma", lambda x: tf.math.digamma(tf.abs(x) + 0.1), f(256, 256))
case("igamma", lambda x: tf.math.igamma(tf.abs(x) + 0.1, tf.abs(x) + 0.5), f(64, 64))
case(
    "betainc",
    lambda x: tf.math.betainc(tf.abs(x) + 0.1, tf.abs(x) + 0.5, tf.sigmoid(x)),
    f(64, 64),
    grad=False,
)
case("bessel", lambda x: tf.math.bessel_i0(x) + tf.math.bessel_i1e(x), f(256, 256))
case("zeta", lambda x: tf.math.zeta(tf.abs(x) + 1.5, tf.abs(x) + 0.5), f(64, 64), grad=False)
case("ndtri", lambda x: tf.math.ndtri(tf.sigmoid(x)), f(256, 256))
case(
    "stateless_normal",
    lambda s: tf.random.stateless_normal((512, 512), s, alg="philox"),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_uniform",
    lambda s: tf.random.stateless_uniform((512, 512), s, alg="philox"),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_int",
    lambda s: tf.random.stateless_uniform((512, 512), s, 0, 100, tf.int32, alg="philox"),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_trunc",
    lambda s: tf.random.stateless_truncated_normal((512, 512), s, alg="philox"),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_gamma",
    lambda s: tf.random.stateless_gamma((64, 64), s, 1.5),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_poisson",
    lambda s: tf.random.stateless_poisson((64, 64), s, 3.0),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_categorical",
    lambda s: tf.random.stateless_categorical(np.zeros((64, 100), "f4"), 50, s),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "stateless_shuffle",
    lambda s: tf.random.experimental.stateless_shuffle(np.arange(5000), s),
    np.array([1, 2], "i4"),
    grad=False,
)
case(
    "ctc_v1",
    lambda x: tf.compat.v1.nn.ctc_loss(
        tf.sparse.from_dense(np.tile(np.arange(1, 9), (8, 1)).astype("i4")),
        x,
        np.full(8, 40, "i4"),
        time_major=False,
    ),
    f(8, 40, 30),
)
case(
    "ctc_beam",
    lambda x: tf.nn.ctc_beam_search_decoder(x, np.full(4, 20, "i4"), beam_width=10)[1],
    f(20, 4, 12),
    grad=False,
)
case(
    "ctc_greedy",
    lambda x: tf.nn.ctc_greedy_decoder(x, np.full(4, 40, "i4"))[1],
    f(40, 4, 30),
    grad=False,
)
SPI = np.unique(np.stack([i(256, 2000), i(256, 2000)], 1), axis=0).astype("i8")
case(
    "sparse_matmul",
    lambda v, x: tf.sparse.sparse_dense_matmul(tf.SparseTensor(SPI, v, [256, 256]), x),
    f(len(SPI)),
    f(256, 64),
)
case(
    "sparse_to_dense",
    lambda v: tf.sparse.to_dense(tf.SparseTensor(SPI, v, [256, 256])),
    f(len(SPI)),
)
case(
    "sparse_reduce",
    lambda v: tf.sparse.reduce_sum(tf.SparseTensor(SPI, v, [256, 256]), 1),
    f(len(SPI)),
)
case(
    "sparse_softmax",
    lambda v: tf.sparse.softmax(tf.SparseTensor(SPI, v, [256, 256])).values,
    f(len(SPI)),
)
case("cholesky", lambda x: tf.linalg.cholesky(x @ tf.transpose(x) + 100 * tf.eye(64)), f(64, 64))
case(
    "tri_solve",
    lambda x, y: tf.linalg.triangular_solve(x + 10 * tf.eye(64), y),
    f(64, 64),
    f(64, 32),
)
case("solve", lambda x, y: tf.linalg.solve(x + 10 * tf.eye(64), y), f(64, 64), f(64, 32))
case("qr", lambda x: tf.linalg.qr(x), f(4, 32, 32))
case("svd", lambda x: tf.linalg.svd(x, compute_uv=False), f(4, 16, 16), grad=False)
case("eigh", lambda x: tf.linalg.eigh(x + tf.transpose(x, [0, 2, 1]))[0], f(4, 16, 16))
case("inv", lambda x: tf.linalg.inv(x + 10 * tf.eye(64)), f(4, 64, 64))
case("det", lambda x: tf.linalg.slogdet(x + 10 * tf.eye(32))[1], f(4, 32, 32))
case(
    "tridiag",
    lambda x, y: tf.linalg.tridiagonal_solve(x + tf.constant([[0.0], [9.0], [0.0]]), y),
    f(8, 3, 64),
    f(8, 64, 4),
)
case("expm", lambda x: tf.linalg.expm(x), 0.1 * f(4, 16, 16))
case("fft", lambda x: tf.abs(tf.signal.rfft(x)), f(64, 512))
case("fft2d", lambda x: tf.abs(tf.signal.fft2d(tf.cast(x, tf.complex64))), f(8, 64, 64))
case("stft", lambda x: tf.abs(tf.signal.stft(x, 256, 128)), f(4, 8192))
case("dct", lambda x: tf.signal.dct(x), f(64, 256))
case(
    "extract_patches",
    lambda x: tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
    f(4, 32, 32, 8),
)
case(
    "dilation2d",
    lambda x, w: tf.nn.dilation2d(x, w, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
    f(2, 32, 32, 8),
    f(3, 3, 8),
)
case(
    "rgb_hsv",
    lambda x: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(x)),
    rng.uniform(size=(4, 64, 64, 3)).astype("f4"),
)
case(
    "adjust_hue",
    lambda x: tf.image.adjust_hue(x, 0.1),
    rng.uniform(size=(4, 64, 64, 3)).astype("f4"),
)
case(
    "adjust_contrast",
    lambda x: tf.image.adjust_contrast(x, 2.0),
    rng.uniform(size=(4, 64, 64, 3)).astype("f4"),
)
case("fake_quant", lambda x: tf.quantization.fake_quant_with_min_max_args(x), f(256, 256))
case(
    "fake_quant_chan",
    lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(
        x, -np.ones(256, "f4"), np.ones(256, "f4")
    ),
    f(256, 256),
)
case(
    "quant_dequant", lambda x: tf.quantization.quantize_and_dequantize_v2(x, -1.0, 1.0), f(256, 256)
)
case("map_fn", lambda x: tf.map_fn(lambda r: tf.tanh(r) * 2, x), f(64, 64))
case("scan", lambda x: tf.scan(lambda a, r: tf.tanh(a) + r, x), f(64, 64))
case(
    "lstm_while",
    lambda x: tf.while_loop(lambda k, a: k < 50, lambda k, a: (k + 1, tf.tanh(a) * 1.1), [0, x])[1],
    f(64, 64),
)
case("where3", lambda x: tf.where(x > 0, x, tf.exp(x)), f(512, 512))
case("clip_norm", lambda x: tf.clip_by_global_norm([x], 1.0)[0][0], f(512, 512))
case("reduce_std", lambda x: tf.math.reduce_std(x, 1), f(512, 512))
case("lse", lambda x: tf.reduce_logsumexp(x, 1), f(512, 512))
case("reduce_prod", lambda x: tf.reduce_prod(x, 1), 1 + 0.01 * f(256, 64))
case("reduce_max", lambda x: tf.reduce_max(x, 1), f(512, 512))
case("xla_sort", lambda x: _xla().xla_sort(x), f(256, 256), grad=False)
case(
    "xla_kv_sort",
    lambda x: _xla().xla_key_value_sort(x, tf.cast(x, tf.int32)),
    f(256, 256),
    grad=False,
)
case(
    "resize_bilinear_v1",
    lambda x: R.ResizeBilinear(images=x, size=[48, 48], align_corners=True),
    IMG,
)
case(
    "upsample_grad", lambda x: R.ResizeNearestNeighborGrad(grads=x, size=[16, 16]), IMG, grad=False
)
case("matmul", lambda x: x @ x, f(256, 256))
case("einsum_xla", lambda x: _xla().xla_einsum(x, x, equation="ij,jk->ik"), f(256, 256))
case(
    "reduce_precision",
    lambda x: _xla().xla_reduce_precision(x, exponent_bits=5, mantissa_bits=3),
    f(256, 256),
    grad=False,
)
case("approx_top_k", lambda x: R.ApproxTopK(input=x, k=8)[0], f(256, 256))
