"""The serialized modules that JAX keeps to test its own promise of compatibility.

They come from every platform and from 2023 on. All of them must raise; those for the CPU, and those
without custom calls, are run and compared with the outputs that are stored beside them.
"""

from __future__ import annotations

import collections
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.internal_test_util import export_back_compat_test_data as data

import invert
from invert._config import Config
from tests.harness_cases import difference

_SHARDS = "its body runs on shards of several devices"

# Modules that cannot be raised, with the reason.
REFUSED: dict[str, str] = {
    "shardy_sharding_ops_with_different_meshes-data_2025_06_30": _SHARDS,
    "tpu_Sharding-data_2025_06_30-gspmd": _SHARDS,
    "tpu_Sharding-data_2025_06_30-shardy": _SHARDS,
}

# Modules for the CPU whose outputs are not compared: beginning of the name -> reason. LAPACK fixes
# vectors up to a factor, and another build of it chooses another one.
NOT_COMPARED = {
    "cpu_eig_lapack_geev": "eigenvectors are unique up to a factor",
    "cpu_eigh_lapack_syev": "eigenvectors are unique up to a factor",
    "cpu_schur_lapack_gees": "Schur vectors are unique up to a factor",
    "cpu_svd_lapack_gesdd": "singular vectors are unique up to a factor",
}


def _cases(value: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The test cases in a nest of dictionaries and lists."""
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
                if id(case) not in seen:  # some stand under two names
                    seen.add(id(case))
                    found[name] = case
    return found


def _raise(case: dict[str, Any]) -> invert.Module:
    return invert.from_stablehlo(case["mlir_module_serialized"], config=Config())


def _shapes_are_static(case: dict[str, Any]) -> bool:
    return (
        "?" not in case["mlir_module_text"].partition("func.func public @main")[2].split("{\n")[0]
    )


@pytest.mark.parametrize("name", sorted(modules()))
def test_module(name: str) -> None:
    case = modules()[name]
    if name in REFUSED:
        with pytest.raises(invert.UnsupportedOpError, match="shards"):
            _raise(case)
        return
    module = _raise(case)
    inputs = [np.asarray(x) for x in case["inputs"]]
    with jax.enable_x64(True):
        if not _takes(module, inputs):
            # The stored call passes sizes or the platform beside the arrays.
            assert case.get("nr_devices", 1) > 1
            return
        jaxpr = jax.make_jaxpr(module)(*inputs)
        assert len(jaxpr.out_avals) == len(case["expected_outputs"])
        if (case["custom_call_targets"] and case["platform"] != "cpu") or name.startswith(
            tuple(NOT_COMPARED)
        ):
            return
        got = [np.asarray(x) for x in jax.tree_util.tree_leaves(module(*inputs))]
    want = [np.asarray(x) for x in case["expected_outputs"]]
    assert (text := difference(got, want, factor=10)) is None, text


def _takes(module: invert.Module, inputs: list[np.ndarray]) -> bool:
    return len(module._function.specs) == len(inputs)


def test_all_modules_are_found() -> None:
    platforms = collections.Counter(case["platform"] for case in modules().values())
    compared = sum(not case["custom_call_targets"] for case in modules().values())
    print(f"{len(modules())} modules ({dict(platforms)}), {compared} without custom calls")
    assert len(modules()) >= 142
    assert set(platforms) >= {"cpu", "cuda", "rocm", "tpu"}
    assert set(REFUSED) <= set(modules())
    for start in NOT_COMPARED:
        assert any(name.startswith(start) for name in modules())
