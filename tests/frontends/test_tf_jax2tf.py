"""Results of `jax2tf.convert` in memory: modules among TensorFlow ops, trees, derivatives."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert import Config, MalformedModelError, UnsupportedOpError
from invert.frontends.tf_function import entry_point
from invert.stablehlo.program import Program
from tests.frontends.entries import Pair, call

CONFIG = Config()
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def bound(entry):
    """The entry point as a function of the original arguments."""
    return functools.partial(call, entry)


def assert_equal(got, want):
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    for g, w in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(np.asarray(g, w.dtype), w, rtol=1e-6, atol=1e-6)


def model(x, n, *, w):
    """Nested containers, an unused leaf, None, integers, booleans and a keyword."""
    y = jnp.sin(x["a"][0]) * w
    return {"y": y, "z": Pair(jnp.cumsum(x["a"][1], 0), None), "n": [n + 1, n > 2]}


ARGS = ({"a": (X, X[0]), "unused": X}, np.int32(3))
KWARGS = {"w": X + 1}

WRAP = {
    "bare": lambda f, **kw: jax2tf.convert(f, **kw),
    "function": lambda f, **kw: tf.function(jax2tf.convert(f, **kw), autograph=False),
    "concrete": lambda f, **kw: tf.function(
        jax2tf.convert(f, **kw), autograph=False
    ).get_concrete_function(*tf.nest.map_structure(tf.constant, ARGS), w=tf.constant(KWARGS["w"])),
}


@pytest.mark.parametrize("wrap", WRAP)
@pytest.mark.parametrize("with_gradient", [True, False])
def test_values_and_trees(wrap, with_gradient):
    tf_fn = WRAP[wrap](model, with_gradient=with_gradient)
    entry = entry_point(tf_fn, ARGS, KWARGS, config=CONFIG)
    assert_equal(jax.jit(bound(entry))(*ARGS, **KWARGS), model(*ARGS, **KWARGS))


@pytest.mark.parametrize("wrap", ["bare", "function"])
def test_argument_names_of_the_original(wrap):
    entry = entry_point(WRAP[wrap](model), ARGS, KWARGS, config=CONFIG)
    assert entry.arg_names == ("x", "n")
    names = [a.name for a in jax.tree_util.tree_leaves((entry.args, entry.kwargs))]
    assert names == ["x.a.0", "x.a.1", "x.unused", "n", "w"]


def _network(params, x):
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x * params["scale"]


@pytest.mark.parametrize("holder", ["flat", "flat and by name"])
def test_variables_without_names(tmp_path: Path, holder: str) -> None:
    """Layers are those of the original; the variables keep their names in the container."""
    layers = [{"kernel": np.eye(3, dtype=np.float32) + i, "bias": X[i]} for i in range(2)]
    params = {"layers": layers, "scale": X[1]}
    variables = tf.nest.map_structure(tf.Variable, params)
    module = tf.Module()
    module.flat = tf.nest.flatten(variables)
    if holder != "flat":
        module.params = variables
    predict = lambda x: jax2tf.convert(_network)(variables, x)  # noqa: E731
    module.f = tf.function(predict, autograph=False, input_signature=[tf.TensorSpec((2, 3))])
    tf.saved_model.save(module, tmp_path)
    loaded = invert.load(tmp_path)
    assert "for layer in self.layers:\n            x = layer(x)" in loaded.source
    assert "self.kernel = lecun_normal" in loaded.source
    np.testing.assert_array_equal(loaded.model(X), jax.jit(_network)(params, X))
    names = {"flat.0", "flat.4"} if holder == "flat" else {"params.layers.0.bias", "params.scale"}
    assert names <= invert.values(loaded).keys()
    model = loaded.model
    trained = jax.tree_util.tree_map(lambda a: a + 1, model)
    invert.assign(module, invert.values(trained))
    np.testing.assert_array_equal(variables["layers"][1]["bias"].numpy(), X[1] + 1)


def test_bare_result_takes_any_pytree():
    def f(p):
        return jax.tree_util.Partial(jnp.multiply, p.args[0] * 2)

    arg = jax.tree_util.Partial(jnp.add, X)
    entry = entry_point(jax2tf.convert(f), (arg,), config=CONFIG)
    out = bound(entry)(arg)
    assert out.func is jnp.multiply
    np.testing.assert_array_equal(out.args[0], 2 * X)


def test_none_among_the_arguments():
    def f(x, y, z):
        return x + z["b"]

    args = (X, None, {"a": None, "b": X})
    for wrap in ("bare", "function"):
        entry = entry_point(WRAP[wrap](f), args, config=CONFIG)
        np.testing.assert_array_equal(bound(entry)(*args), 2 * X)


def test_modules_among_tensorflow_ops():
    first, second = jax2tf.convert(lambda x: jnp.tanh(x)), jax2tf.convert(lambda x, y: x @ y.T)

    @tf.function(autograph=False)
    def inner(x):
        return tf.identity(first(x)) * 2.0

    @tf.function(autograph=False)
    def fn(x):
        h = inner(x) + tf.stop_gradient(inner(x + 1.0))
        return {"out": second(h, tf.concat([x, h], 0)), "h": h}

    entry = entry_point(fn, (X,), config=CONFIG)
    assert_equal(bound(entry)(X), jax.tree_util.tree_map(lambda t: t.numpy(), fn(tf.constant(X))))


def test_derivatives_of_every_order():
    def f(x):
        return jnp.sum(jnp.sin(x) * x**2)

    raised = bound(entry_point(jax2tf.convert(f), (X[0],), config=CONFIG))
    assert_equal(jax.grad(raised)(X[0]), jax.grad(f)(X[0]))
    assert_equal(jax.hessian(raised)(X[0]), jax.hessian(f)(X[0]))
    assert_equal(jax.vmap(jax.grad(raised))(X), jax.vmap(jax.grad(f))(X))
    want = jax.jvp(f, (X[0],), (X[1],))
    assert_equal(jax.jvp(raised, (X[0],), (X[1],)), want)


def test_without_gradient_the_derivative_is_refused():
    entry = entry_point(jax2tf.convert(jnp.sin, with_gradient=False), (X,), config=CONFIG)
    raised = bound(entry)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(raised))(X[None])[0], np.sin(X), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(LookupError, match=r"PreventGradient.*does not support gradients"):
        jax.grad(lambda x: raised(x).sum())(X)


def test_refused_derivatives_of_several_results_are_one_function():
    fn = jax2tf.convert(lambda x: (jnp.sin(x), x * x.sum(), x[0]), with_gradient=False)
    source = invert.roundtrip(fn, X).emit(loader=False).source
    assert source.count("@jax.custom_jvp") == 1


def test_open_batch():
    def f(x):
        return jnp.reshape(x, (-1,)) * x.shape[0]

    tf_fn = tf.function(jax2tf.convert(f, polymorphic_shapes=["b, 3"]), autograph=False)
    entry = entry_point(tf_fn, (tf.TensorSpec([None, 3]),), config=CONFIG)
    assert entry.args[0].shape == (None, 3) and entry.args[0].name == "x"
    for size in (1, 2, 5):
        x = np.resize(X, (size, 3))
        assert_equal(bound(entry)(x), f(x))


@pytest.mark.parametrize("dtype", "bool int8 uint32 float16 bfloat16 complex64".split())
def test_dtypes(dtype):
    x = jnp.asarray([1, 0, 1], dtype)
    entry = entry_point(jax2tf.convert(lambda x: (x[::-1], x == x)), (x,), config=CONFIG)
    out = bound(entry)(x)
    assert out[0].dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(out[0] == x[::-1]), True)


def test_no_arguments():
    assert bound(entry_point(jax2tf.convert(lambda: jnp.arange(3)), config=CONFIG))().shape == (3,)


@pytest.mark.parametrize("wrap", ["bare", "function"])
def test_python_numbers_are_arrays(wrap):
    entry = entry_point(WRAP[wrap](lambda x, y: x * y), (2.0, 3), config=CONFIG)
    assert [a.dtype.kind for a in entry.args] == ["f", "i"]
    assert bound(entry)(np.float32(5), np.int32(7)) == 35


def test_several_platforms():
    tf_fn = jax2tf.convert(jnp.sin, native_serialization_platforms=("cpu", "cuda", "tpu"))
    entry = entry_point(tf_fn, (X,), config=CONFIG)
    np.testing.assert_allclose(bound(entry)(X), np.sin(X), rtol=1e-6, atol=1e-6)


def test_module_is_parsed_once(monkeypatch):
    parsed = []
    original = Program.from_bytes

    def count(*args, **kwargs):
        parsed.append(kwargs)
        return original(*args, **kwargs)

    monkeypatch.setattr(Program, "from_bytes", count)
    entry = entry_point(tf.function(jax2tf.convert(jnp.sin), autograph=False), (X,), config=CONFIG)
    for _ in range(3):
        jax.make_jaxpr(bound(entry))(X)
    assert len(parsed) == 1


def with_attributes(**changes):
    """A function around one module, with changed attributes in its `GraphDef`."""
    tf_fn = tf.function(jax2tf.convert(jnp.sin, with_gradient=False), autograph=False)
    concrete = tf_fn.get_concrete_function(tf.constant(X))
    graph_def = concrete.graph.as_graph_def()
    node = next(n for n in graph_def.node if n.op == "XlaCallModule")
    for key, value in changes.items():
        attr = node.attr[key]
        if isinstance(value, list):
            attr.list.s.extend(value)
        else:
            setattr(attr, {bytes: "s", bool: "b", int: "i"}[type(value)], value)
    placeholder, output = concrete.inputs[0].op.name, concrete.outputs[0].name

    def fn(x):
        feed = {placeholder: x}
        return tf.graph_util.import_graph_def(graph_def, feed, return_elements=[output], name="")

    return tf.function(fn, autograph=False)


def test_unchanged_attributes_are_fine():
    entry = entry_point(with_attributes(), (X,), config=CONFIG)
    np.testing.assert_allclose(bound(entry)(X)[0], np.sin(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 11}, r"version 11 is not supported.*newer"),
        ({"version": 4}, r"version 4 is not supported"),
        ({"dim_args_spec": [b"0.0"]}, "dim_args_spec"),
        ({"has_token_input_output": True}, "has_token_input_output"),
    ],
    ids=lambda c: "" if isinstance(c, str) else next(iter(c)),
)
def test_unknown_attributes_are_reported(change, message):
    with pytest.raises(UnsupportedOpError, match=message):
        entry_point(with_attributes(**change), (X,), config=CONFIG)


@pytest.mark.parametrize("module", [b"", b"\x00\x01random", b"ML\xefR\x0dStableHLO_v9.9.9"])
def test_damaged_modules(module):
    with pytest.raises(MalformedModelError):
        entry_point(with_attributes(module=module), (X,), config=CONFIG)


def test_problems_inside_modules_join_the_others():
    def fn(x):
        y = jax2tf.convert(jnp.sin)(x)
        z = jax2tf.call_tf(tf.sin, call_tf_graph=True)
        return jax2tf.convert(lambda x: z(x) + 1)(y), tf.strings.as_string(x)

    with pytest.raises(UnsupportedOpError) as e:
        entry_point(tf.function(fn, autograph=False), (X,), config=CONFIG)
    ops = [p.op for p in e.value.problems]
    assert "tf.AsString" in ops and "tf.XlaCallModule" in ops
    assert any("call_tf" in p.reason for p in e.value.problems)
