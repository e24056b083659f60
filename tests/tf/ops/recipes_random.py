"""Inputs of the random ops.

Ops with a seed or a generator's state draw TensorFlow's numbers. Where TensorFlow leaves the
numbers open, the known moments of the distribution are compared.
"""

# One row for each op, however long.
# ruff: noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tf.ops.cases import FLOATS, Moments, Recipe, Variables, p, raw_op, x

R = tf.raw_ops

_KINDS = ("int32", "int64", "uint32", "uint64")
# One number, a part of a block of words, more than a block, and no number.
_SHAPES = tuple(np.array(s, np.int32) for s in ([], [3], [3, 5], [0, 2]))
# Normal numbers go through logarithms and cosines, whose last place differs once XLA fuses them.
_CLOSE = 0.1


def _seeded(op: str, kinds: tuple[str, ...], tolerance: float = 0.0) -> list[Recipe]:
    """Draws from a seed of two integers, of 32 or 64 bits each."""

    def program(seed: Any) -> Any:
        return [getattr(R, op)(shape=s, seed=seed, dtype=t) for t in kinds for s in _SHAPES]

    seed = x(2, low=-(2**30), high=2**30)
    return [p(program, seed, dtypes=("int32", "int64"), grad=False, tolerance=tolerance)]


def _keyed(op: str, kinds: tuple[str, ...], tolerance: float = 0.0) -> list[Recipe]:
    """Draws from the state of a generator, given as key and counter."""

    def program(key: Any, counter: Any) -> Any:
        rng = {"key": key, "counter": counter, "alg": 1}
        return [getattr(R, op)(shape=s, **rng, dtype=t) for t in kinds for s in _SHAPES]

    words = (x(1, low=0, high=2**62), x(2, low=0, high=2**62))
    return [p(program, *words, dtypes=("uint64",), grad=False, tolerance=tolerance)]


def _between(op: str) -> list[Recipe]:
    def program(low: Any, high: Any) -> Any:
        if op.endswith("V2"):
            rng: dict[str, Any] = {"key": tf.constant([9], tf.uint64), "counter": tf.constant([1, 2], tf.uint64), "alg": 1}  # fmt: skip
        else:
            rng = {"seed": [3, -4]}
        return [getattr(R, op)(shape=s, **rng, minval=low, maxval=high) for s in _SHAPES]

    bounds = (x(low=-20, high=-10), x(low=5, high=9))
    return [p(program, *bounds, dtypes=("int32", "int64"), grad=False)]


def _key_of_seed(op: str) -> list[Recipe]:
    seed = x(2, low=-(2**30), high=2**30)
    return [p(lambda s: getattr(R, op)(seed=s), seed, dtypes=("int32", "int64"), grad=False)]


_STATE = np.array([2**40, 5, -(2**50)])


def _generator(program: Callable[[Any], Any], tolerance: float = 0.0) -> list[Recipe]:
    """Two draws from a generator, and its state afterwards."""

    def twice(variables: list[Any]) -> Any:
        (state,) = variables
        first = tf.nest.flatten(program(state.handle))
        with tf.control_dependencies(first):
            second = tf.nest.flatten(program(state.handle))
        with tf.control_dependencies(second):
            return [*first, *second, state.read_value()]

    variable = Variables(twice, _STATE)
    return [p(variable, dtypes=("int64",), grad=False, tolerance=tolerance)]


def _stateful(op: str, kinds: tuple[str, ...], tolerance: float = 0.0) -> list[Recipe]:
    def program(handle: Any) -> Any:
        results = []
        for kind in kinds:
            for shape in _SHAPES:
                with tf.control_dependencies(results[-1:]):
                    results.append(getattr(R, op)(resource=handle, algorithm=1, shape=shape, dtype=kind))  # fmt: skip
        return results

    return _generator(program, tolerance)


def _between_of_generator(handle: Any) -> Any:
    first = R.StatefulUniformInt(resource=handle, algorithm=1, shape=[7], minval=-3, maxval=9)
    bounds = tf.constant(-(2**40), tf.int64), tf.constant(2**41, tf.int64)
    with tf.control_dependencies([first]):
        return [first, R.StatefulUniformInt(resource=handle, algorithm=1, shape=[2, 3], minval=bounds[0], maxval=bounds[1])]  # fmt: skip


def _skipped(handle: Any) -> Any:
    skip = R.RngSkip(resource=handle, algorithm=tf.constant(1, tf.int64), delta=tf.constant(2**40, tf.int64))  # fmt: skip
    with tf.control_dependencies([skip]):
        return R.StatefulUniform(resource=handle, algorithm=1, shape=[3])


def _drawn(
    program: Callable[..., Any],
    *inputs: Any,
    mean: float,
    deviation: float,
    low: float,
    high: float,
    dtypes: tuple[str, ...] = ("float32",),
) -> list[Recipe]:
    """A draw of numbers between `low` and `high` with known moments."""
    recipe = p(program, *inputs, dtypes=dtypes, grad=False)
    return [dataclasses.replace(recipe, moments=Moments(mean, deviation, low, high))]


_MANY = 20000
_ROOT12 = 12**0.5
# Of a standard normal number between -2 and 2.
_CUT = 0.8796


def _each(draw: Callable[..., Any], kinds: tuple[str, ...] = FLOATS) -> Callable[..., Any]:
    """A program that draws in each type; half precision has few numbers close to a bound."""
    return lambda: [draw(dtype=kind, shape=[_MANY]) for kind in kinds]


def _cast(values: Any) -> Any:
    key, counter = tf.constant([77], tf.uint64), tf.constant([1, 2], tf.uint64)
    cast = raw_op("StochasticCastToInt")
    return [cast(input=values, key=key, counter=counter, alg=1, Tout=t) for t in ("int8", "int16", "int32")]  # fmt: skip


def _whole(g: np.random.Generator) -> Any:
    """Integers, too large for some types, or none: the same in every draw."""
    return np.concatenate([g.integers(-99, 99, 9), [np.nan, -np.inf, 1e5, 300.0, -1e4, -0.0]])


RANDOM: dict[str, list[Recipe]] = {
    **{op: _seeded(op, FLOATS) for op in ("StatelessRandomUniform",)},
    **{op: _seeded(op, FLOATS, _CLOSE) for op in ("StatelessRandomNormal", "StatelessTruncatedNormal")},
    "StatelessRandomUniformFullInt": _seeded("StatelessRandomUniformFullInt", _KINDS),
    "StatelessRandomUniformV2": _keyed("StatelessRandomUniformV2", FLOATS),
    **{op: _keyed(op, FLOATS, _CLOSE) for op in ("StatelessRandomNormalV2", "StatelessTruncatedNormalV2")},
    "StatelessRandomUniformFullIntV2": _keyed("StatelessRandomUniformFullIntV2", _KINDS),
    **{op: _between(op) for op in ("StatelessRandomUniformInt", "StatelessRandomUniformIntV2")},
    **{op: _key_of_seed(op) for op in ("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")},
    "StatelessRandomGetAlg": [p(lambda: R.StatelessRandomGetAlg(), dtypes=("int32",), grad=False)],
    "StatelessMultinomial": [p(lambda logits, seed: [R.StatelessMultinomial(logits=logits, num_samples=9, seed=seed, output_dtype=t) for t in ("int32", "int64")], x(3, 4), x(2, dtype="int64"), dtypes=("float32", "float64", "float16", "bfloat16"), grad=False)],
    "StatefulUniform": _stateful("StatefulUniform", FLOATS),
    **{op: _stateful(op, FLOATS, _CLOSE) for op in ("StatefulStandardNormalV2", "StatefulTruncatedNormal")},
    "StatefulUniformFullInt": _stateful("StatefulUniformFullInt", _KINDS),
    "StatefulUniformInt": _generator(_between_of_generator),
    "RngReadAndSkip": _generator(lambda handle: R.RngReadAndSkip(resource=handle, alg=1, delta=tf.constant(3, tf.uint64))),
    "RngSkip": _generator(_skipped),
    "RandomUniform": _drawn(_each(lambda **a: R.RandomUniform(**a)), mean=0.5, deviation=1 / _ROOT12, low=0, high=1),
    "RandomUniformInt": _drawn(lambda low, high: R.RandomUniformInt(shape=[_MANY], minval=low, maxval=high), x(low=2, high=3), x(low=12, high=13), mean=6.5, deviation=99**0.5 / _ROOT12, low=2, high=11, dtypes=("int32", "int64")),
    "RandomStandardNormal": _drawn(_each(lambda **a: R.RandomStandardNormal(**a)), mean=0, deviation=1, low=-6, high=6),
    "TruncatedNormal": _drawn(_each(lambda **a: R.TruncatedNormal(**a)), mean=0, deviation=_CUT, low=-2, high=2),
    "ParameterizedTruncatedNormal": _drawn(lambda mean: R.ParameterizedTruncatedNormal(shape=[2, _MANY], means=mean, stdevs=tf.constant(2, mean.dtype), minvals=tf.constant(-3, mean.dtype), maxvals=tf.constant([5, 5], mean.dtype)), x(2, make=lambda g: [1, 1]), mean=1, deviation=2 * _CUT, low=-3, high=5, dtypes=("float32", "float64")),
    "StatelessParameterizedTruncatedNormal": _drawn(lambda mean: R.StatelessParameterizedTruncatedNormal(shape=[_MANY, 2], seed=[1, 2], means=mean, stddevs=tf.constant(2, mean.dtype), minvals=tf.constant(-3, mean.dtype), maxvals=tf.constant([5, 5], mean.dtype)), x(2, make=lambda g: [1, 1]), mean=1, deviation=2 * _CUT, low=-3, high=5, dtypes=("float32", "float64")),
    "Multinomial": _drawn(lambda logits: [R.Multinomial(logits=logits, num_samples=_MANY, output_dtype=t) for t in ("int32", "int64")], x(2, 3, make=lambda g: [[0, -np.inf, 0]] * 2), mean=1, deviation=1, low=0, high=2, dtypes=("float32", "float64", "float16")),
    # In which order is up to the key: what is in it is not.
    "RandomShuffle": [p(lambda t: tf.sort(R.RandomShuffle(value=t)), x(9), dtypes=("float32", "int32"), grad=False)],
    "StochasticCastToInt": [
        p(_cast, x(15, make=_whole), dtypes=("float32", "float64"), grad=False),
        *_drawn(_cast, x(_MANY, make=lambda g: np.full(_MANY, -2.25)), mean=-2.25, deviation=0.1875**0.5, low=-3, high=-2, dtypes=FLOATS),
    ],
}  # fmt: skip
