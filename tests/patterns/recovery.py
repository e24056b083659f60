"""Helpers for tests of elementwise patterns: recover a function, count, compare."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import numpy as np
from jax import numpy as jnp

import invert
from invert._private.jax import open_jaxpr
from invert.ir import jaxprs


def recover(function: Callable[..., Any], *args: Any, **config: Any) -> Any:
    """`function` exported at the types of `args`, and raised again."""
    with jax.enable_x64(any(np.dtype(a.dtype).itemsize >= 8 for a in args)):
        exported = jax.export.export(jax.jit(function))(*args)
    return invert.from_exported(exported, config=invert.Config(**config))


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations except calls."""
    every = jaxprs.equations(open_jaxpr(jaxpr))
    return (eqn for eqn in every if eqn.primitive.name not in ("jit", "scan", "while", "cond"))


def primitives(module: Any) -> collections.Counter[str]:
    """How often each primitive occurs in the recovered program."""
    return collections.Counter(eqn.primitive.name for eqn in equations(module.jaxpr))


def same_program(function: Callable[..., Any], *args: Any) -> None:
    """Assert that a function of one equation comes back as that equation, with its parameters."""
    module = recover(function, *args)
    with jax.enable_x64(True):
        want = list(equations(jax.make_jaxpr(function)(*args)))
    got = list(equations(module.jaxpr))
    assert [e.primitive for e in got] == [e.primitive for e in want]
    assert len(want) == 1
    # The result type is stated or follows from the operands: the program is the same.
    derived = {"preferred_element_type", "weak_type"}
    for name, value in want[0].params.items():
        assert name in derived or got[0].params[name] == value, name


def same_values(function: Callable[..., Any], module: Any, *args: Any) -> None:
    """Assert equal values, bit for bit: each program is compiled as a whole."""
    for a, b in zip(
        jax.tree.leaves(jax.jit(function)(*args)),
        jax.tree.leaves(jax.jit(module)(*args)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def struct(dtype: Any, shape: tuple[int, ...] = (2, 3)) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def positive(shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    """Numbers between zero and one."""
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(np.float32)
