"""Weights are held once: sharing between TensorFlow, module and emitted text, and the peak."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import jax2tf

import invert
from invert._private.jax import lowered_module
from invert.ir.arrays import device_array

SHAPE = (64, 64)


def model_of(dtype: Any = tf.float32) -> tf.Module:
    module = tf.Module()
    module.w = tf.Variable(tf.ones(SHAPE, dtype), name="w")
    module.f = tf.function(
        lambda x: x @ module.w, input_signature=[tf.TensorSpec([2, 64], dtype, name="x")]
    )
    return module


def address(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    return array.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64, tf.int32])
def test_one_copy_serves_all(dtype: Any) -> None:
    module = invert.convert(model_of(dtype).f)
    (param,) = module._function.entry.params
    assert not param.value.flags.writeable
    assert address(module.params["w"]) == address(param.value)
    assert address(module.model.w) == address(param.value)
    assert module.params["w"].dtype == param.value.dtype


def test_one_copy_serves_all_functions_of_a_file(tmp_path: Path) -> None:
    """Values are packed without gaps in a checkpoint, so most are not aligned."""
    saved = tf.Module()
    saved.odd = tf.Variable(tf.ones([3]))
    saved.weights = [tf.Variable(tf.fill(SHAPE, float(i))) for i in range(3)]
    spec = [tf.TensorSpec([2, 64], name="x")]
    saved.f = tf.function(lambda x: (x @ saved.weights[0] @ saved.weights[1], saved.odd), spec)
    saved.g = tf.function(lambda x: (x @ saved.weights[1] @ saved.weights[2], saved.odd), spec)
    tf.saved_model.save(saved, str(tmp_path))
    module = invert.load(tmp_path)
    held = module.named_params()
    leaves = {address(a) for a in jax.tree_util.tree_leaves(module.model)}
    values = {
        address(p.value) for f in module._functions_by_name().values() for p in f.entry.params
    }
    assert len(held) == len(values) == 4
    assert leaves == values == {address(a) for a in held.values()}
    for name, array in held.items():
        if array.shape == SHAPE:
            assert (np.asarray(array) == float(name[-1])).all()


def _adam(variable: tf.Variable) -> None:
    zeros = [tf.Variable(tf.zeros(SHAPE)) for _ in range(2)]
    one = tf.constant(1.0)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle, m=zeros[0].handle, v=zeros[1].handle, beta1_power=one * 0.9,
        beta2_power=one * 0.99, lr=one, beta1=one * 0.9, beta2=one * 0.99, epsilon=one * 1e-8,
        grad=tf.ones(SHAPE),
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.assign_add(tf.ones(SHAPE)),
        lambda v: v.assign(tf.zeros(SHAPE)),
        lambda v: v.scatter_update(tf.IndexedSlices(tf.zeros((1, 64)), [3])),
        lambda v: v[3].assign(tf.zeros(64)),
        _adam,
    ],
    ids=["assign_add", "assign", "scatter", "slice", "adam"],
)
def test_training_goes_on_elsewhere(change: Any) -> None:
    """Assignments in TensorFlow after the conversion do not reach the module."""
    source = model_of()
    module = invert.convert(source.f)
    change(source.w)
    assert not np.array_equal(source.w, np.ones(SHAPE))
    assert np.array_equal(module.params["w"], np.ones(SHAPE))
    assert np.array_equal(module.model.w, np.ones(SHAPE))


def test_donated_parameters_stay_in_tensorflow() -> None:
    source = model_of()
    module = invert.convert(source.f)
    step = jax.jit(lambda w: w * 0 - 1, donate_argnums=0)
    step(module.params["w"]).block_until_ready()
    assert np.array_equal(source.w, np.ones(SHAPE))


def test_the_bytes_of_a_graph_are_released() -> None:
    """Once the constants of the graph and of a function it calls have been read."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 1500], "x")
        weights = np.random.default_rng(0).normal(size=(1500, 1500)).astype(np.float32)

        @tf.function
        def called(y: Any) -> Any:
            return tf.sin(y) @ tf.constant(weights)

        tf.identity(called(x @ tf.constant(weights.T)), "y")
    data = graph.as_graph_def().SerializeToString()
    before = sys.getrefcount(data)
    module = invert.convert_graphdef(data, ["x:0"], ["y:0"])
    assert sys.getrefcount(data) == before
    given = np.ones((2, 1500), np.float32)
    wanted = np.sin(given @ weights.T) @ weights
    np.testing.assert_allclose(np.asarray(module(given)), wanted, atol=1e-2)


def test_arrays_that_may_change_are_copied() -> None:
    value = np.ones(SHAPE, np.float32)
    held = device_array(value)
    value[:] = 0
    assert np.array_equal(held, np.ones(SHAPE))
    wide = np.ones(3)
    assert device_array(wide) is wide  # JAX would narrow it


def test_the_module_outlives_its_container() -> None:
    module = invert.convert(model_of().f)
    big = [tf.random.normal(SHAPE) for _ in range(50)]  # reuses any memory that was freed
    assert np.array_equal(module(jnp.ones((2, 64))), np.full((2, 64), 64))
    del big


@pytest.mark.slow
@pytest.mark.parametrize("form", ["variables", "constants", "graph", "exported"])
def test_peak_of_a_conversion(form: str) -> None:
    """For 100 million numbers the conversion adds their size and little more.

    Bytes passed by the caller are not counted.
    """
    most = {"graph": 2.1, "exported": 2.1}.get(form, 1.3)
    path = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory", path)
    assert spec is not None and spec.loader is not None
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    found = memory.measure(100_000_000, form=form)
    fixed = 60e6  # what is compiled and traced, whatever the size
    assert found["peak"] <= most * found["weights"] + fixed
    assert found["load"] <= 1.3 * found["weights"] + fixed


def test_weights_that_are_constants_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.random.default_rng(0).normal(size=(600, 600)).astype(np.float32)

    def function(x: Any) -> Any:
        return jnp.tanh(x @ weights)

    saved = tf.Module()
    spec = tf.TensorSpec([2, 600], tf.float32)
    converted = tf.function(jax2tf.convert(function), autograph=False, input_signature=[spec])
    saved.f = converted
    tf.saved_model.save(saved, str(tmp_path))

    seen: list[int] = []

    def lowered(*args: Any, **kwargs: Any) -> Any:
        module = lowered_module(*args, **kwargs)
        bytecode = io.BytesIO()
        module.operation.write_bytecode(file=bytecode)
        seen.append(len(bytecode.getvalue()))
        return module

    monkeypatch.setattr("invert.stablehlo.lowered.lowered_module", lowered)
    module = invert.load(tmp_path)
    assert (tmp_path / "saved_model.pb").stat().st_size > 2 * weights.nbytes
    # The proof of the gradient does not copy them.
    assert seen and max(seen) < weights.nbytes / 8
    assert [g.partition(": ")[2] for g in module.report.gradients] == ["agrees with autodiff"]
    x = np.random.default_rng(1).normal(size=(2, 600)).astype(np.float32)
    np.testing.assert_array_equal(module(x), jax.jit(function)(x))
