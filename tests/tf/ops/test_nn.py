"""Activations, losses and normalization with their gradient ops, compared with TensorFlow."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.tf.ops.driver import check
from tests.tf.ops.samples import normal, slow_but

RAW = tf.raw_ops
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16]
# Both sides of every kink, the kinks themselves, and what is not a number.
KINKS = np.array([-np.inf, -2.0, -0.5, -0.0, 0.0, 1.0, 3.0, 6.0, 7.0, np.inf, np.nan])


def finite(x):
    return x[np.isfinite(x)]


UNARY = {
    "Elu": RAW.Elu,
    "LeakyRelu": RAW.LeakyRelu,
    "LeakyRelu rising": lambda features: RAW.LeakyRelu(features=features, alpha=1.5),
    "Relu": RAW.Relu,
    "Relu6": RAW.Relu6,
    "Selu": RAW.Selu,
    "Softplus": RAW.Softplus,
    "Softsign": RAW.Softsign,
}


@pytest.mark.parametrize("op", UNARY)
def test_activations(op):
    fn = UNARY[op]
    inputs = [KINKS.astype(d) for d in FLOATS]
    check(lambda *xs: [fn(features=x) for x in xs], *inputs, grad=False)
    inputs = [finite(KINKS).astype(d) for d in FLOATS]
    inputs += [normal(0, 3), normal(4, 5, dtype=np.float64)]
    check(lambda *xs: [fn(features=x) for x in xs], *inputs)


def test_activations_of_integers():
    inputs = [normal(20, dtype=d, scale=3) for d in INTEGERS]
    check(lambda *xs: [f(features=x) for x in xs for f in (RAW.Relu, RAW.Relu6)], *inputs)
    check(
        lambda *xs: [f(gradients=x, features=x) for x in xs for f in (RAW.ReluGrad, RAW.Relu6Grad)],
        *inputs,
    )


@pytest.mark.parametrize("op", ["LeakyReluGrad", "SeluGrad"])
def test_constants_of_half_precision_keep_their_dtype(op):
    grad = tf.constant(normal(5), tf.bfloat16)
    name = "features" if op.startswith("Leaky") else "outputs"
    x = normal(5, seed="x", dtype=ml_dtypes.bfloat16)
    check(lambda x: getattr(RAW, op)(gradients=grad, **{name: x}), x, grad=False)


GRADIENTS = {
    "EluGrad": lambda g, x: RAW.EluGrad(gradients=g, outputs=x),
    "LeakyReluGrad": lambda g, x: RAW.LeakyReluGrad(gradients=g, features=x, alpha=0.3),
    "Relu6Grad": lambda g, x: RAW.Relu6Grad(gradients=g, features=x),
    "ReluGrad": lambda g, x: RAW.ReluGrad(gradients=g, features=x),
    "SeluGrad": lambda g, x: RAW.SeluGrad(gradients=g, outputs=x),
    "SoftplusGrad": lambda g, x: RAW.SoftplusGrad(gradients=g, features=x),
    "SoftsignGrad": lambda g, x: RAW.SoftsignGrad(gradients=g, features=x),
}


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_of_activations(op):
    fn = GRADIENTS[op]
    pairs = [(normal(11, dtype=d), KINKS.astype(d)) for d in FLOATS]

    def every(*xs):
        return [fn(g, x) for g, x in zip(xs[::2], xs[1::2], strict=True)]

    check(every, *(x for pair in pairs for x in pair), grad=False)
    # Second derivatives; TensorFlow has none of SoftsignGrad.
    if op != "SoftsignGrad":
        check(lambda g, x: fn(g, x), normal(8), finite(KINKS)[:8].astype(np.float32))


BIAS_SHAPES = [((2, 3), None), ((2, 4, 3), None), ((2, 3, 4, 3), None), ((0, 3), None)]
BIAS_SHAPES += [((2, 3, 5), "NCHW"), ((2, 3, 4, 5), "NCHW"), ((2, 3, 2, 4, 5), "NCHW")]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32], ids=str)
def test_bias(dtype):
    def fn(b, *xs):
        out = []
        for x, (_, layout) in zip(xs, BIAS_SHAPES, strict=True):
            kwargs = {"data_format": layout} if layout else {}
            out.append(RAW.BiasAdd(value=x, bias=b, **kwargs))
            out.append(RAW.BiasAddGrad(out_backprop=x, **kwargs))
        return out

    check(fn, normal(3, dtype=dtype), *(normal(*s, dtype=dtype) for s, _ in BIAS_SHAPES))


LOGITS = np.array([[1, 2, -np.inf], [0, 0, 0], [1e4, -1e4, 3], [-2, 0.5, 1]])


def test_softmax():
    inputs = [LOGITS.astype(d) for d in FLOATS]
    check(lambda *xs: [RAW.Softmax(logits=x) for x in xs], *inputs, grad=False)
    check(lambda *xs: [RAW.LogSoftmax(logits=x) for x in xs], *inputs, grad=False)
    both = lambda x: (RAW.Softmax(logits=x), RAW.LogSoftmax(logits=x))  # noqa: E731
    check(both, normal(4, 5))
    check(both, normal(0, 5))
    check(lambda x: tf.nn.softmax(x, axis=1), normal(2, 3, 4))


def test_cross_entropy():
    op = lambda x, y: RAW.SoftmaxCrossEntropyWithLogits(features=x, labels=y)  # noqa: E731
    for dtype in FLOATS:
        check(op, normal(4, 5, dtype=dtype), np.abs(normal(4, 5, dtype=dtype)), grad=False)
    # Also labels that do not sum to one, which TensorFlow's gradient assumes.
    loss = lambda x, y: op(x, y)[0]  # noqa: E731
    check(loss, normal(4, 5), np.abs(normal(4, 5)))
    check(loss, normal(1, 5), np.abs(normal(4, 5)), grad=False)
    check(loss, normal(0, 5), normal(0, 5))
    check(
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x, axis=1), *[normal(2, 3, 4)] * 2
    )


def test_second_derivative_of_cross_entropy():
    def fn(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(y, x) ** 2)
        return tape.gradient(total, x)

    # Without the labels: TensorFlow leaves out that the first derivative depends on them.
    labels = tf.nn.softmax(normal(3, 4, seed="labels"))
    check(lambda x: fn(x, labels), normal(3, 4))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_cross_entropy(index):
    labels = np.array([0, 4, 2, 2], index)
    op = lambda x, y: RAW.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y)  # noqa: E731
    for dtype in FLOATS:
        check(op, normal(4, 5, dtype=dtype), labels, grad=False)
    check(lambda x, y: op(x, y)[0], normal(4, 5), labels)
    check(lambda x, y: op(x, y)[0], normal(0, 5), labels[:0])


def test_sparse_cross_entropy_of_a_label_out_of_range():
    # The CPU kernel raises an error; compiled, the row is not a number.
    labels = np.array([0, -1, 5, 2], np.int32)
    op = lambda x, y: RAW.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y)  # noqa: E731
    check(op, normal(4, 5), labels, grad=False, xla=True)


def test_l2_loss():
    check(lambda *xs: [RAW.L2Loss(t=x) for x in xs], *(normal(3, 4, dtype=d) for d in FLOATS))


FORMATS = [("NHWC", (3, 4, 5, 2)), ("NCHW", (3, 2, 4, 5)), ("NDHWC", (2, 3, 4, 5, 2))]
FORMATS += [("NCDHW", (2, 2, 3, 4, 5))]


def statistics():
    return [np.abs(normal(2, seed=s)) + 0.5 for s in ("scale", "offset", "mean", "variance")]


MODES = [(*case, training) for case in FORMATS for training in (True, False)]


@pytest.mark.parametrize(("layout", "shape", "training"), slow_but(MODES[:4], MODES))
def test_batch_norm(layout, shape, training):
    def fn(x, scale, offset, mean, variance):
        out = RAW.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance,
            is_training=training, data_format=layout, epsilon=0.01,
        )  # fmt: skip
        return list(out)[:3] if training else out[0]

    # Only TensorFlow's compiler has channels first and volumes; it has no reserved space.
    xla = layout != "NHWC"
    check(fn, normal(*shape), *statistics(), grad=False, xla=xla)

    def result(x, scale, offset):
        return fn(x, scale, offset, *map(tf.constant, statistics()[2:]))[:1]

    result = result if training else lambda x, s, o: fn(x, s, o, *statistics()[2:])
    check(result, normal(*shape), *statistics()[:2], xla=xla)


def test_batch_norm_versions_and_running_averages():
    def fn(x, scale, offset, mean, variance):
        args = {"x": x, "scale": scale, "offset": offset, "epsilon": 1e-3}
        empty = {"mean": tf.zeros([0]), "variance": tf.zeros([0])}
        given = {"mean": mean, "variance": variance}
        return [
            *RAW.FusedBatchNorm(**args, **empty),
            *RAW.FusedBatchNormV2(**args, **empty),
            # The other results are for the gradient; their contents depend on the kernel.
            *RAW.FusedBatchNormV3(**args, **given, exponential_avg_factor=0.3)[:5],
            *RAW.FusedBatchNormV3(**args, **given, is_training=False)[:3],
            *RAW.FusedBatchNormV2(**args, **given, is_training=False)[:3],
        ]

    check(fn, normal(3, 4, 5, 2), *statistics(), grad=False)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_half_precision(dtype, training):
    # 600 numbers around 20: a sum in half precision would lose the variance.
    x = (normal(4, 10, 15, 2) + 20).astype(dtype)

    def fn(x, scale, offset, mean, variance):
        return RAW.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=training
        )[:3]

    check(fn, x, *statistics(), grad=False)


@pytest.mark.parametrize("version", ["", "V2", "V3"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradient_op(version, training):
    def fn(g, x, scale, mean, variance):
        extra = {"reserve_space_3": tf.zeros([])} if version else {}
        if version == "V2":
            extra = {}
        return getattr(RAW, f"FusedBatchNormGrad{version}")(
            y_backprop=g, x=x, scale=scale, reserve_space_1=mean, reserve_space_2=variance,
            is_training=training, **extra,
        )[:3]  # fmt: skip

    scale, _, mean, variance = statistics()
    if training:
        mean, variance = normal(3, 4, 5, 2).mean((0, 1, 2)), normal(3, 4, 5, 2).var((0, 1, 2))
    g = normal(3, 4, 5, 2, seed="g")
    check(fn, g, normal(3, 4, 5, 2), scale, mean, variance, grad=False)


def test_local_response_norm():
    def fn(x):
        return RAW.LRN(input=x), RAW.LRN(input=x, depth_radius=2, bias=0.7, alpha=0.3, beta=0.75)

    check(fn, normal(2, 3, 4, 7))
    check(fn, normal(2, 3, 4, 7, dtype=np.float16), grad=False)


def test_data_formats():
    def fn(x, v, pairs):
        return (
            RAW.DataFormatDimMap(x=x),
            RAW.DataFormatDimMap(x=x, src_format="NCHW", dst_format="NHWC"),
            RAW.DataFormatVecPermute(x=v),
            RAW.DataFormatVecPermute(x=v, src_format="NCHW", dst_format="NHWC"),
            RAW.DataFormatVecPermute(x=pairs),
            RAW.DataFormatVecPermute(x=tf.constant([1, 2, 3, 4])),
        )

    for dtype in (np.int32, np.int64):
        x = np.array([-4, -1, 0, 3, 2], dtype)
        check(fn, x, x[:4], np.arange(8, dtype=dtype).reshape(4, 2))


def test_spatial_vector_of_a_data_format():
    def fn(v):
        return RAW.DataFormatVecPermute(x=v, src_format="NHWC", dst_format="NCHW")

    check(fn, np.array([7, 8], np.int32))


def test_library_functions_come_back():
    def fn(x, labels):
        y = tf.nn.relu6(x)
        return tf.nn.softmax(y), tf.nn.softmax_cross_entropy_with_logits(labels, y)

    x = normal(4, 5)
    labels = np.eye(5, dtype=np.float32)[:4]
    module = invert.convert(tf.function(fn), x, labels)
    assert module.report.certificate.kind in ("exact", "numerical")
    for got, want in zip(module(x, labels), fn(x, labels), strict=True):
        # Exponentials differ in the last bits.
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    grad = jax.grad(lambda x: module(x, labels)[1].sum())(x)
    assert np.isfinite(grad).all()
