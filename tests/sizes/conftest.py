"""Drops compiled programs after each test, since each program is compiled at each size."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _drop_compiled_programs() -> Iterator[None]:
    yield
    jax.clear_caches()
