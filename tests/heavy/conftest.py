"""Settings of the tests of libraries of models."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _programs_of_one_test() -> Iterator[None]:
    """A module of tests compiles hundreds of large programs, which add up to gigabytes."""
    yield
    jax.clear_caches()
