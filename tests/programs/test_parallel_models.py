"""Models for several devices come back with equal values, gradients and collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.programs.parallel_models import CASES

# What the recovered program leaves out since nothing uses it.
_UNUSED = {"pipeline": {"slice", "squeeze", "pvary"}}
# Conversions to the same type leave nothing in StableHLO.
_LEAVES_NOTHING = {"convert_element_type"}


def _run(partitioner: str, route: str, cases: str, counts: str) -> list[dict[str, Any]]:
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.run_parallel_models",
         partitioner, route, cases, counts],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _check(found: dict[str, Any]) -> None:
    name = found["case"]
    assert found["values"] == found["text"] == 0.0, found
    # On arrays without a mesh, under `jit` too. There, a program with constraints only runs on one
    # device.
    assert found["nowhere"] <= 1e-5, found
    assert found["gradients"] <= 1e-5, found
    if found["devices"] == 1:
        return  # a `shard_map` over one device is lowered as its body, with nothing around it
    assert found["certificate"].removesuffix(" for every b >= 1") == "exact", found
    ours, theirs = found["primitives"]
    differing = {p for p in {*ours, *theirs} if ours.get(p) != theirs.get(p)}
    allowed = _UNUSED.get(name, set()) | _LEAVES_NOTHING
    assert differing <= allowed, (name, differing)
    for key in ("collectives", "of gradients"):
        assert found[key][0] == found[key][1], found
    assert found["collectives"][0], found


@pytest.mark.parametrize("partitioner", ["shardy", pytest.param("gspmd", marks=pytest.mark.slow)])
def test_a_pipeline_and_experts(partitioner: str) -> None:
    for found in _run(partitioner, "export", "experts,pipeline", "8"):
        _check(found)


def test_sizes_of_shards_are_open() -> None:
    for found in _run("shardy", "open", "experts,ring_attention", "8"):
        assert found["certificate"] == "exact for every b >= 1", found
        _check(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("route", ["export", "open", "saved_model"])
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_model(partitioner: str, route: str, name: str) -> None:
    counts = "8" if route == "saved_model" else "8,4,1"
    found = _run(partitioner, route, name, counts)
    assert len(found) == len(counts.split(","))
    for each in found:
        _check(each)
