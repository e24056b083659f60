"""Working memory that the process keeps: it is taken from the system once."""

from __future__ import annotations

import platform
import subprocess
import sys

import jax.numpy as jnp
import pytest

import invert

# The fewest page faults of a call with 64 MB of working memory.
FAULTS = """
import resource, sys
import jax, jax.numpy as jnp
import invert

if sys.argv[1] == "keep":
    assert invert.keep_memory() and invert.keep_memory()
run = jax.jit(lambda x: jnp.dot(jnp.exp(x), x[:, :8]))
x = jnp.ones((4096, 4096))
for _ in range(8):
    run(x).block_until_ready()
counts = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run(x).block_until_ready()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(counts))  # the heap may still grow in some
"""


def faults(choice: str) -> int:
    command = [sys.executable, "-c", FAULTS, choice]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_kept_memory_is_not_taken_again() -> None:
    assert faults("keep") < faults("default") / 4


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_it_says_that_it_comes_too_late() -> None:
    jnp.zeros(2).block_until_ready()
    with pytest.warns(UserWarning, match="before JAX computes anything"):
        assert not invert.keep_memory()


def test_another_c_library_has_no_such_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not invert.keep_memory()
