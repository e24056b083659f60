"""Programs with state as source: `eqx.nn.StateIndex` for what they assign, a state that goes
through the layers, keys as arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import invert
from invert._entry import ArgSpec, EntryPoint, Param
from tests.emission.models import ramp, recovered


def entry_of(
    fn: Any,
    params: dict[str, np.ndarray],
    assigned: tuple[int, ...],
    *args: np.ndarray,
    draws: bool = False,
    results: int = 1,
) -> EntryPoint:
    """A container whose function gives its results, then the new values of what it assigns."""
    names = ["x", "y", "z"][: len(args)]
    single = results == 1
    return EntryPoint(
        name="step",
        fn=fn,
        args=tuple(ArgSpec(n, a.shape, a.dtype) for n, a in zip(names, args, strict=True)),
        kwargs={},
        arg_names=tuple(names),
        out_tree=jax.tree_util.tree_structure(0 if single else tuple(range(results))),
        params=tuple(Param(n, v) for n, v in params.items()),
        assigned=assigned,
        draws=draws,
    )


def assert_same_steps(
    module: invert.Module, args: tuple[Any, ...], directory: Path, steps: int = 3, **keywords: Any
) -> Any:
    """Three modules, what is converted, its model and what was saved, over some steps; the saved
    state of the last begins where it ended. Returns the model."""
    invert.save(module, directory / "first")
    models: list[Any] = [module, module.model, invert.load(directory / "first")]
    states = [eqx.nn.State(m) for m in models]
    outs: list[Any] = [None] * len(models)
    # Those of a module are those of its model.
    indices = [v for v in module.named_params().values() if isinstance(v, eqx.nn.StateIndex)]
    assert indices
    for _ in range(steps):
        for i, model in enumerate(models):
            outs[i], states[i] = model(*args, states[i], **keywords)
        for out in outs[1:]:
            assert eqx.tree_equal(out, outs[0])
        for index in indices:
            assert np.array_equal(states[0].get(index), states[1].get(index))
    invert.save(models[2], directory / "second", state=states[2])
    again: Any = invert.load(directory / "second")
    assert eqx.tree_equal(
        again(*args, eqx.nn.State(again), **keywords)[0],
        module(*args, states[0], **keywords)[0],
    )
    return models[1]


def batch_norm(values: Any, x: Any) -> list[Any]:
    """A dense layer and a normalization that keeps a moving average, each in its scope."""
    kernel, scale, average = values
    with jax.named_scope("dense"):
        x = x @ kernel
    with jax.named_scope("norm"):
        mean = jnp.mean(x, axis=0)
        y = (x - mean) * scale + 0.5 * average
        average = average * 0.9 + mean * 0.1
    return [jax.nn.relu(y), average]


def test_state_goes_through_layers(tmp_path: Path) -> None:
    params = {"dense/kernel": ramp(3, 4), "norm/scale": ramp(4), "norm/average": ramp(4) * 0}
    x = ramp(5, 3)
    module = recovered(entry_of(batch_norm, params, (2,), x))
    model = assert_same_steps(module, (x,), tmp_path)
    assert isinstance(model.norm.average, eqx.nn.StateIndex)
    assert module._emission().messages == ()
    source = module.source
    assert 'average: eqx.nn.StateIndex[Float[Array, "dim"]]' in source
    assert "norm, state = self.norm(self.dense(x), state)" in source
    assert "average = state.get(self.average)" in source
    assert "state = state.set(self.average, " in source
    # The layer that holds no state takes none.
    assert (
        'def __call__(self, x: Float[Array, "batch n_in"]) -> Float[Array, "batch n_out"]:'
        in source
    )


def test_states_of_a_module_and_its_model_are_interchangeable() -> None:
    x = ramp(5, 3)
    params = {"dense/kernel": ramp(3, 4), "norm/scale": ramp(4), "norm/average": ramp(4) * 0}
    module = recovered(entry_of(batch_norm, params, (2,), x))
    model: Any = module.model
    _, state = module(x, eqx.nn.State(module))
    got, _ = eqx.filter_jit(model)(x, state)
    want, _ = module(x, state)
    assert np.array_equal(got, want)


def test_variables_that_are_swapped_or_only_assigned(tmp_path: Path) -> None:
    """A new value may be another variable, an argument, a number, or what it was."""

    def fn(values: Any, x: Any) -> list[Any]:
        a, b, _, _, _, e = values
        return [x + a, b, a, x, np.asarray([7, 7], np.float32), x + 1, e]

    params = {n: ramp(2) * i for i, n in enumerate(("a", "b", "c", "d", "f", "e"), 1)}
    module = recovered(entry_of(fn, params, (0, 1, 2, 3, 4, 5), ramp(2)))
    assert_same_steps(module, (ramp(2) + 3,), tmp_path)


def test_64_bit_counters_in_a_session_without_x64(tmp_path: Path) -> None:
    """The state of such a session holds 32 bits; the program goes on computing in 64."""

    def fn(values: Any) -> list[Any]:
        (count,) = values
        return [count * 2, count + 1]

    module = recovered(entry_of(fn, {"count": np.asarray(5, np.int64)}, (0,)))
    model = assert_same_steps(module, (), tmp_path)
    assert model(eqx.nn.State(model))[0].dtype == np.int64
    narrow = eqx.nn.State(module)
    assert jax.tree_util.tree_leaves(narrow)[0].dtype == np.int32
    assert np.asarray(model(narrow)[0]) == 10


@pytest.mark.parametrize("typed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_layers_that_draw_take_a_key(tmp_path: Path, typed: bool) -> None:
    def fn(values: Any, x: Any, key: Any) -> list[Any]:
        kernel, count = values
        with jax.named_scope("dense"):
            first, second = jax.random.split(key)
            x = x @ (kernel + jax.random.normal(first, kernel.shape, np.float32))
        kept = jax.random.bernoulli(second, np.float32(0.5), x.shape)
        return [jnp.where(kept, x / np.float32(0.5), np.float32(0)), count + np.int32(1)]

    params = {"dense/kernel": ramp(3, 4), "count": np.asarray(1, np.int32)}
    module = recovered(entry_of(fn, params, (1,), ramp(5, 3), draws=True))
    make = jax.random.key if typed else jax.random.PRNGKey
    assert_same_steps(module, (ramp(5, 3),), tmp_path, key=make(3))
    assert "key: PRNGKeyArray" in module.source
    source = module.source
    assert "key, subkey = jax.random.split(key)" in source
    assert "jax.random.normal(key, (3, 4), jnp.float32)" in source
    assert "jax.random.bernoulli(subkey, " in source


def test_a_module_without_the_values_of_its_state_is_not_saved(tmp_path: Path) -> None:
    params = {"count": np.asarray(1, np.int32)}
    module = recovered(entry_of(lambda values: [values[0], values[0] + 1], params, (0,)))
    model = module.model
    state = eqx.nn.State(model)
    bare = eqx.nn.delete_init_state(model)
    with pytest.raises(invert.EmissionError, match="Pass state="):
        invert.save(bare, tmp_path)
    invert.save(bare, tmp_path, state=bare(state)[1])
    loaded: Any = invert.load(tmp_path)
    assert loaded(eqx.nn.State(loaded))[0] == 2


def keras_normalization() -> tuple[invert.Module, tuple[Any, ...]]:
    import keras
    import tensorflow as tf

    image = keras.Input((8,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(4)(image))
    x = keras.layers.Dropout(0.5)(keras.layers.ReLU()(x))
    network = keras.Model(image, keras.layers.Dense(3)(x))
    spec = tf.TensorSpec((None, 8), tf.float32, name="x")
    function = tf.function(lambda x: network(x, training=True), input_signature=[spec])
    return invert.convert(function), (ramp(5, 8),)


def keras_training() -> tuple[invert.Module, tuple[Any, ...]]:
    import keras
    import tensorflow as tf

    layers = [keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)]
    network = keras.Sequential([keras.Input((4,)), *layers])
    variables = network.trainable_variables
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(variables)
    specs = [tf.TensorSpec((6, 4), tf.float32), tf.TensorSpec((6, 1), tf.float32)]

    @tf.function(input_signature=specs)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return invert.convert(step), (ramp(6, 4), ramp(6, 1))


def tensorflow_dropout() -> tuple[invert.Module, tuple[Any, ...]]:
    import tensorflow as tf

    count: Any = tf.Variable(np.int32(0), name="count")

    @tf.function(input_signature=[tf.TensorSpec((4, 3), tf.float32)])
    def step(x: Any) -> Any:
        count.assign_add(1)
        return tf.nn.dropout(x, 0.5) * tf.cast(count, tf.float32)

    return invert.convert(step), (ramp(4, 3),)


@pytest.mark.slow
@pytest.mark.parametrize("make", [keras_normalization, keras_training, tensorflow_dropout])
def test_training_of_tensorflow(make: Any, tmp_path: Path) -> None:
    """Over several steps, and in a process that imports neither TensorFlow nor invert."""
    module, args = make()
    keys: dict[str, Any] = {"key": jax.random.key(3)} if make is tensorflow_dropout else {}
    assert_same_steps(module, args, tmp_path, **keys)
    state, want = eqx.nn.State(module), None
    for _ in range(2):
        want, state = module(*args, state, **keys)
    np.savez(tmp_path / "args.npz", *args)
    program = (
        "import sys\n"
        "import equinox as eqx, jax, numpy as np, model\n"
        "module = model.load()\n"
        "args, state = np.load('../args.npz').values(), eqx.nn.State(module)\n"
        "args = tuple(args)\n"
        f"keys = {{'key': jax.random.key(3)}} if {bool(keys)} else {{}}\n"
        "for _ in range(2):\n"
        "    out, state = module(*args, state, **keys)\n"
        "np.save('../out.npy', out)\n"
        "assert not {'invert', 'tensorflow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=tmp_path / "first", check=True)
    assert np.array_equal(np.load(tmp_path / "out.npy"), want)
