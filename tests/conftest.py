"""Settings every test shares: the platform, quiet TensorFlow, bounded memory, hypothesis."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Read once, when JAX and TensorFlow are first imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import jax
import pytest

# Compilation dominates and its time varies too much for a deadline per example. Derandomized:
# a push fails because of what it changes, not because of the draw.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="module", autouse=True)
def _bounded_caches() -> Iterator[None]:
    """Compiled programs of thousands of small cases would otherwise stay in memory."""
    yield
    jax.clear_caches()
