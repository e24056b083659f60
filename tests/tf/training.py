"""Runs a TensorFlow training step and its conversion side by side."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import tensorflow as tf

import invert
from invert import Config
from tests.tf.ops.driver import QUICK

PLAIN = Config(verify=False)
STEPS = 10


@dataclasses.dataclass(frozen=True)
class Deviation:
    """The largest differences, each relative to the largest number of its array.

    **Arguments:**

    - `first`: of results and variables after the first step.
    - `results`: of all steps.
    - `variables`: after the last step.
    - `worst`: name of the variable that differs most.
    """

    first: float
    results: float
    variables: float
    worst: str

    def check(self, *, first: float = 1e-5, last: float = 1e-4) -> None:
        """Sums are reordered in single precision, and errors grow from step to step."""
        assert self.first < first and self.results < last and self.variables < last, self


@contextlib.contextmanager
def precision(keras: Any, name: str) -> Iterator[None]:
    """Run models and arrays in single or double precision."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)
    try:
        with jax.enable_x64(name == "float64"):
            yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def specs_of(batch: Sequence[Any]) -> list[Any]:
    return [tf.TensorSpec(np.shape(x), np.asarray(x).dtype) for x in batch]


def keras_step(
    model: Any,
    optimizer: Any,
    loss_fn: Callable[[Any, Any], Any],
    batch: Sequence[Any],
    pack: Callable[[Sequence[Any]], Any] = lambda inputs: inputs[0],
    **options: Any,
) -> tuple[Any, list[Any]]:
    """A training step as users write it, and the variables that it may change.

    The last element of a batch holds the labels; `pack` turns the others into the model's input.
    """
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False, input_signature=specs_of(batch), **options)
    def step(*batch: Any) -> Any:
        *inputs, labels = batch
        with tf.GradientTape() as tape:
            results = model(pack(inputs), training=True)
            loss = loss_fn(labels, results)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step, [*model.variables, *optimizer.variables]


def perturb(variables: Sequence[Any], seed: int = 0) -> None:
    """Replace zeros and ones by random numbers, since equal weights hide mistakes."""
    rng = np.random.default_rng(seed)
    for v in variables:
        if v.dtype.is_floating:
            old = v.numpy().astype(np.float64)
            noise = rng.normal(size=old.shape) * 0.02
            # Rates and decays stay what they are, and variances positive.
            noise = np.abs(noise) if (old >= 0).all() else noise
            v.assign(tf.cast(old if old.ndim == 0 and old else old + noise, v.dtype))


def trained(
    step: Any,
    variables: Sequence[Any],
    batches: Sequence[Sequence[Any]],
    *,
    folder: Path | None = None,
    config: Config = PLAIN,
) -> Deviation:
    """Run both on the same batches.

    **Arguments:**

    - `step`: the `tf.function`, with a signature.
    - `variables`: of TensorFlow or Keras, that it may change besides those that its graph names;
        all are changed.
    - `folder`: where to save it, for the conversion to read; `None`: the function is converted.
    """
    concrete = step.get_concrete_function()
    own = [v if isinstance(v, tf.Variable) else v.value for v in variables]
    # Keras does not list the states of all generators of random numbers.
    variables = list({id(v): v for v in (*own, *concrete.graph.variables)}.values())
    perturb(variables)
    before = [v.numpy() for v in variables]
    if folder is None:
        module = invert.convert(concrete, config=config)
    else:
        holder: Any = tf.Module()
        holder.variables_, holder.step = variables, step
        tf.saved_model.save(holder, str(folder))
        module = invert.load(folder, signature="step", config=config)
    state = start = eqx.nn.State(module)
    run = jax.jit(lambda state, *batch: module(*batch, state=state))
    run = run.lower(state, *batches[0]).compile(compiler_options=QUICK)
    names = [v.name for v in variables]
    results, first, apart, worst = 0.0, 0.0, 0.0, ""
    for number, batch in enumerate(batches):
        got, state = run(state, *batch)
        want = step(*map(tf.constant, batch))
        assert all(np.isfinite(y).all() for y in tf.nest.flatten(want))
        pairs = zip(jax.tree_util.tree_leaves(got), tf.nest.flatten(want), strict=True)
        results = max([results, *(difference(x, y.numpy()) for x, y in pairs)])
        if number in (0, len(batches) - 1):
            after = [v.numpy() for v in variables]
            apart, worst = _compared(module, (start, state), (before, after), names)
            first = first if number else max(results, apart)
    return Deviation(first, results, apart, worst)


def _compared(
    module: Any, states: tuple[Any, Any], values: tuple[list[Any], list[Any]], names: list[str]
) -> tuple[float, str]:
    """The largest deviation of a variable; variables are matched by their initial values."""
    before, after = values
    worst, seen = (0.0, ""), set[int]()
    assert any(isinstance(p, eqx.nn.StateIndex) for p in module.named_params().values())
    for name, param in module.named_params().items():
        if not isinstance(param, eqx.nn.StateIndex):
            continue
        start, got = (np.asarray(s.get(param)) for s in states)
        alike = [i for i, x in enumerate(before) if _equal(x, start)]
        assert alike, f"{name} is none of the variables"
        deviation, which = min((difference(got, after[i]), i) for i in alike)
        seen |= {i for i in alike if difference(got, after[i]) == deviation}
        worst = max(worst, (deviation, names[which]))
    for i, name in enumerate(names):
        assert i in seen or _equal(before[i], after[i]), f"{name} is not among the state"
    return worst


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    # Without 64 bits the arrays are converted.
    return x.shape == y.shape and np.array_equal(x.astype(y.dtype), y)


def difference(got: Any, want: np.ndarray) -> float:
    """The largest error, relative to the largest number; NaN and infinities must be equal."""
    x, y = (np.asarray(v).astype(np.float64) for v in (got, want))
    assert x.shape == y.shape
    if not y.size:
        return 0.0
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return np.inf
    size = max(np.abs(y[finite]).max(initial=0.0), np.finfo(np.float32).tiny)
    return float(np.abs(x - y)[finite].max(initial=0.0) / size)
