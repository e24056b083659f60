"""SavedModels that jax2tf of JAX 0.4.30 wrote as TensorFlow graphs.

They load where TensorFlow is not installed, and come back as the original primitives.
"""

from __future__ import annotations

import collections
import itertools
import random
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import invert
from invert.ir.jaxprs import primitive_counts
from tests.damaged_files import damaged_copies

# What each comes back as, at least.
MODELS = {
    "argmax": {"argmax": 1},
    "argsort": {"sort": 1},
    "cholesky": {"cholesky": 1},
    "conv_transpose": {"conv_general_dilated": 1},
    "cummin": {"cummin": 1},
    "cumsum_int": {"cumsum": 1},
    "custom_vjp": {"custom_jvp_call": 1},
    "dot_general_weird": {"dot_general": 1},
    "dynamic_index_update": {"scatter": 1},
    "dynamic_slice": {"dynamic_slice": 1},
    "eig": {"eig": 1, "sort": 1},
    "gather_fill": {"gather": 3},
    "noxla_maxpool": {"reduce_window_max": 1},
    "noxla_scatter_add": {"scatter-add": 1},
    "pad_negative_interior": {"pad": 1},
    "poly_two_dims": {"dot_general": 1},
    "pytree_io": {},
    "reduce_window_max": {"reduce_window_max": 1},
    "reduce_window_mul": {"reduce_window": 1},
    "reduce_window_sum": {"reduce_window_sum": 1},
    "sort": {"sort": 1},
    "top_k": {"top_k": 1},
    "unique_size": {"sort": 1, "cumsum": 2},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("legacy")
    with zipfile.ZipFile(Path(__file__).with_name("legacy_jax2tf.zip")) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.drawn(12)
def test_an_old_graph_comes_back(models: Path, tmp_path: Path, name: str) -> None:
    numbers = np.load(models / f"{name}.npz")

    def all_of(kind: str) -> list[np.ndarray]:
        return [numbers[k] for k in sorted(numbers.files) if k.startswith(kind)]

    module = invert.load(models / name)
    given = all_of("in_")
    inputs = [{"a": given[0], "b": given[1:]}] if name == "pytree_io" else given
    results = jax.tree_util.tree_leaves(module(*inputs))
    for got, want in zip(results, all_of("out_"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert module.report.certificate.kind == "exact"
    counts = primitive_counts(module.jaxpr)
    assert {p: counts[p] for p in MODELS[name]} == MODELS[name]
    if wanted := all_of("grad_"):
        places = [i for i, x in enumerate(given) if x.dtype.kind == "f"]

        def total(*floats: jax.Array) -> jax.Array:
            full: list[Any] = list(given)
            for i, x in zip(places, floats, strict=True):
                full[i] = x
            args = [{"a": full[0], "b": full[1:]}] if name == "pytree_io" else full
            leaves = jax.tree_util.tree_leaves(module(*args))
            return sum((y.sum() for y in leaves if y.dtype.kind == "f"), jax.numpy.zeros(()))

        gradients = jax.grad(total, range(len(places)))(*(given[i] for i in places))
        for got, want in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    invert.save(module, tmp_path / "package")
    again = jax.tree_util.tree_leaves(invert.load(tmp_path / "package")(*inputs))
    for got, want in zip(again, results, strict=True):
        np.testing.assert_array_equal(got, want)


def outcomes(
    models: Path, name: str, work: Path, seed: int, count: int
) -> collections.Counter[str]:
    """Outcomes of loading and running damaged copies of a model.

    Either an error of this package, or results, which only a changed graph can change.
    """
    draw = random.Random(f"{name} {seed}")
    numbers = np.load(models / f"{name}.npz")
    inputs = [numbers[k] for k in sorted(numbers.files) if k.startswith("in_")]
    found: collections.Counter[str] = collections.Counter()
    config = invert.Config(verify=False, custom_gradients="ignore")
    for _ in itertools.islice(damaged_copies(models / name, work, draw), count):
        try:
            invert.load(work, signature="f", config=config)(*inputs)
        except invert.InvertError as error:
            found[type(error).__name__] += 1
        else:
            found["runs"] += 1
    return found


DAMAGED = ("argsort", "noxla_maxpool", "gather_fill", "dot_general_weird", "conv_transpose")


@pytest.mark.parametrize("name", DAMAGED[:2])
def test_damaged_models(models: Path, tmp_path: Path, name: str) -> None:
    found = outcomes(models, name, tmp_path / "copy", 0, 20)
    assert found.total() == 20 and len(found) > 1, found


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED)
def test_many_damaged_models(models: Path, tmp_path: Path, name: str) -> None:
    found = outcomes(models, name, tmp_path / "copy", 1, 400)
    assert found.total() == 400 and found["MalformedModelError"] > 40, found
