"""Compares a SavedModel as this package reads it with TensorFlow's own loader."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import invert
from invert import Config, InvertError
from invert._entry import EntryPoint
from invert.frontends.run_saved_model import load_function
from invert.frontends.saved_model import entry_points
from invert.frontends.signature import distinct, trace_names

# How far results may be apart, relative to the largest: sums are added up in another order.
_APART = {"f": 2e-5, "c": 2e-5, "V": 2e-2}


def differences(path: Path, seed: int = 0) -> Iterator[str]:
    """The differences for each function and signature, in words.

    Variables, their values and flags are compared, results at random arguments, and the gradients
    of float arguments. Refused functions are reported as `refused: ..`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points = entry_points(path, config=Config(), strict=False)
        for name in points:
            if "." in name.partition("(")[0] or name.startswith(("call_and_return", "_default")):
                continue
            try:
                entry = points[name]
                if entry.problems:
                    yield f"{name}: refused: {entry.problems[0]}"
                    continue
                module = _one(path, name)
            except InvertError as error:
                yield f"{name}: refused: {error}"
                continue
            yield from (f"{name}: {d}" for d in _of_function(path, name, entry, module, seed))


def _one(path: Path, name: str) -> Any:
    return invert.load(path, signature=name)


def _of_function(path: Path, name: str, entry: EntryPoint, module: Any, seed: int) -> Iterator[str]:
    concrete, root = _concrete(path, name)
    if concrete is None:
        yield "TensorFlow has no such function"
        return
    yield from _of_variables(entry, concrete, root)
    if entry.draws:
        return
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree_util.tree_flatten((entry.args, dict(entry.kwargs)))
    values = [_value(spec, rng) for spec in leaves]
    given = dict(zip(entry.fn.signature.order, values, strict=True))  # pyright: ignore

    def theirs(tensors: Sequence[Any]) -> list[Any]:
        structured = concrete.structured_input_signature
        flat = tf.nest.flatten(structured, expand_composites=True)
        rest = iter(tensors)
        flat = [next(rest) if isinstance(x, tf.TypeSpec) else x for x in flat]
        args, kwargs = tf.nest.pack_sequence_as(structured, flat, expand_composites=True)
        out = tf.nest.flatten(concrete(*args, **kwargs), expand_composites=True)
        return [x for x in out if x is not None]

    def ours(arrays: Sequence[Any]) -> list[Any]:
        args, kwargs = jax.tree_util.tree_unflatten(tree, arrays)
        if entry.assigned:
            import equinox as eqx

            out, _ = module(*args, eqx.nn.State(module), **kwargs)
        else:
            out = module(*args, **kwargs)
        return jax.tree_util.tree_leaves(out)

    tensors = [tf.constant(given[i]) for i in range(len(values))]
    floats = [i for i, t in enumerate(tensors) if t.dtype.is_floating]
    try:
        want = theirs(tensors)
    except tf.errors.OpError as error:
        if "Cannot deserialize computation" in str(error):
            return  # JAX is newer than the StableHLO that TensorFlow reads
        yield f"TensorFlow does not run it: {str(error).splitlines()[0][:80]}"
        return
    try:
        found = ours(values)
    except InvertError as error:
        yield f"refused when called: {error}"
        return
    if len(want) != len(found):
        yield f"{len(found)} results, TensorFlow has {len(want)}"
        return
    for i, (one, other) in enumerate(zip(found, want, strict=True)):
        if problem := apart(one, other.numpy()):
            yield f"result {i}: {problem}"
    if entry.assigned or not floats:
        return
    places = {n: k for k, n in enumerate(entry.fn.signature.order)}  # pyright: ignore
    try:
        with tf.GradientTape() as tape:
            tape.watch([tensors[i] for i in floats])
            smoothed = [tf.sin(tf.cast(y, tf.float64)) for y in theirs(tensors)
                        if y.dtype.is_floating]  # fmt: skip
            total = tf.add_n([tf.reduce_sum(y) for y in smoothed] or [tf.zeros((), tf.float64)])
        slopes = tape.gradient(total, [tensors[i] for i in floats])
    # Exported without gradients; or, of loops of version 1, what TensorFlow cannot differentiate.
    except (LookupError, AttributeError, TypeError, ValueError):
        return
    smooth = [places[i] for i in floats]

    def loss(*some: Any) -> Any:
        arrays = list(values)
        for i, x in zip(smooth, some, strict=True):
            arrays[i] = x
        out = [y for y in ours(arrays) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum((jnp.sum(jnp.sin(y.astype(jnp.float64))) for y in out), jnp.zeros(()))

    with jax.enable_x64(True):
        mine = jax.grad(loss, tuple(range(len(smooth))))(*(jnp.asarray(values[i]) for i in smooth))
    for i, one, other in zip(floats, mine, slopes, strict=True):
        wanted = np.zeros_like(np.asarray(one)) if other is None else tf.convert_to_tensor(other)
        if problem := apart(one, np.asarray(wanted), 10):
            yield f"gradient of argument {i}: {problem}"


def _concrete(path: Path, name: str) -> tuple[Any, Any]:
    """The function of a name as TensorFlow loads it, and the model, which must be kept alive."""
    theirs, root = load_function(path, name)
    if not hasattr(theirs, "concrete_functions"):
        return theirs, root
    function, bracket, _ = name.partition("(")
    concretes = distinct(theirs.concrete_functions)
    named = dict(zip(trace_names(function, concretes), concretes, strict=True))
    return (named.get(name) if bracket else concretes[0]), root


def _of_variables(entry: EntryPoint, concrete: Any, root: Any) -> Iterator[str]:
    want: dict[str, list[Any]] = {}
    for v in concrete.graph.variables:
        # Reference variables of version 1 are in a session of the loader.
        with contextlib.suppress(TypeError, AttributeError, NotImplementedError):
            v.numpy()
            want.setdefault(v.name.partition(":")[0], []).append(v)
    held = [v for vs in want.values() for v in vs]
    if not held:
        return
    # Keras lists those that are trained; TensorFlow knows how they were made.
    listed = getattr(root, "trainable_variables", None)

    def trained(v: Any) -> bool:
        return bool(v.trainable) if listed is None else any(v is t for t in listed)

    # The loader does not list reference variables; those of Keras have other names.
    listed_by_name = any(param.name in want for param in entry.params)
    for param in entry.params:
        if listed_by_name and param.name not in want:
            continue
        same = [v for v in want.get(param.name, held) if _equal(v.numpy(), param.value)]
        if not same:
            yield f"variable {param.name!r} has another value or shape"
        elif param.stated and all(trained(v) != param.trainable for v in same):
            yield f"variable {param.name!r} is {'' if param.trainable else 'not '}trained"


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.asarray(one).tobytes() == other.tobytes()


def _value(spec: Any, rng: np.random.Generator) -> np.ndarray:
    shape = [n if isinstance(n, int) else 2 for n in spec.shape]
    if spec.dtype.kind in "fcV":
        return np.asarray(rng.standard_normal(shape)).astype(spec.dtype)
    return rng.integers(0, 2, shape).astype(spec.dtype)


def apart(one: Any, other: np.ndarray, factor: float = 1) -> str:
    """How two arrays differ beyond rounding; empty if they do not."""
    one = np.asarray(one)
    if one.shape != other.shape:
        return f"shape {one.shape}, TensorFlow has {other.shape}"
    if jax.dtypes.canonicalize_dtype(one.dtype) != jax.dtypes.canonicalize_dtype(other.dtype):
        return f"dtype {one.dtype}, TensorFlow has {other.dtype}"
    narrow = one.dtype.itemsize < 4 and one.dtype.kind in "fV"
    limit = 2e-2 if narrow else _APART.get(one.dtype.kind, 0.0)
    if not limit:
        return "" if np.array_equal(one, other) else "other values"
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(wide), other.astype(wide)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "other values are finite"
    size = max(1.0, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))))
    far = float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(b))) / size
    return f"{far:.1e} apart" if far > factor * limit else ""
