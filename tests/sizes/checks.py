"""Requirements on programs with open sizes: as modules, text, packages and new exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import invert

# Numbers for the dimensions, in order of appearance. Nothing else uses these sizes together.
FEW = ((5, 9, 6), (1, 1, 1))
MANY = (
    *FEW, (16, 3, 2), (34, 21, 3), (2, 2, 2), (3, 4, 5), (4, 3, 7), (6, 5, 4), (7, 10, 3),
    (8, 8, 8), (9, 6, 2), (10, 7, 3), (12, 16, 4), (15, 17, 5), (17, 12, 6), (20, 33, 2),
    (24, 11, 3), (31, 14, 4), (32, 63, 2), (65, 64, 3), (100, 20, 2),
)  # fmt: skip
# Each size is compiled for each form of a program, which takes minutes for all of them.
PARTS = 4


def random_arrays(shapes: Sequence[tuple[Sequence[int], Any]], seed: int) -> list[np.ndarray]:
    """An array for each shape and dtype: floats around zero, integers from 0 to 30."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(
            rng.integers(0, 30, shape)
            if np.issubdtype(dtype, np.integer)
            else rng.normal(size=shape)
        ).astype(dtype)
        for shape, dtype in shapes
    ]


def assert_same(got: Any, wanted: Any, what: str) -> None:
    """Compare up to reordered sums, whose terms may be as large as the largest number."""
    got, wanted = jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(wanted)
    assert len(got) == len(wanted), what
    for x, y in zip(got, wanted, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape, f"{what}: {x.shape}, not {y.shape}"
        assert x.dtype == y.dtype, f"{what}: {x.dtype}, not {y.dtype}"
        finite = np.abs(y[np.isfinite(y)]) if y.dtype.kind in "fc" else ()
        largest = np.max(finite, initial=1.0)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5 * largest, err_msg=what)


def often(names: Iterable[str], *always: str) -> list[Any]:
    """The programs as parameters of a test; two thirds of them are slow tests, but for `always`."""
    return [
        pytest.param(name, marks=[] if i % 3 == 0 or name in always else pytest.mark.slow)
        for i, name in enumerate(names)
    ]


def forms(
    module: Any,
    types: Sequence[jax.ShapeDtypeStruct],
    directory: Path | None = None,
    exported: bool = True,
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The module and its text; with a directory, also a package and symbolic exports of both.

    `exported=False`: JAX cannot export such a program.
    """
    emission = module.emit()
    yield "module", module
    yield "text", emission.model
    if directory is None:
        return
    invert.save(module, directory)
    yield "package", invert.load(directory)
    for name, function in (("module", module), ("text", emission.model)) if exported else ():
        again = jax.export.export(jax.jit(lambda *xs, f=function: f(*xs)))(*types)
        yield f"{name}, exported again", again.call


def called(form: Callable[..., Any], args: Sequence[np.ndarray], compiled: bool) -> Any:
    """The results, compiled as a whole, since running op by op takes long."""
    return (jax.jit(lambda *xs: form(*xs)) if compiled else form)(*args)


def gradient(function: Callable[..., Any], args: Sequence[np.ndarray]) -> Any:
    """The derivative of a sum of the results with respect to all float arguments."""
    places = [i for i, x in enumerate(args) if np.issubdtype(x.dtype, np.floating)]

    def total(*xs: Any) -> Any:
        given = list(args)
        for i, x in zip(places, xs, strict=True):
            given[i] = x
        leaves = jax.tree_util.tree_leaves(function(*given))
        return sum(
            jnp.sum(jnp.cos(x) * x) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)
        ) + jnp.zeros(())

    return jax.jit(jax.grad(total, tuple(range(len(places)))))(*(args[i] for i in places))
