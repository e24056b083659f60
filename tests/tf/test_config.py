"""Options of a conversion: shapes, dtypes, constants, assertions, precision, platform."""

from __future__ import annotations

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import checkify, jax2tf

import invert

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)


def _dense(x):
    return tf.nn.relu(tf.matmul(x, tf.constant(W))) + 0.1


def test_other_shapes_are_an_error_unless_allowed():
    fn = tf.function(_dense)
    taller = np.concatenate([X, X])
    with pytest.raises(invert.SignatureError, match=re.escape("expected [4, 3]")):
        invert.convert(fn, X)(taller)
    module = invert.convert(fn, X, config=invert.Config(strict_shapes=False))
    np.testing.assert_array_equal(module(X), invert.convert(fn, X)(X))
    np.testing.assert_allclose(module(taller), _dense(taller).numpy(), rtol=1e-6, atol=1e-6)
    with pytest.raises(invert.SignatureError, match="has the shape"):
        module(X[0])  # another rank is another function


def test_a_module_of_fixed_shapes_says_so():
    fn = jax2tf.convert(lambda x: jnp.tanh(x))
    module = invert.convert(
        tf.function(fn, autograph=False), X, config=invert.Config(strict_shapes=False)
    )
    with pytest.raises(invert.SignatureError, match="the module takes"):
        module(np.concatenate([X, X]))


def test_other_dtypes_are_an_error_unless_allowed():
    fn = tf.function(_dense)
    whole = np.arange(12).reshape(4, 3)
    with pytest.raises(invert.SignatureError, match="has the dtype int64, expected float32"):
        invert.convert(fn, X)(whole)
    module = invert.convert(fn, X, config=invert.Config(strict_dtypes=False))
    want = _dense(whole.astype(np.float32)).numpy()
    np.testing.assert_allclose(module(whole), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.jit(module)(jnp.asarray(whole)), want, rtol=1e-6, atol=1e-6)
    with pytest.raises(invert.SignatureError, match="complex64"):
        module(X.astype(np.complex64))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constants_are_kept_in_bfloat16(dtype):
    weights = tf.constant(W, dtype)
    fn = tf.function(lambda x: tf.matmul(x, weights))
    x = X.astype(dtype)
    plain = invert.convert(fn, x)
    module = invert.convert(fn, x, config=invert.Config(bfloat16_constants=(dtype,)))
    (kept,) = module.constants
    assert kept.dtype == jnp.bfloat16
    np.testing.assert_array_equal(kept, W.astype(jnp.bfloat16))
    result = module(x)
    assert result.dtype == plain(x).dtype
    rounded = np.asarray(kept).astype(dtype)
    np.testing.assert_allclose(result, x @ rounded, rtol=1e-5, atol=1e-5)
    assert np.any(np.asarray(result) != np.asarray(plain(x)))
    certificate = module.report.certificate
    assert certificate.kind == "numerical" and certificate.before == plain.report.certificate
    assert "1 arrays of the program are rounded to bfloat16; exact before" in str(certificate)
    assert certificate.largest_error is not None and 1e-4 < certificate.largest_error < 1
    assert "Certificate: exact" not in module.source
    np.testing.assert_array_equal(module.model(x), result)
    other = "float64" if dtype == "float32" else "float32"
    same = invert.convert(fn, x, config=invert.Config(bfloat16_constants=(other,)))
    np.testing.assert_array_equal(same(x), plain(x))
    assert same.report.certificate == plain.report.certificate


def _checked(x):
    tf.debugging.assert_positive(x, message="must be {positive}")
    return {"root": tf.debugging.check_numerics(tf.sqrt(x), "a root"), "x": x}


def test_assertions_of_checkify():
    fn = tf.function(_checked, input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    module = invert.convert(fn, config=invert.Config(assertions="checkify"))
    good, bad = np.abs(X), np.where(np.arange(3) == 1, -1, np.abs(X)).astype(np.float32)
    for model in (module, module.model):
        # Text is of plain Equinox modules, which `jax.jit` takes in `eqx.filter_jit` only.
        compiled = jax.jit(model) if model is module else eqx.filter_jit(model)
        for call in (model, compiled, jax.vmap(lambda x, model=model: model(x[None]))):
            error, found = jax.jit(checkify.checkify(call))(good)
            error.throw()
            np.testing.assert_array_equal(np.ravel(found["root"]), np.ravel(np.sqrt(good)))
            error, _ = jax.jit(checkify.checkify(call))(bad)
            with pytest.raises(
                checkify.JaxRuntimeError, match=r"CheckNumerics|must be \{positive\}"
            ):
                error.throw()
        with pytest.raises(checkify.JaxRuntimeError, match="failed"):
            model(bad)
    assert module.report.certificate.kind == "exact"


def test_assertions_are_emitted():
    counter = tf.Variable(0.0)

    def counted(x):
        tf.debugging.assert_positive(x, message="must be positive")
        return x * counter.assign_add(1.0)

    module = invert.convert(tf.function(counted), X, config=invert.Config(assertions="error_if"))
    model = module.model
    good = np.abs(X)
    out, state = model(good, eqx.nn.State(model))
    again, _ = model(good, state)
    np.testing.assert_array_equal(again, 2 * np.asarray(out))
    for call in (model, eqx.filter_jit(model), module):
        with pytest.raises((RuntimeError, ValueError), match="must be positive"):
            jax.block_until_ready(call(X, eqx.nn.State(model if call is not module else module)))


def test_precision_of_resizing():
    x = np.random.default_rng(2).uniform(size=(1, 8, 8, 2)).astype(np.float32)
    fn = tf.function(lambda x: tf.image.resize(x, (5, 3), method="area"))
    for precision in ("default", "high", "highest"):
        module = invert.convert(fn, x, config=invert.Config(resize_precision=precision))
        used = {
            str(e.params["precision"])
            for e in module.jaxpr.eqns
            if e.primitive.name == "dot_general"
        }
        wanted = None if precision == "default" else precision.upper()
        assert used and all((wanted in u) if wanted else ("HIGH" not in u) for u in used), used
        np.testing.assert_allclose(module(x), fn(x), rtol=1e-5, atol=1e-6)


def test_platform_is_checked_on_request():
    exported = jax.export.export(jax.jit(jnp.tanh), platforms=["tpu"])(X)
    np.testing.assert_array_equal(invert.from_exported(exported)(X), jnp.tanh(X))
    with pytest.raises(invert.SignatureError, match="lowered for tpu, but this process runs on"):
        invert.from_exported(exported, config=invert.Config(platform_check=True))
    both = jax.export.export(jax.jit(jnp.tanh), platforms=["tpu", "cpu", "cuda", "rocm"])(X)
    invert.from_exported(both, config=invert.Config(platform_check=True))
