"""Settings of the tests of model libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import pytest


@pytest.fixture(autouse=True)
def _programs_of_one_test() -> Iterator[None]:
    """A test module compiles hundreds of large programs, which would add up to gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def keras() -> Iterator[Any]:
    """Keras on TensorFlow, with KerasHub installed."""
    keras = pytest.importorskip("keras")
    pytest.importorskip("keras_hub")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework")
    keras.utils.set_random_seed(0)
    yield keras
    keras.backend.clear_session()
