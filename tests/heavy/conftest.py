"""Settings of the tests of model libraries."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _programs_of_one_test() -> Iterator[None]:
    """A test module compiles hundreds of large programs, which would add up to gigabytes."""
    yield
    jax.clear_caches()
