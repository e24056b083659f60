"""TensorFlow Probability: densities with gradients, and samples from a seed.

Every distribution of the table in `distributions`, with its parameters as arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import invert
from tests.heavy.distributions import CASES
from tests.tf.ops.driver import QUICK

pytestmark = [
    pytest.mark.slow,
    # TensorFlow Probability warns about its own code.
    pytest.mark.filterwarnings("ignore"),
]
# Loops become scans, which differentiate; the certificate has tests of its own.
CONFIG = invert.Config(verify=False)
PLAIN = invert.Config(patterns=False, verify=False)
# Sums of hundreds of terms and special functions, in single precision, fused otherwise by XLA.
VALUES = {"rtol": 2e-5, "atol": 2e-6}
GRADIENTS = {"rtol": 3e-4, "atol": 3e-5}
SAMPLES = {"rtol": 3e-5, "atol": 3e-6}

# What cannot be converted, with the reason.
NO_DENSITY = {
    "Bates": "sums as many terms as the value asks for",
}
NO_SAMPLE = {
    "DeterminantalPointProcess": "works on as many eigenvectors as were drawn",
}
# Raises in TensorFlow Probability 0.25 itself, with NumPy 2.
BROKEN_SAMPLE = {"FlatDirichlet"}
# TensorFlow divides the numbers of this op among its threads.
OTHER_SAMPLE = {"TruncatedNormal"}
# XLA's code for the CPU gives -inf for x + exp(-x) at x = -inf, in a program of JAX as well.
INFINITE = {"Gumbel", "Moyal"}
# The derivative of a hypergeometric function beside its singularity: -inf there, NaN here.
NO_EDGE_GRADIENT = {"BetaQuotient"}


@pytest.fixture
def tfd() -> Iterator[Any]:
    yield pytest.importorskip("tensorflow_probability").distributions


def tensors(params: dict[str, np.ndarray]) -> dict[str, Any]:
    return {k: tf.constant(v) for k, v in params.items()}


def aligned(points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Points with rows repeated to a common shape, so that one conversion serves all."""
    rows = max(len(x) for x in points.values())
    return {k: np.resize(x, (rows, *x.shape[1:])) for k, x in points.items()}


@pytest.mark.parametrize("name", CASES)
def test_density_and_its_gradients_equal_tensorflows(name: str, tfd: Any) -> None:
    case = CASES[name]
    params = case.arrays()

    def density(x: Any, **params: Any) -> Any:
        return case.build(tfd, **params).log_prob(x)

    fn = tf.function(density, autograph=False)

    @tf.function(autograph=False)
    def gradients(x: Any, params: Any) -> Any:
        inputs = {k: v for k, v in {"x": x, **params}.items() if v.dtype.is_floating}
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(density(x, **params))
        return tape.gradient(total, inputs, unconnected_gradients="zero")

    points = aligned(case.points())
    if name in NO_DENSITY:
        with pytest.raises(invert.UnsupportedOpError):
            invert.convert(fn, points["values"], config=CONFIG, **params)
        return
    module = invert.convert(fn, points["values"], config=CONFIG, **params)

    def loss(given: Any, rest: Any) -> Any:
        return jnp.sum(module(**given, **rest))

    slopes = jax.jit(jax.grad(loss), compiler_options=QUICK)
    for kind, x in points.items():
        if name in INFINITE:
            x = np.where(x == -np.inf, np.float32(-1e3), x)
        ours, theirs = module(x, **params), fn(tf.constant(x), **tensors(params)).numpy()
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, **VALUES)
        if kind == "edges" and name in NO_EDGE_GRADIENT:
            continue
        wanted = gradients(tf.constant(x), tensors(params))
        inputs = {"x": x, **params}
        given = {k: inputs.pop(k) for k in wanted}
        for key, gradient in slopes(given, inputs).items():
            # What is behind a zero derivative is NaN at NaN; TensorFlow masks some of it instead.
            keep = ~np.isnan(x) if key == "x" and x.dtype.kind == "f" else ...
            theirs = wanted[key].numpy()
            np.testing.assert_allclose(gradient[keep], theirs[keep], **GRADIENTS, err_msg=key)


@pytest.mark.parametrize("name", [name for name in CASES if name not in BROKEN_SAMPLE])
def test_samples_of_a_seed_equal_tensorflows(name: str, tfd: Any) -> None:
    """Up to XLA's rounding of the computation on the random numbers."""
    case = CASES[name]
    params = case.arrays()

    @tf.function(autograph=False)
    def sample(seed: Any, **params: Any) -> Any:
        return tf.nest.flatten(case.build(tfd, **params).sample(5, seed=seed))

    seed = np.int32([3, 17])
    if name in NO_SAMPLE:
        with pytest.raises(invert.UnsupportedOpError):
            invert.convert(sample, seed, config=PLAIN, **params)
        return
    module = invert.convert(sample, seed, config=PLAIN, **params)
    for other in (seed, np.int32([-5, 123456])):
        ours = jax.tree_util.tree_leaves(module(other, **params))
        theirs = sample(tf.constant(other), **tensors(params))
        assert len(ours) == len(theirs) > 0
        for x, y in zip(ours, theirs, strict=True):
            x, y = np.asarray(x), y.numpy()
            assert x.dtype == y.dtype and x.shape == y.shape
            if name in OTHER_SAMPLE:
                assert np.isfinite(x).all()
            elif x.dtype.kind == "f":
                np.testing.assert_allclose(x, y, **SAMPLES)
            else:
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "name", ["Normal", "Gamma", "Poisson", "VonMises", "Categorical", "MultivariateNormalTriL"]
)
def test_samples_without_a_seed_tensor_take_a_key(name: str, tfd: Any) -> None:
    case = CASES[name]
    params = case.arrays()

    @tf.function(autograph=False)
    def sample(**params: Any) -> Any:
        return case.build(tfd, **params).sample(4000, seed=7)

    module = invert.convert(sample, config=PLAIN, **params)
    with pytest.raises(invert.SignatureError, match="key"):
        module(**params)
    ours = np.asarray(module(**params, key=jax.random.key(0)), np.float64)
    theirs = sample(**tensors(params)).numpy().astype(np.float64)
    other = np.asarray(module(**params, key=jax.random.key(1)), np.float64)
    assert not np.array_equal(ours, other)
    # Six standard errors: the two means are of different draws.
    error = theirs.std(0) * np.sqrt(2 / len(theirs))
    np.testing.assert_array_less(np.abs(ours.mean(0) - theirs.mean(0)), 6 * error)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "StudentT", "VonMises"])
def test_samples_have_the_implicit_gradients_of_tensorflow(name: str, tfd: Any) -> None:
    case = CASES[name]
    params = case.arrays()

    def sample(seed: Any, **params: Any) -> Any:
        return tf.reduce_sum(tf.sin(case.build(tfd, **params).sample(5, seed=seed)))

    seed = np.int32([3, 17])
    module = invert.convert(tf.function(sample, autograph=False), seed, config=CONFIG, **params)

    @tf.function(autograph=False)
    def gradients(**params: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(params)
            total = sample(tf.constant(seed), **params)
        return tape.gradient(total, params)

    wanted = gradients(**tensors(params))
    slopes = jax.jit(jax.grad(lambda p: module(seed, **p)), compiler_options=QUICK)
    for key, gradient in slopes(params).items():
        np.testing.assert_allclose(gradient, wanted[key].numpy(), rtol=2e-3, atol=2e-4)


def test_joint_distributions_keep_the_names_of_their_parts(tfd: Any) -> None:
    def model(scale: Any) -> Any:
        return tfd.JointDistributionNamed(
            {
                "rate": tfd.Gamma(2.0, scale),
                "loc": tfd.Normal(0.0, 1.0),
                "x": lambda rate, loc: tfd.Sample(tfd.Normal(loc, rate), 3),
            }
        )

    @tf.function(autograph=False)
    def sample(seed: Any, scale: Any) -> Any:
        return model(scale).sample(4, seed=seed)

    @tf.function(autograph=False)
    def density(values: Any, scale: Any) -> Any:
        return model(scale).log_prob(values)

    seed, scale = np.int32([5, 6]), np.float32(1.5)
    drawn = invert.convert(sample, seed, scale, config=PLAIN)(seed, scale)
    wanted = sample(tf.constant(seed), tf.constant(scale))
    assert set(drawn) == {"rate", "loc", "x"}
    for key, value in drawn.items():
        np.testing.assert_allclose(value, wanted[key].numpy(), **SAMPLES)
    values = {k: np.asarray(v) for k, v in drawn.items()}
    module = invert.convert(density, values, scale, config=PLAIN)
    theirs = density({k: tf.constant(v) for k, v in values.items()}, tf.constant(scale))
    np.testing.assert_allclose(module(values, scale), theirs.numpy(), **VALUES)


def test_a_step_of_hamiltonian_monte_carlo(tfd: Any) -> None:
    import tensorflow_probability as tfp

    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        lambda x: tfd.MultivariateNormalDiag([0.5, -1.0], [1.0, 2.0]).log_prob(x),
        step_size=0.3,
        num_leapfrog_steps=3,
    )

    @tf.function(autograph=False)
    def step(x: Any, seed: Any) -> Any:
        x, results = kernel.one_step(x, kernel.bootstrap_results(x), seed=seed)
        return x, results.is_accepted, results.log_accept_ratio

    x, seed = np.float32([[0.1, 0.2], [3.0, -4.0], [0.0, 0.0]]), np.int32([2, 9])
    module = invert.convert(step, x, seed, config=PLAIN)
    for _ in range(3):
        theirs = step(tf.constant(x), tf.constant(seed))
        ours = module(x, seed)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-5)
        x, seed = np.asarray(ours[0]), seed + 1
