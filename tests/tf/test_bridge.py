"""Ops without a rule, compiled by TensorFlow's XLA bridge and raised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert._config import Config
from invert._errors import UnsupportedOpError
from invert.primitives.tf import REGISTRY
from invert.tf.fallback.host_ops import PURE, REFUSED
from invert.tf.fallback.xla_bridge import bridge_entry
from invert.tf.fallback.xla_bridge_ops import BRIDGED, NEEDS_RULE
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.node import Node

R = tf.raw_ops
X = np.array([[0.3, -1.2, 2.0], [1.5, 0.25, -0.75]], np.float32)


@pytest.fixture
def bridged_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that XLA compiles go over the bridge even where they have a rule."""
    passed = frozenset(("Identity", "Const", "Shape"))

    def entry_of(node: Node):
        own = node.op not in BRIDGED or node.op in passed
        return REGISTRY.get(node.op) if own else bridge_entry(node)

    monkeypatch.setattr(REGISTRY, "entry", entry_of)


def converted(fn, *specs, **options):
    return invert.convert(tf.function(fn, autograph=False), *specs, config=Config(**options))


def f32(*shape):
    return tf.TensorSpec(shape, tf.float32)


def test_values_and_transformations(bridged_only):
    def fn(x):
        return R.Softplus(features=x) * R.Sum(input=x, axis=[1], keep_dims=True)

    module = converted(fn, f32(2, 3), custom_gradients="ignore")
    np.testing.assert_allclose(module(X), fn(tf.constant(X)).numpy(), rtol=1e-6)

    def same(x):
        return jax.nn.softplus(x) * jnp.sum(x, 1, keepdims=True)

    batch = np.stack([X, X * 2])
    np.testing.assert_allclose(jax.vmap(module)(batch), jax.vmap(same)(batch), rtol=1e-5)
    for transform in (jax.jacrev, jax.hessian):
        np.testing.assert_allclose(transform(module)(X), transform(same)(X), rtol=1e-5, atol=1e-6)
    got, want = (jax.jvp(f, (X,), (X,))[1] for f in (module, same))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_report_says_what_went_over_the_bridge(bridged_only):
    def fn(x):
        return R.Softplus(features=R.Softplus(features=x)) + R.Angle(input=tf.complex(x, x))

    report = converted(fn, f32(2, 3), custom_gradients="ignore").report
    assert report.bridged["Softplus"] == 2 and report.bridged["Angle"] == 1
    assert "2 x Softplus" in str(report)


def test_gradient_of_tensorflow_is_kept_where_it_differs(bridged_only):
    def fn(x):
        return R.FakeQuantWithMinMaxArgs(inputs=x, min=-1.0, max=1.0)

    module = converted(fn, f32(2, 3))
    inside = (np.abs(X) < 1).astype(np.float32)
    np.testing.assert_array_equal(jax.grad(lambda x: module(x).sum())(X), inside)
    np.testing.assert_array_equal(jax.jvp(module, (X,), (2 * X,))[1], 2 * X * inside)
    ignored = converted(fn, f32(2, 3), custom_gradients="ignore")
    assert not np.asarray(jax.grad(lambda x: ignored(x).sum())(X)).any()


@pytest.mark.slow
def test_iterations_differentiate_backwards(bridged_only):
    # XLA computes it in a loop that ends when the terms are small.
    a, x = np.array([0.5, 2.0], np.float32), np.array([1.5, 0.7], np.float32)
    module = converted(lambda a, x: R.Igamma(a=a, x=x), f32(2), f32(2))
    with tf.GradientTape() as tape:
        ta, tx = tf.constant(a), tf.constant(x)
        tape.watch([ta, tx])
        y = tf.math.igamma(ta, tx)
    want = tape.gradient(y, [ta, tx])
    got = jax.grad(lambda a, x: module(a, x).sum(), (0, 1))(a, x)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=1e-4)


def test_one_compilation_for_equal_ops(bridged_only, monkeypatch):
    from invert.tf.fallback import xla_bridge

    made = []
    original = xla_bridge._stablehlo
    monkeypatch.setattr(xla_bridge, "_stablehlo", lambda *a: made.append(a) or original(*a))
    xla_bridge._compiled.cache_clear()

    def fn(x, y):
        for _ in range(3):
            x = R.Softsign(features=x)
        return x, R.Softsign(features=y)

    module = converted(fn, f32(2, 3), f32(3), verify=False, custom_gradients="ignore")
    assert len(made) == 2  # one for each shape
    assert module.report.bridged == {"Softsign": 4}


def test_constants_are_compiled_in(bridged_only):
    # XLA wants sizes, axes and paddings; they may be computed of shapes.
    def fn(x):
        doubled = R.Pack(values=[R.Shape(input=x)[0] * 2, -1])
        return R.Reshape(tensor=R.Pad(input=x, paddings=[[1, 1], [0, 0]]), shape=doubled)

    np.testing.assert_array_equal(
        converted(fn, f32(2, 3))(X), np.pad(X, [[1, 1], [0, 0]]).reshape(4, 3)
    )
    data = converted(lambda x: R.Where(condition=[True, False, True]), f32(2))
    np.testing.assert_array_equal(data(X[0, :2]), [[0], [2]])  # all inputs are known
    with pytest.raises(UnsupportedOpError, match=r"tf\.Reshape: must know an input .* depends on"):
        converted(
            lambda x, n: R.Reshape(tensor=x, shape=n), f32(2, 3), tf.TensorSpec([2], tf.int32)
        )


def test_sizes_that_depend_on_data_are_refused(bridged_only):
    with pytest.raises(
        UnsupportedOpError, match=r"tf\.Where: .*size depends on the data.*<\?x1xi64"
    ):
        converted(lambda x: R.Where(condition=x > 0), f32(3))


def test_open_sizes_are_specialized(bridged_only):
    fn = tf.function(lambda x: R.Softplus(features=x), autograph=False)
    module = invert.convert(fn.get_concrete_function(f32(None, 3)))
    for rows in (1, 4):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(module(x), np.log1p(np.exp(x)), rtol=1e-6)
    with pytest.raises(UnsupportedOpError, match=r"tf\.Softplus: has no rule for open sizes \(b\)"):
        graph_def = tf.function(lambda x: R.Softplus(features=x)).get_concrete_function(f32(None))
        definition = graph_def.graph
        graph = Graph(
            definition.as_graph_def(),
            [t.name for t in definition.inputs],
            [t.name for t in definition.outputs],
            config=Config(),
            op_def=definition.op_def_for_type,
        )
        (b,) = jax.export.symbolic_shape("b")
        jax.eval_shape(lambda x: Analysis(graph).run([x]), jax.ShapeDtypeStruct((b,), jnp.float32))


def test_functions_of_an_op_travel_with_it():
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    def fn(x):
        scalar = tf.TensorSpec([], tf.float32)
        reducer = tf.function(tf.maximum, autograph=False).get_concrete_function(scalar, scalar)
        return gen_xla_ops.xla_reduce(
            x, tf.constant(-9.0), dimensions_to_reduce=[1], reducer=reducer
        )

    np.testing.assert_array_equal(converted(fn, f32(2, 3))(X), X.max(1))


def test_random_ops_never_go_over_the_bridge():
    for op in ("RandomUniform", "StatelessRandomUniformV2", "Multinomial", "StatefulUniform"):
        assert op in NEEDS_RULE and op not in BRIDGED
    node = Node("RandomUniform", "draw", {})
    entry = bridge_entry(node)
    assert entry is not None and entry.check is not None
    (problem,) = entry.check(None, node)  # type: ignore[arg-type]
    assert "draws random numbers" in problem.reason
    with pytest.raises(UnsupportedOpError, match="draws random numbers"):
        entry.call(None, node, [])  # type: ignore[arg-type]


def test_only_pure_ops_go_over_the_bridge():
    graph = tf.Graph()
    for op in BRIDGED:
        definition = graph.op_def_for_type(op)
        assert not definition.is_stateful or op == "XlaDequantize", op
        types = {a.type for a in (*definition.input_arg, *definition.output_arg)}
        assert not types & {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}, op
    assert not BRIDGED & (set(NEEDS_RULE) | PURE | set(REFUSED))


def test_the_state_of_the_generator_does_not_move(bridged_only):
    tf.random.set_seed(3)
    first = tf.random.uniform([2]).numpy()
    tf.random.set_seed(3)
    converted(lambda x: R.Softsign(features=x), f32(5), verify=False)
    np.testing.assert_array_equal(tf.random.uniform([2]).numpy(), first)


def test_types_that_a_kernel_does_not_keep_are_refused(bridged_only):
    with pytest.raises(UnsupportedOpError, match=r"ConjugateTranspose: .*complex64.*float32"):
        converted(lambda x: R.ConjugateTranspose(x=x, perm=[1, 0]), f32(2, 3))


def test_quantized_ops_without_a_rule_are_refused():
    def fn(x):
        whole = R.Bitcast(input=x, type=tf.quint8)
        resized, low, high = R.QuantizedResizeBilinear(images=whole, size=[4, 4], min=0.0, max=1.0)
        return R.Dequantize(input=resized, min_range=low, max_range=high)

    with pytest.raises(UnsupportedOpError) as e:
        converted(fn, tf.TensorSpec([1, 2, 2, 1], tf.uint8))
    assert [p.op for p in e.value.problems] == ["tf.QuantizedResizeBilinear"]
