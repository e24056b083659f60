"""Optimizer ops, dense and by rows: three steps of each, compared with TensorFlow."""

from __future__ import annotations

import equinox as eqx
import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import invert
from invert.primitives.tf.optimizer import OPTIMIZERS
from invert.protos.ops import op_def
from invert.tf.interpreter.analysis import Analysis
from invert.tf.interpreter.graph import Graph
from invert.tf.ops.state import Resource
from tests.tf.ops.driver import compare
from tests.tf.ops.samples import normal

QUICK = invert.Config(patterns=False, verify=False)
HYPER = {
    "lr": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-3, "beta1_power": 0.81,
    "beta2_power": 0.9, "rho": 0.9, "momentum": 0.8, "l1": 0.05, "l2": 0.02, "alpha": 1.1,
    "sign_decay": 0.7, "beta": 0.85, "logbase": 1.2, "lr_power": -0.5, "l2_shrinkage": 0.03,
}  # fmt: skip
# What the ops call these inputs.
RENAMED = {
    ("ResourceApplyGradientDescent", "lr"): "alpha",
    ("ResourceApplyGradientDescent", "grad"): "delta",
    ("ResourceApplyProximalGradientDescent", "lr"): "alpha",
    ("ResourceApplyProximalGradientDescent", "grad"): "delta",
    ("ResourceSparseApplyProximalGradientDescent", "lr"): "alpha",
}
SLOT_NAMES = {
    "AdaMax": "m v",
    "Adadelta": "accum accum_update",
    "Adagrad": "accum",
    "AdagradDA": "gradient_accumulator gradient_squared_accumulator",
    "AdagradV2": "accum",
    "Adam": "m v",
    "AdamWithAmsgrad": "m v vhat",
    "AddSign": "m",
    "CenteredRMSProp": "mg ms mom",
    "Ftrl": "accum linear",
    "FtrlV2": "accum linear",
    "GradientDescent": "",
    "KerasMomentum": "accum",
    "Momentum": "accum",
    "PowerSign": "m",
    "ProximalAdagrad": "accum",
    "ProximalGradientDescent": "",
    "RMSProp": "ms mom",
}


def variables(name, dtype):
    names = ["var", *SLOT_NAMES[name].split()]
    # Slots start positive: they hold sums of squares. Variance is more than the squared mean.
    shift = {"var": 0, "linear": 0, "ms": 1.5}
    values = {n: np.abs(normal(5, 3, seed=n)) * 0.5 + shift.get(n, 0.2) for n in names}
    values["var"] = normal(5, 3, seed="var")
    if "mg" in names:
        values["mg"] = normal(5, 3, seed="mg") * 0.1
    return {n: tf.Variable(values[n].astype(dtype), name=n) for n in names}


def step_function(name, dtype, *, sparse=False, flag=None):
    """A function that takes a gradient, updates the variables and returns their new values."""
    optimizer = OPTIMIZERS[name]
    op_name = f"Resource{'Sparse' if sparse else ''}Apply{name}"
    owned = variables(name, dtype)
    holder = tf.Module()
    holder.owned = owned
    inputs = [n for n in optimizer.inputs.split() if n not in ("grad", "global_step")]
    scalars = {n: tf.constant(HYPER[n], dtype) for n in inputs}
    if "global_step" in optimizer.inputs:
        scalars["global_step"] = tf.constant(3, tf.int64)

    def step(grad, indices=None):
        given = {**scalars, "grad": grad}
        if sparse:
            given["indices"] = indices
        given = {RENAMED.get((op_name, n), n): x for n, x in given.items()}
        handles = {n: v.handle for n, v in owned.items()}
        flags = {} if flag is None else {optimizer.flag[0]: flag}
        getattr(tf.raw_ops, op_name)(**handles, **given, **flags)
        return [v.read_value() for v in owned.values()]

    return step, holder


def run(name, dtype, **kwargs):
    step, holder = step_function(name, dtype, **kwargs)
    sparse = kwargs.get("sparse", False)
    specs = [tf.TensorSpec([4 if sparse else 5, 3], dtype)]
    specs += [tf.TensorSpec([4], tf.int32)] if sparse else []
    function = tf.function(step, autograph=False)
    concrete = function.get_concrete_function(*specs)
    module = invert.convert(concrete, config=QUICK)
    state = eqx.nn.State(module)
    half = np.dtype(dtype).itemsize == 2
    for i in range(3):
        args = [normal(4 if sparse else 5, 3, seed=str(i), dtype=dtype)]
        # A row that occurs more than once is updated as often.
        args += [np.array([3, 0, 3, 3], np.int32)] if sparse else []
        got, state = module(*args, state)
        want = concrete(*map(tf.constant, args))
        # Half precision rounds after each of a dozen operations, in an order of its own.
        limit = {"rtol": 0.05, "atol": 0.05} if half else {"rtol": 2e-5, "atol": 1e-6}
        compare(got, [w.numpy() for w in want], **limit)
    del holder


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.drawn(5)
def test_dense(name):
    run(name, np.float32)


@pytest.mark.parametrize("name", [n for n, o in OPTIMIZERS.items() if o.sparse])
@pytest.mark.drawn(5)
def test_by_rows(name):
    run(name, np.float32, sparse=True)


FLAGGED = [(n, s) for n, o in OPTIMIZERS.items() if o.flag for s in (False, o.sparse)]


@pytest.mark.parametrize(("name", "sparse"), dict.fromkeys(FLAGGED))
@pytest.mark.drawn(6)
def test_flags(name, sparse):
    run(name, np.float32, sparse=sparse, flag=not OPTIMIZERS[name].flag[1])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=str)
def test_other_types(dtype):
    with jax.enable_x64(dtype is np.float64):
        for name in ("Adam", "Momentum", "Ftrl"):
            run(name, dtype)


def test_exponents_of_ftrl():
    step, holder = step_function("Ftrl", np.float32)
    del step

    def other(grad):
        handles = [v.handle for v in holder.owned.values()]
        tf.raw_ops.ResourceApplyFtrl(
            var=handles[0], accum=handles[1], linear=handles[2], grad=grad, lr=0.1, l1=0.0, l2=0.0,
            lr_power=-0.3,
        )  # fmt: skip
        return [v.read_value() for v in holder.owned.values()]

    concrete = tf.function(other).get_concrete_function(tf.TensorSpec([5, 3]))
    module = invert.convert(concrete, config=QUICK)
    grad = normal(5, 3)
    got, _ = module(grad, eqx.nn.State(module))
    compare(got, [w.numpy() for w in concrete(tf.constant(grad))], rtol=2e-5, atol=1e-6)


def test_references():
    """The ops of TensorFlow 1 on reference variables."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        initial = np.array([1.0, -2.0, 3.0], np.float32)
        var = tf.compat.v1.get_variable("v", initializer=initial, use_resource=False)
        accum = tf.compat.v1.get_variable("a", initializer=initial * 0, use_resource=False)
        made = tf.raw_ops.ApplyMomentum(var=var, accum=accum, lr=0.1, grad=2 * x, momentum=0.9)
        result = tf.identity(made, name="result")
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            want = [session.run(result, {x: initial + i}) for i in range(3)]
    program = Graph(
        graph.as_graph_def(), ["x:0"], ["result:0"], config=invert.Config(), op_def=op_def
    )
    state = {Resource("reference", n): v for n, v in (("v", initial), ("a", initial * 0))}
    for i in range(3):
        Analysis(program).run([initial + i], state)
        np.testing.assert_allclose(state[Resource("reference", "v")], want[i], rtol=1e-6, atol=1e-6)


def test_ten_steps_of_training():
    """A training step with its gradients, converted as a whole."""
    w, b = tf.Variable(normal(4, 3)), tf.Variable(np.zeros(3, np.float32))
    slots = [tf.Variable(tf.zeros_like(v)) for v in (w, w, b, b)]
    count = tf.Variable(0.0)

    @tf.function(autograph=False)
    def step(x, labels):
        with tf.GradientTape() as tape:
            logits = tf.nn.bias_add(tf.matmul(tf.nn.elu(x), w), b)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        grads = tape.gradient(loss, [w, b])
        count.assign_add(1.0)
        for v, (m, s), g in zip((w, b), (slots[:2], slots[2:]), grads, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=v.handle, m=m.handle, v=s.handle, beta1_power=0.9**count,
                beta2_power=0.99**count, lr=0.05, beta1=0.9, beta2=0.99, epsilon=1e-7, grad=g,
            )  # fmt: skip
        return loss, [s.read_value() for s in slots]

    x, labels = normal(8, 4), np.arange(8, dtype=np.int32) % 3
    concrete = step.get_concrete_function(tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32))
    module = invert.convert(concrete, config=QUICK)
    state = eqx.nn.State(module)
    run = eqx.filter_jit(module)
    for _ in range(10):
        (got, _), state = run(x, labels, state)
        want, _ = concrete(tf.constant(x), tf.constant(labels))
        # Rounding errors of ten steps add up.
        np.testing.assert_allclose(got, want, rtol=1e-4)
