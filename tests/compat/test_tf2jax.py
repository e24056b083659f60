"""The API of tf2jax over `invert.convert`."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, jax2tf

from invert.compat import tf2jax
from invert.compat.tf2jax.config import conversion, copy_config, override_configs
from invert.compat.tf2jax.experimental import mhlo

tf = pytest.importorskip("tensorflow")

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Model(tf.Module):
    """A layer with a trained weight and a counter of calls."""

    def __init__(self) -> None:
        super().__init__(name="model")
        self.weight = tf.Variable(np.full((4, 2), 0.5, np.float32), name="weight")
        self.count = tf.Variable(0, trainable=False, name="count")

    @tf.function(autograph=False)
    def __call__(self, x: Any) -> Any:
        self.count.assign_add(1)
        return {"y": x @ self.weight, "count": self.count.read_value()}

    @tf.function(autograph=False)
    def pure(self, x: Any) -> Any:
        return tf.sin(x)


def test_parameters_in_and_out() -> None:
    model = Model()
    fn, params = tf2jax.convert(model.__call__, np.zeros_like(X))
    assert {n: v.trainable for n, v in params.items()} == {"weight": True, "count": False}
    assert all(isinstance(v, np.ndarray) and v.name == n for n, v in params.items())
    out, params = fn(params, X)
    out, params = jax.jit(fn)(params, X)
    assert int(out["count"]) == int(params["count"]) == 2
    np.testing.assert_allclose(out["y"], X @ np.full((4, 2), 0.5), rtol=1e-6, atol=1e-6)

    def loss(weight: Any) -> Any:
        return jnp.sum(fn({**params, "weight": weight}, X)[0]["y"] ** 2)

    grad = jax.grad(loss)(params["weight"])
    np.testing.assert_allclose(grad, 2 * X.T @ (X @ np.full((4, 2), 0.5)), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="parameters are missing"):
        fn({}, X)


def test_functional() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: tf.sin(tf.cos(x))), np.zeros_like(X))
    np.testing.assert_allclose(fn(X), np.sin(np.cos(X)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(fn.fn)(X[None]), np.sin(np.cos(X))[None], rtol=1e-6, atol=1e-6
    )
    model = Model()
    with pytest.raises(ValueError, match="variables"):
        tf2jax.convert_functional(model.__call__, X)


def test_annotations() -> None:
    def forward(x: Any, scale: Any = 2.0, *, shift: Any = None) -> Any:
        """Scales and shifts."""
        return {"out": (x * scale if shift is None else x * scale + shift, x)}

    fn, _ = tf2jax.convert(tf.function(forward), X, shift=X)
    assert isinstance(fn, tf2jax.AnnotatedFunction)
    assert fn.__name__ == "forward"
    assert list(fn.signature.parameters) == list(inspect.signature(fn).parameters)
    assert list(fn.signature.parameters) == ["x", "scale", "shift"]
    (x, scale), kwargs = fn.structured_inputs
    assert (tuple(x.shape), x.dtype, scale) == ((3, 4), tf.float32, 2.0)
    assert tuple(kwargs["shift"].shape) == (3, 4)
    assert [tuple(t.shape) for t in fn.structured_outputs["out"]] == [(3, 4)] * 2
    assert fn.module is not None and fn.module.report.primitives
    (out, same), _ = fn({}, X, shift=X)[0]["out"], None
    np.testing.assert_allclose(out, 3 * X, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(same, X)


def test_literal_arguments_are_checked() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x, up: x + 1 if up else x), X, True)
    np.testing.assert_array_equal(fn(X, True), X + 1)
    with pytest.raises(ValueError, match="traced with True"):
        fn(X, False)


def test_missing_inputs() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda d: d["a"] + d["b"]), {"a": X, "b": X})
    np.testing.assert_array_equal(fn({"a": X, "b": X}), 2 * X)
    with pytest.raises(tf2jax.MissingInputError, match=r"d\['b'\] \(float32"):
        fn({"a": X})
    fn = tf2jax.convert_functional(tf.function(lambda x, y=None: x if y is None else x + y), X, X)
    with pytest.raises(tf2jax.MissingInputError, match="y"):
        fn(X)


def test_shape_check() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: x / tf.cast(tf.shape(x)[0], x.dtype)), X)
    wide = np.ones((6, 4), np.float32)
    with pytest.raises(ValueError, match="strict_shape_check"):
        fn(wide)
    with tf2jax.override_config("strict_shape_check", False):
        np.testing.assert_allclose(fn(wide), wide / 6, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(jax.jit(fn)(wide), wide / 6, rtol=1e-6, atol=1e-6)


def test_dtype_check() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: x / 2), X)
    np.testing.assert_array_equal(fn(np.ones((3, 4), np.int32)), np.full((3, 4), 0.5))
    with (
        tf2jax.override_config("strict_dtype_check", True),
        pytest.raises(ValueError, match="strict_dtype_check"),
    ):
        fn(np.ones((3, 4), np.int32))


def test_bfloat16() -> None:
    forward = tf.function(lambda x: x + tf.constant(3.14))
    with tf2jax.override_config("force_const_float32_to_bfloat16", True):
        fn = tf2jax.convert_functional(forward, X)
    assert fn(jnp.asarray(X, jnp.bfloat16)).dtype == jnp.bfloat16
    assert fn(X).dtype == jnp.float32


def test_random_numbers_need_a_key() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: tf.nn.dropout(x, 0.5)), X)
    with pytest.raises(ValueError, match="PRNG key is required"):
        fn(X)
    key = jax.random.PRNGKey(42)
    np.testing.assert_array_equal(fn(X, rng=key), fn(X, rng=key))
    assert not np.array_equal(fn(X, rng=key), fn(X, rng=jax.random.key(1)))


def test_custom_gradient_flag() -> None:
    @tf.function(autograph=False)
    @tf.custom_gradient
    def forward(x: Any) -> Any:
        e = tf.exp(x)
        return tf.reduce_sum(e), lambda dy: dy * tf.sin(x) + e

    fn = tf2jax.convert_functional(forward, X)
    np.testing.assert_allclose(jax.grad(fn)(X), np.sin(X) + np.exp(X), rtol=1e-5, atol=1e-6)
    with tf2jax.override_config("convert_custom_gradient", False):
        fn = tf2jax.convert_functional(forward, X)
    np.testing.assert_allclose(jax.grad(fn)(X), np.exp(X), rtol=1e-5, atol=1e-6)


def test_prevented_gradient_flag() -> None:
    forward = tf.function(lambda x: tf.reduce_sum(tf.raw_ops.PreventGradient(input=x)))
    with pytest.raises(LookupError):
        jax.grad(tf2jax.convert_functional(forward, X))(X)
    with tf2jax.override_config("raise_on_prevent_gradient", False):
        fn = tf2jax.convert_functional(forward, X)
    with pytest.warns(UserWarning, match="PreventGradient"):
        np.testing.assert_array_equal(jax.grad(fn)(X), np.ones_like(X))


def test_restored(tmp_path: Path) -> None:
    model = Model()
    model(X)
    model.pure(X)
    tf.saved_model.save(model, str(tmp_path))
    restored = tf.saved_model.load(str(tmp_path))
    fn, params = tf2jax.convert_from_restored(restored.__call__)
    out, params = fn(params, X)
    assert int(params["count"]) == int(out["count"]) == 2
    pure = tf2jax.convert_functional_from_restored(restored.pure)
    np.testing.assert_allclose(pure(X), np.sin(X), rtol=1e-6, atol=1e-6)
    fn, params = tf2jax.convert(restored.__call__, np.zeros_like(X))
    np.testing.assert_allclose(fn(params, X)[0]["y"], out["y"], rtol=1e-6, atol=1e-6)


def test_restored_of_several_traces(tmp_path: Path) -> None:
    model = tf.Module()
    model.f = tf.function(lambda x: x + 1)
    model.f(X)
    model.f(X[0])
    tf.saved_model.save(model, str(tmp_path))
    restored = tf.saved_model.load(str(tmp_path))
    with pytest.raises(ValueError, match="Found 2 concrete functions"):
        tf2jax.convert_functional_from_restored(restored.f)


def test_flags() -> None:
    assert tf2jax.get_config("strict_shape_check") is True
    with pytest.raises(KeyError):
        tf2jax.get_config("no_such_flag")
    with pytest.raises(ValueError, match="no_such_flag"):
        tf2jax.update_config("no_such_flag", True)
    with pytest.raises(RuntimeError), tf2jax.override_config("strict_dtype_check", True):
        assert tf2jax.get_config("strict_dtype_check") is True
        raise RuntimeError
    assert tf2jax.get_config("strict_dtype_check") is False
    tf2jax.update_config("resize_bilinear_precision", "default")
    assert tf2jax.get_config("resize_bilinear_precision") == "default"
    tf2jax.update_config("resize_bilinear_precision", "highest")


def test_patterns_flags() -> None:
    with (
        tf2jax.override_config("infer_relu_from_jax2tf", False),
        tf2jax.override_config("infer_cumulative_reduction_from_jax2tf", False),
        tf2jax.override_config("enable_checkify_for_asserts", True),
    ):
        config = conversion()
    assert config.disabled_patterns == ("library_call", "cumulative")
    assert config.assertions == "checkify"
    assert conversion().disabled_patterns == ()


def test_a_python_function_is_refused() -> None:
    with pytest.raises(AttributeError):
        tf2jax.convert(lambda x: x, X)


def test_importing_does_not_import_tensorflow() -> None:
    code = "import sys; from invert.compat import tf2jax; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Lazy(tf.Module):
    """A module that creates its weights in the first call, as Sonnet's modules do."""

    weight: Any = None

    @tf.function
    def __call__(self, x: Any) -> Any:
        if self.weight is None:
            self.weight = tf.Variable(tf.random.normal([4, 2]), name="weight")
        return x @ self.weight


@pytest.mark.parametrize("called", [False, True])
def test_variables_made_in_the_first_call(called: bool) -> None:
    model = Lazy()
    if called:
        model(X)
    fn, params = tf2jax.convert(model.__call__, np.zeros_like(X))
    assert list(params) == ["weight"]
    out, after = fn(params, X)
    np.testing.assert_allclose(out, model(X), rtol=1e-6, atol=1e-6)
    assert list(after) == ["weight"]


@pytest.mark.parametrize("called", [False, True])
def test_sonnet(called: bool) -> None:
    snt = pytest.importorskip("sonnet")
    model = snt.nets.MLP((6, 2))
    forward = tf.function(lambda x: model(x))
    if called:
        forward(X)
    fn, params = tf2jax.convert(forward, np.zeros_like(X))
    assert len(params) == 4
    np.testing.assert_allclose(fn(params, X)[0], forward(X), rtol=1e-5, atol=1e-6)


def _forward(*inputs: Any) -> Any:
    return jnp.cumsum(inputs[0]) @ inputs[1]["w"]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    ("function", "names"),
    [(_forward, ("inputs_0", "inputs_1")), (lambda a, b: _forward(a, b), ("a", "b"))],
)
# TensorFlow converts the code of JAX itself, which takes a minute.
@pytest.mark.parametrize("autograph", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.drawn(12)
def test_jax_functions_come_back(
    function: Any, names: tuple[str, ...], restored: bool, autograph: bool, tmp_path: Path
) -> None:
    args = (np.ones(4, np.float32), {"w": np.ones((4, 2), np.float32)})
    model = tf.Module()
    model.f = tf.function(jax2tf.convert(function), autograph=autograph)
    if restored:
        model.f(*jax.tree_util.tree_map(tf.zeros_like, args))
        tf.saved_model.save(model, str(tmp_path))
        model = tf.saved_model.load(str(tmp_path))
    fn = tf2jax.convert_functional(model.f, *jax.tree_util.tree_map(np.zeros_like, args))
    np.testing.assert_allclose(fn(*args), function(*args), rtol=1e-6, atol=1e-6)
    assert restored or tuple(inspect.signature(fn.module).parameters) == names
    if not restored:
        longer = (np.ones(5, np.float32), {"w": np.ones((5, 2), np.float32)})
        with tf2jax.override_config("strict_shape_check", False):
            np.testing.assert_allclose(fn(*longer), function(*longer), rtol=1e-6, atol=1e-6)


def test_static_values_next_to_jax2tf_arrays() -> None:
    converted = jax2tf.convert(lambda a, b: a - b["x"])

    @tf.function
    def forward(plus: float, a: Any, *rest: Any, **more: Any) -> Any:
        return converted(a, rest[0]) + plus + more["z"] * more["y"]

    args = (2.0, X, {"x": X + 1})
    fn = tf2jax.convert_functional(forward, *args, z=X, y=X)
    np.testing.assert_allclose(fn(*args, z=X, y=2 * X), 1 + 2 * X * X, rtol=1e-5, atol=1e-6)


def test_a_restored_function_runs_at_other_shapes(tmp_path: Path) -> None:
    model = tf.Module()
    model.f = tf.function(lambda x: tf.exp(x) * 2)
    model.f(X)
    tf.saved_model.save(model, str(tmp_path))
    fn = tf2jax.convert_functional_from_restored(tf.saved_model.load(str(tmp_path)).f)
    wide = np.ones((5, 2), np.float32)
    with pytest.raises(ValueError, match="incompatible input shape"):
        fn(wide)
    with tf2jax.override_config("strict_shape_check", False):
        np.testing.assert_allclose(jax.jit(fn)(wide), np.exp(wide) * 2, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            fn(wide[0]), np.exp(wide[0]) * 2, rtol=1e-6, atol=1e-6
        )  # of another rank


def test_shapes_that_a_function_refuses() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: tf.ensure_shape(x, [3, 4])), X)
    with tf2jax.override_config("strict_shape_check", False):
        for x in (X[0], X[:2]):
            with pytest.raises(ValueError, match=r"Expected shape=\(3, 4\), got "):
                fn(x)


def test_sizes_computed_from_values() -> None:
    fn = tf2jax.convert_functional(
        tf.function(lambda n, x: tf.zeros((n,)) + x), np.array(2), X[0, 0]
    )
    for n in (4, 2, np.int32(3)):
        np.testing.assert_array_equal(fn(n, X[1, 1]), np.full(n, X[1, 1]))
    assert fn.module is None
    gradient = jax.grad(lambda x: fn(5, x).sum())(X[0, 0])
    np.testing.assert_array_equal(gradient, np.float32(5))
    with pytest.raises(jax.errors.ConcretizationTypeError, match="concrete values of integer"):
        jax.jit(fn)(4, X[0, 0])
    np.testing.assert_array_equal(jax.jit(fn, static_argnums=0)(3, X[0, 0]), np.full(3, X[0, 0]))


def test_values_of_the_example_do_not_matter() -> None:
    zero = np.int32(0)
    fn = tf2jax.convert_functional(tf.function(tf.range), zero, zero, zero)
    np.testing.assert_array_equal(fn(1, 8, 3), [1, 4, 7])
    where = tf2jax.convert_functional(tf.function(tf.where), np.zeros(3, bool))
    np.testing.assert_array_equal(where(np.array([True, False, True])), [[0], [2]])


def test_errors_are_also_tf2jax_errors() -> None:
    decode = tf.function(lambda n: tf.io.decode_jpeg(tf.io.read_file("a")) + tf.cast(n, tf.uint8))
    with pytest.raises(ValueError, match="ReadFile"):
        tf2jax.convert(decode, np.array(2))
    handle = tf.function(lambda: tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], name="blah"))
    with pytest.raises(ValueError, match="VarHandleOp `blah` cannot be evaluated"):
        tf2jax.convert(handle)
    n = np.array(2)
    fn = tf2jax.convert_functional(tf.function(lambda n: tf.reshape(tf.zeros([n]), [2])), n)
    with pytest.raises(ValueError, match=r"[Rr]eshape"):
        fn(3)


def test_checks_report_their_findings() -> None:
    with tf2jax.override_config("enable_checkify_for_asserts", True):
        fn = tf2jax.convert_functional(
            tf.function(lambda x: tf.debugging.check_numerics(x, "Checking")), X[0]
        )
    for value in (np.inf, np.nan):
        error, _ = checkify.checkify(fn)(np.array([0, value, 1, 2], np.float32))
        name = "Inf" if value == np.inf else "NaN"
        with pytest.raises(checkify.JaxRuntimeError, match=f"Checking : Found {name} values"):
            error.throw()


def test_symbolic_sizes() -> None:
    fn = tf2jax.convert_functional(
        tf.function(lambda x: tf.reshape(x, [tf.shape(x)[0], -1])),
        tf.TensorSpec([None, 2, 3], tf.float32),
    )
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 2, 3), np.float32)
    assert str(jax.eval_shape(fn, spec).shape) == "(b, 6)"


def test_results_narrow_where_the_session_has_no_64_bits() -> None:
    fn = tf2jax.convert_functional(tf.function(lambda x: x + 1), np.ones(3))
    assert fn(np.ones(3)).dtype == np.float32
    with jax.enable_x64(True):
        assert fn(np.ones(3)).dtype == np.float64


def test_flags_belong_to_a_context() -> None:
    seen: list[object] = []
    with override_configs({"strict_dtype_check": True, "strict_shape_check": False}):
        thread = threading.Thread(target=lambda: seen.append(dict(copy_config())))
        thread.start()
        thread.join()
        assert copy_config()["strict_dtype_check"] is True
    assert copy_config()["strict_dtype_check"] is False
    assert len(copy_config()) == 13
    if sys.version_info < (3, 14):  # where a thread begins with a context of its own
        assert seen == [copy_config()]


def test_conversion_while_tensorflow_traces() -> None:
    model = tf.Module()
    model.w = tf.Variable([1.0, 2.0, 3.0, 4.0])

    @tf.custom_gradient
    def tripled(x):
        return x * 1.0, lambda dy: 3 * dy

    model.f = tf.function(lambda x: tripled(x) * model.w, autograph=False)
    found: list[Any] = []

    @tf.function(autograph=False)
    def outer() -> None:
        found.append(tf2jax.convert(model.f, X))

    flag = "skip_variables_evaluation_inside_tf_tracing"
    with pytest.raises(ValueError, match=flag):
        outer()
    with tf2jax.override_config(flag, True):
        outer()
    ((fn, params),) = found
    assert params == {}
    held = {"Variable": np.full(4, 2, np.float32)}
    np.testing.assert_array_equal(fn(held, X)[0], 2 * X)
    np.testing.assert_array_equal(jax.grad(lambda x: fn(held, x)[0].sum())(X), np.full_like(X, 6))


def test_a_handle_is_not_a_result() -> None:
    def fn():
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(3, 5), shared_name="held")

    with pytest.raises(NotImplementedError, match="`held` cannot be evaluated"):
        tf2jax.convert_functional(tf.function(fn))


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_batch_normalization_at_inference(factor: float) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    ones = np.ones(4, np.float32)

    def fn(x):
        return tf.raw_ops.FusedBatchNormV3(
            x=x, scale=ones, offset=ones, mean=ones, variance=ones, is_training=False,
            exponential_avg_factor=factor,
        )[0]  # fmt: skip

    got = tf2jax.convert_functional(tf.function(fn), rows)(rows)
    np.testing.assert_allclose(got, fn(rows), rtol=1e-5, atol=1e-6)


def test_modules_of_stablehlo() -> None:
    lowered = jax.jit(lambda x, y: (x * 2 + y, x + y)).lower(X, X)
    module = mhlo.MhloModule(module=lowered.as_text(), fun_name="f")
    double, total = jax.jit(lambda x, y: mhlo.mhlo_apply(x, y, module=module))(X, X)
    np.testing.assert_array_equal(double, 3 * X)
    np.testing.assert_array_equal(total, 2 * X)
