"""Random inputs for the op tests: numbers of every dtype, special ones included."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tests.tf.ops.driver import eps

REAL = "float16 bfloat16 float32 float64".split()
COMPLEX = ["complex64", "complex128"]
SIGNED = "int8 int16 int32 int64".split()
UNSIGNED = "uint8 uint16 uint32 uint64".split()
INTS = SIGNED + UNSIGNED
MOVED = "float16 bfloat16 float32 float64 complex64 complex128 int8 int64 uint8 int32 bool".split()
ALL = [*REAL, *COMPLEX, *INTS, "bool"]


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def dtypes(op: str, attr: str = "T") -> list[str]:
    """Names of the numeric dtypes that the definition of an op allows."""
    definition = op_def_registry.get(op)
    assert definition is not None, op
    for a in definition.attr:
        if a.name == attr:
            allowed = [tf.dtypes.as_dtype(e).name for e in a.allowed_values.list.type]
            return [d for d in ALL if d in allowed] if allowed else ALL
    raise KeyError(f"{op} has no attribute {attr}")


def rng(*key: Any) -> np.random.Generator:
    """A generator seeded by a key: a text, or the `repr` of anything else."""
    text = key[0] if len(key) == 1 and isinstance(key[0], str) else repr(key)
    return np.random.default_rng(zlib.crc32(text.encode()))


def sample(shape: Sequence[int], dtype: str, key: Any = 0, *, scale: float = 3.0) -> np.ndarray:
    """Random numbers that `dtype` holds exactly; integers are small."""
    r, kind = rng(tuple(shape), dtype, key), dtype_of(dtype)
    if dtype == "bool":
        return np.asarray(r.random(shape) > 0.5)
    if dtype in COMPLEX:
        return np.asarray(r.normal(size=shape) + 1j * r.normal(size=shape)).astype(kind)
    if dtype in INTS:
        return np.asarray(r.integers(0 if dtype in UNSIGNED else -9, 9, shape)).astype(kind)
    return np.asarray(r.normal(size=shape) * scale).astype(kind)


def coarse(shape: Sequence[int], dtype: str, key: Any = 0) -> np.ndarray:
    """Small integers in any dtype, so that ties and zeros occur."""
    x = rng(tuple(shape), dtype, key, "coarse").integers(
        -2 if dtype not in UNSIGNED else 0, 3, shape
    )
    return np.asarray(x).astype(dtype_of(dtype))


def special(dtype: str, *, finite: bool = False) -> np.ndarray:
    """Zeros, ones, halves, large and small numbers, infinities and NaN."""
    kind = dtype_of(dtype)
    if dtype == "bool":
        return np.array([True, False])
    if dtype in INTS:
        info = np.iinfo(kind)
        values = [0, 1, 2, 3, 7, info.max, info.min, info.max - 1]
        return np.array(values + ([-1, -2, -5] if dtype in SIGNED else []), kind)
    values = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3, -7, 0.1, 10.25, -20.5]
    if not finite:
        values += [np.inf, -np.inf, np.nan]
    if dtype in COMPLEX:
        values = [complex(a, b) for a in (0, 1, -2.5) for b in (0, 0.5, -3)]
    return np.array(values).astype(kind)


def pairs(dtype: str, *, finite: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of the special values."""
    a = special(dtype, finite=finite)
    x, y = np.meshgrid(a, a)
    return x.ravel(), y.ravel()


def smallest(dtype: str) -> float:
    """The smallest normal number, in units of the machine epsilon; XLA flushes smaller ones."""
    kind = dtype_of(dtype)
    return float(ml_dtypes.finfo(kind).tiny) / eps(kind) if dtype in REAL else 0.0


def slow_but(quick: Sequence[tuple[Any, ...]], every: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All cases; those outside `quick` are marked slow."""
    return [c if c in quick else pytest.param(*c, marks=pytest.mark.slow) for c in every]


def normal(*shape: int, dtype: Any = np.float32, seed: str = "", scale: float = 1.0) -> np.ndarray:
    """Random numbers around zero, with some exact zeros; small integers for integer types."""
    draw = rng(f"{seed}{shape}").normal(size=shape) * scale
    if np.dtype(dtype).kind in "iu" and np.dtype(dtype).kind != "V":
        return np.clip(np.round(draw * 4), 0 if np.dtype(dtype).kind == "u" else -100, 100).astype(
            dtype
        )
    draw[np.abs(draw) < 0.05] = 0
    return draw.astype(dtype)


def weigh(ys: list[Any], cast: Callable[..., Any]) -> Any:
    """A sum of the results with fixed random weights, so that gradients do not cancel."""
    total: Any = 0.0
    add = tf.reduce_sum if cast is tf.cast else jnp.sum
    for i, y in enumerate(ys):
        shape = tuple(int(d) for d in y.shape)
        weight = rng(str(i)).uniform(0.5, 1.5, shape).astype(np.float32)
        total = total + add(cast(y, np.float32) * weight)
    return total
