"""Compares rules for TensorFlow ops with TensorFlow: values, and gradients in both directions.

One compilation serves the values of a case, the derivative that JAX takes of the converted
function, and the converted form of the gradient graph that TensorFlow makes of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from invert._config import Config
from invert.frontends.tf_function import entry_point

# Every case makes functions of its own, and TensorFlow would say so each time.
tf.get_logger().setLevel("ERROR")

# Relative errors of sums in another order, for values around one.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


# Most of the time goes into compiling programs that run once.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def rng(text: str = "") -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(text.encode()))


def slow_but(quick: Sequence[tuple[Any, ...]], every: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All cases, of which those outside of `quick` are marked slow."""
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


def is_float(x: Any) -> bool:
    return jnp.issubdtype(np.asarray(x).dtype, jnp.floating)


def flat_function(fn: Callable[..., Any], jit_compile: bool | None = None) -> Any:
    return tf.function(
        lambda *xs: [t for t in tf.nest.flatten(fn(*xs)) if t is not None],
        autograph=False,
        jit_compile=jit_compile,
    )


def gradient_function(fn: Callable[..., Any], inputs: list[np.ndarray]) -> Callable[..., Any]:
    """The TensorFlow function that takes the gradient of a weighted sum of all results."""
    where = [i for i, x in enumerate(inputs) if is_float(x)]

    def gradient(*xs: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            for i in where:
                tape.watch(xs[i])
            ys = tf.nest.flatten(fn(*xs))
            total = weigh([tf.convert_to_tensor(y) for y in ys if y.dtype.is_floating], tf.cast)
        grads = tape.gradient(total, [xs[i] for i in where], unconnected_gradients="zero")
        return [tf.convert_to_tensor(g) for g in grads]

    return gradient


def weigh(ys: list[Any], cast: Callable[..., Any]) -> Any:
    """A sum of the results under fixed random weights, so that no gradient cancels."""
    total: Any = 0.0
    add = tf.reduce_sum if cast is tf.cast else jnp.sum
    for i, y in enumerate(ys):
        shape = tuple(int(d) for d in y.shape)
        weight = rng(str(i)).uniform(0.5, 1.5, shape).astype(np.float32)
        total = total + add(cast(y, np.float32) * weight)
    return total


def converted(fn: Callable[..., Any], inputs: list[np.ndarray], symbolic: bool = False) -> Any:
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    if symbolic:
        specs = [tf.TensorSpec([None, *s.shape[1:]], s.dtype) for s in specs]
    concrete = flat_function(fn).get_concrete_function(*specs)
    entry = entry_point(concrete, config=Config())
    assert not entry.params
    return lambda *xs: entry.fn([], *xs)


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    grad: bool = True,
    tf_grad: bool = True,
    xla: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    reference: Callable[..., Any] | None = None,
) -> None:
    """Asserts that `fn` and its conversion agree.

    **Arguments:**

    - `grad`: also compares gradients: that of the conversion, and the converted gradient graph.
    - `tf_grad`: whether TensorFlow has a gradient that can be converted.
    - `xla`: TensorFlow compiles `fn`, where its own kernels lack a case (channels first, groups).
    - `reference`: computes what is wanted, in place of `fn`.
    """
    arrays = [np.asarray(x) for x in inputs]
    wanted = flat_function(reference or fn, jit_compile=xla or None)(*map(tf.constant, arrays))
    want = [w.numpy() for w in wanted]
    where = [i for i, a in enumerate(arrays) if is_float(a)] if grad else []
    slope = gradient_function(fn, arrays)
    forward = converted(fn, arrays)
    backward = converted(slope, arrays) if where and tf_grad else None

    def run(*xs: Any) -> Any:
        results = forward(*xs)
        if not where:
            return results, [], []

        def total(*some: Any) -> Any:
            full = list(xs)
            for i, x in zip(where, some, strict=True):
                full[i] = x
            return weigh(
                [y for y in forward(*full) if is_float_type(y)], jax.lax.convert_element_type
            )

        mine = jax.grad(total, tuple(range(len(where))))(*(xs[i] for i in where))
        return results, mine, backward(*xs) if backward else []

    with jax.enable_x64(True):  # as conversion does
        got, mine, graph = jax.jit(run, compiler_options=QUICK)(*arrays)
    compare(got, want, rtol, atol)
    if where:
        reference_slope = gradient_function(reference or fn, arrays)
        slopes = flat_function(reference_slope, jit_compile=xla or None)(*map(tf.constant, arrays))
        compare(mine, [g.numpy() for g in slopes], rtol, atol, "gradient of the conversion")
        if backward:
            compare(graph, [g.numpy() for g in slopes], rtol, atol, "converted gradient")


def is_float_type(y: Any) -> bool:
    return jnp.issubdtype(y.dtype, jnp.floating)


def compare(
    got: Any, want: Any, rtol: float | None = None, atol: float | None = None, what: str = "value"
) -> None:
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        g, w = np.asarray(g), np.asarray(w)
        assert g.dtype == w.dtype, f"{what} {i}: {g.dtype}, not {w.dtype}"
        assert g.shape == w.shape, f"{what} {i}: {g.shape}, not {w.shape}"
        limit = TOLERANCE.get(g.dtype.name, 0.0)
        wide = np.complex128 if g.dtype.kind == "c" else np.float64
        scale = float(
            np.max(np.abs(w.astype(wide)), initial=1.0, where=np.isfinite(w.astype(wide)))
        )
        np.testing.assert_allclose(
            g.astype(wide),
            w.astype(wide),
            rtol=limit if rtol is None else rtol,
            atol=(limit * scale if g.dtype.kind not in "iub" else 0) if atol is None else atol,
            err_msg=f"{what} {i}",
        )
