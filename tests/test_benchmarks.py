"""Benchmarks that write programs run to the end: no other test notices a moved name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "last"),
    [
        ("emission.py", ["1000"], "one class"),
        ("layers.py", ["3"], "largest difference of gradients"),
        ("raising.py", [], "verify"),
    ],
)
def test_a_benchmark_runs(script: str, arguments: list[str], last: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert last in done.stdout.splitlines()[-1]
