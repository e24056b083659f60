"""Compares calls of public functions with their conversions."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import numpy as np
import tensorflow as tf

import invert
from invert.frontends.tf_function import entry_point
from tests.tf.api.calls import FIRST, SECOND, B, Call
from tests.tf.ops import driver
from tests.tf.ops.driver import QUICK, Case, by_dtype, flat, pullback

# Calls of a function with state.
_UPDATES = 3
_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, -1e30])


class Wrong(AssertionError):
    """A result differs from TensorFlow's."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A program of one aspect of a call.

    **Arguments:**

    - `run`: the program, on tracers of the `inputs`.
    - `compare`: raises where the results are wrong.
    - `slopes`: whether gradients are among the results.
    """

    run: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    compare: Callable[[Any], None]
    slopes: bool = False


def run_together(parts: Sequence[Part]) -> list[Exception | None]:
    """Run parts as one program, which saves most of the compile time.

    **Returns:** what was raised while each one was traced or compared.
    """
    problems: list[Exception | None] = [None] * len(parts)

    def program(inputs: Sequence[Any]) -> list[Any]:
        results = []
        for i, (part, xs) in enumerate(zip(parts, inputs, strict=True)):
            try:
                results.append(part.run(*xs))
            except Exception as error:  # noqa: BLE001  reported by the caller, all of them
                problems[i] = error
                results.append(None)
        return results

    with jax.enable_x64(True):
        results = jax.jit(program, compiler_options=QUICK)([list(p.inputs) for p in parts])
    for i, (part, got) in enumerate(zip(parts, results, strict=True)):
        if problems[i] is None:
            try:
                part.compare(got)
            except AssertionError as error:
                problems[i] = error
    return problems


class Comparison:
    """A call in one dtype."""

    def __init__(self, name: str, call: Call, function: Callable[..., Any], dtype: str):
        self.name = f"{name} ({dtype})"
        self.call = call
        self.dtype = dtype
        bound = call.bound(function)
        self.function = lambda *xs: flat(bound(*xs))

    def draw(self, size: int, seed: int = 0) -> list[np.ndarray]:
        g = np.random.default_rng(zlib.crc32(self.name.encode()) + seed)
        return [a.draw(g, size, self.dtype) for a in self.call.arguments]

    def wanted(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return driver.run_tensorflow(self.case(inputs), self.function, "eager")

    def case(self, inputs: Sequence[np.ndarray]) -> Case:
        return Case(self.name, self.function, tuple(inputs))

    def concrete(self, open_size: bool) -> Any:
        """The TensorFlow function, with or without an open size."""
        specs = []
        for a in self.call.arguments:
            shape, dtype = a.spec(self.dtype)
            if not open_size:
                shape = tuple(FIRST if n is None else n for n in shape)
            specs.append(tf.TensorSpec(shape, dtype))
        function = tf.function(self.function, autograph=False)
        return function.get_concrete_function(*specs)

    def module(self, concrete: Any) -> Callable[..., list[Any]]:
        module = invert.convert(concrete, config=self.call.config)
        keys = {"key": jax.random.key(0)} if "key" in inspect.signature(module).parameters else {}
        return lambda *xs: jax.tree_util.tree_leaves(module(*xs, **keys))

    # -- aspects: what is run, on what, and what has to come out

    def values(self, gradients: bool = False) -> Part:
        """Values at fixed sizes, and the gradients that TensorFlow has."""
        inputs = self.draw(FIRST)
        want = self.wanted(inputs)
        weights = [driver.cotangent(y) for y in want]
        case = self.case(inputs)
        slopes = driver.gradients(case, case.function, "eager", weights) if gradients else {}
        opened = self.call.is_open and "open" not in self.call.without
        module = self.module(self.concrete(opened))

        def run(*xs: Any) -> Any:
            return module(*xs), pullback(module, xs, list(slopes), weights)

        def compare(got: Any) -> None:
            self.same("result", got[0], want)
            self.equal("gradient", got[1], list(slopes.values()), factor=5)

        return Part(run, inputs, compare, bool(slopes))

    def special(self) -> Part:
        """Values at all pairs of infinities, NaN, zeros and other special numbers."""
        count = sum(a.dtype is None for a in self.call.arguments)
        grids = iter(np.meshgrid(*[_SPECIAL] * count, indexing="ij"))
        inputs = [
            next(grids).ravel().astype(x.dtype) if a.dtype is None else x
            for a, x in zip(self.call.arguments, self.draw(FIRST), strict=True)
        ]
        want = self.wanted(inputs)
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
        function = tf.function(self.function, autograph=False).get_concrete_function(*specs)
        text = "result of special values"
        return Part(
            self.module(function), inputs, lambda got: self.equal(text, got, want, each=inputs)
        )

    def open_size(self) -> Part:
        """Values of a program for all sizes, at another size."""
        inputs = self.draw(SECOND, 1)
        want = self.wanted(inputs)
        (b,) = jax.export.symbolic_shape("b", constraints=[f"b >= {SECOND}"])
        entry = entry_point(self.concrete(True), config=self.call.config)
        params = [v.value for v in entry.params]
        keys = [jax.random.key(0)] if entry.draws else []
        avals = [
            jax.ShapeDtypeStruct(tuple(b if n == B else n for n in a.shape), x.dtype)
            for a, x in zip(self.call.arguments, inputs, strict=True)
        ]
        fn = jax.jit(lambda *xs: entry.fn(params, *xs, *keys)[: entry.out_tree.num_leaves])
        exported = jax.export.export(fn)(*avals)
        return Part(
            exported.call, inputs, lambda got: self.same("result of an open size", got, want)
        )

    def updates(self) -> Part:
        """Values of successive calls, each of which changes the state."""
        assert self.call.made is not None
        bound = self.call.bound(self.call.made())
        self.function = lambda *xs: flat(bound(*xs))
        # Converted at the state before the first of them.
        module = invert.convert(self.concrete(False), config=self.call.config)
        draws = [self.draw(FIRST, seed) for seed in range(_UPDATES)]
        wants = [self.wanted(inputs) for inputs in draws]
        count = len(draws[0])

        def run(*xs: Any) -> Any:
            state, results = eqx.nn.State(module), []
            for start in range(_UPDATES):
                given = xs[start * count : (start + 1) * count]
                result, state = module(*given, state=state)
                results.append(jax.tree_util.tree_leaves(result))
            return results

        def compare(got: Any) -> None:
            for i, (results, want) in enumerate(zip(got, wants, strict=True)):
                self.same(f"result of call {i},", results, want)

        return Part(run, [x for xs in draws for x in xs], compare)

    def refusal(self) -> Part:
        """No values: the conversion must raise the expected error."""
        self.wanted(self.draw(FIRST))
        try:
            self.module(self.concrete(False))
        except invert.UnsupportedOpError as error:
            if self.call.error in str(error):
                return Part(list, [], lambda got: None)
            raise
        raise Wrong(f"{self.name}: converted, without the error {self.call.error!r}")

    def batched(self) -> Part:
        """Values under `vmap`."""
        draws = [self.draw(FIRST, seed) for seed in (2, 3)]
        wants = [self.wanted(inputs) for inputs in draws]
        module = self.module(self.concrete(False))
        stacked = [np.stack(xs) for xs in zip(*draws, strict=True)]

        def compare(got: Any) -> None:
            for i, want in enumerate(wants):
                self.equal("result under vmap", [g[i] for g in got], want)

        return Part(jax.vmap(module), stacked, compare)

    def same(self, what: str, got: Sequence[Any], want: Sequence[np.ndarray]) -> None:
        """Raise unless the values are equal, or only alike if the call excludes values."""
        if "value" in self.call.without:
            self.alike(got, want)
        else:
            self.equal(what, got, want)

    def alike(self, got: Sequence[Any], want: Sequence[np.ndarray]) -> None:
        """Raise unless shapes and dtypes are equal."""
        anything = functools.partial(np.full_like, fill_value=0)
        self.equal("result", [anything(np.asarray(g)) for g in got], [anything(w) for w in want])

    def equal(
        self,
        what: str,
        got: Sequence[Any],
        want: Sequence[np.ndarray],
        *,
        factor: float = 1,
        each: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Raise unless the numbers are equal; `each`: number by number, for these inputs."""
        close = by_dtype(factor * self.call.tolerance, scaled=each is None)
        # The dtype of the call counts, whatever its other arguments are.
        like = [np.zeros((), jax.numpy.dtype(self.dtype))] if each is None else each
        if texts := driver.differences(what, got, want, close, like):
            raise Wrong(f"{self.name}, " + "\n".join(texts))
