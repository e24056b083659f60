"""Graphs of plain TensorFlow ops: order, calls, folded shapes, refusals."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from invert import Config, MalformedModelError, UnsupportedOpError
from invert.frontends.tf_function import entry_point
from invert.primitives.tf import REGISTRY
from invert.protos.tensors import decode_tensor
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.interpreter.registry import Entry, Registry, rule

CONFIG = Config()


def raised(fn, *specs):
    """The JAX function of a TensorFlow function without variables, at given types."""
    concrete = tf.function(fn, autograph=False).get_concrete_function(*specs)
    entry = entry_point(concrete, config=CONFIG)

    def call(*args):
        out = entry.fn([p.value for p in entry.params], *args)
        return jax.tree_util.tree_unflatten(entry.out_tree, out)

    return call


def f32(*shape):
    return tf.TensorSpec(shape, tf.float32)


def sample(shape, dtype="float32"):
    x = np.random.default_rng(0).normal(size=shape) * 3
    return x > 0 if dtype == "bool" else x.astype(dtype)


X = sample((4, 6))

CASES = {
    "reshape to a shape from the graph": lambda x: tf.reshape(
        x, tf.stack([tf.shape(x)[0] * 2, -1])
    ),
    "fill": lambda x: tf.fill([tf.shape(x)[1], 2], tf.reduce_sum(x)),
    "zeros of a shape": lambda x: x + tf.zeros(tf.shape(x)) + tf.zeros_like(x),
    "stack": lambda x: tf.stack([x, x + 1.0], axis=-1),
    "unstack": lambda x: tf.unstack(x, axis=1)[2] * 2.0,
    "concat": lambda x: tf.concat([x, -x], axis=-1),
    "expand and squeeze": lambda x: tf.squeeze(x[:, None, :, None]),
    "squeeze one axis": lambda x: tf.squeeze(x[:, None, :, None], axis=[1]),
    "transpose": lambda x: tf.transpose(x) * 2.0,
    "broadcast": lambda x: tf.broadcast_to(x[:, :1], [3, 4, 6]),
    "slice with strides": lambda x: x[3:0:-2, ::2],
    "slice from the end": lambda x: x[-3:-1, 1:-1],
    "ellipsis, new axis and index": lambda x: x[tf.newaxis, ..., 2],
    "empty slice": lambda x: x[4:, :],
    "slice op": lambda x: tf.slice(x, [1, 2], [-1, 3]),
    "split": lambda x: tf.split(x, 3, axis=1)[1] + 1.0,
    "matmul": lambda x: tf.matmul(x, x, transpose_b=True),
    "matmul of the transposed": lambda x: tf.matmul(x, x, transpose_a=True),
    "batched matmul": lambda x: tf.matmul(tf.stack([x, 2.0 * x]), x, transpose_b=True),
    "reductions": lambda x: (
        tf.reduce_mean(x, 0),
        tf.reduce_max(x, [1], keepdims=True),
        tf.reduce_min(x),
        tf.reduce_prod(x, -1),
    ),
    "comparison and select": lambda x: tf.where(x > 0.5, x, tf.maximum(-x, 0.25)),
    "elementwise": lambda x: (
        tf.tanh(x) * tf.exp(-x * x) + tf.math.rsqrt(tf.square(x) + 1.0),
        tf.sigmoid(x) / (tf.abs(x) + 1.0),
        tf.nn.relu(x) - tf.minimum(x, tf.floor(x)),
        tf.math.squared_difference(x, 1.0),
    ),
    "casts": lambda x: (
        tf.cast(x, tf.int32),
        tf.cast(x > 0, tf.float32),
        tf.cast(x, tf.bool),
        tf.cast(tf.cast(x, tf.bfloat16), tf.float32),
        tf.cast(x, tf.complex64),
    ),
    "integer arithmetic": lambda x: (
        tf.cast(x, tf.int32) // 3,
        tf.cast(x, tf.int32) % 4,
        tf.floor(x) // 2.0,
    ),
    "range": lambda x: x + tf.cast(tf.range(tf.shape(x)[1]), tf.float32),
    "tile": lambda x: tf.tile(x, [2, 1]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [4, None], ids=["static", "open batch"])
def test_same_values(case, batch):
    fn = CASES[case]
    got = jax.jit(raised(fn, f32(batch, 6)))(X)
    want = tf.function(fn, autograph=False)(tf.constant(X))
    got, want = jax.tree_util.tree_leaves(got), tf.nest.flatten(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype.as_numpy_dtype
        # float32 reductions may be ordered differently.
        np.testing.assert_allclose(np.asarray(g, np.complex64), w.numpy(), rtol=2e-6, atol=1e-6)


def test_cast_keeps_the_real_part():
    z = np.array([1 + 2j, -3.5 + 1j], np.complex64)
    call = raised(lambda z: tf.cast(z, tf.float32), tf.TensorSpec([2], tf.complex64))
    np.testing.assert_array_equal(call(z), z.real)


DTYPES = (
    "bool int8 int16 int32 uint8 uint16 uint32 float16 bfloat16 float32 complex64 "
    "float8_e5m2 float8_e4m3fn int4 uint4"
).split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 0), (300,)], ids=str)
@pytest.mark.parametrize("splat", [False, True])
def test_constants_of_every_dtype(dtype, shape, splat):
    np_dtype = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    size = int(np.prod(shape))
    value = np.resize(np.array([1, 0, 1, 1] if not splat else [1]), size)
    value = value.reshape(shape).astype(np_dtype)
    got = decode_tensor(tf.make_tensor_proto(value))
    assert got.dtype == np_dtype and got.shape == shape
    np.testing.assert_array_equal(got.astype(np.complex64), value.astype(np.complex64))


def test_constant_with_dropped_repeats():
    proto = tf.make_tensor_proto([2.5], shape=[1])
    proto.tensor_shape.dim[0].size = 7
    proto.tensor_content = b""
    del proto.float_val[:]
    proto.float_val.append(2.5)
    np.testing.assert_array_equal(decode_tensor(proto), np.full(7, 2.5, np.float32))


def test_shapes_are_folded():
    # A shape computed in the graph must leave no equation behind.
    call = raised(lambda x: tf.reshape(x, [tf.size(x) // 2, 2]), f32(None, 6))
    assert [e.primitive.name for e in jax.make_jaxpr(call)(X).eqns] == ["reshape"]


def test_shape_as_data_keeps_its_type():
    call = raised(lambda x: tf.shape(x), f32(None, 6))
    got = jax.jit(call)(X)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, [4, 6])


def test_symbolic_batch():
    call = raised(lambda x: tf.reshape(x, [tf.shape(x)[0] * 2, -1]) + 1.0, f32(None, 6))
    (b,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct((b, 6), jnp.float32))
    assert str(exported.out_avals[0].shape) == "(2*b, 3)"
    np.testing.assert_array_equal(exported.call(X), X.reshape(8, 3) + 1)


def test_symbolic_sizes_take_the_type_of_the_graph():
    def fn(x):
        n = tf.shape(x, out_type=tf.int64)
        return n[0] * 2, n + tf.cast(x[0, :2], tf.int64), tf.cast(n[0], tf.float32)

    with jax.enable_x64(True):
        call = raised(fn, f32(None, 6))
        (b,) = jax.export.symbolic_shape("b")
        exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct((b, 6), jnp.float32))
        got = exported.call(X)
    want = tf.function(fn, autograph=False)(tf.constant(X))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype.as_numpy_dtype
        np.testing.assert_array_equal(g, w.numpy())


def test_data_dependent_shape_is_refused():
    call = raised(
        lambda x, n: tf.reshape(x, tf.stack([n, -1])), f32(4, 6), tf.TensorSpec([], "int32")
    )
    with pytest.raises(UnsupportedOpError, match=r"tf\.Reshape.*depends on data"):
        jax.eval_shape(call, X, np.int32(2))


def test_nested_functions():
    @tf.function(autograph=False)
    def inner(x, y):
        return {"sum": x + y, "both": (x, tf.identity_n([y, x]))}

    @tf.function(autograph=False)
    def outer(x):
        r = inner(x, x * 2.0)
        again = inner(r["sum"], r["both"][1][0])
        return again["sum"], again["both"]

    got = raised(outer, f32(4, 6))(X)
    want = outer(tf.constant(X))
    for g, w in zip(jax.tree_util.tree_leaves(got), tf.nest.flatten(want), strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=1e-6, atol=1e-6)


def test_stop_gradient():
    call = raised(lambda x: tf.reduce_sum(tf.stop_gradient(x) * x), f32(4, 6))
    np.testing.assert_array_equal(jax.grad(call)(X), X)


def test_prevent_gradient():
    def fn(x, n):
        message = "not this way"
        return (
            tf.raw_ops.PreventGradient(input=x * 2.0, message=message),
            tf.raw_ops.PreventGradient(input=n, message=message),
        )

    call = raised(fn, f32(3), tf.TensorSpec([3], tf.int32))
    x, n = np.ones(3, np.float32), np.arange(3, dtype=np.int32)
    y, m = jax.jit(call)(x, n)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(m, n)
    batched = raised(fn, f32(3), tf.TensorSpec([3], tf.int32))
    np.testing.assert_array_equal(
        jax.vmap(batched)(np.stack([x, x]), np.stack([n, n]))[0], 2 * np.ones((2, 3))
    )
    for transform in (jax.grad, jax.jacfwd):
        with pytest.raises(LookupError, match=r"PreventGradient.*not this way"):
            transform(lambda x: jax.jit(call)(x, n)[0].sum())(x)
    # What does not pass through it differentiates.
    np.testing.assert_array_equal(jax.grad(lambda x: (x * call(y, n)[0]).sum())(x), 4 * x)


def test_all_unsupported_ops_are_reported_together():
    @tf.function(autograph=False)
    def inner(x):
        return tf.strings.upper(tf.strings.as_string(x), name="deep")

    def fn(x):
        s = inner(x)
        t = tf.strings.length(tf.strings.as_string(x, name="text"))
        n = tf.numpy_function(lambda v: v, [x], tf.float32, name="python")
        return tf.strings.length(s), tf.signal.fft(tf.cast(t, tf.complex64)), n

    with pytest.raises(UnsupportedOpError) as e:
        raised(fn, f32(2, 2))
    found = {p.op: p for p in e.value.problems}
    assert set(found) == {"tf.StringUpper", "tf.AsString", "tf.StringLength", "tf.PyFunc"}
    assert "deep" in found["tf.StringUpper"].location
    assert "inner" in found["tf.StringUpper"].location
    texts = [p.location for p in e.value.problems if p.op == "tf.AsString"]
    assert any("text" in t and "test_tf_graph.py:" in t for t in texts)
    assert all(p.remedy for p in e.value.problems)


def test_unreachable_ops_are_ignored():
    def fn(x):
        tf.linalg.svd(x, name="unused")
        return x + 1.0

    np.testing.assert_array_equal(raised(fn, f32(2, 2))(np.ones((2, 2), np.float32)), 2.0)


def test_side_effects_are_reported():
    @tf.function(autograph=False)
    def inner(x):
        tf.io.write_file("/nowhere/at/all", "content")
        return x

    with pytest.raises(UnsupportedOpError, match=r"tf\.WriteFile: reads or writes files") as e:
        raised(lambda x: inner(x) + 1.0, f32())
    assert "tf.WriteFile" in {p.op for p in e.value.problems}


def test_string_constants_are_known_at_conversion():
    call = raised(lambda x: (x, tf.strings.length(tf.constant("abc"))), f32())
    assert call(np.float32(1))[1] == 3
    with pytest.raises(UnsupportedOpError, match=r"tf\.string: is a result of text"):
        raised(lambda x: (x, tf.constant("abc")), f32())


def test_registry_refuses_duplicates_and_late_additions():
    registry = Registry()
    entry = Entry(lambda ctx, node, values: values)
    registry.add("A", entry)
    with pytest.raises(ValueError, match=r"'A' already has a rule"):
        registry.add("A", entry)
    assert registry.ops() == ("A",)
    with pytest.raises(RuntimeError, match="frozen"):
        rule("Added late")(lambda x: x)
    assert REGISTRY.get("Added late") is None


def test_recursive_library_is_refused():
    graph_def = tf.compat.v1.GraphDef()
    graph_def.library.function.add().signature.name = "f"
    function = graph_def.library.function[0]
    function.signature.input_arg.add(name="x", type=tf.float32.as_datatype_enum)
    function.signature.output_arg.add(name="y", type=tf.float32.as_datatype_enum)
    node = function.node_def.add(name="again", op="PartitionedCall", input=["x"])
    node.attr["f"].func.name = "f"
    function.ret["y"] = "again:output:0"
    graph_def.node.add(name="x", op="Placeholder")
    node = graph_def.node.add(name="call", op="PartitionedCall", input=["x"])
    node.attr["f"].func.name = "f"
    graph = Graph(graph_def, ["x:0"], ["call:0"], config=CONFIG, op_def=lambda op: None)
    assert Analysis(graph).problems() == []
    with pytest.raises(MalformedModelError, match="'f' calls itself"):
        Analysis(graph).run([X])


def test_damaged_graphs_are_refused():
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.add(name="y", op="Identity", input=["gone:0"])
    with pytest.raises(MalformedModelError, match="'gone:0'"):
        Graph(graph_def, [], ["y:0"], config=CONFIG, op_def=lambda op: None)
    graph_def.node[0].input[:] = ["z"]
    graph_def.node.add(name="z", op="Merge", input=["y"])
    with pytest.raises(UnsupportedOpError, match="version 1 control flow"):
        Graph(graph_def, [], ["y:0"], config=CONFIG, op_def=lambda op: None)


def chain(length):
    @tf.function(autograph=False)
    def fn(x):
        for _ in range(length):
            x = tf.identity(x)
        return x

    return fn.get_concrete_function(f32())


def test_long_chains_neither_recurse_nor_slow_down():
    def seconds(concrete):
        start = time.perf_counter()
        entry = entry_point(concrete, config=CONFIG)
        assert entry.fn([], np.float32(3))[0] == 3
        return time.perf_counter() - start

    short, long = chain(2_000), chain(16_000)
    seconds(short)
    # Eight times the ops: with quadratic cost, sixty-four times the time.
    assert min(seconds(long) for _ in range(2)) < 24 * min(seconds(short) for _ in range(3))


def test_nodes_are_in_order_of_creation():
    def made(x):
        first = tf.sin(x)
        second = tf.cos(x)
        third = tf.tanh(x)
        return tf.stack([third, first]), second

    def reordered(x):
        second = tf.cos(x)
        third = tf.tanh(x)
        first = tf.sin(x)
        return tf.stack([third, first]), second

    for fn, order in ((made, "sin cos tanh"), (reordered, "cos tanh sin")):
        jaxpr = jax.make_jaxpr(raised(fn, f32(3)))(np.ones(3, np.float32))
        names = [e.primitive.name for e in jaxpr.eqns]
        assert [n for n in names if n in order.split()] == order.split()


def test_variables_are_in_order_of_creation():
    module = tf.Module()
    module.kernel = tf.Variable(tf.ones((3, 2)), name="kernel")
    module.bias = tf.Variable(tf.zeros(2), name="bias")

    @tf.function(input_signature=[f32(4, 3)])
    def call(x):
        shift = module.bias * 2.0  # read first, made last
        return x @ module.kernel + shift

    module.__call__ = call
    entry = entry_point(call, config=CONFIG)
    assert [p.name for p in entry.params] == ["kernel", "bias"]
    x = sample((4, 3))
    (out,) = entry.fn([p.value for p in entry.params], x)
    np.testing.assert_allclose(out, call(tf.constant(x)), rtol=1e-6)
