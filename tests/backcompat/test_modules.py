"""The serialized modules that JAX keeps to test its own backward compatibility.

They come from every platform, from 2023 on. All of them must convert without opaque equations and
run on the CPU, where results are compared with the stored outputs. The tables below have the
exceptions and their reasons.
"""

from __future__ import annotations

import collections
import functools
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.internal_test_util import export_back_compat_test_data as data

import invert
from invert.ir.jaxprs import opaque_targets
from tests.harness_cases import difference

# Modules for two devices.
SHARDED = (
    "shardy_sharding_ops_with_different_meshes-data_2025_06_30",
    "tpu_Sharding-data_2025_06_30-gspmd",
    "tpu_Sharding-data_2025_06_30-shardy",
)

# Modules that keep opaque equations: beginning of the name -> reason.
OPAQUE = {
    "pallas.mosaic": "a kernel in the language of one platform, which no JAX primitive stands for",
    "pallas.triton": "a kernel in the language of one platform, which no JAX primitive stands for",
}

# Modules whose outputs are not compared, with the reason.
NOT_COMPARED = {
    "tpu_stablehlo_dynamic_reduce_window-data_variadic_2023_06_17": "its reducer subtracts and its "
    "initial value is not neutral, so the result depends on the order of evaluation",
}


def _matrices(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _of_eigh(v: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    return [(v * w[..., None, :]) @ _matrices(v), _matrices(v) @ v, w]


def _of_eig(w: np.ndarray, left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    # The matrix from either side; what belongs to an eigenvalue of zero has no part in it.
    kept = (np.abs(w) > 1e-4)[..., None, :]
    scale = np.where(kept, w[..., None, :] / np.sum(left.conj() * right, -2, keepdims=True), 0)
    return [w, (right * scale) @ _matrices(left)]


def _of_schur(t: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    return [v @ t @ _matrices(v), _matrices(v) @ v]


def _of_svd(u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> list[np.ndarray]:
    k = s.shape[-1]
    product = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
    return [product, s, _matrices(u) @ u, vh @ _matrices(vh)]


def _of_pivots(permutation: np.ndarray) -> list[np.ndarray]:
    return [permutation[0, :2]]  # the other pivots point outside of the permutation


# Outputs that are not unique, or not all defined: word in the name -> what is compared of them.
INVARIANTS = {
    "_eigh_": _of_eigh,
    "tpu_Eigh": _of_eigh,
    "_eig_": _of_eig,
    "_schur_": _of_schur,
    "_svd_": _of_svd,
    "_lu_pivots_to_permutation-": _of_pivots,
}


def _cases(value: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The test cases in nested dictionaries and lists."""
    if isinstance(value, dict) and "mlir_module_serialized" in value:
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _cases(inner, f"{name}-{key}")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _cases(inner, f"{name}-{i}")


@functools.cache
def modules() -> dict[str, dict[str, Any]]:
    """Every serialized module that ships with JAX, by a readable name."""
    found: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for info in pkgutil.walk_packages(data.__path__, data.__name__ + "."):
        module = importlib.import_module(info.name)
        stem = info.name.removeprefix(data.__name__ + ".")
        for variable, value in sorted(vars(module).items()):
            if variable.startswith("__"):
                continue
            for name, case in _cases(value, f"{stem}-{variable}"):
                if id(case) not in seen:  # some have two names
                    seen.add(id(case))
                    found[name] = case
    return found


def _raise(case: dict[str, Any]) -> invert.Module:
    return invert.from_stablehlo(case["mlir_module_serialized"], config=invert.Config())


@pytest.mark.parametrize("name", sorted(modules()))
def test_module(name: str) -> None:
    case = modules()[name]
    module = _raise(case)
    inputs = [np.asarray(x) for x in case["inputs"]]
    if name in SHARDED and jax.device_count() < 2:
        with pytest.raises(invert.MeshError, match="needs 2 devices, but this process has 1"):
            module(*inputs)
        return
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(module)(*inputs)
        assert len(jaxpr.out_avals) == len(case["expected_outputs"])
        opaque = opaque_targets(jaxpr.jaxpr)
        assert bool(opaque) == name.startswith(tuple(OPAQUE)), opaque
        if opaque or name in NOT_COMPARED:
            return
        got = [np.asarray(x) for x in jax.tree_util.tree_leaves(module(*inputs))]
    want = [np.asarray(x) for x in case["expected_outputs"]]
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in want]
    for word, invariant in INVARIANTS.items():
        if word in name:
            got, want = invariant(*got), invariant(*want)
    assert (text := difference(got, want, factor=10)) is None, text


def test_modules_for_two_devices() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    code = "import sys; from tests.backcompat.test_modules import test_module as run\n"
    code += "for name in sys.argv[1:]: run(name)"
    subprocess.run(
        [sys.executable, "-c", code, *SHARDED],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


def test_all_modules_are_found() -> None:
    platforms = collections.Counter(case["platform"] for case in modules().values())
    print(f"{len(modules())} modules ({dict(platforms)})")
    assert len(modules()) >= 142
    assert set(platforms) >= {"cpu", "cuda", "rocm", "tpu"}
    assert set(SHARDED) | set(NOT_COMPARED) <= set(modules())
    for word in (*OPAQUE, *INVARIANTS):
        assert any(word in name for name in modules())
