"""KerasHub backbones: values, gradients through all weights, jit and vmap.

The graph leaves the same sizes open as the model: the batch and the length of sequences. The table
is in `keras_hub_models`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.heavy.keras_hub_models import BACKBONES, Case, hub, inputs_of, perturb, specs_of
from tests.tf.ops.driver import QUICK
from tests.tf.ops.samples import weigh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("keras"),
    # KerasHub and Keras warn about their own code.
    pytest.mark.filterwarnings("ignore"),
]


def made(name: str) -> tuple[Any, Case, Any]:
    case = BACKBONES[name]
    model = case.make()
    perturb(model)
    return model, case, inputs_of(model, case)


def concrete(model: Any, specs: Any) -> Any:
    # A function for each type: TensorFlow would give the first that fits.
    call = tf.function(lambda inputs: model(inputs, training=False), autograph=False)
    return call.get_concrete_function(specs)


def arrays(structure: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tf.nest.flatten(structure)]


def assert_close(got: Any, want: Any, *, tolerance: float, scale: float = 0.0) -> None:
    """Compare arrays by the largest error, relative to the largest number."""
    got, want = arrays(got), arrays(want)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        x, y = x.astype(np.float64), y.astype(np.float64)
        size = max(np.abs(y).max(initial=0.0), scale)
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * size)


def trained_weights(model: Any, module: Any) -> dict[str, Any]:
    """The trained weights, by the names of the module's parameters.

    Weights are matched by value: they are random and distinct, while some models repeat paths.
    """
    values = {np.asarray(v).tobytes(): v for v in model.trainable_variables}
    assert len(values) == len(model.trainable_variables)
    found = {n: values.get(np.asarray(p).tobytes()) for n, p in module.named_params().items()}
    return {n: v for n, v in found.items() if v is not None}


def tf_gradients(call: Callable[..., Any], inputs: Any, weights: list[Any]) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        results = [y for y in tf.nest.flatten(call(inputs)) if y.dtype.is_floating]
        total = weigh(results, tf.cast)
    slopes = tape.gradient(total, [w.value for w in weights], unconnected_gradients="zero")
    return [tf.convert_to_tensor(s).numpy() for s in slopes]


def gradients(module: Any, inputs: Any) -> Any:
    def loss(module: Any) -> Any:
        results = jax.tree_util.tree_leaves(module(inputs))
        floating = [y for y in results if jnp.issubdtype(y.dtype, jnp.floating)]
        return weigh(floating, jax.lax.convert_element_type)

    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    slopes = jax.jit(jax.grad(lambda weights: loss(eqx.combine(weights, rest))))
    # Compiling what is run once would take most of the time.
    return slopes.lower(weights).compile(compiler_options=QUICK)(weights)


# Sums in another order, through some layers; float32 has seven digits.
VALUES, SLOPES = 1e-5, 1e-4


@pytest.mark.parametrize("name", BACKBONES)
def test_backbone(name):
    model, case, inputs = made(name)
    module = invert.convert(concrete(model, specs_of(model, case, inputs, open_sizes=True)))
    want = model(inputs, training=False)
    assert_close(eqx.filter_jit(module)(inputs), want, tolerance=VALUES)
    assert module.report.certificate.kind == "exact", module.report
    assert not module.report.opaque
    # The batch is open.
    flipped = tf.nest.map_structure(lambda x: x[::-1], inputs)
    pair = tf.nest.map_structure(lambda x, y: np.stack([x, y]), inputs, flipped)
    expected = [model(x, training=False) for x in (inputs, flipped)]
    expected = tf.nest.map_structure(lambda x, y: np.stack([x, y]), *expected)
    assert_close(jax.jit(jax.vmap(lambda x: module(x)))(pair), expected, tolerance=VALUES)
    three = tf.nest.map_structure(lambda x: np.concatenate([x, x[:1]]), inputs)
    assert_close(module(three), model(three, training=False), tolerance=VALUES)

    if not case.grad:
        return
    weights = trained_weights(model, module)
    call = lambda x: model(x, training=False)  # noqa: E731
    slopes = tf_gradients(call, inputs, list(weights.values()))
    mine = gradients(module, inputs).named_params()
    # Some are sums of large numbers that cancel, as that of a bias before a softmax.
    scale = 1e-2 * max(np.abs(s).max() for s in slopes)
    assert_close([mine[n] for n in weights], slopes, tolerance=SLOPES, scale=scale)
    # Weights outside of the graph have no gradient.
    unused = set(map(id, model.trainable_variables)) - set(map(id, weights.values()))
    rest = [v for v in model.trainable_variables if id(v) in unused]
    assert not any(np.any(s) for s in tf_gradients(call, inputs, rest))


@pytest.mark.parametrize("name", BACKBONES)
def test_backbone_of_fixed_shapes(name):
    model, case, inputs = made(name)
    specs = specs_of(model, case, inputs, open_sizes=False)
    module = invert.convert(concrete(model, specs), config=invert.Config(verify=False))
    assert_close(module(inputs), model(inputs, training=False), tolerance=VALUES)


@pytest.mark.parametrize("name", ["BERT", "Llama", "ViT"])
def test_exported(name, tmp_path):
    """`model.export` writes a SavedModel with one function and its signature."""
    model, _, inputs = made(name)
    model.export(str(tmp_path / "saved"), format="tf_saved_model", verbose=False)
    module = invert.load(tmp_path / "saved")
    served = module.serve if hasattr(module, "serve") else module
    assert_close(served(inputs), model(inputs, training=False), tolerance=VALUES)


@pytest.mark.parametrize("name", ["GPT2", "Llama"])
def test_generation(name):
    """The whole greedy sampling loop, with its key-value cache, until the stop token."""
    model, _, _ = made(name)
    for v in model.weights:
        v.assign(v * 3)  # so that the largest of the logits is far from the next
    causal = getattr(hub().models, f"{name}CausalLM")(model, preprocessor=None)
    causal.compile(sampler="greedy")
    tokens = np.array([[1, 2, 3, 0, 0, 0, 0, 0], [4, 5, 0, 0, 0, 0, 0, 0]], np.int32)
    inputs = {"token_ids": tokens, "padding_mask": (tokens > 0).astype(np.int32)}
    step = tf.function(lambda x: causal.generate_step(x, stop_token_ids=[7]), autograph=False)
    specs = {k: tf.TensorSpec([None, 8], tf.int32) for k in inputs}
    module = invert.convert(step.get_concrete_function(specs))
    got, want = eqx.filter_jit(module)(inputs), step(inputs)
    assert len(np.unique(want["token_ids"])) > 6  # something was generated
    for key in inputs:
        np.testing.assert_array_equal(got[key], want[key])
    assert module.report.certificate.kind == "exact", module.report


# Runs where TensorFlow, Keras and this package cannot be imported.
READER = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "keras_hub", "invert"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import equinox as eqx, jax, jax.numpy as jnp, numpy as np
import model

inputs = dict(np.load("inputs.npz"))
module = model.load("weights.safetensors")

def loss(module):
    leaves = jax.tree_util.tree_leaves(module(inputs))
    return sum(jnp.sum(jnp.sin(y)) for y in leaves)

results = jax.tree_util.tree_leaves(module(inputs))
slopes = jax.tree_util.tree_leaves(eqx.filter_jit(eqx.filter_grad(loss))(module))
np.savez("results.npz", *results)
np.savez("slopes.npz", *slopes)
"""


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", ["BERT", "GPT2", "Llama"])
def test_saved_source_needs_no_tensorflow(name, larger, tmp_path):
    """One text for every batch and every length."""
    model, case, inputs = made(name)
    module = invert.convert(concrete(model, specs_of(model, case, inputs, open_sizes=True)))
    assert "batch length" in module.source
    invert.save(module, tmp_path)
    if larger:
        inputs = {k: np.concatenate([x, x[:, ::-1], x], 0)[:, :-1] for k, x in inputs.items()}
    np.savez(tmp_path / "inputs.npz", **inputs)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", READER]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)

    def loss(module: Any) -> Any:
        leaves = jax.tree_util.tree_leaves(module(inputs))
        return sum(jnp.sum(jnp.sin(y)) for y in leaves)

    with np.load(tmp_path / "results.npz") as file:
        for got, want in zip(file.values(), jax.tree_util.tree_leaves(module(inputs)), strict=True):
            np.testing.assert_array_equal(got, want)
    # The source's tree has the arrays in the order of the fields; values tell which is which.
    mine = jax.tree_util.tree_leaves(eqx.filter_jit(eqx.filter_grad(loss))(module))
    floats = [x for x in jax.tree_util.tree_leaves(module.model) if eqx.is_inexact_array(x)]
    given = [x for x in jax.tree_util.tree_leaves(module) if eqx.is_inexact_array(x)]
    order = {np.asarray(x).tobytes(): i for i, x in enumerate(given)}
    assert len(order) == len(given)
    with np.load(tmp_path / "slopes.npz") as file:
        for got, array in zip(file.values(), floats, strict=True):
            want = mine[order[np.asarray(array).tobytes()]]
            # The compiler fuses the two programs differently.
            assert_close(got, want, tolerance=1e-6, scale=float(np.abs(mine[0]).max()))
