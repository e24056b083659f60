"""Settings shared by all tests.

The platform, fast compilation, quiet TensorFlow, bounded memory, hypothesis, the draw of slow
cases, and a time budget.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# Read once, when JAX and TensorFlow are first imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Nothing that a test works out is kept beyond it.
os.environ.setdefault("INVERT_CACHE_DIR", "")
# Half of the time went into compiling programs that run once. LLVM does not optimize them here
# (`make test-all` lets it), and XLA compiles equal programs once: those of the original and of what
# was recovered, and those of the last run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
import numpy as np
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


_STARTED = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests once the budget is spent; seed random numbers per test file."""
    budget = item.config.getoption("budget")
    if budget is not None and time.monotonic() - _STARTED > budget:
        pytest.skip("out of time: `make test` runs it")
    seed = zlib.crc32(item.path.name.encode())
    random.seed(seed)  # Keras draws the seeds of its weights from it
    np.random.seed(seed)
    for value in vars(getattr(item, "module", None) or object).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cases")
    group.addoption("--every-case", action="store_true", help="no draw among slow cases")
    group.addoption("--draw-seed", type=int, default=0, help="seed of the draws, 0 by default")
    group.addoption("--budget", type=float, help="seconds after which no further test begins")


# Of the slow cases of a test, as many run by default; `drawn(n)` is for those whose cases take a
# second or a minute, and for tests of many cases that are not slow.
DRAWN = 4


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep `DRAWN` of the requested slow cases of each test, or as many as its mark says."""
    if config.getoption("every_case"):
        return
    cases: dict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        slow, drawn = (item.get_closest_marker(name) is not None for name in ("slow", "drawn"))
        if slow or drawn:
            # Those that are not slow are drawn by themselves: they run in `make test` too.
            cases[item.nodeid.partition("[")[0], slow].append(item)
    left_out: set[pytest.Item] = set()
    for (test, _), found in cases.items():
        mark = found[0].get_closest_marker("drawn")
        size = DRAWN if mark is None else mark.args[0]
        # By name, so that the draw does not depend on the order of collection.
        found = sorted(found, key=lambda item: item.nodeid)
        draw = random.Random(f"{config.getoption('draw_seed')} {test}")
        left_out.update(draw.sample(found, max(0, len(found) - size)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
