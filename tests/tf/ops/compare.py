"""Runs a case in TensorFlow and converted, and compares values and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import invert
from invert._config import Config
from invert.frontends.tf_function import entry_point
from tests.tf.ops.cases import Case, Moments
from tests.tf.ops.recipes_other import Variables

PLAIN = Config(patterns=False, verify=False)
# Relative to the largest number of a result. Sums are ordered differently, and the functions of XLA
# and Eigen differ by some units in the last place.
TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 3e-5, "complex64": 3e-5,
             "float16": 8e-3, "bfloat16": 5e-2}  # fmt: skip


class NoKernel(Exception):
    """TensorFlow cannot run the case itself, compiled by XLA or not."""


@dataclasses.dataclass
class Reference:
    """What TensorFlow gives: results, and gradients where it has them."""

    results: list[np.ndarray]
    gradients: list[np.ndarray | None] | None
    cotangents: list[np.ndarray]


def _flat(result: Any) -> list[Any]:
    if isinstance(result, tf.Operation) or result is None:
        return []
    return [t for t in tf.nest.flatten(result) if isinstance(t, tf.Tensor)]


def _differentiable(dtype: Any) -> bool:
    return jnp.issubdtype(np.dtype(dtype), jnp.inexact)


class Comparison:
    """A case, as a TensorFlow function of its inputs."""

    def __init__(self, case: Case):
        self.case = case
        self.reset: Callable[[], None] = lambda: None
        function = case.function
        if isinstance(function, Variables):
            function, self.reset = function.bound(case.dtype)
        self.function = lambda *xs: _flat(function(*xs))
        self.specs = [tf.TensorSpec(v.shape, v.dtype) for v in case.inputs]

    def reference(self, gradients: bool) -> Reference:
        """TensorFlow's own results: on CPU kernels, else compiled by XLA."""
        problems = []
        for jit_compile in (False, True):
            self.reset()
            compiled = tf.function(self.function, autograph=False, jit_compile=jit_compile)
            try:
                results = [t.numpy() for t in compiled(*map(tf.constant, self.case.inputs))]
            except (tf.errors.OpError, NotImplementedError, TypeError, ValueError) as error:
                problems.append(str(error).partition("\n")[0])
                continue
            cotangents = self._cotangents(results)
            found = self._gradients(cotangents, jit_compile) if gradients else None
            return Reference(results, found, cotangents)
        raise NoKernel("; ".join(problems))

    def eager(self) -> list[np.ndarray]:
        """TensorFlow's own results, op by op on the CPU."""
        try:
            return [t.numpy() for t in self.function(*map(tf.constant, self.case.inputs))]
        except (tf.errors.OpError, NotImplementedError, TypeError, ValueError) as error:
            raise NoKernel(str(error)) from error

    def _cotangents(self, results: Sequence[np.ndarray]) -> list[np.ndarray]:
        g = np.random.default_rng(1)
        return [
            np.asarray(np.round(g.uniform(0.5, 1.5, y.shape) * 8) / 8).astype(y.dtype)
            for y in results
        ]

    def _gradients(
        self, cotangents: list[np.ndarray], jit_compile: bool
    ) -> list[np.ndarray | None] | None:
        inputs = self.case.inputs
        where = [i for i, v in enumerate(inputs) if _differentiable(v.dtype)]
        if not where:
            return None

        def gradient(*xs: Any) -> Any:
            with tf.GradientTape() as tape:
                for i in where:
                    tape.watch(xs[i])
                ys = self.function(*xs)
            pairs = [
                (y, c) for y, c in zip(ys, cotangents, strict=True) if _differentiable(c.dtype)
            ]
            if not pairs:
                return []
            found = tape.gradient(
                [y for y, _ in pairs],
                [xs[i] for i in where],
                output_gradients=[tf.constant(c) for _, c in pairs],
            )
            has[:] = [g is not None for g in found]
            return [tf.convert_to_tensor(g) for g in found if g is not None]

        has: list[bool] = []
        self.reset()
        try:
            compiled = tf.function(gradient, autograph=False, jit_compile=jit_compile)
            values = iter([t.numpy() for t in compiled(*map(tf.constant, inputs))])
        except (LookupError, tf.errors.OpError, NotImplementedError, TypeError, ValueError):
            return None  # TensorFlow has no gradient here, or no kernel for it
        found = [next(values) if h else None for h in has]
        return found if any(has) else None

    def converted(self, config: Config = PLAIN) -> Callable[..., list[Any]]:
        """The conversion, as a function of arrays. What draws takes the key of seed zero."""
        function, draws = self._with_key(config)
        keys = [jax.random.key(0)] if draws else []
        return lambda *xs: function(*xs, *keys)

    def _with_key(self, config: Config) -> tuple[Callable[..., list[Any]], bool]:
        """The conversion, as a function of arrays, then of the key where it draws."""
        self.reset()
        concrete = tf.function(self.function, autograph=False).get_concrete_function(*self.specs)
        entry = entry_point(concrete, config=config)
        count = entry.out_tree.num_leaves
        params = [v.value for v in entry.params]
        return lambda *xs: list(entry.fn(params, *xs))[:count], entry.draws

    def module(self) -> Callable[..., list[Any]]:
        """The conversion with all its stages, as a function of arrays."""
        self.reset()
        function = tf.function(self.function, autograph=False)
        module = invert.convert(function, *self.specs, config=Config(verify=False))
        return lambda *xs: jax.tree_util.tree_leaves(module(*xs))

    def check(self, *, gradients: bool = False, config: Config = PLAIN) -> Reference:
        """Compares values, and gradients where asked for and where TensorFlow has them."""
        case = self.case
        reference = self.reference(gradients and case.recipe.grad)
        if case.recipe.moments is not None:
            self._check_drawn(reference, case.recipe.moments)
            return reference
        with jax.enable_x64(True):
            fn = self.converted(config)
            got = jax.jit(fn)(*case.inputs)
            self.compare("result", got, reference.results)
            if reference.gradients is not None:
                numbers = [i for i, v in enumerate(case.inputs) if _differentiable(v.dtype)]
                pairs = zip(numbers, reference.gradients, strict=True)
                want = {i: g for i, g in pairs if g is not None}
                grads = jax.jit(lambda *xs: _pullback(fn, xs, list(want), reference.cotangents))(
                    *case.inputs
                )
                self.compare("gradient", grads, list(want.values()), factor=5)
        return reference

    def _check_drawn(self, reference: Reference, known: Moments) -> None:
        """Compares types with those of TensorFlow, and moments of both with what is known."""
        with jax.enable_x64(True):
            function, draws = self._with_key(PLAIN)
            keys = [[jax.random.key(seed)] if draws else [] for seed in (0, 1)]
            jitted = jax.jit(function)
            drawn, others = (
                [np.asarray(y) for y in jitted(*self.case.inputs, *key)] for key in keys
            )
        assert len(drawn) == len(reference.results)
        for x, y, other in zip(drawn, reference.results, others, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape, self.case.name
            assert np.array_equal(x, other) != draws, self.case.name
            for numbers in (x.astype(np.float64), y.astype(np.float64)):
                assert known.low <= numbers.min() <= numbers.max() <= known.high, self.case.name
                near = 0.05 * known.deviation
                np.testing.assert_allclose(numbers.mean(), known.mean, atol=near)
                np.testing.assert_allclose(numbers.std(), known.deviation, atol=near)

    def compare(
        self, what: str, got: Sequence[Any], want: Sequence[np.ndarray], factor: float = 1
    ) -> None:
        assert len(got) == len(want), f"{self.case.name}: {len(got)} {what}s, not {len(want)}"
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            g = np.asarray(g)
            where = f"{self.case.name}, {what} {i}"
            same = g.dtype == w.dtype and g.shape == w.shape
            assert same, f"{where}: {g.dtype}{g.shape}, not {w.dtype}{w.shape}"
            if not _differentiable(w.dtype):
                np.testing.assert_array_equal(g, w, err_msg=where)
                continue
            wide = np.complex128 if np.dtype(w.dtype).kind == "c" else np.float64
            g, w, dtype = g.astype(wide), w.astype(wide), str(w.dtype)
            finite = np.abs(w[np.isfinite(w)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            # Steps of a computation are of the narrowest type among inputs and results.
            names = [str(v.dtype) for v in self.case.inputs] + [dtype]
            rtol = max(TOLERANCE.get(n, 0.0) for n in names) * factor * self.case.recipe.tolerance
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * scale, err_msg=where)


def check_together(cases: Sequence[Case]) -> tuple[list[str], list[Case]]:
    """Compares the values of many cases, converted and compiled as one program.

    **Returns:** what is wrong, by case; the cases that TensorFlow cannot run op by op on the CPU.
    """
    runnable: list[tuple[Comparison, list[np.ndarray]]] = []
    left: list[Case] = []
    for case in cases:
        comparison = Comparison(case)
        try:
            runnable.append((comparison, comparison.eager()))
        except NoKernel:
            left.append(case)
    wrong = []
    together = run_together([comparison for comparison, _ in runnable])
    for (comparison, want), got in zip(runnable, together, strict=True):
        try:
            comparison.compare("result", got, want)
        except AssertionError as error:
            wrong.append(str(error))
    return wrong, left


def run_together(comparisons: Sequence[Comparison]) -> list[list[Any]]:
    """The results of each, converted and compiled as one program."""
    if not comparisons:
        return []
    function = _joined(comparisons)
    specs = [s for comparison in comparisons for s in comparison.specs]
    inputs = [v for comparison in comparisons for v in comparison.case.inputs]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    entry = entry_point(concrete, config=PLAIN)
    counts = [len(part) for part in concrete.structured_outputs]
    with jax.enable_x64(True):
        results = iter(jax.jit(lambda *xs: entry.fn([], *xs))(*inputs))
    return [[next(results) for _ in range(count)] for count in counts]


def run_by_xla(comparisons: Sequence[Comparison]) -> list[list[np.ndarray] | None]:
    """The results of each as TensorFlow compiles it by XLA, or None where it does not."""
    inputs = [tf.constant(v) for comparison in comparisons for v in comparison.case.inputs]
    try:
        joined = tf.function(_joined(comparisons), autograph=False, jit_compile=True)
        return [[t.numpy() for t in part] for part in joined(*inputs)]
    except (tf.errors.OpError, NotImplementedError, TypeError, ValueError):
        if len(comparisons) == 1:
            return [None]
    return [run_by_xla([comparison])[0] for comparison in comparisons]


def _joined(comparisons: Sequence[Comparison]) -> Callable[..., list[list[Any]]]:
    """One function of the inputs of all."""

    def function(*xs: Any) -> list[list[Any]]:
        given = iter(xs)
        return [
            comparison.function(*(next(given) for _ in comparison.case.inputs))
            for comparison in comparisons
        ]

    return function


def _pullback(
    fn: Callable[..., Any], xs: Sequence[Any], where: list[int], cotangents: list[np.ndarray]
) -> list[Any]:
    def of(*varied: Any) -> list[Any]:
        full = list(xs)
        for i, v in zip(where, varied, strict=True):
            full[i] = v
        return [y for y, c in zip(fn(*full), cotangents, strict=True) if _differentiable(c.dtype)]

    _, pull = jax.vjp(of, *(xs[i] for i in where))
    # TensorFlow's gradient of a complex number is the conjugate of JAX's.
    given = [jnp.conj(jnp.asarray(c)) for c in cotangents if _differentiable(c.dtype)]
    return [jnp.conj(g) for g in pull(given)]
