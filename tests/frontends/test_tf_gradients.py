"""Derivatives that only the container holds: custom rules, stop_gradient, refused gradients."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import jax2tf

import invert
from invert import Config

X = np.array([0.3, -1.7, 2.2, 0.0, 6.0, 0.5], np.float32)
WEIGHTS = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)


@jax.custom_vjp
def steep(x):
    return jnp.round(x)


steep.defvjp(lambda x: (jnp.round(x), None), lambda _, ct: (2 * ct,))


@jax.custom_vjp
def clipped(x):
    return x * 1.0


clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1, 1),))


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


tripled.defjvp(lambda p, t: (jnp.sin(p[0]), 3 * p[0] * t[0]))


def converted(f, *args):
    """`f` and its recovered form."""
    specs = [jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype) for a in args]
    return invert.roundtrip(tf.function(jax2tf.convert(f), autograph=False), *specs)


def rules_of(jaxpr):
    found = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    found |= rules_of(getattr(inner, "jaxpr", inner))
    return {name for name in found if name.startswith("custom_")}


def assert_same(transform, f, g, *points):
    f, g = transform(f), transform(g)
    for x in points:
        want, got = f(x), g(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), want, got)


REVERSE = {
    "grad": jax.grad,
    "jit": lambda f: jax.jit(jax.grad(f)),
    "vmap": lambda f: jax.jit(lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x, -x]))),
    "second": lambda f: jax.jit(jax.jacrev(jax.grad(f))),
}
FORWARD = {
    "jvp": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x + 1,))),
    "hessian": lambda f: jax.jit(jax.hessian(f)),
    "vmap_jvp": lambda f: jax.jit(lambda x: jax.vmap(lambda t: jax.jvp(f, (x,), (t,)))(jnp.eye(6))),
}
POINTS = (X, np.zeros_like(X), np.ones_like(X))

DIFFERENT = {
    "steep": lambda x: jnp.sum(steep(x) ** 2),
    "weights": lambda x: jnp.sum(steep(x @ WEIGHTS) @ WEIGHTS),
    "clipped": lambda x: jnp.sum(clipped(x) ** 2),
    "custom_jvp": lambda x: jnp.sum(tripled(x) ** 2),
    "scan": lambda x: lax.scan(lambda c, a: (c * jnp.tanh(a), steep(c)), 1.0, x)[1].sum(),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_custom_rules_come_back(name):
    f = DIFFERENT[name]
    module = converted(f, X)
    assert "kept as" in module.report.gradients[-1]
    assert rules_of(module.jaxpr)
    for transform in REVERSE.values():
        assert_same(transform, f, module, *POINTS)


@pytest.mark.parametrize("mode", ("jvp", "vmap_jvp"))
def test_linear_rules_serve_forward_mode(mode):
    f = DIFFERENT["custom_jvp"]
    module = converted(f, X)
    assert rules_of(module.jaxpr) == {"custom_jvp_call"}
    assert_same(FORWARD[mode], f, module, X)


def test_a_clipped_gradient_is_refused_in_forward_mode_as_it_was():
    module = converted(DIFFERENT["clipped"], X)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(module, (X,), (X,))
    large = jax.grad(module)(100 * X)
    np.testing.assert_array_equal(large, np.sign(X))


AGREEING = {
    "sin": lambda x: jnp.sum(jnp.sin(x @ WEIGHTS)),
    "relu": lambda x: jnp.sum(jax.nn.relu(x) ** 2),
    "relu6": lambda x: jnp.sum(jax.nn.relu6(x) * x),
    "abs": lambda x: jnp.sum(jnp.abs(x) * x),
    "max": lambda x: jnp.max(jnp.round(x)),
    "maximum": lambda x: jnp.sum(jnp.maximum(x, x[::-1])),
    "softmax": lambda x: jnp.sum(jax.nn.softmax(x) ** 2),
    "logsumexp": lambda x: jax.nn.logsumexp(x),
    "scan": lambda x: lax.scan(lambda c, a: (c * jnp.tanh(a), c), 1.0, x)[1].sum(),
}


@pytest.mark.parametrize("name", AGREEING)
def test_no_rule_is_left_where_autodiff_agrees(name):
    f = AGREEING[name]
    module = converted(f, X)
    (said,) = module.report.gradients
    assert said.startswith("node 'IdentityN': agrees with autodiff")
    assert "custom_gradient" not in module.report.primitives
    assert "custom_vjp_call" not in rules_of(module.jaxpr)
    # Functions of jax.nn bring rules of their own.
    assert rules_of(module.jaxpr) <= ({"custom_jvp_call"} if "relu" in name else set())
    assert module.report.certificate.kind == "exact"
    for transform in (jax.grad, FORWARD["hessian"], REVERSE["vmap"], FORWARD["vmap_jvp"]):
        assert_same(transform, f, module, *POINTS[:2])


def rounded(x):
    return x + lax.stop_gradient(jnp.round(x) - x)


def temporal_difference(x):
    value = jnp.max(jnp.outer(x, x) @ WEIGHTS, axis=1)
    return jnp.mean((x - lax.stop_gradient(value)) ** 2)


def quantized(x):
    """The losses of a VQ-VAE: no single place makes any gradient right."""
    z, q = jnp.tanh(x @ WEIGHTS), jnp.sin(x)
    code = jnp.mean((q - lax.stop_gradient(z)) ** 2)
    commitment = jnp.mean((lax.stop_gradient(q) - z) ** 2)
    return jnp.sum(z + lax.stop_gradient(q - z)) + code + 0.25 * commitment


# The function, and the primitives whose results its author stopped.
STOPPED = {
    "factor": (lambda x: jnp.sum(x * lax.stop_gradient(jnp.sin(x))), ["sin"]),
    "square": (lambda x: jnp.sum(x * lax.stop_gradient(x)), [None]),
    "straight_through": (lambda x: jnp.sum(rounded(x) ** 2), ["sub"]),
    "twice": (lambda x: jnp.sum(rounded(jnp.tanh(rounded(x @ WEIGHTS)) @ WEIGHTS)), ["sub", "sub"]),
    "target": (temporal_difference, ["reduce_max"]),
    "quantized": (quantized, ["tanh", "sin", "sub"]),
}


@pytest.mark.parametrize("name", STOPPED)
def test_stop_gradient_comes_back_where_it_was(name):
    f, stopped = STOPPED[name]
    module = converted(f, X)
    assert "stop_gradient put back" in module.report.gradients[-1]
    producers = {v: e.primitive.name for e in module.jaxpr.eqns for v in e.outvars}
    found = [producers.get(e.invars[0]) for e in module.jaxpr.eqns if is_stop(e)]
    assert found == stopped
    assert module.report.certificate.kind == "exact"
    for transform in (FORWARD["hessian"], REVERSE["vmap"], FORWARD["vmap_jvp"]):
        assert_same(transform, f, module, *POINTS[:2])


def is_stop(eqn):
    return eqn.primitive.name == "stop_gradient"


def test_an_argument_without_gradient_is_stopped():
    def f(free, scale, shift, x):
        scale, shift = lax.stop_gradient((scale, shift))
        return jnp.sum(jnp.tanh(x * scale + free) * shift)

    args = (X, X - 1, X + 1, 2 * X)
    module = converted(f, *args)
    assert "stop_gradient put back" in module.report.gradients[-1]
    want, got = (jax.grad(g, argnums=(0, 1, 2, 3))(*args) for g in (f, module))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), want, got)
    assert not np.any(got[1]) and not np.any(got[2])


def test_stop_gradient_alone():
    module = converted(lax.stop_gradient, X)
    assert_same(FORWARD["jvp"], lax.stop_gradient, module, X)
    assert_same(lambda f: lambda x: jax.vjp(f, x)[1](x)[0], lax.stop_gradient, module, X)


def test_several_functions_among_tensorflow_ops():
    first, second = jax2tf.convert(steep), jax2tf.convert(jnp.sin)
    scale = tf.Variable(np.float32(1.5))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((6,), tf.float32)])
    def f(x):
        return tf.reduce_sum(second(first(x * scale) * 0.25) * x)

    module = invert.roundtrip(f)
    kinds = [text.partition(": ")[2] for text in module.report.gradients]
    assert kinds[0].startswith("kept as") and kinds[1] == "agrees with autodiff"
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    want_x, want_scale = tape.gradient(y, [x, scale])
    got, got_x = jax.grad(lambda m, x: m(x), argnums=(0, 1))(module, X)
    np.testing.assert_allclose(got_x, want_x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(got.params)[0], want_scale, rtol=1e-5, atol=1e-5)


def test_inside_a_called_function_and_an_outer_rule():
    inner = jax2tf.convert(steep)

    @tf.function(autograph=False)
    def call(x):
        return inner(x) * 2.0

    @tf.custom_gradient
    def outer(x):
        return tf.exp(call(x)), lambda ct: ct * 7.0 * x

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((6,), tf.float32)])
    def f(x):
        return tf.reduce_sum(outer(x)) + tf.reduce_sum(call(x) * x)

    module = invert.roundtrip(f)
    assert len([t for t in module.report.gradients if "kept as" in t]) >= 2
    np.testing.assert_allclose(
        jax.grad(module)(X), 7 * X + 4 * X + 2 * np.round(X), rtol=1e-5, atol=1e-6
    )


def test_custom_gradient_of_tensorflow_that_uses_an_intermediate_value():
    @tf.custom_gradient
    def log1pexp(x):
        e = tf.exp(x)
        return tf.math.log(1 + e), lambda ct: ct * (1 - 1 / (1 + e))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((), tf.float32)])
    def f(x):
        return log1pexp(x)

    module = invert.roundtrip(f)
    # Where exp overflows, autodiff is not a number; the author's rule is.
    np.testing.assert_allclose(jax.grad(module)(100.0), 1.0)
    s = 1 / (1 + np.exp(-0.5))
    np.testing.assert_allclose(jax.grad(jax.grad(module))(0.5), s * (1 - s), rtol=1e-5, atol=1e-6)


def test_integer_arguments_and_results():
    def f(x, n):
        return steep(x) * n, jnp.argmax(x) + n

    module = converted(f, X, np.int32(3))
    y, pull = jax.vjp(module, X, np.int32(3))
    ct = (np.ones_like(X), np.zeros((), jax.dtypes.float0))
    want = jax.vjp(f, X, np.int32(3))[1](ct)
    got = pull(ct)
    np.testing.assert_allclose(got[0], want[0])
    assert got[1].dtype == jax.dtypes.float0
    assert y[1].dtype == jnp.int32


def test_a_symbolic_batch():
    f = jax2tf.convert(lambda x: steep(x) * 2, polymorphic_shapes=["(b, 3)"])
    tf_fn = tf.function(f, autograph=False, input_signature=[tf.TensorSpec((None, 3), tf.float32)])
    module = invert.roundtrip(tf_fn)
    for n in (2, 5):
        x = np.ones((n, 3), np.float32)
        grad = jax.jit(jax.grad(lambda x: jnp.sum(module(x) ** 2)))(x)
        np.testing.assert_allclose(grad, 16 * np.ones((n, 3)))


FRESH = """
import sys, numpy as np, jax, jax.numpy as jnp, invert
x = np.asarray([0.3, -1.7, 2.2, 0.0, 6.0, 0.5], np.float32)
module = invert.load(sys.argv[1])
print(module.report.gradients)
np.testing.assert_allclose(jax.grad(module)(x), 4 * np.round(x) * module.params["w"], atol=1e-6)
params = jax.grad(lambda m: m(x))(module).params
np.testing.assert_allclose(params["w"], np.round(x) ** 2, atol=1e-6)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_after_save_and_load_in_a_fresh_process(tmp_path, kept):
    inner = jax2tf.convert(lambda x, w: jnp.sum(steep(x) ** 2 * w))
    holder = tf.Module()
    holder.w = tf.Variable(np.arange(6, dtype=np.float32), name="w")
    holder.f = tf.function(
        lambda x: inner(x, holder.w),
        autograph=False,
        input_signature=[tf.TensorSpec((6,), tf.float32)],
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=kept)
    tf.saved_model.save(holder, str(tmp_path), options=options)
    if not kept:
        assert "no gradient function was saved" in invert.load(tmp_path).report.gradients[0] or (
            "another" in invert.load(tmp_path).report.gradients[0]
        )
        return
    root = str(Path(invert.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "kept as" in done.stdout


def test_options():
    tf_fn = tf.function(jax2tf.convert(DIFFERENT["steep"]), autograph=False)
    ignored = invert.roundtrip(tf_fn, X, config=Config(custom_gradients="ignore"))
    assert ignored.report.gradients == ()
    np.testing.assert_array_equal(jax.grad(ignored)(X), np.zeros_like(X))
    sin = tf.function(jax2tf.convert(AGREEING["sin"]), autograph=False)
    kept = invert.roundtrip(sin, X, config=Config(custom_gradients="keep"))
    assert "kept as custom_jvp" in kept.report.gradients[-1]
    for transform in (jax.grad, jax.hessian, jax.jacrev):
        assert_same(transform, AGREEING["sin"], kept, X)


def test_the_users_graph_is_not_changed():
    tf_fn = tf.function(jax2tf.convert(steep), autograph=False)
    concrete = tf_fn.get_concrete_function(tf.TensorSpec((6,), tf.float32))
    before = concrete.graph.as_graph_def().SerializeToString(deterministic=True)
    invert.roundtrip(concrete)
    assert concrete.graph.as_graph_def().SerializeToString(deterministic=True) == before


def test_without_gradient():
    tf_fn = tf.function(jax2tf.convert(jnp.sin, with_gradient=False), autograph=False)
    module = invert.roundtrip(tf_fn, X)
    np.testing.assert_allclose(module(X), np.sin(X), rtol=1e-6, atol=1e-6)
    assert module.report.certificate.kind == "exact"
    with pytest.raises(LookupError, match="does not support gradients"):
        jax.grad(lambda x: module(x).sum())(X)
    allowed = invert.roundtrip(tf_fn, X, config=Config(prevent_gradient="warn"))
    with pytest.warns(UserWarning, match="does not support gradients"):
        grad = jax.grad(lambda x: allowed(x).sum())(X)
    np.testing.assert_allclose(grad, np.cos(X), rtol=1e-6, atol=1e-6)


def test_a_step_without_gradient():
    """No derivative passes its results, so that stops inside of its loss may be JAX's."""

    def loss_fn(w, x):
        return -jnp.mean(jax.nn.log_softmax(jax.nn.relu(x @ w))[:, 0])

    def step(w, x):
        loss, slope = jax.value_and_grad(loss_fn)(w, x)
        return w - 0.1 * slope, loss

    w, x = np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)
    tf_fn = tf.function(jax2tf.convert(step, with_gradient=False), autograph=False)
    module = invert.roundtrip(tf_fn, w, x)
    assert "jax.value_and_grad(loss_fn)(" in module.source
    for found, wanted in zip(module(w, x), jax.jit(step)(w, x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(LookupError, match="does not support gradients"):
        jax.grad(lambda w: module(w, x)[1])(w)


def test_a_function_without_a_reverse_derivative_still_converts():
    def f(x):
        return lax.while_loop(lambda c: c[1] < x[0], lambda c: (c[0] * 2, c[1] + 1), (x, 0.0))[0]

    module = converted(f, X)
    assert "the gradient function fails" in module.report.gradients[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(module(X), f(X))
    assert_same(FORWARD["jvp"], f, module, X)


def test_rules_of_a_function_whose_gradient_cannot_be_converted():
    """JAX cannot trace the transpose of a strided convolution at an open length."""

    def f(x):
        return clipped(
            lax.conv_general_dilated(x, np.ones((3, 2, 2), np.float32), (2,), "SAME",
                                     dimension_numbers=("NHC", "HIO", "NHC"))
        )  # fmt: skip

    tf_fn = tf.function(jax2tf.convert(f, polymorphic_shapes=["(b, t, 2)"]), autograph=False)
    x = np.sin(np.arange(20, dtype=np.float32)).reshape(2, 5, 2)
    for example in (x, tf.TensorSpec((None, None, 2), tf.float32)):
        module = invert.roundtrip(tf_fn, example)
        assert_same(lambda g: jax.grad(lambda x: (5 * g(x)).sum()), f, module, x)
        assert "the rule of clipped: kept as custom_vjp" in module.report.gradients[0]
