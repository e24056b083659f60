"""Each size of each program is compiled; compiled programs are dropped after each test."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _drop_compiled_programs() -> Iterator[None]:
    yield
    jax.clear_caches()
