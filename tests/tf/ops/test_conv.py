"""Convolutions, pooling and dilation with their gradient ops, compared with TensorFlow."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from tests.tf.ops.driver import check, flat_function
from tests.tf.ops.samples import normal, slow_but

RAW = tf.raw_ops
HALVES = [np.float16, ml_dtypes.bfloat16]
PADS = [0, 0, 1, 2, 0, 1, 0, 0]

# (input, filter, attributes); gradients are compared for each.
CONVS = {
    "plain": ((2, 5, 6, 3), (3, 2, 3, 4), {"padding": "VALID"}),
    "same": ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": "SAME"}),
    "strides that leave a rest": (
        (2, 8, 9, 2), (3, 2, 2, 3), {"padding": "VALID", "strides": [1, 3, 2, 1]},
    ),
    "strides, same": ((1, 7, 8, 2), (3, 4, 2, 3), {"padding": "SAME", "strides": [1, 2, 3, 1]}),
    "stride beyond the filter": (
        (1, 7, 8, 2), (1, 2, 2, 3), {"padding": "SAME", "strides": [1, 3, 3, 1]},
    ),
    "explicit": (
        (2, 5, 6, 3), (3, 2, 3, 4), {"padding": "EXPLICIT", "explicit_paddings": PADS},
    ),
    "explicit with strides": (
        (2, 5, 6, 3), (2, 2, 3, 4),
        {"padding": "EXPLICIT", "explicit_paddings": PADS, "strides": [1, 2, 2, 1]},
    ),
    "empty batch": ((0, 5, 6, 3), (3, 2, 3, 3), {"padding": "SAME"}),
    "one by one": ((2, 5, 6, 3), (1, 1, 3, 4), {"padding": "SAME"}),
}  # fmt: skip
# These run in TensorFlow's compiler alone.
COMPILED_CONVS = {
    "dilations": ((2, 9, 8, 2), (3, 2, 2, 3), {"padding": "SAME", "dilations": [1, 2, 3, 1]}),
    "channels first": (
        (2, 3, 5, 6), (3, 2, 3, 4),
        {"padding": "SAME", "data_format": "NCHW", "strides": [1, 1, 2, 2]},
    ),
    "channels first, explicit": (
        (2, 3, 5, 6), (3, 2, 3, 4),
        {
            "padding": "EXPLICIT", "data_format": "NCHW",
            "explicit_paddings": [0, 0, 0, 0, 1, 2, 0, 1],
        },
    ),
    "groups": ((2, 5, 6, 6), (3, 2, 2, 9), {"padding": "SAME", "strides": [1, 2, 1, 1]}),
    "groups, channels first": (
        (2, 6, 5, 6), (3, 2, 3, 4), {"padding": "VALID", "data_format": "NCHW"},
    ),
}  # fmt: skip


def conv2d(attrs):
    attrs = {"strides": [1, 1, 1, 1], **attrs}
    return lambda x, w: RAW.Conv2D(input=x, filter=w, **attrs)


@pytest.mark.parametrize("case", [*CONVS, *COMPILED_CONVS])
def test_conv2d(case):
    x, w, attrs = (CONVS | COMPILED_CONVS)[case]
    check(conv2d(attrs), normal(*x), normal(*w), xla=case in COMPILED_CONVS)


def test_conv2d_of_other_types():
    for dtype in (np.float64, *HALVES, np.int32):
        x, w = normal(2, 5, 6, 3, dtype=dtype), normal(3, 2, 3, 4, dtype=dtype)
        check(conv2d({"padding": "SAME"}), x, w, grad=False)


def test_transposed_conv():
    def fn(w, g):
        attrs = {"filter": w, "out_backprop": g, "padding": "SAME", "strides": [1, 2, 3, 1]}
        return (
            RAW.Conv2DBackpropInput(input_sizes=[2, 5, 8, 3], **attrs),
            RAW.Conv2DBackpropInput(input_sizes=[2, 6, 9, 3], **attrs),
            RAW.Conv2DBackpropInput(input_sizes=[6, 7], **attrs),
        )

    check(fn, normal(3, 2, 3, 4), normal(2, 3, 3, 4))
    check(fn, normal(3, 2, 3, 4, dtype=np.int32), normal(2, 3, 3, 4, dtype=np.int32))


def test_transposed_conv_with_an_open_batch():
    def fn(g, w):
        return tf.nn.conv2d_transpose(g, w, [tf.shape(g)[0], 6, 9, 3], [2, 3])

    g, w = normal(2, 3, 3, 4), normal(3, 2, 3, 4)
    specs = [tf.TensorSpec([None, 3, 3, 4]), tf.TensorSpec(w.shape)]
    module = invert.convert(tf.function(fn).get_concrete_function(*specs))
    # Sums of 24 products, in another order.
    np.testing.assert_allclose(module(g, w), fn(g, w), rtol=1e-5, atol=1e-5)


def test_symbolic_sizes():
    """Batch and spatial sizes stay open through strides, padding and pooling."""

    def fn(x, w):
        y = tf.nn.conv2d(x, w, 2, "SAME")
        return tf.nn.max_pool2d(y, 3, 2, "SAME"), tf.nn.avg_pool2d(y, 2, 1, "SAME")

    specs = [tf.TensorSpec([None, None, None, 3]), tf.TensorSpec([3, 3, 3, 4])]
    concrete = flat_function(fn).get_concrete_function(*specs)
    call = invert.frontends.tf_function.entry_point(concrete, config=invert.Config())
    shape = jax.export.symbolic_shape("b, h, w, 3")
    exported = jax.export.export(jax.jit(lambda x, w: call.fn([], x, w)))(
        jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((3, 3, 3, 4), jnp.float32)
    )
    w = normal(3, 3, 3, 4)
    for sizes in ((2, 7, 8, 3), (1, 12, 5, 3)):
        x = normal(*sizes)
        for got, want in zip(exported.call(x, w), fn(x, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", ["", "V2"])
def test_gradient_ops_of_conv2d(version):
    x, w, g = normal(2, 5, 6, 3), normal(3, 2, 3, 4), normal(2, 3, 3, 4)

    attrs = {"padding": "SAME", "strides": [1, 2, 2, 1]}

    def first(x, w, g):
        return (
            RAW.Conv2DBackpropInput(input_sizes=x.shape, filter=w, out_backprop=g, **attrs),
            RAW.Conv2DBackpropFilter(input=x, filter_sizes=w.shape, out_backprop=g, **attrs),
        )

    def second(x, w, g):
        return (
            RAW.Conv2DBackpropInputV2(input=x, filter=w, out_backprop=g, **attrs),
            RAW.Conv2DBackpropFilterV2(input=x, filter=w, out_backprop=g, **attrs),
        )

    # TensorFlow has no CPU kernels of the second versions, which take a value for its shape.
    check(second if version else first, x, w, g, reference=first, grad=not version)


CONVS_3D = {
    "same": ((1, 4, 5, 6, 2), (2, 3, 3, 2, 3), {"padding": "SAME", "strides": [1, 1, 2, 2, 1]}),
    "valid": ((2, 4, 5, 6, 2), (2, 3, 2, 2, 3), {"padding": "VALID", "strides": [1, 2, 1, 1, 1]}),
}


@pytest.mark.parametrize("case", CONVS_3D)
def test_conv3d(case):
    x, w, attrs = CONVS_3D[case]
    check(lambda x, w: RAW.Conv3D(input=x, filter=w, **attrs), normal(*x), normal(*w))


def test_conv3d_in_the_compiler():
    attrs = {"strides": [1, 1, 1, 2, 1], "padding": "SAME", "data_format": "NCDHW"}
    attrs["dilations"] = [1, 1, 1, 1, 2]
    # Compiled, TensorFlow refuses the gradient of a dilated convolution with strides.
    fn = lambda x, w: RAW.Conv3D(input=x, filter=w, **attrs)  # noqa: E731
    check(fn, normal(1, 2, 4, 5, 6), normal(2, 3, 3, 2, 3), xla=True, grad=False)


def test_general_conv():
    def fn(x, w, v):
        return (
            RAW.Conv(input=x, filter=w, strides=[1, 2, 2, 1], padding="SAME"),
            RAW.Conv(input=tf.stack([x, x]), filter=w, strides=[1] * 4, padding="SAME",
                     batch_dims=2),
            RAW.Conv(input=x[:, None], filter=v, strides=[1] * 5, padding="VALID"),
        )  # fmt: skip

    check(fn, normal(2, 5, 6, 3), normal(3, 2, 3, 4), normal(1, 3, 2, 3, 4), grad=False)


DEPTHWISE = {
    "same": ((2, 5, 6, 3), (3, 2, 3, 1), {"padding": "SAME"}),
    "multiplier and strides": (
        (2, 5, 6, 3), (3, 2, 3, 2), {"padding": "VALID", "strides": [1, 2, 2, 1]},
    ),
    "explicit": ((2, 5, 6, 3), (3, 2, 3, 2), {"padding": "EXPLICIT", "explicit_paddings": PADS}),
}  # fmt: skip
COMPILED_DEPTHWISE = {
    "dilations": ((2, 7, 8, 3), (3, 2, 3, 2), {"padding": "SAME", "dilations": [1, 2, 2, 1]}),
    "channels first": ((2, 3, 5, 6), (3, 2, 3, 2), {"padding": "SAME", "data_format": "NCHW"}),
}


@pytest.mark.parametrize("case", [*DEPTHWISE, *COMPILED_DEPTHWISE])
def test_depthwise(case):
    x, w, attrs = (DEPTHWISE | COMPILED_DEPTHWISE)[case]
    attrs = {"strides": [1, 1, 1, 1], **attrs}
    fn = lambda x, w: RAW.DepthwiseConv2dNative(input=x, filter=w, **attrs)  # noqa: E731
    check(fn, normal(*x), normal(*w), xla=case in COMPILED_DEPTHWISE)


def test_convolutions_of_the_library():
    def fn(x, w, p):
        return (
            tf.nn.conv1d(x[:, 0], w[0], 2, "SAME"),
            tf.nn.separable_conv2d(x, w[..., :2], p, [1, 1, 1, 1], "SAME"),
            tf.nn.conv1d_transpose(x[:, 0], w[0], [2, 16, 3], 2),
        )

    check(fn, normal(2, 8, 8, 3), normal(3, 3, 3, 3), normal(1, 1, 6, 4), tf_grad=False)


# -- pools


POOLS = {
    "valid": ([1, 2, 3, 1], [1, 2, 2, 1], {"padding": "VALID"}),
    "same": ([1, 3, 3, 1], [1, 2, 2, 1], {"padding": "SAME"}),
    "overlap": ([1, 3, 2, 1], [1, 1, 1, 1], {"padding": "SAME"}),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools(case):
    size, strides, attrs = POOLS[case]

    def fn(x):
        args = {"ksize": size, "strides": strides, **attrs}
        return (
            RAW.MaxPool(input=x, **args),
            RAW.AvgPool(value=x, **args),
            RAW.MaxPoolV2(input=x, **args),
        )

    # Many ties: the first maximum of a window has the gradient.
    check(fn, np.round(normal(2, 6, 7, 3)))
    check(fn, normal(0, 6, 7, 3), grad=False)  # TensorFlow ends the process in the gradient
    check(fn, normal(2, 6, 7, 3, dtype=np.float64))


@pytest.mark.parametrize("case", POOLS)
def test_pools_with_channels_first(case):
    size, strides, attrs = POOLS[case]

    def fn(x):
        args = {"ksize": [1, 1, *size[1:3]], "strides": [1, 1, *strides[1:3]], **attrs}
        return (
            RAW.MaxPool(input=x, data_format="NCHW", **args),
            RAW.AvgPool(value=x, data_format="NCHW", **args),
        )

    def reference(x):
        # TensorFlow's CPU kernels only take channels last; its compiler breaks ties differently.
        last = tf.transpose(x, [0, 2, 3, 1])
        args = {"ksize": size, "strides": strides, **attrs}
        results = RAW.MaxPool(input=last, **args), RAW.AvgPool(value=last, **args)
        return [tf.transpose(y, [0, 3, 1, 2]) for y in results]

    check(fn, np.round(normal(2, 3, 6, 7)), reference=reference)


def test_max_pool_with_explicit_padding():
    def fn(x):
        return RAW.MaxPool(input=x, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="EXPLICIT",
                           explicit_paddings=[0, 0, 1, 2, 2, 0, 0, 0])  # fmt: skip

    check(fn, normal(2, 6, 7, 3) - 5)


def test_max_pool_over_channels():
    fn = lambda x: RAW.MaxPool(input=x, ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID")  # noqa: E731
    check(fn, normal(2, 3, 4, 6), grad=False)


def test_pools_of_other_types():
    def fn(x):
        args = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
        return RAW.MaxPool(input=x, **args)

    for dtype in (*HALVES, np.int32, np.int64, np.uint8, np.int16, np.int8, np.uint16):
        check(fn, normal(2, 6, 7, 3, dtype=dtype), grad=False)
    mean = lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME")  # noqa: E731
    for dtype in HALVES:
        check(mean, normal(2, 6, 7, 3, dtype=dtype), grad=False)


def test_pools_of_volumes():
    def fn(x):
        args = {"ksize": [1, 2, 3, 2, 1], "strides": [1, 1, 2, 2, 1]}
        return [
            op(input=x, padding=padding, **args)
            for op, padding in itertools.product((RAW.MaxPool3D, RAW.AvgPool3D), ("SAME", "VALID"))
        ]

    check(fn, normal(1, 4, 5, 6, 2))


def test_gradient_ops_of_pools():
    args = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}

    def fn(x, g, d):
        y = RAW.MaxPool(input=x, **args)
        return (
            RAW.MaxPoolGrad(orig_input=x, orig_output=y, grad=g, **args),
            RAW.MaxPoolGradV2(orig_input=x, orig_output=y, grad=g, **args),
            RAW.MaxPoolGradGrad(orig_input=x, orig_output=y, grad=d, **args),
            RAW.MaxPoolGradGradV2(orig_input=x, orig_output=y, grad=d, **args),
            RAW.AvgPoolGrad(orig_input_shape=tf.shape(x), grad=g, **args),
        )

    x = np.round(normal(2, 6, 7, 3))
    check(fn, x, normal(2, 3, 4, 3), normal(2, 6, 7, 3, seed="d"), grad=False)
    linear = lambda g, d: [fn(tf.constant(x), g, d)[i] for i in (0, 1, 2, 4)]  # noqa: E731
    check(linear, normal(2, 3, 4, 3), normal(2, 6, 7, 3, seed="d"))
    for dtype in HALVES:
        args_of = x.astype(dtype), normal(2, 3, 4, 3, dtype=dtype), normal(2, 6, 7, 3, dtype=dtype)
        grads = lambda x, g, d: (fn(x, g, d)[0], fn(x, g, d)[4])  # noqa: E731
        check(grads, *args_of, grad=False)


def test_second_gradient_op_of_a_pool_of_volumes():
    args = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}

    def fn(x, g, d):
        y = RAW.MaxPool3D(input=x, **args)
        return (
            RAW.MaxPool3DGrad(orig_input=x, orig_output=y, grad=g, **args),
            RAW.MaxPool3DGradGrad(orig_input=x, orig_output=y, grad=d, **args),
        )

    x = np.round(normal(1, 4, 4, 6, 2))
    # The second has a kernel in TensorFlow's compiler alone.
    check(fn, x, normal(1, 2, 2, 3, 2), normal(1, 4, 4, 6, 2), grad=False, xla=True)


@pytest.mark.parametrize("batch", [False, True], ids=["per entry", "over the batch"])
def test_max_pool_with_argmax(batch):
    args = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    args["include_batch_in_index"] = batch

    def fn(x, g):
        y, where = RAW.MaxPoolWithArgmax(input=x, **args)
        narrow = RAW.MaxPoolWithArgmax(input=x, Targmax=tf.int32, **args)
        return (
            y,
            where,
            *narrow,
            RAW.MaxPoolGradWithArgmax(input=x, grad=g, argmax=where, **args),
        )

    x = np.round(normal(2, 6, 7, 3))
    check(fn, x, normal(2, 3, 4, 3), grad=False)
    check(lambda x: RAW.MaxPoolWithArgmax(input=x, **args)[0], x)


def test_dilation_of_integers():
    def fn(x, w):
        args = {"strides": [1, 2, 1, 1], "rates": [1, 1, 2, 1], "padding": "SAME"}
        return RAW.Dilation2D(input=x, filter=w, **args)

    check(fn, normal(2, 6, 7, 3, dtype=np.int32), normal(3, 2, 3, dtype=np.int32))


@pytest.mark.parametrize("padding", slow_but([], [("SAME",), ("VALID",)]))
def test_dilation(padding):
    def fn(x, w):
        return (
            RAW.Dilation2D(
                input=x, filter=w, strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding=padding
            ),
            RAW.Dilation2D(
                input=x, filter=w, strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding=padding
            ),
        )

    check(fn, np.round(normal(2, 6, 7, 3)), np.round(normal(3, 2, 3)))
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8):
        check(fn, normal(2, 6, 7, 3, dtype=dtype), normal(3, 2, 3, dtype=dtype), grad=False)


# -- refusals and whole programs


def graph(op, **attrs):
    graph_def = tf.compat.v1.GraphDef()
    with tf.Graph().as_default() as tf_graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 5, 6, 3), name="x")
        op(x)
        graph_def = tf_graph.as_graph_def()
    node = graph_def.node[-1]
    for name, value in attrs.items():
        node.attr[name].CopyFrom(value)
    return Graph(
        graph_def, ["x:0"], [f"{node.name}:0"], config=invert.Config(), op_def=lambda op: None
    )


def test_strides_over_the_batch_are_refused():
    program = graph(
        lambda x: tf.nn.conv2d(x, np.ones((1, 1, 3, 2), np.float32), 1, "SAME"),
        strides=tf.compat.v1.AttrValue(list={"i": [2, 1, 1, 1]}),
    )
    with pytest.raises(invert.UnsupportedOpError, match=r"strides \[2, 1, 1, 1\] in NHWC"):
        Analysis(program).run([normal(2, 5, 6, 3)])


def test_unknown_data_formats_are_refused():
    program = graph(
        lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
        data_format=tf.compat.v1.AttrValue(s=b"NCHW_VECT_C"),
    )
    with pytest.raises(invert.UnsupportedOpError, match="NCHW_VECT_C"):
        Analysis(program).run([normal(2, 5, 6, 3)])


def test_network_of_convolutions():
    def fn(x, w, b):
        y = tf.nn.relu6(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))
        return tf.nn.max_pool2d(y, 2, 2, "VALID")

    args = normal(2, 6, 6, 3), normal(3, 3, 3, 4), normal(4)
    module = invert.convert(tf.function(fn), *args)
    assert module.report.certificate.largest_error in (None, 0.0)
    # Sums of 27 products, in another order.
    np.testing.assert_allclose(module(*args), fn(*args), rtol=1e-5, atol=1e-5)
