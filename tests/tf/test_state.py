"""Variables that a graph assigns, the key of a call, and assertions."""

from __future__ import annotations

import inspect
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import invert

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)


def variable(shape=(5, 4)):
    return tf.Variable(RNG.normal(size=shape).astype(np.float32), name="v")


def check(fn, v, calls=3):
    """Results and the variable equal TensorFlow's, call after call."""
    function = tf.function(fn)
    module = invert.convert(function, X)
    state = eqx.nn.State(module)
    for _ in range(calls):
        got, state = module(X, state)
        want = function(tf.constant(X))
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.get(module.params["v"]), v.numpy(), rtol=1e-5, atol=1e-6)


def test_scatter():
    v = variable()

    def fn(x):
        for name, rows in (
            ("add", [0, 2, 2]), ("update", [1, 3, 4]), ("sub", [0, 0, 1]), ("mul", [0, 3, 1]),
            ("max", [0, 3, 1]), ("min", [0, 3, 1]), ("div", [0, 3, 1]),
        ):  # fmt: skip
            getattr(v, f"scatter_{name}")(tf.IndexedSlices(x, rows))
        return v.sparse_read([1, 1, 0]) * 1.0

    check(fn, v)


def test_scatter_of_elements():
    v = variable()

    def fn(x):
        v.scatter_nd_add([[0, 1], [2, 3]], x[0, :2])
        v.scatter_nd_update([[0], [2], [3]], x)
        v.scatter_nd_sub([[1], [1], [3]], x)
        return v.gather_nd([[0, 1], [4, 2]]) * 1.0

    check(fn, v)


def test_gathering_from_an_assigned_constant():
    v = variable()

    def fn(x):
        v.assign(np.arange(20, dtype=np.float32).reshape(5, 4))
        places = tf.tile(tf.cast(x[:1, :2] > 0, tf.int32), [5, 1])
        return tf.raw_ops.ResourceGather(
            resource=v.handle, indices=places, batch_dims=1, dtype=tf.float32
        )

    check(fn, v)


def test_assignment_to_slices():
    v = variable()

    def fn(x):
        v[1:4, :].assign(x)
        v[0, ::2].assign(x[0, :2])
        v[-1].assign(x[1])
        return v + 0.0

    check(fn, v)


def test_assignment_in_functions_loops_and_branches():
    v = variable()

    @tf.function
    def inner(x):
        v.assign_add(tf.reduce_sum(x) * tf.ones_like(v))
        return v[0]

    def fn(x):
        for k in tf.range(3):
            if tf.reduce_sum(x) * tf.cast(k, tf.float32) > 0.5:
                v.assign(v * 0.5)
            else:
                inner(x)
        return v.read_value()

    check(fn, v)


def test_reads_and_assignments_keep_their_order():
    v = tf.Variable(1.0, name="v")

    def fn(x):
        before = v.read_value()

        def grow():
            v.assign_add(1.0)
            return v.read_value()

        y = tf.cond(tf.reduce_sum(x) > v, grow, lambda: v * 2.0)
        v.assign_sub(0.5)
        return tf.stack([before, y, v.read_value()])

    check(fn, v)


def test_integers_of_64_bits():
    v = tf.Variable(5, dtype=tf.int64, name="v", trainable=False)

    def fn(x):
        v.assign_add(2)
        return x * tf.cast(v, tf.float32)

    check(fn, v)


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9)],
    ids=lambda o: type(o).__name__,
)
def test_train_step(optimizer):
    model = network()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 4, 8)).astype(np.float32)
    y = rng.normal(size=(4, 3)).astype(np.float32)
    module = invert.convert(step, x[0], y)
    state = eqx.nn.State(module)
    run = eqx.filter_jit(lambda x, y, state: module(x, y, state))
    for k in range(10):
        loss, state = run(x[k], y, state)
        # Adam divides gradients by their size, which makes the last digits of small ones large.
        np.testing.assert_allclose(loss, step(x[k], y).numpy(), rtol=5e-4)


def test_trainable_leaves():
    class Model(tf.Module):
        def __init__(self):
            self.kernel = tf.Variable(tf.ones((4, 2)), name="kernel")
            self.scale = tf.Variable(2.0, name="scale", trainable=False)
            self.count = tf.Variable(0.0, name="count")

        @tf.function
        def __call__(self, x):
            self.count.assign_add(1.0)
            return x @ self.kernel * self.scale

    module = invert.convert(Model(), X)
    spec = invert.trainable(module)
    assert spec.params["kernel"] is True and spec.params["scale"] is False
    train, rest = eqx.partition(module, spec)
    leaves = jax.tree_util.tree_leaves(eqx.filter(train, eqx.is_array))
    assert [x.shape for x in leaves] == [(4, 2)]
    state = eqx.nn.State(module)

    def loss(train):
        out, _ = eqx.combine(train, rest)(X, state)
        return jnp.sum(out)

    grads = eqx.filter_grad(loss)(train)
    want = 2.0 * np.tile(X.sum(0)[:, None], (1, 2))
    np.testing.assert_allclose(grads.params["kernel"], want, rtol=1e-5, atol=1e-6)


def test_key_is_asked_for():
    module = invert.convert(tf.function(lambda x: tf.nn.dropout(x, 0.5)), X)
    key = inspect.signature(module.__call__).parameters["key"]
    assert key.kind is key.KEYWORD_ONLY
    with pytest.raises(invert.SignatureError, match=r"draws random numbers. Pass key="):
        module(X)
    with pytest.raises(invert.SignatureError, match="the key is a"):
        module(X, key=3)
    one, two = (module(X, key=jax.random.key(k)) for k in (0, 1))
    assert (np.asarray(one) != np.asarray(two)).any()
    kept = np.asarray(one) != 0
    np.testing.assert_allclose(np.asarray(one)[kept], 2 * X[kept], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(one, module(X, key=jax.random.key(0)))


def test_key_goes_through_loops():
    module = invert.convert(
        tf.function(lambda x: tf.map_fn(lambda r: tf.nn.dropout(tf.ones_like(r), 0.5), x)),
        np.ones((32, 8), np.float32),
    )
    drawn = np.asarray(module(np.ones((32, 8), np.float32), key=jax.random.key(0)))
    assert len({row.tobytes() for row in drawn}) > 16  # every step draws its own


def test_state_is_asked_for():
    v = tf.Variable(1.0)
    module = invert.convert(tf.function(lambda x: v.assign_add(tf.reduce_sum(x))), X)
    missing = r"missing a required argument: 'state'.*, with state = equinox\.nn\.State\(module\)"
    with pytest.raises(invert.SignatureError, match=missing):
        module(X)
    with pytest.raises(invert.SignatureError, match=r"equinox\.nn\.State\(module\)"):
        module(X, {})


def test_assignment_of_another_shape_is_refused():
    v = tf.Variable(X, shape=tf.TensorShape(None))
    with pytest.raises(invert.UnsupportedOpError, match="changes the shape of the variable"):
        invert.convert(tf.function(lambda x: v.assign(x[:1])), X)


def _positive(x):
    tf.debugging.assert_positive(x, message="must be positive")
    return x * 2.0


def test_assertions_are_left_out_with_a_note():
    module = invert.convert(tf.function(_positive), X)
    np.testing.assert_array_equal(module(X), 2 * X)
    assert any("tf.Assert" in note and "left out" in note for note in module.report.notes)


def test_assertions_fail():
    config = invert.Config(assertions="error_if", verify=False)
    module = invert.convert(tf.function(_positive), X, config=config)
    np.testing.assert_array_equal(module(np.abs(X)), 2 * np.abs(X))
    with pytest.raises((RuntimeError, ValueError), match="must be positive"):
        jax.block_until_ready(eqx.filter_jit(module)(X))


def test_check_numerics_fails():
    config = invert.Config(assertions="error_if", verify=False)
    fn = tf.function(lambda x: tf.debugging.check_numerics(tf.math.log(x), "not finite"))
    module = invert.convert(fn, X, config=config)
    np.testing.assert_allclose(module(np.abs(X)), np.log(np.abs(X)), rtol=1e-6, atol=1e-6)
    with pytest.raises((RuntimeError, ValueError), match="CheckNumerics"):
        jax.block_until_ready(eqx.filter_jit(module)(X))


def test_variables_known_only_by_their_handle():
    v, slot = variable((4,)), tf.Variable(np.zeros(4, np.float32))

    @tf.function(autograph=False)
    def step(grad):
        tf.raw_ops.ResourceApplyMomentum(
            var=v.handle, accum=slot.handle, lr=0.1, grad=grad, momentum=0.9
        )
        return tf.reduce_sum(grad)

    module = invert.convert(step, X[0])
    state = eqx.nn.State(module)
    for x in X:
        _, state = module(x, state)
        step(tf.constant(x))
    got = [state.get(p) for p in jax.tree.leaves(module.params, is_leaf=is_index)]
    for value, want in zip(got, (slot, v), strict=True):
        np.testing.assert_allclose(value, want.numpy(), rtol=1e-6, atol=1e-6)


def is_index(x):
    return isinstance(x, eqx.nn.StateIndex)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_a_step_on_rows_of_an_embedding(name):
    """`tf.unique` merges equal rows of a batch; how many remain depends on data."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((5,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    optimizer = getattr(keras.optimizers, name)(0.1)
    optimizer.build(network.trainable_variables)

    class Training(tf.Module):
        def __init__(self):
            self.owned = [v.value for v in (*network.variables, *optimizer.variables)]

        @tf.function
        def step(self, x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(network(x, training=True) - y))
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
            return loss

    training = Training()
    draw = np.random.default_rng(0)
    specs = tf.TensorSpec((6, 5), tf.int32), tf.TensorSpec((6, 2), tf.float32)
    concrete = training.step.get_concrete_function(*specs)
    module = invert.convert(concrete)
    state = eqx.nn.State(module)
    for _ in range(5):
        x = draw.integers(0, 9, (6, 5)).astype(np.int32)
        y = draw.normal(size=(6, 2)).astype(np.float32)
        got, state = module(x, y, state)
        np.testing.assert_allclose(
            got, concrete(tf.constant(x), tf.constant(y)), rtol=1e-5, atol=1e-6
        )
